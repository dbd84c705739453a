//! `source.tables` in the text of a configuration file: a table comes in or goes out, and all else stays as it was written.
//!
//! Pure. What is not plain from the list itself is refused, with what to write by hand.

use schemas::TableName;
use schemas::selection::Item;
use toml_edit::{Array, DocumentMut, Item as Toml, Value};

/// Why the file is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it is no TOML")]
    Syntax,
    #[error("it has no list source.tables: write one, as in tables = [\"{0}\"]")]
    NoList(TableName),
    #[error("source.tables leaves {table} out by \"{item}\": take that out of the list by hand")]
    Excluded { table: TableName, item: String },
    #[error(
        "source.tables takes {table} by the pattern \"{item}\": add \"!{table}\" to the list by hand to leave it out"
    )]
    Pattern { table: TableName, item: String },
    #[error(
        "{0} is the only table of source.tables, and a source without any cannot run: stop it, and see `tributary slot drop`"
    )]
    Last(TableName),
}

/// The text with `table` in the list; `None` if it is chosen already.
pub(crate) fn add(text: &str, table: &TableName) -> Result<Option<String>, Refused> {
    let mut document: DocumentMut = text.parse().map_err(|_| Refused::Syntax)?;
    let list = list(&mut document).ok_or_else(|| Refused::NoList(table.clone()))?;
    let items = items(list);
    let takes = |excludes: bool| items.iter().find(|(item, is_out)| *is_out == excludes && item.matches(table));
    if let Some((item, _)) = takes(true) {
        return Err(Refused::Excluded { table: table.clone(), item: item.to_string() });
    }
    if takes(false).is_some() {
        return Ok(None);
    }
    // Written as the one before it, on a line of its own if that is.
    let before = list.iter().last().map(|value| value.decor().clone());
    let mut value = Value::from(table.to_string());
    if let Some(prefix) = before.as_ref().and_then(|decor| decor.prefix()).and_then(|prefix| prefix.as_str()) {
        let line: String = prefix.rsplit('\n').next().unwrap_or_default().to_owned();
        let prefix = if prefix.contains('\n') { format!("\n{line}") } else { " ".to_owned() };
        value.decor_mut().set_prefix(prefix);
    }
    list.push_formatted(value);
    Ok(Some(document.to_string()))
}

/// The text without `table` in the list; `None` if it is not chosen.
pub(crate) fn remove(text: &str, table: &TableName) -> Result<Option<String>, Refused> {
    let mut document: DocumentMut = text.parse().map_err(|_| Refused::Syntax)?;
    let list = list(&mut document).ok_or_else(|| Refused::NoList(table.clone()))?;
    let items = items(list);
    if items.iter().any(|(item, excludes)| *excludes && item.matches(table)) {
        return Ok(None);
    }
    let taking = |pattern: bool| {
        let of = |(_, (item, excludes)): &(usize, &(Item, bool))| {
            !*excludes && item.matches(table) && item.table().is_none() == pattern
        };
        items.iter().enumerate().find(of).map(|(place, (item, _))| (place, item.to_string()))
    };
    if let Some((_, item)) = taking(true) {
        return Err(Refused::Pattern { table: table.clone(), item });
    }
    let Some((place, _)) = taking(false) else { return Ok(None) };
    if items.iter().filter(|(_, excludes)| !excludes).count() == 1 {
        return Err(Refused::Last(table.clone()));
    }
    // A comment that stands in front of the next one belongs to that; what stands in front of this one goes with it.
    list.remove(place);
    Ok(Some(document.to_string()))
}

fn list(document: &mut DocumentMut) -> Option<&mut Array> {
    document.get_mut("source")?.get_mut("tables").and_then(Toml::as_array_mut)
}

/// The items that can be read, and whether each takes tables out.
fn items(list: &Array) -> Vec<(Item, bool)> {
    let item = |value: &Value| {
        let text = value.as_str()?;
        Some((text.parse().ok()?, text.starts_with('!')))
    };
    list.iter().map(item).map(|item| item.unwrap_or_else(unreadable)).collect()
}

/// Stands in the place of what is no item: it matches nothing.
fn unreadable() -> (Item, bool) {
    (Item::of(&TableName::new("", "")), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# what we publish
[source]
url = 'postgresql://u@h/d' # the primary
tables = [
    \"public.users\",  # people
    \"shop.order_*\",
    \"!shop.order_archive\",
]

[groups.rdb]
to = \"postgres\"
";

    fn name(text: &str) -> TableName {
        text.parse().expect("a name")
    }

    #[test]
    fn a_table_comes_in_on_a_line_of_its_own_and_goes_out_again() {
        let with = add(FILE, &name("public.Notes")).expect("plain").expect("new");
        assert!(with.contains("\n    \"public.Notes\""), "{with}");
        for line in FILE.lines() {
            assert!(with.contains(line.trim_end_matches(',')), "{line} is gone:\n{with}");
        }
        assert_eq!(add(&with, &name("public.Notes")), Ok(None));
        let without = remove(&with, &name("public.Notes")).expect("plain").expect("it was there");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&without), words(FILE));
    }

    #[test]
    fn a_list_on_one_line_stays_on_it() {
        let file = "[source]\ntables = [\"a.b\", \"a.c\"] # two\n";
        let with = add(file, &name("a.\"x.y\"")).expect("plain").expect("new");
        assert_eq!(with, "[source]\ntables = [\"a.b\", \"a.c\", 'a.\"x.y\"'] # two\n");
        assert_eq!(remove(&with, &name("a.\"x.y\"")).expect("plain").as_deref(), Some(file));
        assert_eq!(
            remove(file, &name("a.b")).expect("plain").as_deref(),
            Some("[source]\ntables = [ \"a.c\"] # two\n")
        );
    }

    #[test]
    fn what_patterns_make_unclear_is_refused_with_what_to_write() {
        assert_eq!(add(FILE, &name("shop.order_lines")), Ok(None), "a pattern takes it already");
        let excluded = add(FILE, &name("shop.order_archive")).expect_err("left out").to_string();
        assert!(excluded.contains("!shop.order_archive"), "{excluded}");
        let pattern = remove(FILE, &name("shop.order_lines")).expect_err("by a pattern").to_string();
        assert!(pattern.contains("\"!shop.order_lines\""), "{pattern}");
        assert_eq!(remove(FILE, &name("shop.order_archive")), Ok(None));
        assert_eq!(remove(FILE, &name("public.other")), Ok(None));
        let one = "[source]\ntables = ['a.b']";
        assert!(matches!(remove(one, &name("a.b")), Err(Refused::Last(_))));
        assert!(matches!(add("[source]", &name("a.b")), Err(Refused::NoList(_))));
        assert!(matches!(add("[source", &name("a.b")), Err(Refused::Syntax)));
    }
}
