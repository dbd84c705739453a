//! What a walsender writes: pgoutput, protocol 1, for the model's two tables.

use schemas::Lsn;
use schemas::write::Cell;

use crate::foreign::encode;
use crate::pgoutput::{Column, Message, Old, Relation};

/// The model's tables: OID, name.
pub(super) const TABLES: [(u32, &str); 2] = [(7, "users"), (8, "orders")];

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
    encode(&Message::Begin { commit: Lsn(commit), time, xid })
}

pub(super) fn commit(commit: u64, end: u64) -> Vec<u8> {
    encode(&Message::Commit { commit: Lsn(commit), end: Lsn(end) })
}

pub(super) fn relation(described: Relation) -> Vec<u8> {
    encode(&Message::Relation(described))
}

fn oid(table: usize) -> u32 {
    TABLES[table].0
}

pub(super) fn insert(table: usize, new: &[Cell<'_>]) -> Vec<u8> {
    encode(&Message::Insert { oid: oid(table), new: new.to_vec() })
}

/// `old` is the key that the row had, where it changed.
pub(super) fn update(table: usize, old: Option<&[Cell<'_>]>, new: &[Cell<'_>]) -> Vec<u8> {
    let old = old.map_or(Old::None, |cells| Old::Key(cells.to_vec()));
    encode(&Message::Update { oid: oid(table), old, new: new.to_vec() })
}

pub(super) fn delete(table: usize, old: &[Cell<'_>]) -> Vec<u8> {
    encode(&Message::Delete { oid: oid(table), old: Old::Key(old.to_vec()) })
}

pub(super) fn truncate(tables: &[usize]) -> Vec<u8> {
    let oids = tables.iter().map(|table| oid(*table)).collect();
    encode(&Message::Truncate { oids, cascade: false, restart_identity: false })
}

pub(super) fn message(lsn: u64, prefix: &str, content: &str) -> Vec<u8> {
    let content = content.as_bytes();
    encode(&Message::Logical { transactional: true, lsn: Lsn(lsn), prefix, content })
}
