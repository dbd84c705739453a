//! A list of keys as SQL: each key that is asked for with the row that it names, or with none.
//!
//! Pure. The literals take the types of the key's columns from the table itself, without modifiers: to cast to these would
//! cut and round what is asked for into other keys. Which keys are equal is the server's to say: it groups by the types'
//! own equality, whatever stands in the search path.

use postgres::quote;
use schemas::Columns;

use crate::relation::Relation;
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

/// Fails if the server takes one of these for no value of its column: texts in the order in which `columns` name them.
pub fn check(table: &str, columns: &[String], keys: &[&[String]]) -> String {
    let literals = keys.iter().map(|texts| list(texts.iter().map(|text| quote::literal(text))));
    format!("{} SELECT FROM asked LIMIT 0", asked(table, columns, literals.enumerate()))
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
        let sorted = relation.sorting.0.iter().find(|(known, _)| known == name);
        let equal = sorted.map_or_else(|| "=".to_owned(), |(_, sorted)| sorted.equal());
        format!("r.{} {equal} a.k{i}", quote::identifier(name))
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

/// What a chunk has read of these keys: all of them, or those alone whose rows were taken.
pub fn covered(keys: &[String], void: &[String], rows: Vec<Listed>) -> Part {
    let mut taken: Vec<usize> = rows.iter().flat_map(|row| row.keys.iter().copied()).collect();
    taken.sort_unstable();
    let place = |key: &usize| taken.binary_search(key).unwrap_or_default();
    let rows =
        rows.iter().map(|row| Listed { keys: row.keys.iter().map(place).collect(), is_there: row.is_there }).collect();
    let keys = taken.iter().filter_map(|key| keys.get(*key).cloned()).collect();
    Part::List { keys, void: void.to_vec(), rows }
}

/// Whether a text was no value of a column's type, or there is no such column.
pub fn is_no_value(error: &postgres::Error) -> bool {
    error.sqlstate().is_some_and(|code| code.starts_with("22") || code.starts_with("23") || code == "42703")
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
    use super::*;
    use crate::relation::Details;
    use crate::relation::tests::{details, users};
    use crate::sorted::tests::foreign;

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
        let keys = ["a", "b", "c", "d"].map(str::to_owned);
        let row = |keys: &[usize]| Listed { keys: keys.to_vec(), is_there: true };
        let Part::List { keys, rows, .. } = covered(&keys, &[], vec![row(&[3]), row(&[0, 1])]) else {
            panic!("a list")
        };
        assert_eq!((keys, rows), (vec!["a".into(), "b".into(), "d".into()], vec![row(&[2]), row(&[0, 1])]));
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
        let texts = [["1", "x"], ["2", "y"]].map(|texts| texts.map(str::to_owned).to_vec());
        assert!(check("t", &columns, &[&texts[0], &texts[1]]).contains(values));
    }
}
