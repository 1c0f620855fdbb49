//! `admittance_fuzz::connection`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::connection::target(bytes));
