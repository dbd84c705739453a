//! What can be asked of a running source, by messages in its own stream.
//!
//!     load/<id>/{"tables":[{"schema":"public","table":"users"}],"mode":"replace"}
//!     range/<id>/{"schema":"public","table":"users","after":["10"],"upto":["20"]}
//!     keys/<id>/{"schema":"public","table":"users","keys":[{"id":1},{"id":2}]}
//!     configuration/<id>/{}
//!     pause/<id>/{"load":"…"}     resume/<id>/{"load":"…"}     cancel/<id>/{"load":"…"}
//!
//! Pure. Every user of the database may write such a message, so it is bounded here, and whoever takes it up trusts nothing in
//! it. A wish to read is anybody's. What takes something away (rows that a load replaces, a load that is paused, resumed or
//! given up) is *sealed*: `load/<id>.<seal>/…`, an HMAC by a key of the state, which only who may read that topic can make.
//! Refusals quote none of it.

use hmac::{Hmac, KeyInit, Mac};
use schemas::event::LoadMode;
use schemas::{Columns, TableName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;

use crate::columns::hashed;

/// The longest message that is looked at, in bytes.
pub const BYTES_MAX: usize = 256 << 10;
/// The most keys in one message.
pub const KEYS_MAX: usize = 1_000;
/// The most tables in one message.
pub const TABLES_MAX: usize = 1_000;
/// The most that keys may take, by [`weight`], which are listed and not answered. Anybody may write lists, and all of them are in
/// memory and in the state, which is read whole at each start. Some 300,000 keys of a number or a UUID are less.
pub const LISTED_BYTES_MAX: usize = 16 << 20;
/// What a list takes beside its keys, and each key beside its text.
const LIST_BYTES: usize = 1 << 10;
const KEY_BYTES: usize = 32;
/// The longest id, in bytes.
const ID_BYTES_MAX: usize = 64;

/// A command, and the id by which a second message that says the same is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Random; the id of the load where one begins.
    pub id: String,
    /// What is wished for.
    pub wish: Wish,
}

/// What is wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Whole tables are to be loaded again.
    Load {
        /// The tables.
        tables: Vec<TableName>,
        /// Whether their rows take the place of all that was published.
        mode: Mode,
    },
    /// A range of a table's key is to be read again.
    Range {
        /// The table.
        table: TableName,
        /// Exclusive lower end: the key's columns as text, in the order of the key's index.
        after: Option<Vec<String>>,
        /// Inclusive upper end.
        upto: Option<Vec<String>>,
    },
    /// Rows are to be read by their keys, each answered once.
    Keys {
        /// The table.
        table: TableName,
        /// The keys, each the text of an object of the key's columns.
        keys: Vec<String>,
    },
    /// The source's configuration is to be read again.
    Configuration,
    /// Nothing is read for a load until it is resumed.
    Pause {
        /// The load's id.
        load: String,
    },
    /// A paused load goes on.
    Resume {
        /// The load's id.
        load: String,
    },
    /// A load ends where it is.
    Cancel {
        /// The load's id.
        load: String,
    },
}

/// How the rows of an ordered load and those that were published before go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They take their place: the load begins with a truncate.
    #[default]
    Replace,
    /// They are laid over them.
    Merge,
}

impl From<Mode> for LoadMode {
    fn from(mode: Mode) -> LoadMode {
        match mode {
            Mode::Replace => LoadMode::Replace,
            Mode::Merge => LoadMode::Merge,
        }
    }
}

/// Why a message is no command. Says nothing of what stood in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is longer than is looked at.
    #[error("it is longer than {BYTES_MAX} bytes")]
    TooLong,
    /// Too many tables or keys, or none.
    #[error("it lists none, or more than {TABLES_MAX} tables or {KEYS_MAX} keys")]
    Count,
    /// No id.
    #[error("its id, or that of the load that it names, is missing, too long, or of signs that no such id has")]
    Id,
    /// The text behind the id.
    #[error("what stands behind its id is not what a command of its kind says")]
    Body,
    /// A key.
    #[error("one of its keys is no object of values")]
    Key,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadBody {
    tables: Vec<TableName>,
    #[serde(default)]
    mode: Mode,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeBody {
    schema: String,
    table: String,
    #[serde(default)]
    after: Option<Vec<String>>,
    #[serde(default)]
    upto: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysBody<'a> {
    schema: String,
    table: String,
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLoad {
    load: String,
}

impl Wish {
    /// Whether it takes something away that was published, or that somebody else has ordered.
    pub fn takes_away(&self) -> bool {
        match self {
            Wish::Load { mode, .. } => *mode == Mode::Replace,
            Wish::Range { .. } | Wish::Keys { .. } | Wish::Configuration => false,
            Wish::Pause { .. } | Wish::Resume { .. } | Wish::Cancel { .. } => true,
        }
    }
}

/// What a list of keys takes, about.
pub fn weight(keys: &[String]) -> usize {
    LIST_BYTES + keys.iter().map(|key| KEY_BYTES + key.len()).sum::<usize>()
}

/// A key for seals that nobody guesses.
pub fn new_seal_key() -> String {
    let random = || uuid::Uuid::new_v4().simple();
    format!("{}{}", random(), random())
}

/// What seals messages.
fn sealer(key: &str) -> Hmac<Sha256> {
    Hmac::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length")
}

/// Whether the message of a command is sealed by this key.
pub fn is_sealed(content: &[u8], key: &str) -> bool {
    let parts = || {
        let (kind, rest) = std::str::from_utf8(content).ok()?.split_once('/')?;
        let (name, body) = rest.split_once('/')?;
        let (id, mac) = name.split_once('.')?;
        Some((format!("{kind}/{id}/{body}"), hex(mac)?))
    };
    parts().is_some_and(|(message, mac)| sealer(key).chain_update(message).verify_slice(&mac).is_ok())
}

/// The bytes behind pairs of hexadecimal digits.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    text.as_bytes().chunks(2).map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

impl Command {
    /// The message that asks for it, sealed.
    pub fn sealed(&self, key: &str) -> String {
        let message = self.message();
        let mac = hashed(&sealer(key), message.as_bytes());
        // No kind has a slash in it.
        message.replacen(&format!("/{}/", self.id), &format!("/{}.{mac}/", self.id), 1)
    }

    /// The message that asks for it, as anybody may write it.
    pub fn message(&self) -> String {
        let (kind, body) = match &self.wish {
            Wish::Load { tables, mode } => ("load", json(&LoadBody { tables: tables.clone(), mode: *mode })),
            Wish::Range { table: TableName { schema, table }, after, upto } => {
                let (schema, table) = (schema.clone(), table.clone());
                ("range", json(&RangeBody { schema, table, after: after.clone(), upto: upto.clone() }))
            }
            Wish::Keys { table: TableName { schema, table }, keys } => {
                // What is no JSON makes no message that could be read: it is left out, as the reader would refuse it.
                let keys = keys.iter().filter_map(|key| serde_json::from_str(key).ok()).collect();
                ("keys", json(&KeysBody { schema: schema.clone(), table: table.clone(), keys }))
            }
            Wish::Configuration => ("configuration", json(&Nothing {})),
            Wish::Pause { load } => ("pause", json(&OfLoad { load: load.clone() })),
            Wish::Resume { load } => ("resume", json(&OfLoad { load: load.clone() })),
            Wish::Cancel { load } => ("cancel", json(&OfLoad { load: load.clone() })),
        };
        format!("{kind}/{}/{body}", self.id)
    }

    /// Reads a message; `None` if it is of no kind that is a command's.
    pub fn read(content: &[u8]) -> Option<Result<Command, Malformed>> {
        const KINDS: [&[u8]; 7] = [b"load/", b"range/", b"keys/", b"configuration/", b"pause/", b"resume/", b"cancel/"];
        let kind = KINDS.into_iter().find(|kind| content.starts_with(kind))?;
        if content.len() > BYTES_MAX {
            return Some(Err(Malformed::TooLong));
        }
        let Ok(rest) = std::str::from_utf8(&content[kind.len()..]) else { return Some(Err(Malformed::Body)) };
        let named = rest.split_once('/').map(|(name, body)| (name.split_once('.').map_or(name, |(id, _)| id), body));
        let Some((id, body)) = named.filter(|(id, _)| is_id(id)) else {
            return Some(Err(Malformed::Id));
        };
        Some(wish(kind, body).map(|wish| Command { id: id.to_owned(), wish }))
    }
}

/// Ids of commands are of letters and digits: they stand in keys of the state and in headers, and nothing there may need an
/// escape. The loads that the source begins by itself have a hyphen in theirs, and so a stranger cannot take such an id first.
pub fn is_id(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The id of a load, whoever began it.
fn is_load(text: &str) -> bool {
    is_id(&text.replace('-', ""))
}

fn wish(kind: &[u8], body: &str) -> Result<Wish, Malformed> {
    let of_load = || {
        let OfLoad { load } = parse(body)?;
        if is_load(&load) { Ok(load) } else { Err(Malformed::Id) }
    };
    match kind {
        b"load/" => {
            let LoadBody { tables, mode } = parse(body)?;
            if tables.is_empty() || tables.len() > TABLES_MAX {
                return Err(Malformed::Count);
            }
            Ok(Wish::Load { tables, mode })
        }
        b"range/" => {
            let RangeBody { schema, table, after, upto } = parse(body)?;
            let is_end = |end: &Option<Vec<String>>| {
                end.as_ref().is_none_or(|texts| !texts.is_empty() && texts.iter().all(|text| !text.contains('\0')))
            };
            if (after.is_none() && upto.is_none()) || !is_end(&after) || !is_end(&upto) {
                return Err(Malformed::Body);
            }
            Ok(Wish::Range { table: TableName { schema, table }, after, upto })
        }
        b"keys/" => {
            let KeysBody { schema, table, keys } = parse(body)?;
            if keys.is_empty() || keys.len() > KEYS_MAX {
                return Err(Malformed::Count);
            }
            if !keys.iter().all(|key| is_key(key.get())) {
                return Err(Malformed::Key);
            }
            let keys = keys.into_iter().map(|key| key.get().to_owned()).collect();
            Ok(Wish::Keys { table: TableName { schema, table }, keys })
        }
        b"configuration/" => parse::<Nothing>(body).map(|Nothing {}| Wish::Configuration),
        b"pause/" => Ok(Wish::Pause { load: of_load()? }),
        b"resume/" => Ok(Wish::Resume { load: of_load()? }),
        _ => Ok(Wish::Cancel { load: of_load()? }),
    }
}

/// Whether the text is an object of values as they stand in the key of a record.
pub fn is_key(text: &str) -> bool {
    let is_value = |value: &serde_json::Value| !value.is_array() && !value.is_object() && !value.is_null();
    let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    // No text of the server holds a zero byte, and none is taken by it.
    let has_zero = |columns: Columns<'_>| {
        columns.0.iter().any(|(name, value)| name.contains('\0') || value.as_deref().is_some_and(|v| v.contains('\0')))
    };
    object.is_ok_and(|object| !object.is_empty() && object.values().all(is_value))
        && Columns::decode(text.as_bytes()).is_ok_and(|columns| !has_zero(columns))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a str) -> Result<T, Malformed> {
    serde_json::from_str(body).map_err(|_| Malformed::Body)
}

fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("commands are plain data")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table() -> TableName {
        TableName::new("public", "a \"b\"/c")
    }

    #[test]
    fn every_command_reads_back() {
        let load = || "0190a5c4-5b0e".to_owned();
        let key = |text: &str| Some(vec![text.to_owned()]);
        for wish in [
            Wish::Load { tables: vec![table(), TableName::new("a", "b")], mode: Mode::Merge },
            Wish::Range { table: table(), after: None, upto: key("/\"") },
            Wish::Range { table: table(), after: key("1"), upto: key("2") },
            Wish::Keys { table: table(), keys: vec![r#"{"id":1}"#.into(), r#"{"id":"1.00","b":true}"#.into()] },
            Wish::Configuration,
            Wish::Pause { load: load() },
            Wish::Resume { load: load() },
            Wish::Cancel { load: load() },
        ] {
            let command = Command { id: "a1".into(), wish };
            assert_eq!(Command::read(command.message().as_bytes()), Some(Ok(command)));
        }
        let replace = Command::read(br#"load/7/{"tables":[{"schema":"a","table":"b"}]}"#).expect("a kind of ours");
        assert!(matches!(replace, Ok(Command { wish: Wish::Load { mode: Mode::Replace, .. }, .. })));
    }

    #[test]
    fn a_seal_is_of_this_message_and_this_key() {
        let (own, other) = (new_seal_key(), new_seal_key());
        assert_ne!(own, other);
        // An id that its kind begins with must not be taken for it.
        let command = Command { id: "a".into(), wish: Wish::Load { tables: vec![table()], mode: Mode::Replace } };
        let sealed = command.sealed(&own);
        assert!(is_sealed(sealed.as_bytes(), &own) && !is_sealed(sealed.as_bytes(), &other));
        assert_eq!(Command::read(sealed.as_bytes()), Some(Ok(command.clone())));
        assert!(!is_sealed(command.message().as_bytes(), &own));
        for (from, to) in [("replace", "merge"), ("/a.", "/b."), ("/a.", "/a.0"), ("load/", "keys/")] {
            let turned = sealed.replacen(from, to, 1);
            assert!(turned != sealed && !is_sealed(turned.as_bytes(), &own), "{turned}");
        }
        assert!(!is_sealed(b"load/a./{}", &own) && !is_sealed(b"load/a.\xff/{}", &own));
    }

    #[test]
    fn what_is_not_a_command_is_told_from_what_is_a_wrong_one() {
        for other in ["beat", "chunk/00", "list/1", "watch/1", "loads/1/{}", ""] {
            assert_eq!(Command::read(other.as_bytes()), None, "{other}");
        }
        let keys = |keys: &str| format!(r#"keys/1/{{"schema":"a","table":"b","keys":[{keys}]}}"#);
        let many = vec![r#"{"id":1}"#; KEYS_MAX + 1].join(",");
        for (text, why) in [
            ("load/".to_owned(), Malformed::Id),
            ("load//{}".to_owned(), Malformed::Id),
            (format!("load/{}/{{}}", "a".repeat(65)), Malformed::Id),
            ("load/a b/{}".to_owned(), Malformed::Id),
            ("load/5a3f10-16385/{}".to_owned(), Malformed::Id),
            ("load/1/{}".to_owned(), Malformed::Body),
            (r#"load/1/{"tables":[]}"#.to_owned(), Malformed::Count),
            (r#"load/1/{"tables":[{"schema":"a","table":"b"}],"mode":"first"}"#.to_owned(), Malformed::Body),
            (r#"load/1/{"tables":[{"schema":"a","table":"b"}],"more":1}"#.to_owned(), Malformed::Body),
            (r#"range/1/{"schema":"a","table":"b"}"#.to_owned(), Malformed::Body),
            (r#"pause/1/{"load":"a/b"}"#.to_owned(), Malformed::Id),
            (keys(""), Malformed::Count),
            (keys(&many), Malformed::Count),
            (keys("1"), Malformed::Key),
            (keys("{}"), Malformed::Key),
            (keys(r#"{"id":null}"#), Malformed::Key),
            (keys(r#"{"id":[1]}"#), Malformed::Key),
            (keys(r#"{"id":"a\u0000"}"#), Malformed::Key),
            (format!("keys/1/{}", "[".repeat(10_000)), Malformed::Body),
            (format!("load/1/{}", " ".repeat(BYTES_MAX)), Malformed::TooLong),
        ] {
            let read = Command::read(text.as_bytes());
            assert_eq!(read, Some(Err(why)), "{}", &text[..text.len().min(80)]);
        }
        assert_eq!(Command::read(b"load/1/\xff"), Some(Err(Malformed::Body)));
    }

    proptest! {
        #[test]
        fn nothing_that_a_stranger_writes_does_harm(kind in prop::sample::select(vec!["load", "range", "keys", "pause"]), text in any::<String>()) {
            let message = format!("{kind}/{text}");
            if let Some(Err(why)) = Command::read(message.as_bytes()) {
                prop_assert!(text.len() < 8 || !why.to_string().contains(&text));
            }
        }
    }
}
