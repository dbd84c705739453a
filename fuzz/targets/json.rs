//! Fuzz target: see `foreign::json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::foreign::json(bytes));
