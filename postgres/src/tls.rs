//! What proves a server to us, and us to a server.
//!
//!     require       encrypted, whoever is there; with root certificates as verify-ca
//!     verify-ca     a chain from the server's certificate to a trusted one
//!     verify-full   and the certificate is made out to the host of the url
//!
//! Knows nothing of PostgreSQL's protocol.

mod binding;
mod verifier;

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{Config, SslMode, Tls};
use crate::error::Error;
use verifier::{Proof, Verifier};

/// A protected stream and what SCRAM binds itself to, if the certificate allows it.
pub(crate) struct Protected {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) binding: Option<Vec<u8>>,
}

/// Shakes hands over `tcp`, on which the server has agreed to TLS.
pub(crate) async fn handshake(config: &Config, tcp: TcpStream) -> Result<Protected, Error> {
    let connector = TlsConnector::from(Arc::new(client(&config.tls)?));
    let name = ServerName::try_from(config.host.clone()).map_err(|error| {
        let cause = io::Error::new(io::ErrorKind::InvalidInput, error);
        Error::Untrusted { server: config.display(), remedy: "its name can stand in no certificate", cause }
    })?;
    let stream = connector.connect(name, tcp).await.map_err(|cause| failed(config, cause))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let binding = certificate.and_then(|certificate| binding::end_point(certificate));
    Ok(Protected { stream, binding })
}

/// TLS itself ended the handshake and will again, or the connection broke under it.
fn failed(config: &Config, cause: io::Error) -> Error {
    match cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => Error::Untrusted { server: config.display(), remedy: verifier::remedy(tls), cause },
        None => Error::Lost { operation: format!("shake hands with {config}"), cause },
    }
}

fn client(tls: &Tls) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(proof(tls, &provider)?, &provider);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has suites for the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate, "sslcert")?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|cause| unusable(key, "sslkey", cause))?;
    builder.with_client_auth_cert(chain, secret).map_err(|cause| unusable(key, "sslkey", cause))
}

fn proof(tls: &Tls, provider: &Arc<CryptoProvider>) -> Result<Proof, Error> {
    let (roots, given) = match (&tls.root_certificate, tls.mode) {
        (None, SslMode::Disable | SslMode::Require) => return Ok(Proof::None),
        (Some(file), _) => {
            let given = certificates(file, "sslrootcert")?;
            let mut roots = RootCertStore::empty();
            for certificate in &given {
                roots.add(certificate.clone()).map_err(|cause| unusable(file, "sslrootcert", cause))?;
            }
            (roots, given)
        }
        (None, SslMode::VerifyCa | SslMode::VerifyFull) => {
            let mut roots = RootCertStore::empty();
            // A system's store may hold a few that nobody can read; the others count.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            (roots, Vec::new())
        }
    };
    if roots.is_empty() {
        return Err(Error::NoRoots);
    }
    let name = tls.mode == SslMode::VerifyFull;
    Ok(Proof::chain(roots, given, name, provider))
}

fn certificates(file: &Path, purpose: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|cause| unusable(file, purpose, cause))?;
    if found.is_empty() {
        return Err(unusable(file, purpose, rustls_pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn unusable(file: &Path, purpose: &'static str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Certificates { file: file.to_owned(), purpose, cause: Box::new(cause) }
}
