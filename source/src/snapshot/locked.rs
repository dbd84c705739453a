//! One chunk's reading: the table's lock, the snapshot under it, the table's shape as the publication has it, and its rows.
//!
//!     BEGIN, LOCK ─┐
//!     snapshot, shape ─┴─ one round trip ─▶ where does the chunk end? ─▶ COPY ─▶ COMMIT
//!
//! I/O only. Knows nothing of windows and markers.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use postgres::Prepared;
use postgres::tokio_postgres::error::SqlState;
use postgres::tokio_postgres::{self, CopyOutStream};
use schemas::state::Range;

use super::paging::{Paging, Place};
use super::shape::{Answer, Question, Shape, Shapes};
use super::{Settings, Target, by_keys, listed};
use crate::catalog::{self, texts};
use crate::visibility::Snapshot;
use crate::window::{Chunk, Part, RangesOf, Rows};
use crate::{Error, copy};

/// How long a chunk waits for its table's lock before it lets others pass.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// What is to be read.
pub struct Asked<'a> {
    /// The table.
    pub table: &'a Target,
    /// Which of its rows.
    pub part: &'a Part,
    /// What a load has done, where that is to be put in key order, and nothing else.
    pub unordered: Option<&'a [Range]>,
    /// No more rows of a range than this.
    pub rows_max: usize,
    /// Whether it is asked first where a chunk of so many rows ends, for others to go on behind it.
    pub is_shared: bool,
    /// Transactions that the stream has brought: without one of them the chunk would be worth nothing.
    pub before: &'a [u32],
}

/// Rows as they came.
pub struct Copied {
    /// What was read.
    pub chunk: Box<Chunk>,
    /// How many rows were looked at for it, whether or not the publication has them.
    pub searched: usize,
    /// How long the COPY took.
    pub took: Duration,
}

/// What came of it.
pub enum Reading {
    /// Rows.
    Read(Copied),
    /// What was done, in key order.
    Ordered(Vec<Range>),
    /// The table is told into ranges otherwise by now, and by what: those that are to be read mean nothing any more.
    Elsewhere(String),
    /// The range was ordered by columns that are not the table's key any more.
    Unfit,
    /// Something was not as it was a moment before: at once again.
    Again(&'static str),
    /// A transaction that the stream has brought is not visible yet.
    Unseen,
    /// These are more rows by their keys than a chunk takes.
    Full,
    /// Others hold the table.
    Locked,
    /// The server does not let us read this table, or cannot read it.
    Refused(postgres::Error),
    /// A statement took too long.
    Slow,
    /// The publication does not have the table.
    Unpublished,
    /// There is no such table any more.
    Dropped,
}

/// A connection, and the question prepared on it.
pub struct Session {
    pub(super) client: Prepared,
    /// The server that the client is connected to, and no other.
    at: postgres::Config,
    question: Question,
    shapes: Shapes,
    settings: Settings,
    is_spent: AtomicBool,
}

impl Session {
    /// Over a connection that has no other user.
    pub async fn new(shapes: Shapes, settings: Settings) -> Result<Session, Error> {
        let (client, at) = postgres::connect_at(&settings.postgres, "snapshot").await?;
        let question = Question::prepare(&client, &settings).await?;
        Ok(Session { client: Prepared::new(client), at, question, shapes, settings, is_spent: AtomicBool::new(false) })
    }

    /// Whether a cancel may still be on its way to what comes next on this connection.
    pub fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Relaxed)
    }

    /// Reads a chunk in a transaction of its own. `split` is told where the chunk ends, as soon as that is known.
    pub async fn read(&self, asked: &Asked<'_>, split: impl FnOnce(Vec<String>)) -> Result<Reading, Error> {
        let known = self.shapes.get(asked.table.oid);
        let called = match &known {
            Some(shape) => shape.called.clone(),
            // Looked up outside of the transaction: the lock has to come before its snapshot.
            None => match catalog::called(&self.client, asked.table.oid).await? {
                Some(called) => called,
                None => return Ok(Reading::Dropped),
            },
        };
        let was_known = known.is_some();
        let read = self.within(asked, &called, known, split).await;
        let end = if matches!(read, Ok(Reading::Read(..))) { "COMMIT" } else { "ROLLBACK" };
        let ended = self.client.batch_execute(end).await;
        let failed = match read {
            Ok(reading) => {
                ended.map_err(|cause| self.failed(asked.table, cause))?;
                return Ok(reading);
            }
            Err(Error::Postgres(error)) => error,
            Err(other) => return Err(other),
        };
        self.shapes.forget(asked.table.oid);
        match failed.sqlstate() {
            // Renamed while the lock was waited for, or altered since it was last looked at: looked up anew.
            Some("42P01" | "3F000") => Ok(Reading::Again("the table was renamed")),
            // Of another type since the keys were looked at.
            _ if matches!(asked.part, Part::List { .. }) && listed::may_be_of_keys(&failed) => {
                Ok(Reading::Again("a key's column was altered"))
            }
            Some("42703" | "42704") if was_known => Ok(Reading::Again("the table was altered")),
            // In a deadlock, too, somebody else holds what we wait for.
            Some("55P03" | "40P01") => Ok(Reading::Locked),
            Some("57014") => Ok(Reading::Slow),
            _ if is_refusal(&failed) => Ok(Reading::Refused(failed)),
            _ => Err(failed.into()),
        }
    }

    fn failed(&self, table: &Target, cause: tokio_postgres::Error) -> Error {
        postgres::Error::statement(format!("read a chunk of {}", table.name), cause).into()
    }

    async fn within(
        &self,
        asked: &Asked<'_>,
        called: &str,
        known: Option<Arc<Shape>>,
        split: impl FnOnce(Vec<String>),
    ) -> Result<Reading, Error> {
        // The lock comes before the transaction takes its snapshot: TRUNCATE and rewriting DDL would show a snapshot older
        // than them an empty table.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; LOCK TABLE {called} IN ACCESS SHARE MODE",
            LOCK_TIMEOUT.as_millis(),
            self.settings.statement_timeout.as_millis(),
        );
        // Both are on their way at once, and answered in this order.
        let (begun, answer) =
            tokio::join!(self.client.batch_execute(&begin), self.question.ask(&self.client, asked.table, called));
        begun.map_err(|cause| self.failed(asked.table, cause))?;
        let (told, snapshot) = match answer? {
            Answer::Told(told, snapshot) => (told, snapshot),
            Answer::Unpublished => return Ok(Reading::Unpublished),
            // The name has gone to another table between the look-up and the lock.
            Answer::Renamed => {
                self.shapes.forget(asked.table.oid);
                return Ok(Reading::Again("the table was renamed"));
            }
        };
        // What is invisible now stays so for this snapshot: the rows need not be read.
        if asked.before.iter().any(|xid| !snapshot.sees(*xid)) {
            return Ok(Reading::Unseen);
        }
        let shape = match known.filter(|shape| shape.fits(&told)) {
            Some(shape) => shape,
            None => {
                let shape = Arc::new(Shape::new(&self.client, &self.settings, called, told).await?);
                self.shapes.set(asked.table.oid, shape.clone());
                shape
            }
        };
        let paging = shape.paging(asked.table);
        if let Part::Range(range) = asked.part {
            let found = paging.describe();
            if asked.table.ranges_of.as_ref().is_some_and(|known| *known != found) {
                return Ok(Reading::Elsewhere(found));
            }
            if !paging.fits(range) {
                return Ok(Reading::Unfit);
            }
            if let Some(unordered) = asked.unordered {
                return Ok(Reading::Ordered(self.order(asked.table, &shape, &paging, unordered).await?));
            }
            if let Some(settings) = paging.settings() {
                self.client.batch_execute(settings).await.map_err(|cause| self.failed(asked.table, cause))?;
            }
        }
        let upto = self.boundary(asked, &shape, &paging).await?;
        // A page is more than a chunk takes, as a rule: it ends before.
        if let Some(upto) = upto.as_ref().filter(|_| asked.is_shared && !paging.has_places()) {
            split(upto.clone());
        }
        self.copy(asked, &shape, &paging, snapshot, upto).await
    }

    /// Where a chunk of a range ends, if it does not reach to the end of it.
    async fn boundary(&self, asked: &Asked<'_>, shape: &Shape, paging: &Paging) -> Result<Option<Vec<String>>, Error> {
        let Part::Range(range) = asked.part else { return Ok(None) };
        let query = paging.boundary(&shape.described, shape.told().only(), range, asked.rows_max);
        let is_needed = asked.is_shared || paging.needs_boundary(shape.told().filter.as_deref());
        let Some(query) = query.filter(|_| is_needed) else { return Ok(None) };
        let answer = self.client.simple_query(&query).await.map_err(|cause| self.failed(asked.table, cause))?;
        Ok(texts(&answer).next())
    }

    /// Ranges in the order of the table, as only the server knows it.
    async fn order(
        &self,
        table: &Target,
        shape: &Shape,
        paging: &Paging,
        ranges: &[Range],
    ) -> Result<Vec<Range>, Error> {
        // What has no lower end begins the table.
        let (lower, mut ordered): (Vec<&Range>, Vec<&Range>) = ranges.iter().partition(|range| range.after.is_some());
        let ends: Vec<&[String]> = lower.iter().filter_map(|range| range.after.as_deref()).collect();
        let query = paging.order(&shape.described, shape.told().only(), &ends);
        let answer = self.client.simple_query(&query).await.map_err(|cause| self.failed(table, cause))?;
        let places = texts(&answer).filter_map(|row| row.first()?.parse::<usize>().ok());
        ordered.extend(places.filter_map(|place| lower.get(place).copied()));
        if ordered.len() == ranges.len() {
            return Ok(ordered.into_iter().cloned().collect());
        }
        let what = format!("{} of {} ranges", ordered.len(), ranges.len());
        Err(postgres::Error::Protocol { operation: format!("put the parts of {} in order", table.name), what }.into())
    }

    async fn copy(
        &self,
        asked: &Asked<'_>,
        shape: &Shape,
        paging: &Paging,
        snapshot: Snapshot,
        upto: Option<Vec<String>>,
    ) -> Result<Reading, Error> {
        let failed = |cause| self.failed(asked.table, cause);
        let (described, only, filter) = (&shape.described, shape.told().only(), shape.told().filter.as_deref());
        let is_bounded = upto.is_some();
        let part = match asked.part {
            Part::Range(range) => Part::Range(Range { after: range.after.clone(), upto: upto.or(range.upto.clone()) }),
            keys => keys.clone(),
        };
        let query = match &part {
            Part::Range(range) => paging.select(described, only, range, filter, asked.rows_max),
            Part::Keys(keys) => by_keys::select(described, only, keys, filter),
            Part::List { keys, .. } => listed::select(described, only, keys, filter),
        };
        let columns = shape.relation.columns.len();
        let begun = Instant::now();
        let mut rows = Rows::new(columns);
        let mut buffer = Vec::new();
        let (mut full, mut found, mut place) = (false, Vec::new(), None);
        let mut forgotten = 0;
        let mut lines = pin!(self.client.copy_out(&format!("COPY ({query}) TO STDOUT")).await.map_err(failed)?);
        while let Some(line) = lines.try_next().await.map_err(failed)? {
            // What is over budget is forgotten: the next chunk begins with it. Where that is much it is not even read.
            full = full || (rows.bytes() >= self.settings.chunk_bytes_max && can_be_less(&part));
            if full {
                forgotten += line.len();
                if forgotten > self.settings.chunk_bytes_max || matches!(part, Part::Keys(_)) {
                    self.give_up(lines.as_mut()).await.map_err(failed)?;
                    break;
                }
            } else {
                let bad = || Error::Copy(described.name.clone());
                let line = match &part {
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
                copy::add_line(line, columns, &mut rows, &mut buffer, shape.cut.as_ref()).ok_or_else(bad)?;
            }
        }
        if full && matches!(part, Part::Keys(_)) {
            return Ok(Reading::Full);
        }
        let is_whole = !full && rows.len() < asked.rows_max;
        let searched = if is_bounded && is_whole { asked.rows_max } else { rows.len() };
        let ranges_of = matches!(part, Part::Range(_))
            .then(|| RangesOf { found: paging.describe(), known: asked.table.done_of.clone() });
        let part = match part {
            Part::Range(range) if !is_whole => Part::Range(Range { upto: paging.end(&rows, place), ..range }),
            Part::List { keys, void, .. } => listed::covered(&keys, &void, found, &shape.described.key_names()),
            whole => whole,
        };
        let (relation, fingerprint, look) = (shape.relation.clone(), shape.fingerprint, shape.look);
        let chunk = Chunk { snapshot, relation, fingerprint, look, rows, part, ranges_of, load: None, round: 0 };
        Ok(Reading::Read(Copied { chunk: Box::new(chunk), searched, took: begun.elapsed() }))
    }

    /// Ends a COPY of which no more is wanted.
    async fn give_up(&self, mut lines: Pin<&mut CopyOutStream>) -> Result<(), tokio_postgres::Error> {
        if let Err(error) = postgres::cancel(&self.at, &self.client).await {
            tracing::debug!("a COPY is read to its end: {}", service::chain(&error));
        }
        loop {
            match lines.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // It had ended already. The cancel would meet what comes next.
        self.is_spent.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether a chunk that is full may end before all of this is read. A single key has one answer.
fn can_be_less(part: &Part) -> bool {
    match part {
        Part::Keys(keys) => keys.len() > 1,
        Part::Range(_) | Part::List { .. } => true,
    }
}

/// Whether one table alone cannot be read.
pub fn is_refusal(error: &postgres::Error) -> bool {
    error.sqlstate().is_some_and(postgres::sqlstate::is_refusal)
}
