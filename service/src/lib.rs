//! The process shell: configuration, telemetry, health, shutdown and retry.
//!
//!     environment ──▶
//!     tributary.toml ──▶ config::Document ──▶ Reader ──▶ each part's own Config ──▶ every fault at once, or none
//!
//! It knows no word of the domain: no table, no topic, no LSN. What a key means is decided by whoever reads it.

pub mod chain;
pub mod config;
pub mod failpoint;
pub mod few;
pub mod http;
pub mod log;
pub mod retry;
pub mod shutdown;
pub mod telemetry;

pub use chain::chain;
pub use config::Secret;
pub use few::few;
