//! What every client of ours does with librdkafka's own voice: its log lines, its global errors, its statistics.
//!
//! Log lines go to tracing, target `librdkafka`, at DEBUG: whatever matters comes back as an error of the call that met it.
//! A lost broker is the exception, for no call need fail because of it: it is said at WARN once, and its return at INFO.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;

use crate::Error;
use crate::address;
use crate::brokers::{Brokers, ClientNumber};

/// The context of one client. A client with callbacks of its own keeps one inside and hands it the three calls of
/// [`ClientContext`].
#[derive(Debug)]
pub struct Context {
    brokers: Arc<Brokers>,
    number: ClientNumber,
    trouble: Mutex<Option<Trouble>>,
}

/// What a connection met last.
#[derive(Debug, Clone)]
struct Trouble {
    broker: String,
    reason: String,
    is_refusal: bool,
}

impl Context {
    pub(crate) fn new(brokers: Arc<Brokers>) -> Context {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        Context { brokers, number: CLIENTS.fetch_add(1, Ordering::Relaxed), trouble: Mutex::new(None) }
    }

    /// Why a broker does not let us in: a password, a mechanism, a certificate. Waiting does not mend these, so whoever
    /// waits for a first answer looks here.
    pub fn refused(&self) -> Option<Error> {
        let Trouble { broker, reason, .. } = self.trouble().filter(|trouble| trouble.is_refusal)?;
        Some(Error::Refused { broker, reason })
    }

    /// Why nobody answered within `timeout`, as far as the connections know.
    pub(crate) fn unanswered(&self, brokers: String, operation: String, timeout: Duration) -> Error {
        self.refused().unwrap_or_else(|| {
            let reason = self.trouble().map_or_else(|| "no connection has failed".to_owned(), |trouble| trouble.reason);
            Error::Unreachable { brokers, operation, seconds: timeout.as_secs(), reason }
        })
    }

    /// Whether no client of this process misses a broker, as far as is known.
    pub(crate) fn has_all_brokers(&self) -> bool {
        self.brokers.all_there()
    }

    fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lose(&self, broker: &str, code: Option<RDKafkaErrorCode>, line: &str) {
        let reason = address::without_prefix(line);
        let trouble =
            Trouble { broker: broker.to_owned(), reason: reason.to_owned(), is_refusal: is_refusal(code, reason) };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
        if self.brokers.lose(broker, self.number) {
            tracing::warn!(broker, reason, "lost a Kafka broker, trying again until it answers");
        }
    }

    fn find(&self, broker: &str) {
        if self.brokers.find(broker, self.number) {
            tracing::info!(broker, "the Kafka broker answers again");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.brokers.forget(self.number);
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        match level {
            // A producer's fatal error, which a successor causes in due course: it comes back from the next call too, and
            // whoever made that call tells it.
            _ if matches!(facility, "TXNERR" | "FATAL") => {
                tracing::debug!(target: "librdkafka", facility, "{line}");
            }
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(target: "librdkafka", facility, "{line}");
            }
            _ => tracing::debug!(target: "librdkafka", facility, "{line}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
        if let Some(broker) = address::of_line(reason) {
            self.lose(broker, error.rdkafka_error_code(), reason);
        }
    }

    /// librdkafka has no event for a connection that came back; its statistics have the state of each.
    fn stats_raw(&self, statistics: &[u8]) {
        if self.brokers.all_there() {
            return;
        }
        match serde_json::from_slice::<Statistics>(statistics) {
            Ok(statistics) => {
                let up = statistics.brokers.values().filter(|broker| broker.state == "UP");
                up.for_each(|broker| self.find(&broker.nodename));
            }
            Err(error) => tracing::debug!(target: "librdkafka", %error, "statistics that we cannot read"),
        }
    }
}

impl ConsumerContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// The part of librdkafka's statistics that we read.
#[derive(serde::Deserialize)]
struct Statistics {
    brokers: HashMap<String, BrokerStatistics>,
}

#[derive(serde::Deserialize)]
struct BrokerStatistics {
    nodename: String,
    state: String,
}

/// A TLS handshake also fails when a broker goes down in it: only what speaks of certificates is a refusal.
fn is_refusal(code: Option<RDKafkaErrorCode>, reason: &str) -> bool {
    match code {
        Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed) => true,
        Some(RDKafkaErrorCode::SSL) => reason.contains("certificate") || reason.contains("alert"),
        _ => false,
    }
}
