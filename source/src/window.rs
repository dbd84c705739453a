//! Chunks between their reading and their marker: what the stream touched meanwhile, and what is left to publish.
//!
//!     open ──▶ reader takes a snapshot S and reads ──▶ fill ──▶ marker in the stream ──▶ settle ──▶ rows
//!       └──────────── touch, touch, touch ────────────────────────────────┘
//!
//! A chunk is the exact state of its keys at its marker: the marker's commit follows every commit that S sees, so what S
//! does not see and the stream brought before the marker is laid over the rows.
//!
//! A range's chunk leaves out what a complete newer event in the topic speaks of. A list of keys is answered whole: for it
//! the images of changed rows are kept, and each key is published as it is at the marker, also where its row is gone.
//!
//! Where keys have no canonical text, only the server can say whether a row that was touched is one of a list: it is asked at the
//! marker, so that a list ends however much is written to the table's other rows.
//!
//! Pure. Touches are bounded in bytes: over budget the oldest window is cancelled and read again.

use std::collections::{HashMap, HashSet, VecDeque};

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
    /// The number of the look at the catalog that it comes from: what follows from one is the same for all chunks with it.
    pub look: u64,
    /// The rows, in key order.
    pub rows: Rows,
    /// Which part of the table this is.
    pub part: Part,
    /// What a range of it is a range of; none where nobody asked.
    pub ranges_of: Option<RangesOf>,
    /// The load that it was read for; none for rows that moved.
    pub load: Option<String>,
    /// How often that had been ordered before.
    pub round: u32,
}

/// What a chunk's range is a range of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangesOf {
    /// What the table was told into ranges by when the chunk was read.
    pub found: String,
    /// By what the ranges of its load were known to go then.
    pub known: Option<String>,
}

/// A part of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A range of its key, of a load.
    Range(Range),
    /// The rows with these keys, as texts of record keys, of which something was read beside the stream.
    Keys(Vec<String>),
    /// A part of a list of keys that was ordered. Each key that may name a row has one in the chunk, whether or not there is
    /// such a row; keys that PostgreSQL calls equal share one.
    List {
        /// Keys as they were ordered.
        keys: Vec<String>,
        /// Keys that can name no row of the table: none of them is answered.
        void: Vec<String>,
        /// What each row of the chunk stands for.
        rows: Vec<Listed>,
    },
}

/// A row that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which of the keys mean it, by their places in the list.
    pub keys: Vec<usize>,
    /// Whether it is there. Of one that is not, the key's columns alone are known.
    pub is_there: bool,
}

/// Which row was touched.
#[derive(Debug)]
pub struct Key {
    /// The record's key text.
    pub text: Box<[u8]>,
    /// The text by which equal keys are told; only where a list of keys of the table is being read.
    pub canonical: Option<Box<[u8]>>,
}

impl Key {
    fn bytes(&self) -> usize {
        self.text.len() + self.canonical.as_deref().map_or(0, <[u8]>::len)
    }
}

/// A row as an event left it.
#[derive(Debug, PartialEq, Eq)]
pub enum Image {
    /// There is none.
    Gone,
    /// All of it; only where a list of keys of the table is being read.
    Whole(Vec<Option<Box<[u8]>>>),
    /// Some of it is not known from the stream, or not asked for.
    Unknown,
}

impl Image {
    fn bytes(&self) -> usize {
        match self {
            Image::Gone | Image::Unknown => 0,
            Image::Whole(cells) => cells.iter().map(|cell| 24 + cell.as_deref().map_or(0, <[u8]>::len)).sum(),
        }
    }
}

/// What a streamed change did.
#[derive(Debug)]
pub enum Kind {
    /// The row is gone, or a complete newer event stands in the topic.
    Superseded(Key, Image),
    /// Some columns of the row changed, the others are not known.
    Patch(Key, Vec<(usize, Option<Box<[u8]>>)>),
    /// All rows are gone.
    Truncate,
}

impl Kind {
    fn key(&self) -> Option<&Key> {
        match self {
            Kind::Superseded(key, _) | Kind::Patch(key, _) => Some(key),
            Kind::Truncate => None,
        }
    }
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
                Kind::Superseded(key, image) => key.bytes() + image.bytes(),
                Kind::Patch(key, cells) => {
                    key.bytes()
                        + cells.iter().map(|(_, cell)| 40 + cell.as_deref().map_or(0, <[u8]>::len)).sum::<usize>()
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
    /// Whether a list of keys is read in it.
    is_list: bool,
    /// The number of the first touch that concerns it.
    from: u64,
    /// A Relation came since it opened.
    related: bool,
    chunk: Option<Chunk>,
}

/// What becomes of a chunk at its marker.
#[derive(Debug)]
pub enum Settled {
    /// Publish it, each row as it is now: `true` where it is. A range leaves out the others, a list says that they are gone.
    Publish(Box<Chunk>, Vec<bool>),
    /// It cannot be made exact: read the range again.
    Again(&'static str),
}

/// How the keys of a list are told from others.
#[derive(Clone, Copy, Debug)]
pub enum Equality<'a> {
    /// Equal keys, and no others, have the same canonical text.
    Canonical,
    /// Equal texts are equal keys. Whose key another text is, as a row of the chunk or as none of them, the server has told by
    /// the record key's text; what is missing here it could not say.
    Told(&'a HashMap<Box<[u8]>, Option<usize>>),
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
        self.push(id, oid, before, false);
    }

    /// The same for a list of keys: touches of the table are kept with images and canonical keys.
    pub fn open_list(&mut self, id: ChunkId, oid: u32, before: Vec<u32>) {
        self.push(id, oid, before, true);
    }

    fn push(&mut self, id: ChunkId, oid: u32, before: Vec<u32>, is_list: bool) {
        let from = self.first + self.touches.len() as u64;
        self.open.push(Window { id, oid, before, is_list, from, related: false, chunk: None });
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

    /// Whether a list of keys of the table is being read.
    pub fn watches_list(&self, oid: u32) -> bool {
        self.open.iter().any(|window| window.oid == oid && window.is_list)
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

    /// The record keys of rows that were touched while a list was read, and of which only the server can say whether they are
    /// among it. To be asked at the marker, where canonical texts do not tell.
    pub fn untold(&self, id: ChunkId, key_of: impl Fn(&Chunk, usize) -> Vec<u8>) -> Vec<&[u8]> {
        let filled = |window: &&Window| window.id == id && window.chunk.is_some();
        let Some(window) = self.open.iter().find(filled) else { return Vec::new() };
        let Some(chunk) = window.chunk.as_ref() else { return Vec::new() };
        let Part::List { rows, .. } = &chunk.part else { return Vec::new() };
        let by_key: HashSet<Vec<u8>> = (0..rows.len()).map(|row| key_of(chunk, row)).collect();
        let unseen = self.unseen(window, &chunk.snapshot).filter_map(|touch| touch.kind.key());
        let is_strange = |key: &&Key| key.canonical.as_deref().is_some_and(|canonical| !by_key.contains(canonical));
        let mut untold: Vec<&[u8]> = unseen.filter(is_strange).map(|key| &*key.text).collect();
        untold.sort_unstable();
        untold.dedup();
        untold
    }

    /// What the stream brought of a window's table since it opened, and a snapshot does not see.
    fn unseen<'a, 's>(
        &'a self,
        window: &Window,
        snapshot: &'s Snapshot,
    ) -> impl Iterator<Item = &'a Touch> + use<'a, 's> {
        let oid = window.oid;
        let since = self.touches.iter().skip((window.from - self.first) as usize);
        since.filter(move |touch| touch.oid == oid && !snapshot.sees(touch.xid))
    }

    /// The marker of a chunk arrived. `known` is the relation's fingerprint as the stream last had it; `key_of` the text by
    /// which a row of the chunk is touched: of a list its canonical key, which says as much as `equality` allows.
    /// `None` for a marker that is not ours: an earlier session's, or anybody's.
    pub fn settle(
        &mut self,
        id: ChunkId,
        known: Option<Fingerprint>,
        equality: Equality<'_>,
        key_of: impl Fn(&Chunk, usize) -> Vec<u8>,
    ) -> Option<Settled> {
        let at = self.open.iter().position(|window| window.id == id && window.chunk.is_some())?;
        let window = self.open.remove(at);
        let settled = self.settled(window, known, equality, key_of);
        self.trim();
        Some(settled)
    }

    fn settled(
        &self,
        mut window: Window,
        known: Option<Fingerprint>,
        equality: Equality<'_>,
        key_of: impl Fn(&Chunk, usize) -> Vec<u8>,
    ) -> Settled {
        let chunk = window.chunk.take().expect("only a filled window is settled");
        if window.before.iter().any(|xid| !chunk.snapshot.sees(*xid)) {
            return Settled::Again("a transaction that had been streamed was not visible yet");
        }
        if window.related && known != Some(chunk.fingerprint) {
            return Settled::Again("the table was altered");
        }
        let touches: Vec<&Touch> = self.unseen(&window, &chunk.snapshot).collect();
        match &chunk.part {
            Part::List { rows, .. } => {
                let is_there = rows.iter().map(|row| row.is_there).collect();
                answers(chunk, is_there, &touches, equality, key_of)
            }
            Part::Range(_) | Part::Keys(_) => left(chunk, &touches, key_of),
        }
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

/// What is left of a chunk whose rows may stand in the topic by newer events.
fn left(mut chunk: Chunk, touches: &[&Touch], key_of: impl Fn(&Chunk, usize) -> Vec<u8>) -> Settled {
    let mut keep = vec![true; chunk.rows.len()];
    let mut by_key: Option<HashMap<Vec<u8>, usize>> = None;
    for touch in touches {
        let by_key = by_key.get_or_insert_with(|| (0..keep.len()).map(|row| (key_of(&chunk, row), row)).collect());
        match &touch.kind {
            Kind::Truncate => keep.fill(false),
            Kind::Superseded(key, _) => by_key.get(&*key.text).into_iter().for_each(|row| keep[*row] = false),
            Kind::Patch(key, cells) => {
                if let Some(row) = by_key.get(&*key.text) {
                    cells.iter().for_each(|(column, cell)| chunk.rows.overlay(*row, *column, cell.as_deref()));
                }
            }
        }
    }
    Settled::Publish(Box::new(chunk), keep)
}

/// What each key of a list has at the marker.
fn answers(
    mut chunk: Chunk,
    mut is_there: Vec<bool>,
    touches: &[&Touch],
    equality: Equality<'_>,
    key_of: impl Fn(&Chunk, usize) -> Vec<u8>,
) -> Settled {
    const UNKNOWN: Settled = Settled::Again("a row of the list was written, and the stream does not say all of it");
    let by_key: HashMap<Vec<u8>, usize> = (0..is_there.len()).map(|row| (key_of(&chunk, row), row)).collect();
    // Rows of which something is missing, until a later event says all of it, or that they are gone.
    let mut unknown = vec![false; is_there.len()];
    for touch in touches {
        let Some(key) = touch.kind.key() else {
            is_there.fill(false);
            unknown.fill(false);
            continue;
        };
        // Touched before a list was read of the table: the window would have kept its canonical key.
        let Some(canonical) = &key.canonical else { return UNKNOWN };
        let row = match (by_key.get(&**canonical), equality) {
            (Some(row), _) => *row,
            (None, Equality::Canonical) => continue,
            (None, Equality::Told(told)) => match told.get(&key.text) {
                Some(Some(row)) => *row,
                Some(None) => continue,
                None => return UNKNOWN,
            },
        };
        match &touch.kind {
            Kind::Superseded(_, Image::Gone) => (is_there[row], unknown[row]) = (false, false),
            Kind::Superseded(_, Image::Unknown) => (is_there[row], unknown[row]) = (true, true),
            Kind::Superseded(_, Image::Whole(cells)) if cells.len() != chunk.rows.columns => return UNKNOWN,
            Kind::Superseded(_, Image::Whole(cells)) => {
                cells.iter().enumerate().for_each(|(column, cell)| chunk.rows.overlay(row, column, cell.as_deref()));
                (is_there[row], unknown[row]) = (true, false);
            }
            Kind::Patch(_, cells) => {
                cells.iter().for_each(|(column, cell)| chunk.rows.overlay(row, *column, cell.as_deref()));
                // The stream changes a row that the snapshot should have shown, or an event before this one.
                unknown[row] |= !is_there[row];
            }
            Kind::Truncate => {}
        }
    }
    if unknown.contains(&true) { UNKNOWN } else { Settled::Publish(Box::new(chunk), is_there) }
}

/// Ways to be wrong, for a model that has to notice.
#[cfg(test)]
impl Windows {
    /// Forgets touches over a budget, and keeps the windows that need them.
    pub fn forget_touches(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some(touch) = self.touches.pop_front() else { break };
            self.bytes -= touch.bytes();
            self.first += 1;
        }
        self.open.iter_mut().for_each(|window| window.from = window.from.max(self.first));
    }

    /// Of rows that changed nothing is known but that they did: of those with an image, or of the others.
    pub fn lose_images(&mut self, are_whole: bool) {
        for touch in &mut self.touches {
            let Kind::Superseded(key, image) = &mut touch.kind else { continue };
            let is_meant = if are_whole { matches!(image, Image::Whole(_)) } else { *image == Image::Unknown };
            if is_meant {
                let key = Key { text: std::mem::take(&mut key.text), canonical: key.canonical.take() };
                self.bytes -= image.bytes();
                touch.kind = Kind::Patch(key, Vec::new());
            }
        }
    }

    /// Puts the last touch first.
    pub fn turn_touches(&mut self) {
        self.touches.make_contiguous().reverse();
    }
}

#[cfg(test)]
mod tests;
