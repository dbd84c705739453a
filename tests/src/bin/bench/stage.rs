//! The servers of a run, and how the systems are told to reach them.
//!
//! They are as people run them: fsync on, the broker in the JVM that Kafka's scripts start. Autovacuum is off, so that no
//! measurement meets it by chance.

use std::path::Path;
use std::time::Duration;

use harness::configuration::Configuration;
use harness::process::{Part, Tributary};
use harness::servers::{Durability, Jvm, Kafka, Postgres, Role};
use harness::until::until;
use harness::{Error, supervisor};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::load::{self, BENCH, TABLE};
use crate::meter::{Meter, Watched};
use crate::plan::Plan;
use crate::say;
use crate::topic::{PARTITIONS, Topic};

const SETTINGS: [(&str, &str); 7] = [
    // When a row was committed on the target is asked of the row itself.
    ("track_commit_timestamp", "on"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "30min"),
    ("autovacuum", "off"),
    ("max_logical_replication_workers", "8"),
    ("max_worker_processes", "16"),
];

/// Servers, and a folder for logs.
pub(crate) struct Stage {
    pub(crate) source: Postgres,
    pub(crate) target: Postgres,
    pub(crate) kafka: Kafka,
    broker: Option<u32>,
    pub(crate) plugins: String,
    folder: TempDir,
}

impl Stage {
    /// Starts them, with the table and its writers on the source.
    pub(crate) async fn start(plan: &Plan) -> Result<Stage, Error> {
        let folder = tempfile::Builder::new().prefix("tributary-bench-").tempdir();
        let folder = folder.map_err(Error::during("make a folder for logs"))?;
        supervisor::watch_folder(folder.path());
        let (source, target, mut kafka) = tokio::try_join!(
            Postgres::start_with(Durability::Full, &SETTINGS),
            Postgres::start_with(Durability::Full, &SETTINGS),
            Kafka::start_in(1, Jvm::AsShipped)
        )?;
        load::install_source(&source).await?;
        say("two PostgreSQL servers and Kafka answer");
        let plugins: Vec<String> = plan.plugins.iter().map(|path| path.display().to_string()).collect();
        let broker = kafka.broker(0).process_id();
        Ok(Stage { source, target, kafka, broker, plugins: plugins.join(","), folder })
    }

    /// An orderly end.
    pub(crate) async fn stop(mut self) -> Result<(), Error> {
        tokio::try_join!(self.source.stop(), self.target.stop(), self.kafka.stop())?;
        Ok(())
    }

    /// Where logs and small files go.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The topic of the table under a prefix: the same name by tributary and by Debezium.
    pub(crate) fn topic(&self, prefix: &str) -> Topic {
        Topic::new(self.kafka.addresses(), format!("{prefix}.{TABLE}"))
    }

    /// Another topic under a prefix.
    pub(crate) fn topic_called(&self, prefix: &str, name: &str) -> Topic {
        Topic::new(self.kafka.addresses(), format!("{prefix}.{name}"))
    }

    /// A part of tributary under a prefix. The sink's group is called as the prefix is: nothing is left of an earlier one.
    pub(crate) fn tributary(&self, part: Part, prefix: &str, group: &str) -> Result<Tributary, Error> {
        self.launch(part, prefix, group, self.configuration(prefix, group))
    }

    /// The same by a configuration that differs.
    pub(crate) fn launch(
        &self,
        part: Part,
        prefix: &str,
        group: &str,
        configuration: Configuration,
    ) -> Result<Tributary, Error> {
        Tributary::start(&format!("{prefix}-{group}-{}", part.name()), part, configuration, self.folder())
    }

    /// How tributary is told to publish changes alone.
    pub(crate) fn configuration(&self, prefix: &str, group: &str) -> Configuration {
        let mut configuration = Configuration::default();
        configuration
            .set("prefix", prefix)
            .set("kafka.brokers", vec![format!("kafka://{}", self.kafka.addresses())])
            .set("source.url", self.source.address().url(Role::Source, BENCH))
            .set("source.tables", vec![TABLE])
            .set("source.slot", prefix)
            .set("source.publication", BENCH)
            .set("source.create", true)
            .set("source.snapshot", "never")
            .set("source.topics.create", true)
            .set("source.topics.partitions", i64::from(PARTITIONS))
            .set("source.topics.replication", 1)
            .set("source.topics.min_insync_replicas", 1)
            .set("target.url", self.target.address().url(Role::Target, BENCH))
            .set(&format!("groups.{group}.to"), "postgres")
            .set(&format!("groups.{group}.dead_letter_topic_create"), true)
            .environment("TRIBUTARY_SOURCE__PASSWORD", Role::Source.password())
            .environment("TRIBUTARY_TARGET__PASSWORD", Role::Target.password());
        configuration
    }

    /// Watches a process and the servers.
    pub(crate) fn meter(&self, subject: u32) -> Result<Meter, Error> {
        Meter::start(Watched {
            subject,
            source: self.source.process_id(),
            target: self.target.process_id(),
            kafka: self.broker,
        })
    }

    /// Lets the broker stand still (SIGSTOP) for so long, which is what is measured.
    pub(crate) async fn stall_kafka(&self, time: Duration) -> Result<(), Error> {
        let Some(broker) = self.broker.and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw) else { return Ok(()) };
        signal::kill(broker, Signal::SIGSTOP).map_err(Error::during("stop the broker"))?;
        say(&format!("Kafka stands still for {} s", time.as_secs()));
        tokio::time::sleep(time).await;
        signal::kill(broker, Signal::SIGCONT).map_err(Error::during("let the broker go on"))
    }

    /// Waits until somebody reads a slot.
    pub(crate) async fn slot_is_read(&self, slot: &str) -> Result<(), Error> {
        let client = load::connect(&self.source).await?;
        let what = format!("the slot {slot} is read");
        until(&what, Duration::from_secs(90), async || match is_active(&client, slot).await? {
            Some(true) => Ok(()),
            _ => Err("nobody reads it".to_owned()),
        })
        .await
    }

    /// Drops a slot once nobody reads it any more.
    pub(crate) async fn drop_slot(&self, slot: &str) -> Result<(), Error> {
        let client = load::connect(&self.source).await?;
        until(&format!("the slot {slot} is free"), Duration::from_secs(60), async || {
            match is_active(&client, slot).await? {
                Some(true) => Err("it is read".to_owned()),
                _ => Ok(()),
            }
        })
        .await?;
        let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1";
        client.execute(drop, &[&slot]).await.map(|_| ()).map_err(Error::during(format!("drop the slot {slot}")))
    }
}

async fn is_active(client: &Client, slot: &str) -> Result<Option<bool>, String> {
    let read = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    let row = client.query_opt(read, &[&slot]).await.map_err(|cause| cause.to_string())?;
    Ok(row.map(|row| row.get(0)))
}
