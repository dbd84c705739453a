//! Where a database is, who we are there, and what proof of itself we ask of its server. Opens no socket and reads no file.

mod attributes;
mod tls;
mod url;

use std::fmt;
use std::time::Duration;

use service::config::{Reader, Secret};

pub use attributes::{Found, TargetSession, UnknownTargetSession};
pub use tls::{ChannelBinding, Pem, SslMode, Tls, UnknownChannelBinding, UnknownSslMode};
pub use url::UrlError;

/// How long a whole connection to one host may take, from the name's resolution to the first prompt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// PostgreSQL's own.
const PORT: u16 = 5432;

/// One host of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address.
    pub name: String,
    /// The port, 5432 unless the url names another.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// One database, on one server or on several of which one is the primary.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it may be, in the order in which it is looked for. There is at least one.
    pub hosts: Vec<Host>,
    /// Which of these servers will do.
    pub target_session: TargetSession,
    /// The role.
    pub user: String,
    /// The role's password; empty if the server asks for none.
    pub password: Secret,
    /// The database, named as the user unless the url names another.
    pub database: String,
    /// How the connection is protected.
    pub tls: Tls,
    /// Whether the password's proof is bound to the server's certificate.
    pub channel_binding: ChannelBinding,
    /// The longest that connecting to one host may take.
    pub connect_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            hosts: vec![Host { name: "localhost".to_owned(), port: PORT }],
            target_session: TargetSession::Any,
            user: "postgres".to_owned(),
            password: Secret::default(),
            database: "postgres".to_owned(),
            tls: Tls::default(),
            channel_binding: ChannelBinding::default(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }
}

impl Config {
    /// Reads `url`, and over it the keys of its parameters and `password`, of the section given.
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
        if let Some(target_session) = section.parsed("target_session_attrs") {
            config.target_session = target_session;
        }
        if let Some(binding) = section.parsed("channel_binding") {
            config.channel_binding = binding;
        }
        config.tls.read(section);
        if config.channel_binding == ChannelBinding::Require && config.tls.mode == SslMode::Disable {
            section.fault("url", "channel_binding=require needs TLS, which sslmode=disable rules out");
        }
        config
    }

    /// Reads `postgresql://user:password@host:port,host:port/database?sslmode=verify-full&sslrootcert=FILE`.
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

    /// The host; of several the first.
    pub fn host(&self) -> &Host {
        self.hosts.first().expect("there is at least one host")
    }

    /// The same database at each host by itself, in the order in which they are tried.
    pub fn each(&self) -> impl Iterator<Item = Config> + '_ {
        self.hosts.iter().map(|host| Config { hosts: vec![host.clone()], ..self.clone() })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}/{} as {}", hosts.join(","), self.database, self.user)
    }
}

#[cfg(test)]
mod tests;
