//! Commands of the stream: what an operator, or any user of the database, asks to be read.
//!
//!     message ─▶ command ─▶ about tables and loads of ours? ─▶ state (load/<id>), control events ─▶ orders, after the commit
//!                                     └──▶ no: a remark, and the stream goes on
//!
//! Effective at the message's place in the stream: what stands before it was published before it. Nothing in a command is
//! trusted, and nothing of it is ever said again.

use schemas::event::{Control, LoadMode};
use schemas::state::{Load, LoadKind, LoadTable, Range};
use schemas::{Columns, Position, TableName};

use super::{Feed, Outbox, Transaction};
use crate::Error;
use crate::command::{self, Command, LISTED_BYTES_MAX, Malformed, Mode, Wish, weight};
use crate::range;
use crate::snapshot::{self, Order, Task};

/// Why a command is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Malformed(Malformed),
    #[error("it would take something away, and whoever wrote it has not shown that he may read the state topic")]
    Seal,
    #[error("it names a table that is not published")]
    Table,
    #[error("a load of its table is under way: cancel that first, or wait for its end")]
    Loading,
    #[error(
        "its keys, or the ends of its range, are not made of the columns of the table's key, or its range ends where it begins or before"
    )]
    Key,
    #[error(
        "a column of its table's key has a type without equality, so nobody can say which row a key means: load the table instead"
    )]
    Unequal,
    #[error("keys of {} MiB are listed already and not answered: wait until some are, or cancel their loads", LISTED_BYTES_MAX >> 20)]
    Full,
    #[error("no such load is under way")]
    Load,
}

/// Why nothing came of it.
enum Unfollowed {
    Refused(Refused),
    Failed(Error),
}

impl From<Refused> for Unfollowed {
    fn from(refused: Refused) -> Unfollowed {
        Unfollowed::Refused(refused)
    }
}

impl From<Error> for Unfollowed {
    fn from(error: Error) -> Unfollowed {
        Unfollowed::Failed(error)
    }
}

impl Feed {
    /// A message that is of a command's kind, and what it says.
    pub(super) fn commanded(
        &mut self,
        command: Result<Command, Malformed>,
        content: &[u8],
        place: Position,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        // It came before: what it led to is in the state.
        if !self.is_new(place) {
            return Ok(());
        }
        let followed = command.map_err(|malformed| Refused::Malformed(malformed).into());
        let is_sealed = || self.state.seal_key().is_some_and(|key| command::is_sealed(content, key));
        let allowed = |command: Command| match command.wish.takes_away() && !is_sealed() {
            true => Err(Refused::Seal.into()),
            false => Ok(command),
        };
        match followed.and_then(allowed).and_then(|command| self.follow(command, place, outbox)) {
            Ok(()) => Ok(()),
            Err(Unfollowed::Failed(error)) => Err(error),
            Err(Unfollowed::Refused(refused)) => {
                self.refuse(refused, place);
                Ok(())
            }
        }
    }

    fn follow(
        &mut self,
        Command { id, wish }: Command,
        place: Position,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Unfollowed> {
        match wish {
            // The same again, as by a client that got no answer.
            _ if self.state.load(&id).is_some() => Ok(()),
            Wish::Load { tables, mode } => self.order_tables(&id, &tables, mode, place, outbox),
            Wish::Range { table, after, upto } => self.order_range(&id, &table, Range { after, upto }, place, outbox),
            Wish::Keys { table, keys } => self.order_keys(&id, &table, keys, place),
            Wish::Configuration => {
                self.act_at(place)?;
                self.asked_to_reread = true;
                Ok(())
            }
            Wish::Pause { load } => self.set_paused(&load, true, place),
            Wish::Resume { load } => self.set_paused(&load, false, place),
            Wish::Cancel { load } => self.cancel(&load, place, outbox),
        }
    }

    /// Any user of the database may be behind it, so it must neither stop us nor fill the log.
    fn refuse(&mut self, refused: Refused, place: Position) {
        if self.refusals.take(self.clock()) {
            let xid = self.transaction.map_or(0, |transaction| transaction.xid());
            self.pending.remarks.push(format!("{IGNORED} at {} in transaction {xid}: {refused}", place.commit));
        }
    }

    fn order_tables(
        &mut self,
        id: &str,
        tables: &[TableName],
        mode: Mode,
        place: Position,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Unfollowed> {
        let mut found = Vec::new();
        for name in tables {
            match self.oid_of(name) {
                None => return Err(Refused::Table.into()),
                Some(oid) if self.is_loading(oid) => return Err(Refused::Loading.into()),
                Some(oid) if found.contains(&oid) => {}
                Some(oid) => found.push(oid),
            }
        }
        let mut begun = Vec::new();
        for oid in found {
            begun.push((oid, LoadTable { rows_estimated: self.estimated(oid)?, ..LoadTable::default() }));
        }
        self.begin_ordered(id, mode.into(), LoadKind::Tables, begun, place, outbox)?;
        Ok(())
    }

    fn order_range(
        &mut self,
        id: &str,
        table: &TableName,
        range: Range,
        place: Position,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Unfollowed> {
        let Some(oid) = self.oid_of(table) else { return Err(Refused::Table.into()) };
        if self.is_loading(oid) {
            return Err(Refused::Loading.into());
        }
        let ends: Vec<&[String]> = [&range.after, &range.upto].into_iter().flatten().map(Vec::as_slice).collect();
        if !self.catalog.are_keys(oid, &ends)? {
            return Err(Refused::Key.into());
        }
        // What lies outside of it counts as done.
        let below = range.after.map(|end| Range { after: None, upto: Some(end) });
        let above = range.upto.map(|end| Range { after: Some(end), upto: None });
        let mut done = LoadTable::default();
        below.into_iter().chain(above).for_each(|part| range::add(&mut done.done, part));
        // Nothing would ever be read for it, and so it would never end.
        if range::is_all(&done.done) {
            return Err(Refused::Key.into());
        }
        self.begin_ordered(id, LoadMode::Merge, LoadKind::Range, vec![(oid, done)], place, outbox)?;
        Ok(())
    }

    fn begin_ordered(
        &mut self,
        id: &str,
        mode: LoadMode,
        kind: LoadKind,
        tables: Vec<(u32, LoadTable)>,
        place: Position,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let transaction = self.act_at(place)?;
        self.open_load(id, mode, Some(kind), tables, transaction.of, outbox)?;
        self.order(id);
        Ok(())
    }

    /// Neither begin nor end stands in the topic: each answer says which list it belongs to.
    fn order_keys(
        &mut self,
        id: &str,
        table: &TableName,
        mut keys: Vec<String>,
        place: Position,
    ) -> Result<(), Unfollowed> {
        let Some(oid) = self.oid_of(table) else { return Err(Refused::Table.into()) };
        let columns = self.state.table(oid).map(|table| table.key.clone()).unwrap_or_default();
        if !keys.iter().all(|key| is_key_of(key, &columns)) {
            return Err(Refused::Key.into());
        }
        if !self.catalog.tells_keys_apart(oid, &columns)? {
            return Err(Refused::Unequal.into());
        }
        keys.sort_unstable();
        keys.dedup();
        if self.state.listed_bytes() + weight(&keys) > LISTED_BYTES_MAX {
            return Err(Refused::Full.into());
        }
        self.act_at(place)?;
        let done = LoadTable { rows_estimated: keys.len() as u64, keys, ..LoadTable::default() };
        let load = Load { mode: LoadMode::Merge, tables: vec![oid], kind: Some(LoadKind::Keys), paused: false };
        self.state.set_load(id, load);
        self.state.set_load_table(id, oid, Some(done));
        self.order(id);
        Ok(())
    }

    fn set_paused(&mut self, id: &str, paused: bool, place: Position) -> Result<(), Unfollowed> {
        let Some(load) = self.state.load(id).cloned() else { return Err(Refused::Load.into()) };
        self.act_at(place)?;
        if load.paused != paused {
            self.state.set_load(id, Load { paused, ..load });
            if paused {
                // A chunk that is under way still counts; the state knows what is left when it is resumed.
                self.orders.push(Order::Cancel { load: id.to_owned() });
            } else {
                // From here on it counts no more: others are told to read the same.
                *self.rounds.entry(id.to_owned()).or_default() += 1;
                self.order(id);
            }
        }
        Ok(())
    }

    /// The load ends here, with what it has published.
    fn cancel(&mut self, id: &str, place: Position, outbox: &mut dyn Outbox) -> Result<(), Unfollowed> {
        let Some(load) = self.state.load(id).cloned() else { return Err(Refused::Load.into()) };
        let transaction = self.act_at(place)?;
        for oid in load.tables.iter().copied() {
            if load.kind != Some(LoadKind::Keys) {
                let rows = self.state.load_table(id, oid).map_or(0, |table| table.rows);
                let end = Control::LoadEnd { load: id.to_owned(), rows, tables: vec![self.control_table(oid)?] };
                self.control(&end, place, transaction.of, outbox)?;
            }
            self.state.end_load_table(id, oid);
        }
        self.orders.push(Order::Cancel { load: id.to_owned() });
        Ok(())
    }

    /// The command's transaction, after its place was made the state's.
    fn act_at(&mut self, place: Position) -> Result<Transaction, Error> {
        let transaction = self.acting(place.change)?;
        self.acted(place, &transaction);
        Ok(transaction)
    }

    fn order(&mut self, id: &str) {
        let round = self.rounds.get(id).copied().unwrap_or_default();
        let tasks = snapshot::of_load(&self.state, id).into_iter();
        self.orders.extend(tasks.map(|task| Order::Do(Task { round, ..task })));
    }

    /// Whether a load of the table is under way; lists of keys are independent of it.
    pub(super) fn is_loading(&self, oid: u32) -> bool {
        self.state.loads().any(|(_, load)| load.kind != Some(LoadKind::Keys) && load.tables.contains(&oid))
    }

    fn oid_of(&self, name: &TableName) -> Option<u32> {
        self.state.tables().find(|(_, table)| table.name == *name).map(|(oid, _)| oid)
    }

    /// How many rows the server thinks the table has; for progress alone.
    fn estimated(&mut self, oid: u32) -> Result<u64, Error> {
        let publication = self.state.stream.publications.join(", ");
        let seen = self.catalog.look(&publication, oid, None)?;
        Ok(seen.tables.get(&oid).map_or(0, |table| table.rows_estimated))
    }
}

/// How a refusal begins.
const IGNORED: &str = "a command was ignored that was written into the stream";

/// Whether the key is of exactly these columns.
fn is_key_of(key: &str, columns: &[String]) -> bool {
    let Ok(key) = Columns::decode(key.as_bytes()) else { return false };
    key.0.len() == columns.len() && columns.iter().all(|column| key.get(column).is_some_and(|value| value.is_some()))
}
