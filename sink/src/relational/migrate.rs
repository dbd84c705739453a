//! The schema `tributary` in the target: made at the start, and brought up to this version.

use postgres::quote;
use sqlx::postgres::PgConnection;
use sqlx::{Executor, Row};

use super::pool::Pool;
use crate::error::Error;

/// Append-only: a migration that stood in a release is never changed.
const MIGRATIONS: &[&str] =
    &[include_str!("../../../migrations/0001_progress.sql"), include_str!("../../../migrations/0002_passed_over.sql")];

/// Under this lock nobody else of us migrates: `tributar` in ASCII.
const LOCK: i64 = 0x7472_6962_7574_6172;

/// Brings the schema up to date. Several processes may start at once: one does it, the others wait and find it done.
pub(super) async fn migrate(pool: &Pool, user: &str, database: &str) -> Result<(), Error> {
    let mut lease = pool.get().await?;
    match run(lease.connection()).await {
        Ok(found) if found > MIGRATIONS.len() as i32 => {
            Err(Error::Newer { target: pool.display.clone(), found, known: MIGRATIONS.len() as i32 })
        }
        Ok(_) => {
            lease.keep();
            Ok(())
        }
        Err(cause) => Err(explained(pool, user, database, cause)),
    }
}

/// The version that was found.
async fn run(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    connection.execute("BEGIN").await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    // CREATE SCHEMA IF NOT EXISTS asks for the right to create even where there is nothing to do.
    let there = sqlx::query("SELECT to_regclass('tributary.version') IS NOT NULL").fetch_one(&mut *connection).await?;
    if !there.get::<bool, _>(0) {
        let schema = sqlx::query("SELECT to_regnamespace('tributary') IS NOT NULL").fetch_one(&mut *connection).await?;
        if !schema.get::<bool, _>(0) {
            connection.execute("CREATE SCHEMA tributary").await?;
        }
        let table =
            "CREATE TABLE tributary.version (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())";
        connection.execute(table).await?;
    }
    let version =
        sqlx::query("SELECT coalesce(max(version), 0) FROM tributary.version").fetch_one(&mut *connection).await?;
    let version: i32 = version.get(0);
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(usize::try_from(version).unwrap_or(0)) {
        connection.execute(sqlx::raw_sql(*migration)).await?;
        let number = index as i32 + 1;
        sqlx::query("INSERT INTO tributary.version (version) VALUES ($1)")
            .bind(number)
            .execute(&mut *connection)
            .await?;
        tracing::info!(version = number, "the schema tributary on the target is up to date");
    }
    connection.execute("COMMIT").await?;
    Ok(version)
}

fn explained(pool: &Pool, user: &str, database: &str, cause: sqlx::Error) -> Error {
    let target = pool.display.clone();
    if cause.as_database_error().and_then(|error| error.code()).as_deref() != Some("42501") {
        return Error::Target { operation: "keep the schema tributary", target, cause };
    }
    let (user, database) = (quote::identifier(user), quote::identifier(database));
    let sql = format!(
        "GRANT CREATE ON DATABASE {database} TO {user}; and if the schema tributary is there and belongs to another, \
         GRANT ALL ON SCHEMA tributary TO {user}; GRANT ALL ON ALL TABLES IN SCHEMA tributary TO {user}"
    );
    Error::Rights { target, sql, cause }
}
