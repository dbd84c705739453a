//! The topics: looked at before anything is made, made where that is allowed, and checked against the state at every start.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kafka::admin::{Admin, NewTopic, Topic};
use kafka::topic::{Isolation, read_all};
use schemas::state;
use tokio_util::sync::CancellationToken;

use crate::config::Topics;
use crate::state::State;
use crate::{Error, Severity};

/// How often topics in use are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// What must be done before the first record: topics to make, and what a person must mend.
#[derive(Debug, Default)]
pub struct Plan {
    /// Names of topics that are missing.
    pub missing: Vec<String>,
    /// Faults, each with its remedy.
    pub faults: Vec<String>,
}

/// Compares topics that are about to be used with the configuration: existing ones must be empty, or their history is
/// unknown. The state's is among them for a first start.
pub async fn plan(
    admin: &Admin,
    kafka: &kafka::Config,
    config: &Topics,
    state_topic: &str,
    names: &[&str],
    stop: &CancellationToken,
) -> Result<Plan, Error> {
    let there = admin.topics(names).await?;
    let mut plan = Plan::default();
    for name in names.iter().copied() {
        let Some(topic) = there.get(name) else {
            plan.missing.push(name.to_owned());
            continue;
        };
        let (partitions, policy) = if name == state_topic { (1, "compact") } else { (config.partitions, "delete") };
        judge(topic, policy, &mut plan.faults);
        if topic.partitions < partitions || (name == state_topic && topic.partitions != 1) {
            plan.faults.push(format!(
                "the topic {name} has {} partitions and {partitions} are configured: delete it, raise its partitions, or correct source.topics.partitions",
                topic.partitions
            ));
        }
        if holds_records(kafka, name, stop).await? {
            plan.faults.push(format!(
                "the topic {name} holds records and {state_topic} does not know of them: it is another source's, or the state was lost; use another prefix"
            ));
        }
    }
    if !config.create && !plan.missing.is_empty() {
        plan.faults.push(format!(
            "these topics are missing: {}; set source.topics.create = true, or make them with {} partitions ({state_topic}: 1 partition, cleanup.policy=compact)",
            plan.missing.join(", "),
            config.partitions
        ));
    }
    Ok(plan)
}

/// Whether a reader would find anything. Offsets do not tell: a first start that died leaves an aborted transaction.
async fn holds_records(kafka: &kafka::Config, name: &str, stop: &CancellationToken) -> Result<bool, Error> {
    enum Found {
        Record,
        Failed(kafka::Error),
    }
    impl From<kafka::Error> for Found {
        fn from(error: kafka::Error) -> Found {
            Found::Failed(error)
        }
    }
    let (kafka, name, stop) = (kafka.clone(), name.to_owned(), stop.clone());
    let read =
        move || read_all(&kafka, &name, Isolation::ReadCommitted, &|| stop.is_cancelled(), |_| Err(Found::Record));
    match tokio::task::spawn_blocking(read).await.map_err(|_| Error::Panicked("the look into a topic"))? {
        Ok(()) => Ok(false),
        Err(Found::Record) => Ok(true),
        Err(Found::Failed(error)) => Err(error.into()),
    }
}

/// Makes the missing topics.
pub async fn create(admin: &Admin, config: &Topics, state_topic: &str, missing: &[String]) -> Result<(), Error> {
    let topic = |name: &'_ String| -> (i32, Vec<(&'static str, String)>) {
        let mut settings = vec![
            ("min.insync.replicas", config.min_insync_replicas.to_string()),
            ("unclean.leader.election.enable", "false".to_owned()),
        ];
        if name == state_topic {
            let compaction = [
                ("cleanup.policy", "compact"),
                ("segment.bytes", "16777216"),
                ("min.cleanable.dirty.ratio", "0.1"),
                ("max.compaction.lag.ms", "60000"),
            ];
            settings.extend(compaction.map(|(key, value)| (key, value.to_owned())));
            (1, settings)
        } else {
            settings.push(("cleanup.policy", "delete".to_owned()));
            settings.push(("retention.ms", config.retention.as_millis().to_string()));
            settings.push(("max.message.bytes", config.message_bytes_max.to_string()));
            (config.partitions, settings)
        }
    };
    let new: Vec<NewTopic<'_>> = missing
        .iter()
        .map(|name| {
            let (partitions, settings) = topic(name);
            NewTopic { name, partitions, replication: config.replication, settings }
        })
        .collect();
    Ok(admin.create(&new).await?)
}

/// The topics as the state will hold them.
pub async fn found(admin: &Admin, data: &[String]) -> Result<Vec<(String, state::Topic)>, Error> {
    let names: Vec<&str> = data.iter().map(String::as_str).collect();
    let there = admin.topics(&names).await?;
    data.iter()
        .map(|name| {
            let topic = there.get(name).ok_or_else(|| kafka::Error::NoTopic(name.clone()))?;
            let seq = vec![schemas::Seq(0); topic.partitions.unsigned_abs() as usize];
            Ok((
                name.clone(),
                state::Topic { id: topic.id.clone(), partitions: topic.partitions, seq, former: Vec::new() },
            ))
        })
        .collect()
}

/// Which of these topics hold nothing of ours: never used, or no more the ones that were. A table that comes back after its
/// topic was deleted begins anew.
pub async fn fresh(admin: &Admin, state: &State, names: &[String]) -> Result<Vec<String>, Error> {
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let there = admin.topics(&wanted).await?;
    let is_fresh = |name: &&String| match state.topics().iter().find(|recorded| recorded.name == **name) {
        Some(recorded) => there.get(*name).is_none_or(|topic| topic.id != recorded.topic.id),
        None => true,
    };
    Ok(names.iter().filter(is_fresh).cloned().collect())
}

/// What a comparison of topics with the state has found.
pub struct Checked {
    /// How large a record each topic takes, in bytes.
    pub limits: BTreeMap<String, usize>,
    /// Kafka's id of the state's own topic.
    pub state_topic_id: String,
}

/// Compares the topics of published tables with the state.
pub async fn check(admin: &Admin, state_topic: &str, state: &State) -> Result<Checked, Error> {
    let used: HashSet<&str> = state.tables().map(|(_, table)| table.topic.as_str()).collect();
    let names: Vec<&str> = used.iter().copied().chain([state_topic]).collect();
    let there = admin.topics(&names).await?;
    let mut faults = Vec::new();
    let Some(own) = there.get(state_topic) else {
        let fault = "is gone, and without it nobody knows what stands in the topics: load again under a new prefix";
        return Err(Error::Topic { topic: state_topic.to_owned(), fault: fault.into() });
    };
    judge(own, "compact", &mut faults);
    if !faults.is_empty() {
        return Err(Error::Unready(faults));
    }
    let mut limits = BTreeMap::new();
    for recorded in state.topics().iter().filter(|topic| used.contains(topic.name.as_str())) {
        let fault = |fault: String| Err(Error::Topic { topic: recorded.name.clone(), fault });
        let Some(topic) = there.get(&recorded.name) else {
            return fault("is gone, with everything that was published to it: load again under a new prefix".into());
        };
        if topic.id != recorded.topic.id {
            return fault(
                "was deleted and made again, so what was published is gone: load again under a new prefix".into(),
            );
        }
        if topic.partitions < recorded.topic.partitions {
            return fault(format!("has {} partitions, but {} were used", topic.partitions, recorded.topic.partitions));
        }
        if topic.partitions > recorded.topic.partitions {
            tell_grown(&recorded.name, topic.partitions, recorded.topic.partitions);
        }
        let mut faults = Vec::new();
        judge(topic, "delete", &mut faults);
        if let Some(first) = faults.pop() {
            return Err(Error::Unready(vec![first]));
        }
        limits.insert(recorded.name.clone(), topic.settings.max_message_bytes);
    }
    Ok(Checked { limits, state_topic_id: own.id.clone() })
}

/// Looks at the topics again and again for as long as a session lasts. A producer waits without end and without a word for a
/// topic that was deleted, and to one that was made again it publishes as if nothing had happened.
///
/// `known` is the state topic's id as it was when the session began.
pub async fn watch(admin: Admin, state_topic: String, known: String, state: State) -> Result<(), Error> {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = match check(&admin, &state_topic, &state).await {
            // Whether Kafka is away is for the publisher to find out.
            Err(error) if error.severity() == Severity::Transient => continue,
            checked => checked?.state_topic_id,
        };
        if now != known {
            let fault = "was deleted and made again, and without it nobody knows what stands in the topics: load again under a new prefix";
            return Err(Error::Topic { topic: state_topic, fault: fault.into() });
        }
    }
}

/// Somebody has added partitions to a topic in use: no harm, since keys are spread by the recorded number, but not what they
/// hoped for. Told once in the life of the process, not by every session.
fn tell_grown(name: &str, found: i32, used: i32) {
    static TOLD: Mutex<BTreeSet<(String, i32)>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert((name.to_owned(), found)) {
        tracing::warn!(
            "the topic {name} has {found} partitions by now, and {used} are used as before: else later changes of a row could overtake earlier ones; `tributary topic grow` tells the way to more"
        );
    }
}

fn judge(topic: &Topic, policy: &str, faults: &mut Vec<String>) {
    if topic.settings.cleanup_policy != policy {
        faults.push(format!(
            "the topic {} has cleanup.policy={}: set it to {policy}, else records are lost",
            topic.name, topic.settings.cleanup_policy
        ));
    }
    if topic.settings.unclean_leader_election {
        faults.push(format!(
            "the topic {} has unclean.leader.election.enable=true, which loses acknowledged records: set it to false",
            topic.name
        ));
    }
}
