//! Rows as COPY writes them in its text form, taken apart.
//!
//! Pure. One line is one row; cells are parted by tabs; a backslash starts an escape, and `\N` alone is NULL.

use crate::window::Rows;

/// Adds one line, without or with its newline, to `rows`. `None` if it has not exactly `columns` cells.
pub fn add_line(line: &[u8], columns: usize, rows: &mut Rows, buffer: &mut Vec<u8>) -> Option<()> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut count = 0;
    for cell in line.split(|byte| *byte == b'\t') {
        count += 1;
        if count > columns {
            return None;
        }
        if cell == b"\\N" {
            rows.push(None);
        } else if cell.contains(&b'\\') {
            buffer.clear();
            unescape(cell, buffer);
            rows.push(Some(buffer));
        } else {
            rows.push(Some(cell));
        }
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

    fn rows(line: &[u8], columns: usize) -> Option<Rows> {
        let mut rows = Rows::new(columns);
        add_line(line, columns, &mut rows, &mut Vec::new())?;
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
