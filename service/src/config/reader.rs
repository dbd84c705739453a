//! Reads the keys of one section, notes what is wrong, and goes on.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::Fault;
use super::error::Place;
use super::tree::{Entry, Table};
use super::value::{FromValue, Value};

/// One section of a document.
///
/// Keys that nobody asked for become faults when the reader is dropped: forgetting [`Reader::finish`] cannot let a
/// misspelt key pass.
pub struct Reader<'d> {
    faults: &'d RefCell<Vec<Fault>>,
    /// The section, if it is there.
    table: Option<&'d Table>,
    /// The section's own path, empty for the root.
    path: String,
    asked: BTreeSet<String>,
}

impl<'d> Reader<'d> {
    pub(super) fn new(faults: &'d RefCell<Vec<Fault>>, table: Option<&'d Table>, path: String) -> Reader<'d> {
        Reader { faults, table, path, asked: BTreeSet::new() }
    }

    /// The section's path, as in `groups.rdb`; empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The section `key`. One that is absent reads as empty, so that its required keys are reported.
    pub fn section(&mut self, key: &str) -> Reader<'d> {
        let table = self.table_at(key);
        Reader::new(self.faults, table, self.join(key))
    }

    /// The section `key` if it is there.
    pub fn optional_section(&mut self, key: &str) -> Option<Reader<'d>> {
        let table = self.table_at(key)?;
        Some(Reader::new(self.faults, Some(table), self.join(key)))
    }

    /// The sections within `key`, by name: `[groups.rdb]`, `[groups.redis]`.
    pub fn named_sections(&mut self, key: &str) -> Vec<(String, Reader<'d>)> {
        let Some(table) = self.table_at(key) else { return Vec::new() };
        // Its names are the user's own, so this reader has none that it did not ask for.
        let mut outer = Reader::new(self.faults, Some(table), self.join(key));
        let names: Vec<String> = table.entries.keys().cloned().collect();
        names.into_iter().filter_map(|name| outer.optional_section(&name).map(|inner| (name, inner))).collect()
    }

    /// The keys of this section, where they are the user's own names.
    pub fn names(&self) -> Vec<String> {
        self.table.map(|table| table.entries.keys().cloned().collect()).unwrap_or_default()
    }

    /// Whether `key` is given here.
    pub fn has(&mut self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// The value of `key`. Missing or wrong, it is a fault and `T`'s default stands in until the document is refused.
    pub fn required<T: FromValue + Default>(&mut self, key: &str) -> T {
        if !self.has(key) {
            self.missing(key);
        }
        self.optional(key).unwrap_or_default()
    }

    /// The value of `key`, if it is given.
    pub fn optional<T: FromValue>(&mut self, key: &str) -> Option<T> {
        let entry = self.entry(key)?;
        T::from_value(&entry.value).map_err(|message| self.fault(key, message)).ok()
    }

    /// The value of `key`, or `default` if it is not given.
    pub fn or<T: FromValue>(&mut self, key: &str, default: T) -> T {
        self.optional(key).unwrap_or(default)
    }

    /// As [`Reader::or`], and a value outside `range` is a fault.
    pub fn within<T>(&mut self, key: &str, default: T, range: RangeInclusive<T>) -> T
    where
        T: FromValue + PartialOrd + Display,
    {
        let value = self.or(key, default);
        if !range.contains(&value) {
            self.fault(key, format!("{value} is not within {} and {}", range.start(), range.end()));
        }
        value
    }

    /// The text at `key` as a `T`, if it is given. What `T` says about a wrong one becomes the fault.
    pub fn parsed<T>(&mut self, key: &str) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        let text: String = self.optional(key)?;
        text.parse().map_err(|error: T::Err| self.fault(key, error)).ok()
    }

    /// As [`Reader::parsed`], and a missing one is a fault.
    pub fn parsed_required<T>(&mut self, key: &str) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        if !self.has(key) {
            self.missing(key);
        }
        self.parsed(key)
    }

    /// The list at `key` as `T`s; empty if it is not given. Each wrong item is a fault of its own.
    pub fn parsed_list<T>(&mut self, key: &str) -> Vec<T>
    where
        T: FromStr<Err: Display>,
    {
        let texts: Vec<String> = self.optional(key).unwrap_or_default();
        let parse = |text: &String| text.parse().map_err(|e: T::Err| self.fault(key, format!("{text:?}: {e}"))).ok();
        texts.iter().filter_map(parse).collect()
    }

    /// Notes that what `key` says cannot be used. `message` says why and what to write; it must hold no secret.
    pub fn fault(&self, key: &str, message: impl Display) {
        let entry = self.table.and_then(|table| table.entries.get(key));
        self.note(key, entry.map_or(Place::Nowhere, |entry| entry.place.clone()), message.to_string());
    }

    /// Ends the section: every key in it that nobody asked for is a fault.
    pub fn finish(self) {}

    fn entry(&mut self, key: &str) -> Option<&'d Entry> {
        self.asked.insert(key.to_owned());
        self.table?.entries.get(key)
    }

    fn table_at(&mut self, key: &str) -> Option<&'d Table> {
        match &self.entry(key)?.value {
            Value::Table(table) => Some(table),
            other => {
                self.fault(key, format!("expected the section [{}], found {}", self.join(key), other.kind()));
                None
            }
        }
    }

    fn missing(&self, key: &str) {
        let path = self.join(key);
        let variable = path.to_uppercase().replace('.', "__").replace('-', "_");
        self.fault(key, format!("missing: give it in the file, or as {}{variable}", super::PREFIX));
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn note(&self, key: &str, place: Place, message: String) {
        self.faults.borrow_mut().push(Fault { key: self.join(key), place, message });
    }

    /// What to say of a key that nobody asked for.
    fn unknown(&self, key: &str, entry: &Entry) -> String {
        let what = if matches!(entry.value, Value::Table(_)) { "section" } else { "key" };
        match self.asked.iter().map(|name| (strsim::damerau_levenshtein(name, key), name)).min() {
            Some((distance, name)) if distance <= 1 + key.len() / 4 => {
                format!("unknown {what}: did you mean {name:?}?")
            }
            _ if self.asked.is_empty() => format!("unknown {what}"),
            _ => {
                let names: Vec<&str> = self.asked.iter().map(String::as_str).collect();
                format!("unknown {what}: known here are {}", names.join(", "))
            }
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let Some(table) = self.table else { return };
        for (key, entry) in table.entries.iter().filter(|(key, _)| !self.asked.contains(*key)) {
            // Outside any section a variable that nobody asked for may be an orchestrator's.
            let foreign =
                self.path.is_empty() && matches!((&entry.place, &entry.value), (Place::Variable(_), Value::Text(_)));
            if !foreign {
                self.note(key, entry.place.clone(), self.unknown(key, entry));
            }
        }
    }
}
