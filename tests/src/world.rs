//! One test's world: databases, slot, publication, topics and groups of its own, the product's processes on them, and an end that checks them all.

mod builder;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use tokio_postgres::Client;

use crate::configuration::Configuration;
use crate::oracle::{audit, dead_letters, redis, tables, topic};
use crate::process::{self, Output, Part, Tributary, tail};
use crate::servers::{Kafka, Postgres, PostgresAddress, Redis, RedisAddress, Role};
use crate::table::Table;
use crate::until::until;
use crate::{Error, logs};

pub use builder::Builder;

/// How long both sides may take to be equal once nobody writes any more. Seconds, but for a machine that has much else to do.
const EQUAL_WITHIN: Duration = Duration::from_secs(180);
/// How many topics are read at once: each waits more than it works.
const READ_AT_ONCE: usize = 8;

/// What belongs to one test.
#[derive(Debug)]
pub struct World {
    /// What everything random in this test is drawn from.
    pub seed: u64,
    /// The configuration that the next process starts with.
    pub configuration: Configuration,
    /// The test's own source server, where it asked for one.
    pub own_source: Option<Postgres>,
    /// The test's own target server, where it asked for one.
    pub own_target: Option<Postgres>,
    /// The test's own Kafka, where it asked for one.
    pub own_kafka: Option<Kafka>,
    /// The test's own Redis, where it asked for one.
    pub own_redis: Option<Redis>,
    /// The tables on both sides.
    pub tables: Vec<Table>,
    prefix: String,
    source: PostgresAddress,
    target: PostgresAddress,
    kafka: String,
    redis: RedisAddress,
    redis_database: u32,
    folder: PathBuf,
    logs: Vec<PathBuf>,
    expected: Vec<String>,
    began: Instant,
    finished: bool,
}

impl World {
    /// What a test needs beyond the usual.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Before every topic and group, and part of the databases' names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The replication slot and the publication.
    pub fn slot(&self) -> String {
        format!("tributary_{}", self.prefix)
    }

    /// The name of the source database.
    pub fn source_database(&self) -> String {
        format!("{}_source", self.prefix)
    }

    /// The name of the target database.
    pub fn target_database(&self) -> String {
        format!("{}_target", self.prefix)
    }

    /// Where the source server answers.
    pub fn source_address(&self) -> &PostgresAddress {
        &self.source
    }

    /// From here on the source is another server, as after the promotion of a standby.
    pub fn source_moves_to(&mut self, address: &PostgresAddress) {
        self.source = address.clone();
    }

    /// Where the target server answers.
    pub fn target_address(&self) -> &PostgresAddress {
        &self.target
    }

    /// Kafka's `host:port,…`.
    pub fn kafka(&self) -> &str {
        &self.kafka
    }

    /// A connection to the test's own Redis database.
    pub async fn redis(&self) -> ::redis::aio::MultiplexedConnection {
        self.redis.connect(self.redis_database).await.expect("Redis answers")
    }

    /// A connection to the source.
    pub async fn source(&self, role: Role) -> Client {
        self.source.connect(role, &self.source_database()).await.expect("the source answers")
    }

    /// A connection to the target.
    pub async fn target(&self, role: Role) -> Client {
        self.target.connect(role, &self.target_database()).await.expect("the target answers")
    }

    /// Runs statements in the source, as its superuser.
    pub async fn in_source(&self, sql: &str) {
        let client = self.source(Role::Superuser).await;
        client.batch_execute(sql).await.map_err(Error::during(sql)).expect("the source takes the statements");
    }

    /// Runs statements in the target, as its superuser.
    pub async fn in_target(&self, sql: &str) {
        let client = self.target(Role::Superuser).await;
        client.batch_execute(sql).await.map_err(Error::during(sql)).expect("the target takes the statements");
    }

    /// Makes one more table on both sides. It is neither published nor among [`World::tables`].
    pub async fn make(&self, table: &Table) {
        self.in_source(&builder::in_source(table)).await;
        self.in_target(&builder::in_target(table)).await;
    }

    /// Starts a part of the product. A second one of the same part gets a number.
    pub fn start(&mut self, part: Part) -> Tributary {
        let configuration = self.configuration.clone();
        self.start_with(part, configuration)
    }

    /// The same with a configuration of its own.
    pub fn start_with(&mut self, part: Part, configuration: Configuration) -> Tributary {
        let file = |name: &str| self.folder.join(format!("{name}.log"));
        let names = std::iter::once(part.name().to_owned()).chain((2..).map(|n| format!("{}-{n}", part.name())));
        let name = names.into_iter().find(|name| !self.logs.contains(&file(name))).expect("numbers do not end");
        self.logs.push(file(&name));
        Tributary::start(&name, part, configuration, &self.folder).expect("the product's process starts")
    }

    /// Runs a command of the product that ends by itself.
    pub async fn command(&self, arguments: &[&str]) -> Output {
        process::run(arguments, &self.configuration, &self.folder).await.expect("the product's command runs")
    }

    /// A line of the level WARN or ERROR that holds `part` belongs to this test.
    pub fn expect_log(&mut self, part: &str) {
        self.expected.push(part.to_owned());
    }

    /// Waits until every table is the same on both sides. Of use when nobody writes any more.
    pub async fn until_equal(&self) {
        self.until("source and target are equal", EQUAL_WITHIN, async || self.difference().await).await;
    }

    /// Whether every table is the same on both sides, and if not, what differs.
    pub async fn difference(&self) -> Result<(), String> {
        let (source, target) = (self.source_database(), self.target_database());
        let source = self.source.connect(Role::Superuser, &source).await.map_err(|cause| format!("{cause:?}"))?;
        let target = self.target.connect(Role::Superuser, &target).await.map_err(|cause| format!("{cause:?}"))?;
        for table in &self.tables {
            tables::compare(&source, &target, table).await?;
        }
        Ok(())
    }

    /// Waits for a condition. On failure the last state and the ends of all logs are in the message.
    pub async fn until<T>(&self, what: &str, within: Duration, check: impl AsyncFnMut() -> Result<T, String>) -> T {
        match until(what, within, check).await {
            Ok(value) => value,
            Err(fault) => panic!("{fault}"),
        }
    }

    /// Every record of a table's topic as an independent reader sees it.
    pub async fn topic(&self, table: &Table) -> topic::Records {
        topic::read(&self.kafka, &self.topic_name(table)).await.expect("the topic can be read")
    }

    /// The topic of a table.
    pub fn topic_name(&self, table: &Table) -> String {
        schemas::topic::of_table(&self.prefix, &table.name)
    }

    /// Waits until a topic that tables share agrees with each of them, whichever they are. Of use when nobody writes any more.
    pub async fn until_shared_topic_agrees(&self, topic: &str, tables: &[Table]) {
        self.until("the shared topic agrees with its tables", EQUAL_WITHIN, async || {
            let source = self.source(Role::Superuser).await;
            let records = topic::read(&self.kafka, topic).await.map_err(|cause| format!("{cause:?}"))?;
            records.check().map_err(|fault| format!("topic {topic}: {fault}"))?;
            let by_table = records.by_table();
            for table in tables {
                let records = by_table.get(&table.name).ok_or_else(|| format!("nothing of {}", table.name))?;
                let rows = records.fold().map_err(|fault| format!("topic {topic}: {fault}"))?;
                tables::compare_rows(&source, table, &rows).await?;
            }
            Ok(())
        })
        .await;
    }

    /// Order, density and absence of duplicates in every topic, and that folding it by key gives the table.
    pub async fn check_topics(&self) {
        self.topics_agree().await.unwrap_or_else(|fault| panic!("{fault}"));
    }

    /// Waits until every topic agrees with its table. Of use when nobody writes any more.
    pub async fn until_published(&self) {
        self.until_published_within(EQUAL_WITHIN).await;
    }

    /// The same, for what takes longer.
    pub async fn until_published_within(&self, within: Duration) {
        self.until("the topics agree with the tables", within, async || self.topics_agree().await).await;
    }

    async fn topics_agree(&self) -> Result<(), String> {
        let source = &self.source(Role::Superuser).await;
        let agree = async |table: &Table| {
            let name = self.topic_name(table);
            let records = topic::read(&self.kafka, &name).await.map_err(|cause| format!("{cause:?}"))?;
            let rows =
                records.check().and_then(|()| records.fold()).map_err(|fault| format!("topic {name}: {fault}"))?;
            tables::compare_rows(source, table, &rows).await
        };
        stream::iter(&self.tables).map(agree).buffered(READ_AT_ONCE).try_collect().await
    }

    /// The commit LSN of the last change that stands in any topic; 0 where there is none.
    pub async fn last_position(&self) -> Result<u64, String> {
        let mut last = 0;
        for table in &self.tables {
            let records =
                topic::read(&self.kafka, &self.topic_name(table)).await.map_err(|cause| format!("{cause:?}"))?;
            for record in records.rows() {
                last = last.max(record.places()?.0);
            }
        }
        Ok(last)
    }

    /// Waits until every change since the audit's slot was made stands in the topics, and fails where one stands there twice.
    /// Of use when nobody writes any more.
    pub async fn until_audit_agrees(&self, slot: &str) {
        let source = self.source(Role::Superuser).await;
        let changes = audit::changes(&source, slot, &self.slot()).await.expect("the audit's slot can be read");
        self.until("the topics agree with the audit", EQUAL_WITHIN, async || {
            for table in &self.tables {
                let outcome = audit::compare(&changes, table, &self.topic(table).await);
                outcome.map_err(|fault| format!("topic {}: {fault}", self.topic_name(table)))?;
            }
            Ok(())
        })
        .await;
    }

    /// Waits until the Redis streams announce each change of the topics once, in the order of its key. Of use when nobody writes any more.
    pub async fn until_streams_agree(&self) {
        self.until("the streams agree with the topics", EQUAL_WITHIN, async || {
            let mut connection = self.redis.connect(self.redis_database).await.map_err(|cause| format!("{cause:?}"))?;
            for table in &self.tables {
                let stream = redis::stream_name(&self.prefix, table);
                let outcome = redis::compare(&mut connection, &stream, &self.topic(table).await).await;
                outcome.map_err(|fault| format!("stream {stream}: {fault}"))?;
            }
            Ok(())
        })
        .await;
    }

    /// How a run of the source and the group `rdb` ends, when nobody writes any more: the target is equal, the topics are
    /// sound, and nothing was set aside.
    pub async fn ends_equal(self, mut run: Tributary) {
        self.until_equal().await;
        self.check_topics().await;
        self.check_nothing_parked(&["rdb"]).await;
        run.stop().await.expect("it ends");
        self.finish().await;
    }

    /// Nothing was set aside, neither in the target nor in the dead-letter topics.
    pub async fn check_nothing_parked(&self, groups: &[&str]) {
        let target = self.target(Role::Superuser).await;
        for group in groups {
            let outcome = dead_letters::none(&target, &self.kafka, &self.prefix, group).await;
            outcome.unwrap_or_else(|fault| panic!("group {group}: {fault}"));
        }
    }

    /// The end of every test, after its processes were stopped: no log may hold a line that the test has not listed.
    pub async fn finish(mut self) {
        self.finished = true;
        let secrets = Role::ALL.map(Role::password);
        let mut faults = String::new();
        for log in &self.logs {
            for line in logs::unexpected(log, &self.expected, &secrets) {
                faults.push_str(&format!("{}: {line}\n", log.file_name().unwrap_or_default().display()));
            }
        }
        assert!(faults.is_empty(), "lines that this test has not listed (in {}):\n{faults}", self.folder.display());
        self.release().await;
        println!("world {}: sound after {:.1} s", self.prefix, self.began.elapsed().as_secs_f64());
        // Kept only after a failure, for whoever looks into it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// A slot holds the server's WAL back: on a shared server no test leaves one behind.
    async fn release(&self) {
        if self.own_source.is_some() {
            return;
        }
        let client = self.source(Role::Superuser).await;
        let drop =
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()";
        until("the slots are dropped", Duration::from_secs(20), async || {
            client.batch_execute(drop).await.map_err(|cause| format!("{cause}: {:?}", cause.as_db_error()))
        })
        .await
        .expect("nobody uses the slots any more: the processes were stopped");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("TRIBUTARY_SEED={} repeats this; logs in {}", self.seed, self.folder.display());
            for log in &self.logs {
                eprintln!("---- {}\n{}", log.display(), tail(log, 40));
            }
        } else if !self.finished {
            panic!("the test did not end in `world.finish().await`, so nobody has looked at the logs");
        }
    }
}
