//! How much to reserve: budget that lies idle against work that outruns its reservation.
//!
//! Work that reserves `r` and needs `c` costs `hold · (r − c)⁺ + overrun · (c − r)⁺`. The best `r`
//! that is always the same is the τ-quantile of what work needs, `τ = overrun / (hold + overrun)`:
//! with nine times the weight on an overrun, the amount that nine in ten do not exceed.
//!
//! - [`Learned`] finds it from what work needed in the end, by projected gradient descent:
//!   `r ← clamp(r − (D / G) / √t · slope, min, max)` after the t-th sample, where `D = max − min`
//!   and `G = max(hold, overrun)`; the slope is `hold` if too much was reserved, `−overrun` if too
//!   little. It starts where the worst first loss is the least, `min + τ · D`.
//! - [`Predicted`] is told a prediction with each request, perhaps, and reserves between that and
//!   what was learned, by a weight that Hedge learns: `1 / (1 + exp(η · behind))`, where `behind`
//!   is how much more the predictions have cost, and `η = ln 2 /` the sum of what mixing has cost
//!   so far (AdaHedge). Without predictions it is the learner. A prediction is what to reserve:
//!   predict the τ-quantile, not the mean.
//! - [`Sizes`] keeps one of these for each class of work, a bounded number.
//!
//! # The range
//! The learner's steps are as long as the range is wide. Where the range is eight times the
//! quantile, the first 1,000 samples cost 1.2 times the best fixed reservation and the first 10,000
//! 1.06 times; where it is 128 times the quantile, 5.2 times and 2.1 times. Rules that
//! [look back](ReserveRules::looking_back) weigh the quantile of the last 64 samples against the
//! learner, by Hedge too: 1.07 times and 1.25 times for the first 1,000. With a memory of 1,000 as
//! well, it was 1.06 times at most for the first 10,000, in any of these ranges. Only [`Predicted`]
//! and [`Sizes`] look back.
//!
//! # Work that was stopped
//! needed more than it was served; nobody knows how much. [`Learned::learn_stopped`] takes what is
//! certain: if it was served as much as the estimate, the estimate was too low. Otherwise nothing
//! is learned. Where much is stopped early, long work is therefore seen too seldom.
//!
//! # Drift
//! The steps shrink, which the envelope needs, and an old learner turns slowly. With
//! [`remembering(m)`](ReserveRules::remembering) they stop shrinking after `m` samples, and the
//! weights of Hedge are even again every `m` times. After 100,000 samples, work that needs ten
//! times as much was followed within 119 samples, and back within 303; with a memory of 1,000
//! within 15 and 29, looking back within 23 and 54. To a learner alone that memory costs 2 to 10 %
//! of steady work for ever, in a range of two to eight times the quantile.
//!
//! # Guarantee
//! - An estimate lies between `min` and `max`, whatever is fed, and is the same for the same
//!   samples on every machine. No reservation loosens the bound of [`budget`](crate::budget).
//! - **Learned**: over any `T` samples, however chosen, the sum of losses exceeds that of the best
//!   fixed reservation by at most `1.5 · D · G · √T`. Rounding to whole units adds at most
//!   `hold · overrun / (hold + overrun)` a sample, and nobody who answers with whole units and
//!   without a dice can add less. If the start counts as `w` samples, `T + w` takes the place of
//!   `T`. With a memory of `m` this holds against the best reservation of each stretch of at most
//!   `m` samples by itself: at most `1.5 · D · G · √m` each.
//! - With `k` others in flight, an estimate is older than what was learned since. That adds at most
//!   `2 · k · D · G · √T`.
//! - **Predicted**: the sum of losses exceeds that of the better of the two, the predictions and
//!   what is reserved without them, by at most `√(ln 2 · Σs²) + (4/3 · ln 2 + 2) · S`, where `s` is
//!   by how much the losses of the two differ in a sample and `S ≤ D · G` the largest `s`; before
//!   rounding. True predictions cost at most `(16/3 · ln 2 + 2) · S` in all, for ever. With a
//!   memory of `m` this holds of every `m` predictions by themselves.
//! - **Looking back**: the same, of the last 64 samples' quantile and the learner.
//!
//! # Proven by
//! `tests/it/reserve.rs`, with mutants.
//!
//! # Example
//! ```
//! use admittance_core::learn::reserve::{Predicted, ReserveRules, Weights};
//!
//! let rules = ReserveRules::new(Weights { hold: 1, overrun: 4 }, 0..=4_000)?;
//! assert_eq!(rules.fractile(), 0.8);
//! let mut size = Predicted::new(rules);
//! assert_eq!(size.estimate(None), 3_200, "before anything is known");
//! for sample in 0..10_000 {
//!     size.learn(None, sample * 619 % 1_000);
//! }
//! assert!((750..850).contains(&size.estimate(None)), "four in five fit");
//! // Somebody knows better.
//! (0..100).for_each(|actual| size.learn(Some(actual), actual));
//! assert_eq!(size.estimate(Some(123)), 123);
//! # Ok::<(), admittance_core::Invalid>(())
//! ```

mod hedge;
mod predicted;
mod recent;
mod rules;
mod sizes;

pub use self::predicted::Predicted;
pub use self::rules::{ReserveRules, Weights};
pub use self::sizes::Sizes;

/// A reservation that follows what work needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    rules: ReserveRules,
    /// From `min` to `max`.
    quantile: f64,
    /// How many samples were seen, and what the start counts as.
    samples: u64,
}

impl Learned {
    /// A learner that has seen nothing.
    #[must_use]
    pub fn new(rules: ReserveRules) -> Self {
        Self { rules, quantile: rules.start(), samples: rules.worth() }
    }

    /// How much to reserve.
    #[must_use]
    pub fn estimate(&self) -> u64 {
        self.rules.whole(self.quantile)
    }

    /// The estimate before it is rounded. For those who look; it must not enter a decision.
    #[must_use]
    pub const fn exact(&self) -> f64 {
        self.quantile
    }

    /// Learns what work needed in the end.
    pub fn learn(&mut self, actual: u64) {
        let rules = &self.rules;
        self.samples = self.samples.saturating_add(1);
        let slope = rules.slope(self.quantile, rules.counted(actual));
        self.quantile = rules.clamped(self.quantile - rules.step(self.samples) * slope);
    }

    /// Learns from work that was stopped after `served` units and would have gone on. If that is
    /// less than the estimate, it changes nothing.
    pub fn learn_stopped(&mut self, served: u64) {
        let needed = served.saturating_add(1);
        if self.rules.counted(needed) > self.quantile {
            self.learn(needed);
        }
    }

    /// What it was made of.
    #[must_use]
    pub const fn rules(&self) -> &ReserveRules {
        &self.rules
    }
}
