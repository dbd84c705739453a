//! The section `[source.keys]`: the columns that tell the rows of a table apart, where its catalog has no key.

use std::collections::BTreeMap;

use schemas::TableName;
use service::config::Reader;

/// Reads the keys of all tables.
pub(super) fn read(source: &mut Reader<'_>) -> BTreeMap<TableName, Vec<String>> {
    let mut keys = BTreeMap::new();
    let Some(mut section) = source.optional_section("keys") else { return keys };
    for name in section.names() {
        let columns: Vec<String> = section.optional(&name).unwrap_or_default();
        let is_twice = |column: &String| columns.iter().filter(|other| *other == column).count() > 1;
        if let Some(twice) = columns.iter().find(|column| is_twice(column)) {
            section.fault(&name, format!("names {twice:?} twice"));
        } else if columns.is_empty() {
            section.fault(&name, "list the columns that tell its rows apart, as in \"shop.log\" = [\"day\", \"line\"]");
        }
        match name.parse::<TableName>() {
            Ok(table) => drop(keys.insert(table, columns)),
            Err(error) => section.fault(&name, format!("{error}; a key is for one table, and no pattern")),
        }
    }
    section.finish();
    keys
}
