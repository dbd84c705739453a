//! The transactional publisher: all records of a transaction become visible together, in order, or none does.
//!
//!     connect ─▶ init ─▶ begin ─▶ send … ─▶ commit ─▶ begin …
//!                fences    any refused or failed record, any failed step:
//!                          this publisher is done, drop it and make another
//!
//! It never aborts and goes on: after an abort the next transaction was seen to fail too, or to hang. A new one costs half a
//! second, and its `init` aborts what the old one left open. One thread owns it; every wait asks `stop` about once a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};
use service::failpoint;

use super::standstill::Standstill;
use super::{FULL_QUEUE_STEP, Poller, QUEUE_BYTES_MAX, Record, STEP, settings, stood_still};
use crate::error::{Cause, Error};
use crate::{Config, Context, raw};

/// How long a transaction may stay open without a commit before its coordinator gives it up.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the broker is left to write the markers of a commit before the next transaction registers its partitions. Too
/// early, it is turned away and waits for 20 ms, which no setting changes; measured: p99 a third lower, p50 no higher.
const MARKERS: Duration = Duration::from_millis(1);

/// The largest record for a topic whose own limit was not told.
const UNTOLD_LIMIT: usize = 1_000_000;

/// See the module.
pub struct Publisher {
    // Dropped first: the thread holds the producer, and must be gone for the producer to close.
    _poller: Poller,
    producer: Arc<BaseProducer<Deliveries>>,
    transactional_id: String,
    batch_bytes_max: usize,
    /// `max.message.bytes` of the topics for which it was told.
    limits: HashMap<String, usize>,
    committed: Option<Instant>,
    has_failed: bool,
}

impl Publisher {
    /// Makes the producer. Nothing is sent before [`Publisher::init`], so this succeeds with no broker there.
    pub fn connect(config: &Config, transactional_id: &str) -> Result<Publisher, Error> {
        let mut settings = settings(config);
        settings
            .set("transactional.id", transactional_id)
            .set("transaction.timeout.ms", TRANSACTION_TIMEOUT.as_millis().to_string())
            // Successes are known from the commit; only failures need a report each.
            .set("delivery.report.only.error", "true");
        let deliveries =
            Deliveries { context: config.context(), has_failed: AtomicBool::new(false), first: Mutex::new(None) };
        let producer =
            BaseProducer::from_config_and_context(&settings, deliveries).map_err(|error| config.refused(error))?;
        let producer = Arc::new(producer);
        let poller = Poller::start(producer.clone())
            .map_err(|cause| Error::Thread { purpose: "serve Kafka's events", cause })?;
        Ok(Publisher {
            _poller: poller,
            producer,
            transactional_id: transactional_id.to_owned(),
            batch_bytes_max: config.batch_bytes_max(),
            limits: HashMap::new(),
            committed: None,
            has_failed: false,
        })
    }

    /// Tells `max.message.bytes` of a topic. Larger records are refused before they are sent: refused by the broker they
    /// would fail the whole transaction, at each attempt.
    pub fn limit(&mut self, topic: &str, max_message_bytes: usize) -> Result<(), Error> {
        if max_message_bytes < self.batch_bytes_max {
            return Err(Error::BatchLimit {
                topic: topic.to_owned(),
                limit: max_message_bytes,
                batch: self.batch_bytes_max,
            });
        }
        self.limits.insert(topic.to_owned(), max_message_bytes.min(QUEUE_BYTES_MAX));
        Ok(())
    }

    /// Fences every predecessor of the same transactional id and aborts what it left open. What is committed then stays so,
    /// and nothing of theirs can be added: read the state after this.
    ///
    /// Waits for Kafka as long as it takes. Fails with [`Error::Refused`] when a broker does not let us in, and with
    /// [`Error::Stopped`] when `stop` says so.
    pub fn init(&mut self, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        const OPERATION: &str = "take over the transactions";
        loop {
            let began = Instant::now();
            let cause = match self.producer.init_transactions(STEP) {
                Ok(()) => return Ok(()),
                Err(KafkaError::Transaction(error)) if error.is_retriable() && !error.is_fatal() => error,
                Err(error) => return Err(self.fail(OPERATION, error.into())),
            };
            if let Some(refused) = self.producer.context().context.refused() {
                self.has_failed = true;
                return Err(refused);
            }
            if stop() {
                self.has_failed = true;
                return Err(Error::Stopped(OPERATION));
            }
            tracing::debug!(transactional_id = self.transactional_id, %cause, "waiting to take over the transactions");
            // Most of these come after the whole step; one that comes at once must not make this loop spin.
            self.producer.poll(STEP.saturating_sub(began.elapsed()).min(Duration::from_millis(100)));
        }
    }

    /// Opens a transaction. No request: the coordinator hears of it with the first record.
    pub fn begin(&mut self) -> Result<(), Error> {
        const OPERATION: &str = "begin a transaction";
        self.sound(OPERATION)?;
        if let Some(left) = self.committed.take().and_then(|committed| MARKERS.checked_sub(committed.elapsed())) {
            std::thread::sleep(left);
        }
        self.producer.begin_transaction().map_err(|error| self.fail(OPERATION, error.into()))
    }

    /// Puts a record into the open transaction. It is copied and sent soon; the commit tells whether it arrived. While the
    /// queue is full, this waits.
    ///
    /// After any error the transaction has failed: librdkafka by itself would commit it without the refused record.
    pub fn send(&mut self, record: &Record<'_>, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        const OPERATION: &str = "publish";
        self.sound(OPERATION)?;
        self.fits(record)?;
        let mut native = record.native(());
        let (mut waited, mut standstill) = (0_u32, Standstill::default());
        loop {
            let cause = match self.producer.send(native) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    native = back;
                    // There is no event for room in the queue; failures are served meanwhile.
                    self.producer.poll(FULL_QUEUE_STEP);
                    waited += 1;
                    if waited.is_multiple_of(1_000) {
                        self.go_on(OPERATION, &mut standstill, stop)?;
                    }
                    self.sound(OPERATION)?;
                    continue;
                }
                Err((error, _)) => Cause::from(error),
            };
            self.has_failed = true;
            return Err(match self.fatal() {
                Some(fatal) => self.failure(OPERATION, fatal),
                None => Error::Publish { topic: record.topic.to_owned(), partition: record.partition, cause },
            });
        }
    }

    /// Makes the transaction visible, once every record of it is acknowledged by all replicas in sync. An empty one costs
    /// nothing.
    ///
    /// Waits for brokers that are away about as long as the coordinator keeps the transaction open, first for the records to be
    /// taken and then for the commit's answer; for brokers that answer and take nothing a little less: [`Error::Standstill`].
    /// An error leaves open whether the commit has happened: whoever comes next reads it from the topic.
    pub fn commit(&mut self, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        const OPERATION: &str = "commit a transaction";
        let mut standstill = Standstill::default();
        // Flushed first, so that a failed record is seen here, by its name, before anything is committed.
        loop {
            self.sound(OPERATION)?;
            match raw::flush(self.producer.client(), STEP) {
                Ok(true) => break,
                Ok(false) => self.go_on(OPERATION, &mut standstill, stop)?,
                Err(cause) => return Err(self.fail(OPERATION, cause)),
            }
        }
        self.sound(OPERATION)?;
        self.reach(OPERATION, "commit-flushed")?;
        let mut standstill = Standstill::default();
        loop {
            match raw::commit_transaction(self.producer.client(), STEP) {
                Ok(()) => {
                    self.reach(OPERATION, "commit-answered")?;
                    self.committed = Some(Instant::now());
                    return Ok(());
                }
                // Unfinished, and only the same call may follow.
                Err(cause) if cause.code() == RDKafkaErrorCode::OperationTimedOut => {
                    self.go_on(OPERATION, &mut standstill, stop)?;
                }
                Err(cause) => return Err(self.fail(OPERATION, cause)),
            }
        }
    }

    /// The id under which its transactions run.
    pub fn transactional_id(&self) -> &str {
        &self.transactional_id
    }

    /// A named point of failure, which fails as a broker's answer would.
    fn reach(&mut self, operation: &'static str, point: &'static str) -> Result<(), Error> {
        failpoint::reach(point).map_err(|injected| {
            self.fail(operation, Cause { code: RDKafkaErrorCode::Fail, text: injected.to_string() })
        })
    }

    /// A second was waited in vain.
    fn go_on(
        &mut self,
        operation: &'static str,
        standstill: &mut Standstill,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let goes_on = if stop() {
            Err(Error::Stopped(operation))
        } else {
            stood_still(&self.producer, &self.producer.context().context, standstill)
        };
        self.has_failed |= goes_on.is_err();
        goes_on
    }

    fn fits(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let limit = self.limits.get(record.topic).copied().unwrap_or(UNTOLD_LIMIT);
        let bytes = record.size();
        if bytes > limit {
            self.has_failed = true;
            return Err(Error::TooLarge { topic: record.topic.to_owned(), partition: record.partition, bytes, limit });
        }
        Ok(())
    }

    /// Whether all went well so far, failed deliveries included.
    fn sound(&mut self, operation: &'static str) -> Result<(), Error> {
        if self.has_failed {
            return Err(Error::Failed { transactional_id: self.transactional_id.clone(), operation });
        }
        if !self.producer.context().has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.has_failed = true;
        if let Some(fatal) = self.fatal() {
            return Err(self.failure(operation, fatal));
        }
        let first = self.producer.context().first.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(match first {
            Some(Undelivered { topic, partition, cause }) => Error::Publish { topic, partition, cause },
            None => Error::Failed { transactional_id: self.transactional_id.clone(), operation },
        })
    }

    fn fail(&mut self, operation: &'static str, cause: Cause) -> Error {
        self.has_failed = true;
        let cause = self.fatal().unwrap_or(cause);
        self.failure(operation, cause)
    }

    fn failure(&self, operation: &'static str, cause: Cause) -> Error {
        let transactional_id = self.transactional_id.clone();
        if cause.is_fence() {
            Error::Fenced { transactional_id, operation, cause }
        } else {
            Error::Transaction { transactional_id, operation, cause }
        }
    }

    /// What ended the producer for good, if something did: calls after it only say that there was something.
    fn fatal(&self) -> Option<Cause> {
        self.producer.client().fatal_error().map(|(code, text)| Cause { code, text })
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("transactional_id", &self.transactional_id).finish_non_exhaustive()
    }
}

/// Keeps the first record that a broker did not take.
struct Deliveries {
    context: Context,
    has_failed: AtomicBool,
    first: Mutex<Option<Undelivered>>,
}

struct Undelivered {
    topic: String,
    partition: i32,
    cause: Cause,
}

impl ClientContext for Deliveries {
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

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            let undelivered = Undelivered {
                topic: message.topic().to_owned(),
                partition: message.partition(),
                cause: Cause::from(error.clone()),
            };
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(undelivered);
            self.has_failed.store(true, Ordering::Release);
        }
    }
}
