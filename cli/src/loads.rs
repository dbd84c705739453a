//! Where each published table stands: loaded or not, and what is under way for it.
//!
//!     <prefix>.state ─▶ loads, rows ─┐
//!     groups: lag, errors ───────────┴─▶ waiting · loading · paused · catching up · live · failed
//!
//! Pure.

use schemas::event::LoadMode;
use schemas::state::{Hindrance, LoadKind};
use serde::Serialize;

/// Where a table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// A load is to begin.
    Waiting,
    /// A load is under way.
    Loading,
    /// Nothing is read for it until it is resumed.
    Paused,
    /// All is published, and a group has not done all of it.
    CatchingUp,
    /// All is published and done.
    Live,
    /// Something stands still.
    Failed,
}

impl Stage {
    /// For people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Stage::Waiting => "waiting",
            Stage::Loading => "loading",
            Stage::Paused => "paused",
            Stage::CatchingUp => "catching up",
            Stage::Live => "live",
            Stage::Failed => "failed",
        }
    }
}

/// A load that is under way for a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TableLoad {
    pub(crate) load: String,
    /// What was ordered; none where the source began it by itself.
    pub(crate) kind: Option<LoadKind>,
    pub(crate) mode: LoadMode,
    pub(crate) paused: bool,
    /// Rows published so far.
    pub(crate) rows: u64,
    /// How many are expected; 0: not known.
    pub(crate) rows_estimated: u64,
    /// Of a list, keys that are not answered yet.
    pub(crate) keys_left: Option<usize>,
    /// Why it did not go on when that was last tried.
    pub(crate) hindered: Option<Hindrance>,
}

impl TableLoad {
    /// How much of it is done, from 0 to 100, where that can be said. An estimate may be too low, so never all of it.
    pub(crate) fn percent(&self) -> Option<u64> {
        (self.rows_estimated > 0).then(|| (self.rows.saturating_mul(100) / self.rows_estimated).min(99))
    }

    fn stage(&self) -> Stage {
        match self {
            TableLoad { paused: true, .. } => Stage::Paused,
            _ if self.fault().is_some() => Stage::Failed,
            TableLoad { rows: 0, .. } => Stage::Waiting,
            _ => Stage::Loading,
        }
    }

    /// How far it is, in words.
    pub(crate) fn words(&self) -> String {
        let of = match self.rows_estimated {
            0 => String::new(),
            rows => format!(" of about {rows}"),
        };
        let percent = self.percent().map_or_else(String::new, |percent| format!(" ({percent} %)"));
        let waits = self.hindered.as_ref().map_or_else(String::new, |hindrance| format!(", waits: {}", hindrance.why));
        match self.keys_left {
            Some(left) => format!("{} of {} keys answered{waits}", self.rows, self.rows + left as u64),
            None => format!("{} rows{of}{percent}{waits}", self.rows),
        }
    }

    /// Why it stands still until a person does something.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.hindered.as_ref().filter(|hindrance| hindrance.is_fault).map(|hindrance| hindrance.why.as_str())
    }
}

/// The loads of a table, by the source's state.
pub(crate) fn of_table(state: &source::State, oid: u32) -> Vec<TableLoad> {
    let load = |(id, load): (&str, &schemas::state::Load)| {
        let done = state.load_table(id, oid).cloned().unwrap_or_default();
        TableLoad {
            load: id.to_owned(),
            kind: load.kind,
            mode: load.mode,
            paused: load.paused,
            rows: done.rows,
            rows_estimated: done.rows_estimated,
            keys_left: (load.kind == Some(LoadKind::Keys)).then_some(done.keys.len()),
            hindered: done.hindered,
        }
    };
    state.loads().filter(|(_, load)| load.tables.contains(&oid)).map(load).collect()
}

/// Where a table stands with these loads. `lag` is what a group has not done of its topic; `fault` what stands still.
pub(crate) fn stage(loads: &[TableLoad], lag: Option<u64>, fault: Option<&str>) -> Stage {
    if fault.is_some() {
        return Stage::Failed;
    }
    let of_rows = loads.iter().find(|load| load.kind != Some(LoadKind::Keys)).map(TableLoad::stage);
    of_rows.unwrap_or(if lag.is_some_and(|lag| lag > 0) { Stage::CatchingUp } else { Stage::Live })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn load(rows: u64, rows_estimated: u64) -> TableLoad {
        let (load, mode) = ("a1".to_owned(), LoadMode::Replace);
        TableLoad { load, kind: None, mode, paused: false, rows, rows_estimated, keys_left: None, hindered: None }
    }

    #[test]
    fn a_table_stands_where_its_loads_and_its_groups_say() {
        assert_eq!(stage(&[], Some(0), None), Stage::Live);
        assert_eq!(stage(&[], None, None), Stage::Live, "nobody takes it");
        assert_eq!(stage(&[], Some(3), None), Stage::CatchingUp);
        assert_eq!(stage(&[load(0, 10)], Some(3), None), Stage::Waiting);
        assert_eq!(stage(&[load(5, 10)], Some(3), None), Stage::Loading);
        assert_eq!(stage(&[TableLoad { paused: true, ..load(5, 10) }], Some(0), None), Stage::Paused);
        assert_eq!(stage(&[load(5, 10)], Some(0), Some("disk full")), Stage::Failed);
        let keys = TableLoad { kind: Some(LoadKind::Keys), keys_left: Some(3), ..load(1, 4) };
        assert_eq!(stage(std::slice::from_ref(&keys), Some(0), None), Stage::Live, "a list is no load of the table");
        assert_eq!(keys.words(), "1 of 4 keys answered");
    }

    #[test]
    fn an_estimate_that_was_too_low_never_says_all() {
        assert_eq!(load(5, 10).words(), "5 rows of about 10 (50 %)");
        assert_eq!(load(15, 10).percent(), Some(99));
        assert_eq!(load(15, 0).words(), "15 rows");
    }
}
