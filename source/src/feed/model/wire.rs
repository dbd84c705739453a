//! What a walsender writes: pgoutput, protocol 1, for the model's two tables.

use crate::pgoutput::{Column, Relation};

/// The model's tables: OID, name.
pub(super) const TABLES: [(u32, &str); 2] = [(7, "users"), (8, "orders")];

/// A cell of a tuple as it travels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent<'a> {
    Null,
    Unchanged,
    Text(&'a str),
}

/// A table as its catalog has it after so many ALTER TABLE.
pub(super) fn described(table: usize, version: u32) -> Relation {
    let (oid, name) = TABLES[table];
    let column = |name: &str, type_oid, identity, modifier| Column { identity, name: name.into(), type_oid, modifier };
    let columns = vec![
        column("id", 20, true, -1),
        column("name", 25, false, i32::try_from(version).expect("few alterations")),
        column("bio", 25, false, -1),
    ];
    Relation { oid, schema: "public".into(), table: name.into(), identity: 'd', columns }
}

pub(super) fn begin(commit: u64, xid: u32, time: i64) -> Vec<u8> {
    [b"B".as_slice(), &commit.to_be_bytes(), &time.to_be_bytes(), &xid.to_be_bytes()].concat()
}

pub(super) fn commit(commit: u64, end: u64, time: i64) -> Vec<u8> {
    [b"C\0".as_slice(), &commit.to_be_bytes(), &end.to_be_bytes(), &time.to_be_bytes()].concat()
}

pub(super) fn relation(described: &Relation) -> Vec<u8> {
    let mut out = [b"R".as_slice(), &described.oid.to_be_bytes()].concat();
    for name in [&described.schema, &described.table] {
        out.extend_from_slice(name.as_bytes());
        out.push(0);
    }
    out.push(described.identity as u8);
    out.extend_from_slice(&(described.columns.len() as u16).to_be_bytes());
    for column in &described.columns {
        out.push(u8::from(column.identity));
        out.extend_from_slice(column.name.as_bytes());
        out.push(0);
        out.extend_from_slice(&column.type_oid.to_be_bytes());
        out.extend_from_slice(&column.modifier.to_be_bytes());
    }
    out
}

fn tuple(cells: &[Sent<'_>]) -> Vec<u8> {
    let mut out = (cells.len() as u16).to_be_bytes().to_vec();
    for cell in cells {
        match cell {
            Sent::Null => out.push(b'n'),
            Sent::Unchanged => out.push(b'u'),
            Sent::Text(text) => {
                out.push(b't');
                out.extend_from_slice(&(text.len() as u32).to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    out
}

fn oid(table: usize) -> [u8; 4] {
    TABLES[table].0.to_be_bytes()
}

pub(super) fn insert(table: usize, new: &[Sent<'_>]) -> Vec<u8> {
    [b"I".as_slice(), &oid(table), b"N", &tuple(new)].concat()
}

/// `old` is the key that the row had, where it changed.
pub(super) fn update(table: usize, old: Option<&[Sent<'_>]>, new: &[Sent<'_>]) -> Vec<u8> {
    let old = old.map_or(Vec::new(), |cells| [b"K".as_slice(), &tuple(cells)].concat());
    [b"U".as_slice(), &oid(table), &old, b"N", &tuple(new)].concat()
}

pub(super) fn delete(table: usize, old: &[Sent<'_>]) -> Vec<u8> {
    [b"D".as_slice(), &oid(table), b"K", &tuple(old)].concat()
}

pub(super) fn truncate(tables: &[usize]) -> Vec<u8> {
    let list: Vec<u8> = tables.iter().flat_map(|table| oid(*table)).collect();
    [b"T".as_slice(), &(tables.len() as u32).to_be_bytes(), &[0], &list].concat()
}

pub(super) fn message(lsn: u64, prefix: &str, content: &str) -> Vec<u8> {
    let length = (content.len() as u32).to_be_bytes();
    [b"M\x01".as_slice(), &lsn.to_be_bytes(), prefix.as_bytes(), &[0], &length, content.as_bytes()].concat()
}
