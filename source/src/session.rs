//! One session: from taking the slot to the first failure. The loop that owns the feed, and everything that it talks to.
//!
//!     stream thread ──frames──┐                                    ┌─▶ Kafka transaction
//!     reader ──open, filled───┼──▶ inputs ──▶ loop (feed) ─────────┤
//!     observer ──snapshots────┘     (a thread)                     └─▶ confirmed LSN, outcomes of chunks
//!
//! I/O and waiting only; what an input means is the feed's to say. Any failure ends the session: nothing is aborted and
//! gone on with, since only what is committed is certain.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use kafka::admin::Admin;
use kafka::producer::{Publisher, Record};
use postgres::Frame;
use schemas::{Lsn, topic};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::catalog::{self, Blocking, Messages};
use crate::config::Config;
use crate::feed::{self, Feed, Outbox, Outcome, Urgency};
use crate::setup::{self, Survey};
use crate::state::State;
use crate::stream::{self, Shared};
use crate::visibility::Snapshot;
use crate::window::{Chunk, ChunkId};
use crate::{Error, snapshot, start, topics};

/// A Kafka transaction under backlog is committed at this age.
const TRANSACTION_AGE: Duration = Duration::from_millis(200);
/// When nothing is sent, the state follows the stream this often.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// How often it is asked which transactions are visible.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);
/// After a stop was asked for, an open transaction has this long to commit.
const GRACE: Duration = Duration::from_secs(10);

/// What reaches the loop.
#[derive(Debug)]
pub enum Input {
    /// Frames of the stream, and the bytes they count for.
    Frames(Vec<Frame>, usize),
    /// A fresh plain snapshot.
    Visible(Snapshot),
    /// A reader is about to read a chunk.
    Open {
        /// The chunk.
        id: ChunkId,
        /// Its table.
        oid: u32,
        /// Answered when touches are kept.
        opened: oneshot::Sender<()>,
        /// Answered when the chunk is committed, or must be read again.
        settled: oneshot::Sender<Outcome>,
    },
    /// A reader has read its chunk.
    Filled {
        /// The chunk.
        id: ChunkId,
        /// What it read.
        chunk: Chunk,
    },
    /// A reader gave up on a chunk.
    Close {
        /// The chunk.
        id: ChunkId,
    },
    /// Something that the session needs has failed. [`Error::Again`]: finish what is open, then begin again.
    Failed(Error),
    /// Finish what is open, then end.
    Stop,
}

/// The open Kafka transaction, begun with its first record.
pub struct Transaction<'p> {
    publisher: &'p mut Publisher,
    stop: &'p dyn Fn() -> bool,
    begun: Option<Instant>,
    bytes: usize,
    records: u64,
}

impl<'p> Transaction<'p> {
    /// None is open yet.
    pub fn new(publisher: &'p mut Publisher, stop: &'p dyn Fn() -> bool) -> Transaction<'p> {
        Transaction { publisher, stop, begun: None, bytes: 0, records: 0 }
    }

    /// Adds the state's records and commits.
    pub fn settle(&mut self, topic: &str, state: Vec<(String, Option<Vec<u8>>)>) -> Result<(), Error> {
        for (key, value) in &state {
            self.add(&Record {
                topic,
                partition: 0,
                key: Some(key.as_bytes()),
                value: value.as_deref(),
                headers: &[],
            })?;
        }
        self.publisher.commit(self.stop)?;
        metrics::counter!("tributary_source_records_total").increment(self.records);
        metrics::counter!("tributary_source_commits_total").increment(1);
        (self.begun, self.bytes, self.records) = (None, 0, 0);
        Ok(())
    }

    fn is_due(&self, bytes_max: usize) -> bool {
        self.bytes >= bytes_max || self.begun.is_some_and(|begun| begun.elapsed() >= TRANSACTION_AGE)
    }

    fn add(&mut self, record: &Record<'_>) -> Result<(), Error> {
        if self.begun.is_none() {
            self.publisher.begin()?;
            self.begun = Some(Instant::now());
        }
        self.publisher.send(record, self.stop)?;
        self.bytes += record.size();
        Ok(())
    }
}

impl Outbox for Transaction<'_> {
    fn send(&mut self, record: feed::Record<'_>) -> Result<(), Error> {
        let feed::Record { topic, partition, key, value, headers } = record;
        self.records += 1;
        self.add(&Record { topic, partition, key, value, headers })
    }
}

/// How far a session has come, for whoever judges outages by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Server and brokers answered, and nothing stood in the way.
    Ready,
    /// It streams.
    Streaming,
    /// Something was committed: whatever was wrong before is over.
    Committed,
}

/// Runs one session. `reached` is told of each phase as it begins.
pub async fn run(
    config: &Config,
    kafka: &kafka::Config,
    prefix: &str,
    stop: &CancellationToken,
    mut reached: impl FnMut(Phase),
) -> Result<(), Error> {
    // Everything that belongs to this session ends with it, however it ends.
    let session = stop.child_token();
    let _guard = session.clone().drop_guard();
    let early = match start::state(kafka, prefix, stop).await? {
        Some(state) => state,
        None => start::first(config, kafka, prefix, stop).await?,
    };
    let client = postgres::connect(&config.postgres, "source").await?;
    let survey = setup::survey(&client, config).await?;
    check_survey(config, &survey, &early)?;
    reached(Phase::Ready);

    let (inputs, received) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let settings = stream::Settings {
        postgres: config.postgres.clone(),
        slot: config.slot.clone(),
        publications: early.stream.publications.clone(),
        buffer_bytes_max: config.buffer_bytes_max,
    };
    let identified = stream::spawn(settings, shared.clone(), inputs.clone(), session.clone()).map_err(Error::Thread)?;
    let identified = identified.await.map_err(|_| Error::Stopped)??;
    start::check_identity(config, prefix, &early, &identified.system, &identified.switches)?;
    // Nobody at the other end means that the thread was told to stop.
    identified.go.send(()).map_err(|()| Error::Stopped)?;
    identified.started.await.map_err(|_| Error::Stopped)??;

    // Steps 1 and 2 are in this order: the slot decides who may fence.
    let publisher = start::fence(kafka, prefix, stop).await?;
    let mut state = start::state(kafka, prefix, stop).await?.ok_or(Error::Stopped)?;
    let slot =
        setup::slot(&client, &config.slot).await?.ok_or_else(|| Error::SlotGone { slot: config.slot.clone() })?;
    // Asked only now: while we waited for the slot, the one who held it went on.
    let end = setup::wal_end(&client).await?;
    start::check_server(config, &mut state, &identified.system, &identified.switches, slot.confirmed, end)?;
    start::check_tables(config, &state, &survey.tables)?;
    let limits = topics::check(&Admin::connect(kafka)?, &topic::of_state(prefix), &state).await?;

    let client = Arc::new(client);
    let helpers = Helpers::start(config, &survey, &state, &inputs, &session).await?;
    let runtime = tokio::runtime::Handle::current();
    let catalog = Blocking { runtime, client, stop: session.clone() };
    let (first_commit, committed) = oneshot::channel();
    let feed = Feed::new(start::label(config), state, slot.confirmed, config.touch_bytes_max, Box::new(catalog));
    let work = Loop {
        feed,
        shared,
        state_topic: topic::of_state(prefix),
        transaction_bytes_max: config.transaction_bytes_max,
        waiting: HashMap::new(),
        committed: Lsn::ZERO,
        settled_at: Instant::now(),
        urgent_since: None,
        first_commit: Some(first_commit),
    };
    let stopping = session.clone();
    tracing::info!(slot = %config.slot, confirmed = %slot.confirmed, "streaming");
    reached(Phase::Streaming);
    let (ended, mut end) = oneshot::channel();
    let run = move || drop(ended.send(work.run(publisher, &limits, received, &stopping)));
    std::thread::Builder::new().name("publisher".into()).spawn(run).map_err(Error::Thread)?;
    let died = |_| Error::Panicked("the publisher");
    let ended = tokio::select! {
        ended = &mut end => ended.map_err(died)?,
        committed = committed => {
            if committed.is_ok() {
                reached(Phase::Committed);
            }
            end.await.map_err(died)?
        }
    };
    drop(helpers);
    ended
}

fn check_survey(config: &Config, survey: &Survey, state: &State) -> Result<(), Error> {
    // A failover may be under way: what a standby shows of slots and tables proves nothing.
    if survey.standby {
        return Err(Error::Standby(config.postgres.display()));
    }
    if survey.slot.is_none() {
        return Err(Error::SlotGone { slot: config.slot.clone() });
    }
    let mut faults = survey.faults.clone();
    // With a state there has been a publication: what it lost meanwhile was not sent, and nothing may hide that.
    faults.extend(survey.publication.iter().map(|statement| {
        format!("the publication lost tables since {} was written; changes made meanwhile are missing: load again under a new prefix (it would be mended by {statement})", state.stream.position)
    }));
    if faults.is_empty() { Ok(()) } else { Err(Error::Unready(faults)) }
}

/// Tasks that feed the loop, ended when this is dropped.
struct Helpers(Vec<AbortHandle>);

impl Drop for Helpers {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Helpers {
    async fn start(
        config: &Config,
        survey: &Survey,
        state: &State,
        inputs: &Sender<Input>,
        session: &CancellationToken,
    ) -> Result<Helpers, Error> {
        let mut helpers = Vec::new();
        let observer = postgres::connect(&config.postgres, "observer").await?;
        let observe = observe(observer, inputs.clone());
        helpers.push(tokio::spawn(report("the observer", inputs.clone(), session.clone(), observe)).abort_handle());
        let tasks = tasks(state);
        if !tasks.is_empty() {
            let markers = postgres::connect(&config.postgres, "markers").await?;
            let messages = Messages::prepare(markers, &start::message_prefix(&config.slot)).await?;
            let settings = snapshot::Settings {
                publication: config.publication.clone(),
                version: survey.version,
                chunk_bytes_max: config.chunk_bytes_max,
                chunk_rows_max: config.chunk_rows_max,
                database: config.postgres.database.clone(),
            };
            let reader = postgres::connect(&config.postgres, "snapshot").await?;
            let reader = snapshot::Reader::new(reader, messages, inputs.clone(), settings);
            let read = reader.run(tasks);
            helpers.push(tokio::spawn(report("the reader", inputs.clone(), session.clone(), read)).abort_handle());
        }
        let (stopped, inputs) = (session.clone(), inputs.clone());
        let forward = async move {
            stopped.cancelled().await;
            // The loop may have ended by itself.
            let _ = inputs.send(Input::Stop);
        };
        helpers.push(tokio::spawn(forward).abort_handle());
        Ok(Helpers(helpers))
    }
}

/// The tables that a load has not finished.
fn tasks(state: &State) -> Vec<snapshot::Task> {
    let of_load = |(id, load): (&str, &schemas::state::Load)| {
        let id = id.to_owned();
        let task = move |oid: &u32| {
            let name = state.table(*oid)?.name.clone();
            Some(snapshot::Task { oid: *oid, name, done: state.load_table(&id, *oid).cloned().unwrap_or_default() })
        };
        load.tables.iter().filter_map(task).collect::<Vec<_>>()
    };
    state.loads().flat_map(of_load).collect()
}

/// What fails in a task ends the session, at once: the loop may be waiting for Kafka, and a server that shuts down waits
/// for our connection to close.
async fn report(
    part: &'static str,
    inputs: Sender<Input>,
    session: CancellationToken,
    task: impl Future<Output = Result<(), Error>>,
) {
    let _watch = Watch { part, inputs: inputs.clone() };
    if let Err(error) = task.await {
        // The loop may have ended by itself.
        let _ = inputs.send(Input::Failed(error));
        session.cancel();
    }
}

/// Tells the loop of a part that dies of its own mistake: without it the source would stand still and look healthy.
pub struct Watch {
    /// What dies.
    pub part: &'static str,
    /// To the loop.
    pub inputs: Sender<Input>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The loop may have ended by itself.
            let _ = self.inputs.send(Input::Failed(Error::Panicked(self.part)));
        }
    }
}

async fn observe(client: postgres::Client, inputs: Sender<Input>) -> Result<(), Error> {
    let mut tick = tokio::time::interval(OBSERVE_EVERY);
    loop {
        tick.tick().await;
        let snapshot = catalog::snapshot(&client).await?;
        if inputs.send(Input::Visible(snapshot)).is_err() {
            return Ok(());
        }
    }
}

/// What the loop owns.
struct Loop {
    feed: Feed,
    shared: Arc<Shared>,
    state_topic: String,
    transaction_bytes_max: usize,
    waiting: HashMap<ChunkId, oneshot::Sender<Outcome>>,
    /// What this session has in a committed state record.
    committed: Lsn,
    settled_at: Instant,
    /// Since when something waits to be settled.
    urgent_since: Option<Instant>,
    /// Told of the first commit.
    first_commit: Option<oneshot::Sender<()>>,
}

impl Loop {
    fn run(
        mut self,
        mut publisher: Publisher,
        limits: &std::collections::BTreeMap<String, usize>,
        inputs: Receiver<Input>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        for (topic, bytes) in limits {
            publisher.limit(topic, *bytes)?;
        }
        let stopping = std::cell::OnceCell::new();
        let given_up = || stop.is_cancelled() && stopping.get_or_init(Instant::now).elapsed() > GRACE;
        let mut transaction = Transaction::new(&mut publisher, &given_up);
        loop {
            let next = match self.feed.urgency() {
                Urgency::Now => inputs.try_recv().map_err(|error| match error {
                    mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
                    mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
                Urgency::Idle => inputs.recv_timeout(IDLE_EVERY.saturating_sub(self.settled_at.elapsed())),
                Urgency::None => inputs.recv_timeout(IDLE_EVERY),
            };
            match next {
                // The session ends; why stands in front of it in the queue, unless a person asked.
                Ok(Input::Stop) => return self.finish(&mut transaction),
                Ok(Input::Failed(error @ Error::Again(_))) => {
                    return self.finish(&mut transaction).and(Err(error));
                }
                Ok(input) => self.take(input, &mut transaction)?,
                Err(RecvTimeoutError::Timeout) if self.feed.urgency() > Urgency::None => {
                    self.settle(&mut transaction)?
                }
                Err(RecvTimeoutError::Timeout) => self.confirm(),
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Stopped),
            }
            if transaction.is_due(self.transaction_bytes_max) || self.is_overdue() {
                self.settle(&mut transaction)?;
            }
        }
    }

    /// The session ends on purpose: what it has is committed.
    fn finish(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        if self.feed.urgency() > Urgency::None { self.settle(transaction) } else { Ok(()) }
    }

    /// Under a backlog that holds nothing of ours no record is sent, and yet somebody may wait for where we are.
    fn is_overdue(&mut self) -> bool {
        let patience = match self.feed.urgency() {
            Urgency::None => return false,
            Urgency::Idle => IDLE_EVERY,
            Urgency::Now => TRANSACTION_AGE,
        };
        self.urgent_since.get_or_insert_with(Instant::now).elapsed() >= patience
    }

    fn take(&mut self, input: Input, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        match input {
            Input::Frames(frames, bytes) => {
                let now_ms = start::now_ms();
                for frame in frames {
                    match frame {
                        Frame::Data { start, payload, .. } => self.feed.data(start, &payload, now_ms, transaction)?,
                        Frame::Keepalive { end, .. } => self.feed.keepalive(end)?,
                    }
                    if self.feed.ending().is_some() || transaction.is_due(self.transaction_bytes_max) {
                        self.settle(transaction)?;
                    }
                }
                self.shared.release(bytes);
            }
            Input::Visible(snapshot) => {
                self.feed.visible(&snapshot);
                self.confirm();
            }
            Input::Open { id, oid, opened, settled } => {
                self.feed.open_window(id, oid);
                self.waiting.insert(id, settled);
                // A reader that is gone opens no chunk.
                let _ = opened.send(());
            }
            Input::Filled { id, chunk } => {
                if !self.feed.fill_window(id, chunk) {
                    self.answer(id, Outcome::Again("the window was given up"));
                }
            }
            Input::Close { id } => {
                self.feed.close_window(id);
                self.waiting.remove(&id);
            }
            Input::Failed(error) => return Err(error),
            Input::Stop => {}
        }
        Ok(())
    }

    /// Commits what was sent together with where that leaves us. Only then may it be confirmed and told, and the session
    /// end where the feed wants another.
    fn settle(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        let received = self.feed.received();
        let records = self.feed.take_records();
        transaction.settle(&self.state_topic, records)?;
        self.committed = received;
        self.settled_at = Instant::now();
        self.urgent_since = None;
        if let Some(first_commit) = self.first_commit.take() {
            // Nobody has to listen.
            let _ = first_commit.send(());
        }
        self.confirm();
        for (id, outcome) in self.feed.take_outcomes() {
            self.answer(id, outcome);
        }
        self.feed.ending().map_or(Ok(()), |why| Err(Error::Again(why.to_owned())))
    }

    fn confirm(&self) {
        if let Some(lsn) = self.feed.confirmable(self.committed) {
            self.shared.confirm(lsn);
        }
    }

    fn answer(&mut self, id: ChunkId, outcome: Outcome) {
        if let Some(reader) = self.waiting.remove(&id) {
            // A reader that is gone needs no answer.
            let _ = reader.send(outcome);
        }
    }
}
