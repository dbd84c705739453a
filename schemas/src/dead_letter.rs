//! What stands in `<prefix>.dlq.<group>`: the mirror of an event that was set aside.
//!
//! The parked row in the target is the truth; this is for whoever watches topics. The record keeps the original key, value
//! and headers, and tells the rest in headers of its own.

use serde::{Deserialize, Serialize};

/// The header that holds a [`DeadLetter`] as JSON.
pub const HEADER: &str = "dead-letter";

/// Why and where an event was set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// `group/topic/partition/offset`: the same for every copy of one event.
    pub id: String,
    /// The version of this contract.
    pub contract: u32,
    /// The group that set it aside.
    pub group: String,
    /// The event's topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its position, as in its header.
    pub position: String,
    /// `undecided` or `dead`.
    pub class: String,
    /// The chain of causes, outermost first. It can quote the target's words, so it can hold values.
    pub cause: String,
    /// The target's SQLSTATE, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sqlstate: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was first tried, RFC 3339.
    pub first_at: String,
    /// When it was last tried, RFC 3339.
    pub last_at: String,
}
