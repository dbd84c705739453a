//! How far a consumer group is behind, as Kafka's own tools tell it: the end of each partition less the committed offset.

use std::time::Duration;

use harness::Error;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// How long one question to the broker may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// The records (and transaction markers) of these topics that the group has not passed.
pub(crate) async fn of(brokers: String, group: String, topics: Vec<String>) -> Result<i64, Error> {
    let asking = tokio::task::spawn_blocking(move || {
        ask(&brokers, &group, &topics).map_err(Error::during(format!("ask for the lag of {group}")))
    });
    asking.await.expect("asking for a lag does not panic")
}

fn ask(brokers: &str, group: &str, topics: &[String]) -> Result<i64, KafkaError> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", group).create()?;
    let mut partitions = TopicPartitionList::new();
    let metadata = consumer.fetch_metadata(None, ANSWER_WITHIN)?;
    for topic in metadata.topics().iter().filter(|topic| topics.iter().any(|name| name == topic.name())) {
        for partition in topic.partitions() {
            partitions.add_partition(topic.name(), partition.id());
        }
    }
    let mut lag = 0;
    for partition in consumer.committed_offsets(partitions, ANSWER_WITHIN)?.elements() {
        let (start, end) = consumer.fetch_watermarks(partition.topic(), partition.partition(), ANSWER_WITHIN)?;
        lag += match partition.offset() {
            Offset::Offset(passed) => (end - passed).max(0),
            // Nothing committed yet.
            _ => end - start,
        };
    }
    Ok(lag)
}
