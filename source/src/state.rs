//! What the source knows of itself, as it stands in `<prefix>.state`, and which of it the next Kafka transaction must carry.
//!
//! Pure. Nothing else is remembered between two runs: neither process keeps state on disk.

use std::collections::{BTreeMap, BTreeSet};

use schemas::state::{
    HISTORY_MAX, Key, Load, LoadKind, LoadTable, Moved, Seal, Sent, Stream, Table, Topic, UnknownKey,
};
use schemas::{CONTRACT, Lsn, Position};

use crate::command;

/// Why the records of the state topic make no state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key that this version does not know.
    #[error("the state topic holds a record that is not ours")]
    Key(#[source] UnknownKey),
    /// A value that this version cannot read.
    #[error("the state record {key} cannot be read")]
    Value {
        /// The record's key.
        key: String,
        /// What is wrong with it.
        #[source]
        cause: serde_json::Error,
    },
    /// A newer version wrote it.
    #[error(
        "the state was written by a newer version (contract {0}, this version knows {CONTRACT}): start that version"
    )]
    Contract(u32),
}

/// A topic in use, and whether the next state record must carry it.
#[derive(Clone, Debug)]
pub struct TopicState {
    /// Its name.
    pub name: String,
    /// What the state holds of it.
    pub topic: Topic,
    touched: bool,
}

impl TopicState {
    /// The number for the next record of a partition, which is counted with that.
    pub fn next_seq(&mut self, partition: i32) -> schemas::Seq {
        self.touched = true;
        let seq = &mut self.topic.seq[partition as usize];
        *seq = seq.next();
        *seq
    }
}

/// The whole state.
#[derive(Clone, Debug)]
pub struct State {
    /// Where in the stream.
    pub stream: Stream,
    /// Tables by OID.
    tables: BTreeMap<u32, Table>,
    /// Topics, in no particular order.
    topics: Vec<TopicState>,
    loads: BTreeMap<String, Load>,
    load_tables: BTreeMap<(String, u32), LoadTable>,
    moved: BTreeMap<(u32, String), Moved>,
    seal: Option<Seal>,
    dirty: BTreeSet<Key>,
}

impl State {
    /// The state of a source that has published nothing yet.
    pub fn first(stream: Stream, tables: BTreeMap<u32, Table>, topics: Vec<(String, Topic)>) -> State {
        let dirty = tables.keys().map(|oid| Key::Table(*oid)).collect();
        let topics = topics.into_iter().map(|(name, topic)| TopicState { name, topic, touched: true }).collect();
        State {
            stream,
            tables,
            topics,
            loads: BTreeMap::new(),
            load_tables: BTreeMap::new(),
            moved: BTreeMap::new(),
            seal: None,
            dirty,
        }
    }

    /// Reads the records of the state topic, oldest first; `None` if there is no state.
    pub fn read(records: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>) -> Result<Option<State>, Error> {
        let mut latest = BTreeMap::new();
        for (key, value) in records {
            latest.insert(String::from_utf8_lossy(&key).into_owned(), value);
        }
        let (mut stream, mut seal) = (None, None);
        let mut state = (BTreeMap::new(), Vec::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (text, value) in latest {
            let Some(value) = value else { continue };
            match text.parse().map_err(Error::Key)? {
                Key::Stream => stream = Some(parse::<Stream>(&text, &value)?),
                Key::Seal => seal = Some(parse(&text, &value)?),
                Key::Table(oid) => drop(state.0.insert(oid, parse(&text, &value)?)),
                Key::Topic(name) => state.1.push(TopicState { name, topic: parse(&text, &value)?, touched: false }),
                Key::Load(id) => drop(state.2.insert(id, parse(&text, &value)?)),
                Key::LoadTable(id, oid) => drop(state.3.insert((id, oid), parse(&text, &value)?)),
                Key::Moved(oid, key) => drop(state.4.insert((oid, key), parse(&text, &value)?)),
            }
        }
        let (tables, topics, loads, load_tables, moved) = state;
        match stream {
            Some(stream) if stream.contract > CONTRACT => Err(Error::Contract(stream.contract)),
            stream => Ok(stream.map(|stream| State {
                stream,
                tables,
                topics,
                loads,
                load_tables,
                moved,
                seal,
                dirty: BTreeSet::new(),
            })),
        }
    }

    /// A table by its OID, if it is one of ours.
    pub fn table(&self, oid: u32) -> Option<&Table> {
        self.tables.get(&oid)
    }

    /// All tables with their OIDs.
    pub fn tables(&self) -> impl Iterator<Item = (u32, &Table)> {
        self.tables.iter().map(|(oid, table)| (*oid, table))
    }

    /// Changes what is known of a table.
    pub fn set_table(&mut self, oid: u32, table: Table) {
        self.tables.insert(oid, table);
        self.dirty.insert(Key::Table(oid));
    }

    /// Another list begins at `position`, with `transaction`: what was sent before was decided by the old one, and nothing
    /// of it can be compared with what the new one makes of the same stream.
    pub fn begin_list(&mut self, publications: Vec<String>, since: Option<Lsn>, position: Position, transaction: Sent) {
        let stream = &mut self.stream;
        if stream.publications != publications {
            // What was seen of tables through the other publication proves nothing of this one.
            let seen = self.tables.iter_mut().filter(|(_, table)| table.imprint.is_some());
            seen.for_each(|(oid, table)| {
                table.imprint = None;
                self.dirty.insert(Key::Table(*oid));
            });
        }
        (stream.publications, stream.since) = (publications, since);
        (stream.position, stream.history) = (position, vec![transaction]);
    }

    /// A table is published no more. Its topic stays, and remembers that it holds rows of it; loads go on without it.
    pub fn remove_table(&mut self, oid: u32) {
        let Some(table) = self.tables.remove(&oid) else { return };
        self.dirty.insert(Key::Table(oid));
        if let Some(topic) = self.topics.iter_mut().find(|topic| topic.name == table.topic) {
            topic.touched = true;
            if !topic.topic.former.contains(&table.name) {
                topic.topic.former.push(table.name);
            }
        }
        // Its rows are nobody's business any more.
        let moved: Vec<_> = self.moved.keys().filter(|(of, _)| *of == oid).cloned().collect();
        for key in moved {
            self.moved.remove(&key);
            self.dirty.insert(Key::Moved(key.0, key.1));
        }
        let loads = self.loads.iter().filter(|(_, load)| load.tables.contains(&oid));
        for id in loads.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.end_load_table(&id, oid);
        }
        let moved = self.moved.extract_if((oid, String::new()).., |(of, _), _| *of == oid);
        self.dirty.extend(moved.map(|((oid, key), _)| Key::Moved(oid, key)));
    }

    /// A table is published from here on, in a topic of ours.
    pub fn add_table(&mut self, oid: u32, table: Table) {
        if let Some(topic) = self.topics.iter_mut().find(|topic| topic.name == table.topic) {
            topic.touched = true;
            topic.topic.former.retain(|name| *name != table.name);
        }
        self.set_table(oid, table);
    }

    /// A topic as it was found, in place of what was known under its name.
    pub fn set_topic(&mut self, name: String, topic: Topic) {
        let found = TopicState { name, topic, touched: true };
        match self.topics.iter_mut().find(|known| known.name == found.name) {
            Some(known) => *known = found,
            None => self.topics.push(found),
        }
    }

    /// All topics.
    pub fn topics(&self) -> &[TopicState] {
        &self.topics
    }

    /// Where a topic stands in [`State::topics`].
    pub fn topic_index(&self, name: &str) -> Option<usize> {
        self.topics.iter().position(|topic| topic.name == name)
    }

    /// A topic by its index.
    pub fn topic_mut(&mut self, index: usize) -> &mut TopicState {
        &mut self.topics[index]
    }

    /// Loads that are under way.
    pub fn loads(&self) -> impl Iterator<Item = (&str, &Load)> {
        self.loads.iter().map(|(id, load)| (id.as_str(), load))
    }

    /// A load that is under way.
    pub fn load(&self, id: &str) -> Option<&Load> {
        self.loads.get(id)
    }

    /// What of a table a load has done.
    pub fn load_table(&self, load: &str, oid: u32) -> Option<&LoadTable> {
        self.load_tables.get(&(load.to_owned(), oid))
    }

    /// What the lists of keys take that are not answered, by [`command::weight`].
    pub fn listed_bytes(&self) -> usize {
        let lists = self.loads().filter(|(_, load)| load.kind == Some(LoadKind::Keys));
        let tables = lists.flat_map(|(id, load)| load.tables.iter().filter_map(|oid| self.load_table(id, *oid)));
        tables.map(|table| command::weight(&table.keys)).sum()
    }

    /// A load begins, or goes on with a table less.
    pub fn set_load(&mut self, id: &str, load: Load) {
        self.dirty.insert(Key::Load(id.to_owned()));
        if load.tables.is_empty() {
            self.loads.remove(id);
        } else {
            self.loads.insert(id.to_owned(), load);
        }
    }

    /// What of a table is done; `None` when all is.
    pub fn set_load_table(&mut self, load: &str, oid: u32, done: Option<LoadTable>) {
        let key = (load.to_owned(), oid);
        match done {
            Some(done) => drop(self.load_tables.insert(key.clone(), done)),
            None => drop(self.load_tables.remove(&key)),
        }
        self.dirty.insert(Key::LoadTable(key.0, key.1));
    }

    /// A load is over for one of its tables.
    pub fn end_load_table(&mut self, id: &str, oid: u32) {
        self.set_load_table(id, oid, None);
        if let Some(mut load) = self.loads.get(id).cloned() {
            load.tables.retain(|other| *other != oid);
            self.set_load(id, load);
        }
    }

    /// Rows of which something was read beside the stream: table and record key.
    pub fn moved(&self) -> impl Iterator<Item = (u32, &str)> {
        self.moved.keys().map(|(oid, key)| (*oid, key.as_str()))
    }

    /// Something of a row was read beside the stream, when the WAL ended at `upto`.
    pub fn set_moved(&mut self, oid: u32, key: &str, upto: Lsn) {
        self.moved.insert((oid, key.to_owned()), Moved { upto });
        self.dirty.insert(Key::Moved(oid, key.to_owned()));
    }

    /// What was seen when the WAL ended at `upto` cannot be lost any more. A later reading of the same row stays.
    pub fn settle_moved(&mut self, oid: u32, key: &str, upto: Lsn) {
        let key = (oid, key.to_owned());
        if self.moved.get(&key).is_some_and(|moved| moved.upto <= upto) {
            self.moved.remove(&key);
            self.dirty.insert(Key::Moved(key.0, key.1));
        }
    }

    /// The key that seals commands, which only readers of the state know; none before the first session.
    pub fn seal_key(&self) -> Option<&str> {
        self.seal.as_ref().map(|seal| seal.hmac_key.as_str())
    }

    /// There is one from here on: `random`, if there was none.
    pub fn keep_seal_key(&mut self, random: impl FnOnce() -> String) {
        if self.seal.is_none() {
            self.seal = Some(Seal { hmac_key: random() });
            self.dirty.insert(Key::Seal);
        }
    }

    /// Something was sent or acted on at `position` by `transaction`: both are remembered with it.
    pub fn acted(&mut self, position: Position, transaction: Sent) {
        self.stream.position = position;
        let history = &mut self.stream.history;
        if history.last() != Some(&transaction) && !history.contains(&transaction) {
            if history.len() == HISTORY_MAX {
                history.remove(0);
            }
            history.push(transaction);
        }
    }

    /// The records that the open Kafka transaction must carry: what was touched, and the stream's last, so that whoever has
    /// read it has read all that belongs to it. A `None` is a tombstone.
    pub fn take_records(&mut self) -> Vec<(String, Option<Vec<u8>>)> {
        let mut records = Vec::new();
        for topic in self.topics.iter_mut().filter(|topic| topic.touched) {
            topic.touched = false;
            records.push((Key::Topic(topic.name.clone()).to_string(), Some(json(&topic.topic))));
        }
        for key in std::mem::take(&mut self.dirty) {
            let value = match &key {
                Key::Table(oid) => self.tables.get(oid).map(json),
                Key::Load(id) => self.loads.get(id).map(json),
                Key::LoadTable(id, oid) => self.load_tables.get(&(id.clone(), *oid)).map(json),
                Key::Moved(oid, key) => self.moved.get(&(*oid, key.clone())).map(json),
                Key::Seal => self.seal.as_ref().map(json),
                Key::Stream | Key::Topic(_) => unreachable!("kept outside of the set of touched records"),
            };
            records.push((key.to_string(), value));
        }
        records.push((Key::Stream.to_string(), Some(json(&self.stream))));
        records
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("state records are plain data")
}

fn parse<'a, T: serde::Deserialize<'a>>(key: &str, value: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(value).map_err(|cause| Error::Value { key: key.to_owned(), cause })
}

#[cfg(test)]
pub(crate) mod tests {
    use schemas::event::LoadMode;
    use schemas::{Lsn, Seq, TableName};

    use super::*;

    /// One table `public.users` with OID 7 in the topic `shop.public.users` of two partitions, from LSN 100 on.
    pub(crate) fn state() -> State {
        let start = Lsn(100);
        let stream = Stream {
            contract: CONTRACT,
            system_id: "1".into(),
            database: "shop".into(),
            timeline: 1,
            slot: "s".into(),
            publications: vec!["p".into()],
            since: None,
            flushed: start,
            flushed_ms: None,
            position: Position::before(start),
            history: vec![],
        };
        let table = Table {
            name: TableName::new("public", "users"),
            topic: "shop.public.users".into(),
            key: vec!["id".into()],
            identity: 'd',
            columns: vec![],
            fingerprint: Default::default(),
            single_partition: false,
            routing: vec![],
            imprint: None,
            rules: None,
        };
        let topic = Topic { id: "t".into(), partitions: 2, seq: vec![Seq(0); 2], former: vec![] };
        State::first(stream, [(7, table)].into(), vec![("shop.public.users".into(), topic)])
    }

    fn bytes(records: Vec<(String, Option<Vec<u8>>)>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        records.into_iter().map(|(key, value)| (key.into_bytes(), value)).collect()
    }

    #[test]
    fn what_was_written_is_read_back_and_tombstones_end_records() {
        let mut state = state();
        let load = Load { mode: LoadMode::First, tables: vec![7], kind: None, paused: false };
        state.set_load("a", load.clone());
        state.set_load_table("a", 7, Some(LoadTable { rows: 3, ..LoadTable::default() }));
        state.topic_mut(0).next_seq(1);
        let mut log = bytes(state.take_records());
        let read = State::read(log.clone()).expect("readable").expect("a state");
        assert_eq!(read.stream, state.stream);
        assert_eq!(read.topics()[0].topic.seq, [Seq(0), Seq(1)]);
        assert_eq!(read.load_table("a", 7).expect("under way").rows, 3);

        state.set_load_table("a", 7, None);
        state.set_load("a", Load { tables: vec![], ..load });
        log.extend(bytes(state.take_records()));
        let read = State::read(log).expect("readable").expect("a state");
        assert!(read.loads().next().is_none() && read.load_table("a", 7).is_none());
    }

    #[test]
    fn a_later_reading_of_a_moved_row_outlives_an_earlier_one() {
        let mut state = state();
        state.set_moved(7, r#"{"id":"a/b"}"#, Lsn(10));
        state.set_moved(7, r#"{"id":"a/b"}"#, Lsn(20));
        let mut log = bytes(state.take_records());
        state.settle_moved(7, r#"{"id":"a/b"}"#, Lsn(10));
        assert_eq!(State::read(log.clone()).expect("readable").expect("a state").moved().count(), 1);
        assert_eq!(state.moved().collect::<Vec<_>>(), [(7, r#"{"id":"a/b"}"#)]);
        state.settle_moved(7, r#"{"id":"a/b"}"#, Lsn(20));
        log.extend(bytes(state.take_records()));
        assert_eq!(State::read(log).expect("readable").expect("a state").moved().count(), 0);
    }

    #[test]
    fn with_a_table_goes_what_was_read_of_its_rows() {
        let mut state = state();
        state.set_moved(7, "{}", Lsn(10));
        let mut log = bytes(state.take_records());
        state.remove_table(7);
        log.extend(bytes(state.take_records()));
        assert_eq!(State::read(log).expect("readable").expect("a state").moved().count(), 0);
    }

    #[test]
    fn only_what_was_touched_is_written_again() {
        let mut state = state();
        assert_eq!(state.take_records().len(), 3);
        assert_eq!(state.take_records().len(), 1);
        state.topic_mut(0).next_seq(0);
        let keys: Vec<_> = state.take_records().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["topic/shop.public.users", "stream"], "the stream's record is the last");
    }

    #[test]
    fn the_history_holds_each_transaction_once_and_only_the_last_ones() {
        let mut state = state();
        for n in 0..100 {
            state.acted(Position::before(Lsn(n / 2)), Sent(Lsn(n / 2), 1, 1));
        }
        assert_eq!(state.stream.history.len(), HISTORY_MAX);
        assert_eq!(state.stream.history.last(), Some(&Sent(Lsn(49), 1, 1)));
        assert_eq!(state.stream.position, Position::before(Lsn(49)));
    }

    #[test]
    fn a_newer_contract_and_foreign_records_are_refused() {
        let mut newer = state();
        newer.stream.contract = CONTRACT + 1;
        assert!(matches!(State::read(bytes(newer.take_records())), Err(Error::Contract(_))));
        let foreign = vec![(b"hello".to_vec(), Some(b"{}".to_vec()))];
        assert!(matches!(State::read(foreign), Err(Error::Key(_))));
        assert!(State::read(vec![]).expect("empty").is_none());
    }
}
