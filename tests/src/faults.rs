//! The source alone against everything that can befall it: seeded trials on servers of their own, and what must hold after each.
//!
//!     seed ─▶ plan (pure) ─▶ trial: writers ─▶ PostgreSQL ─▶ proxy ─▶ source ─▶ proxy ─▶ Kafka
//!                              │                                 ▲ killed, failed, delayed, frozen
//!                              └─▶ verdict: order, density, no duplicate, no gap against two logs of all commits
//!                                  snapshot: the topics, folded up to many places on the way, are the tables there
//!
//! A lane is one PostgreSQL and one broker behind proxies; trials follow each other there, with a database, a slot and
//! topics of their own. Where a standby is to be promoted the trial has a lane to itself. Knows the product by its command line and its topics, and by the names of its failpoints.

mod lane;
pub mod plan;
pub mod snapshot;
mod stage;
mod trial;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use futures::future::try_join_all;
use tokio_postgres::Client;

use crate::Error;
use crate::oracle::{audit, journal, tables, topic};
use crate::table::Table;

pub use lane::Lane;

/// What became of one trial.
#[derive(Debug)]
pub struct Verdict {
    /// What it was drawn from.
    pub seed: u64,
    /// What befell the source, in words.
    pub plan: String,
    /// How long it took.
    pub lasted: Duration,
    /// What else is worth knowing.
    pub remarks: String,
    /// What was found wrong; with it the end of the source's log.
    pub fault: Option<String>,
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub enum Campaign {
    /// That each change is published once.
    Source,
    /// That a copy is exact from its end on.
    Snapshot(snapshot::Scale),
}

/// Runs a trial for each seed, on so many lanes at a time. `told` hears of each verdict as it falls.
pub async fn run(
    campaign: Campaign,
    seeds: impl IntoIterator<Item = u64>,
    lanes: usize,
    told: impl Fn(&Verdict),
) -> Result<usize, Error> {
    let queue = RefCell::new(seeds.into_iter().collect::<VecDeque<_>>());
    let lanes = lanes.min(queue.borrow().len());
    let work = async || {
        let mut lane = Lane::start().await?;
        let mut failed = 0;
        loop {
            // In a statement of its own: the queue is let go before the trial.
            let next = queue.borrow_mut().pop_front();
            let Some(seed) = next else { break };
            let verdict = match campaign {
                Campaign::Source => trial::run(&mut lane, seed).await?,
                Campaign::Snapshot(scale) => snapshot::run(&mut lane, seed, scale).await,
            };
            told(&verdict);
            if verdict.fault.is_some() {
                failed += 1;
                // What a failed trial leaves must not be the next one's fault.
                lane = Lane::start().await?;
            }
        }
        lane.stop().await?;
        Ok(failed)
    };
    let failed: Vec<usize> = try_join_all((0..lanes).map(|_| work())).await?;
    Ok(failed.into_iter().sum())
}

/// What must hold of a topic however its source fared: order, density, no duplicate; that it folds to its table; and each
/// change, by the server's own decoding and by the writers' own log.
pub async fn judge(
    client: &Client,
    table: &Table,
    history: &audit::History,
    records: &topic::Records,
) -> Result<(), String> {
    records.check()?;
    tables::compare_rows(client, table, &records.fold()?).await?;
    // Where the slot begins: what was committed before was copied and not told.
    let begin = records.0.first().ok_or("it is empty")?.places()?.0;
    let name = (table.name.schema.clone(), table.name.table.clone());
    let mut changes = history.changes.get(&name).cloned().unwrap_or_default();
    changes.retain(|(commit, ..)| *commit >= begin);
    audit::compare(&audit::Changes::from([(name, changes)]), table, records)?;
    journal::compare(&journal::read(client, table).await?, &history.commits, begin, records)
}
