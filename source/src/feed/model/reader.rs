//! The reader of a load: opens a window, locks, takes a snapshot, reads, hands over, writes the marker.

use std::collections::BTreeSet;

use schemas::state::Range;

use super::Rule;
use super::process::End;
use super::server::{Row, Uid, snapshot};
use super::session::Streaming;
use super::wire::{TABLES, described};
use super::world::Outside;
use crate::feed::{Outcome, marker};
use crate::range;
use crate::relation::fingerprint;
use crate::visibility::Snapshot;
use crate::window::{Chunk, ChunkId, Part, Rows};

/// Tables are read in two chunks, which meet at this key.
const MIDDLE: &str = "2";

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
}

enum Stage {
    Opened,
    Locked,
    /// The snapshot with what it sees, for PostgreSQL and for the model, and how often the table had been altered.
    Snapshot(Snapshot, BTreeSet<Uid>, u32),
    Read(Chunk),
    Filled,
    Marked,
}

impl Reader {
    /// The next step of the session's reader, or the opening of the next chunk.
    pub(super) fn step(session: &mut Streaming, outside: &mut Outside) -> Result<(), End> {
        if !session.is_connected(outside) {
            return Err(End::Again);
        }
        if let Some(list) = session.list.take() {
            let (uid, time) = (outside.next_uid(), outside.now());
            outside.servers[session.belongs.0].message(uid, time, list);
            outside.tell(|| format!("transaction {uid} asks for another list of tables"));
            return Ok(());
        }
        match session.reader.take() {
            None => {
                Reader::open(session, outside);
                Ok(())
            }
            Some(mut reader) => {
                session.reader = reader.advance(session, outside).then_some(reader);
                Ok(())
            }
        }
    }

    fn open(session: &mut Streaming, outside: &mut Outside) {
        let Some((oid, part, load)) = Reader::task(session) else { return };
        let table = TABLES.iter().position(|(of, _)| *of == oid).expect("one of ours");
        let random = u128::from(outside.next_uid());
        let id = if outside.keeps(Rule::RandomId) {
            random
        } else {
            u128::from(oid) + u128::from(matches!(&part, Part::Range(range) if range.upto.is_none()))
        };
        let before: Vec<u32> = session.feed.recent.xids().collect();
        let reader = Reader {
            id: ChunkId(id),
            table,
            part,
            load,
            stage: Stage::Opened,
            low: outside.servers[session.belongs.0].lsn,
            before,
        };
        match outside.out {
            Some(Rule::BeforeIsVisible) => session.feed.windows.open(reader.id, oid, Vec::new()),
            // Opened when the rows are there: what the stream brought meanwhile is not kept.
            Some(Rule::TouchesApply) => {}
            _ => session.feed.open_window(reader.id, oid),
        }
        outside.tell(|| format!("a chunk of {} is opened: {:?}", TABLES[table].1, reader.part));
        session.reader = Some(reader);
    }

    /// What is to be read: rows that moved before all, then what a load has left, in two chunks.
    fn task(session: &Streaming) -> Option<(u32, Part, Option<String>)> {
        if let Some((oid, _)) = session.moved.first() {
            let keys = session.moved.iter().filter(|(of, _)| of == oid).map(|(_, key)| key.clone());
            return Some((*oid, Part::Keys(keys.collect()), None));
        }
        let state = session.feed.state();
        let (load, oid) = state.loads().find_map(|(id, load)| Some((id.to_owned(), *load.tables.first()?)))?;
        let done = state.load_table(&load, oid).cloned().unwrap_or_default().done;
        let mut range = range::next(&done)?;
        if range.after.is_none() && range.upto.is_none() {
            range.upto = Some(vec![MIDDLE.to_owned()]);
        }
        Some((oid, Part::Range(range), Some(load)))
    }

    /// `false`: the window was given up, and the chunk must be read again.
    fn advance(&mut self, session: &mut Streaming, outside: &mut Outside) -> bool {
        let (at, owner, table) = (session.belongs.0, session.belongs.1, self.table);
        let locks_first = outside.keeps(Rule::LockFirst);
        let server = &mut outside.servers[at];
        self.stage = match std::mem::replace(&mut self.stage, Stage::Marked) {
            Stage::Opened if !locks_first => Stage::Locked,
            Stage::Opened if server.is_locked(table) => Stage::Opened,
            Stage::Opened => {
                server.shared.push((owner, table));
                Stage::Locked
            }
            Stage::Locked => {
                let (seen, visible) = (server.snapshot(), server.visible());
                let version = server.as_of(&visible).1[table];
                outside.tell(|| format!("its snapshot sees {visible:?}"));
                Stage::Snapshot(seen, visible, version)
            }
            // Without a lock that came before the snapshot, the COPY waits for it.
            waiting @ Stage::Snapshot(..) if server.is_locked(table) => waiting,
            Stage::Snapshot(seen, visible, version) => {
                let chunk = self.read(outside, at, seen, &visible, version);
                outside.servers[at].shared.retain(|lock| *lock != (owner, table));
                Stage::Read(chunk)
            }
            Stage::Read(chunk) => {
                if !outside.keeps(Rule::TouchesApply) {
                    session.feed.windows.open(self.id, TABLES[table].0, std::mem::take(&mut self.before));
                }
                if !session.feed.fill_window(self.id, chunk) {
                    return false;
                }
                Stage::Filled
            }
            Stage::Filled => {
                let (uid, time) = (outside.next_uid(), outside.now());
                let server = &mut outside.servers[at];
                server.message(uid, time, marker(self.id));
                let commit = server.wal.last().map_or(0, |last| last.commit);
                outside.tell(|| format!("its marker, transaction {uid}, commits at {commit}"));
                Stage::Marked
            }
            Stage::Marked => Stage::Marked,
        };
        true
    }

    fn read(&self, outside: &Outside, at: usize, seen: Snapshot, visible: &BTreeSet<Uid>, version: u32) -> Chunk {
        let server = &outside.servers[at];
        // TRUNCATE, and DDL that rewrites, leave nothing to a snapshot that is older than they are.
        let newer = server.wal.iter().any(|other| other.whole.contains(&self.table) && !visible.contains(&other.uid));
        let mut rows = Rows::new(3);
        let there = if newer { Default::default() } else { server.as_of(visible).0[self.table].clone() };
        for (key, Row { name, bio }) in there.iter().map(|(key, row)| (key.to_string(), row)) {
            if is_within(&self.part, &key) {
                let name = format!("{name}/{version}");
                [&key, &name, bio].into_iter().for_each(|cell| rows.push(Some(cell.as_bytes())));
            }
        }
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
        let relation = described(self.table, version);
        let (fingerprint, part, load) = (fingerprint(&relation), self.part.clone(), self.load.clone());
        Chunk { snapshot, fingerprint, relation, rows, part, load, ranges_of: None }
    }

    /// What the loop says of chunks after a commit.
    pub(super) fn settled(session: &mut Streaming, outside: &mut Outside, outcomes: Vec<(ChunkId, Outcome)>) {
        for (id, outcome) in outcomes {
            if session.reader.as_ref().is_some_and(|reader| reader.id == id) {
                outside.tell(|| format!("the chunk: {outcome:?}"));
                let reader = session.reader.take();
                if let (Some(Part::Keys(keys)), Outcome::Done { .. }) = (reader.map(|reader| reader.part), outcome) {
                    session.moved.retain(|(_, key)| !keys.contains(key));
                }
            }
        }
    }
}

/// Whether a chunk is to hold the row with this key.
fn is_within(part: &Part, key: &str) -> bool {
    let bound = |end: &Option<Vec<String>>| end.as_ref().map(|texts| texts[0].clone());
    match part {
        Part::Range(Range { after, upto }) => {
            bound(after).is_none_or(|after| *key > *after) && bound(upto).is_none_or(|upto| *key <= *upto)
        }
        Part::List { .. } => unreachable!("nobody orders lists here"),
        Part::Keys(keys) => keys.iter().any(|other| *other == format!("{{\"id\":{key}}}")),
    }
}
