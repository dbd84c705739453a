//! A PostgreSQL of the model: transactions, their WAL, what is visible of them, one slot with its walsender.
//!
//!     open ──commit record──▶ in the WAL, still locked and invisible ──▶ visible, unlocked
//!
//! `uid` is the model's own name of a transaction. The source sees only xid, commit LSN and commit time, and these are handed
//! out again after a failover or when a disk is restored.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use postgres::replication::Switch;
use schemas::write::Cell;

use super::wire::{self, TABLES};
use crate::visibility::Snapshot;

/// The model's name of a transaction.
pub(super) type Uid = u32;

/// A row beside its key: a short column, and one that is stored out of line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) bio: String,
}

/// Rows by key, for each table.
pub(super) type Rows = [BTreeMap<u8, Row>; TABLES.len()];

/// What a record of the WAL says.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Insert(Row),
    /// `partial`: the column out of line was not touched, so the stream does not carry it.
    Update {
        row: Row,
        partial: bool,
    },
    Move {
        from: u8,
        row: Row,
        partial: bool,
    },
    Delete,
    Truncate(Vec<usize>),
    Alter,
    Message(String),
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) lsn: u64,
    pub(super) table: usize,
    pub(super) key: u8,
    /// How often each table had been altered.
    pub(super) versions: [u32; TABLES.len()],
    pub(super) op: Op,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Transaction {
    pub(super) uid: Uid,
    pub(super) xid: u32,
    pub(super) time: i64,
    pub(super) changes: Vec<Change>,
    pub(super) keys: BTreeSet<(usize, u8)>,
    /// Tables that it has for itself.
    pub(super) whole: BTreeSet<usize>,
    /// The start of the commit record, and its end.
    pub(super) commit: u64,
    pub(super) end: u64,
}

impl Transaction {
    /// Its changes of rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| !matches!(change.op, Op::Alter | Op::Message(_)))
    }

    /// What it does to tables.
    pub(super) fn play(&self, rows: &mut Rows) {
        self.changes.iter().for_each(|change| play(change, rows));
    }
}

pub(super) fn play(change: &Change, rows: &mut Rows) {
    let table = &mut rows[change.table];
    match &change.op {
        Op::Insert(row) | Op::Update { row, .. } => drop(table.insert(change.key, row.clone())),
        Op::Move { from, row, .. } => {
            table.remove(from);
            table.insert(change.key, row.clone());
        }
        Op::Delete => drop(table.remove(&change.key)),
        Op::Truncate(tables) => tables.iter().for_each(|table| rows[*table].clear()),
        Op::Alter | Op::Message(_) => {}
    }
}

/// One message to the source, and the transaction that it belongs to.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    Data { start: u64, payload: Vec<u8>, of: Uid },
    Keepalive(u64),
}

/// The walsender, while somebody streams.
#[derive(Debug)]
pub(super) struct Sender {
    /// Whose session this is.
    pub(super) to: Session,
    at: usize,
    frames: VecDeque<Frame>,
    relations: [Option<u32>; TABLES.len()],
}

/// One life of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) process: usize,
    pub(super) life: u32,
}

/// The slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) confirmed: u64,
    /// What of it a crash leaves.
    pub(super) saved: u64,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) wal: Vec<Transaction>,
    pub(super) open: Vec<Transaction>,
    pub(super) invisible: BTreeSet<Uid>,
    pub(super) lsn: u64,
    pub(super) xid: u32,
    pub(super) timeline: u32,
    pub(super) switches: Vec<Switch>,
    pub(super) slot: Option<Slot>,
    pub(super) sender: Option<Sender>,
    /// Who makes everything for a first start: one at a time.
    pub(super) first: Option<Session>,
    /// The lowest place at which the WAL was cut when the disk was restored.
    pub(super) restored: Option<u64>,
    /// Tables that readers of chunks keep others from altering, once for each reader.
    pub(super) shared: Vec<(Session, usize)>,
    /// From where in the WAL on the publication has the second table, or has it not.
    pub(super) publication: Vec<(u64, bool)>,
    /// What was there before the WAL begins.
    pub(super) base: Rows,
    /// The rows as whoever holds their locks sees them.
    pub(super) rows: Rows,
    pub(super) versions: [u32; TABLES.len()],
    /// Every transaction that this history has. A session keeps the one that it began with.
    pub(super) lineage: Rc<RefCell<BTreeSet<Uid>>>,
}

impl Server {
    pub(super) fn new(base: Rows, wal: Vec<Transaction>, lsn: u64) -> Server {
        let mut server = Server {
            wal,
            open: Vec::new(),
            invisible: BTreeSet::new(),
            lsn,
            xid: 5,
            timeline: 1,
            switches: Vec::new(),
            slot: None,
            sender: None,
            first: None,
            restored: None,
            shared: Vec::new(),
            publication: vec![(0, true)],
            rows: base.clone(),
            base,
            versions: [0; TABLES.len()],
            lineage: Rc::default(),
        };
        server.recover();
        server
    }

    /// What stands in the WAL is all there is.
    pub(super) fn recover(&mut self) {
        (self.open, self.invisible, self.sender, self.shared, self.first) = Default::default();
        (self.rows, self.versions) = (self.base.clone(), [0; TABLES.len()]);
        for transaction in &self.wal {
            transaction.play(&mut self.rows);
            let altered = transaction.changes.iter().filter(|change| matches!(change.op, Op::Alter));
            altered.for_each(|change| self.versions[change.table] += 1);
        }
        self.lineage = Rc::new(RefCell::new(self.wal.iter().map(|transaction| transaction.uid).collect()));
    }

    /// ALTER PUBLICATION … ADD TABLE: what is written from here on is sent, also by transactions that began before.
    pub(super) fn publish(&mut self) {
        if !is_carried(&self.publication, 1, self.lsn) {
            let at = self.record();
            self.publication.push((at, true));
        }
    }

    /// Whether a transaction's changes are in the stream. DDL alone is not, nor what was written before it was published.
    pub(super) fn is_streamed(&self, transaction: &Transaction) -> bool {
        is_sent(&self.publication, transaction)
    }

    /// Whether a change's table was published when it was written.
    pub(super) fn carries(&self, change: &Change) -> bool {
        is_carried(&self.publication, change.table, change.lsn)
    }

    /// Whoever holds a lock under which rows of a table are written.
    pub(super) fn writers(&self, table: usize) -> BTreeSet<Uid> {
        let writes =
            |holder: &&Transaction| holder.whole.contains(&table) || holder.keys.iter().any(|(of, _)| *of == table);
        self.holders().filter(writes).map(|holder| holder.uid).collect()
    }

    /// A reader of chunks lets its table go.
    pub(super) fn unshare(&mut self, lock: (Session, usize)) {
        if let Some(at) = self.shared.iter().position(|other| *other == lock) {
            self.shared.remove(at);
        }
    }

    pub(super) fn record(&mut self) -> u64 {
        self.lsn += 8;
        self.lsn - 8
    }

    pub(super) fn begin(&mut self, uid: Uid) -> usize {
        self.open.push(Transaction { uid, xid: self.xid, ..Transaction::default() });
        self.xid += 1;
        self.open.len() - 1
    }

    /// One more change of an open transaction. Rows of one COPY share their record.
    pub(super) fn change(&mut self, open: usize, table: usize, key: u8, op: Op, shares_record: bool) {
        let lsn = if shares_record { self.lsn - 8 } else { self.record() };
        self.versions[table] += u32::from(matches!(op, Op::Alter));
        let change = Change { lsn, table, key, versions: self.versions, op };
        play(&change, &mut self.rows);
        self.open[open].changes.push(change);
    }

    pub(super) fn commit(&mut self, open: usize, time: i64) {
        let mut transaction = self.open.remove(open);
        transaction.commit = self.record();
        (transaction.end, transaction.time) = (self.lsn, time);
        self.invisible.insert(transaction.uid);
        self.lineage.borrow_mut().insert(transaction.uid);
        self.wal.push(transaction);
    }

    /// A logical message in a transaction of its own.
    pub(super) fn message(&mut self, uid: Uid, time: i64, content: String) {
        let open = self.begin(uid);
        self.change(open, 0, 0, Op::Message(content), false);
        self.commit(open, time);
    }

    fn holders(&self) -> impl Iterator<Item = &Transaction> {
        let committed = self.wal.iter().filter(|transaction| self.invisible.contains(&transaction.uid));
        self.open.iter().chain(committed)
    }

    /// Whether a transaction may touch a row, or have a whole table.
    pub(super) fn is_free(&self, uid: Uid, table: usize, key: Option<u8>) -> bool {
        let mut others = self.holders().filter(|holder| holder.uid != uid);
        match key {
            Some(key) => !others.any(|other| other.whole.contains(&table) || other.keys.contains(&(table, key))),
            None => {
                !others.any(|other| other.whole.contains(&table) || other.keys.iter().any(|(of, _)| *of == table))
                    && !self.shared.iter().any(|(_, of)| *of == table)
            }
        }
    }

    /// Whether somebody has the whole table.
    pub(super) fn is_locked(&self, table: usize) -> bool {
        self.holders().any(|holder| holder.whole.contains(&table))
    }

    /// `pg_current_snapshot()`.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut xids: Vec<u32> = self.holders().map(|holder| holder.xid).collect();
        xids.sort_unstable();
        snapshot(self.xid, &xids)
    }

    pub(super) fn visible(&self) -> BTreeSet<Uid> {
        self.wal.iter().map(|transaction| transaction.uid).filter(|uid| !self.invisible.contains(uid)).collect()
    }

    /// The tables, and how often each was altered, as these transactions left them.
    pub(super) fn as_of(&self, visible: &BTreeSet<Uid>) -> (Rows, [u32; TABLES.len()]) {
        let (mut rows, mut versions) = (self.base.clone(), [0; TABLES.len()]);
        for transaction in self.wal.iter().filter(|transaction| visible.contains(&transaction.uid)) {
            transaction.play(&mut rows);
            for change in &transaction.changes {
                versions[change.table] += u32::from(matches!(change.op, Op::Alter));
            }
        }
        (rows, versions)
    }

    /// START_REPLICATION at 0/0: everything whose commit is not below the confirmed LSN comes again.
    pub(super) fn start(&mut self, to: Session) {
        let confirmed = self.slot.map_or(0, |slot| slot.confirmed);
        let at = self.wal.partition_point(|transaction| transaction.commit < confirmed);
        self.sender = Some(Sender { to, at, frames: VecDeque::new(), relations: [None; TABLES.len()] });
    }

    pub(super) fn serves(&self, session: Session) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.to == session)
    }

    /// The next message to whoever streams. `empties`: transactions that hold nothing of interest are sent too (before 15).
    pub(super) fn send(&mut self, empties: bool, keepalive: bool) -> Option<Frame> {
        let sender = self.sender.as_mut()?;
        if keepalive {
            // In the middle of a transaction it names what was read of the WAL, which proves nothing.
            let whole = sender.frames.is_empty() && sender.at == self.wal.len();
            return (whole || !sender.frames.is_empty()).then_some(Frame::Keepalive(self.lsn));
        }
        while sender.frames.is_empty() {
            let transaction = self.wal.get(sender.at)?;
            sender.at += 1;
            if is_sent(&self.publication, transaction) || empties {
                sender.frames = frames(transaction, &self.publication, &mut sender.relations).into();
            }
        }
        sender.frames.pop_front()
    }
}

/// A snapshot for which all below `xmax` is over, but for these.
pub(super) fn snapshot(xmax: u32, in_progress: &[u32]) -> Snapshot {
    let list: Vec<String> = in_progress.iter().map(u32::to_string).collect();
    format!("1:{xmax}:{}", list.join(",")).parse().expect("a snapshot's text")
}

fn is_carried(publication: &[(u64, bool)], table: usize, lsn: u64) -> bool {
    let at = publication.partition_point(|(from, _)| *from <= lsn);
    table == 0 || at.checked_sub(1).is_some_and(|last| publication[last].1)
}

/// The tables of a change that were published when it was written. A message concerns none, and is sent for all that.
fn carried(publication: &[(u64, bool)], change: &Change) -> Vec<usize> {
    let tables = match &change.op {
        Op::Truncate(tables) => tables.clone(),
        _ => vec![change.table],
    };
    let is_carried = |table: &usize| is_carried(publication, *table, change.lsn);
    tables.into_iter().filter(is_carried).collect()
}

/// Whether a transaction holds something of interest.
fn is_sent(publication: &[(u64, bool)], transaction: &Transaction) -> bool {
    let sent = |change: &Change| !matches!(change.op, Op::Alter) && !carried(publication, change).is_empty();
    transaction.changes.iter().any(sent)
}

fn frames(transaction: &Transaction, publication: &[(u64, bool)], relations: &mut [Option<u32>]) -> Vec<Frame> {
    let of = transaction.uid;
    let data = |start, payload| Frame::Data { start, payload, of };
    let mut frames = vec![data(0, wire::begin(transaction.commit, transaction.xid, transaction.time))];
    for change in &transaction.changes {
        let concerned = carried(publication, change);
        if concerned.is_empty() {
            continue;
        }
        for table in concerned.iter().filter(|_| !matches!(change.op, Op::Alter | Op::Message(_))) {
            let version = change.versions[*table];
            if relations[*table] != Some(version) {
                relations[*table] = Some(version);
                frames.push(data(0, wire::relation(wire::described(*table, version))));
            }
        }
        if let Some(payload) = payload(change, &concerned) {
            frames.push(data(change.lsn, payload));
        }
    }
    frames.push(data(0, wire::commit(transaction.commit, transaction.end)));
    frames
}

fn text(text: &str) -> Cell<'_> {
    Cell::Text(text.as_bytes())
}

fn payload(change: &Change, concerned: &[usize]) -> Option<Vec<u8>> {
    let (table, key) = (change.table, change.key.to_string());
    // Which shape a row had is written into it, so that a reader can tell whether its schema event fits.
    let name = |row: &Row| format!("{}/{}", row.name, change.versions[table]);
    let old = |key: &str| wire::delete(table, &[text(key), Cell::Null, Cell::Null]);
    Some(match &change.op {
        Op::Insert(row) => wire::insert(table, &[text(&key), text(&name(row)), text(&row.bio)]),
        Op::Update { row, partial } => {
            let bio = if *partial { Cell::Unchanged } else { text(&row.bio) };
            wire::update(table, None, &[text(&key), text(&name(row)), bio])
        }
        Op::Move { from, row, partial } => {
            let (from, bio) = (from.to_string(), if *partial { Cell::Unchanged } else { text(&row.bio) });
            let old = [text(&from), Cell::Null, Cell::Null];
            wire::update(table, Some(&old), &[text(&key), text(&name(row)), bio])
        }
        Op::Delete => old(&key),
        Op::Truncate(_) => wire::truncate(concerned),
        Op::Message(content) => wire::message(change.lsn + 8, "tributary/s", content),
        Op::Alter => return None,
    })
}
