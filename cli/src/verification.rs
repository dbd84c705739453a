//! `tributary verify`: what was counted, printed for people or programs.

use std::time::Duration;

use verify::{Finding, Report, Verdict};

use crate::Outcome;
use crate::args::Verify;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{known, print, print_json, table};
use crate::tables;

/// Counts and prints.
pub(crate) async fn run(configuration: &Configuration, arguments: Verify) -> Result<Outcome, Failure> {
    let source = configuration.source("verify")?;
    let target = configuration.target("verify")?;
    let mut tables = arguments.tables;
    if tables.is_empty() {
        tables = tables::all(configuration).await?;
        tables.retain(|table| configuration.feeds_target(table));
    }
    let config = verify::Config {
        source: source.postgres.clone(),
        publication: source.publication.clone(),
        target: target.clone(),
        tables,
        within: Duration::from_secs(arguments.within),
    };
    let report = verify::counts(&config).await?;
    if arguments.form.json {
        print_json(&report);
    } else {
        print(&text(&report));
    }
    Ok(match report.verdict() {
        Verdict::Equal => Outcome::Fine,
        Verdict::Different => Outcome::Finding,
        Verdict::Unknown => Outcome::Unknown,
    })
}

fn text(report: &Report) -> String {
    let rows = report.tables.iter().map(row).collect();
    let heading = ["table", "source", "target", "difference", "parked", "verdict"];
    let count = |verdict| report.tables.iter().filter(|finding| finding.verdict == verdict).count();
    let (different, unknown) = (count(Verdict::Different), count(Verdict::Unknown));
    let closing = match report.verdict() {
        Verdict::Equal => format!("As many rows on both sides, in all of {} tables.", report.tables.len()),
        _ => format!("Of {} tables {different} differ and {unknown} could not be counted.", report.tables.len()),
    };
    format!(
        "{}\n{closing} These are numbers of rows and no more: values were not compared, and what is under way counts as a difference.",
        table(&heading, rows)
    )
}

fn row(finding: &Finding) -> Vec<String> {
    let difference = match (finding.source_rows, finding.target_rows) {
        (Some(here), Some(there)) => Some(i128::from(there) - i128::from(here)),
        _ => None,
    };
    let verdict = match (finding.verdict, &finding.reason) {
        (Verdict::Equal, _) => "equal".to_owned(),
        (Verdict::Different, _) => "DIFFERENT".to_owned(),
        (Verdict::Unknown, reason) => format!("could not tell: {}", known(reason.as_ref())),
    };
    vec![
        finding.table.to_string(),
        known(finding.source_rows),
        known(finding.target_rows),
        known(difference),
        finding.parked.to_string(),
        verdict,
    ]
}
