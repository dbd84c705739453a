//! A fold as SQL: a few statements over arrays, each text cast to its column's own type.
//!
//!     deletes of all tables ──▶ updates ──▶ upserts, rows in the order of their last changes
//!
//! Pure: makes text and arrays, runs nothing. Every identifier goes through `postgres::quote`.
//!
//! The casts carry no modifier: `'toolong'::varchar(3)` would cut the text off in silence, the assignment of an uncut
//! one to the column raises. Arrays travel as text too and are cast row by row, since unnest would flatten them.

use std::fmt::Write;

use postgres::quote;
use schemas::{Columns, TableName};

use crate::array::TextArray;
use crate::fold::{Cell, Fold, State, Wipe};
use crate::shape::{Column, ColumnKind, Shape};

/// One statement over all rows that have the same columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) table: TableName,
    pub(crate) kind: Kind,
    pub(crate) sql: String,
    pub(crate) arrays: Vec<TextArray>,
}

/// What a statement does. The order is that of their execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Takes rows away.
    Delete,
    /// Takes rows away whose new key is another one.
    DeleteMoved,
    /// Sets some columns of rows that must be there.
    Update,
    /// Sets all columns, of rows that may be there.
    Upsert,
}

impl Statement {
    pub(crate) fn rows(&self) -> usize {
        self.arrays.first().map_or(0, TextArray::len)
    }
}

/// The statements for all folds of one batch, in the order in which they are to run.
pub(crate) fn statements(folds: &[Fold<'_>]) -> Vec<Statement> {
    let mut statements: Vec<Statement> = folds.iter().flat_map(of_fold).collect();
    statements.sort_by_key(|statement| statement.kind);
    statements
}

fn of_fold(fold: &Fold<'_>) -> Vec<Statement> {
    let mut groups = Groups { shape: &fold.shape, groups: Vec::new() };
    let key: Vec<usize> = fold.shape.key.iter().map(|(index, _)| *index).collect();
    for (row, cells) in fold.rows() {
        let of_key = || key.iter().map(|index| &cells[*index]);
        match &row.wipe {
            Wipe::No => {}
            Wipe::Yes => groups.push(Kind::Delete, &key, of_key()),
            Wipe::IfOther(others) => {
                for other in others {
                    groups.push(Kind::DeleteMoved, &key, of_key().chain(other));
                }
            }
        }
        let sent = |index: &usize| cells[*index].is_some() && fold.shape.columns[*index].kind != ColumnKind::Generated;
        let kind = match row.state {
            State::Nothing => continue,
            State::Partial => Kind::Update,
            State::Full => Kind::Upsert,
        };
        let columns: Vec<usize> = (0..cells.len()).filter(sent).collect();
        groups.push(kind, &columns, columns.iter().map(|index| &cells[*index]));
    }
    groups.finish()
}

/// These keys as arrays, in the order of the shape's key.
pub(crate) fn key_arrays(shape: &Shape, keys: &[Columns<'_>]) -> Vec<TextArray> {
    let column = |(index, _): &(usize, String)| {
        let mut array = TextArray::new();
        keys.iter().for_each(|key| array.push(key.get(&shape.columns[*index].name).flatten()));
        array
    };
    shape.key.iter().map(column).collect()
}

/// Takes the rows of these keys away.
pub(crate) fn take_away(shape: &Shape, keys: Vec<TextArray>) -> Statement {
    Statement { table: shape.table.clone(), kind: Kind::Delete, sql: delete(shape), arrays: keys }
}

/// Reads the rows of keys that are bound as [`key_arrays`], and locks them: the number of the key, from 1, and an object of the
/// columns that somebody writes, each in PostgreSQL's own text (a cast to text would trim blanks).
pub(crate) fn read(shape: &Shape) -> String {
    let written: Vec<&Column> = shape.columns.iter().filter(|it| it.kind != ColumnKind::Generated).collect();
    let names: Vec<String> = written.iter().map(|column| quote::literal(&column.name)).collect();
    let text = |column: &&Column| {
        let name = quote::identifier(&column.name);
        format!("CASE WHEN t.{name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', t.{name}) END")
    };
    let texts: Vec<String> = written.iter().map(text).collect();
    let width = shape.key.len();
    let list = |item: fn(usize) -> String| (1..=width).map(item).collect::<Vec<_>>().join(", ");
    format!(
        "SELECT v.n, pg_catalog.json_object(ARRAY[{}]::text[], ARRAY[{}]::text[])::text FROM unnest({}) WITH ORDINALITY AS v({}, n) JOIN {} AS t ON {} FOR UPDATE OF t",
        names.join(", "),
        texts.join(", "),
        list(|i| format!("${i}::text[]")),
        list(|i| format!("c{i}")),
        quote::table(&shape.table),
        same_key(shape, key_place(shape)),
    )
}

/// Rows that go into the same statement: few groups, so a search from the last one used is cheap.
struct Groups<'s> {
    shape: &'s Shape,
    groups: Vec<(Kind, Vec<usize>, Vec<TextArray>)>,
}

impl Groups<'_> {
    fn push<'c>(&mut self, kind: Kind, columns: &[usize], cells: impl Iterator<Item = &'c Cell<'c>>) {
        let found = self.groups.iter().position(|group| group.0 == kind && group.1 == columns);
        let index = found.unwrap_or_else(|| {
            let width = if kind == Kind::DeleteMoved { columns.len() * 2 } else { columns.len() };
            self.groups.push((kind, columns.to_vec(), vec![TextArray::new(); width]));
            self.groups.len() - 1
        });
        for (array, cell) in self.groups[index].2.iter_mut().zip(cells) {
            array.push(cell.as_ref().and_then(|value| value.as_deref()));
        }
    }

    fn finish(self) -> Vec<Statement> {
        let shape = self.shape;
        let statement = |(kind, columns, arrays): (Kind, Vec<usize>, Vec<TextArray>)| {
            let sql = match kind {
                Kind::Delete => Some(delete(shape)),
                Kind::DeleteMoved => Some(delete_moved(shape)),
                Kind::Update => update(shape, &columns),
                Kind::Upsert => Some(upsert(shape, &columns)),
            };
            Some(Statement { table: shape.table.clone(), kind, sql: sql?, arrays })
        };
        self.groups.into_iter().filter_map(statement).collect()
    }
}

/// `unnest($1::text[], $2::text[]) AS v(c1, c2)`
fn unnest(width: usize) -> String {
    let list = |item: fn(usize) -> String| (1..=width).map(item).collect::<Vec<_>>().join(", ");
    format!("unnest({}) AS v({})", list(|i| format!("${i}::text[]")), list(|i| format!("c{i}")))
}

/// The value number `place` (from 0) as the type of column `index`.
fn value(shape: &Shape, index: usize, place: usize) -> String {
    format!("v.c{}::{}", place + 1, shape.columns[index].cast)
}

/// `t."id" = v.c1::bigint AND …`, the key's values standing at the places that `place` says.
fn same_key(shape: &Shape, place: impl Fn(usize) -> usize) -> String {
    let mut sql = String::new();
    for (index, operator) in &shape.key {
        let and = if sql.is_empty() { "" } else { " AND " };
        let name = quote::identifier(&shape.columns[*index].name);
        write!(sql, "{and}t.{name} {operator} {}", value(shape, *index, place(*index)))
            .expect("a string takes every write");
    }
    sql
}

fn key_place(shape: &Shape) -> impl Fn(usize) -> usize {
    |index| shape.key.iter().position(|(key, _)| *key == index).expect("a column of the key")
}

fn delete(shape: &Shape) -> String {
    let (table, unnest) = (quote::table(&shape.table), unnest(shape.key.len()));
    format!("DELETE FROM {table} AS t USING {unnest} WHERE {}", same_key(shape, key_place(shape)))
}

fn delete_moved(shape: &Shape) -> String {
    let width = shape.key.len();
    let still = shape.key.iter().enumerate().map(|(place, (index, operator))| {
        format!("{} {operator} {}", value(shape, *index, place), value(shape, *index, place + width))
    });
    let still = still.collect::<Vec<_>>().join(" AND ");
    let (table, unnest) = (quote::table(&shape.table), unnest(width * 2));
    format!("DELETE FROM {table} AS t USING {unnest} WHERE {} AND NOT ({still})", same_key(shape, key_place(shape)))
}

/// `None` where the columns sent are those of the key alone: there is nothing to set.
fn update(shape: &Shape, columns: &[usize]) -> Option<String> {
    let set = columns.iter().enumerate().filter(|(_, index)| shape.is_set(**index));
    let set: Vec<_> = set
        .map(|(place, index)| {
            format!("{} = {}", quote::identifier(&shape.columns[*index].name), value(shape, *index, place))
        })
        .collect();
    let place = |index| columns.iter().position(|column| *column == index).expect("every row has its key");
    let (table, unnest, set_list) = (quote::table(&shape.table), unnest(columns.len()), set.join(", "));
    (!set.is_empty())
        .then(|| format!("UPDATE {table} AS t SET {set_list} FROM {unnest} WHERE {}", same_key(shape, place)))
}

fn upsert(shape: &Shape, columns: &[usize]) -> String {
    let names = |indices: &mut dyn Iterator<Item = usize>| {
        indices.map(|index| quote::identifier(&shape.columns[index].name)).collect::<Vec<_>>()
    };
    let (table, unnest) = (quote::table(&shape.table), unnest(columns.len()));
    let inserted = names(&mut columns.iter().copied()).join(", ");
    let values: Vec<_> = columns.iter().enumerate().map(|(place, index)| value(shape, *index, place)).collect();
    let key = names(&mut shape.key.iter().map(|(index, _)| *index)).join(", ");
    let set = names(&mut columns.iter().copied().filter(|index| shape.is_set(*index)));
    let action = match set.is_empty() {
        true => "NOTHING".to_owned(),
        false => {
            let set: Vec<_> = set.iter().map(|name| format!("{name} = EXCLUDED.{name}")).collect();
            format!("UPDATE SET {}", set.join(", "))
        }
    };
    let values = values.join(", ");
    format!(
        "INSERT INTO {table} AS t ({inserted}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {unnest} ON CONFLICT ({key}) DO {action}"
    )
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::sync::Arc;

    use schemas::ChangeEvent;

    use super::*;
    use crate::shape::Table;
    use crate::shape::tests::{shape, table};

    const SOURCE: &str = r#""source":{"connector":"tributary","name":"s","db":"s","schema":"shop","table":"t","lsn":1,"txId":1,"ts_ms":1,"snapshot":"false","sequence":"[]"},"ts_ms":1}"#;

    /// The statements of these changes, one line each: how many rows, and the text.
    fn sql(table: &Table, events: &[(&str, &str)]) -> String {
        let shape = Arc::new(shape(table));
        let mut fold = Fold::new(shape.clone());
        let values: Vec<String> =
            events.iter().map(|(_, value)| format!("{},{SOURCE}", &value[..value.len() - 1])).collect();
        for ((key, _), value) in events.iter().zip(&values) {
            let event = ChangeEvent::decode(value.as_bytes()).expect("a valid event");
            let canonical = shape.canonical(key.as_bytes()).expect("a key");
            fold.add(Cow::Owned(canonical.into_owned()), key.as_bytes(), event).expect("a change that fits");
        }
        let lines = statements(&[fold]).into_iter().map(|it| format!("{} {}\n", it.rows(), it.sql));
        lines.collect()
    }

    #[test]
    fn each_change_has_its_statement() {
        let mut table = table(
            &[
                ("id", "bigint", 20),
                ("Name", "character varying", 1043),
                ("flags", "\"bit\"", 1560),
                ("tags", "text[]", 1009),
            ],
            1,
        );
        table.columns[2].kind = ColumnKind::IdentityAlways;
        insta::assert_snapshot!(sql(&table, &[
            (r#"{"id":1}"#, r#"{"op":"c","after":{"id":1,"Name":"a","flags":"1","tags":"{a,b}"}}"#),
            (r#"{"id":2}"#, r#"{"op":"u","after":{"id":2,"Name":"b","flags":"0","tags":null}}"#),
            (r#"{"id":3}"#, r#"{"op":"u","after":{"id":3,"Name":"c"},"unchanged":["tags","flags"]}"#),
            (r#"{"id":4}"#, r#"{"op":"d","before":{"id":4}}"#),
            (r#"{"id":5}"#, r#"{"op":"d","before":{"id":5},"moved_to":{"id":6}}"#),
            (r#"{"id":7}"#, r#"{"op":"u","after":{"id":7},"unchanged":["Name","tags","flags"]}"#),
        ]), @r#"
        1 DELETE FROM "shop"."t" AS t USING unnest($1::text[]) AS v(c1) WHERE t."id" OPERATOR(pg_catalog.=) v.c1::bigint
        1 DELETE FROM "shop"."t" AS t USING unnest($1::text[], $2::text[]) AS v(c1, c2) WHERE t."id" OPERATOR(pg_catalog.=) v.c1::bigint AND NOT (v.c1::bigint OPERATOR(pg_catalog.=) v.c2::bigint)
        1 UPDATE "shop"."t" AS t SET "Name" = v.c2::character varying FROM unnest($1::text[], $2::text[]) AS v(c1, c2) WHERE t."id" OPERATOR(pg_catalog.=) v.c1::bigint
        2 INSERT INTO "shop"."t" AS t ("id", "Name", "flags", "tags") OVERRIDING SYSTEM VALUE SELECT v.c1::bigint, v.c2::character varying, v.c3::"bit", v.c4::text[] FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS v(c1, c2, c3, c4) ON CONFLICT ("id") DO UPDATE SET "Name" = EXCLUDED."Name", "tags" = EXCLUDED."tags"
        "#);
    }

    #[test]
    fn rows_are_read_whole_and_taken_away_by_their_keys() {
        let mut table = table(&[("id", "bigint", 20), ("It's", "text", 25), ("g", "integer", 23)], 1);
        table.columns[2].kind = ColumnKind::Generated;
        let shape = shape(&table);
        let key = Columns::decode(br#"{"id":1}"#).expect("a key");
        let away = take_away(&shape, key_arrays(&shape, &[key]));
        insta::assert_snapshot!(format!("{}\n{} {}", read(&shape), away.rows(), away.sql), @r#"
        SELECT v.n, pg_catalog.json_object(ARRAY['id', 'It''s']::text[], ARRAY[CASE WHEN t."id" IS DISTINCT FROM NULL THEN pg_catalog.format('%s', t."id") END, CASE WHEN t."It's" IS DISTINCT FROM NULL THEN pg_catalog.format('%s', t."It's") END]::text[])::text FROM unnest($1::text[]) WITH ORDINALITY AS v(c1, n) JOIN "shop"."t" AS t ON t."id" OPERATOR(pg_catalog.=) v.c1::bigint FOR UPDATE OF t
        1 DELETE FROM "shop"."t" AS t USING unnest($1::text[]) AS v(c1) WHERE t."id" OPERATOR(pg_catalog.=) v.c1::bigint
        "#);
    }

    #[test]
    fn a_key_alone_and_a_key_that_can_be_equal_and_yet_differ() {
        let alone = table(&[("n", "numeric", 1700), ("c", "bpchar", 1042), ("g", "integer", 23)], 2);
        insta::assert_snapshot!(sql(&alone, &[(r#"{"n":"1.0","c":"a"}"#, r#"{"op":"c","after":{"n":"1.0","c":"a"}}"#)]), @r#"
        1 INSERT INTO "shop"."t" AS t ("n", "c") OVERRIDING SYSTEM VALUE SELECT v.c1::numeric, v.c2::bpchar FROM unnest($1::text[], $2::text[]) AS v(c1, c2) ON CONFLICT ("n", "c") DO UPDATE SET "n" = EXCLUDED."n", "c" = EXCLUDED."c"
        "#);
        let integer = table(&[("id", "integer", 23)], 1);
        insta::assert_snapshot!(sql(&integer, &[(r#"{"id":1}"#, r#"{"op":"r","after":{"id":1}}"#)]), @r#"
        1 INSERT INTO "shop"."t" AS t ("id") OVERRIDING SYSTEM VALUE SELECT v.c1::integer FROM unnest($1::text[]) AS v(c1) ON CONFLICT ("id") DO NOTHING
        "#);
    }
}
