//! `tributary slot drop`: leaves nothing of ours behind on the source server, and says what remains elsewhere.
//!
//! Without `--yes` it tells what it would do and does nothing. It never ends another's session: a slot that is read from
//! is refused, and its reader named.

use postgres::{Client, Error, quote};
use schemas::topic::{group_id, of_state};
use serde::Serialize;
use source::keeper;

use crate::Outcome;
use crate::args::SlotDrop;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::state;

/// What was found, done and left.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether anything was done, or only looked at.
    done: bool,
    /// What was, or would be, dropped.
    dropped: Vec<String>,
    /// What stands in the way.
    refused: Vec<String>,
    /// What stays where it is, and how it is removed.
    remains: Vec<String>,
}

/// The publication of our name.
struct Publication {
    is_owned: bool,
    /// Who could drop it, if we cannot.
    owner: String,
}

/// Drops the slot, and the publication where that is asked for.
pub(crate) async fn run(configuration: &Configuration, arguments: SlotDrop) -> Result<Outcome, Failure> {
    let source = configuration.source("slot drop")?;
    let client = postgres::connect(&source.postgres, "slot").await?;
    let look = keeper::look(&client, &source.slot).await?;
    let publication = publication(&client, &source.publication).await?;
    let state = state::read(configuration).await.map_err(|error| service::chain(&error).to_string());
    let mut report = Report { done: false, dropped: Vec::new(), refused: Vec::new(), remains: Vec::new() };

    if let Some(slot) = &look.slot {
        if let Some(why) = slot.not_ours(&look.database) {
            report.refused.push(format!("the slot {} is not ours: {why}", look.name));
        } else if let Some(pid) = slot.active_pid {
            report.refused.push(format!(
                "the slot {} is read from by server process {pid}{}: stop that source first",
                look.name,
                reader(&client, pid).await?
            ));
        } else {
            report.dropped.push(format!("slot {}", look.name));
        }
    }
    match &publication {
        Some(found) if arguments.publication && !found.is_owned => report.refused.push(format!(
            "the publication {} belongs to {}: let its owner run DROP PUBLICATION {}",
            source.publication,
            found.owner,
            quote::identifier(&source.publication)
        )),
        Some(_) if arguments.publication => report.dropped.push(format!("publication {}", source.publication)),
        Some(found) => {
            let offer = if found.is_owned { "--publication drops it too" } else { "only its owner may drop it" };
            report.remains.push(format!("the publication {}, which keeps no WAL: {offer}", source.publication));
        }
        None => {}
    }
    remains(configuration, &state, &mut report.remains);
    if report.refused.is_empty() && arguments.yes {
        carry_out(&client, source, look.slot.is_some(), publication.is_some() && arguments.publication).await?;
        report.done = true;
    }
    if arguments.form.json {
        print_json(&report);
    } else {
        print(&text(&report, &look.name));
    }
    Ok(if report.refused.is_empty() { Outcome::Fine } else { Outcome::Finding })
}

async fn carry_out(
    client: &Client,
    source: &source::Config,
    has_slot: bool,
    drops_publication: bool,
) -> Result<(), Error> {
    if has_slot {
        // The server itself refuses a slot that somebody has begun to read from meanwhile, and names the reader.
        let dropped = client.execute("SELECT pg_drop_replication_slot($1)", &[&source.slot]).await;
        dropped.map_err(|cause| Error::statement(format!("drop the slot {}", source.slot), cause))?;
    }
    if drops_publication {
        let sql = format!("DROP PUBLICATION {}", quote::identifier(&source.publication));
        let dropped = client.batch_execute(&sql).await;
        dropped.map_err(|cause| Error::statement(format!("drop the publication {}", source.publication), cause))?;
    }
    Ok(())
}

async fn publication(client: &Client, name: &str) -> Result<Option<Publication>, Error> {
    let query =
        "SELECT pg_has_role(pubowner, 'USAGE'), pg_get_userbyid(pubowner)::text FROM pg_publication WHERE pubname = $1";
    let row = client.query_opt(query, &[&name]).await;
    let row = row.map_err(|cause| Error::statement(format!("look for the publication {name}"), cause))?;
    Ok(row.map(|row| Publication { is_owned: row.get(0), owner: row.get(1) }))
}

/// Where the reader of a slot is, as far as we may see it.
async fn reader(client: &Client, pid: i32) -> Result<String, Error> {
    let query = "SELECT host(client_addr), usename::text FROM pg_stat_replication WHERE pid = $1";
    let row = client.query_opt(query, &[&pid]).await;
    let row = row.map_err(|cause| Error::statement("look for the reader of the slot", cause))?;
    let part = |at: usize| row.as_ref().and_then(|row| row.get::<_, Option<String>>(at));
    let words = [part(0).map(|host| format!(" from {host}")), part(1).map(|user| format!(" as {user}"))];
    Ok(words.into_iter().flatten().collect())
}

fn remains(configuration: &Configuration, state: &Result<Option<source::State>, String>, remains: &mut Vec<String>) {
    let prefix = &configuration.prefix;
    if let Err(unknown) = state {
        remains.push(format!(
            "in Kafka the topics of {prefix}, if there are any: they could not be looked at ({unknown})"
        ));
    } else if let Ok(Some(state)) = state {
        let topics: Vec<&str> = state.topics().iter().map(|topic| topic.name.as_str()).collect();
        remains.push(format!(
            "in Kafka the topics {} and {}: kafka-topics --delete",
            topics.join(", "),
            of_state(prefix)
        ));
        remains.push(format!(
            "the prefix {prefix} itself: without its slot a source cannot go on under it; start under another, or delete its topics first"
        ));
    }
    let groups: Vec<String> = configuration.sink.groups.iter().map(|group| group_id(prefix, &group.name)).collect();
    if !groups.is_empty() {
        remains.push(format!("the consumer groups {}, and their progress where they write to", groups.join(", ")));
    }
}

fn text(report: &Report, slot: &str) -> String {
    let list = |title: &str, lines: &[String]| {
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        if lines.is_empty() { String::new() } else { format!("{title}\n{lines}") }
    };
    let mut text = list("refused", &report.refused);
    text += &match (report.done, report.dropped.is_empty()) {
        _ if !report.refused.is_empty() => String::new(),
        (_, true) => format!("There is no slot {slot}: nothing to drop.\n"),
        (true, false) => list("dropped", &report.dropped),
        (false, false) => list("would be dropped", &report.dropped),
    };
    text += &list("remains", &report.remains);
    if !report.done && report.refused.is_empty() && !report.dropped.is_empty() {
        text += "Nothing was done. What was not published yet is lost to us with the slot: --yes does it.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_says_that_it_was_one_and_what_stands_in_the_way() {
        let mut report =
            Report { done: false, dropped: vec!["slot s".into()], refused: vec![], remains: vec!["topics".into()] };
        let would = text(&report, "s");
        assert!(would.contains("would be dropped\n  slot s") && would.contains("--yes"), "{would}");
        report.done = true;
        let did = text(&report, "s");
        assert!(did.starts_with("dropped\n  slot s") && !did.contains("--yes") && did.contains("topics"), "{did}");
        let report = Report { done: false, dropped: vec![], refused: vec!["in use".into()], remains: vec![] };
        assert_eq!(text(&report, "s"), "refused\n  in use\n");
    }
}
