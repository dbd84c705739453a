//! PostgreSQL to Kafka: reads the replication stream and publishes each change once.
//!
//!     walsender ─▶ stream ─▶ session ─▶ feed ─▶ outbox ─▶ Kafka transaction (records + state)
//!                              ▲  │                              │
//!     snapshot ─── chunks ─────┘  └── confirmed LSN ◀── committed┘
//!
//! Pure, and the only ones to decide: pgoutput, relation, visibility, recent, history, window, range, copy, state, feed.
//! The rim: stream, snapshot, catalog, setup, topics, start, session.
//! Knows nothing of targets and of who reads the topics.

mod catalog;
mod config;
mod copy;
mod error;
mod feed;
mod history;
mod pgoutput;
mod range;
mod recent;
mod relation;
mod session;
mod setup;
mod snapshot;
mod start;
mod state;
mod stream;
mod topics;
mod visibility;
mod window;

use std::time::Instant;

use service::http::Health;
use service::retry::{Backoff, Outage};
use tokio_util::sync::CancellationToken;

use session::Phase;

pub use config::{Config, Snapshot, Topics};
pub use error::{Error, Severity};
pub use state::State;

/// Runs the source until `stop` is cancelled or something happens that no retry can cure.
///
/// Whatever fails, producer and walsender are dropped together and everything begins again from what is committed. An
/// outage is waited for without end, but at the start only as long as configured: a typing error should not look like one.
pub async fn run(
    config: Config,
    kafka: kafka::Config,
    prefix: String,
    health: Health,
    stop: CancellationToken,
) -> Result<(), Error> {
    let begun = Instant::now();
    let mut backoff = Backoff::new();
    let mut outage = Outage::new("publish");
    let mut was_ready = false;
    health.ready("source", false);
    while !stop.is_cancelled() {
        let reached = |phase| match phase {
            Phase::Ready => was_ready = true,
            Phase::Streaming => health.ready("source", true),
            Phase::Committed => {
                backoff.reset();
                outage.over();
            }
        };
        let ended = session::run(&config, &kafka, &prefix, &stop, reached).await;
        health.ready("source", false);
        match ended {
            Ok(()) => return Ok(()),
            Err(error) => match error.severity() {
                Severity::Stop if stop.is_cancelled() => return Ok(()),
                // Nobody asked: a part of the session ended without a word, and the next may do better.
                Severity::Stop => outage.failed(&error),
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

/// The state as it stands in Kafka; `None` where nothing was published yet.
pub fn read_state(kafka: &kafka::Config, prefix: &str, stop: &dyn Fn() -> bool) -> Result<Option<State>, Error> {
    start::read_state(kafka, prefix, stop)
}
