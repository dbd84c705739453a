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
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{Config, Pem, SslMode, Tls};
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
    let name = ServerName::try_from(config.host().name.clone()).map_err(|error| {
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
    untrusted(config, cause)
        .unwrap_or_else(|cause| Error::Lost { operation: format!("shake hands with {config}"), cause })
}

/// What it means when TLS failed under whoever read or wrote. By TLS 1.3 a server says only after the handshake that it
/// does not take our certificate. Gives back what is no failure of TLS.
pub(crate) fn untrusted(config: &Config, cause: io::Error) -> Result<Error, io::Error> {
    match cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => {
            let remedy = verifier::remedy(tls, config.tls.certificate.is_some());
            Ok(Error::Untrusted { server: config.display(), remedy, cause })
        }
        None => Err(cause),
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
    let secret = private_key(key)?;
    builder.with_client_auth_cert(chain, secret).map_err(|cause| unusable(key, "sslkey", cause))
}

fn proof(tls: &Tls, provider: &Arc<CryptoProvider>) -> Result<Proof, Error> {
    let (roots, given) = match (&tls.root_certificate, tls.mode) {
        (None, SslMode::Disable | SslMode::Require) => return Ok(Proof::None),
        (Some(pem), _) => {
            let given = certificates(pem, "sslrootcert")?;
            let mut roots = RootCertStore::empty();
            for certificate in &given {
                roots.add(certificate.clone()).map_err(|cause| unusable(pem, "sslrootcert", cause))?;
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

fn certificates(pem: &Pem, purpose: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = match pem {
        Pem::File(file) => CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>),
        Pem::Text { text, .. } => CertificateDer::pem_slice_iter(text.expose().as_bytes()).collect(),
    };
    let found = read.map_err(|cause| unusable(pem, purpose, cause))?;
    if found.is_empty() {
        return Err(unusable(pem, purpose, rustls_pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn private_key(pem: &Pem) -> Result<PrivateKeyDer<'static>, Error> {
    let read = match pem {
        Pem::File(file) => {
            keep_secret(file)?;
            PrivateKeyDer::from_pem_file(file)
        }
        Pem::Text { text, .. } => PrivateKeyDer::from_pem_slice(text.expose().as_bytes()),
    };
    read.map_err(|cause| unusable(pem, "sslkey", cause))
}

/// As strict as libpq: nobody else may read a key, but for the group of one that belongs to root.
fn keep_secret(file: &Path) -> Result<(), Error> {
    // A file that is not there is told by whoever reads it.
    let Ok(metadata) = file.metadata() else { return Ok(()) };
    let mode = metadata.mode() & 0o7777;
    let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if mode & others == 0 { Ok(()) } else { Err(Error::KeyPermissions { file: file.to_owned(), mode }) }
}

fn unusable(pem: &Pem, purpose: &'static str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Certificates { place: pem.to_string(), purpose, cause: Box::new(cause) }
}
