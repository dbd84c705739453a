//! What can fail in a sink, and where each failure leads.

use postgres::sqlstate::{self, Severity};
use schemas::{Position, Seq, TableName, header};

use crate::batch::Refusal;
use crate::fold;
use crate::record::Partition;
use crate::refused::Refused;
use crate::shape::Misfit;

/// What can fail in a sink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A group that is to apply to a database that is not configured.
    #[error("group {group}: {missing}")]
    Unconfigured {
        /// The group.
        group: String,
        /// What is missing, and what to write.
        missing: &'static str,
    },

    /// Kafka, with its own words on what to do.
    #[error("group {group}")]
    Kafka {
        /// The group.
        group: String,
        /// What failed.
        #[source]
        cause: kafka::Error,
    },

    /// A record of the source's state.
    #[error("cannot read the record {key} of {topic}: the source speaks a newer contract, so upgrade the sink")]
    State {
        /// The state topic.
        topic: String,
        /// The record's key.
        key: String,
        /// What is wrong with it.
        #[source]
        cause: serde_json::Error,
    },

    /// The group's consumer.
    #[error("group {group} cannot {operation}")]
    Consumer {
        /// The group.
        group: String,
        /// What it tried.
        operation: String,
        /// What librdkafka says.
        #[source]
        cause: rdkafka::error::KafkaError,
    },

    /// No connection to the target.
    #[error("cannot connect to the target {target}: check [target] url and password")]
    Connect {
        /// Its address, without secrets.
        target: String,
        /// What the driver says.
        #[source]
        cause: sqlx::Error,
    },

    /// A server of the target is not what `target_session_attrs` asks for.
    #[error(
        "the target {target} is {found}, and target_session_attrs={wanted} is asked for: name the primary, or wait until this one is promoted"
    )]
    WrongSession {
        /// Its address, without secrets.
        target: String,
        /// What it is.
        found: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },

    /// Several hosts of the target were named, and none will do.
    #[error("none of the target's hosts will do:{}", each(.0))]
    Hosts(Vec<Error>),

    /// A statement of our own failed on the target.
    #[error("cannot {operation} on the target {target}")]
    Target {
        /// What was tried.
        operation: &'static str,
        /// Its address, without secrets.
        target: String,
        /// What the driver says.
        #[source]
        cause: sqlx::Error,
    },

    /// What the target holds of us cannot be read.
    #[error("cannot {operation} on the target {target}")]
    Read {
        /// Its address, without secrets.
        target: String,
        /// What was tried.
        operation: &'static str,
        /// What failed.
        #[source]
        cause: postgres::Error,
    },

    /// The target did not answer in time.
    #[error("the target {target} did not finish to {operation} within {seconds} s")]
    Silent {
        /// Its address.
        target: String,
        /// What was tried.
        operation: &'static str,
        /// How long was waited.
        seconds: u64,
    },

    /// Our user may not keep progress in the target.
    #[error("our user may not keep the schema tributary on the target {target}: run {sql}")]
    Rights {
        /// Its address.
        target: String,
        /// The statement that grants it.
        sql: String,
        /// What the server says.
        #[source]
        cause: sqlx::Error,
    },

    /// The schema `tributary` was written by a newer version of this program.
    #[error(
        "the schema tributary on the target {target} has version {found}, this sink knows up to {known}: upgrade it"
    )]
    Newer {
        /// Its address.
        target: String,
        /// The version there.
        found: i32,
        /// The last one known here.
        known: i32,
    },

    /// What the target lacks, all of it.
    #[error("group {group} cannot be applied to the target:{}", .misfits.iter().map(|misfit| format!("\n  {misfit}")).collect::<String>())]
    Misfits {
        /// The group.
        group: String,
        /// Each with its remedy.
        misfits: Vec<Misfit>,
    },

    /// Triggers or foreign keys of the target that would change or refuse what is applied.
    #[error("the target would interfere: our user may not set session_replication_role, so {}. Run GRANT SET ON PARAMETER session_replication_role TO our user (PostgreSQL 15 and later), or drop these until the hand-over", .found.join("; "))]
    Interference {
        /// What was found.
        found: Vec<String>,
    },

    /// More is set aside than single rows account for.
    #[error(
        "the group {group} has set aside more than {max} events: `tributary dlq list --group {group}` shows why; mend the cause and `tributary dlq retry --all --group {group}` while a sink runs with a higher groups.{group}.parked_rows_max"
    )]
    ManyParked {
        /// The group.
        group: String,
        /// How many may be.
        max: u32,
    },

    /// Events that were to be possible with others are not, and the group is told to stop then.
    #[error(
        "{keys} keys of the group {group} stand still at events that can never apply: `tributary dlq list --group {group}` shows why; settle them, or set groups.{group}.on_error = \"park\" to go on beside them"
    )]
    Dead {
        /// The group.
        group: String,
        /// How many.
        keys: usize,
    },

    /// An event cannot be applied, and the group is told to stop then.
    #[error(
        "cannot apply {partition} offset {offset} to {table}, and on_error = \"stop\": mend the target or the value, or let it be set aside with on_error = \"park\""
    )]
    Apply {
        /// Where it stands.
        partition: Partition,
        /// Its offset.
        offset: i64,
        /// The table.
        table: TableName,
        /// Why.
        #[source]
        cause: Refused,
    },

    /// A record without the headers that every record of ours has.
    #[error(
        "{partition} offset {offset} is no event of ours: somebody else writes into this topic; make a topic of its own for him, and load this table again"
    )]
    Headers {
        /// The partition.
        partition: Partition,
        /// The record's offset.
        offset: i64,
        /// What is wrong with it.
        #[source]
        cause: header::Malformed,
    },

    /// A record's value or key is not what the contract says.
    #[error("{partition} offset {offset} cannot be read as an event of this target")]
    Envelope {
        /// The partition.
        partition: Partition,
        /// The record's offset.
        offset: i64,
        /// What is wrong with it.
        #[source]
        cause: fold::Error,
    },

    /// The record's value is no JSON of an event.
    #[error(
        "{partition} offset {offset} is no valid event: somebody else writes into this topic, or the source speaks a newer contract; upgrade the sink, or load this table again into a clean topic"
    )]
    Decode {
        /// The partition.
        partition: Partition,
        /// The record's offset.
        offset: i64,
        /// What is wrong with it.
        #[source]
        cause: serde_json::Error,
    },

    /// The topic speaks a newer contract.
    #[error("{partition} offset {offset} speaks contract {found}, this sink knows up to {known}: upgrade it")]
    Contract {
        /// The partition.
        partition: Partition,
        /// The record's offset.
        offset: i64,
        /// What it speaks.
        found: u32,
        /// What is known here.
        known: u32,
    },

    /// The partition does not go on where it should.
    #[error(
        "{partition} cannot go on: Kafka lost records, or the topic was made anew; check the brokers, then load the table again"
    )]
    Gap {
        /// The partition.
        partition: Partition,
        /// What was found.
        #[source]
        cause: Refusal,
    },

    /// A group without progress meets a topic whose beginning is gone.
    #[error(
        "group {group} has done nothing of {partition}, and its first record there is number {found}: this group needs a load; let the source load the table again"
    )]
    NeedsLoad {
        /// The group.
        group: String,
        /// The partition.
        partition: Partition,
        /// The number of the first record that is left.
        found: Seq,
    },

    /// The record that was done last is another one now, or is not there yet.
    #[error(
        "group {group} has done {partition} up to record {seq} at offset {offset}, {position}, and {found}: the topic was made anew, or the target was restored from elsewhere; load the table again, or restore the two together"
    )]
    OtherHistory {
        /// The group.
        group: String,
        /// The partition.
        partition: Partition,
        /// The offset of the last record done.
        offset: i64,
        /// Its number.
        seq: Seq,
        /// Its position.
        position: Position,
        /// What is there instead.
        found: String,
    },

    /// A table that the group takes now, and did not take when its events came.
    #[error(
        "group {group} has passed over events of {table} in {topic}, since it did not take this table so far: take it with a new group of its own; or, when the target's table holds the source's rows by other means, DELETE FROM tributary.passed_over WHERE grp = {} AND tbl = {}",
        postgres::quote::literal(.group),
        postgres::quote::literal(.table)
    )]
    PassedOver {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The table.
        table: String,
    },

    /// A first load meets rows.
    #[error("{partition} offset {offset} begins the first load of {table}, and the target's table holds rows already: run TRUNCATE {} on the target; or, under a new prefix, set source.snapshot_mode = \"replace\" to load in their place, or \"merge\" to keep what the load does not bring", postgres::quote::table(.table))]
    NotEmpty {
        /// The partition.
        partition: Partition,
        /// The record's offset.
        offset: i64,
        /// The table.
        table: TableName,
    },

    /// The key changed.
    #[error(
        "{partition} offset {offset}: the key of {table} became ({key}), which this version does not carry by itself. When every partition of the topic stands at this event (tributary.progress, column error), stop the sinks, give the target's table that key, and run for this partition {step_over}"
    )]
    KeyChanged {
        /// The partition.
        partition: Partition,
        /// The record's offset.
        offset: i64,
        /// The table.
        table: TableName,
        /// The new key.
        key: String,
        /// The statement that steps over the event.
        step_over: String,
    },

    /// Redis does not answer, or refuses.
    #[error("cannot {operation} on Redis at {address}")]
    Redis {
        /// What was tried.
        operation: &'static str,
        /// Its address, without secrets.
        address: String,
        /// What it says.
        #[source]
        cause: redis::RedisError,
    },

    /// A command of a script failed; what stood before it is done.
    #[error("Redis at {address} refused to announce {partition} offset {offset}: {answer}")]
    Announce {
        /// Its address.
        address: String,
        /// The partition.
        partition: Partition,
        /// The event's offset.
        offset: i64,
        /// Redis's own words.
        answer: String,
    },

    /// Redis is not what the group needs.
    #[error(
        "Redis at {address} {found}: one script must see progress and stream together, so give [redis] url a single primary"
    )]
    NoPrimary {
        /// Its address.
        address: String,
        /// What it is.
        found: String,
    },

    /// Redis lost the group's progress.
    #[error(
        "Redis at {address} has no progress of group {group} for {partition} (hash {key}), and Kafka has offset {offset} for it: Redis lost its data. Restore it; or, to announce all that the topic holds once more, stop this group and run kafka-consumer-groups --delete-offsets for it and the topic"
    )]
    ProgressLost {
        /// Its address.
        address: String,
        /// The group.
        group: String,
        /// The partition.
        partition: Partition,
        /// The offset that Kafka has.
        offset: i64,
        /// The hash that is missing.
        key: String,
    },

    /// Parked events have no topic to be mirrored to.
    #[error(
        "the topic {topic} does not exist, so what group {group} parks stands in tributary.parked alone: create it, or write dead_letter_topic_create = true in [groups.{group}]"
    )]
    NoDeadLetterTopic {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
    },

    /// A thread could not be started.
    #[error("cannot start a thread for group {group}")]
    Thread {
        /// The group.
        group: String,
        /// What the system says.
        #[source]
        cause: std::io::Error,
    },

    /// A part of a group ended by a panic: our own mistake.
    #[error("group {group}: {part} ended unexpectedly; what was committed stands, a restart goes on from it")]
    Ended {
        /// The group.
        group: String,
        /// Which part.
        part: &'static str,
    },
}

impl Error {
    /// The only place in this crate that decides where a failure leads.
    pub fn severity(&self) -> Severity {
        match self {
            Error::Kafka { cause, .. } if cause.is_transient() => Severity::Transient,
            Error::Connect { cause, .. } | Error::Target { cause, .. } => of_sql(cause),
            Error::Silent { .. } | Error::WrongSession { .. } => Severity::Transient,
            // One of them may come back, or be promoted.
            Error::Hosts(each) if each.iter().any(Error::is_transient) => Severity::Transient,
            Error::Redis { cause, .. } => of_redis(cause),
            Error::Announce { answer, .. } => of_answer(answer),
            _ => Severity::Fatal,
        }
    }

    /// What it means that no host of the target will do; a single one's failure stands for itself.
    pub(crate) fn of_hosts(mut failures: Vec<Error>) -> Error {
        match failures.pop() {
            Some(only) if failures.is_empty() => only,
            last => {
                failures.extend(last);
                Error::Hosts(failures)
            }
        }
    }

    /// Whether it may pass by itself.
    pub fn is_transient(&self) -> bool {
        self.severity() == Severity::Transient
    }

    /// Whether an event does not fit what we know of the target, which may have changed since.
    pub(crate) fn is_misfit(&self) -> bool {
        matches!(self, Error::Envelope { cause: fold::Error::Misfit(_), .. })
    }

    /// Whether the partition stands at an event that all partitions of its topic will come to: these are let come there.
    pub(crate) fn waits_for_siblings(&self) -> bool {
        matches!(self, Error::KeyChanged { .. })
    }
}

pub(crate) fn of_sql(cause: &sqlx::Error) -> Severity {
    match cause {
        sqlx::Error::Database(error) => error.code().map_or(Severity::Transient, |code| sqlstate::severity(&code)),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => Severity::Transient,
        _ => Severity::Fatal,
    }
}

/// One failure a line, each with its causes.
fn each(failures: &[Error]) -> String {
    failures.iter().map(|error| format!("\n  - {}", service::chain(error))).collect()
}

fn of_redis(cause: &redis::RedisError) -> Severity {
    use redis::ErrorKind::{AuthenticationFailed, InvalidClientConfig};
    match cause.kind() {
        AuthenticationFailed | InvalidClientConfig => Severity::Fatal,
        _ => cause.code().map_or(Severity::Transient, of_answer),
    }
}

/// By the first word of Redis's answer.
fn of_answer(answer: &str) -> Severity {
    match answer.split_whitespace().next().unwrap_or_default() {
        "WRONGTYPE" | "NOAUTH" | "WRONGPASS" | "NOPERM" => Severity::Fatal,
        _ => Severity::Transient,
    }
}
