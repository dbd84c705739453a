//! One configuration file, the environment over it, and every fault in it at once.
//!
//!     let document = Document::read(path, std::env::vars())?;
//!     let mut root = document.root();
//!     let prefix: String = root.required("prefix");            // a fault is noted, reading goes on
//!     let kafka = kafka::Config::read(&mut root.section("kafka"));
//!     root.finish();                                            // what nobody asked for is a fault too
//!     document.finish()?;                                       // all of them, or none
//!
//! A variable `TRIBUTARY_<SECTION>__<KEY>` stands over the key `section.key` of the file, `TRIBUTARY_GROUPS__RDB__TABLES`
//! over `groups.rdb.tables`. A variable without `__` stands over a key outside any section if such a key is asked for, and
//! is otherwise left alone: an orchestrator sets the likes of `TRIBUTARY_PORT_9400_TCP` by itself.
//!
//! Knows neither which keys there are nor what they mean.

mod error;
mod reader;
mod secret;
mod tree;
mod value;

use std::cell::RefCell;
use std::path::Path;

pub use error::{Error, Fault};
pub use reader::Reader;
pub use secret::Secret;
pub use value::{FromValue, Value};

use tree::Table;

/// Before every environment variable of ours.
const PREFIX: &str = "TRIBUTARY_";

/// A configuration as it was given, and the faults found in it so far.
#[derive(Debug)]
pub struct Document {
    /// How messages call it.
    name: String,
    root: Table,
    faults: RefCell<Vec<Fault>>,
}

impl Document {
    /// Reads the file at `path` with `env` (such as [`std::env::vars`]) over it.
    pub fn read(path: &Path, env: impl Iterator<Item = (String, String)>) -> Result<Document, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|cause| Error::Read { file: name.clone(), cause })?;
        Document::new(name, &text, env)
    }

    /// The same from a text.
    pub fn parse(text: &str, env: impl Iterator<Item = (String, String)>) -> Result<Document, Error> {
        Document::new("the configuration".to_owned(), text, env)
    }

    fn new(name: String, text: &str, env: impl Iterator<Item = (String, String)>) -> Result<Document, Error> {
        let mut root = Table::parse(text).map_err(|faults| Error::Syntax { file: name.clone(), faults })?;
        let mut faults = Vec::new();
        for (variable, value) in env {
            if let Some(path) = variable.strip_prefix(PREFIX)
                && let Err(fault) = root.overlay(&variable, path, value)
            {
                faults.push(fault);
            }
        }
        Ok(Document { name, root, faults: RefCell::new(faults) })
    }

    /// Reads the keys outside any section, and leads to the sections.
    pub fn root(&self) -> Reader<'_> {
        Reader::new(&self.faults, Some(&self.root), String::new())
    }

    /// Ends the reading. Every fault that was noted, in the order of the file.
    pub fn finish(self) -> Result<(), Error> {
        let mut faults = self.faults.into_inner();
        if faults.is_empty() {
            return Ok(());
        }
        faults.sort_by(|a, b| a.place.cmp(&b.place));
        faults.dedup();
        Err(Error::Faults { file: self.name, faults })
    }
}

#[cfg(test)]
mod tests;
