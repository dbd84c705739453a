//! DDL under way: what a relation is called and made of from here on, and rows that changed without being sent.
//!
//!     Relation ─▶ look at the catalog ─▶ pending, until the first row behind it ──┐
//!     the watch ─▶ look ─▶ pending, until a message of ours gives it a place ──────┼─▶ schema event (rows_rewritten)
//!                                                                                  └─▶ stop, load again, or go on
//!
//! The decision goes into one Kafka transaction with the schema event, the imprint that it was made by, and the beginning of
//! the load: whoever starts again finds all of it or none, and decides anew.

use std::collections::{BTreeSet, HashMap};

use schemas::event::{Column, Control, LoadMode};
use schemas::fingerprint::Fingerprint;
use schemas::state::{Imprint, ImprintColumn, Load, LoadKind, Table};
use schemas::{Lsn, Position, TableName};

use super::row::At;
use super::{Feed, Outbox, Transaction, Urgency};
use crate::columns::Ruled;
use crate::config::OnRewrite;
use crate::relation::{self, Details, NoKey, Relation};
use crate::watch::{self, Seen, Silent};
use crate::{Error, pgoutput};

/// What the message says that gives a finding of the watch its place in the stream.
pub fn notice(oid: u32) -> String {
    format!("watch/{oid}")
}

pub(super) fn noticed(content: &[u8]) -> Option<u32> {
    std::str::from_utf8(content).ok()?.strip_prefix("watch/")?.parse().ok()
}

/// What was seen in the catalog and waits for its place in the stream.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// By a relation of the stream: acted on in front of its first row.
    looked: HashMap<u32, watch::Table>,
    /// By the watch: acted on at the message that it writes.
    watched: HashMap<u32, watch::Table>,
    /// Where the WAL ended when a relation of the stream was looked at: what the watch saw before that is out of date.
    looked_at: HashMap<u32, Lsn>,
    /// What a person should know of.
    pub(super) remarks: Vec<String>,
    /// Tables that are on their way out, and may have left the publication already.
    leaving: Vec<u32>,
    /// Those of them of which a row was passed over: a person was told.
    passed_over: BTreeSet<u32>,
}

impl Pending {
    /// Whether the table is on its way out.
    pub(super) fn is_leaving(&self, oid: u32) -> bool {
        self.leaving.contains(&oid)
    }
}

/// What follows from rows that changed without being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    Reload,
    Continue,
}

impl Feed {
    /// What was followed and should be known, each once.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.pending.remarks)
    }

    /// These tables are published for the last time: nobody minds what the publication has of them.
    pub fn lets_go(&mut self, tables: Vec<u32>) {
        self.pending.leaving = tables;
    }

    /// A row that has no key, of a table that is published for the last time: should the table come back, it is loaded in
    /// place of what stands in the topic.
    pub(super) fn pass_over(&mut self, relation: &Relation) {
        if self.pending.passed_over.insert(relation.oid) {
            let name = &relation.name;
            self.pending
                .remarks
                .push(format!("rows of {name} with NULL in the key are passed over: it is on its way out"));
        }
    }

    /// The watch has looked. The tables that have to be given a place in the stream, by a message of [`notice`].
    pub fn watched(&mut self, seen: Seen) -> Result<Vec<u32>, Error> {
        let mut places = Vec::new();
        for (oid, now) in seen.tables {
            let Some(table) = self.state.table(oid) else { continue };
            if self.pending.looked_at.get(&oid).is_some_and(|later| seen.at < *later) {
                continue;
            }
            // Under FULL rows are changed without any key, and the stream says nothing when it becomes another one.
            if let Some(lost) = lost_key(table, &now).filter(|_| now.identity == 'f') {
                return Err(Error::NoKey { table: now.name, cause: lost });
            }
            let silent = unsent(table, &now, None).silent;
            if silent.is_empty() {
                self.record(oid, &now);
                continue;
            }
            self.remedy(oid, &now.name, &silent)?;
            self.pending.watched.insert(oid, now);
            places.push(oid);
        }
        Ok(places)
    }

    /// The message of the watch: what it found is acted on here. A stranger's finds nothing.
    pub(super) fn rows_changed(&mut self, oid: u32, place: Position, outbox: &mut dyn Outbox) -> Result<(), Error> {
        if !self.is_new(place) {
            return Ok(());
        }
        let Some(now) = self.pending.watched.remove(&oid) else { return Ok(()) };
        let Some(table) = self.state.table(oid).cloned() else { return Ok(()) };
        let transaction = self.acting(place.change)?;
        let silent = unsent(&table, &now, None).silent;
        if silent.is_empty() {
            self.record(oid, &now);
            return Ok(());
        }
        let remedy = self.remedy(oid, &now.name, &silent)?;
        self.tell(&table.name, &silent, remedy);
        let control = Control::Schema {
            tables: vec![self.control_table(oid)?],
            identity: table.identity,
            key: table.key.clone(),
            previous_key: Some(table.key),
            columns: table.columns,
            fingerprint: table.fingerprint,
            rows_rewritten: true,
        };
        self.control(&control, place, transaction.of, outbox)?;
        self.record(oid, &now);
        self.acted(place, &transaction);
        if remedy == Remedy::Reload { self.reload(oid, now.rows_estimated, &transaction, outbox) } else { Ok(()) }
    }

    /// The catalog's view of a relation that the stream has just described; `None` if the table is gone by now.
    pub(super) fn look(&mut self, oid: u32) -> Result<Option<watch::Table>, Error> {
        let imprint = self.state.table(oid).and_then(|table| table.imprint.as_ref());
        let publication = self.state.stream.publications.join(", ");
        let mut seen = self.catalog.look(&publication, oid, imprint)?;
        self.pending.looked_at.insert(oid, seen.at);
        let stays = !self.pending.leaving.contains(&oid);
        let faults = watch::faults(&seen, &publication, stays.then_some(oid).into_iter());
        if faults.is_empty() { Ok(seen.tables.remove(&oid)) } else { Err(Error::Unsent(faults)) }
    }

    /// What was seen with a relation waits for its first row. Where nothing is known of before, it is what later looks are
    /// compared with.
    pub(super) fn consider(&mut self, oid: u32, now: Option<watch::Table>) {
        let Some((now, table)) = now.zip(self.state.table(oid)) else { return };
        match &table.imprint {
            None => self.record(oid, &now),
            Some(known) if *known == imprint(table, &now) => {}
            Some(_) => drop(self.pending.looked.insert(oid, now)),
        }
    }

    /// Remembers what the catalog shows as what the topic agrees with. What was seen before that is of no use any more.
    fn record(&mut self, oid: u32, now: &watch::Table) {
        self.pending.looked.remove(&oid);
        self.pending.watched.remove(&oid);
        let Some(table) = self.state.table(oid) else { return };
        let imprint = imprint(table, now);
        if table.imprint.as_ref() != Some(&imprint) {
            let changes = unsent(table, now, None);
            self.pending.remarks.extend(changes.remarks);
            self.state.set_table(oid, Table { imprint: Some(imprint), ..table.clone() });
            self.urgency = self.urgency.max(Urgency::Idle);
        }
    }

    /// In front of the first row of a relation, and of the first after every change of it, stands its description.
    pub(super) fn announce(&mut self, at: At<'_>, outbox: &mut dyn Outbox) -> Result<(), Error> {
        let (relation, transaction) = (&at.known.relation, at.transaction);
        let (oid, position) = (relation.oid, Position { n: 0, ..at.position });
        let table = self.state.table(oid).ok_or(Error::RowBeforeRelation { oid, at: position.change })?;
        let is_same = table.fingerprint == relation.fingerprint;
        let rules = self.label.rules.get(oid).map(|ruled| ruled.rule.digest());
        if (is_same && !self.pending.looked.contains_key(&oid)) || !self.is_new(position) {
            return Ok(());
        }
        let table = table.clone();
        let now = self.pending.looked.remove(&oid);
        let mut silent = now.as_ref().map(|now| unsent(&table, now, Some(relation)).silent).unwrap_or_default();
        if !table.columns.is_empty() && table.rules != rules {
            silent.push(Silent::Ruled);
        }
        let remedy = if silent.is_empty() { None } else { Some(self.remedy(oid, &relation.name, &silent)?) };
        if let Some(remedy) = remedy {
            self.tell(&relation.name, &silent, remedy);
        }
        if !is_same || remedy.is_some() {
            self.describe_anew(&table, relation, position, transaction, remedy.is_some(), outbox)?;
        }
        if let Some(now) = &now {
            self.record(oid, now);
        }
        match remedy {
            Some(Remedy::Reload) => self.reload(oid, now.map_or(0, |now| now.rows_estimated), transaction, outbox),
            Some(Remedy::Continue) | None => Ok(()),
        }
    }

    fn describe_anew(
        &mut self,
        table: &Table,
        relation: &Relation,
        position: Position,
        transaction: &Transaction,
        rows_rewritten: bool,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        let first = table.columns.is_empty();
        if !first && table.single_partition != relation.single_partition {
            // Later changes of a key would stand in another partition than earlier ones.
            return Err(Error::Rerouted { table: relation.name.clone() });
        }
        let previous_key = table.key.clone();
        let mut table = table.clone();
        table.name = relation.name.clone();
        table.key = relation.key_names();
        table.identity = relation.identity;
        table.columns = relation.columns.clone();
        table.fingerprint = relation.fingerprint;
        table.single_partition = relation.single_partition;
        table.routing = relation.routing();
        table.rules = self.label.rules.get(relation.oid).map(|ruled| ruled.rule.digest());
        if let Some(imprint) = table.imprint.as_mut().filter(|_| table.key != previous_key) {
            imprint.key = numbers(&table.key, &imprint.columns);
        }
        self.state.set_table(relation.oid, table);
        let control = Control::Schema {
            tables: vec![self.control_table(relation.oid)?],
            identity: relation.identity,
            key: relation.key_names(),
            previous_key: (!first).then_some(previous_key),
            columns: relation.columns.clone(),
            fingerprint: relation.fingerprint,
            rows_rewritten,
        };
        self.control(&control, position, transaction.of, outbox)?;
        self.acted(position, transaction);
        Ok(())
    }

    /// What is to be done about rows that changed without being sent; an error where a person has to decide.
    fn remedy(&self, oid: u32, name: &TableName, silent: &[Silent]) -> Result<Remedy, Error> {
        let moves_keys = |silent: &Silent| {
            matches!(silent, Silent::Type { is_key: true, .. } | Silent::Relabelled { is_key: true, .. })
        };
        if silent.iter().any(moves_keys) {
            return Err(Error::Rerouted { table: name.clone() });
        }
        // A load that is not done yet read some rows before and some after: it begins anew, whatever is configured.
        let is_loading = self.is_loading(oid);
        match self.label.on_rewrite {
            OnRewrite::Reload => Ok(Remedy::Reload),
            _ if is_loading => Ok(Remedy::Reload),
            OnRewrite::Continue => Ok(Remedy::Continue),
            OnRewrite::Stop => Err(Error::Rewritten { table: name.clone(), what: words(silent) }),
        }
    }

    fn tell(&mut self, name: &TableName, silent: &[Silent], remedy: Remedy) {
        let follows = match remedy {
            Remedy::Reload => "it is loaded again",
            Remedy::Continue => "the stream goes on without them, as source.on_rewrite says",
        };
        self.pending
            .remarks
            .push(format!("rows of {name} have changed without being sent ({}): {follows}", words(silent)));
    }

    /// Begins a load of the table at the state's position, where the transaction has just acted. The session ends with it,
    /// and the next one has a reader.
    fn reload(
        &mut self,
        oid: u32,
        rows_estimated: u64,
        transaction: &Transaction,
        outbox: &mut dyn Outbox,
    ) -> Result<(), Error> {
        // Keys that were ordered are answered from what is there when they are read.
        let of_rows = |load: &Load| load.kind != Some(LoadKind::Keys) && load.tables.contains(&oid);
        let open: Vec<_> = self.state.loads().filter(|(_, load)| of_rows(load)).map(|(id, _)| id.to_owned()).collect();
        open.iter().for_each(|id| self.state.end_load_table(id, oid));
        let Position { commit, change, .. } = self.state.stream.position;
        let id = format!("{:x}-{:x}-{oid}", commit.0, change.0);
        self.begin_load_within(&id, LoadMode::Merge, None, &[(oid, rows_estimated)], transaction.of, outbox)?;
        self.begin_again("rows of a table changed without being sent, and it is loaded again");
        Ok(())
    }

    /// The relation as described, by its rule if it has one, completed by the catalog of now where that cannot be wrong about
    /// then.
    pub(super) fn describe(
        &mut self,
        described: &pgoutput::Relation,
        fingerprint: Fingerprint,
        now: Option<&watch::Table>,
    ) -> Result<Relation, Error> {
        let mut details = self.catalog.details(described)?;
        let name = TableName::new(&described.schema, &described.table);
        let table = self.state.table(described.oid);
        if let Some(table) = table {
            recall(table, described, now, &mut details).map_err(|cause| Error::NoKey { table: name.clone(), cause })?;
            if !routes_as_before(table, described, &mut details) {
                return Err(Error::Rerouted { table: name });
            }
        }
        if let Some(Ruled { rule, .. }) = self.label.rules.get(described.oid) {
            let key = details.lasting_key.as_ref().unwrap_or(&details.primary_key);
            let shown = rule.check_key(key.iter().map(String::as_str));
            shown.map_err(|cause| Error::hidden(described, cause))?;
        }
        let mut relation = Relation::new(described, &details, &self.label.name, &self.label.db)
            .map_err(|cause| Error::NoKey { table: name, cause })?;
        relation.fingerprint = fingerprint;
        // One partition is right for every key; to leave it would part a row's changes.
        relation.single_partition |= table.is_some_and(|table| table.single_partition && !table.columns.is_empty());
        Ok(relation)
    }
}

/// What may have changed rows since the imprint was taken. Before anything was published of a table there is nothing that
/// could be outdated.
fn unsent(table: &Table, now: &watch::Table, relation: Option<&Relation>) -> watch::Changes {
    let Some(known) = table.imprint.as_ref().filter(|_| !table.columns.is_empty()) else {
        return watch::Changes::default();
    };
    let mut changes = watch::changes(known, now);
    // A column that the stream leaves out while the catalog publishes it, as it did before, will come back: what was
    // written to it meanwhile is in no event.
    let is_hidden = |column: &&Column| {
        let Some(shown) = now.column(&column.name) else { return false };
        let was_shown = known.columns.iter().any(|known| known.0 == shown.0 && known.1 == shown.1);
        was_shown && relation.is_some_and(|relation| !relation.columns.iter().any(|other| other.name == column.name))
    };
    let hidden = table.columns.iter().filter(is_hidden).map(|column| Silent::Unpublished(column.name.clone()));
    changes.silent.extend(hidden);
    changes
}

/// What is remembered of `now`: its key is that by which the table is published, whichever the catalog has by now.
fn imprint(table: &Table, now: &watch::Table) -> Imprint {
    let known = table.imprint.as_ref().map(|imprint| imprint.key.clone()).filter(|key| !key.is_empty());
    let by_name = || numbers(&table.key, &now.imprint.columns);
    Imprint { key: known.unwrap_or_else(by_name), ..now.imprint() }
}

/// The columns of a key by their numbers; none where one has another name by now.
fn numbers(key: &[String], columns: &[ImprintColumn]) -> Vec<i16> {
    let number = |name: &String| columns.iter().find(|column| column.1 == *name).map(|column| column.0);
    let mut numbers: Vec<i16> = key.iter().map(number).collect::<Option<_>>().unwrap_or_default();
    numbers.sort_unstable();
    numbers
}

/// Replaces what the catalog says of now by what is remembered of then, where the stream does not say it itself.
fn recall(
    table: &Table,
    described: &pgoutput::Relation,
    now: Option<&watch::Table>,
    details: &mut Details,
) -> Result<(), NoKey> {
    for column in &table.columns {
        // A type that is gone has no name any more.
        let name = details.type_names.entry((column.type_oid, column.modifier)).or_default();
        if name.is_empty() || *name == relation::NO_TYPE {
            name.clone_from(&column.type_name);
        }
    }
    if described.names_key() {
        return Ok(());
    }
    // FULL flags every column, and without an identity none is flagged. The key that was published goes on as long as it
    // names rows: of another one nobody could tell since where in the stream it does.
    let is_there = !table.key.is_empty()
        && table.key.iter().all(|name| described.columns.iter().any(|column| column.name == *name));
    match now.and_then(|now| lost_key(table, now)) {
        Some(lost) if is_there => return Err(lost),
        None if is_there => details.lasting_key = Some(table.key.clone()),
        // Its columns have other names by now, or are gone.
        _ => {}
    }
    Ok(())
}

/// Whether the key by which the table is published names its rows no longer.
fn lost_key(table: &Table, now: &watch::Table) -> Option<NoKey> {
    let numbers = table.imprint.as_ref().map(|imprint| &imprint.key).filter(|key| !key.is_empty())?;
    (!now.keys.contains(numbers)).then(|| NoKey::Lost(table.key.join(", ")))
}

/// How keys are routed must not change while their columns are the same. A type that is gone is routed as it was.
fn routes_as_before(table: &Table, described: &pgoutput::Relation, details: &mut Details) -> bool {
    for (name, rule) in table.key.iter().zip(&table.routing) {
        let before = table.columns.iter().find(|column| column.name == *name);
        let after = described.columns.iter().find(|column| column.name == *name);
        let Some((before, after)) = before.zip(after).filter(|(before, after)| before.type_oid == after.type_oid)
        else {
            continue;
        };
        let is_gone = !details.types.contains(&before.type_oid);
        if details.canonical.contains_key(name) || is_gone {
            details.canonical.insert(after.name.clone(), *rule);
        } else if !table.single_partition {
            // Its collation calls texts equal by now that stand in different partitions.
            return false;
        }
    }
    true
}

fn words(silent: &[Silent]) -> String {
    silent.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
