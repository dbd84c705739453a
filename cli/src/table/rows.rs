//! Rows in the target that a table, or a whole topic, leaves behind beside its progress.
//!
//! Of a topic that other tables share its progress stays, and so do the notes of what was passed over: they guard the target
//! should the group take the table again.

use postgres::{Client, Error, tokio_postgres};
use schemas::TableName;

/// The events of the table that were set aside, and its open loads.
const OF_TABLE: [(&str, &str); 2] = [
    ("parked", "DELETE FROM tributary.parked WHERE grp = $1 AND topic = $2 AND tbl = $3"),
    ("loading", "DELETE FROM tributary.loading WHERE grp = $1 AND topic = $2 AND tbl = $3"),
];
/// The places where partitions of a topic were to meet. Their arrivals go with them.
const HOLDS_OF_TOPIC: &str = "DELETE FROM tributary.hold WHERE grp = $1 AND $2 = ANY (topics)";
/// Those of them that are about the table: their ids end with the names.
const HOLDS_OF_TABLE: &str = "DELETE FROM tributary.hold
    WHERE grp = $1 AND $2 = ANY (topics) AND kind = 'truncate'
      AND $3 = ANY (string_to_array(substr(id, length(concat('truncate/', grp, '/', at, '/')) + 1), ', '))";

/// Takes away what is left of one table in a topic that others share; with `dry_run` it is only counted.
pub(super) async fn of_table(
    target: &postgres::Config,
    group: &str,
    topic: &str,
    table: &TableName,
    dry_run: bool,
) -> Result<u64, Error> {
    take_away(target, &OF_TABLE, &[&group, &topic, &table.to_string()], dry_run).await
}

/// Takes away the holds of one table in such a topic.
pub(super) async fn holds_of_table(
    target: &postgres::Config,
    group: &str,
    topic: &str,
    table: &TableName,
    dry_run: bool,
) -> Result<u64, Error> {
    take_away(target, &[("hold", HOLDS_OF_TABLE)], &[&group, &topic, &table.to_string()], dry_run).await
}

/// Takes away the holds of a topic that nobody reads any more.
pub(super) async fn holds(target: &postgres::Config, group: &str, topic: &str, dry_run: bool) -> Result<u64, Error> {
    take_away(target, &[("hold", HOLDS_OF_TOPIC)], &[&group, &topic], dry_run).await
}

async fn take_away(
    target: &postgres::Config,
    statements: &[(&str, &str)],
    arguments: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    dry_run: bool,
) -> Result<u64, Error> {
    let failed = |cause| Error::statement("take away what a table leaves behind in the target", cause);
    let mut client: Client = postgres::connect(target, "table").await?;
    let transaction = client.transaction().await.map_err(failed)?;
    let mut rows = 0;
    for (table, statement) in statements.iter().copied() {
        let there = transaction.query_one("SELECT to_regclass($1) IS NOT NULL", &[&format!("tributary.{table}")]).await;
        if there.map_err(failed)?.get(0) {
            rows += transaction.execute(statement, arguments).await.map_err(failed)?;
        }
    }
    if dry_run {
        transaction.rollback().await.map_err(failed)?;
    } else {
        transaction.commit().await.map_err(failed)?;
    }
    Ok(rows)
}
