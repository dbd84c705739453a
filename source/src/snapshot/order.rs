//! What the readers are asked to do. The wishes come from the state, and from the stream while it runs.
//!
//! Pure. Says what is to be read, not how.

use schemas::TableName;
use schemas::event::LoadMode;
use schemas::state::{LoadKind, LoadTable};

use crate::state::State;

/// A wish to the readers, obeyed between two chunks.
#[derive(Clone, Debug)]
pub enum Order {
    /// Something is to be read.
    Do(Task),
    /// A load is given up, or paused: what it still wanted is read no more, unless it is ordered again.
    Cancel {
        /// The load's id.
        load: String,
    },
}

/// What is to be read of a table.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its OID.
    pub oid: u32,
    /// Its name when this was asked for.
    pub name: TableName,
    /// How often its load had been ordered before: a chunk of an earlier time counts no more, since what it covers is read again.
    pub round: u32,
    /// All of it, or some rows.
    pub work: Work,
}

/// All of a table, or some of its rows.
#[derive(Clone, Debug)]
pub enum Work {
    /// What a load has not done yet.
    Load {
        /// The load's id.
        load: String,
        /// What it has done.
        done: LoadTable,
        /// Whether the table was added to a stream that was running: then transactions may have begun to write to it before.
        is_added: bool,
    },
    /// The rows with these record keys.
    Keys {
        /// The load that wants them answered; none for rows that moved before the last stop.
        load: Option<String>,
        /// The texts of the records' keys.
        keys: Vec<String>,
    },
}

impl Work {
    /// The load that it belongs to.
    pub fn load(&self) -> Option<&str> {
        match self {
            Work::Load { load, .. } => Some(load),
            Work::Keys { load, .. } => load.as_deref(),
        }
    }
}

/// What a load still has to read; nothing while it is paused.
pub fn of_load(state: &State, id: &str) -> Vec<Task> {
    let Some(load) = state.load(id).filter(|load| !load.paused) else { return Vec::new() };
    let task = |oid: &u32| {
        let name = state.table(*oid)?.name.clone();
        let done = state.load_table(id, *oid).cloned().unwrap_or_default();
        let load_id = id.to_owned();
        let work = match load.kind {
            Some(LoadKind::Keys) => Work::Keys { load: Some(load_id), keys: done.keys },
            kind => {
                let is_added = kind == Some(LoadKind::Added) || load.mode != LoadMode::First;
                Work::Load { load: load_id, done, is_added }
            }
        };
        Some(Task { oid: *oid, name, round: 0, work })
    };
    load.tables.iter().filter_map(task).collect()
}
