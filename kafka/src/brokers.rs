//! Which brokers this process has lost, so that a loss and a return are each said once, and not once a reconnect.
//!
//!     a client reports a failure ──▶ lost by {clients}     first one: WARN
//!     its statistics show it UP  ──▶ one client less       last one:  INFO
//!
//! Pure book-keeping: no socket, no clock, and no word of its own in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names one client of this process.
pub(crate) type ClientNumber = u64;

/// The brokers lost at this moment and the clients that miss them.
///
/// A client that ends leaves its losses behind with nobody missing them: whoever next sees such a broker up says so.
#[derive(Debug, Default)]
pub(crate) struct Brokers {
    lost: Mutex<BTreeMap<String, BTreeSet<ClientNumber>>>,
}

impl Brokers {
    /// `client` cannot talk to `broker`. True when nobody had said so before.
    pub(crate) fn lose(&self, broker: &str, client: ClientNumber) -> bool {
        let mut lost = self.lock();
        match lost.get_mut(broker) {
            Some(clients) => {
                clients.insert(client);
                false
            }
            None => lost.insert(broker.to_owned(), BTreeSet::from([client])).is_none(),
        }
    }

    /// `client` talks to `broker`. True when with that nobody misses it any longer.
    pub(crate) fn find(&self, broker: &str, client: ClientNumber) -> bool {
        let mut lost = self.lock();
        let Some(clients) = lost.get_mut(broker) else { return false };
        clients.remove(&client);
        clients.is_empty() && lost.remove(broker).is_some()
    }

    /// `client` has ended.
    pub(crate) fn forget(&self, client: ClientNumber) {
        for clients in self.lock().values_mut() {
            clients.remove(&client);
        }
    }

    /// Whether every broker is there, as far as is known: the ordinary case, in which statistics need not be read.
    pub(crate) fn all_there(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<ClientNumber>>> {
        // Every change above is one step: a panic elsewhere cannot leave the map half changed.
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_and_a_return_are_each_said_once() {
        let brokers = Brokers::default();
        assert!(brokers.lose("a:1", 1));
        assert!(!brokers.lose("a:1", 1));
        assert!(!brokers.lose("a:1", 2));
        assert!(brokers.lose("b:1", 1));

        assert!(!brokers.find("a:1", 1), "client 2 still misses it");
        assert!(brokers.find("a:1", 2));
        assert!(!brokers.find("a:1", 2), "it was said already");
        assert!(!brokers.all_there());
        assert!(brokers.find("b:1", 1));
        assert!(brokers.all_there());
    }

    #[test]
    fn the_next_client_does_not_repeat_what_one_that_ended_has_said() {
        let brokers = Brokers::default();
        assert!(brokers.lose("a:1", 1));
        brokers.forget(1);
        assert!(!brokers.lose("a:1", 2));
        brokers.forget(2);
        assert!(brokers.find("a:1", 3), "the first to see it up says so");
    }
}
