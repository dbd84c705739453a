//! What goes to standard output: answers alone, as tables for people or as JSON for programs.

use std::io::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

/// Prints a line, or several. A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{}", text.trim_end());
}

/// Prints `value` as one JSON object.
pub(crate) fn print_json<T: Serialize>(value: &T) {
    print(&serde_json::to_string_pretty(value).expect("what we print is plain data"));
}

/// Columns under a heading, aligned, without lines: it can be read, and cut by other programs.
pub(crate) fn table(heading: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heading.iter().map(|name| name.to_uppercase()));
    table.add_rows(rows);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A value that may be unknown.
pub(crate) fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_do_not_end_in_blanks() {
        let rows = vec![vec!["shop.orders".to_owned(), "7".to_owned()], vec!["a".to_owned(), String::new()]];
        assert_eq!(table(&["table", "rows"], rows), "TABLE        ROWS\nshop.orders  7\na\n");
    }

    #[test]
    fn bytes_are_rounded_for_people() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (16 << 20, "16.0 MiB"), (3 << 40, "3.0 TiB")];
        cases.into_iter().for_each(|(count, text)| assert_eq!(bytes(count), text));
    }
}
