//! The hand of somebody else on our topics: whoever administers the cluster, makes, empties and changes them.

use std::collections::HashMap;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::Error;

/// Administers the topics of one cluster.
pub struct Topics {
    admin: AdminClient<DefaultClientContext>,
    options: AdminOptions,
}

impl Topics {
    /// Of the cluster at `brokers`.
    pub fn of(brokers: &str) -> Result<Topics, Error> {
        let admin = ClientConfig::new().set("bootstrap.servers", brokers).create();
        Ok(Topics { admin: admin.map_err(Error::during("make a Kafka client"))?, options: AdminOptions::new() })
    }

    /// Makes a topic.
    pub async fn make(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) -> Result<(), Error> {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            new = new.set(key, value);
        }
        let made = self.admin.create_topics(&[new], &self.options).await;
        outcome(made, format!("make the topic {topic}"))
    }

    /// Deletes a topic with all that is in it.
    pub async fn delete(&self, topic: &str) -> Result<(), Error> {
        let deleted = self.admin.delete_topics(&[topic], &self.options).await;
        outcome(deleted, format!("delete the topic {topic}"))
    }

    /// Raises the number of partitions to `count`.
    pub async fn raise_partitions(&self, topic: &str, count: usize) -> Result<(), Error> {
        let raised = self.admin.create_partitions(&[NewPartitions::new(topic, count)], &self.options).await;
        outcome(raised, format!("raise the partitions of {topic}"))
    }

    /// Gives a topic these settings; all others are the cluster's defaults afterwards.
    pub async fn set(&self, topic: &str, settings: &[(&str, &str)]) -> Result<(), Error> {
        let entries: HashMap<&str, &str> = settings.iter().copied().collect();
        let config = AlterConfig { specifier: ResourceSpecifier::Topic(topic), entries };
        let set = self.admin.alter_configs(&[config], &self.options).await;
        outcome(set.map(|all| all.into_iter().map(|one| one.map_err(|(_, code)| code))), format!("change {topic}"))
    }

    /// What retention does in the end: every record that stands in these partitions is gone.
    pub async fn empty(&self, topic: &str, partitions: i32) -> Result<(), Error> {
        let operation = || format!("empty the topic {topic}");
        let mut ends = TopicPartitionList::new();
        for partition in 0..partitions {
            ends.add_partition_offset(topic, partition, Offset::End).map_err(Error::during(operation()))?;
        }
        self.admin.delete_records(&ends, &self.options).await.map(drop).map_err(Error::during(operation()))
    }
}

fn outcome<T, C: std::fmt::Debug>(
    answer: Result<impl IntoIterator<Item = Result<T, C>>, rdkafka::error::KafkaError>,
    operation: String,
) -> Result<(), Error> {
    let each = answer.map_err(Error::during(operation.clone()))?;
    match each.into_iter().find_map(Result::err) {
        Some(code) => Err(Error::new(format!("{operation}: {code:?}"))),
        None => Ok(()),
    }
}
