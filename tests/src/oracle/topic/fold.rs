//! The changes of a topic applied in the order of each partition, and what must not happen on the way.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Event, Record};
use crate::oracle::tables::Row;

/// What a topic tells so far.
#[derive(Default)]
pub struct Fold(BTreeMap<i32, Partition>);

/// A row as it is told.
#[derive(Clone, Copy, Debug)]
pub struct Told<'f> {
    /// Its columns.
    pub row: &'f Row,
    /// Those that the topic cannot know at this place, or knows from later on: a moved row's that were not in the stream.
    pub open: Option<&'f BTreeSet<String>>,
}

impl Fold {
    /// One more record, in the order of its partition.
    pub fn apply(&mut self, record: &Record) -> Result<(), String> {
        self.0.entry(record.partition).or_default().apply(record)
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = Told<'_>> {
        self.0
            .values()
            .flat_map(|partition| partition.rows.iter().map(|(key, row)| Told { row, open: partition.open.get(key) }))
    }

    /// What is left.
    pub fn into_rows(self) -> impl Iterator<Item = Row> {
        self.0.into_values().flat_map(|partition| partition.rows.into_values())
    }

    /// Where the load that began last was begun, by the place of its commit, if it has ended in every partition.
    pub fn loaded_since(&self) -> Option<u64> {
        let mut since = self.0.values().map(|partition| partition.loaded_since);
        let first = since.next()??;
        since.all(|other| other == Some(first)).then_some(first)
    }
}

/// The rows of one partition, by the true text of their keys.
#[derive(Default)]
struct Partition {
    rows: BTreeMap<String, Row>,
    /// Keys of moved rows that lack columns.
    moved: HashSet<String>,
    /// Columns of moved rows that were read beside the stream, or could not be.
    open: HashMap<String, BTreeSet<String>>,
    loads: HashSet<String>,
    loaded: bool,
    /// The load that began last, and where.
    begun: Option<(String, u64)>,
    loaded_since: Option<u64>,
}

impl Partition {
    fn apply(&mut self, record: &Record) -> Result<(), String> {
        if let Some(control) = record.headers.get("control") {
            return self.control(control, record);
        }
        if record.value.is_none() {
            return Ok(());
        }
        let event = record.event()?;
        let key = record.key.clone().ok_or_else(|| record.fault("is a row change without a key"))?;
        let strict = self.loaded && self.loads.is_empty();
        let stands = self.rows.contains_key(&key);
        // What a list of keys is answered with is what stands already: it changes nothing.
        let is_answer = record.headers.contains_key("answer");
        let wrong = match event.op.as_str() {
            "c" => stands,
            "d" if is_answer => stands,
            "u" | "d" => !stands,
            "r" => is_answer && !stands,
            _ => return Err(record.fault(&format!("has the operation {:?}", event.op))),
        };
        if strict && wrong {
            let state = if stands { "stands already" } else { "is not there" };
            return Err(record.fault(&format!("is {:?} of the key {key}, which {state}", event.op)));
        }
        if event.op == "d" {
            self.moved.remove(&key);
            self.open.remove(&key);
            self.rows.remove(&key);
            return Ok(());
        }
        let after = event.after.as_ref().ok_or_else(|| record.fault("has no `after`"))?;
        agrees_with_key(record, &key, after)?;
        let mut row = match event.op.as_str() {
            "u" => self.rows.remove(&key).unwrap_or_default(),
            _ => Row::new(),
        };
        let lacks = event.unchanged.iter().find(|column| !row.contains_key(*column));
        if let Some(column) = lacks {
            // Before the end of a load the chunk to come holds the row. A moved row that was gone when its long columns
            // were asked for never has them: it must go before the end, or the table will differ from what stands here.
            let awaited = !strict && event.op == "u" && row.is_empty();
            let moved = self.moved.contains(&key) || event.moved_from.is_some();
            if awaited {
                return Ok(());
            }
            if !moved {
                return Err(record.fault(&format!("leaves {column} unchanged, which nobody knows")));
            }
            self.moved.insert(key.clone());
        }
        let kept: Vec<String> = row.keys().filter(|column| !after.contains_key(*column)).cloned().collect();
        if let Some(column) = kept.iter().find(|column| !event.unchanged.contains(column)) {
            return Err(record.fault(&format!("neither has the column {column} nor calls it unchanged")));
        }
        row.extend(after.iter().map(|(column, value)| (column.clone(), text_of(value))));
        let is_known = strict && !self.moved.contains(&key) && !self.open.contains_key(&key);
        if is_answer && is_known && self.rows.get(&key) != Some(&row) {
            return Err(record.fault(&format!("answers for the key {key} with another row than stands there")));
        }
        self.leave_open(&key, &event, after);
        self.rows.insert(key, row);
        Ok(())
    }

    /// Which columns are not those of this place: what is written whole closes what was open.
    fn leave_open(&mut self, key: &str, event: &Event, after: &BTreeMap<String, Box<RawValue>>) {
        let mut open = if event.op == "u" { self.open.remove(key).unwrap_or_default() } else { BTreeSet::new() };
        open.retain(|column| !after.contains_key(column));
        if event.op == "c" {
            open.extend(event.reselected.iter().chain(&event.unchanged).cloned());
        }
        if open.is_empty() {
            self.open.remove(key);
        } else {
            self.open.insert(key.to_owned(), open);
        }
    }

    /// The columns of all rows are these from here on: what was dropped goes, and what was added is null until it is sent.
    fn reshape(&mut self, record: &Record) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        #[derive(Deserialize)]
        struct Shape {
            columns: Vec<Named>,
        }
        #[derive(Deserialize)]
        struct Holder {
            control: Shape,
        }
        let holder: Result<Holder, _> = serde_json::from_str(record.value.as_deref().unwrap_or_default());
        let columns = holder.map_err(|cause| record.fault(&format!("has no columns: {cause}")))?.control.columns;
        for row in self.rows.values_mut() {
            row.retain(|name, _| columns.iter().any(|column| column.name == *name));
            for column in &columns {
                row.entry(column.name.clone()).or_default();
            }
        }
        Ok(())
    }

    fn control(&mut self, kind: &str, record: &Record) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Load {
            load: String,
        }
        #[derive(Deserialize)]
        struct Holder {
            control: Load,
        }
        let load = || {
            let holder: Result<Holder, _> = serde_json::from_str(record.value.as_deref().unwrap_or_default());
            holder.map(|holder| holder.control.load).map_err(|cause| record.fault(&format!("names no load: {cause}")))
        };
        match kind {
            "truncate" => {
                self.rows.clear();
                self.open.clear();
            }
            "load_begin" => {
                let id = load()?;
                (self.begun, self.loaded_since) = (Some((id.clone(), record.commit()?)), None);
                self.loads.insert(id);
            }
            "load_end" => {
                let id = load()?;
                if !self.loads.remove(&id) {
                    return Err(record.fault(&format!("ends the load {id}, which never began")));
                }
                self.loaded = true;
                self.loaded_since = self.begun.as_ref().filter(|(begun, _)| *begun == id).map(|(_, at)| *at);
            }
            "schema" => self.reshape(record)?,
            other => return Err(record.fault(&format!("is a control event of the unknown kind {other:?}"))),
        }
        Ok(())
    }
}

fn agrees_with_key(record: &Record, key: &str, after: &BTreeMap<String, Box<RawValue>>) -> Result<(), String> {
    let columns: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(key).map_err(|cause| record.fault(&format!("has the key {key}: {cause}")))?;
    let differs =
        |name: &&String| after.get(*name).map(|value| value.get()) != columns.get(*name).map(|value| value.get());
    match columns.keys().find(differs) {
        Some(name) => Err(record.fault(&format!("has a key {key} that its `after` contradicts in {name}"))),
        None => Ok(()),
    }
}

/// PostgreSQL's own text of a value, by the contract's one rule.
fn text_of(value: &RawValue) -> Option<String> {
    match value.get() {
        "null" => None,
        "true" => Some("t".to_owned()),
        "false" => Some("f".to_owned()),
        text if text.starts_with('"') => serde_json::from_str(text).ok(),
        number => Some(number.to_owned()),
    }
}
