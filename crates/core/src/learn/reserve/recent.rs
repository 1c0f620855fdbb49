//! The quantile of what was seen last.

use super::ReserveRules;
use super::hedge::Hedge;

/// The best fixed reservation for the last few samples, and how well it did against the learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recent {
    last: [u64; KEPT],
    /// How many were ever seen; the next one goes to this place, modulo.
    seen: usize,
    /// Of `last`, once anything was seen.
    quantile: Option<u64>,
    hedge: Hedge,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { last: [0; KEPT], seen: 0, quantile: None, hedge: Hedge::default() }
    }

    /// Between the quantile and what was learned.
    pub(super) fn blend(&self, learned: f64) -> f64 {
        let Some(quantile) = self.quantile else { return learned };
        learned + self.hedge.weight() * (quantile as f64 - learned)
    }

    pub(super) fn learn(&mut self, rules: &ReserveRules, learned: f64, actual: u64) {
        if let Some(quantile) = self.quantile {
            let needed = rules.counted(actual);
            let more = rules.loss_at(quantile as f64, needed) - rules.loss_at(learned, needed);
            self.hedge.judge(more, rules.memory_or_all());
        }
        self.keep(rules, actual);
    }

    /// Work that was stopped says on which side of the quantile it was, or nothing.
    pub(super) fn learn_stopped(&mut self, rules: &ReserveRules, needed: u64) {
        if self.quantile.is_none_or(|quantile| needed > quantile) {
            self.keep(rules, needed);
        }
    }

    fn keep(&mut self, rules: &ReserveRules, actual: u64) {
        self.last[self.seen % KEPT] = actual;
        // Beyond the second round only the place matters.
        self.seen = if self.seen + 1 < 2 * KEPT { self.seen + 1 } else { KEPT };
        let mut sorted = self.last;
        self.quantile = rules.best_fixed(&mut sorted[..self.seen.min(KEPT)]);
    }
}

/// A power of two, so that the place is a mask. Enough for the quantile of nine in ten.
const KEPT: usize = 64;
