//! How much is logged, and in which form.

use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
        if !is_filter(&level) {
            section
                .fault("level", "expected error, warn, info, debug or trace, or directives such as info,rdkafka=debug");
        }
        Config { level, format: section.parsed("format").unwrap_or_default() }
    }
}

/// A part without `=` is a level: the library would take a misspelt one for a module, and log nothing else.
fn is_filter(text: &str) -> bool {
    let plain = |part: &str| !part.contains(['=', '[']);
    let known = |part: &str| !part.trim().is_empty() && part.trim().parse::<LevelFilter>().is_ok();
    text.split(',').all(|part| !plain(part) || known(part)) && EnvFilter::try_new(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Document;

    fn check(text: &str) -> Result<Config, String> {
        let document = Document::parse(text, std::iter::empty()).expect("valid TOML");
        let config = Config::read(&mut document.root().section("log"));
        document.finish().map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn a_log_is_for_people_unless_told_otherwise() {
        assert_eq!(check(""), Ok(Config::default()));
        let json = Config { level: "info,rdkafka=debug".to_owned(), format: Format::Json };
        assert_eq!(check("[log]\nlevel = \"info,rdkafka=debug\"\nformat = \"json\""), Ok(json));
    }

    #[test]
    fn a_wrong_level_and_a_wrong_format_are_two_faults() {
        for level in ["loud=very=much", "inof", "", "info,debgu"] {
            let text = format!("[log]\nlevel = \"{level}\"\nformat = \"xml\"");
            let found = check(&text).expect_err("both are wrong");
            assert_eq!(found.lines().count(), 3, "{found}");
        }
    }
}
