//! Loads: their first events, and chunks that meet their marker.

use std::collections::HashMap;
use std::sync::Arc;

use schemas::event::{Control, LoadMode};
use schemas::state::{Hindrance, Load, LoadKind, LoadTable, Range};
use schemas::write::{Before, Cell, Change, Origin, Transaction as Of};
use schemas::{CONTRACT, Lsn, Operation, Position};

use super::answer::Answers;
use super::row::At;
use super::{Feed, Known, Outbox, Outcome, Transaction, Urgency};
use crate::Error;
use crate::range::{self, Fit};
use crate::relation::Relation;
use crate::window::{Chunk, ChunkId, Equality, Part, RangesOf, Settled};

impl Feed {
    /// Begins the first load of `tables`, given with the rows that each is thought to hold: in front of everything else, at
    /// the state's own position, so that the first record of every partition says so.
    pub fn begin_load(
        &mut self,
        id: &str,
        mode: LoadMode,
        tables: &[(u32, u64)],
        now_ms: i64,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        self.now_ms = now_ms;
        self.begin_load_within(id, mode, None, tables, Of { xid: 0, commit_ms: now_ms }, outbox)
    }

    /// Begins a load at the state's position, which the transaction `of` has just moved there: the first record of each
    /// table says so, and where its rows take the place of others a truncate of our own follows at once.
    pub(super) fn begin_load_within(
        &mut self,
        id: &str,
        mode: LoadMode,
        kind: Option<LoadKind>,
        tables: &[(u32, u64)],
        of: Of,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let done = |(oid, rows_estimated): &(u32, u64)| {
            (*oid, LoadTable { rows_estimated: *rows_estimated, ..LoadTable::default() })
        };
        self.open_load(id, mode, kind, tables.iter().map(done).collect(), of, outbox)
    }

    /// The same, for tables of which something need not be read.
    pub(super) fn open_load(
        &mut self,
        id: &str,
        mode: LoadMode,
        kind: Option<LoadKind>,
        tables: Vec<(u32, LoadTable)>,
        of: Of,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let position = self.state.stream.position;
        let oids = tables.iter().map(|(oid, _)| *oid).collect();
        self.state.set_load(id, Load { mode, tables: oids, kind, paused: false });
        for (oid, done) in tables {
            self.state.set_load_table(id, oid, Some(done));
            let tables = vec![self.control_table(oid)?];
            let begin = Control::LoadBegin { load: id.to_owned(), contract: CONTRACT, mode, tables: tables.clone() };
            self.control(&begin, position, of, outbox)?;
            if mode == LoadMode::Replace {
                let truncate = Control::Truncate { tables, cascade: false, restart_identity: false };
                self.control(&truncate, position, of, outbox)?;
            }
        }
        self.urgency = Urgency::Now;
        Ok(())
    }

    /// The place of a chunk in the stream: it is published here, or read again.
    pub(super) fn marker(
        &mut self,
        id: ChunkId,
        place: Position,
        transaction: &Transaction,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let Some(oid) = self.windows.table_of(id) else { return Ok(()) };
        let known = self.shapes.get(&oid).copied().or_else(|| self.state.table(oid).map(|table| table.fingerprint));
        let Some(chunk) = self.windows.chunk(id) else { return Ok(()) };
        let (fingerprint, look) = (chunk.fingerprint, chunk.look);
        let relation = match (self.relations.get(&oid), self.read.get(&oid)) {
            (Some(same), _) if same.relation.fingerprint == fingerprint => same.relation.clone(),
            (_, Some((same, relation))) if (*same, relation.fingerprint) == (look, fingerprint) => relation.clone(),
            _ => {
                let described = chunk.relation.clone();
                let now = self.look(oid)?;
                let relation = self.describe(&described, fingerprint, now.as_ref())?;
                self.read.insert(oid, (look, relation.clone()));
                relation
            }
        };
        let key_of = |chunk: &Chunk, row: usize| {
            let (mut key, cells) = (Vec::new(), chunk.rows.row(row));
            match &chunk.part {
                Part::List { .. } => relation.template.canonical_key(&cells, &mut key),
                Part::Range(_) | Part::Keys(_) => relation.template.key(&cells, &mut key),
            }
            key
        };
        let told;
        let equality = if relation.has_canonical_key() {
            Equality::Canonical
        } else {
            told = self.told(id, &relation, key_of)?;
            Equality::Told(&told)
        };
        let outcome = match self.windows.settle(id, known, equality, key_of) {
            None => return Ok(()),
            Some(Settled::Again(why)) => Outcome::Again(why),
            Some(Settled::Publish(chunk, _)) if self.is_stale(&chunk, oid) => {
                let ranges_of = self.load_of(&chunk, oid).and_then(|(_, done)| done.ranges_of.clone());
                Outcome::Elsewhere { ranges_of }
            }
            Some(Settled::Publish(chunk, keep)) => {
                Outcome::Done { rows: self.publish_chunk(&chunk, &keep, relation, place, transaction, outbox)? }
            }
        };
        self.outcomes.push((id, outcome));
        self.urgency = Urgency::Now;
        Ok(())
    }

    /// Whose keys those are that were touched while a list was read, as rows of its chunk, where only the server can say: another
    /// text may be the same key. It is asked now, since the answer goes by types alone and not by what stands in the table.
    fn told(
        &mut self,
        id: ChunkId,
        relation: &Relation,
        key_of: impl Fn(&Chunk, usize) -> Vec<u8>,
    ) -> Result<HashMap<Box<[u8]>, Option<usize>>, Error> {
        let Some(Part::List { keys, rows, .. }) = self.windows.chunk(id).map(|chunk| &chunk.part) else {
            return Ok(HashMap::new());
        };
        let touched = self.windows.untold(id, key_of);
        let touched: Vec<&str> = touched.into_iter().filter_map(|key| std::str::from_utf8(key).ok()).collect();
        if touched.is_empty() {
            return Ok(HashMap::new());
        }
        // All keys of a row are equal.
        let listed = rows.iter().map(|row| row.keys.first().and_then(|key| keys.get(*key)).map_or("", String::as_str));
        let listed: Vec<&str> = listed.collect();
        let Some(same) = self.catalog.same_keys(relation, &listed, &touched)? else { return Ok(HashMap::new()) };
        let mut told: HashMap<Box<[u8]>, Option<usize>> =
            touched.iter().map(|key| (key.as_bytes().into(), None)).collect();
        for (place, row) in same {
            if let Some(key) = touched.get(place).filter(|_| row < listed.len()) {
                told.insert(key.as_bytes().into(), Some(row));
            }
        }
        Ok(told)
    }

    fn publish_chunk(
        &mut self,
        chunk: &Chunk,
        keep: &[bool],
        relation: Relation,
        place: Position,
        transaction: &Transaction,
        outbox: &mut dyn Outbox,
    ) -> Result<u64, Error> {
        if let Part::List { keys, void, rows } = &chunk.part {
            let answers = Answers { chunk, keys, void, rows, is_there: keep };
            return self.publish_answers(&answers, relation, place, transaction, outbox);
        }
        let oid = relation.oid;
        let load = match &chunk.part {
            Part::Range(_) => match self.load_of(chunk, oid) {
                Some((id, _)) => Some(id.to_owned()),
                None => return Ok(0),
            },
            Part::Keys(_) | Part::List { .. } => None,
        };
        if !self.is_new(place) {
            return Ok(0);
        }
        let known = self.shown(chunk, relation, place)?;
        self.announce(At { known: &known, transaction, position: place, answer: None }, outbox)?;
        let mut position = place;
        for row in (0..chunk.rows.len()).filter(|row| keep[*row]) {
            position.n += 1;
            let at = At { known: &known, transaction, position, answer: None };
            let cells = chunk.rows.row(row);
            if self.pending.is_leaving(oid) && known.relation.null_in_key(&cells).is_some() {
                self.pass_over(&known.relation);
            } else {
                at.complete(&cells)?;
                self.publish_row(at, &cells, outbox)?;
            }
        }
        let rows = u64::from(position.n - place.n);
        position.n += 1;
        match (load, &chunk.part) {
            (Some(load), Part::Range(range)) => {
                let done = (range, chunk.ranges_of.as_ref(), rows);
                self.settle_range((&load, oid), done, position, transaction, outbox)?;
            }
            // The chunk is what these rows are, whatever was seen of them before.
            (_, Part::Keys(keys)) => self.forget_moved(oid, keys),
            (None, Part::Range(_)) | (_, Part::List { .. }) => {}
        }
        self.acted(position, transaction);
        Ok(rows)
    }

    /// What a chunk that is about to be published shows of its table. Its rows came cut by their rule.
    pub(super) fn shown(&mut self, chunk: &Chunk, relation: Relation, place: Position) -> Result<Arc<Known>, Error> {
        let oid = relation.oid;
        let table = self.state.table(oid).ok_or(Error::RowBeforeRelation { oid, at: place.change })?;
        let topic = self.state.topic_index(&table.topic).ok_or_else(|| Error::UnknownTopic(table.topic.clone()))?;
        if self.shapes.get(&oid) != Some(&chunk.fingerprint) {
            // Newer than what the stream has shown: to a chunk that was read before this one it is the stream that moved on.
            self.windows.relation(oid);
            self.shapes.insert(oid, chunk.fingerprint);
        }
        Ok(Known::new(relation, topic, None))
    }

    /// The load that a chunk was read for, and what it has done of the table, if it is not over, and nobody else was told
    /// meanwhile to read the same.
    fn load_of<'c>(&self, chunk: &'c Chunk, oid: u32) -> Option<(&'c str, &LoadTable)> {
        let load = chunk.load.as_deref()?;
        if self.rounds.get(load).copied().unwrap_or_default() != chunk.round {
            return None;
        }
        Some((load, self.state.load_table(load, oid)?))
    }

    /// A load could not go on with a table: whoever asks how far it is reads that from the state.
    pub fn hindered(&mut self, load: &str, oid: u32, hindrance: Hindrance) {
        let Some(table) = self.state.load_table(load, oid) else { return };
        if table.hindered.as_ref() != Some(&hindrance) {
            let table = LoadTable { hindered: Some(hindrance), ..table.clone() };
            self.state.set_load_table(load, oid, Some(table));
            self.urgency = self.urgency.max(Urgency::Idle);
        }
    }

    /// Whether a chunk's range means nothing any more, since another reader has found the table told into ranges otherwise.
    fn is_stale(&self, chunk: &Chunk, oid: u32) -> bool {
        let done = self.load_of(chunk, oid);
        matches!(chunk.part, Part::Range(_))
            && done.is_some_and(|(_, done)| range::fit(done, chunk.ranges_of.as_ref()) == Fit::Stale)
    }

    /// These rows were read again, at a marker: only what this session has read of them since is in doubt still.
    fn forget_moved(&mut self, oid: u32, keys: &[String]) {
        for key in keys {
            if !self.unproven.iter().any(|read| read.oid == oid && read.key == *key) {
                self.state.settle_moved(oid, key, Lsn(u64::MAX));
            }
        }
    }

    fn publish_row(&mut self, at: At<'_>, cells: &[Cell<'_>], outbox: &mut dyn Outbox) -> Result<(), Error> {
        let change = Change {
            operation: Operation::Read,
            position: at.position,
            transaction: at.transaction.of,
            origin: Origin::Load,
            before: Before::None,
            after: Some(cells),
            moved: None,
            reselected: &[],
            now_ms: self.now_ms,
        };
        self.publish(at, &change, cells, outbox)
    }

    /// Records the chunk's range as done; with the last one the load of the table ends, at `end`.
    fn settle_range(
        &mut self,
        (load, oid): (&str, u32),
        (range, of, rows): (&Range, Option<&RangesOf>, u64),
        end: Position,
        transaction: &Transaction,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        // Over meanwhile, as when the schema event in front of the chunk began another one.
        let Some(mut table) = self.state.load_table(load, oid).cloned() else { return Ok(()) };
        table.rows += rows;
        table.hindered = None;
        range::settle(&mut table, range.clone(), of);
        if !range::is_all(&table.done) {
            self.state.set_load_table(load, oid, Some(table));
            return Ok(());
        }
        let control =
            Control::LoadEnd { load: load.to_owned(), rows: table.rows, tables: vec![self.control_table(oid)?] };
        self.control(&control, end, transaction.of, outbox)?;
        self.state.end_load_table(load, oid);
        self.read.remove(&oid);
        Ok(())
    }
}
