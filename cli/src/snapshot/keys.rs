//! Keys as they are written on a command line or in a file, one on a line.
//!
//!     {"id":42}     an object of the key's columns, as records have it
//!     42  "a"  a    the value alone, where the key is one column
//!
//! Pure.

use schemas::Columns;
use serde_json::Value;
use source::command::is_key;

/// The key as the text of an object. The fault says what was expected, and not what stood there.
pub(super) fn object(text: &str, columns: &[String]) -> Result<String, String> {
    let text = text.trim();
    let object = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(_)) => text.to_owned(),
        Ok(value @ (Value::Bool(_) | Value::String(_))) => single(columns, &value.to_string())?,
        // The digits as they stand: a number of ours would round them.
        Ok(Value::Number(_)) => single(columns, text)?,
        Ok(Value::Null | Value::Array(_)) => return Err(expected(columns)),
        Err(_) if text.is_empty() || text.starts_with(['{', '[', '"']) => return Err(expected(columns)),
        Err(_) => single(columns, &Value::from(text).to_string())?,
    };
    let decoded = Columns::decode(object.as_bytes()).map_err(|_| expected(columns))?;
    let has_all = columns.iter().all(|column| decoded.get(column).is_some_and(|value| value.is_some()));
    if has_all && decoded.0.len() == columns.len() && is_key(&object) { Ok(object) } else { Err(expected(columns)) }
}

/// The values of a key in the order of `columns`, as the server's texts.
pub(super) fn texts(object: &str, columns: &[String]) -> Vec<String> {
    let decoded = Columns::decode(object.as_bytes()).unwrap_or_default();
    columns.iter().map(|column| decoded.get(column).flatten().unwrap_or_default().to_owned()).collect()
}

fn single(columns: &[String], value: &str) -> Result<String, String> {
    match columns {
        [column] => Ok(format!("{{{}:{value}}}", Value::from(column.as_str()))),
        _ => Err(expected(columns)),
    }
}

fn expected(columns: &[String]) -> String {
    let members = columns.iter().map(|column| format!("{}:…", Value::from(column.as_str()))).collect::<Vec<_>>();
    format!("expected a key as {{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, columns: &[&str], expected: Option<&str>) {
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(object(text, &columns).ok().as_deref(), expected, "{text}");
    }

    #[test]
    fn keys_are_written_whole_or_by_their_only_value() {
        check(r#" {"id":42} "#, &["id"], Some(r#"{"id":42}"#));
        check("42", &["id"], Some(r#"{"id":42}"#));
        check("12345678901234567890.10", &["n"], Some(r#"{"n":12345678901234567890.10}"#));
        check("0190a5c4-5b0e", &["id"], Some(r#"{"id":"0190a5c4-5b0e"}"#));
        check(r#""a b""#, &["a\"b"], Some(r#"{"a\"b":"a b"}"#));
        check("true", &["id"], Some(r#"{"id":true}"#));
        check(r#"{"a":1,"b":"x"}"#, &["b", "a"], Some(r#"{"a":1,"b":"x"}"#));
        for bad in ["", "null", "[1]", r#"{"id":null}"#, r#"{"other":1}"#, r#"{"id":1,"more":1}"#, "{", r#""a"#] {
            check(bad, &["id"], None);
        }
        check("42", &["a", "b"], None);
    }

    #[test]
    fn texts_come_in_the_order_of_the_columns() {
        let columns = ["b", "a"].map(str::to_owned);
        assert_eq!(texts(r#"{"a":1.50,"b":true}"#, &columns), ["t", "1.50"]);
    }
}
