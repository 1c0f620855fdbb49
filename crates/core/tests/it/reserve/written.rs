//! The estimates written once more, straight from the formulas, with a place for every mistake.

use admittance_core::learn::reserve::ReserveRules;

use crate::reserve::Estimate;
use crate::reserve::samples::whole;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The formulas as they are.
    None,
    /// Every step is as long as the first.
    StepConstant,
    /// Steps shrink with t, not with its root.
    StepHarmonic,
    /// Uphill.
    SlopeFlipped,
    /// τ is hold / (hold + overrun).
    FractileSwapped,
    /// What is learned may leave the range.
    NotProjected,
    /// The nearest whole number, whatever the weights.
    RoundedToNearest,
    /// It starts in the middle of the range.
    StartsInTheMiddle,
    /// The steps go on shrinking, and the weights never begin anew.
    NeverForgets,
    /// What was stopped early counts as if it had ended.
    StoppedIsEnded,
    /// The one that costs more gets the larger weight.
    HedgeInverted,
    /// η is zero: the weights stay at one half.
    HedgeIgnored,
    /// η is infinite: the one that is ahead is followed alone.
    HedgeLeader,
    /// η is made for losses a thousand times as large.
    HedgeDull,
    /// The weights never begin anew.
    HedgeNeverForgets,
    /// The learner learns only where nothing was predicted.
    LearnerStarved,
}

/// A learner, and predictions beside it.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    mutant: Mutant,
    hold: f64,
    overrun: f64,
    min: f64,
    max: f64,
    memory: f64,
    r: f64,
    t: f64,
    /// How much more the predictions have cost than the learner.
    behind: f64,
    gap: f64,
    judged: f64,
}

impl Written {
    pub(crate) fn new(rules: ReserveRules, mutant: Mutant) -> Self {
        let (min, max) = (rules.min() as f64, rules.max() as f64);
        let (hold, overrun) = (rules.weights().hold as f64, rules.weights().overrun as f64);
        let (hold, overrun) =
            if mutant == Mutant::FractileSwapped { (overrun, hold) } else { (hold, overrun) };
        let start = overrun / (hold + overrun);
        let start = if mutant == Mutant::StartsInTheMiddle { 0.5 } else { start };
        let forgets = rules.memory().filter(|_| mutant != Mutant::NeverForgets);
        let memory = forgets.map_or(f64::INFINITY, |memory| f64::from(memory.get()));
        let r = min + start * (max - min);
        let (behind, gap) = (0.0, 0.0);
        Self { mutant, hold, overrun, min, max, memory, r, t: 0.0, behind, gap, judged: 0.0 }
    }

    fn loss(&self, r: f64, c: f64) -> f64 {
        self.hold * (r - c).max(0.0) + self.overrun * (c - r).max(0.0)
    }

    fn kept(&self, number: f64) -> f64 {
        number.max(self.min).min(self.max)
    }

    fn descend(&mut self, c: f64) {
        self.t += 1.0;
        let t = self.t.min(self.memory);
        let root = match self.mutant {
            Mutant::StepConstant => 1.0,
            Mutant::StepHarmonic => t,
            _ => t.sqrt(),
        };
        let slope = match self.r.partial_cmp(&c) {
            Some(std::cmp::Ordering::Greater) => self.hold,
            Some(std::cmp::Ordering::Less) => -self.overrun,
            _ => 0.0,
        };
        let slope = if self.mutant == Mutant::SlopeFlipped { -slope } else { slope };
        let step = (self.max - self.min) / self.hold.max(self.overrun) / root;
        let moved = self.r - step * slope;
        self.r = if self.mutant == Mutant::NotProjected { moved } else { self.kept(moved) };
    }

    fn judge(&mut self, p: f64, c: f64) {
        // Both losses less the learner's, which changes nothing but the rounding.
        let more = self.loss(p, c) - self.loss(self.r, c);
        let more = if more.abs() < 1e-9 { 0.0 } else { more };
        let mixed = if self.gap > 0.0 {
            let rate = std::f64::consts::LN_2 / self.gap;
            // −ln(exp(−η · behind) + exp(0)) / η
            let of =
                |behind: f64| behind.min(0.0) - (1.0 + (-rate * behind.abs()).exp()).ln() / rate;
            of(self.behind + more) - of(self.behind)
        } else {
            more.min(0.0)
        };
        self.gap += (self.trust() * more - mixed).max(0.0);
        self.behind += more;
        self.judged += 1.0;
        if self.judged >= self.memory && self.mutant != Mutant::HedgeNeverForgets {
            (self.behind, self.gap, self.judged) = (0.0, 0.0, 0.0);
        }
    }
}

impl Estimate for Written {
    fn exact(&self, prediction: Option<u64>) -> f64 {
        match prediction {
            Some(p) => {
                let w = self.trust();
                w * self.kept(p as f64) + (1.0 - w) * self.r
            }
            None => self.r,
        }
    }

    fn whole(&self, prediction: Option<u64>) -> u64 {
        let r = self.kept(self.exact(prediction));
        if self.mutant == Mutant::RoundedToNearest {
            return whole(r);
        }
        let (down, up) = (r.floor(), r.ceil());
        let is_up = self.hold * (up - r) < self.overrun * (r - down);
        whole(if is_up { up } else { down })
    }

    fn learn(&mut self, prediction: Option<u64>, actual: u64) {
        let c = self.kept(actual as f64);
        if let Some(p) = prediction {
            self.judge(self.kept(p as f64), c);
        }
        if prediction.is_none() || self.mutant != Mutant::LearnerStarved {
            self.descend(c);
        }
    }

    fn learn_stopped(&mut self, served: u64) {
        let c = self.kept(served as f64 + 1.0);
        if c > self.r || self.mutant == Mutant::StoppedIsEnded {
            self.descend(c);
        }
    }

    fn trust(&self) -> f64 {
        if self.gap <= 0.0 || self.mutant == Mutant::HedgeIgnored {
            return 0.5;
        }
        let rate = std::f64::consts::LN_2 / self.gap;
        let rate = match self.mutant {
            Mutant::HedgeInverted => -rate,
            Mutant::HedgeLeader => f64::MAX,
            Mutant::HedgeDull => rate / 1_000.0,
            _ => rate,
        };
        1.0 / (1.0 + (rate * self.behind).exp())
    }
}
