//! A Kafka of the model: transactions of one transactional id, what is committed of them, and the promises that hold at each
//! commit: dense numbers, rising positions, nothing twice, nothing on top of a lost history.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use schemas::state::{Key, Stream};
use schemas::{Lsn, Position};

use super::Rule;
use super::server::{Change, Op, Uid};
use super::wire::TABLES;
use super::world::{Broken, Outside};
use crate::state::State;

/// A record in a partition.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) position: Position,
    pub(super) seq: u64,
    pub(super) value: Option<Vec<u8>>,
    pub(super) control: Option<String>,
    pub(super) schema: Option<String>,
    /// The list of keys that it answers.
    pub(super) answer: Option<String>,
    /// The transaction that it tells of.
    pub(super) of: Uid,
}

impl Kept {
    /// Whether it tells of a row that the stream brought: the letter is the seventh byte of a value.
    pub(super) fn is_streamed_row(&self) -> bool {
        self.control.is_none() && self.answer.is_none() && matches!(self.op(), Some(b'c' | b'u' | b'd'))
    }

    pub(super) fn op(&self) -> Option<u8> {
        self.value.as_ref().map(|value| value[7])
    }
}

/// A topic's partition.
pub(super) type Place = (String, i32);
/// Records of the state topic.
pub(super) type States = Vec<(String, Option<Vec<u8>>)>;

/// What one Kafka transaction brings.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pub(super) records: Vec<(Place, Kept)>,
    pub(super) state: States,
    /// Transactions of PostgreSQL that it tells of, or acted on.
    pub(super) used: BTreeSet<Uid>,
}

/// A batch under way to the broker.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) epoch: u32,
    pub(super) batch: Batch,
    /// What the session that sends it reads from.
    pub(super) lineage: Rc<RefCell<BTreeSet<Uid>>>,
    /// Where the slot was made, in the first of all.
    pub(super) start: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Broker {
    pub(super) epoch: u32,
    pub(super) log: BTreeMap<Place, Vec<Kept>>,
    state: BTreeMap<String, Option<Vec<u8>>>,
    /// What an aborted transaction left, hidden from all but those who read uncommitted.
    aborted: States,
    /// Requests that their sender does not wait for any more.
    pub(super) flying: Vec<Commit>,
    /// Rows of the stream by transaction and place.
    pub(super) published: BTreeSet<(Uid, Lsn, u32)>,
    pub(super) used: BTreeSet<Uid>,
    /// The stream's record.
    stream: Option<Stream>,
    /// A disk was restored, so what was flushed may have to be taken back.
    pub(super) takes_back: bool,
    /// From which positions on the second table is, or is not, published.
    lists: Vec<(Position, bool)>,
    /// Where the slot was made: what was committed before is copied, what comes behind is streamed.
    pub(super) start: u64,
}

impl Broker {
    /// The state as it stands.
    pub(super) fn state(&self, out: Option<Rule>) -> Option<State> {
        let bytes = |(key, value): (&String, &Option<Vec<u8>>)| (key.clone().into_bytes(), value.clone());
        let hidden = self.aborted.iter().filter(|_| out == Some(Rule::CommittedState));
        let records = self.state.iter().map(bytes).chain(hidden.map(|(key, value)| bytes((key, value))));
        State::read(records.collect::<Vec<_>>()).expect("written by us")
    }

    /// A transaction that was sent and never committed.
    pub(super) fn abort(&mut self, batch: Batch) {
        self.aborted = batch.state;
    }

    /// Commits, unless its sender is fenced.
    pub(super) fn land(&mut self, commit: Commit, out: Option<Rule>) -> Result<bool, Broken> {
        if commit.epoch != self.epoch && out != Some(Rule::Fence) {
            self.abort(commit.batch);
            return Ok(false);
        }
        let Commit { batch, lineage, start, .. } = commit;
        self.start = start.unwrap_or(self.start);
        if !batch.records.is_empty() && !self.used.is_subset(&lineage.borrow()) {
            return Err(Broken::new("published on top of a lost history"));
        }
        for (place, kept) in batch.records {
            self.append(place, kept)?;
        }
        self.used.extend(batch.used);
        for (key, value) in batch.state {
            if key == Key::Stream.to_string() {
                self.follow(value.as_deref().expect("it never ends"))?;
            }
            self.state.insert(key, value);
        }
        let listed = matches!(self.state.get(&Key::Table(TABLES[1].0).to_string()), Some(Some(_)));
        if let Some(stream) = self.stream.as_ref().filter(|_| self.lists.last().is_none_or(|(_, was)| *was != listed)) {
            self.lists.push((stream.position, listed));
        }
        Ok(true)
    }

    /// Whether a table was published when something committed at this LSN.
    pub(super) fn is_listed(&self, table: usize, commit: u64) -> bool {
        let at = self.lists.partition_point(|(position, _)| position.commit.0 <= commit);
        table == 0 || at.checked_sub(1).is_none_or(|last| self.lists[last].1)
    }

    /// Whether a table was published at this LSN and ever since.
    pub(super) fn stays_listed(&self, table: usize, since: u64) -> bool {
        let later = self.lists.iter().filter(|(position, _)| position.commit.0 > since);
        self.is_listed(table, since) && (table == 0 || later.into_iter().all(|(_, listed)| *listed))
    }

    fn append(&mut self, place: Place, kept: Kept) -> Result<(), Broken> {
        let log = self.log.entry(place).or_default();
        let last = log.last();
        if kept.seq != last.map_or(0, |last| last.seq) + 1 {
            return Err(Broken::new("seq is not dense"));
        }
        if last.is_some_and(|last| last.position > kept.position) {
            return Err(Broken::new("a position falls"));
        }
        if kept.is_streamed_row() {
            let same_place = |other: &Kept| other.is_streamed_row() && other.position == kept.position;
            if log.iter().rev().take(3).any(same_place) {
                return Err(Broken::new("a row's position does not rise"));
            }
            if !self.published.insert((kept.of, kept.position.change, kept.position.n)) {
                return Err(Broken::new("a change stands twice"));
            }
        }
        log.push(kept);
        Ok(())
    }

    /// The state's own promise: what is flushed never falls on one timeline, unless a disk was restored.
    fn follow(&mut self, record: &[u8]) -> Result<(), Broken> {
        let next: Stream = serde_json::from_slice(record).expect("written by us");
        let falls = |last: &Stream| last.timeline == next.timeline && last.flushed > next.flushed;
        if !self.takes_back && self.stream.as_ref().is_some_and(falls) {
            return Err(Broken::new("the state's flushed LSN falls"));
        }
        self.stream = Some(next);
        Ok(())
    }
}

/// Whether every row that was committed below `lsn`, and not before the slot was made, stands in the topics.
pub(super) fn all_published(outside: &Outside, server: usize, lsn: u64) -> bool {
    let below = outside.servers[server].wal.iter().filter(|transaction| transaction.commit < lsn);
    below.filter(|transaction| transaction.commit >= outside.broker.start).all(|transaction| {
        let mut records: BTreeMap<u64, u32> = BTreeMap::new();
        // What was written before its table was published is for the copy to show.
        let listed = |change: &&Change| {
            outside.broker.is_listed(change.table, transaction.commit) && outside.servers[server].carries(change)
        };
        for change in transaction.rows().filter(listed) {
            *records.entry(change.lsn).or_default() += match change.op {
                Op::Truncate(_) => 0,
                Op::Move { .. } => 2,
                _ => 1,
            };
        }
        let is_there = |lsn, n| outside.broker.published.contains(&(transaction.uid, Lsn(lsn), n));
        records.into_iter().all(|(lsn, count)| (1..=count).all(|n| is_there(lsn, n)))
    })
}
