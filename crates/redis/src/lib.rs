//! The store in Redis or Valkey: one server, the primary of a sentinel, or a cluster.
//!
//! The same store is a coordinator of fleets and a relay, and keeps accounts of budgets.
//!
//! Every ask is one script, run by the server in one step and by the server's own clock. Asks that
//! are made at the same time travel together; one alone waits for nobody.
//!
//! # Guarantee
//! - Decisions are those of `admittance-core`, in every field: the scripts compute with whole
//!   numbers below 2^53, where a server's doubles are exact.
//! - One round trip per ask, and one more after the server has forgotten the scripts.
//! - State goes by itself a second after it is idle, and never earlier, so that a server's clock
//!   which is set back by less than a second admits nothing twice.
//! - What may have been charged is never sent again: [`StoreError::Lost`](admittance::StoreError).
//! - A store whose servers are not there answers so, and serves when they are.
//!
//! What it does not promise: an acknowledged charge can be lost with the server that acknowledged
//! it, unless the policy waits for the replicas ([`PolicyOptions::wait_replicas`]), and comes back
//! as an admission.
//!
//! # What it costs
//! A fleet takes 56 bytes and its longest id per node. A report takes the server about 0.05 ms with
//! 10 nodes, 0.1 ms with 100 and 0.5 ms with 1,000, which is then half of what it can do if each
//! reports once a second.
//! An account of a budget takes about 260 bytes, and each lease that is open or remembered 280.
//! A gcra key takes about 150 bytes of the server, 180 where its arrival times have fractions: a
//! million keys fit in 180 MiB. A lease that was given back takes about 150 for three minutes. A
//! sliding log keeps an entry per admitted instant. Each lane has a
//! connection to every server, and one more where policies wait for replicas.
//!
//! # What the server must be
//! Redis 6.2 or later, or Valkey. It must not evict keys (`maxmemory-policy noeviction`, or no
//! `maxmemory`), or the store is told to bear it. The user needs `EVAL`, `EVALSHA`, `TIME`, `GET`,
//! `SET`, `DEL`, the list commands, `PEXPIREAT`, `INFO`, and `WAIT` where policies wait; `SETRANGE`
//! where fleets report, the commands of hashes and sorted sets where instances leave notes or there
//! are budgets.
//!
//! # Proven by
//! `tests/`: `conformance.rs` and `equality.rs` on real servers, `mutants.rs` with scripts that are
//! nearly right, `leases.rs`, `failures.rs` with servers that stop, restart, forget and
//! refuse, `races.rs` with many callers and failovers among them, `expiry.rs` and `memory.rs`;
//! `fleets.rs` and `relays.rs` for the coordinator and the relay, `budgets.rs` and
//! `kept_budgets.rs` for accounts, `fused.rs` for limits and budgets together, each with their
//! mutants.
//!
//! # Example
//! ```no_run
//! use admittance::{Action, Builtin, Cost, Gcra, Op, Span, Store, Tat};
//! use admittance_redis::RedisStore;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::builder("redis://127.0.0.1:6379").prefix("shop").build()?;
//! let gcra = Gcra { limit: 100, period: Span::from_secs(60), burst: 20 };
//! let strategy = Builtin::from(Tat::gcra(gcra)?);
//! let action = Action::Check(Cost::ONE);
//! let op = Op { policy: "login", strategy: &strategy, key: b"ann", action };
//! let applied = store.apply(op).await?;
//! assert!(applied.decision().is_some_and(|decision| decision.is_admit()));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod ask;
mod budget;
mod builder;
mod carry;
mod cluster;
mod fault;
mod fleet;
mod fuse;
mod keep;
mod names;
mod relay;
mod scripts;
mod server;
mod store;
mod url;
mod ways;

pub use builder::{BuildError, Builder, PolicyOptions};
pub use store::RedisStore;
pub use url::UrlError;

/// Every script's name, text and SHA-1, for the tests that pin and change them.
#[doc(hidden)]
#[must_use]
pub fn script_texts() -> Vec<(&'static str, String, String)> {
    let bodies = scripts::Scripts::edited(&[]);
    let of = |script: scripts::Script| {
        let body = bodies.body(script);
        (script.name(), body.text.clone(), body.hash.clone())
    };
    scripts::Script::every().into_iter().map(of).collect()
}
