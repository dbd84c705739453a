//! One group: made ready, then a consumer, and a worker for each partition that it is given.
//!
//!     target ready ──▶ tables and topics there ──▶ consumer ──assigned──▶ workers ──▶ end: stopped, or the first failure
//!                              ▲                                                      │
//!                              └────────────── the source publishes more ─────────────┘

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kafka::admin::Admin;
use schemas::selection::Item;
use schemas::topic;
use service::few;
use service::http::Health;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::announce::Announcer;
use crate::config::{Config, Group, To};
use crate::consumer::{Assigned, Consumer, NAMED_MAX, Notice, Reached, Standstill};
use crate::error::Error;
use crate::measure;
use crate::mirror::Mirror;
use crate::persist::persist;
use crate::published::{self, Followed, Taken};
use crate::record::Partition;
use crate::relational::Relational;
use crate::resolver::Resolver;
use crate::target::Target;
use crate::worker::{Parkings, Shared, Worker};

/// How often a topic is looked for that its source has not made yet.
const TOPICS_INTERVAL: Duration = Duration::from_secs(1);
/// How often lag is measured.
const LAG_INTERVAL: Duration = Duration::from_secs(5);
/// How long partitions may take to come to an event at which a sibling stands.
const SIBLINGS_MAX: Duration = Duration::from_secs(30);

/// How long the consumer may take to leave the group, once its workers have ended.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// A consumer that has worked for so long was of use, though it is given up in the end.
const HELPED_AFTER: Duration = Duration::from_secs(2 * 3600);

/// Why a life of the group's work is over.
enum Ended {
    /// Another begins: the source publishes something more that the group takes, or its consumer brought nothing.
    Again,
    /// The group is to stop.
    Over,
}

/// A group and what it works with.
pub(crate) struct Run {
    pub(crate) group: Group,
    pub(crate) config: Config,
    pub(crate) kafka: kafka::Config,
    pub(crate) prefix: String,
    pub(crate) owner: String,
    pub(crate) health: Health,
    pub(crate) stop: CancellationToken,
    /// How many consumers in a row were given up since nothing came of them.
    pub(crate) given_up: AtomicU32,
}

impl Run {
    /// Works until stopped, or until something happens that a person must look at.
    pub(crate) async fn run(self) -> Result<(), Error> {
        let part = format!("sink {}", self.group.name);
        self.health.ready(&part, false);
        let ended = match self.group.to.clone() {
            To::Postgres => self.postgres().await,
            To::Redis(announce) => self.redis(&announce).await,
        };
        match &ended {
            Ok(()) => self.health.ready(&part, false),
            Err(error) => self.health.failed(&part, &service::chain(error).to_string()),
        }
        ended
    }

    async fn postgres(&self) -> Result<(), Error> {
        let missing = Error::Unconfigured { group: self.group.name.clone(), missing: "add [target] with its url" };
        let database = self.config.target.as_ref().ok_or(missing)?;
        let target = Arc::new(Relational::new(&self.group, database, &self.owner));
        let tables = &self.group.tables;
        let named: Vec<_> = tables.taking().filter_map(Item::table).filter(|name| tables.chooses(name)).collect();
        let what = format!("make the target ready for group {}", self.group.name);
        if persist(what, &self.stop, || Box::pin(target.open(database, named.clone()))).await?.is_none() {
            return Ok(());
        }
        let admin = self.admin()?;
        let mut followed = published::follow(self.kafka.clone(), &self.prefix, &self.group.name, self.stop.clone())?;
        while let Some(taken) = self.taken(&mut followed, &admin).await? {
            let what = format!("look at the tables of group {}", self.group.name);
            let admitted = persist(what, &self.stop, || Box::pin(target.admit(&taken)));
            if admitted.await?.is_none() {
                return Ok(());
            }
            let life = self.stop.child_token();
            let parked = Arc::<Parkings>::default();
            let mirror = Mirror {
                group: self.group.name.clone(),
                prefix: self.prefix.clone(),
                topics: taken.topics.iter().cloned().collect(),
                kafka: self.kafka.clone(),
                admin: admin.clone(),
                target: target.clone(),
                parked: parked.clone(),
                create: self.group.dead_letter_topic_create,
                stop: life.clone(),
            };
            let resolver = Resolver {
                group: self.group.clone(),
                topics: taken.topics.iter().cloned().collect(),
                target: target.clone(),
                parked: parked.clone(),
                stop: life.clone(),
            };
            let (mirror, resolver) = (tokio::spawn(mirror.run()), tokio::spawn(resolver.run()));
            let ended = self.live(&taken, &mut followed, target.clone(), admin.clone(), parked, &life).await;
            life.cancel();
            let died = |part| Error::Ended { group: self.group.name.clone(), part };
            let mirrored = mirror.await.map_err(|_| died("the mirror of parked events"));
            let resolved = resolver.await.unwrap_or_else(|_| Err(died("the resolver of parked events")));
            let ended_well = resolved.and(mirrored);
            if let Ended::Over = ended? {
                return ended_well;
            }
            ended_well?;
        }
        Ok(())
    }

    async fn redis(&self, announce: &crate::config::Announce) -> Result<(), Error> {
        let missing = Error::Unconfigured { group: self.group.name.clone(), missing: "add [redis] with its url" };
        let redis = self.config.redis.as_ref().ok_or(missing)?;
        let target = Arc::new(Announcer::new(&self.group, &self.prefix, &self.owner, announce, redis)?);
        let what = format!("make Redis ready for group {}", self.group.name);
        if persist(what, &self.stop, || Box::pin(target.open())).await?.is_none() {
            return Ok(());
        }
        let admin = self.admin()?;
        let mut followed = published::follow(self.kafka.clone(), &self.prefix, &self.group.name, self.stop.clone())?;
        while let Some(taken) = self.taken(&mut followed, &admin).await? {
            let (life, parked) = (self.stop.child_token(), Arc::<Parkings>::default());
            let ended = self.live(&taken, &mut followed, target.clone(), admin.clone(), parked, &life).await;
            life.cancel();
            if let Ended::Over = ended? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn failed(&self, cause: kafka::Error) -> Error {
        Error::Kafka { group: self.group.name.clone(), cause }
    }

    fn admin(&self) -> Result<Arc<Admin>, Error> {
        Ok(Arc::new(Admin::connect(&self.kafka).map_err(|cause| self.failed(cause))?))
    }

    /// Waits until the source publishes what the group takes, and the topics are there. `None` if we are to stop first.
    async fn taken(&self, followed: &mut Followed, admin: &Admin) -> Result<Option<Taken>, Error> {
        let mut told = Vec::new();
        loop {
            let published = followed.published.borrow_and_update().clone();
            if let Some(taken) = published.map(|published| published.taken(&self.prefix, &self.group.tables)) {
                let Some(missing) = self.missing(&taken, admin).await? else { return Ok(None) };
                if missing.is_empty() {
                    return Ok(Some(taken));
                }
                if missing != told {
                    tracing::info!(group = %self.group.name, missing = %few(&missing, NAMED_MAX), "waiting for what the source has not made yet");
                    told = missing;
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                error = followed.failed.recv() => return self.state_lost(error).map(|()| None),
                _news = followed.published.changed() => {}
                // Kafka tells nobody of a new topic.
                () = tokio::time::sleep(TOPICS_INTERVAL) => {}
            }
        }
    }

    /// What is not there yet of what the group takes: topics, and anything that its patterns match.
    async fn missing(&self, taken: &Taken, admin: &Admin) -> Result<Option<Vec<String>>, Error> {
        let wanted: Vec<&str> = taken.topics.iter().map(String::as_str).collect();
        let what = format!("look for the topics of group {}", self.group.name);
        let found = persist(what, &self.stop, || {
            Box::pin(async { admin.topics(&wanted).await.map_err(|cause| self.failed(cause)) })
        });
        let Some(found) = found.await? else { return Ok(None) };
        let missing = wanted.iter().filter(|name| !found.contains_key(**name)).map(|name| (*name).to_owned());
        Ok(Some(missing.chain(taken.unmatched.iter().map(|pattern| format!("a table of {pattern}"))).collect()))
    }

    /// What the end of the state's reader means: it ends with us, or by a failure.
    fn state_lost(&self, error: Option<Error>) -> Result<(), Error> {
        match error {
            None if self.stop.is_cancelled() => Ok(()),
            None => Err(Error::Ended { group: self.group.name.clone(), part: "the reader of the source's state" }),
            Some(error) => Err(error),
        }
    }

    /// Works on what is taken until that changes, or until the end.
    async fn live<T: Target>(
        &self,
        taken: &Taken,
        followed: &mut Followed,
        target: Arc<T>,
        admin: Arc<Admin>,
        parked: Arc<Parkings>,
        life: &CancellationToken,
    ) -> Result<Ended, Error> {
        let mut work = std::pin::pin!(self.work(taken, target, admin, parked, life));
        loop {
            tokio::select! {
                ended = &mut work => return ended,
                error = followed.failed.recv() => {
                    life.cancel();
                    return work.await.and(self.state_lost(error)).map(|()| Ended::Over);
                }
                Ok(()) = followed.published.changed() => {
                    let now = followed.published.borrow_and_update().as_ref().map(|now| now.taken(&self.prefix, &self.group.tables));
                    if now.is_some_and(|now| now.goes_beyond(taken)) {
                        tracing::info!(group = %self.group.name, "the source publishes more that this group takes, beginning anew with it");
                        life.cancel();
                        return work.await.map(|_| Ended::Again);
                    }
                }
            }
        }
    }

    async fn work<T: Target>(
        &self,
        taken: &Taken,
        target: Arc<T>,
        admin: Arc<Admin>,
        parked: Arc<Parkings>,
        life: &CancellationToken,
    ) -> Result<Ended, Error> {
        let (commands, asked) = mpsc::channel();
        let (notices, mut told) = tokio::sync::mpsc::unbounded_channel();
        let reached = Reached::default();
        let group_id = topic::group_id(&self.prefix, &self.group.name);
        let fetching = life.child_token();
        let consumer = Consumer {
            group: self.group.clone(),
            topics: taken.topics.iter().cloned().collect(),
            kafka: self.kafka.clone(),
            group_id: group_id.clone(),
            client_id: format!("tributary-{}", self.owner),
            commands: asked,
            notices,
            reached: reached.clone(),
            stop: fetching.clone(),
        };
        let thread = consumer.start()?;
        let slots = Arc::new(Semaphore::new(self.group.connections * 2));
        let shared =
            Shared { config: self.group.clone(), group_id, target, admin: admin.clone(), commands, slots, parked };
        self.health.ready(&format!("sink {}", self.group.name), true);
        tracing::info!(group = %self.group.name, tables = taken.names().len(), topics = taken.topics.len(), "consuming");
        let standstill = Standstill::new(self.given_up.load(Ordering::Relaxed));
        let begun = Instant::now();
        let mut lag = tokio::spawn(watch_lag(self.group.name.clone(), admin, reached, standstill, fetching.clone()));
        let ended = {
            let mut supervised = std::pin::pin!(supervise(Arc::new(shared), &mut told, &fetching));
            tokio::select! {
                ended = &mut supervised => ended.map(|()| Ended::Over),
                Ok(Some(stalled)) = &mut lag => {
                    let partitions = few(&stalled.iter().map(ToString::to_string).collect::<Vec<_>>(), NAMED_MAX);
                    tracing::warn!(group = %self.group.name, %partitions, "Kafka has records there and its client brings none, beginning anew with another");
                    if begun.elapsed() > HELPED_AFTER {
                        self.given_up.store(0, Ordering::Relaxed);
                    }
                    self.given_up.fetch_add(1, Ordering::Relaxed);
                    fetching.cancel();
                    supervised.await.map(|()| Ended::Again)
                }
            }
        };
        fetching.cancel();
        let closed = tokio::time::timeout(CLOSE_MAX, over(thread)).await;
        lag.abort();
        match closed {
            Ok(true) => ended,
            Ok(false) => ended.and(Err(Error::Ended { group: self.group.name.clone(), part: "the consumer" })),
            Err(_) => {
                tracing::warn!(group = %self.group.name, "Kafka does not answer our leave: the group moves our partitions once the session has run out");
                ended
            }
        }
    }
}

/// Waits for the end of a thread; `false` if it panicked. On a thread of its own and not among the runtime's, which would
/// be waited for at the end of the process: while brokers do not answer, librdkafka holds a consumer that closes for a minute.
async fn over(thread: JoinHandle<()>) -> bool {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || tell.send(thread.join().is_ok()));
    told.await.unwrap_or(false)
}

/// Makes a worker for each partition that is assigned, and ends with the first failure.
async fn supervise<T: Target>(
    shared: Arc<Shared<T>>,
    told: &mut tokio::sync::mpsc::UnboundedReceiver<Notice>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut workers: JoinSet<(Partition, Result<(), Error>)> = JoinSet::new();
    let mut running: HashMap<Partition, usize> = HashMap::new();
    let mut ended: Result<(), Error> = Ok(());
    let mut patience = Box::pin(std::future::pending::<()>()) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = &mut patience => break,
            notice = told.recv() => match notice {
                Some(Notice::Assigned(assigned)) => {
                    *running.entry(assigned.partition.clone()).or_default() += 1;
                    let Assigned { partition, stop, done, ended } = assigned;
                    let worker = Worker { shared: shared.clone(), partition: partition.clone(), stop, done };
                    workers.spawn(async move {
                        // Held until the worker has ended: the consumer waits for it before it lets the partition go.
                        let _ended = ended;
                        (partition, worker.run().await)
                    });
                }
                Some(Notice::Failed(error)) => {
                    ended = ended.and(Err(error));
                    break;
                }
                None => break,
            },
            Some(joined) = workers.join_next() => {
                let (partition, result) = match joined {
                    Ok(joined) => joined,
                    Err(_) => {
                        ended = ended.and(Err(Error::Ended { group: shared.config.name.clone(), part: "a worker" }));
                        break;
                    }
                };
                if let Some(left) = running.get_mut(&partition) {
                    *left -= 1;
                    running.retain(|_, left| *left > 0);
                }
                let Err(error) = result else { continue };
                let waits = error.waits_for_siblings();
                if ended.is_ok() && waits {
                    // Its siblings will come to the same event; so each says for itself where it stands.
                    patience = Box::pin(tokio::time::sleep(SIBLINGS_MAX));
                }
                ended = ended.and(Err(error));
                if !waits || !running.keys().any(|other| other.topic == partition.topic) {
                    break;
                }
            }
        }
    }
    stop.cancel();
    // Partitions that were assigned just now get no worker any more. The consumer must not wait for one.
    told.close();
    while let Ok(notice) = told.try_recv() {
        if let Notice::Failed(error) = notice {
            ended = ended.and(Err(error));
        }
    }
    while workers.join_next().await.is_some() {}
    ended
}

/// Measures how many offsets each partition of ours is behind its end, whether or not it is being fetched. Ends with those of
/// which nothing comes, if there are any.
async fn watch_lag(
    group: String,
    admin: Arc<Admin>,
    reached: Reached,
    mut standstill: Standstill,
    stop: CancellationToken,
) -> Option<Vec<Partition>> {
    let mut ticks = tokio::time::interval(LAG_INTERVAL);
    // Of thousands of partitions one round takes longer than that.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stands = || reached.lock().unwrap_or_else(PoisonError::into_inner);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let mut topics: HashMap<Arc<str>, i32> = HashMap::new();
        {
            let stands = stands();
            standstill.forget(|partition| !stands.contains_key(partition));
            for partition in stands.keys() {
                let count = topics.entry(partition.topic.clone()).or_default();
                *count = (*count).max(partition.number + 1);
            }
        }
        let mut stalled = Vec::new();
        for (topic, partitions) in topics {
            // Kafka's absence is told by those who need it.
            let Ok(offsets) = admin.offsets(&topic, partitions).await else {
                standstill.forget(|partition| partition.topic == topic);
                continue;
            };
            for (number, offsets) in (0..).zip(offsets) {
                let partition = Partition { topic: topic.clone(), number };
                // Not before the end is known: this one may have moved on meanwhile.
                let Some(reach) = stands().get(&partition).copied() else { continue };
                measure::lag(&group, &partition, offsets.end - reach.next);
                if standstill.look(&partition, reach, offsets.end) {
                    stalled.push(partition);
                }
            }
        }
        if !stalled.is_empty() {
            return Some(stalled);
        }
    }
    None
}
