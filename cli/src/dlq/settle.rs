//! `tributary dlq retry|resync|discard`: a person settles events that were set aside.
//!
//!     chosen events ─▶ parked rows changed, or their keys ordered of the source ─▶ a sink does the rest ─▶ looked at again

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use schemas::TableName;
use serde::Serialize;
use sink::read::{Filter, ParkedEvent, parked};
use sink::settle;

use crate::Outcome;
use crate::args::DlqSettle;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::snapshot::start;

/// How often it is looked whether a sink has tried them.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A key of which something is parked.
type Key<'e> = (&'e str, &'e str, i32, &'e str, &'e str);

/// What became of a key.
#[derive(Debug, Serialize)]
struct Settled {
    group: String,
    table: String,
    key: String,
    /// How many of its events were meant.
    events: usize,
    /// How many are parked still, whether they were meant or not.
    left: usize,
    /// Whether a sink has tried them since; nothing where nothing is left, or was not waited for.
    tried: Option<bool>,
    /// Why the first of those that are left stands still.
    cause: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    keys: Vec<Settled>,
}

fn key(event: &ParkedEvent) -> Key<'_> {
    (&event.group, &event.topic, event.partition, &event.table, &event.key)
}

/// Has them tried again.
pub(crate) async fn retry(configuration: &Configuration, which: DlqSettle) -> Result<Outcome, Failure> {
    let target = configuration.target("dlq")?;
    let chosen = chosen(target, &which).await?;
    if !which.dry_run {
        settle::retry(target, &chosen).await?;
    }
    finish(target, &which, &chosen, "retry").await
}

/// Gives them up.
pub(crate) async fn discard(configuration: &Configuration, which: DlqSettle) -> Result<Outcome, Failure> {
    let target = configuration.target("dlq")?;
    let chosen = chosen(target, &which).await?;
    if !which.dry_run {
        settle::discard(target, &chosen).await?;
    }
    finish(target, &which, &chosen, "discard").await
}

/// Has their rows read again.
pub(crate) async fn resync(configuration: &Configuration, which: DlqSettle) -> Result<Outcome, Failure> {
    let target = configuration.target("dlq")?;
    let chosen = chosen(target, &which).await?;
    let mut by_table: BTreeMap<TableName, BTreeSet<String>> = BTreeMap::new();
    for event in &chosen {
        if let Some(table) = settle::table(event) {
            by_table.entry(table).or_default().insert(event.key.clone());
        }
    }
    start::order_keys(configuration, by_table, which.dry_run).await?;
    finish(target, &which, &chosen, "resync").await
}

/// The events that are meant: each place must be one.
async fn chosen(target: &postgres::Config, which: &DlqSettle) -> Result<Vec<ParkedEvent>, Failure> {
    if which.all {
        let filter =
            Filter { group: which.group.as_deref(), table: which.table.as_ref(), event: None, limit: i64::MAX };
        let mut events = parked(target, &filter).await?;
        events.retain(|event| which.class.is_none_or(|class| event.class == class.as_str()));
        return Ok(events);
    }
    let mut events = Vec::new();
    for place in &which.places {
        let event = Some((place.topic.as_str(), place.partition, place.offset));
        let filter = Filter { group: Some(&place.group), table: None, event, limit: 1 };
        events.push(parked(target, &filter).await?.pop().ok_or_else(|| Failure::NotParked(place.to_string()))?);
    }
    Ok(events)
}

/// Waits until a sink has done its part, and says what came of it.
async fn finish(
    target: &postgres::Config,
    which: &DlqSettle,
    chosen: &[ParkedEvent],
    command: &str,
) -> Result<Outcome, Failure> {
    let until = Instant::now() + Duration::from_secs(if which.dry_run { 0 } else { which.within });
    let before = firsts(chosen);
    let keys = loop {
        let now = parked(target, &Filter { limit: i64::MAX, ..Filter::default() }).await?;
        let keys = settled(chosen, &before, &now, which);
        if Instant::now() >= until || keys.iter().all(|key| key.left == 0 || key.tried == Some(true)) {
            break keys;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let is_fine = which.dry_run || keys.iter().all(|key| key.left == 0);
    if which.form.json {
        print_json(&Report { dry_run: which.dry_run, keys });
    } else {
        print(&text(&keys, which, command));
    }
    Ok(if is_fine { Outcome::Fine } else { Outcome::Finding })
}

/// The first event of each key, and how often it was tried.
fn firsts(events: &[ParkedEvent]) -> BTreeMap<Key<'_>, (i64, i32)> {
    let mut firsts = BTreeMap::new();
    for event in events {
        let first = firsts.entry(key(event)).or_insert((event.offset, event.attempts));
        *first = (*first).min((event.offset, event.attempts));
    }
    firsts
}

fn settled(
    chosen: &[ParkedEvent],
    before: &BTreeMap<Key<'_>, (i64, i32)>,
    now: &[ParkedEvent],
    which: &DlqSettle,
) -> Vec<Settled> {
    let of_key = |events: &[ParkedEvent], wanted: &Key<'_>| events.iter().filter(|event| key(event) == *wanted).count();
    let one = |(wanted, (offset, attempts)): (&Key<'_>, &(i64, i32))| {
        let first = now.iter().filter(|event| key(event) == *wanted).min_by_key(|event| event.offset);
        let is_tried = first.map(|first| match first.offset.cmp(offset) {
            std::cmp::Ordering::Equal => first.attempts > *attempts,
            // Those before it were settled.
            _ => first.attempts > 0,
        });
        Settled {
            group: wanted.0.to_owned(),
            table: wanted.3.to_owned(),
            key: wanted.4.to_owned(),
            events: of_key(chosen, wanted),
            left: of_key(now, wanted),
            tried: is_tried.filter(|_| !which.dry_run && which.within > 0),
            cause: first.map(|first| first.cause.clone()),
        }
    };
    before.iter().map(one).collect()
}

fn text(keys: &[Settled], which: &DlqSettle, command: &str) -> String {
    if keys.is_empty() {
        return "Nothing is parked.".to_owned();
    }
    let line = |key: &Settled| {
        let Settled { group, table, key, events, left, tried, cause } = key;
        let cause = cause.as_deref().unwrap_or_default();
        let what = match (left, tried) {
            _ if which.dry_run => format!("{events} events would be meant by {command}"),
            (0, _) => "nothing is parked any more".to_owned(),
            (left, Some(true)) => format!("{left} events stand still: {cause}"),
            (left, Some(false)) => format!("no sink has tried it within {} s, {left} events are parked", which.within),
            (left, None) => format!("{left} events are parked"),
        };
        format!("{group} {table} {key}: {what}")
    };
    keys.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, offset: i64, attempts: i32) -> ParkedEvent {
        ParkedEvent {
            group: "rdb".into(),
            topic: "shop.public.users".into(),
            partition: 1,
            offset,
            table: "public.users".into(),
            key: key.into(),
            position: String::new(),
            class: "dead".into(),
            cause: "too long".into(),
            sqlstate: None,
            attempts,
            first_at: String::new(),
            mirrored_at: None,
            record: None,
        }
    }

    fn which() -> DlqSettle {
        let form = crate::args::Form { json: false };
        DlqSettle { places: vec![], all: true, group: None, table: None, class: None, dry_run: false, within: 5, form }
    }

    #[test]
    fn what_became_of_a_key_is_told_by_its_first_event() {
        let chosen = [event("a", 5, 1), event("a", 9, 0), event("b", 7, 2)];
        let before = firsts(&chosen);
        let told = |now: &[ParkedEvent]| -> Vec<(usize, Option<bool>)> {
            settled(&chosen, &before, now, &which()).iter().map(|one| (one.left, one.tried)).collect()
        };
        assert_eq!(told(&chosen), [(2, Some(false)), (1, Some(false))]);
        assert_eq!(told(&[event("a", 5, 2), event("a", 9, 0)]), [(2, Some(true)), (0, None)]);
        assert_eq!(told(&[event("a", 9, 1), event("b", 7, 2)]), [(1, Some(true)), (1, Some(false))]);
    }
}
