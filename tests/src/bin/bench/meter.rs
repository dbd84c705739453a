//! Watches processes while something is measured: a thread that reads /proc ten times a second, for as long as it is held.
//!
//! Knows nothing of what the processes do. Times are seconds since 1970, as the broker's stamps are.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::Error;

use crate::proc;

/// How often it reads.
const EVERY: Duration = Duration::from_millis(100);

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Whom to watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// The process that is measured. The target's own apply worker is one of the target's family.
    pub(crate) subject: u32,
    /// The source's postmaster.
    pub(crate) source: Option<u32>,
    /// The target's postmaster.
    pub(crate) target: Option<u32>,
    /// The broker.
    pub(crate) kafka: Option<u32>,
}

/// A running meter.
pub(crate) struct Meter {
    stop: Sender<()>,
    thread: JoinHandle<Readings>,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    subject_is_of_target: bool,
    subject: Series,
    source: Series,
    target: Series,
    kafka: Series,
    machine: Series,
    peak_memory_bytes: u64,
}

/// CPU seconds in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) subject: Option<f64>,
    pub(crate) source: Option<f64>,
    pub(crate) target: Option<f64>,
    pub(crate) kafka: Option<f64>,
    /// Of whoever else was there, and of the measuring itself.
    pub(crate) other: Option<f64>,
}

/// Readings of one counter: when, and how much.
#[derive(Debug, Default)]
struct Series(Vec<(f64, f64)>);

impl Meter {
    /// Begins to watch.
    pub(crate) fn start(watched: Watched) -> Result<Meter, Error> {
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            let subject_is_of_target = proc::parent(watched.subject).is_some_and(|it| watched.target == Some(it));
            let mut readings = Readings { subject_is_of_target, ..Readings::default() };
            readings.read(&watched);
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
                readings.read(&watched);
            }
            readings.read(&watched);
            readings
        };
        let thread = std::thread::Builder::new().name("meter".into()).spawn(run);
        Ok(Meter { stop, thread: thread.map_err(Error::during("start the meter"))? })
    }

    /// Ends, and gives what was read.
    pub(crate) fn stop(self) -> Readings {
        drop(self.stop);
        self.thread.join().expect("reading /proc does not panic")
    }
}

impl Readings {
    fn read(&mut self, watched: &Watched) {
        self.subject.add(proc::cpu_seconds(watched.subject));
        self.source.add(watched.source.and_then(proc::family_cpu_seconds));
        self.target.add(watched.target.and_then(proc::family_cpu_seconds));
        self.kafka.add(watched.kafka.and_then(proc::cpu_seconds));
        self.machine.add(proc::machine_cpu_seconds());
        let peak = proc::peak_memory_bytes(watched.subject).unwrap_or_default();
        self.peak_memory_bytes = self.peak_memory_bytes.max(peak);
    }

    /// The most memory that the subject has had, in MB of 1024 * 1024 bytes.
    pub(crate) fn peak_rss_mb(&self) -> f64 {
        self.peak_memory_bytes as f64 / f64::from(1 << 20)
    }

    /// What was used from `from` to `to`.
    pub(crate) fn cpu(&self, from: f64, to: f64) -> Cpu {
        let of = |series: &Series| series.between(from, to);
        let (subject, source, target, kafka) = (of(&self.subject), of(&self.source), of(&self.target), of(&self.kafka));
        let own = subject.filter(|_| !self.subject_is_of_target);
        let known: f64 = [own, source, target, kafka].into_iter().flatten().sum();
        Cpu { subject, source, target, kafka, other: of(&self.machine).map(|all| (all - known).max(0.0)) }
    }
}

impl Series {
    fn add(&mut self, reading: Option<f64>) {
        self.0.extend(reading.map(|value| (now(), value)));
    }

    fn between(&self, from: f64, to: f64) -> Option<f64> {
        Some(self.at(to)? - self.at(from)?)
    }

    /// The value at a time, between two readings in proportion.
    fn at(&self, time: f64) -> Option<f64> {
        let next = self.0.partition_point(|(read, _)| *read <= time);
        match (next.checked_sub(1).map(|before| self.0[before]), self.0.get(next)) {
            (Some((t0, v0)), Some((t1, v1))) => Some(v0 + (time - t0) / (t1 - t0) * (v1 - v0)),
            (Some((_, value)), None) => Some(value),
            (None, first) => first.map(|(_, value)| *value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_readings_the_value_is_in_proportion() {
        let series = Series(vec![(10.0, 1.0), (20.0, 3.0), (30.0, 3.5)]);
        assert_eq!(series.at(15.0), Some(2.0));
        assert_eq!(series.between(10.0, 25.0), Some(2.25));
        // Outside, the nearest reading holds.
        assert_eq!(series.between(0.0, 99.0), Some(2.5));
        assert_eq!(Series::default().between(0.0, 1.0), None);
    }
}
