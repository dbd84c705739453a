//! Reads a connection url, with all its faults at once and without ever quoting it: it may hold a password.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use service::config::Secret;
use url::Url;

use super::{Config, Host, PORT, TargetSession, UnknownChannelBinding, UnknownSslMode, UnknownTargetSession};

/// What can be wrong with a url.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// Not of the form of a url.
    #[error(
        "not a url ({0}): expected postgresql://user@host:port/database (several hosts as host:port,host:port), with % codes for special characters in user and password, or the password in its own key"
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
    #[error(
        "unknown parameter {0:?}: known are target_session_attrs, sslmode, sslrootcert, sslcert, sslkey, channel_binding and connect_timeout"
    )]
    Parameter(String),
    /// A parameter's value.
    #[error(transparent)]
    SslMode(#[from] UnknownSslMode),
    /// A parameter's value.
    #[error(transparent)]
    TargetSession(#[from] UnknownTargetSession),
    /// A parameter's value.
    #[error(transparent)]
    ChannelBinding(#[from] UnknownChannelBinding),
    /// A parameter's value.
    #[error("connect_timeout is a number of seconds from 1 to 600")]
    ConnectTimeout,
}

pub(super) fn parse(text: &str) -> Result<Config, Vec<UrlError>> {
    let parts = Parts::of(text);
    // A url proper has one host: it is read with the first, and the others are read as hosts of a url each.
    let (first, others) = parts.hosts.split_first().unwrap_or((&"", &[]));
    let url = read(&format!("{}{first}{}", parts.before, parts.after))?;
    if !matches!(url.scheme(), "postgresql" | "postgres") {
        return Err(vec![UrlError::Scheme]);
    }
    let mut config = Config::default();
    let mut faults = Vec::new();
    let mut text = |what: &'static str, encoded: &str| match percent_decode_str(encoded).decode_utf8() {
        Ok(decoded) => decoded.into_owned(),
        Err(_) => {
            faults.push(UrlError::NotText(what));
            String::new()
        }
    };
    config.user = text("user", url.username());
    config.password = Secret::from(text("password", url.password().unwrap_or_default()));
    config.database = text("database", parts.path());
    config.hosts = vec![host(&url, &mut text)];
    for other in others {
        config.hosts.push(host(&read(&format!("postgresql://{other}/"))?, &mut text));
    }
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
    if config.hosts.len() > 1 {
        config.target_session = TargetSession::ReadWrite;
    }
    if url.username().is_empty() {
        faults.push(UrlError::NoUser);
    }
    if config.hosts.iter().any(|host| host.name.is_empty() || host.name.starts_with('/')) {
        faults.push(UrlError::NoHost);
    }
    if url.fragment().is_some() {
        faults.push(UrlError::Fragment);
    }
    faults.extend(parameters.into_iter().filter_map(|(name, value)| parameter(&mut config, &name, &value).err()));
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

fn read(text: &str) -> Result<Url, Vec<UrlError>> {
    Url::parse(text).map_err(|error| match error {
        url::ParseError::EmptyHost => vec![UrlError::NoHost],
        other => vec![UrlError::Malformed(other)],
    })
}

fn host(url: &Url, text: &mut impl FnMut(&'static str, &str) -> String) -> Host {
    let name = text("host", url.host_str().unwrap_or_default());
    Host { name: name.trim_start_matches('[').trim_end_matches(']').to_owned(), port: url.port().unwrap_or(PORT) }
}

/// A url, cut around its hosts.
struct Parts<'t> {
    /// The scheme, user and password.
    before: &'t str,
    hosts: Vec<&'t str>,
    /// Path, parameters and fragment.
    after: &'t str,
}

impl Parts<'_> {
    fn of(url: &str) -> Parts<'_> {
        let authority = url.find("://").map_or(url.len(), |at| at + 3);
        let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
        let hosts = url[authority..end].rfind('@').map_or(authority, |at| authority + at + 1);
        Parts { before: &url[..hosts], hosts: url[hosts..end].split(',').collect(), after: &url[end..] }
    }

    /// The path as it is written: a web address would resolve dots in it, a database may be called by them.
    fn path(&self) -> &str {
        let path = self.after.find(['?', '#']).map_or(self.after, |end| &self.after[..end]);
        path.strip_prefix('/').unwrap_or_default()
    }
}

fn parameter(config: &mut Config, name: &str, value: &str) -> Result<(), UrlError> {
    match name {
        "target_session_attrs" => config.target_session = value.parse()?,
        "channel_binding" => config.channel_binding = value.parse()?,
        "connect_timeout" => {
            let seconds = value.parse().ok().filter(|seconds| (1..=600).contains(seconds));
            config.connect_timeout = Duration::from_secs(seconds.ok_or(UrlError::ConnectTimeout)?);
        }
        _ if config.tls.parameter(name, value)? => {}
        _ => return Err(UrlError::Parameter(name.to_owned())),
    }
    Ok(())
}
