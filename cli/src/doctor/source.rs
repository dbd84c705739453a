//! The source database: its server, our role, the slot, the publication, the tables.

use std::collections::BTreeMap;

use postgres::replication::Replication;
use postgres::{Client, Error, quote};
use schemas::TableName;

use super::catalog::{self, Table, Tables};
use super::{Check, Checks, carry, clock, failover, slot};

/// The oldest server that we read from.
const VERSION_MIN: i32 = 140_000;
/// Below this `wal_sender_timeout` ordinary pauses end the stream.
const SENDER_TIMEOUT_MS_MIN: i64 = 15_000;

/// Looks at the source, and returns what its tables are like.
pub(super) async fn check(config: &source::Config, state: Option<&source::State>) -> (Vec<Check>, Tables) {
    let mut checks = Checks::of("source");
    let client = match postgres::connect(&config.postgres, "doctor").await {
        Ok(client) => client,
        Err(error) => {
            checks.failed("connection", &error);
            return (checks.list, Tables::new());
        }
    };
    checks.good("connection", config.postgres.display());
    let looked = async {
        server(&mut checks, &client, config).await?;
        clock::check(&mut checks, &client).await?;
        role(&mut checks, &client, config).await?;
        slot::check(&mut checks, config, state).await?;
        failover::check(&mut checks, &client, config).await?;
        let (names, faults) = source::list(&client, config).await?;
        for fault in faults {
            checks.fault("source.tables", fault, "correct source.tables");
        }
        let mut tables = catalog::read(&client, &names).await?;
        for name in &names {
            table(&mut checks, config, name, tables.get_mut(name));
        }
        publication(&mut checks, &client, config, &tables).await?;
        carry::check(&mut checks, &client, config, &tables).await?;
        Ok::<_, Error>(shown(&mut checks, config, tables))
    };
    let tables = match looked.await {
        Ok(tables) => tables,
        Err(error) => {
            checks.failed("catalog", &error);
            Tables::new()
        }
    };
    (checks.list, tables)
}

/// The tables with the columns that are published: what is hidden need not be in the target.
fn shown(checks: &mut Checks, config: &source::Config, mut tables: Tables) -> Tables {
    for named in config.keys.keys().filter(|name| !tables.contains_key(name)) {
        let found = "is the key of a table that source.tables does not publish";
        checks.fault(format!("source.keys.\"{named}\""), found, "correct the name, or take the key out");
    }
    for rule in config.columns.keys().filter(|name| !tables.contains_key(name)) {
        let found = "is about a table that source.tables does not publish";
        checks.fault(format!("source.columns.\"{rule}\""), found, "correct the name, or take the rule out");
    }
    for (name, table) in &mut tables {
        if let Some(fault) = config.rule_fault(name, &table.columns, &table.key) {
            checks.fault(format!("table {name}"), fault, "correct its rule in source.columns");
        }
        table.columns.retain(|column| config.publishes(name, column));
    }
    tables
}

async fn server(checks: &mut Checks, client: &Client, config: &source::Config) -> Result<(), Error> {
    const QUERY: &str = "
        SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
               current_setting('wal_level'),
               current_setting('max_replication_slots')::int8,
               (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> $1),
               current_setting('max_wal_senders')::int8, (SELECT count(*) FROM pg_stat_replication),
               (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'),
               current_setting('server_encoding')";
    let row = client.query_one(QUERY, &[&config.slot]).await;
    let row = row.map_err(|cause| Error::statement("read the server's settings", cause))?;
    let (version, number): (&str, i32) = (row.get(0), row.get(1));
    checks.expect(number >= VERSION_MIN, "version", version, "upgrade PostgreSQL to 14 or later");
    let is_standby: bool = row.get(2);
    let remedy = "point [source] url at the primary: on a standby snapshots cannot be told apart from the stream";
    checks.expect(!is_standby, "role of the server", if is_standby { "standby" } else { "primary" }, remedy);
    let level: &str = row.get(3);
    checks.expect(
        level == "logical",
        "wal_level",
        level,
        "ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL",
    );
    let (slots_max, slots): (i64, i64) = (row.get(4), row.get(5));
    let remedy = "drop slots that nobody reads (pg_replication_slots, active = false), or raise max_replication_slots and restart";
    let found = format!("{slots} of {slots_max} in use by others");
    if slots + 1 == slots_max {
        checks.warn("replication slots", format!("{found}, none to spare"), remedy);
    } else {
        checks.expect(slots < slots_max, "replication slots", found, remedy);
    }
    let (senders_max, senders): (i64, i64) = (row.get(6), row.get(7));
    let remedy = "raise max_wal_senders and restart: the source holds one, its first start and verify one more";
    checks.expect(senders + 1 < senders_max, "walsenders", format!("{senders} of {senders_max} in use"), remedy);
    sender_timeout(checks, row.get(8));
    if row.get::<_, &str>(9) == "SQL_ASCII" {
        let remedy = "mend what is not UTF-8 before the source meets it and stops there; a database made anew with ENCODING UTF8 keeps such bytes out";
        checks.warn("encoding of the database", "SQL_ASCII: it takes any bytes, and events hold UTF-8 alone", remedy);
    }
    Ok(())
}

/// `wal_sender_timeout` in milliseconds: after how long a silence the server gives our connection up.
fn sender_timeout(checks: &mut Checks, limit_ms: i64) {
    let what = "wal_sender_timeout";
    match limit_ms {
        0 => checks.warn(
            what,
            "off",
            "set it to 60s: else a source that died without a word keeps its slot until TCP gives up",
        ),
        ms if ms < SENDER_TIMEOUT_MS_MIN => checks.warn(
            what,
            format!("{ms} ms"),
            "set it to 60s: the source speaks every 5 s, and a short pause of network or machine would cut it off",
        ),
        ms => checks.good(what, format!("{} s", ms / 1000)),
    }
}

async fn role(checks: &mut Checks, client: &Client, config: &source::Config) -> Result<(), Error> {
    const QUERY: &str = "
        SELECT r.rolreplication OR r.rolsuper OR EXISTS (
                   SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication' AND pg_has_role(g.oid, 'MEMBER')),
               r.rolsuper
        FROM pg_roles r WHERE r.rolname = current_user";
    let row =
        client.query_one(QUERY, &[]).await.map_err(|cause| Error::statement("read the rights of our role", cause))?;
    let user = &config.postgres.user;
    let may: bool = row.get(0);
    let remedy = format!("ALTER ROLE {} REPLICATION (on RDS: GRANT rds_replication TO it)", quote::identifier(user));
    checks.expect(may, "right to replicate", format!("{user} {}", if may { "has it" } else { "lacks it" }), remedy);
    match Replication::connect(&config.postgres).await {
        Ok(mut replication) => match replication.identify().await {
            Ok(system) => checks
                .good("replication connection", format!("system {}, timeline {}", system.system_id, system.timeline)),
            Err(error) => checks.failed("replication connection", &error),
        },
        Err(error) => checks.failed("replication connection", &error),
    }
    Ok(())
}

fn table(checks: &mut Checks, config: &source::Config, name: &TableName, table: Option<&mut Table>) {
    let what = format!("table {name}");
    let user = quote::identifier(&config.postgres.user);
    let sql = quote::table(name);
    let Some(table) = table else {
        return checks.fault(what, "not there", "correct source.tables: names are taken as they stand, case included");
    };
    if !matches!(table.kind.as_str(), "r" | "p") {
        return checks.fault(what, "no table", "take it out of source.tables: only tables are replicated");
    }
    if table.persistence != "p" {
        return checks.fault(what, "unlogged or temporary", format!("ALTER TABLE {sql} SET LOGGED"));
    }
    if !table.may("SELECT") {
        return checks.fault(what, "may not be read", format!("GRANT SELECT ON {sql} TO {user}"));
    }
    if let Some(named) = config.keys.get(name) {
        return named_key(checks, what, &sql, named, table);
    }
    if table.key.is_empty() {
        let (found, remedy) = match table.replica_identity.as_str() {
            "n" => {
                ("replica identity NOTHING", format!("ALTER TABLE {sql} REPLICA IDENTITY DEFAULT, with a primary key"))
            }
            _ => (
                "no primary key that is not deferrable",
                format!(
                    "ALTER TABLE {sql} ADD PRIMARY KEY (…), or name a unique index: ALTER TABLE {sql} REPLICA IDENTITY USING INDEX …; or, if its rows can be told apart and no index says so, ALTER TABLE {sql} REPLICA IDENTITY FULL and name the columns in source.keys"
                ),
            ),
        };
        return checks.fault(what, found, remedy);
    }
    checks.good(what, format!("key {}", table.key.join(", ")));
}

/// A key that the configuration names takes the place of one that the catalog lacks. What the server does not enforce of it
/// is told.
fn named_key(checks: &mut Checks, what: String, sql: &str, named: &[String], table: &mut Table) {
    let unknown: Vec<&str> = named.iter().filter(|name| !table.columns.contains(name)).map(String::as_str).collect();
    if !unknown.is_empty() {
        let found = format!("source.keys names {}, which it does not have", unknown.join(", "));
        return checks.fault(what, found, "correct the name");
    }
    let key = named.join(", ");
    if table.is_own_key(named) {
        return checks.good(what, format!("key {key}, by its own index: source.keys need not name it"));
    }
    if table.replica_identity != "f" {
        let remedy = format!("ALTER TABLE {sql} REPLICA IDENTITY FULL, or take it out of source.keys");
        return checks.fault(what, format!("key {key} by source.keys, without REPLICA IDENTITY FULL"), remedy);
    }
    table.key = named.to_vec();
    let quoted = named.iter().map(|name| quote::identifier(name)).collect::<Vec<_>>();
    let nullable: Vec<&String> = named.iter().filter(|name| table.nullable.contains(name)).collect();
    if !nullable.is_empty() {
        let set = nullable.iter().map(|name| format!("ALTER {} SET NOT NULL", quote::identifier(name)));
        let remedy = format!("ALTER TABLE {sql} {}", set.collect::<Vec<_>>().join(", "));
        checks.warn(what, format!("key {key} by source.keys, and a NULL in it would stop the source"), remedy);
    } else if !table.is_unique_on(named) {
        let remedy =
            format!("CREATE UNIQUE INDEX CONCURRENTLY ON {sql} ({}), if the table can bear it", quoted.join(", "));
        checks.warn(what, format!("key {key} by source.keys, and nothing but your word keeps it unique"), remedy);
    } else {
        let remedy = format!("ALTER TABLE {sql} REPLICA IDENTITY USING INDEX …, and take it out of source.keys");
        checks.warn(what, format!("key {key} by source.keys, and a unique index stands on it"), remedy);
    }
}

async fn publication(
    checks: &mut Checks,
    client: &Client,
    config: &source::Config,
    tables: &Tables,
) -> Result<(), Error> {
    let failed = |cause| Error::statement(format!("read the publication {}", config.publication), cause);
    let query = "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = $1";
    let what = format!("publication {}", config.publication);
    let name = quote::identifier(&config.publication);
    let Some(row) = client.query_opt(query, &[&config.publication]).await.map_err(failed)? else {
        return missing_publication(checks, client, config, tables, what).await;
    };
    let left_out: Vec<&str> = ["insert", "update", "delete", "truncate"]
        .into_iter()
        .enumerate()
        .filter_map(|(index, operation)| (!row.get::<_, bool>(index)).then_some(operation))
        .collect();
    let remedy = format!("ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')");
    checks.expect(
        left_out.is_empty(),
        what.clone(),
        if left_out.is_empty() { "all operations".to_owned() } else { format!("leaves out {}", left_out.join(", ")) },
        remedy,
    );
    // Lists of columns and row filters came with 15.
    let query = "SELECT schemaname::text, tablename::text,
                        ARRAY(SELECT jsonb_array_elements_text(coalesce(nullif(to_jsonb(t) -> 'attnames', 'null'), '[]'))),
                        to_jsonb(t) ->> 'rowfilter'
                 FROM pg_publication_tables t WHERE pubname = $1";
    let rows = client.query(query, &[&config.publication]).await.map_err(failed)?;
    let published: BTreeMap<TableName, (Vec<String>, Option<String>)> = rows
        .iter()
        .map(|row| (TableName::new(row.get::<_, String>(0), row.get::<_, String>(1)), (row.get(2), row.get(3))))
        .collect();
    for (table, like) in tables.iter().filter(|(_, like)| like.is_replicated()) {
        let what = format!("{what}, {table}");
        let Some((columns, filter)) = published.get(table) else {
            if config.create {
                checks.expect(
                    like.is_owned,
                    what,
                    "not in it yet: the source will add it",
                    owner_remedy(config, table),
                );
            } else {
                // A partitioned table stands there under its own name only when it is published as a whole.
                let root = format!("; then SET (publish_via_partition_root = true), for {table} is partitioned");
                let root = if like.kind == "p" { root.as_str() } else { "" };
                let remedy = format!("ALTER PUBLICATION {name} ADD TABLE {}{root}", quote::table(table));
                checks.fault(what, "not in it", remedy);
            }
            continue;
        };
        let hidden: Vec<&str> = like
            .columns
            .iter()
            .filter(|column| !columns.is_empty() && !columns.contains(column))
            .map(String::as_str)
            .collect();
        if let Some(key) = hidden.iter().find(|column| like.key.iter().any(|key| key == *column)) {
            let remedy =
                format!("put {key} into the publication's list of columns: a row cannot be told without its key");
            checks.fault(what, format!("leaves out the key column {key}"), remedy);
        } else if !hidden.is_empty() {
            checks.warn(
                what,
                format!("leaves out {}", hidden.join(", ")),
                "intended? These columns will not be in the target",
            );
        } else if filter.is_some() {
            checks.warn(
                what,
                "has a row filter",
                "intended? An update that leaves the filter becomes a delete in the target",
            );
        } else {
            checks.good(what, "all columns, all rows");
        }
    }
    Ok(())
}

async fn missing_publication(
    checks: &mut Checks,
    client: &Client,
    config: &source::Config,
    tables: &Tables,
    what: String,
) -> Result<(), Error> {
    if !config.create {
        let list = tables.keys().map(quote::table).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "CREATE PUBLICATION {} FOR TABLE {list} WITH (publish_via_partition_root = true), or set source.create = true",
            quote::identifier(&config.publication)
        );
        checks.fault(what, "missing", sql);
        return Ok(());
    }
    let row = client.query_one("SELECT has_database_privilege(current_database(), 'CREATE')", &[]).await;
    let may: bool = row.map_err(|cause| Error::statement("read the rights on the database", cause))?.get(0);
    let remedy = format!(
        "GRANT CREATE ON DATABASE {} TO {}, or make the publication by hand",
        quote::identifier(&config.postgres.database),
        quote::identifier(&config.postgres.user)
    );
    checks.expect(may, what.clone(), "not there yet: the source will make it", remedy);
    for (table, _) in tables.iter().filter(|(_, like)| like.is_replicated() && !like.is_owned) {
        checks.fault(
            format!("{what}, {table}"),
            "only an owner of the table may publish it",
            owner_remedy(config, table),
        );
    }
    Ok(())
}

fn owner_remedy(config: &source::Config, table: &TableName) -> String {
    format!(
        "make {} a member of the owner of {table}, or let the owner make the publication",
        quote::identifier(&config.postgres.user)
    )
}
