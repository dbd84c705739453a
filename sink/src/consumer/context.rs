//! What librdkafka calls the consumer back with: log lines, statistics, and rebalances.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;

/// What librdkafka calls us back with. Rebalances are only noted: the thread carries them out when it is at rest.
pub(super) struct Context {
    inner: kafka::Context,
    rebalances: Mutex<VecDeque<Rebalance>>,
    closing: AtomicBool,
}

/// What the group's coordinator wants.
pub(super) enum Rebalance {
    Assign(TopicPartitionList),
    Revoke(TopicPartitionList),
}

impl Context {
    pub(super) fn new(inner: kafka::Context) -> Context {
        Context { inner, rebalances: Mutex::default(), closing: AtomicBool::new(false) }
    }

    /// Why a broker does not let us in, if one does not.
    pub(super) fn refused(&self) -> Option<kafka::Error> {
        self.inner.refused()
    }

    /// The next rebalance that was noted.
    pub(super) fn rebalance(&self) -> Option<Rebalance> {
        self.rebalances.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// From here on rebalances are carried out as they come, and so are those that were noted: one that is not would keep
    /// librdkafka waiting for ever.
    pub(super) fn close(&self, consumer: &BaseConsumer<Context>) {
        self.closing.store(true, Ordering::Relaxed);
        while let Some(rebalance) = self.rebalance() {
            rebalance.carry_out(consumer);
        }
    }
}

impl Rebalance {
    /// While closing: what librdkafka asks for is done, with nobody to hand anything over.
    fn carry_out(self, consumer: &BaseConsumer<Context>) {
        let done = match self {
            Rebalance::Assign(list) => consumer.incremental_assign(&list),
            Rebalance::Revoke(list) => consumer.incremental_unassign(&list),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a rebalance while closing");
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.inner.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.inner.error(error, reason);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.inner.stats_raw(statistics);
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Context>, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let is_assign = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let rebalance = if is_assign { Rebalance::Assign(list.clone()) } else { Rebalance::Revoke(list.clone()) };
        if self.closing.load(Ordering::Relaxed) {
            return rebalance.carry_out(consumer);
        }
        self.rebalances.lock().unwrap_or_else(PoisonError::into_inner).push_back(rebalance);
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "offsets were not committed; they only inform");
        }
    }
}
