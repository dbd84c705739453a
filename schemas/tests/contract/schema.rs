//! The JSON Schemas, and documents held against them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jsonschema::{Registry, Validator};
use serde_json::Value;

/// Where the schemas stand for each other; nothing is fetched from there.
const BASE: &str = "https://schemas.invalid/";

/// Members whose own members are columns, whatever their names.
const COLUMNS: &[&str] = &["before", "after", "moved_to", "moved_from", "key"];

/// A part of a golden with the schema that speaks of it.
#[derive(Clone)]
pub struct Document {
    pub schema: String,
    pub value: Value,
}

impl Document {
    pub fn new(schema: &str, json: &str) -> Document {
        let value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        Document { schema: schema.to_owned(), value }
    }

    /// Whether a member of this name need not be there.
    fn is_optional(&self, name: &str) -> bool {
        match name {
            "unchanged" | "reselected" | "moved_to" | "moved_from" | "previous_key" | "sqlstate" | "parked" => true,
            "rows_rewritten" | "routing" | "imprint" | "labels" | "rules" => true,
            "answer" | "traceparent" | "dead-letter" | "since" | "flushed_ms" | "former" => true,
            // The key of a state record is told by its schema; of a list's, the kind and what is left of it.
            "kind" | "paused" | "keys" | "hindered" => self.schema.starts_with("state/load"),
            "ranges_of" => true,
            // A row has the one, a control event the other: which, the headers alone cannot tell.
            "schema" | "control" => self.schema == "headers.json",
            _ => false,
        }
    }

    /// Copies of it, each with one member renamed or left out, and what was done.
    pub fn mutilated(&self) -> Vec<(String, Document)> {
        if self.schema == "key.json" {
            return Vec::new();
        }
        let mut out = Vec::new();
        for (parent, name) in paths(&self.value, "") {
            let edit = |rename: bool| {
                let mut document = self.clone();
                let object = document
                    .value
                    .pointer_mut(&parent)
                    .and_then(Value::as_object_mut)
                    .expect("a path leads to an object");
                let value = object.remove(&name).expect("a path leads to a member");
                if rename {
                    object.insert(format!("{name}_"), value);
                }
                document
            };
            out.push((format!("{parent}/{name} renamed"), edit(true)));
            if !self.is_optional(&name) {
                out.push((format!("{parent}/{name} left out"), edit(false)));
            }
        }
        out
    }
}

/// All members of a document: the pointer to the object that has it, and its name. Columns are not members.
fn paths(value: &Value, at: &str) -> Vec<(String, String)> {
    match value {
        Value::Object(object) => {
            let below = |(name, value): (&String, &Value)| {
                let inside =
                    if COLUMNS.contains(&name.as_str()) { Vec::new() } else { paths(value, &format!("{at}/{name}")) };
                std::iter::once((at.to_owned(), name.clone())).chain(inside).collect::<Vec<_>>()
            };
            object.iter().flat_map(below).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().flat_map(|(i, item)| paths(item, &format!("{at}/{i}"))).collect()
        }
        _ => Vec::new(),
    }
}

/// Adds the names of all members of a document.
pub fn members(value: &Value, into: &mut BTreeSet<String>) {
    into.extend(paths(value, "").into_iter().map(|(_, name)| name));
}

/// Every schema by its name, ready to be held against documents.
pub struct Schemas(BTreeMap<String, Validator>);

impl Schemas {
    pub fn load() -> Schemas {
        let files = files();
        let registry = files.iter().fold(Registry::new(), |registry, (name, schema)| {
            registry.add(format!("{BASE}{name}"), schema).expect("a name is a good address")
        });
        let registry = registry.prepare().expect("every reference leads to a schema");
        let validator = |(name, _): (&String, &Value)| {
            let schema = serde_json::json!({ "$ref": format!("{BASE}{name}") });
            let validator = jsonschema::options().with_registry(&registry).build(&schema);
            (name.clone(), validator.unwrap_or_else(|error| panic!("{name}: {error}")))
        };
        Schemas(files.iter().map(validator).collect())
    }

    pub fn check(&self, document: &Document) -> Result<(), String> {
        self.0[&document.schema]
            .validate(&document.value)
            .map_err(|error| format!("{error} at {}", error.instance_path()))
    }

    /// Every member that any schema names.
    pub fn named(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        files().values().for_each(|schema| properties(schema, &mut names));
        names
    }
}

fn properties(schema: &Value, into: &mut BTreeSet<String>) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Object(named)) = object.get("properties") {
                into.extend(named.keys().cloned());
            }
            object.values().for_each(|below| properties(below, into));
        }
        Value::Array(items) => items.iter().for_each(|below| properties(below, into)),
        _ => {}
    }
}

/// The schemas by their path below `json`.
pub fn files() -> BTreeMap<String, Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("json");
    let mut folders = vec![root.clone()];
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the schemas lie beside the crate") {
            let path: PathBuf = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let name = path.strip_prefix(&root).expect("found below it").to_string_lossy().into_owned();
            let schema = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            files.insert(name, schema);
        }
    }
    files
}
