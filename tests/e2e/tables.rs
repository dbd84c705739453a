//! Any table: whatever its key is, or without one, and however its rows are kept, the copy is exact while it is written to.

mod keys;
mod modes;
mod named;
mod shapes;

use std::time::Duration;

use harness::World;
use harness::process::Part;
use harness::servers::Role;
use harness::table::{Table, quote};

const READY_WITHIN: Duration = Duration::from_secs(120);
const WITHIN: Duration = Duration::from_secs(300);

/// `[source.keys]` with these tables and columns.
fn keys(named: &[(&str, &[&str])]) -> toml::Table {
    let columns = |names: &[&str]| names.iter().map(|name| toml::Value::from(*name)).collect::<Vec<_>>();
    named.iter().map(|(table, names)| ((*table).to_owned(), toml::Value::Array(columns(names)))).collect()
}
