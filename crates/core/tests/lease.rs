//! Leasing: single steps of the holder and the grantor, and long random runs of a whole fleet.
//!
//! The fleet is the one that `models/` explores exhaustively; here it is larger, its numbers are
//! random and its runs are long. A run is generic over a mistake: the mutants go through the same
//! lines.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, unreachable_pub, reason = "there it is a module of a library")]
#[path = "../../../models/src/lease/fleet.rs"]
mod fleet;
#[path = "lease/pair.rs"]
mod pair;
#[path = "lease/random.rs"]
mod random;
#[path = "lease/steps.rs"]
mod steps;
#[path = "../../testkit/src/timeline.rs"]
mod timeline;
