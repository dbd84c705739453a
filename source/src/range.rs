//! Which parts of a table's key a load has done, and which comes next.
//!
//! Pure. Keys are texts whose order only the server knows, so ranges meet where one ends at the very text the other begins.

use schemas::state::Range;

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
    fn an_empty_table_is_done_with_one_chunk() {
        let mut done = Vec::new();
        add(&mut done, range(None, None));
        assert_eq!(next(&done), None);
    }
}
