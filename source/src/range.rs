//! Which parts of a table's key a load has done, and which comes next.
//!
//! Pure. Keys are texts whose order only the server knows, so ranges meet where one ends at the very text the other begins.

use schemas::state::{LoadTable, Range};

use crate::window::RangesOf;

/// How a chunk goes together with what its load has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Its range is one of the same kind.
    Same,
    /// The table is told into ranges otherwise by now: what was done means nothing any more, and the chunk's is the first.
    Anew,
    /// The chunk is of before, and its range means nothing any more.
    Stale,
}

/// Whether ranges by this order go together with those that are done. Of two readers that find the table rewritten the first
/// one begins anew; what the other still has of before is known by what it thought to go on with.
pub fn fit(done: &LoadTable, of: Option<&RangesOf>) -> Fit {
    match (&done.ranges_of, of) {
        (_, None) | (None, Some(RangesOf { known: None, .. })) => Fit::Same,
        (Some(known), Some(RangesOf { found, .. })) if known == found => Fit::Same,
        (before, Some(RangesOf { known, .. })) if before == known => Fit::Anew,
        _ => Fit::Stale,
    }
}

/// Takes note of a range that is done, by an order that fits.
pub fn settle(done: &mut LoadTable, range: Range, of: Option<&RangesOf>) {
    if fit(done, of) == Fit::Anew {
        done.done.clear();
    }
    if let Some(RangesOf { found, .. }) = of {
        done.ranges_of = Some(found.clone());
    }
    add(&mut done.done, range);
}

/// Adds a range that is done, merged with the ones it touches.
pub fn add(done: &mut Vec<Range>, range: Range) {
    let before = done.iter().position(|other| other.upto.is_some() && other.upto == range.after);
    let behind = done.iter().position(|other| other.after.is_some() && other.after == range.upto);
    match (before, behind) {
        (Some(before), Some(behind)) => {
            done[before].upto = done[behind].upto.take();
            done.remove(behind);
        }
        (Some(before), None) => done[before].upto = range.upto,
        (None, Some(behind)) => done[behind].after = range.after,
        // Without order the list keeps the one property that matters: what starts the table stands first.
        (None, None) if range.after.is_none() => done.insert(0, range),
        (None, None) => done.push(range),
    }
}

/// The first gap: what to read next. `None` when the whole table is done.
pub fn next(done: &[Range]) -> Option<Range> {
    match done.first() {
        None => Some(Range::default()),
        Some(first) if first.after.is_some() => Some(Range { after: None, upto: first.after.clone() }),
        Some(Range { upto: None, .. }) => None,
        // Gaps in the middle close from below: what lies behind is found when the lower range has grown up to it.
        Some(first) => Some(Range { after: first.upto.clone(), upto: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(after: Option<&str>, upto: Option<&str>) -> Range {
        let key = |text: Option<&str>| text.map(|text| vec![text.to_owned()]);
        Range { after: key(after), upto: key(upto) }
    }

    #[test]
    fn ranges_grow_from_the_start_to_the_open_end() {
        let mut done = Vec::new();
        assert_eq!(next(&done), Some(range(None, None)));
        add(&mut done, range(None, Some("b")));
        assert_eq!(next(&done), Some(range(Some("b"), None)));
        add(&mut done, range(Some("b"), Some("d")));
        assert_eq!(done, [range(None, Some("d"))]);
        add(&mut done, range(Some("d"), None));
        assert_eq!(done, [range(None, None)]);
        assert_eq!(next(&done), None);
    }

    #[test]
    fn a_gap_is_closed_from_both_sides() {
        let mut done = Vec::new();
        add(&mut done, range(Some("b"), Some("d")));
        assert_eq!(next(&done), Some(range(None, Some("b"))));
        add(&mut done, range(None, Some("b")));
        assert_eq!(done, [range(None, Some("d"))]);
    }

    #[test]
    fn ranges_of_another_order_begin_anew() {
        let of = |found: &str, known: Option<&str>| RangesOf { found: found.into(), known: known.map(str::to_owned) };
        let mut done = LoadTable::default();
        let first = of("file 7", None);
        assert_eq!(fit(&done, Some(&first)), Fit::Same);
        settle(&mut done, range(None, Some("(9,1)")), Some(&first));
        let second = of("file 7", Some("file 7"));
        settle(&mut done, range(Some("(9,1)"), Some("(20,3)")), Some(&second));
        assert_eq!(done.done, [range(None, Some("(20,3)"))]);

        let moved = of("file 8", Some("file 7"));
        assert_eq!(fit(&done, Some(&moved)), Fit::Anew);
        settle(&mut done, range(Some("(20,3)"), Some("(30,1)")), Some(&moved));
        assert_eq!(
            (&done.ranges_of, &done.done[..]),
            (&Some("file 8".into()), &[range(Some("(20,3)"), Some("(30,1)"))][..])
        );
        assert_eq!(next(&done.done), Some(range(None, Some("(20,3)"))));
        for stale in [second, first, of("file 9", Some("file 7"))] {
            assert_eq!(fit(&done, Some(&stale)), Fit::Stale, "{stale:?}");
        }
        assert_eq!(fit(&done, None), Fit::Same);
    }

    #[test]
    fn bounds_that_were_there_before_the_order_was_known_stay() {
        let mut done = LoadTable { done: vec![range(None, Some("b"))], ..LoadTable::default() };
        let of = RangesOf { found: "key 1".into(), known: None };
        settle(&mut done, range(Some("b"), Some("c")), Some(&of));
        assert_eq!(done.done, [range(None, Some("c"))]);
    }

    #[test]
    fn an_empty_table_is_done_with_one_chunk() {
        let mut done = Vec::new();
        add(&mut done, range(None, None));
        assert_eq!(next(&done), None);
    }
}
