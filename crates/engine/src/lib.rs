//! Decides, for every request, whether the work may start: in this process, without blocking.
//!
//! # Example
//! ```
//! use admittance::{Gcra, Limiter, Span, Tat};
//!
//! let limit = Gcra { limit: 5, period: Span::from_secs(3600), burst: 5 };
//! let limiter = Limiter::new(Tat::gcra(limit)?);
//! for left in (0..5).rev() {
//!     assert_eq!(limiter.check("user-42").remaining, left);
//! }
//! assert!(!limiter.check("user-42").is_admit());
//! assert!(limiter.check("user-43").is_admit(), "each key has its own");
//! # Ok::<(), admittance::Invalid>(())
//! ```

pub mod admission;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
pub mod budget;
mod clock;
mod coordinator;
#[cfg(feature = "tower")]
mod due;
mod escrow;
mod footprint;
pub mod gate;
#[cfg(feature = "tower")]
pub mod http;
#[cfg(test)]
mod interleavings;
mod key;
mod limiter;
pub mod load;
mod locked;
pub mod relay;
mod several;
mod shaper;
mod sketch;
mod slots;
pub mod store;
mod stripes;
#[cfg(feature = "tokio")]
pub mod two_tier;

pub use admittance_core::{
    Atomicity, Axis, Builtin, BuiltinState, Cadence, Cost, CostAct, Decimal, DecimalError,
    Decision, EXACT_MAX, EscrowRules, EscrowStats, Forecast, Fused, Gcra, Invalid, LogState,
    Micros, Outcome, Parameter, Retry, Several, Shape, Shaped, Shaper, Share, SlidingLog,
    SlidingState, SlidingWindow, Span, SpentAt, Step, Strategy, Tat, TatState, TenantStats, Ticks,
    TokenBucket, Verdicts, Weekday, Window, WindowState,
};
pub use admittance_core::{concurrency, learn, lease};
pub use clock::{Clock, ManualClock, PreciseClock, SystemClock};
pub use coordinator::{Coordinator, CoordinatorError, MemoryCoordinator, REMEMBERED};
pub use escrow::FairEscrow;
#[cfg(feature = "tokio")]
pub use escrow::{Quantum, SharedEscrow};
pub use gate::{Gate, Permit};
pub use key::Key;
pub use limiter::{Batch, Limiter, LimiterBuilder, OnFull, Stats};
pub use relay::{MemoryRelay, Relay};
pub use several::{Ask, all, any};
pub use shaper::{Scheduled, ShapedLimiter};
pub use sketch::{InvalidSketch, SketchBuilder, SketchLimiter, SketchParameter, SketchSize};
pub use store::{
    Action, Answer, Applied, AppliedFused, AppliedMany, AppliedSeveral, Cell, Cells, Combine,
    Custom, Decided, FuseAsk, Fuses, Group, Limit, Loaded, Many, Memory, Merged, Op, Portable,
    Recovery, Source, Store, StoreError, Swap, Swapped,
};
#[cfg(feature = "tokio")]
pub use store::{
    Breaker, BreakerRules, BreakerState, FailMode, GuardCounters, GuardSettings, Guarded, Outage,
    Parts, Pass, SharedLimiter,
};

/// The README's example is compiled and run with the others.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
