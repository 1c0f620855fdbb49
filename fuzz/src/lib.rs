//! Every reader of the project, fed with bytes that nobody meant.
//!
//! A [`Target`] is a function of bytes that panics when a property does not hold. Two drivers feed
//! the same targets: libFuzzer, by hand and for as long as one likes (`fuzz/README.md`), and
//! `tests/smoke.rs`, a few seconds of seeded mutations of `fuzz/corpus` in every `./test`.
//!
//! # Guarantee
//! Each module says what holds for any bytes.
//!
//! # Proven by
//! `tests/smoke.rs` runs the targets, `tests/it/mutants.rs` runs them over implementations that are
//! nearly right, each of which must be noticed.
//!
//! # Example
//! ```
//! for target in admittance_fuzz::TARGETS.iter().filter(|target| target.name == "config") {
//!     (target.run)(b"limiters: { api: { strategy: gcra, limit: 5, period: 1h } }");
//!     (target.run)(b"limiters: [");
//! }
//! ```
#![forbid(unsafe_code)]

pub mod accounts;
pub mod admitter;
pub mod config;
pub mod connection;
pub mod gate;
pub mod grpc;
pub mod http;
mod input;
pub mod limiter;
pub mod live;
pub mod machines;
mod mutate;

use fastrand::Rng;

pub use input::Input;
pub use mutate::{LENGTH_MAX, Source};

/// Something that takes bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What its corpus is called.
    pub name: &'static str,
    /// Feeds it; panics if a property does not hold.
    pub run: fn(&[u8]),
    /// What stands in inputs that mean something.
    pub words: &'static [&'static str],
    /// Makes an input up.
    pub make: Option<fn(&mut Rng) -> Vec<u8>>,
    /// How many inputs a smoke run feeds it: about a second's worth.
    pub cases: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { words: config::WORDS, make: None, ..of("config", config::target, 2_000) },
    Target { make: Some(grpc::make), ..of("grpc", grpc::target, 3_000) },
    Target { words: connection::WORDS, make: None, ..of("connection", connection::target, 2_000) },
    Target { words: http::WORDS, make: Some(http::make), ..of("http", http::target, 3_000) },
    of("limiter", limiter::target, 20_000),
    of("gate", gate::target, 20_000),
    of("accounts", accounts::target, 20_000),
    of("admitter", admitter::target, 10_000),
    of("machines", machines::target, 10_000),
];

const fn of(name: &'static str, run: fn(&[u8]), cases: usize) -> Target {
    Target { name, run, words: &[], make: Some(mutate::sequence), cases }
}
