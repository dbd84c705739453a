//! How one value of PostgreSQL stands in JSON, and back.
//!
//! One rule: booleans, int2, int4, int8, oid and finite floats are JSON, in the server's own digits; SQL NULL is null;
//! everything else is PostgreSQL's text form as a JSON string. So no type is lossy, unknown or unsupported.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// Which of the rule's cases a type falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `t` and `f` become `true` and `false`.
    Boolean,
    /// The digits stand as a JSON number.
    Integer,
    /// The digits stand as a JSON number where it is finite, else as a string.
    Float,
    /// A JSON string.
    Text,
}

impl Form {
    /// The form of a type by its OID. A domain has an OID of its own and so is text.
    pub fn of_type(oid: u32) -> Form {
        match oid {
            16 => Form::Boolean,
            20 | 21 | 23 | 26 => Form::Integer,
            700 | 701 => Form::Float,
            _ => Form::Text,
        }
    }

    /// Appends PostgreSQL's text of a value as JSON.
    pub fn write(self, text: &[u8], out: &mut Vec<u8>) {
        match self {
            Form::Boolean => out.extend_from_slice(if text == b"t" { b"true" } else { b"false" }),
            Form::Integer => out.extend_from_slice(text),
            Form::Float if text.last().is_some_and(u8::is_ascii_digit) => out.extend_from_slice(text),
            Form::Float | Form::Text => write_string(text, out),
        }
    }
}

/// Appends UTF-8 as a JSON string.
pub fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut plain = 0;
    for (i, byte) in text.iter().enumerate() {
        if *byte >= 0x20 && *byte != b'"' && *byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text[plain..i]);
        plain = i + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let digits = [HEX[usize::from(control >> 4)], HEX[usize::from(control & 15)]];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&digits);
            }
        }
    }
    out.extend_from_slice(&text[plain..]);
    out.push(b'"');
}

/// PostgreSQL's text of a value that stands in an event; `None` is NULL.
pub fn text_of(raw: &RawValue) -> Result<Option<Cow<'_, str>>, serde_json::Error> {
    let json = raw.get();
    match json.as_bytes()[0] {
        b'n' => Ok(None),
        b't' => Ok(Some(Cow::Borrowed("t"))),
        b'f' => Ok(Some(Cow::Borrowed("f"))),
        b'"' if !json.contains('\\') => Ok(Some(Cow::Borrowed(&json[1..json.len() - 1]))),
        b'"' => serde_json::from_str::<String>(json).map(|text| Some(Cow::Owned(text))),
        _ => Ok(Some(Cow::Borrowed(json))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json(oid: u32, text: &str) -> String {
        let mut out = Vec::new();
        Form::of_type(oid).write(text.as_bytes(), &mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn each_type_takes_its_form() {
        for (oid, text, expected) in [
            (16, "t", "true"),
            (16, "f", "false"),
            (20, "9223372036854775807", "9223372036854775807"),
            (26, "4294967295", "4294967295"),
            (701, "1e+20", "1e+20"),
            (701, "-0", "-0"),
            (701, "5e-324", "5e-324"),
            (701, "NaN", "\"NaN\""),
            (700, "-Infinity", "\"-Infinity\""),
            (1700, "1.10", "\"1.10\""),
            (25, "a\"b\\\n\u{1}é", "\"a\\\"b\\\\\\n\\u0001é\""),
            (1082, "0044-03-15 BC", "\"0044-03-15 BC\""),
        ] {
            assert_eq!(json(oid, text), expected);
            let raw: Box<RawValue> = serde_json::from_str(expected).expect("valid JSON");
            assert_eq!(text_of(&raw).expect("a value").as_deref(), Some(text));
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            let written = json(25, &text);
            let raw: Box<RawValue> = serde_json::from_str(&written).expect("valid JSON");
            prop_assert_eq!(text_of(&raw).expect("a string"), Some(Cow::Owned(text)));
        }
    }
}
