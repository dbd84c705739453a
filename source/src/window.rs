//! Chunks between their reading and their marker: what the stream touched meanwhile, and what is left to publish.
//!
//!     open ──▶ reader takes a snapshot S and reads ──▶ fill ──▶ marker in the stream ──▶ settle ──▶ rows
//!       └──────────── touch, touch, touch ────────────────────────────────┘
//!
//! A chunk is the exact state of its keys at its marker: the marker's commit follows every commit that S sees, so what S
//! does not see and the stream brought before the marker is laid over the rows.
//!
//! Pure. Touches are bounded in bytes: over budget the oldest window is cancelled and read again.

use std::collections::{HashMap, VecDeque};

use schemas::fingerprint::Fingerprint;
use schemas::state::Range;
use schemas::write::Cell;

use crate::pgoutput;
use crate::visibility::Snapshot;

/// Names a chunk. Random, so that nobody else's message is taken for its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkId(pub u128);

impl std::fmt::Display for ChunkId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ChunkId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(ChunkId)
    }
}

/// Rows in one buffer: a chunk has many, and each is small.
#[derive(Debug, Default)]
pub struct Rows {
    columns: usize,
    text: Vec<u8>,
    cells: Vec<Span>,
}

/// Where a cell's text stands; no length is NULL.
#[derive(Clone, Copy, Debug)]
struct Span(u32, Option<u32>);

impl Rows {
    /// No rows yet, of `columns` columns.
    pub fn new(columns: usize) -> Rows {
        Rows { columns, ..Rows::default() }
    }

    /// Adds the next cell, row by row.
    pub fn push(&mut self, cell: Option<&[u8]>) {
        let span = self.store(cell);
        self.cells.push(span);
    }

    /// How many whole rows there are.
    pub fn len(&self) -> usize {
        self.cells.len() / self.columns.max(1)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.cells.len() * size_of::<Span>()
    }

    /// One row.
    pub fn row(&self, row: usize) -> Vec<Cell<'_>> {
        let cells = &self.cells[row * self.columns..][..self.columns];
        cells.iter().map(|span| self.text(*span).map_or(Cell::Null, Cell::Text)).collect()
    }

    fn overlay(&mut self, row: usize, column: usize, cell: Option<&[u8]>) {
        self.cells[row * self.columns + column] = self.store(cell);
    }

    fn store(&mut self, cell: Option<&[u8]>) -> Span {
        let start = u32::try_from(self.text.len()).expect("a chunk is bounded far below 4 GiB");
        self.text.extend_from_slice(cell.unwrap_or_default());
        Span(start, cell.map(|text| text.len() as u32))
    }

    fn text(&self, span: Span) -> Option<&[u8]> {
        span.1.map(|length| &self.text[span.0 as usize..][..length as usize])
    }
}

/// What a reader read.
#[derive(Debug)]
pub struct Chunk {
    /// What was visible to it.
    pub snapshot: Snapshot,
    /// The relation as the catalog had it, under a lock that keeps it so, and by its rule.
    pub relation: pgoutput::Relation,
    /// Its number.
    pub fingerprint: Fingerprint,
    /// The rows, in key order.
    pub rows: Rows,
    /// Which part of the table this is.
    pub part: Part,
    /// The load that it was read for; none for rows that moved.
    pub load: Option<String>,
}

/// A part of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A range of its key, of a load.
    Range(Range),
    /// The rows with these keys, as texts of record keys, of which something was read beside the stream.
    Keys(Vec<String>),
}

/// What a streamed change did to one key. Keys are the record's key text.
#[derive(Debug)]
pub enum Kind {
    /// The row is gone, or a complete newer event stands in the topic.
    Superseded(Box<[u8]>),
    /// Some columns of the row changed, the others are not known.
    Patch(Box<[u8]>, Vec<(usize, Option<Box<[u8]>>)>),
    /// All rows are gone.
    Truncate,
}

#[derive(Debug)]
struct Touch {
    oid: u32,
    xid: u32,
    kind: Kind,
}

impl Touch {
    fn bytes(&self) -> usize {
        size_of::<Touch>()
            + match &self.kind {
                Kind::Superseded(key) => key.len(),
                Kind::Patch(key, cells) => {
                    key.len() + cells.iter().map(|(_, cell)| 40 + cell.as_deref().map_or(0, <[u8]>::len)).sum::<usize>()
                }
                Kind::Truncate => 0,
            }
    }
}

#[derive(Debug)]
struct Window {
    id: ChunkId,
    oid: u32,
    before: Vec<u32>,
    /// The number of the first touch that concerns it.
    from: u64,
    /// A Relation came since it opened.
    related: bool,
    chunk: Option<Chunk>,
}

/// What becomes of a chunk at its marker.
#[derive(Debug)]
pub enum Settled {
    /// Publish what is left of it.
    Publish(Box<Chunk>, Vec<bool>),
    /// It cannot be made exact: read the range again.
    Again(&'static str),
}

/// All open windows and their one log of touches.
#[derive(Debug)]
pub struct Windows {
    open: Vec<Window>,
    touches: VecDeque<Touch>,
    /// The number of the first touch in the log.
    first: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Windows {
    /// None, with a log that never holds more than `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Windows {
        Windows { open: Vec::new(), touches: VecDeque::new(), first: 0, bytes: 0, bytes_max }
    }

    /// Opens a window on a table: from now on touches are kept for it. `before` are the transactions that were streamed
    /// and not known to be visible.
    pub fn open(&mut self, id: ChunkId, oid: u32, before: Vec<u32>) {
        let from = self.first + self.touches.len() as u64;
        self.open.push(Window { id, oid, before, from, related: false, chunk: None });
    }

    /// Hands over what was read; `false` if the window was cancelled meanwhile.
    pub fn fill(&mut self, id: ChunkId, chunk: Chunk) -> bool {
        match self.open.iter_mut().find(|window| window.id == id) {
            Some(window) => {
                window.chunk = Some(chunk);
                true
            }
            None => false,
        }
    }

    /// The table of an open window.
    pub fn table_of(&self, id: ChunkId) -> Option<u32> {
        self.open.iter().find(|window| window.id == id).map(|window| window.oid)
    }

    /// What was read into an open window.
    pub fn chunk(&self, id: ChunkId) -> Option<&Chunk> {
        self.open.iter().find(|window| window.id == id).and_then(|window| window.chunk.as_ref())
    }

    /// Forgets a window whose reader gave up.
    pub fn close(&mut self, id: ChunkId) {
        self.open.retain(|window| window.id != id);
        self.trim();
    }

    /// Whether touches on the table are of use to anybody.
    pub fn watches(&self, oid: u32) -> bool {
        self.open.iter().any(|window| window.oid == oid)
    }

    /// The stream described a relation anew.
    pub fn relation(&mut self, oid: u32) {
        self.open.iter_mut().filter(|window| window.oid == oid).for_each(|window| window.related = true);
    }

    /// A streamed transaction touched a table. Returns windows that had to be given up to stay within memory.
    pub fn touch(&mut self, oid: u32, xid: u32, kind: Kind) -> Vec<ChunkId> {
        let mut cancelled = Vec::new();
        if !self.watches(oid) {
            return cancelled;
        }
        let touch = Touch { oid, xid, kind };
        self.bytes += touch.bytes();
        self.touches.push_back(touch);
        while self.bytes > self.bytes_max && !self.open.is_empty() {
            cancelled.push(self.open.remove(0).id);
            self.trim();
        }
        cancelled
    }

    /// The marker of a chunk arrived. `known` is the relation's fingerprint as the stream last had it. `None` for a marker
    /// that is not ours: an earlier session's, or anybody's.
    pub fn settle(
        &mut self,
        id: ChunkId,
        known: Option<Fingerprint>,
        key_of: impl Fn(&Chunk, usize) -> Vec<u8>,
    ) -> Option<Settled> {
        let at = self.open.iter().position(|window| window.id == id && window.chunk.is_some())?;
        let window = self.open.remove(at);
        let settled = self.settled(window, known, key_of);
        self.trim();
        Some(settled)
    }

    fn settled(
        &self,
        window: Window,
        known: Option<Fingerprint>,
        key_of: impl Fn(&Chunk, usize) -> Vec<u8>,
    ) -> Settled {
        let mut chunk = window.chunk.expect("only a filled window is settled");
        if window.before.iter().any(|xid| !chunk.snapshot.sees(*xid)) {
            return Settled::Again("a transaction that had been streamed was not visible yet");
        }
        if window.related && known != Some(chunk.fingerprint) {
            return Settled::Again("the table was altered");
        }
        let mut keep = vec![true; chunk.rows.len()];
        let mut by_key: Option<HashMap<Vec<u8>, usize>> = None;
        for touch in self.touches.iter().skip((window.from - self.first) as usize) {
            if touch.oid != window.oid || chunk.snapshot.sees(touch.xid) {
                continue;
            }
            let by_key = by_key.get_or_insert_with(|| (0..keep.len()).map(|row| (key_of(&chunk, row), row)).collect());
            match &touch.kind {
                Kind::Truncate => keep.fill(false),
                Kind::Superseded(key) => {
                    by_key.get(&**key).into_iter().for_each(|row| keep[*row] = false);
                }
                Kind::Patch(key, cells) => {
                    for (row, (column, cell)) in
                        by_key.get(&**key).into_iter().flat_map(|row| cells.iter().map(move |cell| (row, cell)))
                    {
                        chunk.rows.overlay(*row, *column, cell.as_deref());
                    }
                }
            }
        }
        Settled::Publish(Box::new(chunk), keep)
    }

    fn trim(&mut self) {
        let needed = self.open.iter().map(|window| window.from).min().unwrap_or(u64::MAX);
        while self.first < needed {
            let Some(touch) = self.touches.pop_front() else { break };
            self.bytes -= touch.bytes();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relation::{fingerprint, tests::users};

    fn chunk(snapshot: &str, rows: &[[&str; 3]]) -> Chunk {
        let mut read = Rows::new(3);
        rows.iter().flatten().for_each(|cell| read.push(Some(cell.as_bytes())));
        Chunk {
            snapshot: snapshot.parse().expect("a snapshot"),
            relation: users('d'),
            fingerprint: fingerprint(&users('d')),
            rows: read,
            part: Part::Range(Range::default()),
            load: None,
        }
    }

    fn key_of(chunk: &Chunk, row: usize) -> Vec<u8> {
        match chunk.rows.row(row)[0] {
            Cell::Text(text) => text.to_vec(),
            _ => unreachable!("keys are never null"),
        }
    }

    fn settle(windows: &mut Windows, id: ChunkId) -> Option<Vec<Vec<String>>> {
        match windows.settle(id, Some(fingerprint(&users('d'))), key_of)? {
            Settled::Again(_) => None,
            Settled::Publish(chunk, keep) => {
                let text = |cell: &Cell<'_>| match cell {
                    Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    _ => "null".into(),
                };
                let rows = (0..chunk.rows.len()).filter(|row| keep[*row]);
                Some(rows.map(|row| chunk.rows.row(row).iter().map(text).collect()).collect())
            }
        }
    }

    const ID: ChunkId = ChunkId(1);

    fn superseded(key: &str) -> Kind {
        Kind::Superseded(key.as_bytes().into())
    }

    #[test]
    fn what_the_snapshot_does_not_see_is_laid_over_its_rows() {
        let mut windows = Windows::new(1 << 20);
        windows.open(ID, 7, vec![]);
        windows.touch(7, 50, superseded("1"));
        windows.touch(7, 90, Kind::Patch((*b"2").into(), vec![(1, Some((*b"new").into()))]));
        windows.touch(7, 91, superseded("3"));
        windows.touch(8, 91, superseded("4"));
        windows.fill(ID, chunk("80:80:", &[["1", "a", "x"], ["2", "b", "y"], ["3", "c", "z"], ["4", "d", "w"]]));
        assert_eq!(settle(&mut windows, ID).expect("published"), [["1", "a", "x"], ["2", "new", "y"], ["4", "d", "w"]]);
    }

    #[test]
    fn a_truncate_that_is_not_visible_empties_the_chunk_and_what_follows_is_streamed() {
        let mut windows = Windows::new(1 << 20);
        windows.open(ID, 7, vec![]);
        windows.touch(7, 90, Kind::Truncate);
        windows.touch(7, 90, superseded("1"));
        windows.fill(ID, chunk("80:80:", &[["1", "a", "x"]]));
        assert!(settle(&mut windows, ID).expect("published").is_empty());
    }

    #[test]
    fn a_streamed_transaction_that_is_not_visible_makes_the_chunk_unusable() {
        let mut windows = Windows::new(1 << 20);
        windows.open(ID, 7, vec![79]);
        windows.fill(ID, chunk("79:81:79", &[["1", "a", "x"]]));
        assert_eq!(settle(&mut windows, ID), None);
    }

    #[test]
    fn a_chunk_of_another_shape_is_read_again_only_if_the_stream_moved() {
        let mut windows = Windows::new(1 << 20);
        for related in [false, true] {
            windows.open(ID, 7, vec![]);
            if related {
                windows.relation(7);
            }
            windows.fill(ID, chunk("80:80:", &[["1", "a", "x"]]));
            let settled = windows.settle(ID, Some(Fingerprint(1)), key_of).expect("ours");
            assert_eq!(matches!(settled, Settled::Again(_)), related);
        }
    }

    #[test]
    fn memory_is_bounded_by_giving_up_the_oldest_window() {
        let mut windows = Windows::new(2_000);
        windows.open(ID, 7, vec![]);
        let cancelled: Vec<_> = (0..100).flat_map(|n| windows.touch(7, 90, superseded(&n.to_string()))).collect();
        assert_eq!(cancelled, [ID]);
        assert_eq!((windows.bytes, windows.touches.len()), (0, 0));
        assert!(!windows.fill(ID, chunk("80:80:", &[])));
    }

    #[test]
    fn a_foreign_marker_is_ignored() {
        let mut windows = Windows::new(1 << 20);
        windows.open(ID, 7, vec![]);
        assert!(windows.settle(ID, None, key_of).is_none());
        assert!(windows.settle(ChunkId(2), None, key_of).is_none());
    }
}
