//! Has what a group has set aside tried again, as long as something of it may still apply.
//!
//!     parked, or a second later ─▶ relational::resolve ─▶ applied: at once again.  nothing: later and later
//!
//! One in each process of the group; the target sees to it that one is at work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use service::retry::{Backoff, Outage};
use tokio_util::sync::CancellationToken;

use crate::config::{Group, OnError};
use crate::error::Error;
use crate::relational::Relational;
use crate::relational::resolve::Resolved;
use crate::worker::Parkings;

/// How soon it is looked again: nobody tells of what other processes set aside, nor of a person's word …
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// … and how much later at most where nothing came of it.
const LOOK_MAX: Duration = Duration::from_secs(8);
/// The owners of partitions wait while keys are tried, so that takes no longer than this …
const PATIENCE: Duration = Duration::from_millis(300);
/// … unless nothing would ever come of it.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// The resolver of one group.
pub(crate) struct Resolver {
    pub(crate) group: Group,
    /// The group's topics: another prefix may keep a group of the same name in this target.
    pub(crate) topics: Vec<String>,
    pub(crate) target: Arc<Relational>,
    pub(crate) parked: Arc<Parkings>,
    pub(crate) stop: CancellationToken,
}

impl Resolver {
    /// Looks until stopped. The group stops with it where that is what it is told to do.
    pub(crate) async fn run(self) -> Result<(), Error> {
        let ended = self.look().await;
        self.stop.cancel();
        ended
    }

    async fn look(&self) -> Result<(), Error> {
        let mut outage = Outage::new(format!("try parked events of group {} again", self.group.name));
        let (mut backoff, mut rest, mut patience) = (Backoff::new(), LOOK_EVERY, PATIENCE);
        loop {
            let began = Instant::now();
            let looked = match self.stop.run_until_cancelled(self.resolve(patience)).await {
                None => return Ok(()),
                Some(looked) => looked,
            };
            let go_on = match looked {
                Ok((_, true)) => {
                    return Err(Error::ManyParked { group: self.group.name.clone(), max: self.group.parked_rows_max });
                }
                Ok((resolved, false)) => {
                    outage.over();
                    backoff.reset();
                    self.tell(resolved);
                    patience = match resolved {
                        Resolved { events: 0, untried: 1.., .. } => (patience * 2).min(PATIENCE_MAX),
                        Resolved { untried: 0, .. } => PATIENCE,
                        _ => patience,
                    };
                    // Owners of partitions wait meanwhile: they are to have most of the time.
                    let least = began.elapsed() * 3;
                    rest = if resolved.events > 0 || resolved.untried > 0 || resolved.left == 0 {
                        LOOK_EVERY
                    } else {
                        (rest * 2).min(LOOK_MAX)
                    };
                    let told = tokio::time::timeout(rest.max(least), self.parked.resolver.notified());
                    let go_on = self.stop.run_until_cancelled(told).await.is_some();
                    // Not in the very moment: what is in the way of an event mostly goes with the next batches.
                    go_on
                        && self.stop.run_until_cancelled(tokio::time::sleep(least.max(LOOK_EVERY / 4))).await.is_some()
                }
                Err(error @ Error::Dead { .. }) => return Err(error),
                Err(error) => {
                    outage.failed(&error);
                    backoff.wait(&self.stop).await
                }
            };
            if !go_on {
                return Ok(());
            }
        }
    }

    /// What came of one look, and whether too much is set aside.
    async fn resolve(&self, patience: Duration) -> Result<(Resolved, bool), Error> {
        let resolved = self.target.resolve(&self.topics, patience).await?;
        if self.group.on_error == OnError::Stop {
            let keys = self.target.dead(&self.topics).await?;
            if keys > 0 {
                return Err(Error::Dead { group: self.group.name.clone(), keys });
            }
        }
        Ok((resolved, self.target.has_many_parked(&self.topics, self.group.parked_rows_max).await?))
    }

    fn tell(&self, Resolved { events, left, dead, .. }: Resolved) {
        let group = &self.group.name;
        if events > 0 {
            tracing::info!(%group, events, left, "applied events that had been set aside");
        }
        if dead > 0 {
            tracing::warn!(%group, keys = dead, "parked events were tried again and can never apply as they are: `tributary dlq list --group {group}`");
        }
    }
}
