//! A record's value, read: borrowed from the record's bytes wherever JSON allows it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::fingerprint::Fingerprint;
use crate::{Lsn, value};

/// What happened, in Debezium's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// A row was inserted, or came to its new key.
    #[serde(rename = "c")]
    Create,
    /// A row was updated under the same key.
    #[serde(rename = "u")]
    Update,
    /// A row was deleted, or left its old key.
    #[serde(rename = "d")]
    Delete,
    /// A row was read by a snapshot.
    #[serde(rename = "r")]
    Read,
    /// Tables were truncated. A control event.
    #[serde(rename = "t")]
    Truncate,
    /// A message: every other control event.
    #[serde(rename = "m")]
    Message,
}

/// The value of a record, decoded.
#[derive(Debug, Deserialize)]
pub struct ChangeEvent<'a> {
    /// What happened.
    #[serde(rename = "op")]
    pub operation: Operation,
    /// The row before: its key, or all of it where the replica identity is FULL.
    #[serde(borrow, default)]
    pub before: Option<Columns<'a>>,
    /// The row after, without the columns in `unchanged`.
    #[serde(borrow, default)]
    pub after: Option<Columns<'a>>,
    /// Columns stored out of line that the change did not touch: their value is not known here.
    #[serde(borrow, default)]
    pub unchanged: Vec<Cow<'a, str>>,
    /// Columns of a moved row that were read after the fact, since the stream did not carry them.
    #[serde(borrow, default)]
    pub reselected: Vec<Cow<'a, str>>,
    /// On the delete of a row that changed its key: the new one.
    #[serde(borrow, default)]
    pub moved_to: Option<Columns<'a>>,
    /// On the create of a row that changed its key: the old one.
    #[serde(borrow, default)]
    pub moved_from: Option<Columns<'a>>,
    /// Where it comes from.
    #[serde(borrow)]
    pub source: Source<'a>,
    /// When it was published: milliseconds since 1970.
    pub ts_ms: i64,
    /// What a control event says.
    #[serde(default)]
    pub control: Option<Control>,
}

impl<'a> ChangeEvent<'a> {
    /// Decodes a record's value.
    pub fn decode(value: &'a [u8]) -> Result<ChangeEvent<'a>, serde_json::Error> {
        serde_json::from_slice(value)
    }
}

/// Columns by name, in the relation's order. A value is PostgreSQL's text; `None` is NULL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns<'a>(pub Vec<(Cow<'a, str>, Option<Cow<'a, str>>)>);

impl<'a> Columns<'a> {
    /// The value of a column; `None` where the event does not have the column, `Some(None)` where it is NULL.
    pub fn get(&self, name: &str) -> Option<Option<&str>> {
        self.0.iter().find(|(column, _)| column == name).map(|(_, value)| value.as_deref())
    }

    /// Decodes a record's key.
    pub fn decode(key: &'a [u8]) -> Result<Columns<'a>, serde_json::Error> {
        serde_json::from_slice(key)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Columns<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Columns<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of columns")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut columns = Vec::with_capacity(map.size_hint().unwrap_or(16));
                while let Some(Name(name)) = map.next_key()? {
                    let raw: &'de RawValue = map.next_value()?;
                    columns.push((name, value::text_of(raw).map_err(serde::de::Error::custom)?));
                }
                Ok(Columns(columns))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// A column's name, borrowed unless it holds an escape: serde's own `Cow` always copies.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column's name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Where an event comes from, in Debezium's words.
#[derive(Debug, Serialize, Deserialize)]
pub struct Source<'a> {
    /// Always `tributary`.
    #[serde(borrow)]
    pub connector: Cow<'a, str>,
    /// The configured name of the source.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// The database.
    #[serde(borrow)]
    pub db: Cow<'a, str>,
    /// The schema; empty on a control event that concerns several tables.
    #[serde(borrow)]
    pub schema: Cow<'a, str>,
    /// The table; empty on a control event that concerns several tables.
    #[serde(borrow)]
    pub table: Cow<'a, str>,
    /// The change's own place in the WAL, as a number.
    pub lsn: u64,
    /// The transaction; 0 where none stands behind the event.
    #[serde(rename = "txId")]
    pub tx_id: u32,
    /// When the transaction committed: milliseconds since 1970.
    pub ts_ms: i64,
    /// `true` for a row of a first load, `incremental` for one that was ordered, else `false`.
    #[serde(borrow)]
    pub snapshot: Cow<'a, str>,
    /// The commit's and the change's place, as Debezium writes them: a JSON list in a string.
    #[serde(borrow)]
    pub sequence: Cow<'a, str>,
}

/// A table that a control event concerns, and where its records stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlTable {
    /// The schema.
    pub schema: String,
    /// The table.
    pub table: String,
    /// Its topic.
    pub topic: String,
    /// How many partitions the topic has: the event stands once in each.
    pub partitions: i32,
}

/// A column as the stream described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type's OID at the source. Only meaningful there, but for built-in types.
    pub type_oid: u32,
    /// Its type with modifier as SQL writes it, `numeric(12,2)`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The type's modifier; -1 for none.
    pub modifier: i32,
    /// Whether it is part of the key.
    pub key: bool,
}

/// How the rows of a load and the rows that stand in the target go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// The first load: the target table must be empty.
    First,
    /// The load begins with a truncate of our own.
    Replace,
    /// Rows stay where they are.
    Merge,
}

/// What a control event says. It stands once in *every* partition of each topic that it concerns, at one position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Control {
    /// From here on the topic holds the table's rows, loaded and live, until the load's end mixed.
    LoadBegin {
        /// The load's id.
        load: String,
        /// The contract that this topic speaks.
        contract: u32,
        /// What it means for rows that are already there.
        mode: LoadMode,
        /// The table, as a list for uniformity.
        tables: Vec<ControlTable>,
    },
    /// All rows that were there at the load's markers have been published.
    LoadEnd {
        /// The load's id.
        load: String,
        /// How many rows the load published.
        rows: u64,
        /// The table.
        tables: Vec<ControlTable>,
    },
    /// The relation as it is from here on: at first sight, and at every change.
    Schema {
        /// The table.
        tables: Vec<ControlTable>,
        /// The replica identity in PostgreSQL's letter: d, n, f or i.
        identity: char,
        /// The key's columns, in the relation's order.
        key: Vec<String>,
        /// The key until now; absent at first sight.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous_key: Option<Vec<String>>,
        /// All published columns.
        columns: Vec<Column>,
        /// The relation's fingerprint, as in the header `schema` of its rows.
        fingerprint: Fingerprint,
        /// Rows changed without being sent, as when a column came with values for the rows that are there: what stands in the
        /// topic of them may be outdated, unless a load of the table follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        rows_rewritten: bool,
    },
    /// The tables were emptied by one command.
    Truncate {
        /// All of them, also those of other topics.
        tables: Vec<ControlTable>,
        /// Whether CASCADE was said.
        cascade: bool,
        /// Whether RESTART IDENTITY was said.
        restart_identity: bool,
    },
}

impl Control {
    /// The value of the header `control`.
    pub fn kind(&self) -> &'static str {
        match self {
            Control::LoadBegin { .. } => "load_begin",
            Control::LoadEnd { .. } => "load_end",
            Control::Schema { .. } => "schema",
            Control::Truncate { .. } => "truncate",
        }
    }

    /// The tables that it concerns.
    pub fn tables(&self) -> &[ControlTable] {
        match self {
            Control::LoadBegin { tables, .. }
            | Control::LoadEnd { tables, .. }
            | Control::Schema { tables, .. }
            | Control::Truncate { tables, .. } => tables,
        }
    }
}

/// A moment in the form that [`Source::sequence`] has.
pub fn sequence(commit: Lsn, change: Lsn) -> String {
    format!("[\"{}\",\"{}\"]", commit.0, change.0)
}
