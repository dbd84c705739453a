//! Has what a group has set aside tried again, as long as something of it may still apply.
//!
//!     parked, or a second later ─▶ relational::resolve ─▶ applied: at once again.  nothing: later and later
//!
//! One in each process of the group; the target sees to it that one is at work.

use std::sync::Arc;
use std::time::Duration;

use service::retry::{Backoff, Outage};
use tokio_util::sync::CancellationToken;

use crate::relational::Relational;
use crate::relational::resolve::Resolved;
use crate::worker::Parkings;

/// How soon it is looked again: nobody tells of what other processes set aside, nor of a person's word …
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// … and how much later at most where nothing came of it.
const LOOK_MAX: Duration = Duration::from_secs(8);

/// The resolver of one group.
pub(crate) struct Resolver {
    pub(crate) group: String,
    /// The group's topics: another prefix may keep a group of the same name in this target.
    pub(crate) topics: Vec<String>,
    pub(crate) target: Arc<Relational>,
    pub(crate) parked: Arc<Parkings>,
    pub(crate) stop: CancellationToken,
}

impl Resolver {
    /// Looks until stopped. Nothing that happens here keeps the group from working.
    pub(crate) async fn run(self) {
        let mut outage = Outage::new(format!("try parked events of group {} again", self.group));
        let (mut backoff, mut rest) = (Backoff::new(), LOOK_EVERY);
        loop {
            let looked = match self.stop.run_until_cancelled(self.target.resolve(&self.topics)).await {
                None => return,
                Some(looked) => looked,
            };
            let go_on = match looked {
                Ok(resolved) => {
                    outage.over();
                    backoff.reset();
                    self.tell(resolved);
                    rest =
                        if resolved.events > 0 || resolved.left == 0 { LOOK_EVERY } else { (rest * 2).min(LOOK_MAX) };
                    let told = tokio::time::timeout(rest, self.parked.resolver.notified());
                    let go_on = self.stop.run_until_cancelled(told).await.is_some();
                    // Not in the very moment: what is in the way of an event mostly goes with the next batches.
                    go_on && self.stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY / 4)).await.is_some()
                }
                Err(error) => {
                    outage.failed(&error);
                    backoff.wait(&self.stop).await
                }
            };
            if !go_on {
                return;
            }
        }
    }

    fn tell(&self, Resolved { events, left, dead }: Resolved) {
        let group = &self.group;
        if events > 0 {
            tracing::info!(%group, events, left, "applied events that had been set aside");
        }
        if dead > 0 {
            tracing::warn!(%group, keys = dead, "parked events were tried again and can never apply as they are: `tributary dlq list --group {group}`");
        }
    }
}
