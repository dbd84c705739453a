//! SIGTERM in every phase: it ends within its grace, with exit code 0, and nothing is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::World;
use harness::oracle::audit;
use harness::port;
use harness::process::Part;
use harness::servers::Role;
use harness::workload::{self, Pace, Workload};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::sleep;

const READY_WITHIN: Duration = Duration::from_secs(90);

/// Again and again, at moments drawn from the seed: while it connects, makes its slot, loads, streams, applies.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_at_any_moment_ends_it_and_loses_nothing() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).redis_group().start().await;
    world.configuration.set("source.chunk_rows_max", 50);
    let source = world.source(Role::Superuser).await;
    workload::fill(&source, world.seed, &shapes, 500).await.expect("the tables take rows");
    let pace = Pace { writers: 2, transactions_per_second: 20 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    let mut run = world.start(Part::Run);
    for _ in 0..12 {
        // It listens to signals before it answers.
        run.alive(READY_WITHIN).await.expect("it begins");
        sleep(Duration::from_millis(random.random_range(100..1500))).await;
        run.stop().await.expect("SIGTERM ends it with exit code 0");
        run.restart().expect("it starts again");
    }
    writers.stop().await.expect("the writers write");
    world.until_equal().await;
    world.check_topics().await;
    world.until_streams_agree().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// What was committed is told to the server before the connection closes: it sends nothing of it again. But for the
/// transaction in whose midst the stop came, which is no whole one yet.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_tells_the_server_how_far_it_got() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).start().await;
    let source_database = world.source(Role::Superuser).await;
    let pace = Pace { writers: 4, transactions_per_second: 50 };
    let mut source = world.start(Part::Source);
    for _ in 0..4 {
        source.ready(READY_WITHIN).await.expect("it streams");
        let (seed, database) = (rand::random(), world.source_database());
        let writers = Workload::start(world.source_address(), &database, seed, pace, &shapes);
        let records = world
            .until("the first of them are published", READY_WITHIN, async || {
                let position = world.last_position().await?;
                if position > 0 { Ok(position) } else { Err("nothing yet".to_owned()) }
            })
            .await;
        // All that is in the WAL is visible by then, and so nothing but the last word decides: a writer that waits for the
        // processor with its commit in the WAL would hold back what others commit behind it.
        writers.stop().await.expect("the writers write");
        source.stop().await.expect("SIGTERM ends it with exit code 0");
        let published = world.last_position().await.expect("the topics can be read");
        assert!(published >= records, "the topics lost records");
        let changes =
            audit::changes(&source_database, &world.slot(), &world.slot()).await.expect("nobody reads the slot");
        let again: BTreeSet<u64> =
            changes.values().flatten().map(|change| change.0).filter(|commit| *commit <= published).collect();
        // The one that was cut in the middle, if any. Without a last word it is all of half a second, dozens.
        assert!(again.len() <= 1, "published up to {published:X}, and yet to be sent again: {again:X?}");
        source.restart().expect("it starts again");
    }
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_a_source_that_waits_for_its_server() {
    let mut world = World::builder().table(workload::accounts().table().clone()).start().await;
    world.expect_log("WARN");
    let address = format!("postgresql://someone@127.0.0.1:{}/shop?sslmode=disable", port::free());
    world.configuration.set("source.url", address).set("source.start_timeout_seconds", 600);
    let mut source = world.start(Part::Source);
    source.logs("WARN", READY_WITHIN).await.expect("it says that nobody answers");
    source.stop().await.expect("SIGTERM ends it with exit code 0");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_a_source_that_waits_for_its_slot() {
    let mut world = World::builder().table(workload::accounts().table().clone()).start().await;
    world.expect_log("in use");
    let mut first = world.start(Part::Source);
    first.ready(READY_WITHIN).await.expect("the first streams");
    let mut second = world.start(Part::Source);
    second.logs("in use", READY_WITHIN).await.expect("the second waits");
    second.stop().await.expect("SIGTERM ends it with exit code 0");
    first.stop().await.expect("the first ends");
    world.finish().await;
}

/// Frozen, not dead: connections stand and nobody answers, which is the harder case.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_both_while_kafka_does_not_answer() {
    let mut world = World::builder().table(workload::accounts().table().clone()).own_kafka(1).start().await;
    world.expect_log("WARN");
    world.configuration.set("groups.rdb.session_timeout_seconds", 6);
    let (mut source, mut sink) = (world.start(Part::Source), world.start(Part::Sink));
    source.ready(READY_WITHIN).await.expect("the source streams");
    world.in_source("INSERT INTO accounts VALUES (1, 'one')").await;
    world.until_equal().await;
    let mut kafka = world.own_kafka.take().expect("the test has its own");
    kafka.broker(0).freeze();
    world.in_source("INSERT INTO accounts VALUES (2, 'two')").await;
    let (source_ended, sink_ended) = tokio::join!(source.stop(), sink.stop());
    source_ended.expect("SIGTERM ends the source with exit code 0");
    sink_ended.expect("SIGTERM ends the sink with exit code 0");
    kafka.broker(0).thaw();

    source.restart().expect("the source starts again");
    sink.restart().expect("the sink starts again");
    world.until_equal().await;
    world.check_topics().await;
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_a_sink_while_the_target_does_not_answer() {
    let mut world = World::builder().table(workload::accounts().table().clone()).own_target().start().await;
    world.expect_log("WARN");
    let (mut source, mut sink) = (world.start(Part::Source), world.start(Part::Sink));
    source.ready(READY_WITHIN).await.expect("the source streams");
    world.in_source("INSERT INTO accounts VALUES (1, 'one')").await;
    world.until_equal().await;
    let mut target = world.own_target.take().expect("the test has its own");
    target.freeze();
    world.in_source("INSERT INTO accounts VALUES (2, 'two')").await;
    sink.stop().await.expect("SIGTERM ends the sink with exit code 0");
    target.thaw();

    sink.restart().expect("the sink starts again");
    world.until_equal().await;
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}
