//! One chunk's reading: the table's lock, the snapshot under it, the table's shape as the publication has it, and its rows.
//!
//! I/O only. Knows nothing of windows and markers.

use std::pin::pin;

use futures::TryStreamExt;
use postgres::tokio_postgres::Transaction;
use schemas::TableName;
use schemas::state::Range;

use super::paging::{Facts, Paging, Place};
use super::{Settings, Target, by_keys, listed};
use crate::columns::Ruled;
use crate::relation::{Relation, fingerprint};
use crate::window::{Chunk, Part, RangesOf, Rows};
use crate::{Error, catalog, copy};

/// How long a chunk waits for its table's lock before it lets others pass.
const LOCK_TIMEOUT_MS: u32 = 2_000;

/// Locks the table before the transaction takes its snapshot: TRUNCATE and rewriting DDL would show a snapshot older than
/// them an empty table.
pub async fn read(
    transaction: &Transaction<'_>,
    settings: &Settings,
    table: &Target,
    called: &str,
    part: &Part,
    rows_max: usize,
) -> Result<Option<Chunk>, Error> {
    let failed = |cause| postgres::Error::statement(format!("read a chunk of {}", table.name), cause);
    let lock = format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; LOCK TABLE {called} IN ACCESS SHARE MODE");
    transaction.batch_execute(&lock).await.map_err(failed)?;
    let snapshot = catalog::snapshot(transaction).await?;
    // The name may have gone to another table between the look-up and the lock.
    let same =
        transaction.query_one("SELECT to_regclass($1)::oid IS NOT DISTINCT FROM $2::oid", &[&called, &table.oid]).await;
    if !same.map_err(failed)?.get::<_, bool>(0) {
        return Ok(None);
    }
    let relation = catalog::describe(transaction, settings.version, table.oid, &settings.publication).await?;
    let cut = match settings.rules.get(table.oid) {
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
    let details = catalog::details(transaction, &relation, &settings.named).await?;
    let filter = catalog::row_filter(transaction, settings.version, &settings.publication, &name).await?;
    let described = Relation::new(&relation, &details, "", "");
    let described = described.map_err(|cause| Error::NoKey { table: name.clone(), cause })?;
    // Without a file of its own it is partitioned. Under the lock it keeps the one that it has.
    let file = transaction.query_one("SELECT pg_relation_filenode($1::oid)", &[&table.oid]).await.map_err(failed)?;
    let facts = Facts { file: file.get(0), known: table.ranges_of.as_deref(), is_bounded: table.is_bounded };
    let only = if facts.file.is_none() { "" } else { "ONLY " };
    let paging = Paging::new(&described, facts);
    let is_range = matches!(part, Part::Range(_));
    if let Some(settings) = paging.settings().filter(|_| is_range) {
        transaction.batch_execute(settings).await.map_err(failed)?;
    }
    let query = match part {
        Part::Range(range) => paging.select(&described, only, range, filter.as_deref(), rows_max),
        Part::Keys(keys) => by_keys::select(&described, only, keys, filter.as_deref()),
        Part::List { keys, .. } => listed::select(&described, only, keys, filter.as_deref()),
    };
    let columns = relation.columns.len();
    let mut rows = Rows::new(columns);
    let mut buffer = Vec::new();
    let (mut full, mut found, mut place) = (false, Vec::new(), None);
    let mut lines = pin!(transaction.copy_out(&format!("COPY ({query}) TO STDOUT")).await.map_err(failed)?);
    while let Some(line) = lines.try_next().await.map_err(failed)? {
        // What is over budget is read and forgotten: the next chunk begins with it.
        full = full || (rows.bytes() >= settings.chunk_bytes_max && !matches!(part, Part::Keys(_)));
        if !full {
            let bad = || Error::Copy(name.clone());
            let line = match part {
                Part::List { .. } => {
                    let (row, rest) = listed::row(&line).ok_or_else(bad)?;
                    found.push(row);
                    rest
                }
                Part::Range(_) if paging.has_places() => {
                    // Where the last row lies speaks for all before it.
                    let comes_next = |(next, _): &(Place, &[u8])| place.is_none_or(|last| last < *next);
                    let (next, rest) = Place::split(&line).filter(comes_next).ok_or_else(bad)?;
                    place = Some(next);
                    rest
                }
                Part::Range(_) | Part::Keys(_) => &line[..],
            };
            copy::add_line(line, columns, &mut rows, &mut buffer, cut.as_ref())
                .ok_or_else(|| Error::Copy(name.clone()))?;
        }
    }
    let part = match part {
        Part::Range(range) => {
            let whole = !full && rows.len() < rows_max;
            let upto = if whole { range.upto.clone() } else { paging.end(&rows, place) };
            Part::Range(Range { after: range.after.clone(), upto })
        }
        Part::Keys(_) => part.clone(),
        Part::List { keys, void, .. } => listed::covered(keys, void, found),
    };
    let ranges_of = is_range.then(|| RangesOf { found: paging.describe(), known: table.ranges_of.clone() });
    Ok(Some(Chunk { snapshot, relation, fingerprint, rows, part, ranges_of, load: None }))
}
