//! Is this still the history that we published from? A restored disk has the same system id and timeline as the one we knew.
//!
//! After a restart the server sends again what was not confirmed. Every transaction that we remember and that it must send
//! again has to come with the same commit LSN, xid and commit time, and none that we would have acted on may be new.
//!
//! Pure. One check lives as long as one session.

use std::collections::HashSet;

use schemas::state::Sent;
use schemas::{Lsn, Position};

/// What the server sends again does not agree with what was published.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// A remembered transaction did not come again.
    #[error("the transaction with commit {0} was published but the server does not have it any more")]
    Gone(Lsn),
    /// A transaction came that should have been published before, and was not.
    #[error("the transaction with commit {0} lies before what was published, but was not there then")]
    New(Lsn),
}

/// Compares what is sent again with what is remembered.
#[derive(Debug)]
pub struct Check {
    published: Position,
    remembered: Vec<Sent>,
    missing: HashSet<Sent>,
    done: bool,
}

impl Check {
    /// For a session whose slot stands at `confirmed`, with the state's history and position.
    pub fn new(history: &[Sent], published: Position, confirmed: Lsn) -> Check {
        let missing = history.iter().filter(|sent| sent.0 >= confirmed).copied().collect();
        Check { published, remembered: history.to_vec(), missing, done: false }
    }

    /// Whether everything that had to come has come: before that nothing is confirmed.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// A transaction begins to arrive.
    pub fn begun(&mut self, transaction: Sent) -> Result<(), Mismatch> {
        if transaction.0 > self.published.commit {
            self.reached(transaction.0)?;
        }
        self.missing.remove(&transaction);
        Ok(())
    }

    /// Everything before `lsn` has arrived.
    pub fn reached(&mut self, lsn: Lsn) -> Result<(), Mismatch> {
        if self.done || lsn <= self.published.commit {
            return Ok(());
        }
        if let Some(gone) = self.missing.iter().min_by_key(|sent| sent.0) {
            return Err(Mismatch::Gone(gone.0));
        }
        self.done = true;
        Ok(())
    }

    /// The open transaction holds something that we act on.
    pub fn acted(&self, transaction: Sent) -> Result<(), Mismatch> {
        let within = transaction.0 <= self.published.commit;
        let from = self.remembered.first().is_some_and(|oldest| transaction.0 >= oldest.0);
        if within && from && !self.remembered.contains(&transaction) {
            return Err(Mismatch::New(transaction.0));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Sent = Sent(Lsn(10), 1, 100);
    const B: Sent = Sent(Lsn(20), 2, 200);

    fn check(confirmed: u64) -> Check {
        Check::new(&[A, B], Position { commit: Lsn(20), change: Lsn(15), n: 1 }, Lsn(confirmed))
    }

    #[test]
    fn the_same_history_passes() {
        let mut check = check(10);
        check.begun(A).expect("remembered");
        check.acted(A).expect("remembered");
        assert!(!check.is_done());
        check.begun(B).expect("remembered");
        check.begun(Sent(Lsn(30), 3, 300)).expect("all came");
        assert!(check.is_done());
        check.acted(Sent(Lsn(30), 3, 300)).expect("it is new and lies beyond");
    }

    #[test]
    fn a_transaction_that_does_not_come_again_is_noticed() {
        let mut check = check(10);
        check.begun(A).expect("remembered");
        check.begun(Sent(Lsn(20), 2, 201)).expect("not decided yet");
        assert_eq!(check.begun(Sent(Lsn(30), 3, 300)), Err(Mismatch::Gone(Lsn(20))));
        assert_eq!(check.reached(Lsn(31)), Err(Mismatch::Gone(Lsn(20))));
    }

    #[test]
    fn what_was_confirmed_need_not_come_again() {
        check(30).reached(Lsn(31)).expect("nothing has to come");
    }

    #[test]
    fn a_transaction_that_was_not_there_is_noticed_once_it_matters() {
        let mut check = check(10);
        let other = Sent(Lsn(15), 9, 150);
        check.begun(other).expect("it may hold nothing of ours");
        assert_eq!(check.acted(other), Err(Mismatch::New(Lsn(15))));
    }
}
