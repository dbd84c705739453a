//! What a group has done of a topic that is of no use to it any more, forgotten.
//!
//! Only where no sink reads the topic: one that runs would find no progress and begin the topic anew.

use postgres::tokio_postgres::types::ToSql;
use schemas::TableName;

use crate::announce;
use crate::config::Redis;
use crate::error::Error;
use crate::record::Partition;

/// A table of ours, which may not be there, and what goes from it.
type Part = (&'static str, &'static str);

/// What may stand of a topic, children before what they depend on. Arrivals go with the places where partitions were to meet.
const OF_TOPIC: [Part; 5] = [
    ("parked", "DELETE FROM tributary.parked WHERE grp = $1 AND topic = $2"),
    ("loading", "DELETE FROM tributary.loading WHERE grp = $1 AND topic = $2"),
    ("passed_over", "DELETE FROM tributary.passed_over WHERE grp = $1 AND topic = $2"),
    ("progress", "DELETE FROM tributary.progress WHERE grp = $1 AND topic = $2"),
    ("hold", "DELETE FROM tributary.hold WHERE grp = $1 AND $2 = ANY (topics)"),
];
/// What may stand of one table: the events that were set aside, and its open loads.
const OF_TABLE: [Part; 2] = [
    ("parked", "DELETE FROM tributary.parked WHERE grp = $1 AND topic = $2 AND tbl = $3"),
    ("loading", "DELETE FROM tributary.loading WHERE grp = $1 AND topic = $2 AND tbl = $3"),
];
/// The places where partitions were to meet that are about one table: their ids end with the names.
const HOLDS_OF_TABLE: [Part; 1] = [(
    "hold",
    "DELETE FROM tributary.hold
     WHERE grp = $1 AND $2 = ANY (topics) AND kind = 'truncate'
       AND $3 = ANY (string_to_array(substr(id, length(concat('truncate/', grp, '/', at, '/')) + 1), ', '))",
)];
/// So many partitions are looked for in Redis at a time, until none of them was found: those without a record have no progress.
const PARTITIONS_AT_ONCE: i32 = 1_000;

/// Forgets all that stands of a topic in the target database; with `dry_run` it is only counted.
pub async fn topic(target: &postgres::Config, group: &str, topic: &str, dry_run: bool) -> Result<u64, Error> {
    take_away(target, &OF_TOPIC, &[&group, &topic], dry_run).await
}

/// The same for one table in a topic that others share. Its progress stays, and so do the notes of what was passed over: they
/// guard the target should the group take the table again.
pub async fn table(
    target: &postgres::Config,
    group: &str,
    topic: &str,
    table: &TableName,
    dry_run: bool,
) -> Result<u64, Error> {
    take_away(target, &OF_TABLE, &[&group, &topic, &table.to_string()], dry_run).await
}

/// Forgets where partitions of such a topic were to meet for the table's sake. Those of a sink that runs may stand there.
pub async fn holds(
    target: &postgres::Config,
    group: &str,
    topic: &str,
    table: &TableName,
    dry_run: bool,
) -> Result<u64, Error> {
    take_away(target, &HOLDS_OF_TABLE, &[&group, &topic, &table.to_string()], dry_run).await
}

async fn take_away(
    target: &postgres::Config,
    parts: &[Part],
    arguments: &[&(dyn ToSql + Sync)],
    dry_run: bool,
) -> Result<u64, Error> {
    let operation = "forget what was done of a topic";
    let failed = |cause| Error::Read { target: target.display(), operation, cause };
    let mut client = postgres::connect(target, "table").await.map_err(failed)?;
    let at = |cause| failed(postgres::Error::statement(operation, cause));
    let transaction = client.transaction().await.map_err(at)?;
    let mut rows = 0;
    for (table, statement) in parts {
        let there = transaction.query_one("SELECT to_regclass($1) IS NOT NULL", &[&format!("tributary.{table}")]).await;
        if there.map_err(at)?.get(0) {
            rows += transaction.execute(*statement, arguments).await.map_err(at)?;
        }
    }
    if dry_run {
        transaction.rollback().await.map_err(at)?;
    } else {
        transaction.commit().await.map_err(at)?;
    }
    Ok(rows)
}

/// Forgets progress of a topic in Redis.
pub async fn keys(redis: &Redis, prefix: &str, group: &str, topic: &str, dry_run: bool) -> Result<u64, Error> {
    let failed =
        |cause| Error::Redis { operation: "forget what was done of a topic", address: redis.address.clone(), cause };
    let client = redis::Client::open(redis.url.expose()).map_err(failed)?;
    let mut connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
    let mut keys = 0;
    for first in (0..).step_by(PARTITIONS_AT_ONCE as usize) {
        let mut asked = redis::pipe();
        for number in first..first + PARTITIONS_AT_ONCE {
            let key = announce::progress_key(prefix, group, &Partition { topic: topic.into(), number });
            asked.cmd(if dry_run { "EXISTS" } else { "DEL" }).arg(key);
        }
        let found: Vec<u64> = asked.query_async(&mut connection).await.map_err(failed)?;
        let found: u64 = found.iter().sum();
        if found == 0 {
            break;
        }
        keys += found;
    }
    Ok(keys)
}
