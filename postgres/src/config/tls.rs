//! How a connection is protected, and by what. Reads no file: that is left to whoever connects.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use service::config::{Reader, Secret};

/// How a connection is protected.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// What is asked of the server.
    pub mode: SslMode,
    /// The authorities to trust, instead of the system's.
    pub root_certificate: Option<Pem>,
    /// The certificate that proves us.
    pub certificate: Option<Pem>,
    /// Its key.
    pub key: Option<Pem>,
}

/// Where certificates or a key stand.
#[derive(Clone, Debug)]
pub enum Pem {
    /// In a file.
    File(PathBuf),
    /// In the configuration itself. `key` is the key that holds them.
    Text {
        /// The configuration's key.
        key: &'static str,
        /// What stands there.
        text: Secret,
    },
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => path.display().fmt(f),
            Pem::Text { key, .. } => write!(f, "the text of {key}"),
        }
    }
}

impl Tls {
    /// Reads what stands in a section over what its url says.
    pub(super) fn read(&mut self, section: &mut Reader<'_>) {
        if let Some(mode) = section.parsed("sslmode") {
            self.mode = mode;
        }
        for (file, text, pem) in [
            ("sslrootcert", "sslrootcert_pem", &mut self.root_certificate),
            ("sslcert", "sslcert_pem", &mut self.certificate),
            ("sslkey", "sslkey_pem", &mut self.key),
        ] {
            let (path, held) = (section.optional::<String>(file), section.optional::<Secret>(text));
            match (path, held) {
                (Some(_), Some(_)) => section.fault(text, format!("{file} names a file already: give one of both")),
                (Some(path), None) => *pem = file_or_system(file, path),
                (None, Some(held)) => *pem = Some(Pem::Text { key: text, text: held }),
                (None, None) => {}
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            section.fault("url", "sslcert and sslkey belong together: give both or none");
        }
    }

    /// Takes a parameter of a url; `false` if it is none of TLS.
    pub(super) fn parameter(&mut self, name: &str, value: &str) -> Result<bool, UnknownSslMode> {
        match name {
            "sslmode" => self.mode = value.parse()?,
            "sslrootcert" => self.root_certificate = file_or_system(name, value.to_owned()),
            "sslcert" => self.certificate = Some(Pem::File(value.into())),
            "sslkey" => self.key = Some(Pem::File(value.into())),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// libpq's word for the system's own authorities is no file.
fn file_or_system(name: &str, value: String) -> Option<Pem> {
    (name != "sslrootcert" || value != "system").then(|| Pem::File(value.into()))
}

/// What is asked of the server's TLS. Named as libpq names it; its modes that fall back in silence are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// Encrypted. The certificate is not looked at, unless root certificates are given: then as `verify-ca`.
    Require,
    /// The certificate comes from an authority that we trust.
    VerifyCa,
    /// And it is made out to the host that we meant.
    #[default]
    VerifyFull,
}

impl SslMode {
    /// As it is written in a url.
    pub fn as_str(self) -> &'static str {
        match self {
            SslMode::Disable => "disable",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        }
    }
}

/// The text names no mode that we support.
#[derive(Debug, thiserror::Error)]
pub enum UnknownSslMode {
    /// One of libpq's modes that fall back in silence.
    #[error(
        "sslmode {0} may end in an unprotected connection without saying so: write verify-full, verify-ca, require or disable"
    )]
    Weak(String),
    /// None at all.
    #[error("sslmode is disable, require, verify-ca or verify-full (the default)")]
    Unknown,
}

impl FromStr for SslMode {
    type Err = UnknownSslMode;

    fn from_str(text: &str) -> Result<SslMode, UnknownSslMode> {
        let modes = [SslMode::Disable, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull];
        match modes.into_iter().find(|mode| mode.as_str() == text) {
            Some(mode) => Ok(mode),
            None if matches!(text, "allow" | "prefer") => Err(UnknownSslMode::Weak(text.to_owned())),
            None => Err(UnknownSslMode::Unknown),
        }
    }
}

/// Whether the proof of the password is worth something on this one TLS connection alone (SCRAM-SHA-256-PLUS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server can.
    #[default]
    Prefer,
    /// Always: a server that cannot is refused.
    Require,
}

impl ChannelBinding {
    /// As it is written in a url.
    pub fn as_str(self) -> &'static str {
        match self {
            ChannelBinding::Disable => "disable",
            ChannelBinding::Prefer => "prefer",
            ChannelBinding::Require => "require",
        }
    }
}

/// The text names nothing that we know.
#[derive(Debug, thiserror::Error)]
#[error("channel_binding is disable, prefer (the default) or require")]
pub struct UnknownChannelBinding;

impl FromStr for ChannelBinding {
    type Err = UnknownChannelBinding;

    fn from_str(text: &str) -> Result<ChannelBinding, UnknownChannelBinding> {
        let all = [ChannelBinding::Disable, ChannelBinding::Prefer, ChannelBinding::Require];
        all.into_iter().find(|known| known.as_str() == text).ok_or(UnknownChannelBinding)
    }
}
