//! Fuzz target: see `foreign::state`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::foreign::state(bytes));
