//! A stretch that the target refused, applied alone: in order, under savepoints, so that only what is at fault is parked.
//!
//!     SET CONSTRAINTS ALL IMMEDIATE         a deferred constraint would speak at COMMIT, past every savepoint
//!     SAVEPOINT ─ a part, folded ─ RELEASE
//!        └─ refused: its halves, one after the other, down to a run
//!     SAVEPOINT ─ events of a run, one by one ─ RELEASE
//!        └─ one is refused: roll back, the run up to it again, then it alone: park it, and its key from here on
//!
//! A part that applies folded is done: it stands as if its events had been applied one by one. What does not is not
//! proven to be at fault until it is refused alone, for events that hand a value over may only apply in their order.

use schemas::TableName;
use sqlx::Executor;
use sqlx::postgres::PgConnection;

use super::plan::{self, Change, Plan, Rows};
use super::{Moved, Relational, Write, progress};
use crate::batch::Batch;
use crate::error::Error;
use crate::parked::{Class, Parked, ParkedKeys};
use crate::record::{Kind, Record};
use crate::refused::Refused;
use crate::statement::statements;
use crate::target::{Claim, Done, Outcome};

/// Events between two savepoints: a refusal repeats at most this many.
const RUN_MAX: usize = 64;

/// A stretch under way.
struct Stretch<'a> {
    relational: &'a Relational,
    claim: &'a Claim,
    parked: ParkedKeys,
    done: Done,
}

/// What became of one event.
enum Single {
    Applied,
    Skipped,
    /// Applied in place of what was set aside of the key, which goes on.
    Freed(TableName, Vec<u8>),
    Behind(Box<Parked>),
    Refused(TableName, Vec<u8>, Class, Refused),
}

impl Relational {
    /// Applies a batch event by event in one transaction; events that the target refuses for good are parked in it.
    pub(super) async fn apply_alone(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        batch: &Batch,
        parked: &ParkedKeys,
    ) -> Result<Outcome, Error> {
        let failed = |cause| self.failed("apply a batch event by event", cause);
        match self.begin(connection, claim, batch).await? {
            Moved::Ours => {}
            Moved::Done => return Ok(Outcome::Done(Done { unsure: true, ..Done::default() })),
            Moved::Lost => return Ok(Outcome::Lost),
        }
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE").await.map_err(failed)?;
        let mut stretch = Stretch { relational: self, claim, parked: parked.clone(), done: Done::default() };
        let records: Vec<Record<'_>> = batch.records().collect();
        stretch.apply(connection, &records).await?;
        progress::park(connection, &self.group, &claim.partition, &stretch.done.parked).await.map_err(failed)?;
        connection.execute("COMMIT").await.map_err(failed)?;
        Ok(Outcome::Done(stretch.done))
    }
}

impl Stretch<'_> {
    /// Applies records in order: parts that still may apply whole first, halved where they do not.
    async fn apply(&mut self, connection: &mut PgConnection, records: &[Record<'_>]) -> Result<(), Error> {
        let mut parts = vec![records];
        while let Some(part) = parts.pop() {
            if part.len() <= RUN_MAX {
                self.runs(connection, part).await?;
            } else if part.len() == records.len() || !self.folded(connection, part).await? {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
        }
        Ok(())
    }

    /// Applies a part folded, under a savepoint. `false` if it was refused, and nothing of it is there.
    async fn folded(&mut self, connection: &mut PgConnection, records: &[Record<'_>]) -> Result<bool, Error> {
        let (partition, relational) = (&self.claim.partition, self.relational);
        let plan = Plan::rows(partition, records.iter().copied(), &relational.catalog, &self.parked)?;
        let Plan::Rows(Rows { statements, mut behind, freed, applied, skipped }) = plan else { return Ok(false) };
        self.relational.savepoint(connection, "SAVEPOINT run").await?;
        self.free(connection, &freed).await?;
        match relational.write(connection, partition, &statements).await? {
            Write::Done { skipped: missing } => {
                self.relational.savepoint(connection, "RELEASE SAVEPOINT run").await?;
                self.done.applied += applied.saturating_sub(missing);
                self.done.skipped += skipped + missing;
                self.freed(freed);
                self.done.parked.append(&mut behind);
                Ok(true)
            }
            Write::Refused(refused) if Class::of(&refused).is_none() => Err(relational.refused(refused)),
            Write::Refused(_) => {
                self.relational.savepoint(connection, "ROLLBACK TO SAVEPOINT run; RELEASE SAVEPOINT run").await?;
                Ok(false)
            }
        }
    }

    /// Forgets what was set aside of keys.
    async fn free(&self, connection: &mut PgConnection, keys: &[(TableName, Vec<u8>)]) -> Result<(), Error> {
        let (group, partition) = (&self.relational.group, &self.claim.partition);
        let freed = progress::free(connection, group, partition, keys).await;
        freed.map_err(|cause| self.relational.failed("forget what was parked", cause))
    }

    /// These keys go on from here.
    fn freed(&mut self, keys: Vec<(TableName, Vec<u8>)>) {
        for (table, key) in keys {
            self.parked.remove(&table, &key);
            self.done.parked.retain(|parked| parked.table != table || parked.key != key);
            self.done.unsure = true;
        }
    }

    async fn runs(&mut self, connection: &mut PgConnection, records: &[Record<'_>]) -> Result<(), Error> {
        let mut from = 0;
        let mut run = RUN_MAX;
        while from < records.len() {
            let to = records.len().min(from + run);
            match self.run(connection, &records[from..to]).await? {
                None => {
                    from = to;
                    run = RUN_MAX;
                }
                // Alone and still refused: it is this one.
                Some((0, Single::Refused(table, key, class, refused))) => {
                    self.park(records[from], table, key, class, refused)?;
                    from += 1;
                    run = RUN_MAX;
                }
                Some((before, _)) => run = before,
            }
        }
        Ok(())
    }

    /// Applies a run under a savepoint. If an event is refused nothing of the run is there, and the answer is how many stand before it.
    async fn run(
        &mut self,
        connection: &mut PgConnection,
        records: &[Record<'_>],
    ) -> Result<Option<(usize, Single)>, Error> {
        self.relational.savepoint(connection, "SAVEPOINT run").await?;
        let (mut applied, mut skipped, mut behind, mut freed) = (0, 0, Vec::<Parked>::new(), Vec::new());
        for (index, record) in records.iter().enumerate() {
            match self.single(connection, *record, &freed).await? {
                Single::Applied => applied += 1,
                Single::Freed(table, key) => {
                    applied += 1;
                    behind.retain(|parked| parked.table != table || parked.key != key);
                    freed.push((table, key));
                }
                Single::Skipped => skipped += 1,
                Single::Behind(parked) => behind.push(*parked),
                refused @ Single::Refused(..) => {
                    self.relational.savepoint(connection, "ROLLBACK TO SAVEPOINT run; RELEASE SAVEPOINT run").await?;
                    return Ok(Some((index, refused)));
                }
            }
        }
        self.relational.savepoint(connection, "RELEASE SAVEPOINT run").await?;
        self.done.applied += applied;
        self.done.skipped += skipped;
        self.freed(freed);
        self.done.parked.append(&mut behind);
        Ok(None)
    }

    async fn single(
        &self,
        connection: &mut PgConnection,
        record: Record<'_>,
        freed: &[(TableName, Vec<u8>)],
    ) -> Result<Single, Error> {
        if record.kind != Kind::Row {
            return Ok(Single::Skipped);
        }
        let (partition, relational) = (&self.claim.partition, self.relational);
        let change = Change::of(partition, record)?;
        if !relational.catalog.takes(&change.table()) {
            return Ok(Single::Skipped);
        }
        let mut fold = change.fold(partition, record, &relational.catalog)?;
        let table = fold.shape.table.clone();
        let key = plan::add(partition, record, &mut fold, change)?;
        // All rows of a table that may not be folded stand still as one, and an answer is about one of them.
        let frees = record.is_answer && fold.shape.foldable;
        let goes_on = |freed: &(TableName, Vec<u8>)| freed.0 == table && freed.1 == *key;
        let class = self.parked.get(&table, &key).filter(|_| !freed.iter().any(goes_on));
        if let Some(class) = class.filter(|_| !frees) {
            return Ok(Single::Behind(Box::new(Parked::behind(record, &table, &key, class))));
        }
        if class.is_some() {
            self.free(connection, &[(table.clone(), key.to_vec())]).await?;
        }
        let refused = match relational.write(connection, partition, &statements(&[fold])).await? {
            Write::Done { .. } if class.is_some() => return Ok(Single::Freed(table, key.into_owned())),
            Write::Done { skipped: 0 } => return Ok(Single::Applied),
            Write::Done { .. } => return Ok(Single::Skipped),
            Write::Refused(refused) => refused,
        };
        match Class::of(&refused) {
            Some(class) => Ok(Single::Refused(table, key.into_owned(), class, refused)),
            None => Err(relational.refused(refused)),
        }
    }

    fn park(
        &mut self,
        record: Record<'_>,
        table: TableName,
        key: Vec<u8>,
        class: Class,
        refused: Refused,
    ) -> Result<(), Error> {
        if class == Class::Dead && self.relational.on_error == super::OnError::Stop {
            let (partition, offset) = (self.claim.partition.clone(), record.offset);
            return Err(Error::Apply { partition, offset, table, cause: refused });
        }
        self.done.parked.push(Parked::refused(record, &table, &key, class, &refused));
        self.parked.insert(table, key, class);
        Ok(())
    }
}
