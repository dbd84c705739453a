//! How far a consumer group is, as Kafka's own tools tell it: the end of each partition beside the committed offset.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::Error;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// How long one question to the broker may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Where partitions end: by topic and partition, the offset behind the last record (or transaction marker).
pub(crate) type Ends = BTreeMap<(String, i32), i64>;

/// Where the partitions of these topics end now.
pub(crate) async fn ends(brokers: String, topics: Vec<String>) -> Result<Ends, Error> {
    blocking("ask where the topics end", move || {
        let consumer = consumer(&brokers, "demo")?;
        let metadata = consumer.fetch_metadata(None, ANSWER_WITHIN)?;
        let mut ends = Ends::new();
        for topic in metadata.topics().iter().filter(|topic| topics.iter().any(|name| name == topic.name())) {
            for partition in topic.partitions() {
                let (start, end) = consumer.fetch_watermarks(topic.name(), partition.id(), ANSWER_WITHIN)?;
                if end > start {
                    ends.insert((topic.name().to_owned(), partition.id()), end);
                }
            }
        }
        Ok(ends)
    })
    .await
}

/// How many records (and markers) before these ends the group has not passed.
pub(crate) async fn of(brokers: String, group: String, ends: Ends) -> Result<i64, Error> {
    blocking("ask for the lag of a group", move || {
        let mut partitions = TopicPartitionList::new();
        for (topic, partition) in ends.keys() {
            partitions.add_partition(topic, *partition);
        }
        let committed = consumer(&brokers, &group)?.committed_offsets(partitions, ANSWER_WITHIN)?.to_topic_map();
        let left = ends.iter().map(|(partition, end)| match committed.get(partition) {
            Some(Offset::Offset(passed)) => (end - passed).max(0),
            // Nothing committed yet.
            _ => *end,
        });
        Ok(left.sum())
    })
    .await
}

fn consumer(brokers: &str, group: &str) -> Result<BaseConsumer, KafkaError> {
    ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", group).create()
}

async fn blocking<T: Send + 'static>(
    operation: &'static str,
    ask: impl FnOnce() -> Result<T, KafkaError> + Send + 'static,
) -> Result<T, Error> {
    let answer = tokio::task::spawn_blocking(ask).await.expect("asking Kafka does not panic");
    answer.map_err(Error::during(operation))
}
