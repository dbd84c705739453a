//! What the demo ends in: every table compared by content, every topic by order, Redis by what was announced.

use harness::Error;
use harness::oracle::{dead_letters, redis, topic};
use schemas::topic::of_table;

use crate::crew::{Crew, GROUPS, PREFIX};
use crate::narrator::Narrator;
use crate::stage::Stage;

/// All of it, told. Whether everything is as it must be.
pub(crate) async fn all(narrator: &Narrator, stage: &Stage<'_>, crew: &Crew) -> Result<bool, Error> {
    Ok(verified(narrator, crew).await?
        & same_content(narrator, stage).await?
        & in_order_and_announced(narrator, stage).await?
        & nothing_set_aside(narrator, stage).await?)
}

/// `tributary verify`: the operator's own look.
async fn verified(narrator: &Narrator, crew: &Crew) -> Result<bool, Error> {
    let output = crew.command("verify").await?;
    narrator.say(format!("tributary verify compares the numbers of rows:\n{}", output.stdout.trim_end()));
    if output.code != Some(0) {
        narrator.say(format!("tributary verify ended with {:?}:\n{}", output.code, output.stderr.trim_end()));
    }
    Ok(output.code == Some(0))
}

/// Every value of every row on both sides.
async fn same_content(narrator: &Narrator, stage: &Stage<'_>) -> Result<bool, Error> {
    let (source, target) = stage.databases.contents(&stage.tables).await?;
    let mut told = String::from("Every value of every row, hashed in the order of the keys, here and there:");
    for (table, (here, there)) in stage.tables.iter().zip(source.iter().zip(&target)) {
        let name = table.name.to_string();
        told += &format!("\n{name:<18} {:>7} rows  {}", here.rows, here.hash);
        told += &match here == there {
            true => "  equal".to_owned(),
            false => format!("  DIFFERENT: {} rows  {}", there.rows, there.hash),
        };
    }
    narrator.say(told);
    Ok(source == target)
}

/// The topics as a stranger reads them, and the streams in Redis beside them.
async fn in_order_and_announced(narrator: &Narrator, stage: &Stage<'_>) -> Result<bool, Error> {
    let mut connection = stage.redis.address().connect(0).await?;
    let mut told = String::from(
        "Every topic, read anew: dense, in order, no duplicate. Every change announced once in Redis, in order:",
    );
    let mut sound = true;
    for (done, table) in stage.tables.iter().enumerate() {
        narrator.show("topics read", done as i64, stage.tables.len() as i64);
        let name = of_table(PREFIX, &table.name);
        let records = topic::read(&stage.kafka.addresses(), &name).await?;
        let mut changes = 0;
        for record in records.rows() {
            changes += i64::from(!record.event().map_err(Error::new)?.is_loaded());
        }
        let outcome = match records.check() {
            // The sink's default name of a stream.
            Ok(()) => redis::compare(&mut connection, &format!("{PREFIX}:{}:stream", table.name), &records).await,
            fault => fault,
        };
        sound &= outcome.is_ok();
        let verdict = outcome.err().map_or_else(|| "sound".to_owned(), |fault| format!("FAULTY: {fault}"));
        told += &format!("\n{name:<23} {:>7} records {changes:>7} changes  {verdict}", records.0.len());
    }
    narrator.say(told);
    Ok(sound)
}

/// No group has parked an event or written a dead letter.
async fn nothing_set_aside(narrator: &Narrator, stage: &Stage<'_>) -> Result<bool, Error> {
    let target = stage.databases.read_target().await?;
    for group in GROUPS {
        if let Err(found) = dead_letters::none(&target, &stage.kafka.addresses(), PREFIX, group).await {
            narrator.say(format!("SET ASIDE by the group {group}: {found}"));
            return Ok(false);
        }
    }
    narrator.say("No event was set aside.");
    Ok(true)
}
