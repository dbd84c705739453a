//! PostgreSQL's own decoding of the same WAL, through a slot of the harness: which changes there were, one by one.
//!
//! The fold of a topic proves its end; this proves the way there. Only three bytes of a message are read, so that no
//! misunderstanding of ours can hide in both.

use std::collections::BTreeMap;

use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use super::topic::Records;
use crate::servers::Postgres;
use crate::table::{Table, quote};

/// A change by the places of its commit and its own record, and the letter of its operation.
pub type Change = (u64, u64, char);

/// The changes of each table, in the order of the WAL: (schema, table) → changes.
pub type Changes = BTreeMap<(String, String), Vec<Change>>;

/// From here on every change is remembered. To be called while nobody writes and the product streams.
pub async fn start(client: &Client, slot: &str) -> Result<(), String> {
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    client.execute(sql, &[&slot]).await.map(|_| ()).map_err(|cause| cause.to_string())
}

/// The same, remembered by a standby too. What is written before this returns may be forgotten.
pub async fn start_with(client: &Client, standby: &Postgres, slot: &str) -> Result<(), String> {
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)";
    client.execute(sql, &[&slot]).await.map_err(|cause| cause.to_string())?;
    standby.until_taken_along(client, slot).await.map_err(|fault| format!("{fault:?}"))
}

/// All changes since the start. Nothing is consumed: it can be asked again.
pub async fn changes(client: &Client, slot: &str, publication: &str) -> Result<Changes, String> {
    history(client, slot, publication).await.map(|history| history.changes)
}

/// What was decoded since the start.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The changes of each table.
    pub changes: Changes,
    /// Where each transaction was committed, by its number.
    pub commits: BTreeMap<u32, u64>,
}

/// All changes and all commits since the start. Nothing is consumed: it can be asked again.
pub async fn history(client: &Client, slot: &str, publication: &str) -> Result<History, String> {
    const SQL: &str = "SELECT lsn, data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, \
                       'proto_version', '1', 'publication_names', $2)";
    // The option is itself a list of identifiers.
    let rows = client.query(SQL, &[&slot, &quote(publication)]).await.map_err(|cause| cause.to_string())?;
    let (mut names, mut commit) = (BTreeMap::<u32, (String, String)>::new(), 0);
    let History { mut changes, mut commits } = History::default();
    for row in &rows {
        let (lsn, data): (PgLsn, &[u8]) = (row.get(0), row.get(1));
        let number = |at: usize| data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let oid = number(1).unwrap_or(0);
        match data.first() {
            Some(b'B') => {
                commit = u64::from(oid) << 32 | u64::from(number(5).unwrap_or(0));
                commits.insert(number(17).unwrap_or(0), commit);
            }
            Some(b'R') => {
                let mut words =
                    data[5..].split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
                names.insert(oid, (words.next().unwrap_or_default(), words.next().unwrap_or_default()));
            }
            Some(kind @ (b'I' | b'U' | b'D')) => {
                let name = names.get(&oid).cloned().ok_or_else(|| format!("a change of the unknown relation {oid}"))?;
                changes.entry(name).or_default().push((commit, u64::from(lsn), *kind as char));
            }
            _ => {}
        }
    }
    Ok(History { changes, commits })
}

/// Whether a topic holds exactly the changes of its table: none missing, none more.
pub fn compare(changes: &Changes, table: &Table, records: &Records) -> Result<(), String> {
    let name = (table.name.schema.clone(), table.name.table.clone());
    let mut expected = changes.get(&name).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for record in records.rows() {
        let event = record.event()?;
        let (commit, change) = record.places()?;
        match event.op.as_str() {
            _ if event.is_loaded() => {}
            // A key change is one change with two records.
            "d" if event.moved_to.is_some() => {}
            "c" if event.moved_from.is_some() => found.push((commit, change, 'U')),
            "c" => found.push((commit, change, 'I')),
            "u" => found.push((commit, change, 'U')),
            "d" => found.push((commit, change, 'D')),
            other => return Err(format!("a row change with the operation {other:?}")),
        }
    }
    expected.sort_unstable();
    found.sort_unstable();
    if expected == found {
        return Ok(());
    }
    let only =
        |these: &[Change], those: &[Change]| these.iter().find(|change| those.binary_search(change).is_err()).copied();
    Err(format!(
        "{}: {} changes in the WAL, {} in the topic; first missing {:X?}, first extra {:X?}",
        table.name,
        expected.len(),
        found.len(),
        only(&expected, &found),
        only(&found, &expected)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::topic::Record;
    use super::*;

    #[test]
    fn a_missing_change_and_one_too_many_are_named() {
        let table = Table::new("public.users", &["id"], "id int");
        let record = |change: u64, op: &str| Record {
            key: Some("{}".to_owned()),
            value: Some(format!(r#"{{"op":"{op}","source":{{"snapshot":"false"}}}}"#)),
            headers: BTreeMap::from([("position".to_owned(), format!("A0.{change:X}.1"))]),
            ..Record::default()
        };
        let changes = |list: &[Change]| Changes::from([(("public".to_owned(), "users".to_owned()), list.to_vec())]);
        let records = Records(vec![record(1, "c"), record(3, "d")]);
        compare(&changes(&[(0xA0, 1, 'I'), (0xA0, 3, 'D')]), &table, &records).expect("they agree");
        let missing = compare(&changes(&[(0xA0, 1, 'I'), (0xA0, 2, 'U'), (0xA0, 3, 'D')]), &table, &records);
        assert!(missing.expect_err("a change is missing").contains("first missing Some((A0, 2, 'U'))"));
        let extra = compare(&changes(&[(0xA0, 1, 'I')]), &table, &records);
        assert!(extra.expect_err("a change is too many").contains("first extra Some((A0, 3, 'D'))"));
    }
}
