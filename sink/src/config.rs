//! What the configuration says of targets and groups: the sections `[target]`, `[redis]` and `[groups.*]`.
//!
//! Everything is checked here; no socket is opened.

use std::str::FromStr;
use std::time::Duration;

use postgres::config::ChannelBinding;
use schemas::{Selection, TableName, topic};
use service::config::{Reader, Secret};

/// Targets and groups.
#[derive(Clone, Debug)]
pub struct Config {
    /// The target database.
    pub target: Option<postgres::Config>,
    /// The Redis to announce in.
    pub redis: Option<Redis>,
    /// The groups, by their names.
    pub groups: Vec<Group>,
}

/// Where Redis is.
#[derive(Clone, Debug)]
pub struct Redis {
    /// `redis://host:port/db` or `rediss://…`, possibly with user and password.
    pub url: Secret,
    /// Its address without secrets, for messages.
    pub address: String,
}

/// One consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name in the configuration.
    pub name: String,
    /// What it feeds.
    pub to: To,
    /// The tables that it takes.
    pub tables: Selection,
    /// What happens to an event that cannot be applied.
    pub on_error: OnError,
    /// The most events that may be set aside: beyond that it is no matter of single rows any more, and the group stops.
    pub parked_rows_max: u32,
    /// The most events in one batch.
    pub batch_rows_max: usize,
    /// The most bytes in one batch, but for a single larger event.
    pub batch_bytes_max: usize,
    /// The most bytes that are fetched and not yet done, of all partitions of the group.
    pub fetch_bytes_max: usize,
    /// Connections to the target, so batches under way at once.
    pub connections: usize,
    /// A fixed identity, so that a restart within the session timeout moves no partition.
    pub static_member_id: Option<String>,
    /// After so long without a sign of life a process loses its partitions.
    pub session_timeout: Duration,
    /// Whether a missing dead-letter topic is created.
    pub dead_letter_topic_create: bool,
}

/// What a group feeds.
#[derive(Clone, Debug)]
pub enum To {
    /// Rows of the target database.
    Postgres,
    /// Notices in Redis.
    Redis(Announce),
}

/// How changes are announced in Redis.
#[derive(Clone, Debug)]
pub struct Announce {
    /// Where to.
    pub mode: Mode,
    /// The channel's name, with `{prefix}`, `{schema}` and `{table}` to be filled in.
    pub channel: String,
    /// The stream's name, likewise.
    pub stream: String,
    /// About how many entries a stream keeps.
    pub stream_length_max: u64,
    /// Whether the rows of a load are announced too.
    pub snapshot: bool,
}

/// Where notices go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To a channel: whoever listens now.
    Publish,
    /// Into a stream: whoever reads later, too.
    Stream,
    /// Both.
    Both,
}

/// What happens to an event that cannot be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// It is set aside, with its key's later events behind it.
    #[default]
    Park,
    /// The group stops, unless other events may make it possible still.
    Stop,
}

/// The text is not among the words that are understood.
#[derive(Debug, thiserror::Error)]
#[error("expected {0}")]
pub struct Unknown(&'static str);

impl FromStr for OnError {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "park" => Ok(OnError::Park),
            "stop" => Ok(OnError::Stop),
            _ => Err(Unknown("\"park\" or \"stop\"")),
        }
    }
}

impl FromStr for Mode {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "publish" => Ok(Mode::Publish),
            "stream" => Ok(Mode::Stream),
            "both" => Ok(Mode::Both),
            _ => Err(Unknown("\"publish\", \"stream\" or \"both\"")),
        }
    }
}

impl Config {
    /// Reads `[target]`, `[redis]` and `[groups.*]`. A group that names no tables takes those `published`.
    pub fn read(root: &mut Reader<'_>, published: Option<&Selection>) -> Config {
        let target = root.optional_section("target").map(|mut section| {
            let target = postgres::Config::read(&mut section);
            if target.channel_binding == ChannelBinding::Require {
                section.fault(
                    "channel_binding",
                    "the driver of the sink cannot bind: leave it out, and let sslmode=verify-full keep others from standing in between",
                );
            }
            section.finish();
            target
        });
        let redis = root.optional_section("redis").map(|mut section| {
            let redis = Redis::read(&mut section);
            section.finish();
            redis
        });
        let mut groups = Vec::new();
        for (name, mut section) in root.named_sections("groups") {
            let group = Group::read(name, &mut section, published);
            match group.to {
                To::Postgres if target.is_none() => {
                    section.fault("to", "feeds the target database: add [target] with its url")
                }
                To::Redis(_) if redis.is_none() => section.fault("to", "feeds Redis: add [redis] with its url"),
                _ => groups.push(group),
            }
            section.finish();
        }
        Config { target, redis, groups }
    }
}

impl Redis {
    fn read(section: &mut Reader<'_>) -> Redis {
        let url: Secret = section.required("url");
        let password: Option<Secret> = section.optional("password");
        let address = match redis::parse_redis_url(url.expose()) {
            Some(parsed) => format!("{}:{}", parsed.host_str().unwrap_or_default(), parsed.port().unwrap_or(6379)),
            None => {
                if !url.is_empty() {
                    section.fault("url", "expected redis://host:port/db, or rediss:// for TLS");
                }
                String::new()
            }
        };
        let with_password = password.zip(redis::parse_redis_url(url.expose())).and_then(|(password, mut parsed)| {
            parsed.set_password(Some(password.expose())).ok()?;
            Some(Secret::from(parsed.to_string()))
        });
        let url = with_password.unwrap_or(url);
        Redis { url, address }
    }
}

impl Group {
    fn read(name: String, section: &mut Reader<'_>, published: Option<&Selection>) -> Group {
        if !topic::is_valid(&name) || name == "state" {
            section.fault(
                "to",
                "the group's name stands in the names of Kafka: letters, digits, dots, hyphens and underscores alone",
            );
        }
        let to: String = section.required("to");
        let to = match to.as_str() {
            "redis" => To::Redis(Announce::read(section)),
            "postgres" => To::Postgres,
            other => {
                if !other.is_empty() {
                    section.fault("to", "expected \"postgres\" or \"redis\"");
                }
                To::Postgres
            }
        };
        let named = Selection::new(section.parsed_list("tables"));
        let tables = if section.has("tables") { named } else { published.cloned().unwrap_or_default() };
        if tables.is_empty() && (published.is_none() || section.has("tables")) {
            section.fault(
                "tables",
                "name the tables that this group takes, such as [\"public.users\", \"shop.*\"]; by default those of [source]",
            );
        }
        let (rows, connections) = if matches!(to, To::Redis(_)) { (500, 1..=1) } else { (5_000, 1..=64) };
        let batch_bytes_max = section.within("batch_bytes_max", 4 << 20, 64 << 10..=256 << 20);
        Group {
            name,
            tables,
            on_error: section.parsed("on_error").unwrap_or_default(),
            parked_rows_max: section.within("parked_rows_max", 100_000, 1..=100_000_000),
            batch_rows_max: section.within("batch_rows_max", rows, 1..=50_000),
            batch_bytes_max,
            fetch_bytes_max: section.within("fetch_bytes_max", 48 << 20, 1 << 20..=4 << 30),
            connections: if *connections.end() == 1 { 1 } else { section.within("connections", 4, connections) },
            static_member_id: section.optional("static_member_id"),
            session_timeout: Duration::from_secs(section.within("session_timeout_seconds", 10, 6..=300)),
            dead_letter_topic_create: section.or("dead_letter_topic_create", false),
            to,
        }
    }
}

impl Announce {
    fn read(section: &mut Reader<'_>) -> Announce {
        Announce {
            mode: section.parsed("mode").unwrap_or(Mode::Stream),
            channel: section.or("channel", "{prefix}:{schema}.{table}".to_owned()),
            stream: section.or("stream", "{prefix}:{schema}.{table}:stream".to_owned()),
            stream_length_max: section.within("stream_length_max", 1_000_000, 1..=1_000_000_000),
            snapshot: section.or("snapshot", false),
        }
    }

    /// A template with its places filled in.
    pub(crate) fn name(template: &str, prefix: &str, table: &TableName) -> String {
        template.replace("{prefix}", prefix).replace("{schema}", &table.schema).replace("{table}", &table.table)
    }
}
