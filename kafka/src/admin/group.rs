//! What Kafka knows of a consumer group: its members, what each reads, and the offsets that were committed.
//!
//! Informs people. What a group has really done stands where it did it.

use std::collections::BTreeMap;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::groups::GroupMemberInfo;
use rdkafka::producer::Producer;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::{Admin, REQUEST_TIMEOUT};
use crate::error::Error;

/// A consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Kafka's word for its state, `Stable` or `Empty` for instance.
    pub state: String,
    /// Who is in it.
    pub members: Vec<Member>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The client id that it gave.
    pub client_id: String,
    /// The address that it came from.
    pub host: String,
    /// What it reads: topics and partitions.
    pub partitions: Vec<(String, i32)>,
}

impl Admin {
    /// The group, if Kafka knows it.
    pub async fn group(&self, id: &str) -> Result<Option<Group>, Error> {
        let name = id.to_owned();
        let answer = self.blocking(move |probe| -> KafkaResult<Option<Group>> {
            let groups = probe.client().fetch_group_list(Some(&name), REQUEST_TIMEOUT)?;
            let group = groups.groups().iter().find(|group| group.name() == name && group.state() != "Dead");
            Ok(group.map(|group| Group {
                state: group.state().to_owned(),
                members: group.members().iter().map(member).collect(),
            }))
        });
        answer.await.map_err(|error| self.failed(format!("describe the group {id}"), error.into()))
    }

    /// The next offset that the group committed for each partition of the topics that has one. `topics` are names and
    /// numbers of partitions. Does not join the group.
    pub async fn committed(&self, group: &str, topics: &[(&str, i32)]) -> Result<BTreeMap<(String, i32), i64>, Error> {
        let operation = format!("read the offsets of the group {group}");
        let mut settings = self.config.client();
        settings.set("group.id", group).set("enable.auto.commit", "false");
        let consumer = BaseConsumer::from_config_and_context(&settings, self.config.context());
        let consumer = consumer.map_err(|error| self.config.refused(error))?;
        let mut wanted = TopicPartitionList::new();
        for &(topic, partitions) in topics {
            (0..partitions).for_each(|partition| {
                wanted.add_partition(topic, partition);
            });
        }
        let answer = self.blocking(move |_| consumer.committed_offsets(wanted, REQUEST_TIMEOUT));
        let offsets = answer.await.map_err(|error| self.failed(operation, error.into()))?;
        let committed = offsets.elements().into_iter().filter_map(|element| match element.offset() {
            Offset::Offset(offset) => Some(((element.topic().to_owned(), element.partition()), offset)),
            _ => None,
        });
        Ok(committed.collect())
    }
}

fn member(member: &GroupMemberInfo) -> Member {
    Member {
        client_id: member.client_id().to_owned(),
        host: member.client_host().trim_start_matches('/').to_owned(),
        partitions: member.assignment().and_then(assigned).unwrap_or_default(),
    }
}

/// Reads the protocol's own form of an assignment: version, then topics with their partitions. None if it is another form.
fn assigned(bytes: &[u8]) -> Option<Vec<(String, i32)>> {
    let mut rest = bytes;
    take::<2>(&mut rest)?;
    let topics = i32::from_be_bytes(take(&mut rest)?);
    let mut partitions = Vec::new();
    for _ in 0..topics {
        let length = usize::from(u16::from_be_bytes(take(&mut rest)?));
        let (name, after) = rest.split_at_checked(length)?;
        let name = std::str::from_utf8(name).ok()?;
        rest = after;
        for _ in 0..i32::from_be_bytes(take(&mut rest)?) {
            partitions.push((name.to_owned(), i32::from_be_bytes(take(&mut rest)?)));
        }
    }
    Some(partitions)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_and_a_broken_one_is_not() {
        let bytes =
            b"\x00\x00\x00\x00\x00\x01\x00\x03a.b\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\xff\xff\xff\xff";
        assert_eq!(assigned(bytes), Some(vec![("a.b".to_owned(), 0), ("a.b".to_owned(), 2)]));
        assert_eq!(assigned(&bytes[..18]), None);
        assert_eq!(assigned(b""), None);
    }
}
