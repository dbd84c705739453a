//! Lists of keys: whatever the snapshot sees of the transactions around it, each key is answered as it is at the marker.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// What a transaction does to one key. The second number chooses how the key is written: `1.0` and `1.00` are equal.
#[derive(Clone, Debug)]
enum Op {
    /// A row comes, or all of it changes.
    Whole(u8, u8),
    /// A row comes of which the stream does not carry everything.
    Partly(u8, u8),
    /// One column changes, the other is not in the stream.
    Patch(u8),
    Delete(u8),
    Truncate,
}

#[derive(Clone, Debug)]
struct Transaction {
    ops: Vec<Op>,
    /// Whether the snapshot sees it, if it may.
    is_seen: bool,
}

/// A row as the table has it: the key's text, and two columns.
type Table = BTreeMap<u8, [String; 3]>;

const KEYS: u8 = 5;
/// So many of them are in the list, the others are neighbours.
const LISTED: u8 = 4;

fn spelled(key: u8, how: u8) -> String {
    format!("{key}.{}", "0".repeat(usize::from(how) + 1))
}

fn canonical(text: &str) -> Vec<u8> {
    text.split('.').next().unwrap_or_default().as_bytes().to_vec()
}

fn ops() -> impl Strategy<Value = Transaction> {
    let key = || 0..KEYS;
    let op = prop_oneof![
        4 => (key(), 0..2_u8).prop_map(|(key, how)| Op::Whole(key, how)),
        1 => (key(), 0..2_u8).prop_map(|(key, how)| Op::Partly(key, how)),
        3 => key().prop_map(Op::Patch),
        3 => key().prop_map(Op::Delete),
        1 => Just(Op::Truncate),
    ];
    (proptest::collection::vec(op, 1..4), any::<bool>()).prop_map(|(ops, is_seen)| Transaction { ops, is_seen })
}

fn touched(op: &Op) -> Vec<u8> {
    match op {
        Op::Whole(key, _) | Op::Partly(key, _) | Op::Patch(key) | Op::Delete(key) => vec![*key],
        Op::Truncate => (0..KEYS).collect(),
    }
}

/// Does one change, and says what the stream tells of it; nothing where it finds no row.
///
/// Where keys have no canonical text, their own stands for it.
fn apply(table: &mut Table, op: &Op, xid: u32, is_exact: bool) -> Option<Kind> {
    let equal = |text: &str| if is_exact { canonical(text) } else { text.as_bytes().to_vec() };
    let key = |text: &str| Key { text: text.as_bytes().into(), canonical: Some(equal(text).into()) };
    let cell = |text: &str| Some(Box::<[u8]>::from(text.as_bytes()));
    match op {
        Op::Whole(id, how) | Op::Partly(id, how) => {
            let row = [spelled(*id, *how), format!("n{xid}"), format!("b{xid}")];
            let image = match op {
                Op::Partly(..) => Image::Unknown,
                _ => Image::Whole(row.iter().map(|text| cell(text)).collect()),
            };
            let kind = Kind::Superseded(key(&row[0]), image);
            table.insert(*id, row);
            Some(kind)
        }
        Op::Patch(id) => {
            let row = table.get_mut(id)?;
            row[1] = format!("n{xid}");
            Some(Kind::Patch(key(&row[0]), vec![(0, cell(&row[0])), (1, cell(&row[1]))]))
        }
        Op::Delete(id) => table.remove(id).map(|row| Kind::Superseded(key(&row[0]), Image::Gone)),
        Op::Truncate => {
            table.clear();
            Some(Kind::Truncate)
        }
    }
}

/// A list of some keys, read from `seen`: of those without a row the key alone.
fn read(seen: &Table, snapshot: Snapshot) -> Chunk {
    let (mut rows, mut listed) = (Rows::new(3), Vec::new());
    for id in 0..LISTED {
        match seen.get(&id) {
            Some(row) => row.iter().for_each(|cell| rows.push(Some(cell.as_bytes()))),
            None => {
                rows.push(Some(spelled(id, 0).as_bytes()));
                rows.push(None);
                rows.push(None);
            }
        }
        listed.push(Listed { keys: vec![usize::from(id)], is_there: seen.contains_key(&id) });
    }
    let keys = (0..LISTED).map(|id| format!("{{\"id\":\"{}\"}}", spelled(id, 1))).collect();
    let part = Part::List { keys, void: Vec::new(), rows: listed };
    Chunk { snapshot, part, rows, load: Some("l".into()), ..chunk("1:1:", &[]) }
}

fn canonical_of(chunk: &Chunk, row: usize) -> Vec<u8> {
    canonical(&String::from_utf8_lossy(&key_of(chunk, row)))
}

/// What the snapshot sees. A row lock lasts until its transaction is visible, so what follows on a row is no more visible
/// than what came before.
fn visible(transactions: &[Transaction]) -> Vec<bool> {
    let mut hidden = [false; KEYS as usize];
    let see = |transaction: &Transaction| {
        let keys: Vec<u8> = transaction.ops.iter().flat_map(touched).collect();
        let is_seen = transaction.is_seen && keys.iter().all(|key| !hidden[usize::from(*key)]);
        if !is_seen {
            keys.iter().for_each(|key| hidden[usize::from(*key)] = true);
        }
        is_seen
    };
    transactions.iter().map(see).collect()
}

fn answers(chunk: &Chunk, is_there: &[bool]) -> Table {
    let text = |cell: &Cell<'_>| match cell {
        Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
        _ => "null".to_owned(),
    };
    let there = (0..LISTED).filter(|id| is_there[usize::from(*id)]);
    there
        .map(|id| {
            (id, chunk.rows.row(usize::from(id)).iter().map(text).collect::<Vec<_>>().try_into().expect("three cells"))
        })
        .collect()
}

/// What the catalog is to the windows: by what are keys told, and what does the server say.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Types {
    Canonical,
    /// Only the server can tell, and does.
    Asked,
    /// The server cannot say.
    Unsaid,
}

/// What the server would say of keys that were touched: which row of the list each of them means.
fn told(windows: &Windows, key_of: impl Fn(&Chunk, usize) -> Vec<u8>) -> HashMap<Box<[u8]>, Option<usize>> {
    let row = |text: &[u8]| {
        let id: u8 = String::from_utf8(canonical(&String::from_utf8_lossy(text))).ok()?.parse().ok()?;
        (id < LISTED).then_some(usize::from(id))
    };
    windows.untold(ID, key_of).into_iter().map(|text| (Box::from(text), row(text))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn a_list_is_answered_as_the_table_is_at_the_marker(
        transactions in proptest::collection::vec(ops(), 1..9),
        there in proptest::collection::btree_set(0..KEYS, 0..6),
        opened in any::<Index>(),
        types in prop::sample::select(vec![Types::Canonical, Types::Asked, Types::Unsaid]),
    ) {
        let is_exact = types == Types::Canonical;
        let first = |id: u8| (id, [spelled(id, id % 2), "n".to_owned(), "b".to_owned()]);
        let mut table: Table = there.into_iter().map(first).collect();
        let seen_by = visible(&transactions);
        let opened = opened.index(transactions.len() + 1);
        let mut windows = Windows::new(1 << 20);
        let mut snapshot = table.clone();
        let (mut before, mut is_known, mut is_partly) = (Vec::new(), true, false);
        for (n, transaction) in transactions.iter().enumerate() {
            let xid = 100 + n as u32;
            if n == opened {
                windows.open_list(ID, 7, before.clone());
            }
            if n < opened {
                before.push(xid);
                is_known &= seen_by[n];
            }
            for op in &transaction.ops {
                if seen_by[n] {
                    apply(&mut snapshot, op, xid, is_exact);
                }
                if let Some(kind) = apply(&mut table, op, xid, is_exact) {
                    windows.touch(7, xid, kind);
                    is_partly |= matches!(op, Op::Partly(id, _) if *id < LISTED);
                }
            }
        }
        if opened == transactions.len() {
            windows.open_list(ID, 7, before.clone());
        }
        let hidden: Vec<String> = (0..transactions.len()).filter(|n| !seen_by[*n]).map(|n| (100 + n).to_string()).collect();
        let horizon = 100 + transactions.len();
        let text = format!("{}:{horizon}:{}", hidden.first().map_or(horizon.to_string(), String::clone), hidden.join(","));
        prop_assert!(windows.fill(ID, read(&snapshot, text.parse().expect("a snapshot"))));
        let key_of = |chunk: &Chunk, row: usize| if is_exact { canonical_of(chunk, row) } else { key_of(chunk, row) };
        let known = Some(fingerprint(&users('d')));
        let told = if types == Types::Asked { told(&windows, key_of) } else { HashMap::new() };
        let equality = if is_exact { Equality::Canonical } else { Equality::Told(&told) };
        table.retain(|id, _| *id < LISTED);
        match windows.settle(ID, known, equality, key_of).expect("ours") {
            Settled::Publish(chunk, is_there) => prop_assert_eq!(answers(&chunk, &is_there), table),
            // Whatever happens to its neighbours, and under whatever text it is written.
            Settled::Again(_) => prop_assert!(!is_known || is_partly || types == Types::Unsaid, "nothing was unknown"),
        }
    }
}

#[test]
fn a_list_needs_the_image_that_a_chunk_of_a_range_does_without() {
    let mut windows = Windows::new(1 << 20);
    windows.open(ID, 7, vec![]);
    assert!(windows.watches(7) && !windows.watches_list(7));
    windows.open_list(ChunkId(2), 7, vec![]);
    assert!(windows.watches_list(7) && !windows.watches_list(8));
    windows.close(ChunkId(2));
    assert!(!windows.watches_list(7));
}
