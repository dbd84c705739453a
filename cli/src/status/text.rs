//! The report for people.

use super::{Group, Report, Stream, Table};
use crate::output::{bytes, known, table};
use crate::slot::Slot;

/// All of it.
pub(super) fn of(report: &Report) -> String {
    let mut text = String::new();
    if let Some(slot) = &report.slot {
        text += &of_slot(slot);
    }
    if let Some(stream) = &report.stream {
        text += &of_stream(stream);
    }
    if !report.tables.is_empty() {
        text += "\n";
        let heading = ["table", "topic", "partitions", "records", "load"];
        text += &table(&heading, report.tables.iter().map(of_table).collect());
    }
    for group in &report.groups {
        text += &of_group(group);
    }
    let list = |title: &str, lines: &[String]| {
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        if lines.is_empty() { String::new() } else { format!("\n{title}\n{lines}") }
    };
    text += &list("needs a person", &report.findings);
    text += &list("could not be asked", &report.unknown);
    if report.findings.is_empty() && report.unknown.is_empty() {
        text += "\nAll is well.";
    }
    text.trim_start().to_owned()
}

fn of_slot(slot: &Slot) -> String {
    let reader = slot.active_pid.map_or_else(|| "read by nobody".to_owned(), |pid| format!("read by process {pid}"));
    let room = slot.safe_wal_bytes.and_then(|left| u64::try_from(left).ok());
    let room = room.map_or_else(String::new, |left| format!(", {} until it is in danger", bytes(left)));
    let age = slot.behind_seconds.map_or_else(String::new, |seconds| format!(" and at most {seconds} s"));
    format!(
        "slot {}: {}, {}, {reader}, {}{age} behind, {} kept for it{room} (confirmed {}, server at {})\n",
        slot.name,
        slot.level,
        known(slot.wal_status.as_ref()),
        bytes(slot.behind_bytes),
        known(slot.retained_bytes.map(bytes)),
        known(slot.confirmed_lsn.as_ref()),
        slot.server_lsn,
    )
}

fn of_stream(stream: &Stream) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis();
    let age = stream.last_commit_ms.map(|ms| i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(ms) / 1000);
    let age = age.map_or_else(|| "none".to_owned(), |seconds| format!("committed {seconds} s ago"));
    format!("stream: in Kafka up to {}, last published transaction {age}\n", stream.flushed)
}

fn of_table(table: &Table) -> Vec<String> {
    let loads = table.loads.iter().map(crate::loads::TableLoad::words);
    let words: Vec<String> = std::iter::once(table.load.words().to_owned()).chain(loads).collect();
    let load = words.join(" ");
    let (name, topic) = (table.table.clone(), table.topic.clone());
    vec![name, topic, table.partitions.to_string(), table.records.to_string(), load]
}

fn of_group(group: &Group) -> String {
    let lag: Option<u64> = group.partitions.iter().map(|partition| partition.lag).sum();
    let rows = group.partitions.iter().map(|partition| {
        vec![
            partition.topic.clone(),
            partition.partition.to_string(),
            known(partition.offset),
            known(partition.end),
            known(partition.lag),
            known(partition.owner.as_ref()),
            partition.parked.to_string(),
        ]
    });
    let heading = ["topic", "partition", "offset", "end", "lag", "owner", "parked"];
    format!("\ngroup {}, to {}: lag {} records\n{}", group.group, group.to, known(lag), table(&heading, rows.collect()))
}
