//! The tests of the engine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(all(feature = "tokio", feature = "tracing"))]
mod admission;
#[cfg(feature = "tokio")]
mod admission_faults;
#[cfg(all(feature = "tower", feature = "tokio"))]
mod admission_layer;
#[cfg(feature = "tokio")]
mod alone;
mod bounded;
#[cfg(feature = "tokio")]
mod budget;
#[cfg(feature = "tokio")]
mod budget_fail;
mod clock;
#[cfg(feature = "tokio")]
mod escrow;
#[cfg(feature = "tokio")]
mod fleet_gate;
mod fused;
mod gate;
#[cfg(feature = "tower")]
mod gate_layer;
mod gate_leaks;
mod growth;
#[cfg(feature = "tokio")]
mod guarded;
#[cfg(feature = "tower")]
mod http;
mod load;
#[cfg(feature = "tower")]
mod load_layer;
#[cfg(feature = "tokio")]
mod load_runtime;
#[cfg(feature = "tokio")]
mod parts;
mod race;
mod reloaded;
mod several;
mod several_room;
#[cfg(feature = "tokio")]
mod shaper;
mod sketch;
#[cfg(feature = "tokio")]
mod two_tier;
#[cfg(feature = "tokio")]
mod two_tier_race;

use admittance_testdata::{samples, timeline};
