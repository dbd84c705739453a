//! A text that is never printed.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

use super::{FromValue, Value};

/// A password or a key. Debug prints `[secret]`, the memory is wiped when it is dropped.
#[derive(Clone, Default)]
pub struct Secret(SecretString);

impl Secret {
    /// The text itself, for the one place that must send it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether there is nothing to keep secret.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl FromValue for Secret {
    fn from_value(value: &Value) -> Result<Secret, String> {
        String::from_value(value).map(Secret::from)
    }
}
