//! The Kafka cluster: whether it answers, its release, what transactions need, and the topics.

use std::collections::BTreeMap;

use kafka::Error;
use kafka::admin::{Admin, Cluster, Topic};
use kafka::producer::TRANSACTION_TIMEOUT;
use schemas::topic::{of_dead_letters, of_state, of_table};

use super::{Check, Checks};
use crate::configuration::Configuration;

/// The topic in which Kafka keeps transactions.
const TRANSACTION_TOPIC: &str = "__transaction_state";

/// Looks at the cluster.
pub(super) async fn check(configuration: &Configuration) -> Vec<Check> {
    let mut checks = Checks::of("kafka");
    let looked = async {
        let admin = Admin::connect(&configuration.kafka)?;
        let cluster = admin.cluster().await?;
        checks.good("connection", format!("{} brokers: {}", cluster.brokers.len(), addresses(&cluster)));
        brokers(&mut checks, &admin, &cluster).await?;
        topics(&mut checks, &admin, configuration).await
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

async fn brokers(checks: &mut Checks, admin: &Admin, cluster: &Cluster) -> Result<(), Error> {
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

async fn topics(checks: &mut Checks, admin: &Admin, configuration: &Configuration) -> Result<(), Error> {
    let prefix = &configuration.prefix;
    let tables: Vec<String> = configuration.tables().iter().map(|table| of_table(prefix, table)).collect();
    let state = of_state(prefix);
    let dead: Vec<String> =
        configuration.sink.groups.iter().map(|group| of_dead_letters(prefix, &group.name)).collect();
    let names: Vec<&str> = tables.iter().chain([&state]).chain(&dead).map(String::as_str).collect();
    let found = admin.topics(&names).await?;
    for name in &tables {
        topic(checks, configuration, name, found.get(name), "delete");
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
    let Some(topic) = topic else {
        return match wanted {
            Some(wanted) if wanted.create => checks.good(what, "not there yet: the source will make it"),
            Some(wanted) => {
                let remedy = format!(
                    "make it with {} partitions, replication {}, cleanup.policy={cleanup}, min.insync.replicas={}; or set source.topics.create = true",
                    if cleanup == "compact" { 1 } else { wanted.partitions },
                    wanted.replication,
                    wanted.min_insync_replicas
                );
                checks.fault(what, "not there", remedy);
            }
            None => {
                checks.fault(what, "not there", "start the source, which publishes to it, or correct prefix and tables")
            }
        };
    };
    let settings = &topic.settings;
    let mut faults: Vec<(String, String)> = Vec::new();
    let mut risks: Vec<(String, String)> = Vec::new();
    let set = |setting: &str| {
        format!("kafka-configs --alter --entity-type topics --entity-name {name} --add-config {setting}")
    };
    if settings.cleanup_policy != cleanup {
        faults.push((
            format!("cleanup.policy is {}", settings.cleanup_policy),
            set(&format!("cleanup.policy={cleanup}")),
        ));
    }
    if settings.unclean_leader_election {
        faults.push((
            "unclean leader election is on: acknowledged records can be lost".into(),
            set("unclean.leader.election.enable=false"),
        ));
    }
    if !topic.leaderless.is_empty() {
        faults.push((
            format!("partitions {:?} have no leader", topic.leaderless),
            "start the brokers that are down".into(),
        ));
    }
    if topic.in_sync < settings.min_insync_replicas {
        let found = format!("{} replicas in sync, {} needed to write", topic.in_sync, settings.min_insync_replicas);
        faults.push((found, "start the brokers that are down, or lower min.insync.replicas".into()));
    }
    if let Some(wanted) = wanted {
        let partitions = if cleanup == "compact" { 1 } else { wanted.partitions };
        if topic.partitions < partitions || (cleanup == "compact" && topic.partitions != 1) {
            let remedy = format!(
                "make it with {partitions} partitions before the first start, or set source.topics.partitions = {}",
                topic.partitions
            );
            faults.push((format!("{} partitions, {partitions} configured", topic.partitions), remedy));
        }
        if topic.replication < usize::try_from(wanted.replication).unwrap_or(0) {
            risks.push((
                format!("replication {}, {} configured", topic.replication, wanted.replication),
                "reassign its partitions to more brokers (kafka-reassign-partitions)".into(),
            ));
        }
        let in_sync = usize::try_from(wanted.min_insync_replicas).unwrap_or(0);
        if settings.min_insync_replicas < in_sync {
            risks.push((
                format!("min.insync.replicas {}, {in_sync} configured", settings.min_insync_replicas),
                set(&format!("min.insync.replicas={in_sync}")),
            ));
        }
    }
    if settings.max_message_bytes < configuration.kafka.batch_bytes_max() {
        let found = format!(
            "max.message.bytes {}, below kafka.batch_bytes_max = {}",
            settings.max_message_bytes,
            configuration.kafka.batch_bytes_max()
        );
        faults.push((found, set("max.message.bytes=10485760")));
    }
    let joined = |list: Vec<(String, String)>| {
        let (found, remedies): (Vec<String>, Vec<String>) = list.into_iter().unzip();
        (found.join("; "), remedies.join("; "))
    };
    if !faults.is_empty() {
        let (found, remedy) = joined(faults);
        checks.fault(what, found, remedy);
    } else if !risks.is_empty() {
        let (found, remedy) = joined(risks);
        checks.warn(what, found, remedy);
    } else {
        let found = format!(
            "{} partitions, replication {}, min.insync.replicas {}, records up to {}",
            topic.partitions,
            topic.replication,
            settings.min_insync_replicas,
            crate::output::bytes(settings.max_message_bytes as u64)
        );
        checks.good(what, found);
    }
}
