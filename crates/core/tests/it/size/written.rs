//! The sizers written once more, straight from the formulas, with a place for every mistake.

use admittance_core::learn::LeaseCost;

use crate::size::Size;
use crate::size::demand::ORDER_COST;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The formulas as they are.
    None,
    /// The first step is as long as the whole range, ε is tiny, and the first window sets nothing.
    TextbookStart,
    /// Uphill.
    SlopeFlipped,
    /// Neither the size nor its logarithm is kept in the range.
    NotClamped,
    /// A window without demand pulls the size down.
    RestCounts,
    /// The expert that costs more gets the larger weight.
    HedgeInverted,
    /// η is zero: the weights stay at one half.
    HedgeIgnored,
    /// The difference of the costs is kept within 1,000, so that every loss is soon forgiven.
    HedgeForgives,
    /// exp(−η · cost) for each expert alone, which becomes 0 / 0.
    SumsApart,
}

/// A learner, and predictions beside it if `predicts`.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    mutant: Mutant,
    predicts: bool,
    size_max: f64,
    demand_max: f64,
    x: f64,
    squares: f64,
    predicted: f64,
    last: f64,
    behind: f64,
    sums: (f64, f64),
}

impl Written {
    pub(crate) fn learned(cost: LeaseCost, mutant: Mutant) -> Self {
        let size_max = cost.size_max().units() as f64;
        let mut written = Self {
            mutant,
            predicts: false,
            size_max,
            demand_max: cost.demand_max().units() as f64,
            x: 0.0,
            squares: 0.0,
            predicted: 0.0,
            last: 0.0,
            behind: 0.0,
            sums: (0.0, 0.0),
        };
        written.x = (written.suits(1.0) + written.suits(f64::INFINITY)) / 2.0;
        written.predicted = written.x;
        written.last = written.x;
        written
    }

    pub(crate) fn predictive(cost: LeaseCost, mutant: Mutant) -> Self {
        Self { predicts: true, ..Self::learned(cost, mutant) }
    }

    fn suits(&self, demand: f64) -> f64 {
        self.kept((2.0 * ORDER_COST * demand.min(self.demand_max)).ln() / 2.0)
    }

    fn kept(&self, x: f64) -> f64 {
        if self.mutant == Mutant::NotClamped { x } else { x.max(0.0).min(self.size_max.ln()) }
    }

    fn pays(demand: f64, x: f64) -> f64 {
        ORDER_COST * demand / x.exp() + x.exp() / 2.0
    }

    fn learn(&mut self, demand: f64) {
        let textbook = self.mutant == Mutant::TextbookStart;
        if self.squares == 0.0 && !textbook {
            self.x = self.suits(demand);
            self.squares = (self.x.exp() / 2.0).powi(2);
            return;
        }
        let uphill = self.x.exp() / 2.0 - ORDER_COST * demand / self.x.exp();
        let slope = if self.mutant == Mutant::SlopeFlipped { -uphill } else { uphill };
        self.squares += slope * slope;
        let (rate, tiny) = if textbook { (self.size_max.ln(), 1e-8) } else { (1.0, 0.0) };
        self.x = self.kept(self.x - rate * slope / (tiny + self.squares).sqrt());
    }
}

impl Size for Written {
    fn size(&self) -> u64 {
        let weight = if self.predicts { self.trust() } else { 0.0 };
        let size = (weight * self.predicted + (1.0 - weight) * self.x).exp();
        let below = size.floor();
        let whole = if size > (below * (below + 1.0)).sqrt() { below + 1.0 } else { below };
        if self.mutant == Mutant::NotClamped {
            return saturated(whole);
        }
        saturated(whole).clamp(1, saturated(self.size_max))
    }

    fn feed(&mut self, demand: u64) {
        if demand > 0 || self.mutant == Mutant::RestCounts {
            let demand = (demand as f64).min(self.demand_max);
            let (predicted, learned) =
                (Self::pays(demand, self.predicted), Self::pays(demand, self.x));
            self.sums = (self.sums.0 + predicted, self.sums.1 + learned);
            let most = match self.mutant {
                Mutant::HedgeForgives => 1_000.0,
                _ => ORDER_COST * self.demand_max + 0.5 + self.size_max / 2.0 + 1_000.0,
            };
            self.behind = (self.behind + (predicted - learned)).max(-most).min(most);
            self.learn(demand);
            self.last = self.suits(demand);
        }
        self.predicted = self.last;
    }

    fn predict(&mut self, demand: u64) {
        self.predicted = self.suits(demand as f64);
    }

    fn trust(&self) -> f64 {
        let of = |cost: f64| (-0.01 * cost).exp();
        match self.mutant {
            Mutant::HedgeInverted => 1.0 / (1.0 + of(self.behind)),
            Mutant::HedgeIgnored => 0.5,
            Mutant::SumsApart => of(self.sums.0) / (of(self.sums.0) + of(self.sums.1)),
            _ => 1.0 / (1.0 + of(-self.behind)),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn saturated(number: f64) -> u64 {
    number as u64
}
