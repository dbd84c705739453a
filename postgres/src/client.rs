//! A connection for statements: tokio-postgres over our own transport, with the pinned settings.

use std::convert::Infallible;
use std::future::{Ready, ready};

use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{Client, NoTls};

use crate::config::Config;
use crate::error::{Error, ServerError};
use crate::settings;
use crate::transport::{Deadline, Stream};

/// Connects and pins the settings. The connection's own task is spawned on the current runtime and ends with the client.
///
/// `purpose` tells an administrator what the session is for: its `application_name` is `tributary <purpose>`.
pub async fn connect(config: &Config, purpose: &str) -> Result<Client, Error> {
    let deadline = Deadline::of(config);
    let stream = Stream::open(config, deadline).await?;
    let remedy = "it accepts connections but does not answer: is it overloaded, or something else than PostgreSQL?";
    deadline.bound("the login", remedy, login(config, purpose, stream)).await
}

async fn login(config: &Config, purpose: &str, stream: Stream) -> Result<Client, Error> {
    let mut options = tokio_postgres::Config::new();
    options
        .user(&config.user)
        .password(config.password.expose())
        .dbname(&config.database)
        .options(settings::options())
        .application_name(settings::application_name(purpose));
    // The transport has shaken hands already: no second request for TLS, but its channel binding counts.
    let (client, version) = if stream.is_tls() {
        options.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        let (client, connection) = options.connect_raw(stream, Done).await.map_err(|e| refused(config, e))?;
        let version = connection.parameter("server_version").map(str::to_owned);
        spawn(connection);
        (client, version)
    } else {
        options.ssl_mode(SslMode::Disable);
        let (client, connection) = options.connect_raw(stream, NoTls).await.map_err(|e| refused(config, e))?;
        let version = connection.parameter("server_version").map(str::to_owned);
        spawn(connection);
        (client, version)
    };
    let statements = settings::statements(version.as_deref().and_then(settings::major).unwrap_or_default());
    if !statements.is_empty() {
        let unset = |cause| Error::statement(format!("pin the settings of {config}"), cause);
        client.batch_execute(&statements).await.map_err(unset)?;
    }
    Ok(client)
}

fn spawn(connection: impl Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static) {
    tokio::spawn(async {
        // Whoever waits for an answer gets the error there; without one there is nobody to tell.
        if let Err(error) = connection.await {
            tracing::debug!("a connection to PostgreSQL ended: {}", service::chain(&error));
        }
    });
}

fn refused(config: &Config, cause: tokio_postgres::Error) -> Error {
    match cause.as_db_error() {
        Some(answer) => Error::login(config, ServerError::from(answer)),
        None => Error::Client { operation: format!("log in to {config}"), cause },
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
