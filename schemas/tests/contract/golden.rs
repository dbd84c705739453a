//! Golden files, read: what stood in a topic when this version wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemas::{dead_letter, header};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::schema::Document;

/// Where the golden of a name lies.
pub fn path(name: &str) -> PathBuf {
    folder().join(name).with_extension("json")
}

/// The names of all goldens of this version.
pub fn names() -> BTreeSet<String> {
    let files = std::fs::read_dir(folder()).expect("the goldens lie beside the crate");
    let name = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.expect("a readable folder").path();
        path.file_stem().expect("a file has a name").to_string_lossy().into_owned()
    };
    files.map(name).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/v{}", schemas::CONTRACT))
}

/// A golden file.
pub struct Golden {
    pub name: String,
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    #[serde(rename = "about")]
    _about: String,
    #[serde(borrow, default)]
    records: Vec<Record<'a>>,
    #[serde(borrow, default)]
    notices: Vec<&'a RawValue>,
}

/// A record of a golden; key and value are JSON as it stands there.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<'a> {
    pub topic: String,
    #[serde(rename = "partition")]
    _partition: i32,
    #[serde(borrow, deserialize_with = "raw")]
    pub key: Option<&'a str>,
    #[serde(borrow, deserialize_with = "raw")]
    pub value: Option<&'a str>,
    pub headers: BTreeMap<String, String>,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Row,
    Tombstone,
    Control,
    DeadLetter,
    State,
}

fn raw<'de: 'a, 'a, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'a str>, D::Error> {
    Ok(Option::<&RawValue>::deserialize(deserializer)?.map(RawValue::get))
}

impl Golden {
    pub fn read(name: &str) -> Golden {
        let path = path(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Golden { name: name.to_owned(), text }
    }

    pub fn records(&self) -> Vec<Record<'_>> {
        self.parse().records
    }

    pub fn notices(&self) -> Vec<&str> {
        self.parse().notices.into_iter().map(RawValue::get).collect()
    }

    fn parse(&self) -> File<'_> {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

impl Record<'_> {
    pub fn kind(&self) -> Kind {
        match self.value {
            _ if self.topic.ends_with(".state") => Kind::State,
            _ if self.headers.contains_key(dead_letter::HEADER) => Kind::DeadLetter,
            None => Kind::Tombstone,
            Some(_) if self.headers.contains_key(header::CONTROL) => Kind::Control,
            Some(_) => Kind::Row,
        }
    }

    /// Its parts, each with the schema that speaks of it.
    pub fn documents(&self) -> Vec<Document> {
        let (key, value) = match self.kind() {
            Kind::State => {
                let key: String = serde_json::from_str(self.key.unwrap_or_default()).expect("a state record has a key");
                let parts: Vec<_> = key.split('/').collect();
                let value = match (parts[0], parts.len()) {
                    ("load", 3) => "state/load_table.json".to_owned(),
                    (kind, _) => format!("state/{kind}.json"),
                };
                ("state/key.json", value)
            }
            Kind::Control => ("key.json", "control.json".to_owned()),
            Kind::Row | Kind::Tombstone | Kind::DeadLetter => ("key.json", "value.json".to_owned()),
        };
        let mut documents = Vec::new();
        documents.extend(self.key.map(|json| Document::new(key, json)));
        documents.extend(self.value.map(|json| Document::new(&value, json)));
        if self.kind() != Kind::State {
            let headers = serde_json::to_value(&self.headers).expect("headers are text");
            documents.push(Document { schema: "headers.json".to_owned(), value: headers });
        }
        documents.extend(self.headers.get(dead_letter::HEADER).map(|json| Document::new("dead_letter.json", json)));
        documents
    }
}
