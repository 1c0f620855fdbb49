//! `admittance_fuzz::grpc`, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| admittance_fuzz::grpc::target(bytes));
