//! What the source asks of PostgreSQL's catalog. I/O only: what follows from the answers is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use postgres::tokio_postgres::{Client, GenericClient, Row, SimpleQueryMessage, Statement};
use postgres::{Ask, Error, Prepared, quote};
use schemas::key::Canonical;
use schemas::state::Imprint;
use schemas::write::Cell;
use schemas::{Lsn, TableName};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::feed::{Catalog, Reselect, Reselected};
use crate::keys::Named;
use crate::listing::Candidate;
use crate::pgoutput;
use crate::published;
use crate::relation::{Details, Relation};
use crate::snapshot;
use crate::sorted::{Sorted, Sorting};
use crate::visibility::Snapshot;
use crate::watch::Seen;
use crate::watch::look::{Question, look};

/// How often a table is looked up again that has another name whenever it is asked about.
const RENAMED_MAX: usize = 3;
/// How many touched keys are compared in one statement: it is parsed as deep as it has rows.
const TOUCHED_MAX: usize = 500;

/// Whether a column `a` of a table `c` is flagged as a part of the key by the replica identity.
pub const IS_KEY: &str = "
    (c.relreplident = 'f' OR EXISTS (
        SELECT FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indimmediate AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))";

/// How a relation is published: the columns behind its name and identity.
const DESCRIBE: &str = "
    SELECT n.nspname::text, c.relname::text, c.relreplident::text, a.attname::text, a.atttypid, a.atttypmod, ";
const DESCRIBED: &str = "
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped";

/// From 15 on the publication says which columns it carries.
const PUBLISHED_14: &str = " WHERE c.oid = $1 AND a.attgenerated = '' AND $2 <> ''";

/// The types of a relation's columns, by the OIDs that the stream gave: they stand for what was, whatever columns are called
/// by now. Domains are followed to their base.
const TYPES: &str = "
    SELECT t.oid, b.oid, b.typtype = 'e'
    FROM pg_type t
    CROSS JOIN LATERAL (
        WITH RECURSIVE base AS (
            SELECT t.oid, t.typtype, t.typbasetype
            UNION ALL
            SELECT b.oid, b.typtype, b.typbasetype FROM base JOIN pg_type b ON base.typtype = 'd' AND b.oid = base.typbasetype)
        SELECT oid, typtype FROM base WHERE typtype <> 'd') b
    WHERE t.oid = ANY ($1)";

/// Columns whose collation calls texts equal that are not the same.
const NONDETERMINISTIC: &str = "
    SELECT a.attname::text FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND NOT l.collisdeterministic";

/// The columns of the index that names a row, in the index's own order: the primary key's, unless another is the identity.
/// With the operators and the family of its operator class, and with its collation, either of which can be another than the
/// column's.
const KEY_ORDER: &str = "
    SELECT a.attname::text, a.attnum, format_type(b.oid, -1),
           ARRAY(SELECT quote_ident(n.nspname) || '.' || o.oprname
                 FROM pg_opclass x
                 JOIN pg_amop s ON s.amopfamily = x.opcfamily AND s.amoplefttype = x.opcintype AND s.amoprighttype = x.opcintype
                 JOIN pg_operator o ON o.oid = s.amopopr
                 JOIN pg_namespace n ON n.oid = o.oprnamespace
                 WHERE x.oid = k.class AND s.amopstrategy BETWEEN 1 AND 5 ORDER BY s.amopstrategy),
           (SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname)
            FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = k.collated),
           (SELECT quote_ident(n.nspname) || '.' || quote_ident(f.opfname)
                   || CASE t.typtype WHEN 'p' THEN '(' || format_type(b.oid, -1) || ')' ELSE '' END
            FROM pg_opclass x JOIN pg_opfamily f ON f.oid = x.opcfamily JOIN pg_namespace n ON n.oid = f.opfnamespace
            JOIN pg_type t ON t.oid = x.opcintype WHERE x.oid = k.class)
    FROM pg_class c
    JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate
     AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
    CROSS JOIN LATERAL unnest((i.indkey::int2[])[0:i.indnkeyatts - 1], i.indclass::oid[], i.indcollation::oid[])
        WITH ORDINALITY AS k (attnum, class, collated, place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
    CROSS JOIN LATERAL (
        WITH RECURSIVE base AS (
            SELECT t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
            UNION ALL
            SELECT t.oid, t.typtype, t.typbasetype FROM base JOIN pg_type t ON base.typtype = 'd' AND t.oid = base.typbasetype)
        SELECT oid FROM base WHERE typtype <> 'd') b
    WHERE c.oid = $1 ORDER BY k.place";

/// Everything that a pattern for tables may mean: temporary and PostgreSQL's own left out.
const CANDIDATES: &str = "
    SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
           ARRAY(SELECT an.nspname::text FROM pg_partition_ancestors(c.oid) a (oid)
                 JOIN pg_class ac ON ac.oid = a.oid::oid JOIN pg_namespace an ON an.oid = ac.relnamespace
                 WHERE ac.oid <> c.oid ORDER BY ac.oid),
           ARRAY(SELECT ac.relname::text FROM pg_partition_ancestors(c.oid) a (oid)
                 JOIN pg_class ac ON ac.oid = a.oid::oid WHERE ac.oid <> c.oid ORDER BY ac.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'";

/// Everything that a pattern for tables may mean.
pub async fn candidates(client: &impl GenericClient) -> Result<Vec<Candidate>, Error> {
    let rows = client.query(CANDIDATES, &[]).await;
    let rows = rows.map_err(|cause| Error::statement("look for tables that a pattern means", cause))?;
    let candidate = |row: &Row| {
        let (schemas, tables): (Vec<String>, Vec<String>) = (row.get(4), row.get(5));
        Candidate {
            name: TableName::new(row.get::<_, String>(0), row.get::<_, String>(1)),
            kind: row.get(2),
            persistence: row.get(3),
            above: schemas.into_iter().zip(tables).map(|(schema, table)| TableName::new(schema, table)).collect(),
        }
    };
    Ok(rows.iter().map(candidate).collect())
}

/// All columns of a table, whether published or not.
pub async fn columns(client: &impl GenericClient, oid: u32) -> Result<BTreeSet<String>, Error> {
    let query = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped";
    let rows =
        client.query(query, &[&oid]).await.map_err(|cause| Error::statement("look up a table's columns", cause))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// A table as the publication would carry it.
pub async fn describe(
    client: &impl GenericClient,
    version: u32,
    oid: u32,
    publication: &str,
) -> Result<pgoutput::Relation, Error> {
    let of = if version >= 150_000 { published::columns(version) } else { PUBLISHED_14.to_owned() };
    let query = format!("{DESCRIBE}{IS_KEY}{DESCRIBED}{of} ORDER BY a.attnum");
    let rows = client
        .query(&query, &[&oid, &publication])
        .await
        .map_err(|cause| Error::statement("describe a table", cause))?;
    let mut relation =
        pgoutput::Relation { oid, schema: String::new(), table: String::new(), identity: 'n', columns: Vec::new() };
    for row in rows {
        (relation.schema, relation.table) = (row.get(0), row.get(1));
        relation.identity = row.get::<_, String>(2).chars().next().unwrap_or('n');
        let column =
            pgoutput::Column { name: row.get(3), type_oid: row.get(4), modifier: row.get(5), identity: row.get(6) };
        relation.columns.push(column);
    }
    Ok(relation)
}

/// What the server calls a table, as SQL writes it; `None` if it is gone.
pub async fn called(client: &impl Ask, oid: u32) -> Result<Option<String>, Error> {
    let query = "SELECT oid::regclass::text FROM pg_class WHERE oid = $1";
    let rows = client.ask(query, &[&oid]).await.map_err(|cause| Error::statement("look up a table's name", cause))?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// What the rows of a table are selected from: its own alone, unless they lie in partitions. `None` if it is gone.
pub async fn rows_of(client: &impl GenericClient, oid: u32) -> Result<Option<String>, Error> {
    let query = "SELECT CASE relkind WHEN 'p' THEN '' ELSE 'ONLY ' END || oid::regclass FROM pg_class WHERE oid = $1";
    let row = client.query_opt(query, &[&oid]).await.map_err(|cause| Error::statement("look up a table's name", cause));
    Ok(row?.map(|row| row.get(0)))
}

/// The rows of an answer, as texts.
pub fn texts(answer: &[SimpleQueryMessage]) -> impl Iterator<Item = Vec<String>> {
    answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|i| row.get(i).unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    })
}

/// The columns of the key in the order of its index, and how that sorts.
pub async fn key_order(client: &impl Ask, oid: u32) -> Result<(Vec<String>, Vec<Sorted>), Error> {
    let asked = |cause| Error::statement("look up a table's key", cause);
    let sorted = |row: Row| {
        let operators: Vec<String> = row.get(3);
        let operators = operators.try_into().map_err(|found: Vec<String>| Error::Protocol {
            operation: "look up a table's key".into(),
            what: format!("an index with the operators {}", found.join(" ")),
        })?;
        let (number, cast, collation, family) = (row.get(1), row.get(2), row.get(4), row.get(5));
        Ok((row.get(0), Sorted { number, cast, operators, family, collation }))
    };
    client.ask(KEY_ORDER, &[&oid]).await.map_err(asked)?.into_iter().map(sorted).collect()
}

/// The columns of each constraint that holds rows apart at commit alone.
pub async fn deferrable_keys(client: &impl GenericClient, oid: u32) -> Result<Vec<Vec<String>>, Error> {
    let query = "SELECT ARRAY(SELECT a.attname::text FROM unnest(k.conkey) n (number)
                              JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = n.number)
                 FROM pg_constraint k WHERE k.conrelid = $1 AND k.contype IN ('p', 'u') AND k.condeferrable";
    let rows = client.query(query, &[&oid]).await;
    let rows = rows.map_err(|cause| Error::statement("look up a table's deferrable constraints", cause))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// What the stream's description of a relation leaves out.
pub async fn details(client: &impl Ask, relation: &pgoutput::Relation, named: &Named) -> Result<Details, Error> {
    let asked =
        |cause| Error::statement(format!("look up the columns of {}.{}", relation.schema, relation.table), cause);
    let types: Vec<u32> = relation.columns.iter().map(|column| column.type_oid).collect();
    let modifiers: Vec<i32> = relation.columns.iter().map(|column| column.modifier).collect();
    let (primary_key, sorted) = key_order(client, relation.oid).await?;
    let mut details = Details { primary_key, sorted, ..Details::default() };
    if relation.identity == 'f'
        && let Some(named) = named.get(relation.oid)
    {
        details.go_by(named);
    }
    let blurred = client.ask(NONDETERMINISTIC, &[&relation.oid]).await.map_err(asked)?;
    let blurred: HashSet<String> = blurred.iter().map(|row| row.get(0)).collect();
    for row in client.ask(TYPES, &[&types]).await.map_err(asked)? {
        details.types.insert(row.get(0));
        let (oid, base, is_enum): (u32, u32, bool) = (row.get(0), row.get(1), row.get(2));
        let canonical = if is_enum { Some(Canonical::Same) } else { Canonical::of_type(base) };
        for column in relation.columns.iter().filter(|column| column.type_oid == oid) {
            if let Some(canonical) = canonical.filter(|_| !blurred.contains(&column.name)) {
                details.canonical.insert(column.name.clone(), canonical);
            }
        }
    }
    let query = "SELECT t.o, t.m, format_type(t.o, t.m) FROM unnest($1::oid[], $2::int4[]) AS t (o, m)";
    let rows = client.ask(query, &[&types, &modifiers]).await.map_err(asked)?;
    details.type_names = rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect::<HashMap<_, _>>();
    Ok(details)
}

/// What a plain snapshot of the server sees now.
pub async fn snapshot(client: &impl Ask) -> Result<Snapshot, Error> {
    let asked = |cause| Error::statement("take a snapshot", cause);
    let rows = client.ask("SELECT pg_current_snapshot()::text", &[]).await.map_err(asked)?;
    parse_snapshot(rows.first().map_or("", |row| row.get(0)))
}

/// Reads what `pg_current_snapshot()` printed.
pub fn parse_snapshot(text: &str) -> Result<Snapshot, Error> {
    text.parse().map_err(|_| Error::Protocol { operation: "take a snapshot".into(), what: format!("{text:?}") })
}

/// A prepared way to write logical messages of ours.
#[derive(Clone)]
pub struct Messages {
    client: Arc<Client>,
    statement: Statement,
    prefix: String,
}

impl Messages {
    /// Over `client`, whose transactions nobody else may leave open, with the prefix that the stream's loop listens to.
    pub async fn prepare(client: impl Into<Arc<Client>>, prefix: &str) -> Result<Messages, Error> {
        let client = client.into();
        // A marker must be in the WAL and no more: with the synchronous standby away it must not wait for that.
        let local = client.batch_execute("SET synchronous_commit = local").await;
        local.map_err(|cause| Error::statement("prepare logical messages", cause))?;
        let prepared = client.prepare("SELECT pg_logical_emit_message(true, $1, $2::text)").await;
        let statement = prepared.map_err(|cause| Error::statement("prepare logical messages", cause))?;
        Ok(Messages { client, statement, prefix: prefix.to_owned() })
    }

    /// What a plain snapshot sees now, asked over the same connection.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        snapshot(&*self.client).await
    }

    /// Writes one, in a transaction of its own. That is flushed at once; a message outside of any waits for somebody
    /// else's flush, which on an idle server may never come.
    pub async fn emit(&self, content: &str) -> Result<(), Error> {
        let emitted = self.client.execute(&self.statement, &[&self.prefix, &content]).await;
        emitted.map(drop).map_err(|cause| Error::statement("write a logical message", cause))
    }
}

/// The catalog for the stream's loop, which is no async code: it waits for each answer.
pub struct Blocking {
    /// Where to run.
    pub runtime: Handle,
    /// The connection.
    pub client: Prepared,
    /// The keys that are named for tables.
    pub named: Named,
    /// Ends waiting.
    pub stop: CancellationToken,
}

impl Catalog for Blocking {
    fn sees(&mut self, xid: u32) -> Result<bool, crate::Error> {
        let asked = self.stop.run_until_cancelled(snapshot(&self.client));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??.sees(xid))
    }

    fn details(&mut self, relation: &pgoutput::Relation) -> Result<Details, crate::Error> {
        let asked = self.stop.run_until_cancelled(details(&self.client, relation, &self.named));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??)
    }

    fn look(&mut self, publication: &str, oid: u32, imprint: Option<&Imprint>) -> Result<Seen, crate::Error> {
        let question = Question {
            publication,
            tables: &[(oid, imprint.cloned())].into(),
            names: &BTreeMap::new(),
            named: &self.named,
            // That can take seconds, and the stream would wait for it.
            asks_partitions: false,
        };
        let asked = self.stop.run_until_cancelled(look(&self.client, &question));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??)
    }

    fn are_keys(&mut self, oid: u32, ends: &[&[String]]) -> Result<bool, crate::Error> {
        // No index sorts by a named key, so nobody could say what lies between two of them.
        if self.named.get(oid).is_some() {
            return Ok(false);
        }
        let asked = self.stop.run_until_cancelled(are_keys(&self.client, oid, ends));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??)
    }

    fn tells_keys_apart(&mut self, oid: u32, columns: &[String]) -> Result<bool, crate::Error> {
        // An index could not hold others.
        if self.named.get(oid).is_none() {
            return Ok(true);
        }
        let asked = self.stop.run_until_cancelled(tells_keys_apart(&self.client, oid, columns));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??)
    }

    fn same_keys(
        &mut self,
        relation: &Relation,
        listed: &[&str],
        touched: &[&str],
    ) -> Result<Option<Vec<(usize, usize)>>, crate::Error> {
        let asked = self.stop.run_until_cancelled(same_keys(&self.client, relation, listed, touched));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??)
    }

    fn reselect(&mut self, row: &Reselect<'_>) -> Result<Reselected, crate::Error> {
        let asked = self.stop.run_until_cancelled(reselect(&self.client, row));
        Ok(self.runtime.block_on(asked).ok_or(crate::Error::Stopped)??)
    }
}

/// Whether the server takes the texts for values of the columns of the table's key, and the second for one behind the first.
async fn are_keys(client: &Prepared, oid: u32, ends: &[&[String]]) -> Result<bool, Error> {
    let asked = |cause| Error::statement("look at the ends of a range", cause);
    for _ in 0..RENAMED_MAX {
        let (columns, sorted) = key_order(client, oid).await?;
        let Some(name) = called(client, oid).await? else { return Ok(false) };
        if columns.is_empty() || ends.iter().any(|end| end.len() != columns.len()) {
            return Ok(false);
        }
        let sorting = Sorting(columns.iter().cloned().zip(sorted).collect());
        let cause = match client.simple_query(&snapshot::check(&name, &sorting, ends)).await.map_err(asked) {
            Ok(answer) => return Ok(texts(&answer).next().is_some()),
            Err(cause) => cause,
        };
        if !snapshot::may_be_of_keys(&cause) {
            return Err(cause);
        }
        match client.batch_execute(&snapshot::bare(&name, &columns)).await.map_err(asked) {
            Ok(()) => return Ok(false),
            Err(error) if is_renamed(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Whether the columns have types with an equality. What a table looks like that is not found under its name any more, those
/// find out who read it.
async fn tells_keys_apart(client: &Client, oid: u32, columns: &[String]) -> Result<bool, Error> {
    let asked = |cause| Error::statement("look at the columns of a key", cause);
    let Some(name) = called(client, oid).await? else { return Ok(true) };
    match client.batch_execute(&snapshot::bare(&name, columns)).await.map_err(asked) {
        Err(error) if error.sqlstate() == Some("42883") => Ok(false),
        Err(error) if !is_renamed(&error) => Err(error),
        Ok(()) | Err(_) => Ok(true),
    }
}

/// Which of the touched keys are equal to listed ones. Both are texts that the server takes for keys, unless the table was
/// altered since.
async fn same_keys(
    client: &Client,
    relation: &Relation,
    listed: &[&str],
    touched: &[&str],
) -> Result<Option<Vec<(usize, usize)>>, Error> {
    let asked = |cause| Error::statement(format!("compare keys of {}", relation.name), cause);
    let Some(name) = called(client, relation.oid).await? else { return Ok(None) };
    let mut same = Vec::new();
    for (n, part) in touched.chunks(TOUCHED_MAX).enumerate() {
        let answer = client.simple_query(&snapshot::same(&name, relation, listed, part)).await.map_err(asked);
        let answer = match answer {
            Err(error) if snapshot::may_be_of_keys(&error) => return Ok(None),
            answer => answer?,
        };
        let pair =
            |row: Vec<String>| Some((n * TOUCHED_MAX + row.first()?.parse::<usize>().ok()?, row.get(1)?.parse().ok()?));
        same.extend(texts(&answer).filter_map(pair));
    }
    Ok(Some(same))
}

/// Whether the table, or a column of it, has another name by now.
fn is_renamed(error: &Error) -> bool {
    matches!(error.sqlstate(), Some("42P01" | "42703" | "3F000"))
}

/// Columns of the row with a key, read in one statement with the snapshot that it was read by.
async fn reselect(client: &Client, row: &Reselect<'_>) -> Result<Reselected, Error> {
    let relation = row.relation;
    let asked = |cause| Error::statement(format!("read columns of a moved row of {}", relation.name), cause);
    let Some(name) = rows_of(client, relation.oid).await? else {
        return Ok(Reselected::Seen { values: None, upto: wal_insert(client).await? });
    };
    let columns = row.columns.iter().map(|i| quote::identifier(&relation.columns[*i].name));
    let conditions = relation.sorting.0.iter().map(|(name, sorted)| {
        let cell = relation.columns.iter().position(|column| column.name == *name).map(|i| row.row[i]);
        match cell {
            Some(Cell::Text(text)) => sorted.equals(name, &String::from_utf8_lossy(text)),
            _ => "false".to_owned(),
        }
    });
    let query = format!(
        "SELECT s.s, r.* FROM (SELECT pg_current_snapshot()::text AS s) s LEFT JOIN \
         (SELECT true AS found, {columns} FROM {name} r WHERE {conditions}) r ON true",
        columns = columns.map(|column| format!("r.{column}")).collect::<Vec<_>>().join(", "),
        conditions = conditions.collect::<Vec<_>>().join(" AND "),
    );
    let answer = match client.simple_query(&query).await.map_err(asked) {
        Err(error) if is_renamed(&error) => {
            return Ok(Reselected::Renamed { upto: wal_insert(client).await? });
        }
        answer => answer?,
    };
    let found = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let found = found.ok_or_else(|| Error::Protocol { operation: "read a moved row".into(), what: "no row".into() })?;
    if !parse_snapshot(found.get(0).unwrap_or_default())?.sees(row.xid) {
        return Ok(Reselected::NotYet);
    }
    let values = (2..found.len()).map(|i| found.get(i).map(|text| text.as_bytes().to_vec()));
    // Asked for afterwards: whatever was visible was in the WAL by then.
    Ok(Reselected::Seen { values: found.get(1).map(|_| values.collect()), upto: wal_insert(client).await? })
}

/// Where the next WAL record will go.
pub async fn wal_insert(client: &Client) -> Result<Lsn, Error> {
    let asked = |cause| Error::statement("ask for the end of the WAL", cause);
    let row = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.map_err(asked)?;
    let text: String = row.get(0);
    text.parse()
        .map_err(|_| Error::Protocol { operation: "ask for the end of the WAL".into(), what: format!("{text:?}") })
}
