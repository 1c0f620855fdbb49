//! `admittance_fuzz::gate`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::gate::target(bytes));
