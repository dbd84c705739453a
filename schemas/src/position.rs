//! Where a change stands in the history of its database, and where a record stands in its partition.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Lsn;

/// Where a change stands: transactions by their commit, changes within by their own WAL address, and those that share one by a count.
///
/// `change` is the change's own WAL address, so it is the same whatever else is published. `n` counts from 1 the changes
/// at one address (COPY, key changes); 0 is the schema event in front of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Start of the transaction's commit record.
    pub commit: Lsn,
    /// Start of the change's record; of the record before the next one, for what a logical message causes.
    pub change: Lsn,
    /// The place among the records of one address.
    pub n: u32,
}

impl Position {
    /// The place in front of everything that the transaction committed at `commit` contains.
    pub fn before(commit: Lsn) -> Position {
        Position { commit, change: Lsn::ZERO, n: 0 }
    }
}

/// Fixed-width hexadecimal, so that positions sort as text: `0000000000000A10.00000000000009F8.00000001`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}.{:016X}.{:08X}", self.commit.0, self.change.0, self.n)
    }
}

/// The text was no position.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no position: expected three fixed-width hexadecimal numbers parted by dots")]
pub struct ParseError(String);

impl FromStr for Position {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parse = || {
            let (commit, change, n) = (text.get(..16)?, text.get(17..33)?, text.get(34..)?);
            let dots = text.as_bytes()[16] == b'.' && text.as_bytes()[33] == b'.';
            (dots && n.len() == 8).then_some(())?;
            Some(Position {
                commit: Lsn(u64::from_str_radix(commit, 16).ok()?),
                change: Lsn(u64::from_str_radix(change, 16).ok()?),
                n: u32::from_str_radix(n, 16).ok()?,
            })
        };
        parse().ok_or_else(|| ParseError(text.to_owned()))
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The dense number of a record in its partition: the first is 1, and a step of more than one means that Kafka lost records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The only number that may follow this one.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_sort_as_text_and_read_back(a: (u64, u64, u32), b: (u64, u64, u32)) {
            let position = |(commit, change, n)| Position { commit: Lsn(commit), change: Lsn(change), n };
            let (a, b) = (position(a), position(b));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
            prop_assert_eq!(a.to_string().parse::<Position>().expect("printed by us"), a);
        }
    }

    #[test]
    fn what_is_no_position_is_refused() {
        let good = Position { commit: Lsn(0xA10), change: Lsn(0x9F8), n: 1 }.to_string();
        assert_eq!(good, "0000000000000A10.00000000000009F8.00000001");
        for bad in ["", "1.2.3", &good[1..], &good.replace('.', "-"), &format!("{good}0"), "é".repeat(21).as_str()] {
            assert!(bad.parse::<Position>().is_err(), "{bad:?} was accepted");
        }
    }
}
