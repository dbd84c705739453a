//! The seed of a run: printed, and taken back from `TRIBUTARY_SEED`.

use rand::Rng;

/// The seed by which everything random in a test is drawn.
///
/// # Panics
/// When `TRIBUTARY_SEED` holds no number.
pub fn draw() -> u64 {
    match std::env::var("TRIBUTARY_SEED") {
        Ok(text) => text.parse().expect("TRIBUTARY_SEED is a number below 2^64"),
        Err(_) => rand::rng().random(),
    }
}
