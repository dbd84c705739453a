//! The sections `[source.columns."schema.table"]`: which columns are published, and which are masked.

use std::collections::{BTreeMap, BTreeSet};

use schemas::TableName;
use service::config::{Reader, Secret};

use crate::columns::{Choice, Mask, Rule};

/// Reads the rules of all tables. Hashes go by `salt`.
pub(super) fn read(source: &mut Reader<'_>) -> BTreeMap<TableName, Rule> {
    let salt: Option<Secret> = source.optional("mask_salt").filter(|salt: &Secret| !salt.is_empty());
    let mut rules = BTreeMap::new();
    let mut needs_salt = false;
    for (name, mut section) in source.named_sections("columns") {
        let (choice, masks) = (choice(&mut section), masks(&mut section));
        needs_salt |= masks.values().any(|mask| *mask == Mask::Hash);
        let rule = Rule::new(choice, masks.clone(), salt.as_ref().unwrap_or(&Secret::default()));
        if let Some(hidden) = masks.keys().find(|column| !rule.keeps(column)) {
            section.fault("mask", format!("masks {hidden:?}, which is not published at all: leave it out here"));
        }
        match name.parse::<TableName>() {
            Ok(table) => drop(rules.insert(table, rule)),
            Err(error) => section.fault("exclude", format!("{error}; a rule is for one table, and no pattern")),
        }
        section.finish();
    }
    if needs_salt && salt.is_none() {
        source.fault("mask_salt", "missing: hashes need a secret, or whoever guesses a value can tell that he is right; give TRIBUTARY_SOURCE__MASK_SALT a long random text");
    }
    rules
}

fn choice(section: &mut Reader<'_>) -> Choice {
    let mut names = |key| section.optional::<Vec<String>>(key).map(BTreeSet::from_iter);
    match (names("include"), names("exclude")) {
        (Some(included), None) => Choice::Include(included),
        (None, excluded) => Choice::Exclude(excluded.unwrap_or_default()),
        (Some(included), Some(_)) => {
            section
                .fault("exclude", "stands beside include, which leaves out all others already: write one of the two");
            Choice::Include(included)
        }
    }
}

fn masks(section: &mut Reader<'_>) -> BTreeMap<String, Mask> {
    let Some(mut section) = section.optional_section("mask") else { return BTreeMap::new() };
    let mut masks = BTreeMap::new();
    for column in section.names() {
        let Some(text) = section.optional::<String>(&column) else { continue };
        match (text.as_str(), text.strip_prefix("fixed:")) {
            ("hash", _) => drop(masks.insert(column, Mask::Hash)),
            (_, Some(fixed)) => drop(masks.insert(column, Mask::Fixed(fixed.to_owned()))),
            _ => section
                .fault(&column, "expected \"hash\", or \"fixed:\" and the text that stands in place of every value"),
        }
    }
    section.finish();
    masks
}
