//! A connection in replication mode up to the stream: startup, login, and commands with their answers.

use std::io;

use bytes::{BufMut, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication;
use postgres_protocol::authentication::sasl::{self, ChannelBinding, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, DataRowBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame;
use crate::config::{self, Config, Found};
use crate::error::{Error, ServerError};
use crate::transport::{Deadline, Stream};
use crate::{hosts, settings, tls};

/// Room that a read finds at least.
const READ_BYTES: usize = 256 * 1024;
/// A buffer that one huge row has made larger than this is given back.
const KEEP_BYTES: usize = 4 * 1024 * 1024;

/// No answer to a command of ours comes near this.
const ANSWER_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// The connection.
#[derive(Debug)]
pub(super) struct Session {
    stream: Stream,
    pub(super) read: BytesMut,
    /// What is still to be written: kept here, so that a cancelled write is continued by the next one.
    write: BytesMut,
    /// How messages call the server.
    pub(super) server: String,
    pub(super) version: String,
    pub(super) pid: i32,
}

/// What a simple query returned, all as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The columns' names.
    pub columns: Vec<String>,
    /// The rows' values.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Rows {
    /// The value of `column` in the first row.
    pub fn first(&self, column: &str) -> Option<&str> {
        let at = self.columns.iter().position(|name| name == column)?;
        self.rows.first()?.get(at)?.as_deref()
    }
}

/// How a command ended.
pub(super) enum Answer {
    /// With rows, if any.
    Rows(Rows),
    /// The connection carries a stream now.
    Streaming,
}

impl Session {
    pub(super) async fn open(config: &Config, purpose: &str) -> Result<Session, Error> {
        let (session, _) = hosts::first(config, |one| async move { Session::open_at(&one, purpose).await }).await?;
        Ok(session)
    }

    /// The same at the one host of `config`.
    async fn open_at(config: &Config, purpose: &str) -> Result<Session, Error> {
        let deadline = Deadline::of(config);
        let stream = Stream::open(config, deadline).await?;
        let mut session = Session {
            stream,
            read: BytesMut::with_capacity(READ_BYTES),
            write: BytesMut::new(),
            server: config.display(),
            version: String::new(),
            pid: 0,
        };
        let remedy = "it accepts connections but does not answer: is it overloaded, or something else than PostgreSQL?";
        let login = async { session.login(config, purpose).await.map_err(|error| of_tls(config, error)) };
        let found = deadline.bound("the login", remedy, login).await?;
        hosts::judge(config, found)?;
        let statements = settings::statements(settings::major(&session.version).unwrap_or_default());
        if !statements.is_empty() {
            let pin = session.command("pin the settings", &statements);
            deadline.bound("the settings", remedy, pin).await?;
        }
        Ok(session)
    }

    async fn login(&mut self, config: &Config, purpose: &str) -> Result<Found, Error> {
        let (options, name) = (settings::options(), settings::application_name(purpose));
        let parameters = [
            ("user", config.user.as_str()),
            ("database", &config.database),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("options", &options),
            ("application_name", &name),
        ];
        frontend::startup_message(parameters, &mut self.write).map_err(|cause| self.lost(LOGIN, cause))?;
        self.flush(LOGIN).await?;
        let mut is_bound = config.channel_binding != config::ChannelBinding::Require;
        loop {
            let message = self.message(LOGIN).await?;
            let is_proof_taken = matches!(
                message,
                Message::AuthenticationOk
                    | Message::AuthenticationCleartextPassword
                    | Message::AuthenticationMd5Password(_)
            );
            if is_proof_taken && !is_bound {
                return Err(Error::unbound(config, self.stream.binding().is_some()));
            }
            match message {
                Message::AuthenticationOk => return self.greeting(config).await,
                Message::AuthenticationSasl(body) => {
                    self.scram(config, &body).await?;
                    is_bound = true;
                }
                Message::AuthenticationCleartextPassword => self.password(config.password.expose().as_bytes()).await?,
                Message::AuthenticationMd5Password(body) => {
                    let password = config.password.expose().as_bytes();
                    let hash = authentication::md5_hash(config.user.as_bytes(), password, body.salt());
                    self.password(hash.as_bytes()).await?;
                }
                Message::AuthenticationGss
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationSspi
                | Message::AuthenticationScmCredential => return Err(self.method("another proof than a password")),
                Message::ErrorResponse(body) => return Err(Error::login(config, frame::failure(&body))),
                Message::NoticeResponse(_) => {}
                _ => return Err(self.confused(LOGIN, "an answer that is no step of a login")),
            }
        }
    }

    /// What comes between the login and the first command.
    async fn greeting(&mut self, config: &Config) -> Result<Found, Error> {
        let mut found = Found::default();
        loop {
            match self.message(LOGIN).await? {
                Message::ParameterStatus(body) => match (body.name(), body.value()) {
                    (Ok("server_version"), Ok(version)) => version.clone_into(&mut self.version),
                    (Ok(name), Ok(value)) => found.note(name, value),
                    // One that cannot be read is none that we need.
                    _ => {}
                },
                Message::BackendKeyData(body) => self.pid = body.process_id(),
                Message::NoticeResponse(_) => {}
                Message::ReadyForQuery(_) => return Ok(found),
                Message::ErrorResponse(body) => return Err(Error::login(config, frame::failure(&body))),
                _ => return Err(self.confused(LOGIN, "an answer that is no step of a greeting")),
            }
        }
    }

    async fn password(&mut self, proof: &[u8]) -> Result<(), Error> {
        frontend::password_message(proof, &mut self.write).map_err(|cause| self.lost(LOGIN, cause))?;
        self.flush(LOGIN).await
    }

    async fn scram(&mut self, config: &Config, offer: &AuthenticationSaslBody) -> Result<(), Error> {
        let offered: Vec<&str> = offer.mechanisms().collect().map_err(|cause| self.lost(LOGIN, cause))?;
        let binding = self.stream.binding().filter(|_| config.channel_binding != config::ChannelBinding::Disable);
        let can_bind = binding.is_some();
        let (mechanism, binding) = match binding {
            Some(binding) if offered.contains(&sasl::SCRAM_SHA_256_PLUS) => {
                (sasl::SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(binding))
            }
            // The server must know that we could have bound, so that nobody between us took the offer away.
            Some(_) => (sasl::SCRAM_SHA_256, ChannelBinding::unrequested()),
            None => (sasl::SCRAM_SHA_256, ChannelBinding::unsupported()),
        };
        if !offered.contains(&mechanism) {
            return Err(self.method("another mechanism than SCRAM-SHA-256"));
        }
        if mechanism != sasl::SCRAM_SHA_256_PLUS && config.channel_binding == config::ChannelBinding::Require {
            return Err(Error::unbound(config, can_bind));
        }
        let mut scram = ScramSha256::new(config.password.expose().as_bytes(), binding);
        frontend::sasl_initial_response(mechanism, scram.message(), &mut self.write)
            .map_err(|cause| self.lost(LOGIN, cause))?;
        self.flush(LOGIN).await?;
        match self.message(LOGIN).await? {
            Message::AuthenticationSaslContinue(body) => {
                scram.update(body.data()).map_err(|cause| self.unproven(cause))?;
            }
            Message::ErrorResponse(body) => return Err(Error::login(config, frame::failure(&body))),
            _ => return Err(self.confused(LOGIN, "an answer that is no step of SCRAM")),
        }
        frontend::sasl_response(scram.message(), &mut self.write).map_err(|cause| self.lost(LOGIN, cause))?;
        self.flush(LOGIN).await?;
        match self.message(LOGIN).await? {
            // The server proves in turn that it knows the password.
            Message::AuthenticationSaslFinal(body) => scram.finish(body.data()).map_err(|cause| self.unproven(cause)),
            Message::ErrorResponse(body) => Err(Error::login(config, frame::failure(&body))),
            _ => Err(self.confused(LOGIN, "an answer that is no step of SCRAM")),
        }
    }

    /// Sends a command and takes its answer whole, so that the connection is ready for the next one whatever came.
    pub(super) async fn command(&mut self, operation: &str, statement: &str) -> Result<Answer, Error> {
        frontend::query(statement, &mut self.write).map_err(|cause| self.lost(operation, cause))?;
        self.flush(operation).await?;
        let mut rows = Rows::default();
        let mut failure: Option<ServerError> = None;
        loop {
            let message = match self.message(operation).await {
                Ok(message) => message,
                // After a fatal error there is no more to come.
                Err(lost) => return Err(failure.map_or(lost, |cause| server(operation, cause))),
            };
            match message {
                Message::RowDescription(body) => {
                    let names = body.fields().map(|field| Ok(field.name().to_owned())).collect();
                    rows = Rows { columns: names.map_err(|cause| self.confused(operation, cause))?, rows: Vec::new() };
                }
                Message::DataRow(body) => rows.rows.push(self.row(operation, &body)?),
                Message::ErrorResponse(body) => failure = Some(frame::failure(&body)),
                // What CopyBothResponse was made to look like.
                Message::CopyOutResponse(_) => return Ok(Answer::Streaming),
                Message::ReadyForQuery(_) => {
                    return failure.map_or(Ok(Answer::Rows(rows)), |cause| Err(server(operation, cause)));
                }
                Message::CommandComplete(_)
                | Message::EmptyQueryResponse
                | Message::NoticeResponse(_)
                | Message::ParameterStatus(_) => {}
                _ => return Err(self.confused(operation, "an answer that is none to a command")),
            }
        }
    }

    fn row(&self, operation: &str, body: &DataRowBody) -> Result<Vec<Option<String>>, Error> {
        // A timeline's history is sent as it stands in its file, in whatever encoding its author had.
        let text = |range: Option<std::ops::Range<usize>>| {
            Ok(range.map(|range| String::from_utf8_lossy(&body.buffer()[range]).into_owned()))
        };
        body.ranges().map(text).collect().map_err(|cause| self.confused(operation, cause))
    }

    async fn message(&mut self, operation: &str) -> Result<Message, Error> {
        loop {
            // The library knows every answer but CopyBothResponse, whose body is that of CopyOutResponse.
            if let Some(tag) = self.read.first_mut()
                && *tag == b'W'
            {
                *tag = postgres_protocol::message::backend::COPY_OUT_RESPONSE_TAG;
            }
            if let Some((&[_, a, b, c, d], _)) = self.read.split_first_chunk::<5>()
                && u32::from_be_bytes([a, b, c, d]) > ANSWER_BYTES_MAX
            {
                return Err(self.confused(operation, "an answer beyond all measure: is it a PostgreSQL server?"));
            }
            match Message::parse(&mut self.read) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => self.fill().await.map_err(|cause| self.lost(operation, cause))?,
                Err(cause) => return Err(self.confused(operation, cause)),
            }
        }
    }

    /// Reads once. Safe to cancel.
    pub(super) async fn fill(&mut self) -> io::Result<()> {
        if self.read.is_empty() && self.read.capacity() > KEEP_BYTES {
            self.read = BytesMut::new();
        }
        if self.read.capacity() - self.read.len() < READ_BYTES / 4 {
            self.read.reserve(READ_BYTES);
        }
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it")),
            _ => Ok(()),
        }
    }

    /// Queues bytes for the next [`Session::flush`].
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.write.put_slice(bytes);
    }

    /// Writes what is queued. Cancelled, the next one continues.
    pub(super) async fn flush(&mut self, operation: &str) -> Result<(), Error> {
        let written = async {
            while !self.write.is_empty() {
                if self.stream.write_buf(&mut self.write).await? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
            self.stream.flush().await
        };
        written.await.map_err(|cause| self.lost(operation, cause))
    }

    /// Queues the word that ends the connection.
    pub(super) fn say_goodbye(&mut self) {
        frontend::terminate(&mut self.write);
    }

    pub(super) fn lost(&self, operation: &str, cause: io::Error) -> Error {
        Error::Lost { operation: format!("{operation} at {}", self.server), cause }
    }

    pub(super) fn confused(&self, operation: &str, what: impl ToString) -> Error {
        Error::Protocol { operation: format!("{operation} at {}", self.server), what: what.to_string() }
    }

    fn unproven(&self, cause: io::Error) -> Error {
        Error::Unproven { server: self.server.clone(), cause: Box::new(cause) }
    }

    fn method(&self, method: &'static str) -> Error {
        Error::Method { server: self.server.clone(), method }
    }
}

const LOGIN: &str = "log in";

/// A connection that was lost because TLS failed on it was not lost.
fn of_tls(config: &Config, error: Error) -> Error {
    match error {
        Error::Lost { operation, cause } => {
            tls::untrusted(config, cause).unwrap_or_else(|cause| Error::Lost { operation, cause })
        }
        other => other,
    }
}

fn server(operation: &str, cause: ServerError) -> Error {
    Error::Server { operation: operation.to_owned(), cause }
}
