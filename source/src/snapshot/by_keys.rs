//! Single rows as SQL, named by the keys of their records.
//!
//! Pure. Knows nothing of why they are asked for.

use std::borrow::Cow;

use postgres::quote;
use schemas::Columns;

use crate::relation::Relation;

/// The rows with these record keys.
pub fn select(relation: &Relation, only: &str, keys: &[String], filter: Option<&str>) -> String {
    let row = |key: &String| {
        let columns = Columns::decode(key.as_bytes()).unwrap_or_default();
        let is = |(name, value): &(Cow<'_, str>, Option<Cow<'_, str>>)| {
            // A column that is gone names no row any more: the key has changed, and with it every row.
            let sorted = relation.sorting.0.iter().find(|(known, _)| known == name);
            match (value, sorted) {
                (Some(text), Some((name, sorted))) => sorted.equals(name, text),
                _ => "false".to_owned(),
            }
        };
        let all: Vec<_> = columns.0.iter().map(is).collect();
        if all.is_empty() { "false".to_owned() } else { format!("({})", all.join(" AND ")) }
    };
    let rows = keys.iter().map(row).collect::<Vec<_>>().join(" OR ");
    let filter = filter.map(|filter| format!(" AND ({filter})")).unwrap_or_default();
    let columns = relation.columns.iter().map(|column| quote::identifier(&column.name)).collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM {only}{} WHERE ({rows}){filter}", quote::table(&relation.name))
}
