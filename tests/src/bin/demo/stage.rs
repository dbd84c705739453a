//! The servers of the demo, what lies in them, and waiting for things to arrive.

use std::path::Path;
use std::time::{Duration, Instant};

use harness::Error;
use harness::servers::{Durability, Kafka, Redis};
use harness::until::until;
use schemas::topic::{group_id, of_table};
use tokio_postgres::Client;

use crate::crew::{Crew, GROUPS, PREFIX};
use crate::databases::{Databases, Table};
use crate::lag;
use crate::narrator::Narrator;

/// How long one step may take before the demo has failed, on a machine that does other things too.
const STEP: Duration = Duration::from_secs(300);

/// How many rows stand in all tables, as the statistics say: asked often, and to count them takes too long for that.
const ROWS: &str =
    "SELECT coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname IN ('public', 'shop')";

/// How much of the monolith's log before a place the slot has not passed.
const UNCONFIRMED: &str =
    "SELECT pg_wal_lsn_diff($1::text::pg_lsn, min(confirmed_flush_lsn))::bigint FROM pg_replication_slots";

/// How much of the rows.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// The copy is well under way.
    Some,
    /// But for those that are being written now.
    All,
}

/// The servers and what is known of them.
pub(crate) struct Stage<'a> {
    narrator: &'a Narrator,
    pub(crate) databases: Databases,
    pub(crate) kafka: Kafka,
    pub(crate) redis: Redis,
    pub(crate) tables: Vec<Table>,
}

impl<'a> Stage<'a> {
    pub(crate) async fn start(narrator: &'a Narrator) -> Result<Stage<'a>, Error> {
        let (databases, kafka, redis) =
            tokio::try_join!(Databases::start(), Kafka::start(1), Redis::start(Durability::Relaxed))?;
        Ok(Stage { narrator, databases, kafka, redis, tables: Vec::new() })
    }

    /// Fills the monolith, and gives the new database its schema and nothing else.
    pub(crate) async fn set(&mut self, logs: &Path) -> Result<(), Error> {
        self.databases.load(logs).await?;
        self.tables = self.databases.tables().await?;
        let rows = self.rows(&self.databases.read_source().await?).await?;
        self.narrator.say(format!("It has {} tables with {rows} rows.", self.tables.len()));
        self.narrator.say("The new database gets its schema by pg_dump --schema-only; tributary is to bring the rows.");
        self.databases.copy_schema(logs).await
    }

    /// Waits until this part of the monolith's rows is in the new database.
    pub(crate) async fn copied(&self, crew: &mut Crew, part: Part) -> Result<(), Error> {
        let (source, target) = (self.databases.read_source().await?, self.databases.read_target().await?);
        self.wait(crew, "the rows are copied", async || {
            let (here, there) = tokio::try_join!(source.query_one(ROWS, &[]), target.query_one(ROWS, &[]))
                .map_err(Error::during("ask how many rows there are"))?;
            let (here, there): (i64, i64) = (here.get(0), there.get(0));
            self.narrator.show("rows copied", there, here);
            let enough = match part {
                Part::Some => there > here * 4 / 10,
                // Then it pays to count. Rows come and go meanwhile, and a few are always on their way.
                Part::All => {
                    there > here * 98 / 100 && {
                        let (here, there) = tokio::try_join!(self.rows(&source), self.rows(&target))?;
                        (here - there).abs() <= here / 2000
                    }
                }
            };
            Ok(enough.then_some(()).ok_or_else(|| format!("{there} of {here}")))
        })
        .await
    }

    async fn rows(&self, client: &Client) -> Result<i64, Error> {
        let mut rows = 0;
        for table in &self.tables {
            rows += table.rows(client).await?;
        }
        Ok(rows)
    }

    /// Waits until all that the monolith has committed by now is where it belongs: the slot has passed it, and both groups
    /// have passed all that stands in the topics then.
    pub(crate) async fn caught_up(&self, crew: &mut Crew) -> Result<Duration, Error> {
        let started = Instant::now();
        let source = self.databases.read_source().await?;
        let here = source.query_one("SELECT pg_current_wal_lsn()::text", &[]).await;
        let end: String = here.map_err(Error::during("ask where the monolith's log ends"))?.get(0);
        self.wait(crew, "the source has published all", async || {
            let row = source.query_one(UNCONFIRMED, &[&end]).await.map_err(Error::during("look at the slot"))?;
            let left: Option<i64> = row.get(0);
            let left = left.ok_or_else(|| Error::new("the slot is gone"))?;
            Ok((left <= 0).then_some(()).ok_or_else(|| format!("{left} bytes are left")))
        })
        .await?;
        let topics = self.tables.iter().map(|table| of_table(PREFIX, &table.name)).collect();
        let ends = lag::ends(self.kafka.addresses(), topics).await?;
        for group in GROUPS {
            let mut most = 0;
            self.wait(crew, &format!("the group {group} has passed all"), async || {
                let left = lag::of(self.kafka.addresses(), group_id(PREFIX, group), ends.clone()).await?;
                most = most.max(left);
                self.narrator.show(&format!("records passed by the group {group}"), most - left, most);
                Ok((left == 0).then_some(()).ok_or_else(|| format!("{left} records are left")))
            })
            .await?;
        }
        Ok(started.elapsed())
    }

    pub(crate) async fn stop(mut self) -> Result<(), Error> {
        let Databases { source, target } = &mut self.databases;
        tokio::try_join!(source.stop(), target.stop(), self.kafka.stop(), self.redis.stop())?;
        Ok(())
    }

    /// Asks until `check` says that it is so, for as long as tributary runs. A server that is away is asked again.
    async fn wait<F>(&self, crew: &mut Crew, what: &str, mut check: F) -> Result<(), Error>
    where
        F: AsyncFnMut() -> Result<Result<(), String>, Error>,
    {
        let outcome = until(what, STEP, async || {
            if let Err(fault) = crew.all_run() {
                return Ok(Err(fault));
            }
            check().await.map_err(|fault| format!("{fault:?}"))?.map(Ok)
        })
        .await;
        outcome.map_err(|fault| Error::new(format!("{fault:?}{}", crew.tails())))?
    }
}
