//! One reader: takes a chunk from its window to its outcome, again until it is published.
//!
//! I/O only. Which part of which table it is, others decide; what becomes of the rows, the stream's loop.

use std::sync::mpsc::Sender;

use postgres::tokio_postgres::{Client, IsolationLevel, Row};
use service::failpoint;
use tokio::sync::oneshot;

use super::{Settings, Target, listed, locked};
use crate::Error;
use crate::catalog::Messages;
use crate::feed::{Outcome, marker};
use crate::session::Input;
use crate::window::{Chunk, ChunkId, Part, RangesOf};

/// A chunk that stands in the topic.
pub struct Published {
    /// What it covered.
    pub covered: Part,
    /// What its range is a range of.
    pub ranges_of: Option<RangesOf>,
    /// How many rows it had.
    pub rows: u64,
}

/// Reads chunks over a connection of its own.
pub struct Reader {
    client: Client,
    messages: Messages,
    inputs: Sender<Input>,
    settings: Settings,
    /// How many rows the next chunk asks for: as many as the last ones suggest to fit.
    rows_next: usize,
}

impl Reader {
    /// A reader that writes its markers by `messages`.
    pub fn new(client: Client, messages: Messages, inputs: Sender<Input>, settings: Settings) -> Reader {
        let rows_next = settings.chunk_rows_max.min(1_000);
        Reader { client, messages, inputs, settings, rows_next }
    }

    /// Its connection, between two chunks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Reads one chunk of what is left in `part`, again until it is published.
    pub async fn chunk(&mut self, table: &mut Target, load: Option<&str>, part: &Part) -> Result<Published, Error> {
        loop {
            let id = ChunkId(uuid::Uuid::new_v4().as_u128());
            let (opened, open) = oneshot::channel();
            let (settled, outcome) = oneshot::channel();
            let is_list = matches!(part, Part::List { .. });
            self.tell(Input::Open { id, oid: table.oid, is_list, opened, settled })?;
            open.await.map_err(|_| Error::Stopped)?;
            failpoint::reach_in_task("chunk-opened").await?;
            let mut chunk = match self.read(table, part).await {
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
                // Of another type since the keys were looked at: whoever asked looks again.
                Err(Error::Postgres(error)) if is_list && is_no_value(&error) => {
                    self.tell(Input::Close { id })?;
                    let covered = Part::List { keys: vec![], void: vec![], rows: vec![] };
                    return Ok(Published { covered, ranges_of: None, rows: 0 });
                }
                Err(Error::Postgres(error)) if error.sqlstate() == Some("55P03") => {
                    tracing::info!(table = %table.name, "waiting for a lock on the table");
                    self.tell(Input::Close { id })?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            failpoint::reach_in_task("chunk-read").await?;
            chunk.load = load.map(str::to_owned);
            let (covered, ranges_of) = (chunk.part.clone(), chunk.ranges_of.clone());
            self.tell(Input::Filled { id, chunk })?;
            failpoint::reach_in_task("chunk-filled").await?;
            self.messages.emit(&marker(id)).await?;
            failpoint::reach_in_task("chunk-marked").await?;
            match outcome.await.map_err(|_| Error::Stopped)? {
                Outcome::Done { rows } => return Ok(Published { covered, ranges_of, rows }),
                Outcome::Elsewhere { ranges_of } => table.ranges_of = ranges_of,
                Outcome::Again(why) => tracing::debug!(table = %table.name, why, "a chunk is read again"),
            }
        }
    }

    /// The keys of a list in groups of equal ones, as the server says, and those that can name no row of the table: they are
    /// no values of the columns that they name, or there are no such columns.
    pub async fn groups(&self, table: &Target, keys: &[String]) -> Result<(Vec<Vec<String>>, Vec<String>), Error> {
        let failed = |cause| postgres::Error::statement(format!("look at a list of keys of {}", table.name), cause);
        let query = "SELECT oid::regclass::text FROM pg_class WHERE oid = $1";
        let name = self.client.query_opt(query, &[&table.oid]).await.map_err(failed)?;
        let name: String = name.ok_or_else(|| Error::Dropped { table: table.name.clone() })?.get(0);
        let (mut groups, mut void, mut open) = (Vec::new(), Vec::new(), vec![keys]);
        while let Some(part) = open.pop() {
            if let Some(query) = listed::groups(&name, part) {
                match self.client.query(&query, &[]).await.map_err(failed) {
                    Ok(rows) => {
                        let key = |number: i32| part[usize::try_from(number).unwrap_or_default()].clone();
                        let group = |row: &Row| row.get::<_, Vec<i32>>(0).into_iter().map(key).collect();
                        groups.extend(rows.iter().map(group));
                        continue;
                    }
                    Err(error) if is_no_value(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            match part {
                [] => {}
                [one] => void.push(one.clone()),
                // One of them is at fault: looked for by halves.
                several => {
                    let (first, second) = several.split_at(several.len() / 2);
                    open.extend([second, first]);
                }
            }
        }
        Ok((groups, void))
    }

    fn tell(&self, input: Input) -> Result<(), Error> {
        self.inputs.send(input).map_err(|_| Error::Stopped)
    }

    async fn read(&mut self, table: &Target, part: &Part) -> Result<Option<Chunk>, Error> {
        let failed = |cause| postgres::Error::statement(format!("read a chunk of {}", table.name), cause);
        // Looked up outside of the transaction: the lock has to come before its snapshot.
        let query = "SELECT oid::regclass::text FROM pg_class WHERE oid = $1";
        let name = self.client.query_opt(query, &[&table.oid]).await.map_err(failed)?;
        let name: String = name.ok_or_else(|| Error::Dropped { table: table.name.clone() })?.get(0);
        let transaction = self.client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let transaction = transaction.read_only(true).start().await.map_err(failed)?;
        let chunk = locked::read(&transaction, &self.settings, table, &name, part, self.rows_next).await?;
        transaction.commit().await.map_err(failed)?;
        if let Some(chunk) = chunk.as_ref().filter(|chunk| matches!(chunk.part, Part::Range(_))) {
            let (rows, bytes) = (chunk.rows.len().max(1), chunk.rows.bytes().max(1));
            let fitting = self.settings.chunk_bytes_max.saturating_mul(rows) / bytes;
            self.rows_next = fitting.clamp(1, self.settings.chunk_rows_max).min(rows.saturating_mul(4).max(1_000));
        }
        Ok(chunk)
    }
}

/// Whether a text was no value of a column's type, or there is no such column.
fn is_no_value(error: &postgres::Error) -> bool {
    error.sqlstate().is_some_and(|code| code.starts_with("22") || code.starts_with("23") || code == "42703")
}
