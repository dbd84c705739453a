//! Connections to Kafka: settings, topics, the transactional publisher, reading a topic whole.
//!
//!     Config ──▶ producer::Publisher   records and their place in the WAL, in one transaction
//!            ──▶ producer::Plain       records alone, each with its own result
//!            ──▶ topic::Tail           one topic from its start, and on
//!            ──▶ admin::Admin          what topics, groups and brokers are like
//!            ──▶ client(), context()   for a consumer of somebody's own
//!
//! It knows nothing of PostgreSQL, and nothing of what stands in a record.

mod address;
pub mod admin;
mod brokers;
mod config;
mod context;
mod error;
pub mod producer;
mod raw;
pub mod topic;

pub use config::Config;
pub use context::Context;
pub use error::{Cause, Error, Severity};
