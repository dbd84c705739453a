//! What the source publishes and to which topics, as its state says, and what of it a group takes.
//!
//!     <prefix>.state ──tail (thread)──▶ Published ──with the group's tables──▶ Taken: tables, topics, what is not there yet
//!
//! [`Published`] and [`Taken`] are pure. The thread tells of a change only when it has read to the end: what it says was
//! true at one moment. It knows nothing of what becomes of the tables.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use kafka::topic::{Event, Isolation, Tail};
use schemas::state::{Key, Table, Topic};
use schemas::{Selection, TableName, topic};
use service::retry::Outage;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// How long one wait for a record lasts before the thread looks whether to stop.
const STEP: Duration = Duration::from_millis(200);
/// How long the thread rests before it looks again for a state that is not there or cannot be read.
const REST: Duration = Duration::from_secs(1);

/// What a source publishes, and what it has published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// Tables by their OIDs.
    tables: BTreeMap<u32, Table>,
    /// Tables that are published no more, by the topic that still holds their rows.
    former: BTreeMap<String, Vec<TableName>>,
}

/// What a group takes of what is published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The tables, as far as the state describes them.
    pub(crate) tables: Vec<Table>,
    /// Tables that the state does not describe: named by the group, or published no more. Their topics may be there.
    pub(crate) unknown: Vec<TableName>,
    /// The topics of all of them.
    pub(crate) topics: BTreeSet<String>,
    /// Patterns that match nothing so far.
    pub(crate) unmatched: Vec<String>,
}

impl Published {
    /// Takes in one record of the state topic. Whether it changed anything.
    fn note(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<bool, serde_json::Error> {
        let key = std::str::from_utf8(key).ok().and_then(|key| key.parse::<Key>().ok());
        match (key, value) {
            (Some(Key::Table(oid)), None) => Ok(self.tables.remove(&oid).is_some()),
            (Some(Key::Table(oid)), Some(value)) => {
                let table: Table = serde_json::from_slice(value)?;
                let changed = self.tables.get(&oid) != Some(&table);
                self.tables.insert(oid, table);
                Ok(changed)
            }
            (Some(Key::Topic(name)), Some(value)) => {
                let topic: Topic = serde_json::from_slice(value)?;
                if topic.former.is_empty() {
                    return Ok(self.former.remove(&name).is_some());
                }
                let changed = self.former.get(&name) != Some(&topic.former);
                self.former.insert(name, topic.former);
                Ok(changed)
            }
            _ => Ok(false),
        }
    }

    /// What a group takes that chooses by `selection`.
    pub(crate) fn taken(&self, prefix: &str, selection: &Selection) -> Taken {
        let chosen: Vec<&Table> = self.tables.values().filter(|table| selection.chooses(&table.name)).collect();
        // What was taken out of the source's list still has its topic, and what it holds is still to be done.
        let former = self.former.iter().flat_map(|(topic, tables)| tables.iter().map(move |name| (topic, name)));
        let former: Vec<_> = former.filter(|(_, name)| selection.chooses(name)).collect();
        let mut taken = Taken {
            topics: chosen.iter().map(|table| table.topic.clone()).collect(),
            tables: chosen.iter().map(|table| (*table).clone()).collect(),
            ..Taken::default()
        };
        let mut names: HashSet<&TableName> = chosen.iter().map(|table| &table.name).collect();
        for (topic, name) in &former {
            taken.topics.insert((*topic).clone());
            if !names.contains(*name) {
                taken.unknown.push((*name).clone());
            }
        }
        names.extend(former.iter().map(|(_, name)| *name));
        for item in selection.taking() {
            match item.table() {
                Some(name) if names.contains(&name) || selection.excludes(&name) => {}
                Some(name) => {
                    taken.topics.insert(topic::of_table(prefix, &name));
                    taken.unknown.push(name);
                }
                None if names.iter().any(|name| item.matches(name)) => {}
                None => taken.unmatched.push(item.to_string()),
            }
        }
        taken
    }
}

impl Taken {
    /// Whether this has a table or a topic that `before` had not.
    pub(crate) fn goes_beyond(&self, before: &Taken) -> bool {
        let then: HashSet<TableName> = before.names().into_iter().collect();
        !self.topics.is_subset(&before.topics) || self.names().iter().any(|name| !then.contains(name))
    }

    /// The names of all tables.
    pub(crate) fn names(&self) -> Vec<TableName> {
        self.tables.iter().map(|table| &table.name).chain(&self.unknown).cloned().collect()
    }
}

/// The source's state, followed for one group.
pub(crate) struct Followed {
    /// What is published; none before the state was read for the first time, or found missing.
    pub(crate) published: watch::Receiver<Option<Published>>,
    /// Told why it cannot be followed any more.
    pub(crate) failed: mpsc::UnboundedReceiver<Error>,
}

/// Follows the state of the source under `prefix` until `stop`.
pub(crate) fn follow(
    kafka: kafka::Config,
    prefix: &str,
    group: &str,
    stop: CancellationToken,
) -> Result<Followed, Error> {
    let (tell, published) = watch::channel(None);
    let (fail, failed) = mpsc::unbounded_channel();
    let follower = Follower { kafka, topic: topic::of_state(prefix), group: group.to_owned(), tell, stop };
    let run = move || {
        if let Err(error) = follower.run() {
            // Without a receiver the group is over.
            let _over = fail.send(error);
        }
    };
    let thread = std::thread::Builder::new().name(format!("state for {group}")).spawn(run);
    thread.map_err(|cause| Error::Thread { group: group.to_owned(), cause })?;
    Ok(Followed { published, failed })
}

struct Follower {
    kafka: kafka::Config,
    topic: String,
    group: String,
    tell: watch::Sender<Option<Published>>,
    stop: CancellationToken,
}

impl Follower {
    fn run(self) -> Result<(), Error> {
        let mut outage = Outage::new(format!("read the source's state for group {}", self.group));
        let mut published = Published::default();
        while !self.stop.is_cancelled() {
            match self.tail(&mut published, &mut outage) {
                Ok(()) => return Ok(()),
                Err(Error::Kafka { cause: kafka::Error::NoTopic(_), .. }) => self.say(&published),
                Err(error) if error.is_transient() => outage.failed(&error),
                Err(error) => return Err(error),
            }
            self.rest();
        }
        Ok(())
    }

    fn tail(&self, published: &mut Published, outage: &mut Outage) -> Result<(), Error> {
        let failed = |cause| Error::Kafka { group: self.group.clone(), cause };
        let mut tail = Tail::start(&self.kafka, &self.topic, Isolation::ReadCommitted).map_err(failed)?;
        // The last record of each of the source's transactions is the stream's: only there the state is whole.
        let (mut has_caught_up, mut is_whole, mut is_news) = (false, true, true);
        let mut said_at = None::<Instant>;
        while !self.stop.is_cancelled() {
            match tail.next(STEP).map_err(failed)? {
                Some(Event::Record(record)) => {
                    let key = record.key().unwrap_or_default();
                    let noted = published.note(key, record.value());
                    is_news |= noted.map_err(|cause| Error::State {
                        topic: self.topic.clone(),
                        key: String::from_utf8_lossy(key).into_owned(),
                        cause,
                    })?;
                    is_whole = key == b"stream";
                }
                Some(Event::End { .. }) => {
                    has_caught_up = true;
                    outage.over();
                }
                None => {}
            }
            // A first load of many tables changes it as often: it is told now and then, as a whole.
            let has_rested = said_at.is_none_or(|said_at| said_at.elapsed() >= STEP);
            if is_news && has_caught_up && is_whole && has_rested {
                self.say(published);
                (is_news, said_at) = (false, Some(Instant::now()));
            }
        }
        Ok(())
    }

    /// Tells what is published, if it is news.
    fn say(&self, published: &Published) {
        self.tell.send_if_modified(|told| {
            let is_news = told.as_ref() != Some(published);
            if is_news {
                *told = Some(published.clone());
            }
            is_news
        });
    }

    /// Kafka tells nobody of a new topic.
    fn rest(&self) {
        let until = Instant::now() + REST;
        while !self.stop.is_cancelled() && Instant::now() < until {
            std::thread::sleep(STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, topic: &str) -> Vec<u8> {
        let name: TableName = name.parse().expect("a name");
        let (schema, table) = (name.schema, name.table);
        format!(r#"{{"schema":"{schema}","table":"{table}","topic":"{topic}","key":["id"],"identity":"d","columns":[],"fingerprint":"0000000000000000"}}"#)
            .into_bytes()
    }

    fn published() -> Published {
        let mut published = Published::default();
        for (oid, name, topic) in [
            (1, "shop.users", "p.shop.users"),
            (2, "shop.orders", "p.sales"),
            (3, "shop.invoices", "p.sales"),
            (4, "shop.gone", "p.shop.gone"),
        ] {
            let changed = published.note(format!("table/{oid}").as_bytes(), Some(&record(name, topic)));
            assert!(changed.expect("a table"), "{name}");
        }
        published.note(b"table/4", None).expect("a tombstone");
        published
    }

    fn check(items: &[&str], topics: &[&str], unknown: &[&str], unmatched: &[&str]) {
        let selection = Selection::new(items.iter().map(|text| text.parse().expect("an item")).collect());
        let taken = published().taken("p", &selection);
        let unknown_found: Vec<String> = taken.unknown.iter().map(ToString::to_string).collect();
        assert_eq!(taken.topics.iter().map(String::as_str).collect::<Vec<_>>(), topics, "{items:?}");
        assert_eq!(unknown_found, unknown, "{items:?}");
        assert_eq!(taken.unmatched, unmatched, "{items:?}");
    }

    #[test]
    fn topics_are_those_of_the_state_each_once() {
        check(&["shop.orders", "shop.invoices"], &["p.sales"], &[], &[]);
        check(&["shop.*", "!shop.orders"], &["p.sales", "p.shop.users"], &[], &[]);
        check(&["shop.users"], &["p.shop.users"], &[], &[]);
    }

    #[test]
    fn what_the_state_does_not_know_is_looked_for_or_waited_for() {
        check(&["shop.gone"], &["p.shop.gone"], &["shop.gone"], &[]);
        check(&["shop.users", "stock.*"], &["p.shop.users"], &[], &["stock.*"]);
    }

    #[test]
    fn what_is_published_no_more_is_still_read_to_its_end() {
        let mut published = published();
        let topic = r#"{"id":"t","partitions":1,"seq":[7],"former":[{"schema":"shop","table":"gone"}]}"#;
        assert!(published.note(b"topic/p.sales", Some(topic.as_bytes())).expect("a topic"));
        assert!(!published.note(b"topic/p.sales", Some(topic.as_bytes())).expect("a topic"));
        let taken = |items: &[&str]| {
            let items = items.iter().map(|text| text.parse().expect("an item")).collect();
            published.taken("p", &Selection::new(items))
        };
        let gone = taken(&["shop.go*"]);
        assert!(gone.topics.contains("p.sales") && gone.names() == [TableName::new("shop", "gone")]);
        assert_eq!(taken(&["shop.gone"]), gone, "its own topic would be another one");
        assert!(gone.goes_beyond(&taken(&["shop.users"])) && !gone.goes_beyond(&taken(&["shop.*"])));
    }

    #[test]
    fn other_records_of_the_state_change_nothing() {
        let mut published = published();
        let before = published.clone();
        assert!(!published.note(b"stream", Some(b"{}")).expect("not ours to read"));
        assert!(!published.note(b"from a later version", Some(b"x")).expect("not ours to read"));
        assert!(!published.note(b"table/1", Some(&record("shop.users", "p.shop.users"))).expect("the same again"));
        assert!(published.note(b"table/1", Some(b"x")).is_err());
        assert_eq!(published, before);
    }
}
