//! What a session touches: the catalog that it asks, the Kafka transaction that it fills, the commit that it sends.

use std::sync::{Arc, Mutex};

use schemas::key::Canonical;
use schemas::state::Imprint;
use schemas::write::Cell;
use schemas::{Lsn, header};

use super::Rule;
use super::broker::{Batch, Commit, Kept, States};
use super::dice::Dice;
use super::process::End;
use super::server::{Rows, Uid};
use super::wire::TABLES;
use super::world::Outside;
use crate::feed::{Catalog, Outbox, Record, Reselect, Reselected};
use crate::relation::Details;
use crate::visibility::Snapshot;
use crate::watch::{self, Seen};
use crate::{Error, pgoutput};

/// What a connection of its own shows of the server.
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    pub(super) rows: Rows,
    pub(super) end: Lsn,
    pub(super) waits: bool,
}

/// The catalog of the model.
pub(super) struct Server(pub(super) Arc<Mutex<Option<View>>>);

impl Catalog for Server {
    fn sees(&mut self, xid: u32) -> Result<bool, Error> {
        let view = self.0.lock().expect("nobody panics with it");
        Ok(view.as_ref().is_none_or(|view| view.snapshot.sees(xid)))
    }

    fn details(&mut self, _: &pgoutput::Relation) -> Result<Details, Error> {
        let canonical = [("id".to_owned(), Canonical::Same)].into();
        Ok(Details { primary_key: vec!["id".into()], canonical, ..Details::default() })
    }

    /// What the catalog shows never changes: DDL that sends no rows is not this model's matter.
    fn look(&mut self, _: &str, oid: u32, _: Option<&Imprint>) -> Result<Seen, Error> {
        let table = watch::tests::users();
        Ok(Seen { tables: [(oid, table.clone())].into(), ..watch::tests::seen(table) })
    }

    /// Nobody asks for ranges here.
    fn are_keys(&mut self, _: u32, _: &[&[String]]) -> Result<bool, Error> {
        Ok(false)
    }

    fn reselect(&mut self, row: &Reselect<'_>) -> Result<Reselected, Error> {
        let view = self.0.lock().expect("nobody panics with it");
        let view = view.as_ref().ok_or(Error::Stopped)?;
        if view.waits && !view.snapshot.sees(row.xid) {
            return Ok(Reselected::NotYet);
        }
        let table = TABLES.iter().position(|(oid, _)| *oid == row.relation.oid).expect("one of ours");
        let Cell::Text(key) = row.row[0] else { return Err(Error::Stopped) };
        let key = std::str::from_utf8(key).ok().and_then(|key| key.parse().ok()).expect("a small number");
        let row = view.rows[table].get(&key);
        let values = row.map(|row| vec![Some(row.bio.clone().into_bytes())]);
        Ok(Reselected::Seen { values, upto: view.end })
    }
}

/// The open Kafka transaction.
pub(super) struct Open<'a> {
    pub(super) batch: &'a mut Batch,
    pub(super) of: Uid,
    pub(super) dice: &'a mut Dice,
    pub(super) refused_per_mille: usize,
    /// What becomes of a refusal.
    pub(super) fails: bool,
}

impl Outbox for Open<'_> {
    fn send(&mut self, record: Record<'_>) -> Result<(), Error> {
        if self.dice.chance(self.refused_per_mille) {
            return if self.fails { Err(Error::Stopped) } else { Ok(()) };
        }
        let text = |name| {
            let (_, value) = record.headers.iter().find(|(header, _)| *header == name)?;
            Some(std::str::from_utf8(value).expect("headers are text").to_owned())
        };
        let kept = Kept {
            position: text(header::POSITION).and_then(|text| text.parse().ok()).expect("every record has one"),
            seq: text(header::SEQ).and_then(|text| text.parse().ok()).expect("every record has one"),
            value: record.value.map(<[u8]>::to_vec),
            control: text(header::CONTROL),
            schema: text(header::SCHEMA),
            answer: text(header::ANSWER),
            of: self.of,
        };
        self.batch.records.push(((record.topic.to_owned(), record.partition), kept));
        self.batch.used.insert(self.of);
        Ok(())
    }
}

/// Asks the broker to commit. All that is known when this fails is that it is not known what became of it.
pub(super) fn send_commit(outside: &mut Outside, commit: Commit) -> Result<(), End> {
    let fate = if outside.strikes(outside.weather.lost_answers) { 1 + outside.dice.below(3) } else { 0 };
    let unknown = (!outside.keeps(Rule::BeginAgain)).then(|| commit.clone());
    let out = outside.out;
    let landed = match fate {
        0 => outside.broker.land(commit, out)?,
        1 => {
            outside.broker.land(commit, out)?;
            false
        }
        2 => {
            outside.broker.flying.push(commit);
            false
        }
        _ => {
            outside.broker.abort(commit.batch);
            false
        }
    };
    if fate > 0 {
        let what = ["", "is done, its answer lost", "is on its way, given up", "never arrives"][fate];
        outside.tell(|| format!("a commit {what}"));
    }
    let landed = match unknown.filter(|_| fate > 0) {
        Some(again) => outside.broker.land(again, out)?,
        None => landed,
    };
    if landed { Ok(()) } else { Err(End::Again) }
}

/// One Kafka transaction, or what a missing rule makes of it.
pub(super) fn parts(outside: &mut Outside, mut batch: Batch) -> Vec<Batch> {
    let later = |batch: &mut Batch, is_later: fn(&str) -> bool| -> States {
        let (late, now) = std::mem::take(&mut batch.state).into_iter().partition(|(key, _)| is_later(key));
        batch.state = now;
        late
    };
    match outside.out {
        Some(Rule::StateWithRecords) => {
            let state = later(&mut batch, |_| true);
            vec![batch, Batch { state, ..Batch::default() }]
        }
        Some(Rule::LoadWithChunk) => {
            let state = later(&mut batch, |key| key.starts_with("load/"));
            vec![Batch { state, ..Batch::default() }, batch]
        }
        Some(Rule::EqualTogether) => {
            let equal = |pair: &[(_, Kept)]| pair[0].1.position == pair[1].1.position;
            let cut = batch.records.windows(2).position(equal).map_or(batch.records.len(), |at| at + 1);
            let records = batch.records.split_off(cut);
            let rest = Batch { records, state: batch.state.clone(), ..Batch::default() };
            vec![batch, rest]
        }
        _ => vec![batch],
    }
}
