//! From nothing, or from a state, to a session that may publish. The order of the steps is the proof; none may be moved.
//!
//!     first     survey ▸ publication ▸ slot at X ▸ all before X visible ▸ topics ▸ one transaction: state, load begin
//!     always    0 read the state, is it this server's?   1 take the slot   2 fence   3 read the state again
//!               4 check slot, WAL, topics                5 (in the stream) what is sent again is what was sent

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafka::admin::Admin;
use kafka::producer::Publisher;
use kafka::topic::{Isolation, read_all};
use postgres::replication::{Lifetime, Switch, System};
use postgres::{Prepared, Replication, quote};
use schemas::state::{Stream, Table};
use schemas::{CONTRACT, Lsn, Position, TableName, topic};
use service::failpoint;
use tokio_util::sync::CancellationToken;

use crate::columns::{ByOid, Ruled};
use crate::config::{Config, Snapshot};
use crate::feed::{Feed, Label};
use crate::keeper::Unusable;
use crate::keys::{self, Named};
use crate::session::Transaction;
use crate::setup::{self, Found, Survey};
use crate::state::State;
use crate::{Error, catalog, command, topics};

/// The transactional id: one for all that publishes under a prefix, so that a successor fences its predecessor.
pub fn transactional_id(prefix: &str) -> String {
    format!("tributary.{prefix}")
}

/// What logical messages of ours begin with.
pub fn message_prefix(slot: &str) -> String {
    format!("tributary/{slot}")
}

/// What all events of this source have in common.
pub fn label(config: &Config, prefix: &str) -> Label {
    Label {
        name: config.name.clone(),
        db: config.postgres.database.clone(),
        messages: message_prefix(&config.slot),
        tombstones: config.tombstones,
        on_rewrite: config.on_rewrite,
        shared: config.topics.routes.iter().map(|(route, _)| topic::of_route(prefix, route)).collect(),
        rules: ByOid::default(),
    }
}

/// Reads the state topic to its end; `None` where it is missing or empty.
pub fn read_state(kafka: &kafka::Config, prefix: &str, stop: &dyn Fn() -> bool) -> Result<Option<State>, Error> {
    let topic = topic::of_state(prefix);
    // Only the latest of each key is kept: the topic can be far longer than the state.
    let mut records = BTreeMap::new();
    let read = read_all(kafka, &topic, Isolation::ReadCommitted, stop, |record| {
        records.insert(record.key().unwrap_or_default().to_vec(), record.value().map(<[u8]>::to_vec));
        Ok::<(), kafka::Error>(())
    });
    match read {
        Err(kafka::Error::NoTopic(_)) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(()) => State::read(records).map_err(|cause| Error::State { topic, cause }),
    }
}

/// Makes everything for a source that has no state, and commits the first one. Returns it, since reading it back at once may
/// find nothing yet.
pub async fn first(
    config: &Config,
    kafka: &kafka::Config,
    prefix: &str,
    stop: &CancellationToken,
) -> Result<State, Error> {
    let (client, here) = postgres::connect_at(&config.postgres, "setup").await?;
    // All that is made is made on one server.
    let config = &Config { postgres: here, ..config.clone() };
    // Two first starts at a time would make and drop each other's slot, so the second waits, and then finds a state.
    let lock =
        format!("SELECT pg_advisory_lock(hashtextextended({}, 0))", quote::literal(&message_prefix(&config.slot)));
    let locked = stop.run_until_cancelled(client.batch_execute(&lock)).await.ok_or(Error::Stopped)?;
    locked.map_err(|cause| postgres::Error::statement("take the lock of a first start", cause))?;
    // A commit that was answered is not visible at once: its markers follow. Fencing waits for them, and ends what a
    // predecessor left half done; only then is it certain that there is no state.
    let publisher = fence(kafka, prefix, stop).await?;
    if let Some(state) = state(kafka, prefix, stop).await? {
        return Ok(state);
    }
    let survey = setup::survey(&client, config).await?;
    let plan = plan(config, kafka, prefix, &survey, stop).await?;
    if let Some(lacking) = &survey.publication {
        setup::complete(&client, &config.publication, lacking).await?;
    }
    failpoint::reach_in_task("first-publication").await?;
    let (system, start) = make_slot(config, &survey, stop).await?;
    failpoint::reach_in_task("first-slot").await?;
    let state_topic = topic::of_state(prefix);
    let admin = Admin::connect(kafka)?;
    topics::create(&admin, &config.topics, &state_topic, &plan.missing).await?;
    failpoint::reach_in_task("first-topics").await?;
    let data = distinct(&plan.names);
    let found = topics::found(&admin, &data).await?;
    let names = plan.names;

    let stream = Stream {
        contract: CONTRACT,
        system_id: system.system_id,
        database: config.postgres.database.clone(),
        timeline: system.timeline,
        slot: config.slot.clone(),
        publications: vec![config.publication.clone()],
        since: None,
        flushed: start,
        flushed_ms: None,
        position: Position::before(start),
        history: Vec::new(),
    };
    let table = |found: &Found| (found.oid, record_of(found, names[&found.oid].clone()));
    let tables = survey.tables.iter().map(table).collect();
    let mut state = State::first(stream, tables, found);
    state.keep_seal_key(command::new_seal_key);
    let loads: Vec<_> = survey.tables.iter().map(|found| (found.oid, found.rows_estimated)).collect();
    commit_first(config, publisher, prefix, state, &loads, client, stop).await
}

/// What the state knows of a table before its first row.
pub fn record_of(found: &Found, topic: String) -> Table {
    Table {
        name: found.relation.name.clone(),
        topic,
        key: found.relation.key_names(),
        identity: found.relation.identity,
        columns: Vec::new(),
        fingerprint: Default::default(),
        single_partition: found.relation.single_partition,
        rules: None,
        routing: Vec::new(),
        imprint: None,
    }
}

/// What a first start will do to topics.
pub struct Planned {
    names: BTreeMap<u32, String>,
    missing: Vec<String>,
}

/// Topics, each once: several tables can share one.
fn distinct(names: &BTreeMap<u32, String>) -> Vec<String> {
    names.values().cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Everything that stands in the way of a first start, at once, before anything is touched.
pub async fn plan(
    config: &Config,
    kafka: &kafka::Config,
    prefix: &str,
    survey: &Survey,
    stop: &CancellationToken,
) -> Result<Planned, Error> {
    if survey.standby {
        return Err(Error::Standby(config.postgres.display()));
    }
    let mut faults = survey.faults.clone();
    faults.extend(survey.missing.iter().map(setup::is_missing));
    faults
        .extend(survey.publication.iter().filter(|_| !config.create).map(|lacking| lacking.fault(&config.publication)));
    // One of ours that is lost is made again; another's is not ours to drop.
    if let Some(Unusable::Foreign(why)) = &survey.unusable {
        faults.push(format!(
            "the slot {} is not ours: {why}; name another in source.slot, or have its owner drop it",
            config.slot
        ));
    }
    faults.extend(unused(config, survey));
    let names = setup::topics_of(prefix, &config.topics, &survey.tables).unwrap_or_else(|more| {
        faults.extend(more);
        BTreeMap::new()
    });
    let (state_topic, data) = (topic::of_state(prefix), distinct(&names));
    let wanted: Vec<&str> = data.iter().map(String::as_str).chain([state_topic.as_str()]).collect();
    let admin = Admin::connect(kafka)?;
    let plan = topics::plan(&admin, kafka, &config.topics, &state_topic, &wanted, stop).await?;
    faults.extend(plan.faults);
    if faults.is_empty() { Ok(Planned { names, missing: plan.missing }) } else { Err(Error::Unready(faults)) }
}

/// The state as it stands in Kafka, read beside the runtime.
pub async fn state(kafka: &kafka::Config, prefix: &str, stop: &CancellationToken) -> Result<Option<State>, Error> {
    let (kafka, prefix, stop) = (kafka.clone(), prefix.to_owned(), stop.clone());
    let read = move || read_state(&kafka, &prefix, &|| stop.is_cancelled());
    tokio::task::spawn_blocking(read).await.map_err(|_| Error::Panicked("the reader of the state"))?
}

/// Fences whoever published under this prefix before.
pub async fn fence(kafka: &kafka::Config, prefix: &str, stop: &CancellationToken) -> Result<Publisher, Error> {
    let (kafka, id, stop) = (kafka.clone(), transactional_id(prefix), stop.clone());
    let init = move || {
        let mut publisher = Publisher::connect(&kafka, &id)?;
        publisher.init(&|| stop.is_cancelled())?;
        Ok(publisher)
    };
    tokio::task::spawn_blocking(init).await.map_err(|_| Error::Panicked("the publisher's start"))?
}

/// A slot without state is dropped and made again: nothing was published from it.
async fn make_slot(config: &Config, survey: &Survey, stop: &CancellationToken) -> Result<(System, Lsn), Error> {
    let mut replication = Replication::connect(&config.postgres).await?;
    if survey.slot.is_some() {
        tracing::info!(slot = %config.slot, "making the slot again, since nothing was published from it");
        replication.drop_slot(&config.slot).await?;
    }
    let system = replication.identify().await?;
    tracing::info!(slot = %config.slot, "making the slot; this waits for all transactions that are writing");
    let lifetime = if config.failover { Lifetime::Failover } else { Lifetime::Permanent };
    let created = stop.run_until_cancelled(replication.create_slot(&config.slot, lifetime)).await;
    let slot = created.ok_or(Error::Stopped)??;
    wait_until_visible(config, &slot.snapshot, stop).await?;
    Ok((system, slot.consistent_point))
}

/// A transaction can be in the slot's snapshot before others see it. The load reads plain snapshots, so these must show
/// everything first.
async fn wait_until_visible(config: &Config, exported: &str, stop: &CancellationToken) -> Result<(), Error> {
    let client = postgres::connect(&config.postgres, "setup").await?;
    let import =
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT {}", quote::literal(exported));
    let failed = |cause| postgres::Error::statement("import the slot's snapshot", cause);
    client.batch_execute(&import).await.map_err(failed)?;
    let of_slot = catalog::snapshot(&client).await?;
    client.batch_execute("COMMIT").await.map_err(failed)?;
    while !catalog::snapshot(&client).await?.covers(&of_slot) {
        if stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(50))).await.is_none() {
            return Err(Error::Stopped);
        }
    }
    Ok(())
}

async fn commit_first(
    config: &Config,
    mut publisher: Publisher,
    prefix: &str,
    state: State,
    loads: &[(u32, u64)],
    client: postgres::Client,
    stop: &CancellationToken,
) -> Result<State, Error> {
    let runtime = tokio::runtime::Handle::current();
    let client = Prepared::new(client);
    let catalog = catalog::Blocking { runtime, client, named: Named::default(), stop: stop.clone() };
    let confirmed = state.stream.flushed;
    let mut feed = Feed::new(label(config, prefix), state, confirmed, config.touch_bytes_max, Box::new(catalog));
    let token = stop.clone();
    let (snapshot, mode) = (config.snapshot, config.snapshot_mode.of_load());
    let (loads, prefix) = (loads.to_vec(), prefix.to_owned());
    let commit = move || {
        let stopped = || token.is_cancelled();
        let mut transaction = Transaction::new(&mut publisher, &stopped);
        if snapshot == Snapshot::Initial {
            let id = uuid::Uuid::new_v4().simple().to_string();
            feed.begin_load(&id, mode, &loads, now_ms(), &mut transaction)?;
        }
        failpoint::reach("first-sent")?;
        transaction.settle(&topic::of_state(&prefix), feed.take_records())?;
        failpoint::reach("first-committed")?;
        Ok(feed.into_state())
    };
    tokio::task::spawn_blocking(commit).await.map_err(|_| Error::Panicked("the first commit"))?
}

/// Step 0: a twin with a copied configuration must not fence the one that works.
pub fn check_identity(
    config: &Config,
    prefix: &str,
    state: &State,
    system: &System,
    switches: &[Switch],
) -> Result<(), Error> {
    let stream = &state.stream;
    let same = stream.database == config.postgres.database && stream.slot == config.slot;
    if same && stream.system_id == system.system_id {
        return if is_ours(state, system, switches) {
            Ok(())
        } else {
            Err(Error::OtherTimeline {
                server: config.postgres.display(),
                found: system.timeline,
                recorded: stream.timeline,
            })
        };
    }
    let words = |system: &str, timeline: u32, database: &str, slot: &str| {
        format!("system {system}, timeline {timeline}, database {database}, slot {slot}")
    };
    Err(Error::OtherSource {
        topic: topic::of_state(prefix),
        recorded: words(&stream.system_id, stream.timeline, &stream.database, &stream.slot),
        found: words(&system.system_id, system.timeline, &config.postgres.database, &config.slot),
    })
}

/// Whether the server's timeline is the state's, or came out of it.
fn is_ours(state: &State, system: &System, switches: &[Switch]) -> bool {
    let recorded = state.stream.timeline;
    recorded == system.timeline || switches.iter().any(|switch| switch.timeline == recorded)
}

/// Why the slot of a state is not there.
pub fn slot_missing(config: &Config, state: &State, timeline: u32) -> Error {
    let (server, slot) = (config.postgres.display(), config.slot.clone());
    if state.stream.timeline == timeline {
        Error::SlotGone { slot }
    } else {
        Error::SlotLeftBehind { server, slot, timeline }
    }
}

/// Still before anything is touched: a slot that did not come along in a failover, or came along unusable, is known by now.
pub fn check_slot(config: &Config, survey: &Survey, state: &State, timeline: u32) -> Result<(), Error> {
    let Some(slot) = &survey.slot else { return Err(slot_missing(config, state, timeline)) };
    let unusable = |what: String| Err(Error::SlotUnusable { slot: config.slot.clone(), what });
    if slot.is_temporary {
        return unusable("is temporary, and was not ready when its server was promoted".to_owned());
    }
    // Where standbys are trusted to take it along, one made by hand proves nothing of what lies before it.
    if state.stream.timeline != timeline && config.failover && !slot.is_synced {
        return unusable(format!("was made on timeline {timeline} by hand instead of taken along"));
    }
    if config.failover && survey.synchronized.is_empty() {
        tracing::warn!(
            "source.failover is set, but synchronized_standby_slots is empty: after a failover Kafka may hold what the new primary never had, and the source will stop; name the standbys' physical slots in it at the primary"
        );
    }
    Ok(())
}

/// Step 4, as far as the server goes: what it has must be what was published, and the slot not beyond it.
pub fn check_server(
    config: &Config,
    state: &mut State,
    system: &System,
    switches: &[Switch],
    confirmed: Lsn,
    end: Lsn,
) -> Result<(), Error> {
    let stream = &mut state.stream;
    if let Some(switch) = switches.iter().find(|switch| switch.timeline == stream.timeline) {
        if stream.position > Position::before(switch.at) {
            return Err(Error::Diverged {
                timeline: system.timeline,
                at: switch.at,
                published: stream.position,
                lost: stream.history.iter().filter(|sent| sent.0 >= switch.at).copied().collect(),
            });
        }
        stream.flushed = stream.flushed.min(switch.at);
        stream.timeline = system.timeline;
    } else if stream.timeline != system.timeline {
        // It was ours when the state was first read. While we waited for the slot, another went on with a newer server.
        let newer = stream.timeline;
        return Err(Error::Again(format!("what is published has gone on with timeline {newer} meanwhile")));
    }
    if end < stream.flushed {
        // Nothing published is lost, or the history will tell; but what the server sent us once, and does not have any
        // more, is no promise to readers of the state: what it writes there will be something else.
        stream.flushed = confirmed.min(stream.flushed);
    }
    if confirmed > stream.flushed {
        return Err(Error::SlotAhead { slot: config.slot.clone(), confirmed, flushed: stream.flushed });
    }
    // The commit record itself must be there, and where nothing was published yet there is none.
    if stream.position > Position::before(end) {
        return Err(Error::Behind { end, published: stream.position });
    }
    Ok(())
}

/// A table stays in its topic: readers have their progress there, and what a row became must stand behind what it was. A
/// topic of its own may have another name than the table has by now, so only shared ones are compared.
pub fn moved_routes(config: &Config, prefix: &str, state: &State, survey: &Survey) -> Vec<String> {
    let shares = |topic: &str| state.tables().filter(|(_, table)| table.topic == topic).count() > 1;
    let stays = |(oid, _): &(u32, &Table)| survey.tables.iter().any(|found| found.oid == *oid);
    let moved = state.tables().filter(stays).filter_map(|(_, table)| {
        let (name, topic) = (&table.name, &table.topic);
        let configured = config.topics.topic_of(prefix, name);
        let is_moved = configured != *topic && (config.topics.route_of(name).is_some() || shares(topic));
        is_moved.then(|| {
            format!(
                "{name} is published to {topic}, and source.topics.routes sends it to {configured} now: a table does not change its topic; route it as before, or start under a new prefix"
            )
        })
    });
    moved.collect()
}

/// The rules of columns by the tables' OIDs: of those that are to be published, and of those that still are.
pub fn rules(config: &Config, survey: &Survey, state: &State) -> Result<ByOid, Error> {
    let is_published = |table: &TableName| state.tables().any(|(_, known)| known.name == *table);
    let mut faults = unused_rules(config, survey, is_published);
    faults.extend(unused_keys(config, survey, is_published));
    let mut rules: BTreeMap<u32, Ruled> = BTreeMap::new();
    for (oid, table) in state.tables().filter(|(oid, _)| survey.tables.iter().all(|found| found.oid != *oid)) {
        let name = &table.name;
        match config.columns.get(name) {
            Some(rule) => {
                let columns = table.columns.iter().map(|column| column.name.clone()).collect();
                rules.insert(oid, Ruled { rule: rule.clone(), columns });
            }
            // Its last changes may still come, and what the rule hid would be in them.
            None if table.rules.is_some() => faults.push(format!(
                "{name} was published by a rule in source.columns until now: leave the rule there for this start, and take it out with the next"
            )),
            None => {}
        }
    }
    let found = survey.tables.iter().filter_map(|found| Some((found.oid, found.ruled.clone()?)));
    rules.extend(found);
    if faults.is_empty() { Ok(rules.into_iter().collect()) } else { Err(Error::Unready(faults)) }
}

/// Rules and keys for tables that are published no more once the state is what the survey has found.
pub fn unused(config: &Config, survey: &Survey) -> Vec<String> {
    let mut faults = unused_rules(config, survey, |_| false);
    faults.extend(unused_keys(config, survey, |_| false));
    faults
}

/// A rule for a table that nobody publishes hides nothing, and is thought to.
fn unused_rules(config: &Config, survey: &Survey, is_published: impl Fn(&TableName) -> bool) -> Vec<String> {
    let is_listed = |table: &TableName| survey.listed.iter().any(|listed| listed.name == *table);
    let unused = config.columns.keys().filter(|table| !is_listed(table) && !is_published(table));
    unused
        .map(|table| format!("source.columns.\"{table}\" is about a table that source.tables does not publish: correct the name, or take the rule out"))
        .collect()
}

/// A key for a table that nobody publishes is a mistake in the name, or left over.
fn unused_keys(config: &Config, survey: &Survey, is_published: impl Fn(&TableName) -> bool) -> Vec<String> {
    let is_listed = |table: &TableName| survey.listed.iter().any(|listed| listed.name == *table);
    let unused = config.keys.keys().filter(|table| !is_listed(table) && !is_published(table));
    unused
        .map(|table| format!("source.keys names a key for {table}, which source.tables does not publish: correct the name, or take the key out"))
        .collect()
}

/// The keys that are named, by the tables' OIDs. A table that is on its way out keeps the key that it was published by.
pub fn named_keys(survey: &Survey, state: &State) -> Named {
    let found = survey.tables.iter().filter_map(|found| Some((found.oid, found.named.clone()?)));
    let is_found = |oid: u32| survey.tables.iter().any(|found| found.oid == oid);
    let leaving = state.tables().filter(|(oid, table)| !is_found(*oid) && table.identity == 'f');
    leaving.map(|(oid, table)| (oid, table.key.clone())).chain(found).collect()
}

/// A key that is named goes on as it was published: of another one nobody could tell since where in the stream it holds. A
/// column that is gone was renamed, or the watch will tell.
pub fn changed_keys(state: &State, survey: &Survey) -> Vec<String> {
    let changed = survey.tables.iter().filter(|found| found.named.is_some()).filter_map(|found| {
        let (table, now) = (state.table(found.oid)?, found.relation.key_names());
        let is_there = |name: &String| found.relation.columns.iter().any(|column| column.name == *name);
        let is_another = !keys::is_same(&table.key, &now) && table.key.iter().all(is_there);
        is_another.then(|| {
            format!(
                "{} is published by ({}), and source.keys names ({}) now: name the key that it was published by, or start under a new prefix",
                table.name,
                table.key.join(", "),
                now.join(", ")
            )
        })
    });
    changed.collect()
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
