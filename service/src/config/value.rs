//! What a key may hold, and how it becomes a Rust value.

use super::tree::Table;

/// A value as it was given.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text of the file.
    String(String),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A date or a time, which no key of ours takes.
    Datetime,
    /// A list.
    Array(Vec<Value>),
    /// A section.
    Table(Table),
    /// The text of an environment variable: it may be meant as any of the others.
    Text(String),
}

impl Value {
    /// What it is, for a message. The value itself may be a secret in the wrong place.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::String(_) | Value::Text(_) => "a text",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number with a fraction",
            Value::Boolean(_) => "true or false",
            Value::Datetime => "a date",
            Value::Array(_) => "a list",
            Value::Table(_) => "a section",
        }
    }
}

/// A type that can be read from a configuration.
pub trait FromValue: Sized {
    /// The value, or what was expected instead and what to write.
    fn from_value(value: &Value) -> Result<Self, String>;
}

fn expected(what: &str, value: &Value) -> String {
    format!("expected {what}, found {}", value.kind())
}

impl FromValue for String {
    fn from_value(value: &Value) -> Result<String, String> {
        match value {
            Value::String(text) | Value::Text(text) => Ok(text.clone()),
            other => Err(expected("a text in double quotes", other)),
        }
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Result<bool, String> {
        match value {
            Value::Boolean(truth) => Ok(*truth),
            Value::Text(text) if text == "true" => Ok(true),
            Value::Text(text) if text == "false" => Ok(false),
            other => Err(expected("true or false", other)),
        }
    }
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {$(
        impl FromValue for $number {
            fn from_value(value: &Value) -> Result<$number, String> {
                let range = || format!("a whole number from {} to {}", <$number>::MIN, <$number>::MAX);
                match value {
                    Value::Integer(number) => {
                        <$number>::try_from(*number).map_err(|_| format!("expected {}, found {number}", range()))
                    }
                    Value::Text(text) => text.parse().map_err(|_| expected(&range(), value)),
                    other => Err(expected(&range(), other)),
                }
            }
        }
    )*};
}

whole_numbers!(u16, u32, u64, usize, i32, i64);

impl FromValue for Vec<String> {
    /// A list of texts. In an environment variable, and as a text of the file, the items are separated by commas.
    fn from_value(value: &Value) -> Result<Vec<String>, String> {
        match value {
            Value::Array(items) => items.iter().map(String::from_value).collect(),
            Value::Text(text) | Value::String(text) => {
                Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect())
            }
            other => Err(expected("a list of texts", other)),
        }
    }
}
