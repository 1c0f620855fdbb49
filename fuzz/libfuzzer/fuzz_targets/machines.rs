//! `admittance_fuzz::machines`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::machines::target(bytes));
