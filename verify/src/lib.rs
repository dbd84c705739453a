//! Compares the two sides.
