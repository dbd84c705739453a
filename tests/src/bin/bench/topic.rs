//! A topic of the bench: made, watched from outside by its end offsets, and read once when all is over.
//!
//! The broker stamps what it takes, so that nobody need read beside the system that is measured.

use std::time::{Duration, Instant};

use harness::Error;
use harness::until::until;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::subject::Subject;

/// Of every topic.
pub(crate) const PARTITIONS: i32 = 4;

/// How long one question to the broker may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long a catch-up may take.
const ALL_WITHIN: Duration = Duration::from_secs(1800);
/// How long it may stand still.
const STILL_FOR: Duration = Duration::from_secs(120);
/// Whoever publishes more than it should shows it within this.
const QUIET_FOR: Duration = Duration::from_millis(1500);
/// How long reading it all may take without a record.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// Who gives the time stamp of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// The broker, when it takes the record.
    Broker,
    /// The producer.
    Producer,
}

/// A topic on the bench's broker.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    brokers: String,
    pub(crate) name: String,
}

/// What a topic holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Row changes.
    pub(crate) rows: u64,
    pub(crate) tombstones: u64,
    /// The arrival of the first record and of the last, in seconds since 1970.
    pub(crate) window: Option<(f64, f64)>,
}

impl Topic {
    pub(crate) fn new(brokers: String, name: String) -> Topic {
        Topic { brokers, name }
    }

    /// Makes it, with a leader for each partition.
    pub(crate) async fn create(&self, stamp: Stamp) -> Result<(), Error> {
        let stamp = if stamp == Stamp::Broker { "LogAppendTime" } else { "CreateTime" };
        let topic = NewTopic::new(&self.name, PARTITIONS, TopicReplication::Fixed(1))
            .set("message.timestamp.type", stamp)
            .set("retention.ms", "-1")
            .set("max.message.bytes", "10485760");
        let made =
            self.admin()?.create_topics([&topic], &AdminOptions::new().request_timeout(Some(ANSWER_WITHIN))).await;
        answered(format!("make the topic {}", self.name), made)?;
        // Made is not yet led.
        until("the topic can be asked for its offsets", ANSWER_WITHIN, async || {
            self.end().await.map(|_| ()).map_err(|fault| format!("{fault:?}"))
        })
        .await
    }

    /// Takes it away: the next measurement should not share the disk with it.
    pub(crate) async fn delete(&self) -> Result<(), Error> {
        let options = AdminOptions::new().request_timeout(Some(ANSWER_WITHIN));
        answered(format!("delete the topic {}", self.name), self.admin()?.delete_topics(&[&self.name], &options).await)
    }

    /// Waits until the topic holds at least so many offsets and stands still. `Err` says what happened instead.
    pub(crate) async fn filled(&self, offsets: i64, subject: &mut Subject) -> Result<Result<(), String>, Error> {
        let (mut last, mut moved) = (-1, Instant::now());
        let outcome = until("the topic is filled", ALL_WITHIN, async || {
            let end = self.end().await.map_err(|fault| format!("{fault:?}"))?;
            if end != last {
                (last, moved) = (end, Instant::now());
            }
            if end >= offsets && moved.elapsed() >= QUIET_FOR {
                return Ok(Ok(()));
            }
            if moved.elapsed() >= STILL_FOR {
                return Ok(Err(format!("nothing came for {STILL_FOR:?}")));
            }
            match subject.fault() {
                Some(fault) => Ok(Err(fault)),
                None => Err(format!("{end} offsets of {offsets}")),
            }
        });
        Ok(outcome.await.unwrap_or_else(|fault| Err(fault.to_string())))
    }

    /// Reads it all, as somebody who sees only what is committed.
    pub(crate) async fn tally(&self) -> Result<Tally, Error> {
        let topic = self.clone();
        let failed = Error::during(format!("read the topic {}", self.name));
        tokio::task::spawn_blocking(move || topic.read()).await.expect("reading a topic does not panic").map_err(failed)
    }

    /// A consumer of all partitions from the first record on.
    pub(crate) fn consumer(&self, settings: &[(&str, &str)]) -> Result<BaseConsumer, KafkaError> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", "bench").set("enable.auto.commit", "false");
        settings.iter().for_each(|(name, value)| {
            config.set(*name, *value);
        });
        let consumer: BaseConsumer = config.create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(&self.name, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        Ok(consumer)
    }

    async fn end(&self) -> Result<i64, Error> {
        let topic = self.clone();
        let failed = Error::during(format!("ask for the end of {}", self.name));
        let ask = move || {
            let consumer: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &topic.brokers).create()?;
            let ends = (0..PARTITIONS).map(|p| consumer.fetch_watermarks(&topic.name, p, ANSWER_WITHIN));
            ends.map(|offsets| offsets.map(|(_, end)| end)).sum::<Result<i64, KafkaError>>()
        };
        tokio::task::spawn_blocking(ask).await.expect("asking for offsets does not panic").map_err(failed)
    }

    fn read(&self) -> Result<Tally, KafkaError> {
        let consumer = self.consumer(&[("enable.partition.eof", "true")])?;
        let (mut tally, mut ended, mut heard) = (Tally::default(), 0, Instant::now());
        while ended < PARTITIONS {
            match consumer.poll(Duration::from_millis(500)) {
                None if heard.elapsed() > READ_WITHIN => {
                    return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut));
                }
                None => continue,
                Some(Ok(message)) => tally.add(&message),
                Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
                Some(Err(fault)) => return Err(fault),
            }
            heard = Instant::now();
        }
        Ok(tally)
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, Error> {
        let client = ClientConfig::new().set("bootstrap.servers", &self.brokers).create();
        client.map_err(Error::during("make a client for the broker"))
    }
}

impl Tally {
    fn add(&mut self, message: &impl Message) {
        let is_control = message.headers().is_some_and(|headers| headers.iter().any(|header| header.key == "control"));
        match message.payload() {
            _ if is_control => return,
            Some(_) => self.rows += 1,
            None => self.tombstones += 1,
        }
        if let Some(ms) = message.timestamp().to_millis() {
            let at = ms as f64 / 1000.0;
            let (first, last) = self.window.unwrap_or((at, at));
            self.window = Some((first.min(at), last.max(at)));
        }
    }
}

fn answered(what: String, answer: Result<Vec<rdkafka::admin::TopicResult>, KafkaError>) -> Result<(), Error> {
    let results = answer.map_err(Error::during(what.clone()))?;
    results.into_iter().try_for_each(|result| match result {
        Ok(_) => Ok(()),
        Err((topic, code)) => Err(Error::new(format!("{what}: {topic}: {code}"))),
    })
}
