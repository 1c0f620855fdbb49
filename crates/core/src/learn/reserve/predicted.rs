//! Between a prediction and what was learned.

use alloc::boxed::Box;

use super::hedge::Hedge;
use super::recent::Recent;
use super::{Learned, ReserveRules};

/// A reservation between the predicted one and the learned one, by a weight that Hedge learns.
///
/// If the rules [look back](ReserveRules::looking_back), what is learned is itself between the
/// quantile of the last 64 samples and what the learner says, by such a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    learned: Learned,
    recent: Option<Box<Recent>>,
    hedge: Hedge,
}

impl Predicted {
    /// A learner that has seen nothing, beside predictions that have proven nothing.
    #[must_use]
    pub fn new(rules: ReserveRules) -> Self {
        let recent = rules.is_looking_back().then(|| Box::new(Recent::new()));
        Self { learned: Learned::new(rules), recent, hedge: Hedge::default() }
    }

    /// How much to reserve for work of which this is predicted. Without a prediction, what was
    /// learned.
    #[must_use]
    pub fn estimate(&self, prediction: Option<u64>) -> u64 {
        self.rules().whole(self.exact(prediction))
    }

    /// The estimate before it is rounded. For those who look; it must not enter a decision.
    #[must_use]
    pub fn exact(&self, prediction: Option<u64>) -> f64 {
        let base = self.base();
        let Some(prediction) = prediction else { return base };
        let predicted = self.rules().counted(prediction);
        self.rules().clamped(base + self.trust() * (predicted - base))
    }

    /// The weight of the predictions, from 0 to 1; one half at first.
    #[must_use]
    pub fn trust(&self) -> f64 {
        self.hedge.weight()
    }

    /// Learns what work needed, and judges what was predicted of it.
    pub fn learn(&mut self, prediction: Option<u64>, actual: u64) {
        if let Some(prediction) = prediction {
            self.judge(prediction, actual);
        }
        if let Some(recent) = &mut self.recent {
            recent.learn(self.learned.rules(), self.learned.exact(), actual);
        }
        self.learned.learn(actual);
    }

    /// Learns from work that was stopped after `served`: [`Learned::learn_stopped`]. What was
    /// predicted is judged only if it and what was learned were below that, both: then it is known
    /// how much worse the lower one was.
    pub fn learn_stopped(&mut self, prediction: Option<u64>, served: u64) {
        let needed = served.saturating_add(1);
        if let Some(prediction) = prediction {
            let higher = self.rules().counted(prediction).max(self.base());
            if higher <= self.rules().counted(needed) {
                self.judge(prediction, needed);
            }
        }
        if let Some(recent) = &mut self.recent {
            recent.learn_stopped(self.learned.rules(), needed);
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

    /// What is reserved without a prediction.
    fn base(&self) -> f64 {
        let learned = self.learned.exact();
        let blended = self.recent.as_ref().map_or(learned, |recent| recent.blend(learned));
        self.rules().clamped(blended)
    }

    fn judge(&mut self, prediction: u64, actual: u64) {
        let rules = self.rules();
        let actual = rules.counted(actual);
        let predicted = rules.loss_at(rules.counted(prediction), actual);
        let more = predicted - rules.loss_at(self.base(), actual);
        let memory = rules.memory_or_all();
        self.hedge.judge(more, memory);
    }
}
