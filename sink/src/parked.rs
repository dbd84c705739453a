//! Events set aside: which keys stand still, and what is kept of an event of such a key.
//!
//! Pure. A key that has one parked event parks all its later ones, or they would overtake it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use postgres::sqlstate::Severity;
use schemas::{TableName, header};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::record::{Record, Segment};
use crate::refused::Refused;

/// What is thought of a parked event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It may still apply, once other events have been.
    Undecided,
    /// It will never apply by itself.
    Dead,
}

impl Class {
    /// The class of a refusal; `None` where it is not the event's fault.
    pub(crate) fn of(refused: &Refused) -> Option<Class> {
        match refused.severity() {
            Severity::Undecided => Some(Class::Undecided),
            Severity::Permanent => Some(Class::Dead),
            Severity::Transient | Severity::Fatal => None,
        }
    }

    /// As it stands in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Undecided => "undecided",
            Class::Dead => "dead",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The keys of one partition that stand still.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParkedKeys(HashMap<TableName, HashMap<Vec<u8>, Class>>);

impl ParkedKeys {
    pub(crate) fn get(&self, table: &TableName, key: &[u8]) -> Option<Class> {
        self.0.get(table)?.get(key).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn remove(&mut self, table: &TableName, key: &[u8]) {
        if let Some(keys) = self.0.get_mut(table) {
            keys.remove(key);
        }
    }

    pub(crate) fn insert(&mut self, table: TableName, key: Vec<u8>, class: Class) {
        self.0.entry(table).or_default().insert(key, class);
    }
}

/// A row of the table of parked events, before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) offset: i64,
    pub(crate) table: TableName,
    pub(crate) key: Vec<u8>,
    pub(crate) position: String,
    pub(crate) class: Class,
    pub(crate) record: String,
    pub(crate) cause: String,
    pub(crate) sqlstate: Option<String>,
    /// How often it was tried: never, where it stands behind another one.
    pub(crate) attempts: i32,
    /// Why, without values of the row: where it is parked for its own sake, not for an earlier event of its key.
    pub(crate) told: Option<String>,
}

impl Parked {
    /// An event that the target refused.
    pub(crate) fn refused(
        record: Record<'_>,
        table: &TableName,
        key: &[u8],
        class: Class,
        refused: &Refused,
    ) -> Parked {
        let (cause, sqlstate, told) = (refused.in_full(), refused.sqlstate(), Some(refused.to_string()));
        Parked { cause, sqlstate, told, attempts: 1, ..Parked::behind(record, table, key, class) }
    }

    /// A later event of a key that stands still.
    pub(crate) fn behind(record: Record<'_>, table: &TableName, key: &[u8], class: Class) -> Parked {
        Parked {
            offset: record.offset,
            table: table.clone(),
            key: key.to_vec(),
            position: record.position.to_string(),
            class,
            record: record.to_json(),
            cause: "an earlier event of this key is parked".to_owned(),
            sqlstate: None,
            attempts: 0,
            told: None,
        }
    }
}

/// A parked record, as [`Record::to_json`] wrote it.
#[derive(Debug, Deserialize)]
pub(crate) struct Kept<'a> {
    #[serde(borrow)]
    pub(crate) key: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) value: Option<&'a RawValue>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Kept<'_> {
    /// Makes a record of it again.
    pub(crate) fn push(&self, offset: i64, segment: &mut Segment) -> Result<(), header::Malformed> {
        let bytes = |raw: &RawValue| raw.get().as_bytes().to_vec();
        let (key, value) = (self.key.map(bytes), self.value.map(bytes));
        let headers = self.headers.iter().map(|(name, text)| (name.as_str(), Some(text.as_bytes())));
        segment.push(offset, key.as_deref(), value.as_deref(), headers)
    }
}

/// The value of an event that says that a row is so: `row` is the object of its columns. It comes from where the event comes from
/// that has this `value`; `None` where that says nothing of it.
pub(crate) fn as_it_stood(value: &[u8], row: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Origin<'a> {
        #[serde(borrow)]
        source: &'a RawValue,
        ts_ms: i64,
    }
    let Origin { source, ts_ms } = serde_json::from_slice(value).ok()?;
    Some(format!(r#"{{"op":"r","after":{row},"source":{},"ts_ms":{ts_ms}}}"#, source.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_still_in_its_own_table_alone() {
        let mut keys = ParkedKeys::default();
        let (users, orders) = (TableName::new("shop", "users"), TableName::new("shop", "orders"));
        keys.insert(users.clone(), b"{\"id\":1}".to_vec(), Class::Dead);
        assert_eq!(keys.get(&users, b"{\"id\":1}"), Some(Class::Dead));
        assert_eq!(keys.get(&users, b"{\"id\":2}"), None);
        assert_eq!(keys.get(&orders, b"{\"id\":1}"), None);
        assert_eq!(Class::of(&Refused::NoRow), Some(Class::Undecided));
    }
}
