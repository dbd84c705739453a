//! The names of the headers that every record carries, and how their values are written.

use crate::position::{Position, Seq};

/// Where the change stands: [`Position`] as text.
pub const POSITION: &str = "position";
/// The record's dense number in its partition: decimal.
pub const SEQ: &str = "seq";
/// The fingerprint of the relation that the row was read by: 16 hexadecimal digits. Only on row changes.
pub const SCHEMA: &str = "schema";
/// The kind of a control event, so that a reader of rows can step over it without parsing. Only on control events.
pub const CONTROL: &str = "control";
/// The load that ordered this row by its key. Only on answers to key lists.
pub const ANSWER: &str = "answer";
/// The W3C trace context, where tracing is on.
pub const TRACEPARENT: &str = "traceparent";

/// A header that must be there is not, or is no such value.
#[derive(Debug, thiserror::Error)]
#[error("header {name:?} is {}", .found.as_deref().map_or("missing".to_owned(), |found| format!("{found:?}")))]
pub struct Malformed {
    /// The header's name.
    pub name: &'static str,
    /// What stood there instead; `None` when nothing did.
    pub found: Option<String>,
}

/// Reads [`POSITION`].
pub fn position(value: Option<&[u8]>) -> Result<Position, Malformed> {
    parsed(POSITION, value)
}

/// Reads [`SEQ`].
pub fn seq(value: Option<&[u8]>) -> Result<Seq, Malformed> {
    parsed(SEQ, value).map(Seq)
}

fn parsed<T: std::str::FromStr>(name: &'static str, value: Option<&[u8]>) -> Result<T, Malformed> {
    let text = value.map(String::from_utf8_lossy);
    match text.as_deref().map(str::parse) {
        Some(Ok(parsed)) => Ok(parsed),
        _ => Err(Malformed { name, found: text.map(std::borrow::Cow::into_owned) }),
    }
}
