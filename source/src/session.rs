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
    /// Something that the session needs has failed.
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

/// Runs one session. `streaming` is called once, when it begins to publish.
pub async fn run(
    config: &Config,
    kafka: &kafka::Config,
    prefix: &str,
    stop: &CancellationToken,
    streaming: impl FnOnce(),
) -> Result<(), Error> {
    // Everything that belongs to this session ends with it, however it ends.
    let session = stop.child_token();
    let _guard = session.clone().drop_guard();
    let early = match state(kafka, prefix, stop).await? {
        Some(state) => state,
        None => {
            start::first(config, kafka, prefix, stop).await?;
            state(kafka, prefix, stop).await?.ok_or(Error::Stopped)?
        }
    };
    let client = postgres::connect(&config.postgres, "source").await?;
    let survey = setup::survey(&client, config).await?;
    check_survey(config, &survey, &early)?;

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

    let publisher = fence(kafka, prefix, stop).await?;
    let mut state = state(kafka, prefix, stop).await?.ok_or(Error::Stopped)?;
    let slot =
        setup::slot(&client, &config.slot).await?.ok_or_else(|| Error::SlotGone { slot: config.slot.clone() })?;
    start::check_server(config, &mut state, &identified.system, &identified.switches, slot.confirmed)?;
    start::check_tables(config, &state, &survey.tables)?;
    let limits = topics::check(&Admin::connect(kafka)?, &state).await?;

    let client = Arc::new(client);
    let helpers = Helpers::start(config, &survey, &state, &client, &inputs, &session).await?;
    let runtime = tokio::runtime::Handle::current();
    let catalog = Blocking { runtime, client, stop: session.clone() };
    let feed = Feed::new(start::label(config), state, slot.confirmed, config.touch_bytes_max, Box::new(catalog));
    let work = Loop {
        feed,
        shared,
        state_topic: topic::of_state(prefix),
        transaction_bytes_max: config.transaction_bytes_max,
        waiting: HashMap::new(),
        committed: Lsn::ZERO,
        settled_at: Instant::now(),
    };
    let stopping = stop.clone();
    tracing::info!(slot = %config.slot, confirmed = %slot.confirmed, "streaming");
    streaming();
    let (ended, end) = oneshot::channel();
    let run = move || drop(ended.send(work.run(publisher, &limits, received, &stopping)));
    std::thread::Builder::new().name("publisher".into()).spawn(run).map_err(Error::Thread)?;
    let ended = end.await.map_err(|_| Error::Stopped)?;
    drop(helpers);
    ended
}

async fn state(kafka: &kafka::Config, prefix: &str, stop: &CancellationToken) -> Result<Option<State>, Error> {
    let (kafka, prefix, stop) = (kafka.clone(), prefix.to_owned(), stop.clone());
    let read = move || start::read_state(&kafka, &prefix, &|| stop.is_cancelled());
    tokio::task::spawn_blocking(read).await.map_err(|_| Error::Stopped)?
}

/// Steps 1 and 2 are in this order: the slot decides who may fence.
async fn fence(kafka: &kafka::Config, prefix: &str, stop: &CancellationToken) -> Result<Publisher, Error> {
    let (kafka, id, stop) = (kafka.clone(), start::transactional_id(prefix), stop.clone());
    let init = move || {
        let mut publisher = Publisher::connect(&kafka, &id)?;
        publisher.init(&|| stop.is_cancelled())?;
        Ok(publisher)
    };
    tokio::task::spawn_blocking(init).await.map_err(|_| Error::Stopped)?
}

fn check_survey(config: &Config, survey: &Survey, state: &State) -> Result<(), Error> {
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
        client: &Arc<postgres::Client>,
        inputs: &Sender<Input>,
        session: &CancellationToken,
    ) -> Result<Helpers, Error> {
        let mut helpers = Vec::new();
        let observer = postgres::connect(&config.postgres, "observer").await?;
        helpers.push(tokio::spawn(report(inputs.clone(), observe(observer, inputs.clone()))).abort_handle());
        let tasks = tasks(state);
        if !tasks.is_empty() {
            let messages = Messages::prepare(client.clone(), &start::message_prefix(&config.slot)).await?;
            let settings = snapshot::Settings {
                publication: config.publication.clone(),
                version: survey.version,
                chunk_bytes_max: config.chunk_bytes_max,
                chunk_rows_max: config.chunk_rows_max,
                database: config.postgres.database.clone(),
            };
            let reader = postgres::connect(&config.postgres, "snapshot").await?;
            let reader = snapshot::Reader::new(reader, messages, inputs.clone(), settings);
            helpers.push(tokio::spawn(report(inputs.clone(), reader.run(tasks))).abort_handle());
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

/// What fails in a task ends the session.
async fn report(inputs: Sender<Input>, task: impl Future<Output = Result<(), Error>>) {
    if let Err(error) = task.await {
        // The loop may have ended by itself.
        let _ = inputs.send(Input::Failed(error));
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
                Ok(Input::Stop) => {
                    if self.feed.urgency() > Urgency::None {
                        self.settle(&mut transaction)?;
                    }
                    return Ok(());
                }
                Ok(input) => self.take(input, &mut transaction)?,
                Err(RecvTimeoutError::Timeout) if self.feed.urgency() > Urgency::None => {
                    self.settle(&mut transaction)?
                }
                Err(RecvTimeoutError::Timeout) => self.confirm(),
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Stopped),
            }
            if transaction.is_due(self.transaction_bytes_max) {
                self.settle(&mut transaction)?;
            }
        }
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
                    if transaction.is_due(self.transaction_bytes_max) {
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

    /// Commits what was sent together with where that leaves us. Only then may it be confirmed and told.
    fn settle(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        let received = self.feed.received();
        let records = self.feed.take_records();
        transaction.settle(&self.state_topic, records)?;
        self.committed = received;
        self.settled_at = Instant::now();
        self.confirm();
        for (id, outcome) in self.feed.take_outcomes() {
            self.answer(id, outcome);
        }
        Ok(())
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
