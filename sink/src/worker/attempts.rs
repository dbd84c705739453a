//! Attempts at one batch: the same one again, in order and for ever, while what went wrong may pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use service::retry::{Backoff, Outage};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::batch::Batch;
use crate::error::Error;
use crate::parked::ParkedKeys;
use crate::target::{Claim, Outcome, Target};

/// How often an event that waits for other partitions is tried.
const MEET_EVERY: Duration = Duration::from_millis(100);

/// A batch made ready, or under way.
pub(super) struct Job<T: Target> {
    pub(super) batch: Batch,
    pub(super) prepared: T::Prepared,
    pub(super) slot: OwnedSemaphorePermit,
}

/// A batch that is done, and since when it was worked on.
pub(super) struct Settled {
    pub(super) outcome: Outcome,
    pub(super) batch: Batch,
    pub(super) began: Instant,
}

/// Attempts at one batch.
pub(super) struct Attempts<T> {
    pub(super) target: Arc<T>,
    pub(super) claim: Claim,
    pub(super) parked: Arc<ParkedKeys>,
    pub(super) stop: CancellationToken,
    pub(super) outage: Outage,
}

impl<T: Target> Attempts<T> {
    /// Attempts until it is done, or cannot be. `None` if the stop came between two attempts.
    pub(super) async fn run(mut self, job: Job<T>) -> Result<Option<Settled>, Error> {
        let (mut backoff, began) = (Backoff::new(), Instant::now());
        let Job { mut batch, mut prepared, slot } = job;
        let mut slot = Some(slot);
        loop {
            let failure = match self.target.apply(&self.claim, &batch, &prepared, &self.parked).await {
                Ok(Outcome::Part(progress, error)) => {
                    batch = batch.behind(progress);
                    prepared = self.target.prepare(&self.claim.partition, &batch, &self.parked)?;
                    error
                }
                Ok(Outcome::Waits) => {
                    self.outage.over();
                    // The others may need it to come here.
                    slot = None;
                    if self.stop.run_until_cancelled(tokio::time::sleep(MEET_EVERY)).await.is_none() {
                        return Ok(None);
                    }
                    continue;
                }
                Ok(outcome) => {
                    self.outage.over();
                    drop(slot);
                    return Ok(Some(Settled { outcome, batch, began }));
                }
                Err(error) => error,
            };
            if !failure.is_transient() {
                return Err(failure);
            }
            self.outage.failed(&failure);
            if !backoff.wait(&self.stop).await {
                return Ok(None);
            }
        }
    }
}
