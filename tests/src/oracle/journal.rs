//! The workload's own log: what each transaction did, written by triggers in that transaction, against the topics.
//!
//! It passes through no decoding at all, neither ours nor PostgreSQL's: what the application committed stands in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tokio_postgres::Client;

use super::topic::{Record, Records};
use crate::table::Table;

/// The operations of one table, by transaction, each in its order: I, U, D, and T for a truncate.
pub type Journal = BTreeMap<u32, String>;

const KEEP: &str = "
    CREATE SCHEMA journal;
    CREATE TABLE journal.entries (n bigserial PRIMARY KEY, xid bigint, tbl regclass, op text);
    CREATE FUNCTION journal.note() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO journal.entries (xid, tbl, op)
        VALUES (pg_current_xact_id()::xid::text::bigint, TG_RELID, left(TG_OP, 1));
        RETURN NULL;
    END $$;
";

/// From here on the writes to `tables` are remembered.
pub async fn keep(client: &Client, tables: &[Table]) -> Result<(), String> {
    let mut sql = KEEP.to_owned();
    for table in tables.iter().map(Table::sql) {
        sql.push_str(&format!(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION journal.note();
             CREATE TRIGGER note_truncate AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION journal.note();"
        ));
    }
    client.batch_execute(&sql).await.map_err(|cause| cause.to_string())
}

/// What was committed to a table.
pub async fn read(client: &Client, table: &Table) -> Result<Journal, String> {
    const SQL: &str =
        "SELECT xid, string_agg(op, '' ORDER BY n) FROM journal.entries WHERE tbl = $1::text::regclass GROUP BY xid";
    let rows = client.query(SQL, &[&table.sql()]).await.map_err(|cause| cause.to_string())?;
    Ok(rows.iter().map(|row| (row.get::<_, i64>(0) as u32, row.get(1))).collect())
}

/// Whether a topic tells of each transaction that was committed at `from` or later, operation by operation, and of no other.
/// `commits` are the places of all commits by transaction.
pub fn compare(journal: &Journal, commits: &BTreeMap<u32, u64>, from: u64, records: &Records) -> Result<(), String> {
    let mut expected = BTreeMap::new();
    for (xid, operations) in journal {
        let commit =
            commits.get(xid).ok_or_else(|| format!("transaction {xid} was committed but is not in the WAL"))?;
        if *commit >= from {
            expected.insert((*commit, *xid), operations.clone());
        }
    }
    let found = told(records)?;
    if expected == found {
        return Ok(());
    }
    let mut both: BTreeSet<(u64, u32)> = expected.keys().copied().collect();
    both.extend(found.keys());
    let differs = both.iter().find(|at| expected.get(at) != found.get(at)).expect("they differ somewhere");
    Err(format!(
        "{} transactions were committed and {} are told of; the first difference is transaction {} with commit {:X}: {:?} committed, {:?} told",
        expected.len(),
        found.len(),
        differs.1,
        differs.0,
        expected.get(differs),
        found.get(differs)
    ))
}

/// What a topic tells, by commit and transaction.
fn told(records: &Records) -> Result<BTreeMap<(u64, u32), String>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Source {
        tx_id: u32,
    }
    #[derive(Deserialize)]
    struct Value {
        source: Source,
    }
    let mut operations = BTreeMap::new();
    for record in &records.0 {
        let Some(operation) = operation(record)? else { continue };
        let value: Value = serde_json::from_str(record.value.as_deref().unwrap_or_default())
            .map_err(|cause| format!("no event: {cause}: {record:?}"))?;
        // A truncate stands in every partition.
        operations.insert(record.position()?, (record.places()?.0, value.source.tx_id, operation));
    }
    let mut told = BTreeMap::<(u64, u32), String>::new();
    for (commit, xid, operation) in operations.into_values() {
        told.entry((commit, xid)).or_default().push(operation);
    }
    Ok(told)
}

fn operation(record: &Record) -> Result<Option<char>, String> {
    match record.headers.get("control").map(String::as_str) {
        Some("truncate") => return Ok(Some('T')),
        None if record.is_row() => {}
        _ => return Ok(None),
    }
    let event = record.event()?;
    Ok(match event.op.as_str() {
        _ if event.is_loaded() => None,
        // A key change is one change with two records.
        "d" if event.moved_to.is_some() => None,
        "c" if event.moved_from.is_some() => Some('U'),
        "c" => Some('I'),
        "u" => Some('U'),
        "d" => Some('D'),
        other => return Err(format!("a row change with the operation {other:?}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(position: &str, op: &str, xid: u32) -> Record {
        let value = format!(r#"{{"op":"{op}","source":{{"snapshot":"false","txId":{xid}}}}}"#);
        let mut record = Record { value: Some(value), ..Record::default() };
        record.headers.insert("position".to_owned(), position.to_owned());
        if op == "t" {
            record.headers.insert("control".to_owned(), "truncate".to_owned());
        }
        record
    }

    #[test]
    fn each_transaction_must_be_told_of_whole_and_in_its_order() {
        let journal = Journal::from([(1, "I".to_owned()), (2, "IT".to_owned()), (3, "UD".to_owned())]);
        let commits = BTreeMap::from([(1, 0x10), (2, 0x20), (3, 0x30)]);
        let all = [
            record("20.18.1", "c", 2),
            record("20.19.1", "t", 2),
            record("20.19.1", "t", 2),
            record("30.28.1", "u", 3),
            record("30.29.1", "d", 3),
        ];
        compare(&journal, &commits, 0x20, &Records(all.to_vec())).expect("they agree");
        for missing in [0, 3, 4] {
            let mut some = all.to_vec();
            some.remove(missing);
            compare(&journal, &commits, 0x20, &Records(some)).expect_err("one is missing");
        }
        let fault = compare(&journal, &commits, 0x10, &Records(all.to_vec())).expect_err("one is missing");
        assert!(fault.contains("commit 10: Some(\"I\") committed, None told"), "{fault}");
        compare(&journal, &BTreeMap::new(), 0, &Records(all.to_vec())).expect_err("the WAL lacks them");
    }
}
