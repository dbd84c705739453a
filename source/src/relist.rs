//! From the list in the state to the one that is configured: what is looked at, made and waited for before the one follows
//! the other in the stream.
//!
//!     look ─▶ judge ─▶ topics ─▶ publication ─▶ writers of before are done ─▶ slot behind them ─▶ message ─▶ (feed)
//!
//! The session goes on by the old list all the while. Whatever dies here leaves topics and a publication that hold more than
//! the list, and nothing that the next attempt does not find or make again. Nothing is ever taken out of a publication: a
//! predecessor that wakes up late would take away what its successor has put back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::time::Duration;

use kafka::admin::Admin;
use postgres::quote;
use postgres::tokio_postgres::{Client, Row};
use schemas::event::LoadMode;
use schemas::{Lsn, TableName, topic};
use service::failpoint;
use tokio_util::sync::CancellationToken;

use crate::catalog::Messages;
use crate::config::{Config, Snapshot};
use crate::feed::{Added, BEAT, NextList, list_message};
use crate::lists::{self, Facts, Judged, ListId};
use crate::session::Input;
use crate::setup::{self, Survey};
use crate::state::State;
use crate::{Error, catalog, keeper, lockers, published, start, topics};

/// What the session on the server is for that is there as long as a list is brought about.
pub const PURPOSE: &str = "list";
/// How often it is asked how far the slot has come.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// After so many times a person is told: a second or two is usual.
const TELL_AFTER: u32 = 25;

/// What is to be done.
#[derive(Debug)]
pub struct Change {
    next: NextList,
    /// What the publication lacks of it.
    publication: Option<setup::Lacking>,
    /// Whether a publication is to be streamed that was not so far.
    is_renamed: bool,
    /// Names, for the log.
    added: Vec<TableName>,
    removed: Vec<TableName>,
}

impl Change {
    /// The tables that are published no more afterwards, by OID.
    pub fn removed(&self) -> &[u32] {
        &self.next.removed
    }

    /// The topics of the tables that are published from then on, each once.
    pub fn topics(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.next.added.iter().map(|added| &added.table.topic).collect();
        names.into_iter().cloned().collect()
    }

    /// What the publication lacks, and the statement that completes it.
    pub fn publication(&self) -> Option<&setup::Lacking> {
        self.publication.as_ref()
    }
}

/// What a look has found.
#[derive(Debug)]
pub struct Look {
    /// The list that is to follow; `None`: it stays as it is.
    pub change: Option<Change>,
    warnings: Vec<String>,
    remarks: Vec<String>,
}

impl Look {
    /// Says what a person should know.
    pub fn tell(&self) {
        self.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.remarks.iter().for_each(|remark| tracing::info!("{remark}"));
    }
}

/// Compares the state with the configuration and the server. What a person must decide is an error.
pub async fn look(
    client: &Client,
    config: &Config,
    prefix: &str,
    state: &State,
    survey: &Survey,
) -> Result<Look, Error> {
    let present = present(client, state).await?;
    let facts = Facts {
        recorded: state.tables().map(|(oid, table)| (oid, &table.name)).collect(),
        present: &present,
        wanted: survey.tables.iter().map(|found| (found.oid, &found.relation.name)).collect(),
        on_recreate: config.on_recreate,
    };
    let judged = lists::judge(&facts, |name| config.tables.chooses(name));
    let mut faults = survey.faults.clone();
    faults.extend(judged.faults.iter().cloned());
    let is_unknown = |name: &&TableName| !state.tables().any(|(_, table)| table.name == **name);
    faults.extend(survey.missing.iter().filter(is_unknown).map(setup::is_missing));
    faults.extend(start::moved_routes(config, prefix, state, survey));
    faults.extend(start::changed_keys(state, survey));
    faults.extend(lost(client, config, state, survey, &judged).await?);
    let next = next_list(config, prefix, state, survey, &judged).unwrap_or_else(|more| {
        faults.extend(more);
        NextList::default()
    });
    if !faults.is_empty() {
        return Err(Error::Unready(faults));
    }
    let is_renamed = state.stream.publications != next.publications;
    let name_of = |oid: &u32| state.table(*oid).map(|table| table.name.clone());
    let change = Change {
        added: next.added.iter().map(|added| added.table.name.clone()).collect(),
        removed: next.removed.iter().filter_map(name_of).collect(),
        publication: survey.publication.clone(),
        is_renamed,
        next,
    };
    let change = (judged.is_change() || is_renamed).then_some(change);
    Ok(Look { change, warnings: judged.warnings, remarks: judged.remarks })
}

/// How the tables of the state are called now, by OID.
async fn present(client: &Client, state: &State) -> Result<BTreeMap<u32, TableName>, Error> {
    let oids: Vec<u32> = state.tables().map(|(oid, _)| oid).collect();
    let query = "SELECT c.oid, n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY ($1)";
    let rows = client.query(query, &[&oids]).await;
    let rows = rows.map_err(|cause| postgres::Error::statement("look for the published tables", cause))?;
    let named = |row: &Row| (row.get(0), TableName::new(row.get::<_, String>(1), row.get::<_, String>(2)));
    Ok(rows.iter().map(named).collect())
}

/// What the publications have lost that is, or was until now, to be published: changes of it are missing for ever.
async fn lost(
    client: &Client,
    config: &Config,
    state: &State,
    survey: &Survey,
    judged: &Judged,
) -> Result<Vec<String>, Error> {
    let mut faults = Vec::new();
    let kept: Vec<_> = survey.tables.iter().filter(|found| state.table(found.oid).is_some()).collect();
    for name in &state.stream.publications {
        let asked = |cause| postgres::Error::statement(format!("look at the publication {name}"), cause);
        let query = "SELECT FROM pg_publication WHERE pubname = $1";
        if client.query_opt(query, &[name]).await.map_err(asked)?.is_none() {
            // To 17 the stream stands still on its name for ever, and from 18 on it goes on without what it carried.
            faults.push(format!(
                "the publication {name} was dropped, and what was written until now is only to be had through it: changes since {} are missing, load again under a new prefix",
                state.stream.position
            ));
            continue;
        }
        let oids: Vec<u32> = kept.iter().map(|found| found.oid).collect();
        let tables = client.query(&published::tables(survey.version), &[&oids, name]).await.map_err(asked)?;
        let tables: Vec<u32> = tables.iter().map(|row| row.get(0)).collect();
        let gone =
            kept.iter().filter(|found| !tables.contains(&found.oid)).map(|found| found.relation.name.to_string());
        let gone = gone.collect::<Vec<_>>().join(", ");
        if !gone.is_empty() {
            faults.push(format!(
                "the publication {name} lost {gone} since {} was written, and changes made meanwhile are missing: load again under a new prefix",
                state.stream.position
            ));
        }
    }
    let is_new = state.stream.publications != [config.publication.clone()] || judged.is_change();
    if let Some(lacking) = survey.publication.as_ref().filter(|_| is_new && faults.is_empty() && !config.create) {
        faults.push(lacking.fault(&config.publication));
    }
    Ok(faults)
}

/// The list that is to follow, but for what has to be made first.
fn next_list(
    config: &Config,
    prefix: &str,
    state: &State,
    survey: &Survey,
    judged: &Judged,
) -> Result<NextList, Vec<String>> {
    let mut next = NextList {
        publications: vec![config.publication.clone()],
        since: state.stream.since,
        removed: judged.removed.clone(),
        ..NextList::default()
    };
    if judged.added.is_empty() {
        return Ok(next);
    }
    let names = setup::topics_of(prefix, &config.topics, &survey.tables)?;
    let mut faults = Vec::new();
    for found in survey.tables.iter().filter(|found| judged.added.contains(&found.oid)) {
        let (name, topic) = (&found.relation.name, &names[&found.oid]);
        // A table that was renamed keeps the topic of its old name.
        let keeps = |(oid, table): &(u32, &schemas::state::Table)| {
            table.topic == *topic && !judged.removed.contains(oid) && names.get(oid).is_some_and(|own| own != topic)
        };
        if let Some((_, other)) = state.tables().find(keeps) {
            faults.push(format!("the topic {topic} of {name} is that of {}, which was called so when it was made: give {name} another name, or publish it under another prefix", other.name));
        }
        let is_former = state.topics().iter().any(|known| known.name == *topic && known.topic.former.contains(name));
        let is_replacing = judged.replacing.contains(&found.oid);
        let mode = if is_replacing || is_former { LoadMode::Replace } else { config.snapshot_mode.of_load() };
        let is_loaded = is_replacing || config.snapshot == Snapshot::Initial;
        let load = is_loaded.then_some((mode, found.rows_estimated));
        next.added.push(Added { oid: found.oid, table: start::record_of(found, topic.clone()), load });
    }
    if faults.is_empty() { Ok(next) } else { Err(faults) }
}

/// What it takes to bring a change about.
pub struct Means {
    /// The configuration.
    pub config: Config,
    /// Kafka.
    pub kafka: kafka::Config,
    /// Before every topic.
    pub prefix: String,
    /// A connection of its own.
    pub client: Client,
    /// The way to write messages.
    pub messages: Messages,
    /// To the loop.
    pub inputs: Sender<Input>,
    /// Ends it.
    pub stop: CancellationToken,
}

/// Makes everything ready and gives the list its place in the stream. The session ends when it comes there.
pub async fn bring_about(mut change: Change, known: State, means: Means) -> Result<(), Error> {
    let Means { config, client, .. } = &means;
    change.tell(config, &known);
    change.next.topics = make_topics(&change, &known, &means).await?;
    failpoint::reach_in_task("list-topics").await?;
    if let Some(lacking) = change.publication.as_ref().filter(|_| config.create) {
        setup::complete(client, &config.publication, lacking).await?;
    }
    failpoint::reach_in_task("list-publication").await?;
    if change.is_renamed || !change.next.added.is_empty() {
        // A publication that is new to the stream is looked up by every transaction, an older one for its new tables alone.
        let added: Vec<u32> = change.next.added.iter().map(|added| added.oid).collect();
        let of = if change.is_renamed { None } else { Some(&added[..]) };
        lockers::wait(client, of, "so that all of what follows is in the stream").await?;
        let since = catalog::wal_insert(client).await?;
        change.next.since = Some(since);
        // The slot comes there by itself, but not at once where nothing is written.
        means.messages.emit(BEAT).await?;
        slot_passes(client, &config.slot, since).await?;
    }
    failpoint::reach_in_task("list-waited").await?;
    let id = ListId(uuid::Uuid::new_v4().as_u128());
    // First the loop, then the message: it must know what it stands for.
    let next = Input::List { id, next: change.next };
    means.inputs.send(next).map_err(|_| Error::Stopped)?;
    means.messages.emit(&list_message(id)).await?;
    failpoint::reach_in_task("list-emitted").await?;
    Ok(())
}

impl Change {
    fn tell(&self, config: &Config, known: &State) {
        let names = |list: &[TableName]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if !self.added.is_empty() {
            tracing::info!("adding {}", names(&self.added));
        }
        let list = self.removed.iter().map(quote::table).collect::<Vec<_>>().join(", ");
        if self.is_renamed {
            let old = known.stream.publications.join(", ");
            tracing::info!(
                "going over from the publication {old} to {}; drop the old one once \"streaming\" has been said again",
                config.publication
            );
        } else if !self.removed.is_empty() {
            let publication = quote::identifier(&config.publication);
            tracing::info!(
                "taking out {}; their topics stay. The server goes on sending their changes until they are out of the publication: ALTER PUBLICATION {publication} DROP TABLE {list};",
                names(&self.removed)
            );
        }
    }
}

/// The topics of added tables that are not in use so far, found or made.
async fn make_topics(
    change: &Change,
    known: &State,
    means: &Means,
) -> Result<Vec<(String, schemas::state::Topic)>, Error> {
    let names = change.topics();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let admin = Admin::connect(&means.kafka)?;
    let fresh = topics::fresh(&admin, known, &names).await?;
    let (config, state_topic) = (&means.config.topics, topic::of_state(&means.prefix));
    let wanted: Vec<&str> = fresh.iter().map(String::as_str).collect();
    let plan = topics::plan(&admin, &means.kafka, config, &state_topic, &wanted, &means.stop).await?;
    if !plan.faults.is_empty() {
        return Err(Error::Unready(plan.faults));
    }
    topics::create(&admin, config, &state_topic, &plan.missing).await?;
    topics::found(&admin, &fresh).await
}

/// Waits until the slot is confirmed up to `since`: what lies before is published, and visible to everybody, and need not be
/// read through publications that were not there.
async fn slot_passes(client: &Client, slot: &str, since: Lsn) -> Result<(), Error> {
    let mut asked = 0;
    loop {
        let confirmed = keeper::confirmed(client, slot).await?;
        if confirmed >= since {
            return Ok(());
        }
        if asked == TELL_AFTER {
            tracing::info!(%confirmed, %since, "waiting for the slot to be confirmed so far before the list changes");
        }
        asked += 1;
        tokio::time::sleep(ASK_EVERY).await;
    }
}
