//! Ranges of a key as SQL: which rows one holds, and in which order they come.
//!
//! Pure. What order the server sorts in is its own: keys are texts here, and only it compares them.

use postgres::quote;
use schemas::state::Range;
use schemas::write::Cell;

use crate::relation::{Details, Relation};
use crate::window::Rows;

/// How a table is read in the order of its key: the index's own order, or each chunk would sort the whole table.
pub struct Paging {
    /// Where the key's columns stand in a row.
    columns: Vec<usize>,
    /// What is compared and sorted by.
    expressions: Vec<String>,
    /// What a literal is cast to.
    types: Vec<String>,
}

impl Paging {
    /// By the columns of the key, in their index's order.
    pub fn new(relation: &Relation, details: &Details) -> Paging {
        let place = |name: &String| relation.columns.iter().position(|column| column.name == *name);
        let in_order: Option<Vec<usize>> = details.primary_key.iter().map(place).collect();
        let is_key = |columns: &Vec<usize>| {
            columns.len() == relation.key.len() && columns.iter().all(|i| relation.key.contains(i))
        };
        let columns = in_order.filter(is_key).unwrap_or_else(|| relation.key.clone());
        let mut paging = Paging { expressions: Vec::new(), types: Vec::new(), columns };
        for i in &paging.columns {
            let column = &relation.columns[*i];
            let name = quote::identifier(&column.name);
            // An extension's operators are out of sight here: comparison and sort go by text then, whatever that costs.
            let (expression, cast) = if details.foreign.contains(&column.name) {
                (format!("{name}::text COLLATE \"C\""), "text")
            } else {
                (name, column.type_name.as_str())
            };
            paging.expressions.push(expression);
            paging.types.push(cast.to_owned());
        }
        paging
    }

    /// The rows of a range in key order, at most so many.
    pub fn select(
        &self,
        relation: &Relation,
        only: &str,
        range: &Range,
        filter: Option<&str>,
        rows_max: usize,
    ) -> String {
        let key = self.expressions.join(", ");
        let bound = |operator: &str, texts: &[String]| {
            let literals =
                texts.iter().zip(&self.types).map(|(text, cast)| format!("{}::{cast}", quote::literal(text)));
            format!("({key}) {operator} ({})", literals.collect::<Vec<_>>().join(", "))
        };
        let mut conditions = Vec::new();
        conditions.extend(range.after.as_deref().map(|texts| bound(">", texts)));
        conditions.extend(range.upto.as_deref().map(|texts| bound("<=", texts)));
        conditions.extend(filter.map(|filter| format!("({filter})")));
        let condition =
            if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        let columns = relation.columns.iter().map(|column| quote::identifier(&column.name)).collect::<Vec<_>>();
        let (columns, table) = (columns.join(", "), quote::table(&relation.name));
        format!("SELECT {columns} FROM {only}{table}{condition} ORDER BY {key} LIMIT {rows_max}")
    }

    /// The last key in front of this one.
    pub fn in_front_of(&self, relation: &Relation, from: &str, key: &[String]) -> String {
        let literals = key.iter().zip(&self.types).map(|(text, cast)| format!("{}::{cast}", quote::literal(text)));
        let names = self.columns.iter().map(|i| quote::identifier(&relation.columns[*i].name));
        let order = self.expressions.iter().map(|expression| format!("{expression} DESC"));
        let list = |parts: Vec<String>| parts.join(", ");
        format!(
            "SELECT {} FROM {from} WHERE ({}) < ({}) ORDER BY {} LIMIT 1",
            list(names.collect()),
            self.expressions.join(", "),
            list(literals.collect()),
            list(order.collect()),
        )
    }

    /// The key of the last row: where the range ends that was read.
    pub fn last_key(&self, rows: &Rows) -> Option<Vec<String>> {
        let row = rows.len().checked_sub(1).map(|last| rows.row(last))?;
        let text = |i: &usize| match row[*i] {
            Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Cell::Null | Cell::Unchanged => String::new(),
        };
        Some(self.columns.iter().map(text).collect())
    }
}
