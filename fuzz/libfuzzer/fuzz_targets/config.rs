//! `admittance_fuzz::config`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::config::target(bytes));
