//! A connection for statements: tokio-postgres over our own transport, with the pinned settings.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::config::{ChannelBinding, SslMode, SslNegotiation};
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{Client, Connection, NoTls};

use crate::config::{self, Config, Found};
use crate::error::{Error, ServerError};
use crate::transport::{Deadline, Stream};
use crate::{hosts, settings, tls};

/// Connects and pins the settings. The connection's own task is spawned on the current runtime and ends with the client.
///
/// `purpose` tells an administrator what the session is for: its `application_name` is `tributary <purpose>`.
pub async fn connect(config: &Config, purpose: &str) -> Result<Client, Error> {
    connect_at(config, purpose).await.map(|(client, _)| client)
}

/// The same, and which host it is: the configuration that leads there and nowhere else. Whoever needs several
/// connections to one and the same server makes the others by it.
pub async fn connect_at(config: &Config, purpose: &str) -> Result<(Client, Config), Error> {
    hosts::first(config, |one| async move {
        let deadline = Deadline::of(&one);
        let stream = Stream::open(&one, deadline).await?;
        let remedy = "it accepts connections but does not answer: is it overloaded, or something else than PostgreSQL?";
        deadline.bound("the login", remedy, login(&one, purpose, stream)).await
    })
    .await
}

/// Has the server give up what `client` waits for there. `config` leads to that server and to no other. When the server
/// hears of it is its own affair: a statement that ends before by itself leaves the cancel to the next one.
pub async fn cancel(config: &Config, client: &Client) -> Result<(), Error> {
    let deadline = Deadline::of(config);
    let stream = Stream::open(config, deadline).await?;
    let token = client.cancel_token();
    let sent = if stream.is_tls() {
        token.cancel_query_raw(stream, Done).await
    } else {
        token.cancel_query_raw(stream, NoTls).await
    };
    sent.map_err(|cause| Error::statement(format!("cancel a statement at {config}"), cause))
}

async fn login(config: &Config, purpose: &str, stream: Stream) -> Result<Client, Error> {
    let mut options = tokio_postgres::Config::new();
    options
        .user(&config.user)
        .password(config.password.expose())
        .dbname(&config.database)
        .options(settings::options())
        .application_name(settings::application_name(purpose))
        .channel_binding(match config.channel_binding {
            config::ChannelBinding::Disable => ChannelBinding::Disable,
            config::ChannelBinding::Prefer => ChannelBinding::Prefer,
            config::ChannelBinding::Require => ChannelBinding::Require,
        });
    let can_bind = stream.binding().is_some();
    let refused = |cause| refused(config, can_bind, cause);
    // The transport has shaken hands already: no second request for TLS, but its channel binding counts.
    let (client, greeting) = if stream.is_tls() {
        options.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        let (client, connection) = options.connect_raw(stream, Done).await.map_err(refused)?;
        let greeting = Greeting::of(&connection);
        spawn(connection);
        (client, greeting)
    } else {
        options.ssl_mode(SslMode::Disable);
        let (client, connection) = options.connect_raw(stream, NoTls).await.map_err(refused)?;
        let greeting = Greeting::of(&connection);
        spawn(connection);
        (client, greeting)
    };
    hosts::judge(config, greeting.found)?;
    let statements = settings::statements(greeting.major);
    if !statements.is_empty() {
        let unset = |cause| Error::statement(format!("pin the settings of {config}"), cause);
        client.batch_execute(&statements).await.map_err(unset)?;
    }
    Ok(client)
}

/// What a server tells of itself at a login.
struct Greeting {
    /// Its major version; 0 where it tells none.
    major: u32,
    found: Found,
}

impl Greeting {
    fn of<S, T>(connection: &Connection<S, T>) -> Greeting
    where
        S: AsyncRead + AsyncWrite + Unpin,
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut found = Found::default();
        for name in Found::SETTINGS {
            found.note(name, connection.parameter(name).unwrap_or_default());
        }
        let version = connection.parameter("server_version");
        Greeting { major: version.and_then(settings::major).unwrap_or_default(), found }
    }
}

fn spawn(connection: impl Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static) {
    tokio::spawn(async {
        // Whoever waits for an answer gets the error there; without one there is nobody to tell.
        if let Err(error) = connection.await {
            tracing::debug!("a connection to PostgreSQL ended: {}", service::chain(&error));
        }
    });
}

/// Why there was no login, in the words in which the replication connection would tell it.
fn refused(config: &Config, can_bind: bool, cause: tokio_postgres::Error) -> Error {
    if let Some(answer) = cause.as_db_error() {
        return Error::login(config, ServerError::from(answer));
    }
    // The library tells its own refusals apart by their texts alone; a test on a real server holds each.
    let kind = cause.to_string();
    let Some(inner) = cause.into_source() else {
        return Error::Lost { operation: format!("log in at {config}"), cause: io::Error::other(kind) };
    };
    if kind.starts_with("authentication error") {
        let server = config.display();
        return match inner.to_string().as_str() {
            "server did not use channel binding" => Error::unbound(config, can_bind),
            "unsupported authentication method" => Error::Method { server, method: "another proof than a password" },
            "unsupported SASL mechanism" => Error::Method { server, method: "another mechanism than SCRAM-SHA-256" },
            _ => Error::Unproven { server, cause: inner },
        };
    }
    let lost = |cause| Error::Lost { operation: format!("log in at {config}"), cause };
    match inner.downcast::<io::Error>() {
        Ok(cause) => tls::untrusted(config, *cause).unwrap_or_else(lost),
        Err(other) => lost(io::Error::other(other)),
    }
}

/// The TLS of a stream that is protected already.
struct Done;

impl TlsConnect<Stream> for Done {
    type Stream = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn connect(self, stream: Stream) -> Self::Future {
        ready(Ok(stream))
    }
}
