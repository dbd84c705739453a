//! Which tables are meant: by name, by schema, by pattern, and all but some.
//!
//!     public.users      one table          shop.order_*    every table of the schema whose name begins so
//!     shop.*            a whole schema     !shop.order_x   never this one, whatever else matches it
//!
//! Pure. A star stands for any run of characters, also none, and every other character for itself, case included. In double
//! quotes everything stands for itself: so are names written that hold a star, a dot, a quote or an exclamation mark.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::TableName;
use crate::table::identifier;

/// A list of items: what one of them takes and none excludes is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    items: Vec<Item>,
    /// What is named by them, taken in or out: there can be thousands, and each table is asked for.
    named: [HashSet<TableName>; 2],
    /// Those that are patterns.
    patterns: Vec<Item>,
}

/// One item of a [`Selection`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Whether it takes tables out.
    excludes: bool,
    schema: Part,
    table: Part,
    /// As it was written.
    text: String,
}

/// What one part of a name must be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// This and no other.
    Exact(String),
    /// These pieces in this order, the first at the beginning, the last at the end, anything between two.
    Like(Vec<String>),
}

impl Selection {
    /// What `items` choose together.
    pub fn new(items: Vec<Item>) -> Selection {
        let named = [false, true]
            .map(|excludes| items.iter().filter(|item| item.excludes == excludes).filter_map(Item::table).collect());
        let patterns = items.iter().filter(|item| item.table().is_none()).cloned().collect();
        Selection { items, named, patterns }
    }

    /// Exactly these tables.
    pub fn of_tables<'a>(tables: impl IntoIterator<Item = &'a TableName>) -> Selection {
        Selection::new(tables.into_iter().map(Item::of).collect())
    }

    /// Whether it can choose nothing at all.
    pub fn is_empty(&self) -> bool {
        self.taking().next().is_none()
    }

    /// The items that take tables in.
    pub fn taking(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !item.excludes)
    }

    /// The items that take tables out.
    pub fn excluding(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.excludes)
    }

    /// Whether an item takes the table out.
    pub fn excludes(&self, table: &TableName) -> bool {
        self.has(true, table)
    }

    /// Whether the table is chosen.
    pub fn chooses(&self, table: &TableName) -> bool {
        self.has(false, table) && !self.has(true, table)
    }

    fn has(&self, excludes: bool, table: &TableName) -> bool {
        self.named[usize::from(excludes)].contains(table)
            || self.patterns.iter().any(|item| item.excludes == excludes && item.matches(table))
    }
}

impl Item {
    /// The item that means this table alone.
    pub fn of(table: &TableName) -> Item {
        let (schema, name) = (Part::Exact(table.schema.clone()), Part::Exact(table.table.clone()));
        Item { excludes: false, schema, table: name, text: table.to_string() }
    }

    /// The one table that it names; `None` where it is a pattern.
    pub fn table(&self) -> Option<TableName> {
        match (&self.schema, &self.table) {
            (Part::Exact(schema), Part::Exact(table)) => Some(TableName::new(schema, table)),
            _ => None,
        }
    }

    /// Whether it is about this table.
    pub fn matches(&self, table: &TableName) -> bool {
        self.schema.matches(&table.schema) && self.table.matches(&table.table)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Part {
    fn matches(&self, name: &str) -> bool {
        let pieces = match self {
            Part::Exact(exact) => return exact == name,
            Part::Like(pieces) => pieces,
        };
        let [first, between @ .., last] = pieces.as_slice() else { return false };
        let Some(rest) = name.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        // The leftmost place of each piece leaves most to the next.
        for piece in between {
            let Some(at) = rest.find(piece.as_str()) else { return false };
            rest = &rest[at + piece.len()..];
        }
        true
    }
}

/// The text names no tables.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected schema.table, with * for any characters and ! in front of what is left out; a part that itself holds *, !, a dot or a quote goes into double quotes"
)]
pub struct ParseError;

impl FromStr for Item {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Item, ParseError> {
        let (excludes, rest) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (schema, rest) = part(rest).ok_or(ParseError)?;
        let (table, rest) = rest.strip_prefix('.').and_then(part).ok_or(ParseError)?;
        if !rest.is_empty() {
            return Err(ParseError);
        }
        Ok(Item { excludes, schema, table, text: text.to_owned() })
    }
}

/// One part off the front of `text`, and what follows it.
fn part(text: &str) -> Option<(Part, &str)> {
    let (name, rest) = identifier(text)?;
    if text.starts_with('"') {
        return Some((Part::Exact(name), rest));
    }
    if name.contains('!') {
        return None;
    }
    if name.contains('*') {
        return Some((Part::Like(name.split('*').map(str::to_owned).collect()), rest));
    }
    Some((Part::Exact(name), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(text: &str) -> Item {
        text.parse().unwrap_or_else(|_| panic!("{text} is refused"))
    }

    fn selection(items: &[&str]) -> Selection {
        Selection::new(items.iter().map(|text| item(text)).collect())
    }

    #[test]
    fn a_star_stands_for_any_run_and_all_else_for_itself() {
        for (pattern, table, matches) in [
            ("shop.order_*", "order_items", true),
            ("shop.order_*", "order_", true),
            ("shop.order_*", "orders", false),
            ("shop.order_*", "Order_items", false),
            ("shop.*_log", "audit_log", true),
            ("shop.*_log", "log", false),
            ("shop.a*b*c", "abc", true),
            ("shop.a*b*c", "a-b-b-c", true),
            ("shop.a*b*c", "ac", false),
            ("shop.a*a", "a", false),
            ("shop.a*a", "aa", true),
            ("shop.*", "anything at all", true),
            ("*.users", "users", true),
            ("sh*.u?ers", "users", false),
            ("shop.users", "users", true),
            ("shop.\"order_*\"", "order_*", true),
            ("shop.\"order_*\"", "order_items", false),
            ("\"shop\".\"a\"\"b.!c\"", "a\"b.!c", true),
        ] {
            assert_eq!(item(pattern).matches(&TableName::new("shop", table)), matches, "{pattern} and {table}");
        }
        assert!(!item("shop.*").matches(&TableName::new("shopping", "users")));
    }

    #[test]
    fn what_an_exclusion_names_is_never_chosen_whatever_the_order() {
        for order in [&["shop.*", "!shop.order_tmp"][..], &["!shop.order_tmp", "shop.*"], &["!*.order_t*", "*.*"]] {
            let chosen = selection(order);
            assert!(chosen.chooses(&TableName::new("shop", "orders")));
            assert!(!chosen.chooses(&TableName::new("shop", "order_tmp")));
        }
        assert!(selection(&["!shop.a"]).is_empty());
        assert!(!selection(&["!shop.a"]).chooses(&TableName::new("shop", "b")));
    }

    #[test]
    fn a_name_without_a_star_is_one_table() {
        assert_eq!(item("public.users").table(), Some(TableName::new("public", "users")));
        assert_eq!(item("Public.\"a*\"").table(), Some(TableName::new("Public", "a*")));
        assert_eq!(item("public.*").table(), None);
        for bad in ["", "users", "!", "!users", "a.", ".b", "a.b.c", "a.!b", "a!.b", "!!a.b", "a.\"b", "a.\"b\"*"] {
            assert!(bad.parse::<Item>().is_err(), "{bad} was accepted");
        }
    }

    proptest! {
        /// Whatever a table is called, its printed name chooses it and nothing else.
        #[test]
        fn a_printed_name_means_its_table_alone(schema in "[a*.!\"é ]{1,4}", table in "[a*.!\"é ]{1,4}", other in "[a*.!\"é ]{1,4}") {
            let name = TableName::new(schema.clone(), table.clone());
            let item = item(&name.to_string());
            prop_assert!(item.matches(&name));
            prop_assert_eq!(item.table(), Some(name));
            prop_assert_eq!(item.matches(&TableName::new(schema, other.clone())), other == table);
        }

        /// Filling the stars of a pattern with anything makes a name that it matches.
        #[test]
        fn a_filled_pattern_matches(pieces in prop::collection::vec("[ab_]{0,3}", 2..5), fills in prop::collection::vec("[ab_]{0,3}", 4)) {
            let pattern = item(&format!("s.{}", pieces.join("*")));
            let mut name = pieces[0].clone();
            for (piece, fill) in pieces[1..].iter().zip(&fills) {
                name.push_str(fill);
                name.push_str(piece);
            }
            prop_assert!(pattern.matches(&TableName::new("s", name)));
        }
    }
}
