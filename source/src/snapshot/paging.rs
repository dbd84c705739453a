//! Ranges of a table as SQL: which rows one holds, and in which order they come. By key where the table's own index sorts
//! it; by place in the file where a key is only named; by the key's text where neither can be.
//!
//! Pure. What order the server sorts in is its own: keys and places are texts here, and only it compares them.

use postgres::quote;
use schemas::state::Range;
use schemas::write::Cell;

use crate::relation::Relation;
use crate::sorted::Sorting;
use crate::window::Rows;

/// In front of the first row of a file.
const FIRST: &str = "(0,0)";

/// How a table is told into ranges.
pub enum Paging {
    /// In the order of its key.
    Key {
        /// That order.
        sorting: Sorting,
        /// Where the key's columns stand in a row, in that order.
        columns: Vec<usize>,
    },
    /// In the order in which rows lie in their file.
    Pages {
        /// The file's number. A table that is rewritten gets another, and its rows other places.
        file: u32,
    },
}

/// What decides how a table is told into ranges.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The number of its file; none where it has no rows of its own.
    pub file: Option<u32>,
    /// What the ranges of its load are ranges of, as far as that is known.
    pub known: Option<&'a str>,
    /// Whether some of it need not be read from the start: then its ranges are ranges of the key.
    pub is_bounded: bool,
}

impl Paging {
    /// The best way that leads to the same ranges as before.
    pub fn new(relation: &Relation, facts: Facts<'_>) -> Paging {
        let by_key = || {
            let place = |name: &String| relation.columns.iter().position(|column| column.name == *name);
            let columns = relation.sorting.0.iter().filter_map(|(name, _)| place(name)).collect();
            Paging::Key { sorting: relation.sorting.clone(), columns }
        };
        let is_by_text = facts.known.is_some_and(|known| known == relation.sorting.describe());
        match facts.file {
            Some(file) if relation.sorting.is_of_text() && !is_by_text && !facts.is_bounded => Paging::Pages { file },
            _ => by_key(),
        }
    }

    /// What its ranges are ranges of: with another answer than before they mean nothing any more.
    pub fn describe(&self) -> String {
        match self {
            Paging::Key { sorting, .. } => sorting.describe(),
            Paging::Pages { file } => format!("file {file}"),
        }
    }

    /// What is to be set in the transaction so that rows come in order.
    pub fn settings(&self) -> Option<&'static str> {
        match self {
            Paging::Key { .. } => None,
            // A scan that joins one that is under way begins in the middle, one of several processes comes in any order, and
            // one of an index that answers the publication's condition in the index's. Of an index's bitmap the rows come as
            // they lie.
            Paging::Pages { .. } => Some(
                "SET LOCAL enable_seqscan = off; SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0; \
                 SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_tidscan = on",
            ),
        }
    }

    /// Whether a row's place in the file stands in front of its columns.
    pub fn has_places(&self) -> bool {
        matches!(self, Paging::Pages { .. })
    }

    /// Whether the ends of a range can be compared with keys, or places.
    pub fn fits(&self, range: &Range) -> bool {
        let length = match self {
            Paging::Key { sorting, .. } => sorting.0.len(),
            Paging::Pages { .. } => 1,
        };
        [&range.after, &range.upto].into_iter().flatten().all(|end| end.len() == length)
    }

    /// The rows of a range in its order, at most so many.
    pub fn select(
        &self,
        relation: &Relation,
        only: &str,
        range: &Range,
        filter: Option<&str>,
        rows_max: usize,
    ) -> String {
        let columns =
            relation.columns.iter().map(|column| quote::identifier(&column.name)).collect::<Vec<_>>().join(", ");
        let table = quote::table(&relation.name);
        let filter = filter.map(|filter| format!("({filter})"));
        match self {
            Paging::Key { sorting, .. } => {
                let after = range.after.as_deref().map(|texts| sorting.after(texts));
                let upto = range.upto.as_deref().map(|texts| sorting.upto(texts));
                let bounds: Vec<String> = after.into_iter().chain(upto).collect();
                let condition = conditions(sorting.or_null(bounds).into_iter().chain(filter));
                format!("SELECT {columns} FROM {only}{table}{condition} ORDER BY {} LIMIT {rows_max}", sorting.by())
            }
            Paging::Pages { .. } => {
                let place = |sign: &str, texts: &[String]| {
                    format!("ctid {sign} {}::tid", quote::literal(texts.first().map_or(FIRST, String::as_str)))
                };
                let after = place(">", range.after.as_deref().unwrap_or_default());
                let upto = range.upto.as_deref().map(|texts| place("<=", texts));
                let conditions: Vec<String> = [after].into_iter().chain(upto).chain(filter).collect();
                format!("SELECT ctid, {columns} FROM {only}{table} WHERE {} LIMIT {rows_max}", conditions.join(" AND "))
            }
        }
    }

    /// Whether a chunk needs its [`Paging::boundary`] though nobody goes on behind it. Where the publication leaves rows out, or
    /// pages are full of dead ones, the number of rows that come bounds nothing: the rest of the table would be searched for them.
    pub fn needs_boundary(&self, filter: Option<&str>) -> bool {
        self.has_places() || filter.is_some()
    }

    /// Where so many rows of a range end, whether or not the publication has them; no row where it holds less. By key it is
    /// answered from the index alone: without one there is no such question. By place a page counts as a row, which is too
    /// much only where it holds hardly any.
    pub fn boundary(&self, relation: &Relation, only: &str, range: &Range, rows: usize) -> Option<String> {
        let sorting = match self {
            Paging::Key { sorting, .. } => sorting,
            Paging::Pages { .. } => return pages_end(relation, range, rows),
        };
        let after = range.after.as_deref().map(|texts| sorting.after(texts));
        let upto = range.upto.as_deref().map(|texts| sorting.upto(texts));
        let condition = conditions(after.into_iter().chain(upto));
        let names = sorting.0.iter().map(|(name, _)| quote::identifier(name)).collect::<Vec<_>>().join(", ");
        let (table, by, before) = (quote::table(&relation.name), sorting.by(), rows.saturating_sub(1));
        let query = format!("SELECT {names} FROM {only}{table}{condition} ORDER BY {by} OFFSET {before} LIMIT 1");
        (!sorting.is_of_text()).then_some(query)
    }

    /// The places in the list of these lower ends, in the order of the table.
    pub fn order(&self, relation: &Relation, only: &str, ends: &[&[String]]) -> String {
        let values = |literals: &dyn Fn(&[String]) -> String| {
            let row = |(place, end): (usize, &&[String])| format!("({place}, {})", literals(end));
            ends.iter().enumerate().map(row).collect::<Vec<_>>().join(", ")
        };
        match self {
            Paging::Pages { .. } => {
                let values =
                    values(&|end| format!("{}::tid", end.iter().map(|text| quote::literal(text)).collect::<String>()));
                format!("SELECT place FROM (VALUES {values}) AS lower (place, lies) ORDER BY lies")
            }
            // The table comes along for the types and collations of its columns, by which alone this is the order of its rows.
            Paging::Key { sorting, .. } => {
                let column = |(name, sorted): &(String, crate::sorted::Sorted)| {
                    format!("{} AS {}", sorted.expression(name), quote::identifier(name))
                };
                let columns = sorting.0.iter().map(column).collect::<Vec<_>>().join(", ");
                let (table, by, values) =
                    (quote::table(&relation.name), sorting.by(), values(&|end| sorting.literals(end)));
                format!(
                    "SELECT * FROM (SELECT 0 AS \"tributary place\", {columns} FROM {only}{table} WHERE false UNION ALL VALUES {values}) AS lower ORDER BY {by}"
                )
            }
        }
    }

    /// Where the range ends that was read. `place` is where the last row lies, if rows came with their places.
    pub fn end(&self, rows: &Rows, place: Option<Place>) -> Option<Vec<String>> {
        match self {
            Paging::Pages { .. } => place.map(|place| vec![place.to_string()]),
            Paging::Key { columns, .. } => {
                let row = rows.len().checked_sub(1).map(|last| rows.row(last))?;
                let text = |i: &usize| match row[*i] {
                    Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    Cell::Null | Cell::Unchanged => String::new(),
                };
                Some(columns.iter().map(text).collect())
            }
        }
    }
}

/// The place in front of the page so many pages behind the begin of a range, if the file and the range reach so far.
fn pages_end(relation: &Relation, range: &Range, pages: usize) -> Option<String> {
    let place = |texts: &Option<Vec<String>>| texts.as_ref().and_then(|texts| Place::parse(texts.first()?));
    let begin = place(&range.after).map_or(0, |place| place.0);
    let end = Place(begin.saturating_add(u32::try_from(pages).unwrap_or(u32::MAX)), 0);
    let table = quote::literal(&quote::table(&relation.name));
    let query = format!(
        "SELECT '{end}' WHERE pg_relation_size({table}::regclass) > {} * current_setting('block_size')::int8",
        end.0
    );
    place(&range.upto).is_none_or(|upto| end < upto).then_some(query)
}

fn conditions(all: impl Iterator<Item = String>) -> String {
    let all = all.collect::<Vec<_>>().join(" AND ");
    if all.is_empty() { all } else { format!(" WHERE {all}") }
}

/// Where a row lies in its file: the page, and the number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u32, u16);

impl Place {
    /// Takes the place from the front of a line of COPY, and leaves the row.
    pub fn split(line: &[u8]) -> Option<(Place, &[u8])> {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        Some((Place::parse(std::str::from_utf8(&line[..tab]).ok()?)?, &line[tab + 1..]))
    }

    fn parse(text: &str) -> Option<Place> {
        let (page, number) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        Some(Place(page.parse().ok()?, number.parse().ok()?))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({},{})", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relation::tests::{details, users};
    use crate::sorted::tests::plain;

    fn indexed() -> Relation {
        let details = crate::relation::Details { sorted: vec![plain(1, "bigint")], ..details() };
        Relation::new(&users('d'), &details, "", "").expect("it has a key")
    }

    fn named() -> Relation {
        let mut details = details();
        details.go_by(&["name".to_owned(), "bio".to_owned()]);
        Relation::new(&users('f'), &details, "", "").expect("one is named")
    }

    const FACTS: Facts<'_> = Facts { file: Some(7), known: None, is_bounded: false };

    #[test]
    fn a_key_without_an_index_is_read_by_place_unless_it_has_none_or_was_begun_by_key() {
        let by = |relation: &Relation, facts| Paging::new(relation, facts).describe();
        assert_eq!(by(&indexed(), FACTS), "key 1:pg_catalog.bigint_ops");
        assert_eq!(by(&named(), FACTS), "file 7");
        assert_eq!(by(&named(), Facts { known: Some("file 6"), ..FACTS }), "file 7");
        let by_text = r#"output "name" "bio""#;
        assert_eq!(by(&named(), Facts { file: None, ..FACTS }), by_text);
        assert_eq!(by(&named(), Facts { is_bounded: true, ..FACTS }), by_text);
        assert_eq!(by(&named(), Facts { known: Some(by_text), ..FACTS }), by_text);
    }

    #[test]
    fn a_range_of_another_key_is_none_of_this() {
        let key = |columns: usize| Some(vec!["1".to_owned(); columns]);
        let paging = Paging::new(&indexed(), FACTS);
        assert!(paging.fits(&Range::default()) && paging.fits(&Range { after: None, upto: key(1) }));
        assert!(
            !paging.fits(&Range { after: key(2), upto: None }) && !paging.fits(&Range { after: key(1), upto: key(2) })
        );
    }

    fn ends(texts: &[&str]) -> Vec<Vec<String>> {
        texts.iter().map(|text| vec![(*text).to_owned()]).collect()
    }

    #[test]
    fn where_a_chunk_ends_is_asked_of_an_index_or_told_by_pages() {
        let range = Range { after: Some(vec!["7".into()]), upto: None };
        let asked = |relation: &Relation, file| {
            Paging::new(relation, Facts { file, ..FACTS }).boundary(relation, "ONLY ", &range, 5)
        };
        assert_eq!(
            asked(&indexed(), Some(7)).as_deref(),
            Some(
                r#"SELECT "id" FROM ONLY "public"."users" WHERE ("id") > ('7'::bigint) ORDER BY "id" OFFSET 4 LIMIT 1"#
            ),
            "the fifth row is the last of five"
        );
        assert_eq!(asked(&named(), None), None, "by a text that no index holds nobody knows");
        let pages = Paging::new(&named(), FACTS);
        let end = |after: &str, upto: Option<&str>| {
            let end = |text: &str| vec![text.to_owned()];
            pages.boundary(&named(), "ONLY ", &Range { after: Some(end(after)), upto: upto.map(end) }, 5)
        };
        assert_eq!(
            end("(7,3)", None).as_deref(),
            Some(
                r#"SELECT '(12,0)' WHERE pg_relation_size('"public"."users"'::regclass) > 12 * current_setting('block_size')::int8"#
            )
        );
        assert_eq!(end("(7,3)", Some("(12,0)")), None, "the range ends there");
        assert_eq!(end("(7,3)", Some("(12,1)")), end("(7,3)", None));
    }

    #[test]
    fn rows_that_do_not_come_bound_no_chunk() {
        let needs = |relation: &Relation, filter| Paging::new(relation, FACTS).needs_boundary(filter);
        assert!(needs(&indexed(), Some("a > 1")) && needs(&named(), Some("a > 1")));
        assert!(needs(&named(), None), "pages may be full of dead ones");
        assert!(!needs(&indexed(), None), "the index has none but those that come");
    }

    #[test]
    fn ends_are_put_in_the_order_of_the_table() {
        let order = |relation: &Relation, texts: &[&str]| {
            let (paging, ends) = (Paging::new(relation, FACTS), ends(texts));
            paging.order(relation, "ONLY ", &ends.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        assert_eq!(
            order(&indexed(), &["5", "3"]),
            r#"SELECT * FROM (SELECT 0 AS "tributary place", "id" AS "id" FROM ONLY "public"."users" WHERE false UNION ALL VALUES (0, '5'::bigint), (1, '3'::bigint)) AS lower ORDER BY "id""#
        );
        assert_eq!(
            order(&named(), &["(9,1)", "(3,4)"]),
            "SELECT place FROM (VALUES (0, '(9,1)'::tid), (1, '(3,4)'::tid)) AS lower (place, lies) ORDER BY lies"
        );
    }

    #[test]
    fn ranges_of_places_begin_with_the_file() {
        let paging = Paging::new(&named(), FACTS);
        let select = |after: Option<&str>, upto: Option<&str>| {
            let end = |text: Option<&str>| text.map(|text| vec![text.to_owned()]);
            paging.select(&named(), "ONLY ", &Range { after: end(after), upto: end(upto) }, Some("a > 1"), 9)
        };
        let from = r#"SELECT ctid, "id", "name", "bio" FROM ONLY "public"."users" WHERE"#;
        assert_eq!(select(None, None), format!("{from} ctid > '(0,0)'::tid AND (a > 1) LIMIT 9"));
        assert_eq!(
            select(Some("(3,4)"), Some("(9,1)")),
            format!("{from} ctid > '(3,4)'::tid AND ctid <= '(9,1)'::tid AND (a > 1) LIMIT 9")
        );
    }

    #[test]
    fn rows_without_a_key_are_read_and_not_left_out() {
        let paging = Paging::new(&named(), Facts { file: None, ..FACTS });
        let range = Range { after: Some(vec!["a".into(), "b".into()]), upto: None };
        let query = paging.select(&named(), "", &range, None, 9);
        assert!(query.contains(r#"OR "name" IS NULL OR "bio" IS NULL)"#), "{query}");
    }

    #[test]
    fn a_place_is_taken_from_the_front_of_a_line() {
        assert_eq!(Place::split(b"(12,3)\ta\tb\n"), Some((Place(12, 3), &b"a\tb\n"[..])));
        assert_eq!(Place::split(b"12,3\ta"), None);
        assert!(Place(9, 1) < Place(10, 0));
    }
}
