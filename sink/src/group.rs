//! One group: made ready, then a consumer, and a worker for each partition that it is given.
//!
//!     target ready ──▶ topics there ──▶ consumer ──assigned──▶ workers ──▶ end: stopped, or the first failure

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use kafka::admin::Admin;
use kafka::topic::{Isolation, read_all};
use schemas::state::{Key, Table};
use schemas::{TableName, topic};
use service::http::Health;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::announce::Announcer;
use crate::config::{Config, Group, To};
use crate::consumer::{Assigned, Consumer, Notice, Reached};
use crate::error::Error;
use crate::measure;
use crate::mirror::Mirror;
use crate::persist::persist;
use crate::record::Partition;
use crate::relational::Relational;
use crate::target::Target;
use crate::worker::{Shared, Worker};

/// How often a topic is looked for that its source has not made yet.
const TOPICS_INTERVAL: Duration = Duration::from_secs(1);
/// How often lag is measured.
const LAG_INTERVAL: Duration = Duration::from_secs(5);
/// How long partitions may take to come to an event at which a sibling stands.
const SIBLINGS_MAX: Duration = Duration::from_secs(30);

/// How long the consumer may take to leave the group, once its workers have ended.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// A group and what it works with.
pub(crate) struct Run {
    pub(crate) group: Group,
    pub(crate) config: Config,
    pub(crate) kafka: kafka::Config,
    pub(crate) prefix: String,
    pub(crate) owner: String,
    pub(crate) health: Health,
    pub(crate) stop: CancellationToken,
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
        let what = format!("make the target ready for group {}", self.group.name);
        if persist(what, &self.stop, || Box::pin(target.open(database))).await?.is_none() {
            return Ok(());
        }
        let Some(admin) = self.topics().await? else { return Ok(()) };
        self.fits(&admin, &target).await?;
        let parked = Arc::new(Notify::new());
        let mirror = Mirror {
            group: self.group.name.clone(),
            prefix: self.prefix.clone(),
            topics: self.topic_names(),
            kafka: self.kafka.clone(),
            admin: admin.clone(),
            target: target.clone(),
            parked: parked.clone(),
            create: self.group.dead_letter_topic_create,
            stop: self.stop.clone(),
        };
        let mirror = tokio::spawn(mirror.run());
        let ended = self.work(target, admin, parked).await;
        self.stop.cancel();
        match mirror.await {
            Ok(()) => ended,
            Err(_) => {
                ended.and(Err(Error::Ended { group: self.group.name.clone(), part: "the mirror of parked events" }))
            }
        }
    }

    async fn redis(&self, announce: &crate::config::Announce) -> Result<(), Error> {
        let missing = Error::Unconfigured { group: self.group.name.clone(), missing: "add [redis] with its url" };
        let redis = self.config.redis.as_ref().ok_or(missing)?;
        let target = Arc::new(Announcer::new(&self.group.name, &self.prefix, &self.owner, announce, redis)?);
        let what = format!("make Redis ready for group {}", self.group.name);
        if persist(what, &self.stop, || Box::pin(target.open())).await?.is_none() {
            return Ok(());
        }
        let Some(admin) = self.topics().await? else { return Ok(()) };
        let ended = self.work(target, admin, Arc::new(Notify::new())).await;
        self.stop.cancel();
        ended
    }

    fn failed(&self, cause: kafka::Error) -> Error {
        Error::Kafka { group: self.group.name.clone(), cause }
    }

    /// Waits until the source has made the topics.
    async fn topics(&self) -> Result<Option<Arc<Admin>>, Error> {
        let admin = Arc::new(Admin::connect(&self.kafka).map_err(|cause| self.failed(cause))?);
        let names = self.topic_names();
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut told = Vec::new();
        loop {
            let what = format!("look for the topics of group {}", self.group.name);
            let found = persist(what, &self.stop, || {
                Box::pin(async { admin.topics(&wanted).await.map_err(|cause| self.failed(cause)) })
            });
            let Some(found) = found.await? else { return Ok(None) };
            let missing: Vec<&str> = wanted.iter().copied().filter(|name| !found.contains_key(*name)).collect();
            if missing.is_empty() {
                return Ok(Some(admin));
            }
            if missing != told {
                tracing::info!(group = %self.group.name, topics = %missing.join(", "), "waiting for topics that the source has not made yet");
                told = missing;
            }
            // Kafka tells nobody of a new topic.
            if self.stop.run_until_cancelled(tokio::time::sleep(TOPICS_INTERVAL)).await.is_none() {
                return Ok(None);
            }
        }
    }

    fn topic_names(&self) -> Vec<String> {
        self.group.tables.iter().map(|table| topic::of_table(&self.prefix, table)).collect()
    }

    /// Holds the tables as the source describes them against the target: all that is missing at once, before anything is consumed.
    async fn fits(&self, admin: &Admin, target: &Relational) -> Result<(), Error> {
        let what = format!("read the source's state for group {}", self.group.name);
        let Some(tables) = persist(what, &self.stop, || Box::pin(self.described(admin))).await? else { return Ok(()) };
        let ours = tables.values().filter(|table| self.group.tables.contains(&table.name));
        let misfits: Vec<_> = ours.flat_map(|table| target.misfits(table)).collect();
        if misfits.is_empty() { Ok(()) } else { Err(Error::Misfits { group: self.group.name.clone(), misfits }) }
    }

    /// The tables that the source's state describes so far.
    async fn described(&self, admin: &Admin) -> Result<HashMap<TableName, Table>, Error> {
        let name = topic::of_state(&self.prefix);
        if admin.topics(&[&name]).await.map_err(|cause| self.failed(cause))?.is_empty() {
            return Ok(HashMap::new());
        }
        let (kafka, stop) = (self.kafka.clone(), self.stop.clone());
        let read = tokio::task::spawn_blocking(move || {
            let mut by_oid: HashMap<u32, Table> = HashMap::new();
            read_all::<kafka::Error>(&kafka, &name, Isolation::ReadCommitted, &|| stop.is_cancelled(), |record| {
                let key =
                    record.key().and_then(|key| std::str::from_utf8(key).ok()).and_then(|key| key.parse::<Key>().ok());
                if let Some(Key::Table(oid)) = key {
                    match record.value().and_then(|value| serde_json::from_slice(value).ok()) {
                        Some(table) => by_oid.insert(oid, table),
                        None => by_oid.remove(&oid),
                    };
                }
                Ok(())
            })?;
            Ok(by_oid
                .into_values()
                .filter(|table| !table.columns.is_empty())
                .map(|table| (table.name.clone(), table))
                .collect())
        });
        match read.await {
            Ok(tables) => tables.map_err(|cause: kafka::Error| self.failed(cause)),
            Err(_) => Err(Error::Ended { group: self.group.name.clone(), part: "the reader of the source's state" }),
        }
    }

    async fn work<T: Target>(&self, target: Arc<T>, admin: Arc<Admin>, parked: Arc<Notify>) -> Result<(), Error> {
        let (commands, taken) = mpsc::channel();
        let (notices, mut told) = tokio::sync::mpsc::unbounded_channel();
        let reached = Reached::default();
        let group_id = topic::group_id(&self.prefix, &self.group.name);
        let fetching = self.stop.child_token();
        let consumer = Consumer {
            group: self.group.clone(),
            topics: self.topic_names(),
            kafka: self.kafka.clone(),
            group_id: group_id.clone(),
            client_id: format!("tributary-{}", self.owner),
            commands: taken,
            notices,
            reached: reached.clone(),
            stop: fetching.clone(),
        };
        let thread = consumer.start()?;
        let slots = Arc::new(Semaphore::new(self.group.connections * 2));
        let shared =
            Shared { config: self.group.clone(), group_id, target, admin: admin.clone(), commands, slots, parked };
        self.health.ready(&format!("sink {}", self.group.name), true);
        tracing::info!(group = %self.group.name, tables = self.group.tables.len(), "consuming");
        let lag = tokio::spawn(watch_lag(self.group.name.clone(), admin, reached, fetching.clone()));
        let ended = supervise(Arc::new(shared), &mut told, &fetching).await;
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

/// Measures how many offsets each partition of ours is behind its end, whether or not it is being fetched.
async fn watch_lag(group: String, admin: Arc<Admin>, reached: Reached, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(LAG_INTERVAL);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let stands = reached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut topics: HashMap<Arc<str>, i32> = HashMap::new();
        for partition in stands.keys() {
            let count = topics.entry(partition.topic.clone()).or_default();
            *count = (*count).max(partition.number + 1);
        }
        for (topic, partitions) in topics {
            // Kafka's absence is told by those who need it.
            let Ok(offsets) = admin.offsets(&topic, partitions).await else { continue };
            for (number, offsets) in (0..).zip(offsets) {
                let partition = Partition { topic: topic.clone(), number };
                if let Some(next) = stands.get(&partition) {
                    measure::lag(&group, &partition, offsets.end - next);
                }
            }
        }
    }
}
