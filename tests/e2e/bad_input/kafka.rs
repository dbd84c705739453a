//! Kafka: topics that are missing or too narrow, a cluster that is away, records that are not ours.

use std::time::Duration;

use harness::World;
use harness::process::Part;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{REFUSAL_WITHIN, nothing_is_touched, refuses, users};

#[tokio::test]
async fn a_missing_topic_is_told_when_none_may_be_made() {
    let mut world = World::builder().table(users()).start().await;
    let topic = world.topic_name(&users());
    let mut configuration = world.configuration.clone();
    configuration.set("source.topics.create", false);
    refuses(&mut world, Part::Source, configuration, &[&topic, "source.topics.create"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_topic_with_fewer_partitions_than_configured_is_told() {
    let mut world = World::builder().table(users()).partitions(4).start().await;
    let topic = world.topic_name(&users());
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", world.kafka()).create().expect("a client");
    let narrow = NewTopic::new(&topic, 2, TopicReplication::Fixed(1));
    admin.create_topics(&[narrow], &AdminOptions::new()).await.expect("Kafka answers");
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Source, configuration, &[&topic, "2", "4", "partitions"]).await;
    world.finish().await;
}

#[tokio::test]
async fn an_unreachable_kafka_is_told() {
    let mut world = World::builder().table(users()).start().await;
    let address = format!("127.0.0.1:{}", harness::port::free());
    let mut configuration = world.configuration.clone();
    configuration.set("kafka.brokers", format!("kafka://{address}")).set("source.start_timeout_seconds", 1);
    world.expect_log("WARN");
    refuses(&mut world, Part::Source, configuration, &[&address, "did not answer", "check that it runs"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

/// Kafka is away when both start, comes, is killed under load, and comes back: nobody ends, nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_down_at_the_start_and_during_work_is_waited_for() {
    let mut world = World::builder().table(users()).own_kafka(1).start().await;
    world.expect_log("WARN");
    world.configuration.set("source.start_timeout_seconds", 300);
    let mut kafka = world.own_kafka.take().expect("the test has its own");
    kafka.kill9().await.expect("Kafka is killed");
    world.in_source("INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 1000) i").await;
    let (mut source, mut sink) = (world.start(Part::Source), world.start(Part::Sink));
    source.logs("WARN", REFUSAL_WITHIN).await.expect("the source says that Kafka is away");
    sink.logs("WARN", REFUSAL_WITHIN).await.expect("the sink says that Kafka is away");
    kafka.restart().await.expect("Kafka comes");
    world.until_equal().await;

    world.in_source("UPDATE users SET name = name || '!' WHERE id % 2 = 0").await;
    kafka.kill9().await.expect("Kafka is killed again");
    world.in_source("DELETE FROM users WHERE id % 3 = 0").await;
    kafka.restart().await.expect("Kafka comes back");
    world.in_source("INSERT INTO users VALUES (5000, 'last')").await;
    world.until_equal().await;
    world.check_topics().await;
    assert!(source.ended().is_none() && sink.ended().is_none(), "nobody has ended");
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}

#[tokio::test]
async fn a_record_that_is_no_envelope_stops_the_sink_in_front_of_it() {
    let mut world = World::builder().table(users()).partitions(1).start().await;
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    let (mut source, mut sink) = (world.start(Part::Source), world.start(Part::Sink));
    world.until_equal().await;
    sink.stop().await.expect("the sink ends");
    let topic = world.topic_name(&users());
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", world.kafka()).create().expect("a client");
    let foreign = FutureRecord::to(&topic).partition(0).key("{}").payload("not ours");
    let placed = producer.send(foreign, Duration::from_secs(20)).await.expect("Kafka takes it");
    world.in_source("INSERT INTO users VALUES (2, 'two')").await;
    let configuration = world.configuration.clone();
    let offset = format!("offset {}", placed.offset);
    refuses(&mut world, Part::Sink, configuration, &[&topic, &offset, "somebody else writes into this topic"]).await;
    let target = world.target(harness::servers::Role::Superuser).await;
    let rows = harness::oracle::tables::count(&target, &users()).await.expect("the target answers");
    assert_eq!(rows, 1, "nothing behind it was applied");
    source.stop().await.expect("the source ends");
    world.finish().await;
}
