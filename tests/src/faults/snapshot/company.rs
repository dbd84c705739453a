//! Who is in the database beside writers and source, and makes a load harder: a slow standby, long transactions, DDL.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemas::TableName;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;
use tokio_util::sync::CancellationToken;

use super::plan;
use crate::Error;
use crate::faults::Lane;
use crate::faults::stage::database;
use crate::oracle::cut::Rewrite;
use crate::servers::{Postgres, PostgresAddress, Role};

/// How many transactions are open for long at a time.
const LONG: u32 = 3;
/// How often DDL is done in one trial at most: each may have a table loaded again.
const DDL_MAX: u32 = 6;

/// When the rows of tables were changed without being sent.
pub(super) type Rewrites = BTreeMap<TableName, Vec<Rewrite>>;

/// They go when they are asked to, and leave nothing open.
pub(super) struct Company {
    stop: CancellationToken,
    standby: Option<JoinHandle<Postgres>>,
    long: Vec<JoinHandle<Result<(), Error>>>,
    ddl: Option<JoinHandle<Result<Rewrites, Error>>>,
}

impl Company {
    /// All of them at work.
    pub(super) async fn gather(lane: &Lane, prefix: &str, seed: u64, which: plan::Company) -> Result<Company, Error> {
        let stop = CancellationToken::new();
        let mut company = Company { stop: stop.clone(), standby: None, long: Vec::new(), ddl: None };
        let (server, database) = (lane.postgres(), database(prefix));
        match which {
            plan::Company::Nobody => {}
            plan::Company::SlowStandby => {
                let standby = lane.follow(STANDBY).await?;
                configure(&server, &format!("ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")).await?;
                company.standby = Some(tokio::spawn(slow(standby, seed, stop)));
            }
            plan::Company::LongTransactions => {
                for n in 0..LONG {
                    let client = server.connect(Role::Application, &database).await?;
                    let mut holder = Holder {
                        client,
                        name: format!("{prefix}-{n}"),
                        n,
                        random: ChaCha8Rng::seed_from_u64(seed ^ u64::from(n)),
                    };
                    // The first is open before there is a slot, which has to wait for it.
                    holder.begin().await?;
                    company.long.push(tokio::spawn(holder.run(stop.clone())));
                }
            }
            plan::Company::Ddl => {
                let client = server.connect(Role::Superuser, &database).await?;
                company.ddl = Some(tokio::spawn(alter(client, seed, stop)));
            }
        }
        Ok(company)
    }

    /// They finish what they are at and go.
    pub(super) async fn part(self, lane: &Lane) -> Result<Rewrites, Error> {
        self.stop.cancel();
        for holder in self.long {
            holder.await.map_err(Error::during("wait for a long transaction"))??;
        }
        let rewrites = match self.ddl {
            Some(ddl) => ddl.await.map_err(Error::during("wait for DDL"))??,
            None => Rewrites::new(),
        };
        if let Some(standby) = self.standby {
            let mut standby = standby.await.map_err(Error::during("wait for the standby"))?;
            let server = lane.postgres();
            configure(&server, "ALTER SYSTEM RESET synchronous_standby_names").await?;
            standby.stop().await?;
            let client = server.connect(Role::Superuser, "postgres").await?;
            let drop = format!("SELECT pg_drop_replication_slot('{STANDBY}')");
            crate::until::until("the standby's slot is dropped", Duration::from_secs(30), async || {
                client.batch_execute(&drop).await.map_err(|cause| cause.to_string())
            })
            .await?;
        }
        Ok(rewrites)
    }
}

const STANDBY: &str = "slow_standby";

async fn configure(server: &PostgresAddress, sql: &str) -> Result<(), Error> {
    let client = server.connect(Role::Superuser, "postgres").await?;
    for sql in [sql, "SELECT pg_reload_conf()"] {
        client.batch_execute(sql).await.map_err(Error::during(sql))?;
    }
    Ok(())
}

/// It stands still for a while, again and again: nothing that is committed meanwhile is visible before it goes on.
async fn slow(mut standby: Postgres, seed: u64, stop: CancellationToken) -> Postgres {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    while !stop.is_cancelled() {
        standby.freeze();
        tokio::time::sleep(Duration::from_millis(random.random_range(50..800))).await;
        standby.thaw();
        tokio::time::sleep(Duration::from_millis(random.random_range(20..400))).await;
    }
    standby
}

/// One who begins transactions, writes, and takes his time.
struct Holder {
    client: Client,
    name: String,
    n: u32,
    random: ChaCha8Rng,
}

impl Holder {
    async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        loop {
            self.pause(&stop, 2_000).await;
            let n = self.n;
            // Behind whatever was loaded meanwhile, and without the long column.
            let more = format!(
                "UPDATE people SET age = age + 1 WHERE email = 'long {n}'; UPDATE notes SET title = 'later' WHERE id = {}",
                1_000 + n
            );
            let wrote = self.client.batch_execute(&more).await;
            if self.goes_on(wrote).await? {
                self.end(&stop).await?;
            }
            if stop.is_cancelled() {
                return Ok(());
            }
            self.begin().await?;
        }
    }

    /// A transaction that has written. What gave in to somebody else is begun anew.
    async fn begin(&mut self) -> Result<(), Error> {
        while !self.has_begun().await? {}
        Ok(())
    }

    /// Rows of its own, so that nobody else has to wait for them.
    async fn has_begun(&mut self) -> Result<bool, Error> {
        let (n, id, drawn) = (self.n, 1_000 + self.n, self.random.random_range(0..1_000_000));
        let begin = format!(
            "BEGIN;
             INSERT INTO accounts (id, owner) VALUES ({id}, 'long {drawn}') ON CONFLICT (id) DO UPDATE SET owner = excluded.owner;
             DELETE FROM accounts WHERE id = {id} AND {drawn} % 3 = 0;
             INSERT INTO people (email, name, age, bio) VALUES ('long {n}', 'n', {drawn}, repeat('long ', 1000))
             ON CONFLICT (email) DO UPDATE SET name = 'long {drawn}';
             INSERT INTO notes (id, title, body) VALUES ({id}, 'n', repeat('{drawn}', 600))
             ON CONFLICT (id) DO UPDATE SET title = 'long {drawn}'"
        );
        let begun = self.client.batch_execute(&begin).await;
        self.goes_on(begun).await
    }

    async fn end(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let name = self.name.clone();
        let script = match self.random.random_range(0..6) {
            0 => vec!["ROLLBACK".to_owned()],
            1..4 => vec!["COMMIT".to_owned()],
            4 => vec![format!("PREPARE TRANSACTION '{name}'"), format!("COMMIT PREPARED '{name}'")],
            _ => vec![format!("PREPARE TRANSACTION '{name}'"), format!("ROLLBACK PREPARED '{name}'")],
        };
        for sql in script {
            self.client.batch_execute(&sql).await.map_err(Error::during(sql))?;
            self.pause(stop, 1_500).await;
        }
        Ok(())
    }

    async fn pause(&mut self, stop: &CancellationToken, ms_max: u64) {
        let pause = Duration::from_millis(self.random.random_range(50..ms_max));
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }

    /// Whoever truncates and whoever writes can wait for each other: then this one gives in.
    async fn goes_on(&self, outcome: Result<(), tokio_postgres::Error>) -> Result<bool, Error> {
        let Err(cause) = outcome else { return Ok(true) };
        if cause.code() != Some(&SqlState::T_R_DEADLOCK_DETECTED) {
            return Err(Error::during("write in a long transaction")(cause));
        }
        self.client.batch_execute("ROLLBACK").await.map_err(Error::during("roll back after a deadlock"))?;
        Ok(false)
    }
}

/// What is done to tables: the table, the statement, and whether it changes rows that are not sent. `{n}` is a new number.
const DDL: [(&str, &str, bool); 8] = [
    ("public.accounts", "ALTER TABLE accounts ALTER balance TYPE numeric(16,3)", true),
    ("public.accounts", "ALTER TABLE accounts ALTER balance TYPE numeric(14,2)", true),
    ("public.people", "ALTER TABLE people ADD COLUMN added_{n} text", false),
    ("public.people", "ALTER TABLE people ADD COLUMN given_{n} integer DEFAULT 7", true),
    ("shop.order_lines", "ALTER TABLE shop.order_lines ADD COLUMN added_{n} text", false),
    ("shop.prices", "TRUNCATE shop.prices", false),
    ("public.people", "TRUNCATE people", false),
    (
        "public.notes",
        "BEGIN; INSERT INTO notes (id) VALUES (2000) ON CONFLICT DO NOTHING; TRUNCATE notes; INSERT INTO notes (id, title) VALUES (2000, 'behind'); COMMIT",
        false,
    ),
];

async fn alter(client: Client, seed: u64, stop: CancellationToken) -> Result<Rewrites, Error> {
    let (mut random, mut rewrites) = (ChaCha8Rng::seed_from_u64(seed), Rewrites::new());
    client.batch_execute("SET lock_timeout = '3s'").await.map_err(Error::during("set a timeout"))?;
    for n in 0..DDL_MAX {
        let pause = Duration::from_millis(random.random_range(200..2_500));
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            break;
        }
        let (table, sql, rewrites_rows) = DDL.choose(&mut random).expect("there is some");
        let sql = sql.replace("{n}", &n.to_string());
        let before = end_of_wal(&client).await?;
        match client.batch_execute(&sql).await {
            Ok(()) => {}
            // Somebody else was before us. It may be left open by that.
            Err(cause) if is_overtaken(&cause) => {
                client.batch_execute("ROLLBACK").await.map_err(Error::during("roll back"))?;
                continue;
            }
            Err(cause) => return Err(Error::during(sql)(cause)),
        }
        if *rewrites_rows {
            let name = table.parse().map_err(|_| Error::new(format!("{table} is no table's name")))?;
            rewrites.entry(name).or_default().push((before, end_of_wal(&client).await?));
        }
    }
    Ok(rewrites)
}

fn is_overtaken(cause: &tokio_postgres::Error) -> bool {
    [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].iter().any(|code| cause.code() == Some(code))
}

async fn end_of_wal(client: &Client) -> Result<u64, Error> {
    let row = client.query_one("SELECT pg_current_wal_insert_lsn()", &[]).await;
    let lsn: PgLsn = row.map_err(Error::during("ask for the end of the WAL"))?.get(0);
    Ok(lsn.into())
}
