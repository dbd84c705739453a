//! The document as a tree that still knows where everything stands. The only place that knows TOML.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::Fault;
use super::error::Place;
use super::value::Value;

/// A section: keys and what they hold.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(super) entries: BTreeMap<String, Entry>,
}

/// A value and where it was given.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) place: Place,
}

impl Table {
    /// Reads TOML, or says what is wrong with it, line by line.
    pub(super) fn parse(text: &str) -> Result<Table, Vec<Fault>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            return Ok(convert(table.get_ref(), text));
        }
        // The library's own printing shows the line, which may hold a password.
        let fault = |error: &toml::de::Error| Fault {
            key: String::new(),
            place: error.span().map_or(Place::Nowhere, |span| Place::Line(line(text, span.start))),
            message: error.message().to_owned(),
        };
        Err(errors.iter().map(fault).collect())
    }

    /// Puts what an environment variable says over what the file says. `path` is its name without our prefix.
    pub(super) fn overlay(&mut self, variable: &str, path: &str, text: String) -> Result<(), Fault> {
        let place = Place::Variable(variable.to_owned());
        let refuse = |message: String| Fault { key: String::new(), place: place.clone(), message };
        let mut names: Vec<&str> = path.split("__").collect();
        if names.iter().any(|name| name.is_empty()) {
            return Err(refuse("names no key: expected TRIBUTARY_<SECTION>__<KEY>".to_owned()));
        }
        let key = names.pop().expect("a split has at least one part");
        let mut table = self;
        for name in names {
            let name = table.written(name);
            let entry = table.entries.entry(name.clone());
            let entry = entry.or_insert_with(|| Entry { value: Value::Table(Table::default()), place: place.clone() });
            match &mut entry.value {
                Value::Table(inner) => table = inner,
                _ => return Err(refuse(format!("{name} is no section"))),
            }
        }
        let key = table.written(key);
        table.entries.insert(key, Entry { value: Value::Text(text), place });
        Ok(())
    }

    /// The name as the file writes it: a variable's name has neither lower case nor hyphens.
    fn written(&self, name: &str) -> String {
        let plain = |name: &str| name.to_lowercase().replace('-', "_");
        let name = plain(name);
        self.entries.keys().find(|key| plain(key) == name).cloned().unwrap_or(name)
    }
}

fn convert(table: &DeTable<'_>, text: &str) -> Table {
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<_>)| {
        let place = Place::Line(line(text, key.span().start));
        (
            std::borrow::Cow::into_owned(Clone::clone(key.get_ref())),
            Entry { value: value_of(value.get_ref(), text), place },
        )
    };
    Table { entries: table.iter().map(entry).collect() }
}

fn value_of(value: &DeValue<'_>, text: &str) -> Value {
    match value {
        DeValue::String(string) => Value::String(string.clone().into_owned()),
        // A number beyond 64 bits is none that a key of ours takes.
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::Float(f64::INFINITY), Value::Integer),
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Datetime(_) => Value::Datetime,
        DeValue::Array(items) => Value::Array(items.iter().map(|item| value_of(item.get_ref(), text)).collect()),
        DeValue::Table(table) => Value::Table(convert(table, text)),
    }
}

/// The line that holds the byte at `offset`, counted from 1.
fn line(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}
