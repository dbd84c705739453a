//! `tributary snapshot pause|resume|cancel`: what becomes of loads that are under way.

use schemas::event::LoadMode;
use schemas::state::LoadKind;
use serde::Serialize;
use source::ask;
use source::command::{Command, Wish};

use super::{Desk, Fate, Loads, Met, no_source};
use crate::Outcome;
use crate::args::SnapshotSteer;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};

/// What is to become of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    Pause,
    Resume,
    Cancel,
}

/// A load that was spoken of.
#[derive(Debug, Serialize)]
struct Steered {
    load: String,
    /// Whether the running source has done it; none: not waited for, or no source runs.
    done: Option<bool>,
    note: String,
}

impl Course {
    fn command(self) -> &'static str {
        match self {
            Course::Pause => "snapshot pause",
            Course::Resume => "snapshot resume",
            Course::Cancel => "snapshot cancel",
        }
    }

    fn wish(self, load: String) -> Wish {
        match self {
            Course::Pause => Wish::Pause { load },
            Course::Resume => Wish::Resume { load },
            Course::Cancel => Wish::Cancel { load },
        }
    }

    /// Whether it was done, and what to say of it.
    fn outcome(self, met: &Met) -> (bool, String) {
        let is_paused = met.load.as_ref().is_some_and(|load| load.paused);
        let looks_done = match self {
            Course::Pause => met.is_open && is_paused,
            Course::Resume => met.is_open && !is_paused,
            Course::Cancel => !met.is_open,
        };
        match (met.is_followed.unwrap_or(looks_done), met.is_open) {
            (true, _) => (true, self.done(met).to_owned()),
            (false, false) => (false, "it had ended before: nothing was done".to_owned()),
            (false, true) => (false, "not done: the log of the source says why".to_owned()),
        }
    }

    fn done(self, met: &Met) -> &'static str {
        let load = met.load.as_ref();
        match self {
            Course::Pause => "paused: nothing more is read for it",
            Course::Resume => "goes on",
            Course::Cancel if load.is_some_and(|load| load.kind == Some(LoadKind::Keys)) => {
                "cancelled: the keys that are not answered yet get no answer"
            }
            Course::Cancel if load.is_some_and(|load| load.mode == LoadMode::Merge) => {
                "cancelled: what it has published stays, the rest of its rows is as it was before"
            }
            Course::Cancel => {
                "cancelled: what it has published stays, the rest of its rows is missing in targets until the table is loaded again"
            }
        }
    }
}

/// Says it to the source for one load, or for all that are under way.
pub(crate) async fn run(
    configuration: &Configuration,
    course: Course,
    arguments: SnapshotSteer,
) -> Result<Outcome, Failure> {
    let desk = Desk::open(configuration, course.command()).await?;
    let mut steered = Vec::new();
    for load in desk.loads(course, arguments.load.as_deref())? {
        let command = Command { id: ask::new_id(), wish: course.wish(load.clone()) };
        let (at, fate) = desk.order(&command, &load, !arguments.no_wait).await?;
        let (done, note) = match fate {
            None => (None, format!("asked for at {at}")),
            Some(Fate::NoSource) => (None, no_source(&desk.source.slot)),
            Some(Fate::Met(met)) => {
                let (is_done, note) = course.outcome(&met);
                (Some(is_done), note)
            }
        };
        steered.push(Steered { load, done, note });
    }
    if arguments.form.json {
        print_json(&Loads { loads: &steered });
    } else if steered.is_empty() {
        print("No load is under way.");
    } else {
        let lines: Vec<String> = steered.iter().map(|one| format!("load {}\n  {}", one.load, one.note)).collect();
        print(&lines.join("\n"));
    }
    let is_refused = steered.iter().any(|one| one.done == Some(false));
    Ok(if is_refused { Outcome::Finding } else { Outcome::Fine })
}

impl Desk<'_> {
    /// Which loads are meant. A cancelled load leaves a table half loaded, so of several one must be named.
    fn loads(&self, course: Course, named: Option<&str>) -> Result<Vec<String>, Failure> {
        let open: Vec<String> = self.state.loads().map(|(id, _)| id.to_owned()).collect();
        match named {
            Some(load) if open.iter().any(|id| id == load) => Ok(vec![load.to_owned()]),
            Some(load) => Err(Failure::NoLoad { load: load.to_owned(), open: open.join(", ") }),
            None if course == Course::Cancel && open.len() > 1 => Err(Failure::WhichLoad(open.join(", "))),
            None => Ok(open),
        }
    }
}

#[cfg(test)]
mod tests {
    use schemas::state::Load;

    use super::*;

    fn met(mode: LoadMode, paused: bool, is_open: bool, is_followed: Option<bool>) -> Met {
        Met { load: Some(Load { mode, tables: vec![1], kind: None, paused }), is_open, is_followed }
    }

    #[test]
    fn a_load_that_had_ended_is_not_said_to_be_steered() {
        for course in [Course::Pause, Course::Resume, Course::Cancel] {
            let (done, note) = course.outcome(&met(LoadMode::Merge, false, false, Some(false)));
            assert!(!done && note.contains("ended before"), "{course:?}: {note}");
            assert!(course.outcome(&met(LoadMode::Merge, false, true, Some(true))).0, "{course:?}");
        }
        assert!(!Course::Pause.outcome(&met(LoadMode::Merge, false, true, None)).0);
        assert!(Course::Pause.outcome(&met(LoadMode::Merge, true, true, None)).0);
        assert!(Course::Cancel.outcome(&met(LoadMode::Merge, false, false, None)).0);
    }

    #[test]
    fn what_is_left_of_a_cancelled_load_is_told_by_its_mode() {
        let note = |mode| Course::Cancel.outcome(&met(mode, false, false, Some(true))).1;
        assert!(note(LoadMode::Merge).contains("as it was before"));
        for mode in [LoadMode::Replace, LoadMode::First] {
            assert!(note(mode).contains("missing in targets"), "{mode:?}");
        }
    }
}
