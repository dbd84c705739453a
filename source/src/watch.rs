//! What the catalog shows of publication and tables, held against what the state says of them.
//!
//!     look (rim) ─▶ Seen ─▶ faults      what is missing from the stream by now: stop
//!                      ├──▶ warnings    what a person should know of: told once for each change
//!                      └──▶ changes     rows that changed without being sent, by comparison with the imprint in the state
//!
//! Asked at the start, once a minute, and at each relation of the stream, since none of this is in the stream. The catalog
//! can be ahead of the stream, and then a change is noticed before its place. It is behind only while a commit is not
//! visible yet, as when the synchronous standby is away: the next look notices.
//! Pure but for [`look`]; it knows nothing of Kafka.

use std::collections::{BTreeMap, BTreeSet};

use schemas::state::{Imprint, ImprintColumn, ImprintFile};
use schemas::{Lsn, TableName};

pub mod changes;
pub mod look;

pub use changes::{Changes, Silent, changes};

/// One look at the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Where the WAL ended when the look began: of two looks the later one counts.
    pub at: Lsn,
    /// The publication, if it is there.
    pub publication: Option<Publication>,
    /// The tables that were asked for and are there.
    pub tables: BTreeMap<u32, Table>,
    /// Of those that have their name no more: which table has it now.
    pub successors: BTreeMap<u32, u32>,
}

/// The publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// Which of insert, update, delete and truncate it leaves out.
    pub omitted: Vec<&'static str>,
    /// Whether changes of partitions stand under their root.
    pub via_root: bool,
}

/// A table of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: TableName,
    /// Whether it is partitioned.
    pub is_partitioned: bool,
    /// Whether its changes are in the WAL.
    pub is_logged: bool,
    /// Whether the publication has it.
    pub is_published: bool,
    /// Its replica identity in PostgreSQL's letter.
    pub identity: char,
    /// Whether something names its rows: the identity's index, or under FULL the primary key or a named one.
    pub has_key: bool,
    /// Whether its key is one that the configuration names.
    pub is_named: bool,
    /// The columns of everything that could name rows: a named key, and each index that is unique at once, over columns that
    /// are NOT NULL. By number, sorted.
    pub keys: Vec<Vec<i16>>,
    /// What is to be remembered of it, but for files.
    pub imprint: Imprint,
    /// Published columns that came with a value for the rows that were there.
    pub given: BTreeSet<i16>,
    /// Published columns that have a default or an identity by now.
    pub defaulted: BTreeSet<i16>,
    /// Where its rows lie.
    pub files: Vec<File>,
    /// How many rows it is thought to hold.
    pub rows_estimated: u64,
}

/// A table's own storage, or that of one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What is remembered of it.
    pub file: ImprintFile,
    /// Its name as SQL writes it.
    pub name: String,
    /// Nobody has counted its rows since it was made or truncated.
    pub is_uncounted: bool,
    /// What it brought along when it came.
    pub brought: Brought,
}

/// What a partition held when it became one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// It was one of ours before.
    Known,
    /// It is new, and was not asked.
    Unasked,
    /// It is new and came without rows, or was made as a partition: all its rows were sent.
    Nothing,
    /// It is new, and has rows that are older than that; or it could not be told.
    Rows,
}

impl Table {
    /// What the state is to remember of it. A new partition that was not asked is not known yet.
    pub fn imprint(&self) -> Imprint {
        let known = self.files.iter().filter(|file| file.brought != Brought::Unasked);
        Imprint { files: known.map(|file| file.file).collect(), ..self.imprint.clone() }
    }

    /// Takes in the key that is named for it, as long as it has these columns.
    pub fn go_by(&mut self, named: &[String]) {
        let number = |name: &String| self.column(name).map(|column| column.0);
        let Some(mut key) = named.iter().map(number).collect::<Option<Vec<i16>>>() else { return };
        key.sort_unstable();
        self.keys.insert(0, key.clone());
        if self.identity == 'f' {
            self.imprint.key = key;
            self.has_key = true;
        }
        self.is_named = true;
    }

    /// The published column of this name.
    pub fn column(&self, name: &str) -> Option<&ImprintColumn> {
        self.imprint.columns.iter().find(|column| column.1 == name)
    }
}

/// What takes changes out of the stream by now: to go on would be to lose them. `tables` are those that must be published.
pub fn faults(seen: &Seen, publication: &str, tables: impl Iterator<Item = u32>) -> Vec<String> {
    let Some(found) = &seen.publication else {
        return vec![format!(
            "the publication {publication} is gone, and changes made since are missing from the stream: make it again, and set source.on_rewrite = \"reload\" to load its tables again, or start under a new prefix"
        )];
    };
    let mut faults = Vec::new();
    if !found.omitted.is_empty() {
        faults.push(format!(
            "the publication {publication} leaves out {} by now, and such changes made since are missing: ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate'), and set source.on_rewrite = \"reload\" to load its tables again",
            found.omitted.join(", ")
        ));
    }
    for table in tables.filter_map(|oid| seen.tables.get(&oid)) {
        let name = &table.name;
        if !table.is_logged {
            faults.push(format!(
                "{name} is unlogged by now, so its changes are not in the stream: ALTER TABLE … SET LOGGED, and load it again under a new prefix, or take it out of source.tables"
            ));
        } else if !table.is_published {
            faults.push(format!(
                "{name} is not in the publication {publication} any more, and changes made since are missing: put it back by ALTER PUBLICATION … ADD TABLE, and set source.on_rewrite = \"reload\" to load it again; or take it out of source.tables"
            ));
        } else if table.is_partitioned && !found.via_root {
            faults.push(format!(
                "{name} is partitioned and the publication {publication} sends its changes under the partitions' names: ALTER PUBLICATION … SET (publish_via_partition_root = true), and set source.on_rewrite = \"reload\" to load what it publishes again"
            ));
        }
    }
    faults
}

/// What a person should know of, each said in the same words as long as it lasts. `names` are those of the start.
pub fn warnings(seen: &Seen, names: &BTreeMap<u32, TableName>) -> BTreeSet<String> {
    let warning = |(oid, name): (&u32, &TableName)| match seen.tables.get(oid) {
        None => Some(format!("{name} was dropped: the other tables go on without it; take it out of source.tables")),
        Some(table) if table.name != *name => Some(format!(
            "{name} is called {0} now and goes on in its topic: write {0} in source.tables in its place before the next start",
            table.name
        )),
        Some(table) if table.identity == 'n' => Some(format!(
            "{name} has REPLICA IDENTITY NOTHING, so PostgreSQL refuses its updates and deletes: ALTER TABLE … REPLICA IDENTITY DEFAULT"
        )),
        Some(table) if !table.has_key && table.is_named && table.identity != 'f' => Some(format!(
            "{name} has REPLICA IDENTITY FULL no longer, so PostgreSQL refuses its updates and deletes: ALTER TABLE … REPLICA IDENTITY FULL"
        )),
        Some(table) if !table.has_key => {
            Some(format!("{name} has lost its key: its next row stops the source, unless the same key is back by then"))
        }
        Some(_) => None,
    };
    names.iter().filter_map(warning).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use schemas::state::ImprintLabel;

    use super::*;

    /// `users (id int8 primary key, name text, bio text)` with OID 7, as it is published.
    pub(crate) fn users() -> Table {
        let column = |number: i16, name: &str, oid| ImprintColumn(number, name.into(), oid, oid, -1, 700);
        let imprint = Imprint {
            publication: 1,
            altered: Some(700),
            entry: Some(2),
            key: vec![1],
            last_column: 3,
            columns: vec![column(1, "id", 20), column(2, "name", 25), column(3, "bio", 25)],
            files: vec![],
            labels: vec![ImprintLabel(60, 61, "sad".into())],
        };
        let file = ImprintFile(7, 70, 71);
        Table {
            name: TableName::new("public", "users"),
            is_partitioned: false,
            is_logged: true,
            is_published: true,
            identity: 'd',
            has_key: true,
            is_named: false,
            keys: vec![vec![1]],
            imprint,
            given: BTreeSet::new(),
            defaulted: BTreeSet::new(),
            files: vec![File { file, name: "public.users".into(), is_uncounted: false, brought: Brought::Known }],
            rows_estimated: 10,
        }
    }

    pub(crate) fn seen(table: Table) -> Seen {
        let publication = Publication { omitted: vec![], via_root: true };
        Seen { at: Lsn(1), publication: Some(publication), tables: [(7, table)].into(), successors: BTreeMap::new() }
    }

    #[test]
    fn what_takes_changes_out_of_the_stream_is_a_fault() {
        let check = |seen: &Seen, part: &str| {
            let faults = faults(seen, "p", [7].into_iter());
            assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
        };
        let changed = |change: fn(&mut Table)| {
            let mut table = users();
            change(&mut table);
            seen(table)
        };
        assert_eq!(faults(&seen(users()), "p", [7].into_iter()), Vec::<String>::new());
        check(&Seen { publication: None, ..seen(users()) }, "is gone");
        let silent = Publication { omitted: vec!["delete"], via_root: true };
        check(&Seen { publication: Some(silent), ..seen(users()) }, "leaves out delete");
        check(&changed(|table| table.is_published = false), "is not in the publication");
        check(&changed(|table| table.is_logged = false), "unlogged");
        let mut leaves = changed(|table| table.is_partitioned = true);
        assert!(faults(&leaves, "p", [7].into_iter()).is_empty());
        leaves.publication = Some(Publication { omitted: vec![], via_root: false });
        check(&leaves, "publish_via_partition_root");
        let mut other = seen(users());
        other.tables.insert(8, Table { is_published: false, ..users() });
        assert!(faults(&other, "p", [7].into_iter()).is_empty(), "a table that is on its way out may be out already");
    }

    #[test]
    fn what_does_not_stop_the_stream_is_a_warning() {
        let names = [(7, TableName::new("public", "users"))].into();
        let check = |seen: &Seen, part: &str| {
            let warnings = warnings(seen, &names);
            assert!(warnings.len() == 1 && warnings.iter().all(|warning| warning.contains(part)), "{warnings:?}");
        };
        assert!(warnings(&seen(users()), &names).is_empty());
        check(&Seen { tables: BTreeMap::new(), ..seen(users()) }, "was dropped");
        check(&seen(Table { name: TableName::new("public", "people"), ..users() }), "is called public.people now");
        check(&seen(Table { identity: 'n', has_key: false, ..users() }), "NOTHING");
        check(&seen(Table { has_key: false, ..users() }), "has lost its key");
        check(&seen(Table { has_key: false, is_named: true, ..users() }), "REPLICA IDENTITY FULL no longer");
    }

    #[test]
    fn a_named_key_counts_as_long_as_its_columns_are_there() {
        let keyless = || Table { identity: 'f', has_key: false, keys: vec![], ..users() };
        let mut table = keyless();
        table.go_by(&["name".into(), "id".into()]);
        assert_eq!((table.has_key, &table.keys[..], &table.imprint.key[..]), (true, &[vec![1, 2]][..], &[1, 2][..]));
        let mut renamed = keyless();
        renamed.go_by(&["nick".into()]);
        assert_eq!(renamed, keyless());
    }
}
