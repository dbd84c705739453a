//! One measurement: the figures of one system in one repetition.

use serde::Serialize;

use crate::meter::{Cpu, Readings};
use crate::plan::System;
use crate::probe::Sample;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Measured {
    #[serde(rename = "source")]
    Source,
    #[serde(rename = "apply")]
    Apply,
    /// Commit to record at a consumer.
    #[serde(rename = "latency")]
    ToRecord,
    /// Commit to row in the target.
    #[serde(rename = "latency-row")]
    ToRow,
    /// Rows at rest to the topic.
    #[serde(rename = "snapshot")]
    Snapshot,
    /// Rows at rest to the target's table.
    #[serde(rename = "snapshot-row")]
    SnapshotToRow,
    /// Commit to record at a consumer, while another table is loaded.
    #[serde(rename = "latency-loading")]
    WhileLoading,
    /// The same when that is done.
    #[serde(rename = "latency-loaded")]
    WhenLoaded,
}

/// One object of `--json`. A figure that does not apply is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Line {
    pub(crate) bench: Measured,
    pub(crate) system: &'static str,
    pub(crate) events: u64,
    pub(crate) seconds: Option<f64>,
    pub(crate) events_per_s: Option<f64>,
    pub(crate) cpu_s_per_million: Option<f64>,
    pub(crate) peak_rss_mb: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    /// CPU seconds in the same window.
    pub(crate) source_cpu_s: Option<f64>,
    pub(crate) kafka_cpu_s: Option<f64>,
    pub(crate) target_cpu_s: Option<f64>,
    pub(crate) other_cpu_s: Option<f64>,
    /// From the start of the system to the first record or row.
    pub(crate) start_s: Option<f64>,
    /// What went wrong: then the figures are not to be used.
    pub(crate) fault: Option<String>,
    #[serde(skip)]
    pub(crate) kind: System,
}

impl Line {
    /// A measurement without figures yet.
    pub(crate) fn new(bench: Measured, system: System, events: u64) -> Line {
        Line {
            bench,
            system: system.name(),
            events,
            seconds: None,
            events_per_s: None,
            cpu_s_per_million: None,
            peak_rss_mb: None,
            p50_ms: None,
            p99_ms: None,
            max_ms: None,
            source_cpu_s: None,
            kafka_cpu_s: None,
            target_cpu_s: None,
            other_cpu_s: None,
            start_s: None,
            fault: None,
            kind: system,
        }
    }

    /// What was used from the first record to the last.
    #[must_use]
    pub(crate) fn used(mut self, readings: &Readings, window: (f64, f64)) -> Line {
        let Cpu { subject, source, target, kafka, other } = readings.cpu(window.0, window.1);
        self.cpu_s_per_million = subject.map(|seconds| rounded(seconds * 1e6 / self.events.max(1) as f64));
        self.peak_rss_mb = Some(rounded(readings.peak_rss_mb()));
        self.source_cpu_s = source.map(rounded);
        self.target_cpu_s = target.map(rounded);
        self.kafka_cpu_s = kafka.map(rounded);
        self.other_cpu_s = other.map(rounded);
        self
    }

    /// How long all of it took.
    #[must_use]
    pub(crate) fn took(mut self, launched: f64, window: (f64, f64)) -> Line {
        let seconds = window.1 - window.0;
        self.start_s = Some(rounded(window.0 - launched));
        if self.fault.is_none() && seconds > 0.0 {
            self.seconds = Some((seconds * 1000.0).round() / 1000.0);
            self.events_per_s = Some((self.events as f64 / seconds).round());
        }
        self
    }

    /// How long each took.
    #[must_use]
    pub(crate) fn late(mut self, samples: &[Sample]) -> Line {
        let mut ms: Vec<f64> = samples.iter().map(|sample| sample.taken * 1000.0).collect();
        ms.sort_by(f64::total_cmp);
        let at = |share: f64| ms.get((ms.len() as f64 * share) as usize).or(ms.last()).copied().map(rounded);
        (self.p50_ms, self.p99_ms, self.max_ms) = (at(0.5), at(0.99), at(1.0));
        self
    }

    /// Notes a fault, if it is the first.
    #[must_use]
    pub(crate) fn with_fault(mut self, fault: Option<String>) -> Line {
        self.fault = self.fault.or(fault);
        self
    }

    /// One line of JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text are JSON")
    }

    /// One sentence, as soon as it is known.
    pub(crate) fn summary(&self) -> String {
        let figure =
            |value: Option<f64>, unit: &str| value.map(|value| format!(", {value} {unit}")).unwrap_or_default();
        let figures = [
            figure(self.events_per_s, "changes/s"),
            figure(self.p50_ms, "ms p50"),
            figure(self.p99_ms, "ms p99"),
            figure(self.cpu_s_per_million, "CPU s/M"),
            figure(self.peak_rss_mb, "MB"),
            self.fault.as_ref().map(|fault| format!(", FAULT: {fault}")).unwrap_or_default(),
        ];
        format!("{}: {}{}", report_name(self.bench), self.system, figures.concat())
    }
}

/// A measurement as a person calls it.
pub(crate) fn report_name(bench: Measured) -> &'static str {
    match bench {
        Measured::Source => "source",
        Measured::Apply => "apply",
        Measured::ToRecord => "latency, commit to record",
        Measured::ToRow => "latency, commit to row",
        Measured::Snapshot => "snapshot",
        Measured::SnapshotToRow => "snapshot, the whole way",
        Measured::WhileLoading => "latency, commit to record, while another table is loaded",
        Measured::WhenLoaded => "latency, commit to record, when that is done",
    }
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
