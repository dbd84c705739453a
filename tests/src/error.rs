//! What can fail in the harness: told, with its cause, to whoever reads the test's output. Nobody decides by it.

use std::error::Error as StdError;
use std::fmt;

/// An operation that failed, and why.
pub struct Error {
    operation: String,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A failure that explains itself.
    pub fn new(operation: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: None }
    }

    /// For `map_err`: the operation in front of what went wrong.
    pub fn during<E>(operation: impl Into<String>) -> impl FnOnce(E) -> Error
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let operation = operation.into();
        move |cause| Error { operation, cause: Some(cause.into()) }
    }
}

/// The whole chain: `expect` prints this, and a cause cut off there would be lost.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        let mut next = self.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}
