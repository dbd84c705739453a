//! The main path: what was there is copied, what changes follows, in every shape of table.

use std::time::Duration;

use harness::World;
use harness::oracle::audit;
use harness::process::Part;
use harness::servers::Role;
use harness::workload::{self, Pace, Workload};

const READY_WITHIN: Duration = Duration::from_secs(90);

/// Copy and follow at the same time, in one process, while four writers write into the tables that are being copied.
#[tokio::test(flavor = "multi_thread")]
async fn tables_are_copied_and_followed_while_they_are_written_to() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).redis_group().start().await;
    // Small chunks: many markers, and many rows touched between a chunk's reading and its marker.
    world.configuration.set("source.chunk_rows_max", 20);
    let source = world.source(Role::Superuser).await;
    workload::fill(&source, world.seed, &shapes, 500).await.expect("the tables take rows");
    let pace = Pace { writers: 4, transactions_per_second: 50 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    writers.after(600).await.expect("the writers write");
    world.until_equal().await;
    world.check_topics().await;
    world.until_streams_agree().await;
    world.check_nothing_parked(&["rdb", "redis"]).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// Not only the end is right: every single change that PostgreSQL decodes stands in the topics once.
#[tokio::test(flavor = "multi_thread")]
async fn every_change_stands_in_the_topics_once() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).start().await;
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    let (source, slot) = (world.source(Role::Superuser).await, format!("{}_audit", world.prefix()));
    audit::start(&source, &slot).await.expect("a slot for the audit");
    let pace = Pace { writers: 3, transactions_per_second: 50 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    writers.after(500).await.expect("the writers write");
    world.until_published().await;
    world.until_audit_agrees(&slot).await;
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

/// A long column that nobody touched is not in the stream when its row gets another key. It comes along all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_changes_its_key_brings_its_long_column_along() {
    let people = workload::people().table().clone();
    let mut world = World::builder().table(people.clone()).start().await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world
        .in_source(
            "INSERT INTO people SELECT 'p' || i, 'name', 1, repeat(md5(i::text), 200) FROM generate_series(1, 20) i",
        )
        .await;
    world.until_equal().await;
    world.in_source("UPDATE people SET email = 'moved ' || email").await;
    world.until_equal().await;
    world.check_topics().await;
    let moved = world.topic(&people).await;
    let reselected =
        moved.rows().filter(|record| record.value.as_deref().unwrap_or_default().contains("\"reselected\":[\"bio\"]"));
    assert_eq!(reselected.count(), 20, "the column was read after the fact, and the event says so");
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// COPY puts many rows at one WAL address, and a transaction larger than every buffer must pass through them.
#[tokio::test(flavor = "multi_thread")]
async fn one_large_transaction_passes_through_small_buffers() {
    let mut world = World::builder().table(workload::accounts().table().clone()).start().await;
    world.configuration.set("source.buffer_bytes_max", 1 << 18).set("source.transaction_bytes_max", 1 << 18);
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    let (source, slot) = (world.source(Role::Superuser).await, format!("{}_audit", world.prefix()));
    audit::start(&source, &slot).await.expect("a slot for the audit");
    world
        .in_source(
            "BEGIN; INSERT INTO accounts SELECT i, 'owner ' || i, i / 7.0, i % 2 = 0, '2024-02-29' FROM generate_series(1, 10000) i;
             CREATE TABLE again AS SELECT * FROM accounts WHERE id <= 2000; DELETE FROM accounts WHERE id <= 2000;
             COPY accounts FROM PROGRAM 'seq 100001 102000 | sed s/$/,copied,1.5,t,2000-01-01/' WITH (FORMAT csv);
             UPDATE accounts SET balance = -balance WHERE id > 8000; COMMIT",
        )
        .await;
    world.until_equal().await;
    world.check_topics().await;
    world.until_audit_agrees(&slot).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}
