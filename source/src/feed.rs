//! The stream's loop, without its sockets: what each message of the stream does to the state and to the topics.
//!
//!     Begin ─▶ recent, history check      row ─▶ position ─▶ already published? ─▶ record(s) ─▶ outbox
//!     Commit ─▶ flushed                    │                                          └─▶ state (seq, position, history)
//!     marker ─▶ chunk ─▶ records           └─▶ touches of open windows, always
//!
//! Decides everything and waits for nothing but the catalog. The rim hands it frames, and commits what it put in the
//! outbox together with [`Feed::take_records`], in one Kafka transaction.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use schemas::fingerprint::Fingerprint;
use schemas::state::{Imprint, Sent};
use schemas::write::{self, Cell};
use schemas::{Lsn, Position};

use crate::Error;
use crate::allowance::Allowance;
use crate::columns::{self, Cut, Ruled};
use crate::config::OnRewrite;
use crate::history;
use crate::lists::ListId;
use crate::pgoutput::{self, Message};
use crate::recent::Recent;
use crate::relation::{self, Details, Relation};
use crate::snapshot::Order;
use crate::state::State;
use crate::visibility::Snapshot;
use crate::watch::Seen;
use crate::window::{Chunk, ChunkId, Windows};

mod answer;
mod chunk;
mod command;
mod control;
mod ddl;
mod list;
mod row;

pub use control::{BEAT, marker};
pub use ddl::notice;
pub use list::{Added, NextList, list_message};

/// Where records go: the open Kafka transaction.
pub trait Outbox {
    /// Adds a record. A refusal fails the whole transaction.
    fn send(&mut self, record: Record<'_>) -> Result<(), Error>;
}

/// One record for Kafka.
#[derive(Debug)]
pub struct Record<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition; always chosen by us.
    pub partition: i32,
    /// The key; none on a control event.
    pub key: Option<&'a [u8]>,
    /// The value; none on a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: &'a [(&'static str, &'a [u8])],
}

/// What only the server can tell.
pub trait Catalog {
    /// Whether the transaction is visible by now, and so shows in every other answer of the catalog. Answers at once.
    fn sees(&mut self, xid: u32) -> Result<bool, Error>;

    /// What the stream's description of a relation leaves out.
    fn details(&mut self, relation: &pgoutput::Relation) -> Result<Details, Error>;

    /// What the catalog shows of the publication and of one table, of which so much is remembered.
    fn look(&mut self, publication: &str, oid: u32, imprint: Option<&Imprint>) -> Result<Seen, Error>;

    /// Whether the texts can be ends of a range of the table's key, each in the order of the key's index; of two the second
    /// lies behind the first.
    fn are_keys(&mut self, oid: u32, ends: &[&[String]]) -> Result<bool, Error>;

    /// Whether the server knows which keys of these columns are equal. A key that only the configuration names may be of a type
    /// that has no equality.
    fn tells_keys_apart(&mut self, _oid: u32, _columns: &[String]) -> Result<bool, Error> {
        Ok(true)
    }

    /// Which of the `touched` keys are equal to one of the `listed`, texts of record keys all of them: pairs of their places.
    /// `None` if that cannot be said now, which is what a catalog answers that knows no types.
    fn same_keys(
        &mut self,
        _relation: &Relation,
        _listed: &[&str],
        _touched: &[&str],
    ) -> Result<Option<Vec<(usize, usize)>>, Error> {
        Ok(None)
    }

    /// Columns of the row with a key as they are now. Answers at once, also when it is too early to say.
    fn reselect(&mut self, row: &Reselect<'_>) -> Result<Reselected, Error>;
}

/// What a [`Catalog`] knows of a moved row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reselected {
    /// The row as it was seen.
    Seen {
        /// The columns that were asked for, in that order. `None`: there is no such row any more, and its delete or next move
        /// follows in the stream.
        values: Option<Vec<Option<Vec<u8>>>>,
        /// The end of the WAL, asked for when all that was seen was in it.
        upto: Lsn,
    },
    /// The transaction that moved it is in the WAL but not visible yet.
    NotYet,
    /// A column of it has another name by now, or none: the row is read again, by its key and as it is then, once the stream
    /// has come so far.
    Renamed {
        /// The end of the WAL, as above.
        upto: Lsn,
    },
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// It is done with.
    Whole,
    /// Nothing was done: hand it in again, before anything else of the stream, when its transaction may be visible. That can
    /// last as long as a synchronous standby is away, so what stands in the outbox should be committed meanwhile.
    NotYet,
}

/// Columns of a moved row that the stream did not carry.
#[derive(Debug)]
pub struct Reselect<'a> {
    /// The relation.
    pub relation: &'a Relation,
    /// The row, with its new key.
    pub row: &'a [Cell<'a>],
    /// The columns to read, by index.
    pub columns: &'a [usize],
    /// The transaction that moved it.
    pub xid: u32,
}

/// What the events of this source have in common.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// `source.name`.
    pub name: String,
    /// `source.db`.
    pub db: String,
    /// The prefix of logical messages that are ours: `tributary/<slot>`.
    pub messages: String,
    /// Whether a delete is followed by a tombstone.
    pub tombstones: bool,
    /// What is done about rows that changed without being sent.
    pub on_rewrite: OnRewrite,
    /// Topics that tables share. No tombstone goes there: its key alone does not tell which table's row is gone.
    pub shared: Vec<String>,
    /// What is published of the columns of some tables.
    pub rules: columns::ByOid,
}

/// How soon the outbox should be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// There is nothing new.
    #[default]
    None,
    /// Only the flushed LSN moved: once a second is often enough.
    Idle,
    /// Something was sent, or somebody waits for a state record.
    Now,
}

/// The transaction that is arriving.
#[derive(Clone, Copy, Debug)]
struct Transaction {
    sent: Sent,
    of: write::Transaction,
    /// The history has been asked about it.
    checked: bool,
    /// It is the one of the list that follows, whose place this is.
    list: Option<Position>,
}

impl Transaction {
    fn xid(&self) -> u32 {
        self.sent.1
    }
}

/// A relation of ours with the index of its topic.
#[derive(Debug)]
struct Known {
    relation: Relation,
    topic: usize,
    /// The value of the header `schema`.
    fingerprint: String,
    /// What the rows of the stream are cut by, if the table has a rule.
    cut: Option<Cut>,
}

impl Known {
    fn new(relation: Relation, topic: usize, cut: Option<Cut>) -> Arc<Known> {
        Arc::new(Known { fingerprint: relation.fingerprint.to_string(), relation, topic, cut })
    }

    /// How many cells a row of the stream has.
    fn width(&self) -> usize {
        self.cut.as_ref().map_or(self.relation.columns.len(), |cut| cut.width)
    }
}

/// A row that was read beside the stream.
#[derive(Debug)]
struct Unproven {
    /// The end of the WAL then.
    upto: Lsn,
    oid: u32,
    /// The record's key.
    key: String,
    /// Everything that was asked for was read, or there was no such row.
    is_complete: bool,
}

/// The stream's state and everything that is decided with it.
pub struct Feed {
    label: Label,
    state: State,
    catalog: Box<dyn Catalog + Send>,
    relations: HashMap<u32, Arc<Known>>,
    /// What the last chunks showed of tables that the stream has not described so, by the number of their look at the catalog.
    read: HashMap<u32, (u64, Relation)>,
    /// The last shape of each table that the stream or a chunk has shown.
    shapes: HashMap<u32, Fingerprint>,
    /// The columns that tables with a rule are known to have had.
    seen: HashMap<u32, BTreeSet<String>>,
    recent: Recent,
    check: history::Check,
    windows: Windows,
    outcomes: Vec<(ChunkId, Outcome)>,
    /// What the readers are to do when this is committed.
    orders: Vec<Order>,
    /// How often a load was resumed in this session.
    rounds: HashMap<String, u32>,
    /// Somebody wishes the configuration to be read again.
    asked_to_reread: bool,
    /// How often that may be done, which says something in the log.
    rereads: Allowance,
    /// How many commands may be told of that are not followed.
    refusals: Allowance,
    transaction: Option<Transaction>,
    /// The open transaction asks for a state record.
    beaten: bool,
    /// What this session itself has received whole.
    received: Lsn,
    /// What this session read beside the stream and has not caught up with.
    unproven: VecDeque<Unproven>,
    /// The last change's own address, and how many share it so far.
    last: (Lsn, u32),
    urgency: Urgency,
    /// The list that is to follow, and the id in its message.
    next: Option<(ListId, NextList)>,
    /// What was seen in the catalog and waits for its place.
    pending: ddl::Pending,
    /// Why the session is to end when this is committed.
    ending: Option<String>,
    now_ms: i64,
    buffers: Buffers,
}

/// Reused for every record.
#[derive(Debug, Default)]
struct Buffers {
    key: Vec<u8>,
    canonical: Vec<u8>,
    value: Vec<u8>,
    position: String,
    seq: String,
}

/// What became of a chunk, for its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Published, and the range is recorded as done.
    Done {
        /// How many of its rows were published.
        rows: u64,
    },
    /// It has to be read again.
    Again(&'static str),
    /// It has to be read again: the ranges of its load are ranges of something else by now.
    Elsewhere {
        /// Of this.
        ranges_of: Option<String>,
    },
}

impl Feed {
    /// A session's feed: it goes on from `state`, and its slot stands at `confirmed`.
    pub fn new(
        label: Label,
        state: State,
        confirmed: Lsn,
        touch_bytes_max: usize,
        catalog: Box<dyn Catalog + Send>,
    ) -> Feed {
        Feed {
            check: history::Check::new(&state.stream.history, state.stream.position, confirmed),
            received: confirmed,
            label,
            state,
            catalog,
            relations: HashMap::new(),
            read: HashMap::new(),
            shapes: HashMap::new(),
            seen: HashMap::new(),
            recent: Recent::default(),
            windows: Windows::new(touch_bytes_max),
            outcomes: Vec::new(),
            orders: Vec::new(),
            rounds: HashMap::new(),
            asked_to_reread: false,
            rereads: Allowance::default(),
            refusals: Allowance::default(),
            transaction: None,
            unproven: VecDeque::new(),
            beaten: false,
            last: (Lsn::ZERO, 0),
            urgency: Urgency::None,
            next: None,
            pending: ddl::Pending::default(),
            ending: None,
            now_ms: 0,
            buffers: Buffers::default(),
        }
    }

    /// The state as it will be committed next.
    #[cfg(test)]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What is left when the feed is done with.
    pub fn into_state(self) -> State {
        self.state
    }

    /// How soon a commit is due.
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Why the session has to end as soon as the records last taken are committed, and the next one to begin from them.
    /// While there is a reason, the feed must be given nothing more.
    pub fn ending(&self) -> Option<&str> {
        self.ending.as_deref()
    }

    /// The records that complete the open Kafka transaction.
    pub fn take_records(&mut self) -> Vec<(String, Option<Vec<u8>>)> {
        self.urgency = Urgency::None;
        self.state.take_records()
    }

    /// What became of chunks. To be told to their readers after the commit, not before.
    pub fn take_outcomes(&mut self) -> Vec<(ChunkId, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }

    /// Whether a chunk was settled since outcomes were last taken.
    pub fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// What the readers are to do from now on. To be told to them after the commit, not before.
    pub fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Whether the configuration is to be read again, now that the wish is committed. Where it is wished for too often, one
    /// look later on stands for many.
    pub fn take_reread(&mut self) -> bool {
        let is_time = self.asked_to_reread && self.rereads.take(self.clock());
        self.asked_to_reread &= !is_time;
        is_time
    }

    /// For allowances.
    fn clock(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.now_ms).unwrap_or_default())
    }

    /// What this session has itself received, as of the records last taken: confirmable once these are committed.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// Up to where the records last taken say that everything is in Kafka, and when the database committed the last of it.
    pub fn flushed(&self) -> Option<(Lsn, i64)> {
        Some((self.state.stream.flushed, self.state.stream.flushed_ms?))
    }

    /// How far the slot may be confirmed when everything up to `committed` is in a committed state record. `None` before
    /// the history is known to be ours.
    pub fn confirmable(&self, committed: Lsn) -> Option<Lsn> {
        self.check.is_done().then(|| self.recent.confirmable(committed))
    }

    /// A fresh snapshot of the primary.
    pub fn visible(&mut self, snapshot: &Snapshot) {
        self.recent.seen(snapshot);
    }

    /// A reader is about to read a chunk of a table.
    pub fn open_window(&mut self, id: ChunkId, oid: u32) {
        self.windows.open(id, oid, self.recent.xids().collect());
    }

    /// The transactions that a chunk has to see whose window is opened now.
    pub fn to_be_seen(&self) -> Vec<u32> {
        self.recent.xids().collect()
    }

    /// A reader is about to read rows of a table by a list of keys.
    pub fn open_list(&mut self, id: ChunkId, oid: u32) {
        self.windows.open_list(id, oid, self.recent.xids().collect());
    }

    /// A reader has read its chunk. `false`: the window was given up, and the chunk must be read again.
    pub fn fill_window(&mut self, id: ChunkId, chunk: Chunk) -> bool {
        self.windows.fill(id, chunk)
    }

    /// A reader has given up.
    pub fn close_window(&mut self, id: ChunkId) {
        self.windows.close(id);
    }

    /// The server has sent everything before `end`.
    pub fn keepalive(&mut self, end: Lsn) -> Result<(), Error> {
        if self.transaction.is_some() {
            return Ok(());
        }
        self.check.reached(end).map_err(Error::OtherHistory)?;
        self.flush(end);
        Ok(())
    }

    /// Whether this message is the marker of a chunk that was read.
    pub fn is_marker(&self, payload: &[u8]) -> bool {
        match pgoutput::decode(payload) {
            Ok(Message::Logical { transactional: true, prefix, content, .. }) => {
                prefix == self.label.messages
                    && control::marked(content).is_some_and(|id| self.windows.chunk(id).is_some())
            }
            _ => false,
        }
    }

    /// One message of the stream, that starts at `start` (0 where the server does not say). `now_ms` is the clock.
    pub fn data(&mut self, start: Lsn, payload: &[u8], now_ms: i64, outbox: &mut dyn Outbox) -> Result<Taken, Error> {
        self.now_ms = now_ms;
        let message = pgoutput::decode(payload).map_err(|cause| Error::Stream { at: start, cause })?;
        match message {
            Message::Begin { commit, time, xid } => self.begin(Sent(commit, xid, time))?,
            Message::Commit { end, .. } => self.commit(end, outbox)?,
            Message::Origin | Message::Type => {}
            Message::Relation(described) => return self.relation(&described),
            Message::Insert { oid, new } => return self.row(oid, start, row::Row::Insert(new), outbox),
            Message::Update { oid, old, new } => return self.row(oid, start, row::Row::Update(old, new), outbox),
            Message::Delete { oid, old } => return self.row(oid, start, row::Row::Delete(old), outbox),
            Message::Truncate { oids, cascade, restart_identity } => {
                self.truncate(&oids, start, cascade, restart_identity, outbox)?;
            }
            Message::Logical { transactional, lsn, prefix, content } => {
                if prefix == self.label.messages && transactional {
                    self.message(lsn, content, outbox)?;
                }
            }
        }
        Ok(Taken::Whole)
    }

    fn begin(&mut self, sent: Sent) -> Result<(), Error> {
        self.check.begun(sent).map_err(Error::OtherHistory)?;
        self.recent.begun(sent.0, sent.1);
        let of = write::Transaction { xid: sent.1, commit_ms: unix_ms(sent.2) };
        self.transaction = Some(Transaction { sent, of, checked: false, list: None });
        self.last = (Lsn::ZERO, 0);
        Ok(())
    }

    fn commit(&mut self, end: Lsn, outbox: &mut dyn Outbox) -> Result<(), Error> {
        let transaction = self.transaction.take();
        self.flush(end);
        let stream = &mut self.state.stream;
        // What comes again is older than what is known.
        stream.flushed_ms = stream.flushed_ms.max(transaction.map(|transaction| transaction.of.commit_ms));
        if std::mem::take(&mut self.beaten) {
            self.urgency = Urgency::Now;
        }
        if let Some((place, transaction)) = transaction.and_then(|whole| Some((whole.list?, whole))) {
            self.follow_list(place, &transaction, outbox)?;
        }
        Ok(())
    }

    fn flush(&mut self, lsn: Lsn) {
        self.received = self.received.max(lsn);
        while let Some(read) = self.unproven.pop_front_if(|read| read.upto <= self.received) {
            if read.is_complete {
                self.state.settle_moved(read.oid, &read.key, read.upto);
            } else {
                // The next session finds it in the state, and reads the row.
                self.begin_again("a row that moved has to be read under the names that its columns have by now");
            }
        }
        if self.received > self.state.stream.flushed {
            self.state.stream.flushed = self.received;
            self.urgency = self.urgency.max(Urgency::Idle);
        }
    }

    /// A relation is completed by the catalog, which shows it as it was before until the transaction that describes it is
    /// visible: a key that went with its first row would seem to be there. A transaction that comes again was waited for when it
    /// came first, if it did anything to the relation.
    fn relation(&mut self, described: &pgoutput::Relation) -> Result<Taken, Error> {
        let Some(table) = self.state.table(described.oid) else {
            self.windows.relation(described.oid);
            return Ok(Taken::Whole);
        };
        if let Some(transaction) = &self.transaction
            && transaction.sent.0 >= self.state.stream.position.commit
            && !self.catalog.sees(transaction.xid())?
        {
            return Ok(Taken::NotYet);
        }
        self.windows.relation(described.oid);
        let topic = self.state.topic_index(&table.topic).ok_or_else(|| Error::UnknownTopic(table.topic.clone()))?;
        let cut = self.cut(described)?;
        let (left, fingerprint) = match &cut {
            None => (described, relation::fingerprint(described)),
            Some(cut) => (&cut.relation, cut.fingerprint),
        };
        let now = self.look(described.oid)?;
        let relation = self.describe(left, fingerprint, now.as_ref())?;
        self.consider(described.oid, now);
        self.shapes.insert(described.oid, fingerprint);
        self.read.remove(&described.oid);
        self.relations.insert(described.oid, Known::new(relation, topic, cut));
        Ok(Taken::Whole)
    }

    /// What the table's rule leaves of a relation; `None` where it has no rule.
    fn cut(&mut self, described: &pgoutput::Relation) -> Result<Option<Cut>, Error> {
        let Some(Ruled { rule, columns }) = self.label.rules.get(described.oid) else { return Ok(None) };
        let seen = self.seen.entry(described.oid).or_insert_with(|| columns.clone());
        let cut = rule.cut(described, seen).map_err(|cause| Error::hidden(described, cause))?;
        seen.extend(described.columns.iter().map(|column| column.name.clone()));
        Ok(Some(cut))
    }

    /// The open transaction, which every change must have, after the history was asked whether it may act.
    fn acting(&mut self, at: Lsn) -> Result<Transaction, Error> {
        let transaction = self.transaction.as_mut().ok_or(Error::OutsideTransaction(at))?;
        if !transaction.checked {
            self.check.acted(transaction.sent).map_err(Error::OtherHistory)?;
            transaction.checked = true;
        }
        Ok(*transaction)
    }

    /// The place of the next change that starts at `change`: those that share an address are counted.
    fn place(&mut self, commit: Lsn, change: Lsn) -> Position {
        self.last = if self.last.0 == change { (change, self.last.1 + 1) } else { (change, 1) };
        Position { commit, change, n: self.last.1 }
    }

    fn is_new(&self, position: Position) -> bool {
        position > self.state.stream.position
    }

    /// What stands is to be committed, and then everything begins again from it.
    fn begin_again(&mut self, why: impl Into<String>) {
        self.ending = Some(why.into());
        self.urgency = Urgency::Now;
    }

    fn acted(&mut self, position: Position, transaction: &Transaction) {
        self.state.acted(position, transaction.sent);
        self.urgency = Urgency::Now;
    }
}

/// Milliseconds since 1970 of PostgreSQL's microseconds since 2000.
fn unix_ms(postgres_us: i64) -> i64 {
    const EPOCH_MS: i64 = 946_684_800_000;
    postgres_us.div_euclid(1000) + EPOCH_MS
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
