//! Keys of every kind, in chunks of three rows, while rows come, go, change, and get other keys: also such as PostgreSQL calls
//! equal to the ones that they had.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::*;

/// How many keys the rows of a table share.
const KEYS: u32 = 30;

/// A kind of key.
struct Kind {
    /// The table's name, in the schema `keys`.
    name: &'static str,
    /// Its key columns with their types, and what makes them the key.
    columns: &'static str,
    /// What stands behind the table.
    after: &'static str,
    /// SQL for each column of key number `{i}`, with `{v}` of 0 or 1: two ways to write what PostgreSQL calls equal, if the
    /// type has two.
    values: &'static [&'static str],
}

const fn kind(name: &'static str, columns: &'static str, values: &'static [&'static str]) -> Kind {
    Kind { name, columns, after: "", values }
}

const TYPES: &str = "
    CREATE SCHEMA keys;
    CREATE TYPE keys.mood AS ENUM ('m9', 'm8', 'm7', 'm6', 'm5', 'm4', 'm3', 'm2', 'm1', 'm0');
    CREATE TYPE keys.pair AS (n int, t text);
    CREATE DOMAIN keys.price AS numeric(12,2);
    CREATE DOMAIN keys.pairs AS keys.pair";

/// What every server has.
const PLAIN: &[Kind] = &[
    kind("texts", "k text PRIMARY KEY", &["(ARRAY['ä', 'a', 'B', 'b', '', 'Z z', E'\\t', '_'])[1 + {i} % 8] || {i}"]),
    kind("c_texts", "k text COLLATE \"C\" PRIMARY KEY", &["(ARRAY['ä', 'a', 'B', 'b'])[1 + {i} % 4] || {i}"]),
    kind("chars", "k char(6) PRIMARY KEY", &["'c' || {i} || repeat(' ', {v} * 2)"]),
    kind("names", "k name PRIMARY KEY", &["'n' || {i}"]),
    kind("uuids", "k uuid PRIMARY KEY", &["md5({i}::text)::uuid"]),
    kind(
        "numerics",
        "k numeric PRIMARY KEY",
        &[
            "(ARRAY['NaN', ({i} * 7 % 30)::text, {i} || '.' || repeat('0', 1 + {v}), '-' || {i} || '.5'])[1 + CASE WHEN {i} = 0 THEN 0 ELSE 1 + {i} % 3 END]::numeric + CASE WHEN {i} % 3 = 0 THEN 1000 ELSE 0 END",
        ],
    ),
    kind(
        "floats",
        "k float8 PRIMARY KEY",
        &[
            "CASE {i} WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' WHEN 2 THEN CASE {v} WHEN 0 THEN '-0' ELSE '0' END ELSE ({i} / 7.0)::text END::float8",
        ],
    ),
    kind("enums", "k keys.mood, n int, PRIMARY KEY (k, n)", &["('m' || {i} % 10)::keys.mood", "{i} / 10"]),
    kind(
        "stamps",
        "k timestamptz PRIMARY KEY",
        &[
            "CASE {i} WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' ELSE '2024-01-01'::timestamptz + {i} * '7 hours'::interval END",
        ],
    ),
    kind(
        "dates",
        "k date PRIMARY KEY",
        &["CASE {i} WHEN 0 THEN 'infinity' WHEN 1 THEN '0044-03-15 BC' ELSE '2024-01-01'::date + {i} END"],
    ),
    kind(
        "intervals",
        "k interval PRIMARY KEY",
        &["CASE {v} WHEN 0 THEN make_interval(months => {i}) ELSE make_interval(days => 30 * {i}) END"],
    ),
    kind("bytes", "k bytea PRIMARY KEY", &["decode(lpad(to_hex({i} * 37 % 256), 2, '0') || '00', 'hex')"]),
    kind("flags", "k boolean, n int, PRIMARY KEY (n, k)", &["{i} % 2 = 0", "{i} / 2"]),
    kind("nets", "k inet PRIMARY KEY", &["('10.0.' || {i} || '.1/' || 16 + {i} % 9)::inet"]),
    kind("bits", "k varbit PRIMARY KEY", &["{i}::bit(8)::varbit"]),
    kind("arrays", "k int[] PRIMARY KEY", &["ARRAY[{i} % 3, NULL, {i}]"]),
    kind("ranges", "k int4range PRIMARY KEY", &["CASE {i} WHEN 0 THEN 'empty' ELSE int4range({i}, {i} * 2) END"]),
    kind("rows", "k keys.pair PRIMARY KEY", &["ROW({i} % 4, 'a \"' || {i})::keys.pair"]),
    kind("domains", "k keys.price PRIMARY KEY", &["{i} * 1.5"]),
    kind("row_domains", "k keys.pairs PRIMARY KEY", &["ROW({i}, NULL)::keys.pairs"]),
    kind(
        "composites",
        "t text, n numeric, d date, PRIMARY KEY (d, t, n)",
        &["'t' || {i} % 3", "({i} || '.' || repeat('0', 1 + {v}))::numeric", "'2024-01-01'::date + {i} % 4"],
    ),
    Kind {
        name: "patterns",
        columns: "k text NOT NULL",
        after: "CREATE UNIQUE INDEX patterns_k ON {table} (k text_pattern_ops); ALTER TABLE {table} REPLICA IDENTITY USING INDEX patterns_k",
        values: &["(ARRAY['ä', 'a', 'B', 'b'])[1 + {i} % 4] || {i}"],
    },
];

/// Where there are ICU's collations: from 16 on one of them is listed by servers that were built without it, too. The second table's index tells apart what its column's collation calls equal.
const ICU: &[Kind] = &[
    kind("blurred", "k text COLLATE keys.blind PRIMARY KEY", &["CASE {v} WHEN 0 THEN 'key ' ELSE 'KEY ' END || {i}"]),
    Kind {
        name: "sharp",
        columns: "k text COLLATE keys.blind NOT NULL",
        after: "CREATE UNIQUE INDEX sharp_k ON {table} (k COLLATE \"C\"); ALTER TABLE {table} REPLICA IDENTITY USING INDEX sharp_k",
        values: &["(ARRAY['key', 'KEY', 'Key', 'kEY', 'keY', 'KEy'])[1 + {i} % 6] || {i} / 6"],
    },
];

/// Where there are these extensions, whose operators stand in the schema `public`.
const CONTRIB: &[Kind] = &[
    kind(
        "citexts",
        "k public.citext PRIMARY KEY",
        &["(CASE {v} WHEN 0 THEN 'Key ' ELSE 'kEY ' END || {i})::public.citext"],
    ),
    kind(
        "citext_pairs",
        "k public.citext, n int, PRIMARY KEY (n, k)",
        &["(CASE {v} WHEN 0 THEN 'Key ' ELSE 'kEY ' END || {i} / 3)::public.citext", "{i} % 3"],
    ),
    kind("trees", "k public.ltree PRIMARY KEY", &["('Top.A_' || {i} % 7 || '.x' || {i})::public.ltree"]),
    kind("books", "k public.issn PRIMARY KEY", &["(lpad((1000000 + {i})::text, 7, '0') || '?')::public.issn"]),
];

impl Kind {
    fn table(&self) -> Table {
        let key: Vec<&str> = match self.columns.split_once("PRIMARY KEY (") {
            Some((_, list)) => list.trim_end_matches(')').split(", ").collect(),
            None => vec!["k"],
        };
        let columns = match self.columns.split_once(", PRIMARY KEY") {
            Some((columns, rest)) => format!("{columns}, note text, PRIMARY KEY{rest}"),
            None => format!("{}, note text", self.columns),
        };
        let table = Table::new(&format!("keys.{}", self.name), &key, &columns);
        if self.after.is_empty() { table } else { table.after(self.after) }
    }

    /// The columns of the key in the order of `values`.
    fn names(&self) -> Vec<&str> {
        let columns = self.columns.split(", PRIMARY KEY (").next().unwrap_or_default();
        columns.split(", ").filter_map(|column| column.split(' ').next()).collect()
    }

    fn key(&self, i: u32, v: u32) -> Vec<String> {
        let value = |sql: &&str| sql.replace("{i}", &i.to_string()).replace("{v}", &v.to_string());
        self.values.iter().map(value).collect()
    }

    fn is(&self, key: &[String]) -> String {
        self.names()
            .iter()
            .zip(key)
            .map(|(name, value)| format!("{name} = ({value})"))
            .collect::<Vec<_>>()
            .join(" AND ")
    }

    fn statement(&self, random: &mut ChaCha8Rng) -> String {
        let table = format!("keys.{}", self.name);
        let (i, v) = (random.random_range(0..KEYS), random.random_range(0..2));
        let (key, is) = (self.key(i, v), self.is(&self.key(i, v)));
        match random.random_range(0..10) {
            0..=3 => format!(
                "INSERT INTO {table} ({}, note) SELECT {}, 'new {v}' ON CONFLICT DO NOTHING",
                self.names().join(", "),
                key.join(", ")
            ),
            4..=5 => format!("UPDATE {table} SET note = note || '!' WHERE {is}"),
            6..=7 => format!("DELETE FROM {table} WHERE {is}"),
            8 => format!("UPDATE {table} SET {} WHERE {is}", self.set(&self.key(i, 1 - v))),
            _ => format!("UPDATE {table} SET {} WHERE {is}", self.set(&self.key(random.random_range(0..KEYS), v))),
        }
    }

    fn set(&self, key: &[String]) -> String {
        self.names().iter().zip(key).map(|(name, value)| format!("{name} = ({value})")).collect::<Vec<_>>().join(", ")
    }
}

async fn write(client: Client, kinds: Vec<&'static Kind>, seed: u64, stop: CancellationToken) -> u32 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut done = 0;
    client.batch_execute("SET search_path = pg_catalog, public").await.expect("a setting");
    while !stop.is_cancelled() {
        let kind = kinds[random.random_range(0..kinds.len())];
        // A key that is taken refuses a change, and nothing else does.
        match client.batch_execute(&kind.statement(&mut random)).await {
            Ok(()) => done += 1,
            Err(cause) if cause.code().is_some_and(|code| code.code() == "23505") => {}
            Err(cause) => panic!("{cause:?}"),
        }
    }
    done
}

async fn fill(world: &World, kinds: &[&'static Kind]) {
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    let client = world.source(Role::Superuser).await;
    client.batch_execute("SET search_path = pg_catalog, public").await.expect("a setting");
    for kind in kinds {
        for i in (0..KEYS).filter(|i| i % 4 != 3) {
            let (names, key) = (kind.names().join(", "), kind.key(i, random.random_range(0..2)).join(", "));
            let insert =
                format!("INSERT INTO keys.{} ({names}, note) SELECT {key}, 'old' ON CONFLICT DO NOTHING", kind.name);
            client.batch_execute(&insert).await.unwrap_or_else(|cause| panic!("{insert}: {cause:?}"));
        }
    }
}

/// The column of the key gets another collation while it is loaded, and its index with it: what was read is the beginning of another
/// order than what is to be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_begins_anew_when_its_key_gets_another_collation() {
    let table = Table::new("public.letters", &["k"], "k text PRIMARY KEY, note text");
    let mut world = World::builder().table(table.clone()).start().await;
    let source = world.source(Role::Superuser).await;
    let has_icu = "SELECT EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu')";
    if !source.query_one(has_icu, &[]).await.expect("it answers").get::<_, bool>(0) {
        return world.finish().await;
    }
    world
        .in_source(
            "CREATE COLLATION as_read (provider = icu, locale = 'und'); ALTER TABLE letters ALTER k TYPE text COLLATE as_read;
             INSERT INTO letters SELECT CASE WHEN i <= 1500 THEN 'a' ELSE 'B' END || i, 'old' FROM generate_series(1, 2000) i",
        )
        .await;
    world.configuration.set("source.chunk_rows_max", 100).set("source.snapshot_rows_per_second_max", 300);
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world
        .until("some rows are read", WITHIN, async || {
            let found = world.topic(&table).await.rows().count();
            if found >= 300 { Ok(()) } else { Err(format!("{found} rows")) }
        })
        .await;
    // By bytes all of what begins with B comes before what was read.
    world.in_source("ALTER TABLE letters ALTER k TYPE text COLLATE \"C\"").await;
    run.logs("its load begins anew", WITHIN).await.expect("the order is another one");
    run.logs("loaded table=public.letters", WITHIN).await.expect("the load ends");
    world.ends_equal(run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_every_kind_are_copied_exactly_in_small_chunks() {
    let mut world = World::builder().partitions(1).without_publication().start().await;
    let source = world.source(Role::Superuser).await;
    let has = async |query: &str| -> bool { source.query_one(query, &[]).await.expect("it answers").get(0) };
    let mut kinds: Vec<&'static Kind> = PLAIN.iter().collect();
    let mut types = TYPES.to_owned();
    if has("SELECT EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu')").await {
        kinds.extend(ICU);
        types.push_str(
            "; CREATE COLLATION keys.blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        );
    }
    if has("SELECT count(*) = 3 FROM pg_available_extensions WHERE name IN ('citext', 'ltree', 'isn')").await {
        kinds.extend(CONTRIB);
        types.push_str("; CREATE EXTENSION citext; CREATE EXTENSION ltree; CREATE EXTENSION isn");
    }
    world.in_source(&types).await;
    world.in_target(&types).await;
    let tables: Vec<Table> = kinds.iter().map(|kind| kind.table()).collect();
    for table in &tables {
        world.make(table).await;
    }
    world.in_source(&format!("CREATE PUBLICATION {} FOR ALL TABLES", quote(&world.slot()))).await;
    world.configuration.set("source.tables", vec!["keys.*"]).set("source.chunk_rows_max", 3);
    world.tables = tables;
    fill(&world, &kinds).await;

    let stop = CancellationToken::new();
    let writers: Vec<_> = {
        let mut writers = Vec::new();
        for n in 0..2 {
            let client = world.source(Role::Superuser).await;
            writers.push(tokio::spawn(write(client, kinds.clone(), world.seed ^ n, stop.clone())));
        }
        writers
    };
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    for table in &world.tables {
        run.logs(&format!("loaded table={}", table.name), WITHIN).await.expect("each table is loaded");
    }
    stop.cancel();
    let mut done = 0;
    for writer in writers {
        done += writer.await.expect("the writer wrote");
    }
    println!("{} kinds of keys, {done} statements beside the load", kinds.len());
    world.ends_equal(run).await;
}
