//! Fuzz target: see `foreign::visibility`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::foreign::visibility(bytes));
