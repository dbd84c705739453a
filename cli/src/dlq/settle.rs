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

use super::Place;

/// How often it is looked whether a sink has tried them.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The key of a table whose rows stand still as one, since equal keys can differ in text.
const TABLE: &str = "{}";

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

/// What is done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// They are tried again.
    Retry,
    /// Their rows are read again.
    Resync,
    /// They are given up.
    Discard,
}

/// Settles them, and says what came of it.
pub(crate) async fn run(configuration: &Configuration, which: DlqSettle, way: Way) -> Result<Outcome, Failure> {
    let target = configuration.target("dlq")?;
    let (chosen, before) = chosen(target, &which).await?;
    match way {
        Way::Resync => start::order_keys(configuration, by_table(&chosen)?, which.dry_run).await?,
        Way::Retry | Way::Discard if which.dry_run => {}
        Way::Retry => settle::retry(target, &chosen).await?,
        Way::Discard => settle::discard(target, &chosen).await?,
    }
    finish(target, &which, (&chosen, &before), way).await
}

/// The keys that are to be ordered of the source.
fn by_table(chosen: &[ParkedEvent]) -> Result<BTreeMap<TableName, BTreeSet<String>>, Failure> {
    let mut by_table: BTreeMap<TableName, BTreeSet<String>> = BTreeMap::new();
    for event in chosen {
        if event.key == TABLE {
            return Err(Failure::WholeTable(event.table.clone()));
        }
        if let Ok(table) = event.table.parse() {
            by_table.entry(table).or_default().insert(event.key.clone());
        }
    }
    Ok(by_table)
}

/// The events that are meant, each place one, and all that are parked.
async fn chosen(target: &postgres::Config, which: &DlqSettle) -> Result<(Vec<ParkedEvent>, Vec<ParkedEvent>), Failure> {
    let all = parked(target, &Filter { limit: i64::MAX, ..Filter::default() }).await?;
    if which.all {
        let table = which.table.as_ref().map(ToString::to_string);
        let is_meant = |event: &&ParkedEvent| {
            which.group.as_ref().is_none_or(|group| event.group == *group)
                && table.as_ref().is_none_or(|table| event.table == *table)
                && which.class.is_none_or(|class| event.class == class.as_str())
        };
        return Ok((all.iter().filter(is_meant).cloned().collect(), all));
    }
    let mut events = Vec::new();
    for place in &which.places {
        let found = all.iter().find(|event| Place::of(event) == *place);
        events.push(found.cloned().ok_or_else(|| Failure::NotParked(place.to_string()))?);
    }
    Ok((events, all))
}

/// Waits until a sink has done its part, and says what came of it. `chosen` of all that was parked `before`.
async fn finish(
    target: &postgres::Config,
    which: &DlqSettle,
    (chosen, before): (&[ParkedEvent], &[ParkedEvent]),
    way: Way,
) -> Result<Outcome, Failure> {
    let until = Instant::now() + Duration::from_secs(if which.dry_run { 0 } else { which.within });
    let keys = loop {
        let now = parked(target, &Filter { limit: i64::MAX, ..Filter::default() }).await?;
        let mut keys = settled(chosen, before, &now, way);
        if Instant::now() >= until || keys.iter().all(|key| key.left == 0 || key.tried == Some(true)) {
            if which.dry_run || which.within == 0 {
                keys.iter_mut().for_each(|key| key.tried = None);
            }
            break keys;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let is_fine = which.dry_run || keys.iter().all(|key| key.left == 0);
    if which.form.json {
        print_json(&Report { dry_run: which.dry_run, keys });
    } else {
        print(&text(&keys, which, way));
    }
    Ok(if is_fine { Outcome::Fine } else { Outcome::Finding })
}

/// What became of the keys of these events, each once.
fn settled(chosen: &[ParkedEvent], before: &[ParkedEvent], now: &[ParkedEvent], way: Way) -> Vec<Settled> {
    let first = |events: &[ParkedEvent], wanted: &Key<'_>| {
        let of_key = events.iter().filter(|event| key(event) == *wanted).min_by_key(|event| event.offset);
        of_key.map(|event| (event.offset, event.attempts, event.cause.clone()))
    };
    let count = |events: &[ParkedEvent], wanted: &Key<'_>| events.iter().filter(|event| key(event) == *wanted).count();
    let one = |wanted: &Key<'_>| {
        let (old, new) = (first(before, wanted), first(now, wanted));
        let tried = new.as_ref().map(|(offset, attempts, _)| match (way, &old) {
            // The answer takes what is meant away, and nothing less will do.
            (Way::Resync, _) => !chosen
                .iter()
                .filter(|event| key(event) == *wanted)
                .any(|event| now.iter().any(|other| key(other) == *wanted && other.offset == event.offset)),
            (Way::Retry, Some((same, before, _))) if same == offset => attempts > before,
            // It comes first now, or has been made to be tried as if it did.
            (Way::Retry | Way::Discard, _) => *attempts > 0,
        });
        Settled {
            group: wanted.0.to_owned(),
            table: wanted.3.to_owned(),
            key: wanted.4.to_owned(),
            events: count(chosen, wanted),
            left: count(now, wanted),
            tried,
            cause: new.map(|(_, _, cause)| cause),
        }
    };
    let keys: BTreeSet<Key<'_>> = chosen.iter().map(key).collect();
    keys.iter().map(one).collect()
}

fn text(keys: &[Settled], which: &DlqSettle, way: Way) -> String {
    if keys.is_empty() {
        return "Nothing is parked.".to_owned();
    }
    let line = |key: &Settled| {
        let Settled { group, table, key, events, left, tried, cause } = key;
        let cause = cause.as_deref().unwrap_or_default();
        let what = match (left, tried) {
            _ if which.dry_run => format!("{events} events would be meant by {}", format!("{way:?}").to_lowercase()),
            (0, _) => "nothing is parked any more".to_owned(),
            (left, Some(true)) => format!("{left} events stand still: {cause}"),
            (left, Some(false)) if way == Way::Resync => {
                format!(
                    "not answered within {} s, {left} events are parked: does the source run, and a sink?",
                    which.within
                )
            }
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

    #[test]
    fn what_became_of_a_key_is_told_by_its_first_event() {
        let all = [event("a", 5, 1), event("a", 9, 0), event("b", 7, 2)];
        let told = |way: Way, chosen: &[ParkedEvent], now: &[ParkedEvent]| -> Vec<(usize, Option<bool>)> {
            settled(chosen, &all, now, way).iter().map(|one| (one.left, one.tried)).collect()
        };
        assert_eq!(told(Way::Retry, &all, &all), [(2, Some(false)), (1, Some(false))]);
        assert_eq!(told(Way::Retry, &all[1..2], &all), [(2, Some(false))], "another one stands before it");
        assert_eq!(told(Way::Retry, &all, &[event("a", 5, 2), event("a", 9, 0)]), [(2, Some(true)), (0, None)]);
        let ahead = [event("a", 9, 1), event("b", 7, 2)];
        assert_eq!(told(Way::Retry, &all, &ahead), [(1, Some(true)), (1, Some(false))]);
        assert_eq!(told(Way::Discard, &all[..1], &[event("a", 9, 0)]), [(1, Some(false))]);
        // It is tried by itself all the time, which is no answer.
        assert_eq!(told(Way::Resync, &all[2..], &[event("b", 7, 9)]), [(1, Some(false))]);
        assert_eq!(told(Way::Resync, &all[2..], &[event("b", 12, 1)]), [(1, Some(true))]);
    }
}
