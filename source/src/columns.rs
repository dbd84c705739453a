//! Which columns of a table are published, and which of them as something else than they hold.
//!
//!     relation as described ──with its rule──▶ Cut: relation as published, with a fingerprint of its own
//!     cells as they came    ──with the cut───▶ cells as published
//!
//! What a rule hides is taken out before a row is looked at any further: it reaches no record, no state, no buffer of rows.
//! Pure. It knows no table by itself, and tables without a rule never come here.
//!
//! A column that is hidden by its name shows itself once it is renamed. So a relation that lacks a hidden name and has one
//! that nobody has seen is refused: whether that is the same column only a person can say.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use schemas::fingerprint::{self, Fingerprint};
use schemas::write::Cell;
use service::config::Secret;
use sha2::Sha256;

use crate::pgoutput;
use crate::relation;

/// The type that a masked column is published as.
const TEXT: u32 = 25;

/// What is published in place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mask {
    /// HMAC-SHA-256 of its text under the salt, in hexadecimal: equal values stay equal, and no more is known of them.
    Hash,
    /// The same text for every value.
    Fixed(String),
}

/// Which columns are published at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// These alone.
    Include(BTreeSet<String>),
    /// All but these.
    Exclude(BTreeSet<String>),
}

/// The rule of one table.
#[derive(Clone)]
pub struct Rule {
    choice: Choice,
    masks: BTreeMap<String, Mask>,
    salted: Hmac<Sha256>,
}

/// Why a relation cannot be published by its rule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A rule names what is not there.
    #[error("its rule in source.columns names {0:?}, which is no column of it: correct the name, or take it out")]
    Unknown(String),
    /// A rule hides a part of the key.
    #[error(
        "its rule in source.columns hides {0:?}, a column of its key, without which its rows cannot be told apart: take it out of the rule, or give the table another key by ALTER TABLE … REPLICA IDENTITY USING INDEX"
    )]
    Key(String),
    /// A hidden column is gone, and one has come that may be the same.
    #[error(
        "its rule in source.columns hides {hidden:?}, which is gone, while {new:?} has come, which may be the same under another name: correct the rule, if need be to a list of what to include"
    )]
    Renamed {
        /// The column that is gone.
        hidden: String,
        /// The column that has come.
        new: String,
    },
}

/// The rules of the tables that have one, by OID: a table that is renamed keeps its rule.
#[derive(Clone, Debug, Default)]
pub struct ByOid(Arc<HashMap<u32, Ruled>>);

/// A table's rule, and the columns that the catalog showed of it when the session began.
#[derive(Clone, Debug)]
pub struct Ruled {
    /// The rule.
    pub rule: Rule,
    /// All columns, whether published or not.
    pub columns: BTreeSet<String>,
}

impl ByOid {
    /// The rule of a table, if it has one.
    pub fn get(&self, oid: u32) -> Option<&Ruled> {
        self.0.get(&oid)
    }
}

impl FromIterator<(u32, Ruled)> for ByOid {
    fn from_iter<I: IntoIterator<Item = (u32, Ruled)>>(rules: I) -> ByOid {
        ByOid(Arc::new(rules.into_iter().collect()))
    }
}

/// A relation by its rule.
#[derive(Clone)]
pub struct Cut {
    /// What is left of it: columns that are hidden are gone, masked ones are text.
    pub relation: pgoutput::Relation,
    /// One number for what is left, the rule included: rows by another rule read otherwise.
    pub fingerprint: Fingerprint,
    /// How many columns there are in all.
    pub width: usize,
    /// Where each column that is left stands among all.
    kept: Vec<usize>,
    /// Masks by the column's place among those that are left.
    masks: Vec<(usize, Mask)>,
    salted: Hmac<Sha256>,
}

/// Texts that stand in place of masked values, by mask.
#[derive(Debug, Default)]
pub struct Masked(Vec<Option<String>>);

impl Rule {
    /// A rule of `choice` and `masks`, whose hashes go by `salt`.
    pub fn new(choice: Choice, masks: BTreeMap<String, Mask>, salt: &Secret) -> Rule {
        let salted = Hmac::new_from_slice(salt.expose().as_bytes()).expect("HMAC takes a key of any length");
        Rule { choice, masks, salted }
    }

    /// Whether it publishes only what it names, so that a new column stays out.
    pub fn includes(&self) -> bool {
        matches!(self.choice, Choice::Include(_))
    }

    /// Whether the column is published.
    pub fn keeps(&self, column: &str) -> bool {
        match &self.choice {
            Choice::Include(names) => names.contains(column),
            Choice::Exclude(names) => !names.contains(column),
        }
    }

    /// All names in it must be columns of the table, and none of those that it hides in its key.
    pub fn check(&self, columns: &BTreeSet<String>, key: &[String]) -> Result<(), Fault> {
        let (Choice::Include(chosen) | Choice::Exclude(chosen)) = &self.choice;
        if let Some(unknown) = chosen.iter().chain(self.masks.keys()).find(|name| !columns.contains(*name)) {
            return Err(Fault::Unknown(unknown.clone()));
        }
        self.check_key(key.iter().map(String::as_str))
    }

    /// None of the key's columns may be hidden.
    pub fn check_key<'a>(&self, mut key: impl Iterator<Item = &'a str>) -> Result<(), Fault> {
        match key.find(|name| !self.keeps(name) || self.masks.contains_key(*name)) {
            Some(hidden) => Err(Fault::Key(hidden.to_owned())),
            None => Ok(()),
        }
    }

    /// One number for the rule: another rule has another one, another salt too. It betrays nothing of the salt that a hash
    /// in a topic would not.
    pub fn digest(&self) -> Fingerprint {
        let mut builder = fingerprint::Builder::default();
        let (kind, names) = match &self.choice {
            Choice::Include(names) => ("include", names),
            Choice::Exclude(names) => ("exclude", names),
        };
        builder.field(kind.as_bytes());
        for name in names {
            builder.field(name.as_bytes());
        }
        for (name, mask) in &self.masks {
            builder.field(b"mask").field(name.as_bytes());
            match mask {
                Mask::Hash => builder.field(b"hash").field(hashed(&self.salted, b"tributary").as_bytes()),
                Mask::Fixed(text) => builder.field(b"fixed").field(text.as_bytes()),
            };
        }
        builder.finish()
    }

    /// The relation as it is published. `seen` are the columns that the table is known to have had.
    pub fn cut(&self, described: &pgoutput::Relation, seen: &BTreeSet<String>) -> Result<Cut, Fault> {
        let is_there = |name: &str| described.columns.iter().any(|column| column.name == name);
        if let Some(hidden) = self.hidden().find(|name| !is_there(name))
            && let Some(new) = described.columns.iter().find(|column| !seen.contains(&column.name))
        {
            return Err(Fault::Renamed { hidden: hidden.clone(), new: new.name.clone() });
        }
        if described.identity != 'f' {
            self.check_key(described.columns.iter().filter(|column| column.identity).map(|it| it.name.as_str()))?;
        }
        let columns = described.columns.iter().enumerate();
        let (kept, mut columns): (Vec<usize>, Vec<pgoutput::Column>) =
            columns.filter(|(_, column)| self.keeps(&column.name)).map(|(i, column)| (i, column.clone())).unzip();
        let mut masks = Vec::new();
        for (place, column) in columns.iter_mut().enumerate() {
            if let Some(mask) = self.masks.get(&column.name) {
                (column.type_oid, column.modifier) = (TEXT, -1);
                masks.push((place, mask.clone()));
            }
        }
        let relation = pgoutput::Relation { columns, ..described.clone() };
        let mut builder = fingerprint::Builder::default();
        builder.field(&relation::fingerprint(&relation).0.to_le_bytes()).field(&self.digest().0.to_le_bytes());
        let (width, fingerprint, salted) = (described.columns.len(), builder.finish(), self.salted.clone());
        Ok(Cut { relation, fingerprint, width, kept, masks, salted })
    }

    /// Columns whose renaming would show what they hold.
    fn hidden(&self) -> impl Iterator<Item = &String> {
        let names = match &self.choice {
            Choice::Include(_) => None,
            Choice::Exclude(names) => Some(names.iter().chain(self.masks.keys())),
        };
        names.into_iter().flatten()
    }
}

impl Cut {
    /// The texts that stand in place of what is masked in these cells, which are all of the row's.
    pub fn masked(&self, cells: &[Cell<'_>]) -> Masked {
        let text = |(place, mask): &(usize, Mask)| match cells[self.kept[*place]] {
            Cell::Text(text) => Some(self.text(mask, text)),
            Cell::Null | Cell::Unchanged => None,
        };
        Masked(self.masks.iter().map(text).collect())
    }

    /// The row's cells as they are published: NULL stays NULL, and what is not known stays so.
    pub fn cells<'a>(&self, cells: &[Cell<'a>], masked: &'a Masked) -> Vec<Cell<'a>> {
        let mut left: Vec<Cell<'a>> = self.kept.iter().map(|i| cells[*i]).collect();
        for ((place, _), text) in self.masks.iter().zip(&masked.0) {
            if let Some(text) = text {
                left[*place] = Cell::Text(text.as_bytes());
            }
        }
        left
    }

    /// What is published in place of a value in one of the columns that are left; `None` where it is published itself.
    pub fn mask(&self, column: usize, value: &[u8]) -> Option<String> {
        let (_, mask) = self.masks.iter().find(|(place, _)| *place == column)?;
        Some(self.text(mask, value))
    }

    fn text(&self, mask: &Mask, value: &[u8]) -> String {
        match mask {
            Mask::Hash => hashed(&self.salted, value),
            Mask::Fixed(text) => text.clone(),
        }
    }
}

/// The HMAC of a value as hexadecimal digits.
pub fn hashed(salted: &Hmac<Sha256>, value: &[u8]) -> String {
    let mut hash = salted.clone();
    hash.update(value);
    let mut text = String::with_capacity(64);
    for byte in hash.finalize().into_bytes() {
        write!(text, "{byte:02x}").expect("a string takes every write");
    }
    text
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("choice", &self.choice).field("masks", &self.masks).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cut").field("fingerprint", &self.fingerprint).field("kept", &self.kept).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::relation::tests::users;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn salted(choice: Choice, masks: &[(&str, Mask)], salt: &str) -> Rule {
        let masks = masks.iter().map(|(name, mask)| ((*name).to_owned(), mask.clone())).collect();
        Rule::new(choice, masks, &Secret::from(salt.to_owned()))
    }

    pub(crate) fn rule(choice: Choice, masks: &[(&str, Mask)]) -> Rule {
        salted(choice, masks, "salt")
    }

    /// A rule that leaves out some columns and masks others.
    pub(crate) fn without(left_out: &[&str], masks: &[(&str, Mask)]) -> Rule {
        rule(Choice::Exclude(names(left_out)), masks)
    }

    fn seen() -> BTreeSet<String> {
        names(&["id", "name", "bio"])
    }

    fn cut(rule: &Rule, cells: &[Cell<'_>]) -> Vec<String> {
        let cut = rule.cut(&users('d'), &seen()).expect("a rule that fits");
        let masked = cut.masked(cells);
        let text = |cell: &Cell<'_>| match cell {
            Cell::Null => "null".to_owned(),
            Cell::Unchanged => "unchanged".to_owned(),
            Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
        };
        cut.cells(cells, &masked).iter().map(text).collect()
    }

    #[test]
    fn hidden_columns_are_gone_and_masked_ones_hold_something_else() {
        let row = [Cell::Text(b"1"), Cell::Text(b"Ann"), Cell::Text(b"secret")];
        assert_eq!(cut(&without(&["bio"], &[]), &row), ["1", "Ann"]);
        assert_eq!(cut(&rule(Choice::Include(names(&["id", "bio"])), &[]), &row), ["1", "secret"]);
        assert_eq!(cut(&without(&["name"], &[("bio", Mask::Fixed("***".into()))]), &row), ["1", "***"]);
        // By openssl dgst -sha256 -hmac salt.
        let hash = "1ca37e3cd0e906a7c42d3459065d874130f59821d56b7a61f2d52d2c5d27e571";
        assert_eq!(cut(&without(&[], &[("name", Mask::Hash)]), &row), ["1", hash, "secret"]);
    }

    #[test]
    fn null_stays_null_and_unknown_stays_unknown() {
        let masks = [("name", Mask::Hash), ("bio", Mask::Fixed("***".into()))];
        let row = [Cell::Text(b"1"), Cell::Null, Cell::Unchanged];
        assert_eq!(cut(&without(&[], &masks), &row), ["1", "null", "unchanged"]);
    }

    #[test]
    fn a_masked_column_is_text_and_what_is_hidden_is_no_column() {
        let rule = without(&["bio"], &[("name", Mask::Hash)]);
        let mut described = users('d');
        (described.columns[1].type_oid, described.columns[1].modifier) = (1043, 14);
        let relation = rule.cut(&described, &seen()).expect("a rule that fits").relation;
        let columns: Vec<_> = relation.columns.iter().map(|it| (it.name.as_str(), it.type_oid, it.modifier)).collect();
        assert_eq!(columns, [("id", 20, -1), ("name", 25, -1)]);
    }

    #[test]
    fn every_change_of_a_rule_changes_the_fingerprint() {
        let fingerprint = |rule: &Rule| rule.cut(&users('d'), &seen()).expect("a rule that fits").fingerprint;
        let rules = [
            without(&[], &[]),
            without(&["bio"], &[]),
            rule(Choice::Include(names(&["id", "name"])), &[]),
            without(&[], &[("bio", Mask::Hash)]),
            without(&[], &[("name", Mask::Hash)]),
            without(&[], &[("bio", Mask::Fixed("a".into()))]),
            without(&[], &[("bio", Mask::Fixed("b".into()))]),
            salted(Choice::Exclude(names(&[])), &[("bio", Mask::Hash)], "another"),
        ];
        let all: BTreeSet<u64> = rules.iter().map(|rule| fingerprint(rule).0).collect();
        assert_eq!(all.len(), rules.len());
        assert_eq!(fingerprint(&rules[1]), fingerprint(&without(&["bio"], &[])));
    }

    #[test]
    fn a_rule_must_name_columns_and_leave_the_key() {
        let key = ["id".to_owned()];
        let check = |rule: &Rule| rule.check(&seen(), &key);
        assert_eq!(check(&without(&["bio"], &[("name", Mask::Hash)])), Ok(()));
        assert_eq!(check(&without(&["boi"], &[])), Err(Fault::Unknown("boi".into())));
        assert_eq!(check(&without(&[], &[("nmae", Mask::Hash)])), Err(Fault::Unknown("nmae".into())));
        assert_eq!(check(&rule(Choice::Include(names(&["name"])), &[])), Err(Fault::Key("id".into())));
        assert_eq!(check(&without(&[], &[("id", Mask::Hash)])), Err(Fault::Key("id".into())));
        let hidden = without(&["id"], &[]).cut(&users('d'), &seen());
        assert_eq!(hidden.err(), Some(Fault::Key("id".into())));
    }

    #[test]
    fn a_hidden_column_that_may_have_another_name_now_stops_it() {
        let rule = without(&["bio"], &[]);
        let mut renamed = users('d');
        renamed.columns[2].name = "story".into();
        let fault = Fault::Renamed { hidden: "bio".into(), new: "story".into() };
        assert_eq!(rule.cut(&renamed, &seen()).err(), Some(fault));
        // Dropped, or left out by the publication: nothing new is there to show it.
        renamed.columns.pop();
        assert!(rule.cut(&renamed, &seen()).is_ok());
        // What is not named is not published, whatever it is called.
        let named = self::rule(Choice::Include(names(&["id", "name"])), &[]);
        renamed.columns.push(pgoutput::Column { name: "story".into(), ..users('d').columns[2].clone() });
        assert_eq!(named.cut(&renamed, &seen()).expect("a rule that fits").relation.columns.len(), 2);
    }

    #[test]
    fn nothing_prints_the_salt() {
        let rule = salted(Choice::Exclude(names(&[])), &[("bio", Mask::Hash)], "pepper and salt");
        let cut = rule.cut(&users('d'), &seen()).expect("a rule that fits");
        assert!(!format!("{rule:?} {cut:?}").contains("pepper"));
    }
}
