//! Finds partitions of which nothing comes although Kafka has more.
//!
//! Where leaders change hands quickly, librdkafka can go on fetching from a broker that leads no more, and say nothing (its
//! issue 5593). Another consumer begins with the leaders as they are.
//!
//! Pure: whoever looks brings the clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Reach;
use crate::record::Partition;

/// How long nothing comes before that is believed: several times as long as an idle partition is not looked at.
const BELIEVED_AFTER: Duration = Duration::from_secs(120);

/// Partitions that have done all that was fetched, and are behind: where, and since when.
#[derive(Debug, Default)]
pub(crate) struct Standstill(HashMap<Partition, (i64, Instant)>);

impl Standstill {
    /// A partition is so far, and this is its end for readers. Whether it stands still.
    pub(crate) fn look(&mut self, partition: &Partition, reach: Reach, end: i64, now: Instant) -> bool {
        if !reach.is_idle || reach.next >= end {
            self.0.remove(partition);
            return false;
        }
        match self.0.get(partition) {
            Some((next, since)) if *next == reach.next => now.duration_since(*since) >= BELIEVED_AFTER,
            _ => {
                self.0.insert(partition.clone(), (reach.next, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_more_and_brings_nothing_for_long_stands_still() {
        let mut standstill = Standstill::default();
        let partition = Partition { topic: "t".into(), number: 0 };
        let begun = Instant::now();
        let mut look = |next, is_idle, end, seconds| {
            standstill.look(&partition, Reach { next, is_idle }, end, begun + Duration::from_secs(seconds))
        };
        assert!(!look(5, true, 9, 0) && !look(5, true, 9, 119));
        assert!(look(5, true, 9, 120), "two minutes without a record");
        assert!(!look(6, true, 9, 130), "one has come");
        assert!(!look(6, false, 9, 300), "the worker has not done it");
        assert!(!look(6, true, 9, 310) && !look(9, true, 9, 500), "it is at the end");
        assert!(!look(9, true, 10, 600) && look(9, true, 12, 720), "more comes to the topic and nothing to us");
    }
}
