//! Kafka to the target database and to Redis: applies each event once, in order for every row.
//!
//!     consumer (thread) ──segments──▶ worker per partition ──batch──▶ relational: rows and progress in one transaction
//!                                                          └─batch──▶ announce:   notices and progress in one script
//!
//! What could not be applied yet stands in the target, and is tried again (`resolver`) or settled by a person (`settle`).
//! `record`, `batch`, `fold`, `shape`, `statement`, `parked`, `refused` decide and touch nothing; the rest touches and decides nothing.
//! It knows nothing of how events come into being: what it needs to know of them is in `schemas`.

// An error ends an attempt at a batch, or a group: its size on the way up costs nothing beside that.
#![allow(clippy::result_large_err)]

mod announce;
mod array;
mod batch;
pub mod config;
mod consumer;
mod error;
mod fold;
pub mod forget;
mod group;
mod measure;
mod mirror;
mod parked;
mod persist;
mod published;
pub mod read;
mod record;
mod refused;
mod relational;
mod resolver;
pub mod settle;
mod shape;
mod statement;
mod target;
mod worker;

use std::sync::atomic::AtomicU32;

use service::http::Health;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use batch::{Progress, Refusal};
pub use config::Config;
pub use error::Error;
pub use fold::Error as EnvelopeError;
pub use parked::Class;
pub use record::Partition;
pub use refused::Refused;
pub use shape::Misfit;

use group::Run;

/// Runs all configured groups until `stop` is cancelled. A group that fails ends alone and says so; the others go on. When
/// all have ended, the first failure is handed back.
pub async fn run(
    config: Config,
    kafka: kafka::Config,
    prefix: String,
    health: Health,
    stop: CancellationToken,
) -> Result<(), Error> {
    let owner = owner();
    let mut groups: JoinSet<(String, Result<(), Error>)> = JoinSet::new();
    for group in config.groups.clone() {
        let name = group.name.clone();
        let run = Run {
            group,
            config: config.clone(),
            kafka: kafka.clone(),
            prefix: prefix.clone(),
            owner: owner.clone(),
            health: health.clone(),
            stop: stop.child_token(),
            given_up: AtomicU32::default(),
        };
        groups.spawn(async move { (name, run.run().await) });
    }
    let mut ended = Ok(());
    while let Some(joined) = groups.join_next().await {
        let (name, result) = match joined {
            Ok(joined) => joined,
            Err(_) => (String::new(), Err(Error::Ended { group: "of unknown name".to_owned(), part: "its task" })),
        };
        match result {
            Ok(()) => tracing::info!(group = %name, "stopped"),
            Err(error) => {
                if !groups.is_empty() {
                    tracing::error!(group = %name, "the group has ended, the others go on: {}", service::chain(&error));
                }
                ended = ended.and(Err(error));
            }
        }
    }
    ended
}

/// Who we are where ownership is shown: `pid@host`.
fn owner() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".to_owned());
    format!("{}@{}", std::process::id(), host.trim())
}
