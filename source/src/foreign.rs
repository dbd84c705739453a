//! What must hold for any bytes that others wrote: the checks that the fuzz targets run, and an ordinary test over the
//! inputs that were worth keeping.
//!
//! Compiled for tests, and by the workspace in `fuzz/`, which takes this file and the pure modules that it speaks of one by
//! one: so they must go on importing nothing but each other and `schemas`.

use std::collections::HashSet;

use schemas::event::Columns;
use schemas::key::Canonical;
use schemas::state::Key;
use schemas::write::{Before, Cell, Change, Origin, Template, TemplateColumn, Transaction};
use schemas::{ChangeEvent, Form, Lsn, Operation, Position, TableName};

use crate::pgoutput::{self, Message, Old};
use crate::state::State;
use crate::visibility::Snapshot;
use crate::window::Rows;

/// A check by the name of its fuzz target.
pub type Check = (&'static str, fn(&[u8]));

/// All of them.
pub const CHECKS: [Check; 6] = [
    ("pgoutput", pgoutput),
    ("copy", copy),
    ("visibility", visibility),
    ("event", event),
    ("json", json),
    ("state", state),
];

/// A message of the stream is refused, or it says what its bytes say, and takes no more memory than they allow.
pub fn pgoutput(bytes: &[u8]) {
    let Ok(message) = pgoutput::decode(bytes) else { return };
    let held = |cells: &Vec<Cell<'_>>| assert!(cells.capacity() <= bytes.len(), "{} cells", cells.capacity());
    match &message {
        Message::Insert { new, .. } => held(new),
        Message::Update { old, new, .. } => old.cells().into_iter().chain([new]).for_each(held),
        Message::Delete { old, .. } => old.cells().into_iter().for_each(held),
        _ => {}
    }
    let again = encode(&message);
    if matches!(message, Message::Insert { .. } | Message::Update { .. } | Message::Delete { .. }) {
        assert_eq!(again, bytes, "a row was read as something else");
    }
    assert_eq!(pgoutput::decode(&again).expect("what was read can be said again"), message);
}

/// The message's bytes, as the server writes them.
pub fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        Message::Begin { commit, time, xid } => {
            out.push(b'B');
            out.extend(commit.0.to_be_bytes());
            out.extend(time.to_be_bytes());
            out.extend(xid.to_be_bytes());
        }
        Message::Commit { commit, end } => {
            out.extend(b"C\0");
            [commit.0, end.0, 0].iter().for_each(|number| out.extend(number.to_be_bytes()));
        }
        Message::Origin => out.extend(b"O\0\0\0\0\0\0\0\0\0"),
        Message::Relation(relation) => {
            out.push(b'R');
            out.extend(relation.oid.to_be_bytes());
            [&relation.schema, &relation.table].iter().for_each(|name| string(name, &mut out));
            out.push(relation.identity as u8);
            out.extend((relation.columns.len() as u16).to_be_bytes());
            for column in &relation.columns {
                out.push(u8::from(column.identity));
                string(&column.name, &mut out);
                out.extend(column.type_oid.to_be_bytes());
                out.extend(column.modifier.to_be_bytes());
            }
        }
        Message::Type => out.extend(b"Y\0\0\0\0\0\0"),
        Message::Insert { oid, new } => {
            row(b'I', *oid, &mut out);
            tuple(b'N', new, &mut out);
        }
        Message::Update { oid, old, new } => {
            row(b'U', *oid, &mut out);
            old_tuple(old, &mut out);
            tuple(b'N', new, &mut out);
        }
        Message::Delete { oid, old } => {
            row(b'D', *oid, &mut out);
            old_tuple(old, &mut out);
        }
        Message::Truncate { oids, cascade, restart_identity } => {
            out.push(b'T');
            out.extend((oids.len() as u32).to_be_bytes());
            out.push(u8::from(*cascade) | u8::from(*restart_identity) << 1);
            oids.iter().for_each(|oid| out.extend(oid.to_be_bytes()));
        }
        Message::Logical { transactional, lsn, prefix, content } => {
            out.extend([b'M', u8::from(*transactional)]);
            out.extend(lsn.0.to_be_bytes());
            string(prefix, &mut out);
            out.extend((content.len() as u32).to_be_bytes());
            out.extend_from_slice(content);
        }
    }
    out
}

fn string(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

fn row(kind: u8, oid: u32, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend(oid.to_be_bytes());
}

fn old_tuple(old: &Old<'_>, out: &mut Vec<u8>) {
    match old {
        Old::None => {}
        Old::Key(cells) => tuple(b'K', cells, out),
        Old::Row(cells) => tuple(b'O', cells, out),
    }
}

fn tuple(kind: u8, cells: &[Cell<'_>], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend((cells.len() as u16).to_be_bytes());
    for cell in cells {
        match cell {
            Cell::Null => out.push(b'n'),
            Cell::Unchanged => out.push(b'u'),
            Cell::Text(text) => {
                out.push(b't');
                out.extend((text.len() as u32).to_be_bytes());
                out.extend_from_slice(text);
            }
        }
    }
}

/// A line of COPY is refused, or its cells come back when they are written as COPY writes them. The first byte says how
/// many columns there should be.
pub fn copy(bytes: &[u8]) {
    let Some((columns, line)) = bytes.split_first() else { return };
    let columns = usize::from(*columns);
    let read = |line: &[u8]| {
        let mut rows = Rows::new(columns);
        crate::copy::add_line(line, columns, &mut rows, &mut Vec::new(), None).map(|()| rows)
    };
    let Some(rows) = read(line) else { return };
    assert_eq!(rows.len(), usize::from(columns > 0), "one line is one row");
    if columns == 0 {
        return;
    }
    let again = read(&copied(&rows.row(0))).expect("what was read can be said again");
    assert_eq!(again.row(0), rows.row(0));
}

/// A row as COPY writes it.
fn copied(cells: &[Cell<'_>]) -> Vec<u8> {
    let mut line = Vec::new();
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            line.push(b'\t');
        }
        let Cell::Text(text) = cell else {
            line.extend_from_slice(b"\\N");
            continue;
        };
        for byte in *text {
            match byte {
                8 => line.extend_from_slice(b"\\b"),
                9 => line.extend_from_slice(b"\\t"),
                10 => line.extend_from_slice(b"\\n"),
                11 => line.extend_from_slice(b"\\v"),
                12 => line.extend_from_slice(b"\\f"),
                13 => line.extend_from_slice(b"\\r"),
                b'\\' => line.extend_from_slice(b"\\\\"),
                other => line.push(*other),
            }
        }
    }
    line.push(b'\n');
    line
}

/// A snapshot's text is refused, or it answers any question about any transaction, and sees what it sees.
pub fn visibility(bytes: &[u8]) {
    let Ok(snapshot) = std::str::from_utf8(bytes).unwrap_or_default().parse::<Snapshot>() else { return };
    assert!(snapshot.covers(&snapshot));
    for xid in [0, 1, 3, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX] {
        let _ = snapshot.sees(xid);
    }
    let empty: Snapshot = "1:1:".parse().expect("a snapshot that sees nothing");
    let _ = (empty.covers(&snapshot), snapshot.covers(&empty));
}

/// An event made of these bytes reads back as what was written. Bytes are cells, parted by `\0`; the first byte of each
/// says what it is.
pub fn event(bytes: &[u8]) {
    const FORMS: [(u32, &str); 4] = [(16, "t"), (20, "-9223372036854775808"), (701, "-Infinity"), (25, "")];
    // What the server sends is UTF-8: it is asked for that, and no other encoding is accepted.
    let parts: Vec<&str> =
        bytes.split(|byte| *byte == 0).take(64).filter_map(|part| std::str::from_utf8(part).ok()).collect();
    let (mut columns, mut cells, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    for part in &parts {
        let kind = part.bytes().next().unwrap_or(b'n');
        let (oid, fixed) = FORMS[usize::from(kind >> 4 & 3)];
        let (name, text) = part.split_at(part.char_indices().nth(4).map_or(part.len(), |(at, _)| at));
        if !names.insert(name) {
            continue;
        }
        cells.push(match kind % 7 {
            0 => Cell::Null,
            1 => Cell::Unchanged,
            _ if oid == 25 => Cell::Text(text.as_bytes()),
            _ => Cell::Text(fixed.as_bytes()),
        });
        columns.push(TemplateColumn {
            name: name.to_owned(),
            form: Form::of_type(oid),
            key: kind % 5 == 0,
            canonical: Canonical::of_type(oid),
        });
    }
    let template = Template::new("shop", "shop", &TableName::new("public", "users"), columns);
    let change = Change {
        operation: Operation::Update,
        position: Position { commit: Lsn(1), change: Lsn(u64::MAX >> 1), n: 1 },
        transaction: Transaction { xid: u32::MAX, commit_ms: i64::MIN },
        origin: Origin::Stream,
        before: Before::Row(&cells),
        after: Some(&cells),
        moved: Some(&cells),
        reselected: &[],
        now_ms: i64::MAX,
    };
    let (mut value, mut key) = (Vec::new(), Vec::new());
    template.value(&change, &mut value);
    template.key(&cells, &mut key);
    let event = ChangeEvent::decode(&value).expect("written by us");
    let after = event.after.expect("an update has a row");
    assert_eq!(event.before.as_ref(), Some(&after));
    let key = Columns::decode(&key).expect("written by us");
    for (column, cell) in template.columns().iter().zip(&cells) {
        let expected = match cell {
            Cell::Unchanged => None,
            Cell::Null => Some(None),
            Cell::Text(text) => Some(Some(std::str::from_utf8(text).expect("chosen so"))),
        };
        assert_eq!(after.get(&column.name), expected);
        assert_eq!(event.unchanged.iter().any(|name| *name == column.name), expected.is_none());
        if let (true, Some(Some(text))) = (column.key, expected) {
            assert_eq!(key.get(&column.name), Some(Some(text)));
        }
    }
}

/// A record that anybody could have written into a topic is refused or read, whatever it is.
pub fn json(bytes: &[u8]) {
    let _ = Columns::decode(bytes);
    let _ = ChangeEvent::decode(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(position) = text.parse::<Position>() {
            assert_eq!(position.to_string().parse::<Position>().ok(), Some(position));
        }
        if let Ok(table) = text.parse::<TableName>() {
            assert_eq!(table.to_string().parse::<TableName>().ok(), Some(table));
        }
    }
}

/// Records of the state topic are refused, or the state that they make is written and read back the same. Bytes are lines,
/// key and value parted by a tab; without a tab it is a tombstone.
pub fn state(bytes: &[u8]) {
    let records = bytes.split(|byte| *byte == b'\n').map(|line| match line.iter().position(|byte| *byte == b'\t') {
        Some(tab) => (line[..tab].to_vec(), Some(line[tab + 1..].to_vec())),
        None => (line.to_vec(), None),
    });
    let Ok(Some(mut state)) = State::read(records) else { return };
    let tables: Vec<_> = state.tables().map(|(oid, table)| (oid, table.clone())).collect();
    let loads: Vec<_> = state.loads().map(|(id, load)| (id.to_owned(), load.clone())).collect();
    tables.iter().for_each(|(oid, table)| state.set_table(*oid, table.clone()));
    loads.iter().for_each(|(id, load)| state.set_load(id, load.clone()));
    let records = state.take_records();
    records.iter().for_each(|(key, _)| {
        assert_eq!(key.parse::<Key>().expect("written by us").to_string(), *key);
    });
    let again = State::read(records.into_iter().map(|(key, value)| (key.into_bytes(), value)));
    let again = again.expect("written by us").expect("the stream's record is always among them");
    assert_eq!(again.stream, state.stream);
    assert!(again.tables().eq(tables.iter().map(|(oid, table)| (*oid, table))));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// What fuzzing found, and what it reached the farthest places by.
    #[test]
    fn every_kept_input_keeps_its_promise() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
        for (name, check) in CHECKS {
            let folder = seeds.join(name);
            let entries = folder.read_dir().unwrap_or_else(|cause| panic!("{}: {cause}", folder.display()));
            let files: Vec<_> = entries.map(|entry| entry.expect("a folder that can be read").path()).collect();
            assert!(!files.is_empty(), "{} is empty", folder.display());
            for file in files {
                let bytes = std::fs::read(&file).expect("a file that can be read");
                println!("{}", file.display());
                check(&bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_keep_their_promise(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            CHECKS.iter().for_each(|(_, check)| check(&bytes));
        }
    }
}
