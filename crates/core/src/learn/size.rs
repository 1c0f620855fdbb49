//! How large a lease is: few round trips against few idle credits.
//!
//! A node that serves a demand of `D` units in a window by leases of `b` units pays
//! `f(b) = order_cost · D / b + strand_penalty · b / 2`: it asks the store `D / b` times, and on
//! average half a lease is left over when the window ends. The best size is
//! `√(2 · order_cost · D / strand_penalty)`, but `D` is known only afterwards, differs from key to
//! key and drifts. A [`Sizer`] per key says how much to ask for and is told what was served:
//!
//! - **fixed**: always the same size.
//! - **learned**: gradient descent (`AdaGrad`) on `x = ln b`, since good sizes span orders of
//!   magnitude. The first window with demand sets the size that would have been best for it; each
//!   later one moves `x` by `−g / √(ε + Σg²)`, where `g = −order_cost · D / b + strand_penalty ·
//!   b / 2`. `ε` is the square of `strand_penalty · b / 2` at the first window's size, so that the
//!   second window cannot throw the size by more than the scale of the first allows.
//! - **predictive**: between the size that suits a predicted demand and the learned one, weighted
//!   by how cheap each has been (Hedge, `exp(−0.01 · cumulative cost)`). Whoever knows what comes
//!   says so with [`Sizer::predict`], once per window. For a window of which nobody said anything
//!   the prediction is that it will be like the last one with demand: `batch: predictive` in a
//!   policy file, with no predictor behind it, follows demand at once where it is steady from one
//!   window to the next, and is as calm as `learned` where it is not.
//!
//! A window is fed once, when it is over; with continuous leases a window is one lease time.
//!
//! # Windows without demand
//! They change nothing, so they need not be fed. A key that nobody asks for takes no lease: no
//! round trip and nothing stranded, hence nothing to learn. After a night without traffic a key
//! goes on with the size it had.
//!
//! # Before the first window
//! The size is the middle, on a logarithmic scale, between the best size for a demand of one and
//! the best size for the largest demand: no other start has a smaller worst ratio to the best.
//!
//! # Guarantee
//! - A size is at least 1 and at most [`LeaseCost::size_max`], whatever is fed, for ever.
//! - **Learned**: over any `T` windows the sum of `f`, before sizes are rounded to whole ones,
//!   exceeds that of the best fixed size by at most `C · √T` and by what the first window cost;
//!   `C = (R²/2 + 1) · G`, `R = ln size_max`, `G` the steepest slope met. Measured, whole sizes and
//!   the first window included: `C` is at most 1.2 times the least cost of a window with the
//!   largest demand where demand is steady, and a quarter of `G` where it is hostile. Over 1,000
//!   windows of steady demand it costs at most 1.04 times the best fixed size, and 1.13 times where
//!   one window in fifty has fifty times the demand of the others; a longer tail costs more.
//! - **Predictive**: the sum of `f` is at most twice that of the learner alone and one window of
//!   the worst cost, whatever is predicted, even by someone who sees the weights. (What the
//!   predictions lose while they are followed, they must have won before, or must win back before
//!   they are followed again; and they win at most what the learner pays.) True predictions cost
//!   at most 1 % more than knowing the future, and ten windows at the start.
//!
//! `f` counts half a lease as stranded per window, as for demand that varies by more than a lease.
//! Where demand is the same in every window to within a lease, one lease for the whole window
//! would strand nothing and cost a half to a quarter: then set a fixed size.
//!
//! The steps of the learner shrink as it grows older. A demand that falls to a hundredth is
//! followed within 30 windows after a thousand windows of steady demand, and within 800 after a
//! million; back up within 5 and 80. Predictions help there only if they were as cheap before.
//!
//! # Proven by
//! `tests/it/size.rs`, with mutants.
//!
//! # Example
//! ```
//! use admittance_core::Cost;
//! use admittance_core::learn::{LeaseCost, Sizer};
//!
//! let limit = Cost::new(10_000).expect("more than zero");
//! let mut sizer = Sizer::learned(LeaseCost::new(limit));
//! assert_eq!(sizer.size().units(), 63, "before anything is known");
//! sizer.feed(4_000);
//! assert_eq!(sizer.size().units(), 400, "ten round trips, and 200 left over on average");
//! ```

use core::num::NonZeroU16;

use crate::{Cost, EXACT_MAX};

/// What a lease costs: asking for it, and what is left of it when its window ends.
///
/// A learned size moves with the ratio of the two alone. How soon predictions are trusted depends
/// on the absolute numbers as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseCost {
    order_cost: NonZeroU16,
    strand_penalty: NonZeroU16,
    /// At most [`Self::SIZE_MAX`], which fits.
    size_max: u32,
    demand_max: Cost,
}

impl LeaseCost {
    /// No lease is larger, whatever the limit.
    pub const SIZE_MAX: u64 = 1_000_000;

    /// One round trip costs as much as twenty stranded units, and a window serves at most `limit`.
    #[must_use]
    pub const fn new(limit: Cost) -> Self {
        Self {
            order_cost: ORDER_COST,
            strand_penalty: STRAND_PENALTY,
            size_max: capped(limit, Self::SIZE_MAX),
            demand_max: limit,
        }
    }

    /// With another cost of one round trip, in the unit of the strand penalty.
    #[must_use]
    pub const fn with_order_cost(self, order_cost: NonZeroU16) -> Self {
        Self { order_cost, ..self }
    }

    /// With another cost of one unit that was leased and not spent.
    #[must_use]
    pub const fn with_strand_penalty(self, strand_penalty: NonZeroU16) -> Self {
        Self { strand_penalty, ..self }
    }

    /// With no lease above `size_max`; it can only become less.
    #[must_use]
    pub const fn with_size_max(self, size_max: Cost) -> Self {
        Self { size_max: capped(size_max, self.size_max as u64), ..self }
    }

    /// With windows that may serve up to `demand_max`; what is fed above it counts as that much.
    /// Continuous leases need it: in one lease time they may serve the burst and the refill.
    #[must_use]
    pub const fn with_demand_max(self, demand_max: Cost) -> Self {
        Self { demand_max, ..self }
    }

    /// The largest size.
    #[must_use]
    pub const fn size_max(&self) -> Cost {
        match Cost::new(self.size_max as u64) {
            Some(size) => size,
            None => Cost::ONE,
        }
    }

    /// The largest demand of a window.
    #[must_use]
    pub const fn demand_max(&self) -> Cost {
        self.demand_max
    }

    /// The cost of a window that served `demand` with leases of `size`; zero without demand,
    /// because then nothing is leased. A size of zero counts as one.
    #[must_use]
    pub fn of(&self, demand: u64, size: u64) -> f64 {
        if demand == 0 { 0.0 } else { self.at(demand as f64, size.max(1) as f64) }
    }

    /// The size with the least cost for `demand`, from 1 to [`size_max`](Self::size_max).
    #[must_use]
    pub fn optimum(&self, demand: u64) -> Cost {
        self.size(self.log_optimum(demand))
    }

    fn at(&self, demand: f64, size: f64) -> f64 {
        self.order() * demand / size + self.strand() * size / 2.0
    }

    /// The slope of the cost over the logarithm of the size.
    fn slope(&self, demand: f64, size: f64) -> f64 {
        self.strand() * size / 2.0 - self.order() * demand / size
    }

    /// The cost of the largest demand by the smallest size, half of the largest size added: no
    /// window costs more.
    fn worst(&self) -> f64 {
        self.at(self.counted(u64::MAX), 1.0) + self.strand() * f64::from(self.size_max) / 2.0
    }

    /// What the learner takes for the demand.
    fn counted(&self, demand: u64) -> f64 {
        demand.min(self.demand_max.units()) as f64
    }

    fn log_optimum(&self, demand: u64) -> f64 {
        let twice = 2.0 * self.order() * self.counted(demand.max(1)) / self.strand();
        self.clamped(libm::log(twice) / 2.0)
    }

    fn log_start(&self) -> f64 {
        (self.log_optimum(1) + self.log_optimum(u64::MAX)) / 2.0
    }

    fn clamped(&self, log_size: f64) -> f64 {
        log_size.clamp(0.0, libm::log(f64::from(self.size_max)))
    }

    /// The cost depends on the ratio to the optimum: of two neighbours the cheaper one is told by
    /// their geometric mean, not by the half between them.
    fn size(&self, log_size: f64) -> Cost {
        let size = libm::exp(log_size);
        let below = libm::floor(size);
        let units = whole(if size * size > below * (below + 1.0) { below + 1.0 } else { below });
        Cost::new(units.clamp(1, u64::from(self.size_max))).unwrap_or(Cost::ONE)
    }

    fn order(&self) -> f64 {
        f64::from(self.order_cost.get())
    }

    fn strand(&self) -> f64 {
        f64::from(self.strand_penalty.get())
    }
}

/// How much the next lease of one key should hold.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Sizer {
    /// Always the same.
    Fixed(Cost),
    /// Learned from what was served.
    Learned(Learned),
    /// Between a prediction and what was learned.
    Predictive(Predictive),
}

impl Sizer {
    /// Always `size`, or the largest size that `cost` allows if that is less.
    #[must_use]
    pub fn fixed(cost: LeaseCost, size: Cost) -> Self {
        Self::Fixed(size.min(cost.size_max()))
    }

    /// A learner that has seen nothing.
    #[must_use]
    pub fn learned(cost: LeaseCost) -> Self {
        Self::Learned(Learned::new(cost))
    }

    /// A learner that has seen nothing, beside predictions that have proven nothing.
    #[must_use]
    pub fn predictive(cost: LeaseCost) -> Self {
        Self::Predictive(Predictive::new(cost))
    }

    /// How much to ask for, in the window that has begun.
    #[must_use]
    pub fn size(&self) -> Cost {
        match self {
            Self::Fixed(size) => *size,
            Self::Learned(learned) => learned.size(),
            Self::Predictive(predictive) => predictive.size(),
        }
    }

    /// Says how much this node served of the key in the window that is over. Once per window.
    pub fn feed(&mut self, demand: u64) {
        match self {
            Self::Fixed(_) => {}
            Self::Learned(learned) => learned.feed(demand),
            Self::Predictive(predictive) => predictive.feed(demand),
        }
    }

    /// Says how much will be asked for in the window that has begun; the next [`feed`](Self::feed)
    /// forgets it. Only a predictive sizer listens.
    pub fn predict(&mut self, demand: u64) {
        if let Self::Predictive(predictive) = self {
            predictive.predict(demand);
        }
    }
}

/// A size that follows demand by `AdaGrad` on its logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    cost: LeaseCost,
    /// From 0 to the logarithm of the largest size.
    log_size: f64,
    /// ε + Σg². Zero until a window with demand was fed. A slope is at most 65,535 · 2^53, so that
    /// the sum stays finite for 10^260 windows.
    squares: f64,
}

impl Learned {
    /// A learner that has seen nothing.
    #[must_use]
    pub fn new(cost: LeaseCost) -> Self {
        Self { cost, log_size: cost.log_start(), squares: 0.0 }
    }

    /// How much to ask for.
    #[must_use]
    pub fn size(&self) -> Cost {
        self.cost.size(self.log_size)
    }

    /// Learns from a window that is over.
    pub fn feed(&mut self, demand: u64) {
        if demand == 0 {
            return;
        }
        if self.squares == 0.0 {
            // The textbook's start, a step as long as the whole range, lands on the largest size
            // and takes hundreds of windows to come back. The first demand is a better guess.
            self.log_size = self.cost.log_optimum(demand);
            let scale = self.cost.strand() * libm::exp(self.log_size) / 2.0;
            self.squares = scale * scale;
            return;
        }
        let slope = self.cost.slope(self.cost.counted(demand), libm::exp(self.log_size));
        self.squares += slope * slope;
        self.log_size = self.cost.clamped(self.log_size - slope / libm::sqrt(self.squares));
    }

    fn pays(&self, demand: u64) -> f64 {
        self.cost.at(self.cost.counted(demand), libm::exp(self.log_size))
    }
}

/// A size between the one that suits a prediction and the learned one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predictive {
    learned: Learned,
    /// The logarithm of the size that suits what is predicted for this window.
    log_predicted: f64,
    /// The logarithm of the size that would have suited the last window with demand.
    log_last: f64,
    /// How much more the predictions have cost than the learner, kept within one window's worst
    /// cost and [`UNTRUSTED`]. A narrower range would forgive a loss before it was won back, so
    /// that predictions that are right only while nobody follows them would be followed again and
    /// again. A wider one would only make predictions that have become good wait longer.
    behind: f64,
}

impl Predictive {
    /// A learner that has seen nothing, beside predictions that have proven nothing.
    #[must_use]
    pub fn new(cost: LeaseCost) -> Self {
        let learned = Learned::new(cost);
        let start = learned.log_size;
        Self { learned, log_predicted: start, log_last: start, behind: 0.0 }
    }

    /// How much to ask for.
    ///
    /// The mean is taken between the logarithms: the cost is convex there too, and the last grain
    /// of weight on an absurd prediction moves the size by a grain.
    #[must_use]
    pub fn size(&self) -> Cost {
        let trust = self.trust();
        let learned = self.learned.log_size;
        self.learned.cost.size(learned + trust * (self.log_predicted - learned))
    }

    /// The weight of the predictions, from 0 to 1; one half at first.
    #[must_use]
    pub fn trust(&self) -> f64 {
        // An exponential too large to be counted is infinite, and the weight zero.
        1.0 / (1.0 + libm::exp(HEDGE_RATE * self.behind))
    }

    /// Says how much will be asked for in the window that has begun. A prediction of nothing is
    /// none: in such a window no size matters.
    pub fn predict(&mut self, demand: u64) {
        if demand > 0 {
            self.log_predicted = self.learned.cost.log_optimum(demand);
        }
    }

    /// Learns from a window that is over, and judges what was predicted for it.
    pub fn feed(&mut self, demand: u64) {
        if demand > 0 {
            let cost = self.learned.cost;
            let predicted = cost.at(cost.counted(demand), libm::exp(self.log_predicted));
            let most = cost.worst() + UNTRUSTED;
            let behind = self.behind + (predicted - self.learned.pays(demand));
            self.behind = behind.clamp(-most, most);
            self.learned.feed(demand);
            self.log_last = cost.log_optimum(demand);
        }
        self.log_predicted = self.log_last;
    }
}

/// The nearest whole number; zero and [`EXACT_MAX`] stand for what lies beyond them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
pub(super) fn whole(number: f64) -> u64 {
    libm::round(number.clamp(0.0, EXACT_MAX as f64)) as u64
}

#[expect(clippy::cast_possible_truncation, reason = "at most SIZE_MAX, which fits")]
const fn capped(size: Cost, max: u64) -> u32 {
    if size.units() < max { size.units() as u32 } else { max as u32 }
}

/// What a round trip costs, in stranded units.
const ORDER_COST: NonZeroU16 = NonZeroU16::new(20).unwrap();
/// What a stranded unit costs.
const STRAND_PENALTY: NonZeroU16 = NonZeroU16::MIN;
/// η of the Hedge weights.
const HEDGE_RATE: f64 = 0.01;
/// So far behind, predictions have a weight of one in 22,000. Without it a small limit, whose
/// worst window costs little, would never stop listening to them.
const UNTRUSTED: f64 = 10.0 / HEDGE_RATE;

const _: () = assert!(LeaseCost::SIZE_MAX <= u32::MAX as u64);
// One per key: half a cache line for the learner, one for any.
const _: () = assert!(size_of::<Learned>() == 32);
const _: () = assert!(size_of::<Predictive>() == 56);
const _: () = assert!(size_of::<Sizer>() == 64);
