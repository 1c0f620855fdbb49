//! `admittance_fuzz::limiter`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::limiter::target(bytes));
