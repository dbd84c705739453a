//! `tributary table add|remove`: the list of published tables, changed in its one place, the configuration file, and gone over
//! to by the source that runs.
//!
//!     file, locked ─▶ checked as the source would ─▶ written ─▶ message in the stream ─▶ the source reads its file again
//!                                                                 ─▶ another list (its own exact way)
//!
//! What the file does not say plainly, or the source would refuse, is refused before anything is written. The rest of a removed
//! table is taken away only after the source has gone over: until then it would miss what it still publishes.

mod file;
mod follow;
mod held;
mod remains;

use std::path::Path;

use schemas::TableName;
use serde::Serialize;
use service::config::Document;

use crate::Outcome;
use crate::args::{TableChange, TableRemove};
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::state;
use held::Held;

pub(crate) use file::Refused;

/// The environment that stands over the list in the file.
const OVER: &str = "TRIBUTARY_SOURCE__TABLES";

/// What was, or would be, done.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Whether anything was done, or only looked at.
    done: bool,
    /// What was, or would be, done.
    steps: Vec<String>,
    /// What is left to do by hand, or by the same command later.
    remains: Vec<String>,
    /// What to know beside that.
    notes: Vec<String>,
}

/// Puts tables on the list.
pub(crate) async fn add(configuration: &Configuration, arguments: TableChange) -> Result<Outcome, Failure> {
    let Change { held, text, next } = Change::of(configuration, &arguments.tables, file::add)?;
    let source = next.source("table add")?;
    let client = postgres::connect(&source.postgres, "table").await?;
    let state = state::read(&next).await?;
    let mut faults = source::listable::faults(&client, source, &next.kafka, &next.prefix, state.as_ref()).await?;
    if faults.is_empty() {
        let (listed, _) = source::list(&client, source).await?;
        let unlisted = arguments.tables.iter().filter(|table| !listed.contains(table));
        faults.extend(unlisted.map(|table| format!("{table} is not there, or is a part of a table that is published")));
    }
    if !faults.is_empty() {
        return Err(Failure::CannotList(faults));
    }
    let mut report = Report::default();
    let (names, is_changed) = (names(&arguments.tables), text != held.text);
    report.steps.push(match is_changed {
        false => format!("{names}: on the list of {} already", configuration.file.display()),
        true => format!("{names}: put on the list of {}", configuration.file.display()),
    });
    report.steps.push("the source goes over to the list, and loads what was added".to_owned());
    report.notes.extend(takers(configuration, &next, &arguments.tables));
    if !arguments.dry_run {
        held.replace_by(&text)?;
        let has_all = |state: &source::State| {
            arguments.tables.iter().all(|name| state.tables().any(|(_, table)| table.name == *name))
        };
        let waits = !arguments.no_wait;
        let means = follow::Means { configuration: &next, source, client: &client, waits, is_changed };
        report.done = true;
        means.follow(has_all, &mut report).await?;
    }
    finish(&report, arguments.form.json)
}

/// Groups that take one of the tables with the new list, and did not so far.
fn takers(before: &Configuration, next: &Configuration, tables: &[TableName]) -> Vec<String> {
    let takes = |configuration: &Configuration, name: &str| {
        let mut groups = configuration.sink.groups.iter().filter(|group| group.name == name);
        groups.any(|group| tables.iter().any(|table| group.tables.chooses(table)))
    };
    let names = next.sink.groups.iter().map(|group| &group.name);
    let new = names.filter(|name| takes(next, name) && !takes(before, name));
    new.map(|name| format!("the group {name} takes it up when its sinks are started with this file")).collect()
}

/// Takes tables off the list, and what is left of them.
pub(crate) async fn remove(configuration: &Configuration, arguments: TableRemove) -> Result<Outcome, Failure> {
    let TableRemove { change: arguments, topic } = arguments;
    let Change { held, text, next } = Change::of(configuration, &arguments.tables, file::remove)?;
    let (source, is_changed) = (next.source("table remove")?, text != held.text);
    let client = postgres::connect(&source.postgres, "table").await?;
    if is_changed && let Some(state) = state::read(&next).await? {
        let ruled = arguments.tables.iter().find(|table| is_ruled(source, table));
        if let Some(table) = ruled {
            return Err(Failure::Ruled(table.clone()));
        }
        let faults = source::listable::faults(&client, source, &next.kafka, &next.prefix, Some(&state)).await?;
        if !faults.is_empty() {
            return Err(Failure::CannotList(faults));
        }
    }
    let mut report = Report::default();
    let names = names(&arguments.tables);
    report.steps.push(match is_changed {
        false => format!("{names}: not on the list of {} any more", configuration.file.display()),
        true => format!("{names}: taken off the list of {}", configuration.file.display()),
    });
    let is_gone = |state: &source::State| !state.tables().any(|(_, table)| arguments.tables.contains(&table.name));
    let mut has_gone_over = true;
    if !arguments.dry_run {
        held.replace_by(&text)?;
        let waits = !arguments.no_wait;
        let means = follow::Means { configuration: &next, source, client: &client, waits, is_changed };
        report.done = true;
        has_gone_over = means.follow(is_gone, &mut report).await?;
    } else {
        report.steps.push("the source goes over to the list; open loads of the table end with it".to_owned());
    }
    if has_gone_over {
        let means = remains::Means {
            configuration: &next,
            source,
            client: &client,
            with_topic: topic,
            dry_run: arguments.dry_run,
        };
        means.take_away(&arguments.tables, &mut report).await?;
    } else {
        report.remains.push("publication, progress and parked events of the table: the same command again, once the source has gone over".to_owned());
    }
    finish(&report, arguments.form.json)
}

/// Whether the configuration says more of the table than that it is published.
fn is_ruled(source: &source::Config, table: &TableName) -> bool {
    source.columns.contains_key(table) || source.keys.contains_key(table)
}

fn names(tables: &[TableName]) -> String {
    tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn finish(report: &Report, json: bool) -> Result<Outcome, Failure> {
    if json {
        print_json(report);
    } else {
        let lines = |title: &str, lines: &[String]| {
            let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
            if lines.is_empty() { String::new() } else { format!("{title}\n{lines}") }
        };
        let title = if report.done { "done" } else { "would be done" };
        let (done, remains) = (lines(title, &report.steps), lines("remains", &report.remains));
        print(&format!("{done}{remains}{}", lines("to know", &report.notes)));
    }
    Ok(if report.remains.is_empty() { Outcome::Fine } else { Outcome::Finding })
}

/// The file, what it is to say, and what that means.
struct Change {
    held: Held,
    text: String,
    next: Configuration,
}

impl Change {
    /// Each of the tables changed by `change`.
    fn of(
        configuration: &Configuration,
        tables: &[TableName],
        change: impl Fn(&str, &TableName) -> Result<Option<String>, Refused>,
    ) -> Result<Change, Failure> {
        if std::env::var_os(OVER).is_some() {
            return Err(Failure::ListInEnvironment(OVER));
        }
        let file = &configuration.file;
        let held = Held::open(file)?;
        let mut text = held.text.clone();
        for table in tables {
            let refused = |cause| Failure::List { file: file.clone(), cause: Box::new(cause) };
            if let Some(next) = change(&text, table).map_err(refused)? {
                text = next;
            }
        }
        let next = read(file, &text)?;
        Ok(Change { held, text, next })
    }
}

/// What the file would say.
fn read(file: &Path, text: &str) -> Result<Configuration, Failure> {
    Configuration::from(Document::parse(text, std::env::vars())?, file)
}
