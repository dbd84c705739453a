//! Seeded writers over tables of many shapes: everything that an application does to rows, several at a time and on the same keys.
//!
//! Keys are drawn from a small space, so that rows are deleted and come back, move onto each other's old keys, and are
//! written by several transactions at once. What conflicts is rolled back, as applications do. No unique value but the
//! key itself ever passes from one row to another.

mod draw;
mod shapes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::servers::{PostgresAddress, Role};
use crate::table::Table;
use crate::until::until;

pub use shapes::{Shape, accounts, all, badges, documents, notes, oddly_named, order_lines, people, prices, tables};

/// How long a number of transactions may take on a machine that has much else to do.
const WRITTEN_WITHIN: Duration = Duration::from_secs(180);

/// How fast, and by how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Connections that write at the same time.
    pub writers: u64,
    /// Transactions a second of each.
    pub transactions_per_second: u32,
}

/// What writers do beyond what every reader of their changes must bear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// They truncate tables now and then, alone and among other changes.
    pub truncate: bool,
    /// They give rows other keys and leave their long columns alone, so that these are not in the stream.
    pub move_alone: bool,
    /// They outlive their server: a lost connection is made again.
    pub persist: bool,
}

/// What the writers have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Transactions that were committed.
    pub committed: u64,
    /// Transactions that were rolled back, on purpose or by a conflict.
    pub rolled_back: u64,
}

/// Writers at work.
#[derive(Debug)]
pub struct Workload {
    stop: CancellationToken,
    committed: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Result<Totals, Error>>>,
}

impl Workload {
    /// Sets writers to work on tables that exist.
    pub fn start(server: &PostgresAddress, database: &str, seed: u64, pace: Pace, shapes: &[Shape]) -> Workload {
        Workload::start_in(Manner::default(), server, database, seed, pace, shapes)
    }

    /// The same in a manner of one's choice.
    pub fn start_in(
        manner: Manner,
        server: &PostgresAddress,
        database: &str,
        seed: u64,
        pace: Pace,
        shapes: &[Shape],
    ) -> Workload {
        let (stop, committed) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let writers = (0..pace.writers).map(|n| {
            let (server, database, shapes) = (server.clone(), database.to_owned(), shapes.to_vec());
            let (stop, committed) = (stop.clone(), committed.clone());
            tokio::spawn(async move {
                let client = match manner.persist {
                    true => connect_in_time(&server, &database).await?,
                    false => server.connect(Role::Application, &database).await?,
                };
                let random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(n));
                let writer =
                    Writer { server, database, manner, client, random, shapes, totals: Totals::default(), committed };
                writer.run(pace, &stop).await
            })
        });
        Workload { writers: writers.collect(), committed, stop }
    }

    /// Lets the writers finish what they are at, and says what they have done.
    pub async fn stop(self) -> Result<Totals, Error> {
        self.stop.cancel();
        let mut totals = Totals::default();
        for writer in self.writers {
            let done = writer.await.map_err(Error::during("wait for a writer"))??;
            totals.committed += done.committed;
            totals.rolled_back += done.rolled_back;
        }
        Ok(totals)
    }

    /// Stops the writers once together they have committed so many transactions.
    pub async fn after(self, transactions: u64) -> Result<Totals, Error> {
        until("the writers have written enough", WRITTEN_WITHIN, async || {
            let committed = self.committed.load(Ordering::Relaxed);
            let failed = self.writers.iter().any(JoinHandle::is_finished);
            if committed >= transactions || failed { Ok(()) } else { Err(format!("{committed} of {transactions}")) }
        })
        .await?;
        self.stop().await
    }
}

/// Fills every table with rows to begin with.
pub async fn fill(client: &Client, seed: u64, shapes: &[Shape], rows: u32) -> Result<(), Error> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for shape in shapes {
        for _ in 0..rows.div_ceil(100) {
            let statements: Vec<String> = (0..100).map(|_| shape.insert(&mut random)).collect();
            let sql = statements.join(";\n");
            client.batch_execute(&sql).await.map_err(Error::during(format!("fill {}", shape.table().name)))?;
        }
    }
    Ok(())
}

struct Writer {
    server: PostgresAddress,
    database: String,
    manner: Manner,
    client: Client,
    random: ChaCha8Rng,
    shapes: Vec<Shape>,
    totals: Totals,
    /// Of all writers together.
    committed: Arc<AtomicU64>,
}

impl Writer {
    async fn run(mut self, pace: Pace, stop: &CancellationToken) -> Result<Totals, Error> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / pace.transactions_per_second);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.is_cancelled() {
            ticks.tick().await;
            self.transaction().await?;
        }
        Ok(self.totals)
    }

    async fn transaction(&mut self) -> Result<(), Error> {
        let mut script = vec!["BEGIN".to_owned()];
        for _ in 0..self.random.random_range(1..=5) {
            let statement = self.statement();
            match self.random.random_range(0..10) {
                // Undone, and yet it took an xid of its own and stands in the WAL.
                0 => script.extend(["SAVEPOINT a".to_owned(), statement, "ROLLBACK TO a".to_owned()]),
                1 => script.extend(["SAVEPOINT a".to_owned(), statement, "RELEASE a".to_owned()]),
                _ => script.push(statement),
            }
        }
        let is_kept = self.random.random_range(0..20) > 0;
        script.push(if is_kept { "COMMIT" } else { "ROLLBACK" }.to_owned());
        match self.client.batch_execute(&script.join(";\n")).await {
            Ok(()) if is_kept => {
                self.totals.committed += 1;
                self.committed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(()) => self.totals.rolled_back += 1,
            Err(cause) if is_conflict(&cause) => {
                self.client.batch_execute("ROLLBACK").await.map_err(Error::during("roll back after a conflict"))?;
                self.totals.rolled_back += 1;
            }
            // Whether it was committed is for the server to know.
            Err(cause) if self.manner.persist && is_loss(&cause) => {
                self.client = connect_in_time(&self.server, &self.database).await?;
            }
            Err(cause) => return Err(Error::during(format!("write:\n{}", script.join(";\n")))(cause)),
        }
        Ok(())
    }

    fn statement(&mut self) -> String {
        let shape = &self.shapes[self.random.random_range(0..self.shapes.len())];
        let random = &mut self.random;
        if self.manner.truncate && random.random_range(0..400) == 0 {
            return format!("TRUNCATE {}", shape.table().sql());
        }
        match random.random_range(0..100) {
            85..95 if self.manner.move_alone && random.random_range(0..2) == 0 => shape.move_alone(random),
            0..25 => shape.insert(random),
            25..35 => shape.upsert(random),
            35..60 => shape.touch(random),
            60..70 => shape.rewrite(random),
            70..85 => shape.delete(random),
            85..95 => shape.change_key(random),
            _ => shape.touch_many(random),
        }
    }
}

/// Tries until the server answers: it may be on its way up.
async fn connect_in_time(server: &PostgresAddress, database: &str) -> Result<Client, Error> {
    let mut tries = tokio::time::interval(Duration::from_millis(100));
    let connect = async {
        loop {
            tries.tick().await;
            if let Ok(client) = server.connect(Role::Application, database).await {
                return client;
            }
        }
    };
    tokio::time::timeout(WRITTEN_WITHIN, connect).await.map_err(Error::during("wait for the writer's server"))
}

/// The server went away, or is about to: it says so on connections that stand for a moment yet.
fn is_loss(cause: &tokio_postgres::Error) -> bool {
    let goes = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
    cause.code().is_none_or(|code| goes.contains(code))
}

/// What two writers do to each other, and no fault of anybody.
fn is_conflict(cause: &tokio_postgres::Error) -> bool {
    let conflicts = [SqlState::T_R_DEADLOCK_DETECTED, SqlState::UNIQUE_VIOLATION, SqlState::T_R_SERIALIZATION_FAILURE];
    cause.code().is_some_and(|code| conflicts.contains(code))
}

/// The tables of `shapes`, for a world.
pub fn tables_of(shapes: &[Shape]) -> Vec<Table> {
    shapes.iter().map(|shape| shape.table().clone()).collect()
}
