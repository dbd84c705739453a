//! A commit stands in the WAL before anybody sees it, for as long as the synchronous standby is away. Invariant 1 in that time.

use std::time::Duration;

use harness::World;
use harness::process::Part;
use harness::servers::{Postgres, Role};
use harness::table::Table;
use tokio::task::JoinHandle;

const WITHIN: Duration = Duration::from_secs(120);

fn documents() -> Table {
    // Stored out of line and never compressed, so that an update of the key leaves the body out of the stream.
    Table::new("public.documents", &["id"], "id int PRIMARY KEY, body text")
}

/// Commits, which is answered only once the standby has it.
fn commit(world: &World, sql: &str) -> JoinHandle<Result<(), tokio_postgres::Error>> {
    let (address, database, sql) = (world.source_address().clone(), world.source_database(), sql.to_owned());
    tokio::spawn(async move {
        let client = address.connect(Role::Superuser, &database).await.expect("the source answers");
        client.batch_execute(&sql).await
    })
}

/// How many events of the table tell of this key.
async fn events_of(world: &World, id: i32) -> Result<usize, String> {
    let key = format!(r#"{{"id":{id}}}"#);
    let records = world.topic(&world.tables[0]).await;
    Ok(records.rows().filter(|record| record.key.as_deref() == Some(&key)).count())
}

async fn until_published(world: &World, id: i32) {
    let what = format!("key {id} is published");
    world
        .until(&what, WITHIN, async || match events_of(world, id).await? {
            0 => Err("it is not".to_owned()),
            _ => Ok(()),
        })
        .await;
}

/// Waits until the server has heard from the source after everything so far was received, and returns what it was told to
/// need never again.
async fn confirmed(world: &World, server: &Postgres) -> u64 {
    let client = server.address().connect(Role::Superuser, &world.source_database()).await.expect("it answers");
    // Without a transaction, so that nobody waits for the standby.
    let mark = "SELECT pg_logical_emit_message(false, 'test', 'mark')::text";
    let mark: String = client.query_one(mark, &[]).await.expect("anybody may").get(0);
    let query = "SELECT r.write_lsn >= $2::text::pg_lsn, (s.confirmed_flush_lsn - '0/0')::int8
                 FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = $1";
    world
        .until("the source has told how far it is", WITHIN, async || {
            let row = client.query_opt(query, &[&world.slot(), &mark]).await.map_err(|cause| cause.to_string())?;
            match row {
                Some(row) if row.get::<_, Option<bool>>(0) == Some(true) => Ok(row.get::<_, i64>(1).unsigned_abs()),
                Some(row) => Err(format!("confirmed {:X}", row.get::<_, i64>(1))),
                None => Err("nobody reads the slot".to_owned()),
            }
        })
        .await
}

/// Until its transaction is visible, the catalog shows the key that went with the first row behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_goes_unseen_stops_the_source_once_it_is_seen() {
    let mut world = World::builder().table(documents()).own_source().start().await;
    world.expect_log("not visible yet");
    world.expect_log("has lost its key");
    world.in_source("INSERT INTO documents VALUES (1, 'by its key')").await;
    let mut source = world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    world.until_published().await;
    world.in_source("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    world.in_source("SELECT pg_reload_conf()").await;
    let unseen = commit(
        &world,
        "BEGIN; ALTER TABLE documents DROP CONSTRAINT documents_pkey; INSERT INTO documents VALUES (2, 'keyless'); COMMIT",
    );
    source.logs("not visible yet", WITHIN).await.expect("it says what it waits for");
    assert_eq!(events_of(&world, 2).await, Ok(0), "a row was published by a key that it does not have");
    assert!(!unseen.is_finished(), "the commit was answered without a standby");

    let primary = world.own_source.as_ref().expect("the test has its own").address();
    let client = primary.connect(Role::Superuser, &world.source_database()).await.expect("it answers");
    client.batch_execute("SET synchronous_commit = local").await.expect("anybody may");
    client.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.expect("it is the superuser");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("it is the superuser");
    unseen.await.expect("it is no panic").expect("the commit is answered");
    let status = source.ends(WITHIN).await.expect("it ends by itself");
    let log = source.log();
    assert!(!status.success() && log.contains("the key by which it is published, (id)"), "{status}; the log:\n{log}");
    world.expect_log("ERROR");
    assert_eq!(events_of(&world, 2).await, Ok(0), "a row was published by a key that it does not have");
    world.finish().await;
}

/// What is published and not visible is confirmed by nobody; a row that must be read waits; and when the standby is back, all
/// goes on.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_invisible_is_confirmed_while_the_synchronous_standby_is_away() {
    let many = Table::new("public.many", &["id"], "id int PRIMARY KEY");
    let mut world = World::builder().table(documents()).table(many).own_source().start().await;
    world.expect_log("not visible yet");
    // A load that is under way when the standby goes.
    world.configuration.set("source.chunk_rows_max", 20).set("source.snapshot_rows_per_second_max", 40);
    world.in_source("INSERT INTO many SELECT generate_series(1, 1000)").await;
    world.in_source("ALTER TABLE documents ALTER body SET STORAGE EXTERNAL").await;
    world.in_source("INSERT INTO documents SELECT 1, repeat('long ', 10000)").await;
    let primary = world.own_source.take().expect("the test has its own");
    let mut standby = primary.standby("standby", &[]).await.expect("a standby follows");
    world.in_source("ALTER SYSTEM SET synchronous_standby_names = 'standby'").await;
    world.in_source("SELECT pg_reload_conf()").await;
    let mut source = world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    until_published(&world, 1).await;
    world.in_source("INSERT INTO documents VALUES (2, 'seen')").await;
    until_published(&world, 2).await;

    standby.stop().await.expect("the standby is away");
    let first = commit(&world, "INSERT INTO documents VALUES (3, 'unseen')");
    until_published(&world, 3).await;
    let second = commit(&world, "INSERT INTO documents VALUES (4, 'unseen')");
    until_published(&world, 4).await;
    let records = world.topic(&world.tables[0]).await;
    let third_key = records.rows().find(|record| record.key.as_deref() == Some(r#"{"id":3}"#));
    let (invisible, _) = third_key.expect("it is published").places().expect("it has a position");
    let told = confirmed(&world, &primary).await;
    assert!(told <= invisible, "{told:X} was confirmed, and the commit at {invisible:X} is not visible");
    // No chunk is worth anything now, and so none is read.
    source.logs("the stream has brought a transaction that nobody is shown yet", WITHIN).await.expect("it waits");

    // A restart is sent all that is not visible again, and forgets nothing of the rule.
    source.stop().await.expect("it ends");
    source.restart().expect("it starts again");
    source.ready(WITHIN).await.expect("the source streams again");
    let told = confirmed(&world, &primary).await;
    assert!(told <= invisible, "{told:X} was confirmed, and the commit at {invisible:X} is not visible");

    // What was published once waits for nobody when it comes again, and so neither does what stands behind it.
    let local = primary.address().connect(Role::Superuser, &world.source_database()).await.expect("it answers");
    local.batch_execute("SET synchronous_commit = local").await.expect("anybody may");
    local.batch_execute("INSERT INTO many VALUES (5000)").await.expect("it is answered at once");
    world
        .until("a visible row behind invisible ones is published", WITHIN, async || {
            let records = world.topic(&world.tables[1]).await;
            let is_there = records.rows().any(|record| record.key.as_deref() == Some(r#"{"id":5000}"#));
            if is_there { Ok(()) } else { Err("it is not".to_owned()) }
        })
        .await;

    let moved = commit(&world, "UPDATE documents SET id = 5 WHERE id = 1");
    source.logs("not visible yet", WITHIN).await.expect("it says what it waits for");
    let behind = commit(&world, "INSERT INTO documents VALUES (6, 'unseen')");
    let told = confirmed(&world, &primary).await;
    assert!(told <= invisible, "{told:X} was confirmed, and the commit at {invisible:X} is not visible");
    assert_eq!(events_of(&world, 5).await, Ok(0), "a row was published before it could be read");
    assert_eq!(events_of(&world, 6).await, Ok(0), "what stands behind it overtook it");
    for waits in [&first, &second, &moved, &behind] {
        assert!(!waits.is_finished(), "a commit was answered without its standby");
    }

    standby.restart().await.expect("the standby comes back");
    for done in [first, second, moved, behind] {
        done.await.expect("it is no panic").expect("the commit is answered");
    }
    world.until_published().await;
    world
        .until("all is confirmed", WITHIN, async || {
            let told = confirmed(&world, &primary).await;
            let last = world.last_position().await?;
            if told > last { Ok(()) } else { Err(format!("confirmed {told:X}, published up to {last:X}")) }
        })
        .await;
    source.stop().await.expect("it ends");
    world.finish().await;
}
