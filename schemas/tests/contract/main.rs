//! The contract, held together: the Rust types, the JSON Schemas and the golden examples say the same, to the last byte.
//!
//!     example (what goes in) ──schemas::write, serde──▶ golden ◀──allows── JSON Schema
//!                                                         └──decodes──▶ Rust type
//!
//! A golden that stands is never written again: its like stands in somebody's topics. For a new example, a run with
//! `TRIBUTARY_WRITE_GOLDENS=1` writes the file that is missing; read it before it is committed.

mod control;
mod example;
mod golden;
mod row;
mod schema;
mod state;
mod value;

use std::collections::BTreeSet;

use schemas::event::{self, Control};
use schemas::state as record;
use schemas::write::ControlEvent;
use schemas::{CONTRACT, ChangeEvent, Columns, Operation, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use example::Example;
use golden::{Golden, Kind};
use schema::{Document, Schemas};

fn examples() -> Vec<Example> {
    [row::examples(), value::examples(), control::examples(), state::examples()].into_iter().flatten().collect()
}

fn goldens() -> Vec<Golden> {
    golden::names().iter().map(|name| Golden::read(name)).collect()
}

#[test]
fn what_is_written_is_the_golden_byte_for_byte() {
    for example in examples() {
        let (path, written) = (golden::path(example.name), example.render());
        if !path.exists() && std::env::var_os("TRIBUTARY_WRITE_GOLDENS").is_some() {
            std::fs::write(&path, &written).expect("the folder of goldens can be written to");
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{}: {error}: run this test with TRIBUTARY_WRITE_GOLDENS=1, and read what it wrote", path.display())
        });
        assert_eq!(written, golden, "what is written differs from {}", path.display());
    }
}

#[test]
fn every_golden_has_its_example() {
    let known: BTreeSet<String> = examples().iter().map(|example| example.name.to_owned()).collect();
    assert_eq!(known, golden::names());
}

#[test]
fn every_golden_is_allowed_by_its_schemas() {
    let schemas = Schemas::load();
    for golden in goldens() {
        for document in golden.documents() {
            schemas.check(&document).unwrap_or_else(|error| panic!("{}: {}: {error}", golden.name, document.schema));
        }
    }
}

/// The schemas say what this version writes, so no member may be called otherwise or be left out.
#[test]
fn no_schema_allows_another_member_or_one_less() {
    let schemas = Schemas::load();
    for golden in goldens() {
        for document in golden.documents() {
            for (what, changed) in document.mutilated() {
                assert!(schemas.check(&changed).is_err(), "{}: {} allows {what}", golden.name, document.schema);
            }
        }
    }
}

#[test]
fn every_member_that_a_schema_names_stands_in_a_golden() {
    let mut seen = BTreeSet::new();
    for document in goldens().iter().flat_map(Golden::documents) {
        schema::members(&document.value, &mut seen);
    }
    let unseen: Vec<_> = Schemas::load().named().into_iter().filter(|name| !seen.contains(name)).collect();
    assert_eq!(unseen, Vec::<String>::new());
}

#[test]
fn what_no_version_writes_is_refused() {
    let schemas = Schemas::load();
    let one = |name: &str, schema: &str| {
        let golden = Golden::read(name);
        golden
            .documents()
            .into_iter()
            .find(|document| document.schema == schema)
            .expect("the golden has such a document")
    };
    let some = || Value::String("x".to_owned());
    for (name, schema, pointer, value) in [
        ("insert", "value.json", "/before", serde_json::json!({"id": 1})),
        ("insert", "value.json", "/after", Value::Null),
        ("insert", "value.json", "/op", Value::from("t")),
        ("insert", "value.json", "/op", Value::from("u")),
        ("insert", "value.json", "/source/snapshot", Value::from("true")),
        ("insert", "value.json", "/source/sequence", some()),
        ("insert", "value.json", "/after/name", serde_json::json!(["x"])),
        ("insert", "key.json", "", serde_json::json!({})),
        ("insert", "key.json", "/id", Value::Null),
        ("insert", "headers.json", "/seq", Value::from("0")),
        ("insert", "headers.json", "/position", Value::from("1.2.3")),
        ("insert", "headers.json", "/schema", some()),
        ("update", "value.json", "/before", Value::Null),
        ("delete", "value.json", "/after", serde_json::json!({"id": 1})),
        ("read", "value.json", "/source/snapshot", Value::from("false")),
        ("load_begin", "control.json", "/op", Value::from("t")),
        ("load_begin", "control.json", "/control/contract", Value::from(CONTRACT + 1)),
        ("truncate", "control.json", "/op", Value::from("m")),
        ("truncate", "control.json", "/control/tables", serde_json::json!([])),
        ("dead_letter", "dead_letter.json", "/class", some()),
        ("dead_letter", "dead_letter.json", "/first_at", Value::from("yesterday")),
        ("notice", "notice.json", "/op", Value::from("m")),
        ("state", "state/key.json", "", some()),
        ("state", "state/stream.json", "/flushed", Value::from(1)),
        ("state", "state/stream.json", "/history/0/0", Value::from(1)),
    ] {
        let mut document = one(name, schema);
        *document.value.pointer_mut(pointer).expect("the golden has such a member") = value;
        assert!(
            schemas.check(&document).is_err(),
            "{schema} allows {pointer} = {}",
            document.value.pointer(pointer).expect("set above")
        );
    }
}

#[test]
fn every_golden_decodes_as_its_rust_type() {
    for golden in goldens() {
        for record in golden.records() {
            match record.kind() {
                Kind::State => state_record(record.key.expect("a state record has a key"), record.value),
                Kind::Row | Kind::Tombstone | Kind::Control | Kind::DeadLetter => event(&record),
            }
        }
    }
}

/// What stands in a topic of events, or in its mirror.
fn event(record: &golden::Record<'_>) {
    let text = |name: &str| record.headers.get(name).map(|text| text.as_bytes());
    let position = header::position(text(header::POSITION)).expect("each record has a position");
    header::seq(text(header::SEQ)).expect("each record has a number");
    if let Some(key) = record.key {
        assert!(!Columns::decode(key.as_bytes()).expect("a key").0.is_empty());
    }
    if let Some(letter) = record.headers.get(schemas::dead_letter::HEADER) {
        same_again::<schemas::dead_letter::DeadLetter>(letter);
    }
    let Some(value) = record.value else { return };
    let event = ChangeEvent::decode(value.as_bytes()).expect("a value");
    assert_eq!(event.source.sequence, event::sequence(position.commit, position.change));
    assert_eq!(event.source.lsn, position.change.0);
    let control = record.headers.get(header::CONTROL);
    assert_eq!(control.map(String::as_str), event.control.as_ref().map(Control::kind));
    assert_eq!(control.is_some(), record.key.is_none());
    assert_eq!(control.is_some(), matches!(event.operation, Operation::Message | Operation::Truncate));
    if let Some(control) = &event.control {
        let again = ControlEvent { op: event.operation, source: event.source, control, ts_ms: event.ts_ms };
        assert_eq!(String::from_utf8_lossy(&again.encode()), value);
    }
}

fn state_record(key: &str, value: Option<&str>) {
    let key: String = serde_json::from_str(key).expect("a golden has the text of the key as a string");
    let parsed: record::Key = key.parse().expect("a key of a state record");
    assert_eq!(parsed.to_string(), key);
    let Some(value) = value else { return };
    match parsed {
        record::Key::Stream => same_again::<record::Stream>(value),
        record::Key::Table(_) => same_again::<record::Table>(value),
        record::Key::Topic(_) => same_again::<record::Topic>(value),
        record::Key::Load(_) => same_again::<record::Load>(value),
        record::Key::LoadTable(..) => same_again::<record::LoadTable>(value),
        record::Key::Seal => same_again::<record::Seal>(value),
        record::Key::Moved(..) => same_again::<record::Moved>(value),
    }
}

/// Read and written again, the text is the same: nothing in it was passed over.
fn same_again<T: DeserializeOwned + serde::Serialize>(json: &str) {
    let read: T = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
    assert_eq!(serde_json::to_string(&read).expect("plain data"), json);
}

#[test]
fn every_value_comes_back_as_the_text_of_the_server() {
    let golden = Golden::read("values");
    let families = value::families();
    assert_eq!(golden.records().len(), families.len());
    for (record, (table, columns)) in golden.records().iter().zip(families) {
        let event = ChangeEvent::decode(record.value.expect("an insert").as_bytes()).expect("a value");
        assert_eq!(event.source.table, table);
        let row = event.after.expect("an insert has a row");
        for (name, _, text) in columns {
            assert_eq!(row.get(&name), Some(text), "{table}.{name}");
        }
    }
}

#[test]
fn every_schema_is_one() {
    for (name, schema) in schema::files() {
        jsonschema::draft202012::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
    }
}

impl Golden {
    /// Every part of it that a schema speaks of.
    fn documents(&self) -> Vec<Document> {
        let notice = |json: &str| Document::new("notice.json", json);
        self.records()
            .iter()
            .flat_map(golden::Record::documents)
            .chain(self.notices().into_iter().map(notice))
            .collect()
    }
}
