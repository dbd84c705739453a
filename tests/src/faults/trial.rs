//! One trial: a database and topics of its own, writers, a source, what befalls it, and what must hold in the end.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::Rng;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use super::plan::{Fault, Meanwhile, Plan, Survivor};
use super::{Lane, Verdict};
use crate::configuration::Configuration;
use crate::oracle::{audit, journal, topic};
use crate::process::{Part, Tributary};
use crate::proxy::Way;
use crate::servers::Role;
use crate::table::{Table, quote};
use crate::until::until;
use crate::workload::{self, Manner, Pace, Workload};
use crate::{Error, logs};

/// A source that streams for so long without reaching the point at which it is to die will not: it is killed then.
const UNREACHED_AFTER: Duration = Duration::from_secs(3);
/// How long it may take to stream, or to catch up, on a machine that has much else to do.
const WELL_WITHIN: Duration = Duration::from_secs(120);
/// Partitions of each topic.
const PARTITIONS: usize = 3;
/// Rows of each table before anything else.
const ROWS: u32 = 100;

/// Runs the trial of a seed.
pub(super) async fn run(lane: &mut Lane, seed: u64) -> Result<Verdict, Error> {
    let (began, plan) = (Instant::now(), Plan::draw(seed));
    let outcome = if plan.has_promotion() {
        let mut pair = Lane::start_pair().await?;
        let outcome = Trial::run(&mut pair, seed, &plan).await;
        pair.stop().await?;
        outcome
    } else {
        Trial::run(lane, seed, &plan).await
    };
    let (unreached, fault) = outcome.map_or_else(|fault| (0, Some(fault)), |unreached| (unreached, None));
    Ok(Verdict { seed, plan, lasted: began.elapsed(), unreached, fault })
}

struct Trial<'l> {
    lane: &'l mut Lane,
    prefix: String,
    tables: Vec<Table>,
    configuration: Configuration,
    folder: PathBuf,
    source: Tributary,
    /// How many processes there were beside the first.
    successors: u32,
    /// Whether what runs has something to do at a failpoint.
    armed: bool,
    /// How often it did not come to the point at which it was to die.
    unreached: u32,
}

impl Trial<'_> {
    async fn run(lane: &mut Lane, seed: u64, plan: &Plan) -> Result<u32, String> {
        let shapes = workload::all();
        let prefix = format!("faults_{seed}_{:04x}", rand::rng().random::<u16>());
        let tables = workload::tables();
        let told = |fault: Error| format!("{fault:?}");
        lay_out(lane, &prefix, &tables, seed).await.map_err(told)?;
        // The last of the tables joins the others on the way, or never.
        let listed = tables.len() - 1;
        let configuration = configuration(lane, &prefix, &tables[..listed]);
        let tables = if plan.has_latecomer() { tables } else { tables[..listed].to_vec() };
        let folder = crate::place::leavings(&prefix).map_err(told)?;
        let manner = Manner { truncate: true, move_alone: true, persist: true };
        let pace = Pace { writers: 3, transactions_per_second: 30 };
        let writers = Workload::start_in(manner, &lane.postgres(), &database(&prefix), seed, pace, &shapes);
        let source = Tributary::start("source", Part::Source, configuration.clone(), &folder).map_err(told)?;
        let mut trial =
            Trial { lane, prefix, tables, configuration, folder, source, successors: 0, armed: false, unreached: 0 };
        let outcome = trial.befall(plan, writers).await;
        if let Err(fault) = outcome {
            let (folder, tail) = (trial.folder.display(), trial.source.tail());
            return Err(format!("{fault}\n  logs in {folder}; the source's ends:\n{tail}"));
        }
        trial.clean_up().await.map_err(told)?;
        Ok(trial.unreached)
    }

    async fn befall(&mut self, plan: &Plan, writers: Workload) -> Result<(), String> {
        let told = |fault: Error| format!("{fault:?}");
        for (fault, pause_ms) in &plan.0 {
            self.lives()?;
            self.suffer(*fault).await.map_err(told)?;
            tokio::time::sleep(Duration::from_millis(u64::from(*pause_ms))).await;
        }
        self.lives()?;
        if self.armed {
            self.source.kill9().await.map_err(told)?;
            self.start_anew(None).map_err(told)?;
        }
        writers.stop().await.map_err(told)?;
        self.source.ready(WELL_WITHIN).await.map_err(told)?;
        self.loaded().await.map_err(told)?;
        self.caught_up().await.map_err(told)?;
        self.check().await?;
        self.source.stop().await.map_err(told)?;
        let secrets = Role::ALL.map(Role::password);
        for name in (1..=self.successors).map(|n| format!("successor-{n}")).chain(["source".to_owned()]) {
            // Whoever loses a neighbour says so, once. What nobody may say here is ERROR.
            let lines = logs::unexpected(&self.folder.join(format!("{name}.log")), &["WARN".to_owned()], &secrets);
            if let Some(line) = lines.first() {
                return Err(format!("the log says {line}"));
            }
        }
        Ok(())
    }

    /// Whatever befalls a source, it does not end by itself.
    fn lives(&mut self) -> Result<(), String> {
        self.source.ended().map_or(Ok(()), |status| Err(format!("the source ended by itself with {status}")))
    }

    async fn suffer(&mut self, fault: Fault) -> Result<(), Error> {
        match fault {
            Fault::DiesAt(point, time) => {
                self.source.kill9().await?;
                self.start_anew(Some(format!("{point}=kill@{time}")))?;
                self.dies().await?;
                self.start_anew(None)?;
            }
            Fault::FailsAt(point, time) => {
                self.source.kill9().await?;
                self.start_anew(Some(format!("{point}=error@{time}")))?;
            }
            Fault::WaitsAt(point, ms) => {
                self.source.kill9().await?;
                self.start_anew(Some(format!("{point}=delay:{ms}")))?;
            }
            Fault::Killed => {
                self.source.kill9().await?;
                self.start_anew(None)?;
            }
            Fault::Network(side, way, ms) => {
                self.lane.set(side, way);
                tokio::time::sleep(Duration::from_millis(u64::from(ms))).await;
                self.lane.set(side, Way::Open);
            }
            Fault::KilledWhile(side, way, ms) => {
                self.lane.set(side, way);
                tokio::time::sleep(Duration::from_millis(u64::from(ms))).await;
                self.source.kill9().await?;
                self.lane.set(side, Way::Open);
                self.start_anew(None)?;
            }
            Fault::Broker(manner) => self.lane.lose_broker(manner).await?,
            Fault::Server(manner) => self.lane.lose_server(manner).await?,
            Fault::FailOver(meanwhile) => {
                // Whoever is promoted must have the slot.
                self.source.ready(WELL_WITHIN).await?;
                if let Some(standby) = self.lane.standby() {
                    standby.until_synced(&slot(&self.prefix)).await?;
                }
                if meanwhile == Meanwhile::IsDead {
                    self.source.kill9().await?;
                }
                self.lane.fail_over().await?;
                if meanwhile == Meanwhile::IsDead {
                    self.start_anew(None)?;
                }
            }
            Fault::Zombie(survivor) => self.zombie(survivor).await?,
            Fault::List(point) => {
                self.source.kill9().await?;
                self.configuration.set("source.tables", names(&self.tables));
                self.start_anew(Some(format!("{point}=kill@1")))?;
                self.dies().await?;
                self.start_anew(None)?;
            }
        }
        Ok(())
    }

    /// It reaches its point, or streams and does not.
    async fn dies(&mut self) -> Result<(), Error> {
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
        Ok(())
    }

    /// One sleeps while another takes over, and wakes beside it.
    async fn zombie(&mut self, survivor: Survivor) -> Result<(), Error> {
        self.source.ready(WELL_WITHIN).await?;
        self.source.freeze();
        self.successors += 1;
        let name = format!("successor-{}", self.successors);
        let mut successor = Tributary::start(&name, Part::Source, self.configuration.clone(), &self.folder)?;
        successor.ready(WELL_WITHIN).await?;
        self.source.thaw();
        // Long enough for it to do whatever it was about to do.
        tokio::time::sleep(Duration::from_millis(500)).await;
        match survivor {
            Survivor::Zombie => successor.kill9().await,
            Survivor::Successor => {
                self.source.kill9().await?;
                self.source = successor;
                self.armed = false;
                Ok(())
            }
        }
    }

    fn start_anew(&mut self, failpoint: Option<String>) -> Result<(), Error> {
        let mut configuration = self.configuration.clone();
        self.armed = failpoint.is_some();
        if let Some(failpoint) = failpoint {
            configuration.environment("TRIBUTARY_FAILPOINTS", &failpoint);
        }
        self.source.restart_with(configuration)
    }

    /// Every table has been copied.
    async fn loaded(&self) -> Result<(), Error> {
        for table in &self.tables {
            let name = schemas::topic::of_table(&self.prefix, &table.name);
            until(&format!("the load of {} has ended", table.name), WELL_WITHIN, async || {
                let records = topic::read(&self.lane.kafka(), &name).await.map_err(|fault| format!("{fault:?}"))?;
                let is_end =
                    |record: &&topic::Record| record.headers.get("control").is_some_and(|kind| kind == "load_end");
                let ends = records.0.iter().filter(is_end).count();
                if ends == PARTITIONS { Ok(()) } else { Err(format!("{ends} of {PARTITIONS} partitions say so")) }
            })
            .await?;
        }
        Ok(())
    }

    /// The slot is confirmed beyond all that was written: from here on nothing may be missing.
    async fn caught_up(&mut self) -> Result<(), Error> {
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

    async fn check(&self) -> Result<(), String> {
        let client = self.client().await.map_err(|fault| format!("{fault:?}"))?;
        let history = audit::history(&client, &audit_slot(&self.prefix), &slot(&self.prefix)).await?;
        for table in &self.tables {
            let name = schemas::topic::of_table(&self.prefix, &table.name);
            let records = topic::read(&self.lane.kafka(), &name).await.map_err(|fault| format!("{fault:?}"))?;
            let judged = super::judge(&client, table, &history, &records).await;
            judged.map_err(|fault| format!("topic {name}: {fault}"))?;
        }
        Ok(())
    }

    async fn client(&self) -> Result<Client, Error> {
        self.lane.postgres().connect(Role::Superuser, &database(&self.prefix)).await
    }

    /// What is not of use any more: a slot would hold the server's WAL back for all trials to come.
    async fn clean_up(&self) -> Result<(), Error> {
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

async fn lay_out(lane: &Lane, prefix: &str, tables: &[Table], seed: u64) -> Result<(), Error> {
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
    journal::keep(&client, tables).await.map_err(Error::new)?;
    let audit = audit_slot(prefix);
    match lane.standby() {
        Some(standby) => audit::start_with(&client, standby, &audit).await.map_err(Error::new)?,
        None => audit::start(&client, &audit).await.map_err(Error::new)?,
    }
    workload::fill(&client, seed, &workload::all(), ROWS).await
}

fn configuration(lane: &Lane, prefix: &str, tables: &[Table]) -> Configuration {
    let mut configuration = Configuration::default();
    configuration
        .set("prefix", prefix)
        .set("kafka.brokers", vec![format!("kafka://{}", lane.kafka_by_proxy())])
        .set("source.url", lane.postgres_by_proxy().url(Role::Source, &database(prefix)))
        .set("source.tables", names(tables))
        .set("source.create", true)
        .set("source.failover", lane.standby().is_some())
        // Small chunks, so that a load has many boundaries; and an outage at the start is no typing error here.
        .set("source.chunk_rows_max", 20)
        .set("source.start_timeout_seconds", 600)
        .set("source.topics.create", true)
        .set("source.topics.partitions", PARTITIONS as i64)
        .set("source.topics.replication", 1)
        .set("source.topics.min_insync_replicas", 1)
        .environment("TRIBUTARY_SOURCE__PASSWORD", Role::Source.password());
    configuration
}

fn names(tables: &[Table]) -> Vec<String> {
    tables.iter().map(|table| table.name.to_string()).collect()
}

fn database(prefix: &str) -> String {
    format!("{prefix}_source")
}

/// The slot and the publication, by the product's own default.
fn slot(prefix: &str) -> String {
    format!("tributary_{prefix}")
}

fn audit_slot(prefix: &str) -> String {
    format!("{prefix}_audit")
}
