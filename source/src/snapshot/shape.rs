//! What has to be known of a table to read a chunk of it: asked in one question under the table's lock, and what follows from
//! the answer is kept for as long as the answer stays the same.
//!
//! I/O, and what the answer means. Knows nothing of ranges and rows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postgres::Prepared;
use postgres::tokio_postgres::types::ToSql;
use postgres::tokio_postgres::{Client, Row, Statement};
use schemas::TableName;

use super::paging::{Facts, Paging};
use super::{Settings, Target};
use crate::columns::{Cut, Ruled};
use crate::relation::{Relation, fingerprint};
use crate::visibility::Snapshot;
use crate::{Error, catalog, pgoutput, published};

/// How a table is published, the snapshot that a chunk of it is read by, and whether the name that was locked is its own. What
/// stands in braces is of [`published`]; no table is opened for it but the one that is locked.
const QUESTION: &str = "
    SELECT pg_current_snapshot()::text, to_regclass($3)::oid IS NOT DISTINCT FROM c.oid, pg_relation_filenode(c.oid),
           n.nspname::text, c.relname::text, c.relreplident::text, {filter},
           {is_published} AND {by_itself},
           a.names, a.types, a.modifiers, a.keys,
           (SELECT i.indexrelid FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indimmediate
              AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace{joins}
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}') AS names,
               coalesce(array_agg(a.atttypid ORDER BY a.attnum), '{}') AS types,
               coalesce(array_agg(a.atttypmod ORDER BY a.attnum), '{}') AS modifiers,
               coalesce(array_agg({is_key} ORDER BY a.attnum), '{}') AS keys
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {carried}) a
    WHERE c.oid = $1";

/// How many looks there were in this process.
static LOOKS: AtomicU64 = AtomicU64::new(0);

/// A table as a chunk of it is read.
pub struct Shape {
    /// What the server calls it, ready for a statement.
    pub called: String,
    /// What the answer was.
    told: Told,
    /// The number of this look at the catalog; no other has it.
    pub look: u64,
    /// Its rows, by their rule.
    pub relation: pgoutput::Relation,
    /// The number of that.
    pub fingerprint: schemas::fingerprint::Fingerprint,
    /// The same with its key.
    pub described: Relation,
    /// What masks its rows.
    pub cut: Option<Cut>,
}

/// What the catalog says of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// As published, before any rule.
    relation: pgoutput::Relation,
    /// The publication's condition for rows, as SQL.
    pub filter: Option<String>,
    /// The number of its file: none where its rows lie in partitions. Under the lock it keeps the one that it has.
    file: Option<u32>,
    /// The index that names its rows, which alone says how they are sorted.
    key: Option<u32>,
}

/// An answer.
pub enum Answer {
    /// The table that was meant, under its lock, and what is visible.
    Told(Told, Snapshot),
    /// The name that was locked belongs to another one by now.
    Renamed,
    /// The publication does not have it.
    Unpublished,
}

fn question(version: u32) -> String {
    QUESTION
        .replace("{joins}", &published::joins(version))
        .replace("{filter}", &published::filter(version))
        .replace("{is_published}", published::IS_PUBLISHED)
        .replace("{by_itself}", published::BY_ITSELF)
        .replace("{carried}", published::carried(version))
        .replace("{is_key}", catalog::IS_KEY)
}

/// The question, prepared on one connection.
pub struct Question {
    statement: Statement,
    publication: String,
}

impl Question {
    /// Prepares it for a server of this version.
    pub async fn prepare(client: &Client, settings: &Settings) -> Result<Question, Error> {
        let prepared = client.prepare(&question(settings.version)).await;
        let statement = prepared.map_err(|cause| postgres::Error::statement("prepare to read chunks", cause))?;
        Ok(Question { statement, publication: settings.publication.clone() })
    }

    /// Asks for the table that was locked under the name of `called`.
    pub async fn ask(&self, client: &Client, table: &Target, called: &str) -> Result<Answer, Error> {
        let failed = |cause| postgres::Error::statement(format!("look at {} for a chunk", table.name), cause);
        let parameters: [&(dyn ToSql + Sync); 3] = [&table.oid, &self.publication, &called];
        let row = client.query_opt(&self.statement, &parameters).await.map_err(failed)?;
        let Some(row) = row.filter(|row| row.get(1)) else { return Ok(Answer::Renamed) };
        if !row.get::<_, bool>(7) {
            return Ok(Answer::Unpublished);
        }
        Ok(Answer::Told(Told::read(&row, table.oid), catalog::parse_snapshot(row.get(0))?))
    }
}

impl Told {
    fn read(row: &Row, oid: u32) -> Told {
        let names: Vec<String> = row.get(8);
        let (types, modifiers, keys): (Vec<u32>, Vec<i32>, Vec<bool>) = (row.get(9), row.get(10), row.get(11));
        let columns = names.into_iter().zip(types).zip(modifiers).zip(keys);
        let column = |(((name, type_oid), modifier), identity)| pgoutput::Column { name, type_oid, modifier, identity };
        let relation = pgoutput::Relation {
            oid,
            schema: row.get(3),
            table: row.get(4),
            identity: row.get::<_, String>(5).chars().next().unwrap_or('n'),
            columns: columns.map(column).collect(),
        };
        Told { relation, filter: row.get(6), file: row.get(2), key: row.get(12) }
    }

    /// Before the table's name, where its partitions are not to be read as its own rows.
    pub fn only(&self) -> &'static str {
        if self.file.is_none() { "" } else { "ONLY " }
    }
}

impl Shape {
    /// What follows from the answer. Asks the catalog for the rest.
    pub async fn new(client: &Prepared, settings: &Settings, called: &str, told: Told) -> Result<Shape, Error> {
        let relation = &told.relation;
        let cut = match settings.rules.get(relation.oid) {
            None => None,
            Some(Ruled { rule, columns }) => {
                Some(rule.cut(relation, columns).map_err(|cause| Error::hidden(relation, cause))?)
            }
        };
        let (relation, fingerprint) = match &cut {
            None => (relation.clone(), fingerprint(relation)),
            Some(cut) => (cut.relation.clone(), cut.fingerprint),
        };
        let details = catalog::details(client, &relation, &settings.named).await?;
        let name = TableName::new(&relation.schema, &relation.table);
        let described = Relation::new(&relation, &details, "", "");
        let described = described.map_err(|cause| Error::NoKey { table: name, cause })?;
        let look = LOOKS.fetch_add(1, Ordering::Relaxed);
        Ok(Shape { called: called.to_owned(), told, look, relation, fingerprint, described, cut })
    }

    /// Whether this is what the answer comes to.
    pub fn fits(&self, told: &Told) -> bool {
        self.told == *told
    }

    /// How it is told into ranges, for somebody who has some already.
    pub fn paging(&self, table: &Target) -> Paging {
        let (known, is_bounded) = (table.ranges_of.as_deref(), table.is_bounded);
        Paging::new(&self.described, Facts { file: self.told.file, known, is_bounded })
    }

    /// What the catalog said.
    pub fn told(&self) -> &Told {
        &self.told
    }
}

/// The shapes of the tables that are being read, for all readers.
#[derive(Clone, Default)]
pub struct Shapes(Arc<Mutex<HashMap<u32, Arc<Shape>>>>);

impl Shapes {
    /// What was last known of a table.
    pub fn get(&self, oid: u32) -> Option<Arc<Shape>> {
        self.lock().get(&oid).cloned()
    }

    /// Remembers it.
    pub fn set(&self, oid: u32, shape: Arc<Shape>) {
        self.lock().insert(oid, shape);
    }

    /// It is not so any more, or nobody reads it.
    pub fn forget(&self, oid: u32) {
        self.lock().remove(&oid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<Shape>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
