//! What must be there before the source can start: looked at whole, then made, or named with the SQL that makes it.
//!
//! Nothing is touched before everything has been looked at, and every fault is told at once.

use std::collections::{BTreeMap, HashMap};

use postgres::tokio_postgres::{Client, Row};
use postgres::{Error, quote};
use schemas::{TableName, topic};

use crate::columns::{self, Cut, Ruled};
use crate::config::{Config, Topics};
use crate::keeper::{self, Unusable};
use crate::keys::{self, Named};
use crate::listing::Listed;
use crate::relation::{Details, NoKey, Relation};
use crate::{catalog, listing, pgoutput, published};

/// A configured table as the server has it.
#[derive(Debug)]
pub struct Found {
    /// Its OID.
    pub oid: u32,
    /// How it is, or would be, published.
    pub relation: Relation,
    /// How many rows the server thinks it has.
    pub rows_estimated: u64,
    /// Its rule in `source.columns`, if it has one.
    pub ruled: Option<Ruled>,
    /// Its key in `source.keys`, if it goes by that.
    pub named: Option<Vec<String>>,
}

/// What the server has of what is needed.
#[derive(Debug, Default)]
pub struct Survey {
    /// The server's version as a number, 150018.
    pub version: u32,
    /// Whether the server is in recovery: then nothing else of this counts.
    pub standby: bool,
    /// What `source.tables` comes to here: the names that are to be published, whether or not they can be.
    pub listed: Vec<Listed>,
    /// Those of them that can be.
    pub tables: Vec<Found>,
    /// Names that are configured and that no table has.
    pub missing: Vec<TableName>,
    /// What a person must mend, each with its remedy.
    pub faults: Vec<String>,
    /// What a person should know of, and nothing has to wait for.
    pub remarks: Vec<String>,
    /// What the publication lacks, and the statement that makes or completes it.
    pub publication: Option<Lacking>,
    /// Our slot, if it is there.
    pub slot: Option<keeper::Slot>,
    /// Why it is none that we could read from.
    pub unusable: Option<Unusable>,
    /// `synchronized_standby_slots`: the standbys that must have what we are sent. From 17 on.
    pub synchronized: String,
}

/// What a publication lacks.
#[derive(Clone, Debug)]
pub struct Lacking {
    /// Whether it is there at all.
    pub is_there: bool,
    /// Tables of ours that are not in it.
    pub tables: Vec<TableName>,
    /// The statement that makes or completes it.
    pub statement: String,
}

impl Lacking {
    /// What to tell a person who has to run the statement himself.
    pub fn fault(&self, publication: &str) -> String {
        let what = if self.is_there {
            let names = self.tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("the publication {publication} lacks {names}")
        } else {
            format!("the publication {publication} is missing")
        };
        format!("{what}: set source.create = true, or run as the owner of the tables\n      {};", self.statement)
    }
}

/// What to tell of a configured table that is not there.
pub fn is_missing(table: &TableName) -> String {
    format!("the table {table} does not exist: correct source.tables (names are taken as they stand, case included)")
}

/// Looks at everything.
pub async fn survey(client: &Client, config: &Config) -> Result<Survey, Error> {
    let mut survey = Survey::default();
    server(client, config, &mut survey).await?;
    if survey.standby {
        return Ok(survey);
    }
    let publication = publication(client, config, survey.version).await?;
    list(client, config, &mut survey).await?;
    for listed in survey.listed.clone() {
        look_at(client, config, &listed, publication.is_some(), &mut survey).await?;
    }
    judge_publication(config, publication, &mut survey);
    Ok(survey)
}

/// Up to where the server's WAL is safe.
pub async fn wal_end(client: &Client) -> Result<schemas::Lsn, Error> {
    let row = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await;
    let row = row.map_err(|cause| Error::statement("ask for the end of the WAL", cause))?;
    Ok(row.get::<_, String>(0).parse().unwrap_or_default())
}

async fn server(client: &Client, config: &Config, survey: &mut Survey) -> Result<(), Error> {
    let query = "SELECT current_setting('server_version_num')::int4, current_setting('wal_level'), pg_is_in_recovery(),
                        (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)
                        OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'usage')),
                        current_setting('max_replication_slots')::int8 - (SELECT count(*) FROM pg_replication_slots),
                        current_user::text, coalesce(current_setting('synchronized_standby_slots', true), '')";
    let row = client.query_one(query, &[]).await.map_err(|cause| Error::statement("look at the server", cause))?;
    let look = keeper::look(client, &config.slot).await?;
    survey.unusable = look.unusable();
    survey.slot = look.slot;
    let slot_is_there = survey.slot.is_some();
    survey.standby = row.get(2);
    survey.synchronized = row.get(6);
    survey.version = row.get::<_, i32>(0).unsigned_abs();
    let survey_version = survey.version;
    let mut fault = |is: bool, text: String| {
        if is {
            survey.faults.push(text)
        }
    };
    fault(survey.version < 140_000, "the server is older than PostgreSQL 14: upgrade it".into());
    fault(
        config.failover && survey_version < 170_000,
        "source.failover needs PostgreSQL 17: set it to false; before 17 it is the cluster's manager that keeps slots through a failover (Patroni's permanent slots, the extension pg_failover_slots)".into(),
    );
    let level: String = row.get(1);
    fault(
        level != "logical",
        format!("wal_level is {level}: ALTER SYSTEM SET wal_level = 'logical' and restart the server"),
    );
    let (may, user): (bool, String) = (row.get(3), row.get(5));
    fault(!may, format!("the role {user} may not replicate: ALTER ROLE {} REPLICATION", quote::identifier(&user)));
    fault(
        row.get::<_, i64>(4) <= 0 && !slot_is_there,
        "no replication slot is free: drop one that nobody needs (SELECT * FROM pg_replication_slots), or raise max_replication_slots and restart the server".into(),
    );
    fault(
        !slot_is_there && !config.create,
        format!(
            "the replication slot {slot} is missing: set source.create = true, or run\n      SELECT pg_create_logical_replication_slot({}, 'pgoutput');",
            quote::literal(&config.slot),
            slot = config.slot
        ),
    );
    Ok(())
}

/// Holds `source.tables` against the catalog.
async fn list(client: &Client, config: &Config, survey: &mut Survey) -> Result<(), Error> {
    let candidates = catalog::candidates(client).await?;
    let (listed, faults) = listing::resolve(&config.tables, &candidates);
    for idle in config.tables.excluding() {
        if !candidates.iter().any(|candidate| idle.matches(&candidate.name)) {
            survey.remarks.push(format!(
                "\"{idle}\" in source.tables excludes nothing that is there: is it spelt as it was meant?"
            ));
        }
    }
    survey.listed = listed;
    survey.faults.extend(faults);
    Ok(())
}

async fn look_at(
    client: &Client,
    config: &Config,
    listed: &Listed,
    published: bool,
    survey: &mut Survey,
) -> Result<(), Error> {
    let table = &listed.name;
    let query = "SELECT c.oid, c.relkind::text, c.relpersistence::text, greatest(c.reltuples, 0)::int8, has_table_privilege(c.oid, 'SELECT')
                 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";
    let asked = |cause| Error::statement(format!("look at the table {table}"), cause);
    let Some(row) = client.query_opt(query, &[&table.schema, &table.table]).await.map_err(asked)? else {
        survey.missing.push(table.clone());
        return Ok(());
    };
    let (oid, kind, persistence): (u32, String, String) = (row.get(0), row.get(1), row.get(2));
    if !matches!(kind.as_str(), "r" | "p") || persistence != "p" {
        let what = if persistence == "p" { "not a table" } else { "unlogged or temporary" };
        survey.faults.push(format!("{table} is {what}: logical replication cannot carry it, {}", listed.way_out()));
        return Ok(());
    }
    // Without a copy too: what the stream leaves out of a moved row is read from the table.
    if !row.get::<_, bool>(4) {
        survey.faults.push(format!(
            "we may not read {table}: GRANT SELECT ON {} TO {}",
            quote::table(table),
            quote::identifier(&config.postgres.user)
        ));
    }
    let (described, mut details) = published_form(client, config, survey.version, oid, published).await?;
    let named = match named_key(client, config, table, &described, &details).await? {
        Ok(named) => named,
        Err(fault) => {
            survey.faults.push(format!("cannot publish {table}: {fault}"));
            return Ok(());
        }
    };
    named.iter().for_each(|named| details.go_by(named));
    let hidden = details.primary_key.iter().find(|key| !described.columns.iter().any(|column| column.name == **key));
    if let Some(hidden) = hidden {
        let no_key = NoKey::Unpublished(hidden.clone());
        survey.faults.push(format!("cannot publish {table}: {no_key}, or {}", listed.way_out()));
        return Ok(());
    }
    let (ruled, cut) = match by_rule(client, config, table, &described, &details).await? {
        Ok(ruled) => ruled.unzip(),
        Err(fault) => {
            survey.faults.push(format!("cannot publish {table}: {fault}"));
            return Ok(());
        }
    };
    let left = cut.as_ref().map_or(&described, |cut| &cut.relation);
    match Relation::new(left, &details, &config.name, &config.postgres.database) {
        Ok(relation) => {
            let rows_estimated = row.get::<_, i64>(3).unsigned_abs();
            survey.tables.push(Found { oid, relation, rows_estimated, ruled, named });
        }
        Err(no_key) => survey.faults.push(format!("cannot publish {table}: {no_key}, or {}", listed.way_out())),
    }
    Ok(())
}

/// The key that is named for the table, if it is to be gone by; or why it does not fit.
async fn named_key(
    client: &Client,
    config: &Config,
    table: &TableName,
    described: &pgoutput::Relation,
    details: &Details,
) -> Result<Result<Option<Vec<String>>, keys::Fault>, Error> {
    let Some(named) = config.keys.get(table) else { return Ok(Ok(None)) };
    let columns = catalog::columns(client, described.oid).await?;
    let deferrable = catalog::deferrable_keys(client, described.oid).await?;
    let own = &details.primary_key;
    let facts = keys::Facts { identity: described.identity, columns: &columns, own, deferrable: &deferrable };
    Ok(keys::check(named, &facts).map(|is_needed| is_needed.then(|| named.clone())))
}

/// The table's rule and what it leaves, if it has one; or why it does not fit.
async fn by_rule(
    client: &Client,
    config: &Config,
    table: &TableName,
    described: &pgoutput::Relation,
    details: &Details,
) -> Result<Result<Option<(Ruled, Cut)>, columns::Fault>, Error> {
    let Some(rule) = config.columns.get(table) else { return Ok(Ok(None)) };
    let columns = catalog::columns(client, described.oid).await?;
    let cut = rule.check(&columns, &details.primary_key).and_then(|()| rule.cut(described, &columns));
    Ok(cut.map(|cut| Some((Ruled { rule: rule.clone(), columns }, cut))))
}

/// The table as it is published; where it is not yet, as it will be once it is added.
async fn published_form(
    client: &Client,
    config: &Config,
    version: u32,
    oid: u32,
    published: bool,
) -> Result<(pgoutput::Relation, Details), Error> {
    let mut described = catalog::describe(client, version, oid, &config.publication).await?;
    if described.columns.is_empty() || !published {
        described = catalog::describe(client, 140_000, oid, "-").await?;
    }
    let details = catalog::details(client, &described, &Named::default()).await?;
    Ok((described, details))
}

/// The publication's row, and its tables.
async fn publication(client: &Client, config: &Config, version: u32) -> Result<Option<(Row, Vec<TableName>)>, Error> {
    let asked = |cause| Error::statement(format!("look at the publication {}", config.publication), cause);
    let query = "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = $1";
    let Some(row) = client.query_opt(query, &[&config.publication]).await.map_err(asked)? else { return Ok(None) };
    let tables = client.query(&published::tables(version), &[&None::<Vec<u32>>, &config.publication]).await;
    let tables = tables.map_err(asked)?;
    let name = |row: &Row| TableName::new(row.get::<_, String>(1), row.get::<_, String>(2));
    Ok(Some((row, tables.iter().map(name).collect())))
}

fn judge_publication(config: &Config, publication: Option<(Row, Vec<TableName>)>, survey: &mut Survey) {
    let name = quote::identifier(&config.publication);
    let (is_there, published) = match publication {
        None => (false, Vec::new()),
        Some((row, tables)) => {
            for (at, act) in ["insert", "update", "delete", "truncate"].into_iter().enumerate() {
                if !row.get::<_, bool>(at) {
                    survey.faults.push(format!(
                        "the publication {} leaves out {act}: ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')",
                        config.publication
                    ));
                }
            }
            (true, tables)
        }
    };
    let lacks = |table: &&TableName| !published.contains(table) && !survey.missing.contains(table);
    let tables: Vec<TableName> = survey.listed.iter().map(|listed| &listed.name).filter(lacks).cloned().collect();
    if tables.is_empty() && (is_there || survey.listed.is_empty()) {
        return;
    }
    let list = members(survey, &tables);
    let statement = if is_there {
        format!("ALTER PUBLICATION {name} ADD TABLE {list}")
    } else {
        format!("CREATE PUBLICATION {name} FOR TABLE {list} WITH (publish_via_partition_root = true)")
    };
    survey.publication = Some(Lacking { is_there, tables, statement });
}

/// Makes or completes the publication.
pub async fn complete(client: &Client, publication: &str, lacking: &Lacking) -> Result<(), Error> {
    tracing::info!(publication, "making or completing the publication");
    let made = client.batch_execute(&lacking.statement).await;
    made.map_err(|cause| Error::statement("make the publication", cause))
}

/// Tables as a publication of ours lists them.
fn members(survey: &Survey, tables: &[TableName]) -> String {
    let member = |table: &TableName| format!("{}{}", quote::table(table), column_list(survey, table));
    tables.iter().map(member).collect::<Vec<_>>().join(", ")
}

/// The columns of a table as a publication of ours lists them: where a rule says which are to be published, others need not
/// even leave the server. Not under identity FULL, which wants all columns. A rule that says which are *not* gets no list:
/// a column that comes later would be missing in it.
fn column_list(survey: &Survey, table: &TableName) -> String {
    let found = survey.tables.iter().find(|found| found.relation.name == *table);
    let included = found.filter(|found| found.ruled.as_ref().is_some_and(|ruled| ruled.rule.includes()));
    match included.filter(|found| survey.version >= 150_000 && found.relation.identity != 'f') {
        Some(found) => {
            let names = found.relation.columns.iter().map(|column| quote::identifier(&column.name));
            format!(" ({})", names.collect::<Vec<_>>().join(", "))
        }
        None => String::new(),
    }
}

/// The topic of each table. Kafka takes no two names that differ only in dots and underscores.
pub fn topics_of(prefix: &str, topics: &Topics, tables: &[Found]) -> Result<BTreeMap<u32, String>, Vec<String>> {
    let mut found = BTreeMap::new();
    let mut faults = Vec::new();
    let mut alike: HashMap<String, (String, &TableName)> = HashMap::new();
    let is_routed = |table: &TableName| topics.route_of(table).is_some();
    for table in tables {
        let name = &table.relation.name;
        let topic = topics.topic_of(prefix, name);
        if !topic::is_valid(&topic) {
            faults.push(format!(
                "the topic of {name} would be called {topic}, which Kafka does not take: at most 249 characters"
            ));
        }
        if name.schema == "dlq" && !is_routed(name) {
            faults.push(format!("the topic of {name} would be called {topic}, which is kept for parked events: move the table to another schema, or route it to another topic"));
        }
        match alike.insert(topic.replace('.', "_"), (topic.clone(), name)) {
            Some((other, shared)) if other == topic && is_routed(name) && is_routed(shared) => {}
            Some((_, other)) => faults.push(format!("the topics of {name} and {other} would be called alike, or differ in dots and underscores alone, which Kafka does not take: route one of them to another topic")),
            None => {}
        }
        found.insert(table.oid, topic);
    }
    faults.extend(route_faults(topics, tables));
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

/// A table goes to one topic, and a route that nothing takes is a mistake.
fn route_faults(topics: &Topics, tables: &[Found]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, selection) in &topics.routes {
        let idle = selection.taking().filter(|item| !tables.iter().any(|found| item.matches(&found.relation.name)));
        faults.extend(idle.map(|item| {
            format!("\"{item}\" in source.topics.routes.{name} matches no table that is published: correct it, or take it out")
        }));
    }
    for found in tables {
        let table = &found.relation.name;
        let taken = topics.routes.iter().filter(|(_, selection)| selection.chooses(table));
        let names: Vec<&str> = taken.map(|(name, _)| name.as_str()).collect();
        if names.len() > 1 {
            faults.push(format!(
                "{table} is routed to {}: let one of them exclude it by \"!{table}\"",
                names.join(" and to ")
            ));
        }
    }
    faults
}
