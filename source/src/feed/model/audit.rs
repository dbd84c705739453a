//! What a reader of the topics has at every commit of the database, and what he should have.

use std::collections::BTreeMap;

use schemas::event::Control;
use schemas::{ChangeEvent, Operation};

use super::broker::{self, Kept, Place};
use super::process::{PARTITIONS, TOPICS};
use super::server::{Op, Row, Rows};
use super::wire::{TABLES, described};
use super::world::{Broken, Outside};
use crate::command::{Command, Wish};
use crate::relation::fingerprint;

/// A row as a reader puts it together.
#[derive(Clone, Debug)]
struct Have {
    name: String,
    /// `None`: not known.
    bio: Option<String>,
    /// Read after the fact, so it may be newer than its place, until the end.
    picked: bool,
}

impl Have {
    fn is(&self, row: &Row, strict: bool) -> bool {
        self.name == row.name && (self.bio.as_ref() == Some(&row.bio) || (self.picked && !strict))
    }
}

/// One table as its topic tells it.
#[derive(Debug, Default)]
struct Told {
    rows: BTreeMap<u8, Have>,
    loading: bool,
    loaded: bool,
    /// The shape that each partition's last schema event gave.
    shapes: BTreeMap<i32, String>,
    /// How often the table had been altered when the last row was written or read.
    version: u32,
}

/// Folds the topics by key and compares them with the tables at every commit of the primary.
pub(super) fn compare(outside: &Outside) -> Result<(), Broken> {
    let server = &outside.servers[outside.primary];
    if !outside.broker.used.is_subset(&server.lineage.borrow()) {
        return Err(Broken::new("a lost history goes unnoticed"));
    }
    if !broker::all_published(outside, outside.primary, u64::MAX) {
        return Err(Broken::new("a change is in no topic"));
    }
    for table in 0..TABLES.len() {
        let records = records(outside, table);
        counted(&records)?;
        folded(outside, table, &records)?;
        answered(outside, table, &records)?;
    }
    Ok(())
}

/// Each key of a list that was ordered has one answer; none or one, where its table was taken off the list of tables.
fn answered(outside: &Outside, table: usize, records: &[(&Place, &Kept)]) -> Result<(), Broken> {
    let mut answers: BTreeMap<(&str, String), u32> = BTreeMap::new();
    for (_, kept) in records {
        if let (Some(list), Some(value)) = (&kept.answer, &kept.value) {
            let event = ChangeEvent::decode(value).expect("written by us");
            let columns = event.after.as_ref().or(event.before.as_ref()).expect("every event has a row");
            let key = columns.get("id").flatten().expect("every row has its key");
            *answers.entry((list, format!("{{\"id\":{key}}}"))).or_default() += 1;
        }
    }
    if answers.values().any(|count| *count > 1) {
        return Err(Broken::new("a key of a list is answered twice"));
    }
    let server = &outside.servers[outside.primary];
    for transaction in server.wal.iter().filter(|other| outside.broker.stays_listed(table, other.commit)) {
        for change in transaction.changes.iter().filter(|_| transaction.commit >= outside.broker.start) {
            let Op::Message(content) = &change.op else { continue };
            let Some(Ok(Command { id, wish: Wish::Keys { table: of, keys } })) = Command::read(content.as_bytes())
            else {
                continue;
            };
            if of.table == TABLES[table].1 && keys.into_iter().any(|key| !answers.contains_key(&(&id, key))) {
                return Err(Broken::new("a key of a list has no answer"));
            }
        }
    }
    Ok(())
}

/// The records of a table's topic in the order of their positions.
fn records(outside: &Outside, table: usize) -> Vec<(&Place, &Kept)> {
    let log = outside.broker.log.iter().filter(|((topic, _), _)| topic == TOPICS[table]);
    let mut records: Vec<_> = log.flat_map(|(place, log)| log.iter().map(move |kept| (place, kept))).collect();
    records.sort_by_key(|(_, kept)| kept.position);
    records
}

/// A control event stands in every partition, and a tombstone behind every delete.
fn counted(records: &[(&Place, &Kept)]) -> Result<(), Broken> {
    let mut controls: BTreeMap<_, i32> = BTreeMap::new();
    for (_, kept) in records {
        if let Some(kind) = &kept.control {
            *controls.entry((kept.position, kind)).or_default() += 1;
        }
    }
    if controls.values().any(|count| *count != PARTITIONS) {
        return Err(Broken::new("a control event does not stand once in every partition"));
    }
    let of = |op| records.iter().filter(|(_, kept)| kept.control.is_none() && kept.op() == op).count();
    if of(Some(b'd')) == of(None) { Ok(()) } else { Err(Broken::new("a delete without its tombstone")) }
}

fn folded(outside: &Outside, table: usize, records: &[(&Place, &Kept)]) -> Result<(), Broken> {
    let server = &outside.servers[outside.primary];
    let mut truth: Rows = server.base.clone();
    let mut told = Told { loaded: !outside.weather.loads, ..Told::default() };
    let mut records = records.iter().peekable();
    let before = server.wal.partition_point(|transaction| transaction.commit < outside.broker.start);
    server.wal[..before].iter().for_each(|transaction| transaction.play(&mut truth));
    if !outside.weather.loads {
        // Nothing is copied: the reader begins with what was there.
        let have = |row: &Row| Have { name: row.name.clone(), bio: Some(row.bio.clone()), picked: false };
        told.rows = truth[table].iter().map(|(key, row)| (*key, have(row))).collect();
    }
    for transaction in &server.wal[before..] {
        transaction.play(&mut truth);
        if !outside.broker.is_listed(table, transaction.commit) {
            (told.loading, told.loaded) = (false, false);
        }
        while let Some(((_, partition), kept)) =
            records.next_if(|(_, kept)| kept.position.commit.0 <= transaction.commit)
        {
            told.take(table, *partition, kept, &truth[table])?;
        }
        told.is(&truth[table], false)?;
    }
    if records.next().is_some() || (told.loading && outside.weather.loads) {
        return Err(Broken::new("a load without its end"));
    }
    told.is(&truth[table], true)
}

impl Told {
    fn take(&mut self, table: usize, partition: i32, kept: &Kept, truth: &BTreeMap<u8, Row>) -> Result<(), Broken> {
        let Some(value) = &kept.value else { return Ok(()) };
        let event = ChangeEvent::decode(value).expect("written by us");
        match event.control {
            Some(Control::LoadBegin { .. }) => self.loading = true,
            Some(Control::LoadEnd { .. }) => (self.loading, self.loaded) = (false, true),
            Some(Control::Schema { fingerprint, .. }) => drop(self.shapes.insert(partition, fingerprint.to_string())),
            Some(Control::Truncate { .. }) => self.rows.clear(),
            #[expect(unreachable_patterns, reason = "what else there is concerns no row")]
            Some(_) => {}
            None => return self.row(table, partition, kept, &event, truth),
        }
        Ok(())
    }

    fn row(
        &mut self,
        table: usize,
        partition: i32,
        kept: &Kept,
        event: &ChangeEvent<'_>,
        truth: &BTreeMap<u8, Row>,
    ) -> Result<(), Broken> {
        if !self.loading && !self.loaded {
            return Err(Broken::new("a row before the load begins"));
        }
        let columns = event.after.as_ref().or(event.before.as_ref()).expect("every event has a row");
        let text = |name| columns.get(name).flatten();
        let key: u8 = text("id").and_then(|key| key.parse().ok()).expect("every row has its key");
        let Some((name, version)) = text("name").and_then(|name| name.split_once('/')) else {
            self.rows.remove(&key);
            let is_wrong = kept.answer.is_some() && self.loaded && truth.contains_key(&key);
            return if is_wrong { Err(Broken::new("a row is answered as gone that is there")) } else { Ok(()) };
        };
        let version = version.parse().expect("a number");
        if version < self.version {
            return Err(Broken::new("a row of an older shape behind one of a newer"));
        }
        self.version = version;
        let shape = fingerprint(&described(table, version)).to_string();
        if kept.schema.as_ref() != Some(&shape) || self.shapes.get(&partition) != Some(&shape) {
            return Err(Broken::new("a row without its schema event"));
        }
        let (name, bio) = (name.to_owned(), text("bio").map(str::to_owned));
        match event.operation {
            Operation::Update if bio.is_none() => match self.rows.get_mut(&key) {
                Some(have) => have.name = name,
                None if self.loading => {}
                None => return Err(Broken::new("a partial update without its row")),
            },
            _ => {
                let picked = bio.is_none() || !event.reselected.is_empty();
                self.rows.insert(key, Have { name, bio, picked });
            }
        }
        let exact = |row: &Row| self.rows.get(&key).is_some_and(|have| have.is(row, false));
        // Of a table that is still being copied, whoever wrote to it before it was published is not known to have ended.
        let is_exact = kept.answer.is_none() || self.loaded;
        if event.operation == Operation::Read && is_exact && !truth.get(&key).is_some_and(exact) {
            return Err(Broken::new("a row of a chunk is not the row at its marker"));
        }
        Ok(())
    }

    /// Whether the table is what it should be.
    fn is(&self, truth: &BTreeMap<u8, Row>, strict: bool) -> Result<(), Broken> {
        let same = self.rows.len() == truth.len()
            && truth.iter().all(|(key, row)| self.rows.get(key).is_some_and(|have| have.is(row, strict)));
        if same || !self.loaded { Ok(()) } else { Err(Broken::new("the topic, folded, is not the table")) }
    }
}
