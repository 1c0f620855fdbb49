//! Load: how much may start when the process is already behind.
//!
//! Rate and concurrency do not see a scheduler that drowns. A [`Regulator`] does: it is told how
//! long work waited before it began, and says which part of the work may start, a [`Level`]. Who
//! that is follows from a [`Cutoff`] over two things: the [`Class`] of the work, and the [`Place`]
//! of its key, a keyed hash that is drawn anew once in a rotation window.
//!
//! ```text
//!   delays of work and probes ──► Regulator ──► Level ──┐
//!   traffic by class and cohort ────────────────────────┴──► Cutoff ──► admits(class, place)
//!                         Seed + key ──► Hashed + Moment ──► Place ─────────────┘
//! ```
//!
//! Nothing here reads a clock, draws at random or starts a thread; the engine's `load` does. All of
//! it is integer arithmetic: a simulation replays anywhere.
//!
//! # Guarantee
//! - At a full level everybody is admitted, at none nobody; the admitted are nested as the level
//!   moves; classes are shed in order.
//! - The same key has the same place within its window, on every replica with the same seed.
//! - Under [`DelayRules`] the level is never below the floor, and it rises whenever work does not
//!   wait, whatever the load.
//! - No delay, count or instant makes a regulator panic or overflow.
//!
//! What the laws achieve in a closed loop is measured, not proven: `sim/`, `docs/LOAD.md`.
//!
//! # Proven by
//! `tests/it/load.rs`; `sim/tests/it/load.rs` closes the loop.
//!
//! # Example
//! ```
//! use admittance_core::load::{Law, Regulator, Seen, Tasks, Traffic};
//! use admittance_core::{Micros, Span};
//!
//! let mut regulator = Regulator::new(Law::default(), 1)?;
//! let (elapsed, load) = (Span::from_ms(100), Tasks { tasks: 8, workers: 4 });
//! let seen = Seen { elapsed, load, offered: 100, ..Seen::default() };
//! let now = Micros::from_epoch_ms(100).expect("before the horizon");
//! // Ten probes that all waited twice as long as work may.
//! for _ in 0..10 {
//!     regulator.probed(0, Span::from_ms(10));
//! }
//! assert_eq!(regulator.adjust(now, &seen, &Traffic::NONE).level.percent(), 50);
//! # Ok::<(), admittance_core::Invalid>(())
//! ```

mod delay;
mod delays;
mod jitter;
mod level;
mod mixing;
mod regulator;

pub use delay::DelayRules;
pub use delays::{Delays, Recent};
pub use jitter::JitterRules;
pub use level::{COHORTS, Class, Cutoff, Level, Traffic};
pub use mixing::{Hashed, Moment, Place, Seed};
pub use regulator::{Adjustment, Law, Regulator, Seen, Tasks};

use regulator::Fixed;
