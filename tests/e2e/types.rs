//! Values of every type, on every server from 14 to 18: what stands in the topic is PostgreSQL's own text, however the row
//! came there, and the target holds the same.

mod golden;

use std::collections::BTreeMap;
use std::time::Duration;

use harness::World;
use harness::oracle::topic::{Record, Records};
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;
use schemas::{ChangeEvent, Columns, Operation};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_postgres::SimpleQueryMessage;

use golden::{Entry, Json, Keys, Spread};

/// How many types share the key of a table. A table for each takes a topic for each, which one server of the five is worth.
const TOGETHER: usize = 8;

const READY_WITHIN: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn every_golden_value_on_postgresql_14() {
    every_golden_value(14, TOGETHER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_golden_value_on_postgresql_15() {
    every_golden_value(15, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_golden_value_on_postgresql_16() {
    every_golden_value(16, TOGETHER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_golden_value_on_postgresql_17() {
    every_golden_value(17, TOGETHER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_golden_value_on_postgresql_18() {
    every_golden_value(18, TOGETHER).await;
}

/// Each value once through the copy and once through an insert, an update and a delete with the whole row before, and as a
/// key where its type can be one.
async fn every_golden_value(major: u32, together: usize) {
    let types = golden::types(major);
    let (wide, keyed) = (golden::wide(major, &types), golden::keys(&types, together));
    let tables = keyed.iter().map(|keys| keys.table.clone());
    let mut world = World::builder().table(wide.clone()).tables(tables).partitions(2).one_server(major).start().await;
    // So that a load's ranges are bounded by keys of every type.
    world.configuration.set("source.chunk_rows_max", 2);
    let rows = types.iter().map(Entry::len).max().unwrap_or(0) + 1;
    world.in_source(&fill(&wide, &types, 0..rows)).await;
    let copied = keyed.iter().flat_map(|keys| (0..keys.rows()).step_by(2).map(|row| keys.insert(row)));
    world.in_source(&copied.collect::<Vec<_>>().join(";")).await;
    server_writes_what_the_file_says(&world, &types, rows).await;

    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    world.in_source(&fill(&wide, &types, rows..2 * rows)).await;
    world.in_source(&shift(&types, rows)).await;
    world.in_source(&format!("DELETE FROM {} WHERE id >= {rows}", wide.sql())).await;
    world.in_source(&keyed.iter().map(follow).collect::<Vec<_>>().join(";")).await;
    world.until_equal().await;
    world.check_topics().await;
    world.check_nothing_parked(&["rdb"]).await;

    check_wide(&world.topic(&wide).await, &types, rows);
    let mut elsewhere = 0;
    for keys in &keyed {
        let records = world.topic(&keys.table).await;
        check_keyed(&records, keys);
        let moved_on = records.rows().filter(|record| record.partition != 0).count();
        assert!(keys.spread == Spread::Spread || moved_on == 0, "{}: one partition holds all", keys.table.name);
        elsewhere += moved_on;
    }
    assert!(elsewhere > 0, "keys with a canonical text are spread");
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// In row `id` of the wide table each type has its value number `id`, counted round with NULL behind the last.
fn value_in(entry: &Entry, id: usize) -> usize {
    id % (entry.len() + 1)
}

fn fill(table: &Table, types: &[Entry], ids: std::ops::Range<usize>) -> String {
    let offset = ids.start;
    let row = |id: usize| {
        let values: Vec<String> = types.iter().map(|entry| entry.sql(value_in(entry, id - offset))).collect();
        format!("({id}, {})", values.join(", "))
    };
    let rows: Vec<String> = ids.map(row).collect();
    // One statement for each row: VALUES of several would look for a common type first.
    rows.iter().map(|row| format!("INSERT INTO {} VALUES {row}", table.sql())).collect::<Vec<_>>().join(";")
}

/// Each row takes the values of the next.
fn shift(types: &[Entry], rows: usize) -> String {
    let update = |id: usize| {
        let assign = |(i, entry): (usize, &Entry)| format!("c{i} = {}", entry.sql(value_in(entry, id + 1)));
        let set: Vec<String> = types.iter().enumerate().map(assign).collect();
        format!("UPDATE golden.wide SET {} WHERE id = {id}", set.join(", "))
    };
    (0..rows).map(update).collect::<Vec<_>>().join(";")
}

/// What a keyed table lives through once it is followed: the rows that were not copied, an update of all, a delete of the
/// first, and its key again: as the new key of the last row, or as a new row where there is no other.
fn follow(keys: &Keys) -> String {
    let (table, last) = (keys.table.sql(), keys.rows() - 1);
    let mut statements: Vec<String> = (1..=last).step_by(2).map(|row| keys.insert(row)).collect();
    statements.push(format!("UPDATE {table} SET note = 'followed'"));
    statements.push(format!("DELETE FROM {table} WHERE {}", keys.is(0)));
    statements.push(match last {
        0 => keys.insert(0),
        _ => format!("UPDATE {table} SET {} WHERE {}", keys.set(0), keys.is(last)),
    });
    statements.join(";")
}

/// The oracle behind the file: the server's own text of every value.
async fn server_writes_what_the_file_says(world: &World, types: &[Entry], rows: usize) {
    let source = world.source(Role::Superuser).await;
    source.batch_execute("SET search_path = pg_catalog").await.expect("the setting is known");
    let answer = source.simple_query("SELECT * FROM golden.wide ORDER BY id").await.expect("the table can be read");
    let found: Vec<_> = answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })
        .collect();
    assert_eq!(found.len(), rows);
    for (id, row) in found.iter().enumerate() {
        for (i, entry) in types.iter().enumerate() {
            assert_eq!(row.get(i + 1), entry.text(value_in(entry, id)), "{} as the server writes it", entry.name);
        }
    }
}

/// An event's row with its values as they stand in JSON.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    after: Option<BTreeMap<&'a str, &'a RawValue>>,
}

fn check_wide(records: &Records, types: &[Entry], rows: usize) {
    let mut seen = BTreeMap::<String, usize>::new();
    for record in records.rows() {
        let value = record.value.as_deref().expect("a row change has a value");
        let event = ChangeEvent::decode(value.as_bytes()).expect("the contract's own reader reads it");
        let raw: Raw<'_> = serde_json::from_str(value).expect("it is JSON");
        let id: usize = id_of(record);
        // A row that was inserted while it was followed has the values of the one that was copied.
        let (now, then) = match event.operation {
            Operation::Read | Operation::Create => (Some(id % rows), None),
            Operation::Update => (Some(id + 1), Some(id)),
            Operation::Delete => (None, Some(id % rows)),
            other => panic!("a row change {other:?}"),
        };
        *seen.entry(format!("{:?}", event.operation)).or_default() += 1;
        assert_eq!((event.after.is_some(), event.before.is_some()), (now.is_some(), then.is_some()), "{value}");
        for (i, entry) in types.iter().enumerate() {
            let column = format!("c{i}");
            for (row, columns) in [(now, &event.after), (then, &event.before)] {
                let (Some(row), Some(columns)) = (row, columns) else { continue };
                let expected = Some(entry.text(value_in(entry, row)));
                assert_eq!(columns.get(&column), expected, "{} by {:?}", entry.name, event.operation);
            }
            let Some(found) = raw.after.as_ref().and_then(|after| after.get(column.as_str())) else { continue };
            let expected = now.and_then(|row| entry.text(value_in(entry, row))).map(|text| entry.json_of(text));
            assert_eq!(form(found.get()), expected, "{} stands as {}", entry.name, found.get());
        }
    }
    let expected = ["Create", "Delete", "Read", "Update"].map(|name| (name.to_owned(), rows));
    assert_eq!(seen, BTreeMap::from(expected), "every row was copied, inserted, updated and deleted");
}

fn id_of(record: &Record) -> usize {
    let key = record.key.as_deref().expect("a row change has a key");
    let key = Columns::decode(key.as_bytes()).expect("the contract's own reader reads it");
    key.get("id").flatten().and_then(|id| id.parse().ok()).expect("the key is a number")
}

fn form(json: &str) -> Option<Json> {
    match json.as_bytes().first() {
        Some(b'n') => None,
        Some(b'"') => Some(Json::String),
        Some(b't' | b'f') => Some(Json::Boolean),
        _ => Some(Json::Number),
    }
}

/// The keys by operation: which rows were copied, created, updated and deleted.
fn check_keyed(records: &Records, keys: &Keys) {
    let table = &keys.table;
    let mut found = BTreeMap::<String, Vec<Vec<String>>>::new();
    for record in records.rows() {
        let value = record.value.as_deref().expect("a row change has a value");
        let event = ChangeEvent::decode(value.as_bytes()).expect("the contract's own reader reads it");
        let key = Columns::decode(record.key.as_deref().unwrap_or_default().as_bytes()).expect("a key of ours");
        let texts = |columns: &Columns<'_>| -> Vec<String> {
            table.key.iter().map(|name| columns.get(name).flatten().expect("no part is NULL").to_owned()).collect()
        };
        for columns in event.before.iter().chain(&event.after) {
            assert_eq!(texts(columns), texts(&key), "{}: {value}", table.name);
        }
        found.entry(format!("{:?}", event.operation)).or_default().push(texts(&key));
    }
    let last = keys.rows() - 1;
    let (all, deleted): (Vec<usize>, Vec<usize>) =
        ((0..=last).collect(), if last > 0 { vec![0, last] } else { vec![0] });
    let created: Vec<usize> = (1..=last).step_by(2).chain([0]).collect();
    let texts = |rows: Vec<usize>| rows.into_iter().map(|row| keys.texts(row)).collect::<Vec<_>>();
    let mut expected = BTreeMap::from([
        ("Read".to_owned(), texts((0..=last).step_by(2).collect())),
        ("Create".to_owned(), texts(created)),
        ("Update".to_owned(), texts(all)),
        ("Delete".to_owned(), texts(deleted)),
    ]);
    found.values_mut().chain(expected.values_mut()).for_each(|keys| keys.sort());
    assert_eq!(found, expected, "{}", table.name);
}
