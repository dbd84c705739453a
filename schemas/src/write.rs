//! Events, written: straight into bytes, since this is done for every row.
//!
//! What is the same for all rows of a relation is prepared once, in a [`Template`].

use std::io::Write;

use serde::Serialize;

use crate::event::{Control, Operation, Source, sequence};
use crate::key::Canonical;
use crate::value::{self, Form};
use crate::{Position, TableName};

/// One column's value in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// SQL NULL.
    Null,
    /// Stored out of line and not touched by the change: not known.
    Unchanged,
    /// PostgreSQL's text.
    Text(&'a [u8]),
}

/// What a template needs to know of a column.
#[derive(Clone, Debug)]
pub struct TemplateColumn {
    /// Its name.
    pub name: String,
    /// How its values stand in JSON.
    pub form: Form,
    /// Whether it is part of the key.
    pub key: bool,
    /// How its canonical text is found; meaningful for key columns.
    pub canonical: Option<Canonical>,
}

/// Which kind of read an event's row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The stream.
    Stream,
    /// A load.
    Load,
    /// A list of keys that was ordered.
    Keys,
}

/// The transaction that an event belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// Its xid.
    pub xid: u32,
    /// When it committed: milliseconds since 1970.
    pub commit_ms: i64,
}

/// A row's change in the terms of the stream: cells in the relation's order.
#[derive(Debug)]
pub struct Change<'a> {
    /// What happened.
    pub operation: Operation,
    /// Where it stands.
    pub position: Position,
    /// Its transaction.
    pub transaction: Transaction,
    /// Where the row was read.
    pub origin: Origin,
    /// The row before.
    pub before: Before<'a>,
    /// The row after; none on a delete.
    pub after: Option<&'a [Cell<'a>]>,
    /// The other key of a moved row: `moved_to` on a delete, `moved_from` on a create. Cells in the relation's order.
    pub moved: Option<&'a [Cell<'a>]>,
    /// Columns by index that were read after the fact.
    pub reselected: &'a [usize],
    /// When this is published: milliseconds since 1970.
    pub now_ms: i64,
}

/// What is known of the row before.
#[derive(Clone, Copy, Debug)]
pub enum Before<'a> {
    /// Nothing: there was no row, or it does not matter.
    None,
    /// Its key, from cells in the relation's order.
    Key(&'a [Cell<'a>]),
    /// All of it.
    Row(&'a [Cell<'a>]),
}

/// Everything that is the same for all events of one relation.
#[derive(Clone, Debug)]
pub struct Template {
    columns: Vec<TemplateColumn>,
    /// `"name":` of each column.
    prefixes: Vec<Vec<u8>>,
    /// `,"source":{"connector":"tributary",…,"table":"users","lsn":`
    source: Vec<u8>,
}

impl Template {
    /// The template of `table`, for events of the source called `name` in database `db`.
    pub fn new(name: &str, db: &str, table: &TableName, columns: Vec<TemplateColumn>) -> Template {
        let prefix = |column: &TemplateColumn| {
            let mut prefix = Vec::new();
            value::write_string(column.name.as_bytes(), &mut prefix);
            prefix.push(b':');
            prefix
        };
        let mut source = Vec::new();
        for (label, text) in [
            (",\"source\":{\"connector\":\"tributary\",\"name\":", name),
            (",\"db\":", db),
            (",\"schema\":", &table.schema),
            (",\"table\":", &table.table),
        ] {
            source.extend_from_slice(label.as_bytes());
            value::write_string(text.as_bytes(), &mut source);
        }
        source.extend_from_slice(b",\"lsn\":");
        Template { prefixes: columns.iter().map(prefix).collect(), columns, source }
    }

    /// The relation's columns.
    pub fn columns(&self) -> &[TemplateColumn] {
        &self.columns
    }

    /// Appends the key of a row as JSON. The key's cells must be known.
    pub fn key(&self, cells: &[Cell<'_>], out: &mut Vec<u8>) {
        self.write_key(cells, false, out);
    }

    /// Appends the text that the key is routed, folded and parked by.
    pub fn canonical_key(&self, cells: &[Cell<'_>], out: &mut Vec<u8>) {
        self.write_key(cells, true, out);
    }

    /// Appends the value of a record.
    pub fn value(&self, change: &Change<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"op\":\"");
        out.push(letter(change.operation));
        out.extend_from_slice(b"\",\"before\":");
        match change.before {
            Before::None => out.extend_from_slice(b"null"),
            Before::Key(cells) => self.key(cells, out),
            Before::Row(cells) => self.row(cells, out),
        }
        out.extend_from_slice(b",\"after\":");
        match change.after {
            None => out.extend_from_slice(b"null"),
            Some(cells) => {
                self.row(cells, out);
                let unchanged = cells.iter().enumerate().filter(|(_, cell)| **cell == Cell::Unchanged);
                self.names("unchanged", unchanged.map(|(i, _)| i), out);
            }
        }
        self.names("reselected", change.reselected.iter().copied(), out);
        if let Some(cells) = change.moved {
            out.extend_from_slice(if change.after.is_some() { b",\"moved_from\":" } else { b",\"moved_to\":" });
            self.key(cells, out);
        }
        self.write_source(change, out);
        integer(out, b",\"ts_ms\":", change.now_ms);
        out.push(b'}');
    }

    fn write_source(&self, change: &Change<'_>, out: &mut Vec<u8>) {
        let (commit, lsn) = (change.position.commit.0 as i64, change.position.change.0 as i64);
        out.extend_from_slice(&self.source);
        integer(out, b"", lsn);
        integer(out, b",\"txId\":", i64::from(change.transaction.xid));
        integer(out, b",\"ts_ms\":", change.transaction.commit_ms);
        out.extend_from_slice(match change.origin {
            Origin::Stream => b",\"snapshot\":\"false\"".as_slice(),
            Origin::Load => b",\"snapshot\":\"true\"",
            Origin::Keys => b",\"snapshot\":\"incremental\"",
        });
        integer(out, b",\"sequence\":\"[\\\"", commit);
        integer(out, b"\\\",\\\"", lsn);
        out.extend_from_slice(b"\\\"]\"}");
    }

    fn row(&self, cells: &[Cell<'_>], out: &mut Vec<u8>) {
        out.push(b'{');
        let start = out.len();
        for ((column, prefix), cell) in self.columns.iter().zip(&self.prefixes).zip(cells) {
            let text = match cell {
                Cell::Unchanged => continue,
                Cell::Null => None,
                Cell::Text(text) => Some(*text),
            };
            if out.len() > start {
                out.push(b',');
            }
            out.extend_from_slice(prefix);
            match text {
                None => out.extend_from_slice(b"null"),
                Some(text) => column.form.write(text, out),
            }
        }
        out.push(b'}');
    }

    fn write_key(&self, cells: &[Cell<'_>], canonical: bool, out: &mut Vec<u8>) {
        out.push(b'{');
        let start = out.len();
        for ((column, prefix), cell) in self.columns.iter().zip(&self.prefixes).zip(cells) {
            if !column.key {
                continue;
            }
            let Cell::Text(text) = cell else { continue };
            if out.len() > start {
                out.push(b',');
            }
            out.extend_from_slice(prefix);
            match (canonical, column.canonical, std::str::from_utf8(text)) {
                (true, Some(rule), Ok(text)) => column.form.write(rule.text(text).as_bytes(), out),
                _ => column.form.write(text, out),
            }
        }
        out.push(b'}');
    }

    fn names(&self, label: &str, columns: impl Iterator<Item = usize>, out: &mut Vec<u8>) {
        let mut columns = columns.peekable();
        if columns.peek().is_none() {
            return;
        }
        out.extend_from_slice(b",\"");
        out.extend_from_slice(label.as_bytes());
        out.extend_from_slice(b"\":[");
        while let Some(column) = columns.next() {
            value::write_string(self.columns[column].name.as_bytes(), out);
            out.push(if columns.peek().is_some() { b',' } else { b']' });
        }
    }
}

fn letter(operation: Operation) -> u8 {
    match operation {
        Operation::Create => b'c',
        Operation::Update => b'u',
        Operation::Delete => b'd',
        Operation::Read => b'r',
        Operation::Truncate => b't',
        Operation::Message => b'm',
    }
}

fn integer(out: &mut Vec<u8>, label: &[u8], number: i64) {
    out.extend_from_slice(label);
    write!(out, "{number}").expect("a vector takes every write");
}

/// The value of a control event.
#[derive(Debug, Serialize)]
pub struct ControlEvent<'a> {
    /// [`Operation::Truncate`] or [`Operation::Message`].
    pub op: Operation,
    /// Where it comes from.
    pub source: Source<'a>,
    /// What it says.
    pub control: &'a Control,
    /// When it is published: milliseconds since 1970.
    pub ts_ms: i64,
}

impl<'a> ControlEvent<'a> {
    /// The event that says `control` at `position`, of the source called `name` in database `db`.
    pub fn new(
        name: &'a str,
        db: &'a str,
        control: &'a Control,
        position: Position,
        of: Transaction,
        now_ms: i64,
    ) -> Self {
        let (schema, table) = match control.tables() {
            [one] => (one.schema.as_str(), one.table.as_str()),
            _ => ("", ""),
        };
        let source = Source {
            connector: "tributary".into(),
            name: name.into(),
            db: db.into(),
            schema: schema.into(),
            table: table.into(),
            lsn: position.change.0,
            tx_id: of.xid,
            ts_ms: of.commit_ms,
            snapshot: "false".into(),
            sequence: sequence(position.commit, position.change).into(),
        };
        let op = if matches!(control, Control::Truncate { .. }) { Operation::Truncate } else { Operation::Message };
        ControlEvent { op, source, control, ts_ms: now_ms }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("control events are plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChangeEvent, Lsn};

    fn users() -> Template {
        let column = |name: &str, oid, key| TemplateColumn {
            name: name.to_owned(),
            form: Form::of_type(oid),
            key,
            canonical: Canonical::of_type(oid),
        };
        let columns = vec![column("id", 20, true), column("name", 25, false), column("bio", 25, false)];
        Template::new("shop", "shop", &TableName::new("public", "users"), columns)
    }

    fn update<'a>(before: Before<'a>, after: &'a [Cell<'a>]) -> Change<'a> {
        Change {
            operation: Operation::Update,
            position: Position { commit: Lsn(24_023_100), change: Lsn(24_023_128), n: 1 },
            transaction: Transaction { xid: 771, commit_ms: 1_767_960_000_123 },
            origin: Origin::Stream,
            before,
            after: Some(after),
            moved: None,
            reselected: &[],
            now_ms: 1_767_960_000_456,
        }
    }

    #[test]
    fn an_update_stands_as_the_contract_shows_it() {
        let after = [Cell::Text(b"42"), Cell::Text(b"x"), Cell::Unchanged];
        let mut out = Vec::new();
        users().value(&update(Before::Key(&after), &after), &mut out);
        let expected = concat!(
            r#"{"op":"u","before":{"id":42},"after":{"id":42,"name":"x"},"unchanged":["bio"],"#,
            r#""source":{"connector":"tributary","name":"shop","db":"shop","schema":"public","table":"users","#,
            r#""lsn":24023128,"txId":771,"ts_ms":1767960000123,"snapshot":"false","sequence":"[\"24023100\",\"24023128\"]"},"#,
            r#""ts_ms":1767960000456}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
        let event = ChangeEvent::decode(&out).expect("written by us");
        assert_eq!(event.unchanged, ["bio"]);
        assert_eq!(event.after.expect("an update has a row").get("name"), Some(Some("x")));
    }

    #[test]
    fn a_moved_row_names_its_other_key() {
        let (old, new) = ([Cell::Text(b"1"), Cell::Null, Cell::Null], [Cell::Text(b"2"), Cell::Null, Cell::Unchanged]);
        let mut change = update(Before::None, &new);
        change.moved = Some(&old);
        change.reselected = &[1, 2];
        let mut out = Vec::new();
        users().value(&change, &mut out);
        let event = ChangeEvent::decode(&out).expect("written by us");
        assert_eq!(event.moved_from.expect("it moved").get("id"), Some(Some("1")));
        assert_eq!(event.reselected, ["name", "bio"]);
        assert!(event.before.is_none() && event.moved_to.is_none());
    }
}
