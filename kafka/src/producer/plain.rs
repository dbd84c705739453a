//! A producer without transactions, for records that stand alone: each gets its own result.
//!
//! At least once: after a crash, whoever cannot tell sends again.

use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};

use super::standstill::Standstill;
use super::{FULL_QUEUE_STEP, Poller, Record, STEP, settings, stood_still};
use crate::error::{Cause, Error};
use crate::{Config, Context, raw};

/// What became of one record.
#[derive(Debug)]
pub struct Delivery {
    /// The number that its sender gave it.
    pub tag: usize,
    /// Its offset, or why it was not written.
    pub result: Result<i64, Error>,
}

/// See the module.
pub struct Plain {
    // Dropped first: the thread holds the producer, and must be gone for the producer to close.
    _poller: Poller,
    producer: Arc<BaseProducer<Reports>>,
}

impl Plain {
    /// Makes the producer. It connects by itself, so this succeeds with no broker there.
    pub fn connect(config: &Config) -> Result<Plain, Error> {
        let reports = Reports { context: config.context(), done: Mutex::default() };
        let producer =
            BaseProducer::from_config_and_context(&settings(config), reports).map_err(|error| config.refused(error))?;
        let producer = Arc::new(producer);
        let poller = Poller::start(producer.clone())
            .map_err(|cause| Error::Thread { purpose: "serve Kafka's events", cause })?;
        Ok(Plain { _poller: poller, producer })
    }

    /// Takes a record; [`Plain::flush`] tells what became of it, under the same `tag`. While the queue is full, this waits.
    pub fn send(&mut self, tag: usize, record: &Record<'_>, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let mut native = record.native(tag);
        let (mut waited, mut standstill) = (0_u32, Standstill::default());
        loop {
            match self.producer.send(native) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => native = back,
                Err((error, _)) => {
                    let cause = Cause::from(error);
                    return Err(Error::Publish { topic: record.topic.to_owned(), partition: record.partition, cause });
                }
            }
            self.producer.poll(FULL_QUEUE_STEP);
            waited += 1;
            if waited.is_multiple_of(1_000) {
                if stop() {
                    return Err(Error::Stopped("publish"));
                }
                stood_still(&self.producer, &self.producer.context().context, &mut standstill)?;
            }
        }
    }

    /// Waits until every record has its result, and returns them. When `stop` says so earlier, returns those that have one.
    ///
    /// A fatal error of the producer is in each result, and ends this producer: make another. So does [`Error::Standstill`], with
    /// which the results are lost.
    pub fn flush(&mut self, stop: &dyn Fn() -> bool) -> Result<Vec<Delivery>, Error> {
        let mut standstill = Standstill::default();
        loop {
            let is_flushed = raw::flush(self.producer.client(), STEP)
                .map_err(|cause| Error::Admin { operation: "flush the producer".to_owned(), cause })?;
            if is_flushed || stop() {
                let mut done = self.producer.context().done.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(std::mem::take(&mut *done));
            }
            if let Some(refused) = self.producer.context().context.refused() {
                return Err(refused);
            }
            stood_still(&self.producer, &self.producer.context().context, &mut standstill)?;
        }
    }
}

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").finish_non_exhaustive()
    }
}

/// Keeps the results until they are asked for.
struct Reports {
    context: Context,
    done: Mutex<Vec<Delivery>>,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.context.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.context.stats_raw(statistics);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        let result = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, message)) => Err(Error::Publish {
                topic: message.topic().to_owned(),
                partition: message.partition(),
                cause: Cause::from(error.clone()),
            }),
        };
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(Delivery { tag, result });
    }
}
