//! What can fail before anything can be told.

/// Nothing could be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A side is out of reach, or the connection to it was lost.
    #[error("cannot count the rows of the {side}")]
    Side {
        /// `source` or `target`.
        side: &'static str,
        /// What the connection says.
        #[source]
        cause: postgres::Error,
    },
}
