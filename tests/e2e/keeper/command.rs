//! The commands about slot and topics, and what a slot that nobody reads is said to last.

use std::time::Duration;

use harness::World;
use harness::process::Part;
use harness::servers::Role;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;

use super::{READY_WITHIN, json, users, write_segments};

/// Refused while it is read from; shown before it is done; and then nothing of ours is left on the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_slot_leaves_nothing_behind_on_the_server() {
    let mut world = World::builder().table(users()).without_publication().start().await;
    let owner = format!(
        "ALTER TABLE users OWNER TO {0}; GRANT CREATE ON DATABASE \"{1}\" TO {0}",
        Role::Source.name(),
        world.source_database()
    );
    world.in_source(&owner).await;
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    let mut source = world.start(Part::Source);
    world.until_published().await;
    let client = world.source(Role::Superuser).await;
    let slot = world.slot();
    let reader = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    let reader = client.query_one(reader, &[&slot]).await.expect("the slot is there").get::<_, i32>(0);

    let in_use = world.command(&["slot", "drop", "--yes", "--publication"]).await;
    assert_eq!(in_use.code, Some(1), "{in_use:?}");
    assert!(in_use.stdout.contains(&format!("process {reader}")), "{in_use:?}");
    source.stop().await.expect("it ends");

    let would = world.command(&["slot", "drop", "--publication"]).await;
    assert_eq!(would.code, Some(0), "{would:?}");
    assert!(would.stdout.contains("would be dropped") && would.stdout.contains("--yes"), "{would:?}");
    let left = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),
                       (SELECT count(*) FROM pg_publication)";
    let count = async || {
        let row = client.query_one(left, &[]).await.expect("the source answers");
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    assert_eq!(count().await, (1, 1), "only shown");

    let done = world.command(&["slot", "drop", "--yes", "--publication"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    for word in [&slot, &world.topic_name(&world.tables[0]), &schemas::topic::of_state(world.prefix())] {
        assert!(done.stdout.contains(word), "it does not tell of {word}: {done:?}");
    }
    assert_eq!(count().await, (0, 0));
    let again = world.command(&["slot", "drop", "--yes"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    world.finish().await;
}

/// With a limit it is the limit that ends it, without one the disk; both are said with what they are based on.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_nobody_reads_is_said_to_last_so_long() {
    let mut world = World::builder().table(users()).own_source().start().await;
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    let mut source = world.start(Part::Source);
    world.until_published().await;
    source.stop().await.expect("it ends");
    write_segments(&world, 1).await;
    let unlimited = world.command(&["status"]).await;
    assert_eq!(unlimited.code, Some(1), "{unlimited:?}");
    for word in ["nobody reads", "WAL", "measured"] {
        assert!(unlimited.stdout.contains(word), "no {word:?} in {unlimited:?}");
    }
    let server = world.own_source.as_mut().expect("the test has its own");
    server.set("max_slot_wal_keep_size", "10GB");
    server.restart().await.expect("the source comes back");
    let limited = world.command(&["slot", "show", "--json"]).await;
    let limited = json(&limited);
    assert!(limited["slot"]["safe_wal_bytes"].as_i64().is_some_and(|bytes| bytes > 0), "{limited}");
    assert_eq!(limited["slot"]["wal_keep_bytes"], 10_i64 << 30, "{limited}");
    assert!(limited["slot"]["outlook"].is_string(), "{limited}");
    let doctor = world.command(&["doctor"]).await;
    assert!(doctor.stdout.contains("nobody"), "{doctor:?}");
    world.finish().await;
}

/// Kafka lets anybody add partitions. Rows go on where rows of their key went before.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_added_behind_our_back_stay_empty_and_are_told() {
    let mut world = World::builder().table(users()).partitions(2).start().await;
    world.expect_log("partitions by now");
    world.in_source("INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 50) i").await;
    let mut run = world.start(Part::Run);
    world.until_equal().await;
    run.stop().await.expect("it ends");

    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", world.kafka()).create().expect("a client");
    let topic = world.topic_name(&world.tables[0]);
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    let grown = admin.create_partitions(&[NewPartitions::new(&topic, 6)], &options).await.expect("Kafka answers");
    assert!(grown.iter().all(Result::is_ok), "{grown:?}");

    run.restart().expect("it starts again");
    run.ready(READY_WITHIN).await.expect("it streams");
    run.logs("partitions by now", READY_WITHIN).await.expect("it tells");
    world
        .in_source(
            "UPDATE users SET name = name || '!'; INSERT INTO users SELECT i, 'later' FROM generate_series(51, 99) i",
        )
        .await;
    world.until_equal().await;
    world.check_topics().await;
    let records = world.topic(&world.tables[0]).await;
    assert!(records.0.iter().all(|record| record.partition < 2), "something stands in an added partition");

    let status = world.command(&["status"]).await;
    assert_eq!(status.code, Some(0), "{status:?}");
    let doctor = world.command(&["doctor"]).await;
    assert!(doctor.stdout.contains("6 partitions") && doctor.stdout.contains("topic grow"), "{doctor:?}");
    let grow = world.command(&["topic", "grow"]).await;
    assert_eq!(grow.code, Some(2), "{grow:?}");
    assert!(grow.stdout.contains(&topic) && grow.stdout.contains("another prefix"), "{grow:?}");
    run.stop().await.expect("it ends");
    world.finish().await;
}
