//! The loop that owns the feed and the Kafka transaction, on a thread of its own: Kafka's calls block.
//!
//!     inputs ─▶ backlog ─▶ feed ─▶ transaction ──settle──▶ confirmed LSN, outcomes of chunks, orders
//!                  ▲─────────┘ not yet: what stands is committed, and the stream waits here
//!
//! When to commit is decided here; what an input means is the feed's to say.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use kafka::producer::{Publisher, Record};
use postgres::Frame;
use schemas::Lsn;
use service::failpoint;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Input, Verdict};
use crate::feed::{self, Feed, Outbox, Outcome, Taken, Urgency};
use crate::keeper::Seen;
use crate::snapshot::Order;
use crate::stream::Shared;
use crate::window::ChunkId;
use crate::{Error, start};

/// A Kafka transaction under backlog is committed at this age.
const TRANSACTION_AGE: Duration = Duration::from_millis(200);
/// When nothing is sent, the state follows the stream this often.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// After a stop was asked for, an open transaction has this long to commit.
const GRACE: Duration = Duration::from_secs(10);
/// A row that cannot be read yet is asked for again after at most this long.
const RETRY_AFTER_MAX: Duration = Duration::from_millis(200);
/// A wait that a person should know of.
const LONG: Duration = Duration::from_secs(5);

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
        failpoint::reach(if self.records == 0 { "state-only" } else { "before-commit" })?;
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
        failpoint::reach("sent")?;
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

/// What the loop must know.
pub struct Settings {
    /// Where the state is written.
    pub state_topic: String,
    /// How many bytes a Kafka transaction holds before it is committed.
    pub transaction_bytes_max: usize,
    /// Told of the first commit.
    pub first_commit: oneshot::Sender<()>,
    /// What the readers are to do.
    pub orders: UnboundedSender<Order>,
    /// For the slot's keeper: what is now in Kafka, and when the database committed it.
    pub seen: watch::Sender<Seen>,
    /// Reads the configuration again. Whether another session is to begin with it.
    pub reread: Box<dyn Fn() -> bool + Send>,
}

/// Frames that wait, in groups as they came, with the bytes that each counts for.
type Backlog = VecDeque<(std::vec::IntoIter<Frame>, usize)>;

/// What the loop owns.
pub struct Loop {
    feed: Feed,
    shared: Arc<Shared>,
    state_topic: String,
    transaction_bytes_max: usize,
    backlog: Backlog,
    stall: Option<Stall>,
    waiting: HashMap<ChunkId, oneshot::Sender<Verdict>>,
    /// How long it took to hand over a chunk that is not committed yet.
    chunk_sent_in: Duration,
    /// What a commit takes by itself, however little is in it.
    commit_least: Duration,
    /// Whether the stream has brought changes of rows since the last chunk was committed.
    has_changes: bool,
    /// What this session has in a committed state record.
    committed: Lsn,
    settled_at: Instant,
    /// Since when something waits to be settled.
    urgent_since: Option<Instant>,
    first_commit: Option<oneshot::Sender<()>>,
    seen: watch::Sender<Seen>,
    orders: UnboundedSender<Order>,
    reread: Box<dyn Fn() -> bool + Send>,
}

/// The stream waits: a row that it moved is not visible yet.
struct Stall {
    since: Instant,
    retry_at: Instant,
    pause: Duration,
    told: bool,
}

impl Stall {
    fn new() -> Stall {
        let now = Instant::now();
        Stall { since: now, retry_at: now, pause: Duration::from_millis(1), told: false }
    }

    /// Another try was in vain. Microseconds normally, so the first ones follow at once.
    fn lasts(&mut self) {
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_AFTER_MAX);
        if !self.told && self.since.elapsed() >= LONG {
            self.told = true;
            tracing::warn!(
                "the stream waits for a transaction that is in the WAL but not visible yet: look for a synchronous standby that is away"
            );
        }
    }

    fn retry_in(&self) -> Duration {
        self.retry_at.saturating_duration_since(Instant::now())
    }
}

impl Loop {
    /// Over a feed that has been fed nothing yet.
    pub fn new(feed: Feed, shared: Arc<Shared>, settings: Settings) -> Loop {
        Loop {
            feed,
            shared,
            state_topic: settings.state_topic,
            transaction_bytes_max: settings.transaction_bytes_max,
            backlog: Backlog::new(),
            stall: None,
            waiting: HashMap::new(),
            chunk_sent_in: Duration::ZERO,
            commit_least: Duration::MAX,
            has_changes: false,
            committed: Lsn::ZERO,
            settled_at: Instant::now(),
            urgent_since: None,
            first_commit: Some(settings.first_commit),
            seen: settings.seen,
            orders: settings.orders,
            reread: settings.reread,
        }
    }

    /// Publishes until the session ends, and tells why it does.
    pub fn run(
        mut self,
        mut publisher: Publisher,
        limits: &BTreeMap<String, usize>,
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
            let next = inputs.recv_timeout(self.patience());
            match next {
                // The session ends; why stands in front of it in the queue, unless a person asked.
                Ok(Input::Stop) => return self.finish(&mut transaction),
                // What was seen before counts: the next session compares with it.
                Ok(Input::Failed(error @ (Error::Again(_) | Error::Unsent(_)))) => {
                    return self.finish(&mut transaction).and(Err(error));
                }
                Ok(input) => self.take(input, &mut transaction)?,
                Err(RecvTimeoutError::Timeout) if self.is_settling_due() => self.settle(&mut transaction)?,
                Err(RecvTimeoutError::Timeout) => self.confirm(),
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Stopped),
            }
            if self.stall.as_ref().is_some_and(|stall| stall.retry_in().is_zero()) {
                self.advance(&mut transaction)?;
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

    /// How long to wait for an input: with nothing more to take, what was sent is committed at once.
    fn patience(&self) -> Duration {
        let patience = match self.feed.urgency() {
            Urgency::Now => Duration::ZERO,
            Urgency::Idle => IDLE_EVERY.saturating_sub(self.settled_at.elapsed()),
            Urgency::None => IDLE_EVERY,
        };
        self.stall.as_ref().map_or(patience, |stall| patience.min(stall.retry_in()))
    }

    fn is_settling_due(&self) -> bool {
        match self.feed.urgency() {
            Urgency::Now => true,
            Urgency::Idle => self.settled_at.elapsed() >= IDLE_EVERY,
            Urgency::None => false,
        }
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
                self.backlog.push_back((frames.into_iter(), bytes));
                if self.stall.is_none() {
                    self.advance(transaction)?;
                }
            }
            Input::Visible(snapshot) => {
                self.feed.visible(&snapshot);
                self.confirm();
            }
            Input::Open { id, oid, is_list, opened, settled } => {
                if is_list {
                    self.feed.open_list(id, oid);
                } else {
                    self.feed.open_window(id, oid);
                }
                self.waiting.insert(id, settled);
                self.tell_windows();
                // A reader that is gone opens no chunk.
                let _ = opened.send(self.feed.to_be_seen());
            }
            Input::Filled { id, chunk } => {
                if !self.feed.fill_window(id, *chunk) {
                    let outcome = Outcome::Again("the window was given up");
                    let is_alone = !self.has_changes;
                    self.answer(id, Verdict { outcome, sent_in: Duration::ZERO, took: Duration::ZERO, is_alone });
                }
            }
            Input::Close { id } => {
                self.feed.close_window(id);
                self.waiting.remove(&id);
                self.tell_windows();
            }
            Input::Hindered { load, oid, hindrance } => self.feed.hindered(&load, oid, hindrance),
            Input::List { id, next } => self.feed.expect_list(id, next),
            Input::Watched { seen, places } => {
                // A watch that is gone needs no answer.
                let _ = places.send(self.feed.watched(seen)?);
            }
            Input::Failed(error) => return Err(error),
            Input::Stop => {}
        }
        Ok(())
    }

    /// Feeds what waits, up to a row that cannot be read yet.
    fn advance(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        let now_ms = start::now_ms();
        while let Some((mut frames, bytes)) = self.backlog.pop_front() {
            while let Some(frame) = frames.as_slice().first() {
                let is_marker = match frame {
                    Frame::Data { payload, .. } => has_tag(frame, b"M") && self.feed.is_marker(payload),
                    Frame::Keepalive { .. } => false,
                };
                // What stands in front of a chunk need not wait until that is published.
                if is_marker && transaction.records > 0 {
                    self.settle(transaction)?;
                }
                let begun = is_marker.then(Instant::now);
                self.has_changes |= has_tag(frame, b"IUD");
                let taken = match frame {
                    Frame::Data { start, payload, .. } => self.feed.data(*start, payload, now_ms, transaction)?,
                    Frame::Keepalive { end, .. } => {
                        self.feed.keepalive(*end)?;
                        Taken::Whole
                    }
                };
                if taken == Taken::NotYet {
                    self.backlog.push_front((frames, bytes));
                    self.stall.get_or_insert_with(Stall::new).lasts();
                    return Ok(());
                }
                self.stall = None;
                frames.next();
                // A chunk is committed by itself: what stands behind it waits for one, however many are on their way.
                let has_chunk = self.feed.has_outcomes();
                if let Some(begun) = begun.filter(|_| has_chunk) {
                    self.chunk_sent_in = begun.elapsed();
                }
                if self.feed.ending().is_some() || has_chunk || transaction.is_due(self.transaction_bytes_max) {
                    self.settle(transaction)?;
                }
            }
            self.shared.release(bytes);
        }
        Ok(())
    }

    /// Commits what was sent together with where that leaves us. Only then may it be confirmed and told, and the session
    /// end where the feed wants another.
    fn settle(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        if self.feed.ending().is_some() {
            failpoint::reach("before-ending")?;
        }
        let received = self.feed.received();
        let records = self.feed.take_records();
        let begun = Instant::now();
        transaction.settle(&self.state_topic, records)?;
        failpoint::reach("committed")?;
        let (sent_in, took) = self.committed_in(begun.elapsed());
        self.committed = received;
        self.settled_at = Instant::now();
        self.urgent_since = None;
        if let Some(first_commit) = self.first_commit.take() {
            // Nobody has to listen.
            let _ = first_commit.send(());
        }
        if let Some(flushed) = self.feed.flushed() {
            self.seen.send_replace(Some(flushed));
        }
        self.confirm();
        failpoint::reach("confirmed")?;
        self.feed.take_remarks().iter().for_each(|remark| tracing::warn!("{remark}"));
        let outcomes = self.feed.take_outcomes();
        let is_alone = outcomes.is_empty() || !std::mem::take(&mut self.has_changes);
        for (id, outcome) in outcomes {
            failpoint::reach("chunk-committed")?;
            self.answer(id, Verdict { outcome, sent_in, took, is_alone });
        }
        for order in self.feed.take_orders() {
            // Readers that are gone have told why.
            let _ = self.orders.send(order);
        }
        if self.feed.take_reread() && (self.reread)() {
            return Err(Error::Again("the list of tables in the configuration is another one".to_owned()));
        }
        self.feed.ending().map_or(Ok(()), |why| Err(Error::Again(why.to_owned())))
    }

    fn confirm(&self) {
        if let Some(lsn) = self.feed.confirmable(self.committed) {
            self.shared.confirm(lsn);
        }
    }

    /// A commit took so long. How long the stream has waited for the chunk in it until it was handed over, and in all.
    fn committed_in(&mut self, took: Duration) -> (Duration, Duration) {
        // While there is a chunk in every one, none shows it: so what is known of it counts for less and less.
        self.commit_least = took.min(self.commit_least.saturating_add(self.commit_least / 100));
        let sent_in = std::mem::take(&mut self.chunk_sent_in);
        if sent_in.is_zero() {
            return (Duration::ZERO, Duration::ZERO);
        }
        let waited = sent_in + took.saturating_sub(self.commit_least);
        metrics::histogram!("tributary_source_chunk_publish_seconds").record(waited);
        (sent_in, waited)
    }

    fn answer(&mut self, id: ChunkId, verdict: Verdict) {
        if let Some(reader) = self.waiting.remove(&id) {
            self.tell_windows();
            // A reader that is gone needs no answer.
            let _ = reader.send(verdict);
        }
    }

    fn tell_windows(&self) {
        metrics::gauge!("tributary_source_windows").set(self.waiting.len() as f64);
    }
}

/// Whether a frame carries a message of one of these kinds: logical messages are `M`, changes of rows `I`, `U` and `D`.
fn has_tag(frame: &Frame, tags: &[u8]) -> bool {
    matches!(frame, Frame::Data { payload, .. } if payload.first().is_some_and(|tag| tags.contains(tag)))
}
