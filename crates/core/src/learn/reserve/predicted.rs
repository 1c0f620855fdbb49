//! Between a prediction and what was learned.

use super::{Learned, ReserveRules};

/// A reservation between the predicted one and the learned one.
///
/// The weight is that of Hedge, `1 / (1 + exp(η · behind))`, where `behind` is how much more
/// following the predictions has cost than following the learner, and `η = ln 2 / gap`. The gap is
/// the sum of what mixing has cost so far: of each sample, the mean of the two losses less
/// `−ln(mean of exp(−η · loss)) / η`. So η needs no tuning and no scale: it is large while one of
/// the two is clearly better, and small where they take turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    learned: Learned,
    behind: f64,
    /// Zero as long as the two have never differed.
    gap: f64,
    /// How many predictions were judged since the weights were last even.
    judged: u32,
}

impl Predicted {
    /// A learner that has seen nothing, beside predictions that have proven nothing.
    #[must_use]
    pub fn new(rules: ReserveRules) -> Self {
        Self { learned: Learned::new(rules), behind: 0.0, gap: 0.0, judged: 0 }
    }

    /// How much to reserve for work of which this is predicted. Without a prediction, what the
    /// learner says.
    #[must_use]
    pub fn estimate(&self, prediction: Option<u64>) -> u64 {
        self.rules().whole(self.exact(prediction))
    }

    /// The estimate before it is rounded. For those who look; it must not enter a decision.
    #[must_use]
    pub fn exact(&self, prediction: Option<u64>) -> f64 {
        let learned = self.learned.exact();
        let Some(prediction) = prediction else { return learned };
        let predicted = self.rules().counted(prediction);
        self.rules().clamped(learned + self.trust() * (predicted - learned))
    }

    /// The weight of the predictions, from 0 to 1; one half at first.
    #[must_use]
    pub fn trust(&self) -> f64 {
        let Some(rate) = self.rate() else { return 0.5 };
        // An exponential too large to be counted is infinite, and the weight zero.
        1.0 / (1.0 + libm::exp(rate * self.behind))
    }

    /// Learns what work needed, and judges what was predicted of it.
    pub fn learn(&mut self, prediction: Option<u64>, actual: u64) {
        if let Some(prediction) = prediction {
            self.judge(prediction, actual);
        }
        self.learned.learn(actual);
    }

    /// Learns from work that was stopped after `served`: [`Learned::learn_stopped`]. What was
    /// predicted is judged only if it and the learner were below that, both: then it is known how
    /// much worse the lower one was.
    pub fn learn_stopped(&mut self, prediction: Option<u64>, served: u64) {
        let needed = served.saturating_add(1);
        if let Some(prediction) = prediction {
            let higher = self.rules().counted(prediction).max(self.learned.exact());
            if higher <= self.rules().counted(needed) {
                self.judge(prediction, needed);
            }
        }
        self.learned.learn_stopped(served);
    }

    /// The learner alone.
    #[must_use]
    pub const fn learned(&self) -> &Learned {
        &self.learned
    }

    /// What it was made of.
    #[must_use]
    pub const fn rules(&self) -> &ReserveRules {
        self.learned.rules()
    }

    fn judge(&mut self, prediction: u64, actual: u64) {
        let rules = self.rules();
        let actual = rules.counted(actual);
        let predicted = rules.loss_at(rules.counted(prediction), actual);
        let learned = rules.loss_at(self.learned.exact(), actual);
        let more = predicted - learned;
        // Less than that is no difference, and a rate made of it could not be counted.
        if more.abs() >= DIFFERENCE_MIN {
            self.gap += self.mixing_cost(more);
            self.behind += more;
        }
        self.judged = self.judged.saturating_add(1);
        if self.rules().memory().is_some_and(|most| self.judged >= most.get()) {
            (self.behind, self.gap, self.judged) = (0.0, 0.0, 0);
        }
    }

    /// By how much the mean of two losses that differ by `more` exceeds the mixture's.
    fn mixing_cost(&self, more: f64) -> f64 {
        let apart = more.abs();
        let Some(rate) = self.rate() else { return apart / 2.0 };
        // How far the one that is worse now was ahead until now: its weight is 1 / (1 + exp(−a)).
        let ahead = rate * if more > 0.0 { -self.behind } else { self.behind };
        let worse = 1.0 / (1.0 + libm::exp(-ahead));
        // Twice the same, so that small numbers are subtracted from small ones.
        let cost = if ahead > 0.0 {
            let better = 1.0 / (1.0 + libm::exp(ahead));
            (soft(rate * apart - ahead) - soft(-ahead)) / rate - better * apart
        } else {
            worse * apart - (soft(ahead) - soft(ahead - rate * apart)) / rate
        };
        cost.clamp(0.0, apart)
    }

    /// η; `None` before the two have differed, when it would be infinite.
    fn rate(&self) -> Option<f64> {
        (self.gap > 0.0).then(|| core::f64::consts::LN_2 / self.gap)
    }
}

/// `ln(1 + exp(x))`, finite for every finite number.
fn soft(x: f64) -> f64 {
    x.max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// In units of loss. The gap is at least half of it, so that the rate is at most 2 · 10⁹.
const DIFFERENCE_MIN: f64 = 1e-9;
