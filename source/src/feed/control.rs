//! Control events: what is no row change and stands once in every partition of its topics.

use schemas::event::{Control, ControlTable};
use schemas::write::{ControlEvent, Transaction as Of};
use schemas::{Lsn, Position, header};

use super::ddl::noticed;
use super::list::listed;
use super::{Feed, Outbox, Outcome, Urgency};
use crate::Error;
use crate::command::Command;
use crate::window::{ChunkId, Kind};

/// What a logical message of ours says that asks for a state record at once.
pub const BEAT: &str = "beat";

/// What the message that marks a chunk's place in the stream says.
pub fn marker(id: ChunkId) -> String {
    format!("chunk/{id}")
}

pub(super) fn marked(content: &[u8]) -> Option<ChunkId> {
    std::str::from_utf8(content).ok()?.strip_prefix("chunk/")?.parse().ok()
}

/// The place of what a message causes: it names the record behind it, whose change may stand there, so ours stand in front.
fn in_front_of(commit: Lsn, message: Lsn) -> Position {
    Position { commit, change: Lsn(message.0.saturating_sub(1)), n: 0 }
}

impl Feed {
    /// A logical message of ours. Anybody may write one, so it never carries more than a wish to read.
    pub(super) fn message(&mut self, lsn: Lsn, content: &[u8], outbox: &mut dyn Outbox) -> Result<(), Error> {
        if content == BEAT.as_bytes() {
            // Answered behind its commit: only then does the record say that everything up to here is in Kafka.
            self.beaten = true;
        } else if let Some(id) = listed(content) {
            let commit = self.transaction.ok_or(Error::OutsideTransaction(lsn))?.sent.0;
            self.list_named(id, in_front_of(commit, lsn))?;
        } else if let Some(id) = marked(content) {
            let transaction = self.transaction.ok_or(Error::OutsideTransaction(lsn))?;
            self.marker(id, in_front_of(transaction.sent.0, lsn), &transaction, outbox)?;
        } else if let Some(oid) = noticed(content) {
            let commit = self.transaction.ok_or(Error::OutsideTransaction(lsn))?.sent.0;
            self.rows_changed(oid, in_front_of(commit, lsn), outbox)?;
        } else if let Some(command) = Command::read(content) {
            let commit = self.transaction.ok_or(Error::OutsideTransaction(lsn))?.sent.0;
            self.commanded(command, content, in_front_of(commit, lsn), outbox)?;
        }
        Ok(())
    }

    pub(super) fn truncate(
        &mut self,
        oids: &[u32],
        start: Lsn,
        cascade: bool,
        restart_identity: bool,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let ours: Vec<u32> = oids.iter().copied().filter(|oid| self.state.table(*oid).is_some()).collect();
        if ours.is_empty() {
            return Ok(());
        }
        let transaction = self.acting(start)?;
        let position = self.place(transaction.sent.0, start);
        if self.is_new(position) {
            let tables = ours.iter().map(|oid| self.control_table(*oid)).collect::<Result<_, _>>()?;
            let control = Control::Truncate { tables, cascade, restart_identity };
            self.control(&control, position, transaction.of, outbox)?;
            self.acted(position, &transaction);
        }
        ours.iter().for_each(|oid| self.touched(*oid, transaction.xid(), Kind::Truncate));
        Ok(())
    }

    /// Sends a control event to all partitions of its tables' topics, at one position.
    pub(super) fn control(
        &mut self,
        control: &Control,
        position: Position,
        of: Of,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let value = ControlEvent::new(&self.label.name, &self.label.db, control, position, of, self.now_ms).encode();
        let mut topics: Vec<_> = control.tables().iter().map(|table| (table.topic.clone(), table.partitions)).collect();
        topics.sort();
        topics.dedup();
        for (name, partitions) in topics {
            let topic = self.state.topic_index(&name).ok_or(Error::UnknownTopic(name))?;
            for partition in 0..partitions {
                let kind: [(&str, &[u8]); 1] = [(header::CONTROL, control.kind().as_bytes())];
                self.send((topic, partition, position), None, Some(&value), &kind, outbox)?;
            }
        }
        Ok(())
    }

    /// How a table of ours is named in control events.
    pub(super) fn control_table(&self, oid: u32) -> Result<ControlTable, Error> {
        let table = self.state.table(oid).ok_or(Error::RowBeforeRelation { oid, at: Lsn::ZERO })?;
        let topic = self.state.topics().iter().find(|topic| topic.name == table.topic);
        Ok(ControlTable {
            schema: table.name.schema.clone(),
            table: table.name.table.clone(),
            topic: table.topic.clone(),
            partitions: topic.ok_or_else(|| Error::UnknownTopic(table.topic.clone()))?.topic.partitions,
        })
    }

    pub(super) fn touched(&mut self, oid: u32, xid: u32, kind: Kind) {
        for id in self.windows.touch(oid, xid, kind) {
            self.outcomes.push((id, Outcome::Again("too much was written to the table while it was read")));
            self.urgency = Urgency::Now;
        }
    }
}
