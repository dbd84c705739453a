//! A PostgreSQL target: rows and progress in one transaction.
//!
//!     get a connection ──▶ BEGIN ──▶ progress, compared and set ──▶ statements, parked events ──▶ COMMIT
//!                                         │ 0 rows                       │ refused
//!                                         ▼                              ▼
//!                        done before, or another's now          ROLLBACK, and the stretch alone (see `alone`)
//!
//! An attempt leaves nothing behind unless it commits, so whoever calls may always try again. Whether a COMMIT without an
//! answer took place shows at the next attempt: the progress stands where it was to go.

mod alone;
mod catalog;
mod control;
mod migrate;
mod plan;
mod pool;
pub(crate) mod progress;
pub(crate) mod resolve;
mod truncate;

use std::time::Duration;

use schemas::TableName;
use schemas::event::Control;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgConnection, PgTypeInfo};
use sqlx::{AssertSqlSafe, Encode, Executor, Postgres, Row, Type};

use crate::array::TextArray;
use crate::batch::Batch;
use crate::config::OnError;
use crate::error::Error;
use crate::parked::{Class, ParkedKeys};
use crate::published::Taken;
use crate::record::Partition;
use crate::refused::Refused;
use crate::statement::{Kind, Statement};
use crate::target::{Claim, Claimed, Done, Outcome, Target};

pub(crate) use catalog::Catalog;
pub(crate) use plan::{Plan, Rows, control as decode_control, decode};
pub(crate) use pool::Pool;

/// The longest that one attempt may take before the connection is taken for dead: TCP alone would wait for hours.
const ATTEMPT_MAX: Duration = Duration::from_secs(300);

/// The target of one group.
#[derive(Debug)]
pub(crate) struct Relational {
    group: String,
    owner: String,
    on_error: OnError,
    pool: Pool,
    catalog: Catalog,
}

/// Where the partition was found when a transaction was to begin.
enum Moved {
    /// Where we left it; it is locked, and moved.
    Ours,
    /// Where this batch brings it: an earlier attempt was committed, only its answer was lost.
    Done,
    /// With somebody else.
    Lost,
}

/// What became of statements.
enum Write {
    Done { skipped: u64 },
    Refused(Refused),
}

impl Relational {
    pub(crate) fn new(config: &crate::config::Group, target: &postgres::Config, owner: &str) -> Relational {
        Relational {
            group: config.name.clone(),
            owner: owner.to_owned(),
            on_error: config.on_error,
            pool: Pool::new(target, config),
            catalog: Catalog::new(config.tables.clone()),
        }
    }

    /// Makes the target ready: our schema, and a look at the tables that are named so far.
    pub(crate) async fn open(&self, target: &postgres::Config, named: Vec<TableName>) -> Result<(), Error> {
        migrate::migrate(&self.pool, &target.user, &target.database).await?;
        self.look_at(named).await
    }

    /// Looks at what is to be applied to: the tables as such, and as the source describes them.
    pub(crate) async fn admit(&self, taken: &Taken) -> Result<(), Error> {
        self.look_at(taken.names()).await?;
        let described = taken.tables.iter().filter(|table| !table.columns.is_empty());
        let misfits: Vec<_> =
            described.flat_map(|table| self.catalog.misfits(&table.name, &table.columns, &table.key)).collect();
        if !misfits.is_empty() {
            return Err(Error::Misfits { group: self.group.clone(), misfits });
        }
        self.take_up(taken).await
    }

    /// A table whose events this group has passed over so far cannot be taken up in the middle.
    async fn take_up(&self, taken: &Taken) -> Result<(), Error> {
        let failed = |cause| self.failed("look for tables that were passed over", cause);
        let names: Vec<String> = taken.names().iter().map(ToString::to_string).collect();
        let topics: Vec<&str> = taken.topics.iter().map(String::as_str).collect();
        let mut lease = self.pool.get().await?;
        let sql = "SELECT topic, tbl FROM tributary.passed_over
                   WHERE grp = $1 AND topic = ANY ($2) AND tbl = ANY ($3) ORDER BY 1, 2 LIMIT 1";
        let found = sqlx::query(sql).bind(&self.group).bind(&topics).bind(&names).fetch_optional(lease.connection());
        let found = found.await.map_err(failed)?;
        lease.keep();
        match found {
            None => Ok(()),
            Some(row) => Err(Error::PassedOver { group: self.group.clone(), topic: row.get(0), table: row.get(1) }),
        }
    }

    /// Looks at tables that are to be applied to. Everything that is missing is told at once.
    async fn look_at(&self, names: Vec<TableName>) -> Result<(), Error> {
        self.catalog.add(names);
        let mut lease = self.pool.get().await?;
        self.read_catalog(lease.connection()).await?;
        let misfits = self.catalog.missing();
        if !misfits.is_empty() {
            return Err(Error::Misfits { group: self.group.clone(), misfits });
        }
        if !self.pool.is_replica() {
            let found = catalog::interference(lease.connection(), &self.catalog.names()).await;
            let found = found.map_err(|cause| self.failed("look for triggers and foreign keys", cause))?;
            if !found.is_empty() {
                return Err(Error::Interference { found });
            }
        }
        lease.keep();
        Ok(())
    }

    /// The pool, for what works beside the batches.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    async fn read_catalog(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let failed = |cause| self.failed("read the catalog", cause);
        connection.execute("BEGIN").await.map_err(failed)?;
        self.read_catalog_within(connection, &self.catalog.names()).await?;
        connection.execute("COMMIT").await.map_err(failed)?;
        Ok(())
    }

    /// The same as part of a transaction that is open already.
    async fn read_catalog_within(&self, connection: &mut PgConnection, names: &[TableName]) -> Result<(), Error> {
        let tables = catalog::read(connection, names).await;
        self.catalog.set(names, tables.map_err(|cause| self.failed("read the catalog", cause))?);
        Ok(())
    }

    fn failed(&self, operation: &'static str, cause: sqlx::Error) -> Error {
        Error::Target { operation, target: self.pool.display.clone(), cause }
    }

    /// A refusal that is not the event's fault.
    fn refused(&self, refused: Refused) -> Error {
        match refused {
            Refused::Server(cause) => self.failed("apply a batch", cause),
            Refused::NoRow | Refused::Unfit(_) => unreachable!("always the event's own matter"),
        }
    }

    async fn begin(&self, connection: &mut PgConnection, claim: &Claim, batch: &Batch) -> Result<Moved, Error> {
        let failed = |cause| self.failed("move the progress", cause);
        connection.execute("BEGIN").await.map_err(failed)?;
        if progress::advance(connection, &self.group, claim, batch).await.map_err(failed)? {
            return Ok(Moved::Ours);
        }
        let stands = progress::read(connection, &self.group, claim).await.map_err(failed)?;
        connection.execute("ROLLBACK").await.map_err(failed)?;
        Ok(if stands == Some(batch.to) { Moved::Done } else { Moved::Lost })
    }

    async fn attempt(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        batch: &Batch,
        plan: &Plan,
        parked: &ParkedKeys,
    ) -> Result<Outcome, Error> {
        let failed = |cause| self.failed("apply a batch", cause);
        if matches!(plan, Plan::OneByOne) {
            return self.apply_alone(connection, claim, batch, parked).await;
        }
        if let Plan::Control(Control::Truncate { tables, .. }) = plan
            && let Some(outcome) = self.truncate(connection, claim, batch, tables).await?
        {
            return Ok(outcome);
        }
        match self.begin(connection, claim, batch).await? {
            Moved::Ours => {}
            Moved::Done => return Ok(Outcome::Done(Done { unsure: true, ..Done::default() })),
            Moved::Lost => return Ok(Outcome::Lost),
        }
        let mut done = Done::default();
        let refused = match plan {
            Plan::OneByOne => None,
            Plan::Control(control) => {
                self.control(connection, &claim.partition, batch, control).await?;
                None
            }
            Plan::Rows(Rows { statements, behind, freed, applied, skipped }) => {
                (done.applied, done.skipped) = (*applied, *skipped);
                // Which keys stand still by then only the target knows.
                done.unsure = !freed.is_empty();
                progress::free(connection, &self.group, &claim.partition, freed).await.map_err(failed)?;
                match self.write(connection, &claim.partition, statements).await? {
                    Write::Refused(refused) => Some(refused),
                    Write::Done { skipped } => {
                        done.skipped += skipped;
                        done.applied = done.applied.saturating_sub(skipped);
                        done.parked.clone_from(behind);
                        progress::park(connection, &self.group, &claim.partition, behind).await.map_err(failed)?;
                        None
                    }
                }
            }
        };
        let is_open = refused.is_some();
        let refused = match refused {
            Some(refused) => refused,
            None => match connection.execute("COMMIT").await {
                Ok(_) => return Ok(Outcome::Done(done)),
                // A deferred constraint speaks here, and ends the transaction.
                Err(cause) => Refused::Server(cause),
            },
        };
        let Some(class) = Class::of(&refused) else { return Err(self.refused(refused)) };
        tracing::debug!(group = %self.group, partition = %claim.partition, "a batch was refused, applying it event by event: {}", service::chain(&refused));
        if is_open {
            connection.execute("ROLLBACK").await.map_err(failed)?;
        }
        if class == Class::Dead {
            // What makes sound values unfit may be our own idea of the table: it was altered since.
            let tables = plan::tables(&claim.partition, batch, &self.catalog)?;
            connection.execute("BEGIN").await.map_err(failed)?;
            self.read_catalog_within(connection, &tables).await?;
            connection.execute("COMMIT").await.map_err(failed)?;
        }
        self.apply_alone(connection, claim, batch, parked).await
    }

    /// Runs statements. A row that a partial update did not find is no fault while its load is open: the chunk brings it.
    async fn write(
        &self,
        connection: &mut PgConnection,
        partition: &Partition,
        statements: &[Statement],
    ) -> Result<Write, Error> {
        let mut skipped = 0;
        for statement in statements {
            let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
            for array in &statement.arrays {
                query = query.bind(array);
            }
            let rows = statement.rows() as u64;
            let missing = match query.execute(&mut *connection).await {
                Ok(done) if statement.kind == Kind::Update => rows.saturating_sub(done.rows_affected()),
                Ok(_) => 0,
                Err(cause) => return Ok(Write::Refused(Refused::Server(cause))),
            };
            if missing > 0 {
                let loading = progress::is_loading(connection, &self.group, partition, &statement.table).await;
                if !loading.map_err(|cause| self.failed("look for open loads", cause))? {
                    return Ok(Write::Refused(Refused::NoRow));
                }
                skipped += missing;
            }
        }
        Ok(Write::Done { skipped })
    }

    async fn within<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let seconds = ATTEMPT_MAX.as_secs();
        let silent = |_| Error::Silent { target: self.pool.display.clone(), operation, seconds };
        tokio::time::timeout(ATTEMPT_MAX, work).await.map_err(silent)?
    }
}

impl Target for Relational {
    type Prepared = Plan;

    /// A topic that still has its first record brings everything again.
    const ASKS_KAFKA: bool = false;

    async fn claim(&self, partition: &Partition, _kafka: Option<i64>) -> Result<Claimed, Error> {
        let work = async {
            let failed = |cause| self.failed("claim a partition", cause);
            let mut lease = self.pool.get().await?;
            let connection = lease.connection();
            let claimed = progress::claim(connection, &self.group, &self.owner, partition).await;
            let (number, progress) = claimed.map_err(failed)?;
            let parked = progress::parked_keys(connection, &self.group, partition).await.map_err(failed)?;
            lease.keep();
            let claim = Claim { partition: partition.clone(), number };
            Ok(Claimed { claim, progress, parked })
        };
        self.within("claim a partition", work).await
    }

    fn prepare(&self, partition: &Partition, batch: &Batch, parked: &ParkedKeys) -> Result<Plan, Error> {
        Plan::of(partition, batch, &self.catalog, parked)
    }

    async fn refresh(&self) -> Result<(), Error> {
        let mut lease = self.pool.get().await?;
        self.read_catalog(lease.connection()).await?;
        lease.keep();
        Ok(())
    }

    async fn apply(&self, claim: &Claim, batch: &Batch, plan: &Plan, parked: &ParkedKeys) -> Result<Outcome, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let outcome = self.attempt(lease.connection(), claim, batch, plan, parked).await?;
            lease.keep();
            Ok(outcome)
        };
        self.within("apply a batch", work).await
    }

    async fn standing(&self, partition: &Partition) -> Result<ParkedKeys, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let keys = progress::parked_keys(lease.connection(), &self.group, partition).await;
            let keys = keys.map_err(|cause| self.failed("read the parked keys", cause))?;
            lease.keep();
            Ok(keys)
        };
        self.within("read the parked keys", work).await
    }

    async fn report(&self, claim: &Claim, problem: &str) {
        let work = async {
            let mut lease = self.pool.get().await?;
            let said = progress::report(lease.connection(), &self.group, claim, problem).await;
            said.map_err(|cause| self.failed("say what the matter is", cause))?;
            lease.keep();
            Ok(())
        };
        if let Err(error) = self.within("say what the matter is", work).await {
            tracing::debug!(group = %self.group, partition = %claim.partition, "{}", service::chain(&error));
        }
    }
}

impl Type<Postgres> for TextArray {
    fn type_info() -> PgTypeInfo {
        <Vec<String> as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for TextArray {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.write(buffer);
        Ok(IsNull::No)
    }

    fn size_hint(&self) -> usize {
        self.bytes()
    }
}
