//! Which tables `source.tables` comes to on this server.
//!
//!     items ──with what the catalog has──▶ Listed, in the order of the items, each table once
//!                                     └──▶ faults: what is named wrongly, or cannot be carried
//!
//! Pure. A name is taken as it is, and what is wrong with its table is found later; a pattern is held against all that there is.

use std::collections::HashSet;

use schemas::selection::Item;
use schemas::{Selection, TableName};

/// The schema of our own tables, which no pattern means.
const OURS: &str = "tributary";

/// Something in the catalog that a pattern may match.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: TableName,
    /// `r` table, `p` partitioned, `v` view, `m` materialised view, `f` foreign table.
    pub kind: String,
    /// `p` permanent, `u` unlogged.
    pub persistence: String,
    /// The partitioned tables above it, if it is a partition.
    pub above: Vec<TableName>,
}

/// A table that is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: TableName,
    /// The pattern that brought it; none where it is named itself.
    pub pattern: Option<String>,
}

impl Listed {
    /// What to write so that this table does not stand in the way.
    pub fn way_out(&self) -> String {
        way_out(&self.name, self.pattern.as_deref())
    }
}

/// What the items come to, and what a person must mend first.
pub fn resolve(selection: &Selection, candidates: &[Candidate]) -> (Vec<Listed>, Vec<String>) {
    let (mut listed, mut faults): (Vec<Listed>, Vec<String>) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for item in selection.taking() {
        if let Some(name) = item.table() {
            if selection.excludes(&name) {
                faults.push(format!("source.tables names {name} and excludes it as well: take one of the two out"));
            } else if seen.insert(name.clone()) {
                listed.push(Listed { name, pattern: None });
            }
            continue;
        }
        let matched = matched(selection, item, candidates);
        if matched.is_empty() {
            faults.push(format!("\"{item}\" in source.tables matches no table: correct it, or take it out"));
        }
        // A partition is published as a part of the table above it, not once more by itself.
        let is_part = |candidate: &&Candidate| candidate.above.iter().any(|above| selection.chooses(above));
        let whole = matched.into_iter().filter(|candidate| !is_part(candidate));
        for candidate in whole.filter(|candidate| seen.insert(candidate.name.clone())) {
            let (name, pattern) = (candidate.name.clone(), Some(item.to_string()));
            match uncarried(candidate) {
                Some(what) => faults.push(format!(
                    "\"{item}\" in source.tables matches {name}, {what}, which logical replication cannot carry: {}",
                    way_out(&name, pattern.as_deref())
                )),
                None => listed.push(Listed { name, pattern }),
            }
        }
    }
    faults.extend(partitions_of_listed(&listed, candidates));
    (listed, faults)
}

fn matched<'c>(selection: &Selection, item: &Item, candidates: &'c [Candidate]) -> Vec<&'c Candidate> {
    let is_meant = |candidate: &&Candidate| {
        item.matches(&candidate.name) && !selection.excludes(&candidate.name) && candidate.name.schema != OURS
    };
    let mut matched: Vec<&Candidate> = candidates.iter().filter(is_meant).collect();
    matched.sort_by(|a, b| a.name.cmp(&b.name));
    matched
}

/// A table that is named, and is a partition of another one that is published.
fn partitions_of_listed(listed: &[Listed], candidates: &[Candidate]) -> Vec<String> {
    let names: HashSet<&TableName> = listed.iter().map(|listed| &listed.name).collect();
    let above = |listed: &Listed| {
        let candidate = candidates.iter().find(|candidate| candidate.name == listed.name)?;
        candidate.above.iter().find(|above| names.contains(above))
    };
    let fault = |listed: &Listed| {
        let (name, above) = (&listed.name, above(listed)?);
        Some(format!(
            "source.tables names {name} and also {above}, of which it is a partition: take one of the two out"
        ))
    };
    listed.iter().filter_map(fault).collect()
}

/// Why logical replication cannot carry it, as far as its kind tells.
fn uncarried(candidate: &Candidate) -> Option<&'static str> {
    match (candidate.kind.as_str(), candidate.persistence.as_str()) {
        ("r" | "p", "p") => None,
        ("r" | "p", _) => Some("an unlogged table"),
        ("f", _) => Some("a foreign table"),
        _ => Some("a view"),
    }
}

fn way_out(name: &TableName, pattern: Option<&str>) -> String {
    match pattern {
        Some(_) => format!("exclude it by \"!{name}\""),
        None => "take it out of source.tables".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, kind: &str, persistence: &str, above: &[&str]) -> Candidate {
        let table = |text: &str| text.parse::<TableName>().expect("a name");
        let above = above.iter().map(|text| table(text)).collect();
        Candidate { name: table(name), kind: kind.into(), persistence: persistence.into(), above }
    }

    fn shop() -> Vec<Candidate> {
        vec![
            candidate("shop.users", "r", "p", &[]),
            candidate("shop.order_items", "r", "p", &[]),
            candidate("shop.order_tmp", "r", "u", &[]),
            candidate("shop.order_totals", "v", "p", &[]),
            candidate("shop.remote", "f", "p", &[]),
            candidate("shop.events", "p", "p", &[]),
            candidate("shop.events_1", "p", "p", &["shop.events"]),
            candidate("shop.events_1_a", "r", "p", &["shop.events_1", "shop.events"]),
            candidate("tributary.progress", "r", "p", &[]),
        ]
    }

    /// The names listed, and the faults one line each.
    fn check(items: &[&str], listed: &[&str], faults: &[&str]) {
        let parsed = items.iter().map(|text| text.parse().expect("an item")).collect();
        let (found, told) = resolve(&Selection::new(parsed), &shop());
        let found: Vec<String> = found.iter().map(|listed| listed.name.to_string()).collect();
        assert_eq!(found, listed, "{items:?}");
        assert_eq!(told.len(), faults.len(), "{items:?}: {told:?}");
        for (told, part) in told.iter().zip(faults) {
            assert!(told.contains(part), "{told} does not say {part}");
        }
    }

    #[test]
    fn names_and_patterns_give_each_table_once_in_their_order() {
        check(&["shop.users", "shop.order_i*", "shop.us*"], &["shop.users", "shop.order_items"], &[]);
        check(&["shop.nowhere"], &["shop.nowhere"], &[]);
        check(&["shop.*", "!shop.order_t*", "!shop.remote"], &["shop.events", "shop.order_items", "shop.users"], &[]);
    }

    #[test]
    fn what_a_pattern_matches_and_nobody_can_carry_is_told_with_its_exclusion() {
        check(
            &["shop.order_*"],
            &["shop.order_items"],
            &[
                "shop.order_tmp, an unlogged table, which logical replication cannot carry: exclude it by \"!shop.order_tmp\"",
                "shop.order_totals, a view",
            ],
        );
        check(&["shop.re*"], &[], &["a foreign table"]);
    }

    #[test]
    fn a_pattern_that_matches_nothing_and_a_name_that_is_excluded_are_faults() {
        check(&["shop.nothing_*"], &[], &["\"shop.nothing_*\" in source.tables matches no table"]);
        check(&["shop.users", "!shop.u*"], &[], &["names shop.users and excludes it"]);
        check(&["*.progress"], &[], &["matches no table"]);
    }

    #[test]
    fn partitions_go_with_the_table_above_them() {
        check(&["shop.ev*"], &["shop.events"], &[]);
        check(&["shop.events_1*"], &["shop.events_1"], &[]);
        check(&["shop.*_a"], &["shop.events_1_a"], &[]);
        check(&["shop.events", "shop.events_*"], &["shop.events"], &[]);
        check(
            &["shop.events", "shop.events_1_a"],
            &["shop.events", "shop.events_1_a"],
            &["of which it is a partition"],
        );
        check(&["shop.ev*", "!shop.events"], &["shop.events_1"], &[]);
    }
}
