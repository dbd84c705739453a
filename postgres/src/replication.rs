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

mod commands;
mod frame;
mod session;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use schemas::Lsn;
use tokio::time::{Instant, timeout, timeout_at};

pub use commands::{Lifetime, Slot, Switch, System};
pub use frame::Frame;
pub use session::Rows;

use crate::config::Config;
use crate::error::{Error, ServerError};
use frame::Message;
use session::{Answer, Session};

/// As PostgreSQL's own `wal_receiver_timeout`.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long the end of a stream may take. In the midst of a huge transaction the server may not listen.
const STOP_MAX: Duration = Duration::from_secs(3);
/// PostgreSQL counts time from 2000-01-01 00:00 UTC, in microseconds; this many after 1970.
const EPOCH_US: i64 = 946_684_800_000_000;

/// The Unix time, in microseconds, of a clock of the server's: a frame's, or a commit's.
pub fn unix_us(clock: i64) -> i64 {
    clock.saturating_add(EPOCH_US)
}

/// A connection to a server in replication mode.
#[derive(Debug)]
pub struct Replication {
    session: Session,
    /// The slot that is streamed.
    slot: String,
    /// What the server was told last: written, flushed, applied.
    told: [Lsn; 3],
    quiet: Quiet,
}

/// Since when the server is quiet.
#[derive(Clone, Copy, Debug)]
enum Quiet {
    /// Since it spoke.
    Heard(Instant),
    /// Since we asked it for a sign of life.
    Asked(Instant),
}

impl Replication {
    /// Connects to the database of `config` in replication mode, with the pinned settings.
    pub async fn connect(config: &Config) -> Result<Replication, Error> {
        Ok(Replication {
            session: Session::open(config, "replication").await?,
            slot: String::new(),
            told: [Lsn::ZERO; 3],
            quiet: Quiet::Heard(Instant::now()),
        })
    }

    /// The server's version, as in `15.18`.
    pub fn server_version(&self) -> &str {
        &self.session.version
    }

    /// The server's process behind this connection, for `pg_cancel_backend` and the like.
    pub fn pid(&self) -> i32 {
        self.session.pid
    }

    /// `IDENTIFY_SYSTEM`.
    pub async fn identify(&mut self) -> Result<System, Error> {
        let rows = self.simple_query("IDENTIFY_SYSTEM").await?;
        System::read(&rows).ok_or_else(|| self.session.confused("identify the system", "an answer without its fields"))
    }

    /// The switches that led to `timeline`, oldest first; none for the first timeline.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<Switch>, Error> {
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let rows = self.simple_query(&format!("TIMELINE_HISTORY {timeline}")).await?;
        Ok(commands::switches(rows.first("content").unwrap_or_default()))
    }

    /// Makes a slot for pgoutput and exports its snapshot.
    ///
    /// Waits for every transaction of the cluster that is writing, for as long as they take.
    pub async fn create_slot(&mut self, name: &str, lifetime: Lifetime) -> Result<Slot, Error> {
        let operation = format!("create the slot {name}");
        let answer = self.session.command(&operation, &commands::create_slot(name, lifetime)).await;
        match answer {
            Ok(Answer::Rows(rows)) => {
                Slot::read(&rows).ok_or_else(|| self.session.confused(&operation, "an answer without its fields"))
            }
            Ok(Answer::Streaming) => Err(self.session.confused(&operation, "a stream")),
            Err(Error::Server { cause, .. }) => Err(self.not_created(name, operation, cause).await),
            Err(other) => Err(other),
        }
    }

    /// Drops a slot that nobody reads.
    pub async fn drop_slot(&mut self, name: &str) -> Result<(), Error> {
        let statement = format!("DROP_REPLICATION_SLOT {}", crate::quote::identifier(name));
        let answer = self.session.command(&format!("drop the slot {name}"), &statement).await;
        answer.map(drop).map_err(|error| about_slot(name, error))
    }

    /// Makes a slot that nobody reads one that standbys take along. From 17 on.
    pub async fn make_failover(&mut self, name: &str) -> Result<(), Error> {
        let answer = self.session.command(&format!("alter the slot {name}"), &commands::make_failover(name)).await;
        answer.map(drop).map_err(|error| about_slot(name, error))
    }

    /// Any statement that a replication connection takes, SQL included. Of several the last one's rows are returned.
    pub async fn simple_query(&mut self, statement: &str) -> Result<Rows, Error> {
        let operation = statement.split_whitespace().next().unwrap_or_default().to_owned();
        match self.session.command(&format!("run {operation}"), statement).await? {
            Answer::Rows(rows) => Ok(rows),
            Answer::Streaming => Err(self.session.confused(&operation, "a stream")),
        }
    }

    /// Starts to stream `slot` from `from`, or from where it was confirmed, whichever is later.
    pub async fn start(&mut self, slot: &str, publications: &[impl AsRef<str>], from: Lsn) -> Result<(), Error> {
        let operation = format!("stream the slot {slot}");
        let publications: Vec<&str> = publications.iter().map(AsRef::as_ref).collect();
        let answer = self.session.command(&operation, &commands::start(slot, &publications, from)).await;
        match answer.map_err(|error| about_slot(slot, error))? {
            Answer::Streaming => {
                slot.clone_into(&mut self.slot);
                self.quiet = Quiet::Heard(Instant::now());
                Ok(())
            }
            Answer::Rows(_) => Err(self.session.confused(&operation, "no stream")),
        }
    }

    /// The next frame. Safe to cancel.
    pub async fn next(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.next_buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Reads once from the server, as much as is there and the buffer takes. Safe to cancel.
    pub async fn fill(&mut self) -> Result<(), Error> {
        loop {
            let since = match self.quiet {
                Quiet::Heard(since) | Quiet::Asked(since) => since,
            };
            let read = match timeout_at(since + SILENCE_MAX / 2, self.session.fill()).await {
                Ok(read) => read,
                Err(_) => match self.silence().await? {
                    Some(read) => read,
                    None => continue,
                },
            };
            read.map_err(|cause| self.session.lost(&format!("stream the slot {}", self.slot), cause))?;
            self.quiet = Quiet::Heard(Instant::now());
            return Ok(());
        }
    }

    /// The server was quiet for half of what it may. The first time it is asked, the second time it is gone.
    async fn silence(&mut self) -> Result<Option<std::io::Result<()>>, Error> {
        if let Quiet::Heard(_) = self.quiet {
            let [written, flushed, applied] = self.told;
            self.status(written, flushed, applied, true).await?;
            self.quiet = Quiet::Asked(Instant::now());
            return Ok(None);
        }
        // Whoever reads may have been away for longer than the server was quiet: what has arrived meanwhile counts.
        tokio::task::yield_now().await;
        if let Some(read) = self.session.fill().now_or_never() {
            return Ok(Some(read));
        }
        Err(Error::Silent {
            server: self.session.server.clone(),
            during: format!("the stream of the slot {}", self.slot),
            after: SILENCE_MAX,
            remedy: "the network between may have dropped the connection, or the server hangs",
        })
    }

    /// The next frame that was read already.
    pub fn next_buffered(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            return match frame::next(&mut self.session.read) {
                Ok(None) => Ok(None),
                Ok(Some(Message::Frame(frame))) => Ok(Some(frame)),
                Ok(Some(Message::Aside)) => continue,
                Ok(Some(Message::Warning(answer))) => {
                    // From 18 on a publication that is missing is no more than this.
                    tracing::warn!(slot = self.slot, "the server warns while it streams: {answer}");
                    continue;
                }
                Ok(Some(Message::Done | Message::Ready)) => Err(Error::Ended { slot: self.slot.clone() }),
                Ok(Some(Message::Failure(cause))) => Err(while_streaming(&self.slot, cause)),
                Err(malformed) => Err(self.session.confused(&format!("stream the slot {}", self.slot), malformed.0)),
            };
        }
    }

    /// How many bytes were read and not yet taken as frames.
    pub fn buffered(&self) -> usize {
        self.session.read.len()
    }

    /// Tells the server how far we are: what is written, what is durable and need never be sent again, what is applied.
    /// `reply` asks for a sign of life. Safe to cancel: the next one, or the next read's question, completes it.
    pub async fn status(&mut self, written: Lsn, flushed: Lsn, applied: Lsn, reply: bool) -> Result<(), Error> {
        self.told = [written, flushed, applied];
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX).saturating_sub(EPOCH_US);
        let mut message = [0; STATUS];
        message[0] = b'd';
        message[1..5].copy_from_slice(&(STATUS as u32 - 1).to_be_bytes());
        message[5] = b'r';
        message[6..14].copy_from_slice(&written.0.to_be_bytes());
        message[14..22].copy_from_slice(&flushed.0.to_be_bytes());
        message[22..30].copy_from_slice(&applied.0.to_be_bytes());
        message[30..38].copy_from_slice(&now.to_be_bytes());
        message[38] = u8::from(reply);
        self.session.queue(&message);
        self.flush("report progress").await
    }

    /// A server that is blocked in sending still takes the few bytes that we write: they fit the sockets' buffers. One
    /// that does not take them for as long as it may be silent is gone.
    async fn flush(&mut self, operation: &str) -> Result<(), Error> {
        let written = timeout(SILENCE_MAX, self.session.flush(operation)).await;
        written.unwrap_or_else(|_| {
            Err(Error::Silent {
                server: self.session.server.clone(),
                during: format!("an attempt to {operation}"),
                after: SILENCE_MAX,
                remedy: "the network between may have dropped the connection, or the server hangs",
            })
        })
    }

    /// Tells the server for the last time what need never be sent again, and ends the connection. Ends only when the server
    /// has: then it has heard us, and the slot is free.
    pub async fn stop(mut self, confirmed: Lsn) -> Result<(), Error> {
        let server = self.session.server.clone();
        let ended = async {
            let [written, flushed, _] = self.told;
            if confirmed > flushed {
                self.status(written.max(confirmed), confirmed, confirmed, false).await?;
            }
            // The end of a stream in order (CopyDone) would be answered only behind all that is being decoded. A good-bye
            // is obeyed at once, and after what was said before it.
            self.session.say_goodbye();
            self.session.flush("say good-bye").await?;
            // What still comes is thrown away; but a socket closed over unread bytes would take our last word with it.
            while self.session.fill().await.is_ok() {
                self.session.read.clear();
            }
            Ok(())
        };
        timeout(STOP_MAX, ended).await.unwrap_or_else(|_| {
            Err(Error::Silent {
                server,
                during: "the end of the stream".to_owned(),
                after: STOP_MAX,
                remedy: "it may not have heard how far we are, and send some of it again",
            })
        })
    }

    /// Why a slot could not be made: for what can be put right the error says how.
    async fn not_created(&mut self, name: &str, operation: String, cause: ServerError) -> Error {
        match cause.sqlstate.as_str() {
            "42710" => Error::SlotExists { slot: name.to_owned() },
            "53400" => Error::NoFreeSlot { server: self.session.server.clone() },
            "55000" => match self.simple_query("SHOW wal_level").await {
                Ok(rows) if rows.first("wal_level").is_some_and(|level| level != "logical") => {
                    Error::WalLevel { server: self.session.server.clone() }
                }
                _ => Error::Server { operation, cause },
            },
            _ => Error::Server { operation, cause },
        }
    }
}

/// Tag, length, kind, written, flushed, applied, clock, reply.
const STATUS: usize = 39;

/// What a server's error means where a slot was named.
fn about_slot(slot: &str, error: Error) -> Error {
    match error {
        Error::Server { cause, .. } if cause.sqlstate == "55006" => {
            Error::SlotActive { slot: slot.to_owned(), pid: commands::active_pid(&cause.message, slot) }
        }
        Error::Server { cause, .. } if cause.sqlstate == "42704" => Error::SlotMissing { slot: slot.to_owned() },
        other => other,
    }
}

/// What a server's error means that ends a stream: one of class XX is about itself.
fn while_streaming(slot: &str, cause: ServerError) -> Error {
    let slot = slot.to_owned();
    match cause.sqlstate.starts_with("XX") {
        true => Error::Undecodable { slot, cause },
        false => Error::Server { operation: format!("stream the slot {slot}"), cause },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlstate::Severity;

    #[test]
    fn a_server_that_fails_at_its_own_log_is_told_from_one_that_refuses() {
        let error = |sqlstate: &str| {
            let (sqlstate, message) = (sqlstate.to_owned(), "could not map a file to a relation".to_owned());
            while_streaming("s", ServerError { sqlstate, message, hint: None })
        };
        let own = error("XX000");
        assert!(matches!(own, Error::Undecodable { .. }) && own.severity() == Severity::Transient, "{own:?}");
        assert!(matches!(error("57P01"), Error::Server { .. }));
    }
}
