//! The Kafka cluster: whether it answers, its release, what transactions need, and the topics.

use std::collections::{BTreeMap, BTreeSet};

use kafka::Error;
use kafka::admin::{Admin, Cluster, Topic};
use kafka::producer::TRANSACTION_TIMEOUT;
use schemas::TableName;
use schemas::topic::{of_dead_letters, of_state, of_table};

use super::{Check, Checks};
use crate::configuration::Configuration;
use crate::output::bytes;

/// The topic in which Kafka keeps transactions.
const TRANSACTION_TOPIC: &str = "__transaction_state";

/// Looks at the cluster.
pub(super) async fn check(
    configuration: &Configuration,
    tables: Option<&[TableName]>,
    state: Option<&source::State>,
) -> Vec<Check> {
    let mut checks = Checks::of("kafka");
    let looked = async {
        let admin = Admin::connect(&configuration.kafka)?;
        let cluster = admin.cluster().await?;
        checks.good("connection", format!("{} brokers: {}", cluster.brokers.len(), addresses(&cluster)));
        brokers(&mut checks, &admin, &cluster, configuration.kafka.batch_bytes_max()).await?;
        topics(&mut checks, &admin, configuration, tables.unwrap_or_default(), state).await
    };
    let looked: Result<(), Error> = looked.await;
    if let Err(error) = looked {
        checks.failed("connection", &error);
    }
    checks.list
}

fn addresses(cluster: &Cluster) -> String {
    cluster.brokers.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(", ")
}

async fn brokers(checks: &mut Checks, admin: &Admin, cluster: &Cluster, batch_bytes_max: usize) -> Result<(), Error> {
    let has_transactions = !admin.topics(&[TRANSACTION_TOPIC]).await?.is_empty();
    for (number, address) in &cluster.brokers {
        let settings = match admin.broker_settings(*number).await {
            Ok(settings) => settings,
            Err(error) => {
                let remedy =
                    "grant DESCRIBE_CONFIGS on the cluster, or make sure by hand that the release is 3.6 or later";
                checks.warn(format!("broker {address}"), service::chain(&error).to_string(), remedy);
                continue;
            }
        };
        broker(checks, address, &settings, cluster.brokers.len(), has_transactions);
        batches(checks, address, &settings, batch_bytes_max);
    }
    Ok(())
}

fn broker(
    checks: &mut Checks,
    address: &str,
    settings: &BTreeMap<String, String>,
    brokers: usize,
    has_transactions: bool,
) {
    // Brokers do not tell their release; they have this setting since 3.6, and without it transactions can be left hanging.
    let verification = settings.get("transaction.partition.verification.enable").map(String::as_str);
    let (found, is_good) = match verification {
        Some("true") => ("3.6 or later", true),
        Some(_) => ("transaction.partition.verification.enable is off", false),
        None => ("before 3.6", false),
    };
    let remedy = "upgrade to 3.6 or later and leave transaction.partition.verification.enable on: without it a transaction can hang, and its readers with it";
    checks.expect(is_good, format!("broker {address}, release"), found, remedy);
    let number = |name: &str| settings.get(name).and_then(|value| value.parse::<u128>().ok());
    if let Some(limit) = number("transaction.max.timeout.ms") {
        let remedy = format!("raise transaction.max.timeout.ms to at least {}", TRANSACTION_TIMEOUT.as_millis());
        let what = format!("broker {address}, longest transaction");
        checks.expect(limit >= TRANSACTION_TIMEOUT.as_millis(), what, format!("{limit} ms"), remedy);
    }
    if let (false, Some(replication)) = (has_transactions, number("transaction.state.log.replication.factor")) {
        let remedy = format!(
            "set transaction.state.log.replication.factor to at most {brokers}, or add brokers: no transaction could ever begin"
        );
        let what = format!("broker {address}, replicas of transactions");
        checks.expect(replication <= brokers as u128, what, format!("{replication} on {brokers} brokers"), remedy);
    }
}

/// How large a batch the broker takes where a topic says nothing, and how large a one its followers fetch.
fn batches(checks: &mut Checks, address: &str, settings: &BTreeMap<String, String>, batch_bytes_max: usize) {
    let number = |name: &str| settings.get(name).and_then(|value| value.parse::<usize>().ok());
    for (name, what) in
        [("message.max.bytes", "largest batch"), ("replica.fetch.max.bytes", "largest batch of followers")]
    {
        let Some(limit) = number(name) else { continue };
        let remedy = format!("raise {name}, or lower kafka.batch_bytes_max = {batch_bytes_max}");
        let found = format!("{name} {}", bytes(limit as u64));
        checks.prefer(limit >= batch_bytes_max, format!("broker {address}, {what}"), found, remedy);
    }
}

async fn topics(
    checks: &mut Checks,
    admin: &Admin,
    configuration: &Configuration,
    tables: &[TableName],
    known: Option<&source::State>,
) -> Result<(), Error> {
    let prefix = &configuration.prefix;
    let routed = |table: &TableName| match &configuration.source {
        Some(source) => source.topics.topic_of(prefix, table),
        None => of_table(prefix, table),
    };
    let tables: BTreeSet<String> = tables.iter().map(routed).collect();
    let state = of_state(prefix);
    let dead: Vec<String> =
        configuration.sink.groups.iter().map(|group| of_dead_letters(prefix, &group.name)).collect();
    let names: Vec<&str> = tables.iter().chain([&state]).chain(&dead).map(String::as_str).collect();
    let found = admin.topics(&names).await?;
    for name in &tables {
        topic(checks, configuration, name, found.get(name), "delete");
        if let (Some(found), Some(known)) = (found.get(name), known) {
            grown(checks, found, known);
        }
    }
    topic(checks, configuration, &state, found.get(&state), "compact");
    for (name, group) in dead.iter().zip(&configuration.sink.groups) {
        match found.get(name) {
            Some(_) => checks.good(format!("topic {name}"), "there"),
            None if group.dead_letter_topic_create => {
                checks.good(format!("topic {name}"), "not there yet: the sink will make it")
            }
            None => {
                let remedy = format!(
                    "make it, or set groups.{}.dead_letter_topic_create = true; without it parked events are kept in the target alone",
                    group.name
                );
                checks.warn(format!("topic {name}"), "not there", remedy);
            }
        }
    }
    Ok(())
}

fn topic(checks: &mut Checks, configuration: &Configuration, name: &str, topic: Option<&Topic>, cleanup: &str) {
    let what = format!("topic {name}");
    let wanted = configuration.source.as_ref().map(|source| &source.topics);
    let Some(topic) = topic else { return missing(checks, what, wanted, cleanup) };
    let mut faults = faults(topic, cleanup, configuration.kafka.batch_bytes_max());
    let mut risks = Findings::default();
    if let Some(wanted) = wanted {
        differences(topic, wanted, cleanup, &mut faults, &mut risks);
    }
    if !faults.found.is_empty() {
        checks.fault(what, faults.found.join("; "), faults.remedies.join("; "));
    } else if !risks.found.is_empty() {
        checks.warn(what, risks.found.join("; "), risks.remedies.join("; "));
    } else {
        let found = format!(
            "{} partitions, replication {}, min.insync.replicas {}, records up to {}",
            topic.partitions,
            topic.replication,
            topic.settings.min_insync_replicas,
            bytes(topic.settings.max_message_bytes as u64)
        );
        checks.good(what, found);
    }
}

/// Partitions that somebody has added since the topic was first used.
fn grown(checks: &mut Checks, topic: &Topic, state: &source::State) {
    let used = state.topics().iter().find(|known| known.name == topic.name).map(|known| known.topic.partitions);
    if let Some(used) = used.filter(|used| *used < topic.partitions) {
        checks.warn(
            format!("topic {}, partitions", topic.name),
            format!("{} partitions, {used} of them used, for ever: the others stay empty", topic.partitions),
            "nothing has to be done; `tributary topic grow` tells the way to more",
        );
    }
}

/// What is wrong with a topic, and what to do about each.
#[derive(Default)]
struct Findings {
    found: Vec<String>,
    remedies: Vec<String>,
}

impl Findings {
    fn add(&mut self, found: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(found.into());
        self.remedies.push(remedy.into());
    }
}

fn missing(checks: &mut Checks, what: String, wanted: Option<&source::Topics>, cleanup: &str) {
    match wanted {
        Some(wanted) if wanted.create => checks.good(what, "not there yet: the source will make it"),
        Some(wanted) => {
            let remedy = format!(
                "make it with {} partitions, replication {}, cleanup.policy={cleanup}, min.insync.replicas={}; or set source.topics.create = true",
                partitions(wanted, cleanup),
                wanted.replication,
                wanted.min_insync_replicas
            );
            checks.fault(what, "not there", remedy);
        }
        None => {
            checks.fault(what, "not there", "start the source, which publishes to it, or correct prefix and tables")
        }
    }
}

/// The topic of the state is compacted and has one partition.
fn partitions(wanted: &source::Topics, cleanup: &str) -> i32 {
    if cleanup == "compact" { 1 } else { wanted.partitions }
}

/// What no configuration of ours makes good.
fn faults(topic: &Topic, cleanup: &str, batch_bytes_max: usize) -> Findings {
    let settings = &topic.settings;
    let mut findings = Findings::default();
    if settings.cleanup_policy != cleanup {
        let found = format!("cleanup.policy is {}", settings.cleanup_policy);
        findings.add(found, alter(topic, &format!("cleanup.policy={cleanup}")));
    }
    if settings.unclean_leader_election {
        let found = "unclean leader election is on: acknowledged records can be lost";
        findings.add(found, alter(topic, "unclean.leader.election.enable=false"));
    }
    if !topic.leaderless.is_empty() {
        findings.add(format!("partitions {:?} have no leader", topic.leaderless), "start the brokers that are down");
    }
    if topic.in_sync < settings.min_insync_replicas {
        let found = format!("{} replicas in sync, {} needed to write", topic.in_sync, settings.min_insync_replicas);
        findings.add(found, "start the brokers that are down, or lower min.insync.replicas");
    }
    if settings.max_message_bytes < batch_bytes_max {
        let found = format!(
            "max.message.bytes {}, below kafka.batch_bytes_max = {batch_bytes_max}",
            settings.max_message_bytes
        );
        findings.add(found, alter(topic, "max.message.bytes=10485760"));
    }
    findings
}

/// Where a topic is not as configured.
fn differences(topic: &Topic, wanted: &source::Topics, cleanup: &str, faults: &mut Findings, risks: &mut Findings) {
    let partitions = partitions(wanted, cleanup);
    if topic.partitions < partitions || (cleanup == "compact" && topic.partitions != partitions) {
        let remedy = match cleanup {
            "compact" => "delete it: the source makes it anew".to_owned(),
            _ => format!("raise them before the first start, or set source.topics.partitions = {}", topic.partitions),
        };
        faults.add(format!("{} partitions, {partitions} configured", topic.partitions), remedy);
    }
    if topic.replication < usize::try_from(wanted.replication).unwrap_or(0) {
        let found = format!("replication {}, {} configured", topic.replication, wanted.replication);
        risks.add(found, "reassign its partitions to more brokers (kafka-reassign-partitions)");
    }
    let in_sync = usize::try_from(wanted.min_insync_replicas).unwrap_or(0);
    if topic.settings.min_insync_replicas < in_sync {
        let found = format!("min.insync.replicas {}, {in_sync} configured", topic.settings.min_insync_replicas);
        risks.add(found, alter(topic, &format!("min.insync.replicas={in_sync}")));
    }
}

fn alter(topic: &Topic, setting: &str) -> String {
    format!("kafka-configs --alter --entity-type topics --entity-name {} --add-config {setting}", topic.name)
}

#[cfg(test)]
mod tests {
    use kafka::admin::Settings;

    use super::*;

    fn sound() -> Topic {
        Topic {
            name: "shop.public.users".into(),
            id: "AAAAAAAAAAAAAAAAAAAAAA".into(),
            partitions: 4,
            replication: 3,
            in_sync: 3,
            leaderless: vec![],
            settings: Settings {
                cleanup_policy: "delete".into(),
                min_insync_replicas: 2,
                retention_ms: 604_800_000,
                max_message_bytes: 1_048_588,
                unclean_leader_election: false,
            },
        }
    }

    fn found(change: impl FnOnce(&mut Topic)) -> String {
        let mut topic = sound();
        change(&mut topic);
        faults(&topic, "delete", 1_000_000).found.join("\n")
    }

    #[test]
    fn what_loses_or_refuses_records_is_a_fault() {
        assert_eq!(found(|_| ()), "");
        assert!(found(|topic| topic.settings.cleanup_policy = "compact".into()).contains("cleanup.policy"));
        assert!(found(|topic| topic.settings.unclean_leader_election = true).contains("unclean"));
        assert!(found(|topic| topic.leaderless = vec![2]).contains("[2]"));
        assert!(found(|topic| topic.in_sync = 1).contains("1 replicas in sync, 2 needed"));
        assert!(found(|topic| topic.settings.max_message_bytes = 1000).contains("max.message.bytes 1000"));
    }
}
