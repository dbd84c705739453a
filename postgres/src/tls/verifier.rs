//! Decides whether a certificate proves the server. Pure: what it needs was read before.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// How much of a proof is asked for.
#[derive(Debug)]
pub(super) enum Proof {
    /// None: encrypted is enough.
    None,
    /// A chain to a trusted certificate.
    Chain {
        chain: Arc<WebPkiServerVerifier>,
        /// Certificates that were named one by one: a server that shows one of these itself is proven.
        given: Vec<CertificateDer<'static>>,
        /// Whether it must be made out to the host.
        name: bool,
    },
}

impl Proof {
    pub(super) fn chain(
        roots: RootCertStore,
        given: Vec<CertificateDer<'static>>,
        name: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Proof {
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        Proof::Chain { chain: chain.expect("there are roots, and no revocation lists to be wrong"), given, name }
    }
}

/// [`Proof`] as rustls asks for it.
#[derive(Debug)]
pub(super) struct Verifier {
    proof: Proof,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(proof: Proof, provider: &CryptoProvider) -> Verifier {
        Verifier { proof, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext, Other, UnknownIssuer};
        let Proof::Chain { chain, given, name } = &self.proof else { return Ok(ServerCertVerified::assertion()) };
        let verdict = chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            // The chain is looked at before the name.
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) if !name => {
                Ok(ServerCertVerified::assertion())
            }
            // PostgreSQL's own recipe makes a self-signed certificate that is its own authority, which a chain must
            // not end in. Named by the user himself it is proof enough; its dates were looked at before.
            Err(rustls::Error::InvalidCertificate(Other(_) | UnknownIssuer)) if given.contains(end_entity) => {
                if *name {
                    let parsed = rustls::server::ParsedCertificate::try_from(end_entity)?;
                    rustls::client::verify_server_name(&parsed, server_name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What to change, by what was wrong. `shown`: we have a certificate of our own.
pub(super) fn remedy(cause: &rustls::Error, shown: bool) -> &'static str {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, UnknownIssuer,
    };
    match cause {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            // Another authority of the same name, too, as after it was made anew.
            UnknownIssuer | BadSignature => {
                "its certificate comes from an authority that is not trusted here: name the authority's PEM file \
                 with `sslrootcert` in the url"
            }
            NotValidForName | NotValidForNameContext { .. } => {
                "its certificate is made out to another host: connect by a name that stands in its subjectAltName, \
                 or say `sslmode=verify-ca` to check the authority alone"
            }
            Expired | ExpiredContext { .. } => "its certificate has expired: renew it at the server",
            NotValidYet | NotValidYetContext { .. } => {
                "its certificate is not valid yet: compare the clocks of both machines"
            }
            _ => {
                "its certificate cannot be accepted: if it is self-signed, name this very certificate with `sslrootcert` \
                 in the url, else issue it anew (X.509 version 3, with subjectAltName)"
            }
        },
        rustls::Error::AlertReceived(_) if shown => {
            "it does not take our certificate: `sslcert` must come from an authority in the server's ssl_ca_file, and not have expired"
        }
        rustls::Error::AlertReceived(_) => {
            "it refused our handshake: if it asks for a client certificate, give `sslcert` and `sslkey` in the url"
        }
        _ => "the TLS handshake failed: check that host and port are PostgreSQL's own",
    }
}
