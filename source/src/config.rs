//! What can be said about the source in `[source]` and `[source.topics]`.

mod columns;
mod keys;

use std::collections::BTreeMap;
use std::time::Duration;

use kafka::producer::QUEUE_BYTES_MAX;
use postgres::config::TargetSession;
use schemas::event::LoadMode;
use schemas::{Selection, TableName, topic};
use service::config::Reader;

use crate::columns::Rule;

use crate::keeper::Alarms;
use crate::snapshot::Limits;

/// Whether the rows that are there already are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// All of them, once.
    Initial,
    /// None: only changes from now on.
    Never,
}

impl std::str::FromStr for Snapshot {
    type Err = String;

    fn from_str(text: &str) -> Result<Snapshot, String> {
        match text {
            "initial" => Ok(Snapshot::Initial),
            "never" => Ok(Snapshot::Never),
            other => Err(format!("{other:?} is neither \"initial\" nor \"never\"")),
        }
    }
}

/// What becomes of rows that a target holds already when a table is loaded into it for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SnapshotMode {
    /// Its sinks refuse the load.
    #[default]
    Refuse,
    /// The load takes their place.
    Replace,
    /// They stay, but where the load brings others with the same keys.
    Merge,
}

impl SnapshotMode {
    /// As a load says it.
    pub fn of_load(self) -> LoadMode {
        match self {
            SnapshotMode::Refuse => LoadMode::First,
            SnapshotMode::Replace => LoadMode::Replace,
            SnapshotMode::Merge => LoadMode::Merge,
        }
    }
}

impl std::str::FromStr for SnapshotMode {
    type Err = String;

    fn from_str(text: &str) -> Result<SnapshotMode, String> {
        match text {
            "refuse" => Ok(SnapshotMode::Refuse),
            "replace" => Ok(SnapshotMode::Replace),
            "merge" => Ok(SnapshotMode::Merge),
            other => Err(format!("{other:?} is neither \"refuse\" nor \"replace\" nor \"merge\"")),
        }
    }
}

/// What is done about another table under the name of one that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRecreate {
    /// Nothing: a person decides.
    Stop,
    /// Its rows are loaded in place of what was published.
    Reload,
}

impl std::str::FromStr for OnRecreate {
    type Err = String;

    fn from_str(text: &str) -> Result<OnRecreate, String> {
        match text {
            "stop" => Ok(OnRecreate::Stop),
            "reload" => Ok(OnRecreate::Reload),
            other => Err(format!("{other:?} is neither \"stop\" nor \"reload\"")),
        }
    }
}

/// What is done about rows that changed without being sent, as by DDL that writes a table anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnRewrite {
    /// Nothing: a person decides.
    #[default]
    Stop,
    /// The table is loaded again, into what was published of it.
    Reload,
    /// A schema event says so, and the stream goes on.
    Continue,
}

impl std::str::FromStr for OnRewrite {
    type Err = String;

    fn from_str(text: &str) -> Result<OnRewrite, String> {
        match text {
            "stop" => Ok(OnRewrite::Stop),
            "reload" => Ok(OnRewrite::Reload),
            "continue" => Ok(OnRewrite::Continue),
            other => Err(format!("{other:?} is neither \"stop\" nor \"reload\" nor \"continue\"")),
        }
    }
}

/// How topics are made, and what existing ones must be.
#[derive(Clone, Debug)]
pub struct Topics {
    /// Whether a missing topic is made; else it is a fault.
    pub create: bool,
    /// Partitions of a topic.
    pub partitions: i32,
    /// Replicas of each.
    pub replication: i32,
    /// `min.insync.replicas`.
    pub min_insync_replicas: u32,
    /// How long records stay.
    pub retention: Duration,
    /// `max.message.bytes`: how large a row may be as a record.
    pub message_bytes_max: usize,
    /// Topics that several tables share, by the part of their name behind the prefix.
    pub routes: Vec<(String, Selection)>,
}

/// The source's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server and database.
    pub postgres: postgres::Config,
    /// `source.name` in events.
    pub name: String,
    /// What is published.
    pub tables: Selection,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Whether publication and slot are made if they are missing; else that is a fault.
    pub create: bool,
    /// Whether standbys are to take the slot along (17+).
    pub failover: bool,
    /// Whether a delete is followed by a tombstone.
    pub tombstones: bool,
    /// Whether existing rows are copied.
    pub snapshot: Snapshot,
    /// What becomes of rows that a target holds when the first copy comes.
    pub snapshot_mode: SnapshotMode,
    /// What is done about another table under the name of one that is published.
    pub on_recreate: OnRecreate,
    /// What is done about rows that changed without being sent.
    pub on_rewrite: OnRewrite,
    /// How often the catalog is compared with what is published.
    pub watch_every: Duration,
    /// How many bytes of the stream may wait to be published.
    pub buffer_bytes_max: usize,
    /// How many bytes a Kafka transaction holds before it is committed.
    pub transaction_bytes_max: usize,
    /// How many bytes of rows a chunk holds.
    pub chunk_bytes_max: usize,
    /// How many rows a chunk holds.
    pub chunk_rows_max: usize,
    /// How many chunks are read at the same time, each over a connection of its own.
    pub snapshot_readers: usize,
    /// Rows a second that loads read; 0: as many as come.
    pub snapshot_rows_per_second_max: u64,
    /// What loads wait for.
    pub snapshot_limits: Limits,
    /// How long a statement that reads a chunk may take.
    pub snapshot_statement_timeout: Duration,
    /// How many bytes of touches are kept while chunks are read.
    pub touch_bytes_max: usize,
    /// How often we write a message of our own into the stream; none: never.
    pub heartbeat: Option<Duration>,
    /// When the slot's keeper raises the alarm.
    pub alarms: Alarms,
    /// How long an outage at the start is waited for. Later ones are waited for without end.
    pub start_timeout: Duration,
    /// Topics.
    pub topics: Topics,
    /// What is published of the columns of some tables.
    pub columns: BTreeMap<TableName, Rule>,
    /// The columns that tell rows apart, for tables without a key of their own.
    pub keys: BTreeMap<TableName, Vec<String>>,
}

const MIB: usize = 1 << 20;

impl Config {
    /// Reads `[source]`. `prefix` is the configuration's.
    pub fn read(section: &mut Reader<'_>, prefix: &str) -> Config {
        let ours = format!("tributary_{}", plain(prefix));
        let postgres = postgres::Config {
            // The slot, the logical messages and what is visible are the primary's, whatever else answers.
            target_session: TargetSession::Primary,
            ..postgres::Config::read(section)
        };
        let tables = Selection::new(section.parsed_list("tables"));
        if tables.is_empty() && (!section.has("tables") || tables.excluding().next().is_some()) {
            section
                .fault("tables", "missing: list the tables to publish, as in tables = [\"public.users\", \"shop.*\"]");
        }
        let slot = section.or("slot", ours.clone());
        if slot.is_empty() || slot.len() > 63 || !slot.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_')) {
            section.fault(
                "slot",
                format!("{slot:?} is no name of a slot: lower-case letters, digits and underscores, at most 63"),
            );
        }
        let megabytes =
            |section: &mut Reader<'_>, key, default: usize| section.within(key, default * MIB, 1024..=1024 * MIB);
        Config {
            name: section.or("name", postgres.database.clone()),
            slot,
            publication: section.or("publication", ours),
            create: section.or("create", false),
            failover: section.or("failover", false),
            tombstones: section.or("tombstones", true),
            snapshot: section.parsed("snapshot").unwrap_or(Snapshot::Initial),
            snapshot_mode: section.parsed("snapshot_mode").unwrap_or_default(),
            on_recreate: section.parsed("on_recreate").unwrap_or(OnRecreate::Stop),
            on_rewrite: section.parsed("on_rewrite").unwrap_or(OnRewrite::Stop),
            watch_every: Duration::from_secs(section.within("watch_seconds", 60, 1..=3_600)),
            buffer_bytes_max: megabytes(section, "buffer_bytes_max", 32),
            transaction_bytes_max: megabytes(section, "transaction_bytes_max", 16),
            chunk_bytes_max: megabytes(section, "chunk_bytes_max", 4),
            chunk_rows_max: section.within("chunk_rows_max", 20_000, 1..=1_000_000),
            snapshot_readers: section.within("snapshot_readers", 2, 1..=64),
            snapshot_rows_per_second_max: section.within("snapshot_rows_per_second_max", 0, 0..=1_000_000_000),
            snapshot_limits: Limits {
                replica_lag_seconds_max: section.within("snapshot_replica_lag_seconds_max", 0, 0..=86_400),
                active_backends_max: section.within("snapshot_active_backends_max", 0, 0..=100_000),
            },
            snapshot_statement_timeout: Duration::from_secs(section.within(
                "snapshot_statement_timeout_seconds",
                60,
                1..=3_600,
            )),
            touch_bytes_max: megabytes(section, "touch_bytes_max", 32),
            heartbeat: match section.within("heartbeat_seconds", 10, 0..=3600) {
                0 => None,
                seconds => Some(Duration::from_secs(seconds)),
            },
            alarms: alarms(section.section("alarms")),
            start_timeout: Duration::from_secs(section.within("start_timeout_seconds", 30, 0..=86_400)),
            topics: Topics::read(section.section("topics")),
            columns: columns::read(section),
            keys: keys::read(section),
            postgres,
            tables,
        }
    }
}

/// `[source.alarms]`: for each measure when to warn, and when somebody must act.
fn alarms(mut section: Reader<'_>) -> Alarms {
    const GIB: u64 = 1 << 30;
    let rising = |section: &mut Reader<'_>, name: &str, [warning, critical]: [u64; 2], most: u64| {
        let (low, high) = (format!("{name}_warning"), format!("{name}_critical"));
        let values = [section.within(&low, warning, 1..=most), section.within(&high, critical, 1..=most)];
        if values[0] > values[1] {
            section.fault(&low, format!("{} is above {high} = {}", values[0], values[1]));
        }
        values
    };
    let alarms = Alarms {
        retained_bytes: rising(&mut section, "retained_bytes", [GIB, 10 * GIB], i64::MAX.unsigned_abs()),
        behind_seconds: rising(&mut section, "behind_seconds", [300, 3600], 31_536_000),
        room_percent: [
            section.within("room_percent_warning", 50, 0..=100),
            section.within("room_percent_critical", 20, 0..=100),
        ],
    };
    let [warning, critical] = alarms.room_percent;
    if warning < critical {
        section.fault("room_percent_warning", format!("{warning} is below room_percent_critical = {critical}"));
    }
    section.finish();
    alarms
}

impl Config {
    /// Whether a column of a table is published, masked or not.
    pub fn publishes(&self, table: &TableName, column: &str) -> bool {
        self.columns.get(table).is_none_or(|rule| rule.keeps(column))
    }

    /// What is wrong with the rule for a table's columns, if it has one. `key` are those of the key.
    pub fn rule_fault(&self, table: &TableName, columns: &[String], key: &[String]) -> Option<String> {
        let columns = columns.iter().cloned().collect();
        self.columns.get(table)?.check(&columns, key).err().map(|fault| fault.to_string())
    }
}

impl Topics {
    /// The topic of a table: one that it shares, if it is routed there, or its own.
    pub fn topic_of(&self, prefix: &str, table: &TableName) -> String {
        self.route_of(table).map_or_else(|| topic::of_table(prefix, table), |route| topic::of_route(prefix, route))
    }

    /// The name of the topic that the table shares, if it is routed to one.
    pub fn route_of(&self, table: &TableName) -> Option<&str> {
        self.routes.iter().find(|(_, selection)| selection.chooses(table)).map(|(name, _)| name.as_str())
    }

    fn read(mut section: Reader<'_>) -> Topics {
        let topics = Topics {
            create: section.or("create", false),
            partitions: section.within("partitions", 4, 1..=10_000),
            replication: section.within("replication", 3, 1..=100),
            min_insync_replicas: section.within("min_insync_replicas", 2, 1..=100),
            retention: Duration::from_secs(3600 * section.within("retention_hours", 168, 1..=876_000)),
            message_bytes_max: section.within("message_bytes_max", QUEUE_BYTES_MAX, MIB..=QUEUE_BYTES_MAX),
            routes: section.optional_section("routes").map(routes).unwrap_or_default(),
        };
        if i64::from(topics.min_insync_replicas) > i64::from(topics.replication) {
            section.fault(
                "min_insync_replicas",
                format!(
                    "{} is more than replication = {}: nothing could ever be published",
                    topics.min_insync_replicas, topics.replication
                ),
            );
        }
        section.finish();
        topics
    }
}

/// Reads `[source.topics.routes]`.
fn routes(mut section: Reader<'_>) -> Vec<(String, Selection)> {
    let mut routes = Vec::new();
    for name in section.names() {
        let selection = Selection::new(section.parsed_list(&name));
        if !topic::is_route(&name) {
            section.fault(&name, "is no name for a topic that tables share: letters, digits, dots, hyphens and underscores, and neither \"state\" nor \"dlq\"");
        } else if selection.is_empty() {
            section.fault(&name, "list the tables that share this topic, as in orders = [\"shop.order_*\"]");
        }
        routes.push((name, selection));
    }
    section.finish();
    routes
}

fn plain(prefix: &str) -> String {
    prefix.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}
