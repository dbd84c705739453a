//! `tributary snapshot start`: loads tables again, a range of one, or single rows by their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use schemas::TableName;
use schemas::state::{LoadKind, Table};
use serde::Serialize;
use source::ask;
use source::command::{BYTES_MAX, Command, KEYS_MAX, LISTED_BYTES_MAX, Wish, weight};

use super::{Desk, Fate, Loads, keys, no_source};
use crate::Outcome;
use crate::args::SnapshotStart;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};

/// Room for what stands in a message beside the keys.
const ENVELOPE_BYTES: usize = 1 << 10;

/// A load that was ordered.
#[derive(Debug, Serialize)]
struct Ordered {
    load: String,
    /// Whether the running source has taken it up; none: not waited for, or no source runs.
    taken_up: Option<bool>,
    /// What to know of it.
    note: String,
}

/// Orders it, and waits until the source has taken it up.
pub(crate) async fn run(configuration: &Configuration, arguments: SnapshotStart) -> Result<Outcome, Failure> {
    let desk = Desk::open(configuration, "snapshot start").await?;
    let wishes = desk.wishes(&arguments).await?;
    let mut ordered = Vec::new();
    for wish in wishes {
        let id = ask::new_id();
        let command = Command { id: id.clone(), wish };
        let (at, fate) = desk.order(&command, &id, !arguments.no_wait).await?;
        let (taken_up, note) = match fate {
            None => (None, format!("ordered at {at}")),
            Some(Fate::NoSource) => (None, no_source(&desk.source.slot)),
            Some(Fate::Met(met)) if met.load.is_some() || met.is_followed == Some(true) => {
                (Some(true), "taken up: `tributary snapshot status` shows how far it is".to_owned())
            }
            Some(Fate::Met(_)) => (Some(false), "not taken up: the log of the source says why".to_owned()),
        };
        ordered.push(Ordered { load: id, taken_up, note });
    }
    if arguments.form.json {
        print_json(&Loads { loads: &ordered });
    } else {
        let lines: Vec<String> = ordered.iter().map(|one| format!("load {}\n  {}", one.load, one.note)).collect();
        print(&lines.join("\n"));
    }
    let is_refused = ordered.iter().any(|one| one.taken_up == Some(false));
    Ok(if is_refused { Outcome::Finding } else { Outcome::Fine })
}

/// Orders rows by the keys that records have, of several tables.
pub(crate) async fn order_keys(
    configuration: &Configuration,
    by_table: BTreeMap<TableName, BTreeSet<String>>,
    dry_run: bool,
) -> Result<(), Failure> {
    let desk = Desk::open(configuration, "dlq resync").await?;
    let (mut wishes, mut taken) = (Vec::new(), desk.state.listed_bytes());
    for (name, keys) in by_table {
        let (_, table) = desk.table(&name)?;
        wishes.extend(desk.listed(table, keys, &mut taken)?);
    }
    for wish in wishes.into_iter().filter(|_| !dry_run) {
        let id = ask::new_id();
        desk.order(&Command { id: id.clone(), wish }, &id, false).await?;
    }
    Ok(())
}

impl Desk<'_> {
    /// What the arguments come to, each small enough for one message.
    async fn wishes(&self, arguments: &SnapshotStart) -> Result<Vec<Wish>, Failure> {
        let tables = arguments.tables.iter().map(|name| self.table(name)).collect::<Result<Vec<_>, _>>()?;
        let is_keys = !arguments.keys.is_empty() || arguments.keys_file.is_some();
        if is_keys {
            let (_, table) = one(&tables, "--key and --keys-file")?;
            return self.of_keys(table, arguments);
        }
        for (oid, table) in &tables {
            self.is_free(*oid, &table.name)?;
        }
        if arguments.from.is_some() || arguments.to.is_some() {
            let (oid, table) = one(&tables, "--from and --to")?;
            return Ok(vec![self.of_range(oid, table, arguments).await?]);
        }
        let mode = arguments.mode.unwrap_or_default().into();
        Ok(vec![Wish::Load { tables: tables.iter().map(|(_, table)| table.name.clone()).collect(), mode }])
    }

    fn table(&self, name: &TableName) -> Result<(u32, &Table), Failure> {
        let found = self.state.tables().find(|(_, table)| table.name == *name);
        found.ok_or_else(|| Failure::NotPublished { table: name.clone(), prefix: self.configuration.prefix.clone() })
    }

    /// Only one load of a table's rows can be under way.
    fn is_free(&self, oid: u32, table: &TableName) -> Result<(), Failure> {
        let is_of = |load: &schemas::state::Load| load.kind != Some(LoadKind::Keys) && load.tables.contains(&oid);
        match self.state.loads().find(|(_, load)| is_of(load)) {
            None => Ok(()),
            Some((load, _)) => Err(Failure::Loading { table: table.clone(), load: load.to_owned() }),
        }
    }

    async fn of_range(&self, oid: u32, table: &Table, arguments: &SnapshotStart) -> Result<Wish, Failure> {
        let mut order = ask::key_order(&self.client, oid).await?;
        if order.len() != table.key.len() || !order.iter().all(|column| table.key.contains(column)) {
            order.clone_from(&table.key);
        }
        let end = |text: &Option<String>| {
            let key = text.as_ref().map(|text| keys::object(text, &table.key)).transpose();
            let key = key.map_err(|fault| Failure::Key { table: table.name.clone(), fault })?;
            Ok::<_, Failure>(key.map(|object| keys::texts(&object, &order)))
        };
        let (from, upto) = (end(&arguments.from)?, end(&arguments.to)?);
        let publication = &self.source.publication;
        if let (Some(from), Some(upto)) = (&from, &upto)
            && !ask::is_range(&self.client, publication, oid, from, upto).await?
        {
            return Err(Failure::NoRange(table.name.clone()));
        }
        let after = match &from {
            None => None,
            Some(key) => ask::in_front_of(&self.client, publication, oid, key).await?,
        };
        if after.is_none() && upto.is_none() {
            return Err(Failure::WholeRange(table.name.clone()));
        }
        Ok(Wish::Range { table: table.name.clone(), after, upto })
    }

    fn of_keys(&self, table: &Table, arguments: &SnapshotStart) -> Result<Vec<Wish>, Failure> {
        let mut texts = arguments.keys.clone();
        if let Some(file) = &arguments.keys_file {
            texts.extend(read(file)?.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        let mut all = BTreeSet::new();
        for (n, text) in texts.iter().enumerate() {
            let key = keys::object(text, &table.key);
            let fault = |fault| Failure::Key { table: table.name.clone(), fault: format!("key {}: {fault}", n + 1) };
            all.insert(key.map_err(fault)?);
        }
        if all.is_empty() {
            return Err(Failure::Key { table: table.name.clone(), fault: "there is none".to_owned() });
        }
        self.listed(table, all, &mut self.state.listed_bytes())
    }

    /// The messages that order keys of a table; none if they are more than the source keeps, beside what is `taken` already.
    fn listed(&self, table: &Table, keys: BTreeSet<String>, taken: &mut usize) -> Result<Vec<Wish>, Failure> {
        let count = keys.len();
        let parts = parts(keys);
        let asked: usize = parts.iter().map(|part| weight(part)).sum();
        if *taken + asked > LISTED_BYTES_MAX {
            return Err(Failure::ManyKeys { table: table.name.clone(), count, asked, listed: *taken });
        }
        *taken += asked;
        let keys = |keys| Wish::Keys { table: table.name.clone(), keys };
        Ok(parts.into_iter().map(keys).collect())
    }
}

/// Cuts keys into parts that each go into one message.
fn parts(keys: BTreeSet<String>) -> Vec<Vec<String>> {
    let (mut parts, mut part, mut bytes): (Vec<Vec<String>>, Vec<String>, usize) = (Vec::new(), Vec::new(), 0);
    for key in keys {
        if part.len() == KEYS_MAX || bytes + key.len() + 1 > BYTES_MAX - ENVELOPE_BYTES {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += key.len() + 1;
        part.push(key);
    }
    parts.push(part);
    parts
}

fn one<'t>(tables: &[(u32, &'t Table)], option: &'static str) -> Result<(u32, &'t Table), Failure> {
    match tables {
        [one] => Ok(*one),
        _ => Err(Failure::OneTable(option)),
    }
}

/// A file, or standard input where it is called `-`.
fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(file).map(|read| text = read)
    };
    read.map_err(|cause| Failure::Read { file: file.to_owned(), cause })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_cut_into_messages_that_a_source_reads() {
        let many: BTreeSet<String> = (0..2_500).map(|n| format!("{{\"id\":{n}}}")).collect();
        let cut = parts(many.clone());
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [1_000, 1_000, 500]);
        assert_eq!(cut.into_iter().flatten().collect::<BTreeSet<_>>(), many);
        let large: BTreeSet<String> = (0..9).map(|n| format!("{{\"id\":\"{n}{}\"}}", "x".repeat(100_000))).collect();
        for part in parts(large) {
            let table = TableName::new("public", "users");
            let message = Command { id: ask::new_id(), wish: Wish::Keys { table, keys: part } }.message();
            assert!(message.len() <= BYTES_MAX && matches!(Command::read(message.as_bytes()), Some(Ok(_))));
        }
    }
}
