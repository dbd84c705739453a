//! What is written on the source, and how it is recognised when it has arrived. The SQL is in stack/bench.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::process::Process;
use harness::servers::{Postgres, PostgresAddress, Role};
use harness::{Error, place};
use nix::sys::signal::Signal;
use tokio_postgres::Client;

/// The database on both sides, and the publication.
pub(crate) const BENCH: &str = "bench";

/// The table that every system moves.
pub(crate) const TABLE: &str = "public.orders";

/// Where the rows are while the table is written to.
pub(crate) const AT_REST: &str = "public.at_rest";

/// The rows of a backlog's last transaction: enough that every partition ends with some of them.
pub(crate) const END_MARKS: u64 = 64;

/// A row that is read, with its end marks' lowest key.
const IS_END_MARK: &str = "id > 9000000000";

/// What the table holds: equal on both sides, or something was lost. The sum does not depend on any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) rows: i64,
    checksum: String,
}

/// The table, its writers, and the publication.
pub(crate) async fn install_source(source: &Postgres) -> Result<(), Error> {
    create_database(source).await?;
    let client = connect(source).await?;
    run(&client, &script("orders.sql")?).await?;
    run(&client, &script("load.sql")?).await?;
    run(&client, &format!("CREATE PUBLICATION {BENCH} FOR TABLE {TABLE}")).await?;
    run(&client, &format!("GRANT SELECT ON {TABLE} TO {}", Role::Source.name())).await
}

/// An empty table in a new database.
pub(crate) async fn install_target(target: &Postgres) -> Result<(), Error> {
    create_database(target).await?;
    let client = connect(target).await?;
    run(&client, &script("orders.sql")?).await?;
    let role = Role::Target.name();
    run(&client, &format!("GRANT CREATE ON DATABASE {BENCH} TO {role}; GRANT ALL ON {TABLE} TO {role}")).await
}

/// A connection as superuser.
pub(crate) async fn connect(server: &Postgres) -> Result<Client, Error> {
    server.address().connect(Role::Superuser, BENCH).await
}

/// Empties the table for the next system.
pub(crate) async fn empty(client: &Client) -> Result<(), Error> {
    run(client, &format!("TRUNCATE {TABLE}; ALTER SEQUENCE latency_id RESTART")).await
}

/// Rows at rest, as many as are asked for, with statistics: nobody vacuums here.
pub(crate) async fn write_rows(client: &Client, rows: u64) -> Result<(), Error> {
    for sql in [format!("CALL write_rows(1, {rows})"), format!("ANALYZE {TABLE}"), "CHECKPOINT".to_owned()] {
        run(client, &sql).await?;
    }
    Ok(())
}

/// A second table with the rows of the first, which is empty then: what is loaded while others write.
pub(crate) async fn set_aside(client: &Client) -> Result<(), Error> {
    let (role, table) = (Role::Source.name(), AT_REST);
    let sql = format!(
        "ALTER TABLE {TABLE} RENAME TO at_rest; CREATE TABLE {TABLE} (LIKE {table} INCLUDING ALL);
         GRANT SELECT ON {TABLE} TO {role}; ALTER PUBLICATION {BENCH} ADD TABLE {TABLE}"
    );
    run(client, &sql).await
}

/// The rows of the table in so many tables of the schema `many`, evenly.
pub(crate) async fn divide(client: &Client, tables: u16) -> Result<(), Error> {
    let role = Role::Source.name();
    let sql = format!(
        "DROP SCHEMA IF EXISTS many CASCADE; CREATE SCHEMA many; GRANT USAGE ON SCHEMA many TO {role};
         DO $$ BEGIN FOR n IN 0..{last} LOOP
             EXECUTE format('CREATE TABLE many.orders_%s (LIKE {TABLE} INCLUDING ALL)', n);
             EXECUTE format('INSERT INTO many.orders_%s SELECT * FROM {TABLE} WHERE id %% {tables} = %s', n, n);
             EXECUTE format('GRANT SELECT ON many.orders_%s TO {role}', n);
             EXECUTE format('ALTER PUBLICATION {BENCH} ADD TABLE many.orders_%s', n);
             EXECUTE format('ANALYZE many.orders_%s', n);
         END LOOP; END $$; CHECKPOINT",
        last = tables - 1
    );
    run(client, &sql).await
}

/// When the first row of the table was committed and when the last, in seconds since 1970. The server keeps such times.
pub(crate) async fn committed(client: &Client) -> Result<(f64, f64), Error> {
    let read = format!(
        "SELECT extract(epoch FROM min(at))::float8, extract(epoch FROM max(at))::float8
         FROM (SELECT DISTINCT pg_xact_commit_timestamp(xmin) AS at FROM {TABLE}) rows"
    );
    let row = client.query_one(&read, &[]).await.map_err(Error::during("ask when rows were committed"))?;
    Ok((row.get(0), row.get(1)))
}

/// Whether the row with this key is there.
pub(crate) async fn has_row(client: &Client, key: u64) -> Result<bool, Error> {
    let read = format!("SELECT EXISTS (SELECT FROM {TABLE} WHERE id = {key})");
    Ok(client.query_one(&read, &[]).await.map_err(Error::during("look for a row"))?.get(0))
}

/// How many rows the table holds.
pub(crate) async fn count(client: &Client) -> Result<u64, Error> {
    let row = client.query_one(&format!("SELECT count(*) FROM {TABLE}"), &[]).await;
    Ok(row.map_err(Error::during("count the rows"))?.get::<_, i64>(0).unsigned_abs())
}

/// Runs statements.
pub(crate) async fn run(client: &Client, sql: &str) -> Result<(), Error> {
    client.batch_execute(sql).await.map_err(Error::during(sql.to_owned()))
}

/// `events` changes of one row, so many of them a transaction, then the end marks. Answers where the WAL ends behind them.
pub(crate) async fn write_backlog(client: &Client, events: u64, a_transaction: u64) -> Result<String, Error> {
    run(client, "SET synchronous_commit = off").await?;
    run(client, &format!("CALL write_stream({}, {})", events / 100, (a_transaction / 100).max(1))).await?;
    run(client, "SET synchronous_commit = on").await?;
    run(client, "CALL write_end_marks()").await?;
    text(client, "SELECT pg_current_wal_flush_lsn()::text").await
}

/// A slot over all that is written from now on.
pub(crate) async fn create_slot(client: &Client, name: &str) -> Result<(), Error> {
    let create = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    client.execute(create, &[&name]).await.map(|_| ()).map_err(Error::during(format!("make the slot {name}")))
}

/// What the table holds.
pub(crate) async fn content(client: &Client) -> Result<Content, Error> {
    let read =
        format!("SELECT count(*), coalesce(sum(hashtextextended(orders::text, 0)::numeric), 0)::text FROM {TABLE}");
    let row = client.query_one(&read, &[]).await.map_err(Error::during("add up the table"))?;
    Ok(Content { rows: row.get(0), checksum: row.get(1) })
}

/// Whether any row is there.
pub(crate) async fn has_rows(client: &Client) -> Result<bool, Error> {
    let row = client.query_one(&format!("SELECT EXISTS (SELECT FROM {TABLE})"), &[]).await;
    Ok(row.map_err(Error::during("look for a first row"))?.get(0))
}

/// How many end marks are there.
pub(crate) async fn end_marks(client: &Client) -> Result<u64, Error> {
    let row = client.query_one(&format!("SELECT count(*) FROM {TABLE} WHERE {IS_END_MARK}"), &[]).await;
    Ok(row.map_err(Error::during("look for the end marks"))?.get::<_, i64>(0).unsigned_abs())
}

/// `pgbench` with `rate` transactions of one row a second, at random distances.
pub(crate) fn start_traffic(source: &Postgres, rate: u32, seconds: u64, folder: &Path) -> Result<Process, Error> {
    let mut pgbench = tool("pgbench", source.address())?;
    pgbench.args(["--no-vacuum", "--client=4", "--jobs=1", "--protocol=prepared"]);
    pgbench.arg(format!("--rate={rate}")).arg(format!("--time={seconds}"));
    pgbench.arg("--file").arg(scripts().join("latency.sql"));
    Process::spawn("pgbench", pgbench, &folder.join("pgbench.log"), Signal::SIGKILL)
}

/// One of PostgreSQL's own tools, told by its environment where to go.
pub(crate) fn tool(name: &str, address: &PostgresAddress) -> Result<Command, Error> {
    let mut command = Command::new(place::postgres()?.join(name));
    command
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", address.port.to_string())
        .env("PGUSER", Role::Superuser.name())
        .env("PGPASSWORD", Role::Superuser.password())
        .env("PGDATABASE", BENCH)
        // Stamps are read where every connection says the same time.
        .env("PGTZ", "UTC");
    Ok(command)
}

/// Where the SQL and the peers' list of packages are.
pub(crate) fn scripts() -> PathBuf {
    place::repository().join("stack/bench")
}

async fn create_database(server: &Postgres) -> Result<(), Error> {
    let client = server.address().connect(Role::Superuser, "postgres").await?;
    run(&client, &format!("DROP DATABASE IF EXISTS {BENCH} WITH (FORCE)")).await?;
    run(&client, &format!("CREATE DATABASE {BENCH}")).await
}

async fn text(client: &Client, query: &str) -> Result<String, Error> {
    Ok(client.query_one(query, &[]).await.map_err(Error::during(query.to_owned()))?.get(0))
}

fn script(name: &str) -> Result<String, Error> {
    let path = scripts().join(name);
    fs::read_to_string(&path).map_err(Error::during(format!("read {}", path.display())))
}
