//! `admittance_fuzz::admitter`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::admitter::target(bytes));
