//! Fuzz target: see `foreign::pgoutput`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::foreign::pgoutput(bytes));
