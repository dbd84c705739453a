//! Where a server is, who we are there, and what proof of itself we ask of it. Opens no socket and reads no file.

mod url;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use service::config::{Reader, Secret};

/// How long a whole connection may take, from the name's resolution to the first prompt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One server and one database of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// A name or an address.
    pub host: String,
    /// The port, 5432 unless the url names another.
    pub port: u16,
    /// The role.
    pub user: String,
    /// The role's password; empty if the server asks for none.
    pub password: Secret,
    /// The database, named as the user unless the url names another.
    pub database: String,
    /// How the connection is protected.
    pub tls: Tls,
    /// The longest that connecting may take.
    pub connect_timeout: Duration,
}

/// How a connection is protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// What is asked of the server.
    pub mode: SslMode,
    /// PEM file of the authorities to trust, instead of the system's.
    pub root_certificate: Option<PathBuf>,
    /// PEM file of the certificate that proves us.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
}

/// What is asked of the server's TLS. Named as libpq names it; its modes that fall back in silence are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// Encrypted. The certificate is not looked at, unless root certificates are given: then as `verify-ca`.
    Require,
    /// The certificate comes from an authority that we trust.
    VerifyCa,
    /// And it is made out to the host that we meant.
    #[default]
    VerifyFull,
}

impl SslMode {
    /// As it is written in a url.
    pub fn as_str(self) -> &'static str {
        match self {
            SslMode::Disable => "disable",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        }
    }
}

/// The text names no mode that we support.
#[derive(Debug, thiserror::Error)]
pub enum UnknownSslMode {
    /// One of libpq's modes that fall back in silence.
    #[error(
        "sslmode {0} may end in an unprotected connection without saying so: write verify-full, verify-ca, require or disable"
    )]
    Weak(String),
    /// None at all.
    #[error("sslmode is disable, require, verify-ca or verify-full (the default)")]
    Unknown,
}

impl FromStr for SslMode {
    type Err = UnknownSslMode;

    fn from_str(text: &str) -> Result<SslMode, UnknownSslMode> {
        let modes = [SslMode::Disable, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull];
        match modes.into_iter().find(|mode| mode.as_str() == text) {
            Some(mode) => Ok(mode),
            None if matches!(text, "allow" | "prefer") => Err(UnknownSslMode::Weak(text.to_owned())),
            None => Err(UnknownSslMode::Unknown),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: "localhost".to_owned(),
            port: 5432,
            user: "postgres".to_owned(),
            password: Secret::default(),
            database: "postgres".to_owned(),
            tls: Tls::default(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }
}

impl Config {
    /// Reads `url`, and over it `password`, `sslmode`, `sslrootcert`, `sslcert` and `sslkey`, of the section given.
    pub fn read(section: &mut Reader<'_>) -> Config {
        let url: Secret = section.required("url");
        let mut config = Config::default();
        if !url.is_empty() {
            match Config::parse(url.expose()) {
                Ok(parsed) => config = parsed,
                Err(faults) => faults.iter().for_each(|fault| section.fault("url", fault)),
            }
        }
        if let Some(password) = section.optional("password") {
            config.password = password;
        }
        if let Some(mode) = section.parsed("sslmode") {
            config.tls.mode = mode;
        }
        for (key, file) in [
            ("sslrootcert", &mut config.tls.root_certificate),
            ("sslcert", &mut config.tls.certificate),
            ("sslkey", &mut config.tls.key),
        ] {
            if let Some(path) = section.optional::<String>(key) {
                *file = Some(path.into());
            }
        }
        if config.tls.certificate.is_some() != config.tls.key.is_some() {
            section.fault("url", "sslcert and sslkey belong together: give both or none");
        }
        config
    }

    /// Reads `postgresql://user:password@host:port/database?sslmode=verify-full&sslrootcert=FILE`.
    pub fn parse(text: &str) -> Result<Config, Vec<UrlError>> {
        url::parse(text)
    }

    /// `host:port/database as user`: how messages call it.
    pub fn display(&self) -> String {
        self.to_string()
    }

    /// The same server, another database.
    pub fn with_database(&self, database: impl Into<String>) -> Config {
        Config { database: database.into(), ..self.clone() }
    }
}

pub use url::UrlError;

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { host, port, database, user, .. } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}/{database} as {user}")
        } else {
            write!(f, "{host}:{port}/{database} as {user}")
        }
    }
}

#[cfg(test)]
mod tests;
