//! Examples of control events: each in every partition of its topics.

use schemas::event::{Control, ControlTable, LoadMode};
use schemas::write::{ControlEvent, Transaction};
use schemas::{CONTRACT, Position, header};

use crate::example::{DATABASE, Example, NOW_MS, PARTITIONS, Record, SOURCE, TRANSACTION, Table, at, orders, users};

/// The id of the load of the examples.
pub const LOAD: &str = "0190a5c4-5b0e";

pub fn examples() -> Vec<Example> {
    let (users, orders) = (users(), orders());
    // A first load begins in front of everything, and no transaction stands behind it.
    let (start, nobody) = (Position::before(at(0, 0).commit), Transaction { xid: 0, commit_ms: NOW_MS });
    let mode = LoadMode::First;
    let load_begin =
        Control::LoadBegin { load: LOAD.to_owned(), contract: CONTRACT, mode, tables: vec![table(&users)] };
    let load_end = Control::LoadEnd { load: LOAD.to_owned(), rows: 2, tables: vec![table(&users)] };
    let truncate =
        Control::Truncate { tables: vec![table(&users), table(&orders)], cascade: false, restart_identity: true };
    vec![
        Example::of_records(
            "load_begin",
            "a load begins, in front of the first event of its table",
            records(&load_begin, 1, start, nobody),
        ),
        Example::of_records(
            "load_end",
            "a load ends, behind the rows of its last chunk",
            records(&load_end, 5, at(24_023_303, 3), TRANSACTION),
        ),
        Example::of_records(
            "schema",
            "a relation at first sight, in front of its first row",
            records(&schema(&orders, None, false), 2, at(24_023_128, 0), TRANSACTION),
        ),
        Example::of_records(
            "schema_change",
            "a relation that has another key from here on",
            records(&schema(&users, Some(vec!["name".to_owned()]), false), 18, at(24_023_128, 0), TRANSACTION),
        ),
        Example::of_records(
            "schema_rewritten",
            "a relation some rows of which changed without being sent",
            records(&schema(&users, Some(users.key()), true), 18, at(24_023_128, 0), TRANSACTION),
        ),
        Example::of_records(
            "truncate",
            "two tables were emptied by one command",
            records(&truncate, 21, at(24_023_128, 1), TRANSACTION),
        ),
    ]
}

fn table(table: &Table) -> ControlTable {
    let (schema, name) = (table.name.schema.clone(), table.name.table.clone());
    ControlTable { schema, table: name, topic: table.topic(), partitions: PARTITIONS }
}

fn schema(of: &Table, previous_key: Option<Vec<String>>, rows_rewritten: bool) -> Control {
    Control::Schema {
        tables: vec![table(of)],
        identity: of.identity,
        key: of.key(),
        previous_key,
        columns: of.columns.clone(),
        fingerprint: of.fingerprint(),
        rows_rewritten,
    }
}

fn records(control: &Control, seq: u64, position: Position, of: Transaction) -> Vec<Record> {
    let value = ControlEvent::new(SOURCE, DATABASE, control, position, of, NOW_MS).encode();
    let value = String::from_utf8(value).expect("JSON is UTF-8");
    let record = |topic: &str, partition: i32| Record {
        topic: topic.to_owned(),
        partition,
        key: None,
        value: Some(value.clone()),
        headers: vec![
            (header::POSITION, position.to_string()),
            (header::SEQ, seq.to_string()),
            (header::CONTROL, control.kind().to_owned()),
        ],
    };
    let partitions = |table: &ControlTable| {
        (0..table.partitions).map(|partition| record(&table.topic, partition)).collect::<Vec<_>>()
    };
    control.tables().iter().flat_map(partitions).collect()
}
