//! Certificates, made for one test.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
    SignatureAlgorithm, date_time_ymd,
};

/// An authority and its certificate.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub pem: String,
}

/// A certificate and its key, as PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// One that signs with ECDSA over SHA-256, as most do.
    pub fn new() -> Authority {
        Authority::signing_with(&PKCS_ECDSA_P256_SHA256)
    }

    /// One whose signatures define no hash that a password's proof could be bound to.
    pub fn ed25519() -> Authority {
        Authority::signing_with(&PKCS_ED25519)
    }

    fn signing_with(algorithm: &'static SignatureAlgorithm) -> Authority {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names, so none is wrong");
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A server's certificate, made out to this host.
    pub fn server(&self, host: &str) -> Pair {
        self.sign(CertificateParams::new([host.to_owned()]).expect("a name"))
    }

    /// The same, and long expired.
    pub fn expired(&self, host: &str) -> Pair {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    /// The certificate of a role.
    pub fn client(&self, role: &str) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).expect("no names, so none is wrong");
        params.distinguished_name.push(DnType::CommonName, role);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}
