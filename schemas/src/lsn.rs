//! A place in PostgreSQL's write-ahead log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte address in the WAL. Printed and parsed as PostgreSQL does, `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// No place at all: what PostgreSQL calls an invalid LSN.
    pub const ZERO: Lsn = Lsn(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// The text was not of the form `X/X` in hexadecimal.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no LSN: expected two hexadecimal numbers as in 16/B374D848")]
pub struct ParseError(String);

impl FromStr for Lsn {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parse = |digits| u32::from_str_radix(digits, 16).ok().map(u64::from);
        text.split_once('/')
            .and_then(|(high, low)| Some(Lsn(parse(high)? << 32 | parse(low)?)))
            .ok_or_else(|| ParseError(text.to_owned()))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lsn_reads_as_postgres_writes_it() {
        assert_eq!("16/B374D848".parse::<Lsn>().expect("a valid LSN"), Lsn(0x16_B374_D848));
        assert_eq!(Lsn(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(Lsn(0x1_0000_0001).to_string(), "1/1");
        for bad in ["", "16", "16/", "/1", "x/1", "1/100000000", "1/2/3"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad:?} was accepted");
        }
    }
}
