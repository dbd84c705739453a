//! Publishing to Kafka: [`Publisher`] in transactions, [`Plain`] without.
//!
//! Both are idempotent with `acks=all`, keep records in one bounded queue, and have a thread that only serves librdkafka's
//! events: without it a failed record would be noticed only by the next one, and `rdkafka`'s own way to flush costs 100 ms.

mod plain;
mod publisher;
mod standstill;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};

pub use plain::{Delivery, Plain};
pub use publisher::{Publisher, TRANSACTION_TIMEOUT};
use standstill::{Standstill, Verdict};

use crate::error::Error;
use crate::{Config, Context};

/// The bytes of keys, values and headers that wait in one producer at most.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The records that wait at most. Each costs about 200 bytes beside its own, so small ones are bounded by number.
const QUEUE_RECORDS_MAX: usize = 500_000;

/// How long one call into librdkafka lasts before its caller looks whether to stop.
const STEP: Duration = Duration::from_secs(1);

/// How long a full queue is waited for at a time.
const FULL_QUEUE_STEP: Duration = Duration::from_millis(1);

/// What a record costs in its batch beside key, value and headers: the batch's own head (61) and the record's numbers.
const RECORD_OVERHEAD: usize = 61 + 40;

/// A record to publish.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The topic, which must exist.
    pub topic: &'a str,
    /// The partition, from 0.
    pub partition: i32,
    /// The key; control events have none.
    pub key: Option<&'a [u8]>,
    /// The value; a tombstone has none.
    pub value: Option<&'a [u8]>,
    /// Headers in the order given.
    pub headers: &'a [(&'a str, &'a [u8])],
}

impl Record<'_> {
    /// The bytes that count against `max.message.bytes` of a topic, compression aside: at least what the broker counts.
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len() + 10).sum::<usize>();
        RECORD_OVERHEAD + self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers
    }

    fn native<O: rdkafka::util::IntoOpaque>(&self, opaque: O) -> BaseRecord<'_, [u8], [u8], O> {
        let record = BaseRecord::with_opaque_to(self.topic, opaque).partition(self.partition);
        let mut record = BaseRecord { key: self.key, payload: self.value, ..record };
        if !self.headers.is_empty() {
            let headers = OwnedHeaders::new_with_capacity(self.headers.len());
            let add = |headers: OwnedHeaders, (key, value): &(&str, &[u8])| {
                headers.insert(Header { key, value: Some(*value) })
            };
            record.headers = Some(self.headers.iter().fold(headers, add));
        }
        record
    }
}

/// The settings that both producers share.
fn settings(config: &Config) -> ClientConfig {
    let mut client = config.client();
    client
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "5")
        .set("batch.size", config.batch_bytes_max().to_string())
        // Sizes are checked against the topic's own limit before sending; this one only must not be in the way.
        .set("message.max.bytes", QUEUE_BYTES_MAX.to_string())
        // A record given up after a while leaves a hole while later ones are written.
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.kbytes", (QUEUE_BYTES_MAX / 1024).to_string())
        .set("queue.buffering.max.messages", QUEUE_RECORDS_MAX.to_string())
        .set("compression.type", &config.compression);
    client
}

/// Another second was waited in vain for Kafka to take what was sent. An error if that lasts too long.
fn stood_still<C>(producer: &BaseProducer<C>, context: &Context, standstill: &mut Standstill) -> Result<(), Error>
where
    C: ProducerContext,
{
    let left = producer.in_flight_count();
    match standstill.look(left, context.has_all_brokers()) {
        Verdict::Wait => {}
        Verdict::Tell => {
            tracing::warn!(records = left, "Kafka has not taken what was sent to it for some seconds, waiting");
        }
        Verdict::GiveUp => return Err(Error::Standstill { records: left }),
    }
    Ok(())
}

/// The thread that serves a producer's events. It holds the producer too, so it must end for the producer to end.
pub(crate) struct Poller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// How late the thread may notice that it should end. Events are served as they come.
    const STEP: Duration = Duration::from_millis(50);

    pub(crate) fn start<C: ProducerContext + 'static>(producer: Arc<BaseProducer<C>>) -> std::io::Result<Poller> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::Builder::new().name("kafka-events".to_owned()).spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                producer.poll(Poller::STEP);
            }
        })?;
        Ok(Poller { stop, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that serves Kafka's events has panicked");
        }
    }
}
