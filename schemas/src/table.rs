//! The name of a table, as PostgreSQL has it: two identifiers, never folded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A schema and a table in it. Written `schema.table`, with SQL's double quotes around a part that needs them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableName {
    /// The schema's name, as it stands in the catalog.
    pub schema: String,
    /// The table's name, as it stands in the catalog.
    pub table: String,
}

impl TableName {
    /// A name from two catalog names.
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> TableName {
        TableName { schema: schema.into(), table: table.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |name: &str| {
            let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '-'));
            if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
        };
        write!(f, "{}.{}", part(&self.schema), part(&self.table))
    }
}

/// The text does not name a table.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} names no table: expected schema.table, with double quotes around a part that holds a dot or a quote")]
pub struct ParseError(String);

impl FromStr for TableName {
    type Err = ParseError;

    /// Parts are taken as they stand, case included: a configuration names what the catalog holds.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = identifier(rest).ok_or_else(|| ParseError(text.to_owned()))?;
            parts.push(part);
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return Err(ParseError(text.to_owned())),
            }
        }
        match <[String; 2]>::try_from(parts) {
            Ok([schema, table]) => Ok(TableName { schema, table }),
            Err(_) => Err(ParseError(text.to_owned())),
        }
    }
}

/// One identifier off the front of `text`, and what follows it.
pub(crate) fn identifier(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        return (!name.is_empty() && !name.contains('"')).then(|| (name.to_owned(), rest));
    };
    let mut name = String::new();
    let mut from = 0;
    loop {
        let quote = from + quoted[from..].find('"')?;
        name.push_str(&quoted[from..quote]);
        if !quoted[quote + 1..].starts_with('"') {
            return (!name.is_empty()).then_some((name, &quoted[quote + 1..]));
        }
        name.push('"');
        from = quote + 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_reads_as_sql_without_folding() {
        let name = |text: &str| text.parse::<TableName>().expect("a valid name");
        assert_eq!(name("public.users"), TableName::new("public", "users"));
        assert_eq!(name("Public.Users"), TableName::new("Public", "Users"));
        assert_eq!(name(r#""Quoted_"" . Schema"."a.b""#), TableName::new(r#"Quoted_" . Schema"#, "a.b"));
        for bad in ["", "users", ".users", "a.", "a.b.c", r#"a."b"#, r#"a."b"c"#, r#"a.b"c"#, r#"""."a""#] {
            assert!(bad.parse::<TableName>().is_err(), "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn every_name_reads_back(schema in ".{1,9}", table in ".{1,9}") {
            let name = TableName::new(schema, table);
            prop_assert_eq!(name.to_string().parse::<TableName>().expect("printed by us"), name);
        }
    }
}
