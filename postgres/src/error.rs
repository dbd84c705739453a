//! What can fail between us and a PostgreSQL server, and where each failure leads.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Config, SslMode};
use crate::sqlstate::{self, Severity};

/// A failure of a connection or of an operation on it. Never holds a password or a row's values.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answered at the address.
    #[error("cannot reach {server}: check host and port of the url, and that PostgreSQL runs and listens there")]
    Unreachable {
        /// `host:port/database as user`.
        server: String,
        /// What the operating system said.
        #[source]
        cause: io::Error,
    },
    /// The server did not answer in time.
    #[error("{server} was silent for {} s during {during}: {remedy}", .after.as_secs())]
    Silent {
        /// `host:port/database as user`.
        server: String,
        /// What we waited for.
        during: String,
        /// How long.
        after: Duration,
        /// What to look at.
        remedy: &'static str,
    },
    /// The server does not speak TLS.
    #[error(
        "{server} refuses TLS: switch `ssl` on at the server, or accept an unprotected connection with `sslmode=disable` in the url"
    )]
    TlsRefused {
        /// `host:port/database as user`.
        server: String,
    },
    /// The TLS handshake failed, above all because the certificate does not prove the server.
    #[error("cannot trust {server}: {remedy}")]
    Untrusted {
        /// `host:port/database as user`.
        server: String,
        /// What to change, by what was wrong.
        remedy: &'static str,
        /// What TLS said.
        #[source]
        cause: io::Error,
    },
    /// Certificates or a key cannot be used.
    #[error(
        "cannot use {place} as {purpose}: give readable PEM; a key must be without a passphrase and belong to its certificate, an X.509 of version 3"
    )]
    Certificates {
        /// The file, or the key of the configuration that holds the text.
        place: String,
        /// The parameter of the url that names it.
        purpose: &'static str,
        /// What was wrong with it.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Others than we may read our key.
    #[error(
        "the key {} may be read by others (mode {mode:04o}): chmod 600 it, or 640 where it belongs to root; or give its text as sslkey_pem", .file.display()
    )]
    KeyPermissions {
        /// The file as configured.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system has no certificates to trust.
    #[error("no trusted certificates on this machine: name a file with `sslrootcert` in the url")]
    NoRoots,
    /// The server refused the login.
    #[error("{server} refuses the login: {remedy}")]
    Login {
        /// `host:port/database as user`.
        server: String,
        /// What to change, by what was wrong.
        remedy: &'static str,
        /// What the server said.
        #[source]
        cause: ServerError,
    },
    /// The server asks for a proof that we cannot give.
    #[error("{server} asks for {method}: allow scram-sha-256 for this user in pg_hba.conf")]
    Method {
        /// `host:port/database as user`.
        server: String,
        /// What it asked for.
        method: &'static str,
    },
    /// The server would take a password's proof that is not bound to this connection, and we were told not to give one.
    #[error("{server} cannot be asked with channel_binding=require: {remedy}")]
    Unbound {
        /// `host:port/database as user`.
        server: String,
        /// What is in the way, and what to change.
        remedy: &'static str,
    },
    /// The server took our proof of the password and gave none, or a wrong one.
    #[error(
        "{server} does not prove that it knows the password of its user: it may be another machine in its place; check where the name leads, and do not send it a password"
    )]
    Unproven {
        /// `host:port/database as user`.
        server: String,
        /// What was wrong with its proof.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server is not what `target_session_attrs` asks for.
    #[error(
        "{server} is {found}, and target_session_attrs={wanted} is asked for: name the primary, or wait until this one is promoted"
    )]
    WrongSession {
        /// `host:port/database as user`.
        server: String,
        /// What it is.
        found: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// Several hosts were named, and none will do.
    #[error("none of the hosts will do:{}", Each(.0))]
    Hosts(Vec<Error>),
    /// The server answered an operation with an error.
    #[error("cannot {operation}")]
    Server {
        /// Completes the sentence.
        operation: String,
        /// What the server said.
        #[source]
        cause: ServerError,
    },
    /// The server fails at its own log while it streams. Nothing that we do is the reason.
    #[error(
        "the server cannot decode its own log for the slot {slot}: that is tried again, and nothing is lost by it; if it stays so it is a fault of PostgreSQL: install its latest minor version, and where that does not help begin with a new prefix"
    )]
    Undecodable {
        /// The slot.
        slot: String,
        /// What the server said.
        #[source]
        cause: ServerError,
    },
    /// Another process reads the slot.
    #[error("the slot {slot} is in use{}: stop its reader, or wait until it ends", Pid(.pid))]
    SlotActive {
        /// The slot.
        slot: String,
        /// The server process of its reader, if the server named it.
        pid: Option<i32>,
    },
    /// There is no such slot.
    #[error("there is no slot {slot} in this database: create it, or name the one that is meant")]
    SlotMissing {
        /// The slot.
        slot: String,
    },
    /// A slot of this name stands already.
    #[error("there is a slot {slot} already: drop it if nobody needs it, or choose another name")]
    SlotExists {
        /// The slot.
        slot: String,
    },
    /// All slots are taken.
    #[error(
        "{server} has no free slot: raise max_replication_slots (needs a restart), or drop a slot that nobody reads"
    )]
    NoFreeSlot {
        /// `host:port/database as user`.
        server: String,
    },
    /// The server's WAL does not hold what a slot needs.
    #[error(
        "{server} does not write its WAL for logical decoding: ALTER SYSTEM SET wal_level = logical, then restart it"
    )]
    WalLevel {
        /// `host:port/database as user`.
        server: String,
    },
    /// The connection broke.
    #[error("lost the connection while trying to {operation}")]
    Lost {
        /// Completes the sentence.
        operation: String,
        /// What the operating system said.
        #[source]
        cause: io::Error,
    },
    /// The server ended the stream by itself, as it does when it shuts down.
    #[error("the server ended the stream of {slot}")]
    Ended {
        /// The slot.
        slot: String,
    },
    /// The server said what the protocol does not allow.
    #[error("cannot understand the server while trying to {operation}: {what}")]
    Protocol {
        /// Completes the sentence.
        operation: String,
        /// What came.
        what: String,
    },
    /// The client library failed without an answer of the server.
    #[error("cannot {operation}")]
    Client {
        /// Completes the sentence.
        operation: String,
        /// What it said.
        #[source]
        cause: tokio_postgres::Error,
    },
}

impl Error {
    /// The SQLSTATE, if a server's answer is behind it.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Error::Login { cause, .. } | Error::Server { cause, .. } | Error::Undecodable { cause, .. } => {
                Some(&cause.sqlstate)
            }
            Error::SlotActive { .. } => Some("55006"),
            Error::SlotMissing { .. } => Some("42704"),
            Error::SlotExists { .. } => Some("42710"),
            Error::NoFreeSlot { .. } => Some("53400"),
            Error::WalLevel { .. } => Some("55000"),
            Error::Client { cause, .. } => cause.code().map(tokio_postgres::error::SqlState::code),
            _ => None,
        }
    }

    /// Where it leads.
    pub fn severity(&self) -> Severity {
        match self {
            Error::Unreachable { .. }
            | Error::Silent { .. }
            | Error::Lost { .. }
            | Error::Ended { .. }
            | Error::WrongSession { .. } => Severity::Transient,
            // One of them may come back, or be promoted.
            Error::Hosts(each) if each.iter().any(|error| error.severity() == Severity::Transient) => {
                Severity::Transient
            }
            Error::Hosts(_) => Severity::Fatal,
            Error::TlsRefused { .. }
            | Error::Untrusted { .. }
            | Error::Certificates { .. }
            | Error::KeyPermissions { .. }
            | Error::NoRoots
            | Error::Method { .. }
            | Error::Unbound { .. }
            | Error::Unproven { .. }
            | Error::SlotMissing { .. }
            | Error::SlotExists { .. }
            | Error::NoFreeSlot { .. }
            | Error::WalLevel { .. }
            | Error::Protocol { .. } => Severity::Fatal,
            Error::Login { .. }
            | Error::Server { .. }
            | Error::Undecodable { .. }
            | Error::SlotActive { .. }
            | Error::Client { .. } => self.sqlstate().map_or(Severity::Transient, sqlstate::severity),
        }
    }

    /// What it means that no host will do; a single one's failure stands for itself.
    pub(crate) fn of_hosts(mut failures: Vec<Error>) -> Error {
        match failures.pop() {
            Some(only) if failures.is_empty() => only,
            last => {
                failures.extend(last);
                Error::Hosts(failures)
            }
        }
    }

    /// Why the proof of a password could not be bound. `can_bind`: the connection gives something to bind to.
    pub(crate) fn unbound(config: &Config, can_bind: bool) -> Error {
        let remedy = if can_bind {
            "it does not offer SCRAM-SHA-256-PLUS: allow scram-sha-256 for this user in pg_hba.conf, set the password anew if it is stored as md5, and connect without a proxy that ends TLS in between"
        } else {
            "the signature of its certificate defines no hash to bind to (Ed25519 and RSA-PSS do not): issue it with RSA or ECDSA over SHA-256, -384 or -512"
        };
        Error::Unbound { server: config.display(), remedy }
    }

    /// What a server's refusal of a login means. `answer` ended the startup.
    pub(crate) fn login(config: &Config, answer: ServerError) -> Error {
        let server = config.display();
        let remedy = match answer.sqlstate.as_str() {
            "28P01" if config.password.is_empty() => "give the password in the key `password`, or in the url",
            "28P01" => "check the user in the url, and the password",
            "28000" if answer.message.contains("channel binding") => {
                "the certificate that we were shown is not the server's own: a proxy that ends TLS stands in between, or somebody who should not; connect to the server itself, or say channel_binding=disable if the proxy is yours"
            }
            "28000" if config.tls.mode == SslMode::Disable => {
                "check pg_hba.conf for this user, database and address; it may demand TLS, which sslmode=disable rules out"
            }
            "28000" if config.tls.certificate.is_none() => {
                "check that the role exists and may log in, and pg_hba.conf for this user, database and address; if it asks for a client certificate, give sslcert and sslkey"
            }
            "28000" => {
                "check that the role exists and may log in, pg_hba.conf for this user, database and address, and that the client certificate is made out to the user"
            }
            "3D000" => "check the name of the database in the url",
            "42501" => {
                "give the role what it lacks: ALTER ROLE … REPLICATION for a slot, GRANT CONNECT for the database"
            }
            "53300" => "raise max_connections or max_wal_senders, or end other sessions",
            "57P03" => "it is starting up or shutting down: it will be tried again",
            _ => "see its own log for the reason",
        };
        Error::Login { server, remedy, cause: answer }
    }

    /// Wraps what tokio-postgres says of a statement. `operation` completes the sentence "cannot …".
    pub fn statement(operation: impl Into<String>, cause: tokio_postgres::Error) -> Error {
        let operation = operation.into();
        match cause.as_db_error() {
            Some(answer) => Error::Server { operation, cause: ServerError::from(answer) },
            None => Error::Client { operation, cause },
        }
    }
}

/// An error as the server reported it. Its detail is left out: it quotes rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// Five characters.
    pub sqlstate: String,
    /// In the server's language.
    pub message: String,
    /// What the server advises.
    pub hint: Option<String>,
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(answer: &tokio_postgres::error::DbError) -> ServerError {
        ServerError {
            sqlstate: answer.code().code().to_owned(),
            message: answer.message().to_owned(),
            hint: answer.hint().map(str::to_owned),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate)?;
        self.hint.iter().try_for_each(|hint| write!(f, ", hint: {hint}"))
    }
}

impl std::error::Error for ServerError {}

/// One failure a line, each with its causes.
struct Each<'e>(&'e [Error]);

impl fmt::Display for Each<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|error| write!(f, "\n  - {}", service::chain(error)))
    }
}

struct Pid<'p>(&'p Option<i32>);

impl fmt::Display for Pid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|pid| write!(f, " by server process {pid}"))
    }
}
