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
use serde::Serialize;
use source::ask::Written;
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
    /// The source has met it.
    Met(Met),
    /// Nobody reads from the slot.
    NoSource,
}

/// What the state said of a load when the source had met a command.
#[derive(Debug, Default)]
struct Met {
    /// The load's record; of one that is over, its last.
    load: Option<Load>,
    /// Whether it was under way then.
    is_open: bool,
    /// Whether the source has acted on the command; none where the state does not tell any more.
    is_followed: Option<bool>,
}

impl<'a> Desk<'a> {
    async fn open(configuration: &'a Configuration, command: &'static str) -> Result<Desk<'a>, Failure> {
        let source = configuration.source(command)?;
        let state = state::read(configuration).await?;
        let state = state.ok_or_else(|| Failure::NothingPublished(configuration.prefix.clone()))?;
        let client = postgres::connect(&source.postgres, "snapshot").await?;
        Ok(Desk { configuration, source, client, state })
    }

    /// Writes the command, and tells a place behind it. With `waits` it returns when the source has met it.
    async fn order(&self, command: &Command, load: &str, waits: bool) -> Result<(Lsn, Option<Fate>), Failure> {
        // From before the command on, so that the record of a load that is soon over passes by too.
        let (kafka, topic) = (self.configuration.kafka.clone(), topic::of_state(&self.configuration.prefix));
        let tail = async {
            let start = move || Tail::start(&kafka, &topic, Isolation::ReadCommitted);
            let started = tokio::task::spawn_blocking(start).await;
            started.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())).map_err(source::Error::from)
        };
        let tail = if waits { Some(tail.await?) } else { None };
        let written = ask::order(&self.client, &self.source.slot, command, self.state.seal_key()).await?;
        let at = written.at;
        let Some(tail) = tail else { return Ok((at, None)) };
        let stop = Arc::new(AtomicBool::new(false));
        let (load, stopped) = (load.to_owned(), stop.clone());
        let mut meeting = tokio::task::spawn_blocking(move || meet(tail, written, &load, &stopped));
        let mut reader = Reader::of(&self.client, &self.source.slot, ABSENT_MAX);
        let fate = loop {
            tokio::select! {
                met = &mut meeting => break Fate::Met(met.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?),
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

/// Follows the state until it is flushed as far as the command.
fn meet(mut tail: Tail, written: Written, load: &str, stop: &AtomicBool) -> Result<Met, source::Error> {
    let mut met = Met::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(Event::Record(record)) = tail.next(STEP)? else { continue };
        if met.note(record.key(), record.value(), &written, load) {
            break;
        }
    }
    Ok(met)
}

impl Met {
    /// One more record of the state. Whether the command is met with it: the stream's stands last in its transaction.
    fn note(&mut self, key: Option<&[u8]>, value: Option<&[u8]>, written: &Written, load: &str) -> bool {
        let key = key.and_then(|key| std::str::from_utf8(key).ok()).and_then(|key| key.parse::<Key>().ok());
        // What cannot be read is the business of those who show the state.
        match (key, value) {
            (Some(Key::Load(id)), Some(value)) if id == load => {
                self.load = serde_json::from_slice(value).ok().or(self.load.take());
                self.is_open = true;
            }
            (Some(Key::Load(id)), None) if id == load => self.is_open = false,
            (Some(Key::Stream), Some(value)) => {
                let stream = serde_json::from_slice::<Stream>(value).ok();
                if let Some(stream) = stream.filter(|stream| stream.flushed >= written.at) {
                    self.is_followed = written.is_followed(&stream);
                    return true;
                }
            }
            _ => {}
        }
        false
    }
}

/// What programs are told of loads.
#[derive(Serialize)]
struct Loads<'l, T> {
    loads: &'l [T],
}

/// What is said when nobody reads from the slot.
fn no_source(slot: &str) -> String {
    format!("nobody reads from the slot {slot} now: it is taken up when `tributary source` runs again")
}

#[cfg(test)]
mod tests {
    use schemas::event::LoadMode;

    use super::*;

    const AT: Written = Written { message: Lsn(500), at: Lsn(600), xid: 7 };

    fn load(paused: bool) -> Vec<u8> {
        let load = Load { mode: LoadMode::Merge, tables: vec![1], kind: None, paused };
        serde_json::to_vec(&load).expect("plain data")
    }

    fn stream(flushed: u64, history: &str) -> Vec<u8> {
        let flushed = Lsn(flushed);
        format!(
            r#"{{"contract":1,"system_id":"1","database":"d","timeline":1,"slot":"s","publications":[],"flushed":"{flushed}","position":"{}","history":[{history}]}}"#,
            schemas::Position::before(flushed)
        )
        .into_bytes()
    }

    /// Records one after the other; the last is that with which the command is met.
    fn met(records: &[(&str, Option<Vec<u8>>)]) -> Met {
        let mut met = Met::default();
        let is_met =
            |(key, value): &(&str, Option<Vec<u8>>)| met.note(Some(key.as_bytes()), value.as_deref(), &AT, "a1");
        let found: Vec<bool> = records.iter().map(is_met).collect();
        assert_eq!(found.iter().position(|met| *met), Some(records.len() - 1), "{found:?}");
        met
    }

    #[test]
    fn a_command_is_met_behind_its_commit_and_not_behind_its_message() {
        let met = met(&[
            ("stream", Some(stream(550, ""))),
            ("load/a1", Some(load(false))),
            ("stream", Some(stream(600, r#"["0/226",7,1]"#))),
        ]);
        assert!(met.is_open && met.is_followed == Some(true), "{met:?}");
    }

    #[test]
    fn a_load_that_had_ended_before_is_told_from_one_that_was_ended() {
        let ended = [("load/a1", Some(load(false))), ("load/a1", None), ("stream", Some(stream(600, "")))];
        let met = met(&ended);
        assert!(!met.is_open && met.load.is_some() && met.is_followed == Some(false), "{met:?}");
    }
}
