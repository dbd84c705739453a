//! `tributary snapshot pause|resume|cancel`: what becomes of loads that are under way.

use serde::Serialize;
use source::ask;
use source::command::{Command, Wish};

use super::{Desk, Fate, no_source};
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

    fn done(self) -> &'static str {
        match self {
            Course::Pause => "paused: nothing more is read for it",
            Course::Resume => "goes on",
            Course::Cancel => "cancelled: what it has published stays, the rest of its rows is as it was before",
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
            Some(Fate::Met { .. }) => (Some(true), course.done().to_owned()),
        };
        steered.push(Steered { load, done, note });
    }
    if arguments.form.json {
        print_json(&steered);
    } else if steered.is_empty() {
        print("No load is under way.");
    } else {
        let lines: Vec<String> = steered.iter().map(|one| format!("load {}\n  {}", one.load, one.note)).collect();
        print(&lines.join("\n"));
    }
    Ok(Outcome::Fine)
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
