//! Rows as COPY writes them in its text form, taken apart.
//!
//! Pure. One line is one row; cells are parted by tabs; a backslash starts an escape, and `\N` alone is NULL.

use crate::columns::Cut;
use crate::window::Rows;

/// Adds one line, without or with its newline, to `rows`. `None` if it has not exactly `columns` cells. What `cut` masks is
/// masked here, before it is kept.
pub fn add_line(line: &[u8], columns: usize, rows: &mut Rows, buffer: &mut Vec<u8>, cut: Option<&Cut>) -> Option<()> {
    match cut {
        None => add(line, columns, buffer, |_, cell| rows.push(cell)),
        Some(cut) => add(line, columns, buffer, |column, cell| match cell.and_then(|cell| cut.mask(column, cell)) {
            Some(masked) => rows.push(Some(masked.as_bytes())),
            None => rows.push(cell),
        }),
    }
}

/// Takes a line apart, cell by cell.
fn add(line: &[u8], columns: usize, buffer: &mut Vec<u8>, mut push: impl FnMut(usize, Option<&[u8]>)) -> Option<()> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut count = 0;
    for cell in line.split(|byte| *byte == b'\t') {
        if count == columns {
            return None;
        }
        if cell == b"\\N" {
            push(count, None);
        } else if cell.contains(&b'\\') {
            buffer.clear();
            unescape(cell, buffer);
            push(count, Some(buffer));
        } else {
            push(count, Some(cell));
        }
        count += 1;
    }
    (count == columns).then_some(())
}

fn unescape(cell: &[u8], out: &mut Vec<u8>) {
    let mut bytes = cell.iter();
    while let Some(byte) = bytes.next() {
        match (byte, (*byte == b'\\').then(|| bytes.next()).flatten()) {
            (_, Some(b'b')) => out.push(8),
            (_, Some(b'f')) => out.push(12),
            (_, Some(b'n')) => out.push(b'\n'),
            (_, Some(b'r')) => out.push(b'\r'),
            (_, Some(b't')) => out.push(b'\t'),
            (_, Some(b'v')) => out.push(11),
            // COPY never writes octal or hexadecimal escapes; what it escapes otherwise stands for itself.
            (_, Some(other)) => out.push(*other),
            (byte, None) => out.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use schemas::write::Cell;

    use super::*;
    use crate::columns::{self, Mask};
    use crate::relation;

    fn rows(line: &[u8], columns: usize) -> Option<Rows> {
        let mut rows = Rows::new(columns);
        add_line(line, columns, &mut rows, &mut Vec::new(), None)?;
        Some(rows)
    }

    #[test]
    fn a_line_is_taken_apart() {
        let rows = rows(b"1\t\\N\t\ta\\tb\\\\N\\n\n", 4).expect("four cells");
        let expected = [Cell::Text(b"1"), Cell::Null, Cell::Text(b""), Cell::Text(b"a\tb\\N\n")];
        assert_eq!(rows.row(0), expected);
    }

    #[test]
    fn another_number_of_cells_is_refused() {
        assert!(rows(b"1\t2\n", 3).is_none());
        assert!(rows(b"1\t2\t3\n", 2).is_none());
    }

    #[test]
    fn a_masked_cell_is_never_kept_as_it_came() {
        let rule = columns::tests::without(&["name"], &[("bio", Mask::Fixed("***".into()))]);
        let seen = ["id", "name", "bio"].map(str::to_owned).into();
        let cut = rule.cut(&relation::tests::users('d'), &seen).expect("a rule that fits");
        let mut rows = Rows::new(2);
        for line in [b"1\tse\\tcret\n".as_slice(), b"2\t\\N\n"] {
            add_line(line, 2, &mut rows, &mut Vec::new(), Some(&cut)).expect("two cells");
        }
        assert_eq!(rows.row(0), [Cell::Text(b"1"), Cell::Text(b"***")]);
        assert_eq!(rows.row(1), [Cell::Text(b"2"), Cell::Null]);
        assert!(!format!("{rows:?}").contains(&format!("{:?}", b'c')), "nothing of it is in the buffer");
    }

    proptest! {
        #[test]
        fn what_copy_escapes_comes_back(text in "[a\\\\\t\n\r\u{8}\u{b}\u{c}é]{0,12}") {
            let mut line = Vec::new();
            for byte in text.bytes() {
                match byte {
                    b'\\' => line.extend_from_slice(b"\\\\"),
                    b'\t' => line.extend_from_slice(b"\\t"),
                    b'\n' => line.extend_from_slice(b"\\n"),
                    b'\r' => line.extend_from_slice(b"\\r"),
                    8 => line.extend_from_slice(b"\\b"),
                    11 => line.extend_from_slice(b"\\v"),
                    12 => line.extend_from_slice(b"\\f"),
                    other => line.push(other),
                }
            }
            let rows = rows(&line, 1).expect("one cell");
            prop_assert_eq!(rows.row(0), [Cell::Text(text.as_bytes())]);
        }
    }
}
