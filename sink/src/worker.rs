//! One partition of one group. Nobody else knows how far it is, so nobody else can be wrong about it.
//!
//!     claim ──▶ where to begin ──▶ check the first record ──▶ ┌ take ──▶ prepare ──▶ apply ┐ until revoked
//!                                                             └─────── next batch ─────────┘
//!
//! While one batch is under way the next is made ready, once there is enough for a full one. What may pass is tried again
//! for ever, in order; meanwhile records wait in memory up to the budget, and the consumer pauses the partition.

mod attempts;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use kafka::admin::Admin;
use service::retry::Outage;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::batch::{Backlog, Batch, Limits, Progress};
use crate::config::Group;
use crate::consumer::{Command, GRACE};
use crate::error::Error;
use crate::measure;
use crate::parked::ParkedKeys;
use crate::persist::persist;
use crate::record::{Partition, Segment};
use crate::target::{Claim, Claimed, Done, Outcome, Target};
use attempts::{Attempts, Job, Settled};

/// How often it is asked whether keys that stand still may go on.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a partition that somebody else claimed is left alone, if Kafka still says that it is ours.
const YIELD: Duration = Duration::from_secs(10);

/// Who is told when something was parked.
#[derive(Debug, Default)]
pub(crate) struct Parkings {
    pub(crate) mirror: Notify,
    pub(crate) resolver: Notify,
}

impl Parkings {
    fn tell(&self) {
        self.mirror.notify_one();
        self.resolver.notify_one();
    }
}

/// What all workers of a group share.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    pub(crate) config: Group,
    pub(crate) group_id: String,
    pub(crate) target: Arc<T>,
    pub(crate) admin: Arc<Admin>,
    pub(crate) commands: std::sync::mpsc::Sender<Command>,
    /// Batches in memory at once: as many as connections, and as many made ready.
    pub(crate) slots: Arc<Semaphore>,
    /// Told when something was parked.
    pub(crate) parked: Arc<Parkings>,
}

/// The worker of one partition.
pub(crate) struct Worker<T> {
    pub(crate) shared: Arc<Shared<T>>,
    pub(crate) partition: Partition,
    pub(crate) stop: CancellationToken,
    pub(crate) done: Arc<AtomicI64>,
}

/// Why a worker lets go of its claim.
enum Left {
    Stopped,
    /// Somebody else claimed the partition.
    Lost,
    /// What the target holds must be read again.
    Unsure,
}

/// A partition that is claimed.
struct Claimant<'w, T: Target> {
    worker: &'w Worker<T>,
    claim: Claim,
    parked: Arc<ParkedKeys>,
    /// When the target was last asked for them.
    looked: Instant,
    progress: Progress,
    /// Whether the first record was looked at.
    checked: bool,
    backlog: Backlog,
    ready: Option<Job<T>>,
    under_way: Option<JoinHandle<Result<Option<Settled>, Error>>>,
    /// What is under way is a control event, and may wait for the other partitions: these need the room that the next batch
    /// would take.
    may_wait: bool,
}

impl<T: Target> Worker<T> {
    /// Works until the partition is revoked, or something happens that a person must look at.
    pub(crate) async fn run(self) -> Result<(), Error> {
        loop {
            match self.own().await? {
                Left::Stopped => return Ok(()),
                Left::Unsure => {
                    tracing::debug!(partition = %self.partition, "beginning anew from what the target holds")
                }
                Left::Lost => {
                    tracing::warn!(group = %self.shared.config.name, partition = %self.partition, "another process claimed the partition, nothing was written");
                    if self.stop.run_until_cancelled(tokio::time::sleep(YIELD)).await.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn own(&self) -> Result<Left, Error> {
        let Some(claimed) = self.claim().await? else { return Ok(Left::Stopped) };
        let Claimed { claim, progress, parked } = claimed;
        let owner = claim.clone();
        let ended = match self.begin(&progress).await {
            Ok(None) => Ok(Left::Stopped),
            Ok(Some(segments)) => self.claimant(claim, progress, parked).run(segments).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &ended {
            let problem = service::chain(error).to_string();
            self.shared.target.report(&owner, &problem).await;
        }
        ended
    }

    fn claimant(&self, claim: Claim, progress: Progress, parked: ParkedKeys) -> Claimant<'_, T> {
        self.done.store(progress.next_offset, Ordering::Relaxed);
        Claimant {
            worker: self,
            claim,
            parked: Arc::new(parked),
            looked: Instant::now(),
            progress,
            checked: false,
            backlog: Backlog::new(progress),
            ready: None,
            under_way: None,
            may_wait: false,
        }
    }

    /// Takes the partition over. `None` if we are to stop first.
    async fn claim(&self) -> Result<Option<Claimed>, Error> {
        let group = &self.shared.config.name;
        let partition = &self.partition;
        persist(format!("claim {partition} for group {group}"), &self.stop, || {
            Box::pin(async {
                let known = if T::ASKS_KAFKA { self.committed().await? } else { None };
                self.shared.target.claim(partition, known).await
            })
        })
        .await
    }

    /// The offset that Kafka knows of the group.
    async fn committed(&self) -> Result<Option<i64>, Error> {
        let Partition { topic, number } = &self.partition;
        let committed = self.shared.admin.committed(&self.shared.group_id, &[(&**topic, number + 1)]).await;
        let committed = committed.map_err(|cause| self.kafka(cause))?;
        Ok(committed.get(&(topic.to_string(), *number)).copied())
    }

    /// Has the consumer fetch from where this progress goes on.
    async fn begin(&self, progress: &Progress) -> Result<Option<mpsc::UnboundedReceiver<Segment>>, Error> {
        let partition = &self.partition;
        let offsets = persist(format!("read the offsets of {partition}"), &self.stop, || {
            Box::pin(async {
                let offsets = self.shared.admin.offsets(&partition.topic, partition.number + 1).await;
                offsets.map_err(|cause| self.kafka(cause))
            })
        });
        let Some(last) = offsets.await?.and_then(|mut offsets| offsets.pop()) else { return Ok(None) };
        if progress.seq.0 > 0 && progress.last_offset >= last.end {
            return Err(self.other_history(progress, format!("the partition ends at offset {}", last.end)));
        }
        // The last record that was done is read once more, to see that this is still the same topic.
        let offset = if progress.seq.0 > 0 { progress.last_offset.max(last.start) } else { last.start };
        let (segments, receiver) = mpsc::unbounded_channel();
        let start = Command::Start { partition: partition.clone(), offset, segments };
        // Without a receiver the consumer is gone, and the stop is on its way.
        let _gone = self.shared.commands.send(start);
        Ok(Some(receiver))
    }

    fn kafka(&self, cause: kafka::Error) -> Error {
        Error::Kafka { group: self.shared.config.name.clone(), cause }
    }

    fn other_history(&self, progress: &Progress, found: String) -> Error {
        Error::OtherHistory {
            group: self.shared.config.name.clone(),
            partition: self.partition.clone(),
            offset: progress.last_offset,
            seq: progress.seq,
            position: progress.position,
            found,
        }
    }
}

impl<T: Target> Claimant<'_, T> {
    async fn run(mut self, mut segments: mpsc::UnboundedReceiver<Segment>) -> Result<Left, Error> {
        loop {
            self.check()?;
            self.go_on().await?;
            tokio::select! {
                biased;
                () = self.worker.stop.cancelled() => return self.finish().await,
                settled = ended(&mut self.under_way) => {
                    self.under_way = None;
                    match settled? {
                        None => return Ok(Left::Stopped),
                        Some(settled) => if let Some(left) = self.settle(settled).await? {
                            return Ok(left);
                        },
                    }
                }
                segment = segments.recv() => match segment {
                    Some(segment) => self.backlog.push(segment),
                    // The consumer is gone.
                    None => return self.finish().await,
                },
            }
        }
    }

    /// The first record tells whether the topic is the one that the progress speaks of.
    fn check(&mut self) -> Result<(), Error> {
        if self.checked {
            return Ok(());
        }
        let progress = self.progress;
        while self.backlog.peek().is_some_and(|record| record.offset < progress.last_offset) {
            self.backlog.step();
        }
        let Some(record) = self.backlog.peek() else { return Ok(()) };
        if progress.seq.0 == 0 && record.seq.0 != 1 {
            let (group, partition) = (self.worker.shared.config.name.clone(), self.worker.partition.clone());
            return Err(Error::NeedsLoad { group, partition, found: record.seq });
        }
        if progress.seq.0 > 0 {
            // Retention may have removed the record that was done last, and then the one behind it comes first.
            let is_last = record.offset == progress.last_offset;
            let agrees = if is_last {
                (record.seq, record.position) == (progress.seq, progress.position)
            } else {
                record.seq == progress.seq.next() && record.position >= progress.position
            };
            if !agrees {
                let found = format!(
                    "record {} at {}, offset {}, comes first there now",
                    record.seq, record.position, record.offset
                );
                return Err(self.worker.other_history(&progress, found));
            }
            if is_last {
                self.backlog.step();
            }
        }
        self.checked = true;
        Ok(())
    }

    /// Makes the next batch ready if that is of use now, and sends one on its way if none is.
    async fn go_on(&mut self) -> Result<(), Error> {
        if self.under_way.is_none() && !self.parked.is_empty() && self.looked.elapsed() >= LOOK_EVERY {
            self.look_at_parked().await?;
        }
        let limits = self.limits();
        if self.ready.is_none() && !self.backlog.is_empty() {
            let slots = &self.worker.shared.slots;
            let slot = match self.under_way {
                Some(_) if self.may_wait || !self.backlog.fills(limits) => None,
                Some(_) => slots.clone().try_acquire_owned().ok(),
                None => self.worker.stop.run_until_cancelled(slots.clone().acquire_owned()).await.and_then(Result::ok),
            };
            if let Some(slot) = slot {
                self.ready = self.make_ready(slot, limits).await?;
            }
        }
        if self.under_way.is_none()
            && let Some(job) = self.ready.take()
        {
            self.send(job);
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        let config = &self.worker.shared.config;
        Limits { rows_max: config.batch_rows_max, bytes_max: config.batch_bytes_max }
    }

    async fn make_ready(&mut self, slot: OwnedSemaphorePermit, limits: Limits) -> Result<Option<Job<T>>, Error> {
        let partition = self.worker.partition.clone();
        let taken = self.backlog.take(limits).map_err(|cause| Error::Gap { partition, cause })?;
        let Some(batch) = taken else { return Ok(None) };
        let prepared = self.prepare(&batch).await?;
        Ok(prepared.map(|prepared| Job { batch, prepared, slot }))
    }

    /// An event that does not fit is looked at again with fresh eyes: the target may have changed since.
    async fn prepare(&self, batch: &Batch) -> Result<Option<T::Prepared>, Error> {
        let (worker, target) = (self.worker, &self.worker.shared.target);
        match target.prepare(&worker.partition, batch, &self.parked) {
            Err(error) if error.is_misfit() => {}
            prepared => return prepared.map(Some),
        }
        let what = "read the target's catalog".to_owned();
        if persist(what, &worker.stop, || Box::pin(target.refresh())).await?.is_none() {
            return Ok(None);
        }
        target.prepare(&worker.partition, batch, &self.parked).map(Some)
    }

    fn send(&mut self, job: Job<T>) {
        let attempts = Attempts {
            target: self.worker.shared.target.clone(),
            claim: self.claim.clone(),
            parked: self.parked.clone(),
            stop: self.worker.stop.clone(),
            outage: Outage::new(format!(
                "apply {} for group {}",
                self.worker.partition, self.worker.shared.config.name
            )),
        };
        self.may_wait = job.batch.control().is_some();
        self.under_way = Some(tokio::spawn(attempts.run(job)));
    }

    /// Takes note of a batch that is done. `Some` if the partition is not ours any more.
    async fn settle(&mut self, settled: Settled) -> Result<Option<Left>, Error> {
        let Settled { outcome, batch, began } = settled;
        let done = match outcome {
            Outcome::Done(done) => done,
            Outcome::Lost => return Ok(Some(Left::Lost)),
            Outcome::Part(_, error) => return Err(error),
            Outcome::Waits => unreachable!("attempts last until all are there"),
        };
        self.progress = batch.to;
        self.worker.done.store(batch.to.next_offset, Ordering::Relaxed);
        let config = &self.worker.shared.config;
        measure::batch(&config.name, &self.worker.partition, &batch, &done, began.elapsed());
        if done.unsure {
            // What the batch has parked only the target knows.
            return Ok(Some(Left::Unsure));
        }
        if !done.parked.is_empty() {
            self.park(&done).await?;
        }
        if batch.control().is_some() {
            // What was made ready meanwhile knew the tables as they were before.
            self.prepare_again().await?;
        }
        Ok(None)
    }

    async fn park(&mut self, done: &Done) -> Result<(), Error> {
        let mut keys = (*self.parked).clone();
        for parked in &done.parked {
            let (group, partition) = (&self.worker.shared.config.name, &self.worker.partition);
            let (offset, table, class) = (parked.offset, &parked.table, parked.class);
            if let Some(told) = &parked.told {
                tracing::warn!(%group, %partition, offset, %table, %class, "parked an event, and its key's later ones behind it: {told}");
            }
            keys.insert(parked.table.clone(), parked.key.clone(), parked.class);
        }
        self.parked = Arc::new(keys);
        self.worker.shared.parked.tell();
        self.prepare_again().await
    }

    /// Keys that stood still may go on, since they were resolved or by a person's word. Only we set aside more of them, so
    /// what we believe to stand still and does not is the worst that can be, and it is found with the next look.
    async fn look_at_parked(&mut self) -> Result<(), Error> {
        let worker = self.worker;
        let what = format!("read the parked keys of {}", worker.partition);
        let read = || Box::pin(worker.shared.target.standing(&worker.partition));
        if let Some(keys) = persist(what, &worker.stop, || read()).await? {
            (self.parked, self.looked) = (Arc::new(keys), Instant::now());
            self.prepare_again().await?;
        }
        Ok(())
    }

    /// A batch that was made ready before these keys stood still may hold events of theirs.
    async fn prepare_again(&mut self) -> Result<(), Error> {
        if let Some(job) = self.ready.take() {
            let prepared = self.prepare(&job.batch).await?;
            self.ready = prepared.map(|prepared| Job { prepared, ..job });
        }
        Ok(())
    }

    /// What is under way is finished before the partition is let go; what is not done in time is the next owner's.
    async fn finish(mut self) -> Result<Left, Error> {
        let Some(under_way) = self.under_way.take() else { return Ok(Left::Stopped) };
        match tokio::time::timeout(GRACE, ended(&mut Some(under_way))).await {
            Ok(Ok(Some(settled))) => self.settle(settled).await.map(|left| left.unwrap_or(Left::Stopped)),
            Ok(Ok(None)) | Err(_) => Ok(Left::Stopped),
            Ok(Err(error)) => Err(error),
        }
    }
}

/// The end of what is under way; never, if nothing is.
async fn ended(under_way: &mut Option<JoinHandle<Result<Option<Settled>, Error>>>) -> Result<Option<Settled>, Error> {
    match under_way {
        None => std::future::pending().await,
        Some(handle) => match handle.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(settled) => settled,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(Err(_)) => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests;
