//! What a scarce unit is worth: prices that refuse a request before it takes from a budget.
//!
//! Without prices a request is admitted while every budget lasts, first come first served. Where
//! more is asked for than there is, that spends the budgets on whoever is early. A joint policy
//! puts a price on each budget, and a [`Bid`] passes [`Prices`] if
//!
//! `value ≥ p_rate + p_cost · cost + p_concurrency · hold`
//!
//! It is asked before anything is consumed and only takes admits away: a bid that passes must
//! still find room in every budget. `cost` is in units, `hold` in milliseconds, `value` in
//! whatever the operator counts worth in; a bid that does not say has value 1 and hold 0.
//!
//! # Where prices come from
//! Of what is expected in a period, `wᵢ` requests of [`Kind`] `i`, the fluid relaxation admits a
//! part `xᵢ` of each: maximise `Σ wᵢ·vᵢ·xᵢ` subject to `Σ wᵢ·xᵢ ≤ R`, `Σ wᵢ·cᵢ·xᵢ ≤ C`,
//! `Σ wᵢ·hᵢ·xᵢ ≤ K` and `0 ≤ x ≤ 1`. `K` is the limit on concurrency times the period (Little's
//! law). [`solve`] finds the dual optimum, the `p ≥ 0` with the least
//!
//! `D(p) = R·p_rate + C·p_cost + K·p_concurrency + Σ wᵢ · max(0, vᵢ − p·aᵢ)`, `aᵢ = (1, cᵢ, hᵢ)`
//!
//! `D` is convex and linear between the planes `p·aᵢ = vᵢ` and `p = 0`, so its minimum lies on a
//! vertex of them: a point where as many of these planes meet as there are budgets. All of them are
//! tried, at most 47,905 for 64 kinds and three budgets. Of several that are the least, the most
//! selective is taken: where the most kinds are strictly refused, then with the larger price of
//! concurrency, of cost, of rate. Two objectives count as equal within 10⁻¹⁰ of the smaller, a
//! value and a price within 10⁻¹² of the larger: that is what rounding may do to them.
//!
//! A budget that is absent or infinite has the price 0. Kinds of equal value, cost and hold are one
//! kind. If more than [`KINDS_MAX`] differ, the one with the least weight is joined with its
//! nearest (in value, cost and hold, each relative to its range), weights added and the rest
//! averaged by weight, until so many are left: what all kinds together are worth and ask for stays
//! the same. Above 1,024, neighbours in the order of cost, hold and value are joined first.
//!
//! # Kinds that share
//! At the optimum a few kinds, no more than budgets unless some are equal, are worth exactly their
//! price: the relaxation admits a part of each. A price cannot. The `prices` of a [`Solution`]
//! admit all of them until the budgets are gone: where they are many or large, they crowd out what
//! is worth more. Refused, they may leave the budgets idle. So `advised` are either these prices or
//! ones at which some kinds that share (of the first eight) are worth a part in 2³⁰ less than their
//! price and the others as much more: whichever earn most when the kinds arrive evenly mixed and
//! are served first come first served.
//!
//! # Integers
//! The test is in integers. Prices are rounded up, once, to multiples of 2⁻⁶⁴. Rounding must not
//! refuse what is worth exactly its price: the kinds that share a budget's last units are worth
//! exactly that, and without them the budget would lie idle. So a value is rounded up to a multiple
//! of 2⁻⁶⁴, and is given `1 + cost + hold` such multiples for the rounding of the prices and a
//! part in 2⁵¹ of itself, since a decimal fraction that became a float is off by up to 2⁻⁵³ of
//! itself, in the value and in each price. Hold is rounded to whole microseconds.
//!
//! # Guarantee
//! - A bid worth its price passes, both taken as the decimals that somebody wrote; one that lacks
//!   more than `value · 2⁻⁵⁰ + (3 + cost + hold) · 2⁻⁶⁴` is refused. No number overflows.
//! - A bid that passes some prices passes all that are lower in each component.
//! - [`solve`] is total: any kinds and budgets, numbers that are none included, give prices that
//!   are finite and at least zero. A kind that the exact prices do not strictly refuse passes
//!   `prices`.
//! - [`Refinement`] never takes prices that do worse than the prior on its sample, and leaves a
//!   prior that refuses everything after one window in which anything could have been admitted.
//!   Over what comes after the sample it promises nothing: where arrivals change, it can lose.
//!
//! # Proven by
//! `tests/it/price.rs`, with mutants.
//!
//! # Example
//! ```
//! use admittance_core::learn::price::{Bid, Budgets, Kind, solve};
//!
//! let kinds = [
//!     Kind { weight: 60.0, value: 5.0, cost: 10, hold: 0.0 },
//!     Kind { weight: 60.0, value: 2.0, cost: 10, hold: 0.0 },
//! ];
//! let budgets = Budgets { rate: Some(1_000.0), cost: Some(800.0), ..Budgets::default() };
//! let solved = solve(&kinds, budgets);
//! assert_eq!((solved.rate, solved.cost), (0.0, 0.2), "2 for 10 units: the second kind shares");
//! assert!(solved.prices.admits(&Bid::new(Some(2.0), 10, None)));
//! assert!(!solved.prices.admits(&Bid::new(Some(2.0), 11, None)));
//! ```

mod refine;
mod solve;

pub use self::refine::{Outcome, Refinement, RefinementRules, SAMPLES_MAX, Sample};
pub use self::solve::{Budgets, KINDS_MAX, Kind, Solution, solve};

use crate::{EXACT_MAX, Invalid, Parameter};

/// What a request must be worth for what it takes, in whole multiples of 2⁻⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Prices {
    /// Of one admit.
    rate: u128,
    /// Of one unit.
    cost: u128,
    /// Of one millisecond with a permit.
    concurrency: u128,
}

impl Prices {
    /// Everything passes.
    pub const ZERO: Self = Self { rate: 0, cost: 0, concurrency: 0 };

    /// The largest price, 2⁶³.
    pub const MAX: f64 = 9_223_372_036_854_775_808.0;

    /// Prices that an operator chose: of an admit, of a unit of cost, of a millisecond with a
    /// permit.
    ///
    /// # Errors
    /// A price that is negative, not a number or above [`Self::MAX`]: it would refuse or admit
    /// everything without a word.
    pub fn given(rate: f64, cost: f64, concurrency: f64) -> Result<Self, Invalid> {
        let named = [
            (Parameter::RatePrice, rate),
            (Parameter::CostPrice, cost),
            (Parameter::ConcurrencyPrice, concurrency),
        ];
        for (parameter, price) in named {
            if !(0.0..=Self::MAX).contains(&price) {
                let must = "be finite, at least zero and at most 9223372036854775808";
                return Err(Invalid::Unfit { parameter, must });
            }
        }
        Ok(Self::rounded([rate, cost, concurrency]))
    }

    /// Whether the value of the bid reaches its price.
    #[must_use]
    pub fn admits(&self, bid: &Bid) -> bool {
        bid.offers() >= self.asks(bid)
    }

    /// The price of what the bid takes. For those who look; it must not enter a decision.
    #[must_use]
    pub fn price(&self, bid: &Bid) -> f64 {
        self.rate() + self.cost() * bid.cost as f64 + self.concurrency() * bid.hold()
    }

    /// The price of one admit. For those who look; it must not enter a decision.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate as f64 / SCALE
    }

    /// The price of one unit of cost. For those who look; it must not enter a decision.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.cost as f64 / SCALE
    }

    /// The price of one millisecond with a permit. For those who look; it must not enter a
    /// decision.
    #[must_use]
    pub fn concurrency(&self) -> f64 {
        self.concurrency as f64 / SCALE
    }

    /// The multiples of 2⁻⁶⁴ that the prices of rate, cost and concurrency are.
    #[must_use]
    pub const fn multiples(&self) -> [u128; 3] {
        [self.rate, self.cost, self.concurrency]
    }

    /// Up to the next multiple; at most the largest price.
    fn rounded(prices: [f64; 3]) -> Self {
        let [rate, cost, concurrency] = prices.map(|price| multiples(price.min(Self::MAX)));
        Self { rate, cost, concurrency }
    }

    /// The price in thousandths of a multiple, since a hold is in microseconds. Where it does not
    /// fit it is above anything that a bid can offer, and so is the largest number that does.
    const fn asks(&self, bid: &Bid) -> u128 {
        let cost = self.cost.saturating_mul(bid.cost as u128);
        let hold = self.concurrency.saturating_mul(bid.hold_us as u128);
        self.rate.saturating_add(cost).saturating_mul(1_000).saturating_add(hold)
    }

    /// Lowers the price that weighs most on the bid, by as little as lets it pass.
    fn lowered_for(self, bid: &Bid) -> Self {
        let lacks = self.asks(bid).saturating_sub(bid.offers());
        if lacks == 0 {
            return self;
        }
        let parts = [
            self.rate.saturating_mul(1_000),
            self.cost.saturating_mul(u128::from(bid.cost)).saturating_mul(1_000),
            self.concurrency.saturating_mul(u128::from(bid.hold_us)),
        ];
        let [rate, cost, hold] = parts;
        let mut lowered = self;
        if rate >= cost && rate >= hold {
            lowered.rate = self.rate.saturating_sub(lacks.div_ceil(1_000));
        } else if cost >= hold {
            let each = u128::from(bid.cost.max(1)) * 1_000;
            lowered.cost = self.cost.saturating_sub(lacks.div_ceil(each));
        } else {
            let each = u128::from(bid.hold_us.max(1));
            lowered.concurrency = self.concurrency.saturating_sub(lacks.div_ceil(each));
        }
        lowered
    }
}

/// What a request is worth and what it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bid {
    /// From 0 to [`Self::VALUE_MAX`].
    value: f64,
    cost: u64,
    /// At most [`EXACT_MAX`].
    hold_us: u64,
}

impl Bid {
    /// Nothing is worth more.
    pub const VALUE_MAX: f64 = EXACT_MAX as f64;

    /// A request worth `value` that costs `cost` units and holds its permit for `hold`
    /// milliseconds. Without a value it is worth 1, without a hold it holds 0. A value or hold that
    /// is negative, infinite or not a number counts 0: it is a mistake of the caller, who must
    /// neither dodge the price of concurrency below zero nor be worth more than anybody.
    #[must_use]
    pub fn new(value: Option<f64>, cost: u64, hold: Option<f64>) -> Self {
        let value = counted(value.unwrap_or(1.0)).min(Self::VALUE_MAX);
        let hold_us = libm::round(counted(hold.unwrap_or(0.0)) * 1_000.0).min(EXACT_MAX as f64);
        Self { value, cost, hold_us: whole(hold_us) }
    }

    /// What it is worth.
    #[must_use]
    pub const fn value(&self) -> f64 {
        self.value
    }

    /// The units it costs.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The milliseconds for which it holds its permit.
    #[must_use]
    pub fn hold(&self) -> f64 {
        self.hold_us as f64 / 1_000.0
    }

    /// The value in thousandths of a multiple of 2⁻⁶⁴, with what it is given for rounding. It fits:
    /// 2⁵³ · 2⁶⁴ · 1,000 is less than 2¹²⁷.
    fn offers(&self) -> u128 {
        let value = self.multiples();
        let given = (value >> 51) + 1 + u128::from(self.cost);
        (value + given) * 1_000 + u128::from(self.hold_us)
    }

    /// The value as multiples of 2⁻⁶⁴, rounded up.
    fn multiples(&self) -> u128 {
        multiples(self.value)
    }
}

/// A number that counts: finite, and not below zero.
fn counted(number: f64) -> f64 {
    if number.is_finite() { number.max(0.0) } else { 0.0 }
}

/// How many multiples of 2⁻⁶⁴, rounded up. To multiply by a power of two is exact.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn multiples(number: f64) -> u128 {
    libm::ceil(number * SCALE) as u128
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// 2⁶⁴.
const SCALE: f64 = 18_446_744_073_709_551_616.0;
