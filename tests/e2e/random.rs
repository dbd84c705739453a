//! Random values of every type, and of arrays, ranges, multiranges, composites and domains over them, with the server as
//! oracle: what the copy publishes, what the stream publishes and what the server writes are one text.
//!
//! `TRIBUTARY_VALUES` takes another number of values for each type.

mod draw;

use std::collections::BTreeMap;
use std::time::Duration;

use harness::World;
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemas::key::Canonical;
use schemas::{ChangeEvent, Columns, Operation};
use tokio_postgres::{Client, SimpleQueryMessage};

use draw::{BASE, Draw, MOODS, RANGES};

const READY_WITHIN: Duration = Duration::from_secs(180);

/// How many values of each type the suite tries.
fn values() -> usize {
    let text = std::env::var("TRIBUTARY_VALUES").unwrap_or("300".to_owned());
    text.parse().expect("TRIBUTARY_VALUES is a number")
}

/// A column of the wide table: its type, and how its values are drawn.
struct Kind {
    name: String,
    draw: Box<dyn Fn(&mut ChaCha8Rng) -> String + Send>,
}

fn kind(name: impl Into<String>, draw: impl Fn(&mut ChaCha8Rng) -> String + Send + 'static) -> Kind {
    Kind { name: name.into(), draw: Box::new(draw) }
}

/// All types, those of the server under test: hstore where it has it.
fn kinds(hstore: bool) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (name, draw) in BASE.iter().copied() {
        kinds.push(kind(name, draw));
        kinds.push(kind(format!("{name}[]"), move |random: &mut ChaCha8Rng| draw::array(random, name, draw)));
    }
    for range in RANGES.iter().copied() {
        kinds.push(kind(range.0, move |random: &mut ChaCha8Rng| draw::range(random, range)));
        kinds.push(kind(range.1, move |random: &mut ChaCha8Rng| draw::multirange(random, range)));
    }
    kinds.push(kind("int4range[]", |random: &mut ChaCha8Rng| {
        draw::array(random, "int4range", |r| draw::range(r, RANGES[0]))
    }));
    kinds.push(kind("random.everything", everything));
    kinds.push(kind("random.everything[]", |random: &mut ChaCha8Rng| {
        draw::array(random, "random.everything", everything)
    }));
    for (name, _, draw) in DOMAINS.iter().copied() {
        kinds.push(kind(name, draw));
        kinds.push(kind(format!("{name}[]"), move |random: &mut ChaCha8Rng| draw::array(random, name, draw)));
    }
    if hstore {
        kinds.push(kind("public.hstore", draw::hstore));
    }
    kinds
}

const DOMAINS: &[(&str, &str, Draw)] = &[
    ("random.amount", "numeric(20,4)", |random| format!("{}.5", random.random::<i32>())),
    ("random.words", "text", |random| draw::literal(&draw::text(random, 12))),
    ("random.since", "timestamptz", |random| draw::base("timestamptz")(random)),
    ("random.numbers", "integer[]", |random| draw::array(random, "integer", draw::base("integer"))),
    ("random.whole", "random.everything", everything),
];

/// A composite of every base type, some of them NULL.
fn everything(random: &mut ChaCha8Rng) -> String {
    let field = |random: &mut ChaCha8Rng, (name, draw): (&str, Draw)| match random.random_range(0..5) {
        0 => "NULL".to_owned(),
        _ => format!("({})::{name}", draw(random)),
    };
    let fields: Vec<String> = BASE.iter().map(|base| field(random, *base)).collect();
    format!("ROW({})::random.everything", fields.join(", "))
}

/// The types that the wide table's own types are made of.
fn types(hstore: bool) -> Vec<String> {
    let moods: Vec<String> = MOODS.iter().map(|mood| format!("'{}'", mood.replace('\'', "''"))).collect();
    let fields: Vec<String> = BASE.iter().enumerate().map(|(i, (name, _))| format!("f{i} {name}")).collect();
    let mut types = vec![
        format!("CREATE TYPE random.mood AS ENUM ({})", moods.join(", ")),
        "CREATE TYPE random.textrange AS RANGE (subtype = text, collation = \"C\")".to_owned(),
        format!("CREATE TYPE random.everything AS ({})", fields.join(", ")),
    ];
    types.extend(DOMAINS.iter().map(|(name, of, _)| format!("CREATE DOMAIN {name} AS {of}")));
    types.extend(hstore.then(|| "CREATE EXTENSION hstore SCHEMA public".to_owned()));
    types
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_stream_and_server_agree_on_random_values() {
    let hstore = matches!(harness::place::postgres_major().expect("a known major"), 14 | 15 | 17);
    let kinds = kinds(hstore);
    let columns: String = kinds.iter().enumerate().map(|(i, kind)| format!(", c{i} {}", kind.name)).collect();
    let wide = Table::new("random.wide", &["id"], &format!("id integer PRIMARY KEY{columns}"))
        .after("ALTER TABLE {table} REPLICA IDENTITY FULL");
    let wide = types(hstore).iter().fold(wide, |table, sql| table.before(sql));
    let mut world = World::builder().table(wide.clone()).start().await;
    let (mut random, rows) = (ChaCha8Rng::seed_from_u64(world.seed), values());
    let source = world.source(Role::Superuser).await;
    for id in 0..rows {
        let values: Vec<String> = kinds.iter().map(|kind| (kind.draw)(&mut random)).collect();
        insert(&source, &kinds, id, &values).await;
    }
    let written = texts(&source, rows).await;

    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    // The same values once more, by the stream, and then each row's values on the row behind it.
    let names: String = (0..kinds.len()).map(|i| format!(", c{i}")).collect();
    let set: Vec<String> = (0..kinds.len()).map(|i| format!("c{i} = next.c{i}")).collect();
    world
        .in_source(&format!(
            "INSERT INTO random.wide (id{names}) SELECT id + {rows}{names} FROM random.wide ORDER BY id;
             UPDATE random.wide SET {} FROM random.wide next WHERE wide.id < {rows} AND next.id = {rows} + (wide.id + 1) % {rows};
             DELETE FROM random.wide WHERE id >= {rows}",
            set.join(", ")
        ))
        .await;
    world.until_equal().await;
    world.check_topics().await;
    world.check_nothing_parked(&["rdb"]).await;

    let mut seen = BTreeMap::<String, usize>::new();
    for record in world.topic(&wide).await.rows() {
        let value = record.value.as_deref().expect("a row change has a value");
        let event = ChangeEvent::decode(value.as_bytes()).expect("the contract's own reader reads it");
        let key = Columns::decode(record.key.as_deref().unwrap_or_default().as_bytes()).expect("a key of ours");
        let id: usize = key.get("id").flatten().and_then(|id| id.parse().ok()).expect("the key is a number");
        let (now, then) = match event.operation {
            Operation::Read | Operation::Create => (Some(id % rows), None),
            Operation::Update => (Some((id + 1) % rows), Some(id)),
            _ => (None, Some(id % rows)),
        };
        *seen.entry(format!("{:?}", event.operation)).or_default() += 1;
        for (row, columns) in [(now, &event.after), (then, &event.before)] {
            let (Some(row), Some(columns)) = (row, columns) else { continue };
            for (i, kind) in kinds.iter().enumerate() {
                let found = columns.get(&format!("c{i}")).flatten();
                assert_eq!(found, written[row][i].as_deref(), "{} by {:?}", kind.name, event.operation);
            }
        }
    }
    let expected = ["Create", "Delete", "Read", "Update"].map(|name| (name.to_owned(), rows));
    assert_eq!(seen, BTreeMap::from(expected), "every row was copied, inserted, updated and deleted");
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// Routing, folding and parking go by a key's canonical text: it must tell keys apart exactly as the server does.
#[tokio::test]
async fn canonical_texts_are_equal_exactly_where_the_server_says_so() {
    let world = World::builder().start().await;
    let source = world.source(Role::Superuser).await;
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    for (name, draw) in BASE.iter().filter(|(name, _)| *name != "random.mood") {
        let oid: u32 = source
            .query_one("SELECT $1::text::regtype::oid", &[name])
            .await
            .unwrap_or_else(|cause| panic!("{name}: {cause}"))
            .get(0);
        let Some(canonical) = Canonical::of_type(oid) else { continue };
        // Each value once as it is, and once by another way to write it, where there is one.
        let twins = (0..values()).flat_map(|_| {
            let value = draw(&mut random);
            let twin = match *name {
                "numeric" => format!("({value})::numeric * 1.000"),
                "double precision" => format!("({value})::float8 * 1 + 0"),
                "real" => format!("({value})::float4 - 0::float4"),
                _ => value.clone(),
            };
            [value, twin]
        });
        let list: Vec<String> = twins.map(|value| format!("(({value})::{name})")).collect();
        let ranked = format!("SELECT v, dense_rank() OVER (ORDER BY v) FROM (VALUES {}) t (v)", list.join(", "));
        let mut ranks = BTreeMap::<String, String>::new();
        let mut texts = BTreeMap::<String, String>::new();
        for row in rows(&source, &ranked).await {
            let (text, rank) = (row[0].clone().expect("never null"), row[1].clone().expect("never null"));
            let canonical = canonical.text(&text).into_owned();
            let known = ranks.entry(canonical.clone()).or_insert_with(|| rank.clone());
            assert_eq!(*known, rank, "{name}: {text:?} has the canonical text of another value");
            let known = texts.entry(rank).or_insert_with(|| canonical.clone());
            assert_eq!(*known, canonical, "{name}: {text:?} equals a value with another canonical text");
        }
        assert!(ranks.len() > 1, "{name}: several values were drawn");
    }
    world.finish().await;
}

async fn insert(source: &Client, kinds: &[Kind], id: usize, values: &[String]) {
    let cast: Vec<String> = values.iter().zip(kinds).map(|(value, kind)| format!("({value})::{}", kind.name)).collect();
    let sql = format!("INSERT INTO random.wide VALUES ({id}, {})", cast.join(", "));
    if let Err(whole) = source.batch_execute(&sql).await {
        // Which of them it was.
        for value in &cast {
            let sql = format!("SELECT {value}");
            source.batch_execute(&sql).await.unwrap_or_else(|cause| panic!("{cause:?}: {sql}"));
        }
        panic!("{whole:?}");
    }
}

/// What the server writes for each column of each row, without the id.
async fn texts(source: &Client, expected: usize) -> Vec<Vec<Option<String>>> {
    source.batch_execute("SET search_path = pg_catalog").await.expect("the setting is known");
    let rows = rows(source, "SELECT * FROM random.wide ORDER BY id").await;
    assert_eq!(rows.len(), expected);
    rows.into_iter().map(|mut row| row.split_off(1)).collect()
}

async fn rows(client: &Client, sql: &str) -> Vec<Vec<Option<String>>> {
    let answer = client.simple_query(sql).await.unwrap_or_else(|cause| panic!("{cause:?}: {sql}"));
    let texts = |message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()),
        _ => None,
    };
    answer.into_iter().filter_map(texts).collect()
}
