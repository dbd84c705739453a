//! Watches that what was sent is taken.
//!
//! When brokers tell it for a moment that a partition has no leader, librdkafka can lose that leader for good and without a
//! word (its issue 5430): records wait for ever while every broker answers. A new client finds the leader.
//!
//! Pure: no clock, since a process that was stopped for a while has not waited.

use super::TRANSACTION_TIMEOUT;

/// So many looks, about a second apart, find nothing taken before a person is told.
const TOLD_AFTER: u32 = 5;

/// And so many before the client is given up, where every broker is there as far as anybody knows: more than brokers take to
/// go on without a replica (30 to 45 s), less than a transaction lives.
const GIVEN_UP_AFTER: u32 = 50;

/// What became of the records that were sent so far.
#[derive(Debug, Default)]
pub(crate) struct Standstill {
    least: Option<i32>,
    looks: u32,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Wait,
    /// Wait, and tell a person.
    Tell,
    /// Give the client up.
    GiveUp,
}

impl Standstill {
    /// Another second has been waited, and so many records are left. `all_there`: no broker is known to be lost.
    pub(crate) fn look(&mut self, left: i32, all_there: bool) -> Verdict {
        if self.least.is_none_or(|least| left < least) {
            *self = Standstill { least: Some(left), looks: 0 };
            return Verdict::Wait;
        }
        self.looks += 1;
        let patience = if all_there { GIVEN_UP_AFTER } else { TRANSACTION_TIMEOUT.as_secs() as u32 };
        match self.looks {
            looks if looks >= patience => Verdict::GiveUp,
            TOLD_AFTER => Verdict::Tell,
            _ => Verdict::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(standstill: &mut Standstill, left: i32, all_there: bool, times: u32) -> Vec<Verdict> {
        (0..times).map(|_| standstill.look(left, all_there)).collect()
    }

    #[test]
    fn what_stands_still_is_told_of_once_and_then_given_up() {
        let mut standstill = Standstill::default();
        let seen = looks(&mut standstill, 7, true, 51);
        assert_eq!(seen.iter().filter(|verdict| **verdict == Verdict::Tell).count(), 1);
        assert_eq!((seen[49], seen[50]), (Verdict::Wait, Verdict::GiveUp));
    }

    #[test]
    fn whatever_is_taken_begins_the_wait_anew_and_what_is_added_does_not() {
        let mut standstill = Standstill::default();
        looks(&mut standstill, 7, true, 50);
        assert_eq!(standstill.look(6, true), Verdict::Wait);
        looks(&mut standstill, 6, true, 49);
        assert_eq!(standstill.look(9, true), Verdict::GiveUp);
    }

    #[test]
    fn lost_brokers_are_waited_for_as_long_as_the_transaction_lives() {
        let mut standstill = Standstill::default();
        assert!(!looks(&mut standstill, 7, false, 60).contains(&Verdict::GiveUp));
        assert_eq!(standstill.look(7, false), Verdict::GiveUp);
    }
}
