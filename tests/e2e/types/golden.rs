//! The golden table: which values of which types are tried, and what must come out of each. Read from `golden.toml`.

use serde::Deserialize;

use harness::table::Table;

/// The types that the table's own types are made of.
const TYPES: &[&str] = &[
    r#"CREATE TYPE golden.mood AS ENUM ('sad', 'it''s ok', 'ha ppy, "very"')"#,
    "CREATE TYPE golden.pair AS (n integer, t text)",
    "CREATE TYPE golden.nested AS (one golden.pair, more golden.pair[], span int4range, mood golden.mood)",
    "CREATE DOMAIN golden.price AS numeric(12,2)",
    "CREATE DOMAIN golden.positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN golden.tags AS text[]",
    r#"CREATE TYPE golden.textrange AS RANGE (subtype = text, collation = "C")"#,
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "type")]
    types: Vec<Entry>,
}

/// One type's values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// As SQL writes it.
    pub name: String,
    /// How values stand in JSON.
    #[serde(default)]
    pub json: Json,
    /// What becomes of it as a key.
    pub key: Option<Spread>,
    needs: Option<String>,
    since: Option<u32>,
    values: Vec<Value>,
}

/// A value's form in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Json {
    #[default]
    String,
    Number,
    Boolean,
}

/// Where the rows of a table with such a key go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// By the key's canonical text.
    Spread,
    /// All to partition 0.
    Alone,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Same(String),
    Other(String, String),
}

impl Entry {
    /// How many values there are. One number further stands NULL.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// What is written for a value, as SQL.
    pub fn sql(&self, value: usize) -> String {
        match self.values.get(value) {
            None => "NULL".to_owned(),
            Some(Value::Same(text) | Value::Other(text, _)) => literal(text),
        }
    }

    /// What comes out of it.
    pub fn text(&self, value: usize) -> Option<&str> {
        self.values.get(value).map(|value| match value {
            Value::Same(text) | Value::Other(_, text) => text.as_str(),
        })
    }

    /// The form of a text of this type in JSON.
    pub fn json_of(&self, text: &str) -> Json {
        if ["NaN", "Infinity", "-Infinity"].contains(&text) { Json::String } else { self.json }
    }
}

/// The types that a server of this major has, in the order of the file.
pub fn types(major: u32) -> Vec<Entry> {
    let file: File = toml::from_str(include_str!("golden.toml")).expect("golden.toml is in its form");
    let on = |entry: &Entry| {
        entry.since.is_none_or(|since| major >= since) && entry.needs.as_deref().is_none_or(|what| has(major, what))
    };
    file.types.into_iter().filter(on).collect()
}

/// What the servers that `./dev` brings were built with: 16 and 18 carry pgvector and neither contrib nor libxml.
fn has(major: u32, what: &str) -> bool {
    (what == "vector") == matches!(major, 16 | 18)
}

/// Statements that a server of this major needs before the tables.
pub fn before(major: u32) -> Vec<String> {
    let extensions = ["hstore", "citext", "ltree", "cube", "isn", "intarray", "vector"];
    let present = extensions.iter().filter(|extension| has(major, extension));
    let create = |extension: &&str| format!("CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public");
    present.map(create).chain(TYPES.iter().map(|sql| (*sql).to_owned())).collect()
}

/// All types as the columns `c0`, `c1`, … of one table under identity FULL.
pub fn wide(major: u32, types: &[Entry]) -> Table {
    let columns: String = types.iter().enumerate().map(|(i, entry)| format!(", c{i} {}", entry.name)).collect();
    let table = Table::new("golden.wide", &["id"], &format!("id integer PRIMARY KEY{columns}"))
        .after("ALTER TABLE {table} REPLICA IDENTITY FULL");
    before(major).iter().fold(table, |table, sql| table.before(sql))
}

/// Types that are the key of one table together, as the columns `k0`, `k1`, …
#[derive(Clone, Debug)]
pub struct Keys {
    /// The table.
    pub table: Table,
    /// Where its rows go.
    pub spread: Spread,
    types: Vec<Entry>,
}

/// Tables that have every type that can be a key in theirs: at most so many types in one.
pub fn keys(types: &[Entry], together: usize) -> Vec<Keys> {
    let of = |spread| types.iter().filter(move |entry| entry.key == Some(spread)).cloned().collect::<Vec<_>>();
    let groups = [Spread::Spread, Spread::Alone].map(|spread| (spread, of(spread)));
    let tables =
        groups.iter().flat_map(|(spread, types)| types.chunks(together).map(|types| (*spread, types.to_vec())));
    tables.enumerate().map(|(number, (spread, types))| Keys::new(number, spread, types)).collect()
}

impl Keys {
    fn new(number: usize, spread: Spread, types: Vec<Entry>) -> Keys {
        let columns: String = types.iter().enumerate().map(|(i, entry)| format!("k{i} {}, ", entry.name)).collect();
        let names: Vec<String> = (0..types.len()).map(|i| format!("k{i}")).collect();
        let key: Vec<&str> = names.iter().map(String::as_str).collect();
        let columns = format!("note text, {columns}PRIMARY KEY ({})", key.join(", "));
        Keys { table: Table::new(&format!("golden.keys{number}"), &key, &columns), spread, types }
    }

    /// How many rows show every value of every type: that of the one with the most. The others begin again.
    pub fn rows(&self) -> usize {
        self.types.iter().map(Entry::len).max().unwrap_or(0)
    }

    fn values(&self, row: usize) -> impl Iterator<Item = (&Entry, usize)> {
        self.types.iter().map(move |entry| (entry, row % entry.len()))
    }

    /// The key of a row, as it comes out.
    pub fn texts(&self, row: usize) -> Vec<String> {
        self.values(row).map(|(entry, value)| entry.text(value).unwrap_or_default().to_owned()).collect()
    }

    /// What inserts a row.
    pub fn insert(&self, row: usize) -> String {
        let values: Vec<String> = self.values(row).map(|(entry, value)| entry.sql(value)).collect();
        format!("INSERT INTO {} VALUES ('copied', {})", self.table.sql(), values.join(", "))
    }

    /// What gives a row the key of another.
    pub fn set(&self, row: usize) -> String {
        let set = self.values(row).enumerate().map(|(i, (entry, value))| format!("k{i} = {}", entry.sql(value)));
        set.collect::<Vec<_>>().join(", ")
    }

    /// The condition that finds a row.
    pub fn is(&self, row: usize) -> String {
        let equal =
            |(i, (entry, value)): (usize, (&Entry, usize))| format!("k{i} = {}::{}", entry.sql(value), entry.name);
        self.values(row).enumerate().map(equal).collect::<Vec<_>>().join(" AND ")
    }
}

/// A text as SQL takes it.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
