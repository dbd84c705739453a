//! Many changes of one table become one per key: columns laid over each other, a delete wiping what stood before it.
//!
//!     c, full u, r   all columns                         Full
//!     partial u      only what was sent, over either     Full stays Full, Partial stays Partial
//!     d              wipes; what comes after stands on nothing
//!     d, moved_to    wipes only if the other key is another one for the target too
//!
//! Pure. Applying the result is the same as applying the changes one by one; a property test holds it to that.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use schemas::{ChangeEvent, Columns, Operation};

use crate::shape::{Misfit, Shape};

/// A column's value: not sent, NULL, or text.
pub(crate) type Cell<'a> = Option<Option<Cow<'a, str>>>;

/// The changes of one table, folded.
#[derive(Debug)]
pub(crate) struct Fold<'a> {
    pub(crate) shape: Arc<Shape>,
    keys: HashMap<Cow<'a, [u8]>, usize>,
    rows: Vec<Row<'a>>,
    /// The cells of all rows, one row after the other.
    cells: Vec<Cell<'a>>,
    changes: usize,
}

/// What became of one key.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) wipe: Wipe<'a>,
    pub(crate) state: State,
    /// The number of its last change: rows are applied in this order, so that values handed over are free again.
    last: usize,
}

/// Whether the row as it stood goes first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wipe<'a> {
    /// It stays, if it is there.
    No,
    /// It goes if one of these keys is another one: the row moved there.
    IfOther(Vec<Vec<Cell<'a>>>),
    /// It goes.
    Yes,
}

/// What is known of the row as it shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is to be there, or nothing more than there is.
    Nothing,
    /// Some columns: the row must be there.
    Partial,
    /// All that the source has.
    Full,
}

impl<'a> Fold<'a> {
    pub(crate) fn new(shape: Arc<Shape>) -> Fold<'a> {
        Fold { shape, keys: HashMap::new(), rows: Vec::new(), cells: Vec::new(), changes: 0 }
    }

    /// Lays one change over what is there. `canonical` is the record's key as [`Shape::canonical`] has it.
    pub(crate) fn add(&mut self, canonical: Cow<'a, [u8]>, key: &'a [u8], event: ChangeEvent<'a>) -> Result<(), Error> {
        let stays = event.moved_to.as_ref().is_some_and(|other| self.shape.is_equal(&canonical, other));
        let (index, width) = (self.row(canonical), self.shape.columns.len());
        let cells = &mut self.cells[index * width..(index + 1) * width];
        let row = &mut self.rows[index];
        self.changes += 1;
        row.last = self.changes;
        match event.operation {
            // To an equal key the row does not go away: what was laid over it still counts.
            Operation::Delete if stays => {}
            Operation::Delete => {
                cells.fill(None);
                row.state = State::Nothing;
                row.wipe.after(event.moved_to.map(|other| key_cells(&self.shape, other)).transpose()?);
                let before = Columns::decode(key).map_err(Error::Key)?;
                lay(&self.shape, cells, before)?;
            }
            Operation::Create | Operation::Update | Operation::Read => {
                let whole = event.unchanged.is_empty();
                lay(&self.shape, cells, event.after.ok_or(Error::NoRow)?)?;
                if !whole && self.shape.key.iter().any(|(index, _)| cells[*index].is_none()) {
                    lay(&self.shape, cells, Columns::decode(key).map_err(Error::Key)?)?;
                }
                row.state = match row.state {
                    State::Full => State::Full,
                    _ if whole => State::Full,
                    State::Nothing | State::Partial => State::Partial,
                };
            }
            Operation::Truncate | Operation::Message => return Err(Error::NotARow),
        }
        Ok(())
    }

    fn row(&mut self, canonical: Cow<'a, [u8]>) -> usize {
        *self.keys.entry(canonical).or_insert_with(|| {
            self.rows.push(Row { wipe: Wipe::No, state: State::Nothing, last: 0 });
            self.cells.resize(self.rows.len() * self.shape.columns.len(), None);
            self.rows.len() - 1
        })
    }

    /// What became of each key, in the order of their last changes: the row and its cells.
    pub(crate) fn rows(&self) -> Vec<(&Row<'a>, &[Cell<'a>])> {
        let width = self.shape.columns.len();
        let cells = |index: usize| &self.cells[index * width..(index + 1) * width];
        let mut rows: Vec<_> = self.rows.iter().enumerate().map(|(index, row)| (row, cells(index))).collect();
        rows.sort_unstable_by_key(|(row, _)| row.last);
        rows
    }
}

impl<'a> Wipe<'a> {
    fn after(&mut self, moved_to: Option<Vec<Cell<'a>>>) {
        match (moved_to, &mut *self) {
            (None, _) => *self = Wipe::Yes,
            (Some(_), Wipe::Yes) => {}
            (Some(other), Wipe::IfOther(others)) => others.push(other),
            (Some(other), Wipe::No) => *self = Wipe::IfOther(vec![other]),
        }
    }
}

/// The cells of a key alone, in the order of the shape's key.
fn key_cells<'a>(shape: &Shape, key: Columns<'a>) -> Result<Vec<Cell<'a>>, Error> {
    let mut cells = vec![None; shape.columns.len()];
    lay(shape, &mut cells, key)?;
    Ok(shape.key.iter().map(|(index, _)| cells[*index].take()).collect())
}

fn lay<'a>(shape: &Shape, cells: &mut [Cell<'a>], columns: Columns<'a>) -> Result<(), Error> {
    let mut guess = 0;
    for (name, value) in columns.0 {
        let index = shape.column(&name, guess).ok_or_else(|| Error::Misfit(shape.without(&name)))?;
        cells[index] = Some(value);
        guess = index + 1;
    }
    Ok(())
}

/// Why a change cannot be folded: it is not what the contract says, or the target lacks a column.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The record's key is no JSON object.
    #[error("its key is no object of columns")]
    Key(#[source] serde_json::Error),
    /// A change that must bring a row has none.
    #[error("it brings no row in \"after\"")]
    NoRow,
    /// A row's change without a key.
    #[error("it is a row's change without a key")]
    NoKey,
    /// The header "control" on something that is none.
    #[error("it has the header \"control\" and says nothing in \"control\"")]
    NoControl,
    /// A control event without its header.
    #[error("it is a control event without the header \"control\"")]
    NotARow,
    /// The target lacks a column.
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::shape::Table;
    use crate::shape::tests::{shape, table};

    /// A table in memory: key → the two other columns.
    type World = BTreeMap<String, [Option<String>; 2]>;

    fn three() -> Table {
        table(&[("id", "bigint", 20), ("a", "text", 25), ("b", "text", 25)], 1)
    }

    /// What the statements do with a fold, as they stand in `statement`: deletes, updates of rows that are there, upserts.
    fn apply(fold: &Fold<'_>, world: &mut World) {
        let text = |cell: &Cell<'_>| cell.clone().flatten().map(Cow::into_owned);
        let id = |cells: &[Cell<'_>]| text(&cells[0]).expect("every row has its key");
        for (row, cells) in fold.rows() {
            let other = |others: &Vec<Vec<Cell<'_>>>| others.iter().any(|other| text(&other[0]) != text(&cells[0]));
            let wiped = match &row.wipe {
                Wipe::No => false,
                Wipe::IfOther(others) => other(others),
                Wipe::Yes => true,
            };
            if wiped {
                world.remove(&id(cells));
            }
        }
        for (row, cells) in fold.rows() {
            match row.state {
                State::Nothing => {}
                State::Full => {
                    world.insert(id(cells), [text(&cells[1]), text(&cells[2])]);
                }
                State::Partial => {
                    if let Some(there) = world.get_mut(&id(cells)) {
                        for (column, cell) in there.iter_mut().zip(&cells[1..]) {
                            if cell.is_some() {
                                *column = text(cell);
                            }
                        }
                    }
                }
            }
        }
    }

    const SOURCE: &str = r#""source":{"connector":"tributary","name":"s","db":"s","schema":"shop","table":"t","lsn":1,"txId":1,"ts_ms":1,"snapshot":"false","sequence":"[]"},"ts_ms":1}"#;

    /// One change of key `id` as the source would write it: which of create, update, partial update, delete and move.
    fn event(id: u8, what: u8, a: u8) -> (String, String) {
        let key = format!(r#"{{"id":{id}}}"#);
        let row = match what {
            0 | 1 => {
                format!(r#"{{"op":"{}","after":{{"id":{id},"a":"{a}","b":null}}"#, if what == 0 { 'c' } else { 'u' })
            }
            2 => format!(r#"{{"op":"u","after":{{"id":{id},"a":"{a}"}},"unchanged":["b"]"#),
            3 => format!(r#"{{"op":"d","before":{key}"#),
            _ => format!(r#"{{"op":"d","before":{key},"moved_to":{{"id":{}}}"#, id / 2 * 2),
        };
        (key, format!("{row},{SOURCE}"))
    }

    fn fold<'a>(shape: &Arc<Shape>, events: &'a [(String, String)]) -> Fold<'a> {
        let mut fold = Fold::new(shape.clone());
        for (key, value) in events {
            let event = ChangeEvent::decode(value.as_bytes()).expect("a valid event");
            fold.add(Cow::Borrowed(key.as_bytes()), key.as_bytes(), event).expect("a change that fits");
        }
        fold
    }

    proptest! {
        /// A source never updates a row that is not there, so neither does the plan: such changes become creates.
        #[test]
        fn folding_is_applying_one_by_one(plan in prop::collection::vec((0u8..4, 0u8..5, 0u8..9), 0..40), there in prop::collection::btree_set(0u8..4, 0..4)) {
            let shape = Arc::new(shape(&three()));
            let mut one_by_one: World = there.iter().map(|id| (id.to_string(), [Some("x".into()), Some("y".into())])).collect();
            let mut folded = one_by_one.clone();
            let mut events = Vec::new();
            for (id, what, a) in plan {
                let what = if matches!(what, 1 | 2) && !one_by_one.contains_key(&id.to_string()) { 0 } else { what };
                let one = vec![event(id, what, a)];
                apply(&fold(&shape, &one), &mut one_by_one);
                events.extend(one);
                // A move to the very same key is followed by its create, always.
                if what == 4 && id % 2 == 0 {
                    let one = vec![event(id, 0, a)];
                    apply(&fold(&shape, &one), &mut one_by_one);
                    events.extend(one);
                }
            }
            apply(&fold(&shape, &events), &mut folded);
            prop_assert_eq!(folded, one_by_one);
        }
    }

    #[test]
    fn a_column_that_the_target_lacks_is_told() {
        let shape = shape(&table(&[("id", "bigint", 20)], 1));
        let (key, value) = event(1, 0, 1);
        let event = ChangeEvent::decode(value.as_bytes()).expect("a valid event");
        let refused = Fold::new(Arc::new(shape)).add(Cow::Borrowed(key.as_bytes()), key.as_bytes(), event);
        assert!(matches!(refused, Err(Error::Misfit(Misfit::NoColumns { .. }))));
    }
}
