//! What SCRAM binds itself to: RFC 5929's `tls-server-end-point`, a hash of the server's certificate.
//!
//! Pure. With it a password's proof is worth nothing to a machine in the middle, even one with a trusted certificate.

use sha2::{Digest, Sha256, Sha384, Sha512};

/// The hash of `certificate` by the algorithm of its own signature; none where RFC 5929 defines none.
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    match signature_algorithm(certificate)? {
        Hash::Sha256 => Some(Sha256::digest(certificate).to_vec()),
        Hash::Sha384 => Some(Sha384::digest(certificate).to_vec()),
        Hash::Sha512 => Some(Sha512::digest(certificate).to_vec()),
    }
}

enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// Object identifiers of signatures, as DER writes them, and the hash of each. MD5 and SHA-1 count as SHA-256 there.
const SIGNATURES: &[(&[u8], Hash)] = &[
    // RSA PKCS #1: 1.2.840.113549.1.1.{4,5,11,12,13}
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], Hash::Sha256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], Hash::Sha256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], Hash::Sha256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], Hash::Sha384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], Hash::Sha512),
    // ECDSA: 1.2.840.10045.4.1 and 1.2.840.10045.4.3.{2,3,4}
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], Hash::Sha256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], Hash::Sha256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], Hash::Sha384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04], Hash::Sha512),
];

fn signature_algorithm(certificate: &[u8]) -> Option<&'static Hash> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 0x06;
    // Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { OBJECT IDENTIFIER, … }, … }
    let (body, _) = element(certificate, SEQUENCE)?;
    let (_, after) = element(body, SEQUENCE)?;
    let (algorithm, _) = element(after, SEQUENCE)?;
    let (identifier, _) = element(algorithm, OBJECT_IDENTIFIER)?;
    SIGNATURES.iter().find(|(known, _)| *known == identifier).map(|(_, hash)| hash)
}

/// The content of the DER element at the front of `bytes`, if it has this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, short], rest) = bytes.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let (length, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;

    /// A certificate as far as we look at it, with `filler` bytes to be signed.
    fn certificate(algorithm: &[u8], filler: usize) -> Vec<u8> {
        let wrap = |tag: u8, content: Vec<u8>| {
            let length = u16::try_from(content.len()).expect("small").to_be_bytes();
            [vec![tag, 0x82], length.to_vec(), content].concat()
        };
        let signed = wrap(0x30, vec![0; filler]);
        let algorithm = wrap(0x30, wrap(0x06, algorithm.to_vec()));
        wrap(0x30, [signed, algorithm, vec![0x03, 0x01, 0x00]].concat())
    }

    /// Made by OpenSSL: a P-256 key, signed by ecdsa-with-SHA256.
    const GENUINE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBfDCCASOgAwIBAgIUP44pM08BZ5Xvhupd/CFrui5FbyQwCgYIKoZIzj0EAwIw\n\
FDESMBAGA1UEAwwJbG9jYWxob3N0MB4XDTI2MTEyOTIxMjA1OVoXDTM2MTEyNjIx\n\
MjA1OVowFDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0D\n\
AQcDQgAEi+d7oRf/7g1nf+VUejTGJ2LpbrbkMejOVcEts26o2z0fGbQS0CdycMS4\n\
cpjdo/jV4kLUk2PA8rGM1+wEPZPK26NTMFEwHQYDVR0OBBYEFBz7t+zngn9TtrNR\n\
78Ox24XQ5H4tMB8GA1UdIwQYMBaAFBz7t+zngn9TtrNR78Ox24XQ5H4tMA8GA1Ud\n\
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgJXLOyS6DAR2ETbxwrcmwg2Qv\n\
C5SlrzGXGtSqg6JUh1YCIFQRbGjhzi4MQ1F3cC6kR9zWhArJziCHbDTAS934OhxS\n\
-----END CERTIFICATE-----";

    #[test]
    fn a_genuine_certificate_binds_to_its_fingerprint() {
        let certificate = CertificateDer::from_pem_slice(GENUINE.as_bytes()).expect("valid PEM");
        let hash = end_point(&certificate).expect("a known algorithm");
        let printed: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        // As `openssl x509 -outform DER | sha256sum` prints it.
        assert_eq!(printed, "7fab1b049947a17c639be0c8914a4ddeba86c6287148959c26d21a636ed1d764");
    }

    #[test]
    fn the_hash_follows_the_signature() {
        for (algorithm, length) in [(SIGNATURES[2].0, 32), (SIGNATURES[3].0, 48), (SIGNATURES[8].0, 64)] {
            let hash = end_point(&certificate(algorithm, 300)).expect("a known algorithm");
            assert_eq!(hash.len(), length);
        }
    }

    #[test]
    fn an_unknown_signature_binds_to_nothing() {
        let ed25519 = [0x2b, 0x65, 0x70];
        assert_eq!(end_point(&certificate(&ed25519, 10)), None);
    }

    #[test]
    fn a_certificate_cut_anywhere_is_none() {
        let whole = certificate(SIGNATURES[2].0, 20);
        for length in 0..whole.len() {
            assert_eq!(end_point(&whole[..length]), None);
        }
    }
}
