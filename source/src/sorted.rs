//! How the index of a key sorts, column by column, and what that is as SQL.
//!
//! Pure. Plain signs would mean the operators that the search path finds, by the column's own collation: an extension's type
//! has others, and an index may be made with another operator class or collation than the column's.

use postgres::quote;

/// A column of the key as its index sorts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorted {
    /// Its number in the table.
    pub number: i16,
    /// What a literal is cast to: its type without modifier, a domain's base.
    pub cast: String,
    /// The operators `<`, `<=`, `=`, `>=` and `>` of the index, with their schema.
    pub operators: [String; 5],
    /// The family of the index's operators, and the type where it is one of those that are enums, arrays and the like: what tells
    /// the order of this index from that of one over another type.
    pub family: String,
    /// The collation of the index, where its type has any. The column's own may become another one.
    pub collation: Option<String>,
}

/// Where an operator stands among those of an index.
#[derive(Clone, Copy)]
enum Sign {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
}

impl Sorted {
    /// A column that is sorted by the bytes of its text, as COPY and the stream write it: an order that tells any two texts
    /// apart, and that no index has.
    pub fn by_text() -> Sorted {
        Sorted {
            number: 0,
            cast: "text".to_owned(),
            operators: ["<", "<=", "=", ">=", ">"].map(|sign| format!("pg_catalog.{sign}")),
            family: "pg_catalog.text_ops".to_owned(),
            collation: Some("pg_catalog.\"C\"".to_owned()),
        }
    }

    /// What is compared and sorted, of the column `name`.
    pub fn expression(&self, name: &str) -> String {
        let name = quote::identifier(name);
        // A cast to text is another one than what rows are written by: it trims char(n), and calls a boolean true instead of t.
        let name = if self.is_of_text() { format!("pg_catalog.format('%s', {name})") } else { name };
        match &self.collation {
            Some(collation) => format!("{name} COLLATE {collation}"),
            None => name,
        }
    }

    /// The condition that the column `name` has the value of a text.
    pub fn equals(&self, name: &str, text: &str) -> String {
        self.compared(name, Sign::Equal, text)
    }

    /// The operator that calls two values of the column equal, as SQL writes it.
    pub fn equal(&self) -> String {
        if self.is_plain() { "=".to_owned() } else { self.sign(Sign::Equal) }
    }

    /// Whether no index sorts like this.
    pub fn is_of_text(&self) -> bool {
        self.number == 0
    }

    /// What tells this order from any other, of the same columns.
    pub fn describe(&self) -> String {
        let collation = self.collation.as_ref().map(|collation| format!("@{collation}")).unwrap_or_default();
        format!("{}:{}{collation}", self.number, self.family)
    }

    /// Whether plain signs mean the operators of the index.
    fn is_plain(&self) -> bool {
        self.operators[Sign::Less as usize] == "pg_catalog.<"
    }

    fn sign(&self, sign: Sign) -> String {
        format!("OPERATOR({})", self.operators[sign as usize])
    }

    fn literal(&self, text: &str) -> String {
        format!("{}::{}", quote::literal(text), self.cast)
    }

    fn compared(&self, name: &str, sign: Sign, text: &str) -> String {
        format!("{} {} {}", self.expression(name), self.sign(sign), self.literal(text))
    }
}

/// The order of a whole key: its columns by name, each as it is sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorting(pub Vec<(String, Sorted)>);

impl Sorting {
    /// As ORDER BY takes it.
    pub fn by(&self) -> String {
        let column = |(name, sorted): &(String, Sorted)| match sorted.is_plain() {
            true => sorted.expression(name),
            false => format!("{} USING {}", sorted.expression(name), sorted.sign(Sign::Less)),
        };
        self.0.iter().map(column).collect::<Vec<_>>().join(", ")
    }

    /// The key's expressions, as a list.
    pub fn expressions(&self) -> String {
        self.0.iter().map(|(name, sorted)| sorted.expression(name)).collect::<Vec<_>>().join(", ")
    }

    /// The condition that a key comes after this one.
    pub fn after(&self, texts: &[String]) -> String {
        self.bounded(texts, ">", [Sign::GreaterOrEqual, Sign::Greater], Sign::Greater)
    }

    /// The condition that a key comes before this one or is the same.
    pub fn upto(&self, texts: &[String]) -> String {
        self.bounded(texts, "<=", [Sign::LessOrEqual, Sign::Less], Sign::LessOrEqual)
    }

    /// A key as values of its columns' types, as a list.
    pub fn literals(&self, texts: &[String]) -> String {
        let literals = self.0.iter().zip(texts).map(|((_, sorted), text)| sorted.literal(text));
        literals.collect::<Vec<_>>().join(", ")
    }

    /// The last key in front of this one, of a table as SQL writes it.
    pub fn in_front_of(&self, table: &str, texts: &[String]) -> String {
        let before = self.bounded(texts, "<", [Sign::LessOrEqual, Sign::Less], Sign::Less);
        let descending = |(name, sorted): &(String, Sorted)| match sorted.is_plain() {
            true => format!("{} DESC", sorted.expression(name)),
            false => format!("{} USING {}", sorted.expression(name), sorted.sign(Sign::Greater)),
        };
        let order = self.0.iter().map(descending).collect::<Vec<_>>().join(", ");
        let names = self.0.iter().map(|(name, _)| quote::identifier(name)).collect::<Vec<_>>().join(", ");
        format!("SELECT {names} FROM {table} WHERE {before} ORDER BY {order} LIMIT 1")
    }

    /// Whether one key comes before another or is the same, of a table as SQL writes it: its columns' own collations count.
    pub fn is_upto(&self, table: &str, key: &[String], end: &[String]) -> String {
        let column = |(name, sorted): &(String, Sorted)| match (quote::identifier(name), sorted.number) {
            (name, 0) => format!("{name}::text AS {name}"),
            (name, _) => name,
        };
        let columns = self.0.iter().map(column).collect::<Vec<_>>().join(", ");
        let (literals, bound) = (self.literals(key), self.upto(end));
        format!("SELECT {bound} FROM (SELECT {columns} FROM {table} WHERE false UNION ALL SELECT {literals}) AS key")
    }

    /// A comparison of rows takes plain signs alone. Where these mean something else it is spelt out, so that an index can
    /// still be entered by the first column.
    fn bounded(&self, texts: &[String], plain: &str, [at, beyond]: [Sign; 2], last: Sign) -> String {
        if self.0.iter().all(|(_, sorted)| sorted.is_plain()) {
            return format!("({}) {plain} ({})", self.expressions(), self.literals(texts));
        }
        let mut columns = self.0.iter().zip(texts).rev();
        let Some(((name, sorted), text)) = columns.next() else { return "true".to_owned() };
        columns.fold(sorted.compared(name, last, text), |rest, ((name, sorted), text)| {
            let (at, beyond) = (sorted.compared(name, at, text), sorted.compared(name, beyond, text));
            format!("({at} AND ({beyond} OR {rest}))")
        })
    }

    /// A key that no index holds may be NULL, and is compared with nothing then: such rows belong to every range, so that they
    /// are met and told.
    pub fn or_null(&self, bounds: Vec<String>) -> Vec<String> {
        if bounds.is_empty() || !self.is_of_text() {
            return bounds;
        }
        let nulls = self.0.iter().map(|(name, _)| format!("{} IS NULL", quote::identifier(name)));
        vec![format!("({} OR {})", bounds.join(" AND "), nulls.collect::<Vec<_>>().join(" OR "))]
    }

    /// Whether no index sorts like this.
    pub fn is_of_text(&self) -> bool {
        self.0.iter().any(|(_, sorted)| sorted.is_of_text())
    }

    /// What tells this order from any other of the same table.
    pub fn describe(&self) -> String {
        let column = |(name, sorted): &(String, Sorted)| match sorted.number {
            0 => quote::identifier(name),
            _ => sorted.describe(),
        };
        let what = if self.is_of_text() { "output" } else { "key" };
        format!("{what} {}", self.0.iter().map(column).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A column that an index of the type's own operators sorts.
    pub(crate) fn plain(number: i16, cast: &str) -> Sorted {
        let family = format!("pg_catalog.{cast}_ops");
        Sorted { number, cast: cast.to_owned(), family, collation: None, ..Sorted::by_text() }
    }

    /// A column of an extension's type.
    pub(crate) fn foreign(number: i16) -> Sorted {
        let operators = ["<", "<=", "=", ">=", ">"].map(|sign| format!("public.{sign}"));
        Sorted { number, cast: "public.citext".into(), operators, family: "public.citext_ops".into(), collation: None }
    }

    fn order(columns: &[(&str, Sorted)]) -> Sorting {
        Sorting(columns.iter().map(|(name, sorted)| ((*name).to_owned(), sorted.clone())).collect())
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn types_of_the_server_are_compared_as_rows() {
        let key = order(&[
            ("a", plain(1, "integer")),
            ("b", Sorted { collation: Some("pg_catalog.\"C\"".into()), ..plain(2, "text") }),
        ]);
        assert_eq!(key.by(), r#""a", "b" COLLATE pg_catalog."C""#);
        assert_eq!(
            key.after(&texts(&["1", "it's"])),
            r#"("a", "b" COLLATE pg_catalog."C") > ('1'::integer, 'it''s'::text)"#
        );
        assert_eq!(key.describe(), r#"key 1:pg_catalog.integer_ops 2:pg_catalog.text_ops@pg_catalog."C""#);
        assert_eq!(
            key.is_upto("t", &texts(&["1", "x"]), &texts(&["2", "y"])),
            r#"SELECT ("a", "b" COLLATE pg_catalog."C") <= ('2'::integer, 'y'::text) FROM (SELECT "a", "b" FROM t WHERE false UNION ALL SELECT '1'::integer, 'x'::text) AS key"#
        );
    }

    #[test]
    fn another_type_or_collation_is_another_order() {
        let text = plain(1, "text");
        let collated = |name: &str| Sorted { collation: Some(format!("pg_catalog.{name}")), ..text.clone() };
        let orders = [text.clone(), collated("\"C\""), collated("\"default\""), plain(1, "integer"), foreign(1)];
        for (n, one) in orders.iter().enumerate() {
            assert!(orders[n + 1..].iter().all(|other| one.describe() != other.describe()), "{}", one.describe());
        }
    }

    #[test]
    fn operators_out_of_sight_are_named_and_the_comparison_spelt_out() {
        let key = order(&[("a", foreign(1)), ("b", plain(3, "integer"))]);
        assert_eq!(key.by(), r#""a" USING OPERATOR(public.<), "b""#);
        assert_eq!(
            key.upto(&texts(&["x", "1"])),
            r#"("a" OPERATOR(public.<=) 'x'::public.citext AND ("a" OPERATOR(public.<) 'x'::public.citext OR "b" OPERATOR(pg_catalog.<=) '1'::integer))"#
        );
        assert_eq!(
            key.in_front_of("t", &texts(&["x", "1"])),
            r#"SELECT "a", "b" FROM t WHERE ("a" OPERATOR(public.<=) 'x'::public.citext AND ("a" OPERATOR(public.<) 'x'::public.citext OR "b" OPERATOR(pg_catalog.<) '1'::integer)) ORDER BY "a" USING OPERATOR(public.>), "b" DESC LIMIT 1"#
        );
        assert_eq!(order(&[("a", foreign(1))]).after(&texts(&["x"])), r#""a" OPERATOR(public.>) 'x'::public.citext"#);
        assert_eq!(key.describe(), "key 1:public.citext_ops 3:pg_catalog.integer_ops");
    }

    #[test]
    fn without_an_index_the_bytes_of_the_text_are_the_order() {
        let key = order(&[("a", Sorted::by_text())]);
        let expression = r#"pg_catalog.format('%s', "a") COLLATE pg_catalog."C""#;
        assert_eq!(key.after(&texts(&["x"])), format!("({expression}) > ('x'::text)"));
        assert_eq!(key.0[0].1.equals("a", "x"), format!("{expression} OPERATOR(pg_catalog.=) 'x'::text"));
        assert_eq!(key.describe(), r#"output "a""#);
        assert_eq!(
            key.is_upto("t", &texts(&["1"]), &texts(&["2"])),
            format!(
                r#"SELECT ({expression}) <= ('2'::text) FROM (SELECT "a"::text AS "a" FROM t WHERE false UNION ALL SELECT '1'::text) AS key"#
            )
        );
    }
}
