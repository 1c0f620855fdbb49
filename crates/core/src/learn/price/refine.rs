//! Prices from what was seen, if they would have done better than those that somebody expected.

use alloc::vec::Vec;

use super::solve::uses;
use super::{Bid, Budgets, Kind, Prices, solve};
use crate::invalid::counted;
use crate::{Invalid, Micros, Parameter, Span};

/// At most so many requests are recorded. Of more, every second one is kept, then every fourth, and
/// so on, and each stands for as many.
pub const SAMPLES_MAX: usize = 1_024;

/// What a refinement is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RefinementRules {
    budgets: Budgets,
    period: Span,
    window: Span,
}

impl RefinementRules {
    /// Budgets that are for one `period` each, and requests recorded for a `window`.
    ///
    /// # Errors
    /// A period or a window of no time, or of more than every executor can count.
    pub fn new(budgets: Budgets, period: Span, window: Span) -> Result<Self, Invalid> {
        counted(Parameter::Period, period.us())?;
        counted(Parameter::SampleWindow, window.us())?;
        Ok(Self { budgets, period, window })
    }

    /// What the budgets are in one window.
    fn in_window(&self) -> Budgets {
        self.budgets.scaled(self.window.us() as f64 / self.period.us() as f64)
    }
}

/// Prices with the prior for one window while recording what comes, whether it is admitted or not;
/// then, once, with what the [`Sample`] shows to be better; then for ever with that.
///
/// The window begins with the first request. It holds at most [`SAMPLES_MAX`] records, and nothing
/// after it.
///
/// # Example
/// ```
/// use admittance_core::learn::price::{Bid, Budgets, Prices, Refinement, RefinementRules};
/// use admittance_core::{Micros, Span};
///
/// let budgets = Budgets { rate: Some(10.0), ..Budgets::default() };
/// let second = Span::from_secs(1);
/// let rules = RefinementRules::new(budgets, second, second)?;
/// let mut refinement = Refinement::new(rules, Prices::given(1_000.0, 0.0, 0.0)?);
/// let (cheap, dear) = (Bid::new(Some(1.0), 1, None), Bid::new(Some(9.0), 1, None));
/// for ms in 0..=1_000 {
///     let now = Micros::ZERO + Span::from_ms(ms);
///     if let Some(sample) = refinement.observe(now, if ms % 50 == 0 { &dear } else { &cheap }) {
///         refinement.freeze(&sample.outcome());
///     }
/// }
/// assert!(refinement.prices().admits(&dear) && !refinement.prices().admits(&cheap));
/// # Ok::<(), admittance_core::Invalid>(())
/// ```
#[derive(Clone, Debug)]
pub struct Refinement {
    rules: RefinementRules,
    prices: Prices,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Recording {
        since: Option<Micros>,
        /// How many came.
        seen: u64,
        /// Every how many of them is kept: a power of two.
        each: u64,
        kept: Vec<Bid>,
    },
    /// The sample is out to be solved.
    Solving,
    Frozen {
        adopted: bool,
    },
}

impl Refinement {
    /// Starts with the prior.
    #[must_use]
    pub const fn new(rules: RefinementRules, prior: Prices) -> Self {
        let state = State::Recording { since: None, seen: 0, each: 1, kept: Vec::new() };
        Self { rules, prices: prior, state }
    }

    /// The prices to decide by now.
    #[must_use]
    pub const fn prices(&self) -> Prices {
        self.prices
    }

    /// Records a request. The first that comes when the window is over gets the sample, once: to
    /// solve it takes some tens of milliseconds, which need not be those of a request. Until then,
    /// and if nobody ever does, the prior stays. A clock that steps back makes the window longer.
    pub fn observe(&mut self, now: Micros, bid: &Bid) -> Option<Sample> {
        let State::Recording { since, seen, each, kept } = &mut self.state else { return None };
        let since = *since.get_or_insert(now);
        if now.since(since) >= self.rules.window {
            let sample = Sample {
                kept: core::mem::take(kept),
                each: *each,
                budgets: self.rules.in_window(),
                prior: self.prices,
            };
            self.state = State::Solving;
            return Some(sample);
        }
        if seen.is_multiple_of(*each) {
            if kept.len() >= SAMPLES_MAX {
                let mut number = 0_u64;
                kept.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                *each = each.saturating_mul(2);
            }
            if seen.is_multiple_of(*each) {
                kept.push(*bid);
            }
        }
        *seen = seen.saturating_add(1);
        None
    }

    /// Decides by the outcome from now on, for ever. Only the first outcome after the sample
    /// counts.
    pub fn freeze(&mut self, outcome: &Outcome) {
        if matches!(self.state, State::Solving) {
            self.prices = outcome.prices;
            self.state = State::Frozen { adopted: outcome.adopted };
        }
    }

    /// Whether the prior was left, or `None` while that is open.
    #[must_use]
    pub const fn adopted(&self) -> Option<bool> {
        match self.state {
            State::Frozen { adopted } => Some(adopted),
            _ => None,
        }
    }
}

/// What came in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    kept: Vec<Bid>,
    each: u64,
    budgets: Budgets,
    prior: Prices,
}

/// What a sample taught.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The prices to decide by.
    pub prices: Prices,
    /// Whether they are other than the prior.
    pub adopted: bool,
    /// What the prior earns on the sample.
    pub prior_worth: f64,
    /// What `prices` earn on the sample.
    pub worth: f64,
}

impl Sample {
    /// Replays the sample, in its order and against what the budgets were in its time, with the
    /// prior, with the prices that suit it, [advised](super::Solution::advised) and exact, and
    /// without prices. Others than the prior are taken only if they earn strictly more; of those
    /// that earn the same, the first. Without prices, since a few large requests that the budgets
    /// cannot hold may be what the relaxation would admit a part of: then its prices can refuse
    /// everything that fits.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let weight = self.each as f64;
        let kind =
            |bid: &Bid| Kind { weight, value: bid.value(), cost: bid.cost(), hold: bid.hold() };
        let kinds: Vec<Kind> = self.kept.iter().map(kind).collect();
        let suited = solve(&kinds, self.budgets);
        let prior_earns = self.replay(self.prior);
        let mut best = (self.prior, prior_earns);
        for prices in [suited.advised, suited.prices, Prices::ZERO] {
            let earns = self.replay(prices);
            if earns > best.1 {
                best = (prices, earns);
            }
        }
        let worth = |earns: u128| earns as f64 / super::SCALE * weight;
        Outcome {
            prices: best.0,
            adopted: best.1 > prior_earns,
            prior_worth: worth(prior_earns),
            worth: worth(best.1),
        }
    }

    /// The requests that are kept, and how many each stands for.
    #[must_use]
    pub fn bids(&self) -> (&[Bid], u64) {
        (&self.kept, self.each)
    }

    /// What `prices` earn, in multiples of 2⁻⁶⁴: whole numbers, so that more is more. 1,024 of the
    /// largest value fit.
    fn replay(&self, prices: Prices) -> u128 {
        // Each stands for several, for which there is several times as much.
        let mut left = self.budgets.scaled(1.0 / self.each as f64).amounts();
        let mut earned = 0_u128;
        for bid in &self.kept {
            let uses = uses(bid);
            let fits = left.iter().zip(uses).all(|(left, uses)| uses <= *left);
            if fits && prices.admits(bid) {
                earned = earned.saturating_add(bid.multiples());
                left.iter_mut().zip(uses).for_each(|(left, uses)| *left -= uses);
            }
        }
        earned
    }
}
