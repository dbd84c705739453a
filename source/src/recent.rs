//! Which streamed transactions no plain snapshot sees yet, and so how far the slot may be confirmed.
//!
//!     begun(commit, xid) ──▶ recent ──▶ seen visible, forgotten
//!                               │
//!     confirmable(flushed) = flushed, but never past the first commit still in here
//!
//! Pure: no clock, no socket, no Kafka. The stream's loop is its only owner.
//!
//! A commit record stands in the WAL before other sessions see it; while a synchronous standby is away that can last for
//! hours. A chunk read in between would take the row back.

use std::collections::VecDeque;

use schemas::Lsn;

use crate::visibility::Snapshot;

/// Transactions from their Begin until a plain snapshot has shown them, in the order of their commits.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<(Lsn, u32)>);

impl Recent {
    /// A transaction began to arrive.
    pub fn begun(&mut self, commit: Lsn, xid: u32) {
        self.0.push_back((commit, xid));
    }

    /// A fresh plain snapshot of the primary: what it sees is recent no more.
    pub fn seen(&mut self, snapshot: &Snapshot) {
        self.0.retain(|(_, xid)| !snapshot.sees(*xid));
    }

    /// The xids that are not known to be visible.
    pub fn xids(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(_, xid)| *xid)
    }

    /// How far may be confirmed of what is flushed.
    pub fn confirmable(&self, flushed: Lsn) -> Lsn {
        self.0.front().map_or(flushed, |(commit, _)| flushed.min(*commit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_confirmed_lsn_never_passes_an_invisible_transaction() {
        let mut recent = Recent::default();
        assert_eq!(recent.confirmable(Lsn(30)), Lsn(30));
        recent.begun(Lsn(10), 7);
        recent.begun(Lsn(20), 8);
        assert_eq!(recent.confirmable(Lsn(30)), Lsn(10));
        recent.seen(&"7:9:7".parse().expect("a snapshot"));
        assert_eq!(recent.confirmable(Lsn(30)), Lsn(10));
        recent.seen(&"9:9:".parse().expect("a snapshot"));
        assert_eq!(recent.confirmable(Lsn(30)), Lsn(30));
        assert_eq!(recent.xids().count(), 0);
    }
}
