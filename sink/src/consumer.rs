//! One group's consumer: a thread that fetches for all its partitions, and the only one that talks to librdkafka.
//!
//!     poll ──▶ open segment per partition ──sealed──▶ worker
//!     rebalance ──▶ assigned: paused, a worker is asked for;  revoked: its worker finishes, then the partition goes
//!     workers ──▶ Command::Start: seek, resume
//!
//! It decides nothing about records. Offsets are committed here, by hand, after the target has them: they inform, progress
//! decides. Back-pressure is by bytes: a partition whose worker is behind is waited for a moment and then paused. (A paused
//! partition's prefetched records are thrown away by librdkafka and fetched again, so the moment is worth it.)

mod context;
mod standstill;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use service::{failpoint, few};
use tokio_util::sync::CancellationToken;

use crate::config::Group;
use crate::error::Error;
use crate::record::{Budget, Partition, Segment};
use context::{Context, Rebalance};
pub(crate) use standstill::Standstill;

/// The longest wait for a record; commands are looked for in between.
const STEP: Duration = Duration::from_millis(20);
/// A segment is handed over at this size at the latest.
const SEGMENT_BYTES_MAX: usize = 1 << 20;
/// And at this many records.
const SEGMENT_RECORDS_MAX: usize = 4_096;
/// How long workers that are behind are waited for before their partitions are paused.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a worker may take to finish what it has under way when its partition is revoked.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How often offsets are committed at most.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Committing them takes no more than one part of so many of the thread's time.
const COMMIT_SHARE: u32 = 20;
/// So often the end of a partition is looked for once all of it is done: markers may come behind it.
const ROUNDS: u8 = 5;
/// And of all partitions as often as that.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(30);
/// How long one seek is waited for. It is asked for again until it is done: polling must not stop for it.
const SEEK_TIMEOUT: Duration = Duration::from_millis(500);
/// So many partitions are sought at once.
const SEEKS_MAX: usize = 256;
/// So many partitions are named in one line of the log.
pub(crate) const NAMED_MAX: usize = 20;

/// A partition that the group gave us, for whoever makes its worker.
#[derive(Debug)]
pub(crate) struct Assigned {
    pub(crate) partition: Partition,
    /// Cancelled when the partition is to be let go.
    pub(crate) stop: CancellationToken,
    /// Where the worker notes the offset behind what it has done.
    pub(crate) done: Arc<AtomicI64>,
    /// Dropped by the worker when it has ended.
    pub(crate) ended: mpsc::Sender<()>,
}

/// What a worker asks of the consumer.
#[derive(Debug)]
pub(crate) enum Command {
    /// Fetch from this offset on and hand the records to this channel.
    Start { partition: Partition, offset: i64, segments: tokio::sync::mpsc::UnboundedSender<Segment> },
}

/// What the consumer tells its group.
#[derive(Debug)]
pub(crate) enum Notice {
    Assigned(Assigned),
    Failed(Error),
}

/// How far each partition that we own is, for whoever measures lag.
pub(crate) type Reached = Arc<Mutex<HashMap<Partition, Reach>>>;

/// How far one partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The offset behind what is done.
    pub(crate) next: i64,
    /// Whether all that was fetched is done, and nothing else was waiting for us: if there is more, Kafka's client does not bring
    /// it.
    pub(crate) is_idle: bool,
    /// When this was so.
    pub(crate) at: Instant,
}

/// What the thread is given.
pub(crate) struct Consumer {
    pub(crate) group: Group,
    pub(crate) topics: Vec<String>,
    pub(crate) kafka: kafka::Config,
    pub(crate) group_id: String,
    pub(crate) client_id: String,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) notices: tokio::sync::mpsc::UnboundedSender<Notice>,
    pub(crate) reached: Reached,
    pub(crate) stop: CancellationToken,
}

/// A partition that is ours.
struct Owned {
    stop: CancellationToken,
    done: Arc<AtomicI64>,
    ended: mpsc::Receiver<()>,
    segments: Option<tokio::sync::mpsc::UnboundedSender<Segment>>,
    open: Option<Segment>,
    budget: Budget,
    /// The last offset that was handed on.
    delivered: Option<i64>,
    /// Paused because its worker is behind.
    paused: bool,
    committed: i64,
    /// What was done when all that had been fetched was, and how often its end was looked for since.
    told: (i64, u8),
}

/// The state of the thread.
struct Fetch {
    consumer: BaseConsumer<Context>,
    given: Consumer,
    topics: HashMap<String, Arc<str>>,
    owned: HashMap<Partition, Owned>,
    /// Partitions that are to be fetched, and since when.
    starting: VecDeque<(Command, Instant)>,
    committed_at: Instant,
    /// When offsets are committed again: what that costs grows faster than the number of partitions.
    commit_after: Duration,
    /// When the ends of all partitions were looked for last.
    looked_at: Instant,
    /// Whether nothing more waited at some moment since the last commit.
    was_emptied: bool,
}

impl Consumer {
    /// Starts the thread. It ends when `stop` is cancelled, or after a failure that it tells.
    pub(crate) fn start(self) -> Result<std::thread::JoinHandle<()>, Error> {
        let group = self.group.name.clone();
        let thread = std::thread::Builder::new().name(format!("consumer {group}"));
        let notices = self.notices.clone();
        let run = move || {
            // Without a receiver the group is over, and so is whoever would want to know.
            let tell = |error| drop(notices.send(Notice::Failed(error)));
            match Fetch::new(self) {
                Err(error) => tell(error),
                Ok(mut fetch) => {
                    // Told before the consumer is closed, which may take its time.
                    fetch.run().unwrap_or_else(tell);
                    fetch.close();
                }
            }
        };
        thread.spawn(run).map_err(|cause| Error::Thread { group, cause })
    }

    fn failed(&self, operation: impl Into<String>, cause: KafkaError) -> Error {
        Error::Consumer { group: self.group.name.clone(), operation: operation.into(), cause }
    }

    fn settings(&self) -> rdkafka::ClientConfig {
        let session_ms = self.group.session_timeout.as_millis();
        let mut settings = self.kafka.client();
        settings
            .set("group.id", &self.group_id)
            .set("client.id", &self.client_id)
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session_ms.to_string())
            .set("heartbeat.interval.ms", (session_ms / 4).min(3_000).to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            // A third of what may be in memory waits inside librdkafka, the rest with the workers.
            .set("queued.max.messages.kbytes", (self.group.fetch_bytes_max / 3 / 1024).max(256).to_string())
            // The default pauses fetching for a whole second once that much waits.
            .set("fetch.queue.backoff.ms", "10")
            .set("topic.metadata.refresh.interval.ms", "60000");
        if let Some(id) = &self.group.static_member_id {
            settings.set("group.instance.id", id);
        }
        settings
    }
}

impl Fetch {
    fn new(given: Consumer) -> Result<Fetch, Error> {
        let context = Context::new(given.kafka.context());
        let consumer = BaseConsumer::from_config_and_context(&given.settings(), context);
        let consumer = consumer.map_err(|cause| given.failed("make its consumer", cause))?;
        let names: Vec<&str> = given.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&names).map_err(|cause| given.failed("subscribe to its topics", cause))?;
        let topics = given.topics.iter().map(|name| (name.clone(), Arc::from(name.as_str()))).collect();
        Ok(Fetch {
            consumer,
            given,
            topics,
            owned: HashMap::new(),
            starting: VecDeque::new(),
            committed_at: Instant::now(),
            commit_after: COMMIT_INTERVAL,
            looked_at: Instant::now(),
            was_emptied: false,
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        let stop = self.given.stop.clone();
        while !stop.is_cancelled() {
            self.rebalance()?;
            self.commands()?;
            self.resume()?;
            if self.committed_at.elapsed() >= self.commit_after {
                let begun = Instant::now();
                self.commit();
                self.commit_after = COMMIT_INTERVAL.max(begun.elapsed() * COMMIT_SHARE);
            }
            self.fetch()?;
        }
        Ok(())
    }

    /// Takes what is there, for at most one segment's worth of records; waits a moment when nothing is.
    fn fetch(&mut self) -> Result<(), Error> {
        let mut wait = STEP;
        for _ in 0..SEGMENT_RECORDS_MAX {
            // The borrow of a message must not last while the partition's state changes.
            let polled = self.consumer.poll(wait);
            wait = Duration::ZERO;
            match polled {
                None => {
                    self.was_emptied = true;
                    break;
                }
                Some(Ok(message)) => take(&self.topics, &mut self.owned, &message)?,
                Some(Err(error)) => self.met(error)?,
            }
        }
        self.hand_over()
    }

    /// Hands what was fetched to the workers, and slows down for those that are behind.
    fn hand_over(&mut self) -> Result<(), Error> {
        let limit = self.limit();
        let mut slow = TopicPartitionList::new();
        // For all of them together: whoever polls no more is taken for dead.
        let patient_until = Instant::now() + PATIENCE;
        for (partition, owned) in &mut self.owned {
            if owned.open.is_none() {
                continue;
            }
            owned.hand_over();
            let patience = patient_until.saturating_duration_since(Instant::now());
            if !owned.paused && !owned.budget.wait(limit, patience) {
                owned.paused = true;
                slow.add_partition(&partition.topic, partition.number);
            }
        }
        if slow.count() > 0 {
            self.consumer.pause(&slow).map_err(|cause| self.given.failed("pause partitions", cause))?;
        }
        Ok(())
    }

    /// What one partition may have in memory: a whole segment, or its share, where all of them together have too much.
    fn limit(&self) -> usize {
        let all = self.given.group.fetch_bytes_max / 3 * 2;
        let share = all / self.owned.len().max(1);
        let held: usize = self.owned.values().map(|owned| owned.budget.bytes()).sum();
        if held < all { share.max(SEGMENT_BYTES_MAX) } else { share }
    }

    fn resume(&mut self) -> Result<(), Error> {
        let limit = self.limit() / 2;
        let mut caught_up = TopicPartitionList::new();
        for (partition, owned) in
            self.owned.iter_mut().filter(|(_, owned)| owned.paused && owned.budget.bytes() <= limit)
        {
            owned.paused = false;
            caught_up.add_partition(&partition.topic, partition.number);
        }
        if caught_up.count() > 0 {
            self.consumer.resume(&caught_up).map_err(|cause| self.given.failed("resume partitions", cause))?;
        }
        Ok(())
    }

    fn met(&self, error: KafkaError) -> Result<(), Error> {
        use RDKafkaErrorCode::{AutoOffsetReset, NoOffset, OffsetOutOfRange};
        let is_fatal = match &error {
            KafkaError::MessageConsumptionFatal(_) => true,
            KafkaError::MessageConsumption(AutoOffsetReset | NoOffset | OffsetOutOfRange) => true,
            other => {
                let topic = self.given.topics.join(", ");
                let read = kafka::Error::Read { topic, partition: None, cause: other.clone().into() };
                !read.is_transient()
            }
        };
        if is_fatal {
            return Err(self.given.failed("fetch", error));
        }
        if let Some(refused) = self.consumer.context().refused() {
            return Err(Error::Kafka { group: self.given.group.name.clone(), cause: refused });
        }
        // librdkafka goes on by itself; lost brokers are told by its context.
        tracing::debug!(group = %self.given.group.name, %error, "fetching met an error that passes");
        Ok(())
    }

    fn commands(&mut self) -> Result<(), Error> {
        let asked = Instant::now();
        self.starting.extend(self.given.commands.try_iter().map(|command| (command, asked)));
        // A worker that has ended meanwhile must not take the place of its successor.
        let is_wanted = |(Command::Start { partition, segments, .. }, _): &(Command, Instant)| {
            !segments.is_closed() && self.owned.contains_key(partition)
        };
        self.starting.retain(is_wanted);
        if self.starting.is_empty() { Ok(()) } else { self.start_fetching() }
    }

    /// Has partitions fetched from where their workers said. Those that librdkafka is not ready for are left for the next time:
    /// an assignment is young, or an earlier commit still waits for the group's coordinator.
    fn start_fetching(&mut self) -> Result<(), Error> {
        let at_once = self.starting.len().min(SEEKS_MAX);
        let asked: Vec<(Command, Instant)> = self.starting.drain(..at_once).collect();
        let mut list = TopicPartitionList::new();
        for (Command::Start { partition, offset, .. }, _) in &asked {
            let added = list.add_partition_offset(&partition.topic, partition.number, Offset::Offset(*offset));
            added.map_err(|cause| self.given.failed("seek", cause))?;
        }
        let sought = self.consumer.seek_partitions(list, SEEK_TIMEOUT);
        let mut errors: HashMap<(String, i32), KafkaError> = HashMap::new();
        if let Ok(sought) = &sought {
            let failed = sought.elements().into_iter().filter_map(|element| {
                let error = element.error().err()?;
                Some(((element.topic().to_owned(), element.partition()), error))
            });
            errors.extend(failed);
        }
        let mut ready = TopicPartitionList::new();
        let mut reached = self.given.reached.lock().unwrap_or_else(PoisonError::into_inner);
        for (Command::Start { partition, offset, segments }, asked) in asked {
            let error = match &sought {
                Ok(_) => errors.get(&(partition.topic.to_string(), partition.number)),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                tracing::debug!(group = %self.given.group.name, %partition, %error, waited = ?asked.elapsed(), "not ready to seek yet");
                self.starting.push_back((Command::Start { partition, offset, segments }, asked));
                continue;
            }
            if let Some(owned) = self.owned.get_mut(&partition) {
                owned.open = None;
                owned.segments = Some(segments);
                owned.delivered = None;
                owned.paused = false;
                owned.told = (-1, 0);
                reached.insert(partition.clone(), Reach { next: offset, is_idle: false, at: Instant::now() });
            }
            let added = ready.add_partition_offset(&partition.topic, partition.number, Offset::Offset(offset));
            added.map_err(|cause| self.given.failed("resume partitions", cause))?;
        }
        drop(reached);
        if ready.count() > 0 {
            // Where a test loses it, nothing comes, as where librdkafka has lost a leader.
            if failpoint::reach("fetch-lost").is_ok() {
                self.consumer.resume(&ready).map_err(|cause| self.given.failed("resume partitions", cause))?;
            }
            tracing::info!(group = %self.given.group.name, partitions = %listed(&ready), "fetching");
        }
        Ok(())
    }

    fn rebalance(&mut self) -> Result<(), Error> {
        loop {
            match self.consumer.context().rebalance() {
                None => return Ok(()),
                Some(Rebalance::Assign(list)) => self.assign(list)?,
                Some(Rebalance::Revoke(list)) => self.revoke(list)?,
            }
        }
    }

    fn assign(&mut self, mut list: TopicPartitionList) -> Result<(), Error> {
        // From the start, and paused: where to go on only the worker finds out, from the target.
        list.set_all_offsets(Offset::Beginning).map_err(|cause| self.given.failed("take partitions", cause))?;
        self.consumer.incremental_assign(&list).map_err(|cause| self.given.failed("take partitions", cause))?;
        if list.count() > 0 {
            self.consumer.pause(&list).map_err(|cause| self.given.failed("pause partitions", cause))?;
        }
        for element in list.elements() {
            let Some(topic) = self.topics.get(element.topic()) else { continue };
            let partition = Partition { topic: topic.clone(), number: element.partition() };
            let (stop, done) = (self.given.stop.child_token(), Arc::new(AtomicI64::new(-1)));
            let (ended, waiting) = mpsc::channel();
            let assigned = Assigned { partition: partition.clone(), stop: stop.clone(), done: done.clone(), ended };
            let owned = Owned {
                stop,
                done,
                ended: waiting,
                segments: None,
                open: None,
                budget: Budget::default(),
                delivered: None,
                paused: false,
                committed: -1,
                told: (-1, 0),
            };
            self.owned.insert(partition, owned);
            let _over = self.given.notices.send(Notice::Assigned(assigned));
        }
        if list.count() > 0 {
            tracing::info!(group = %self.given.group.name, partitions = %listed(&list), "assigned");
        }
        Ok(())
    }

    fn revoke(&mut self, list: TopicPartitionList) -> Result<(), Error> {
        let lost = self.consumer.assignment_lost();
        let elements = list.elements();
        let of = |element: &TopicPartitionListElem<'_>| {
            let topic = self.topics.get(element.topic())?;
            Some(Partition { topic: topic.clone(), number: element.partition() })
        };
        let partitions: Vec<Partition> = elements.iter().filter_map(of).collect();
        self.let_go(&partitions);
        if lost {
            tracing::warn!(group = %self.given.group.name, partitions = %listed(&list), "lost partitions: the group took us for dead");
        } else {
            self.commit();
            tracing::info!(group = %self.given.group.name, partitions = %listed(&list), "revoked");
        }
        for partition in &partitions {
            self.owned.remove(partition);
            self.given.reached.lock().unwrap_or_else(PoisonError::into_inner).remove(partition);
        }
        self.consumer.incremental_unassign(&list).map_err(|cause| self.given.failed("give partitions back", cause))
    }

    /// Has the workers finish what they have under way. One that cannot in time is left behind: the next owner's claim
    /// waits for its transaction, and fences it.
    fn let_go(&mut self, partitions: &[Partition]) {
        let owned =
            || partitions.iter().filter_map(|partition| self.owned.get(partition).map(|owned| (partition, owned)));
        owned().for_each(|(_, owned)| owned.stop.cancel());
        let deadline = Instant::now() + GRACE;
        for (partition, owned) in owned() {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Err(mpsc::RecvTimeoutError::Timeout) = owned.ended.recv_timeout(left) {
                tracing::warn!(group = %self.given.group.name, %partition, "did not finish in time, the next owner will fence it");
            }
        }
    }

    /// Commits the offsets behind what is done; behind the marker too, when all that was fetched is done.
    fn commit(&mut self) {
        self.committed_at = Instant::now();
        // A marker can come long after what it ends, as behind what a source left open that has died.
        let all = self.looked_at.elapsed() >= LOOK_AT_ALL_EVERY;
        if all {
            self.looked_at = Instant::now();
        }
        let news = |owned: &Owned| {
            let (delivered, done) = (owned.delivered?, owned.done.load(Ordering::Relaxed));
            let is_settled = done > delivered && owned.told.0 == done && owned.told.1 >= ROUNDS;
            (done >= 0 && (all || !is_settled)).then_some((delivered, done))
        };
        // What librdkafka is asked for all partitions costs it a search for each.
        if !all && !self.owned.values().any(|owned| news(owned).is_some()) {
            return;
        }
        let (was_emptied, at) = (std::mem::take(&mut self.was_emptied), Instant::now());
        let positions = self.consumer.position().ok();
        let elements = positions.iter().flat_map(TopicPartitionList::elements);
        let positions: HashMap<_, _> =
            elements.map(|element| ((element.topic().to_owned(), element.partition()), element.offset())).collect();
        let mut list = TopicPartitionList::new();
        let mut reached = self.given.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let position_of = |partition: &Partition| match positions.get(&(partition.topic.to_string(), partition.number))
        {
            Some(Offset::Offset(position)) => Some(*position),
            _ => None,
        };
        for (partition, owned) in &mut self.owned {
            let Some((delivered, done)) = news(owned) else {
                // There may be nothing but markers.
                if let Some(reach) = reached.get_mut(partition).filter(|_| owned.delivered.is_none()) {
                    let next = position_of(partition).map_or(reach.next, |position| position.max(reach.next));
                    *reach = Reach { next, is_idle: was_emptied, at };
                }
                continue;
            };
            let is_idle = done > delivered && owned.open.is_none();
            let next = match is_idle.then(|| position_of(partition)).flatten() {
                Some(position) => {
                    let rounds = if owned.told.0 == done { owned.told.1 } else { 0 };
                    owned.told = (done, rounds.saturating_add(1));
                    done.max(position)
                }
                None => done,
            };
            reached.insert(partition.clone(), Reach { next, is_idle: is_idle && was_emptied, at });
            if next != owned.committed {
                owned.committed = next;
                let added = list.add_partition_offset(&partition.topic, partition.number, Offset::Offset(next));
                added.expect("an offset that Kafka gave is valid");
            }
        }
        drop(reached);
        if list.count() > 0
            && let Err(error) = self.consumer.commit(&list, CommitMode::Async)
        {
            tracing::debug!(group = %self.given.group.name, %error, "offsets could not be committed; they only inform");
        }
    }

    fn close(&mut self) {
        let partitions: Vec<Partition> = self.owned.keys().cloned().collect();
        self.let_go(&partitions);
        self.commit();
        // Closing the consumer rebalances once more, with nobody to hand anything over.
        self.consumer.context().close(&self.consumer);
    }
}

impl Owned {
    fn hand_over(&mut self) {
        if let (Some(segment), Some(segments)) = (self.open.take(), &self.segments) {
            // Without a receiver the worker has ended, and its successor seeks anew.
            let _ended = segments.send(segment.seal());
        }
    }
}

fn take(
    topics: &HashMap<String, Arc<str>>,
    owned: &mut HashMap<Partition, Owned>,
    message: &BorrowedMessage<'_>,
) -> Result<(), Error> {
    let Some(topic) = topics.get(message.topic()) else { return Ok(()) };
    let partition = Partition { topic: topic.clone(), number: message.partition() };
    // What was fetched before its worker said where to begin is of no use.
    let Some(owned) = owned.get_mut(&partition).filter(|owned| owned.segments.is_some()) else { return Ok(()) };
    let budget = &owned.budget;
    let segment = owned.open.get_or_insert_with(|| Segment::new(budget));
    let headers =
        message.headers().into_iter().flat_map(|headers| headers.iter().map(|header| (header.key, header.value)));
    let offset = message.offset();
    let pushed = segment.push(offset, message.key(), message.payload(), headers);
    pushed.map_err(|cause| Error::Headers { partition, offset, cause })?;
    owned.delivered = Some(offset);
    if segment.bytes() >= SEGMENT_BYTES_MAX {
        owned.hand_over();
    }
    Ok(())
}

/// Partitions for a person, with the offsets that they are to be fetched from, if any.
fn listed(list: &TopicPartitionList) -> String {
    let elements = list.elements();
    let name = |element: &TopicPartitionListElem<'_>| match element.offset() {
        Offset::Offset(offset) => format!("{}/{}@{offset}", element.topic(), element.partition()),
        _ => format!("{}/{}", element.topic(), element.partition()),
    };
    few(&elements.iter().map(name).collect::<Vec<_>>(), NAMED_MAX)
}
