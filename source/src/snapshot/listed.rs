//! A list of keys as SQL: each key that is asked for with the row that it names, or with none.
//!
//! Pure. The literals take the types of the key's columns from the table itself, without modifiers: to cast to these would
//! cut and round what is asked for into other keys. Which keys are equal is the server's to say: it groups by the types'
//! own equality, whatever stands in the search path.

use postgres::quote;
use schemas::Columns;

use crate::relation::Relation;
use crate::sorted::Sorting;
use crate::window::{Listed, Part};

/// Which of the keys are equal: one row for each that differs from the others, with the numbers of those that are it. Fails
/// if the server takes one of them for no value of its column. `table` is as SQL writes it; `None` if they are not all of
/// the same columns.
pub fn groups(table: &str, keys: &[String]) -> Option<String> {
    let first = Columns::decode(keys.first()?.as_bytes()).ok()?;
    let columns: Vec<String> = first.0.iter().map(|(name, _)| name.to_string()).collect();
    let literals = keys.iter().map(|key| literals(key, &columns)).collect::<Option<Vec<_>>>()?;
    let asked = asked(table, &columns, literals.into_iter().enumerate());
    Some(format!("{asked} SELECT numbers FROM asked ORDER BY numbers"))
}

/// The same question without any key: what fails here is no key's fault.
pub fn bare(table: &str, columns: &[String]) -> String {
    format!("{} SELECT numbers FROM asked", asked(table, columns, std::iter::empty()))
}

/// The columns that a key names.
pub fn columns_of(key: &str) -> Vec<String> {
    let columns = Columns::decode(key.as_bytes()).unwrap_or_default();
    columns.0.iter().map(|(name, _)| name.to_string()).collect()
}

/// One row if these can be the ends of a range: texts in the order of the key's columns, of two the second behind the first.
/// Fails if the server takes one of them for no value of its column.
pub fn check(table: &str, sorting: &Sorting, ends: &[&[String]]) -> String {
    let names = list(sorting.0.iter().map(|(name, _)| quote::identifier(name)));
    let literals = |texts: &[String]| list(texts.iter().map(|text| quote::literal(text)));
    let rows = ends.iter().rev().map(|end| format!(" UNION ALL SELECT {}", literals(end)));
    let rows = rows.collect::<String>();
    let condition = match ends {
        [after, _] => sorting.after(after),
        _ => "true".to_owned(),
    };
    format!("SELECT true FROM (SELECT {names} FROM {table} WHERE false{rows}) ends ({names}) WHERE {condition} LIMIT 1")
}

/// Which of the `touched` keys are equal to one of the `listed`, by the key's own operators: pairs of their numbers. What is
/// no key of the relation is equal to none.
pub fn same(table: &str, relation: &Relation, listed: &[&str], touched: &[&str]) -> String {
    let key = relation.key_names();
    let own = list(key.iter().map(|name| quote::identifier(name)));
    let names = list((0..key.len()).map(|i| format!("k{i}")));
    let values = |keys: &[&str]| {
        let rows = keys.iter().enumerate().filter_map(|(number, text)| Some((number, literals(text, &key)?)));
        let rows = rows.map(|(number, row)| format!(" UNION ALL SELECT {number}, {row}")).collect::<String>();
        format!("SELECT 0, {own} FROM {table} WHERE false{rows}")
    };
    let is_same = |(i, name): (usize, &String)| equal(relation, name, &format!("l.k{i}"), &format!("t.k{i}"));
    let on = key.iter().enumerate().map(is_same).collect::<Vec<_>>().join(" AND ");
    format!(
        "WITH listed (number, {names}) AS ({}), touched (number, {names}) AS ({}) \
         SELECT t.number, l.number FROM touched t JOIN listed l ON {on}",
        values(listed),
        values(touched),
    )
}

/// One row for each key that differs from the others: the numbers of those that are it, whether the table has its row, and
/// the relation's columns; where there is no row, the key's alone. What is no key of the relation is left out. A row with a
/// NULL in it is neither NULL nor NOT NULL, and yet it is there.
pub fn select(relation: &Relation, only: &str, keys: &[String], filter: Option<&str>) -> String {
    let table = format!("{only}{}", quote::table(&relation.name));
    let key = relation.key_names();
    let literals = keys.iter().enumerate().filter_map(|(number, text)| Some((number, literals(text, &key)?)));
    let column = |column: &schemas::event::Column| {
        let name = quote::identifier(&column.name);
        let place = key.iter().position(|key| *key == column.name);
        place.map_or_else(|| format!("r.{name}"), |i| format!("coalesce(r.{name}, a.k{i})"))
    };
    let is_same = |(i, name): (usize, &String)| {
        equal(relation, name, &format!("r.{}", quote::identifier(name)), &format!("a.k{i}"))
    };
    let columns = list(relation.columns.iter().map(column));
    let own = list(relation.columns.iter().map(|column| quote::identifier(&column.name)));
    let on = key.iter().enumerate().map(is_same).collect::<Vec<_>>().join(" AND ");
    let condition = filter.map(|filter| format!(" WHERE {filter}")).unwrap_or_default();
    format!(
        "{asked} SELECT a.numbers, r.{first} IS DISTINCT FROM NULL, {columns} \
         FROM asked a LEFT JOIN (SELECT {own} FROM {table}{condition}) r ON {on}",
        asked = asked(&table, &key, literals),
        first = quote::identifier(&key[0]),
    )
}

/// What a line of COPY of [`select`] says in front of the relation's columns, and the line behind that.
pub fn row(line: &[u8]) -> Option<(Listed, &[u8])> {
    let end = line.iter().position(|byte| *byte == b'\t')?;
    let numbers = std::str::from_utf8(&line[..end]).ok()?.strip_prefix('{')?.strip_suffix('}')?;
    let keys = numbers.split(',').map(|number| number.parse().ok()).collect::<Option<Vec<usize>>>()?;
    let (flag, rest) = line[end + 1..].split_at_checked(2)?;
    let is_there = match flag {
        b"t\t" => true,
        b"f\t" => false,
        _ => return None,
    };
    Some((Listed { keys, is_there }, rest))
}

/// What a chunk has read of these keys: all of them, or those alone whose rows were taken. Those that are not of the columns of
/// the table's key, which may be others by now, can name no row.
pub fn covered(keys: &[String], void: &[String], rows: Vec<Listed>, columns: &[String]) -> Part {
    let mut taken: Vec<usize> = rows.iter().flat_map(|row| row.keys.iter().copied()).collect();
    taken.sort_unstable();
    let place = |key: &usize| taken.binary_search(key).unwrap_or_default();
    let rows =
        rows.iter().map(|row| Listed { keys: row.keys.iter().map(place).collect(), is_there: row.is_there }).collect();
    let lost = keys.iter().filter(|key| literals(key, columns).is_none());
    let void = void.iter().chain(lost).cloned().collect();
    let keys = taken.iter().filter_map(|key| keys.get(*key).cloned()).collect();
    Part::List { keys, void, rows }
}

/// Whether a statement may have failed by the keys that stand in it. Types refuse a text with codes of many classes, also such
/// as speak of syntax or of missing tables, so only the question without keys tells.
pub fn may_be_of_keys(error: &postgres::Error) -> bool {
    error.sqlstate().is_some_and(|code| !postgres::sqlstate::is_of_circumstances(code))
}

/// Whether the question without keys fails by what the keys' columns are by now: gone, or of a type without equality.
pub fn is_no_key(error: &postgres::Error) -> bool {
    matches!(error.sqlstate(), Some("42703" | "42883"))
}

/// The condition that two values of a column of the key are equal. Where no index says by which operator, and the plain sign
/// may mean another than the type's own or none, arrays are compared: they go by the type's.
fn equal(relation: &Relation, name: &str, left: &str, right: &str) -> String {
    let sorted = relation.sorting.0.iter().find(|(known, _)| known == name).map(|(_, sorted)| sorted);
    let is_plain = relation.template.columns().iter().any(|column| column.name == name && column.canonical.is_some());
    match sorted {
        Some(sorted) if !sorted.is_of_text() => format!("{left} {} {right}", sorted.equal()),
        _ if is_plain => format!("{left} = {right}"),
        _ => format!("ARRAY[{left}] OPERATOR(pg_catalog.=) ARRAY[{right}]"),
    }
}

/// Numbered rows of literals that have the types of these columns, and which of them are equal.
fn asked(table: &str, columns: &[String], literals: impl Iterator<Item = (usize, String)>) -> String {
    let names = list((0..columns.len()).map(|i| format!("k{i}")));
    let own = list(columns.iter().map(|name| quote::identifier(name)));
    let mut values = format!("SELECT 0, {own} FROM {table} WHERE false");
    literals.for_each(|(number, row)| values.push_str(&format!(" UNION ALL SELECT {number}, {row}")));
    format!(
        "WITH listed (number, {names}) AS ({values}), \
         asked AS (SELECT array_agg(number ORDER BY number) AS numbers, {names} FROM listed GROUP BY {names})"
    )
}

/// A key's values in the order of these columns; `None` if it has not exactly these.
fn literals(key: &str, columns: &[String]) -> Option<String> {
    let decoded = Columns::decode(key.as_bytes()).ok().filter(|decoded| decoded.0.len() == columns.len())?;
    let literal = |name: &String| Some(quote::literal(decoded.get(name)??));
    Some(list(columns.iter().map(literal).collect::<Option<Vec<_>>>()?.into_iter()))
}

fn list(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::relation::Details;
    use crate::relation::tests::{details, users};
    use crate::sorted::tests::{foreign, plain};

    #[test]
    fn each_key_has_one_row() {
        let relation = Relation::new(&users('d'), &details(), "", "").expect("it has a key");
        let keys = [r#"{"id":1}"#, r#"{"id":"2'"}"#, r#"{"name":"other"}"#].map(str::to_owned);
        let query = select(&relation, "ONLY ", &keys, Some("(id > 0)"));
        assert_eq!(
            query,
            concat!(
                r#"WITH listed (number, k0) AS (SELECT 0, "id" FROM ONLY "public"."users" WHERE false "#,
                r#"UNION ALL SELECT 0, '1' UNION ALL SELECT 1, '2'''), "#,
                "asked AS (SELECT array_agg(number ORDER BY number) AS numbers, k0 FROM listed GROUP BY k0) ",
                r#"SELECT a.numbers, r."id" IS DISTINCT FROM NULL, coalesce(r."id", a.k0), r."name", r."bio" FROM asked a LEFT JOIN "#,
                r#"(SELECT "id", "name", "bio" FROM ONLY "public"."users" WHERE (id > 0)) r ON r."id" = a.k0"#
            )
        );
        let foreign = Details { sorted: vec![foreign(1)], ..details() };
        let relation = Relation::new(&users('d'), &foreign, "", "").expect("it has a key");
        assert!(select(&relation, "", &keys, None).ends_with(r#"r ON r."id" OPERATOR(public.=) a.k0"#));
    }

    #[test]
    fn what_stands_in_front_of_a_row_says_whose_it_is() {
        let there = Listed { keys: vec![0, 12], is_there: true };
        assert_eq!(row(b"{0,12}\tt\t1\tx\n"), Some((there, b"1\tx\n".as_slice())));
        assert_eq!(row(b"{3}\tf\t1\n"), Some((Listed { keys: vec![3], is_there: false }, b"1\n".as_slice())));
        for bad in ["", "1\t2\n", "{}\tt\t1", "{1}\tx\t1", "{1}\tt"] {
            assert_eq!(row(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_chunk_that_is_full_covers_the_keys_of_its_rows() {
        let key = |n: usize| format!("{{\"id\":{n}}}");
        let keys: Vec<String> = (0..4).map(key).collect();
        let row = |keys: &[usize]| Listed { keys: keys.to_vec(), is_there: true };
        let id = ["id".to_owned()];
        let part = covered(&keys, &[], vec![row(&[3]), row(&[0, 1])], &id);
        let rows = vec![row(&[2]), row(&[0, 1])];
        assert_eq!(part, Part::List { keys: vec![key(0), key(1), key(3)], void: Vec::new(), rows });
        // The table has another key by now.
        let part = covered(&keys, &["x".into()], Vec::new(), &["uid".to_owned()]);
        let void = [vec!["x".to_owned()], keys].concat();
        assert_eq!(part, Part::List { keys: Vec::new(), void, rows: Vec::new() });
    }

    #[test]
    fn keys_are_held_against_the_columns_that_they_name() {
        let keys = [r#"{"a":1,"b":"x"}"#, r#"{"b":"y","a":2}"#].map(str::to_owned);
        let query = groups("t", &keys).expect("the same columns");
        let values =
            r#"SELECT 0, "a", "b" FROM t WHERE false UNION ALL SELECT 0, '1', 'x' UNION ALL SELECT 1, '2', 'y'"#;
        assert!(query.contains(values), "{query}");
        assert_eq!(groups("t", &[keys[0].clone(), r#"{"a":1}"#.to_owned()]), None);
        let columns = ["a", "b"].map(str::to_owned);
        assert_eq!(columns_of(&keys[0]), columns);
        assert!(bare("t", &columns).contains(r#"AS (SELECT 0, "a", "b" FROM t WHERE false), asked"#));
    }

    #[test]
    fn the_ends_of_a_range_are_compared_as_its_index_sorts() {
        let sorting = Sorting(vec![("a".to_owned(), plain(1, "integer")), ("b".to_owned(), plain(2, "text"))]);
        let [after, upto] = [["1", "x"], ["2", "y"]].map(|texts| texts.map(str::to_owned).to_vec());
        assert_eq!(
            check("t", &sorting, &[&after, &upto]),
            concat!(
                r#"SELECT true FROM (SELECT "a", "b" FROM t WHERE false UNION ALL SELECT '2', 'y' UNION ALL SELECT '1', 'x') "#,
                r#"ends ("a", "b") WHERE ("a", "b") > ('1'::integer, 'x'::text) LIMIT 1"#
            )
        );
        assert!(
            check("t", &sorting, &[&upto])
                .ends_with(r#"UNION ALL SELECT '2', 'y') ends ("a", "b") WHERE true LIMIT 1"#)
        );
    }

    #[test]
    fn keys_are_equal_by_the_operator_of_their_index_or_else_of_their_type() {
        let keys = (&[r#"{"id":"a"}"#, r#"{"name":"b"}"#][..], &[r#"{"id":"c'"}"#][..]);
        let same_by = |details: &Details| {
            let relation = Relation::new(&users('d'), details, "", "").expect("it has a key");
            same("t", &relation, keys.0, keys.1)
        };
        assert_eq!(
            same_by(&Details { sorted: vec![foreign(1)], ..details() }),
            concat!(
                r#"WITH listed (number, k0) AS (SELECT 0, "id" FROM t WHERE false UNION ALL SELECT 0, 'a'), "#,
                r#"touched (number, k0) AS (SELECT 0, "id" FROM t WHERE false UNION ALL SELECT 0, 'c''') "#,
                "SELECT t.number, l.number FROM touched t JOIN listed l ON l.k0 OPERATOR(public.=) t.k0"
            )
        );
        let unsorted = Details { sorted: Vec::new(), ..details() };
        assert!(same_by(&unsorted).ends_with("l.k0 = t.k0"));
        let foreign = Details { canonical: HashMap::new(), ..unsorted };
        assert!(same_by(&foreign).ends_with("ARRAY[l.k0] OPERATOR(pg_catalog.=) ARRAY[t.k0]"));
    }
}
