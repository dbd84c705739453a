//! Rows that changed without being sent: what two looks at the catalog tell of the time between them.
//!
//! Pure. DDL sends no rows. Where it leaves the text of every row as it was, it is followed without a word; where it may
//! have changed rows, or rows may have gone by while the table was not published, somebody has to decide.
//!
//! ALTER TABLE that writes rows anew gives the table another file and another TOAST table; VACUUM FULL, CLUSTER and
//! TRUNCATE another file alone. Only a table without TOAST leaves that open: there a new file counts as rewritten if the
//! catalog's row of a column has changed as well. (Measured on 14 to 18.)

use std::collections::BTreeMap;
use std::fmt;

use schemas::state::{Imprint, ImprintColumn, ImprintFile, ImprintLabel};

use super::{Brought, File, Table};

/// What has happened between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What may have changed rows without sending them.
    pub silent: Vec<Silent>,
    /// What was taken for harmless, and should be known.
    pub remarks: Vec<String>,
}

/// Why rows may be others than were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silent {
    /// The publication's entry for the table is another one.
    Republished,
    /// The publication was altered, and may have left out operations for a while.
    Altered,
    /// A new column has values in the rows that were there.
    Given(String),
    /// A column was there before, and its values were not sent.
    Unpublished(String),
    /// A column was dropped and made again.
    Replaced(String),
    /// A column has another type, whose values may read differently.
    Type {
        /// Its name.
        column: String,
        /// Whether it is part of the key.
        is_key: bool,
    },
    /// The rows were written anew, and these columns were altered.
    Rewritten(Vec<String>),
    /// A label of an enum has another text, in all rows.
    Relabelled {
        /// Its text of before.
        label: String,
        /// Whether the enum is part of the key.
        is_key: bool,
    },
    /// A partition came with rows.
    Attached(String),
    /// A partition was truncated by itself.
    Truncated(String),
    /// Other columns are hidden or masked than when the rows were published.
    Ruled,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silent::Republished => f.write_str(
                "its entry in the publication is another one (row filter or column list changed, or it was taken out and put back)",
            ),
            Silent::Altered => f.write_str(
                "the publication was altered (what it publishes, its name or its owner), and may have left out changes for a while",
            ),
            Silent::Given(column) => write!(f, "the new column {column} has values in rows that were there"),
            Silent::Unpublished(column) => write!(f, "the column {column} was not published for a while"),
            Silent::Replaced(column) => write!(f, "the column {column} was dropped and made again"),
            Silent::Type { column, .. } => write!(f, "the column {column} has another type"),
            Silent::Rewritten(columns) => write!(f, "its rows were written anew when {} was altered", columns.join(", ")),
            Silent::Relabelled { label, .. } => write!(f, "the label {label} of an enum has another text"),
            Silent::Attached(partition) => write!(f, "the partition {partition} was attached with rows"),
            Silent::Ruled => f.write_str("its rule in source.columns is another one, and what was published keeps its old form"),
            Silent::Truncated(partition) => write!(f, "the partition {partition} was truncated by itself"),
        }
    }
}

/// How a table's storage has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Storage {
    /// It is the same, or was moved without a look at the rows.
    Kept,
    /// Another file, and no TOAST table to tell why.
    Unclear,
    /// Every row was written anew by ALTER TABLE.
    Rewritten,
}

/// What has happened to a table since `old` was taken of it.
pub fn changes(old: &Imprint, now: &Table) -> Changes {
    let mut changes = Changes::default();
    if (old.publication, old.entry) != (now.imprint.publication, now.imprint.entry) {
        changes.silent.push(Silent::Republished);
    } else if old.altered.zip(now.imprint.altered).is_some_and(|(old, now)| old != now) {
        changes.silent.push(Silent::Altered);
    }
    let files: BTreeMap<u32, ImprintFile> = old.files.iter().map(|file| (file.0, *file)).collect();
    let storage = |file: &File| files.get(&file.file.0).map_or(Storage::Kept, |old| storage(*old, file.file));
    columns(old, now, now.files.iter().map(storage).max().unwrap_or(Storage::Kept), &mut changes);
    partitions(&files, now, &mut changes);
    labels(old, now, &mut changes);
    changes
}

fn storage(old: ImprintFile, new: ImprintFile) -> Storage {
    match (old.2, new.2) {
        _ if old.1 == new.1 => Storage::Kept,
        (0, _) | (_, 0) => Storage::Unclear,
        (old, new) if old == new => Storage::Kept,
        _ => Storage::Rewritten,
    }
}

fn columns(old: &Imprint, now: &Table, storage: Storage, changes: &mut Changes) {
    let before: BTreeMap<i16, &ImprintColumn> = old.columns.iter().map(|column| (column.0, column)).collect();
    let is_left = |number: i16| now.imprint.columns.iter().any(|column| column.0 == number);
    let widens = |new: &&ImprintColumn| before.get(&new.0).is_some_and(|old| is_integer_widened(old, new));
    let widened: Vec<&str> = now.imprint.columns.iter().filter(widens).map(|column| column.1.as_str()).collect();
    // A new column that was filled by a rewrite: of one without a default that is said only where nothing else explains it.
    let may_be_filled = |number| storage > Storage::Kept && (widened.is_empty() || now.defaulted.contains(number));
    let mut altered = Vec::new();
    for column in &now.imprint.columns {
        let ImprintColumn(number, name, ..) = column;
        match before.get(number) {
            None if *number <= old.last_column => changes.silent.push(Silent::Unpublished(name.clone())),
            None if now.given.contains(number) || may_be_filled(number) => {
                changes.silent.push(Silent::Given(name.clone()));
            }
            None if old.columns.iter().any(|old| old.1 == *name && !is_left(old.0)) => {
                changes.silent.push(Silent::Replaced(name.clone()));
            }
            None => {}
            Some(old_column) if !keeps_text(old_column, column) => {
                let is_key = old.key.contains(number);
                changes.silent.push(Silent::Type { column: name.clone(), is_key });
            }
            Some(old_column) if old_column.5 != column.5 => altered.push(name.clone()),
            Some(_) => {}
        }
    }
    if storage == Storage::Kept || !changes.silent.is_empty() {
        return;
    }
    if !widened.is_empty() {
        changes.remarks.push(format!(
            "{} was written anew with wider integers in {}; the values are taken to be the same: if USING made others of them, or of other columns, load the table again",
            now.name,
            widened.join(", ")
        ));
    } else if !altered.is_empty() {
        changes.silent.push(Silent::Rewritten(altered));
    }
    // With no published column altered it was the storage alone: another access method, or columns that we do not carry.
}

const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const VARCHAR: u32 = 1043;
const NUMERIC: u32 = 1700;
const VARBIT: u32 = 1562;
/// time, timestamp, timestamptz, timetz: the modifier is a number of digits.
const TIMES: [u32; 4] = [1083, 1114, 1184, 1266];

/// Whether every value that a column could hold reads the same in its new type. A USING clause is in no catalog: one that
/// was given without need is seen only by the rewrite that it causes.
fn keeps_text(old: &ImprintColumn, new: &ImprintColumn) -> bool {
    let ImprintColumn(_, _, _, old_base, old_modifier, _) = *old;
    let ImprintColumn(_, _, _, new_base, new_modifier, _) = *new;
    let is_wider = new_modifier == -1 || (old_modifier != -1 && new_modifier >= old_modifier);
    match (old_base, new_base) {
        _ if is_integer_widened(old, new) => true,
        (VARCHAR | TEXT, TEXT) => true,
        (TEXT, VARCHAR) => new_modifier == -1,
        (VARCHAR, VARCHAR) | (VARBIT, VARBIT) => is_wider,
        (NUMERIC, NUMERIC) => {
            let (old, new) = (old_modifier.wrapping_sub(4), new_modifier.wrapping_sub(4));
            new_modifier == -1 || (old_modifier != -1 && old & 0xffff == new & 0xffff && new >> 16 >= old >> 16)
        }
        (old, new) if old == new && TIMES.contains(&old) => is_wider,
        (old, new) => old == new && old_modifier == new_modifier,
    }
}

fn is_integer_widened(old: &ImprintColumn, new: &ImprintColumn) -> bool {
    matches!((old.3, new.3), (INT2, INT4 | INT8) | (INT4, INT8))
}

/// No row is written when a label is renamed, and all that have it read differently.
fn labels(old: &Imprint, now: &Table, changes: &mut Changes) {
    for ImprintLabel(of, oid, text) in &old.labels {
        if now.imprint.labels.iter().any(|label| label.1 == *oid && label.2 != *text) {
            let is_key = old.columns.iter().any(|column| column.3 == *of && old.key.contains(&column.0));
            changes.silent.push(Silent::Relabelled { label: text.clone(), is_key });
        }
    }
}

fn partitions(files: &BTreeMap<u32, ImprintFile>, now: &Table, changes: &mut Changes) {
    if !now.is_partitioned {
        return;
    }
    let is_moved = |file: &&File| files.get(&file.file.0).is_some_and(|old| old.1 != file.file.1);
    let known = now.files.iter().filter(|file| files.contains_key(&file.file.0));
    // TRUNCATE of the root gives all of them another file, and is sent.
    let all_moved = known.clone().all(|file| is_moved(&file));
    for file in &now.files {
        let toast = files.get(&file.file.0).map(|old| old.2);
        if file.brought == Brought::Rows && toast.is_none() {
            changes.silent.push(Silent::Attached(file.name.clone()));
        } else if is_moved(&file) && !all_moved && file.is_uncounted && toast == Some(file.file.2) {
            changes.silent.push(Silent::Truncated(file.name.clone()));
        }
    }
    let gone = files.keys().filter(|oid| !now.files.iter().any(|file| file.file.0 == **oid)).count();
    if gone > 0 {
        changes.remarks.push(format!(
            "{gone} partition(s) of {} were dropped or detached: no deletes are sent for that, so their rows stay in the topic, and in targets until they are dropped there too",
            now.name
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::users;
    use super::*;

    /// What a change of `users` is taken for.
    fn check(change: impl Fn(&mut Table), silent: &[Silent]) {
        let old = users().imprint();
        let mut now = users();
        change(&mut now);
        assert_eq!(changes(&old, &now).silent, silent);
    }

    fn add(table: &mut Table, name: &str) {
        table.imprint.last_column += 1;
        let number = table.imprint.last_column;
        table.imprint.columns.push(ImprintColumn(number, name.into(), INT4, INT4, -1, 800));
    }

    fn rewrite(table: &mut Table) {
        table.files[0].file = ImprintFile(7, 80, 81);
    }

    fn retype(table: &mut Table, at: usize, oid: u32, modifier: i32) {
        let column = &mut table.imprint.columns[at];
        (column.2, column.3, column.4, column.5) = (oid, oid, modifier, 800);
    }

    #[test]
    fn what_leaves_every_row_as_it_was_is_followed() {
        check(|_| (), &[]);
        check(|table| add(table, "age"), &[]);
        check(|table| drop(table.imprint.columns.remove(2)), &[]);
        check(|table| (table.imprint.columns[1].1, table.imprint.columns[1].5) = ("nick".into(), 800), &[]);
        check(|table| table.files[0].file.1 = 80, &[]); // VACUUM FULL
        check(|table| retype(table, 1, VARCHAR, -1), &[]);
        // A default that is set later, NOT NULL, statistics: the column's row changes and the file does not.
        check(|table| table.imprint.columns[1].5 = 800, &[]);
        check(rewrite, &[]); // Another access method, a generated column that is not published.
    }

    #[test]
    fn what_may_have_changed_rows_is_told() {
        let given = |name: &str| Silent::Given(name.into());
        let typed = |column: &str, is_key| Silent::Type { column: column.into(), is_key };
        check(|table| (add(table, "age"), table.given.insert(4)).0, &[given("age")]);
        check(|table| (add(table, "age"), rewrite(table)).0, &[given("age")]);
        check(|table| retype(table, 1, INT4, -1), &[typed("name", false)]);
        check(|table| retype(table, 0, TEXT, -1), &[typed("id", true)]);
        check(|table| retype(table, 1, VARCHAR, 14), &[typed("name", false)]);
        check(|table| (rewrite(table), table.imprint.columns[1].5 = 800).0, &[Silent::Rewritten(vec!["name".into()])]);
        check(|table| table.imprint.entry = Some(3), &[Silent::Republished]);
        check(|table| table.imprint.publication = 9, &[Silent::Republished]);
        check(|table| table.imprint.altered = Some(701), &[Silent::Altered]);
        check(
            |table| {
                table.imprint.columns.remove(2);
                add(table, "bio");
            },
            &[Silent::Replaced("bio".into())],
        );
    }

    #[test]
    fn a_record_of_before_says_nothing_of_when_the_publication_was_altered() {
        let old = Imprint { altered: None, ..users().imprint() };
        assert_eq!(changes(&old, &users()).silent, []);
    }

    #[test]
    fn a_label_may_be_added_and_not_renamed() {
        check(|table| table.imprint.labels.push(ImprintLabel(60, 63, "mad".into())), &[]);
        let renamed = Silent::Relabelled { label: "sad".into(), is_key: false };
        check(|table| table.imprint.labels[0].2 = "blue".into(), &[renamed]);
    }

    #[test]
    fn a_column_that_comes_back_into_the_list_lacks_what_was_written_meanwhile() {
        let mut old = users().imprint();
        old.columns.remove(2);
        assert_eq!(changes(&old, &users()).silent, [Silent::Unpublished("bio".into())]);
    }

    #[test]
    fn a_new_file_without_toast_counts_if_a_column_was_altered() {
        let plain = |file, row| {
            let mut table = users();
            table.files[0].file = ImprintFile(7, file, 0);
            table.imprint.columns[1].5 = row;
            table
        };
        let old = plain(70, 700).imprint();
        assert_eq!(changes(&old, &plain(80, 700)).silent, []);
        assert_eq!(changes(&old, &plain(70, 800)).silent, []);
        assert_eq!(changes(&old, &plain(80, 800)).silent, [Silent::Rewritten(vec!["name".into()])]);
    }

    #[test]
    fn wider_integers_are_followed_with_a_remark() {
        let mut old = users();
        retype(&mut old, 1, INT4, -1);
        let mut now = old.clone();
        retype(&mut now, 1, INT8, -1);
        rewrite(&mut now);
        let changes = changes(&old.imprint(), &now);
        assert!(changes.silent.is_empty() && changes.remarks[0].contains("wider integers in name"), "{changes:?}");
        // Columns that came along are empty, unless they have a default.
        add(&mut now, "age");
        assert_eq!(super::changes(&old.imprint(), &now).silent, []);
        now.defaulted.insert(4);
        assert_eq!(super::changes(&old.imprint(), &now).silent, [Silent::Given("age".into())]);
    }

    #[test]
    fn types_that_read_the_same_are_known() {
        let keeps = |old: (u32, i32), new: (u32, i32)| {
            let column = |(oid, modifier)| ImprintColumn(1, "a".into(), oid, oid, modifier, 1);
            keeps_text(&column(old), &column(new))
        };
        let numeric = |precision: i32, scale: i32| (NUMERIC, (precision << 16 | scale) + 4);
        assert!(keeps((VARCHAR, 14), (VARCHAR, 24)) && !keeps((VARCHAR, 24), (VARCHAR, 14)));
        assert!(
            keeps((VARCHAR, 14), (TEXT, -1)) && keeps((TEXT, -1), (VARCHAR, -1)) && !keeps((TEXT, -1), (VARCHAR, 9))
        );
        assert!(keeps(numeric(10, 2), numeric(12, 2)) && !keeps(numeric(10, 2), numeric(12, 4)));
        assert!(keeps(numeric(10, 2), (NUMERIC, -1)) && !keeps((NUMERIC, -1), numeric(10, 2)));
        assert!(keeps((INT2, -1), (INT8, -1)) && !keeps((INT8, -1), (INT4, -1)) && !keeps((INT4, -1), (NUMERIC, -1)));
        assert!(keeps((1114, 3), (1114, 6)) && !keeps((1114, 6), (1114, 3)) && !keeps((1114, -1), (1184, -1)));
        assert!(!keeps((700, -1), (701, -1)) && !keeps((1042, 9), (1042, 14)) && keeps((1042, 9), (1042, 9)));
    }

    fn partitioned() -> Table {
        let file = |oid: u32| File {
            file: ImprintFile(oid, oid * 10, oid * 10 + 1),
            name: format!("p{oid}"),
            is_uncounted: false,
            brought: Brought::Known,
        };
        Table { is_partitioned: true, files: vec![file(8), file(9)], ..users() }
    }

    #[test]
    fn partitions_come_empty_or_with_rows() {
        let old = partitioned().imprint();
        let came = |brought| {
            let mut now = partitioned();
            now.files.push(File { brought, ..now.files[1].clone() });
            now.files[2].file = ImprintFile(10, 100, 101);
            (changes(&old, &now).silent, now.imprint().files.len())
        };
        assert_eq!(came(Brought::Nothing), (vec![], 3));
        assert_eq!(came(Brought::Rows), (vec![Silent::Attached("p9".into())], 3));
        assert_eq!(came(Brought::Unasked), (vec![], 2));
    }

    #[test]
    fn a_partition_that_goes_leaves_a_remark() {
        let mut now = partitioned();
        now.files.pop();
        let changes = changes(&partitioned().imprint(), &now);
        assert!(changes.silent.is_empty() && changes.remarks.len() == 1);
    }

    #[test]
    fn a_truncate_of_the_root_is_sent_and_one_of_a_partition_is_not() {
        let old = partitioned().imprint();
        let truncated = |which: &[usize]| {
            let mut now = partitioned();
            for at in which {
                now.files[*at].file.1 += 1;
                now.files[*at].is_uncounted = true;
            }
            changes(&old, &now).silent
        };
        assert_eq!(truncated(&[0]), [Silent::Truncated("p8".into())]);
        assert_eq!(truncated(&[0, 1]), []);
        let mut vacuumed = partitioned();
        vacuumed.files[0].file.1 += 1;
        assert_eq!(changes(&old, &vacuumed).silent, []);
    }
}
