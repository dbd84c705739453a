//! What a batch comes to on a relational target: decided before a connection is needed.
//!
//!     records ──decode──▶ parked key? ──▶ behind
//!                              └──▶ Fold per table ──▶ statements
//!
//! Pure.

use std::borrow::Cow;
use std::collections::BTreeSet;

use schemas::event::Control;
use schemas::{ChangeEvent, Columns, TableName};

use super::catalog::Catalog;
use crate::batch::Batch;
use crate::error::Error;
use crate::fold::{self, Fold};
use crate::parked::{Parked, ParkedKeys};
use crate::record::{Kind, Partition, Record};
use crate::statement::{Statement, statements};

/// What a batch comes to.
#[derive(Debug)]
pub(crate) enum Plan {
    /// One control event.
    Control(Control),
    /// Rows.
    Rows(Rows),
    /// Rows of a table whose equal keys can differ in text: nothing may be folded.
    OneByOne,
}

/// What rows come to.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) statements: Vec<Statement>,
    /// Events that are parked behind others of their keys.
    pub(crate) behind: Vec<Parked>,
    /// Keys that stood still and go on: an answer says how their rows are, whatever was set aside of them.
    pub(crate) freed: Vec<(TableName, Vec<u8>)>,
    pub(crate) applied: u64,
    pub(crate) skipped: u64,
}

impl Plan {
    pub(crate) fn of(
        partition: &Partition,
        batch: &Batch,
        catalog: &Catalog,
        parked: &ParkedKeys,
    ) -> Result<Plan, Error> {
        if let Some(record) = batch.control() {
            return control(partition, record).map(Plan::Control);
        }
        Plan::rows(partition, batch.records(), catalog, parked)
    }

    /// What records come to among which there is no control event.
    pub(super) fn rows<'a>(
        partition: &Partition,
        records: impl Iterator<Item = Record<'a>>,
        catalog: &Catalog,
        parked: &ParkedKeys,
    ) -> Result<Plan, Error> {
        let (mut folds, mut rows): (Vec<Fold<'_>>, Rows) = (Vec::new(), Rows::default());
        for record in records {
            if record.kind != Kind::Row {
                rows.skipped += 1;
                continue;
            }
            let change = Change::of(partition, record)?;
            let Some(index) = index(partition, record, &mut folds, catalog, &change)? else {
                rows.skipped += 1;
                continue;
            };
            let Change { event, key } = change;
            let fold = &mut folds[index];
            if !fold.shape.foldable {
                return Ok(Plan::OneByOne);
            }
            let canonical = fold.shape.canonical(key).map_err(|cause| decode(partition, record, cause))?;
            let table = &fold.shape.table;
            let is_of = |freed: &(TableName, Vec<u8>)| freed.0 == *table && freed.1 == *canonical;
            if let Some(class) = parked.get(table, &canonical).filter(|_| !rows.freed.iter().any(is_of)) {
                if !record.is_answer {
                    rows.behind.push(Parked::behind(record, table, &canonical, class));
                    continue;
                }
                rows.behind.retain(|parked| parked.table != *table || parked.key != *canonical);
                rows.freed.push((table.clone(), canonical.to_vec()));
            }
            fold.add(canonical, key, event).map_err(|cause| unfit(partition, record, cause))?;
            rows.applied += 1;
        }
        rows.statements = statements(&folds);
        Ok(Plan::Rows(rows))
    }
}

/// The tables whose rows a batch changes, of those that the group takes.
pub(super) fn tables(partition: &Partition, batch: &Batch, catalog: &Catalog) -> Result<Vec<TableName>, Error> {
    let mut tables = BTreeSet::new();
    for record in batch.records().filter(|record| record.kind == Kind::Row) {
        tables.insert(Change::of(partition, record)?.table());
    }
    Ok(tables.into_iter().filter(|table| catalog.takes(table)).collect())
}

/// A row's change, decoded, and its key.
pub(super) struct Change<'a> {
    pub(super) event: ChangeEvent<'a>,
    pub(super) key: &'a [u8],
}

impl<'a> Change<'a> {
    pub(super) fn of(partition: &Partition, record: Record<'a>) -> Result<Change<'a>, Error> {
        let event = ChangeEvent::decode(record.value.unwrap_or_default());
        let event = event.map_err(|cause| decode(partition, record, cause))?;
        let key = record.key.ok_or_else(|| unfit(partition, record, fold::Error::NoKey))?;
        Ok(Change { event, key })
    }

    /// Its table.
    pub(super) fn table(&self) -> TableName {
        TableName::new(self.event.source.schema.as_ref(), self.event.source.table.as_ref())
    }

    /// A fold of this change alone, with nothing in it yet.
    pub(super) fn fold(&self, partition: &Partition, record: Record<'_>, catalog: &Catalog) -> Result<Fold<'a>, Error> {
        let key = Columns::decode(self.key).map_err(|cause| decode(partition, record, cause))?;
        let shape = catalog.shape(&self.table(), &key);
        shape.map(Fold::new).map_err(|misfit| unfit(partition, record, misfit.into()))
    }
}

/// The fold of the event's table, nearly always one that is there. None where the group does not take the table.
fn index<'a>(
    partition: &Partition,
    record: Record<'_>,
    folds: &mut Vec<Fold<'a>>,
    catalog: &Catalog,
    change: &Change<'a>,
) -> Result<Option<usize>, Error> {
    let source = &change.event.source;
    let is_of = |fold: &Fold<'_>| fold.shape.table.table == source.table && fold.shape.table.schema == source.schema;
    if let Some(index) = folds.iter().position(is_of) {
        return Ok(Some(index));
    }
    if !catalog.takes(&change.table()) {
        return Ok(None);
    }
    folds.push(change.fold(partition, record, catalog)?);
    Ok(Some(folds.len() - 1))
}

/// A control event, decoded.
pub(crate) fn control(partition: &Partition, record: Record<'_>) -> Result<Control, Error> {
    let event = ChangeEvent::decode(record.value.unwrap_or_default());
    let event = event.map_err(|cause| decode(partition, record, cause))?;
    event.control.ok_or_else(|| unfit(partition, record, fold::Error::NoControl))
}

pub(crate) fn decode(partition: &Partition, record: Record<'_>, cause: serde_json::Error) -> Error {
    Error::Decode { partition: partition.clone(), offset: record.offset, cause }
}

pub(super) fn unfit(partition: &Partition, record: Record<'_>, cause: fold::Error) -> Error {
    Error::Envelope { partition: partition.clone(), offset: record.offset, cause }
}

/// Adds a change to its fold under its canonical key, which is handed back.
pub(super) fn add<'a>(
    partition: &Partition,
    record: Record<'a>,
    fold: &mut Fold<'a>,
    change: Change<'a>,
) -> Result<Cow<'a, [u8]>, Error> {
    let key = fold.shape.canonical(change.key).map_err(|cause| decode(partition, record, cause))?;
    fold.add(key.clone(), change.key, change.event).map_err(|cause| unfit(partition, record, cause))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use schemas::Selection;

    use super::*;
    use crate::parked::Class;
    use crate::record::Segment;
    use crate::shape::tests::table;

    const SOURCE: &str = r#""source":{"connector":"tributary","name":"s","db":"s","schema":"shop","table":"t","lsn":1,"txId":1,"ts_ms":1,"snapshot":"false","sequence":"[]"},"ts_ms":1}"#;

    fn catalog() -> Catalog {
        let table = table(&[("id", "bigint", 20), ("a", "text", 25)], 1);
        let catalog = Catalog::new(Selection::new(vec!["shop.t".parse().expect("an item")]));
        let name = table.name.clone();
        catalog.set(std::slice::from_ref(&name), [(name.clone(), table)].into());
        catalog
    }

    /// Changes of keys, each with whether it is an answer.
    fn rows(events: &[(u8, bool)], parked: &ParkedKeys) -> Rows {
        let mut segment = Segment::default();
        for (n, (id, is_answer)) in events.iter().enumerate() {
            let (key, value) =
                (format!(r#"{{"id":{id}}}"#), format!(r#"{{"op":"r","after":{{"id":{id},"a":"{n}"}},{SOURCE}"#));
            let position = format!("{n:016X}.{n:016X}.00000001");
            let seq = (n + 1).to_string();
            let headers = [("position", position.as_str()), ("seq", seq.as_str()), ("answer", "l1")];
            let headers = headers[..if *is_answer { 3 } else { 2 }].iter();
            let headers = headers.map(|(name, text)| (*name, Some(text.as_bytes())));
            segment.push(n as i64, Some(key.as_bytes()), Some(value.as_bytes()), headers).expect("a good record");
        }
        let records = (0..segment.len()).map(|index| segment.record(index));
        let partition = Partition { topic: "t".into(), number: 0 };
        match Plan::rows(&partition, records, &catalog(), parked).expect("events that fit") {
            Plan::Rows(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_takes_the_place_of_what_is_set_aside_of_its_key() {
        let mut parked = ParkedKeys::default();
        let name = TableName::new("shop", "t");
        parked.insert(name.clone(), br#"{"id":1}"#.to_vec(), Class::Dead);
        parked.insert(name.clone(), br#"{"id":2}"#.to_vec(), Class::Dead);
        let rows = rows(&[(1, false), (2, false), (1, true), (1, false), (3, true)], &parked);
        assert_eq!(rows.freed, [(name, br#"{"id":1}"#.to_vec())], "the third key did not stand still");
        assert_eq!(rows.behind.iter().map(|it| (it.offset, it.attempts)).collect::<Vec<_>>(), [(1, 0)]);
        assert_eq!((rows.applied, rows.statements.iter().map(Statement::rows).sum::<usize>()), (3, 2));
    }
}
