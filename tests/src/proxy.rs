//! A way to a server that can be cut, stalled and throttled, or cut at the worst instant: behind a request, before its answer.
//!
//!     client ──▶ proxy on a port of its own ──▶ server
//!                  ▲ Way: open, cut, stalled, throttled
//!
//! Bytes pass as they are. Of Kafka's protocol it knows where a request ends and which one it is, no more; of PostgreSQL's
//! nothing.

mod requests;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Error, port};

use requests::Requests;

/// Kafka's EndTxn: the request by which a transaction is committed.
pub const END_TXN: i16 = 26;

/// What becomes of connections, those that stand and those to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// Bytes pass.
    #[default]
    Open,
    /// Every connection is reset, and each new one too.
    Cut,
    /// Connections stand, and nothing passes.
    Stalled,
    /// So many bytes a second pass each way of each connection.
    Throttled(u32),
    /// Bytes pass, until a Kafka request of this kind has passed: then every connection is reset, once.
    CutBehind(i16),
}

/// A running proxy. Ends when it is dropped, and its connections with it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    server: Arc<AtomicU16>,
    way: watch::Sender<Way>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1, on the way to `server` there, which need not run yet.
    pub async fn start(server: u16) -> Result<Proxy, Error> {
        let port = port::free();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.map_err(Error::during(format!("listen on port {port}")))?;
        let way = watch::Sender::new(Way::Open);
        let server = Arc::new(AtomicU16::new(server));
        let accepting = tokio::spawn(accept(listener, server.clone(), way.clone()));
        Ok(Proxy { port, server, way, accepting })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on connections lead to another server, as an address does that moves along with the primary.
    pub fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::Relaxed);
    }

    /// From now on connections fare like this.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// How connections fare now: [`Way::CutBehind`] is [`Way::Open`] again once it has happened.
    pub fn way(&self) -> Way {
        *self.way.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Way::Cut);
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: Arc<AtomicU16>, way: watch::Sender<Way>) {
    // A client that gave up before it was let in is none.
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(connection(client, server.clone(), way.clone()));
    }
}

async fn connection(client: TcpStream, server: Arc<AtomicU16>, way: watch::Sender<Way>) {
    // Dropped with bytes unread, or told so, a socket is reset rather than closed in good order.
    let reset = |stream: &TcpStream| drop(stream.set_zero_linger());
    reset(&client);
    let mut watched = way.subscribe();
    // A listener that is stalled takes connections in, and leaves them there.
    if watched.wait_for(|way| *way != Way::Stalled).await.is_err() || *watched.borrow() == Way::Cut {
        return;
    }
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server.load(Ordering::Relaxed))).await;
    let Ok(server) = server else { return };
    reset(&server);
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let up = pump(from_client, to_server, way.clone(), Some(Requests::default()));
    let down = pump(from_server, to_client, way.clone(), None);
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = watched.wait_for(|way| *way == Way::Cut) => {}
    }
}

/// Carries one direction until it ends.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: watch::Sender<Way>,
    mut requests: Option<Requests>,
) {
    let mut watched = way.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let limit = match *watched.borrow_and_update() {
            Way::Throttled(bytes_per_second) => (bytes_per_second as usize / 20).clamp(1, buffer.len()),
            _ => buffer.len(),
        };
        let Ok(count @ 1..) = from.read(&mut buffer[..limit]).await else { return };
        if watched.wait_for(|way| *way != Way::Stalled).await.is_err() {
            return;
        }
        let behind = match &mut requests {
            Some(requests) => requests.passed(&buffer[..count]),
            None => None,
        };
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        let way_now = *way.borrow();
        match way_now {
            // What a slow line does by itself.
            Way::Throttled(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Way::CutBehind(kind) if behind == Some(kind) => {
                way.send_replace(Way::Cut);
                way.send_replace(Way::Open);
                return;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers every byte with the same byte.
    async fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        port
    }

    async fn answers(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        stream.write_all(b"x").await.is_ok() && stream.read_exact(&mut byte).await.is_ok()
    }

    #[tokio::test]
    async fn a_cut_way_resets_and_a_stalled_one_holds_back() {
        let proxy = Proxy::start(echo().await).await.expect("a free port");
        let connect = async || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.expect("it listens");
        let mut first = connect().await;
        assert!(answers(&mut first).await);
        proxy.set(Way::Cut);
        assert!(!answers(&mut first).await, "it was reset");
        assert!(!answers(&mut connect().await).await, "and so is a new one");
        proxy.set(Way::Open);
        let mut second = connect().await;
        assert!(answers(&mut second).await);
        proxy.set(Way::Stalled);
        let held = tokio::time::timeout(Duration::from_millis(100), answers(&mut second)).await;
        assert!(held.is_err(), "nothing passes");
        proxy.set(Way::Open);
        let mut byte = [0];
        second.read_exact(&mut byte).await.expect("what was held back comes");
    }

    #[tokio::test]
    async fn the_way_is_cut_behind_a_request_and_open_again() {
        let proxy = Proxy::start(echo().await).await.expect("a free port");
        let connect = async || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.expect("it listens");
        let mut stream = connect().await;
        proxy.set(Way::CutBehind(END_TXN));
        stream.write_all(&[0, 0, 0, 2, 0, 3]).await.expect("it takes bytes");
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).await.expect("another request passes");
        stream.write_all(&[0, 0, 0, 2, 0, 26]).await.expect("it takes bytes");
        assert!(stream.read_exact(&mut answer).await.is_err(), "its answer does not come");
        assert_eq!(proxy.way(), Way::Open);
        assert!(answers(&mut connect().await).await);
    }
}
