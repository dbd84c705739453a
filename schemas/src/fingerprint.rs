//! One number for a relation as it is published, so that a chunk's shape and the stream's can be compared and an event names its own.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 64 bits over everything that decides how a relation's rows are read. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(Fingerprint).map_err(serde::de::Error::custom)
    }
}

/// FNV-1a. The hasher of the standard library may change between releases; this number stands in topics.
#[derive(Debug)]
pub struct Builder(u64);

impl Default for Builder {
    fn default() -> Self {
        Builder(0xcbf2_9ce4_8422_2325)
    }
}

impl Builder {
    /// Adds one field. Its length goes first, so that no two lists of fields look alike.
    pub fn field(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in (bytes.len() as u32).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        self
    }

    /// The number over all fields so far.
    pub fn finish(&self) -> Fingerprint {
        Fingerprint(self.0)
    }
}
