//! `tributary status`: where every part is, asked of those who know it.
//!
//!     slot        the source database        how far behind, held by whom
//!     state       <prefix>.state             tables, loads, records by partition
//!     progress    the target, or Kafka       what each group has done, who owns what, what is parked
//!
//! Each is asked by itself: what one does not answer is told, the others are shown all the same.

mod ask;
mod text;

use serde::Serialize;

use crate::Outcome;
use crate::args::Form;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::loads::{self, Stage, TableLoad};
use crate::output::{print, print_json};
use crate::slot::Slot;

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Report {
    prefix: String,
    slot: Option<Slot>,
    stream: Option<Stream>,
    tables: Vec<Table>,
    groups: Vec<Group>,
    /// What needs a person.
    findings: Vec<String>,
    /// What could not be asked, and why.
    unknown: Vec<String>,
}

/// Where the source is, as it recorded it itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Stream {
    position: String,
    flushed: String,
    /// When the last published transaction was committed, in milliseconds since 1970.
    last_commit_ms: Option<i64>,
}

/// A published table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Table {
    pub(crate) table: String,
    topic: String,
    partitions: i32,
    /// Records published so far to its topic, those of other tables there among them.
    records: u64,
    pub(crate) load: Stage,
    /// Why it has failed.
    pub(crate) reason: Option<String>,
    /// Loads that are under way for it.
    pub(crate) loads: Vec<TableLoad>,
}

/// A consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Group {
    group: String,
    to: &'static str,
    partitions: Vec<Partition>,
}

/// One partition of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Partition {
    topic: String,
    partition: i32,
    /// The offset that is read next.
    offset: Option<i64>,
    /// The offset after the last record that may be read.
    end: Option<i64>,
    /// Records not yet done; none: unknown.
    lag: Option<u64>,
    owner: Option<String>,
    parked: u64,
    error: Option<String>,
}

/// What is known of the tables and their loads.
#[derive(Debug, Serialize)]
pub(crate) struct Tables {
    pub(crate) tables: Vec<Table>,
    /// What the running source says of itself, where it answers.
    pub(crate) source: Option<String>,
    /// What could not be asked, and why.
    pub(crate) unknown: Vec<String>,
}

/// Asks all, and keeps what concerns tables.
pub(crate) async fn tables(configuration: &Configuration) -> Tables {
    let (report, source) = tokio::join!(ask::all(configuration), ask::readiness(configuration));
    let source = match (source, &report.slot) {
        (None, Some(slot)) if slot.active_pid.is_none() => {
            Some(format!("nobody reads from the slot {}: loads wait until `tributary source` runs", slot.name))
        }
        (source, _) => source,
    };
    Tables { tables: report.tables, source, unknown: report.unknown }
}

/// Asks all, prints what they say.
pub(crate) async fn run(configuration: &Configuration, form: Form) -> Result<Outcome, Failure> {
    let report = ask::all(configuration).await;
    if form.json {
        print_json(&report);
    } else {
        print(&text::of(&report));
    }
    Ok(match report {
        Report { unknown, .. } if !unknown.is_empty() => Outcome::Unknown,
        Report { findings, .. } if !findings.is_empty() => Outcome::Finding,
        _ => Outcome::Fine,
    })
}

impl Report {
    /// What needs a person, told from what was found.
    fn judge(&mut self) {
        let mut findings = std::mem::take(&mut self.findings);
        if self.stream.is_none() && self.unknown.is_empty() {
            findings.push("nothing was published yet: start `tributary source`, or `tributary run`".to_owned());
        }
        if let Some(slot) = &self.slot {
            findings.extend(slot.reasons.iter().cloned());
            if slot.is_sound && slot.active_pid.is_none() {
                let outlook = slot.outlook.as_ref().map_or_else(String::new, |outlook| format!("; {outlook}"));
                findings.push(format!(
                    "nobody reads from the slot {}, so WAL piles up in the source: start `tributary source`{outlook}",
                    slot.name
                ));
            }
        }
        for group in &self.groups {
            let parked: u64 = group.partitions.iter().map(|partition| partition.parked).sum();
            if parked > 0 {
                findings.push(format!(
                    "the group {} has parked {parked} events: `tributary dlq list --group {}`",
                    group.group, group.group
                ));
            }
            for partition in group.partitions.iter().filter(|partition| partition.error.is_some()) {
                let error = partition.error.as_deref().unwrap_or_default();
                findings.push(format!(
                    "the group {} stands still at {}, partition {}: {error}",
                    group.group, partition.topic, partition.partition
                ));
            }
            if group.partitions.iter().any(|partition| partition.owner.is_none() && partition.lag != Some(0)) {
                findings.push(format!(
                    "the group {} has partitions that nobody reads: start `tributary sink`",
                    group.group
                ));
            }
        }
        for (table, load) in self.tables.iter().flat_map(|table| table.loads.iter().map(move |load| (table, load))) {
            if let Some(fault) = load.fault() {
                findings.push(format!("the load {} of {} stands still: {fault}", load.load, table.table));
            }
        }
        self.findings = findings;
        self.place_tables();
    }

    /// Where each table stands, now that the groups are known too.
    fn place_tables(&mut self) {
        for table in &mut self.tables {
            let partitions = || {
                let all = self.groups.iter().flat_map(|group| group.partitions.iter().map(move |one| (group, one)));
                all.filter(|(_, partition)| partition.topic == table.topic)
            };
            let fault = partitions().find_map(|(group, partition)| {
                let error = partition.error.as_ref()?;
                Some(format!("the group {} stands still at partition {}: {error}", group.group, partition.partition))
            });
            let lag: Option<u64> = partitions().map(|(_, partition)| partition.lag).sum();
            table.load = loads::stage(&table.loads, lag, fault.as_deref());
            table.reason = fault.or_else(|| table.loads.iter().find_map(TableLoad::fault).map(str::to_owned));
        }
    }
}

#[cfg(test)]
mod tests {
    use schemas::state::Hindrance;

    use super::*;

    fn report(slot: Option<Slot>, partition: Partition) -> Report {
        let groups = vec![Group { group: "rdb".into(), to: "postgres", partitions: vec![partition] }];
        let mut report = Report {
            prefix: "shop".into(),
            slot,
            stream: Some(Stream { position: String::new(), flushed: "0/20".into(), last_commit_ms: None }),
            tables: vec![],
            groups,
            findings: vec![],
            unknown: vec![],
        };
        report.judge();
        report
    }

    fn partition() -> Partition {
        Partition {
            topic: "shop.public.users".into(),
            partition: 0,
            offset: Some(7),
            end: Some(9),
            lag: Some(1),
            owner: Some("12@host".into()),
            parked: 0,
            error: None,
        }
    }

    fn slot() -> Slot {
        Slot {
            name: "tributary_shop".into(),
            active_pid: Some(1),
            inactive_since_ms: None,
            wal_status: Some("reserved".into()),
            invalidation_reason: None,
            confirmed_lsn: Some("0/10".into()),
            restart_lsn: Some("0/8".into()),
            server_lsn: "0/20".into(),
            behind_bytes: 16,
            behind_seconds: Some(2),
            retained_bytes: Some(24),
            safe_wal_bytes: None,
            wal_keep_bytes: None,
            idle_timeout_seconds: None,
            level: "ok",
            reasons: vec![],
            is_sound: true,
            outlook: Some("it lasts".into()),
        }
    }

    #[test]
    fn lag_alone_is_no_finding_and_what_stands_still_is() {
        assert_eq!(report(Some(slot()), partition()).findings, Vec::<String>::new());
        let found = |slot: Slot, partition: Partition| report(Some(slot), partition).findings.join("\n");
        let unread = found(Slot { active_pid: None, ..slot() }, partition());
        assert!(unread.contains("WAL piles up") && unread.contains("it lasts"), "{unread}");
        let lost = Slot { active_pid: None, is_sound: false, reasons: vec!["it is lost: load again".into()], ..slot() };
        assert_eq!(found(lost, partition()), "it is lost: load again");
        assert!(found(slot(), Partition { parked: 2, ..partition() }).contains("dlq list --group rdb"));
        assert!(found(slot(), Partition { error: Some("disk full".into()), ..partition() }).contains("disk full"));
        assert!(found(slot(), Partition { owner: None, ..partition() }).contains("nobody reads"));
        assert_eq!(found(slot(), Partition { owner: None, lag: Some(0), ..partition() }), "");
    }

    #[test]
    fn the_json_form_is_stable() {
        let json = serde_json::to_value(report(None, partition())).expect("plain data");
        let names: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(names, ["findings", "groups", "prefix", "slot", "stream", "tables", "unknown"]);
        assert_eq!(json["groups"][0]["partitions"][0]["lag"], 1);
    }

    #[test]
    fn the_tables_read_well() {
        let mut report = report(Some(slot()), partition());
        report.tables = vec![Table {
            table: "public.users".into(),
            topic: "shop.public.users".into(),
            partitions: 4,
            records: 12,
            load: Stage::Live,
            reason: None,
            loads: vec![loads::tests::load(5, 10)],
        }];
        let hindered = Some(Hindrance { why: "permission denied".into(), is_fault: true });
        let stuck = TableLoad { hindered, load: "b2".into(), ..loads::tests::load(0, 10) };
        let other = Table { table: "public.orders".into(), loads: vec![stuck], ..report.tables[0].clone() };
        report.tables.push(other);
        report.judge();
        assert_eq!(report.findings, ["the load b2 of public.orders stands still: permission denied"]);
        assert_eq!(report.tables[1].reason.as_deref(), Some("permission denied"));
        let text = text::of(&report);
        for part in [
            "tributary_shop",
            "16 B and at most 2 s behind",
            "public.users",
            "loading 5 rows of about 10 (50 %)",
            "failed 0 rows of about 10 (0 %), waits: permission denied",
            "rdb",
            "12@host",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }
}
