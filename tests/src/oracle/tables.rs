//! Whole tables: every column as the text that PostgreSQL itself puts out under the pinned settings, ordered by key.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use tokio_postgres::Client;

use crate::table::{Table, quote};

/// A row by column name; `None` is NULL.
pub type Row = BTreeMap<String, Option<String>>;

/// How many differing rows a message names.
const SHOWN_MAX: usize = 10;

/// Whether a table holds the same rows on both sides, to the last byte.
pub async fn compare(source: &Client, target: &Client, table: &Table) -> Result<(), String> {
    let columns = columns(source, table).await?;
    let (left, right) = (dump(source, table, &columns).await?, dump(target, table, &columns).await?);
    if left == right {
        return Ok(());
    }
    Err(format!("{}: {}", table.name, difference(&lines(&left), &lines(&right))))
}

/// Whether a table holds exactly these rows.
pub async fn compare_rows(client: &Client, table: &Table, rows: &[Row]) -> Result<(), String> {
    let mut expected = self::rows(client, table).await?;
    let mut found = rows.to_vec();
    expected.sort();
    found.sort();
    if expected == found {
        return Ok(());
    }
    let print = |rows: &[Row]| rows.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>();
    let (left, right) = (print(&expected), print(&found));
    let difference = difference(&as_strs(&left), &as_strs(&right));
    Err(format!("{} and the fold of its topic: {difference}", table.name))
}

/// The rows of a table, as this client sees it.
pub async fn rows(client: &Client, table: &Table) -> Result<Vec<Row>, String> {
    let columns = columns(client, table).await?;
    let text = dump(client, table, &columns).await?;
    Ok(lines(&text).into_iter().map(|line| row(&columns, line)).collect())
}

/// How many rows a table has.
pub async fn count(client: &Client, table: &Table) -> Result<i64, String> {
    let sql = format!("SELECT count(*) FROM {}", table.sql());
    client.query_one(&sql, &[]).await.map(|row| row.get(0)).map_err(|cause| cause.to_string())
}

/// The columns that travel: not the generated ones.
async fn columns(client: &Client, table: &Table) -> Result<Vec<String>, String> {
    const SQL: &str = "SELECT attname::text FROM pg_attribute JOIN pg_class c ON c.oid = attrelid \
                       JOIN pg_namespace n ON n.oid = relnamespace \
                       WHERE nspname = $1 AND relname = $2 AND attnum > 0 AND NOT attisdropped AND attgenerated = '' \
                       ORDER BY attnum";
    let rows = client.query(SQL, &[&table.name.schema, &table.name.table]).await;
    Ok(rows.map_err(|cause| cause.to_string())?.iter().map(|row| row.get(0)).collect())
}

async fn dump(client: &Client, table: &Table, columns: &[String]) -> Result<String, String> {
    let named: Vec<String> = columns.iter().map(|column| quote(column)).collect();
    // Collations differ between machines: the order is by bytes.
    let order: Vec<String> = table.key.iter().map(|column| format!("{}::text COLLATE \"C\"", quote(column))).collect();
    let (named, order) = (named.join(", "), order.join(", "));
    let sql = format!("COPY (SELECT {named} FROM {} ORDER BY {order}) TO STDOUT", table.sql());
    let stream = client.copy_out(&sql).await.map_err(|cause| format!("{sql}: {cause}"))?;
    let bytes: Vec<_> = stream.try_collect().await.map_err(|cause| format!("{sql}: {cause}"))?;
    String::from_utf8(bytes.concat()).map_err(|cause| cause.to_string())
}

fn lines(text: &str) -> Vec<&str> {
    text.split_terminator('\n').collect()
}

fn as_strs(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).collect()
}

/// Which lines stand on one side alone.
fn difference(left: &[&str], right: &[&str]) -> String {
    let count = |lines: &[&str]| {
        let mut counts = BTreeMap::<String, i64>::new();
        lines.iter().for_each(|line| *counts.entry((*line).to_owned()).or_default() += 1);
        counts
    };
    let (in_left, in_right) = (count(left), count(right));
    let only = |these: &BTreeMap<String, i64>, those: &BTreeMap<String, i64>| -> Vec<String> {
        these.iter().filter(|(line, n)| those.get(*line).unwrap_or(&0) < n).map(|(line, _)| shortened(line)).collect()
    };
    let (missing, extra) = (only(&in_left, &in_right), only(&in_right, &in_left));
    let show = |lines: &[String]| lines.iter().take(SHOWN_MAX).map(|line| format!("\n    {line}")).collect::<String>();
    format!(
        "{} rows against {}; {} on the first side alone{}\n  {} on the second side alone{}",
        left.len(),
        right.len(),
        missing.len(),
        show(&missing),
        extra.len(),
        show(&extra)
    )
}

fn shortened(line: &str) -> String {
    const LENGTH_MAX: usize = 300;
    match line.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", &line[..end], line.len()),
        None => line.to_owned(),
    }
}

/// A line of COPY's text format.
fn row(columns: &[String], line: &str) -> Row {
    let values = line.split('\t').map(|value| if value == "\\N" { None } else { Some(unescaped(value)) });
    columns.iter().cloned().zip(values).collect()
}

fn unescaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('b') => out.push('\u{8}'),
                Some('f') => out.push('\u{c}'),
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some('v') => out.push('\u{b}'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            plain => out.push(plain),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_copy_reads_back() {
        let columns: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
        let read = row(&columns, "1\t\\N\tx\\ty\\\\n\t");
        let value = |name: &str| read[name].as_deref();
        assert_eq!((value("a"), value("b"), value("c"), value("d")), (Some("1"), None, Some("x\ty\\n"), Some("")));
    }

    #[test]
    fn a_difference_names_the_rows_of_either_side() {
        let text = difference(&["1\ta", "2\tb", "2\tb"], &["1\ta", "2\tb", "3\tc"]);
        assert!(text.contains("3 rows against 3; 1 on the first side alone\n    2\tb\n"), "{text}");
        assert!(text.contains("1 on the second side alone\n    3\tc"), "{text}");
    }
}
