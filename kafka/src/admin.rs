//! What topics, groups and brokers are like, and making topics. Never makes one by asking for it.
//!
//! Every call is one question with one bounded answer; whoever wants to wait longer asks again.

mod group;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer};
use service::few;

pub use group::{Group, Member};

use crate::error::{Cause, Error};
use crate::producer::Poller;
use crate::{Config, Context, raw};

/// How long an answer is waited for.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after its creation a topic may take to be known to every broker.
const PROPAGATION_TIMEOUT: Duration = Duration::from_secs(20);

/// How many entries of the controller's log one request may cost. A controller refuses a request of more than 10,000 (Kafka's
/// `MAX_RECORDS_PER_USER_OP`), and smaller ones are answered in time while the brokers make the partitions.
const ENTRIES_MAX: usize = 2_000;

/// Of how many topics the settings are asked for at a time: a broker needs about a millisecond for each, and a request that is
/// not answered in time is asked again whole.
const DESCRIBED_MAX: usize = 500;

/// So many topics are named in an error.
const NAMED_MAX: usize = 3;

/// A topic that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Its id, as Kafka's own tools print it. A topic made again under the same name has another.
    pub id: String,
    /// How many partitions it has.
    pub partitions: i32,
    /// How many replicas the partition with the fewest has.
    pub replication: usize,
    /// How many of them are in sync where they are fewest.
    pub in_sync: usize,
    /// Partitions without a leader at this moment.
    pub leaderless: Vec<i32>,
    /// How it is set.
    pub settings: Settings,
}

/// The settings of a topic that matter to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `cleanup.policy`: `delete`, `compact`, or both with a comma.
    pub cleanup_policy: String,
    /// `min.insync.replicas`.
    pub min_insync_replicas: usize,
    /// `retention.ms`; -1 keeps records for ever.
    pub retention_ms: i64,
    /// `max.message.bytes`, of a whole compressed batch.
    pub max_message_bytes: usize,
    /// `unclean.leader.election.enable`: whether acknowledged records may be lost.
    pub unclean_leader_election: bool,
}

/// A topic to make.
#[derive(Debug, Clone)]
pub struct NewTopic<'a> {
    /// Its name.
    pub name: &'a str,
    /// How many partitions.
    pub partitions: i32,
    /// How many replicas of each.
    pub replication: i32,
    /// Settings by Kafka's own names, as `("cleanup.policy", "compact")`.
    pub settings: Vec<(&'a str, String)>,
}

/// The brokers at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The cluster's id, as Kafka's own tools print it.
    pub id: Option<String>,
    /// Number and address of each broker.
    pub brokers: Vec<(i32, String)>,
}

/// What a partition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    /// The first offset that is still there.
    pub start: i64,
    /// The offset after the last one that a `read_committed` reader may see.
    pub end: i64,
}

/// A connection for questions. Cheap to keep; `rdkafka` gives it threads of its own.
pub struct Admin {
    config: Config,
    client: AdminClient<DefaultClientContext>,
    // `AdminClient` does not serve its own log and errors, so a second client tells what connections meet.
    _poller: Poller,
    probe: Arc<BaseProducer<Context>>,
}

impl Admin {
    /// Makes the clients. They connect with the first question.
    pub fn connect(config: &Config) -> Result<Admin, Error> {
        let mut settings = config.client();
        let probe = BaseProducer::from_config_and_context(&settings, config.context());
        let probe = Arc::new(probe.map_err(|error| config.refused(error))?);
        let poller =
            Poller::start(probe.clone()).map_err(|cause| Error::Thread { purpose: "serve Kafka's events", cause })?;
        // Nobody would ever take its log lines and statistics out of the queue.
        settings.set_log_level(RDKafkaLogLevel::Emerg).set("statistics.interval.ms", "0");
        let client = AdminClient::from_config_and_context(&settings, DefaultClientContext);
        let client = client.map_err(|error| config.refused(error))?;
        Ok(Admin { config: config.clone(), client, _poller: poller, probe })
    }

    /// Those of the named topics that exist, by name.
    pub async fn topics(&self, names: &[&str]) -> Result<BTreeMap<String, Topic>, Error> {
        let operation = || format!("describe the topics {}", few(names, NAMED_MAX));
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let wanted: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let described = self.blocking(move |probe| {
            let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
            raw::describe_topics(probe.client(), &names, REQUEST_TIMEOUT)
        });
        let described = described.await.map_err(|cause| self.failed(operation(), cause))?;
        let there: Vec<&str> = described.iter().map(|topic| topic.name.as_str()).collect();
        let mut settings = self.settings(&there).await?;
        let topics = described.into_iter().filter_map(|described| {
            // Gone between the two questions: then it is not there.
            let settings = settings.remove(&described.name)?;
            Some((described.name.clone(), Topic::new(described, settings)))
        });
        Ok(topics.collect())
    }

    /// Makes the topics and waits until the cluster shows them. One that is there already, made by another at the same time
    /// say, is no error: describe them afterwards.
    pub async fn create(&self, topics: &[NewTopic<'_>]) -> Result<(), Error> {
        for portion in portions(topics) {
            self.create_at_once(portion).await?;
        }
        Ok(())
    }

    async fn create_at_once(&self, topics: &[NewTopic<'_>]) -> Result<(), Error> {
        let native: Vec<_> = topics.iter().map(native).collect();
        let answers = self.client.create_topics(&native, &patience());
        let names: Vec<&str> = topics.iter().map(|topic| topic.name).collect();
        let operation = || format!("create the topics {}", few(&names, NAMED_MAX));
        for answer in answers.await.map_err(|error| self.failed(operation(), error.into()))? {
            match answer {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    return Err(self.failed(format!("create the topic {name}"), Cause::of_code(code)));
                }
            }
        }
        let deadline = Instant::now() + PROPAGATION_TIMEOUT;
        loop {
            let shown = self.topics(&names).await?;
            if shown.len() == names.len() && shown.values().all(|topic| topic.leaderless.is_empty()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.failed(operation(), Cause::of_code(RDKafkaErrorCode::OperationTimedOut)));
            }
            // There is no event for it: brokers learn of a topic one after the other.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Deletes a topic with all that stands in it. One that is not there is no error.
    pub async fn delete(&self, topic: &str) -> Result<(), Error> {
        let operation = || format!("delete the topic {topic}");
        let answers = self.client.delete_topics(&[topic], &patience()).await;
        for answer in answers.map_err(|error| self.failed(operation(), error.into()))? {
            match answer {
                Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
                Err((_, code)) => return Err(self.failed(operation(), Cause::of_code(code))),
            }
        }
        Ok(())
    }

    /// The brokers.
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        let answer = self.blocking(|probe| -> KafkaResult<Cluster> {
            let metadata = probe.client().fetch_metadata(None, REQUEST_TIMEOUT)?;
            let brokers = metadata.brokers().iter();
            let brokers = brokers.map(|broker| (broker.id(), format!("{}:{}", broker.host(), broker.port())));
            Ok(Cluster { brokers: brokers.collect(), id: probe.client().fetch_cluster_id(REQUEST_TIMEOUT) })
        });
        answer.await.map_err(|error| self.failed("ask for the brokers".to_owned(), error.into()))
    }

    /// All settings of one broker by name. Which names there are tells its release.
    pub async fn broker_settings(&self, broker: i32) -> Result<BTreeMap<String, String>, Error> {
        let operation = || format!("read the settings of broker {broker}");
        let answer = self.client.describe_configs(&[ResourceSpecifier::Broker(broker)], &patience()).await;
        let mut resources = answer.map_err(|error| self.failed(operation(), error.into()))?;
        let resource = resources.pop().unwrap_or(Err(RDKafkaErrorCode::UnknownBroker));
        let resource = resource.map_err(|code| self.failed(operation(), Cause::of_code(code)))?;
        Ok(resource.entries.into_iter().map(|entry| (entry.name, entry.value.unwrap_or_default())).collect())
    }

    /// What each partition of a topic holds, by partition.
    pub async fn offsets(&self, topic: &str, partitions: i32) -> Result<Vec<Offsets>, Error> {
        let name = topic.to_owned();
        let answer = self.blocking(move |probe| {
            let of = |partition| -> KafkaResult<Offsets> {
                let (start, end) = probe.client().fetch_watermarks(&name, partition, REQUEST_TIMEOUT)?;
                Ok(Offsets { start, end })
            };
            let all = || (0..partitions).map(of).collect::<KafkaResult<Vec<_>>>();
            all().or_else(|_| {
                // librdkafka can go on believing what it last knew of the leaders, for minutes after the brokers are back:
                // asking for the topic itself makes it look again.
                probe.client().fetch_metadata(Some(&name), REQUEST_TIMEOUT)?;
                all()
            })
        });
        answer.await.map_err(|error| self.failed(format!("read the offsets of {topic}"), error.into()))
    }

    async fn settings(&self, names: &[&str]) -> Result<HashMap<String, Settings>, Error> {
        let mut settings = HashMap::new();
        for some in names.chunks(DESCRIBED_MAX) {
            let operation = || format!("read the settings of the topics {}", few(some, NAMED_MAX));
            let resources: Vec<_> = some.iter().map(|&name| ResourceSpecifier::Topic(name)).collect();
            let answers = self.client.describe_configs(&resources, &patience()).await;
            for answer in answers.map_err(|error| self.failed(operation(), error.into()))? {
                match answer {
                    Ok(resource) => {
                        if let OwnedResourceSpecifier::Topic(name) = &resource.specifier {
                            settings.insert(name.clone(), Settings::read(&resource));
                        }
                    }
                    // Gone between the two questions.
                    Err(RDKafkaErrorCode::UnknownTopicOrPartition) => {}
                    Err(code) => return Err(self.failed(operation(), Cause::of_code(code))),
                }
            }
        }
        Ok(settings)
    }

    fn failed(&self, operation: String, cause: Cause) -> Error {
        match cause.code() {
            RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::AllBrokersDown => {
                self.probe.context().unanswered(self.config.brokers(), operation, REQUEST_TIMEOUT)
            }
            _ => Error::Admin { operation, cause },
        }
    }

    /// Runs calls that block on a thread made for such.
    async fn blocking<T, F>(&self, call: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(&BaseProducer<Context>) -> T + Send + 'static,
    {
        let probe = self.probe.clone();
        match tokio::task::spawn_blocking(move || call(&probe)).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(answer) => answer,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and whoever waits for this with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Topic {
    fn new(described: raw::Description, settings: Settings) -> Topic {
        let partitions = &described.partitions;
        Topic {
            id: id_text(described.id),
            partitions: i32::try_from(partitions.len()).unwrap_or(i32::MAX),
            replication: partitions.iter().map(|partition| partition.replicas).min().unwrap_or(0),
            in_sync: partitions.iter().map(|partition| partition.in_sync).min().unwrap_or(0),
            leaderless: partitions
                .iter()
                .filter(|partition| !partition.has_leader)
                .map(|partition| partition.number)
                .collect(),
            name: described.name,
            settings,
        }
    }
}

impl Settings {
    /// What a broker does not tell is taken as Kafka's own default.
    fn read(resource: &ConfigResource) -> Settings {
        let value = |name: &str| resource.get(name).and_then(|entry| entry.value.as_deref());
        let number = |name: &str| value(name).and_then(|text| text.parse::<i64>().ok());
        let size =
            |name: &str, default| number(name).and_then(|number| usize::try_from(number).ok()).unwrap_or(default);
        Settings {
            cleanup_policy: value("cleanup.policy").unwrap_or("delete").to_owned(),
            min_insync_replicas: size("min.insync.replicas", 1),
            retention_ms: number("retention.ms").unwrap_or(-1),
            max_message_bytes: size("max.message.bytes", 1_048_588),
            unclean_leader_election: value("unclean.leader.election.enable") == Some("true"),
        }
    }
}

fn native<'a>(topic: &'a NewTopic<'a>) -> rdkafka::admin::NewTopic<'a> {
    let native =
        rdkafka::admin::NewTopic::new(topic.name, topic.partitions, TopicReplication::Fixed(topic.replication));
    topic.settings.iter().fold(native, |native, (name, value)| native.set(name, value))
}

/// Cuts the list into requests that a controller takes; a topic alone is never cut.
fn portions<'t, 'a>(topics: &'t [NewTopic<'a>]) -> impl Iterator<Item = &'t [NewTopic<'a>]> {
    let mut entries = 0;
    topics.chunk_by(move |topic, next| {
        // One for the topic, one for each partition and for each setting.
        let cost = |topic: &NewTopic<'_>| 1 + usize::try_from(topic.partitions).unwrap_or(0) + topic.settings.len();
        if entries == 0 {
            entries = cost(topic);
        }
        entries += cost(next);
        let is_room = entries <= ENTRIES_MAX;
        if !is_room {
            entries = 0;
        }
        is_room
    })
}

fn patience() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT)).operation_timeout(Some(REQUEST_TIMEOUT))
}

/// Base64 for addresses, without padding: Kafka's own way to write such an id.
fn id_text((high, low): (u64, u64)) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = (u128::from(high) << 64) | u128::from(low);
    // 128 bits are 21 digits of six and one that holds the last two.
    let shifts = (0..21).map(|index| bits >> (122 - 6 * index)).chain(std::iter::once(bits << 4));
    shifts.map(|bits| char::from(DIGITS[(bits & 63) as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_are_written_as_kafka_writes_them() {
        // Java's Base64.getUrlEncoder().withoutPadding(), as org.apache.kafka.common.Uuid uses it.
        assert_eq!(id_text((0, 0)), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(id_text((0, 1)), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(id_text((u64::MAX, u64::MAX)), "_____________________w");
        assert_eq!(id_text((0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210)), "ASNFZ4mrze_-3LqYdlQyEA");
    }

    #[test]
    fn a_request_costs_what_a_controller_takes() {
        let topic = |partitions| NewTopic {
            name: "t",
            partitions,
            replication: 1,
            settings: vec![("cleanup.policy", "delete".to_owned())],
        };
        let lengths = |topics: &[NewTopic<'_>]| portions(topics).map(<[_]>::len).collect::<Vec<_>>();
        assert!(lengths(&[]).is_empty());
        assert_eq!(lengths(&[topic(12)]), [1]);
        // Three entries each.
        assert_eq!(lengths(&vec![topic(1); 1_400]), [ENTRIES_MAX / 3, ENTRIES_MAX / 3, 68]);
        // One that is too large for any goes alone, and its neighbours without it.
        let large = || topic(2 * ENTRIES_MAX as i32);
        assert_eq!(lengths(&[topic(1), topic(1), large(), topic(1), topic(1)]), [2, 1, 2]);
    }
}
