//! `tributary dlq`: the events that were set aside, to look at (here) and to settle.

pub(crate) mod settle;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::value::RawValue;
use sink::read::{Filter, ParkedEvent, parked};

use crate::Outcome;
use crate::args::{DlqList, DlqShow};
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{known, print, print_json, table};

/// Where a parked event stood in Kafka, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    group: String,
    topic: String,
    partition: i32,
    offset: i64,
}

impl Place {
    fn of(event: &ParkedEvent) -> Place {
        let ParkedEvent { group, topic, partition, offset, .. } = event;
        Place { group: group.clone(), topic: topic.clone(), partition: *partition, offset: *offset }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.group, self.topic, self.partition, self.offset)
    }
}

/// The text is no such place.
#[derive(Debug, thiserror::Error)]
#[error("expected GROUP:TOPIC:PARTITION:OFFSET, as `tributary dlq list` prints it")]
pub(crate) struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Place, NoPlace> {
        let [group, topic, partition, offset] = *text.split(':').collect::<Vec<_>>() else { return Err(NoPlace) };
        Ok(Place {
            group: group.to_owned(),
            topic: topic.to_owned(),
            partition: partition.parse().map_err(|_| NoPlace)?,
            offset: offset.parse().map_err(|_| NoPlace)?,
        })
    }
}

#[derive(Debug, Serialize)]
struct Listed<'e> {
    place: String,
    #[serde(flatten)]
    event: &'e ParkedEvent,
}

#[derive(Debug, Serialize)]
struct List<'e> {
    events: Vec<Listed<'e>>,
    /// Whether there are more than were asked for.
    more: bool,
}

#[derive(Debug, Serialize)]
struct Shown<'e> {
    #[serde(flatten)]
    listed: Listed<'e>,
    /// Stands over the record as text.
    record: Option<&'e RawValue>,
}

/// Lists what is parked.
pub(crate) async fn list(configuration: &Configuration, arguments: DlqList) -> Result<Outcome, Failure> {
    let target = configuration.target("dlq")?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    // One more than is shown tells that there are more. A class is chosen here, from all.
    let asked = if arguments.class.is_some() { i64::MAX } else { i64::from(arguments.limit) + 1 };
    let filter =
        Filter { group: arguments.group.as_deref(), table: arguments.table.as_ref(), event: None, limit: asked };
    let mut events = parked(target, &filter).await?;
    events.retain(|event| arguments.class.is_none_or(|class| event.class == class.as_str()));
    let more = events.len() > limit;
    events.truncate(limit);
    if arguments.form.json {
        let events = events.iter().map(|event| Listed { place: Place::of(event).to_string(), event }).collect();
        print_json(&List { events, more });
    } else {
        print(&text_of_list(&events, more));
    }
    Ok(if events.is_empty() { Outcome::Fine } else { Outcome::Finding })
}

/// Shows one parked event with its record.
pub(crate) async fn show(configuration: &Configuration, arguments: DlqShow) -> Result<Outcome, Failure> {
    let target = configuration.target("dlq")?;
    let place = &arguments.place;
    let event = Some((place.topic.as_str(), place.partition, place.offset));
    let filter = Filter { group: Some(&place.group), table: None, event, limit: 1 };
    let mut event = parked(target, &filter).await?.pop().ok_or_else(|| Failure::NotParked(place.to_string()))?;
    let record = event.record.take().unwrap_or_default();
    if arguments.form.json {
        let listed = Listed { place: place.to_string(), event: &event };
        print_json(&Shown { listed, record: serde_json::from_str(&record).ok() });
    } else {
        print(&text_of(&event, &record));
    }
    Ok(Outcome::Fine)
}

fn text_of_list(events: &[ParkedEvent], more: bool) -> String {
    if events.is_empty() {
        return "Nothing is parked.".to_owned();
    }
    let row = |event: &ParkedEvent| {
        let cause =
            event.sqlstate.as_ref().map_or_else(|| event.cause.clone(), |state| format!("{state} {}", event.cause));
        vec![
            Place::of(event).to_string(),
            event.table.clone(),
            event.key.clone(),
            event.class.clone(),
            event.attempts.to_string(),
            event.first_at.clone(),
            cause,
        ]
    };
    let heading = ["place", "table", "key", "class", "attempts", "parked at", "cause"];
    let count = match more {
        true => format!("The first {} of more, raise --limit to see them.", events.len()),
        false => format!("{} parked.", events.len()),
    };
    format!(
        "{}\n{count} `tributary dlq show PLACE` shows one whole.",
        table(&heading, events.iter().map(row).collect())
    )
}

fn text_of(event: &ParkedEvent, record: &str) -> String {
    // Printed anew for the eye, keys in their order; the numbers of a row are texts or raw digits, so none is changed.
    let pretty =
        serde_json::from_str::<&RawValue>(record).map_or_else(|_| record.to_owned(), |raw| indented(raw.get()));
    let lines = [
        ("place", Place::of(event).to_string()),
        ("table", event.table.clone()),
        ("key", event.key.clone()),
        ("position", event.position.clone()),
        ("class", event.class.clone()),
        ("cause", event.cause.clone()),
        ("sqlstate", known(event.sqlstate.as_ref())),
        ("attempts", event.attempts.to_string()),
        ("parked at", event.first_at.clone()),
        ("mirrored", event.mirrored_at.clone().unwrap_or_else(|| "not yet".to_owned())),
    ];
    let head: String = lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect();
    format!("{head}record\n{pretty}")
}

/// JSON with line breaks and indents added, and not one byte of its values touched.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    };
    for c in json.chars() {
        if in_text {
            out.push(c);
            in_text = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                in_text = true;
                out.push(c);
            }
            '{' | '[' => {
                depth += 1;
                out.push(c);
                line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back() {
        let text = "rdb:shop.public.users:3:1042";
        let place: Place = text.parse().expect("as it is printed");
        assert_eq!((place.partition, place.offset), (3, 1042));
        assert_eq!(place.to_string(), text);
        for bad in ["", "rdb", "rdb:t:0", "rdb:t:x:1", "rdb:t:0:1:2"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_record_is_indented_and_its_values_stay() {
        let json = r#"{"n":1.10,"t":"a\"{,}: \\","l":[1e400, 2]}"#;
        let expected = "{\n  \"n\": 1.10,\n  \"t\": \"a\\\"{,}: \\\\\",\n  \"l\": [\n    1e400,\n    2\n  ]\n}";
        assert_eq!(indented(json), expected);
    }
}
