//! Windows against made-up touches, and lists of keys against a table that is told again change by change.

mod lists;

use super::*;
use crate::relation::{fingerprint, tests::users};

fn chunk(snapshot: &str, rows: &[[&str; 3]]) -> Chunk {
    let mut read = Rows::new(3);
    rows.iter().flatten().for_each(|cell| read.push(Some(cell.as_bytes())));
    Chunk {
        snapshot: snapshot.parse().expect("a snapshot"),
        relation: users('d'),
        fingerprint: fingerprint(&users('d')),
        look: 0,
        rows: read,
        part: Part::Range(Range::default()),
        ranges_of: None,
        load: None,
        round: 0,
    }
}

fn key_of(chunk: &Chunk, row: usize) -> Vec<u8> {
    match chunk.rows.row(row)[0] {
        Cell::Text(text) => text.to_vec(),
        _ => unreachable!("keys are never null"),
    }
}

fn settle(windows: &mut Windows, id: ChunkId) -> Option<Vec<Vec<String>>> {
    match windows.settle(id, Some(fingerprint(&users('d'))), Equality::Canonical, key_of)? {
        Settled::Again(_) => None,
        Settled::Publish(chunk, keep) => {
            let text = |cell: &Cell<'_>| match cell {
                Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
                _ => "null".into(),
            };
            let rows = (0..chunk.rows.len()).filter(|row| keep[*row]);
            Some(rows.map(|row| chunk.rows.row(row).iter().map(text).collect()).collect())
        }
    }
}

const ID: ChunkId = ChunkId(1);

fn key_text(text: &str) -> Key {
    Key { text: text.as_bytes().into(), canonical: None }
}

fn superseded(key: &str) -> Kind {
    Kind::Superseded(key_text(key), Image::Gone)
}

#[test]
fn what_the_snapshot_does_not_see_is_laid_over_its_rows() {
    let mut windows = Windows::new(1 << 20);
    windows.open(ID, 7, vec![]);
    windows.touch(7, 50, superseded("1"));
    windows.touch(7, 90, Kind::Patch(key_text("2"), vec![(1, Some((*b"new").into()))]));
    windows.touch(7, 91, superseded("3"));
    windows.touch(8, 91, superseded("4"));
    windows.fill(ID, chunk("80:80:", &[["1", "a", "x"], ["2", "b", "y"], ["3", "c", "z"], ["4", "d", "w"]]));
    assert_eq!(settle(&mut windows, ID).expect("published"), [["1", "a", "x"], ["2", "new", "y"], ["4", "d", "w"]]);
}

#[test]
fn a_truncate_that_is_not_visible_empties_the_chunk_and_what_follows_is_streamed() {
    let mut windows = Windows::new(1 << 20);
    windows.open(ID, 7, vec![]);
    windows.touch(7, 90, Kind::Truncate);
    windows.touch(7, 90, superseded("1"));
    windows.fill(ID, chunk("80:80:", &[["1", "a", "x"]]));
    assert!(settle(&mut windows, ID).expect("published").is_empty());
}

#[test]
fn a_streamed_transaction_that_is_not_visible_makes_the_chunk_unusable() {
    let mut windows = Windows::new(1 << 20);
    windows.open(ID, 7, vec![79]);
    windows.fill(ID, chunk("79:81:79", &[["1", "a", "x"]]));
    assert_eq!(settle(&mut windows, ID), None);
}

#[test]
fn a_chunk_of_another_shape_is_read_again_only_if_the_stream_moved() {
    let mut windows = Windows::new(1 << 20);
    for related in [false, true] {
        windows.open(ID, 7, vec![]);
        if related {
            windows.relation(7);
        }
        windows.fill(ID, chunk("80:80:", &[["1", "a", "x"]]));
        let settled = windows.settle(ID, Some(Fingerprint(1)), Equality::Canonical, key_of).expect("ours");
        assert_eq!(matches!(settled, Settled::Again(_)), related);
    }
}

#[test]
fn memory_is_bounded_by_giving_up_the_oldest_window() {
    let mut windows = Windows::new(2_000);
    windows.open(ID, 7, vec![]);
    let cancelled: Vec<_> = (0..100).flat_map(|n| windows.touch(7, 90, superseded(&n.to_string()))).collect();
    assert_eq!(cancelled, [ID]);
    assert_eq!((windows.bytes, windows.touches.len()), (0, 0));
    assert!(!windows.fill(ID, chunk("80:80:", &[])));
}

#[test]
fn a_foreign_marker_is_ignored() {
    let mut windows = Windows::new(1 << 20);
    windows.open(ID, 7, vec![]);
    assert!(windows.settle(ID, None, Equality::Canonical, key_of).is_none());
    assert!(windows.settle(ChunkId(2), None, Equality::Canonical, key_of).is_none());
}
