//! Compares the two sides. So far by the number of rows in each table, and by no more than that.
//!
//!     source ── one snapshot ──▶ counts ┐
//!                                        ├─▶ Report: equal, different, could not tell
//!     target ── one snapshot ──▶ counts ┘        a difference is looked at again while time is left
//!
//! The two snapshots are not taken at one place in the stream: while changes are under way the counts may differ by what
//! is under way. Equal counts do not prove equal rows.

mod count;
mod error;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schemas::TableName;
use serde::Serialize;

pub use error::Error;

use count::Side;

/// How long to wait before a differing table is counted anew.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What is compared with what.
#[derive(Debug, Clone)]
pub struct Config {
    /// The database that changes come from.
    pub source: postgres::Config,
    /// The publication whose row filters decide which rows are meant.
    pub publication: String,
    /// The database that changes go to.
    pub target: postgres::Config,
    /// The tables, by the same name on both sides.
    pub tables: Vec<TableName>,
    /// How long a difference may last before it is reported.
    pub within: Duration,
}

/// What was found, table by table in the order asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What this report can say: `counts`, and no more.
    pub level: &'static str,
    /// Each table.
    pub tables: Vec<Finding>,
}

/// One table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name on both sides.
    #[serde(serialize_with = "as_text")]
    pub table: TableName,
    /// What the counts say.
    pub verdict: Verdict,
    /// Rows in the source, if they could be counted.
    pub source_rows: Option<u64>,
    /// Rows in the target, if they could be counted.
    pub target_rows: Option<u64>,
    /// Events set aside for this table, all groups together: they explain a difference.
    pub parked: u64,
    /// Why it could not be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What the counts of a table say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As many rows on both sides.
    Equal,
    /// More on one side.
    Different,
    /// One side could not be counted.
    Unknown,
}

impl Report {
    /// The verdict on all: what could not be told outweighs a difference, a difference outweighs what is equal.
    pub fn verdict(&self) -> Verdict {
        self.tables.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Equal)
    }
}

/// Counts the rows of every table on both sides, each side in one snapshot, both at the same time.
pub async fn counts(config: &Config) -> Result<Report, Error> {
    let deadline = Instant::now() + config.within;
    let (mut source, mut target) = tokio::try_join!(
        Side::connect("source", &config.source, Some(&config.publication)),
        Side::connect("target", &config.target, None),
    )?;
    let parked = target.parked().await?;
    let mut findings: BTreeMap<TableName, Finding> = BTreeMap::new();
    let mut open = config.tables.clone();
    loop {
        let (here, there) = tokio::try_join!(source.count(&open), target.count(&open))?;
        for (table, (here, there)) in open.iter().zip(here.into_iter().zip(there)) {
            let parked = parked.get(table).copied().unwrap_or(0);
            findings.insert(table.clone(), Finding::new(table.clone(), here, there, parked));
        }
        open.retain(|table| findings[table].verdict == Verdict::Different);
        if open.is_empty() || Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    let tables = config.tables.iter().filter_map(|table| findings.remove(table)).collect();
    Ok(Report { level: "counts", tables })
}

impl Finding {
    fn new(table: TableName, source: Result<u64, String>, target: Result<u64, String>, parked: u64) -> Finding {
        let verdict = match (&source, &target) {
            (Ok(here), Ok(there)) if here == there => Verdict::Equal,
            (Ok(_), Ok(_)) => Verdict::Different,
            _ => Verdict::Unknown,
        };
        let reasons: Vec<String> = [("source", &source), ("target", &target)]
            .into_iter()
            .filter_map(|(side, count)| count.as_ref().err().map(|reason| format!("{side}: {reason}")))
            .collect();
        Finding {
            table,
            verdict,
            source_rows: source.ok(),
            target_rows: target.ok(),
            parked,
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
        }
    }
}

fn as_text<S: serde::Serializer>(table: &TableName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(source: Result<u64, &str>, target: Result<u64, &str>) -> Finding {
        let table = TableName::new("public", "users");
        Finding::new(table, source.map_err(str::to_owned), target.map_err(str::to_owned), 0)
    }

    #[test]
    fn what_could_not_be_told_outweighs_a_difference() {
        let equal = finding(Ok(1), Ok(1));
        let different = finding(Ok(1), Ok(2));
        let unknown = finding(Ok(1), Err("no such table"));
        assert_eq!(unknown.reason.as_deref(), Some("target: no such table"));
        let verdict = |tables: &[&Finding]| {
            Report { level: "counts", tables: tables.iter().map(|&finding| finding.clone()).collect() }.verdict()
        };
        assert_eq!(verdict(&[]), Verdict::Equal);
        assert_eq!(verdict(&[&equal]), Verdict::Equal);
        assert_eq!(verdict(&[&equal, &different]), Verdict::Different);
        assert_eq!(verdict(&[&unknown, &different, &equal]), Verdict::Unknown);
    }

    #[test]
    fn the_json_form_is_stable() {
        let report = Report { level: "counts", tables: vec![finding(Ok(1), Ok(2))] };
        let json = serde_json::to_string(&report).expect("plain data");
        assert_eq!(
            json,
            r#"{"level":"counts","tables":[{"table":"public.users","verdict":"different","source_rows":1,"target_rows":2,"parked":0}]}"#
        );
    }
}
