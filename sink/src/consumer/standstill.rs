//! Finds partitions of which nothing comes although Kafka has more.
//!
//! Where leaders change hands quickly, librdkafka can go on fetching from a broker that leads no more, and say nothing (its
//! pull request 5593). Another consumer begins with the leaders as they are.
//!
//! Pure: no clock but the times at which things were so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Reach;
use crate::record::Partition;

/// How long nothing comes before that is believed: several times as long as an idle partition is not looked at.
const BELIEVED_AFTER: Duration = Duration::from_secs(120);

/// It is doubled each time that another consumer did not help, so many times at most.
const DOUBLED_MAX: u32 = 5;

/// Partitions that have done all that was fetched, and are behind: where, and since when.
#[derive(Debug)]
pub(crate) struct Standstill {
    since: HashMap<Partition, (i64, Instant)>,
    believed_after: Duration,
}

impl Standstill {
    /// After so many consumers in a row that were given up.
    pub(crate) fn new(given_up: u32) -> Standstill {
        Standstill { since: HashMap::new(), believed_after: BELIEVED_AFTER * (1 << given_up.min(DOUBLED_MAX)) }
    }

    /// A partition is so far, and this is its end for readers. Whether it stands still.
    pub(crate) fn look(&mut self, partition: &Partition, reach: Reach, end: i64) -> bool {
        if !reach.is_idle || reach.next >= end {
            self.since.remove(partition);
            return false;
        }
        match self.since.get(partition) {
            Some((next, since)) if *next == reach.next => reach.at.duration_since(*since) >= self.believed_after,
            _ => {
                self.since.insert(partition.clone(), (reach.next, reach.at));
                false
            }
        }
    }

    /// Nothing is known of these any more: Kafka did not answer, or they are another's.
    pub(crate) fn forget(&mut self, is_meant: impl Fn(&Partition) -> bool) {
        self.since.retain(|partition, _| !is_meant(partition));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(given_up: u32) -> impl FnMut(i64, bool, i64, u64) -> bool {
        let (mut standstill, begun) = (Standstill::new(given_up), Instant::now());
        let partition = Partition { topic: "t".into(), number: 0 };
        move |next, is_idle, end, seconds| {
            let at = begun + Duration::from_secs(seconds);
            standstill.look(&partition, Reach { next, is_idle, at }, end)
        }
    }

    #[test]
    fn only_what_has_more_and_brings_nothing_for_long_stands_still() {
        let mut look = looks(0);
        assert!(!look(5, true, 9, 0) && !look(5, true, 9, 119));
        assert!(look(5, true, 9, 120), "two minutes without a record");
        assert!(!look(6, true, 9, 130), "one has come");
        assert!(!look(6, false, 9, 300), "its worker or others had to do");
        assert!(!look(6, true, 9, 310) && !look(9, true, 9, 500), "it is at the end");
        assert!(!look(9, true, 10, 600) && look(9, true, 12, 720), "more comes to the topic and nothing to us");
    }

    #[test]
    fn what_another_consumer_does_not_mend_is_given_more_and_more_time() {
        let mut look = looks(2);
        assert!(!look(5, true, 9, 0) && !look(5, true, 9, 479) && look(5, true, 9, 480));
    }

    #[test]
    fn where_kafka_did_not_answer_the_wait_begins_anew() {
        let mut standstill = Standstill::new(0);
        let partition = Partition { topic: "t".into(), number: 0 };
        let reach = Reach { next: 5, is_idle: true, at: Instant::now() };
        assert!(!standstill.look(&partition, reach, 9));
        standstill.forget(|known| *known.topic == *"t");
        assert!(!standstill.look(&partition, Reach { at: reach.at + BELIEVED_AFTER, ..reach }, 9));
    }
}
