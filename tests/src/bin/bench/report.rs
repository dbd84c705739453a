//! The figures as a person reads them: medians over the repetitions, ratios to the limit, and the bars that ours must reach.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use crate::line::{Line, Measured, report_name};
use crate::plan::System;

/// The least share of the limit's changes a second.
const SOURCE_SHARE_MIN: f64 = 0.7;
const APPLY_SHARE_MIN: f64 = 0.8;
/// The most memory while catching up.
const SOURCE_PEAK_MB_MAX: f64 = 128.0;
const APPLY_PEAK_MB_MAX: f64 = 256.0;
const SNAPSHOT_SHARE_MIN: f64 = 0.2;
const SNAPSHOT_PEAK_MB_MAX: f64 = 160.0;
const WHOLE_WAY_SHARE_MIN: f64 = 0.4;
const WHOLE_WAY_PEAK_MB_MAX: f64 = 256.0;

/// One table for each thing that was measured, with its bars below.
pub(crate) fn tables(lines: &[Line]) -> String {
    let all = [
        Measured::Source,
        Measured::Apply,
        Measured::Snapshot,
        Measured::SnapshotToRow,
        Measured::ToRecord,
        Measured::WhileLoading,
        Measured::WhenLoaded,
        Measured::ToRow,
    ];
    let of = |bench: Measured| {
        let lines: Vec<&Line> = lines.iter().filter(|line| line.bench == bench).collect();
        if lines.is_empty() { String::new() } else { section(bench, &lines) }
    };
    all.into_iter().map(of).collect()
}

fn section(bench: Measured, lines: &[&Line]) -> String {
    let mut systems: Vec<System> = Vec::new();
    for line in lines {
        if !systems.contains(&line.kind) {
            systems.push(line.kind);
        }
    }
    let rows: Vec<Row> = systems.iter().map(|system| Row::of(*system, lines)).collect();
    let limit = rows.iter().find(|row| row.system.is_limit()).and_then(|row| row.events_per_s);
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let is_rate = bars_of(bench).is_some();
    let own: &[&str] = if is_rate { &["changes/s", "of limit"] } else { &["p50 ms", "p99 ms", "max ms"] };
    let rest = ["CPU s/M", "source", "kafka", "target", "other s", "peak MB", "runs"];
    table.set_header(std::iter::once("").chain(own.iter().copied()).chain(rest));
    for row in &rows {
        let own = if is_rate {
            let share = row.events_per_s.zip(limit).map(|(rate, limit)| rate / limit);
            vec![figure(row.events_per_s, 0), figure(share, 2)]
        } else {
            vec![figure(row.p50_ms, 1), figure(row.p99_ms, 1), figure(row.max_ms, 1)]
        };
        table.add_row(std::iter::once(row.system.name().to_owned()).chain(own).chain(row.rest()));
    }
    table.column_iter_mut().enumerate().for_each(|(i, column)| {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    });
    let title = title(bench, lines);
    let faults: String =
        lines.iter().filter_map(|line| Some(format!("  FAULT {}: {}\n", line.system, line.fault.as_ref()?))).collect();
    let text: String = table.to_string().lines().map(|line| format!("  {}\n", line.trim_end())).collect();
    format!("\n{title}\n{text}{faults}{}", bars(bench, &rows, limit))
}

fn title(bench: Measured, lines: &[&Line]) -> String {
    let events = lines.first().map_or(0, |line| line.events);
    let what = match bench {
        Measured::Source => format!("{events} changes from a slot to a topic (pg_recvlogical: to /dev/null)"),
        Measured::Apply => format!("{events} changes from a topic to an empty table (native: from a slot)"),
        Measured::ToRecord => "at a steady rate (pg_recvlogical: to a pipe, no Kafka)".to_owned(),
        Measured::ToRow => "at a steady rate, the target asked every 5 ms".to_owned(),
        Measured::Snapshot => format!("{events} rows at rest to a topic (copy: COPY TO STDOUT into /dev/null)"),
        Measured::SnapshotToRow => {
            format!(
                "{events} rows from a table to an empty one, with the start of the system (native: its own first copy)"
            )
        }
        Measured::WhileLoading | Measured::WhenLoaded => "at a steady rate".to_owned(),
    };
    format!(
        "{}: {what}\n  CPU seconds a million changes of the system, and of the servers beside it; `other`: whoever else was there",
        report_name(bench)
    )
}

/// The least share of the limit, and the most memory, where rows a second are measured.
fn bars_of(bench: Measured) -> Option<(f64, f64)> {
    match bench {
        Measured::Source => Some((SOURCE_SHARE_MIN, SOURCE_PEAK_MB_MAX)),
        Measured::Apply => Some((APPLY_SHARE_MIN, APPLY_PEAK_MB_MAX)),
        Measured::Snapshot => Some((SNAPSHOT_SHARE_MIN, SNAPSHOT_PEAK_MB_MAX)),
        Measured::SnapshotToRow => Some((WHOLE_WAY_SHARE_MIN, WHOLE_WAY_PEAK_MB_MAX)),
        Measured::ToRecord | Measured::ToRow | Measured::WhileLoading | Measured::WhenLoaded => None,
    }
}

/// Whether ours reaches what it must. A bar is told, not enforced: the machine may have been shared.
fn bars(bench: Measured, rows: &[Row], limit: Option<f64>) -> String {
    let Some((share_min, peak_max)) = bars_of(bench) else { return String::new() };
    let Some(ours) = rows.iter().find(|row| row.system == System::Tributary) else { return String::new() };
    let verdict = |reached: bool| if reached { "reached" } else { "MISSED" };
    let share = match ours.events_per_s.zip(limit).map(|(rate, limit)| rate / limit) {
        Some(share) => format!("{share:.2}, {}", verdict(share >= share_min)),
        None => format!("not measured, {}", verdict(false)),
    };
    let memory = match ours.peak_rss_mb {
        Some(peak) => format!("{peak:.0} MB, {}", verdict(peak <= peak_max)),
        None => format!("not measured, {}", verdict(false)),
    };
    format!("  bar: at least {share_min} of the limit: {share}\n  bar: at most {peak_max} MB: {memory}\n")
}

/// One system's medians.
struct Row {
    system: System,
    runs: usize,
    events_per_s: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    cpu: Option<f64>,
    source: Option<f64>,
    kafka: Option<f64>,
    target: Option<f64>,
    other_s: Option<f64>,
    peak_rss_mb: Option<f64>,
}

impl Row {
    fn of(system: System, lines: &[&Line]) -> Row {
        let runs: Vec<&Line> =
            lines.iter().copied().filter(|line| line.kind == system && line.fault.is_none()).collect();
        let median = |of: &dyn Fn(&Line) -> Option<f64>| median(runs.iter().filter_map(|line| of(line)).collect());
        let a_million = |cpu: Option<f64>, line: &Line| cpu.map(|seconds| seconds * 1e6 / line.events.max(1) as f64);
        Row {
            system,
            runs: runs.len(),
            events_per_s: median(&|line| line.events_per_s),
            p50_ms: median(&|line| line.p50_ms),
            p99_ms: median(&|line| line.p99_ms),
            max_ms: median(&|line| line.max_ms),
            cpu: median(&|line| line.cpu_s_per_million),
            source: median(&|line| a_million(line.source_cpu_s, line)),
            kafka: median(&|line| a_million(line.kafka_cpu_s, line)),
            target: median(&|line| a_million(line.target_cpu_s, line)),
            other_s: median(&|line| line.other_cpu_s),
            peak_rss_mb: median(&|line| line.peak_rss_mb),
        }
    }

    fn rest(&self) -> Vec<String> {
        let cpu = [self.cpu, self.source, self.kafka, self.target, self.other_s].map(|value| figure(value, 1));
        cpu.into_iter().chain([figure(self.peak_rss_mb, 0), self.runs.to_string()]).collect()
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values.get(middle).copied()
    } else {
        Some((values.get(middle)? + values.get(middle.checked_sub(1)?)?) / 2.0)
    }
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0]), Some(5.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn ours_is_held_against_the_limit_of_the_same_run() {
        let line = |system, rate, peak| {
            let mut line = Line::new(Measured::Source, system, 1_000_000);
            (line.events_per_s, line.peak_rss_mb) = (Some(rate), Some(peak));
            line
        };
        let text = tables(&[line(System::PgRecvlogical, 80_000.0, 8.0), line(System::Tributary, 60_000.0, 300.0)]);
        assert!(text.contains("at least 0.7 of the limit: 0.75, reached"), "{text}");
        assert!(text.contains("at most 128 MB: 300 MB, MISSED"), "{text}");
    }
}
