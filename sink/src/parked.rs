//! Events set aside: which keys stand still, and what is kept of an event of such a key.
//!
//! Pure. A key that has one parked event parks all its later ones, or they would overtake it.

use std::collections::HashMap;
use std::fmt;

use postgres::sqlstate::Severity;
use schemas::TableName;

use crate::record::Record;
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
        Parked { cause, sqlstate, told, ..Parked::behind(record, table, key, class) }
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
            told: None,
        }
    }
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
