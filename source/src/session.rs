//! One session: from taking the slot to the first failure. Everything that the loop talks to, and its end.
//!
//!     stream thread ──frames──┐                                    ┌─▶ Kafka transaction
//!     reader ──open, filled───┼──▶ inputs ──▶ loop (feed) ─────────┤
//!     observer ──snapshots────┘     (a thread)                     └─▶ confirmed LSN, outcomes of chunks
//!
//! I/O and waiting only. Any failure ends the session: nothing is aborted and gone on with, since only what is committed is
//! certain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use kafka::admin::Admin;
use postgres::{Frame, Prepared};
use schemas::state::Hindrance;
use schemas::{Lsn, topic};
use service::failpoint;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Blocking, Messages};
use crate::columns::ByOid;
use crate::config::Config;
use crate::feed::{BEAT, Feed, Label, NextList, Outcome};
use crate::keeper::{Seen, Unusable};
use crate::keys::Named;
use crate::lists::ListId;
use crate::reread::Reread;
use crate::setup::{self, Survey};
use crate::snapshot::{Order, Task, Work};
use crate::state::State;
use crate::stream::{self, Shared};
use crate::visibility::Snapshot;
use crate::window::{Chunk, ChunkId};
use crate::{Error, command, keeper, relist, snapshot, start, topics};

mod publisher;
mod watcher;

use publisher::Loop;
pub use publisher::Transaction;
use watcher::Watcher;

/// How often it is asked which transactions are visible.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);
/// How long the last look at what is visible may take.
const LAST_LOOK_MAX: Duration = Duration::from_secs(1);

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
        /// Whether it is of a list of keys.
        is_list: bool,
        /// Answered when touches are kept, with the transactions that were streamed and are not known to be visible.
        opened: oneshot::Sender<Vec<u32>>,
        /// Answered when the chunk is committed, or must be read again.
        settled: oneshot::Sender<Verdict>,
    },
    /// A reader has read its chunk.
    Filled {
        /// The chunk.
        id: ChunkId,
        /// What it read.
        chunk: Box<Chunk>,
    },
    /// A reader gave up on a chunk.
    Close {
        /// The chunk.
        id: ChunkId,
    },
    /// A load does not go on with a table, until its next chunk.
    Hindered {
        /// The load.
        load: String,
        /// The table.
        oid: u32,
        /// Why.
        hindrance: Hindrance,
    },
    /// Another list is to follow, at the message with this id.
    List {
        /// The list's.
        id: ListId,
        /// What is published from there on.
        next: NextList,
    },
    /// The watch has looked at the catalog.
    Watched {
        /// What it saw.
        seen: crate::watch::Seen,
        /// Answered with the tables that need a place in the stream.
        places: oneshot::Sender<Vec<u32>>,
    },
    /// Something that the session needs has failed. [`Error::Again`]: finish what is open, then begin again.
    Failed(Error),
    /// Finish what is open, then end.
    Stop,
}

/// What the loop has done with a chunk.
#[derive(Debug)]
pub struct Verdict {
    /// What became of it.
    pub outcome: Outcome,
    /// How long it took to hand its rows to Kafka's client.
    pub sent_in: Duration,
    /// How long the stream waited for it in all, beyond what a commit takes anyway.
    pub took: Duration,
    /// Whether the stream has brought nothing else since the chunk before: then nobody waited.
    pub is_alone: bool,
}

/// How far a session has come, for whoever judges outages by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Server and brokers answered, and nothing stood in the way.
    Ready,
    /// The tables of the configuration are those of the state: no other list is on its way.
    Listed,
    /// It streams.
    Streaming,
    /// Something was committed: whatever was wrong before is over.
    Committed,
}

/// Runs one session. `reached` is told of each phase as it begins.
pub async fn run(
    config: &Config,
    reread: &Reread,
    kafka: &kafka::Config,
    prefix: &str,
    seen: &watch::Sender<Seen>,
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
    let (client, here) = postgres::connect_at(&config.postgres, "source").await?;
    // All of a session is of one server: while a failover is under way, two may call themselves the primary.
    let config = &Config { postgres: here, ..config.clone() };
    let (inputs, received) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let settings = stream::Settings {
        postgres: config.postgres.clone(),
        slot: config.slot.clone(),
        publications: early.stream.publications.clone(),
        since: early.stream.since.unwrap_or(Lsn::ZERO),
        buffer_bytes_max: config.buffer_bytes_max,
    };
    let settling = shared.settling();
    let stream = stream::spawn(settings, shared.clone(), inputs.clone(), session.clone()).map_err(Error::Thread)?;
    let identified = stream.identified.await.map_err(|_| Error::Stopped)??;
    start::check_identity(config, prefix, &early, &identified.system, &identified.switches)?;
    // Only of the right server: what another one lacks is no fault of its own.
    let timeline = identified.system.timeline;
    let mut survey = survey(&client, config, &early, timeline).await?;
    start::check_slot(config, &survey, &early, timeline)?;
    let mut look = relist::look(&client, config, prefix, &early, &survey).await?;
    reached(Phase::Ready);
    // Nobody at the other end means that the thread was told to stop.
    let go =
        stream::Go { make_failover: config.failover && survey.slot.as_ref().is_some_and(|slot| !slot.is_failover) };
    identified.go.send(go).map_err(|_| Error::Stopped)?;
    let started = identified.started.await.map_err(|_| Error::Stopped)?;
    started.map_err(|error| match error {
        postgres::Error::SlotMissing { slot } => Error::SlotGone { slot },
        error => error.into(),
    })?;
    failpoint::reach_in_task("slot-taken").await?;

    // Steps 1 and 2 are in this order: the slot decides who may fence.
    let publisher = start::fence(kafka, prefix, stop).await?;
    failpoint::reach_in_task("fenced").await?;
    let mut state = start::state(kafka, prefix, stop).await?.ok_or(Error::Stopped)?;
    failpoint::reach_in_task("state-read").await?;
    let confirmed = keeper::confirmed(&client, &config.slot).await?;
    // Asked only now: while we waited for the slot, the one who held it went on.
    let end = setup::wal_end(&client).await?;
    if state.stream != early.stream {
        // Whoever held the slot while we waited for it has gone on, and may have gone over to another list.
        let list = |state: &State| (state.stream.publications.clone(), state.stream.since);
        if list(&state) != list(&early) {
            return Err(Error::Again("the list of publications has changed meanwhile".into()));
        }
        survey = self::survey(&client, config, &state, timeline).await?;
        look = relist::look(&client, config, prefix, &state, &survey).await?;
    }
    start::check_server(config, &mut state, &identified.system, &identified.switches, confirmed, end)?;
    survey.remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    look.tell();
    if look.change.is_none() {
        reached(Phase::Listed);
    }
    let rules = start::rules(config, &survey, &state)?;
    let named = start::named_keys(&survey, &state);
    let admin = Admin::connect(kafka)?;
    let topics::Checked { limits, state_topic_id } = topics::check(&admin, &topic::of_state(prefix), &state).await?;

    state.keep_seal_key(command::new_seal_key);
    seen.send_replace(state.stream.flushed_ms.map(|at_ms| (state.stream.flushed, at_ms)));

    let leaving = look.change.as_ref().map(|change| change.removed().to_vec()).unwrap_or_default();
    let mut helpers = Helpers::start(config, &inputs, &shared, &session).await?;
    let orders = helpers.readers(config, (&survey, &state, &rules, &named), &inputs, &session);
    helpers.watch(config, &state, &named, &leaving, &inputs, &session).await?;
    let look_at_topics = topics::watch(admin, topic::of_state(prefix), state_topic_id, state.clone());
    helpers.add("the look at topics", look_at_topics, &inputs, &session);
    if let Some(change) = look.change {
        helpers.relist(change, &state, (config, kafka, prefix), &inputs, &session).await?;
    }
    let runtime = tokio::runtime::Handle::current();
    let catalog = Blocking { runtime, client: Prepared::new(client), named: named.clone(), stop: session.clone() };
    let (first_commit, committed) = oneshot::channel();
    let label = Label { rules, ..start::label(config, prefix) };
    let mut feed = Feed::new(label, state, confirmed, config.touch_bytes_max, Box::new(catalog));
    feed.lets_go(leaving);
    let settings = publisher::Settings {
        state_topic: topic::of_state(prefix),
        transaction_bytes_max: config.transaction_bytes_max,
        first_commit,
        orders,
        seen: seen.clone(),
        reread: Box::new({
            let (reread, config) = (reread.clone(), config.clone());
            move || reread.differs(&config)
        }),
    };
    let work = Loop::new(feed, shared, settings);
    let stopping = session.clone();
    tracing::info!(server = %config.postgres, slot = %config.slot, %confirmed, "streaming");
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
    // Whoever comes next finds the slot free, and confirmed as far as we got.
    drop(settling);
    session.cancel();
    let _ = stream.ended.await;
    ended
}

/// Looks at a server that was published from before.
async fn survey(client: &postgres::Client, config: &Config, state: &State, timeline: u32) -> Result<Survey, Error> {
    let survey = setup::survey(client, config).await?;
    // A failover may be under way: what a standby shows of slots and tables proves nothing.
    if survey.standby {
        return Err(Error::Standby(config.postgres.display()));
    }
    // Nothing else counts then.
    if survey.slot.is_none() {
        return Err(start::slot_missing(config, state, timeline));
    }
    match survey.unusable.clone() {
        Some(Unusable::Foreign(why)) => Err(Error::SlotForeign { slot: config.slot.clone(), why }),
        Some(Unusable::Lost(lost)) => Err(Error::SlotLost { slot: config.slot.clone(), lost }),
        None => Ok(survey),
    }
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
        inputs: &Sender<Input>,
        shared: &Arc<Shared>,
        session: &CancellationToken,
    ) -> Result<Helpers, Error> {
        let mut helpers = Helpers(Vec::new());
        let observer = postgres::connect(&config.postgres, "observer").await?;
        let observer = Arc::new(Messages::prepare(observer, &start::message_prefix(&config.slot)).await?);
        let observe = observe(observer.clone(), config.heartbeat, inputs.clone());
        helpers.add("the observer", observe, inputs, session);
        let end = end(observer, inputs.clone(), shared.clone(), session.clone());
        helpers.0.push(tokio::spawn(end).abort_handle());
        Ok(helpers)
    }

    /// What a load reads: first what the state still has to be read, then what is ordered.
    fn readers(
        &mut self,
        config: &Config,
        (survey, state, rules, named): (&Survey, &State, &ByOid, &Named),
        inputs: &Sender<Input>,
        session: &CancellationToken,
    ) -> UnboundedSender<Order> {
        let settings = snapshot::Settings {
            postgres: config.postgres.clone(),
            messages: start::message_prefix(&config.slot),
            // Chunks show what the stream shows.
            publication: state.stream.publications.first().cloned().unwrap_or_default(),
            version: survey.version,
            chunk_bytes_max: config.chunk_bytes_max,
            chunk_rows_max: config.chunk_rows_max,
            readers: config.snapshot_readers,
            rows_per_second_max: config.snapshot_rows_per_second_max,
            limits: config.snapshot_limits.clone(),
            statement_timeout: config.snapshot_statement_timeout,
            rules: rules.clone(),
            named: named.clone(),
        };
        let (orders, received) = unbounded_channel();
        for task in tasks(state) {
            // The other end is held here.
            let _ = orders.send(Order::Do(task));
        }
        let pool = snapshot::Pool::new(received, inputs.clone(), settings);
        self.add("the readers of the snapshot", pool.run(), inputs, session);
        orders
    }

    /// Catalog and state are compared, for the tables that are not on their way out.
    async fn watch(
        &mut self,
        config: &Config,
        state: &State,
        named: &Named,
        leaving: &[u32],
        inputs: &Sender<Input>,
        session: &CancellationToken,
    ) -> Result<(), Error> {
        let settings = watcher::Settings {
            publication: state.stream.publications.join(", "),
            slot: config.slot.clone(),
            every: config.watch_every,
            named: named.clone(),
        };
        let tables = state.tables().filter(|(oid, _)| !leaving.contains(oid));
        let tables = tables.map(|(oid, table)| (oid, table.imprint.clone())).collect();
        let client = postgres::connect(&config.postgres, "watch").await?;
        let watch = Watcher::new(client, settings, inputs.clone(), tables).await?.run();
        self.add("the watch", watch, inputs, session);
        Ok(())
    }

    /// One more task, whose failure ends the session.
    fn add(
        &mut self,
        part: &'static str,
        task: impl Future<Output = Result<(), Error>> + Send + 'static,
        inputs: &Sender<Input>,
        session: &CancellationToken,
    ) {
        self.0.push(tokio::spawn(report(part, inputs.clone(), session.clone(), task)).abort_handle());
    }

    /// Another list is to follow.
    async fn relist(
        &mut self,
        change: relist::Change,
        state: &State,
        (config, kafka, prefix): (&Config, &kafka::Config, &str),
        inputs: &Sender<Input>,
        session: &CancellationToken,
    ) -> Result<(), Error> {
        let markers = postgres::connect(&config.postgres, "markers").await?;
        let means = relist::Means {
            config: config.clone(),
            kafka: kafka.clone(),
            prefix: prefix.to_owned(),
            client: postgres::connect(&config.postgres, relist::PURPOSE).await?,
            messages: Messages::prepare(markers, &start::message_prefix(&config.slot)).await?,
            inputs: inputs.clone(),
            stop: session.clone(),
        };
        let work = relist::bring_about(change, state.clone(), means);
        self.add("what changes the list", work, inputs, session);
        Ok(())
    }
}

/// Rows that moved before the last stop come first: what was published of them is in doubt. Then the tables that a load has
/// not finished.
fn tasks(state: &State) -> Vec<Task> {
    let mut moved: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    state.moved().for_each(|(oid, key)| moved.entry(oid).or_default().push(key.to_owned()));
    let of_moved = |(oid, keys)| {
        let name = state.table(oid)?.name.clone();
        Some(Task { oid, name, round: 0, work: Work::Keys { load: None, keys } })
    };
    let again = moved.into_iter().filter_map(of_moved);
    again.chain(state.loads().flat_map(|(id, _)| snapshot::of_load(state, id))).collect()
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

/// The session ends: what is visible of all that the stream has brought may be confirmed with the last commit.
async fn end(messages: Arc<Messages>, inputs: Sender<Input>, shared: Arc<Shared>, session: CancellationToken) {
    session.cancelled().await;
    let look = async {
        shared.still().await;
        messages.snapshot().await
    };
    // A server that does not answer has the rest sent again.
    if let Ok(Ok(snapshot)) = tokio::time::timeout(LAST_LOOK_MAX, look).await {
        // The loop may have ended by itself, here and below.
        let _ = inputs.send(Input::Visible(snapshot));
    }
    let _ = inputs.send(Input::Stop);
}

/// Asks each second what is visible, and writes a beat now and then.
///
/// A beat is a transaction in the stream though nobody writes to our tables: it comes back by the way that every change
/// takes, and is answered by a state record. So an idle slot moves on, and a way that is blocked shows.
async fn observe(messages: Arc<Messages>, heartbeat: Option<Duration>, inputs: Sender<Input>) -> Result<(), Error> {
    let mut tick = tokio::time::interval(OBSERVE_EVERY);
    let (mut heartbeat, mut beaten) = (heartbeat, None::<Instant>);
    loop {
        tick.tick().await;
        let snapshot = messages.snapshot().await?;
        if inputs.send(Input::Visible(snapshot)).is_err() {
            return Ok(());
        }
        if heartbeat.is_some_and(|every| beaten.is_none_or(|beaten| beaten.elapsed() >= every)) {
            beaten = Some(Instant::now());
            match messages.emit(BEAT).await {
                // We stream without it too.
                Err(error) if error.sqlstate() == Some("42501") => {
                    heartbeat = None;
                    tracing::warn!(
                        "no heartbeat: {}; GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO our role, or set source.heartbeat_seconds = 0",
                        service::chain(&error)
                    );
                }
                emitted => emitted?,
            }
        }
    }
}
