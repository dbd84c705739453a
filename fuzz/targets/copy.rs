//! Fuzz target: see `foreign::copy`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::foreign::copy(bytes));
