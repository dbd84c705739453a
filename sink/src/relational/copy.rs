//! Rows that a load has read, by COPY: where nothing is in their way, nothing needs to be looked for.
//!
//! Into an empty table this costs the server half of what an upsert costs. Whether it is empty nobody has to know: a row in the
//! way refuses the whole COPY, the attempt begins anew, and rows of that table are upserted from then on.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use schemas::TableName;
use sqlx::postgres::{PgConnection, PgCopyIn};

use crate::statement::Statement;

/// So much is sent at a time.
const PIECE: usize = 64 << 10;

/// The tables that have refused a COPY since a load into them began.
#[derive(Debug, Default)]
pub(super) struct Refusing(Mutex<HashSet<TableName>>);

impl Refusing {
    /// Statements whose rows are to be copied, and how, and the others.
    pub(super) fn part<'s>(&self, statements: &'s [Statement]) -> (Vec<(&'s str, &'s Statement)>, Vec<&'s Statement>) {
        let tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut copied, mut others) = (Vec::new(), Vec::new());
        for statement in statements {
            match statement.copy.as_deref().filter(|_| !tables.contains(&statement.table)) {
                Some(sql) => copied.push((sql, statement)),
                None => others.push(statement),
            }
        }
        (copied, others)
    }

    pub(super) fn refused(&self, table: &TableName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(table.clone());
    }

    /// A load begins in a table that holds nothing.
    pub(super) fn begins(&self, table: &TableName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(table);
    }
}

/// Copies a statement's rows.
pub(super) async fn copy(connection: &mut PgConnection, sql: &str, statement: &Statement) -> Result<(), sqlx::Error> {
    let mut copy: PgCopyIn<&mut PgConnection> = connection.copy_in_raw(sql).await?;
    let mut columns: Vec<_> = statement.arrays.iter().map(|array| array.values()).collect();
    let mut piece = Vec::with_capacity(PIECE + PIECE / 4);
    for _ in 0..statement.rows() {
        for (place, column) in columns.iter_mut().enumerate() {
            if place > 0 {
                piece.push(b'\t');
            }
            match column.next().flatten() {
                None => piece.extend_from_slice(b"\\N"),
                Some(value) => escape(value, &mut piece),
            }
        }
        piece.push(b'\n');
        if piece.len() >= PIECE {
            copy.send(&piece[..]).await?;
            piece.clear();
        }
    }
    copy.send(&piece[..]).await?;
    copy.finish().await.map(drop)
}

/// A value in COPY's text form.
fn escape(value: &[u8], out: &mut Vec<u8>) {
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r')) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parts_cells_and_rows_is_escaped() {
        let escaped = |text: &str| {
            let mut out = Vec::new();
            escape(text.as_bytes(), &mut out);
            String::from_utf8(out).expect("UTF-8")
        };
        assert_eq!(escaped("a\tb\nc\rd\\e"), "a\\tb\\nc\\rd\\\\e");
        assert_eq!(escaped("\\N"), "\\\\N");
        assert_eq!(escaped(""), "");
        assert_eq!(escaped("plain, ü and \u{8}"), "plain, ü and \u{8}");
    }
}
