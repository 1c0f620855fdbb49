//! Limits shared through Postgres: one statement per decision, decision for decision the core's.
//!
//! The strategies' arithmetic runs inside the database, in functions that [`migrate`] installs, by
//! the server's clock. [`PostgresStore`] asks them over a few connections; asks that are made at
//! the same time travel together.
//!
//! # Guarantee
//! - What every [`Store`](admittance::Store) promises; one round trip per ask.
//! - The order of the instants on a key is the order of its decisions: the clock is read once the
//!   row is locked. No lost update, first touch included, under any default isolation.
//! - An admission is durable when it is answered, unless its policy is
//!   [`unlogged`](Builder::unlogged). A denial writes no new row version and does not wait for the
//!   disk.
//! - A lease is charged to the row that checks charge. One that was given back is noted for three
//!   minutes, in the transaction that restores it: the same lease restores nothing twice.
//! - No index covers a column that checks or beats change: updates are heap-only.
//! - What every [`Coordinator`](admittance::Coordinator) and every [`Relay`](admittance::Relay)
//!   promises, one round trip per call, in tables that are unlogged: a crash or a failover forgets
//!   a fleet as a whole, and its next epoch grants nothing before all earlier grants have ended.
//! - What all [`Accounts`](admittance::budget::Accounts) promise: an entry is one statement, atomic
//!   over all its accounts, which are locked in one order before the clock is read.
//!
//! # What a crash loses
//! A policy's state is in a logged table by default: a crash of the server loses nothing that was
//! answered (with the server's `fsync` and `synchronous_commit` on, as they are by default). An
//! unlogged policy's state is emptied by a crash, and is not on replicas: every key begins anew,
//! so at most one more burst, window or log passes per key and crash. After a failover to a replica
//! that was not synchronous, what it had not received is missing in logged tables too.
//!
//! # A role that owns nothing
//! Once the tables' owner has migrated, a service can run as a role that may create nothing. What
//! such a role needs, here for a role `service` and the default table name (the last line only
//! where `PUBLIC` may not execute functions):
//!
#![doc = concat!("```sql\n", include_str!("../grants.sql"), "```")]
//!
//! Before a binary with more steps is started, the owner runs `admittance migrate`.
//!
//! # Proven by
//! `tests/`, over a real server: the conformance suite, equality with core, edited functions that
//! must be noticed, races, migrations, outages, round trips counted on the wire; the same for
//! fleets, for notes between instances, for budgets, and for limits and budgets together.
#![forbid(unsafe_code)]

mod address;
mod budget;
mod carry;
mod failure;
mod fleet;
mod fuse;
mod key;
mod link;
mod migrate;
mod name;
mod reaper;
mod relay;
mod spec;
mod statements;
mod store;
mod tls;
mod warm;

pub use address::InvalidUrl;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use migrate::migrate_edited;
pub use migrate::{MigrateError, Report, migrate};
pub use name::{InvalidTableName, TableName};
pub use reaper::Reaped;
pub use store::{BuildError, Builder, PostgresStore};
