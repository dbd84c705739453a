//! What a Redis group announces of a change: small, and enough to find the row.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{Operation, Position, TableName};

/// A notice, as JSON in a channel; in a stream its fields are the entry's fields.
#[derive(Debug, Serialize)]
pub struct Notice<'a> {
    /// The event's stable id: `topic/partition/offset`.
    pub id: Cow<'a, str>,
    /// What happened.
    pub op: Operation,
    /// The table.
    #[serde(flatten)]
    pub table: &'a TableName,
    /// The key, as in the record.
    pub key: &'a RawValue,
    /// Where the change stands.
    pub position: Position,
    /// When its transaction committed: milliseconds since 1970.
    pub committed_ms: i64,
    /// Whether the event is set aside in the database that the notice points to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
}
