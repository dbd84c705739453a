//! A table of the target as events meet it: which columns are written and how text becomes their type, and what its key is.
//!
//!     catalog ──▶ Table ──with the events' key──▶ Shape ──▶ fold, statement
//!
//! Pure: the catalog is read elsewhere. What does not fit is told with the SQL that mends it, never guessed around.

mod width;

use std::borrow::Cow;
use std::collections::HashMap;

use schemas::event::Column as Described;
use schemas::key::{Canonical, KeyColumn, write_canonical};
use schemas::{Columns, Form, TableName};

/// A table as the target's catalog has it.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: TableName,
    pub(crate) columns: Vec<Column>,
    /// Unique, immediate, whole keys: columns by index, each with the operator that its index calls equal.
    pub(crate) keys: Vec<Vec<(usize, String)>>,
    /// What we may not do here.
    pub(crate) rights: Option<Misfit>,
}

/// A column of the target.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The type that text is cast to: without modifier, a domain's base. Assignment then checks what a cast would cut off.
    pub(crate) cast: String,
    /// The base type.
    pub(crate) oid: u32,
    /// Its modifier; -1 for none.
    pub(crate) modifier: i32,
    /// How equal values come to equal texts; `None` where they need not.
    pub(crate) canonical: Option<Canonical>,
    pub(crate) kind: ColumnKind,
}

/// Who gives a column its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// We do.
    Plain,
    /// We do on INSERT; the server refuses any other value than its own in SET.
    IdentityAlways,
    /// The server does, always.
    Generated,
}

/// What the target lacks for the events that come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// There is no such table.
    #[error("the target has no table {0}: create it first, for instance with pg_dump --schema-only --table")]
    NoTable(TableName),
    /// Columns are missing.
    #[error("the target's table {table} lacks {}: run {sql}", .columns.join(", "))]
    NoColumns {
        /// The table.
        table: TableName,
        /// The columns that are missing.
        columns: Vec<String>,
        /// The statement that adds them.
        sql: String,
    },
    /// A column holds less of a value than the source's, and the server would round or cut off the rest without a word.
    #[error(
        "the target's column {column} of {table} holds less than {source_type}, and PostgreSQL would round or cut values without a word: run {sql}"
    )]
    Narrow {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// The source's type.
        source_type: String,
        /// The statement that widens it.
        sql: String,
    },
    /// No unique key over exactly these columns.
    #[error("the target's table {table} has no unique key over {}, which the events go by: run {sql}", .key.join(", "))]
    NoKey {
        /// The table.
        table: TableName,
        /// The key's columns.
        key: Vec<String>,
        /// The statement that adds it.
        sql: String,
    },
    /// We may not change the table.
    #[error("our user may not change the target's table {table}: run {sql}")]
    NoRights {
        /// The table.
        table: TableName,
        /// The statement that grants it.
        sql: String,
    },
    /// The table has no unique key at all.
    #[error(
        "the target's table {table} has no primary key and no other unique, not deferrable key: create the one that the source has, or one over the columns that source.keys names"
    )]
    Keyless {
        /// The table.
        table: TableName,
    },
}

impl Table {
    /// What is missing for rows with these columns and this key.
    pub(crate) fn misfits(&self, columns: &[Described], key: &[String]) -> Vec<Misfit> {
        let missing: Vec<_> = columns.iter().filter(|column| self.column(&column.name).is_none()).collect();
        let mut misfits = Vec::new();
        if !missing.is_empty() {
            let added = missing.iter().map(|column| (column.name.as_str(), Some(column.type_name.as_str())));
            misfits.push(self.without(added));
        }
        misfits.extend(columns.iter().filter_map(|column| self.narrow(column)));
        let key: Vec<&str> = key.iter().map(String::as_str).collect();
        if missing.is_empty()
            && let Err(misfit) = self.key(&key)
        {
            misfits.push(misfit);
        }
        misfits
    }

    fn narrow(&self, source: &Described) -> Option<Misfit> {
        let ours = &self.columns[self.column(&source.name)?];
        let is_narrow = width::is_narrower((source.type_oid, source.modifier), (ours.oid, ours.modifier));
        (is_narrow && ours.kind != ColumnKind::Generated).then(|| {
            let (table, column) = (postgres::quote::table(&self.name), postgres::quote::identifier(&source.name));
            Misfit::Narrow {
                table: self.name.clone(),
                column: source.name.clone(),
                source_type: source.type_name.clone(),
                sql: format!("ALTER TABLE {table} ALTER COLUMN {column} TYPE {}", source.type_name),
            }
        })
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    fn without<'c>(&self, columns: impl Iterator<Item = (&'c str, Option<&'c str>)>) -> Misfit {
        let (mut names, mut adds) = (Vec::new(), Vec::new());
        for (name, kind) in columns {
            names.push(name.to_owned());
            adds.push(format!(
                "ADD COLUMN {} {}",
                postgres::quote::identifier(name),
                kind.unwrap_or("<its type at the source>")
            ));
        }
        let sql = format!("ALTER TABLE {} {}", postgres::quote::table(&self.name), adds.join(", "));
        Misfit::NoColumns { table: self.name.clone(), columns: names, sql }
    }

    fn key(&self, names: &[&str]) -> Result<&Vec<(usize, String)>, Misfit> {
        let is = |key: &&Vec<(usize, String)>| {
            key.len() == names.len() && key.iter().all(|(index, _)| names.contains(&self.columns[*index].name.as_str()))
        };
        self.keys.iter().find(is).ok_or_else(|| {
            let quoted: Vec<_> = names.iter().map(|name| postgres::quote::identifier(name)).collect();
            let table = postgres::quote::table(&self.name);
            Misfit::NoKey {
                table: self.name.clone(),
                key: names.iter().map(|name| (*name).to_owned()).collect(),
                sql: format!("ALTER TABLE {table} ADD UNIQUE ({})", quoted.join(", ")),
            }
        })
    }
}

/// A table with the key that its events go by.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) table: TableName,
    pub(crate) columns: Vec<Column>,
    /// The key's columns and the operator that calls their values equal.
    pub(crate) key: Vec<(usize, String)>,
    by_name: HashMap<String, usize>,
    /// Whether the text of a key is canonical as it stands.
    verbatim: bool,
    /// Whether equal keys have equal canonical texts. Where not, nothing may be folded, and the table parks as one key.
    pub(crate) foldable: bool,
}

impl Shape {
    /// The shape of `table` for events whose key has the columns of `key`.
    pub(crate) fn new(table: &Table, key: &Columns<'_>) -> Result<Shape, Misfit> {
        let names: Vec<&str> = key.0.iter().map(|(name, _)| name.as_ref()).collect();
        let missing: Vec<&str> = names.iter().copied().filter(|name| table.column(name).is_none()).collect();
        if !missing.is_empty() {
            return Err(table.without(missing.into_iter().map(|name| (name, None))));
        }
        let key = table.key(&names)?.clone();
        let rules = || key.iter().map(|(index, _)| table.columns[*index].canonical);
        Ok(Shape {
            table: table.name.clone(),
            by_name: table.columns.iter().enumerate().map(|(index, column)| (column.name.clone(), index)).collect(),
            verbatim: rules().all(|rule| rule == Some(Canonical::Same)),
            foldable: rules().all(|rule| rule.is_some()),
            columns: table.columns.clone(),
            key,
        })
    }

    /// Whether this shape serves events with `key`.
    pub(crate) fn serves(&self, key: &Columns<'_>) -> bool {
        self.key.len() == key.0.len() && key.0.iter().all(|(name, _)| self.is_key(name))
    }

    fn is_key(&self, name: &str) -> bool {
        self.key.iter().any(|(index, _)| self.columns[*index].name == name)
    }

    /// The column called `name`. Events list columns in one order, so `guess` is nearly always right.
    pub(crate) fn column(&self, name: &str, guess: usize) -> Option<usize> {
        match self.columns.get(guess) {
            Some(column) if column.name == name => Some(guess),
            _ => self.by_name.get(name).copied(),
        }
    }

    /// The misfit of an event that has a column which the target has not.
    pub(crate) fn without(&self, name: &str) -> Misfit {
        let table = Table { name: self.table.clone(), columns: Vec::new(), keys: Vec::new(), rights: None };
        table.without(std::iter::once((name, None)))
    }

    /// What a record's key is folded and parked by.
    pub(crate) fn canonical<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>, serde_json::Error> {
        if !self.foldable {
            return Ok(Cow::Borrowed(b"{}"));
        }
        if self.verbatim {
            return Ok(Cow::Borrowed(text));
        }
        Ok(Cow::Owned(self.canonical_of(&Columns::decode(text)?)))
    }

    /// Whether a key, whose canonical text is known, and another one are equal to PostgreSQL though their texts differ.
    pub(crate) fn is_equal(&self, canonical: &[u8], other: &Columns<'_>) -> bool {
        self.foldable && !self.verbatim && self.canonical_of(other) == canonical
    }

    fn canonical_of(&self, key: &Columns<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        let columns = key.0.iter().map(|(name, value)| {
            let column = self.by_name.get(name.as_ref()).map(|index| &self.columns[*index]);
            let form = column.map_or(Form::Text, |column| Form::of_type(column.oid));
            let column = KeyColumn { name, form, canonical: column.and_then(|column| column.canonical) };
            (column, value.as_deref().unwrap_or_default())
        });
        write_canonical(columns, &mut out);
        out
    }

    /// Whether SET may and must name the column: never what the server gives, and of the key only what can differ and yet be equal.
    pub(crate) fn is_set(&self, index: usize) -> bool {
        let column = &self.columns[index];
        let in_key = self.key.iter().any(|(key, _)| *key == index);
        column.kind == ColumnKind::Plain && (!in_key || column.canonical != Some(Canonical::Same))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table `shop.t` of `(name, type, oid)`; the first `key` columns are its key.
    pub(crate) fn table(columns: &[(&str, &str, u32)], key: usize) -> Table {
        let column = |(name, cast, oid): &(&str, &str, u32)| Column {
            name: (*name).to_owned(),
            cast: (*cast).to_owned(),
            oid: *oid,
            modifier: -1,
            canonical: Canonical::of_type(*oid),
            kind: ColumnKind::Plain,
        };
        let key = (0..key).map(|index| (index, "OPERATOR(pg_catalog.=)".to_owned())).collect();
        Table {
            name: TableName::new("shop", "t"),
            columns: columns.iter().map(column).collect(),
            keys: vec![key],
            rights: None,
        }
    }

    pub(crate) fn shape(table: &Table) -> Shape {
        let names = table.keys[0].iter().map(|(index, _)| (table.columns[*index].name.as_str().into(), None));
        Shape::new(table, &Columns(names.collect())).expect("the table has its key")
    }

    #[test]
    fn what_is_missing_is_told_with_its_cure() {
        let table = table(&[("id", "bigint", 20), ("Name", "text", 25)], 1);
        let described = |name: &str| Described {
            name: name.to_owned(),
            type_oid: 1700,
            type_name: "numeric(12,2)".to_owned(),
            modifier: -1,
            key: false,
        };
        let misfits = table.misfits(&[described("id"), described("a\"b")], &["id".to_owned()]);
        let [Misfit::NoColumns { sql, .. }] = &misfits[..] else { panic!("{misfits:?}") };
        assert_eq!(sql, "ALTER TABLE \"shop\".\"t\" ADD COLUMN \"a\"\"b\" numeric(12,2)");

        let misfits = table.misfits(&[], &["Name".to_owned()]);
        let [Misfit::NoKey { sql, .. }] = &misfits[..] else { panic!("{misfits:?}") };
        assert_eq!(sql, "ALTER TABLE \"shop\".\"t\" ADD UNIQUE (\"Name\")");
    }

    #[test]
    fn a_column_that_would_round_is_told() {
        let mut table = table(&[("id", "bigint", 20), ("at", "timestamp without time zone", 1114)], 1);
        table.columns[1].modifier = 3;
        let described = |modifier| Described {
            name: "at".into(),
            type_oid: 1114,
            type_name: "timestamp(6) without time zone".into(),
            modifier,
            key: false,
        };
        let misfits = table.misfits(&[described(6)], &["id".into()]);
        let [Misfit::Narrow { sql, .. }] = &misfits[..] else { panic!("{misfits:?}") };
        assert_eq!(sql, "ALTER TABLE \"shop\".\"t\" ALTER COLUMN \"at\" TYPE timestamp(6) without time zone");
        assert_eq!(table.misfits(&[described(3)], &["id".into()]), []);
        table.columns[1].kind = ColumnKind::Generated;
        assert_eq!(table.misfits(&[described(6)], &["id".into()]), []);
    }

    #[test]
    fn equal_keys_fold_by_one_text() {
        let plain = shape(&table(&[("id", "bigint", 20)], 1));
        assert!(matches!(plain.canonical(b"{\"id\":1}"), Ok(Cow::Borrowed(b"{\"id\":1}"))));

        let numeric = shape(&table(&[("n", "numeric", 1700)], 1));
        assert_eq!(
            numeric.canonical(b"{\"n\":\"1.50\"}").expect("a key"),
            numeric.canonical(b"{\"n\":\"1.5\"}").expect("a key")
        );
        assert!(numeric.foldable && numeric.is_set(0) && !plain.is_set(0));

        let without = shape(&table(&[("j", "jsonb", 3802)], 1));
        assert!(!without.foldable);
        assert_eq!(&*without.canonical(b"{\"j\":\"1\"}").expect("a key"), b"{}");
    }
}
