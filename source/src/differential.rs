//! Our decoder of pgoutput against another one, on random messages: two that were written apart are seldom wrong alike.
//!
//! The bytes are ours, the other's encoder must make the same of what its parser read: so neither side's writing is
//! trusted alone. `TRIBUTARY_MESSAGES` takes another number of messages, `TRIBUTARY_SEED` repeats a run.

use pg_walstream::{ColumnData, LogicalReplicationMessage as Theirs, LogicalReplicationParser, TupleData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemas::Lsn;
use schemas::write::Cell;

use crate::foreign::encode;
use crate::pgoutput::{Column, Message, Old, Relation, decode};

/// How many messages the suite compares.
const MESSAGES: u64 = 20_000;

#[test]
fn another_decoder_reads_every_message_alike() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number below 2^64"));
    let seed = number("TRIBUTARY_SEED").unwrap_or_else(|| rand::rng().random());
    let messages = number("TRIBUTARY_MESSAGES").unwrap_or(MESSAGES);
    println!("seed {seed}, repeated by TRIBUTARY_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut theirs = LogicalReplicationParser::with_protocol_version(1);
    let (mut rows, mut cells) = (0_u64, 0_u64);
    let (mut texts, mut names) = (Vec::new(), Vec::new());
    while rows < messages {
        // Drawing costs more than decoding does: the same values stand in a few messages.
        if rows % 16 == 0 {
            texts = (0..random.random_range(0..40)).map(|_| text(&mut random)).collect();
            names = (0..3).map(|_| name(&mut random)).collect();
        }
        let message = draw(&mut random, &texts, &names);
        let bytes = encode(&message);
        let ours = decode(&bytes).expect("a valid message");
        assert_eq!(ours, message);
        let read = theirs.parse_wal_message(&bytes).expect("a valid message to the other decoder").message;
        let counted =
            compare(&ours, &read).unwrap_or_else(|| panic!("read as {read:?} by the other, as {ours:?} by us"));
        assert_eq!(pg_walstream::encode_message_to_bytes(&read, 1), bytes);
        rows += u64::from(counted.is_some());
        cells += counted.unwrap_or(0);
    }
    println!("{rows} row messages with {cells} cells read alike");
}

/// Whether both read the same, field by field; of a row message the number of cells.
fn compare(ours: &Message<'_>, theirs: &Theirs) -> Option<Option<u64>> {
    let alike = match (ours, theirs) {
        (Message::Begin { commit, time, xid }, Theirs::Begin { final_lsn, timestamp, xid: their_xid }) => {
            (commit.0, *time, *xid) == (*final_lsn, *timestamp, *their_xid)
        }
        (Message::Commit { commit, end }, Theirs::Commit { commit_lsn, end_lsn, .. }) => {
            (commit.0, end.0) == (*commit_lsn, *end_lsn)
        }
        (Message::Origin, Theirs::Origin { .. }) | (Message::Type, Theirs::Type { .. }) => true,
        (
            Message::Relation(relation),
            Theirs::Relation { relation_id, namespace, relation_name, replica_identity, columns },
        ) => {
            let column = |ours: &Column, theirs: &pg_walstream::ColumnInfo| {
                (ours.identity, ours.name.as_str(), ours.type_oid, ours.modifier)
                    == (theirs.is_key(), &*theirs.name, theirs.type_id, theirs.type_modifier)
            };
            relation.oid == *relation_id
                && relation.schema == **namespace
                && relation.table == **relation_name
                && relation.identity as u8 == *replica_identity
                && relation.columns.len() == columns.len()
                && relation.columns.iter().zip(columns).all(|(ours, theirs)| column(ours, theirs))
        }
        (Message::Insert { oid, new }, Theirs::Insert { relation_id, tuple }) => {
            return (oid == relation_id && same(new, tuple)).then_some(Some(new.len() as u64));
        }
        (Message::Update { oid, old, new }, Theirs::Update { relation_id, old_tuple, new_tuple, key_type }) => {
            let alike = oid == relation_id && same_old(old, old_tuple.as_ref(), *key_type) && same(new, new_tuple);
            return alike.then_some(Some((new.len() + old.cells().map_or(0, Vec::len)) as u64));
        }
        (Message::Delete { oid, old }, Theirs::Delete { relation_id, old_tuple, key_type }) => {
            let alike = oid == relation_id && same_old(old, Some(old_tuple), Some(*key_type));
            return alike.then_some(Some(old.cells().map_or(0, Vec::len) as u64));
        }
        (Message::Truncate { oids, cascade, restart_identity }, Theirs::Truncate { relation_ids, flags }) => {
            oids == relation_ids && (*cascade, *restart_identity) == (flags & 1 != 0, flags & 2 != 0)
        }
        (
            Message::Logical { transactional, lsn, prefix, content },
            Theirs::Message { flags, lsn: their_lsn, prefix: their_prefix, content: their_content },
        ) => {
            (*transactional, lsn.0, *prefix) == (flags & 1 != 0, *their_lsn, their_prefix.as_str())
                && *content == &their_content[..]
        }
        _ => false,
    };
    alike.then_some(None)
}

fn same_old(ours: &Old<'_>, theirs: Option<&TupleData>, kind: Option<char>) -> bool {
    match (ours, theirs, kind) {
        (Old::None, None, None) => true,
        (Old::Key(cells), Some(tuple), Some('K')) | (Old::Row(cells), Some(tuple), Some('O')) => same(cells, tuple),
        _ => false,
    }
}

fn same(ours: &[Cell<'_>], theirs: &TupleData) -> bool {
    let cell = |ours: &Cell<'_>, theirs: &ColumnData| match ours {
        Cell::Null => theirs.is_null(),
        Cell::Unchanged => theirs.is_unchanged(),
        Cell::Text(text) => theirs.is_text() && theirs.as_bytes() == *text,
    };
    ours.len() == theirs.column_count() && ours.iter().zip(&theirs.columns).all(|(ours, theirs)| cell(ours, theirs))
}

/// Mostly rows, as in life.
fn draw<'a>(random: &mut ChaCha8Rng, texts: &'a [Vec<u8>], names: &'a [String]) -> Message<'a> {
    let oid = random.random();
    match random.random_range(0..40) {
        0 => Message::Begin { commit: Lsn(random.random()), time: random.random(), xid: random.random() },
        1 => Message::Commit { commit: Lsn(random.random()), end: Lsn(random.random()) },
        2 => Message::Relation(relation(random, names)),
        3 => Message::Truncate {
            oids: (0..random.random_range(0..5)).map(|_| random.random()).collect(),
            cascade: random.random(),
            restart_identity: random.random(),
        },
        4 => Message::Logical {
            transactional: random.random(),
            lsn: Lsn(random.random()),
            prefix: &names[0],
            content: texts.first().map_or(b"", Vec::as_slice),
        },
        5 => Message::Origin,
        6 => Message::Type,
        7..18 => Message::Insert { oid, new: cells(random, texts) },
        18..32 => {
            let old = match random.random_range(0..3) {
                0 => Old::None,
                _ => old(random, texts),
            };
            Message::Update { oid, old, new: cells(random, texts) }
        }
        _ => Message::Delete { oid, old: old(random, texts) },
    }
}

fn relation(random: &mut ChaCha8Rng, names: &[String]) -> Relation {
    let column = |random: &mut ChaCha8Rng| Column {
        identity: random.random(),
        name: name(random),
        type_oid: random.random(),
        modifier: random.random(),
    };
    Relation {
        oid: random.random(),
        schema: names[1].clone(),
        table: names[2].clone(),
        identity: *pick(random, &['d', 'n', 'f', 'i']),
        columns: (0..random.random_range(0..20)).map(|_| column(random)).collect(),
    }
}

fn old<'a>(random: &mut ChaCha8Rng, texts: &'a [Vec<u8>]) -> Old<'a> {
    let cells = cells(random, texts);
    if random.random() { Old::Key(cells) } else { Old::Row(cells) }
}

fn cells<'a>(random: &mut ChaCha8Rng, texts: &'a [Vec<u8>]) -> Vec<Cell<'a>> {
    let count = random.random_range(0..=texts.len());
    (0..count)
        .map(|i| match random.random_range(0..8) {
            0 => Cell::Null,
            1 => Cell::Unchanged,
            _ => Cell::Text(&texts[i]),
        })
        .collect()
}

fn text(random: &mut ChaCha8Rng) -> Vec<u8> {
    let length = match random.random_range(0..100) {
        0 => random.random_range(0..10_000),
        1..10 => 0,
        _ => random.random_range(0..24),
    };
    // Not only UTF-8: a decoder has no business to know.
    let mut text = vec![0; length];
    random.fill(&mut text[..]);
    text
}

/// Not empty: an empty schema stands for `pg_catalog`.
fn name(random: &mut ChaCha8Rng) -> String {
    let letters = ['a', 'Z', '_', ' ', '"', '.', 'é', '表', '\u{1f30a}'];
    (0..random.random_range(1..12)).map(|_| *pick(random, &letters)).collect()
}

fn pick<'a, T>(random: &mut ChaCha8Rng, from: &'a [T]) -> &'a T {
    &from[random.random_range(0..from.len())]
}
