//! The reader of chunks: one after the other, each under its own snapshot, each finished by a marker in the stream. A load
//! reads a table range by range; rows that moved are read again by their keys.
//!
//!     open a window ─▶ LOCK, snapshot, shape, COPY ─▶ hand over ─▶ marker ─▶ published, or read again
//!
//! No transaction stays open longer than one chunk's COPY. What becomes of a chunk is decided in the stream's loop.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use postgres::quote;
use postgres::tokio_postgres::{Client, IsolationLevel, Transaction};
use schemas::state::{LoadTable, Range};
use schemas::write::Cell;
use schemas::{Columns, TableName};
use service::failpoint;
use tokio::sync::oneshot;

use crate::catalog::{self, Messages};
use crate::columns::{ByOid, Ruled};
use crate::feed::{Outcome, marker};
use crate::relation::{Details, Relation, fingerprint};
use crate::session::Input;
use crate::window::{Chunk, ChunkId, Part, Rows};
use crate::{Error, copy, lockers, range};

/// How long a chunk waits for its table's lock before it lets others pass.
const LOCK_TIMEOUT_MS: u32 = 2_000;
/// How often a load says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How many rows are asked for by their keys at a time.
const KEYS_MAX: usize = 100;

/// What is to be read of a table.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its OID.
    pub oid: u32,
    /// Its name when this was asked for.
    pub name: TableName,
    /// All of it, or some rows.
    pub work: Work,
}

/// All of a table, or some of its rows.
#[derive(Clone, Debug)]
pub enum Work {
    /// What a load has not done yet.
    Load {
        /// What it has done.
        done: LoadTable,
        /// Whether the table was added to a stream that was running: then transactions may have begun to write to it before.
        is_added: bool,
    },
    /// The rows with these record keys.
    Keys(Vec<String>),
}

/// A table, by its OID and the name that it had when it was asked for.
struct Target {
    oid: u32,
    name: TableName,
}

/// How large chunks are, and what they are read through.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The publication whose columns and rows count.
    pub publication: String,
    /// The server's version as a number.
    pub version: u32,
    /// Bytes of rows in a chunk.
    pub chunk_bytes_max: usize,
    /// Rows in a chunk.
    pub chunk_rows_max: usize,
    /// For the events' label, which keys do not depend on.
    pub database: String,
    /// What is read of the columns of some tables.
    pub rules: ByOid,
}

/// Reads tables one after the other.
pub struct Reader {
    client: Client,
    messages: Messages,
    inputs: Sender<Input>,
    settings: Settings,
    /// How many rows the next chunk asks for: as many as the last ones suggest to fit.
    rows_next: usize,
}

impl Reader {
    /// A reader over its own connection. Markers go over another one, so that they are no part of a chunk's transaction.
    pub fn new(client: Client, messages: Messages, inputs: Sender<Input>, settings: Settings) -> Reader {
        let rows_next = settings.chunk_rows_max.min(1_000);
        Reader { client, messages, inputs, settings, rows_next }
    }

    /// Does all of `tasks`. Ends early when the session is over.
    pub async fn run(mut self, tasks: Vec<Task>) -> Result<(), Error> {
        for Task { oid, name, work } in tasks {
            let table = Target { oid, name };
            match work {
                Work::Load { done, is_added } => match self.load(&table, done, is_added).await {
                    Err(Error::Dropped { table }) => {
                        tracing::warn!(%table, "the table was dropped before its load was done: the others go on without it");
                    }
                    loaded => loaded?,
                },
                Work::Keys(keys) => self.rows(&table, keys).await?,
            }
        }
        Ok(())
    }

    async fn load(&mut self, table: &Target, mut done: LoadTable, is_added: bool) -> Result<(), Error> {
        if is_added {
            let why = format!("before {} is loaded", table.name);
            lockers::wait(&self.client, Some(&[table.oid]), &why).await?;
        }
        tracing::info!(table = %table.name, rows = done.rows, "loading");
        let (begun, mut told) = (Instant::now(), Instant::now());
        while let Some(range) = range::next(&done.done) {
            let (part, rows) = self.chunk(table, &Part::Range(range)).await?;
            if let Part::Range(range) = part {
                range::add(&mut done.done, range);
            }
            done.rows += rows;
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let (rows, of) = (done.rows, done.rows_estimated);
                tracing::info!(table = %table.name, rows, of, "loading");
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(table = %table.name, rows = done.rows, seconds = %format!("{seconds:.1}"), "loaded");
        Ok(())
    }

    async fn rows(&mut self, table: &Target, keys: Vec<String>) -> Result<(), Error> {
        tracing::info!(table = %table.name, rows = keys.len(), "reading rows again that moved before the last stop");
        for keys in keys.chunks(KEYS_MAX) {
            match self.chunk(table, &Part::Keys(keys.to_vec())).await {
                Err(Error::Dropped { table }) => {
                    tracing::info!(%table, "the table was dropped, and its rows with it");
                    break;
                }
                read => read?,
            };
        }
        Ok(())
    }

    /// Reads one chunk of what is left in `part`, again until it is published. Returns what it covered and its rows.
    async fn chunk(&mut self, task: &Target, part: &Part) -> Result<(Part, u64), Error> {
        loop {
            let id = ChunkId(uuid::Uuid::new_v4().as_u128());
            let (opened, open) = oneshot::channel();
            let (settled, outcome) = oneshot::channel();
            self.tell(Input::Open { id, oid: task.oid, opened, settled })?;
            open.await.map_err(|_| Error::Stopped)?;
            failpoint::reach_in_task("chunk-opened").await?;
            let chunk = match self.read(task, part).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    self.tell(Input::Close { id })?;
                    continue;
                }
                // Renamed while the lock was waited for: looked up anew.
                Err(Error::Postgres(error)) if matches!(error.sqlstate(), Some("42P01" | "3F000")) => {
                    self.tell(Input::Close { id })?;
                    continue;
                }
                Err(Error::Postgres(error)) if error.sqlstate() == Some("55P03") => {
                    tracing::info!(table = %task.name, "waiting for a lock on the table");
                    self.tell(Input::Close { id })?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            failpoint::reach_in_task("chunk-read").await?;
            let covered = chunk.part.clone();
            self.tell(Input::Filled { id, chunk })?;
            failpoint::reach_in_task("chunk-filled").await?;
            self.messages.emit(&marker(id)).await?;
            failpoint::reach_in_task("chunk-marked").await?;
            match outcome.await.map_err(|_| Error::Stopped)? {
                Outcome::Done { rows } => return Ok((covered, rows)),
                Outcome::Again(why) => tracing::debug!(table = %task.name, why, "a chunk is read again"),
            }
        }
    }

    fn tell(&self, input: Input) -> Result<(), Error> {
        self.inputs.send(input).map_err(|_| Error::Stopped)
    }

    async fn read(&mut self, task: &Target, part: &Part) -> Result<Option<Chunk>, Error> {
        let failed = |cause| postgres::Error::statement(format!("read a chunk of {}", task.name), cause);
        // Looked up outside of the transaction: the lock has to come before its snapshot.
        let query = "SELECT oid::regclass::text FROM pg_class WHERE oid = $1";
        let name = self.client.query_opt(query, &[&task.oid]).await.map_err(failed)?;
        let name: String = name.ok_or_else(|| Error::Dropped { table: task.name.clone() })?.get(0);
        let transaction = self.client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let transaction = transaction.read_only(true).start().await.map_err(failed)?;
        let chunk = read_locked(&transaction, &self.settings, task, &name, part, self.rows_next).await?;
        transaction.commit().await.map_err(failed)?;
        if let Some(chunk) = chunk.as_ref().filter(|chunk| matches!(chunk.part, Part::Range(_))) {
            let (rows, bytes) = (chunk.rows.len().max(1), chunk.rows.bytes().max(1));
            let fitting = self.settings.chunk_bytes_max.saturating_mul(rows) / bytes;
            self.rows_next = fitting.clamp(1, self.settings.chunk_rows_max).min(rows.saturating_mul(4).max(1_000));
        }
        Ok(chunk)
    }
}

/// Locks the table before the transaction takes its snapshot: TRUNCATE and rewriting DDL would show a snapshot older than
/// them an empty table.
async fn read_locked(
    transaction: &Transaction<'_>,
    settings: &Settings,
    task: &Target,
    name: &str,
    part: &Part,
    rows_max: usize,
) -> Result<Option<Chunk>, Error> {
    let failed = |cause| postgres::Error::statement(format!("read a chunk of {}", task.name), cause);
    let lock = format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; LOCK TABLE {name} IN ACCESS SHARE MODE");
    transaction.batch_execute(&lock).await.map_err(failed)?;
    let snapshot = catalog::snapshot(transaction).await?;
    // The name may have gone to another table between the look-up and the lock.
    let same =
        transaction.query_one("SELECT to_regclass($1)::oid IS NOT DISTINCT FROM $2::oid", &[&name, &task.oid]).await;
    if !same.map_err(failed)?.get::<_, bool>(0) {
        return Ok(None);
    }
    let relation = catalog::describe(transaction, settings.version, task.oid, &settings.publication).await?;
    let cut = match settings.rules.get(task.oid) {
        None => None,
        Some(Ruled { rule, columns }) => {
            Some(rule.cut(&relation, columns).map_err(|cause| Error::hidden(&relation, cause))?)
        }
    };
    let (relation, fingerprint) = match &cut {
        None => (relation.clone(), fingerprint(&relation)),
        Some(cut) => (cut.relation.clone(), cut.fingerprint),
    };
    let name = TableName::new(&relation.schema, &relation.table);
    let details = catalog::details(transaction, &relation).await?;
    let filter = catalog::row_filter(transaction, settings.version, &settings.publication, &name).await?;
    let described = Relation::new(&relation, &details, "", &settings.database);
    let described = described.map_err(|cause| Error::NoKey { table: name.clone(), cause })?;
    let partitioned = transaction.query_one("SELECT relkind = 'p' FROM pg_class WHERE oid = $1", &[&task.oid]).await;
    let only = if partitioned.map_err(failed)?.get(0) { "" } else { "ONLY " };
    let paging = Paging::new(&described, &details);
    let query = match part {
        Part::Range(range) => paging.select(&described, only, range, filter.as_deref(), rows_max),
        Part::Keys(keys) => by_keys(&described, only, keys, filter.as_deref()),
    };
    let columns = relation.columns.len();
    let mut rows = Rows::new(columns);
    let mut buffer = Vec::new();
    let mut full = false;
    let mut lines = pin!(transaction.copy_out(&format!("COPY ({query}) TO STDOUT")).await.map_err(failed)?);
    while let Some(line) = lines.try_next().await.map_err(failed)? {
        // What is over budget is read and forgotten: the next chunk begins with it.
        full = full || (rows.bytes() >= settings.chunk_bytes_max && matches!(part, Part::Range(_)));
        if !full {
            copy::add_line(&line, columns, &mut rows, &mut buffer, cut.as_ref())
                .ok_or_else(|| Error::Copy(name.clone()))?;
        }
    }
    let part = match part {
        Part::Range(range) => {
            let whole = !full && rows.len() < rows_max;
            let upto = if whole { range.upto.clone() } else { paging.last_key(&rows) };
            Part::Range(Range { after: range.after.clone(), upto })
        }
        Part::Keys(_) => part.clone(),
    };
    Ok(Some(Chunk { snapshot, relation, fingerprint, rows, part }))
}

/// The rows with these record keys. Literals take the type of the column that they are compared with.
fn by_keys(relation: &Relation, only: &str, keys: &[String], filter: Option<&str>) -> String {
    let row = |key: &String| {
        let columns = Columns::decode(key.as_bytes()).unwrap_or_default();
        let is = |(name, value): &(Cow<'_, str>, Option<Cow<'_, str>>)| {
            // A column that is gone names no row any more: the key has changed, and with it every row.
            let known = relation.columns.iter().any(|column| column.name == *name);
            match value {
                Some(text) if known => format!("{} = {}", quote::identifier(name), quote::literal(text)),
                _ => "false".to_owned(),
            }
        };
        let all: Vec<_> = columns.0.iter().map(is).collect();
        if all.is_empty() { "false".to_owned() } else { format!("({})", all.join(" AND ")) }
    };
    let rows = keys.iter().map(row).collect::<Vec<_>>().join(" OR ");
    let filter = filter.map(|filter| format!(" AND ({filter})")).unwrap_or_default();
    let columns = relation.columns.iter().map(|column| quote::identifier(&column.name)).collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM {only}{} WHERE ({rows}){filter}", quote::table(&relation.name))
}

/// How a table is read in the order of its key: the index's own order, or each chunk would sort the whole table.
struct Paging {
    /// Where the key's columns stand in a row.
    columns: Vec<usize>,
    /// What is compared and sorted by.
    expressions: Vec<String>,
    /// What a literal is cast to.
    types: Vec<String>,
}

impl Paging {
    fn new(relation: &Relation, details: &Details) -> Paging {
        let place = |name: &String| relation.columns.iter().position(|column| column.name == *name);
        let in_order: Option<Vec<usize>> = details.primary_key.iter().map(place).collect();
        let is_key = |columns: &Vec<usize>| {
            columns.len() == relation.key.len() && columns.iter().all(|i| relation.key.contains(i))
        };
        let columns = in_order.filter(is_key).unwrap_or_else(|| relation.key.clone());
        let mut paging = Paging { expressions: Vec::new(), types: Vec::new(), columns };
        for i in &paging.columns {
            let column = &relation.columns[*i];
            let name = quote::identifier(&column.name);
            // An extension's operators are out of sight here: comparison and sort go by text then, whatever that costs.
            let (expression, cast) = if details.foreign.contains(&column.name) {
                (format!("{name}::text COLLATE \"C\""), "text")
            } else {
                (name, column.type_name.as_str())
            };
            paging.expressions.push(expression);
            paging.types.push(cast.to_owned());
        }
        paging
    }

    /// The rows of a range in key order, at most so many.
    fn select(&self, relation: &Relation, only: &str, range: &Range, filter: Option<&str>, rows_max: usize) -> String {
        let key = self.expressions.join(", ");
        let bound = |operator: &str, texts: &[String]| {
            let literals =
                texts.iter().zip(&self.types).map(|(text, cast)| format!("{}::{cast}", quote::literal(text)));
            format!("({key}) {operator} ({})", literals.collect::<Vec<_>>().join(", "))
        };
        let mut conditions = Vec::new();
        conditions.extend(range.after.as_deref().map(|texts| bound(">", texts)));
        conditions.extend(range.upto.as_deref().map(|texts| bound("<=", texts)));
        conditions.extend(filter.map(|filter| format!("({filter})")));
        let condition =
            if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        let columns = relation.columns.iter().map(|column| quote::identifier(&column.name)).collect::<Vec<_>>();
        let (columns, table) = (columns.join(", "), quote::table(&relation.name));
        format!("SELECT {columns} FROM {only}{table}{condition} ORDER BY {key} LIMIT {rows_max}")
    }

    fn last_key(&self, rows: &Rows) -> Option<Vec<String>> {
        let row = rows.len().checked_sub(1).map(|last| rows.row(last))?;
        let text = |i: &usize| match row[*i] {
            Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Cell::Null | Cell::Unchanged => String::new(),
        };
        Some(self.columns.iter().map(text).collect())
    }
}
