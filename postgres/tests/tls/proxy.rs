//! A machine in the middle: it has a trusted certificate of its own, and speaks with the server in our place.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::authority::Pair;

/// How it speaks with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Without TLS, as a pooler beside the server does.
    Plain,
    /// With TLS, and every word is passed on.
    Tls,
    /// The same, but for the offer to bind: that is taken out.
    TlsWithoutOffer,
}

/// The request for TLS, and the answer that agrees to it.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
const AGREED: u8 = b'S';
const PLUS: &[u8] = b"SCRAM-SHA-256-PLUS\0";

/// Starts one in front of the server at `port`, and returns its own port. It ends with the test's runtime.
pub async fn start(way: Way, port: u16, own: &Pair, authority: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (acceptor, connector) = (acceptor(own), connector(authority));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, connector) = (acceptor.clone(), connector.clone());
            // What fails here the client sees as a lost connection.
            tokio::spawn(async move {
                let _ = serve(way, client, port, acceptor, connector).await;
            });
        }
    });
    address.port()
}

fn acceptor(own: &Pair) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the default versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    TlsAcceptor::from(Arc::new(config.expect("the key belongs to the certificate")))
}

fn connector(authority: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn serve(
    way: Way,
    mut client: TcpStream,
    port: u16,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
) -> std::io::Result<()> {
    let mut request = [0; 8];
    client.read_exact(&mut request).await?;
    assert_eq!(request, REQUEST, "the client asks for TLS first");
    client.write_u8(AGREED).await?;
    let client = acceptor.accept(client).await?;
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    if way == Way::Plain {
        return pass(client, server, false).await;
    }
    server.write_all(&REQUEST).await?;
    assert_eq!(server.read_u8().await?, AGREED, "the server takes TLS");
    let name = ServerName::try_from("localhost").expect("a name");
    pass(client, connector.connect(name, server).await?, way == Way::TlsWithoutOffer).await
}

async fn pass<C, S>(mut client: C, mut server: S, without_offer: bool) -> std::io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    if without_offer {
        let length = client.read_u32().await?;
        let mut startup = vec![0; length as usize - 4];
        client.read_exact(&mut startup).await?;
        server.write_u32(length).await?;
        server.write_all(&startup).await?;
        let (tag, length) = (server.read_u8().await?, server.read_u32().await?);
        let mut offer = vec![0; length as usize - 4];
        server.read_exact(&mut offer).await?;
        let at = offer.windows(PLUS.len()).position(|window| window == PLUS).expect("the server offers to bind");
        offer.drain(at..at + PLUS.len());
        client.write_u8(tag).await?;
        client.write_u32(offer.len() as u32 + 4).await?;
        client.write_all(&offer).await?;
        client.flush().await?;
    }
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
