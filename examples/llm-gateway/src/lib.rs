//! An OpenAI-compatible streaming proxy that holds token budgets to the token.
//!
//! The price of a completion is known when its last token is. Here each request takes a permit and
//! reserves what it will probably need, debits every token just before it is passed on, is ended at
//! the boundary, and settles once with what the upstream says it cost.
//!
//! ```text
//!   key → tenant        401 if nobody has it
//!   gate.acquire()      503 if too much runs at once
//!   meter.reserve(…)    429 if it fits not all of the accounts: tenant and team, minute and day
//!   each chunk: debit, then pass on; soft stop: note it, or end at the end of the sentence
//!   stop                finish_reason "length", [DONE]; the upstream is cancelled
//!   end                 settle with the upstream's usage; the permit is given back
//! ```
//!
//! # Guarantee
//! - What callers get of a window is at most its budget, for any number of streams at once, as long
//!   as a chunk is one token; at most g − 1 tokens more if the [`Counter`] finds up to g in one.
//!   What an upstream counts and does not stream becomes debt, which later requests wait for.
//! - A stream that ends gives back its permit and the unused part of its reservation, however it
//!   ends: both live in the response's body, or in the handler until there is one.
//!
//! # Proven by
//! `tests/it/budget.rs`: fifty streams at once over real HTTP against one budget, with proxies that
//! debit late or not at all, which the same check must catch. `tests/it/endings.rs`: hang-ups,
//! failing and stalling upstreams, missing usage, refusals.

mod chat;
mod config;
mod failure;
pub mod fake;
mod gateway;
mod metering;
mod sizes;
mod sse;
mod stream;
mod tenants;
mod upstream;

pub use chat::{Counter, OnePerChunk, Usage};
pub use config::{Config, ConfigError, OnSoftStop, Options, RawConfig, StoreUrl};
pub use gateway::{Gateway, Notes, router};
pub use metering::{Began, Metering, Work};
pub use sizes::{FixedSize, LearnedSizes, Sizes};
pub use tenants::Tenants;
