//! Large things: rows, numbers of columns, partitions and tables. Each passes, or is refused by name.

use std::env;
use std::time::Duration;

use harness::World;
use harness::process::{Part, Tributary};
use harness::table::{Table, quote};

const READY_WITHIN: Duration = Duration::from_secs(120);
const LOADED_WITHIN: Duration = Duration::from_secs(1_200);

fn documents() -> Table {
    Table::new("public.documents", &["id"], "id text PRIMARY KEY, title text, body text")
        .after("ALTER TABLE {table} ALTER COLUMN body SET STORAGE EXTERNAL")
}

/// Copied, inserted, left alone by an update, moved to another key, deleted. What a chunk does not take behind it is not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_thirty_megabytes_passes() {
    let mut world = World::builder().table(documents()).partitions(1).own_source().start().await;
    let body = "repeat('0123456789abcde\"', 1966080)";
    let behind =
        "INSERT INTO documents SELECT 'd' || i, 'a', repeat('behind it ', 10000) FROM generate_series(1, 300) i";
    world.in_source(behind).await;
    world.in_source(&format!("INSERT INTO documents VALUES ('copied', 'a', {body})")).await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.in_source(&format!("INSERT INTO documents VALUES ('streamed', 'a', {body})")).await;
    world.in_source("UPDATE documents SET title = 'untouched'").await;
    world.in_source("UPDATE documents SET id = 'moved' WHERE id = 'streamed'").await;
    world.until_equal().await;
    world.check_topics().await;
    let log = world.own_source.as_ref().expect("the test has its own").log();
    let log = std::fs::read_to_string(log).expect("the server writes a log");
    assert!(log.contains("canceling statement due to user request"), "all was read, though a chunk was full");
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// What the topic does not take stops the source in front of it, and names the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_its_topic_does_not_take_is_named() {
    let mut world = World::builder().table(documents()).start().await;
    world.configuration.set("source.topics.message_bytes_max", 1 << 20);
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.expect_log("the row of public.documents");
    world
        .in_source(
            "BEGIN; INSERT INTO documents VALUES ('small', 'a', 'b'), ('huge', 'a', repeat('x', 2000000)); COMMIT",
        )
        .await;
    let status = source.ends(READY_WITHIN).await.expect("it stops");
    let log = source.log();
    assert!(!status.success(), "{log}");
    for said in ["public.documents", r#"{"id":"huge"}"#, "over the limit of 1048576 bytes", "max.message.bytes"] {
        assert!(log.contains(said), "{said:?} is not in: {log}");
    }
    let topic = world.topic(&documents()).await;
    let huge = topic.rows().filter(|record| record.key.as_deref().is_some_and(|key| key.contains("huge")));
    assert_eq!(huge.count(), 0, "nothing of the row is visible");
    world.finish().await;
}

/// As many columns as PostgreSQL takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_1600_columns_passes() {
    let columns: Vec<String> = (1..1600).map(|i| format!("c{i} bool")).collect();
    let table = Table::new("public.wide", &["id"], &format!("id int PRIMARY KEY, {}", columns.join(", ")));
    let mut world = World::builder().table(table).start().await;
    world.in_source("INSERT INTO wide (id, c1, c1599) SELECT i, i % 2 = 0, true FROM generate_series(1, 50) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.in_source("UPDATE wide SET c800 = false WHERE id % 3 = 0; DELETE FROM wide WHERE id % 7 = 0").await;
    world.in_source("INSERT INTO wide (id, c1500) VALUES (100, true)").await;
    world.until_equal().await;
    world.check_topics().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// Rows of all partitions come under the root's name, also when they go from one partition to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_200_partitions_passes() {
    let table = (0..200).fold(
        Table::new("public.readings", &["id", "day"], "id int, day int, value int, PRIMARY KEY (id, day)"),
        |table, i| {
            let (from, to) = (i * 10, (i + 1) * 10);
            table.after(&format!("CREATE TABLE readings_{i} PARTITION OF {{table}} FOR VALUES FROM ({from}) TO ({to})"))
        },
    );
    let table = Table { columns: format!("{}) PARTITION BY RANGE (day", table.columns), ..table };
    let mut world = World::builder().table(table).without_publication().start().await;
    let publication = quote(&world.slot());
    world
        .in_source(&format!(
            "CREATE PUBLICATION {publication} FOR TABLE readings WITH (publish_via_partition_root = true)"
        ))
        .await;
    world.in_source("INSERT INTO readings SELECT i, i % 2000, i FROM generate_series(1, 4000) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.in_source("UPDATE readings SET value = -value WHERE id % 3 = 0").await;
    world.in_source("UPDATE readings SET day = (day + 500) % 2000 WHERE id % 5 = 0").await;
    world.in_source("DELETE FROM readings WHERE id % 11 = 0").await;
    world.until_equal().await;
    world.check_topics().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// Many tables with a topic each. A consumer of thousands of topics spends most of its time on looking them up, so beyond
/// 1,000 the source stands alone.
#[tokio::test(flavor = "multi_thread")]
async fn many_tables_pass() {
    let part = if number_of_tables() > 1_000 { Part::Source } else { Part::Run };
    let (mut process, world) = many_tables(part, None).await;
    world.until_published_within(LOADED_WITHIN).await;
    if let Part::Run = part {
        world.until_equal().await;
    }
    process.stop().await.expect("it ends");
    world.finish().await;
}

/// The same through one topic.
#[tokio::test(flavor = "multi_thread")]
async fn many_tables_share_a_topic() {
    let (mut run, world) = many_tables(Part::Run, Some("all")).await;
    world.until_equal().await;
    world.until_shared_topic_agrees(&format!("{}.all", world.prefix()), &world.tables).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

fn number_of_tables() -> usize {
    env::var("TRIBUTARY_TABLES").map_or(60, |text| text.parse().expect("a number of tables"))
}

/// Of each table a row is copied, changed, and joined by another. `TRIBUTARY_TABLES` asks for another number of them.
async fn many_tables(part: Part, topic: Option<&str>) -> (Tributary, World) {
    let number = number_of_tables();
    let name = |i: usize| format!("public.t{i}");
    let tables = (0..number).map(|i| Table::new(&name(i), &["id"], "id int PRIMARY KEY, value text"));
    let mut world = World::builder().tables(tables).partitions(1).start().await;
    if let Some(topic) = topic {
        world.configuration.set(&format!("source.topics.routes.{topic}"), vec!["public.*"]);
    }
    let each = |statement: &str| {
        (0..number).map(|i| statement.replace("{t}", &format!("t{i}"))).collect::<Vec<_>>().join("; ")
    };
    world.in_source(&each("INSERT INTO {t} VALUES (1, 'copied')")).await;
    let mut process = world.start(part);
    process.ready(READY_WITHIN * 5).await.expect("it streams");
    world.in_source(&each("INSERT INTO {t} VALUES (2, 'streamed')")).await;
    world.in_source(&each("UPDATE {t} SET value = value || '!' WHERE id = 1")).await;
    (process, world)
}
