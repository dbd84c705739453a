//! The records of `<prefix>.state`: where the source is, written in the same Kafka transactions as what it published.
//!
//!     stream            where in the stream, and which transactions stand behind it
//!     table/<oid>       a relation as last published
//!     topic/<name>      a topic as found at the start, and how many records each partition holds
//!     load/<id>         a load that is not done yet;  load/<id>/<oid>: what of a table is done
//!     seal              by which commands are known that only a reader of this topic can have written
//!     moved/<oid>/<key> a row of which something was read beside the stream, until the stream has caught up with that
//!
//! A tombstone ends a record.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::event::{Column, LoadMode};
use crate::fingerprint::Fingerprint;
use crate::key::Canonical;
use crate::{Lsn, Position, Seq, TableName};

/// The key of a state record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// [`Stream`].
    Stream,
    /// [`Table`], by its OID.
    Table(u32),
    /// [`Topic`], by its name.
    Topic(String),
    /// [`Load`], by its id.
    Load(String),
    /// [`LoadTable`], by the load's id and the table's OID.
    LoadTable(String, u32),
    /// [`Seal`].
    Seal,
    /// [`Moved`], by the table's OID and the text of the record's key.
    Moved(u32, String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Stream => f.write_str("stream"),
            Key::Table(oid) => write!(f, "table/{oid}"),
            Key::Topic(name) => write!(f, "topic/{name}"),
            Key::Load(id) => write!(f, "load/{id}"),
            Key::LoadTable(id, oid) => write!(f, "load/{id}/{oid}"),
            Key::Seal => f.write_str("seal"),
            Key::Moved(oid, key) => write!(f, "moved/{oid}/{key}"),
        }
    }
}

/// The text was no key of a state record.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no key of a state record that this version knows")]
pub struct UnknownKey(String);

impl FromStr for Key {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        let unknown = || UnknownKey(text.to_owned());
        let oid = |digits: &str| digits.parse().map_err(|_| unknown());
        // A row's key may hold anything.
        if let Some((digits, key)) = text.strip_prefix("moved/").and_then(|rest| rest.split_once('/')) {
            return Ok(Key::Moved(oid(digits)?, key.to_owned()));
        }
        match *text.split('/').collect::<Vec<_>>() {
            ["stream"] => Ok(Key::Stream),
            ["seal"] => Ok(Key::Seal),
            ["table", digits] => oid(digits).map(Key::Table),
            ["topic", name] => Ok(Key::Topic(name.to_owned())),
            ["load", id] => Ok(Key::Load(id.to_owned())),
            ["load", id, digits] => oid(digits).map(|oid| Key::LoadTable(id.to_owned(), oid)),
            _ => Err(unknown()),
        }
    }
}

/// A transaction that was sent or acted on: commit LSN, xid, commit time in PostgreSQL's microseconds since 2000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sent(pub Lsn, pub u32, pub i64);

/// How many transactions [`Stream::history`] keeps.
pub const HISTORY_MAX: usize = 32;

/// Where the source is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// The version of this contract that wrote it.
    pub contract: u32,
    /// The server's system identifier.
    pub system_id: String,
    /// The database.
    pub database: String,
    /// The server's timeline.
    pub timeline: u32,
    /// The replication slot.
    pub slot: String,
    /// The publications that are streamed.
    pub publications: Vec<String>,
    /// Since where they can be: before it some transaction may have begun that does not know them as they are. Absent where
    /// they are those of the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Lsn>,
    /// The end of the last whole transaction of which everything is committed to Kafka.
    pub flushed: Lsn,
    /// When the database committed the last transaction up to there, in milliseconds since 1970; also one of others, or a
    /// heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushed_ms: Option<i64>,
    /// What was last sent or acted on.
    pub position: Position,
    /// The last transactions that were sent or acted on, oldest first.
    pub history: Vec<Sent>,
}

/// A relation as last published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Its name.
    #[serde(flatten)]
    pub name: TableName,
    /// Its topic.
    pub topic: String,
    /// The key's columns.
    pub key: Vec<String>,
    /// The replica identity in PostgreSQL's letter.
    pub identity: char,
    /// All published columns; empty until the relation was first seen.
    pub columns: Vec<Column>,
    /// The fingerprint of the last schema event; 0 before the first.
    pub fingerprint: Fingerprint,
    /// Whether keys have no canonical text, so that all records go to partition 0.
    #[serde(default)]
    pub single_partition: bool,
    /// How the canonical text of each column of the key is found, in the key's order: a type that is dropped later can be
    /// asked no more. Empty in records of before, and where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routing: Vec<Canonical>,
    /// What the catalog showed when every row of the table was last known to be in the topic; absent until it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imprint: Option<Imprint>,
    /// One number for the rule by which columns are hidden or masked; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Fingerprint>,
}

/// What the catalog shows of a published table. A later difference tells of rows that changed without being sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imprint {
    /// The publication's OID: another one is another publication of the same name.
    pub publication: u32,
    /// The transaction that last wrote the publication's row in the catalog: after it, operations may have been left out for
    /// a while. Absent in records of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altered: Option<u32>,
    /// The OID of the publication's entry for the table or its schema; absent where the publication is for all tables. It is
    /// another one after every change of row filter or column list, and after the table was taken out and put back.
    pub entry: Option<u32>,
    /// The columns, by number, of the index that names rows.
    pub key: Vec<i16>,
    /// The highest number that a column ever had.
    pub last_column: i16,
    /// The published columns.
    pub columns: Vec<ImprintColumn>,
    /// Where the rows lie: the table itself, or each of its partitions that holds rows.
    pub files: Vec<ImprintFile>,
    /// The labels of the enums among the columns' types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<ImprintLabel>,
}

/// A label of an enum: the type, the label's own OID, and its text, which all rows show at once when it is renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImprintLabel(pub u32, pub u32, pub String);

/// A column: number, name, type, base type, modifier, and the transaction that last wrote its row in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImprintColumn(pub i16, pub String, pub u32, pub u32, pub i32, pub u32);

/// A table's storage: its OID, the number of its file, and the OID of its TOAST table (0 without). ALTER TABLE gives it
/// another one of both when it writes the rows anew; VACUUM FULL, CLUSTER and TRUNCATE change the file alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImprintFile(pub u32, pub u32, pub u32);

/// A topic as it was found when it was first used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Kafka's id of it: another id is another topic of the same name.
    pub id: String,
    /// How many of its partitions are used, for ever.
    pub partitions: i32,
    /// The number of the last record of each partition.
    pub seq: Vec<Seq>,
    /// Tables whose rows stand in it and that are published no more: one that comes back is loaded in place of what is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<TableName>,
}

/// A load that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// What rows in the target mean.
    pub mode: LoadMode,
    /// The tables by OID that are not done yet.
    pub tables: Vec<u32>,
    /// What was asked for, where a person ordered it, or the list of tables; absent where the source began it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<LoadKind>,
    /// Whether nothing is read for it until it is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// Why a load is there, and what it is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// Whole tables.
    Tables,
    /// A range of a table's key.
    Range,
    /// Single rows by their keys. Each is answered once, and there is neither begin nor end in the topic.
    Keys,
    /// Whole tables that came to the list: who wrote to them before they were published has to end first.
    Added,
}

/// What only readers of the state know. Whoever may connect to the database may write commands into the stream; those that take
/// something away are followed only if they carry an HMAC by it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Random text.
    pub hmac_key: String,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}

/// A range of a table's key in the server's own order, or of places in its file: after `after`, up to and with `upto`; `None`
/// is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Exclusive lower end: the key's columns as text, or a place.
    pub after: Option<Vec<String>>,
    /// Inclusive upper end.
    pub upto: Option<Vec<String>>,
}

/// What of a table a load has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadTable {
    /// Ranges whose chunk is committed to Kafka, merged where they touch, in key order.
    pub done: Vec<Range>,
    /// What they are ranges of: the columns of a key, with the operators and collations of its index, or a file by its number.
    /// Once the table is told into ranges otherwise, they mean nothing. Absent before the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges_of: Option<String>,
    /// Rows published so far.
    pub rows: u64,
    /// What the server thought the table held when the load began; for progress alone.
    #[serde(default)]
    pub rows_estimated: u64,
    /// Of a list of keys those that are not answered yet, as they were ordered: each the text of an object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Why it did not go on when that was last tried. Absent where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindered: Option<Hindrance>,
}

/// What keeps a table's rows from being read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hindrance {
    /// For people.
    pub why: String,
    /// Whether it stays until a person does something.
    pub is_fault: bool,
}

/// Of a row that moved, columns were read that the stream did not carry. What was seen then may be lost by a failover, so
/// whoever finds this at its start reads the row again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The end of the WAL at that moment: once the same session has received this, nothing that was seen can be lost any more.
    pub upto: Lsn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back() {
        for key in [
            Key::Stream,
            Key::Table(16384),
            Key::Topic("shop.public.users".into()),
            Key::Load("a1".into()),
            Key::LoadTable("a1".into(), 7),
            Key::Moved(7, r#"{"path":"a/b"}"#.into()),
        ] {
            assert_eq!(key.to_string().parse::<Key>().expect("printed by us"), key);
        }
        for bad in ["", "streams", "table/x", "load/a/b", "load/a/1/2", "moved/7", "moved/x/{}"] {
            assert!(bad.parse::<Key>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn the_stream_record_reads_back() {
        let json = r#"{"contract":1,"system_id":"7","database":"shop","timeline":1,"slot":"s","publications":["p"],"flushed":"0/A20","position":"0000000000000A10.00000000000009F8.00000001","history":[["0/A10",771,821664000123456]]}"#;
        let stream: Stream = serde_json::from_str(json).expect("a stream record");
        assert_eq!(stream.position.commit, Lsn(0xA10));
        assert_eq!(serde_json::to_string(&stream).expect("plain data"), json);
    }
}
