//! Every reachable state of the models, and the mutants that they refute.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod budget;
mod carry_over;
mod handoff;
mod lease_carry_over;
mod lease_continuous;
mod lease_walks;
mod lease_windowed;
mod shares;
mod shares_walks;
mod support;
mod trade_off;
