//! What a group has done of a topic that is of no use to it any more, forgotten.
//!
//! Only where no sink reads the topic: one that runs would find no progress and begin the topic anew.

use crate::announce;
use crate::config::Redis;
use crate::error::Error;
use crate::record::Partition;

/// Where something of a topic may stand in the target, children before what they depend on.
const TABLES: [&str; 4] = ["parked", "loading", "passed_over", "progress"];
/// So many partitions are looked for in Redis at a time, until none of them was found: those without a record have no progress.
const PARTITIONS_AT_ONCE: i32 = 1_000;

/// Forgets progress, open loads and parked events of a topic in the target database; with `dry_run` they are only counted.
pub async fn rows(target: &postgres::Config, group: &str, topic: &str, dry_run: bool) -> Result<u64, Error> {
    let operation = "forget what was done of a topic";
    let failed = |cause| Error::Read { target: target.display(), operation, cause };
    let mut client = postgres::connect(target, "table").await.map_err(failed)?;
    let at = |cause| failed(postgres::Error::statement(operation, cause));
    let transaction = client.transaction().await.map_err(at)?;
    let mut rows = 0;
    for table in TABLES {
        let there = transaction.query_one("SELECT to_regclass($1) IS NOT NULL", &[&format!("tributary.{table}")]).await;
        if there.map_err(at)?.get(0) {
            let query = format!("DELETE FROM tributary.{table} WHERE grp = $1 AND topic = $2");
            rows += transaction.execute(&query, &[&group, &topic]).await.map_err(at)?;
        }
    }
    if dry_run {
        transaction.rollback().await.map_err(at)?;
    } else {
        transaction.commit().await.map_err(at)?;
    }
    Ok(rows)
}

/// The same for progress in Redis.
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
