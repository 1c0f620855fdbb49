//! Estimates: what is guessed from the past, kept apart from what is decided.
//!
//! A decision is exact; how large the next lease should be, how many a backend can take at once or
//! how much of a budget some work will need is not, and a wrong guess costs round trips, idle
//! credits or waiting, never a bound. Floating point is allowed here and nowhere else in this
//! crate, and what leaves for a decision is a whole number clamped to a stated range.
//!
//! # Guarantee
//! No input makes an estimate panic, become NaN or leave its range. No estimate can loosen a
//! limit: the store grants what is left of it, whatever size it is asked for.
//!
//! # Proven by
//! `tests/it/size.rs`, `tests/it/limit.rs`, `tests/it/reserve.rs` and `tests/it/price.rs`.
#![allow(clippy::float_arithmetic, reason = "estimates may round; decisions never see a float")]

mod limit;
pub mod price;
pub mod reserve;
mod size;
pub mod trace;

pub use limit::{
    Ending, Followed, Limit, LimitAlgorithm, LimitRules, LimitStats, Recalibrate, Sample,
    ThroughputGuard,
};
pub use size::{Learned, LeaseCost, Predictive, Sizer};
