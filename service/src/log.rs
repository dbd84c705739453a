//! How much is logged, and in which form.

use std::str::FromStr;

use tracing_subscriber::EnvFilter;

use crate::config::Reader;

/// The section `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A level, or directives such as `info,rdkafka=debug`.
    pub level: String,
    /// For people or for machines.
    pub format: Format,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people; in colour on a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The text names no form.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no log format: write \"text\" or \"json\"")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Format, UnknownFormat> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config { level: "info".to_owned(), format: Format::default() }
    }
}

impl Config {
    /// Reads `level` and `format` of the section `[log]`.
    pub fn read(section: &mut Reader<'_>) -> Config {
        let level: String = section.or("level", Config::default().level);
        if EnvFilter::try_new(&level).is_err() {
            section
                .fault("level", "expected error, warn, info, debug or trace, or directives such as info,rdkafka=debug");
        }
        Config { level, format: section.parsed("format").unwrap_or_default() }
    }
}
