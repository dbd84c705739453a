//! Reading one topic whole: all its partitions, from the first record to the end, and on from there.
//!
//! Without a group: no offsets are stored, nobody else's reading is disturbed. The end of a partition is where librdkafka
//! says so: the last offset may belong to a transaction's marker, so offsets cannot tell.

use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::admin::REQUEST_TIMEOUT;
use crate::error::{Cause, Error};
use crate::{Config, Context, raw};

/// How long one wait for records lasts before its caller looks whether to stop.
const STEP: Duration = Duration::from_millis(200);

/// Which records of transactions are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Those of committed transactions, up to the first that is open.
    ReadCommitted,
    /// All, aborted ones included.
    ReadUncommitted,
}

/// A record as it was read.
pub struct Record<'a>(BorrowedMessage<'a>);

impl Record<'_> {
    /// Its partition, from 0.
    pub fn partition(&self) -> i32 {
        self.0.partition()
    }

    /// Its offset in the partition.
    pub fn offset(&self) -> i64 {
        self.0.offset()
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    /// Its value; a tombstone has none.
    pub fn value(&self) -> Option<&[u8]> {
        self.0.payload()
    }

    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers()?.iter().find(|header| header.key == name)?.value
    }

    /// When it was published, in milliseconds since 1970.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.0.timestamp().to_millis()
    }
}

impl std::fmt::Debug for Record<'_> {
    /// Without key and value: those are rows.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Record {{ {}, partition {}, offset {} }}", self.0.topic(), self.partition(), self.offset())
    }
}

/// What following a topic meets.
#[derive(Debug)]
pub enum Event<'a> {
    /// The next record of its partition.
    Record(Record<'a>),
    /// All records that this partition had when the following began were read: while somebody writes all the time a reader
    /// never meets the end of now. Said again whenever that is met.
    End {
        /// The partition, from 0.
        partition: i32,
    },
}

/// Follows one topic from its start. One thread owns it.
pub struct Tail {
    consumer: BaseConsumer<Context>,
    topic: String,
    partitions: i32,
    /// Where each partition ended when the following began, until that was met.
    ends: Vec<Option<i64>>,
    /// A partition whose end was met with the last record.
    met: Option<i32>,
}

impl Tail {
    /// Starts at the first record of every partition that the topic has now. Blocks until the cluster answers or a few
    /// seconds have passed.
    pub fn start(config: &Config, topic: &str, isolation: Isolation) -> Result<Tail, Error> {
        let mut settings = config.client();
        settings
            // librdkafka wants a name even where no group is joined; nothing is ever committed under it.
            .set("group.id", "tributary.reader")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("fetch.wait.max.ms", "100")
            .set("queued.max.messages.kbytes", "8192")
            .set(
                "isolation.level",
                match isolation {
                    Isolation::ReadCommitted => "read_committed",
                    Isolation::ReadUncommitted => "read_uncommitted",
                },
            );
        let consumer = BaseConsumer::from_config_and_context(&settings, config.context())
            .map_err(|error| config.refused(error))?;
        let partitions = partitions(config, &consumer, topic)?;
        let mut assignment = TopicPartitionList::new();
        for partition in 0..partitions {
            let added = assignment.add_partition_offset(topic, partition, Offset::Beginning);
            added.map_err(|error| read(topic, Some(partition), error))?;
        }
        consumer.assign(&assignment).map_err(|error| read(topic, None, error))?;
        let end = |partition| match consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT) {
            Ok((_, end)) => Ok(Some(end)),
            Err(error) => Err(read(topic, Some(partition), error)),
        };
        let ends = (0..partitions).map(end).collect::<Result<_, _>>()?;
        Ok(Tail { consumer, topic: topic.to_owned(), partitions, ends, met: None })
    }

    /// The number of partitions that are followed.
    pub fn partitions(&self) -> i32 {
        self.partitions
    }

    /// The next event, or nothing when none came within `timeout`. Brokers that are away are waited for.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event<'_>>, Error> {
        if let Some(partition) = self.met.take() {
            return Ok(Some(Event::End { partition }));
        }
        match self.consumer.poll(timeout) {
            None => Ok(None),
            Some(Ok(message)) => {
                let index = usize::try_from(message.partition()).unwrap_or(usize::MAX);
                let is_met = |end: &mut i64| message.offset() + 1 >= *end;
                self.met = self.ends.get_mut(index).and_then(|end| end.take_if(is_met)).map(|_| message.partition());
                Ok(Some(Event::Record(Record(message))))
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => Ok(Some(Event::End { partition })),
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(code) if is_passing(code) => Ok(None),
                _ => Err(read(&self.topic, None, error)),
            },
        }
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tail").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Reads every record that `topic` has at this moment, partition by partition in order, and returns at the end of all.
///
/// An error of `each` ends the reading. Brokers that are away are waited for until `stop` says so, which is asked often.
pub fn read_all<E: From<Error>>(
    config: &Config,
    topic: &str,
    isolation: Isolation,
    stop: &dyn Fn() -> bool,
    mut each: impl FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut tail = Tail::start(config, topic, isolation)?;
    let mut records = 0_u64;
    let mut ended = vec![false; usize::try_from(tail.partitions()).unwrap_or(0)];
    while ended.contains(&false) {
        match tail.next(STEP)? {
            Some(Event::Record(record)) => {
                each(&record)?;
                records += 1;
                if records.is_multiple_of(4_096) && stop() {
                    return Err(Error::Stopped("read a topic").into());
                }
            }
            Some(Event::End { partition }) => {
                if let Some(ended) = usize::try_from(partition).ok().and_then(|index| ended.get_mut(index)) {
                    *ended = true;
                }
            }
            None => {
                if let Some(refused) = tail.consumer.context().refused() {
                    return Err(refused.into());
                }
                if stop() {
                    return Err(Error::Stopped("read a topic").into());
                }
            }
        }
    }
    Ok(())
}

/// How many partitions the topic has. Asked in a way that cannot create it.
fn partitions(config: &Config, consumer: &BaseConsumer<Context>, topic: &str) -> Result<i32, Error> {
    let operation = || format!("look up the topic {topic}");
    let described =
        raw::describe_topics(consumer.client(), &[topic], REQUEST_TIMEOUT).map_err(|cause| match cause.code() {
            RDKafkaErrorCode::OperationTimedOut | RDKafkaErrorCode::BrokerTransportFailure => {
                unreachable(config, consumer, operation())
            }
            _ => Error::Admin { operation: operation(), cause },
        })?;
    let topic = described.first().ok_or_else(|| Error::NoTopic(topic.to_owned()))?;
    Ok(i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX))
}

fn unreachable(config: &Config, consumer: &BaseConsumer<Context>, operation: String) -> Error {
    // What the connection said meanwhile waits in the queue; a refusal explains more than a time-out.
    let _served = consumer.poll(Duration::from_millis(50));
    consumer.context().unanswered(config.brokers(), operation, REQUEST_TIMEOUT)
}

/// What librdkafka reports and then retries by itself.
fn is_passing(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::AllBrokersDown
            | RDKafkaErrorCode::Resolve
            | RDKafkaErrorCode::SSL
            | RDKafkaErrorCode::Authentication
            | RDKafkaErrorCode::OperationTimedOut
    )
}

fn read(topic: &str, partition: Option<i32>, error: KafkaError) -> Error {
    Error::Read { topic: topic.to_owned(), partition, cause: Cause::from(error) }
}
