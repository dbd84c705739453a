//! Keys that the configuration names: for tables under REPLICA IDENTITY FULL, whose catalog has none that would do.
//!
//!     source.keys ──against the table──▶ Fault, or the named key ──by OID──▶ Named
//!
//! That such a key is unique is the user's promise: the server does not enforce it, and nobody here can see it broken.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The keys that are named for tables, by OID: a table that is renamed keeps its key.
#[derive(Clone, Debug, Default)]
pub struct Named(Arc<BTreeMap<u32, Vec<String>>>);

impl Named {
    /// The columns of the key that is named for a table, if one is.
    pub fn get(&self, oid: u32) -> Option<&[String]> {
        self.0.get(&oid).map(Vec::as_slice)
    }
}

impl FromIterator<(u32, Vec<String>)> for Named {
    fn from_iter<I: IntoIterator<Item = (u32, Vec<String>)>>(keys: I) -> Named {
        Named(Arc::new(keys.into_iter().collect()))
    }
}

/// Why a named key cannot be gone by.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It names what is not there.
    #[error("source.keys names {0:?} for it, which is no column of it: correct the name")]
    Unknown(String),
    /// The stream names another.
    #[error(
        "source.keys names a key for it, and its replica identity names its rows by ({0}): take it out of source.keys, or ALTER TABLE … REPLICA IDENTITY FULL"
    )]
    Another(String),
    /// The stream would not tell which row a change is about.
    #[error(
        "source.keys names a key for it, and only under REPLICA IDENTITY FULL does the stream tell which row was changed: ALTER TABLE … REPLICA IDENTITY FULL"
    )]
    Identity,
    /// Two rows may hold it at once.
    #[error(
        "source.keys names ({0}) for it, which a DEFERRABLE constraint holds unique at commit alone, and within a transaction two rows may have it: make the constraint NOT DEFERRABLE, or name other columns"
    )]
    Deferrable(String),
}

/// A table, as far as a named key is concerned.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its replica identity in PostgreSQL's letter.
    pub identity: char,
    /// All of its columns.
    pub columns: &'a BTreeSet<String>,
    /// The key that its replica identity has: the primary key under FULL. Empty without one.
    pub own: &'a [String],
    /// The columns of its constraints that are checked late.
    pub deferrable: &'a [Vec<String>],
}

/// Holds the key that is named for a table against it. `true` if it is to be gone by, `false` if the table's own key is the
/// same and does as well.
pub fn check(named: &[String], facts: &Facts<'_>) -> Result<bool, Fault> {
    if let Some(unknown) = named.iter().find(|name| !facts.columns.contains(*name)) {
        return Err(Fault::Unknown(unknown.clone()));
    }
    if is_same(named, facts.own) {
        return Ok(false);
    }
    match facts.identity {
        'f' if facts.deferrable.iter().any(|late| is_same(named, late)) => Err(Fault::Deferrable(named.join(", "))),
        'f' => Ok(true),
        _ if facts.own.is_empty() => Err(Fault::Identity),
        _ => Err(Fault::Another(facts.own.join(", "))),
    }
}

/// Whether two keys have the same columns, in whatever order.
pub fn is_same(one: &[String], other: &[String]) -> bool {
    one.iter().collect::<BTreeSet<_>>() == other.iter().collect::<BTreeSet<_>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_named_key_is_gone_by_where_the_stream_names_none() {
        let columns = names(&["a", "b", "id"]).into_iter().collect();
        let check = |named: &[&str], identity, own: &[&str], deferrable: &[&str]| {
            let late = [names(deferrable)];
            super::check(&names(named), &Facts { identity, columns: &columns, own: &names(own), deferrable: &late })
        };
        assert_eq!(check(&["a", "b"], 'f', &[], &[]), Ok(true));
        assert_eq!(check(&["a", "b"], 'f', &["id"], &[]), Ok(true), "it stands over a primary key that came later");
        assert_eq!(check(&["b", "a"], 'f', &["a", "b"], &[]), Ok(false));
        assert_eq!(check(&["id"], 'd', &["id"], &[]), Ok(false));
        assert_eq!(check(&["a", "c"], 'f', &[], &[]), Err(Fault::Unknown("c".into())));
        assert_eq!(check(&["a"], 'd', &[], &[]), Err(Fault::Identity));
        assert_eq!(check(&["a"], 'n', &[], &[]), Err(Fault::Identity));
        assert_eq!(check(&["a"], 'i', &["id"], &[]), Err(Fault::Another("id".into())));
        assert_eq!(check(&["a", "b"], 'f', &[], &["b", "a"]), Err(Fault::Deferrable("a, b".into())));
    }
}
