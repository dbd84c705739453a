//! What a batch can be applied to: something that keeps our progress together with what it speaks of.
//!
//!     claim ──▶ prepare (pure, while the batch before is under way) ──▶ apply ──▶ Outcome

use crate::batch::{Batch, Progress};
use crate::error::Error;
use crate::parked::{Parked, ParkedKeys};
use crate::record::Partition;

/// A place that keeps progress and applies batches in one step with it.
pub(crate) trait Target: Send + Sync + 'static {
    /// A batch made ready: everything that needs no connection is done.
    type Prepared: Send + Sync + 'static;

    /// Whether missing progress means a loss where Kafka knows an offset of the group.
    const ASKS_KAFKA: bool;

    /// Takes the partition over: whoever had it cannot write any more. Waits for what he has under way. `kafka` is the
    /// offset that Kafka knows of the group, for those that ask.
    fn claim(&self, partition: &Partition, kafka: Option<i64>) -> impl Future<Output = Result<Claimed, Error>> + Send;

    /// Decides what a batch comes to.
    fn prepare(&self, partition: &Partition, batch: &Batch, parked: &ParkedKeys) -> Result<Self::Prepared, Error>;

    /// Looks anew at what the target is like, after [`prepare`](Target::prepare) found that an event does not fit.
    fn refresh(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Applies a batch and its progress, or nothing.
    fn apply(
        &self,
        claim: &Claim,
        batch: &Batch,
        prepared: &Self::Prepared,
        parked: &ParkedKeys,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// The keys of a partition of ours that stand still by now: others may have let some of them go on.
    fn standing(&self, partition: &Partition) -> impl Future<Output = Result<ParkedKeys, Error>> + Send;

    /// Leaves word beside the progress of what keeps the partition from going on.
    fn report(&self, claim: &Claim, problem: &str) -> impl Future<Output = ()> + Send;
}

/// The right to write a partition's progress, until somebody else claims it.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) partition: Partition,
    pub(crate) number: i64,
}

/// What a new owner finds.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) claim: Claim,
    pub(crate) progress: Progress,
    pub(crate) parked: ParkedKeys,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is done.
    Done(Done),
    /// It waits for other partitions to come to the same event, and is to be tried again. Nothing of it was written.
    Waits,
    /// A part of it is done; the rest met this.
    Part(Progress, Error),
    /// Somebody else owns the partition now. Nothing was written.
    Lost,
}

/// What was done of a batch.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) applied: u64,
    /// Partial updates of rows that a load will bring, and records that say nothing to this target.
    pub(crate) skipped: u64,
    pub(crate) parked: Vec<Parked>,
    /// The answer to an earlier attempt was lost, so the parked keys must be read again.
    pub(crate) unsure: bool,
}
