//! Nothing was set aside: neither in the target's `tributary.parked` nor in the mirror topic.

use tokio_postgres::Client;

use super::topic;

/// Whether a group has set nothing aside.
pub async fn none(target: &Client, brokers: &str, prefix: &str, group: &str) -> Result<(), String> {
    let rows = parked(target).await?;
    if !rows.is_empty() {
        return Err(format!("{} parked: {}", rows.len(), rows.join("; ")));
    }
    let topic = schemas::topic::of_dead_letters(prefix, group);
    if !topic::exists(brokers, &topic).await.map_err(|cause| format!("{cause:?}"))? {
        return Ok(());
    }
    let records = topic::read(brokers, &topic).await.map_err(|cause| format!("{cause:?}"))?;
    match records.0.first() {
        None => Ok(()),
        Some(record) => Err(format!("{} dead letters in {topic}, the first: {record:?}", records.0.len())),
    }
}

/// What is parked, as text: key, class, SQLSTATE, cause.
pub async fn parked(target: &Client) -> Result<Vec<String>, String> {
    let exists = target.query_one("SELECT to_regclass('tributary.parked') IS NOT NULL", &[]).await;
    if !exists.map_err(|cause| cause.to_string())?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    const SQL: &str =
        "SELECT concat_ws(' ', tbl, key, class, sqlstate, cause) FROM tributary.parked ORDER BY topic, part, off";
    let rows = target.query(SQL, &[]).await.map_err(|cause| cause.to_string())?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
