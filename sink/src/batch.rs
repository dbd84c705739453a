//! Which records of a partition are taken next: a contiguous stretch behind what is done, or none.
//!
//!     segments ──▶ Backlog ──take──▶ Batch { from, to, records }
//!
//! `seq` is dense, so whatever offset Kafka gave a record, one that was done before is seen and a lost one cannot hide.
//! Pure: no clock, no socket. The worker is the only owner of its backlog.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use schemas::{Position, Seq};

use crate::record::{Kind, Record, Segment};

/// What one group has durably done of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Where the next record is looked for.
    pub next_offset: i64,
    /// Where the last record that was done stands; -1 before the first.
    pub last_offset: i64,
    /// The number of the last record that was done; 0 before the first.
    pub seq: Seq,
    /// The position of the last record that was done.
    pub position: Position,
}

/// What a record is to a partition that stands at some progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Done before.
    Replay,
    /// The one that comes next.
    Next,
    /// Something in front of it is missing.
    Gap,
}

impl Progress {
    /// Where nothing has been done yet.
    pub const NOTHING: Progress = Progress {
        next_offset: 0,
        last_offset: -1,
        seq: Seq(0),
        position: Position { commit: schemas::Lsn::ZERO, change: schemas::Lsn::ZERO, n: 0 },
    };

    pub(crate) fn place(&self, seq: Seq) -> Place {
        match seq.cmp(&self.seq.next()) {
            Ordering::Less => Place::Replay,
            Ordering::Equal => Place::Next,
            Ordering::Greater => Place::Gap,
        }
    }

    pub(crate) fn after(record: &Record<'_>) -> Progress {
        Progress {
            next_offset: record.offset + 1,
            last_offset: record.offset,
            seq: record.seq,
            position: record.position,
        }
    }
}

/// Why no batch can be taken: the partition is not what it was, or somebody else wrote into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Records are missing in front of this one.
    #[error("record number {found} stands at offset {offset}, where number {expected} is to follow")]
    Gap {
        /// The number that should stand there.
        expected: Seq,
        /// The number that does.
        found: Seq,
        /// Where.
        offset: i64,
    },
    /// A position falls.
    #[error("the record at offset {offset} stands at {found}, before what was done at {done}")]
    Falls {
        /// Where.
        offset: i64,
        /// Its position.
        found: Position,
        /// The position that was done before it.
        done: Position,
    },
}

/// How much one batch may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows_max: usize,
    pub(crate) bytes_max: usize,
}

/// A contiguous stretch of one partition.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// What is done before it.
    pub(crate) from: Progress,
    /// What is done with it.
    pub(crate) to: Progress,
    stretches: Vec<(Arc<Segment>, Range<usize>)>,
    rows: usize,
    bytes: usize,
}

impl Batch {
    /// The records in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.stretches.iter().flat_map(|(segment, range)| range.clone().map(|index| segment.record(index)))
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The control event, if this is one: it always stands alone.
    pub(crate) fn control(&self) -> Option<Record<'_>> {
        self.records().next().filter(|record| record.kind == Kind::Control)
    }

    /// What stands behind a part that is done already.
    pub(crate) fn behind(mut self, done: Progress) -> Batch {
        self.from = done;
        for (segment, range) in &mut self.stretches {
            while range.start < range.end && segment.record(range.start).seq <= done.seq {
                self.bytes -= segment.record(range.start).bytes();
                self.rows -= 1;
                range.start += 1;
            }
        }
        self.stretches.retain(|(_, range)| range.start < range.end);
        self
    }
}

/// Fetched records that no batch has taken yet.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// What is done once everything taken so far is.
    taken: Progress,
    segments: VecDeque<Arc<Segment>>,
    /// Where in the first segment the next record stands.
    cursor: usize,
    rows: usize,
    bytes: usize,
}

impl Backlog {
    pub(crate) fn new(done: Progress) -> Backlog {
        Backlog { taken: done, segments: VecDeque::new(), cursor: 0, rows: 0, bytes: 0 }
    }

    pub(crate) fn push(&mut self, segment: Segment) {
        self.rows += segment.len();
        self.bytes += segment.bytes();
        self.segments.push_back(Arc::new(segment));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Whether a batch taken now would be as large as it may be.
    pub(crate) fn fills(&self, limits: Limits) -> bool {
        self.rows >= limits.rows_max || self.bytes >= limits.bytes_max
    }

    /// The next record, without taking it.
    pub(crate) fn peek(&self) -> Option<Record<'_>> {
        self.segments.front().map(|segment| segment.record(self.cursor))
    }

    /// Drops the next record.
    pub(crate) fn step(&mut self) {
        let Some(segment) = self.segments.front() else { return };
        self.rows -= 1;
        self.cursor += 1;
        if self.cursor == segment.len() {
            self.bytes = self.bytes.saturating_sub(segment.bytes());
            self.segments.pop_front();
            self.cursor = 0;
        }
    }

    /// The next batch: up to the limits (but at least one record), up to the next control event, or that event alone.
    pub(crate) fn take(&mut self, limits: Limits) -> Result<Option<Batch>, Refusal> {
        let from = self.taken;
        let mut batch = Batch { from, to: from, stretches: Vec::new(), rows: 0, bytes: 0 };
        while let Some(segment) = self.segments.front().cloned() {
            let record = segment.record(self.cursor);
            match self.taken.place(record.seq) {
                Place::Replay => {
                    self.step();
                    continue;
                }
                Place::Gap => {
                    return Err(Refusal::Gap {
                        expected: self.taken.seq.next(),
                        found: record.seq,
                        offset: record.offset,
                    });
                }
                Place::Next if record.position < self.taken.position => {
                    let done = self.taken.position;
                    return Err(Refusal::Falls { offset: record.offset, found: record.position, done });
                }
                Place::Next => {}
            }
            let control = record.kind == Kind::Control;
            let full = batch.rows >= limits.rows_max || batch.bytes + record.bytes() > limits.bytes_max;
            if batch.rows > 0 && (full || control) {
                break;
            }
            self.taken = Progress::after(&record);
            batch.rows += 1;
            batch.bytes += record.bytes();
            match batch.stretches.last_mut() {
                Some((last, range)) if Arc::ptr_eq(last, &segment) => range.end = self.cursor + 1,
                _ => batch.stretches.push((segment.clone(), self.cursor..self.cursor + 1)),
            }
            self.step();
            if control {
                break;
            }
        }
        batch.to = self.taken;
        Ok((batch.rows > 0).then_some(batch))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::tests::segment;

    const WIDE: Limits = Limits { rows_max: 100, bytes_max: 1 << 20 };

    fn taken(backlog: &mut Backlog, limits: Limits) -> Vec<Vec<u64>> {
        let mut batches = Vec::new();
        while let Some(batch) = backlog.take(limits).expect("no gap") {
            batches.push(batch.records().map(|record| record.seq.0).collect());
        }
        batches
    }

    fn at(seq: u64, offset: i64) -> Progress {
        Progress { next_offset: offset + 1, last_offset: offset, seq: Seq(seq), position: Position::default() }
    }

    #[test]
    fn a_control_event_stands_alone() {
        let mut backlog = Backlog::new(Progress::NOTHING);
        backlog.push(segment(&[(0, 1, "", Some("!m")), (1, 2, "a", Some("x")), (2, 3, "b", Some("x"))]));
        backlog.push(segment(&[(5, 4, "a", None), (6, 5, "", Some("!m")), (7, 6, "a", Some("x"))]));
        assert_eq!(taken(&mut backlog, WIDE), [vec![1], vec![2, 3, 4], vec![5], vec![6]]);
        assert!(backlog.is_empty() && backlog.bytes == 0);
    }

    #[test]
    fn a_replay_is_skipped_and_a_gap_refused() {
        let mut backlog = Backlog::new(at(2, 11));
        backlog.push(segment(&[(11, 2, "a", Some("x")), (12, 3, "a", Some("x"))]));
        let batch = backlog.take(WIDE).expect("no gap").expect("one record");
        assert_eq!((batch.from, batch.to.seq, batch.to.next_offset), (at(2, 11), Seq(3), 13));

        backlog.push(segment(&[(13, 5, "a", Some("x"))]));
        let gap = Refusal::Gap { expected: Seq(4), found: Seq(5), offset: 13 };
        assert_eq!(backlog.take(WIDE).expect_err("4 is missing"), gap);
    }

    #[test]
    fn what_stands_behind_a_part_is_the_rest() {
        let mut backlog = Backlog::new(Progress::NOTHING);
        backlog.push(segment(&[(0, 1, "a", Some("x")), (1, 2, "b", Some("yy"))]));
        backlog.push(segment(&[(2, 3, "c", Some("z"))]));
        let batch = backlog.take(WIDE).expect("no gap").expect("three records");
        let rest = batch.behind(at(2, 1));
        assert_eq!(rest.records().map(|record| record.offset).collect::<Vec<_>>(), [2]);
        assert_eq!((rest.len(), rest.bytes(), rest.from.seq, rest.to.seq), (1, 2, Seq(2), Seq(3)));
    }

    proptest! {
        /// Whatever the cuts and the limits: every record once, in order, and batches that join without a seam.
        #[test]
        fn batches_are_contiguous(cuts in prop::collection::vec(1usize..6, 1..8), rows_max in 1usize..7, done in 0u64..4) {
            let mut backlog = Backlog::new(at(done, done as i64 - 1));
            let mut seq = 0;
            for cut in cuts {
                let records: Vec<_> = (0..cut).map(|_| { seq += 1; (seq as i64 - 1, seq, "k", Some("v")) }).collect();
                backlog.push(segment(&records));
            }
            let mut progress = at(done, done as i64 - 1);
            let mut seen = Vec::new();
            while let Some(batch) = backlog.take(Limits { rows_max, bytes_max: 1000 }).expect("no gap") {
                prop_assert_eq!(batch.from, progress);
                prop_assert!(batch.len() <= rows_max);
                seen.extend(batch.records().map(|record| record.seq.0));
                progress = batch.to;
            }
            prop_assert_eq!(seen, (done + 1..=seq).collect::<Vec<_>>());
        }
    }
}
