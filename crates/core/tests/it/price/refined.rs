//! The shipped refinement, and ones with a mistake.

use admittance_core::learn::price::{
    Bid, Budgets, Kind, Outcome, Prices, Refinement, RefinementRules, solve,
};
use admittance_core::{Micros, Span};

use crate::price::arrivals::{Refine, earned};

/// The outcome counts with the observation that ends the window.
pub(crate) struct Shipped(pub(crate) Refinement);

impl Shipped {
    pub(crate) fn boxed(
        budgets: Budgets,
        period: Span,
        window: Span,
        prior: Prices,
    ) -> Box<dyn Refine> {
        let rules = RefinementRules::new(budgets, period, window).unwrap();
        Box::new(Self(Refinement::new(rules, prior)))
    }
}

impl Refine for Shipped {
    fn prices(&self) -> Prices {
        self.0.prices()
    }

    fn observe(&mut self, now: Micros, bid: &Bid) -> Option<Outcome> {
        let outcome = self.0.observe(now, bid)?.outcome();
        self.0.freeze(&outcome);
        Some(outcome)
    }
}

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// What suits the sample is taken, better or not.
    Always,
    /// The prior stays.
    Never,
    /// The sample is judged against the budgets of a whole period.
    NotScaled,
    /// Every window is a sample.
    NotFrozen,
    /// Only what passes the prior is recorded.
    OnlyAdmitted,
    /// Only what suits the relaxation is tried.
    OnlySuited,
}

pub(crate) struct MutantRefiner {
    mutant: Mutant,
    budgets: Budgets,
    period: Span,
    window: Span,
    prices: Prices,
    since: Option<Micros>,
    frozen: bool,
    bids: Vec<Bid>,
}

impl MutantRefiner {
    pub(crate) fn boxed(mutant: Mutant) -> impl Fn(Budgets, Span, Span, Prices) -> Box<dyn Refine> {
        move |budgets, period, window, prices| {
            let (since, frozen, bids) = (None, false, Vec::new());
            Box::new(Self { mutant, budgets, period, window, prices, since, frozen, bids })
        }
    }

    fn refined(&self) -> Prices {
        let scale = match self.mutant {
            Mutant::NotScaled => 1.0,
            _ => self.window.us() as f64 / self.period.us() as f64,
        };
        let budgets = self.budgets.scaled(scale);
        let kind = |bid: &Bid| Kind {
            weight: 1.0,
            value: bid.value(),
            cost: bid.cost(),
            hold: bid.hold(),
        };
        let kinds: Vec<Kind> = self.bids.iter().map(kind).collect();
        let suited = solve(&kinds, budgets).prices;
        let earns = |prices: Prices| earned(&self.bids, budgets, prices);
        let zero = if self.mutant == Mutant::OnlySuited { suited } else { Prices::ZERO };
        let other = if earns(zero) > earns(suited) { zero } else { suited };
        match self.mutant {
            Mutant::Always => suited,
            Mutant::Never => self.prices,
            _ if earns(other) > earns(self.prices) => other,
            _ => self.prices,
        }
    }
}

impl Refine for MutantRefiner {
    fn prices(&self) -> Prices {
        self.prices
    }

    fn observe(&mut self, now: Micros, bid: &Bid) -> Option<Outcome> {
        if self.frozen {
            return None;
        }
        if now.since(*self.since.get_or_insert(now)) >= self.window {
            self.prices = self.refined();
            self.frozen = self.mutant != Mutant::NotFrozen;
            self.since = Some(now);
            self.bids.clear();
        }
        if self.mutant != Mutant::OnlyAdmitted || self.prices.admits(bid) {
            self.bids.push(*bid);
        }
        None
    }
}
