//! Values of every type, in PostgreSQL's own text under the pinned settings, and how they stand in an event.
//!
//! One table per family, one row with a column per value.

use schemas::write::{Cell, Change};
use schemas::{Operation, TableName};

use crate::example::{Example, Table, at, change, text};

/// A type of no fixed OID: an enum, a domain, a composite, a type of an extension.
const ITS_OWN: u32 = 16_500;

/// A table's name, and its columns: name, type's OID, value.
pub type Family = (&'static str, Vec<(String, u32, Option<&'static str>)>);

/// Type, its OID, values as PostgreSQL 15 writes them.
type Values = &'static [(&'static str, u32, &'static [&'static str])];

const NUMBERS: Values = &[
    ("boolean", 16, &["t", "f"]),
    ("smallint", 21, &["-32768", "32767"]),
    ("integer", 23, &["-2147483648", "2147483647"]),
    ("bigint", 20, &["-9223372036854775808", "9223372036854775807", "9007199254740993"]),
    ("oid", 26, &["0", "4294967295"]),
    ("real", 700, &["3.4028235e+38", "1e-45", "-0", "NaN", "Infinity", "-Infinity"]),
    (
        "double precision",
        701,
        &["-0", "1e+20", "5e-324", "0.30000000000000004", "1.7976931348623157e+308", "NaN", "Infinity", "-Infinity"],
    ),
    (
        "numeric",
        1700,
        &["1.10", "0.00000000000000000001", "0.0", "12345678901234567890.123456789", "NaN", "Infinity", "-Infinity"],
    ),
    ("money", 790, &["$1,234.50", "-$0.01"]),
];

const TIMES: Values = &[
    ("date", 1082, &["2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"]),
    (
        "timestamp",
        1114,
        &[
            "2024-01-01 00:00:00.1",
            "20200-01-01 00:00:00",
            "4713-01-01 00:00:00 BC",
            "294276-12-31 23:59:59.999999",
            "infinity",
        ],
    ),
    ("timestamptz", 1184, &["2024-06-01 06:30:00.000001+00", "-infinity", "0044-03-15 12:00:00+00 BC"]),
    ("time", 1083, &["00:00:00", "24:00:00", "23:59:59.999999"]),
    ("timetz", 1266, &["12:00:00+05:30", "24:00:00-15:59:59"]),
    ("interval", 1186, &["P10M3DT-4H-5M-6.789S", "P-178956970Y-8M", "PT0S"]),
];

const TEXTS: Values = &[
    (
        "text",
        25,
        &[
            "",
            "plain",
            "\"quoted\" \\ back\\\\slash",
            "line\nfeed\ttab\rreturn\u{1}\u{1f}\u{7f}",
            "é ü 漢字 🐘 \u{2028}",
        ],
    ),
    ("varchar", 1043, &["ab "]),
    ("character", 1042, &["ab   "]),
    ("\"char\"", 18, &["a"]),
    ("name", 19, &["a_name_of_sixty_three_bytes_01234567890123456789012345678901234"]),
    ("bytea", 17, &["\\x00ff5c", "\\x"]),
    ("bit", 1560, &["101"]),
    ("varbit", 1562, &["0001", ""]),
    ("uuid", 2950, &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("citext", ITS_OWN, &["Abc"]),
    ("tsvector", 3614, &["'cat':3 'sat':1A,2B"]),
    ("xml", 142, &["<a b=\"1\"> x </a>", "just text"]),
];

const DOCUMENTS: Values = &[
    ("json", 114, &["{\"a\" : 1.10, \"a\":2}", "1e400", "\"\\u0000\"", "null"]),
    ("jsonb", 3802, &["{\"a\": 2.00, \"n\": 12345678901234567890.123456789}", "100", "null"]),
    ("jsonpath", 4072, &["$.\"a\"[*]?(@ > 1)"]),
    ("hstore", ITS_OWN, &["\"a\"=>\"1\", \"b\"=>NULL"]),
    ("ltree", ITS_OWN, &["Top.A_b"]),
];

const COLLECTIONS: Values = &[
    ("integer[]", 1007, &["{1,NULL,3}", "{}", "[0:2]={1,2,3}"]),
    ("text[]", 1009, &["{{a,NULL},{c,d}}", "{\"a,b\",\"NULL\",NULL,\"\",\"q\\\"x\"}"]),
    ("boolean[]", 1000, &["{t,f,NULL}"]),
    ("pair", ITS_OWN, &["(1,)", "(2,\"\")", "(3,\"a \"\"b\"\", c\\\\\")"]),
    ("mood", ITS_OWN, &["happy", "so so"]),
    ("positive", ITS_OWN, &["42"]),
    ("int4range", 3904, &["[1,6)", "empty", "(,5)"]),
    ("tsrange", 3908, &["[\"2024-01-01 00:00:00\",)"]),
    ("int4multirange", 4451, &["{[1,3),[7,9)}", "{}"]),
    ("vector", ITS_OWN, &["[1,2,3]"]),
];

const PLACES: Values = &[
    ("inet", 869, &["192.168.0.1/24", "192.168.0.1", "2001:db8::1"]),
    ("cidr", 650, &["192.168.0.0/24"]),
    ("macaddr", 829, &["08:00:2b:01:02:03"]),
    ("point", 600, &["(1,-0)"]),
    ("line", 628, &["{1,2,3}"]),
    ("path", 602, &["[(0,0),(1,1)]", "((0,0),(1,1))"]),
    ("polygon", 604, &["((0,0),(1,1))"]),
    ("circle", 718, &["<(1,2),3>"]),
    ("geometry", ITS_OWN, &["0101000020E6100000000000000000F03F0000000000000040"]),
    ("pg_lsn", 3220, &["16/B374D848"]),
    ("xid8", 5069, &["123"]),
    ("tid", 27, &["(0,1)"]),
    ("regclass", 2205, &["public.users"]),
];

pub fn families() -> Vec<Family> {
    let tables = [
        ("numbers", NUMBERS),
        ("times", TIMES),
        ("texts", TEXTS),
        ("documents", DOCUMENTS),
        ("collections", COLLECTIONS),
        ("places", PLACES),
    ];
    let column = |(name, oid, values): &(&'static str, u32, &'static [&'static str])| {
        let (name, oid) = (*name, *oid);
        let numbered = move |(i, value): (usize, &&'static str)| (format!("{name} {}", i + 1), oid, Some(*value));
        values.iter().enumerate().map(numbered).chain([(format!("{name} null"), oid, None)]).collect::<Vec<_>>()
    };
    tables.map(|(table, values)| (table, values.iter().flat_map(column).collect())).into()
}

pub fn examples() -> Vec<Example> {
    let record = |(i, (table, columns)): (usize, Family)| {
        let described = columns.iter().map(|(name, oid, _)| (name.as_str(), *oid, "", -1));
        let described: Vec<_> = [("id*", 20, "bigint", -1)].into_iter().chain(described).collect();
        let table = Table::new(16_420 + i as u32, TableName::new("types", table), 'd', &described);
        let values = columns.iter().map(|(_, _, value)| value.map_or(Cell::Null, text));
        let row: Vec<_> = [text("1")].into_iter().chain(values).collect();
        let insert = Change { after: Some(&row), ..change(Operation::Create, at(24_023_128 + 1024 * i as u64, 1)) };
        table.record(3, &insert, &row)
    };
    let records: Vec<_> = families().into_iter().enumerate().map(record).collect();
    vec![Example::of_records("values", "values of every type: one table per family, a column per value", records)]
}
