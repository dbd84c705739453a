//! What must be true at the end of a test, found out without a line of the product's own code for reading.
//!
//!     tables        source and target, every column as text, ordered by key
//!     topic         an independent `read_committed` reader: order, density, no duplicate, and the fold by key
//!     cut           the tables as of one place in the WAL, by a slot's snapshot, against the topics up to there
//!     redis         the streams against the topics
//!     audit         PostgreSQL's own decoding of the same WAL against the topics
//!     journal       what the application committed, by its own log, against the topics
//!     dead_letters  nothing was set aside

pub mod audit;
pub mod cut;
pub mod dead_letters;
pub mod journal;
pub mod redis;
pub mod tables;
pub mod topic;
