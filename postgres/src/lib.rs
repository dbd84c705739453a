//! Connections to PostgreSQL: TLS, replication mode, pinned settings, quoting, SQLSTATE.
//!
//!     Config ──▶ hosts ──▶ transport (TCP, TLS) ──▶ connect()      ──▶ tokio_postgres::Client, settings pinned
//!                                              └──▶ Replication    ──▶ frames of a slot
//!
//! It knows nothing of Kafka, and nothing of what the rows mean.

pub mod config;
pub mod error;
pub mod quote;
pub mod replication;
pub mod settings;
pub mod sqlstate;

mod client;
mod hosts;
mod prepared;
mod tls;
mod transport;

pub use client::{cancel, connect, connect_at};
pub use config::Config;
pub use error::{Error, ServerError};
pub use prepared::{Ask, Prepared};
pub use replication::{Frame, Replication};
pub use tokio_postgres::{self, Client};
