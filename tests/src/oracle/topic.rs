//! A topic as a stranger reads it: `read_committed`, from the first record to the end, judged by its headers and JSON alone.

mod fold;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use schemas::TableName;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::tables::Row;
use crate::Error;

pub use fold::{Fold, Told};

/// How long reading one topic to its end may take.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// The key's text.
    pub key: Option<String>,
    /// The value's text; none for a tombstone.
    pub value: Option<String>,
    /// The headers by name.
    pub headers: BTreeMap<String, String>,
}

/// All records of a topic, each partition in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records(pub Vec<Record>);

/// What of an event's value concerns us.
#[derive(Debug, Deserialize)]
pub struct Event {
    /// c, u, d, r, t or m.
    pub op: String,
    #[serde(default)]
    after: Option<BTreeMap<String, Box<RawValue>>>,
    #[serde(default)]
    unchanged: Vec<String>,
    #[serde(default)]
    reselected: Vec<String>,
    /// Present on the delete of a key change.
    #[serde(default)]
    pub moved_to: Option<Box<RawValue>>,
    /// Present on the create of a key change.
    #[serde(default)]
    pub moved_from: Option<Box<RawValue>>,
    source: Source,
}

#[derive(Debug, Deserialize)]
struct Source {
    snapshot: String,
}

impl Event {
    /// Whether it was read by a load, and so stands for no change.
    pub fn is_loaded(&self) -> bool {
        self.op == "r" || self.source.snapshot != "false"
    }
}

impl Record {
    /// A row change: neither a tombstone nor a control event.
    pub fn is_row(&self) -> bool {
        self.value.is_some() && !self.headers.contains_key("control")
    }

    /// The value, read.
    pub fn event(&self) -> Result<Event, String> {
        let value = self.value.as_deref().unwrap_or_default();
        serde_json::from_str(value).map_err(|cause| self.fault(&format!("is no event: {cause}")))
    }

    /// The position's text, which sorts as positions do.
    pub fn position(&self) -> Result<&str, String> {
        self.headers.get("position").map(String::as_str).ok_or_else(|| self.fault("has no position"))
    }

    /// The commit's and the change's place in the WAL.
    pub fn places(&self) -> Result<(u64, u64), String> {
        let text = self.position()?;
        let mut parts = text.split('.').map(|digits| u64::from_str_radix(digits, 16));
        match (parts.next(), parts.next()) {
            (Some(Ok(commit)), Some(Ok(change))) => Ok((commit, change)),
            _ => Err(self.fault(&format!("has the position {text:?}"))),
        }
    }

    /// The commit's place in the WAL.
    pub fn commit(&self) -> Result<u64, String> {
        let text = self.position()?;
        let commit = text.split('.').next().unwrap_or_default();
        u64::from_str_radix(commit, 16).map_err(|_| self.fault(&format!("has the position {text:?}")))
    }

    /// The tables that it is about: several with a control event.
    fn tables(&self) -> Vec<TableName> {
        #[derive(Deserialize)]
        struct Value {
            source: TableName,
            #[serde(default)]
            control: Option<Control>,
        }
        #[derive(Deserialize)]
        struct Control {
            tables: Vec<TableName>,
        }
        let value: Option<Value> = self.value.as_deref().and_then(|value| serde_json::from_str(value).ok());
        value
            .map(|value| value.control.map_or_else(|| vec![value.source], |control| control.tables))
            .unwrap_or_default()
    }

    fn seq(&self) -> Result<u64, String> {
        let text = self.headers.get("seq").ok_or_else(|| self.fault("has no seq"))?;
        text.parse().map_err(|_| self.fault(&format!("has the seq {text:?}")))
    }

    fn fault(&self, what: &str) -> String {
        format!("the record at partition {} offset {} {what}", self.partition, self.offset)
    }
}

impl Records {
    /// The row changes.
    pub fn rows(&self) -> impl Iterator<Item = &Record> {
        self.0.iter().filter(|record| record.is_row())
    }

    /// The records that are about one table, of a topic that several share. Their numbers are not dense any more.
    pub fn of(&self, table: &TableName) -> Records {
        Records(self.0.iter().filter(|record| record.tables().contains(table)).cloned().collect())
    }

    /// The same for all tables at once.
    pub fn by_table(&self) -> HashMap<TableName, Records> {
        let mut tables = HashMap::<TableName, Records>::new();
        for record in &self.0 {
            for table in record.tables() {
                tables.entry(table).or_default().0.push(record.clone());
            }
        }
        tables
    }

    /// Order, density, and no duplicate.
    pub fn check(&self) -> Result<(), String> {
        let mut partitions = HashMap::<i32, Vec<&Record>>::new();
        self.0.iter().for_each(|record| partitions.entry(record.partition).or_default().push(record));
        partitions.values().try_for_each(|records| check_partition(records))?;
        let (mut positions, mut homes) = (HashSet::new(), HashMap::new());
        for record in self.rows() {
            if !positions.insert(record.position()?) {
                return Err(record.fault(&format!("repeats the position {}", record.position()?)));
            }
            let home = homes.entry(&record.key).or_insert(record.partition);
            if *home != record.partition {
                return Err(record.fault(&format!("has a key that also stands in partition {home}")));
            }
        }
        Ok(())
    }

    /// What the keys of a list are answered with: the operation, by the key's text. Each has one answer.
    pub fn answers(&self, load: &str) -> Result<BTreeMap<String, String>, String> {
        let mut answers = BTreeMap::new();
        let of_load = |record: &&Record| record.headers.get("answer").is_some_and(|of| of == load);
        for record in self.rows().filter(of_load) {
            let key = record.key.clone().unwrap_or_default();
            if answers.insert(key, record.event()?.op).is_some() {
                return Err(record.fault("answers a key for the second time"));
            }
        }
        Ok(answers)
    }

    /// What is left when the changes of each key are applied in their order.
    ///
    /// Once a partition's load is over every event must fit what stands there: nothing is created twice, and nothing updated or deleted that is not there.
    pub fn fold(&self) -> Result<Vec<Row>, String> {
        let mut fold = Fold::default();
        self.0.iter().try_for_each(|record| fold.apply(record))?;
        Ok(fold.into_rows().collect())
    }
}

fn check_partition(records: &[&Record]) -> Result<(), String> {
    let (mut last, mut last_row) = ("", "");
    for (i, record) in records.iter().enumerate() {
        let (seq, position) = (record.seq()?, record.position()?);
        if seq != i as u64 + 1 {
            return Err(record.fault(&format!("has the seq {seq} where {} was due", i + 1)));
        }
        if position < last {
            return Err(record.fault(&format!("falls from position {last} to {position}")));
        }
        if record.is_row() {
            if position <= last_row {
                return Err(record.fault(&format!("is a row change at {position} behind one at {last_row}")));
            }
            last_row = position;
        } else if record.value.is_none() {
            let before = i.checked_sub(1).map(|before| records[before]);
            let follows =
                before.is_some_and(|b| b.is_row() && b.key == record.key && b.position().ok() == Some(position));
            if !follows || before.is_some_and(|b| !b.event().is_ok_and(|event| event.op == "d")) {
                return Err(record.fault("is a tombstone that does not follow its delete"));
            }
        } else if record.key.is_some() {
            return Err(record.fault("is a control event with a key"));
        }
        last = position;
    }
    Ok(())
}

/// Which records a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isolation {
    /// Those of committed transactions.
    Committed,
    /// All.
    Uncommitted,
}

/// Reads a topic from its first record to at least the end that it has when the reading begins.
pub async fn read(brokers: &str, topic: &str) -> Result<Records, Error> {
    read_with(brokers, topic, Isolation::Committed).await
}

/// The same with the records of transactions that are open, or were aborted.
pub async fn read_uncommitted(brokers: &str, topic: &str) -> Result<Records, Error> {
    read_with(brokers, topic, Isolation::Uncommitted).await
}

async fn read_with(brokers: &str, topic: &str, isolation: Isolation) -> Result<Records, Error> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    let reading = tokio::task::spawn_blocking(move || {
        read_blocking(&brokers, &topic, isolation).map_err(Error::during(format!("read the topic {topic}")))
    });
    reading.await.expect("reading a topic does not panic")
}

/// Whether a topic exists.
pub async fn exists(brokers: &str, topic: &str) -> Result<bool, Error> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    let asking = tokio::task::spawn_blocking(move || {
        let partitions = consumer(&brokers, Isolation::Committed).and_then(|consumer| partitions(&consumer, &topic));
        partitions.map(|found| found > 0).map_err(Error::during(format!("ask for the topic {topic}")))
    });
    asking.await.expect("asking for metadata does not panic")
}

/// How far readers of committed records get in a partition: to its end, or to where a transaction is open.
pub async fn readable_end(brokers: &str, topic: &str, partition: i32) -> Result<i64, Error> {
    let (brokers, name) = (brokers.to_owned(), topic.to_owned());
    let ask = move || consumer(&brokers, Isolation::Committed)?.fetch_watermarks(&name, partition, READ_WITHIN);
    let ends = tokio::task::spawn_blocking(ask).await.expect("asking for offsets does not panic");
    ends.map(|(_, end)| end).map_err(Error::during(format!("ask for the end of {topic}")))
}

fn consumer(brokers: &str, isolation: Isolation) -> Result<BaseConsumer, KafkaError> {
    let isolation = if isolation == Isolation::Committed { "read_committed" } else { "read_uncommitted" };
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "harness")
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "true")
        // The end of a topic is told by an answer that has nothing.
        .set("fetch.wait.max.ms", "10")
        .set("enable.auto.commit", "false")
        .create()
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Result<usize, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(20))?;
    Ok(metadata.topics().iter().filter(|found| found.name() == topic).map(|found| found.partitions().len()).sum())
}

fn read_blocking(brokers: &str, topic: &str, isolation: Isolation) -> Result<Records, KafkaError> {
    let consumer = consumer(brokers, isolation)?;
    let count = partitions(&consumer, topic)?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..count {
        assignment.add_partition_offset(topic, partition as i32, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    // While somebody writes all the time, the end of now is never met: a reader may be behind it at each look. So what stood
    // there when the reading began is enough, met by a record or, where a transaction's marker is the last, by the end.
    let end = |partition| consumer.fetch_watermarks(topic, partition as i32, READ_WITHIN).map(|(_, end)| Some(end));
    let mut ends = (0..count).map(end).collect::<Result<Vec<Option<i64>>, _>>()?;
    let mut records = Vec::new();
    let deadline = Instant::now() + READ_WITHIN;
    while ends.iter().any(Option::is_some) {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => {
                ends[message.partition() as usize].take_if(|end| message.offset() + 1 >= *end);
                records.push(record(&message));
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => ends[partition as usize] = None,
            // librdkafka mends this by itself.
            Some(Err(cause)) if is_passing(&cause) && Instant::now() < deadline => {}
            Some(Err(cause)) => return Err(cause),
            None if Instant::now() < deadline => {}
            None => return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut)),
        }
    }
    Ok(Records(records))
}

fn is_passing(cause: &KafkaError) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure, OperationTimedOut};
    matches!(cause.rdkafka_error_code(), Some(AllBrokersDown | BrokerTransportFailure | OperationTimedOut))
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = message.headers().map(|headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(text).unwrap_or_default())).collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(text),
        value: message.payload().map(text),
        headers: headers.unwrap_or_default(),
    }
}
