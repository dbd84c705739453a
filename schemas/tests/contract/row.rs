//! Examples of row changes, of their mirror in a dead-letter topic, and of notices.

use schemas::dead_letter::{self, DeadLetter};
use schemas::notice::Notice;
use schemas::write::{Before, Cell, Change, Origin};
use schemas::{CONTRACT, Operation, TableName, header, topic};
use serde_json::value::RawValue;

use crate::example::{Example, PREFIX, Record, TRANSACTION, Table, at, change, orders, text, users};

pub fn examples() -> Vec<Example> {
    let (users, orders) = (users(), orders());
    vec![
        Example::of_records("insert", "a row was inserted", [insert(&users)]),
        Example::of_records("traced", "an insert that goes on with a trace", [traced(&users)]),
        Example::of_records("update", "a row was updated: of the row before, the key is known", [update(&users)]),
        Example::of_records(
            "update_unchanged",
            "an update that did not touch a value stored out of line: it is named, and not in after",
            [update_unchanged(&users)],
        ),
        Example::of_records(
            "update_full",
            "an update under replica identity full: before is the whole row",
            [update_full(&orders)],
        ),
        Example::of_records(
            "delete",
            "a row was deleted: the delete, and a tombstone of equal position",
            delete(&users),
        ),
        Example::of_records(
            "key_change",
            "a row changed its key: a delete under the old, a create under the new. The value stored out of line was read afterwards",
            key_change(&users, Some("a long story")),
        ),
        Example::of_records(
            "key_change_gone",
            "a row changed its key and was gone before the value stored out of line could be read: its delete follows",
            key_change(&users, None),
        ),
        Example::of_records("read", "rows of a load, at its chunk's marker", read(&users)),
        Example::of_records(
            "answer",
            "what a list of keys is answered with: the row as it is, or that there is none",
            answer(&users),
        ),
        Example::of_records(
            "equal_keys",
            "keys that PostgreSQL calls equal keep their own text and share a partition; a name that Kafka does not allow is escaped",
            equal_keys(),
        ),
        Example::of_records(
            "dead_letter",
            "events set aside, in the dead-letter topic of the group rdb",
            dead_letters(&users),
        ),
        Example {
            name: "notice",
            about: "what a Redis group announces",
            records: Vec::new(),
            notices: notices(&users),
        },
    ]
}

fn insert(users: &Table) -> Record {
    let row = [text("42"), text("Ada"), Cell::Null];
    users.record(17, &Change { after: Some(&row), ..change(Operation::Create, at(24_023_128, 1)) }, &row)
}

fn traced(users: &Table) -> Record {
    let mut record = insert(users);
    record.headers.push((header::TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()));
    record
}

fn update(users: &Table) -> Record {
    let row = [text("42"), text("Ada \"the first\"\n"), text("écrit à la main")];
    let update =
        Change { before: Before::Key(&row), after: Some(&row), ..change(Operation::Update, at(24_023_128, 1)) };
    users.record(18, &update, &row)
}

fn update_unchanged(users: &Table) -> Record {
    let row = [text("42"), text("Ada"), Cell::Unchanged];
    let update =
        Change { before: Before::Key(&row), after: Some(&row), ..change(Operation::Update, at(24_023_128, 1)) };
    users.record(19, &update, &row)
}

fn update_full(orders: &Table) -> Record {
    let before = [text("7"), text("new"), text("19.90"), Cell::Null, text("2026-01-09 12:00:00.1+00")];
    let after = [text("7"), text("paid"), text("19.90"), text(""), text("2026-01-09 12:00:00.1+00")];
    let update =
        Change { before: Before::Row(&before), after: Some(&after), ..change(Operation::Update, at(24_023_128, 1)) };
    orders.record(3, &update, &after)
}

fn delete(users: &Table) -> Vec<Record> {
    let old = [text("42"), Cell::Null, Cell::Null];
    let position = at(24_023_128, 1);
    let delete = Change { before: Before::Key(&old), ..change(Operation::Delete, position) };
    vec![users.record(20, &delete, &old), users.tombstone(21, position, &old)]
}

fn key_change(users: &Table, bio: Option<&str>) -> Vec<Record> {
    let (old, mut new) = ([text("42"), Cell::Null, Cell::Null], [text("45"), text("Ada"), Cell::Unchanged]);
    let (left, came) = (at(24_023_128, 1), at(24_023_128, 2));
    let mut reselected: &[usize] = &[];
    if let Some(bio) = bio {
        (new[2], reselected) = (text(bio), &[2]);
    }
    let delete = Change { before: Before::Key(&old), moved: Some(&new), ..change(Operation::Delete, left) };
    let create = Change { after: Some(&new), moved: Some(&old), reselected, ..change(Operation::Create, came) };
    vec![users.record(22, &delete, &old), users.tombstone(23, left, &old), users.record(9, &create, &new)]
}

/// Rows of a chunk share the place of its marker, whose message lies at 24023304.
fn read(users: &Table) -> Vec<Record> {
    let rows = [[text("1"), text("Grace"), Cell::Null], [text("2"), text("Edsger"), text("")]];
    let record = |(i, row): (usize, &[Cell<'_>; 3])| {
        let n = i as u32 + 1;
        let read = Change { origin: Origin::Load, after: Some(row), ..change(Operation::Read, at(24_023_303, n)) };
        users.record(u64::from(n) + 2, &read, row)
    };
    rows.iter().enumerate().map(record).collect()
}

fn answer(users: &Table) -> Vec<Record> {
    let (there, gone) = ([text("42"), text("Ada"), text("a long story")], [text("43"), Cell::Null, Cell::Null]);
    let present = Change { origin: Origin::Keys, after: Some(&there), ..change(Operation::Read, at(24_023_303, 1)) };
    let absent =
        Change { origin: Origin::Keys, before: Before::Key(&gone), ..change(Operation::Delete, at(24_023_303, 2)) };
    let mut records = vec![users.record(30, &present, &there), users.record(12, &absent, &gone)];
    for record in &mut records {
        record.headers.push((header::ANSWER, "5f0c2f0e".to_owned()));
    }
    records
}

fn equal_keys() -> Vec<Record> {
    let name = TableName::new("Quoted_\" . Schema", "prix/unité");
    let prices =
        Table::new(16_405, name, 'd', &[("a \"price\"*", 1700, "numeric", -1), ("of", 1042, "character(5)", 9)]);
    let record = |(i, price): (u32, &'static str)| {
        let row = [text(price), text("tea  ")];
        let position = at(24_023_128 + 64 * u64::from(i), 1);
        prices.record(u64::from(i) + 2, &Change { after: Some(&row), ..change(Operation::Create, position) }, &row)
    };
    [(0, "1.5"), (1, "1.50")].map(record).into()
}

fn dead_letters(users: &Table) -> Vec<Record> {
    let dead = |class: &str, cause: &str, sqlstate: Option<&str>, record: &Record, offset: i64| DeadLetter {
        id: format!("rdb/{}/{}/{offset}", record.topic, record.partition),
        contract: CONTRACT,
        group: "rdb".to_owned(),
        topic: record.topic.clone(),
        partition: record.partition,
        offset,
        position: record.headers[0].1.clone(),
        class: class.to_owned(),
        cause: cause.to_owned(),
        sqlstate: sqlstate.map(str::to_owned),
        attempts: 1,
        first_at: "2026-01-09T12:00:00.456000Z".to_owned(),
        last_at: "2026-01-09T12:00:00.456000Z".to_owned(),
    };
    let refused = "value too long for type character varying(2)";
    [
        (insert(users), 16, "dead", refused, Some("22001")),
        (update(users), 17, "dead", "an earlier event of this key is parked", None),
        (
            read(users).remove(0),
            4,
            "undecided",
            "duplicate key value violates unique constraint \"users_name_key\"",
            Some("23505"),
        ),
    ]
    .map(|(mut record, offset, class, cause, sqlstate)| {
        let letter = dead(class, cause, sqlstate, &record, offset);
        record.headers.push((dead_letter::HEADER, serde_json::to_string(&letter).expect("plain data")));
        record.topic = topic::of_dead_letters(PREFIX, "rdb");
        record.partition = 0;
        record
    })
    .into()
}

fn notices(users: &Table) -> Vec<String> {
    let key = RawValue::from_string(r#"{"id":42}"#.to_owned()).expect("JSON");
    let notice = |op: Operation, offset: i64, change: u64, key: &RawValue, parked: bool| {
        let id = format!("{}/0/{offset}", users.topic()).into();
        let committed_ms = TRANSACTION.commit_ms;
        let notice = Notice { id, op, table: &users.name, key, position: at(change, 1), committed_ms, parked };
        serde_json::to_string(&notice).expect("plain data")
    };
    vec![
        notice(Operation::Create, 16, 24_023_128, &key, false),
        notice(Operation::Update, 17, 24_023_192, &key, true),
        notice(Operation::Truncate, 18, 24_023_256, RawValue::NULL, false),
    ]
}
