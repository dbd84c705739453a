//! A relation as we publish it: what the stream says of it, and what only the catalog knows.
//!
//! Pure. Rows are read by the relation that stood before them in the stream, never by the catalog of now.

use std::collections::{BTreeSet, HashMap, HashSet};

use schemas::event;
use schemas::fingerprint::{self, Fingerprint};
use schemas::key::Canonical;
use schemas::write::{Cell, Template, TemplateColumn};
use schemas::{Form, TableName};

use crate::sorted::{Sorted, Sorting};
use crate::{keys, pgoutput};

/// What the catalog adds to the stream's description.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The columns of the key in its index's own order, where the table has one that is not deferrable; under identity FULL
    /// those that the configuration names, if it does.
    pub primary_key: Vec<String>,
    /// How the key's index sorts, column by column. Empty where no index holds it.
    pub sorted: Vec<Sorted>,
    /// The key by which the table was published and which goes on, where the stream does not name one.
    pub lasting_key: Option<Vec<String>>,
    /// The types' names with modifier, by OID and modifier.
    pub type_names: HashMap<(u32, i32), String>,
    /// How a column's canonical text is found; absent where it has none.
    pub canonical: HashMap<String, Canonical>,
    /// The types that are still there, by OID.
    pub types: HashSet<u32>,
}

impl Details {
    /// Goes by a key that the configuration names. No index is known to sort by it.
    pub fn go_by(&mut self, named: &[String]) {
        if !keys::is_same(named, &self.primary_key) {
            self.primary_key = named.to_vec();
            self.sorted.clear();
        }
    }

    /// How the key's index sorts, where there is one over these columns.
    pub fn sorting_of(&self, key: &[String]) -> Option<Sorting> {
        let is_whole = !self.sorted.is_empty() && keys::is_same(key, &self.primary_key);
        is_whole.then(|| Sorting(self.primary_key.iter().cloned().zip(self.sorted.iter().cloned()).collect()))
    }
}

/// What PostgreSQL calls a type that is gone.
pub const NO_TYPE: &str = "???";

/// Why a relation cannot be published.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// Nothing identifies its rows.
    #[error(
        "it has no replica identity that names a row: give it a primary key, or a unique index over NOT NULL columns by ALTER TABLE … REPLICA IDENTITY USING INDEX; or, where its rows can be told apart and no index says so, ALTER TABLE … REPLICA IDENTITY FULL and name the columns in source.keys"
    )]
    Missing,
    /// What named them when they were published names them no longer.
    #[error(
        "the key by which it is published, ({0}), names its rows no longer: make a primary key or a unique index over the same columns, NOT NULL and not deferrable, and start again; for another key start under a new prefix"
    )]
    Lost(String),
    /// Under identity FULL the key is the primary key or a named one, and a part of it is not published.
    #[error(
        "its key column {0:?} is not published: add it to the publication's column list; or, if source.keys names it and it was renamed, write its new name there"
    )]
    Unpublished(String),
}

/// A relation with everything that its rows need.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Its OID.
    pub oid: u32,
    /// Its name.
    pub name: TableName,
    /// The replica identity in PostgreSQL's letter.
    pub identity: char,
    /// The published columns.
    pub columns: Vec<event::Column>,
    /// Which of them are the key, by index.
    pub key: Vec<usize>,
    /// Whether the key has no canonical text, so that all records go to partition 0.
    pub single_partition: bool,
    /// How the canonical text of each column of the key is found, where it has one.
    routing: Vec<Canonical>,
    /// How the key is sorted: by its index, or else by the bytes of its text.
    pub sorting: Sorting,
    /// What its rows' events look like.
    pub template: Template,
    /// One number for all of it.
    pub fingerprint: Fingerprint,
}

impl Relation {
    /// The relation as described, for events of the source called `name` in database `db`.
    pub fn new(described: &pgoutput::Relation, details: &Details, name: &str, db: &str) -> Result<Relation, NoKey> {
        let key = key_columns(described, details)?;
        let columns: Vec<_> = described
            .columns
            .iter()
            .map(|column| event::Column {
                name: column.name.clone(),
                type_oid: column.type_oid,
                type_name: details.type_names.get(&(column.type_oid, column.modifier)).cloned().unwrap_or_default(),
                modifier: column.modifier,
                key: key.contains(column.name.as_str()),
            })
            .collect();
        let template_column = |column: &event::Column| TemplateColumn {
            name: column.name.clone(),
            form: Form::of_type(column.type_oid),
            key: column.key,
            canonical: details.canonical.get(&column.name).copied(),
        };
        let table = TableName::new(&described.schema, &described.table);
        let of_key = |(i, column): (usize, &event::Column)| column.key.then_some(i);
        let names: Vec<String> = columns.iter().filter(|column| column.key).map(|column| column.name.clone()).collect();
        let by_text = || Sorting(names.iter().map(|name| (name.clone(), Sorted::by_text())).collect());
        Ok(Relation {
            oid: described.oid,
            identity: described.identity,
            key: columns.iter().enumerate().filter_map(of_key).collect(),
            single_partition: columns.iter().any(|c| c.key && !details.canonical.contains_key(&c.name)),
            routing: columns.iter().filter(|c| c.key).filter_map(|c| details.canonical.get(&c.name)).copied().collect(),
            sorting: details.sorting_of(&names).unwrap_or_else(by_text),
            template: Template::new(name, db, &table, columns.iter().map(template_column).collect()),
            fingerprint: fingerprint(described),
            name: table,
            columns,
        })
    }

    /// How the canonical text of each column of the key is found; empty where one has none.
    pub fn routing(&self) -> Vec<Canonical> {
        if self.single_partition { Vec::new() } else { self.routing.clone() }
    }

    /// Whether equal keys, and no others, have the same canonical text.
    pub fn has_canonical_key(&self) -> bool {
        self.template.columns().iter().all(|column| !column.key || column.canonical.is_some())
    }

    /// The key's column names.
    pub fn key_names(&self) -> Vec<String> {
        self.key.iter().map(|i| self.columns[*i].name.clone()).collect()
    }

    /// Whether the key's columns are all known in `cells`.
    pub fn knows_key(&self, cells: &[Cell<'_>]) -> bool {
        self.key.iter().all(|i| matches!(cells.get(*i), Some(Cell::Text(_))))
    }

    /// The name of a column of the key that is NULL in `cells`: only a key that the configuration names can be.
    pub fn null_in_key(&self, cells: &[Cell<'_>]) -> Option<&str> {
        let null = self.key.iter().find(|i| matches!(cells.get(**i), Some(Cell::Null)))?;
        Some(&self.columns[*null].name)
    }

    /// Whether two rows differ in their key.
    pub fn key_differs(&self, a: &[Cell<'_>], b: &[Cell<'_>]) -> bool {
        self.key.iter().any(|i| a[*i] != b[*i])
    }
}

fn key_columns<'a>(described: &'a pgoutput::Relation, details: &'a Details) -> Result<BTreeSet<&'a str>, NoKey> {
    // FULL flags every column, so the key has to come from elsewhere.
    let key: BTreeSet<&str> = match &details.lasting_key {
        _ if described.names_key() => {
            described.columns.iter().filter(|column| column.identity).map(|column| column.name.as_str()).collect()
        }
        Some(key) => key.iter().map(String::as_str).collect(),
        None if described.identity == 'f' => details.primary_key.iter().map(String::as_str).collect(),
        None => BTreeSet::new(),
    };
    if key.is_empty() {
        return Err(NoKey::Missing);
    }
    match key.iter().find(|name| !described.columns.iter().any(|column| column.name == **name)) {
        Some(name) => Err(NoKey::Unpublished((*name).to_owned())),
        None => Ok(key),
    }
}

/// The number of a relation, equal for the stream's description and the catalog's if and only if rows read alike.
pub fn fingerprint(described: &pgoutput::Relation) -> Fingerprint {
    let mut builder = fingerprint::Builder::default();
    builder
        .field(&described.oid.to_le_bytes())
        .field(described.schema.as_bytes())
        .field(described.table.as_bytes())
        .field(&[described.identity as u8]);
    for column in &described.columns {
        builder
            .field(&[u8::from(column.identity)])
            .field(column.name.as_bytes())
            .field(&column.type_oid.to_le_bytes())
            .field(&column.modifier.to_le_bytes());
    }
    builder.finish()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `users (id int8 primary key, name text, bio text)` under the given identity.
    pub(crate) fn users(identity: char) -> pgoutput::Relation {
        let column = |name: &str, type_oid, key| pgoutput::Column {
            identity: key || identity == 'f',
            name: name.into(),
            type_oid,
            modifier: -1,
        };
        pgoutput::Relation {
            oid: 7,
            schema: "public".into(),
            table: "users".into(),
            identity,
            columns: vec![column("id", 20, true), column("name", 25, false), column("bio", 25, false)],
        }
    }

    pub(crate) fn details() -> Details {
        let canonical = [("id".to_owned(), Canonical::Same)].into();
        Details { primary_key: vec!["id".into()], canonical, ..Details::default() }
    }

    #[test]
    fn the_key_is_the_identity_or_the_primary_key_under_full() {
        for identity in ['d', 'f'] {
            let relation = Relation::new(&users(identity), &details(), "shop", "shop").expect("it has a key");
            assert_eq!(relation.key_names(), ["id"]);
            assert!(!relation.single_partition);
        }
    }

    #[test]
    fn a_table_without_a_key_is_refused() {
        let none = Details { primary_key: vec![], ..details() };
        let refused = Relation::new(&users('f'), &none, "shop", "shop").expect_err("no key");
        assert_eq!(refused, NoKey::Missing);
        let hidden = Details { primary_key: vec!["secret".into()], ..details() };
        let refused = Relation::new(&users('f'), &hidden, "shop", "shop").expect_err("key not published");
        assert_eq!(refused, NoKey::Unpublished("secret".into()));
    }

    #[test]
    fn a_key_without_canonical_text_has_a_single_partition() {
        let blind = Details { canonical: HashMap::new(), ..details() };
        assert!(Relation::new(&users('d'), &blind, "shop", "shop").expect("it has a key").single_partition);
    }

    #[test]
    fn everything_that_changes_how_rows_read_changes_the_fingerprint() {
        let base = users('d');
        let changes: [fn(&mut pgoutput::Relation); 6] = [
            |r| r.oid = 8,
            |r| r.table = "people".into(),
            |r| r.identity = 'i',
            |r| r.columns[1].name = "nick".into(),
            |r| r.columns[1].modifier = 7,
            |r| drop(r.columns.pop()),
        ];
        for change in changes {
            let mut other = base.clone();
            change(&mut other);
            assert_ne!(fingerprint(&base), fingerprint(&other));
        }
    }
}
