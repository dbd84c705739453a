//! What can be wrong with a configuration.

use std::fmt;
use std::io;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read at all.
    #[error("cannot read {file}: name the configuration with --config FILE, or write one with `tributary init`")]
    Read {
        /// The file as it was named.
        file: String,
        /// What the operating system said.
        #[source]
        cause: io::Error,
    },
    /// The file is not TOML.
    #[error("{file} is not valid TOML:{}", Lines(.faults))]
    Syntax {
        /// The file as it was named.
        file: String,
        /// Each mistake with its line.
        faults: Vec<Fault>,
    },
    /// The file is TOML, but says what cannot be meant.
    #[error("{file} cannot be used:{}", Lines(.faults))]
    Faults {
        /// The file as it was named.
        file: String,
        /// All of them.
        faults: Vec<Fault>,
    },
}

impl Error {
    /// Every fault found; empty when the file could not be read at all.
    pub fn faults(&self) -> &[Fault] {
        match self {
            Error::Read { .. } => &[],
            Error::Syntax { faults, .. } | Error::Faults { faults, .. } => faults,
        }
    }
}

/// One thing to put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The full path of the key, as in `groups.rdb.tables`; empty when the fault is no single key's.
    pub key: String,
    /// Where the value stands.
    pub place: Place,
    /// What is wrong and what to write instead. Never holds the value of a secret.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Line(line) => write!(f, "line {line}: ")?,
            Place::Variable(name) => write!(f, "environment variable {name}: ")?,
            Place::Nowhere => {}
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Where a value comes from. Ordered as a reader of the file would meet it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line of the file, from 1.
    Line(usize),
    /// An environment variable.
    Variable(String),
    /// It was not given.
    Nowhere,
}

/// One fault a line.
struct Lines<'f>(&'f [Fault]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}
