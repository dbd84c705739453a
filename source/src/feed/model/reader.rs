//! The readers of a load, several at a time: each opens a window, locks, takes a snapshot, reads, hands over, writes the marker.

use std::collections::BTreeSet;

use schemas::event::LoadMode;
use schemas::state::{LoadKind, Range};

use super::Rule;
use super::client::KEYS;
use super::process::End;
use super::server::{Row, Uid, snapshot};
use super::session::Streaming;
use super::wire::{TABLES, described};
use super::world::Outside;
use crate::feed::{Outcome, marker};
use crate::range;
use crate::relation::fingerprint;
use crate::visibility::Snapshot;
use crate::window::{Chunk, ChunkId, Listed, Part, Rows};

pub(super) struct Reader {
    id: ChunkId,
    table: usize,
    part: Part,
    load: Option<String>,
    stage: Stage,
    /// Where the WAL ended when it opened.
    low: u64,
    /// What had been streamed and was not known to be visible then.
    before: Vec<u32>,
    /// Where its marker commits, once it is written.
    marked: Option<u64>,
    /// How long the rows take: others come and go meanwhile.
    lingers: usize,
}

enum Stage {
    Opened,
    Locked,
    /// The snapshot with what it sees, for PostgreSQL and for the model, and how often the table had been altered.
    Snapshot(Snapshot, BTreeSet<Uid>, u32),
    Read(Box<Chunk>),
    Filled,
    Marked,
}

impl Reader {
    /// The next step of one of the session's readers, or the opening of another chunk.
    pub(super) fn step(session: &mut Streaming, outside: &mut Outside) -> Result<(), End> {
        if !session.is_connected(outside) {
            return Err(End::Again);
        }
        let open = session.readers.len();
        let choices = open + usize::from(open < outside.weather.readers);
        let which = if choices > 1 { outside.dice.below(choices) } else { 0 };
        if which == open {
            Reader::open(session, outside);
            return Ok(());
        }
        let mut reader = session.readers.remove(which);
        if reader.advance(session, outside) {
            session.readers.insert(which, reader);
        }
        Ok(())
    }

    fn open(session: &mut Streaming, outside: &mut Outside) {
        let Some((oid, part, load)) = Reader::task(session, outside) else { return };
        let table = TABLES.iter().position(|(of, _)| *of == oid).expect("one of ours");
        let random = u128::from(outside.next_uid());
        let id = if outside.keeps(Rule::RandomId) {
            random
        } else {
            u128::from(oid) + u128::from(matches!(&part, Part::Range(range) if range.upto.is_none()))
        };
        let before: Vec<u32> = session.feed.recent.xids().collect();
        let lingers = outside.weather.readers > 1 && outside.strikes(300);
        let lingers = if lingers { outside.dice.below(40) } else { 0 };
        let reader = Reader {
            id: ChunkId(id),
            table,
            part,
            load,
            stage: Stage::Opened,
            low: outside.servers[session.belongs.0].lsn,
            before,
            marked: None,
            lingers,
        };
        match outside.out {
            Some(Rule::BeforeIsVisible) => session.feed.windows.open(reader.id, oid, Vec::new()),
            // Opened when the rows are there: what the stream brought meanwhile is not kept.
            Some(Rule::TouchesApply) => {}
            _ if matches!(reader.part, Part::List { .. }) => session.feed.open_list(reader.id, oid),
            _ => session.feed.open_window(reader.id, oid),
        }
        outside.tell(|| format!("chunk {} of {} is opened: {:?}", reader.id.0, TABLES[table].1, reader.part));
        session.readers.push(reader);
    }

    /// What is to be read: rows that moved before all, then what loads have left and nobody reads.
    fn task(session: &mut Streaming, outside: &mut Outside) -> Option<(u32, Part, Option<String>)> {
        let is_by_key = |reader: &Reader| matches!(reader.part, Part::Keys(_));
        if let Some((oid, _)) = session.moved.first().filter(|_| !session.readers.iter().any(is_by_key)) {
            let keys = session.moved.iter().filter(|(of, _)| of == oid).map(|(_, key)| key.clone());
            return Some((*oid, Part::Keys(keys.collect()), None));
        }
        let loads = session.feed.state().loads();
        let loads =
            loads.flat_map(|(id, load)| load.tables.iter().map(move |oid| (id.to_owned(), *oid, load.mode, load.kind)));
        for (load, oid, mode, kind) in loads.collect::<Vec<_>>() {
            if kind == Some(LoadKind::Keys) {
                match Reader::unanswered(session, &load, oid) {
                    keys if keys.is_empty() => continue,
                    mut keys => {
                        keys.truncate(1 + outside.dice.below(keys.len()));
                        let part = Part::List { keys, void: Vec::new(), rows: Vec::new() };
                        return Some((oid, part, Some(load)));
                    }
                }
            }
            let Some(gap) = Reader::gap(session, &load, oid) else { continue };
            if (mode == LoadMode::First && kind != Some(LoadKind::Added)) || session.has_waited(outside, &load, oid) {
                return Some((oid, Part::Range(shortened(gap, outside)), Some(load)));
            }
        }
        None
    }

    /// The keys of a list that have no answer, and nobody reads their rows.
    fn unanswered(session: &Streaming, load: &str, oid: u32) -> Vec<String> {
        let mut left = session.feed.state().load_table(load, oid).cloned().unwrap_or_default().keys;
        for reader in session.readers.iter().filter(|reader| reader.load.as_deref() == Some(load)) {
            if let Part::List { keys, .. } = &reader.part {
                left.retain(|key| !keys.contains(key));
            }
        }
        left
    }

    /// What of a table is neither done nor being read.
    fn gap(session: &Streaming, load: &str, oid: u32) -> Option<Range> {
        let mut taken = session.feed.state().load_table(load, oid).cloned().unwrap_or_default().done;
        // What is settled already waits for its commit alone.
        let is_settled = |reader: &Reader| session.feed.outcomes.iter().any(|(id, _)| *id == reader.id);
        let readers = session.readers.iter().filter(|reader| TABLES[reader.table].0 == oid && !is_settled(reader));
        for reader in readers {
            if let Part::Range(range) = &reader.part {
                range::add(&mut taken, range.clone());
            }
        }
        // Keys of one digit lie in the order of their texts.
        taken.sort_by(|one, other| one.after.cmp(&other.after));
        range::gaps(&taken).into_iter().next()
    }

    /// `false`: the window was given up, and the chunk must be read again.
    fn advance(&mut self, session: &mut Streaming, outside: &mut Outside) -> bool {
        let (at, owner, table) = (session.belongs.0, session.belongs.1, self.table);
        let locks_first = outside.keeps(Rule::LockFirst);
        self.stage = match std::mem::replace(&mut self.stage, Stage::Marked) {
            Stage::Opened if !locks_first => Stage::Locked,
            Stage::Opened if outside.servers[at].is_locked(table) => {
                if outside.strikes(100) {
                    // The lock did not come in time.
                    session.feed.close_window(self.id);
                    return false;
                }
                Stage::Opened
            }
            Stage::Opened => {
                outside.servers[at].shared.push((owner, table));
                if !outside.keeps(Rule::MarkerLast) {
                    self.mark(outside, at);
                }
                Stage::Locked
            }
            Stage::Locked => {
                let server = &mut outside.servers[at];
                let (seen, visible) = (server.snapshot(), server.visible());
                let version = server.as_of(&visible).1[table];
                outside.tell(|| format!("the snapshot of chunk {} sees {visible:?}", self.id.0));
                Stage::Snapshot(seen, visible, version)
            }
            // Without a lock that came before the snapshot, the COPY waits for it.
            waiting @ Stage::Snapshot(..) if outside.servers[at].is_locked(table) => waiting,
            Stage::Snapshot(seen, visible, version) => {
                let chunk = self.read(outside, at, seen, &visible, version);
                if locks_first {
                    outside.servers[at].unshare((owner, table));
                }
                Stage::Read(Box::new(chunk))
            }
            read @ Stage::Read(_) if self.lingers > 0 && outside.noisy => {
                self.lingers -= 1;
                read
            }
            read @ Stage::Read(_) if !outside.keeps(Rule::HandedOverFirst) && self.marked.is_none() => {
                self.mark(outside, at);
                read
            }
            Stage::Read(chunk) => {
                if !outside.keeps(Rule::TouchesApply) {
                    let (oid, before) = (TABLES[table].0, std::mem::take(&mut self.before));
                    match self.part {
                        Part::List { .. } => session.feed.windows.open_list(self.id, oid, before),
                        _ => session.feed.windows.open(self.id, oid, before),
                    }
                }
                // Without its rule the marker can have come and gone already: then there is another.
                let current = session.feed.transaction.map(|open| open.sent.0).max(Some(session.feed.received()));
                self.marked = self.marked.filter(|marked| {
                    outside.keeps(Rule::MarkerLast) || current.is_none_or(|current| current.0 < *marked)
                });
                if !session.feed.fill_window(self.id, *chunk) {
                    return false;
                }
                Stage::Filled
            }
            Stage::Filled => {
                if self.marked.is_none() {
                    self.mark(outside, at);
                }
                Stage::Marked
            }
            Stage::Marked => Stage::Marked,
        };
        true
    }

    fn mark(&mut self, outside: &mut Outside, at: usize) {
        let (uid, time) = (outside.next_uid(), outside.now());
        let server = &mut outside.servers[at];
        server.message(uid, time, marker(self.id));
        let commit = server.wal.last().map_or(0, |last| last.commit);
        self.marked = Some(commit);
        outside.tell(|| format!("the marker of chunk {}, transaction {uid}, commits at {commit}", self.id.0));
    }

    fn read(
        &mut self,
        outside: &mut Outside,
        at: usize,
        seen: Snapshot,
        visible: &BTreeSet<Uid>,
        version: u32,
    ) -> Chunk {
        let server = &outside.servers[at];
        // TRUNCATE, and DDL that rewrites, leave nothing to a snapshot that is older than they are.
        let newer = server.wal.iter().any(|other| other.whole.contains(&self.table) && !visible.contains(&other.uid));
        let there = if newer { Default::default() } else { server.as_of(visible).0[self.table].clone() };
        let snapshot = match outside.out {
            // Everything that stood in the WAL before is taken for seen.
            Some(Rule::TouchesByVisibility) => {
                let later = server.wal.iter().filter(|other| other.commit >= self.low).map(|other| other.xid);
                let mut hidden: Vec<u32> = later.chain(server.open.iter().map(|open| open.xid)).collect();
                hidden.sort_unstable();
                snapshot(server.xid, &hidden)
            }
            _ => seen,
        };
        let mut there: Vec<(String, Row)> = there.into_iter().map(|(key, row)| (key.to_string(), row)).collect();
        there.retain(|(key, _)| is_within(&self.part, key));
        // What does not fit in is left for another chunk.
        if let (Part::Range(range), true) = (&mut self.part, there.len() > 1 && outside.strikes(200)) {
            there.truncate(1);
            range.upto = Some(vec![there[0].0.clone()]);
        }
        let mut rows = Rows::new(3);
        let mut push = |key: &str, row: Option<&Row>| {
            let name = row.map(|row| format!("{}/{version}", row.name));
            let cells = [Some(key), name.as_deref(), row.map(|row| row.bio.as_str())];
            cells.into_iter().for_each(|cell| rows.push(cell.map(str::as_bytes)));
        };
        match &mut self.part {
            Part::List { keys, rows, .. } => {
                for (place, key) in (0..).zip(&*keys) {
                    let row = there.iter().find(|(other, _)| *key == named(other)).map(|(_, row)| row);
                    if row.is_some() || outside.keeps(Rule::AbsentIsAnswered) {
                        push(&key[6..7], row);
                        rows.push(Listed { keys: vec![place], is_there: row.is_some() });
                    }
                }
            }
            Part::Range(_) | Part::Keys(_) => there.iter().for_each(|(key, row)| push(key, Some(row))),
        }
        let relation = described(self.table, version);
        let (fingerprint, part, load) = (fingerprint(&relation), self.part.clone(), self.load.clone());
        Chunk { snapshot, fingerprint, look: 0, relation, rows, part, load, round: 0, ranges_of: None }
    }

    /// What the loop says of chunks after a commit.
    pub(super) fn settled(session: &mut Streaming, outside: &mut Outside, outcomes: Vec<(ChunkId, Outcome)>) {
        for (id, outcome) in outcomes {
            let Some(at) = session.readers.iter().position(|reader| reader.id == id) else { continue };
            outside.tell(|| format!("chunk {}: {outcome:?}", id.0));
            if let (Part::Keys(keys), Outcome::Done { .. }) = (session.readers.remove(at).part, outcome) {
                session.moved.retain(|(_, key)| !keys.contains(key));
            }
        }
    }
}

/// A part of what is to be read, so that there is something left for others.
fn shortened(gap: Range, outside: &mut Outside) -> Range {
    let end = vec![(1 + outside.dice.below(usize::from(KEYS))).to_string()];
    let is_within =
        gap.after.as_ref().is_none_or(|after| *after < end) && gap.upto.as_ref().is_none_or(|upto| end < *upto);
    if is_within { Range { upto: Some(end), ..gap } } else { gap }
}

/// A key as records have it.
fn named(key: &str) -> String {
    format!("{{\"id\":{key}}}")
}

/// Whether a chunk is to hold the row with this key.
fn is_within(part: &Part, key: &str) -> bool {
    let bound = |end: &Option<Vec<String>>| end.as_ref().map(|texts| texts[0].clone());
    match part {
        Part::Range(Range { after, upto }) => {
            bound(after).is_none_or(|after| *key > *after) && bound(upto).is_none_or(|upto| *key <= *upto)
        }
        Part::Keys(keys) | Part::List { keys, .. } => keys.contains(&named(key)),
    }
}
