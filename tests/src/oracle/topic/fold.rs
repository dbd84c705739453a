//! The changes of one partition applied in their order, and what must not happen on the way.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Record;
use crate::oracle::tables::Row;

/// The rows of one partition, by the true text of their keys.
#[derive(Default)]
pub(super) struct Partition {
    rows: BTreeMap<String, Row>,
    /// Keys of moved rows that lack columns.
    moved: HashSet<String>,
    loads: HashSet<String>,
    loaded: bool,
}

impl Partition {
    /// What is left.
    pub(super) fn into_rows(self) -> impl Iterator<Item = Row> {
        self.rows.into_values()
    }

    /// One more record, in the partition's order.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), String> {
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
        let wrong = match event.op.as_str() {
            "c" => stands,
            "u" | "d" => !stands,
            "r" => false,
            _ => return Err(record.fault(&format!("has the operation {:?}", event.op))),
        };
        if strict && wrong {
            let state = if stands { "stands already" } else { "is not there" };
            return Err(record.fault(&format!("is {:?} of the key {key}, which {state}", event.op)));
        }
        if event.op == "d" {
            self.moved.remove(&key);
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
        self.rows.insert(key, row);
        Ok(())
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
            "truncate" => self.rows.clear(),
            "load_begin" => {
                self.loads.insert(load()?);
            }
            "load_end" => {
                let id = load()?;
                if !self.loads.remove(&id) {
                    return Err(record.fault(&format!("ends the load {id}, which never began")));
                }
                self.loaded = true;
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
