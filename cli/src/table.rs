//! `tributary table add|remove`: the list of published tables, changed in its one place, the configuration file, and gone over
//! to by the source that runs.
//!
//!     file ─▶ checked ─▶ written ─▶ message in the stream ─▶ the source reads its file again ─▶ another list (its own exact way)
//!
//! What the file does not say plainly is refused before anything is written. The rest of a removed table is taken away only
//! after the source has gone over: until then it would miss what it still publishes.

mod file;
mod remains;

use std::path::Path;
use std::time::Duration;

use schemas::TableName;
use serde::Serialize;
use service::config::Document;
use source::ask;
use source::command::{Command, Wish};

use crate::Outcome;
use crate::args::{TableChange, TableRemove};
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::reader::Reader;
use crate::state;

pub(crate) use file::Refused;

/// How often it is asked whether the source has gone over.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// After so many times a person is told what it may wait for.
const TELL_AFTER: u32 = 15;
/// After so many times without a reader of the slot none is waited for.
const ABSENT_MAX: u32 = 10;
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
}

/// Puts tables on the list.
pub(crate) async fn add(configuration: &Configuration, arguments: TableChange) -> Result<Outcome, Failure> {
    let source = configuration.source("table add")?;
    let (text, changed) = rewritten(&configuration.file, &arguments.tables, file::add)?;
    let next = read(&configuration.file, &changed)?;
    let client = postgres::connect(&source.postgres, "table").await?;
    let (found, mut faults) = source::list(&client, next.source("table add")?).await?;
    for table in &arguments.tables {
        if !found.contains(table) || !is_there(&client, table).await? {
            faults.push(format!("{table} is not there, or cannot be published"));
        }
    }
    if !faults.is_empty() {
        return Err(Failure::CannotAdd(faults.join("; ")));
    }
    let mut report = Report::default();
    let names = names(&arguments.tables);
    report.steps.push(match text == changed {
        true => format!("{names}: on the list of {} already", configuration.file.display()),
        false => format!("{names}: put on the list of {}", configuration.file.display()),
    });
    report.steps.push("the source goes over to the list, and loads what was added".to_owned());
    report
        .remains
        .push("sinks whose groups list their tables by name take it up when they are started with it".to_owned());
    if !arguments.dry_run {
        write(&configuration.file, &text, &changed)?;
        let has_all = |state: &source::State| {
            arguments.tables.iter().all(|name| state.tables().any(|(_, table)| table.name == *name))
        };
        follow(configuration, source, &client, !arguments.no_wait, has_all, &mut report).await?;
    }
    finish(&report, arguments.form.json)
}

/// A list may name what is not there: the source would refuse it at its next start.
async fn is_there(client: &postgres::Client, table: &TableName) -> Result<bool, postgres::Error> {
    let query = "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                                WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p'))";
    let found = client.query_one(query, &[&table.schema, &table.table]).await;
    Ok(found.map_err(|cause| postgres::Error::statement(format!("look for {table}"), cause))?.get(0))
}

/// Takes tables off the list, and what is left of them.
pub(crate) async fn remove(configuration: &Configuration, arguments: TableRemove) -> Result<Outcome, Failure> {
    let TableRemove { change: arguments, topic } = arguments;
    let source = configuration.source("table remove")?;
    let (text, changed) = rewritten(&configuration.file, &arguments.tables, file::remove)?;
    read(&configuration.file, &changed)?;
    let client = postgres::connect(&source.postgres, "table").await?;
    let mut report = Report::default();
    let names = names(&arguments.tables);
    report.steps.push(match text == changed {
        true => format!("{names}: not on the list of {} any more", configuration.file.display()),
        false => format!("{names}: taken off the list of {}", configuration.file.display()),
    });
    let is_gone = |state: &source::State| !state.tables().any(|(_, table)| arguments.tables.contains(&table.name));
    let mut has_gone_over = true;
    if !arguments.dry_run {
        write(&configuration.file, &text, &changed)?;
        has_gone_over = follow(configuration, source, &client, !arguments.no_wait, is_gone, &mut report).await?;
    } else {
        report.steps.push("the source goes over to the list; open loads of the table end with it".to_owned());
    }
    if has_gone_over {
        let means = remains::Means { configuration, source, client: &client, dry_run: arguments.dry_run };
        means.take_away(&arguments.tables, topic, &mut report).await?;
    } else {
        report.remains.push("publication, progress and parked events of the table: the same command again, once the source has gone over".to_owned());
    }
    finish(&report, arguments.form.json)
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
        print(&format!("{}{}", lines(title, &report.steps), lines("remains", &report.remains)));
    }
    Ok(Outcome::Fine)
}

/// The file's text, and the same with each of the tables changed.
fn rewritten(
    file: &Path,
    tables: &[TableName],
    change: impl Fn(&str, &TableName) -> Result<Option<String>, Refused>,
) -> Result<(String, String), Failure> {
    if std::env::var_os(OVER).is_some() {
        return Err(Failure::ListInEnvironment(OVER));
    }
    let text = std::fs::read_to_string(file).map_err(|cause| Failure::Read { file: file.to_owned(), cause })?;
    let mut changed = text.clone();
    for table in tables {
        let refused = |cause| Failure::List { file: file.to_owned(), cause: Box::new(cause) };
        if let Some(next) = change(&changed, table).map_err(refused)? {
            changed = next;
        }
    }
    Ok((text, changed))
}

/// What the file would say.
fn read(file: &Path, text: &str) -> Result<Configuration, Failure> {
    Configuration::from(Document::parse(text, std::env::vars())?, file)
}

/// Writes the file whole or not at all.
fn write(file: &Path, before: &str, text: &str) -> Result<(), Failure> {
    if before == text {
        return Ok(());
    }
    let failed = |cause| Failure::Write { file: file.to_owned(), cause };
    // A link stays one: what it leads to is replaced.
    let file = file.canonicalize().map_err(failed)?;
    let mut beside = file.clone().into_os_string();
    beside.push(".new");
    let permissions = std::fs::metadata(&file).map_err(failed)?.permissions();
    std::fs::write(&beside, text).map_err(failed)?;
    std::fs::set_permissions(&beside, permissions).map_err(failed)?;
    std::fs::rename(&beside, &file).map_err(failed)
}

/// Tells the running source to read its file again, and waits until its state is as `wanted`. Whether it is.
async fn follow(
    configuration: &Configuration,
    source: &source::Config,
    client: &postgres::Client,
    waits: bool,
    wanted: impl Fn(&source::State) -> bool,
    report: &mut Report,
) -> Result<bool, Failure> {
    report.done = true;
    let is_followed = |state: &Option<source::State>| state.as_ref().is_some_and(&wanted);
    if is_followed(&state::read(configuration).await?) {
        return Ok(true);
    }
    let command = Command { id: ask::new_id(), wish: Wish::Configuration };
    let at = ask::order(client, &source.slot, &command, None).await?;
    let mut reader = Reader::of(client, &source.slot, ABSENT_MAX);
    for asked in 0_u32.. {
        if reader.is_gone().await? {
            report.remains.push(format!(
                "nobody reads from the slot {}: the source goes over to the list when it is started with this file",
                source.slot
            ));
            return Ok(false);
        }
        if !waits {
            break;
        }
        let now = state::read(configuration).await?;
        if is_followed(&now) {
            report.steps.push("the running source has gone over to the list".to_owned());
            return Ok(true);
        }
        if asked == TELL_AFTER {
            let has_met = now.is_some_and(|state| state.stream.flushed > at);
            eprintln!(
                "{}",
                if has_met {
                    "waiting: the source has read its configuration again. Its log says whether its own file holds the change, and which transactions it waits for"
                } else {
                    "waiting for the source to come to the message in its stream"
                }
            );
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    report.remains.push("the running source was told to read its file again".to_owned());
    Ok(false)
}
