//! The readers of chunks: each chunk under its own snapshot, and finished by a marker in the stream. A load reads a table
//! range by range; single rows are read by their keys.
//!
//!     orders ─▶ pool ─▶ reader: open a window ─▶ LOCK, snapshot, shape, COPY ─▶ hand over ─▶ marker ─▶ published, or read again
//!
//! No transaction stays open longer than one chunk's COPY. What becomes of a chunk is decided in the stream's loop.

mod by_keys;
mod listed;
mod locked;
mod order;
mod paging;
mod pool;
mod reader;

use schemas::TableName;

use crate::columns::ByOid;
use crate::keys::Named;

pub use listed::check;
pub use order::{Order, Task, Work, of_load};
pub use pool::Pool;

/// A table, by its OID and the name that it had when it was asked for.
struct Target {
    oid: u32,
    name: TableName,
    /// What the ranges of its load are ranges of, as far as that is known.
    ranges_of: Option<String>,
    /// Whether some of it need not be read from the start.
    is_bounded: bool,
}

/// How large chunks are, and what they are read through.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server.
    pub postgres: postgres::Config,
    /// Before every logical message that the stream's loop listens to.
    pub messages: String,
    /// The publication whose columns and rows count.
    pub publication: String,
    /// The server's version as a number.
    pub version: u32,
    /// Bytes of rows in a chunk.
    pub chunk_bytes_max: usize,
    /// Rows in a chunk.
    pub chunk_rows_max: usize,
    /// What is read of the columns of some tables.
    pub rules: ByOid,
    /// The keys that are named for tables.
    pub named: Named,
}
