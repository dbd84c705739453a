//! The producer: records that are refused, a transaction left open, a process that wakes after another took over.

use std::time::Duration;

use harness::World;
use harness::oracle::topic;
use harness::process::Part;
use harness::topics::Topics;

use super::{WITHIN, published, stops, users};

/// What a row of two million bytes needs.
const ROOM: (&str, &str) = ("max.message.bytes", "4000000");

/// Found before it is sent, with its name; and once there is room, it goes on with nothing lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_too_large_for_its_topic_is_named_and_published_once_there_is_room() {
    let mut world = World::builder().table(users()).start().await;
    world.configuration.set("source.topics.message_bytes_max", 1 << 20);
    let mut source = published(&mut world).await;
    world
        .in_source(
            "BEGIN; UPDATE users SET name = 'before' WHERE id = 1; INSERT INTO users VALUES (4711, repeat('x', 2000000));
             UPDATE users SET name = 'behind' WHERE id = 2; COMMIT",
        )
        .await;
    let topic = world.topic_name(&users());
    stops(&mut world, &mut source, &["public.users", r#"{"id":4711}"#, &topic, "max.message.bytes"]).await;
    let records = world.topic(&users()).await;
    let is_behind = |value: &str| value.contains("4711") || value.contains("behind");
    assert!(!records.rows().any(|record| record.value.as_deref().is_some_and(is_behind)), "nothing overtook it");
    Topics::of(world.kafka()).expect("Kafka answers").set(&topic, &[ROOM]).await.expect("Kafka changes it");
    source.restart().expect("it starts again");
    world.until_published().await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// Refused by the broker, against what it said at the start: librdkafka by itself goes on with later records, and leaves a gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_broker_refuses_leaves_no_gap() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = published(&mut world).await;
    let (topic, topics) = (world.topic_name(&users()), Topics::of(world.kafka()).expect("Kafka answers"));
    topics.set(&topic, &[("max.message.bytes", "1000")]).await.expect("Kafka changes it");
    // Nothing that compression makes small enough.
    let long = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)";
    world.in_source(&format!("UPDATE users SET name = {long} WHERE id = 1")).await;
    world.in_source("UPDATE users SET name = 'behind' WHERE id > 1").await;
    stops(&mut world, &mut source, &[&topic, "max.message.bytes"]).await;
    // It does not start either, and says what is wrong.
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &[&topic, "kafka.batch_bytes_max"]).await;
    topics.set(&topic, &[ROOM]).await.expect("Kafka changes it");
    source.restart().expect("it starts again");
    world.until_published().await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// Killed with its records in the log and the transaction open: readers stand there until a successor has fenced it, which
/// is long before the broker's own patience ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_left_open_is_ended_by_the_successor() {
    let mut world = World::builder().table(users()).partitions(1).start().await;
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let mut configuration = world.configuration.clone();
    // The first commit of this life finds all records of its transaction acknowledged.
    configuration.environment("TRIBUTARY_FAILPOINTS", "commit-flushed=kill");
    world.in_source("UPDATE users SET name = name || '!'").await;
    source.restart_with(configuration).expect("it starts again");
    source.ends(WITHIN).await.expect("it dies");
    let open = world.topic(&users()).await;
    assert!(open.rows().all(|record| !record.value.as_deref().unwrap_or_default().contains('!')), "it is not visible");

    source.restart_with(world.configuration.clone()).expect("it starts again");
    source.ready(WITHIN).await.expect("the source streams");
    let visible = async || {
        let told =
            world.topic(&users()).await.rows().filter(|r| r.value.as_deref().unwrap_or_default().contains('!')).count();
        if told == 50 { Ok(()) } else { Err(format!("{told} of 50")) }
    };
    world.until("readers go on before the transaction's timeout of 60 s", Duration::from_secs(40), visible).await;
    world.until_published().await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// It wakes in front of its commit, with everything sent, and does not know that another has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_wakes_after_another_took_over_publishes_nothing() {
    let mut world = World::builder().table(users()).own_source().start().await;
    world.expect_log("WARN");
    let server = world.own_source.as_mut().expect("the test has its own");
    server.set("wal_sender_timeout", "3s");
    server.restart().await.expect("the server comes back");
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let mut configuration = world.configuration.clone();
    // It stands here until it is put to sleep.
    configuration.environment("TRIBUTARY_FAILPOINTS", "before-commit=delay:30000@1");
    source.restart_with(configuration).expect("it starts again");
    source.ready(WITHIN).await.expect("the source streams");
    one_change_is_sent(&world).await;
    source.freeze();
    assert_eq!(world.topic(&users()).await.rows().count(), 50, "they are not visible");

    let mut successor = world.start(Part::Source);
    successor.ready(WITHIN).await.expect("the successor streams");
    world.until_published().await;
    source.thaw();
    source.logs("fenced", WITHIN).await.expect("it finds out");
    world.in_source("UPDATE users SET name = name || '?'; DELETE FROM users WHERE id % 2 = 0").await;
    world.until_published().await;
    for process in [&mut successor, &mut source] {
        process.stop().await.expect("it ends");
    }
    world.finish().await;
}

/// It sleeps in front of its commit for longer than the broker bears, with nobody to take over: what it had sent is given up,
/// and published anew when it wakes.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_sleeps_beyond_its_transaction_publishes_it_anew() {
    let mut world = World::builder().table(users()).partitions(1).start().await;
    world.expect_log("WARN");
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let mut configuration = world.configuration.clone();
    // Long enough to be put to sleep in it on a slow machine, and over when the broker has lost its patience.
    configuration.environment("TRIBUTARY_FAILPOINTS", "before-commit=delay:60000@1");
    source.restart_with(configuration).expect("it starts again");
    source.ready(WITHIN).await.expect("the source streams");
    one_change_is_sent(&world).await;
    source.freeze();
    let topic_name = world.topic_name(&users());
    let ask = async || topic::readable_end(world.kafka(), &topic_name, 0).await.map_err(|fault| format!("{fault:?}"));
    let open = ask().await.expect("Kafka answers");
    let given_up = async || match ask().await? {
        end if end > open => Ok(()),
        end => Err(format!("readers get to {end}, as before")),
    };
    world.until("the broker gives the transaction up", WITHIN, given_up).await;
    assert_eq!(world.topic(&users()).await.rows().count(), 50, "and nothing of it is visible");
    source.thaw();
    world.until_published().await;
    assert_eq!(world.topic(&users()).await.rows().count(), 51, "the change is told of once");
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// Changes a row, and waits until that is in the log, whether it can be seen or not. It is one row, for a source may commit
/// between any two, and would stand in a commit with some of them alone.
async fn one_change_is_sent(world: &World) {
    world.in_source("UPDATE users SET name = name || '!' WHERE id = 1").await;
    world
        .until("its record is sent", WITHIN, async || {
            let all = topic::read_uncommitted(world.kafka(), &world.topic_name(&users())).await;
            let all = all.map_err(|fault| format!("{fault:?}"))?.rows().count();
            if all == 51 { Ok(()) } else { Err(format!("{all} of 51 records are there")) }
        })
        .await;
}
