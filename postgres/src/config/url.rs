//! Reads a connection url, with all its faults at once and without ever quoting it: it may hold a password.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use service::config::Secret;
use url::Url;

use super::{Config, UnknownSslMode};

/// What can be wrong with a url.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// Not of the form of a url.
    #[error(
        "not a url ({0}): expected postgresql://user@host:port/database, with % codes for special characters in user and password, or the password in its own key"
    )]
    Malformed(url::ParseError),
    /// Another scheme.
    #[error("expected a url that begins with postgresql://")]
    Scheme,
    /// No user.
    #[error("names no user: write postgresql://user@host:port/database")]
    NoUser,
    /// No host, or a socket's folder.
    #[error("names no host: write postgresql://user@host:port/database (connections are made over TCP)")]
    NoHost,
    /// A % code that is no text.
    #[error("{0} is not valid UTF-8 after its % codes are resolved")]
    NotText(&'static str),
    /// A fragment: most likely an unescaped `#` of the password.
    #[error("has a # in it: write it as %23")]
    Fragment,
    /// A parameter that we do not know.
    #[error("unknown parameter {0:?}: known are sslmode, sslrootcert, sslcert, sslkey and connect_timeout")]
    Parameter(String),
    /// A parameter's value.
    #[error(transparent)]
    SslMode(#[from] UnknownSslMode),
    /// A parameter's value.
    #[error("connect_timeout is a number of seconds from 1 to 600")]
    ConnectTimeout,
}

pub(super) fn parse(text: &str) -> Result<Config, Vec<UrlError>> {
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::EmptyHost => vec![UrlError::NoHost],
        other => vec![UrlError::Malformed(other)],
    })?;
    if !matches!(url.scheme(), "postgresql" | "postgres") {
        return Err(vec![UrlError::Scheme]);
    }
    let mut faults = Vec::new();
    let mut config = Config::default();
    let path = path(text);
    let mut text = |what: &'static str, encoded: &str| match percent_decode_str(encoded).decode_utf8() {
        Ok(decoded) => decoded.into_owned(),
        Err(_) => {
            faults.push(UrlError::NotText(what));
            String::new()
        }
    };
    config.user = text("user", url.username());
    config.password = Secret::from(text("password", url.password().unwrap_or_default()));
    let host = text("host", url.host_str().unwrap_or_default());
    config.host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    config.port = url.port().unwrap_or(config.port);
    config.database = text("database", path);
    let parameters: Vec<(String, String)> = url
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (text("parameter", name), text("parameter", value)))
        .collect();
    if config.database.is_empty() {
        config.database.clone_from(&config.user);
    }
    if url.username().is_empty() {
        faults.push(UrlError::NoUser);
    }
    if config.host.is_empty() || config.host.starts_with('/') {
        faults.push(UrlError::NoHost);
    }
    if url.fragment().is_some() {
        faults.push(UrlError::Fragment);
    }
    faults.extend(parameters.into_iter().filter_map(|(name, value)| parameter(&mut config, &name, value).err()));
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

/// The path as it is written: a web address would resolve dots in it, a database may be called by them.
fn path(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let rest = rest.find(['?', '#']).map_or(rest, |end| &rest[..end]);
    rest.split_once('/').map_or("", |(_, path)| path)
}

fn parameter(config: &mut Config, name: &str, value: String) -> Result<(), UrlError> {
    match name {
        "sslmode" => config.tls.mode = value.parse()?,
        "sslrootcert" => config.tls.root_certificate = Some(value.into()),
        "sslcert" => config.tls.certificate = Some(value.into()),
        "sslkey" => config.tls.key = Some(value.into()),
        "connect_timeout" => {
            let seconds = value.parse().ok().filter(|seconds| (1..=600).contains(seconds));
            config.connect_timeout = Duration::from_secs(seconds.ok_or(UrlError::ConnectTimeout)?);
        }
        _ => return Err(UrlError::Parameter(name.to_owned())),
    }
    Ok(())
}
