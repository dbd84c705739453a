//! Fuzz target: see `foreign::event`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::foreign::event(bytes));
