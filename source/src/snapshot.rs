//! The readers of chunks: each chunk under its own snapshot, and finished by a marker in the stream. A load reads a table
//! range by range; single rows are read by their keys.
//!
//!     orders ─▶ pool ─▶ readers: open a window ─▶ LOCK, snapshot, shape, COPY ─▶ hand over ─▶ marker ─▶ published, or read again
//!
//! No transaction stays open longer than one chunk's COPY. What becomes of a chunk is decided in the stream's loop.

mod by_keys;
mod grouped;
mod listed;
mod locked;
mod order;
mod pace;
mod paging;
mod plan;
mod pool;
mod progress;
mod reader;
mod shape;
mod strain;

use std::time::Duration;

use schemas::TableName;

use crate::columns::ByOid;
use crate::keys::Named;

pub use listed::{bare, check, may_be_of_keys, same};
pub use order::{Order, Task, Work, of_load};
pub use pool::Pool;
pub use strain::Limits;

/// How many rows are asked for by their keys at a time.
const KEYS_MAX: usize = 100;

/// A table, by its OID and the name that it had when it was asked for.
#[derive(Clone, Debug)]
pub struct Target {
    oid: u32,
    name: TableName,
    /// What the ranges that are to be read are ranges of, as far as that is known.
    ranges_of: Option<String>,
    /// The same of those that the load has done.
    done_of: Option<String>,
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
    /// How many chunks are read at the same time.
    pub readers: usize,
    /// Rows a second, over all readers; 0: no limit.
    pub rows_per_second_max: u64,
    /// What loads wait for.
    pub limits: Limits,
    /// No statement of a chunk may take longer, and so none of its transactions grow old.
    pub statement_timeout: Duration,
    /// What is read of the columns of some tables.
    pub rules: ByOid,
    /// The keys that are named for tables.
    pub named: Named,
}
