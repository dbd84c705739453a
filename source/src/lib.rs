//! PostgreSQL to Kafka: reads the replication stream and publishes each change once.
//!
//!     walsender ─▶ stream ─▶ session ─▶ feed ─▶ outbox ─▶ Kafka transaction (records + state)
//!                              ▲  │                              │
//!     snapshot ─── chunks ─────┘  └── confirmed LSN ◀── committed┘
//!
//! Pure, and the only ones to decide: pgoutput, relation, visibility, recent, history, window, range, sorted, copy, listing, columns,
//! keys, command, lists, state, watch, feed, allowance, published. The rim: ask, stream, snapshot (whose plan and pace
//! are pure), catalog, setup, topics, lockers, relist, reread, listable, start, session, keeper
//! (whose judge is pure), watch::look.
//! Knows nothing of targets and of who reads the topics.

mod allowance;
pub mod ask;
mod catalog;
mod columns;
pub mod command;
mod config;
mod copy;
#[cfg(test)]
mod differential;
mod error;
mod feed;
#[cfg(test)]
mod foreign;
mod history;
pub mod keeper;
mod keys;
pub mod listable;
mod listing;
mod lists;
mod lockers;
mod pgoutput;
mod published;
mod range;
mod recent;
mod relation;
mod relist;
mod reread;
mod session;
mod setup;
mod snapshot;
mod sorted;
mod start;
mod state;
mod stream;
mod topics;
mod visibility;
mod watch;
mod window;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use service::http::Health;
use service::retry::{Backoff, Outage};
use tokio_util::sync::CancellationToken;

use session::Phase;

pub use config::{Config, Snapshot, Topics};
pub use error::{Error, Severity};
pub use reread::Reread;
pub use state::State;

/// So many sessions may end on purpose and be followed at once by another …
const AGAIN_MAX: usize = 10;
/// … within this time. One that never comes to rest must not keep server and brokers busy with nothing but beginnings.
const AGAIN_WITHIN: Duration = Duration::from_secs(60);

/// Runs the source until `stop` is cancelled or something happens that no retry can cure.
///
/// Whatever fails, producer and walsender are dropped together and everything begins again from what is committed. An
/// outage is waited for without end, but at the start only as long as configured: a typing error should not look like one.
pub async fn run(
    mut config: Config,
    reread: Reread,
    kafka: kafka::Config,
    prefix: String,
    health: Health,
    stop: CancellationToken,
) -> Result<(), Error> {
    let begun = Instant::now();
    let mut backoff = Backoff::new();
    let mut outage = Outage::new("publish");
    let mut was_ready = false;
    let mut again = Again::default();
    let keeper = keeper::Keeper::start(&config);
    health.ready("source", false);
    // What was gone on by before the list was changed, until the new one is in force: it may fail on its way.
    let mut before: Option<Config> = None;
    while !stop.is_cancelled() {
        if let Some(next) = reread.take() {
            before = Some(std::mem::replace(&mut config, next));
        }
        let mut is_listed = false;
        let reached = |phase| match phase {
            Phase::Ready => was_ready = true,
            Phase::Listed => is_listed = true,
            Phase::Streaming => health.ready("source", true),
            Phase::Committed => {
                backoff.reset();
                outage.over();
            }
        };
        let ended = session::run(&config, &reread, &kafka, &prefix, &keeper.seen(), &stop, reached).await;
        health.ready("source", false);
        if is_listed {
            before = None;
        }
        match ended {
            Ok(()) => return Ok(()),
            Err(error) if before.is_some() && error.severity() == Severity::Fatal => {
                tracing::error!(
                    "cannot go over to the list that was read again, going on with the one before: {error}"
                );
                config = before.take().unwrap_or(config);
            }
            Err(error) => match error.severity() {
                Severity::Stop if stop.is_cancelled() => return Ok(()),
                // Nobody asked: a part of the session ended without a word, and the next may do better.
                Severity::Stop => outage.failed(&error),
                Severity::Again => {
                    let pause = again.pause(Instant::now());
                    if pause.is_zero() {
                        tracing::info!("beginning again: {error}");
                    } else {
                        tracing::warn!(?pause, "beginning again and again, so not at once: {error}");
                        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
                    }
                    continue;
                }
                Severity::Transient if was_ready || begun.elapsed() < config.start_timeout => outage.failed(&error),
                Severity::Transient | Severity::Fatal => {
                    health.failed("source", &error.to_string());
                    return Err(error);
                }
            },
        }
        backoff.wait(&stop).await;
    }
    Ok(())
}

/// When sessions ended on purpose, the last few of them.
#[derive(Default)]
struct Again(VecDeque<Instant>);

impl Again {
    /// One more ends now. How long to wait before the next may begin.
    fn pause(&mut self, now: Instant) -> Duration {
        let oldest = if self.0.len() == AGAIN_MAX { self.0.pop_front() } else { None };
        self.0.push_back(now);
        oldest.map_or(Duration::ZERO, |oldest| AGAIN_WITHIN.saturating_sub(now.duration_since(oldest)))
    }
}

/// The tables that `source.tables` comes to on this server, and what is wrong with it.
pub async fn list(
    client: &postgres::Client,
    config: &Config,
) -> Result<(Vec<schemas::TableName>, Vec<String>), postgres::Error> {
    let (listed, faults) = listing::resolve(&config.tables, &catalog::candidates(client).await?);
    Ok((listed.into_iter().map(|listed| listed.name).collect(), faults))
}

/// The state as it stands in Kafka; `None` where nothing was published yet.
pub fn read_state(kafka: &kafka::Config, prefix: &str, stop: &dyn Fn() -> bool) -> Result<Option<State>, Error> {
    start::read_state(kafka, prefix, stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_again_and_again_is_slowed_down() {
        let second = |n: u64| Duration::from_secs(n);
        let begun = Instant::now();
        let mut again = Again::default();
        for n in 0..AGAIN_MAX as u64 {
            assert_eq!(again.pause(begun + second(n)), Duration::ZERO);
        }
        assert_eq!(again.pause(begun + second(20)), second(40), "until the first is a minute old");
        assert_eq!(again.pause(begun + second(70)), Duration::ZERO);
    }
}
