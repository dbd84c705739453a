//! Lists of keys that were ordered: at the marker each is answered, with its row as it is there or with the word that there is none.

use schemas::write::{Before, Cell, Change, Origin};
use schemas::{Operation, Position};

use super::row::At;
use super::{Feed, Outbox, Transaction};
use crate::Error;
use crate::relation::Relation;
use crate::window::{Chunk, Listed};

/// A part of a list of keys, read and laid over.
pub(super) struct Answers<'a> {
    pub(super) chunk: &'a Chunk,
    /// The keys as they were ordered.
    pub(super) keys: &'a [String],
    /// Keys that can name no row of the table.
    pub(super) void: &'a [String],
    /// Which of the keys each row of the chunk answers.
    pub(super) rows: &'a [Listed],
    /// Whether the row is there, at the marker.
    pub(super) is_there: &'a [bool],
}

impl Feed {
    /// Publishes what is not answered yet; with the last key of the list its load ends. A key that can name no row of the
    /// table has no answer. Returns how many rows were answered.
    pub(super) fn publish_answers(
        &mut self,
        answers: &Answers<'_>,
        relation: Relation,
        place: Position,
        transaction: &Transaction,
        outbox: &mut dyn Outbox,
    ) -> Result<u64, Error> {
        let oid = relation.oid;
        let Some(load) = answers.chunk.load.clone() else { return Ok(0) };
        // Over, if it was cancelled meanwhile.
        let Some(mut list) = self.state.load_table(&load, oid).cloned() else { return Ok(0) };
        if !self.is_new(place) {
            return Ok(0);
        }
        let known = self.shown(answers.chunk, relation, place)?;
        let mut at = At { known: &known, transaction, position: place, answer: Some(&load) };
        self.announce(at, outbox)?;
        let before = list.rows;
        for (row, Listed { keys, .. }) in answers.rows.iter().enumerate() {
            // What a chunk has answered that was under way while the list was paused is not answered twice.
            if keys.iter().any(|key| list.keys.contains(&answers.keys[*key])) {
                at.position.n += 1;
                list.rows += 1;
                self.publish_answer(at, &answers.chunk.rows.row(row), answers.is_there[row], outbox)?;
            }
        }
        list.keys.retain(|key| !answers.keys.contains(key) && !answers.void.contains(key));
        list.hindered = None;
        let rows = list.rows - before;
        if list.keys.is_empty() {
            self.state.end_load_table(&load, oid);
        } else {
            self.state.set_load_table(&load, oid, Some(list));
        }
        self.acted(at.position, transaction);
        Ok(rows)
    }

    fn publish_answer(
        &mut self,
        at: At<'_>,
        cells: &[Cell<'_>],
        is_there: bool,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let (operation, before, after) = if is_there {
            (Operation::Read, Before::None, Some(cells))
        } else {
            (Operation::Delete, Before::Key(cells), None)
        };
        let change = Change {
            operation,
            position: at.position,
            transaction: at.transaction.of,
            origin: Origin::Keys,
            before,
            after,
            moved: None,
            reselected: &[],
            now_ms: self.now_ms,
        };
        self.publish(at, &change, cells, outbox)
    }
}
