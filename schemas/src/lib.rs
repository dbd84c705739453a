//! The event contract: what stands in the topics and in the state topic, and how it is written and read.
//!
//!     source ──Template──▶ key, value, headers ──▶ topic ──▶ ChangeEvent ──▶ sink
//!            ──State────▶ <prefix>.state ─────────────────▶ passed(), status
//!
//! Pure, and depends on nothing of ours: no clock, no socket, no Kafka client. Both sides agree here or nowhere.

pub mod dead_letter;
pub mod event;
pub mod fingerprint;
pub mod header;
pub mod key;
pub mod lsn;
pub mod notice;
pub mod partition;
pub mod position;
pub mod selection;
pub mod state;
pub mod table;
pub mod topic;
pub mod value;
pub mod write;

pub use event::{ChangeEvent, Columns, Control, Operation, Source};
pub use lsn::Lsn;
pub use position::{Position, Seq};
pub use selection::Selection;
pub use table::TableName;
pub use value::Form;

/// The version of everything in this crate. A reader that meets a higher one must stop: it cannot know what it would miss.
pub const CONTRACT: u32 = 1;
