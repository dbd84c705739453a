//! One reader: takes a chunk from its window to the stream's loop, over a connection of its own.
//!
//!     room in memory ─▶ window opened ─▶ read ─▶ handed over
//!
//! I/O only. Which part of which table it is, others decide; what becomes of the rows, the stream's loop.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use schemas::state::Range;
use service::failpoint;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Settings;
use super::grouped::Grouped;
use super::locked::{Asked, Copied, Reading, Session, is_refusal};
use super::plan::{Claim, Claimed};
use super::shape::Shapes;
use crate::Error;
use crate::session::{Input, Verdict};
use crate::window::{ChunkId, Part};

/// The stream brings a commit a moment before the server shows it, or as long before as the synchronous standby takes: so
/// often it is looked whether it does …
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// … and for so long. Meanwhile no other table can be read either.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Where a claim ends: others may go on behind it.
pub type Split = (Claim, Vec<String>);

/// What all readers have in common.
#[derive(Clone)]
pub struct Tools {
    /// To the stream's loop.
    pub inputs: Sender<Input>,
    /// What they read through.
    pub settings: Settings,
    /// What is known of tables.
    pub shapes: Shapes,
    /// Bytes that are free for chunks which are read and not published.
    pub memory: Arc<Semaphore>,
    /// Told where claims end, as soon as that is known.
    pub splits: UnboundedSender<Split>,
}

/// A chunk on its way to its marker.
pub struct Filled {
    /// Its name.
    pub id: ChunkId,
    /// What it covers.
    pub part: Part,
    /// What its range is a range of.
    pub found: Option<String>,
    /// How many rows it has.
    pub rows: usize,
    /// How many were looked at for these.
    pub searched: usize,
    /// How many bytes they take.
    pub bytes: usize,
    /// How long the COPY took.
    pub took: Duration,
    /// Answered when it is committed, or must be read again.
    pub verdict: oneshot::Receiver<Verdict>,
    /// Its bytes, free again when this is dropped.
    pub held: OwnedSemaphorePermit,
}

/// What came of a claim.
pub enum Attempt {
    /// A chunk was handed over.
    Filled(Filled),
    /// What a load has done, in key order: this was asked instead of rows.
    Ordered(Vec<Range>),
    /// The table is told into ranges otherwise by now, and by what.
    Elsewhere(String),
    /// At once again.
    Again(&'static str),
    /// These are more rows by their keys than a chunk takes.
    Full,
    /// The table cannot be read now, and why.
    NotNow(&'static str),
    /// The same, until a person does something.
    Stuck(&'static str),
    /// The server does not let us read it.
    Refused(postgres::Error),
    /// It took too long.
    Slow,
    /// There is no such table any more.
    Dropped,
}

/// Reads chunks. Connects when there is one to read.
pub struct Reader {
    session: Option<Session>,
    tools: Tools,
}

impl Reader {
    /// A reader that has no connection yet.
    pub fn new(tools: Tools) -> Reader {
        Reader { session: None, tools }
    }

    /// Reads what was claimed, or as much of it as a chunk takes: no more than `rows_max` rows of a range. Where it is
    /// shared, others are told before the rows come where it ends.
    pub async fn attempt(&mut self, claimed: &Claimed, rows_max: usize, is_shared: bool) -> Result<Attempt, Error> {
        let settings = &self.tools.settings;
        if self.session.is_none() {
            self.session = Some(Session::new(self.tools.shapes.clone(), settings.clone()).await?);
        }
        let session = self.session.as_ref().ok_or(Error::Stopped)?;
        let part = match &claimed.part {
            Part::List { keys, .. } => match session.next_of(&claimed.table, keys).await {
                Ok(Grouped::Next(part)) => part,
                Ok(Grouped::Again) => return Ok(Attempt::Again("the table was renamed")),
                Ok(Grouped::Dropped) => return Ok(Attempt::Dropped),
                Err(Error::Postgres(error)) if is_refusal(&error) => return Ok(Attempt::Refused(error)),
                Err(error) => return Err(error),
            },
            part => part.clone(),
        };
        // Held from the start: a chunk may be as large as that, and nobody stops in the middle of one to wait for room.
        let room = u32::try_from(settings.chunk_bytes_max).unwrap_or(u32::MAX);
        let mut held = self.tools.memory.clone().acquire_many_owned(room).await.map_err(|_| Error::Stopped)?;
        let id = ChunkId(uuid::Uuid::new_v4().as_u128());
        let (opened, open) = oneshot::channel();
        let (settled, verdict) = oneshot::channel();
        let is_list = matches!(part, Part::List { .. });
        self.tell(Input::Open { id, oid: claimed.table.oid, is_list, opened, settled })?;
        let before = open.await.map_err(|_| Error::Stopped)?;
        failpoint::reach_in_task("chunk-opened").await?;
        let (table, unordered) = (&claimed.table, claimed.unordered.as_deref());
        let asked = Asked { table, part: &part, unordered, rows_max, is_shared, before: &before };
        // The pool, if it is there, hears of every split.
        let split = |at| drop(self.tools.splits.send((claimed.claim, at)));
        let begun = Instant::now();
        let mut reading = session.read(&asked, split).await?;
        while matches!(reading, Reading::Unseen) && begun.elapsed() < SHOWN_WITHIN {
            tokio::time::sleep(LOOK_EVERY).await;
            reading = session.read(&asked, split).await?;
        }
        if session.is_spent() {
            self.session = None;
        }
        let Reading::Read(Copied { mut chunk, searched, took }) = reading else {
            self.tell(Input::Close { id })?;
            return Ok(match reading {
                Reading::Ordered(done) => Attempt::Ordered(done),
                Reading::Elsewhere(found) => Attempt::Elsewhere(found),
                Reading::Again(why) => Attempt::Again(why),
                Reading::Full => Attempt::Full,
                Reading::Unseen => Attempt::NotNow(
                    "the stream has brought a transaction that nobody is shown yet, as while a synchronous standby is away",
                ),
                Reading::Refused(error) => Attempt::Refused(error),
                Reading::Unfit => Attempt::Stuck(
                    "its range was ordered by columns that are not its key any more: cancel the load, and order it again",
                ),
                Reading::Locked => Attempt::NotNow("others hold a lock on it"),
                Reading::Unpublished => Attempt::Stuck("the publication does not have it"),
                Reading::Slow => Attempt::Slow,
                Reading::Read(..) | Reading::Dropped => Attempt::Dropped,
            });
        };
        failpoint::reach_in_task("chunk-read").await?;
        chunk.load.clone_from(&claimed.load);
        chunk.round = claimed.round;
        let found = chunk.ranges_of.as_ref().map(|of| of.found.clone());
        let (part, rows, bytes) = (chunk.part.clone(), chunk.rows.len(), chunk.rows.bytes());
        drop(held.split(held.num_permits().saturating_sub(bytes)));
        self.tell(Input::Filled { id, chunk })?;
        failpoint::reach_in_task("chunk-filled").await?;
        Ok(Attempt::Filled(Filled { id, part, found, rows, searched, bytes, took, verdict, held }))
    }

    fn tell(&self, input: Input) -> Result<(), Error> {
        self.tools.inputs.send(input).map_err(|_| Error::Stopped)
    }
}
