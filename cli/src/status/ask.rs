//! Asks the source database, the state topic, the target and Kafka.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::Duration;

use kafka::admin::{Admin, Offsets};
use postgres::replication::unix_us;
use schemas::Selection;
use schemas::topic::{group_id, of_table};
use sink::config::To;
use sink::read::{self, Standing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Group, Partition, Report, Stream, Table};
use crate::configuration::Configuration;
use crate::loads::{self, Stage};
use crate::slot::{self, Asked};
use crate::state;

/// What each group has done, by group, topic and partition.
type Standings = BTreeMap<(String, String, i32), Standing>;

/// Asks everybody at the same time.
pub(super) async fn all(configuration: &Configuration) -> Report {
    let mut unknown = Vec::new();
    let (slot, state, target) = tokio::join!(slot(configuration), state::read(configuration), standings(configuration));
    let asked = told(&mut unknown, "the slot", slot).flatten();
    let state = told(&mut unknown, "the state topic", state).flatten();
    let topics = topics(configuration, state.as_ref()).await;
    let alarms = configuration.source.as_ref().map(|source| &source.alarms);
    let slot = asked.as_ref().zip(alarms).and_then(|(asked, alarms)| asked.slot(state.as_ref(), alarms));
    let missing = asked.as_ref().zip(alarms).map(|(asked, alarms)| asked.missing(state.as_ref(), alarms));
    let mut standings = told(&mut unknown, "the target", target).unwrap_or_default();
    let mut report = Report {
        prefix: configuration.prefix.clone(),
        slot,
        stream: state.as_ref().map(stream),
        tables: state.as_ref().map(tables).unwrap_or_default(),
        groups: Vec::new(),
        findings: missing.unwrap_or_default(),
        unknown: Vec::new(),
    };
    match topics {
        Ok(topics) => {
            let announced = announced(configuration, state.as_ref(), &topics).await;
            standings.extend(told(&mut unknown, "Redis", announced).unwrap_or_default());
            let groups = groups(configuration, &topics, state.as_ref(), &standings).await;
            report.groups = told(&mut unknown, "the groups", groups).unwrap_or_default();
        }
        Err(error) => unknown.push(format!("Kafka: {}", service::chain(&error))),
    }
    report.unknown = unknown;
    report.judge();
    report
}

/// How long the process of the source may take to say how it is.
const SAY_WITHIN: Duration = Duration::from_secs(1);

/// What the process that is configured here says of its source, if it runs where we are and serves http.
pub(super) async fn readiness(configuration: &Configuration) -> Option<String> {
    let address = configuration.http.as_ref()?.listen;
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await.ok()?;
        answer.lines().find_map(|line| line.strip_prefix("source: ")).map(str::to_owned)
    };
    tokio::time::timeout(SAY_WITHIN, ask).await.ok().flatten()
}

/// The longest answer that is looked at.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

fn told<T, E: Error + 'static>(unknown: &mut Vec<String>, what: &str, answer: Result<T, E>) -> Option<T> {
    answer.map_err(|error| unknown.push(format!("{what}: {}", service::chain(&error)))).ok()
}

async fn slot(configuration: &Configuration) -> Result<Option<Asked>, postgres::Error> {
    let Some(source) = &configuration.source else { return Ok(None) };
    slot::ask(source, "status").await.map(Some)
}

fn stream(state: &source::State) -> Stream {
    let stream = &state.stream;
    Stream {
        position: stream.position.to_string(),
        flushed: stream.flushed.to_string(),
        last_commit_ms: stream.history.last().map(|sent| unix_us(sent.2) / 1000),
    }
}

fn tables(state: &source::State) -> Vec<Table> {
    let of_table = |(oid, table): (u32, &schemas::state::Table)| {
        let topic = state.topics().iter().find(|topic| topic.name == table.topic).map(|topic| &topic.topic);
        Table {
            table: table.name.to_string(),
            topic: table.topic.clone(),
            partitions: topic.map_or(0, |topic| topic.partitions),
            records: topic.map_or(0, |topic| topic.seq.iter().map(|seq| seq.0).sum()),
            // Told when the groups are known.
            load: Stage::Live,
            reason: None,
            loads: loads::of_table(state, oid),
        }
    };
    let mut tables: Vec<Table> = state.tables().map(of_table).collect();
    tables.sort_by(|a, b| a.table.cmp(&b.table));
    tables
}

/// What the groups that feed the target have done.
async fn standings(configuration: &Configuration) -> Result<Standings, sink::Error> {
    let Some(target) = &configuration.sink.target else { return Ok(Standings::new()) };
    Ok(by_place(read::standings(target).await?))
}

/// What the groups that feed Redis have done.
async fn announced(
    configuration: &Configuration,
    state: Option<&source::State>,
    topics: &Topics,
) -> Result<Standings, sink::Error> {
    let mut standings = Standings::new();
    let Some(redis) = &configuration.sink.redis else { return Ok(standings) };
    for group in configuration.sink.groups.iter().filter(|group| matches!(group.to, To::Redis(_))) {
        let taken = taken(configuration, group, state, topics);
        let taken: Vec<(&str, i32)> = taken.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        standings.extend(by_place(read::announced(redis, &configuration.prefix, &group.name, &taken).await?));
    }
    Ok(standings)
}

fn by_place(standings: Vec<Standing>) -> Standings {
    let place = |standing: &Standing| (standing.group.clone(), standing.topic.clone(), standing.partition);
    standings.into_iter().map(|standing| (place(&standing), standing)).collect()
}

/// What each partition of each topic holds.
type Topics = BTreeMap<String, Vec<Offsets>>;

async fn topics(configuration: &Configuration, state: Option<&source::State>) -> Result<Topics, kafka::Error> {
    let admin = Admin::connect(&configuration.kafka)?;
    let selections = configuration.selections();
    let names: BTreeSet<String> = selections.flat_map(|selection| names(configuration, selection, state)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut topics = Topics::new();
    for (name, topic) in admin.topics(&names).await? {
        let offsets = admin.offsets(&name, topic.partitions).await?;
        topics.insert(name, offsets);
    }
    Ok(topics)
}

/// The topics of the tables that are chosen: as the state has them, or as they are called where it does not know the table.
fn names(configuration: &Configuration, selection: &Selection, state: Option<&source::State>) -> BTreeSet<String> {
    let recorded = || state.into_iter().flat_map(source::State::tables).map(|(_, table)| table);
    let chosen = recorded().filter(|table| selection.chooses(&table.name)).map(|table| table.topic.clone());
    let named = selection.taking().filter_map(|item| item.table());
    let unknown = named.filter(|name| !selection.excludes(name) && recorded().all(|table| table.name != *name));
    chosen.chain(unknown.map(|name| of_table(&configuration.prefix, &name))).collect()
}

/// The topics of a group that exist, with their numbers of partitions.
fn taken(
    configuration: &Configuration,
    group: &sink::config::Group,
    state: Option<&source::State>,
    topics: &Topics,
) -> Vec<(String, i32)> {
    let names = names(configuration, &group.tables, state);
    let there = |name: String| {
        let offsets = topics.get(&name)?;
        Some((name, i32::try_from(offsets.len()).unwrap_or(i32::MAX)))
    };
    names.into_iter().filter_map(there).collect()
}

async fn groups(
    configuration: &Configuration,
    topics: &Topics,
    state: Option<&source::State>,
    standings: &Standings,
) -> Result<Vec<Group>, kafka::Error> {
    let admin = Admin::connect(&configuration.kafka)?;
    let mut groups = Vec::new();
    for group in &configuration.sink.groups {
        let owned = owned(&admin, &group_id(&configuration.prefix, &group.name)).await?;
        let taken = taken(configuration, group, state, topics);
        let places = taken.iter().flat_map(|(topic, count)| (0..*count).map(move |partition| (topic, partition)));
        let partitions = places.map(|(topic, number)| {
            let standing = standings.get(&(group.name.clone(), topic.clone(), number));
            let end = topics.get(topic).and_then(|offsets| offsets.get(usize::try_from(number).ok()?));
            Partition {
                topic: topic.clone(),
                partition: number,
                offset: standing.map(|standing| standing.next_offset),
                end: end.map(|offsets| offsets.end),
                lag: published(state, topic, number).map(|published| {
                    let done = standing.map_or(0, |standing| u64::try_from(standing.seq).unwrap_or(0));
                    published.saturating_sub(done)
                }),
                // A process that died leaves its name in the progress; Kafka knows whether somebody is there now.
                owner: owned
                    .get(&(topic.clone(), number))
                    .map(|member| standing.map_or(member, |it| &it.owner).clone()),
                parked: standing
                    .map_or(0, |standing| u64::try_from(standing.parked.0 + standing.parked.1).unwrap_or(0)),
                error: standing.and_then(|standing| standing.error.clone()),
            }
        });
        let partitions = partitions.collect();
        let to = if matches!(group.to, To::Postgres) { "postgres" } else { "redis" };
        groups.push(Group { group: group.name.clone(), to, partitions });
    }
    Ok(groups)
}

/// The number of the last record of a partition.
fn published(state: Option<&source::State>, topic: &str, partition: i32) -> Option<u64> {
    let known = state?.topics().iter().find(|known| known.name == topic)?;
    // Into partitions that somebody else has added nothing is published.
    Some(known.topic.seq.get(usize::try_from(partition).ok()?).map_or(0, |seq| seq.0))
}

/// Which partitions of a group have a member, and which.
async fn owned(admin: &Admin, id: &str) -> Result<BTreeMap<(String, i32), String>, kafka::Error> {
    let Some(group) = admin.group(id).await? else { return Ok(BTreeMap::new()) };
    let places = group.members.into_iter().flat_map(|member| {
        let owner = format!("{}@{}", member.client_id, member.host);
        member.partitions.into_iter().map(move |place| (place, owner.clone()))
    });
    Ok(places.collect())
}
