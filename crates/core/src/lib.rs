//! Decides who may pass. Nothing here reads a clock, opens a socket or rolls a dice: time, cost
//! and prior state come in, the next state and a decision go out.
//!
//! # Guarantee
//! Every decision equals the one that rational arithmetic without any rounding gives. State and
//! decisions hold integers only; rounding happens where a number leaves: down for what remains,
//! up for what must be waited. A set of parameters that could break this is refused when built,
//! with the reason in [`Invalid`].
//!
//! # Proven by
//! `tests/it/oracle.rs` holds each strategy against unbounded rationals written straight from the
//! formulas, `tests/it/laws.rs` holds them against the laws in `docs/GUARANTEES.md`, and both have
//! mutants that must fail.
//!
//! # Example
//! ```
//! use admittance_core::{Cost, Gcra, Micros, Span, Strategy, Tat};
//!
//! // 7 per second in bursts of 7: one unit comes back every 1/7 s, which no decimal can write.
//! let limit = Tat::gcra(Gcra { limit: 7, period: Span::from_secs(1), burst: 7 })?;
//! let now = Micros::from_epoch_ms(1_700_000_000_000).expect("before the horizon");
//! let mut state = None;
//! for left in (0..7).rev() {
//!     let step = limit.step(state, now, Cost::ONE);
//!     assert!(step.decision.is_admit());
//!     assert_eq!(step.decision.remaining, left);
//!     state = step.state;
//! }
//! let refused = limit.step(state, now, Cost::ONE).decision;
//! assert_eq!(refused.retry_after(), Some(Span::from_us(142_858)), "1/7 s, rounded up");
//! # Ok::<(), admittance_core::Invalid>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod admission;
pub mod budget;
mod builtin;
mod civil;
pub mod concurrency;
mod cost;
mod decimal;
mod decision;
mod escrow;
mod invalid;
pub mod learn;
pub mod lease;
pub mod load;
mod log;
mod reciprocal;
mod several;
mod shape;
mod shaper;
mod sliding;
mod spent;
mod strategy;
mod tat;
mod tat_word;
mod time;
mod window;
mod window_word;

pub use admission::{Atomicity, Axis, CostAct, Fused, Verdicts, fused};
pub use builtin::{Builtin, BuiltinState};
pub use civil::{Cadence, Weekday};
pub use cost::Cost;
pub use decimal::{Decimal, DecimalError};
pub use decision::{Decision, Outcome, Retry};
pub use escrow::{
    Escrow, EscrowGrant, EscrowRules, EscrowStats, LeasedDecision, LeasedEscrow, Shortage,
    TenantStats,
};
pub use invalid::{Invalid, Parameter};
pub use log::{LogState, SlidingLog};
pub use several::{Ask, Several, all, any};
pub use shape::Shape;
pub use shaper::{Shaped, Shaper};
pub use sliding::{SlidingState, SlidingWindow};
pub use spent::SpentAt;
pub use strategy::{Forecast, Share, Step, Strategy};
pub use tat::{Gcra, Tat, TatState, Ticks, TokenBucket};
pub use tat_word::TatWord;
pub use time::{Micros, Span};
pub use window::{Window, WindowState};
pub use window_word::WindowWord;

/// The largest integer every executor keeps exact: Lua's numbers are doubles.
pub const EXACT_MAX: u64 = (1 << 53) - 1;
