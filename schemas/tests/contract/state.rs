//! Examples of the records of `<prefix>.state`.

use schemas::event::LoadMode;
use schemas::fingerprint::Fingerprint;
use schemas::key::Canonical;
use schemas::state::{
    Hindrance, Imprint, ImprintColumn, ImprintFile, ImprintLabel, Key, Load, LoadKind, LoadTable, Moved, Range, Seal,
    Sent, Stream, Table as Relation, Topic,
};
use schemas::{CONTRACT, Lsn, Seq, topic};
use serde::Serialize;

use crate::control::LOAD;
use crate::example::{DATABASE, Example, PARTITIONS, PREFIX, Record, Table, at, orders, quoted, users};

pub fn examples() -> Vec<Example> {
    let (users, orders) = (users(), orders());
    let unseen =
        Relation { columns: Vec::new(), fingerprint: Fingerprint(0), single_partition: true, ..relation(&orders) };
    let chunk = |after: Option<&str>, upto: Option<&str>| {
        let end = |text: Option<&str>| text.map(|text| vec![text.to_owned()]);
        Range { after: end(after), upto: end(upto) }
    };
    let done = vec![chunk(None, Some("20000")), chunk(Some("40000"), Some("60000"))];
    let places = LoadTable {
        done: vec![chunk(None, Some("(17,3)"))],
        ranges_of: Some("file 16450".to_owned()),
        rows: 20_000,
        rows_estimated: 61_000,
        keys: Vec::new(),
        hindered: Some(Hindrance { why: "others hold a lock on it".to_owned(), is_fault: false }),
    };
    let load = Load { mode: LoadMode::First, tables: vec![users.oid, orders.oid], kind: None, paused: false };
    let listed = Load { mode: LoadMode::Merge, tables: vec![users.oid], kind: Some(LoadKind::Keys), paused: true };
    let left = LoadTable { rows: 1, keys: vec![r#"{"id":43}"#.to_owned()], ..LoadTable::default() };
    let seq = vec![Seq(17), Seq(9)];
    vec![
        Example::of_records(
            "state",
            "where the source is: a relation as published, one not seen yet, a topic, a load, what of it is done; the stream's record goes last",
            [
                record(Key::Table(users.oid), Some(&relation(&users))),
                record(Key::Table(orders.oid), Some(&unseen)),
                record(
                    Key::Topic(users.topic()),
                    Some(&Topic {
                        id: "lbAbFXQxTJ2o2iFS5Xq9VQ".to_owned(),
                        partitions: PARTITIONS,
                        seq,
                        former: vec![],
                    }),
                ),
                record(Key::Load(LOAD.to_owned()), Some(&load)),
                record(
                    Key::LoadTable(LOAD.to_owned(), users.oid),
                    Some(&LoadTable { done, rows: 40_000, rows_estimated: 61_000, ..LoadTable::default() }),
                ),
                record(Key::Stream, Some(&stream())),
            ],
        ),
        Example::of_records(
            "state_seal",
            "commands that take something away are known by this",
            [record(Key::Seal, Some(&Seal { hmac_key: "0123456789abcdef".repeat(4) }))],
        ),
        Example::of_records(
            "state_load_added",
            "a table came to the list, and is loaded once those have ended who wrote to it before",
            [record(Key::Load(LOAD.to_owned()), Some(&Load { kind: Some(LoadKind::Added), ..load.clone() }))],
        ),
        Example::of_records(
            "state_moved",
            "of two rows that moved something was read beside the stream; the second has been caught up with",
            [
                record(Key::Moved(users.oid, r#"{"id":42}"#.to_owned()), Some(&Moved { upto: Lsn(24_023_200) })),
                record(Key::Moved(orders.oid, r#"{"id":"a/b"}"#.to_owned()), None::<&()>),
            ],
        ),
        Example::of_records(
            "state_imprint",
            "a relation as published, with what the catalog showed of it: no row has changed since without being sent",
            [record(Key::Table(users.oid), Some(&watched(&users)))],
        ),
        Example::of_records(
            "state_rules",
            "a relation whose columns are published by a rule, of which this number is known and nothing else",
            [record(Key::Table(users.oid), Some(&Relation { rules: Some(Fingerprint(0x5eed)), ..relation(&users) }))],
        ),
        Example::of_records(
            "state_list",
            "a table was taken off the list, and another publication is streamed",
            [
                record(Key::Table(users.oid), None::<&()>),
                record(
                    Key::Topic(users.topic()),
                    Some(&Topic {
                        id: "lbAbFXQxTJ2o2iFS5Xq9VQ".to_owned(),
                        partitions: PARTITIONS,
                        seq: vec![Seq(17), Seq(9)],
                        former: vec![users.name.clone()],
                    }),
                ),
                record(
                    Key::Stream,
                    Some(&Stream {
                        publications: vec!["tributary_shop_2".to_owned()],
                        since: Some(Lsn(24_023_000)),
                        history: vec![Sent(stream().position.commit, 771, 821_275_200_123_456)],
                        ..stream()
                    }),
                ),
            ],
        ),
        Example::of_records(
            "state_flushed",
            "nothing of ours is written: the state follows, with the time of the last transaction of others, or heartbeat",
            [record(Key::Stream, Some(&Stream { flushed_ms: Some(1_767_960_000_123), ..stream() }))],
        ),
        Example::of_records(
            "state_load_keys",
            "a list of keys was ordered; one of them is answered, and the rest waits until it is resumed",
            [
                record(Key::Load(LOAD.to_owned()), Some(&listed)),
                record(Key::LoadTable(LOAD.to_owned(), users.oid), Some(&left)),
            ],
        ),
        Example::of_records(
            "state_load_places",
            "no index sorts by the table's key, so it is loaded by place in its file",
            [record(Key::LoadTable(LOAD.to_owned(), users.oid), Some(&places))],
        ),
        Example::of_records(
            "state_load_done",
            "a load is done: its records end",
            [
                record(Key::LoadTable(LOAD.to_owned(), users.oid), None::<&()>),
                record(Key::Load(LOAD.to_owned()), None::<&()>),
            ],
        ),
    ]
}

fn stream() -> Stream {
    let position = at(24_023_128, 1);
    Stream {
        contract: CONTRACT,
        system_id: "7412345678901234567".to_owned(),
        database: DATABASE.to_owned(),
        timeline: 1,
        slot: "tributary_shop".to_owned(),
        publications: vec!["tributary_shop".to_owned()],
        since: None,
        flushed: Lsn(24_023_248),
        flushed_ms: None,
        position,
        history: vec![Sent(Lsn(24_022_000), 770, 821_275_199_000_001), Sent(position.commit, 771, 821_275_200_123_456)],
    }
}

fn relation(table: &Table) -> Relation {
    Relation {
        name: table.name.clone(),
        topic: table.topic(),
        key: table.key(),
        identity: table.identity,
        columns: table.columns.clone(),
        fingerprint: table.fingerprint(),
        single_partition: false,
        routing: Vec::new(),
        imprint: None,
        rules: None,
    }
}

fn watched(table: &Table) -> Relation {
    let column = |(i, column): (usize, &schemas::event::Column)| {
        let number = i16::try_from(i + 1).expect("few columns");
        ImprintColumn(number, column.name.clone(), column.type_oid, column.type_oid, column.modifier, 749)
    };
    let imprint = Imprint {
        publication: 16_539,
        altered: Some(748),
        entry: Some(16_540),
        key: vec![1],
        last_column: 3,
        columns: table.columns.iter().enumerate().map(column).collect(),
        files: vec![ImprintFile(table.oid, 16_442, 16_446)],
        labels: vec![ImprintLabel(16_430, 16_432, "sad".to_owned()), ImprintLabel(16_430, 16_434, "glad".to_owned())],
    };
    Relation { routing: vec![Canonical::Same], imprint: Some(imprint), ..relation(table) }
}

/// A state record's key is text, which the golden shows as a string.
fn record(key: Key, value: Option<&impl Serialize>) -> Record {
    Record {
        topic: topic::of_state(PREFIX),
        partition: 0,
        key: Some(quoted(&key.to_string())),
        value: value.map(|value| serde_json::to_string(value).expect("plain data")),
        headers: Vec::new(),
    }
}
