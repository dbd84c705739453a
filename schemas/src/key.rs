//! Keys: their true text, and the canonical text by which they are routed, folded and parked.
//!
//! PostgreSQL calls keys equal whose texts differ (`1.0` and `1.00` as numeric). Equal keys must share a partition and a
//! fold, so both go by a text in which equal keys are equal. Where no such text exists the table has a single partition.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::value::Form;

/// How the canonical text of a type's values is found from their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Canonical {
    /// Equal values have equal texts.
    Same,
    /// Trailing zeros behind the point do not count.
    Numeric,
    /// Minus zero is zero.
    Float,
    /// Trailing blanks do not count.
    Blank,
}

impl Canonical {
    /// The rule for a built-in base type by its OID; `None` where equal values can differ in text in ways not covered here.
    ///
    /// Domains must be resolved to their base type by the caller. Enums are [`Canonical::Same`], and only the caller's
    /// catalog knows them; text under a non-deterministic collation has no canonical form, and only the catalog knows that too.
    pub fn of_type(oid: u32) -> Option<Canonical> {
        match oid {
            1700 => Some(Canonical::Numeric),
            700 | 701 => Some(Canonical::Float),
            1042 => Some(Canonical::Blank),
            // bool bytea "char" name int8 int2 int4 text oid tid xid cid; cidr inet macaddr8 macaddr money
            16..=21 | 23 | 25..=29 | 650 | 869 | 774 | 829 | 790
            // varchar date time timestamp timestamptz timetz bit varbit uuid pg_lsn xid8
            | 1043 | 1082 | 1083 | 1114 | 1184 | 1266 | 1560 | 1562 | 2950 | 3220 | 5069 => Some(Canonical::Same),
            _ => None,
        }
    }

    /// The canonical text of one value.
    pub fn text(self, text: &str) -> Cow<'_, str> {
        match self {
            Canonical::Same => Cow::Borrowed(text),
            Canonical::Numeric if text.contains('.') => {
                Cow::Borrowed(match text.trim_end_matches('0').trim_end_matches('.') {
                    "-0" => "0",
                    trimmed => trimmed,
                })
            }
            Canonical::Numeric => Cow::Borrowed(text),
            Canonical::Float => Cow::Borrowed(if text == "-0" { "0" } else { text }),
            Canonical::Blank => Cow::Borrowed(text.trim_end_matches(' ')),
        }
    }
}

/// One column of a key.
#[derive(Clone, Debug)]
pub struct KeyColumn<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its values stand in JSON.
    pub form: Form,
    /// How its canonical text is found; `None` takes the text as it is.
    pub canonical: Option<Canonical>,
}

/// Appends the canonical text of a key, `{"id":42}`: what is hashed, folded and parked by.
pub fn write_canonical<'a>(columns: impl Iterator<Item = (KeyColumn<'a>, &'a str)>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (i, (column, text)) in columns.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        crate::value::write_string(column.name.as_bytes(), out);
        out.push(b':');
        let text = column.canonical.map_or(Cow::Borrowed(text), |rule| rule.text(text));
        column.form.write(text.as_bytes(), out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_have_one_canonical_text() {
        for (oid, texts, canonical) in [
            (1700, &["1.0", "1.00", "1"][..], "1"),
            (1700, &["-0.50", "-0.5"], "-0.5"),
            (1700, &["0.0", "0", "0.000"], "0"),
            (1700, &["100", "100.0"], "100"),
            (1700, &["NaN"], "NaN"),
            (701, &["-0", "0"], "0"),
            (1042, &["ab", "ab   "], "ab"),
            (25, &["ab  "], "ab  "),
        ] {
            let rule = Canonical::of_type(oid).expect("a type with a canonical form");
            for text in texts {
                assert_eq!(rule.text(text), canonical);
            }
        }
        for without in [114, 3802, 1186, 1007, 2249] {
            assert_eq!(Canonical::of_type(without), None);
        }
    }

    #[test]
    fn a_canonical_key_is_an_object_of_its_columns() {
        let numeric = KeyColumn { name: "n\"", form: Form::Text, canonical: Some(Canonical::Numeric) };
        let id = KeyColumn { name: "id", form: Form::Integer, canonical: Some(Canonical::Same) };
        let mut out = Vec::new();
        write_canonical([(id, "42"), (numeric, "1.50")].into_iter(), &mut out);
        assert_eq!(out, br#"{"id":42,"n\"":"1.5"}"#);
    }
}
