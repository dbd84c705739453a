//! The way from one list of tables to another, and the wait for whoever began to write to a table before it was published.

use std::collections::BTreeSet;

use schemas::event::LoadMode;
use schemas::state::LoadKind;

use super::Rule;
use super::edges::Open;
use super::process::{End, TOPICS, first_table, topic};
use super::server::Uid;
use super::session::Streaming;
use super::wire::TABLES;
use super::world::Outside;
use crate::feed::list::{Added, NextList};
use crate::lists::ListId;

/// Where a session is on its way to another list; the message that it ends with.
pub(super) struct Relist {
    stage: Stage,
    message: String,
}

enum Stage {
    /// The publication lacks the table.
    Begun,
    /// These transactions wrote to the table when it was published.
    Waits(BTreeSet<Uid>),
    /// The slot has to pass this place.
    Passes(u64),
    Ready,
}

impl Relist {
    /// One more step. `None`: the message is written.
    pub(super) fn step(mut self, session: &Streaming, outside: &mut Outside) -> Option<Relist> {
        let at = session.belongs.0;
        self.stage = match self.stage {
            Stage::Begun => {
                outside.servers[at].publish();
                // Whoever has waited for one of these may hope that the other needs no wait.
                let waits = outside.keeps(Rule::StraddlersEnd) && outside.keeps(Rule::WaitsInEachLife);
                let writers = if waits { outside.servers[at].writers(1) } else { BTreeSet::new() };
                outside.tell(|| format!("orders are published, while {writers:?} write to them"));
                Stage::Waits(writers)
            }
            Stage::Waits(mut writers) => {
                let now = outside.servers[at].writers(1);
                writers.retain(|writer| now.contains(writer));
                if writers.is_empty() {
                    Stage::Passes(message(session, outside, "beat"))
                } else {
                    Stage::Waits(writers)
                }
            }
            Stage::Passes(since) if outside.servers[at].slot.is_none_or(|slot| slot.confirmed < since) => {
                Stage::Passes(since)
            }
            Stage::Passes(_) => Stage::Ready,
            Stage::Ready => {
                message(session, outside, &self.message);
                return None;
            }
        };
        Some(self)
    }
}

/// Writes a message of ours. Returns where the WAL ended before.
fn message(session: &Streaming, outside: &mut Outside, content: &str) -> u64 {
    let (uid, time) = (outside.next_uid(), outside.now());
    let server = &mut outside.servers[session.belongs.0];
    let end = server.lsn;
    server.message(uid, time, content.to_owned());
    outside.tell(|| format!("transaction {uid} says {content}"));
    end
}

impl Streaming {
    /// Another list of tables is wanted than the one that is published: it follows at a message of our own.
    pub(super) fn follow_list(&mut self, outside: &mut Outside) -> Result<(), End> {
        let (oid, state) = (TABLES[1].0, self.feed.state());
        if state.table(oid).is_some() == outside.wanted {
            return Ok(());
        }
        let known = state.topics().iter().find(|topic| topic.name == TOPICS[1]);
        let is_former = known.is_some_and(|topic| !topic.topic.former.is_empty());
        let topics = if known.is_some() { Vec::new() } else { vec![topic(TOPICS[1])] };
        let mode = if is_former { LoadMode::Replace } else { LoadMode::First };
        let added = Added { oid, table: first_table(1), load: Some((mode, 0)) };
        if !outside.keeps(Rule::ListAtMessage) {
            return self.list_at_once(outside, added);
        }
        let id = ListId(u128::from(outside.next_uid()));
        let (added, removed) = if outside.wanted { (vec![added], Vec::new()) } else { (Vec::new(), vec![oid]) };
        let stage = if added.is_empty() { Stage::Ready } else { Stage::Begun };
        let next = NextList { publications: vec!["p".into()], topics, added, removed, ..NextList::default() };
        self.feed.expect_list(id, next);
        self.list = Some(Relist { stage, message: format!("list/{id}") });
        Ok(())
    }

    /// Without its rule the list is in force where the state stands.
    fn list_at_once(&mut self, outside: &mut Outside, added: Added) -> Result<(), End> {
        let Added { oid, table, load } = added;
        if !outside.wanted {
            self.feed.state.remove_table(oid);
            return Ok(());
        }
        outside.servers[self.belongs.0].publish();
        self.feed.state.add_table(oid, table);
        let mut open =
            Open { batch: &mut self.batch, of: 0, dice: &mut outside.dice, refused_per_mille: 0, fails: true };
        let of = schemas::write::Transaction { xid: 0, commit_ms: 1 };
        let mode = load.map_or(LoadMode::First, |(mode, _)| mode);
        let id = format!("list{}", self.belongs.2);
        self.feed
            .begin_load_within(&id, mode, Some(LoadKind::Added), &[(oid, 0)], of, &mut open)
            .map_err(|_| End::Again)
    }

    /// Whether all have ended that wrote to an added table when this life came to its load. Asking is the wait.
    pub(super) fn has_waited(&mut self, outside: &mut Outside, load: &str, oid: u32) -> bool {
        let table = TABLES.iter().position(|(of, _)| *of == oid).expect("one of ours");
        let now = outside.servers[self.belongs.0].writers(table);
        let begun = outside.waits_begun.contains(load);
        let awaited = self.awaited.entry(load.to_owned()).or_insert_with(|| match outside.out {
            Some(Rule::StraddlersEnd) => BTreeSet::new(),
            // An earlier life has begun to wait, so this one believes that it is over.
            Some(Rule::WaitsInEachLife) if begun => BTreeSet::new(),
            _ => now.clone(),
        });
        awaited.retain(|writer| now.contains(writer));
        let is_over = awaited.is_empty();
        outside.waits_begun.insert(load.to_owned());
        if !is_over {
            outside.tell(|| format!("the load of {} waits for those who write to it", TABLES[table].1));
        }
        is_over
    }
}
