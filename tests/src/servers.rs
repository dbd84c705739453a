//! Real servers for the tests: private ones on free loopback ports, with data in a temporary folder, gone when dropped.
//!
//! Each can be stopped, killed, frozen and started again with the same data on the same port. They know nothing of
//! what is done on them.

mod kafka;
mod postgres;
mod redis;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::{Error, supervisor};

pub use kafka::{Broker, Door, Jvm, Kafka, java_as_shipped};
pub use postgres::{Address as PostgresAddress, Postgres, Role};
pub use redis::{Address as RedisAddress, Redis};

/// Whether a server's data must survive `kill -9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nobody kills this server: what makes it safe and slow is off.
    Relaxed,
    /// The test kills it, and what it acknowledged must be there afterwards.
    Full,
}

/// How long a server may take to answer on a busy machine.
const ANSWER_WITHIN: std::time::Duration = std::time::Duration::from_secs(180);

/// A folder for one server, removed with it. Others may enter: PostgreSQL runs as a user of its own.
fn folder(name: &str) -> Result<TempDir, Error> {
    let folder = tempfile::Builder::new()
        .prefix(&format!("tributary-{name}-"))
        .tempdir()
        .map_err(Error::during("make a temporary folder"))?;
    supervisor::watch_folder(folder.path());
    open_to_all(folder.path())?;
    Ok(folder)
}

fn open_to_all(folder: &Path) -> Result<(), Error> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .map_err(Error::during(format!("open {} to other users", folder.display())))
}
