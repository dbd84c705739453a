//! What is published, and what is to be published: how the one follows from the other.
//!
//!     recorded (OID, name) ─┐
//!     names of now (by OID) ┼─▶ judge ─▶ faults, warnings, remarks
//!     wanted (OID, name)   ─┘       └──▶ removed, added: another list, if there are any
//!
//! Pure. A table is its OID: under another name it is the same, and another one under the same name is not.

use std::collections::BTreeMap;

use schemas::TableName;

use crate::config::OnRecreate;

/// Names a list that is to follow. Random, so that nobody else's message is taken for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListId(pub u128);

impl std::fmt::Display for ListId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ListId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(ListId)
    }
}

/// What is known when a session starts, or looks again.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The tables that the state speaks of, by OID.
    pub recorded: Vec<(u32, &'a TableName)>,
    /// How those of them that are still there are called.
    pub present: &'a BTreeMap<u32, TableName>,
    /// The tables that are to be published and can be, with their names.
    pub wanted: Vec<(u32, &'a TableName)>,
    /// What is done about another table under the name of one that is published.
    pub on_recreate: OnRecreate,
}

/// What follows from it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// What a person must decide, each with its remedy.
    pub faults: Vec<String>,
    /// What is going on without one of the tables.
    pub warnings: Vec<String>,
    /// What has changed and needs nobody.
    pub remarks: Vec<String>,
    /// Tables that are published no more, by OID.
    pub removed: Vec<u32>,
    /// Tables that are published from now on, by OID.
    pub added: Vec<u32>,
    /// Which of them take another table's place: their rows are loaded instead of its.
    pub replacing: Vec<u32>,
}

/// Compares what is published with what is to be. `is_configured` tells whether a name is listed, whether or not there is
/// such a table.
pub fn judge(facts: &Facts<'_>, is_configured: impl Fn(&TableName) -> bool) -> Judged {
    let mut judged = Judged::default();
    let wanted: BTreeMap<u32, &TableName> = facts.wanted.iter().copied().collect();
    let is_recorded = |oid: u32| facts.recorded.iter().any(|(known, _)| *known == oid);
    let by_name = |name: &TableName| facts.wanted.iter().find(|(_, other)| *other == name).map(|(oid, _)| *oid);
    for (oid, known) in facts.recorded.iter().copied() {
        let now = facts.present.get(&oid);
        match (now, by_name(known)) {
            (Some(now), _) if wanted.contains_key(&oid) => {
                if now != known {
                    judged.remarks.push(format!("{known} is called {now} now and goes on in its topic"));
                }
            }
            // Another table has taken the name: this one was dropped, or renamed away.
            (_, Some(other)) if other != oid && !is_recorded(other) => {
                judged.recreated(facts.on_recreate, oid, known, now, other);
            }
            // Its name is that of another table of ours by now.
            (_, Some(other)) if other != oid => judged.removed.push(oid),
            // It is there under its name and cannot be published: whoever looked at it has told why.
            (Some(now), _) if is_configured(now) => {}
            (Some(now), _) if is_configured(known) => judged.faults.push(format!(
                "{known} is called {now} now: write {now} in source.tables in its place, and it goes on in its topic"
            )),
            (None, _) if is_configured(known) => judged.warnings.push(format!(
                "{known} was dropped: the other tables go on without it; take it out of source.tables when its topic has been read"
            )),
            _ => judged.removed.push(oid),
        }
    }
    let is_new = |oid: &u32| !is_recorded(*oid) && !judged.added.contains(oid);
    let is_stopped =
        |name: &TableName| facts.recorded.iter().any(|(_, known)| *known == name) && !judged.faults.is_empty();
    let new: Vec<u32> =
        facts.wanted.iter().filter(|(oid, name)| is_new(oid) && !is_stopped(name)).map(|(oid, _)| *oid).collect();
    judged.added.extend(new);
    judged
}

impl Judged {
    /// Whether another list is to follow.
    pub fn is_change(&self) -> bool {
        !self.added.is_empty() || !self.removed.is_empty()
    }

    fn recreated(&mut self, on_recreate: OnRecreate, old: u32, known: &TableName, now: Option<&TableName>, new: u32) {
        let what = match now {
            None => format!("{known} was dropped and made again"),
            Some(now) => format!("{known} is called {now} now, and another table has taken its name"),
        };
        match on_recreate {
            OnRecreate::Stop => self.faults.push(format!(
                "{what}: its rows are not those that were published. Set source.on_recreate = \"reload\" to load it in place of them, or take it out of source.tables"
            )),
            OnRecreate::Reload => {
                self.warnings.push(format!("{what}: it is loaded in place of what was published"));
                self.removed.push(old);
                self.added.push(new);
                self.replacing.push(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> TableName {
        text.parse().expect("a name")
    }

    /// Everything in one line: (OID, name) recorded, present and wanted, the names that are configured, and what comes of it.
    #[derive(Clone, Copy)]
    struct Case<'a> {
        recorded: &'a [(u32, &'a str)],
        present: &'a [(u32, &'a str)],
        wanted: &'a [(u32, &'a str)],
        configured: &'a [&'a str],
    }

    impl Case<'_> {
        fn judged(&self, on_recreate: OnRecreate) -> Judged {
            let named = |list: &[(u32, &str)]| list.iter().map(|(oid, name)| (*oid, table(name))).collect::<Vec<_>>();
            let (recorded, wanted) = (named(self.recorded), named(self.wanted));
            let facts = Facts {
                recorded: recorded.iter().map(|(oid, name)| (*oid, name)).collect(),
                present: &named(self.present).into_iter().collect(),
                wanted: wanted.iter().map(|(oid, name)| (*oid, name)).collect(),
                on_recreate,
            };
            judge(&facts, |name| self.configured.iter().any(|configured| table(configured) == *name))
        }

        fn check(&self, removed: &[u32], added: &[u32]) -> Judged {
            let judged = self.judged(OnRecreate::Stop);
            assert_eq!(judged.faults, Vec::<String>::new());
            assert_eq!((&judged.removed[..], &judged.added[..]), (removed, added));
            judged
        }

        fn is_refused(&self, part: &str) {
            let judged = self.judged(OnRecreate::Stop);
            assert!(!judged.is_change(), "{judged:?}");
            assert!(judged.faults.len() == 1 && judged.faults[0].contains(part), "{judged:?}");
        }
    }

    #[test]
    fn tables_come_and_go_with_the_configuration() {
        let recorded = &[(1, "a.a"), (2, "a.b")];
        let present = recorded;
        let same = Case { recorded, present, wanted: recorded, configured: &["a.a", "a.b"] };
        assert_eq!(same.check(&[], &[]), Judged::default());
        Case { wanted: &[(1, "a.a"), (3, "a.c")], configured: &["a.a", "a.c"], ..same }.check(&[2], &[3]);
    }

    #[test]
    fn a_table_goes_on_under_its_new_name_once_that_is_configured() {
        let case = Case { recorded: &[(1, "a.a")], present: &[(1, "a.z")], wanted: &[], configured: &["a.a"] };
        case.is_refused("a.a is called a.z now: write a.z in source.tables");
        let told = Case { wanted: &[(1, "a.z")], configured: &["a.z"], ..case }.check(&[], &[]);
        assert_eq!(told.remarks.len(), 1);
        Case { configured: &[], ..case }.check(&[1], &[]);
    }

    #[test]
    fn another_table_of_the_same_name_stops_or_takes_its_place() {
        let dropped = Case { recorded: &[(1, "a.a")], present: &[], wanted: &[(2, "a.a")], configured: &["a.a"] };
        let swapped = Case { present: &[(1, "a.old")], ..dropped };
        dropped.is_refused("was dropped and made again");
        swapped.is_refused("a.a is called a.old now, and another table has taken its name");
        for case in [dropped, swapped] {
            let judged = case.judged(OnRecreate::Reload);
            assert_eq!((&judged.removed[..], &judged.added[..], &judged.replacing[..]), (&[1][..], &[2][..], &[2][..]));
            assert!(judged.faults.is_empty() && judged.warnings.len() == 1);
        }
    }

    #[test]
    fn two_tables_that_swap_their_names_both_go_on() {
        let recorded = &[(1, "a.a"), (2, "a.b")];
        let swapped = &[(1, "a.b"), (2, "a.a")];
        let judged = Case { recorded, present: swapped, wanted: swapped, configured: &["a.a", "a.b"] }.check(&[], &[]);
        assert_eq!(judged.remarks.len(), 2);
        let taken = Case { recorded, present: &[(2, "a.a")], wanted: &[(2, "a.a")], configured: &["a.a"] };
        assert_eq!(taken.check(&[1], &[]).remarks.len(), 1);
    }

    #[test]
    fn the_others_go_on_without_a_table_that_was_dropped() {
        let case = Case {
            recorded: &[(1, "a.a"), (2, "a.b")],
            present: &[(2, "a.b")],
            wanted: &[(2, "a.b")],
            configured: &["a.a", "a.b"],
        };
        assert_eq!(case.check(&[], &[]).warnings.len(), 1);
        assert_eq!(Case { configured: &["a.b"], ..case }.check(&[1], &[]).warnings.len(), 0);
    }

    #[test]
    fn what_cannot_be_published_is_not_taken_for_gone() {
        Case { recorded: &[(1, "a.a")], present: &[(1, "a.a")], wanted: &[], configured: &["a.a"] }.check(&[], &[]);
    }
}
