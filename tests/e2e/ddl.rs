//! DDL while rows are written: what changes no row is followed, what changes rows without sending them stops the source or
//! makes it read the table again.

use std::time::Duration;

use harness::World;
use harness::configuration::Configuration;
use harness::process::{Part, Tributary};
use harness::servers::Role;
use harness::table::{Table, quote};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

mod keys;
mod partitions;
mod publication;
mod tables;

const READY_WITHIN: Duration = Duration::from_secs(90);
/// How long the source may take to see what has happened: it looks every second here.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// `id` and `name` are never altered, so that writers can go on all the time.
fn items() -> Table {
    Table::new(
        "public.items",
        &["id"],
        "id bigint PRIMARY KEY, name text, size int, code varchar(10), old text, mood mood, amount numeric(10,2)",
    )
    .before("CREATE TYPE mood AS ENUM ('sad', 'glad')")
}

/// A world with the table, and a source that compares every second.
async fn world(table: Table) -> World {
    let mut world = World::builder().table(table).start().await;
    world.configuration.set("source.watch_seconds", 1);
    world.in_source("INSERT INTO items SELECT i, 'item ' || i, i, 'c' || i, 'old', 'sad', i / 3.0 FROM generate_series(1, 200) i").await;
    world
}

fn told(world: &World, key: &str, value: &str) -> Configuration {
    let mut configuration = world.configuration.clone();
    configuration.set(key, value);
    configuration
}

/// Somebody who writes into `items` whatever is being done to it, until dropped.
struct Writer(CancellationToken);

impl Writer {
    async fn start(world: &World) -> Writer {
        let (client, stop) = (world.source(Role::Superuser).await, CancellationToken::new());
        let stopped = stop.clone();
        tokio::spawn(async move {
            for id in 1_000_i64.. {
                if stopped.is_cancelled() {
                    return;
                }
                let statements = format!(
                    "INSERT INTO items (id, name) VALUES ({id}, 'new'); UPDATE items SET name = 'touched {id}' WHERE id % 100 = {id} % 100; DELETE FROM items WHERE id = {id} - 50"
                );
                // DDL may be in the way, or its key gone for a while: the next one will do.
                let _ = client.batch_execute(&statements).await;
            }
        });
        Writer(stop)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Every row is sent once more, as it is by now.
async fn touch(world: &World) {
    world.in_source("UPDATE items SET id = id").await;
}

/// The source ends by itself, with an error that says all of `words`. It may be started again afterwards.
async fn stops(world: &mut World, process: &mut Tributary, words: &[&str]) {
    let status = process.ends(SEEN_WITHIN).await.expect("it ends by itself");
    let log = process.log();
    assert!(status.code().is_some_and(|code| code != 0), "it ended with {status}; its log:\n{log}");
    for word in words {
        assert!(log.contains(word), "the error does not say {word:?}; the log:\n{log}");
    }
    world.expect_log("ERROR");
}

/// How many schema events say that rows changed without being sent, and how many there are.
async fn schemas(world: &World, table: &Table) -> (usize, usize) {
    let records = world.topic(table).await.0;
    let first = |record: &&harness::oracle::topic::Record| record.partition == 0;
    let events: Vec<String> = records
        .iter()
        .filter(first)
        .filter(|record| record.headers.get("control").is_some_and(|kind| kind == "schema"))
        .map(|record| record.value.clone().unwrap_or_default())
        .collect();
    (events.iter().filter(|event| event.contains("\"rows_rewritten\":true")).count(), events.len())
}

/// DDL that leaves the text of every row as it was. Each statement stands alone, as a person would give them.
const HARMLESS: [&str; 14] = [
    "ALTER TABLE items ADD COLUMN note text",
    "ALTER TABLE items ALTER COLUMN code TYPE varchar(20)",
    "ALTER TABLE items ALTER COLUMN code TYPE text",
    "ALTER TABLE items RENAME COLUMN old TO former",
    "ALTER TABLE items ALTER COLUMN size SET DEFAULT 7",
    "ALTER TABLE items ALTER COLUMN amount TYPE numeric(12,2)",
    "ALTER TYPE mood ADD VALUE 'mad'",
    "CREATE INDEX ON items (name)",
    "COMMENT ON TABLE items IS 'things'",
    "VACUUM FULL items",
    "ALTER TABLE items DROP COLUMN former",
    "ALTER TABLE items ALTER COLUMN size TYPE bigint",
    "CLUSTER items USING items_pkey",
    "ALTER TABLE items ADD COLUMN last date",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_no_row_is_followed_under_load() {
    let mut world = world(items()).await;
    world.expect_log("wider integers in size");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    let writer = Writer::start(&world).await;
    for statement in HARMLESS {
        world.in_source(statement).await;
        world.in_source("UPDATE items SET name = name WHERE id = 1").await;
    }
    drop(writer);
    touch(&world).await;
    world.until_published().await;
    let (rewritten, all) = schemas(&world, &world.tables[0]).await;
    assert_eq!(rewritten, 0, "no row has changed");
    assert!(all >= 7, "each change of shape is told, not {all}");
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// The stream describes what was, the catalog what is by now: types, columns and names that are gone must not matter.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_was_stopped_catches_up_over_all_of_it() {
    let mut world = world(items()).await;
    world.expect_log("wider integers in size");
    world.expect_log("is called public.things now");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source.stop().await.expect("it ends");
    for statement in HARMLESS {
        world.in_source(statement).await;
        world.in_source("UPDATE items SET name = name || '!' WHERE id % 3 = 0").await;
    }
    world
        .in_source(
            "ALTER TABLE items DROP COLUMN mood; DROP TYPE mood; UPDATE items SET name = name || '?' WHERE id % 5 = 0",
        )
        .await;
    source.restart().expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    touch(&world).await;
    world.until_published().await;
    assert_eq!(schemas(&world, &world.tables[0]).await.0, 0, "no row has changed");
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// What of `ALTER TABLE` changes rows without sending them.
const SILENT: [(&str, &str); 7] = [
    ("ALTER TABLE items ADD COLUMN colour text DEFAULT 'red'", "the new column colour has values"),
    ("ALTER TABLE items ALTER COLUMN size TYPE int USING size + 1000", "its rows were written anew when size"),
    ("ALTER TABLE items ALTER COLUMN amount TYPE numeric(12,4)", "the column amount has another type"),
    ("ALTER TABLE items ADD COLUMN token uuid DEFAULT gen_random_uuid()", "the new column token has values"),
    ("ALTER TABLE items ADD COLUMN number bigserial", "the new column number has values"),
    ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "the label sad of an enum has another text"),
    ("ALTER TABLE items ALTER COLUMN old TYPE bytea USING old::bytea", "the column old has another type"),
];

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_changed_stop_the_source_or_are_read_again() {
    let mut world = world(items()).await;
    world.expect_log("changed without being sent");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;

    // Nobody writes, and still it is seen.
    world.in_source(SILENT[0].0).await;
    stops(&mut world, &mut source, &["rows of public.items", SILENT[0].1, "on_rewrite = \"reload\"", "\"continue\""])
        .await;
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &[]).await;

    let reload = told(&world, "source.on_rewrite", "reload");
    source.restart_with(reload).expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let writer = Writer::start(&world).await;
    for (statement, word) in &SILENT[1..] {
        world.in_source(statement).await;
        source.logs(word, SEEN_WITHIN).await.expect("it is seen");
    }
    drop(writer);
    world.until_published().await;
    assert_eq!(schemas(&world, &world.tables[0]).await.0, SILENT.len(), "each is told of");
    source.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_continue_it_says_so_in_the_topic() {
    let mut world = world(items()).await;
    world.configuration.set("source.on_rewrite", "continue");
    world.expect_log("changed without being sent");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world.in_source("ALTER TABLE items ADD COLUMN colour text DEFAULT 'red'").await;
    source.logs("the new column colour", SEEN_WITHIN).await.expect("it is seen");
    touch(&world).await;
    world.until_published().await;
    assert_eq!(schemas(&world, &world.tables[0]).await.0, 1);
    source.stop().await.expect("it ends");
    // Once decided, for good.
    source.restart_with(told(&world, "source.on_rewrite", "stop")).expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    touch(&world).await;
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// What was read before and what is read after do not belong together, so the load begins anew: also when it is killed on the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_altered_in_the_middle_of_its_copy_is_copied_anew() {
    let mut world = world(items()).await;
    world.configuration.set("source.chunk_rows_max", 20);
    world.expect_log("changed without being sent");
    world.in_source("INSERT INTO items SELECT i, 'item ' || i, i, 'c' || i FROM generate_series(10001, 20000) i").await;
    let mut source = world.start(Part::Source);
    world
        .until("some of it is copied", READY_WITHIN, async || {
            match world.topic(&world.tables[0]).await.rows().count() {
                0 => Err("nothing".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
    world.in_source("ALTER TABLE items ADD COLUMN colour text DEFAULT 'red'").await;
    source.logs("it is loaded again", SEEN_WITHIN).await.expect("it is seen");
    source.kill9().await.expect("it is gone");
    source.restart().expect("it starts again");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// The same was done in the target first, but for the values: these come with the load.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_altered_first_gets_the_values_of_old_rows() {
    let mut world = world(items()).await;
    world.configuration.set("source.on_rewrite", "reload");
    world.expect_log("changed without being sent");
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    let writer = Writer::start(&world).await;
    for (target, source) in [
        ("ADD COLUMN note text", "ADD COLUMN note text"),
        ("ADD COLUMN colour text", "ADD COLUMN colour text DEFAULT 'red'"),
        ("ADD COLUMN number bigint", "ADD COLUMN number bigserial"),
    ] {
        world.in_target(&format!("ALTER TABLE items {target}")).await;
        world.in_source(&format!("ALTER TABLE items {source}")).await;
    }
    drop(writer);
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// The server's version as a number.
async fn version(client: &Client) -> i32 {
    let row = client.query_one("SELECT current_setting('server_version_num')::int4", &[]).await;
    row.expect("the source answers").get(0)
}

fn publication(world: &World) -> String {
    quote(&world.slot())
}
