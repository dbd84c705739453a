//! Bytes to and from a server: TCP, and TLS on it as the server agrees to it. Knows one message of the protocol, the
//! request for TLS, and one bound, the time that connecting may take.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::tls::{ChannelBinding, TlsStream as Binds};
use tokio_rustls::client::TlsStream;

use crate::config::{Config, SslMode};
use crate::error::Error;
use crate::tls;

/// A peer that vanished without a word is noticed after about a minute, also where nobody writes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// What we have sent and nobody has acknowledged is given up after as long: keepalives are silent while it is on its way.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// The time that is left for connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<'c> {
    config: &'c Config,
    at: Instant,
}

impl<'c> Deadline<'c> {
    pub(crate) fn of(config: &'c Config) -> Deadline<'c> {
        Deadline { config, at: Instant::now() + config.connect_timeout }
    }

    fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// `step`, if it ends in time; else the server is silent during `what`.
    pub(crate) async fn bound<T>(
        &self,
        during: &'static str,
        remedy: &'static str,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout_at(self.at, step).await.unwrap_or_else(|_| {
            let (server, after) = (self.config.display(), self.config.connect_timeout);
            Err(Error::Silent { server, during: during.to_owned(), after, remedy })
        })
    }
}

/// A connection on which the protocol's startup may begin.
#[derive(Debug)]
pub(crate) struct Stream {
    inner: Inner,
    /// What SCRAM binds itself to.
    binding: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Inner {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects, and protects the connection as `config` asks.
    pub(crate) async fn open(config: &Config, deadline: Deadline<'_>) -> Result<Stream, Error> {
        let remedy = "check host and port of the url, and that no firewall drops the packets";
        let mut tcp = deadline.bound("connecting", remedy, dial(config, deadline)).await?;
        if config.tls.mode == SslMode::Disable {
            return Ok(Stream { inner: Inner::Plain(tcp), binding: None });
        }
        let remedy = "is it a PostgreSQL server? It takes connections but does not answer the request for TLS";
        deadline.bound("the request for TLS", remedy, request_tls(config, &mut tcp)).await?;
        let remedy = "is there a proxy between that does not pass TLS on?";
        let protected = deadline.bound("the TLS handshake", remedy, tls::handshake(config, tcp)).await?;
        Ok(Stream { inner: Inner::Tls(Box::new(protected.stream)), binding: protected.binding })
    }

    /// What SCRAM binds itself to, on a protected connection whose certificate allows it.
    pub(crate) fn binding(&self) -> Option<Vec<u8>> {
        self.binding.clone()
    }

    /// Whether it is protected.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.inner, Inner::Tls(_))
    }
}

async fn dial(config: &Config, deadline: Deadline<'_>) -> Result<TcpStream, Error> {
    let host = config.host();
    let unreachable = |cause| Error::Unreachable { server: config.display(), cause };
    let addresses = tokio::net::lookup_host((host.name.as_str(), host.port)).await.map_err(unreachable)?;
    let addresses: Vec<_> = addresses.collect();
    let mut refusal = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // One that swallows packets must leave the others their share of the time.
        let share = deadline.left() / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return tune(&tcp).map(|()| tcp).map_err(unreachable),
            Ok(Err(cause)) => refusal = cause,
            Err(_) => refusal = io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not answer")),
        }
    }
    Err(unreachable(refusal))
}

fn tune(tcp: &TcpStream) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(tcp);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    tcp.set_nodelay(true)
}

async fn request_tls(config: &Config, tcp: &mut TcpStream) -> Result<(), Error> {
    let operation = || "ask the server for TLS".to_owned();
    let lost = |cause| Error::Lost { operation: operation(), cause };
    let mut request = bytes::BytesMut::new();
    postgres_protocol::message::frontend::ssl_request(&mut request);
    tcp.write_all(&request).await.map_err(lost)?;
    match tcp.read_u8().await.map_err(lost)? {
        b'S' => Ok(()),
        b'N' => Err(Error::TlsRefused { server: config.display() }),
        other => {
            let what = format!("{} answered with byte {other:#04x}: is it a PostgreSQL server?", config.display());
            Err(Error::Protocol { operation: operation(), what })
        }
    }
}

impl Binds for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        self.binding().map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Inner::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Inner::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Inner::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Inner::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
