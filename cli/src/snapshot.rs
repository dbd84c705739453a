//! `tributary snapshot …`: loads on demand, ordered by messages in the stream of the source that runs.
//!
//!     command ─▶ pg_logical_emit_message ─▶ (WAL) ─▶ the running source ─▶ <prefix>.state ─▶ here: taken up
//!
//! A source that does not run now meets the command when it starts. What it makes of it is the source's to decide; here the
//! faults are told that can be seen beforehand.

mod keys;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod steer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka::topic::{Event, Isolation, Tail};
use postgres::Client;
use schemas::state::{Key, Load, Stream};
use schemas::{Lsn, topic};
use source::command::Command;
use source::{State, ask};

use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::reader::Reader;
use crate::state;

/// How long one wait for a record of the state lasts.
const STEP: Duration = Duration::from_millis(200);
/// How often it is asked whether somebody still reads from the slot.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// After so many times without a reader none is waited for.
const ABSENT_MAX: u32 = 4;

/// The source's server, and what the source says of itself.
struct Desk<'a> {
    configuration: &'a Configuration,
    source: &'a source::Config,
    client: Client,
    state: State,
}

/// What became of a command.
enum Fate {
    /// The source has met it; the load's record as it was then, if there was one since.
    Met { load: Option<Load> },
    /// Nobody reads from the slot.
    NoSource,
}

impl<'a> Desk<'a> {
    async fn open(configuration: &'a Configuration, command: &'static str) -> Result<Desk<'a>, Failure> {
        let source = configuration.source(command)?;
        let state = state::read(configuration).await?;
        let state = state.ok_or_else(|| Failure::NothingPublished(configuration.prefix.clone()))?;
        let client = postgres::connect(&source.postgres, "snapshot").await?;
        Ok(Desk { configuration, source, client, state })
    }

    /// Writes the command. With `waits` it returns when the source has met it.
    async fn order(&self, command: &Command, load: &str, waits: bool) -> Result<(Lsn, Option<Fate>), Failure> {
        // From before the command on, so that the record of a load that is soon over passes by too.
        let (kafka, topic) = (self.configuration.kafka.clone(), topic::of_state(&self.configuration.prefix));
        let tail = async {
            let start = move || Tail::start(&kafka, &topic, Isolation::ReadCommitted);
            let started = tokio::task::spawn_blocking(start).await;
            started.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())).map_err(source::Error::from)
        };
        let tail = if waits { Some(tail.await?) } else { None };
        let at = ask::order(&self.client, &self.source.slot, command, self.state.secret()).await?;
        let Some(tail) = tail else { return Ok((at, None)) };
        let stop = Arc::new(AtomicBool::new(false));
        let (load, stopped) = (load.to_owned(), stop.clone());
        let mut meeting = tokio::task::spawn_blocking(move || meet(tail, at, &load, &stopped));
        let mut reader = Reader::of(&self.client, &self.source.slot, ABSENT_MAX);
        let fate = loop {
            tokio::select! {
                met = &mut meeting => break Fate::Met { load: met.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))? },
                () = tokio::time::sleep(ASK_EVERY) => {
                    if reader.is_gone().await? {
                        stop.store(true, Ordering::Relaxed);
                        break Fate::NoSource;
                    }
                }
            }
        };
        Ok((at, Some(fate)))
    }
}

/// Follows the state until it is flushed beyond `at`. Returns the last record of the load that came since this began.
fn meet(mut tail: Tail, at: Lsn, load: &str, stop: &AtomicBool) -> Result<Option<Load>, source::Error> {
    let (mut last, mut flushed) = (None, Lsn::ZERO);
    while flushed <= at && !stop.load(Ordering::Relaxed) {
        let Some(Event::Record(record)) = tail.next(STEP)? else { continue };
        let key = record.key().and_then(|key| std::str::from_utf8(key).ok()).and_then(|key| key.parse::<Key>().ok());
        // What cannot be read is the business of those who show the state.
        match (key, record.value()) {
            (Some(Key::Load(id)), Some(value)) if id == load => last = serde_json::from_slice(value).ok().or(last),
            (Some(Key::Stream), Some(value)) => {
                flushed = serde_json::from_slice::<Stream>(value).map_or(flushed, |stream| stream.flushed);
            }
            _ => {}
        }
    }
    Ok(last)
}

/// What is said when nobody reads from the slot.
fn no_source(slot: &str) -> String {
    format!("nobody reads from the slot {slot} now: it is taken up when `tributary source` runs again")
}
