//! `tributary slot show`: one slot, whole.

use serde::Serialize;

use super::{Slot, ask, span};
use crate::Outcome;
use crate::args::Form;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{bytes, known, print, print_json};
use crate::state;

#[derive(Debug, Serialize)]
struct Shown {
    slot: Option<Slot>,
    /// What is wrong, each with its remedy.
    findings: Vec<String>,
    /// What could not be asked, and why.
    unknown: Vec<String>,
}

/// Looks at the slot and prints all that is known of it.
pub(crate) async fn run(configuration: &Configuration, form: Form) -> Result<Outcome, Failure> {
    let source = configuration.source("slot show")?;
    let (asked, state) = tokio::join!(ask(source, "slot"), state::read(configuration));
    let asked = asked?;
    let mut unknown = Vec::new();
    let state = state.unwrap_or_else(|error| {
        unknown.push(format!("the state topic: {}", service::chain(&error)));
        None
    });
    let slot = asked.slot(state.as_ref(), &source.alarms);
    let findings = match &slot {
        Some(slot) => slot.reasons.clone(),
        None => asked.missing(state.as_ref(), &source.alarms),
    };
    let shown = Shown { slot, findings, unknown };
    if form.json {
        print_json(&shown);
    } else {
        print(&text(&shown, &source.slot));
    }
    Ok(match shown {
        Shown { unknown, .. } if !unknown.is_empty() => Outcome::Unknown,
        Shown { findings, .. } if !findings.is_empty() => Outcome::Finding,
        _ => Outcome::Fine,
    })
}

fn text(shown: &Shown, name: &str) -> String {
    let mut text = match &shown.slot {
        Some(slot) => of_slot(slot),
        None => format!("slot {name}: not there\n"),
    };
    let list = |title: &str, lines: &[String]| {
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        if lines.is_empty() { String::new() } else { format!("\n{title}\n{lines}") }
    };
    text += &list("needs a person", &shown.findings);
    text += &list("could not be asked", &shown.unknown);
    text
}

fn of_slot(slot: &Slot) -> String {
    let reader = slot.active_pid.map_or_else(|| "nobody".to_owned(), |pid| format!("process {pid}"));
    let or_none = |value: Option<u64>| value.map_or_else(|| "without limit".to_owned(), bytes);
    let age = slot.behind_seconds.map(|seconds| format!("at most {}", span(std::time::Duration::from_secs(seconds))));
    let lines = [
        ("level", slot.level.to_owned()),
        ("read by", reader),
        ("wal_status", known(slot.wal_status.as_ref())),
        ("confirmed", format!("{}, {} behind", known(slot.confirmed_lsn.as_ref()), bytes(slot.behind_bytes))),
        ("age of that", age.unwrap_or_else(|| "unknown".to_owned())),
        ("WAL kept from", format!("{}, {}", known(slot.restart_lsn.as_ref()), known(slot.retained_bytes.map(bytes)))),
        ("WAL of server", slot.server_lsn.clone()),
        ("room", or_none(slot.safe_wal_bytes.and_then(|left| u64::try_from(left).ok()))),
        ("limit", or_none(slot.wal_keep_bytes)),
    ];
    let mut text = format!("slot {}\n", slot.name);
    for (name, value) in lines {
        text += &format!("  {name:<14} {value}\n");
    }
    if let Some(outlook) = &slot.outlook {
        text += &format!("  {:<14} {outlook}\n", "outlook");
    }
    text
}
