//! What others do to the topics of tables: partitions added, records gone by retention, a topic deleted or made again.

use std::collections::BTreeMap;

use harness::World;
use harness::oracle::topic::Records;
use harness::topics::Topics;

use super::{WITHIN, published, stops, users};

/// Rows stay in the partitions that they had: the count of the first start is kept in the state.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_added_behind_our_back_move_no_row() {
    let mut world = World::builder().table(users()).partitions(2).start().await;
    world.expect_log("has 5 partitions by now");
    let mut source = published(&mut world).await;
    let topics = Topics::of(world.kafka()).expect("Kafka answers");
    topics.raise_partitions(&world.topic_name(&users()), 5).await.expect("Kafka adds partitions");
    world
        .in_source(
            "UPDATE users SET name = name || '!'; INSERT INTO users SELECT i, 'new' FROM generate_series(51, 100) i",
        )
        .await;
    world.until_published().await;
    source.stop().await.expect("the source ends");
    source.restart().expect("it starts again");
    world.in_source("UPDATE users SET name = name || '?'").await;
    world.until_published().await;
    let used: Vec<i32> = seqs(&world.topic(&users()).await).into_keys().collect();
    assert_eq!(used, [0, 1]);
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// The numbers go on behind what is gone, whether the source runs meanwhile or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_retention_has_emptied_goes_on_with_the_next_numbers() {
    let mut world = World::builder().table(users()).partitions(2).start().await;
    let mut source = published(&mut world).await;
    let topics = Topics::of(world.kafka()).expect("Kafka answers");
    let topic = world.topic_name(&users());
    let mut last = last_seqs(&world.topic(&users()).await);
    for is_running in [true, false] {
        if !is_running {
            source.stop().await.expect("the source ends");
        }
        topics.empty(&topic, 2).await.expect("Kafka forgets the records");
        world.in_source("UPDATE users SET name = name || '!'").await;
        if !is_running {
            source.restart().expect("it starts again");
        }
        let records = world
            .until("every row is told of again", WITHIN, async || {
                let records = world.topic(&users()).await;
                let count = records.rows().count();
                if count == 50 { Ok(records) } else { Err(format!("{count} rows")) }
            })
            .await;
        for (partition, seqs) in seqs(&records) {
            let first = last.get(&partition).map_or(1, |last| last + 1);
            let expected: Vec<u64> = (first..).take(seqs.len()).collect();
            assert_eq!(seqs, expected, "partition {partition}");
        }
        last = last_seqs(&records);
    }
    source.stop().await.expect("the source ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_deleted_and_made_again_stops_the_source() {
    let mut world = World::builder().table(users()).partitions(2).start().await;
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let (topic, topics) = (world.topic_name(&users()), Topics::of(world.kafka()).expect("Kafka answers"));
    topics.delete(&topic).await.expect("Kafka deletes it");
    made_again(&world, &topics, &topic).await;
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &[&topic, "was deleted and made again", "under a new prefix"]).await;
    let records = world.topic(&users()).await;
    assert!(records.0.is_empty(), "nothing was published to the new one: {records:?}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_deleted_under_a_running_source_stops_it() {
    let mut world = World::builder().table(users()).partitions(2).start().await;
    world.expect_log("WARN");
    let mut source = published(&mut world).await;
    let (topic, topics) = (world.topic_name(&users()), Topics::of(world.kafka()).expect("Kafka answers"));
    topics.delete(&topic).await.expect("Kafka deletes it");
    world.in_source("UPDATE users SET name = name || '!'").await;
    stops(&mut world, &mut source, &[&topic, "is gone", "under a new prefix"]).await;
    world.finish().await;
}

/// librdkafka goes by the name, and would write into the new one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_again_under_a_running_source_stops_it() {
    let mut world = World::builder().table(users()).partitions(2).start().await;
    world.expect_log("WARN");
    let mut source = published(&mut world).await;
    let (topic, topics) = (world.topic_name(&users()), Topics::of(world.kafka()).expect("Kafka answers"));
    topics.delete(&topic).await.expect("Kafka deletes it");
    made_again(&world, &topics, &topic).await;
    stops(&mut world, &mut source, &[&topic, "was deleted and made again", "under a new prefix"]).await;
    world.finish().await;
}

/// Kafka deletes in its own time.
async fn made_again(world: &World, topics: &Topics, topic: &str) {
    world
        .until("the topic is made again", WITHIN, async || {
            topics.make(topic, 2, &[]).await.map_err(|fault| format!("{fault:?}"))
        })
        .await;
}

fn seqs(records: &Records) -> BTreeMap<i32, Vec<u64>> {
    let mut seqs = BTreeMap::<i32, Vec<u64>>::new();
    for record in &records.0 {
        seqs.entry(record.partition).or_default().push(record.headers["seq"].parse().expect("a number"));
    }
    seqs
}

fn last_seqs(records: &Records) -> BTreeMap<i32, u64> {
    seqs(records).into_iter().filter_map(|(partition, seqs)| Some((partition, *seqs.last()?))).collect()
}
