//! `admittance_fuzz::accounts`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::accounts::target(bytes));
