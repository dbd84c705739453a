//! The state topic: lost, emptied, compacted; and a state that is somebody else's.

use harness::World;
use harness::oracle::topic;
use harness::process::Part;
use harness::servers::Role;
use harness::topics::Topics;

use super::{WITHIN, published, stops, told, users};

/// How the product makes the state topic, but eager to compact.
const EAGER: [(&str, &str); 5] = [
    ("cleanup.policy", "compact"),
    ("segment.ms", "100"),
    ("min.cleanable.dirty.ratio", "0.0"),
    ("max.compaction.lag.ms", "100"),
    ("delete.retention.ms", "0"),
];

/// Without its state the source cannot know what stands in the topics: it publishes nothing twice, and nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_topic_that_is_gone_or_empty_stops_the_source() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let before = told(&world).await;
    let (state, topics) = (state_of(&world), Topics::of(world.kafka()).expect("Kafka answers"));
    topics.delete(&state).await.expect("Kafka deletes it");
    let words = [&world.topic_name(&users()), "holds records", "the state was lost", "another prefix"];
    let words = words.map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &words).await;
    world
        .until("the state topic is made again", WITHIN, async || {
            topics.make(&state, 1, &[("cleanup.policy", "compact")]).await.map_err(|fault| format!("{fault:?}"))
        })
        .await;
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &words).await;
    assert_eq!(told(&world).await, before, "nothing was published");
    let kept = world.source(Role::Superuser).await;
    let kept = kept.query_one("SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", &[&world.slot()]).await;
    assert_eq!(kept.expect("the source answers").get::<_, i64>(0), 1, "the slot still holds what was not published");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_topic_that_is_deleted_under_a_running_source_stops_it() {
    let mut world = World::builder().table(users()).start().await;
    world.expect_log("WARN");
    let mut source = published(&mut world).await;
    let before = told(&world).await;
    let topics = Topics::of(world.kafka()).expect("Kafka answers");
    topics.delete(&state_of(&world)).await.expect("Kafka deletes it");
    world.in_source("UPDATE users SET name = name || '!'").await;
    stops(&mut world, &mut source, &["the state was lost", "another prefix"]).await;
    assert_eq!(told(&world).await, before, "what could not be recorded was not published");
    world.finish().await;
}

/// A state topic that would be emptied by time is refused while it is still whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_topic_that_is_not_compacted_stops_the_source() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let topics = Topics::of(world.kafka()).expect("Kafka answers");
    topics.set(&state_of(&world), &[("cleanup.policy", "delete")]).await.expect("Kafka changes it");
    source.restart().expect("it starts again");
    let state = state_of(&world);
    stops(&mut world, &mut source, &[&state, "cleanup.policy", "compact"]).await;
    world.finish().await;
}

/// What compaction leaves is the whole state.
#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_state_topic_is_gone_on_from() {
    let mut world = World::builder().table(users()).own_kafka(1).start().await;
    let mut source = published(&mut world).await;
    let topics = Topics::of(world.kafka()).expect("Kafka answers");
    topics.set(&state_of(&world), &EAGER).await.expect("Kafka changes it");
    for n in 0..5 {
        world.in_source(&format!("UPDATE users SET name = name || '{n}'")).await;
        world.until_published().await;
    }
    source.stop().await.expect("the source ends");
    world
        .until("the state topic is compacted", WITHIN, async || {
            let records = topic::read(world.kafka(), &state_of(&world)).await.map_err(|fault| format!("{fault:?}"))?;
            let (first, count) = (records.0.first().map_or(0, |record| record.offset), records.0.len());
            // The segment that is written to is never compacted, so some keys stand twice.
            if first > 0 && count < 12 { Ok(()) } else { Err(format!("{count} records from offset {first}")) }
        })
        .await;
    source.restart().expect("it starts again");
    world.in_source("UPDATE users SET name = name || '!'; DELETE FROM users WHERE id > 40").await;
    world.until_published().await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// A staging twin with a copied configuration: it is told off before it can fence the one that works.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_under_our_prefix_disturbs_nobody() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = published(&mut world).await;
    let twin = harness::servers::Postgres::start(harness::servers::Durability::Relaxed).await.expect("a second server");
    let client = twin.address().connect(Role::Superuser, "postgres").await.expect("it answers");
    let database = format!("CREATE DATABASE {}", harness::table::quote(&world.source_database()));
    client.batch_execute(&database).await.expect("it makes a database");
    let client = twin.address().connect(Role::Superuser, &world.source_database()).await.expect("it answers");
    let slot = harness::table::quote(&world.slot());
    let made = format!(
        "{}; GRANT SELECT ON users TO {}; CREATE PUBLICATION {slot} FOR TABLE users",
        users().ddl(),
        Role::Source.name()
    );
    client.batch_execute(&made).await.expect("it is made ready");
    let made = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", world.slot());
    client.batch_execute(&made).await.expect("it makes a slot");
    let mut configuration = world.configuration.clone();
    configuration.set("source.url", twin.address().url(Role::Source, &world.source_database()));
    let mut other = world.start_with(Part::Source, configuration);
    let state = state_of(&world);
    stops(&mut world, &mut other, &[&state, "was written for system", "another prefix"]).await;

    world.in_source("UPDATE users SET name = name || '!'").await;
    world.until_published().await;
    assert!(!source.log().contains("WARN"), "it was disturbed:\n{}", source.log());
    source.stop().await.expect("the source ends");
    world.finish().await;
}

fn state_of(world: &World) -> String {
    schemas::topic::of_state(world.prefix())
}
