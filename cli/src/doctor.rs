//! `tributary doctor`: looks at every server for what tributary needs, and says how to get it. Changes nothing.
//!
//!     source ─▶ checks, and what its tables are like ─▶ target ─▶ checks
//!     Kafka  ─▶ checks                                   Redis ─▶ checks
//!
//! The parts ask their servers; what an answer means is decided beside the question, by functions that ask nobody.

mod carry;
mod catalog;
mod clock;
mod failover;
mod kafka;
mod redis;
mod slot;
mod source;
mod target;

use serde::Serialize;

use crate::Outcome;
use crate::args::Form;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::state;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    /// Which server: `source`, `kafka`, `target`, `redis`.
    part: &'static str,
    /// What was looked at.
    what: String,
    grade: Grade,
    /// What was found.
    found: String,
    /// What to do; empty where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Grade {
    /// As it should be.
    Good,
    /// It will run, with a risk that somebody should know of.
    Warning,
    /// It will not run.
    Fault,
}

/// The checks of one part.
#[derive(Debug)]
struct Checks {
    part: &'static str,
    list: Vec<Check>,
}

impl Checks {
    fn of(part: &'static str) -> Checks {
        Checks { part, list: Vec::new() }
    }

    fn good(&mut self, what: impl Into<String>, found: impl Into<String>) {
        self.add(Grade::Good, what, found, None);
    }

    fn warn(&mut self, what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(Grade::Warning, what, found, Some(remedy.into()));
    }

    fn fault(&mut self, what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(Grade::Fault, what, found, Some(remedy.into()));
    }

    /// Good when `is_good`, else a fault.
    fn expect(&mut self, is_good: bool, what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) {
        if is_good { self.good(what, found) } else { self.fault(what, found, remedy) }
    }

    /// Good when `is_good`, else a warning.
    fn prefer(&mut self, is_good: bool, what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) {
        if is_good { self.good(what, found) } else { self.warn(what, found, remedy) }
    }

    /// A question that was not answered. The error itself says what to do.
    fn failed(&mut self, what: impl Into<String>, error: &(dyn std::error::Error + 'static)) {
        self.fault(
            what,
            service::chain(error).to_string(),
            "mend this first: what follows from it could not be looked at",
        );
    }

    fn add(&mut self, grade: Grade, what: impl Into<String>, found: impl Into<String>, remedy: Option<String>) {
        self.list.push(Check { part: self.part, what: what.into(), grade, found: found.into(), remedy });
    }
}

#[derive(Debug, Serialize)]
struct Report {
    ready: bool,
    checks: Vec<Check>,
}

/// Looks at all that the configuration names.
pub(crate) async fn run(configuration: &Configuration, form: Form) -> Result<Outcome, Failure> {
    // Kafka itself is looked at below: who cannot read the state there is told so by that.
    let state = state::read(configuration).await.unwrap_or_default();
    let state = state.as_ref();
    let here = async {
        let Some(source) = &configuration.source else { return (Vec::new(), None) };
        let (checks, tables) = source::check(source, state).await;
        (checks, Some(tables))
    };
    let feeds_redis = configuration.sink.redis.as_ref();
    // Where it cannot be told which tables are meant, the check of whom it was asked says why.
    let names = crate::tables::all(configuration).await.ok();
    let ((source, tables), kafka, redis) =
        tokio::join!(here, kafka::check(configuration, names.as_deref(), state), async {
            match feeds_redis {
                Some(config) => redis::check(config).await,
                None => Vec::new(),
            }
        });
    let target = match &configuration.sink.target {
        Some(target) => {
            let mut names = names.unwrap_or_default();
            names.retain(|table| configuration.feeds_target(table));
            target::check(target, &names, tables.as_ref()).await
        }
        None => Vec::new(),
    };
    let checks: Vec<Check> = [source, kafka, target, redis].into_iter().flatten().collect();
    let report = Report { ready: checks.iter().all(|check| check.grade != Grade::Fault), checks };
    if form.json {
        print_json(&report);
    } else {
        print(&report.text());
    }
    Ok(if report.ready { Outcome::Fine } else { Outcome::Finding })
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        let mut part = "";
        for check in &self.checks {
            if check.part != part {
                part = check.part;
                text += &format!("{}{part}\n", if text.is_empty() { "" } else { "\n" });
            }
            let mark = match check.grade {
                Grade::Good => "  ok   ",
                Grade::Warning => "  warn ",
                Grade::Fault => "  FAULT",
            };
            text += &format!("{mark} {}: {}\n", check.what, check.found);
            if let Some(remedy) = &check.remedy {
                text += &format!("          -> {remedy}\n");
            }
        }
        let count = |grade| self.checks.iter().filter(|check| check.grade == grade).count();
        let (faults, warnings) = (count(Grade::Fault), count(Grade::Warning));
        text += &match (faults, warnings) {
            (0, 0) => format!("\nReady: {} checks, nothing to do.", self.checks.len()),
            (0, _) => format!("\nReady, with {warnings} warnings in {} checks.", self.checks.len()),
            _ => format!("\nNot ready: {faults} faults and {warnings} warnings in {} checks.", self.checks.len()),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_decides_and_each_finding_has_its_remedy_below() {
        let mut checks = Checks::of("source");
        checks.good("version", "15.18");
        checks.expect(false, "wal_level", "replica", "ALTER SYSTEM SET wal_level = logical");
        let report = Report { ready: false, checks: checks.list };
        let text = report.text();
        assert_eq!(
            text,
            "source\n  ok    version: 15.18\n  FAULT wal_level: replica\n          -> ALTER SYSTEM SET wal_level = logical\n\
             \nNot ready: 1 faults and 0 warnings in 2 checks."
        );
    }
}
