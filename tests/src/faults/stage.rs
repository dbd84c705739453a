//! What every trial stands on: a database and topics of its own on a lane, and a source that is started again and again.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use super::Lane;
use crate::configuration::Configuration;
use crate::oracle::topic::{self, Records};
use crate::process::{Part, Tributary};
use crate::servers::Role;
use crate::table::{Table, quote};
use crate::until::until;
use crate::{Error, logs, place};

/// A source that streams for so long without reaching the point at which it is to die will not: it is killed then.
const UNREACHED_AFTER: Duration = Duration::from_secs(3);
/// How long it may take to stream, or to catch up, on a machine that has much else to do.
pub(super) const WELL_WITHIN: Duration = Duration::from_secs(120);
/// Partitions of each topic.
const PARTITIONS: usize = 3;

/// A trial's own database, topics and source.
pub(super) struct Stage<'l> {
    pub(super) lane: &'l mut Lane,
    pub(super) prefix: String,
    /// The tables whose topics count in the end.
    pub(super) tables: Vec<Table>,
    pub(super) configuration: Configuration,
    pub(super) folder: PathBuf,
    pub(super) source: Tributary,
    /// Whether what runs has something to do at a failpoint.
    pub(super) armed: bool,
    /// How often it did not come to the point at which it was to die.
    pub(super) unreached: u32,
}

impl<'l> Stage<'l> {
    /// Starts a source over what [`lay_out`] has made.
    pub(super) fn start(
        lane: &'l mut Lane,
        prefix: String,
        tables: Vec<Table>,
        configuration: Configuration,
    ) -> Result<Stage<'l>, Error> {
        let folder = place::leavings(&prefix)?;
        let source = Tributary::start("source", Part::Source, configuration.clone(), &folder)?;
        Ok(Stage { lane, prefix, tables, configuration, folder, source, armed: false, unreached: 0 })
    }

    /// The fault, and where whoever looks into it finds more.
    pub(super) fn failed(&self, fault: &str) -> String {
        let (folder, tail) = (self.folder.display(), self.source.tail());
        format!("{fault}\n  logs in {folder}; the source's ends:\n{tail}")
    }

    /// Whatever befalls a source, it does not end by itself.
    pub(super) fn lives(&mut self) -> Result<(), String> {
        self.source.ended().map_or(Ok(()), |status| Err(format!("the source ended by itself with {status}")))
    }

    /// Starts it again, with something to do at a failpoint or without.
    pub(super) fn start_anew(&mut self, failpoint: Option<String>) -> Result<(), Error> {
        let mut configuration = self.configuration.clone();
        self.armed = failpoint.is_some();
        if let Some(failpoint) = failpoint {
            configuration.environment("TRIBUTARY_FAILPOINTS", &failpoint);
        }
        self.source.restart_with(configuration)
    }

    /// It is killed, starts anew, and dies when it reaches a point for the nth time, or streams and does not.
    pub(super) async fn dies_at(&mut self, point: &str, time: u32) -> Result<(), Error> {
        self.source.kill9().await?;
        self.start_anew(Some(format!("{point}=kill@{time}")))?;
        let source = &mut self.source;
        let mut streams_since = None;
        let reached = until("the source dies or streams", WELL_WITHIN, async || {
            if source.ended().is_some() {
                return Ok(true);
            }
            let ready = matches!(source.http("/readyz").await, Ok((200, _)));
            let since = streams_since.get_or_insert_with(Instant::now);
            if !ready {
                *since = Instant::now();
            }
            if since.elapsed() >= UNREACHED_AFTER { Ok(false) } else { Err("it lives".to_owned()) }
        })
        .await?;
        if !reached {
            self.unreached += 1;
            self.source.kill9().await?;
        }
        self.start_anew(None)
    }

    /// What runs has nothing more to do at a failpoint.
    pub(super) async fn disarm(&mut self) -> Result<(), Error> {
        if self.armed {
            self.source.kill9().await?;
            self.start_anew(None)?;
        }
        Ok(())
    }

    /// The topic of a table as it is now.
    pub(super) async fn topic(&self, table: &Table) -> Result<Records, String> {
        let name = schemas::topic::of_table(&self.prefix, &table.name);
        topic::read(&self.lane.kafka(), &name).await.map_err(|fault| format!("{fault:?}"))
    }

    /// Every table has been copied, and each copy that began after another has ended too.
    pub(super) async fn loaded(&self) -> Result<(), Error> {
        for table in &self.tables {
            until(&format!("the load of {} has ended", table.name), WELL_WITHIN, async || {
                let records = self.topic(table).await?;
                let ended = (0..PARTITIONS).filter(|partition| is_loaded(&records, *partition as i32)).count();
                if ended == PARTITIONS { Ok(()) } else { Err(format!("{ended} of {PARTITIONS} partitions say so")) }
            })
            .await?;
        }
        Ok(())
    }

    /// The slot is confirmed beyond all that was written: from here on nothing may be missing.
    pub(super) async fn caught_up(&mut self) -> Result<(), Error> {
        let client = self.client().await?;
        let end = client.query_one("SELECT pg_current_wal_flush_lsn()", &[]).await;
        let end: PgLsn = end.map_err(Error::during("ask for the end of the WAL"))?.get(0);
        let sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1";
        until("the slot is confirmed up to the end", WELL_WITHIN, async || {
            let row = client.query_one(sql, &[&slot(&self.prefix)]).await.map_err(|cause| cause.to_string())?;
            let confirmed: PgLsn = row.get(0);
            if confirmed >= end { Ok(()) } else { Err(format!("{confirmed} of {end}")) }
        })
        .await
    }

    /// A connection that may do everything.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        self.lane.postgres().connect(Role::Superuser, &database(&self.prefix)).await
    }

    /// A process' log names no error and no secret. Whoever loses a neighbour says so, once: that is WARN.
    pub(super) fn log_is_sound(&self, name: &str) -> Result<(), String> {
        let secrets = Role::ALL.map(Role::password);
        let lines = logs::unexpected(&self.folder.join(format!("{name}.log")), &["WARN".to_owned()], &secrets);
        lines.first().map_or(Ok(()), |line| Err(format!("the log says {line}")))
    }

    /// What is not of use any more: a slot would hold the server's WAL back for all trials to come.
    pub(super) async fn clean_up(&self) -> Result<(), Error> {
        let client = self.client().await?;
        let drop =
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()";
        until("the slots are dropped", WELL_WITHIN, async || {
            client.batch_execute(drop).await.map_err(|cause| format!("{cause}: {:?}", cause.as_db_error()))
        })
        .await?;
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", self.lane.kafka())
            .create()
            .map_err(Error::during("make a Kafka client"))?;
        let mut topics: Vec<String> =
            self.tables.iter().map(|table| schemas::topic::of_table(&self.prefix, &table.name)).collect();
        topics.push(schemas::topic::of_state(&self.prefix));
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        admin.delete_topics(&names, &AdminOptions::new()).await.map_err(Error::during("delete the topics"))?;
        let server = self.lane.postgres().connect(Role::Superuser, "postgres").await?;
        let sql = format!("DROP DATABASE {} WITH (FORCE)", quote(&database(&self.prefix)));
        server.batch_execute(&sql).await.map_err(Error::during(sql))?;
        // Kept only after a failure, for whoever looks into it.
        fs::remove_dir_all(&self.folder).map_err(Error::during("remove the trial's folder"))
    }
}

/// Whether the load that began last has ended in a partition.
fn is_loaded(records: &Records, partition: i32) -> bool {
    let of_load = |record: &&topic::Record| {
        let kind = record.headers.get("control");
        record.partition == partition && kind.is_some_and(|kind| kind.starts_with("load_"))
    };
    let last = records.0.iter().rev().find(of_load);
    last.and_then(|last| last.headers.get("control")).is_some_and(|kind| kind == "load_end")
}

/// A database with these tables, empty, and a publication.
pub(super) async fn lay_out(lane: &Lane, prefix: &str, tables: &[Table]) -> Result<Client, Error> {
    let server = lane.postgres().connect(Role::Superuser, "postgres").await?;
    let sql = format!("CREATE DATABASE {}", quote(&database(prefix)));
    server.batch_execute(&sql).await.map_err(Error::during(sql))?;
    let client = lane.postgres().connect(Role::Superuser, &database(prefix)).await?;
    let mut sql = String::new();
    for table in tables {
        let (schema, table_name) = (quote(&table.name.schema), table.sql());
        let (source, application) = (Role::Source.name(), Role::Application.name());
        sql.push_str(&format!(
            "{};\nGRANT USAGE ON SCHEMA {schema} TO {source}, {application};
             GRANT SELECT ON {table_name} TO {source}; GRANT ALL ON {table_name} TO {application};\n",
            table.ddl()
        ));
    }
    let names: Vec<String> = tables.iter().map(Table::sql).collect();
    sql.push_str(&format!("CREATE PUBLICATION {} FOR TABLE {}", quote(&slot(prefix)), names.join(", ")));
    client.batch_execute(&sql).await.map_err(Error::during("make the tables"))?;
    Ok(client)
}

/// How the source of a trial is configured, but for the size of its chunks.
pub(super) fn configuration(lane: &Lane, prefix: &str, tables: &[Table]) -> Configuration {
    let mut configuration = Configuration::default();
    configuration
        .set("prefix", prefix)
        .set("kafka.brokers", vec![format!("kafka://{}", lane.kafka_by_proxy())])
        .set("source.url", lane.postgres_by_proxy().url(Role::Source, &database(prefix)))
        .set("source.tables", names(tables))
        .set("source.create", true)
        // An outage at the start is no typing error here.
        .set("source.start_timeout_seconds", 600)
        .set("source.topics.create", true)
        .set("source.topics.partitions", PARTITIONS as i64)
        .set("source.topics.replication", 1)
        .set("source.topics.min_insync_replicas", 1)
        .environment("TRIBUTARY_SOURCE__PASSWORD", Role::Source.password());
    configuration
}

pub(super) fn names(tables: &[Table]) -> Vec<String> {
    tables.iter().map(|table| table.name.to_string()).collect()
}

pub(super) fn database(prefix: &str) -> String {
    format!("{prefix}_source")
}

/// The slot and the publication, by the product's own default.
pub(super) fn slot(prefix: &str) -> String {
    format!("tributary_{prefix}")
}
