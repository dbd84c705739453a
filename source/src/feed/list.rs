//! One list of tables and publications follows another, at a place in the stream that both can name.
//!
//!     … changes by the old list … ─▶ message list/<id> ─▶ its commit: the new list is the state ─▶ the session ends
//!                                                                  │
//!                                       position and flushed stand there, and the history is this transaction alone
//!
//! What comes before the commit was decided by the old list and stands in the topics, so the next session skips all of it,
//! whatever the new list would have made of it. What comes behind it is decided by the new list from its first record on.

use schemas::Position;
use schemas::event::LoadMode;
use schemas::state::{LoadKind, Sent, Table, Topic};

use super::{Feed, Outbox, Transaction};
use crate::Error;
use crate::lists::ListId;

/// A list that is to follow the one of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextList {
    /// What is streamed from then on.
    pub publications: Vec<String>,
    /// Before it a transaction may have begun that does not know the publications as they are now.
    pub since: Option<schemas::Lsn>,
    /// Topics that were not in use so far, as they were found.
    pub topics: Vec<(String, Topic)>,
    /// Tables that are published from then on.
    pub added: Vec<Added>,
    /// Tables that are published no more, by OID.
    pub removed: Vec<u32>,
}

/// A table that is published from some place in the stream on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Its OID.
    pub oid: u32,
    /// What the state knows of it, before its first row.
    pub table: Table,
    /// How its rows are loaded, and how many there are thought to be; `None` if only changes are wanted.
    pub load: Option<(LoadMode, u64)>,
}

/// What the message says at which a list follows.
pub fn list_message(id: ListId) -> String {
    format!("list/{id}")
}

pub(super) fn listed(content: &[u8]) -> Option<ListId> {
    std::str::from_utf8(content).ok()?.strip_prefix("list/")?.parse().ok()
}

impl Feed {
    /// At the commit of the message with this id, `next` becomes the list. Any other message of this kind is a stranger's,
    /// or was ours in a life that did not come to its commit.
    pub fn expect_list(&mut self, id: ListId, next: NextList) {
        self.next = Some((id, next));
    }

    /// The message of a list: it is this transaction that the list follows.
    pub(super) fn list_named(&mut self, id: ListId, place: Position) -> Result<(), Error> {
        if self.next.as_ref().is_some_and(|(known, _)| *known == id) {
            self.acting(place.change)?;
            if let Some(transaction) = &mut self.transaction {
                transaction.list = Some(place);
            }
        }
        Ok(())
    }

    /// The list's own transaction is whole, and everything before it stands in the outbox or in the topics.
    pub(super) fn follow_list(
        &mut self,
        place: Position,
        transaction: &Transaction,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let Some((_, next)) = self.next.take() else { return Ok(()) };
        self.state.begin_list(next.publications, next.since, place, transaction.sent);
        for oid in next.removed {
            self.state.remove_table(oid);
            self.relations.remove(&oid);
        }
        for (name, topic) in next.topics {
            self.state.set_topic(name, topic);
        }
        for Added { oid, table, load } in next.added {
            self.state.add_table(oid, table);
            if let Some((mode, rows)) = load {
                let (id, kind) = (load_id(transaction.sent, oid), Some(LoadKind::Added));
                self.begin_load_within(&id, mode, kind, &[(oid, rows)], transaction.of, outbox)?;
            }
        }
        self.begin_again("the list of tables or publications has changed");
        Ok(())
    }
}

/// A load is named after the transaction that began it and its table: the same whoever begins it again.
fn load_id(sent: Sent, oid: u32) -> String {
    format!("{:x}-{oid}", sent.0.0)
}
