//! How often something is done that any user of the database can bring about: a line in the log, a look at the configuration.
//!
//! Pure. So many at once, and after that one in a while: whoever writes a million messages is told of by the first ones, and
//! what is wished for later waits its turn.

use std::time::Duration;

/// So many at once.
pub const AT_ONCE_MAX: u32 = 20;
/// One more after so long: no more than 500 lines a day.
const ONE_MORE_AFTER: Duration = Duration::from_secs(180);

/// What is left of it.
#[derive(Debug)]
pub struct Allowance {
    left: u32,
    /// When the last one was added; none before the first was taken.
    filled: Option<Duration>,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { left: AT_ONCE_MAX, filled: None }
    }
}

impl Allowance {
    /// Takes one, if there is one. `now` is a clock that began anywhere.
    pub fn take(&mut self, now: Duration) -> bool {
        let filled = *self.filled.get_or_insert(now);
        let more = now.saturating_sub(filled).as_secs() / ONE_MORE_AFTER.as_secs();
        let missing = AT_ONCE_MAX - self.left;
        if more >= u64::from(missing) {
            (self.left, self.filled) = (AT_ONCE_MAX, Some(now));
        } else {
            let more = u32::try_from(more).unwrap_or(missing);
            (self.left, self.filled) = (self.left + more, Some(filled + ONE_MORE_AFTER * more));
        }
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_are_held_to_the_first_ones_and_then_to_one_in_a_while() {
        let mut allowance = Allowance::default();
        let begun = Duration::from_secs(1_000_000);
        let mut taken = |after: u64| (0..1_000).filter(|_| allowance.take(begun + Duration::from_secs(after))).count();
        assert_eq!(taken(0), 20);
        assert_eq!(taken(179), 0);
        assert_eq!(taken(180), 1);
        assert_eq!(taken(359), 0);
        assert_eq!(taken(900), 4);
        assert_eq!(taken(1_000_000), 20, "and never more");
    }
}
