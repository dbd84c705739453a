//! Rows of the stream: from what pgoutput says of a change to the records that stand for it.

use std::fmt::Write;
use std::sync::Arc;

use schemas::write::{Before, Cell, Change, Origin};
use schemas::{Lsn, Operation, Position, header, partition};

use super::{Buffers, Feed, Known, Outbox, Record, Reselect, Reselected, Taken, Transaction, Unproven};
use crate::Error;
use crate::columns::{Cut, Masked};
use crate::pgoutput::Old;
use crate::relation::Relation;
use crate::window::{Image, Key, Kind};

/// A buffer that grew beyond this is not used again.
const BUFFER_KEPT_MAX: usize = 1 << 20;

/// A change of one row.
#[derive(Debug)]
pub(super) enum Row<'a> {
    Insert(Vec<Cell<'a>>),
    Update(Old<'a>, Vec<Cell<'a>>),
    Delete(Old<'a>),
}

/// One change under way: of which relation, in which transaction, and where it stands.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) known: &'a Known,
    pub(super) transaction: &'a Transaction,
    pub(super) position: Position,
    /// The load whose list of keys this answers.
    pub(super) answer: Option<&'a str>,
}

impl At<'_> {
    /// Without its whole key a row cannot be placed.
    pub(super) fn complete(&self, cells: &[Cell<'_>]) -> Result<(), Error> {
        let relation = &self.known.relation;
        if relation.knows_key(cells) {
            return Ok(());
        }
        let (table, at) = (relation.name.clone(), self.position.change);
        match relation.null_in_key(cells) {
            Some(column) => Err(Error::NullKey { table, column: column.to_owned(), at }),
            None => Err(Error::IncompleteRow { table, at }),
        }
    }
}

impl<'a> Row<'a> {
    /// How many cells each of its tuples has.
    fn widths(&self) -> impl Iterator<Item = usize> {
        let (old, new) = match self {
            Row::Insert(new) => (None, Some(new)),
            Row::Update(old, new) => (old.cells(), Some(new)),
            Row::Delete(old) => (old.cells(), None),
        };
        old.into_iter().chain(new).map(Vec::len)
    }

    /// Takes from the old tuple what it has and the new one calls unchanged.
    fn complete(&mut self, relation: &Relation) {
        match self {
            // An unchanged key that is stored out of line comes as old key, and the new row calls it unchanged.
            Row::Update(Old::Key(old), new) => relation.key.iter().for_each(|i| fill(&mut new[*i], old[*i])),
            Row::Update(Old::Row(old), new) => new.iter_mut().zip(old).for_each(|(new, old)| fill(new, *old)),
            Row::Update(Old::None, _) | Row::Insert(_) | Row::Delete(_) => {}
        }
    }

    /// What stands in place of masked values: of the old row and of the new one.
    fn masked(&self, cut: &Cut) -> [Masked; 2] {
        let (old, new) = match self {
            Row::Insert(new) => (None, Some(new)),
            Row::Update(old, new) => (old.cells(), Some(new)),
            Row::Delete(old) => (old.cells(), None),
        };
        let of = |cells: Option<&Vec<Cell<'_>>>| cells.map(|cells| cut.masked(cells)).unwrap_or_default();
        [of(old), of(new)]
    }

    /// The row without what its table's rule hides.
    fn cut<'c>(self, cut: &Cut, [of_old, of_new]: &'c [Masked; 2]) -> Row<'c>
    where
        'a: 'c,
    {
        let old = |old: Old<'a>| match old {
            Old::None => Old::None,
            Old::Key(cells) => Old::Key(cut.cells(&cells, of_old)),
            Old::Row(cells) => Old::Row(cut.cells(&cells, of_old)),
        };
        match self {
            Row::Insert(new) => Row::Insert(cut.cells(&new, of_new)),
            Row::Update(before, new) => Row::Update(old(before), cut.cells(&new, of_new)),
            Row::Delete(before) => Row::Delete(old(before)),
        }
    }

    /// Whether it cannot be named before or after the change.
    fn has_null_key(&self, relation: &Relation) -> bool {
        let (old, new) = match self {
            Row::Insert(new) => (None, Some(new)),
            Row::Update(Old::Row(old), new) => (Some(old), Some(new)),
            // A tuple that is a key alone has none of the others' values.
            Row::Update(Old::Key(_) | Old::None, new) => (None, Some(new)),
            Row::Delete(old) => (old.cells(), None),
        };
        old.into_iter().chain(new).any(|cells| relation.null_in_key(cells).is_some())
    }

    /// The old row, where an update changed the key. The old key alone proves nothing: only different text is another key.
    fn moved_from(&self, relation: &Relation) -> Option<&[Cell<'a>]> {
        match self {
            Row::Update(Old::Key(old) | Old::Row(old), new) if relation.key_differs(old, new) => Some(old),
            _ => None,
        }
    }

    /// The new row, where there was none under its key.
    fn arriving(&self, relation: &Relation) -> Option<&[Cell<'a>]> {
        match self {
            Row::Insert(new) => Some(new),
            Row::Update(_, new) => self.moved_from(relation).map(|_| new.as_slice()),
            Row::Delete(_) => None,
        }
    }
}

/// What was read of an arriving row because the stream did not carry it: columns and their values.
#[derive(Debug, Default)]
struct Selected {
    columns: Vec<usize>,
    values: Vec<Option<Vec<u8>>>,
    /// The end of the WAL then, where anything was read.
    upto: Option<Lsn>,
    /// It could not be read under the names that its columns had.
    is_renamed: bool,
}

impl Feed {
    pub(super) fn row(&mut self, oid: u32, start: Lsn, row: Row<'_>, outbox: &mut dyn Outbox) -> Result<Taken, Error> {
        if self.state.table(oid).is_none() {
            return Ok(Taken::Whole);
        }
        let known = Arc::clone(self.relations.get(&oid).ok_or(Error::RowBeforeRelation { oid, at: start })?);
        let relation = &known.relation;
        let transaction = self.acting(start)?;
        let counted = self.last;
        let position = self.place(transaction.sent.0, start);
        if row.widths().any(|width| width != known.width()) {
            return Err(Error::IncompleteRow { table: relation.name.clone(), at: start });
        }
        let masked = known.cut.as_ref().map(|cut| row.masked(cut)).unwrap_or_default();
        let mut row = match &known.cut {
            None => row,
            Some(cut) => row.cut(cut, &masked),
        };
        let at = At { known: &known, transaction: &transaction, position, answer: None };
        row.complete(relation);
        if self.pending.is_leaving(oid) && row.has_null_key(relation) {
            self.pass_over(relation);
            return Ok(Taken::Whole);
        }
        // Before anything of this message is done, since it may have to come again.
        let selected = match row.arriving(relation) {
            Some(new) => self.select(at, new)?,
            None => Some(Selected::default()),
        };
        let Some(selected) = selected else {
            self.last = counted;
            return Ok(Taken::NotYet);
        };
        let moved_from = row.moved_from(relation);
        match &row {
            Row::Insert(new) => self.create(at, new, None, &selected, outbox)?,
            Row::Delete(Old::None) => return Err(Error::NoOldKey { table: relation.name.clone(), at: start }),
            Row::Delete(Old::Key(old)) => self.delete(at, Before::Key(old), old, outbox)?,
            Row::Delete(Old::Row(old)) => self.delete(at, Before::Row(old), old, outbox)?,
            Row::Update(old, new) => {
                let before = match old {
                    Old::None => Before::Key(new),
                    Old::Key(old) => Before::Key(old),
                    Old::Row(old) => Before::Row(old),
                };
                match moved_from {
                    Some(old) => self.moved(at, before, old, new, &selected, outbox)?,
                    None => self.update(at, before, new, outbox)?,
                }
            }
        }
        Ok(Taken::Whole)
    }

    /// What the stream does not carry of a row that was not there under its key: a moved row keeps its untouched values out
    /// of line, and so does one that an update brought into a row filter. `None`: it cannot be said yet.
    fn select(&mut self, at: At<'_>, new: &[Cell<'_>]) -> Result<Option<Selected>, Error> {
        at.complete(new)?;
        let columns: Vec<usize> = (0..new.len()).filter(|i| new[*i] == Cell::Unchanged).collect();
        if columns.is_empty() || !self.is_new(at.position) {
            return Ok(Some(Selected::default()));
        }
        let wanted = Reselect { relation: &at.known.relation, row: new, columns: &columns, xid: at.transaction.xid() };
        Ok(match self.catalog.reselect(&wanted)? {
            Reselected::Seen { values: Some(mut values), upto } => {
                if let Some(cut) = &at.known.cut {
                    for (column, value) in columns.iter().zip(&mut values) {
                        let masked = value.as_ref().and_then(|value| cut.mask(*column, value));
                        *value = masked.map(String::into_bytes).or(value.take());
                    }
                }
                Some(Selected { columns, values, upto: Some(upto), is_renamed: false })
            }
            Reselected::Seen { values: None, upto } => Some(Selected { upto: Some(upto), ..Selected::default() }),
            Reselected::Renamed { upto } => {
                Some(Selected { upto: Some(upto), is_renamed: true, ..Selected::default() })
            }
            Reselected::NotYet => None,
        })
    }

    fn update(
        &mut self,
        at: At<'_>,
        before: Before<'_>,
        new: &[Cell<'_>],
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        at.complete(new)?;
        let change = self.change(at, Operation::Update, before, Some(new));
        self.publish(at, &change, new, outbox)?;
        if new.contains(&Cell::Unchanged) {
            self.patched(at, new);
        } else {
            self.superseded(at, new, Some(new));
        }
        Ok(())
    }

    fn delete(
        &mut self,
        at: At<'_>,
        before: Before<'_>,
        old: &[Cell<'_>],
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        at.complete(old)?;
        let change = self.change(at, Operation::Delete, before, None);
        self.publish(at, &change, old, outbox)?;
        self.superseded(at, old, None);
        Ok(())
    }

    /// A row that changed its key leaves one partition and comes to another: a delete that names where to, a create that
    /// names where from.
    fn moved(
        &mut self,
        at: At<'_>,
        before: Before<'_>,
        old: &[Cell<'_>],
        new: &[Cell<'_>],
        selected: &Selected,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        at.complete(old)?;
        let mut left = self.change(at, Operation::Delete, before, None);
        left.moved = Some(new);
        self.publish(at, &left, old, outbox)?;
        self.superseded(at, old, None);

        let position = self.place(at.position.commit, at.position.change);
        self.create(At { position, ..at }, new, Some(old), selected, outbox)
    }

    /// A row that was not there under its key.
    fn create(
        &mut self,
        at: At<'_>,
        new: &[Cell<'_>],
        moved_from: Option<&[Cell<'_>]>,
        selected: &Selected,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let mut row = new.to_vec();
        for (column, value) in selected.columns.iter().zip(&selected.values) {
            row[*column] = value.as_deref().map_or(Cell::Null, Cell::Text);
        }
        let mut came = self.change(at, Operation::Create, Before::None, Some(&row));
        came.moved = moved_from;
        came.reselected = &selected.columns;
        self.publish(at, &came, &row, outbox)?;
        // What was read beside the stream may be newer than this place in it, so here it counts as unknown.
        self.superseded(at, new, Some(new));
        if let Some(upto) = selected.upto {
            let mut key = Vec::new();
            at.known.relation.template.key(&row, &mut key);
            let key = String::from_utf8_lossy(&key).into_owned();
            self.state.set_moved(at.known.relation.oid, &key, upto);
            let (oid, is_complete) = (at.known.relation.oid, !selected.is_renamed);
            self.unproven.push_back(Unproven { upto, oid, key, is_complete });
        }
        Ok(())
    }

    fn change<'a>(
        &self,
        at: At<'_>,
        operation: Operation,
        before: Before<'a>,
        after: Option<&'a [Cell<'a>]>,
    ) -> Change<'a> {
        Change {
            operation,
            position: at.position,
            transaction: at.transaction.of,
            origin: Origin::Stream,
            before,
            after,
            moved: None,
            reselected: &[],
            now_ms: self.now_ms,
        }
    }

    /// Sends the record of a change, with its schema event in front where it is the first of its kind, unless it stands in
    /// the topic already.
    pub(super) fn publish(
        &mut self,
        at: At<'_>,
        change: &Change<'_>,
        key_cells: &[Cell<'_>],
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        if !self.is_new(at.position) {
            return Ok(());
        }
        self.announce(at, outbox)?;
        let (known, relation) = (at.known, &at.known.relation);
        let mut buffers = std::mem::take(&mut self.buffers);
        let Buffers { key, canonical, value, .. } = &mut buffers;
        [&mut *key, &mut *canonical, &mut *value].into_iter().for_each(Vec::clear);
        relation.template.key(key_cells, key);
        relation.template.value(change, value);
        if std::str::from_utf8(value).is_err() {
            return Err(not_text(at, change));
        }
        let partitions = self.state.topics()[known.topic].topic.partitions;
        let partition = if relation.single_partition {
            0
        } else {
            relation.template.canonical_key(key_cells, canonical);
            partition::of_key(canonical, partitions)
        };
        let (key, value) = (std::mem::take(&mut buffers.key), std::mem::take(&mut buffers.value));
        self.buffers = buffers;
        let schema = (header::SCHEMA, known.fingerprint.as_bytes());
        let answer = (header::ANSWER, at.answer.unwrap_or_default().as_bytes());
        let headers = [schema, answer];
        let more = if at.answer.is_some() { &headers[..] } else { &headers[..1] };
        let place = (known.topic, partition, at.position);
        let sent = self.send(place, Some(&key), Some(&value), more, outbox);
        sent.map_err(|error| of_row(error, relation, &key))?;
        if change.operation == Operation::Delete && self.has_tombstones(known.topic) {
            self.send(place, Some(&key), None, &[], outbox)?;
        }
        // One huge row must not hold its memory for ever.
        if value.capacity() <= BUFFER_KEPT_MAX {
            (self.buffers.key, self.buffers.value) = (key, value);
        }
        self.acted(at.position, at.transaction);
        Ok(())
    }

    fn has_tombstones(&self, topic: usize) -> bool {
        self.label.tombstones && !self.label.shared.contains(&self.state.topics()[topic].name)
    }

    /// Sends one record at `(topic, partition, position)`, with the next number of its partition.
    pub(super) fn send(
        &mut self,
        (topic, partition, position): (usize, i32, Position),
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        more: &[(&'static str, &[u8])],
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let topic = self.state.topic_mut(topic);
        let seq = topic.next_seq(partition);
        let Buffers { position: at, seq: number, .. } = &mut self.buffers;
        at.clear();
        number.clear();
        write!(at, "{position}").and_then(|()| write!(number, "{seq}")).expect("a string takes every write");
        let none = ("", b"".as_slice());
        let mut headers = [(header::POSITION, at.as_bytes()), (header::SEQ, number.as_bytes()), none, none];
        let count = 2 + more.len();
        headers[2..count].copy_from_slice(more);
        outbox.send(Record { topic: &topic.name, partition, key, value, headers: &headers[..count] })
    }

    /// The row with the key of `cells` is gone, or `new` is all of it.
    fn superseded(&mut self, at: At<'_>, cells: &[Cell<'_>], new: Option<&[Cell<'_>]>) {
        let wants_image = self.windows.watches_list(at.known.relation.oid);
        let image = || match new {
            None => Image::Gone,
            Some(new) if !wants_image || new.contains(&Cell::Unchanged) => Image::Unknown,
            Some(new) => Image::Whole(new.iter().map(|cell| kept(*cell)).collect()),
        };
        self.touch(at, cells, |key| Kind::Superseded(key, image()));
    }

    fn patched(&mut self, at: At<'_>, cells: &[Cell<'_>]) {
        let known = |(_, cell): &(usize, &Cell<'_>)| **cell != Cell::Unchanged;
        let kept = |(i, cell): (usize, &Cell<'_>)| (i, kept(*cell));
        self.touch(at, cells, |key| Kind::Patch(key, cells.iter().enumerate().filter(known).map(kept).collect()));
    }

    fn touch(&mut self, at: At<'_>, cells: &[Cell<'_>], kind: impl FnOnce(Key) -> Kind) {
        let relation = &at.known.relation;
        if !self.windows.watches(relation.oid) {
            return;
        }
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut text = Vec::new();
            write(&mut text);
            Box::<[u8]>::from(text)
        };
        let canonical = || written(&|out| relation.template.canonical_key(cells, out));
        let key = Key {
            text: written(&|out| relation.template.key(cells, out)),
            canonical: self.windows.watches_list(relation.oid).then(canonical),
        };
        self.touched(relation.oid, at.transaction.xid(), kind(key));
    }
}

/// A known cell, to be kept.
fn kept(cell: Cell<'_>) -> Option<Box<[u8]>> {
    match cell {
        Cell::Text(text) => Some(text.into()),
        Cell::Null | Cell::Unchanged => None,
    }
}

/// Names the row that a topic does not take: nobody could find it by its topic alone.
fn of_row(error: Error, relation: &Relation, key: &[u8]) -> Error {
    const KEY_SHOWN_MAX: usize = 200;
    match error {
        Error::Kafka(cause @ kafka::Error::TooLarge { .. }) => Error::RowTooLarge {
            table: relation.name.clone(),
            key: String::from_utf8_lossy(&key[..key.len().min(KEY_SHOWN_MAX)]).into_owned(),
            cause: Box::new(cause),
        },
        other => other,
    }
}

/// The server checks what it takes in, but not where the database has no encoding, and not every type.
fn not_text(at: At<'_>, change: &Change<'_>) -> Error {
    let before = match change.before {
        Before::None => None,
        Before::Key(cells) | Before::Row(cells) => Some(cells),
    };
    let is_bad = |cell: &Cell<'_>| matches!(cell, Cell::Text(text) if std::str::from_utf8(text).is_err());
    let bad = before.into_iter().chain(change.after).find_map(|cells| cells.iter().position(is_bad));
    let relation = &at.known.relation;
    let column = bad.and_then(|i| relation.columns.get(i)).map(|column| column.name.clone()).unwrap_or_default();
    Error::NotText { table: relation.name.clone(), column, at: at.position.change }
}

fn fill<'a>(new: &mut Cell<'a>, old: Cell<'a>) {
    if *new == Cell::Unchanged {
        *new = old;
    }
}
