//! The target database: its server, our role, the tables as they must be to take what the source has.

use postgres::{Client, Error, quote};
use schemas::TableName;

use super::catalog::{self, Table, Tables};
use super::{Check, Checks, clock};

/// The tables that keep progress; made by the sink.
const PROGRESS: &str = "tributary.progress";

/// Looks at the target. `source` is what the tables are like there, where that could be read.
pub(super) async fn check(config: &postgres::Config, names: &[TableName], source: Option<&Tables>) -> Vec<Check> {
    let mut checks = Checks::of("target");
    let client = match postgres::connect(config, "doctor").await {
        Ok(client) => client,
        Err(error) => {
            checks.failed("connection", &error);
            return checks.list;
        }
    };
    checks.good("connection", config.display());
    let looked = async {
        server(&mut checks, &client).await?;
        clock::check(&mut checks, &client).await?;
        progress(&mut checks, &client, config).await?;
        replication_role(&mut checks, &client, config).await?;
        let tables = catalog::read(&client, names).await?;
        for name in names {
            let there = source.and_then(|tables| tables.get(name));
            table(&mut checks, config, name, tables.get(name), there);
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = looked.await {
        checks.failed("catalog", &error);
    }
    checks.list
}

async fn server(checks: &mut Checks, client: &Client) -> Result<(), Error> {
    let query =
        "SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery()";
    let row =
        client.query_one(query, &[]).await.map_err(|cause| Error::statement("read the server's settings", cause))?;
    checks.expect(
        row.get::<_, i32>(1) >= 140_000,
        "version",
        row.get::<_, &str>(0),
        "upgrade PostgreSQL to 14 or later",
    );
    let is_standby: bool = row.get(2);
    let found = if is_standby { "standby" } else { "primary" };
    checks.expect(!is_standby, "role of the server", found, "point [target] url at the primary");
    Ok(())
}

async fn progress(checks: &mut Checks, client: &Client, config: &postgres::Config) -> Result<(), Error> {
    const QUERY: &str = "
        SELECT to_regclass($1) IS NOT NULL,
               coalesce((SELECT bool_and(has_table_privilege(to_regclass($1), p))
                         FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p), false),
               has_database_privilege(current_database(), 'CREATE')";
    let row = client.query_one(QUERY, &[&PROGRESS]).await;
    let row = row.map_err(|cause| Error::statement("look for the tables that keep progress", cause))?;
    let (is_there, may_write, may_create): (bool, bool, bool) = (row.get(0), row.get(1), row.get(2));
    let user = quote::identifier(&config.user);
    if is_there {
        let remedy = format!(
            "GRANT USAGE ON SCHEMA tributary TO {user}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tributary TO {user}"
        );
        checks.expect(
            may_write,
            "progress",
            if may_write { "kept in the schema tributary" } else { "may not be written" },
            remedy,
        );
    } else {
        let remedy = format!("GRANT CREATE ON DATABASE {} TO {user}", quote::identifier(&config.database));
        checks.expect(may_create, "progress", "not there yet: the sink will make the schema tributary", remedy);
    }
    Ok(())
}

async fn replication_role(checks: &mut Checks, client: &Client, config: &postgres::Config) -> Result<(), Error> {
    let statement = "BEGIN; SET LOCAL session_replication_role = replica; ROLLBACK";
    let tried = client.batch_execute(statement).await;
    let what = "session_replication_role";
    match tried {
        Ok(()) => checks.good(what, "may be set: the target's own triggers and foreign keys do not act again"),
        Err(cause) if cause.code().is_some() => {
            client.batch_execute("ROLLBACK").await.map_err(|cause| Error::statement("end a transaction", cause))?;
            let user = quote::identifier(&config.user);
            let remedy = format!(
                "GRANT SET ON PARAMETER session_replication_role TO {user} (PostgreSQL 15 and later), or use a role that may; or know that triggers fire twice and foreign keys are checked event by event"
            );
            checks.warn(what, "may not be set", remedy);
        }
        Err(cause) => return Err(Error::statement("set session_replication_role", cause)),
    }
    Ok(())
}

fn table(
    checks: &mut Checks,
    config: &postgres::Config,
    name: &TableName,
    table: Option<&Table>,
    source: Option<&Table>,
) {
    let what = format!("table {name}");
    let sql = quote::table(name);
    let Some(table) = table else {
        let remedy = format!("make it: pg_dump --schema-only --table='{sql}' from the source, into the target");
        return checks.fault(what, "not there", remedy);
    };
    let lacks: Vec<&str> =
        ["SELECT", "INSERT", "UPDATE", "DELETE"].into_iter().filter(|right| !table.may(right)).collect();
    if !lacks.is_empty() {
        let remedy = format!("GRANT {} ON {sql} TO {}", lacks.join(", "), quote::identifier(&config.user));
        return checks.fault(what, format!("our role lacks {}", lacks.join(", ")), remedy);
    }
    let Some(source) = source else {
        return checks.good(what, "there; columns and key could not be compared with the source");
    };
    let missing: Vec<&str> =
        source.columns.iter().filter(|column| !table.columns.contains(column)).map(String::as_str).collect();
    if !missing.is_empty() {
        let remedy = format!("ALTER TABLE {sql} ADD COLUMN …, or leave them out of the publication");
        return checks.fault(what, format!("lacks the columns {}", missing.join(", ")), remedy);
    }
    let unfed: Vec<&str> =
        table.required.iter().filter(|column| !source.columns.contains(column)).map(String::as_str).collect();
    if !unfed.is_empty() {
        let remedy = format!("give them defaults: ALTER TABLE {sql} ALTER COLUMN … SET DEFAULT …, or allow nulls");
        return checks.fault(what, format!("needs values that the source does not have: {}", unfed.join(", ")), remedy);
    }
    if !source.key.is_empty() && !table.is_unique_on(&source.key) {
        let key = source.key.iter().map(|column| quote::identifier(column)).collect::<Vec<_>>().join(", ");
        let remedy = format!("ALTER TABLE {sql} ADD PRIMARY KEY ({key}), or CREATE UNIQUE INDEX ON {sql} ({key})");
        return checks.fault(what, format!("no unique index on ({key}), which the source publishes it by"), remedy);
    }
    checks.good(what, "columns and key as in the source");
}
