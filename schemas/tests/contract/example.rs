//! Examples: what the writer makes of given input, laid out as a golden file.

use std::fmt::Write;

use schemas::event::Column;
use schemas::fingerprint::{self, Fingerprint};
use schemas::key::Canonical;
use schemas::write::{Before, Cell, Change, Origin, Template, TemplateColumn, Transaction};
use schemas::{Form, Lsn, Operation, Position, TableName, header, partition, topic};

/// What stands before every topic.
pub const PREFIX: &str = "shop";
/// `source.name`.
pub const SOURCE: &str = "monolith";
/// `source.db`.
pub const DATABASE: &str = "shop";
/// The time of publishing.
pub const NOW_MS: i64 = 1_767_960_000_456;
/// The transaction of most examples.
pub const TRANSACTION: Transaction = Transaction { xid: 771, commit_ms: 1_767_960_000_123 };

/// A record as it is handed to Kafka.
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub key: Option<String>,
    pub value: Option<String>,
    pub headers: Vec<(&'static str, String)>,
}

/// One golden file: records that follow each other, or notices.
pub struct Example {
    pub name: &'static str,
    pub about: &'static str,
    pub records: Vec<Record>,
    pub notices: Vec<String>,
}

impl Example {
    pub fn of_records(name: &'static str, about: &'static str, records: impl IntoIterator<Item = Record>) -> Example {
        Example { name, about, records: records.into_iter().collect(), notices: Vec::new() }
    }

    /// The file: keys and values stand in it byte for byte, the rest is for the eye.
    pub fn render(&self) -> String {
        let list = |title: &str, items: Vec<String>| {
            if items.is_empty() { String::new() } else { format!(",\n  \"{title}\": [\n{}\n  ]", items.join(",\n")) }
        };
        let records = list("records", self.records.iter().map(Record::render).collect());
        let notices = list("notices", self.notices.iter().map(|notice| format!("    {notice}")).collect());
        format!("{{\n  \"about\": {}{records}{notices}\n}}\n", quoted(self.about))
    }
}

impl Record {
    fn render(&self) -> String {
        let headers: Vec<_> = self.headers.iter().map(|(name, text)| format!("\"{name}\":{}", quoted(text))).collect();
        let mut out = String::new();
        for (name, json) in [
            ("topic", quoted(&self.topic)),
            ("partition", self.partition.to_string()),
            ("key", self.key.clone().unwrap_or("null".to_owned())),
            ("value", self.value.clone().unwrap_or("null".to_owned())),
            ("headers", format!("{{{}}}", headers.join(","))),
        ] {
            let comma = if name == "headers" { "" } else { "," };
            writeln!(out, "      \"{name}\": {json}{comma}").expect("a string takes every write");
        }
        format!("    {{\n{out}    }}")
    }
}

pub fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is JSON")
}

/// A cell from its text.
pub fn text(text: &str) -> Cell<'_> {
    Cell::Text(text.as_bytes())
}

/// The n-th change of the examples' transaction at the address `change`.
pub fn at(change: u64, n: u32) -> Position {
    Position { commit: Lsn(24_023_200), change: Lsn(change), n }
}

/// A change of the stream that has neither a row before nor one after.
pub fn change<'a>(operation: Operation, position: Position) -> Change<'a> {
    Change {
        operation,
        position,
        transaction: TRANSACTION,
        origin: Origin::Stream,
        before: Before::None,
        after: None,
        moved: None,
        reselected: &[],
        now_ms: NOW_MS,
    }
}

/// A table of the examples; its topic has two partitions.
pub struct Table {
    pub oid: u32,
    pub name: TableName,
    pub identity: char,
    pub columns: Vec<Column>,
    template: Template,
}

/// How many partitions each topic of the examples has.
pub const PARTITIONS: i32 = 2;

impl Table {
    /// Columns are given as name, type's OID, type's name, modifier; those whose name ends in `*` are the key.
    pub fn new(oid: u32, name: TableName, identity: char, columns: &[(&str, u32, &str, i32)]) -> Table {
        let column = |(name, type_oid, type_name, modifier): &(&str, u32, &str, i32)| Column {
            name: name.trim_end_matches('*').to_owned(),
            type_oid: *type_oid,
            type_name: (*type_name).to_owned(),
            modifier: *modifier,
            key: name.ends_with('*'),
        };
        let columns: Vec<_> = columns.iter().map(column).collect();
        let template = |column: &Column| TemplateColumn {
            name: column.name.clone(),
            form: Form::of_type(column.type_oid),
            key: column.key,
            canonical: Canonical::of_type(column.type_oid),
        };
        let template = Template::new(SOURCE, DATABASE, &name, columns.iter().map(template).collect());
        Table { oid, name, identity, columns, template }
    }

    pub fn topic(&self) -> String {
        topic::of_table(PREFIX, &self.name)
    }

    pub fn key(&self) -> Vec<String> {
        self.columns.iter().filter(|column| column.key).map(|column| column.name.clone()).collect()
    }

    /// The number over all that decides how its rows are read.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut builder = fingerprint::Builder::default();
        builder
            .field(&self.oid.to_le_bytes())
            .field(self.name.schema.as_bytes())
            .field(self.name.table.as_bytes())
            .field(&[self.identity as u8]);
        for column in &self.columns {
            builder
                .field(&[u8::from(column.key || self.identity == 'f')])
                .field(column.name.as_bytes())
                .field(&column.type_oid.to_le_bytes())
                .field(&column.modifier.to_le_bytes());
        }
        builder.finish()
    }

    /// The record of a change of the row whose key stands in `key`.
    pub fn record(&self, seq: u64, change: &Change<'_>, key: &[Cell<'_>]) -> Record {
        let mut record = self.tombstone(seq, change.position, key);
        let mut value = Vec::new();
        self.template.value(change, &mut value);
        record.value = Some(String::from_utf8(value).expect("JSON is UTF-8"));
        record.headers.push((header::SCHEMA, self.fingerprint().to_string()));
        record
    }

    /// The record without value that follows a delete.
    pub fn tombstone(&self, seq: u64, position: Position, cells: &[Cell<'_>]) -> Record {
        let (mut key, mut canonical) = (Vec::new(), Vec::new());
        self.template.key(cells, &mut key);
        self.template.canonical_key(cells, &mut canonical);
        Record {
            topic: self.topic(),
            partition: partition::of_key(&canonical, PARTITIONS),
            key: Some(String::from_utf8(key).expect("JSON is UTF-8")),
            value: None,
            headers: vec![(header::POSITION, position.to_string()), (header::SEQ, seq.to_string())],
        }
    }
}

/// `public.users`, replica identity default.
pub fn users() -> Table {
    let columns = [("id*", 20, "bigint", -1), ("name", 25, "text", -1), ("bio", 25, "text", -1)];
    Table::new(16_385, TableName::new("public", "users"), 'd', &columns)
}

/// `shop.orders`, replica identity full.
pub fn orders() -> Table {
    let columns = [
        ("id*", 20, "bigint", -1),
        ("state", 16_391, "shop.order_state", -1),
        ("total", 1700, "numeric(12,2)", 786_438),
        ("note", 25, "text", -1),
        ("placed_at", 1184, "timestamp with time zone", -1),
    ];
    Table::new(16_399, TableName::new("shop", "orders"), 'f', &columns)
}
