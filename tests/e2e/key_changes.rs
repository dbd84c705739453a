//! Rows that change their keys, with every trap: keys stored out of line, keys that are equal and yet not identical, rows moved
//! with columns that the stream leaves out, keys swapped, and keys that come and go within one transaction.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::oracle::audit;
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;
use harness::{World, place};

const READY_WITHIN: Duration = Duration::from_secs(90);

/// How a table names the rows that it had.
const IDENTITIES: [&str; 3] = ["default", "index", "full"];

/// A key and a body that are both stored out of line; the key is as long as an index takes it.
fn letters(identity: &str) -> Table {
    let table = Table::new(&format!("public.letters_{identity}"), &["k"], "k text NOT NULL, note int, body text");
    let table = table
        .after("ALTER TABLE {table} ALTER k SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL")
        .after("CREATE FUNCTION public.long(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT $1 || repeat(md5($1), 80) $$");
    with_identity(table, identity)
}

/// A key whose equal values differ in text.
fn amounts(identity: &str) -> Table {
    let table = Table::new(&format!("public.amounts_{identity}"), &["k"], "k numeric NOT NULL, note int, body text");
    with_identity(table.after("ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL"), identity)
}

/// The same with blanks behind.
fn codes(identity: &str) -> Table {
    with_identity(
        Table::new(&format!("public.codes_{identity}"), &["k"], "k bpchar NOT NULL, note int, body text"),
        identity,
    )
}

/// The same with letters of either case; the extension is not part of every build of the server.
fn names(identity: &str) -> Table {
    let table = Table::new(&format!("public.names_{identity}"), &["k"], "k citext NOT NULL, note int, body text");
    with_identity(table.before("CREATE EXTENSION IF NOT EXISTS citext"), identity)
}

fn with_identity(table: Table, identity: &str) -> Table {
    let index = format!("{}_k", table.name.table);
    match identity {
        "default" => table.after("ALTER TABLE {table} ADD PRIMARY KEY (k)"),
        "full" => {
            table.after("ALTER TABLE {table} ADD PRIMARY KEY (k)").after("ALTER TABLE {table} REPLICA IDENTITY FULL")
        }
        _ => table
            .after(&format!("CREATE UNIQUE INDEX {index} ON {{table}} (k)"))
            .after(&format!("ALTER TABLE {{table}} REPLICA IDENTITY USING INDEX {index}")),
    }
}

/// One transaction each, over the keys that `k` makes of a name.
fn moves(table: &Table, k: impl Fn(&str) -> String) -> Vec<String> {
    let t = table.sql();
    let body = |of: &str| format!("repeat(md5('{of}'), 150)");
    let insert = |key: &str| format!("INSERT INTO {t} VALUES ({}, 0, {})", k(key), body(key));
    let go = |from: &str, to: &str| format!("UPDATE {t} SET k = {} WHERE k = {}", k(to), k(from));
    let delete = |key: &str| format!("DELETE FROM {t} WHERE k = {}", k(key));
    let note = |key: &str| format!("UPDATE {t} SET note = note + 1 WHERE k = {}", k(key));
    let write = |key: &str| format!("UPDATE {t} SET body = {} WHERE k = {}", body("again"), k(key));
    let transactions: Vec<Vec<String>> = vec![
        ["1", "2", "3", "4", "5", "6", "7", "8"].map(insert).to_vec(),
        // No move at all, though the key is written.
        vec![go("1", "1"), note("1")],
        // The body stays where it is, and is not in the stream.
        vec![go("1", "11")],
        vec![note("11"), go("11", "12"), note("12")],
        // There and back, and twice on.
        vec![go("2", "21"), go("21", "2")],
        vec![go("3", "31"), go("31", "32"), go("32", "33")],
        // Gone again before anybody could have looked.
        vec![go("4", "41"), delete("41")],
        vec![go("5", "51"), go("51", "52"), delete("52"), insert("52")],
        vec![insert("9"), go("9", "91"), write("91")],
        // Two rows change places.
        vec![go("6", "60"), go("7", "6"), go("60", "7")],
        // A row comes to the key of one that was deleted, whose body it must not take.
        vec![delete("8"), go("7", "8")],
        vec![format!("SAVEPOINT a; {}; ROLLBACK TO a", go("6", "66")), go("6", "67")],
    ];
    transactions.into_iter().map(|statements| format!("BEGIN; {}; COMMIT", statements.join("; "))).collect()
}

/// One transaction each, over texts that are one key.
fn equals(table: &Table, texts: [&str; 3]) -> Vec<String> {
    let t = table.sql();
    let [a, b, c] = texts.map(|text| format!("'{text}'"));
    vec![
        format!("INSERT INTO {t} VALUES ({a}, 0, repeat('x', 5000))"),
        format!("UPDATE {t} SET k = {b}"),
        format!("UPDATE {t} SET note = note + 1 WHERE k = {c}"),
        format!("BEGIN; UPDATE {t} SET k = {c}, note = 7; UPDATE {t} SET k = {a}; COMMIT"),
        format!("BEGIN; DELETE FROM {t} WHERE k = {b}; INSERT INTO {t} VALUES ({b}, 1, 'new'); COMMIT"),
        format!("BEGIN; UPDATE {t} SET k = {a}; DELETE FROM {t}; COMMIT"),
        format!("INSERT INTO {t} VALUES ({c}, 2, 'last')"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_move_to_new_keys_under_every_identity() {
    let letters = IDENTITIES.map(letters);
    let amounts = IDENTITIES.map(amounts);
    // One function serves all of them.
    let mut tables: Vec<Table> = letters.iter().chain(&amounts).cloned().collect();
    tables[1..3].iter_mut().for_each(|table| table.after.retain(|statement| !statement.starts_with("CREATE FUNCTION")));
    let work: Vec<Vec<String>> = letters
        .iter()
        .map(|table| moves(table, |name| format!("public.long('{name}')")))
        .chain(amounts.iter().map(|table| moves(table, |name| format!("{name}.50"))))
        .collect();
    moved(tables, work).await.finish().await;
}

/// Equal keys share a partition, or a later change of a row could overtake an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_equal_and_not_identical_stay_together() {
    let mut tables = Vec::new();
    let mut work = Vec::new();
    for identity in IDENTITIES {
        let mut kinds = vec![(amounts(identity), ["1.0", "1.00", "1"]), (codes(identity), ["ab", "ab ", "ab   "])];
        if place::postgres_major().expect("a known server") == 15 {
            kinds.push((names(identity), ["Abc", "ABC", "abc"]));
        }
        for (table, texts) in kinds {
            work.push(equals(&table, texts));
            tables.push(table);
        }
    }
    let world = moved(tables, work).await;
    for table in &world.tables {
        let topic = world.topic(table).await;
        let rows: Vec<_> = topic.rows().collect();
        let partitions: BTreeSet<i32> = rows.iter().map(|record| record.partition).collect();
        let keys: BTreeSet<_> = rows.iter().filter_map(|record| record.key.as_deref()).collect();
        assert_eq!((partitions.len(), keys.len()), (1, 3), "{}: {keys:?} in {partitions:?}", table.name);
    }
    world.finish().await;
}

/// Carries the work out while it is published, and holds the topics against the source. No target: a row that was gone when its
/// long columns were asked for waits there for what follows, which is the sink's part.
async fn moved(tables: Vec<Table>, work: Vec<Vec<String>>) -> World {
    let mut world = World::builder().tables(tables).start().await;
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    let (source, slot) = (world.source(Role::Superuser).await, format!("{}_audit", world.prefix()));
    audit::start(&source, &slot).await.expect("a slot for the audit");
    for transaction in work.iter().flatten() {
        source.batch_execute(transaction).await.unwrap_or_else(|cause| panic!("{transaction}: {cause:?}"));
    }
    world.until_published().await;
    world.until_audit_agrees(&slot).await;
    publisher.stop().await.expect("it ends");
    world
}
