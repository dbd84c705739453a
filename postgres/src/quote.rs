//! The one way that names and texts enter SQL.

use schemas::TableName;

/// `name` as an SQL identifier, always in double quotes: nothing is folded, nothing is a key word.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `text` as an SQL literal, whatever `standard_conforming_strings` says.
pub fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if text.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// `"schema"."table"`.
pub fn table(name: &TableName) -> String {
    format!("{}.{}", identifier(&name.schema), identifier(&name.table))
}

/// `names` as a list of columns, `"id", "name"`.
pub fn list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    names.into_iter().map(identifier).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_quoted_is_no_longer_sql() {
        assert_eq!(identifier("users"), r#""users""#);
        assert_eq!(identifier(r#"a" ; drop"#), r#""a"" ; drop""#);
        assert_eq!(table(&TableName::new(r#"Quoted_" . Schema"#, "ÄÖ.x")), r#""Quoted_"" . Schema"."ÄÖ.x""#);
        assert_eq!(list(["id", "Name"]), r#""id", "Name""#);
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"a\b'c"), r"E'a\\b''c'");
    }

    /// Reads a quoted text as the server would, and what is left behind it.
    fn read(quoted: &str, quote: char) -> (String, &str) {
        let (escapes, body) = match quoted.strip_prefix('E') {
            Some(rest) => (true, rest),
            None => (false, quoted),
        };
        let mut text = String::new();
        let mut chars = body.strip_prefix(quote).expect("opens with a quote").char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' if escapes => text.push(chars.next().expect("an escape is not the end").1),
                c if c == quote => match chars.next_if(|(_, next)| *next == quote) {
                    Some(_) => text.push(quote),
                    None => return (text, &body[quote.len_utf8() + at + c.len_utf8()..]),
                },
                c => text.push(c),
            }
        }
        panic!("{quoted} never closes");
    }

    proptest! {
        #[test]
        fn every_text_reads_back_and_nothing_escapes(text in r#"[a-z'"\\;\n é-]{0,12}"#) {
            let (name, value) = (identifier(&text), literal(&text));
            prop_assert_eq!(read(&name, '"'), (text.clone(), ""));
            prop_assert_eq!(read(&value, '\''), (text, ""));
        }
    }
}
