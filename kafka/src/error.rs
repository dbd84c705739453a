//! What can fail between us and Kafka, and the one place that decides where each failure leads.

use std::fmt;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// What can fail between us and Kafka.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// librdkafka does not accept the settings: a certificate that it cannot read, say.
    #[error("cannot make a Kafka client for {brokers}: check the section [kafka] of the configuration")]
    Client {
        /// The brokers as configured.
        brokers: String,
        /// What librdkafka says.
        #[source]
        cause: Cause,
    },

    /// A broker does not let us in.
    #[error(
        "the Kafka broker {broker} refuses us ({reason}): check tls, certificates, sasl_mechanism, username and password in [kafka]"
    )]
    Refused {
        /// The broker's address.
        broker: String,
        /// What librdkafka says of it.
        reason: String,
    },

    /// No answer in time.
    #[error(
        "Kafka at {brokers} did not answer within {seconds} s, cannot {operation}: check that it runs and that the addresses, and those that it advertises, are reachable from here"
    )]
    Unreachable {
        /// The brokers as configured.
        brokers: String,
        /// What was tried.
        operation: String,
        /// How long was waited.
        seconds: u64,
        /// What the connections met last.
        reason: String,
    },

    /// Another producer with our transactional id took over, or ours was taken for dead: Kafka does not tell the two apart.
    #[error(
        "cannot {operation} as {transactional_id}: fenced by a successor, or silent for longer than the transaction timeout; the source starts over, and its replication slot decides who goes on"
    )]
    Fenced {
        /// The producer's transactional id.
        transactional_id: String,
        /// The step that failed.
        operation: &'static str,
        /// What librdkafka says.
        #[source]
        cause: Cause,
    },

    /// A record that the topic does not take, found before it was sent.
    #[error(
        "a record of {bytes} bytes for {topic}, partition {partition}, is over the limit of {limit} bytes: raise max.message.bytes of the topic (64 MiB at most), or leave the large column out of the publication"
    )]
    TooLarge {
        /// The record's topic.
        topic: String,
        /// The record's partition.
        partition: i32,
        /// Its size as it is counted against the limit.
        bytes: usize,
        /// The limit.
        limit: usize,
    },

    /// A topic that takes less than one of our batches.
    #[error(
        "{topic} takes batches of at most {limit} bytes, less than kafka.batch_bytes_max = {batch}: raise max.message.bytes of the topic, or lower kafka.batch_bytes_max"
    )]
    BatchLimit {
        /// The topic.
        topic: String,
        /// Its `max.message.bytes`.
        limit: usize,
        /// Our largest batch, in bytes.
        batch: usize,
    },

    /// What was sent is not taken, or its commit not answered.
    #[error(
        "Kafka has not taken for most of a minute what was sent to it: brokers may be away, partitions may lack replicas in sync, or our client may have lost their leaders, which a new one finds"
    )]
    Standstill {
        /// How many records wait; 0 where it is the commit.
        records: i32,
    },

    /// A record that librdkafka refused, or a broker.
    #[error("cannot publish to {topic}, partition {partition}")]
    Publish {
        /// The record's topic.
        topic: String,
        /// The record's partition.
        partition: i32,
        /// What librdkafka or the broker says.
        #[source]
        cause: Cause,
    },

    /// A step of a transaction.
    #[error("cannot {operation} as {transactional_id}")]
    Transaction {
        /// The producer's transactional id.
        transactional_id: String,
        /// The step that failed.
        operation: &'static str,
        /// What librdkafka or the coordinator says.
        #[source]
        cause: Cause,
    },

    /// The transaction failed before, and its owner went on: our own mistake.
    #[error("cannot {operation} as {transactional_id}: its transaction has failed, only a new producer can go on")]
    Failed {
        /// The producer's transactional id.
        transactional_id: String,
        /// The step asked for.
        operation: &'static str,
    },

    /// A look at, or a change of, topics and groups.
    #[error("cannot {operation}")]
    Admin {
        /// What was tried, with the names concerned.
        operation: String,
        /// What the cluster says.
        #[source]
        cause: Cause,
    },

    /// Reading a topic.
    #[error("cannot read {topic}{}", .partition.map(|partition| format!(", partition {partition}")).unwrap_or_default())]
    Read {
        /// The topic.
        topic: String,
        /// The partition, when one is known.
        partition: Option<i32>,
        /// What librdkafka or the broker says.
        #[source]
        cause: Cause,
    },

    /// A topic that is not there.
    #[error("the topic {0} does not exist")]
    NoTopic(String),

    /// The operating system gives us no thread.
    #[error("cannot start a thread to {purpose}: raise the limit of processes for our user")]
    Thread {
        /// What it was for.
        purpose: &'static str,
        /// What the operating system says.
        #[source]
        cause: std::io::Error,
    },

    /// We were asked to stop while waiting.
    #[error("stopped while waiting to {0}")]
    Stopped(&'static str),
}

/// Where a failure leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It may pass: drop the client, back off, make a new one, and begin again from what is committed.
    Transient,
    /// Going on would be wrong or vain: stop, and tell a person what to do.
    Fatal,
}

impl Error {
    /// The only place in this crate that decides where a failure leads.
    pub fn severity(&self) -> Severity {
        match self {
            Error::Client { .. } | Error::Refused { .. } | Error::TooLarge { .. } | Error::BatchLimit { .. } => {
                Severity::Fatal
            }
            Error::Fenced { .. }
            | Error::Unreachable { .. }
            | Error::Standstill { .. }
            | Error::Failed { .. }
            | Error::Thread { .. } => Severity::Transient,
            // Whether a topic that went missing may be made again is not for us to say: the start looks at topics anew.
            Error::NoTopic(_) | Error::Stopped(_) => Severity::Transient,
            Error::Publish { cause, .. }
            | Error::Transaction { cause, .. }
            | Error::Admin { cause, .. }
            | Error::Read { cause, .. } => cause.severity(),
        }
    }

    /// Whether a new client may succeed where this one failed.
    pub fn is_transient(&self) -> bool {
        self.severity() == Severity::Transient
    }

    /// Whether this is no failure at all: we were told to stop.
    pub fn is_stop(&self) -> bool {
        matches!(self, Error::Stopped(_))
    }
}

/// What librdkafka or a broker gave as the reason, and what to do about it where there is one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub(crate) code: RDKafkaErrorCode,
    pub(crate) text: String,
}

impl Cause {
    pub(crate) fn of_code(code: RDKafkaErrorCode) -> Cause {
        Cause { code, text: String::new() }
    }

    /// librdkafka's code, those of the protocol included.
    pub fn code(&self) -> RDKafkaErrorCode {
        self.code
    }

    pub(crate) fn is_fence(&self) -> bool {
        matches!(
            self.code,
            RDKafkaErrorCode::Fenced
                | RDKafkaErrorCode::ProducerFenced
                | RDKafkaErrorCode::InvalidProducerEpoch
                | RDKafkaErrorCode::InvalidProducerIdMapping
        )
    }

    pub(crate) fn severity(&self) -> Severity {
        match self.hint() {
            Some(_) => Severity::Fatal,
            None => Severity::Transient,
        }
    }

    /// What a person must do. Where this says nothing, time may mend it.
    fn hint(&self) -> Option<&'static str> {
        use RDKafkaErrorCode::*;
        Some(match self.code {
            TopicAuthorizationFailed => {
                "grant our user READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on the topics of the prefix, and CREATE where topics are to be made"
            }
            GroupAuthorizationFailed => "grant our user READ on the groups of the prefix",
            TransactionalIdAuthorizationFailed => "grant our user WRITE and DESCRIBE on the transactional id",
            ClusterAuthorizationFailed => {
                "grant our user IDEMPOTENT_WRITE, or CREATE where topics are to be made, on the cluster"
            }
            Authentication | SaslAuthenticationFailed | UnsupportedSASLMechanism => {
                "check sasl_mechanism, username and password in [kafka]"
            }
            MessageSizeTooLarge => "raise max.message.bytes of the topic",
            InvalidTransactionTimeout => "raise transaction.max.timeout.ms of the brokers to at least 60000",
            UnsupportedVersion | UnsupportedFeature => "the brokers are too old: 3.6 or later is needed",
            InvalidReplicationFactor => {
                "the cluster has fewer brokers than replicas asked for: lower the replication, or add brokers"
            }
            InvalidPartitions | InvalidTopic | InvalidConfig | PolicyViolation | InvalidArgument | InvalidRequest => {
                "the cluster does not take these settings: change them in the configuration"
            }
            _ => return None,
        })
    }
}

impl From<KafkaError> for Cause {
    fn from(error: KafkaError) -> Cause {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
        let text = match error {
            KafkaError::Transaction(error) => error.string(),
            KafkaError::ClientCreation(text) | KafkaError::AdminOpCreation(text) => text,
            KafkaError::ClientConfig(_, description, key, _) => format!("{key}: {description}"),
            other if other.rdkafka_error_code().is_none() => other.to_string(),
            _ => String::new(),
        };
        Cause { code, text }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => write!(f, "{}", self.code)?,
            text => f.write_str(text)?,
        }
        self.hint().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

impl std::error::Error for Cause {}
