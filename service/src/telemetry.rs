//! Starts logging: to standard error, so that standard output stays the answer of a command.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::log::{Config, Format};

/// From here on what is logged is seen. A second call changes nothing: a test binary has many beginnings.
pub fn start(config: &Config) {
    let filter = EnvFilter::new(&config.level);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let started = match config.format {
        Format::Text => builder.with_ansi(coloured).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
}
