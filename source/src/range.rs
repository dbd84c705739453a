//! Which parts of a table's key a load has done, and which are left.
//!
//! Pure. Keys are texts whose order only the server knows, so ranges meet where one ends at the very text the other begins.
//! Several readers leave islands between them: in which order these lie is the server's to say, that nothing is left is not.

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

/// Adds a range that is done, merged with the ones it touches. No part of a table is ever added twice.
pub fn add(done: &mut Vec<Range>, mut range: Range) {
    if let Some(below) = done.iter().position(|other| other.upto.is_some() && other.upto == range.after) {
        range.after = done.remove(below).after;
    }
    if let Some(above) = done.iter().position(|other| other.after.is_some() && other.after == range.upto) {
        range.upto = done.remove(above).upto;
    }
    done.push(range);
    // What begins the table stands first, and what ends it last; the order of what lies between says nothing.
    done.sort_by_key(|range| (range.after.is_some(), range.upto.is_none()));
}

/// Whether the whole table is done.
pub fn is_all(done: &[Range]) -> bool {
    matches!(done, [Range { after: None, upto: None }])
}

/// Whether the order of what is done is certain: at most one range lies between those that begin and end the table.
pub fn is_ordered(done: &[Range]) -> bool {
    done.iter().filter(|range| range.after.is_some() && range.upto.is_some()).count() <= 1
}

/// What is left, in key order, where `done` is in key order and merged.
pub fn gaps(done: &[Range]) -> Vec<Range> {
    let mut gaps = Vec::new();
    let mut after = Some(None);
    for range in done {
        if let Some(after) = after.take().filter(|after| range.after != *after) {
            gaps.push(Range { after, upto: range.after.clone() });
        }
        after = range.upto.clone().map(Some);
    }
    gaps.extend(after.map(|after| Range { after, upto: None }));
    gaps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(after: Option<&str>, upto: Option<&str>) -> Range {
        let key = |text: Option<&str>| text.map(|text| vec![text.to_owned()]);
        Range { after: key(after), upto: key(upto) }
    }

    #[test]
    fn ranges_grow_from_the_start_to_the_open_end() {
        let mut done = Vec::new();
        assert_eq!(gaps(&done), [range(None, None)]);
        add(&mut done, range(None, Some("b")));
        assert_eq!(gaps(&done), [range(Some("b"), None)]);
        add(&mut done, range(Some("b"), Some("d")));
        assert_eq!(done, [range(None, Some("d"))]);
        add(&mut done, range(Some("d"), None));
        assert!(is_all(&done));
        assert_eq!(gaps(&done), []);
    }

    #[test]
    fn an_island_leaves_a_gap_on_both_sides() {
        let mut done = Vec::new();
        add(&mut done, range(Some("b"), Some("d")));
        assert_eq!(gaps(&done), [range(None, Some("b")), range(Some("d"), None)]);
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
        assert_eq!(gaps(&done.done)[0], range(None, Some("(20,3)")));
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
        assert!(is_all(&done));
    }

    /// The line of numbers, cut at some of them: the parts in key order.
    fn parts(cuts: &[u32]) -> Vec<Range> {
        let key = |cut: &u32| Some(vec![cut.to_string()]);
        let lower = std::iter::once(None).chain(cuts.iter().map(key));
        let upper = cuts.iter().map(key).chain(std::iter::once(None));
        lower.zip(upper).map(|(after, upto)| Range { after, upto }).collect()
    }

    fn number(key: &Option<Vec<String>>, open: i64) -> i64 {
        key.as_ref().map_or(open, |texts| texts[0].parse().expect("a number"))
    }

    /// Which numbers lie in none of the ranges.
    fn outside(ranges: &[Range]) -> Vec<i64> {
        let holds = |range: &Range, n: i64| number(&range.after, -1) < n && n <= number(&range.upto, 1_000);
        (0..=100).filter(|n| !ranges.iter().any(|range| holds(range, *n))).collect()
    }

    proptest! {
        /// Whatever the order in which parts become done, what is left is what no part holds: as numbers say it, for
        /// which texts stand.
        #[test]
        fn what_is_left_is_what_no_range_holds(
            cuts in proptest::collection::btree_set(0_u32..100, 0..12),
            turns in proptest::collection::vec(any::<prop::sample::Index>(), 1..14),
        ) {
            let mut left = parts(&cuts.iter().copied().collect::<Vec<_>>());
            let mut done = Vec::new();
            for turn in turns {
                if left.is_empty() {
                    break;
                }
                add(&mut done, left.remove(turn.index(left.len())));
                prop_assert_eq!(is_all(&done), left.is_empty());
                let mut ordered = done.clone();
                ordered.sort_by_key(|range| number(&range.after, -1));
                prop_assert!(!is_ordered(&done) || done == ordered);
                let gaps = gaps(&ordered);
                let within: Vec<_> = (0..=100).filter(|n| !outside(&gaps).contains(n)).collect();
                prop_assert_eq!(within, outside(&done));
                // Merged: no range begins where another ends, and so no gap touches another.
                prop_assert!(gaps.windows(2).all(|pair| pair[0].upto != pair[1].after));
            }
        }
    }
}
