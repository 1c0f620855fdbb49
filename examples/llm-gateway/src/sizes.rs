//! How much to reserve for an answer that streams. A wrong size costs idle budget or early stops;
//! no size lets a budget be exceeded.

use std::sync::{Mutex, PoisonError};

use admittance::Invalid;
use admittance::learn::reserve::{self, ReserveRules, Weights};

/// Says how much to reserve.
pub trait Sizes: Send + Sync {
    /// For each choice of an answer by this model.
    fn estimate(&self, model: &str) -> u64;

    /// How long an answer was that came to its end.
    fn ended(&self, model: &str, tokens: u64) {
        let _ = (model, tokens);
    }

    /// How long an answer was when it was stopped.
    fn stopped(&self, model: &str, tokens: u64) {
        let _ = (model, tokens);
    }
}

/// Always the same.
#[derive(Clone, Copy, Debug)]
pub struct FixedSize(pub u64);

impl Sizes for FixedSize {
    fn estimate(&self, _: &str) -> u64 {
        self.0
    }
}

/// What nine in ten answers of a model fit in, learned from how long they were.
#[derive(Debug)]
pub struct LearnedSizes(Mutex<reserve::Sizes>);

impl LearnedSizes {
    /// Begins with `size`, and never says more than `most`.
    ///
    /// # Errors
    /// The numbers cannot be; the error says what would do.
    pub fn new(size: u64, most: u64) -> Result<Self, Invalid> {
        let rules = ReserveRules::new(Weights::default(), 1..=most)?.starting_at(size, WORTH)?;
        Ok(Self(Mutex::new(reserve::Sizes::new(rules, MODELS_MAX)?)))
    }

    fn with<R>(&self, with: impl FnOnce(&mut reserve::Sizes) -> R) -> R {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sizes for LearnedSizes {
    fn estimate(&self, model: &str) -> u64 {
        self.with(|sizes| sizes.estimate(model, None))
    }

    fn ended(&self, model: &str, tokens: u64) {
        self.with(|sizes| sizes.learn(model, None, tokens));
    }

    fn stopped(&self, model: &str, tokens: u64) {
        self.with(|sizes| sizes.learn_stopped(model, None, tokens));
    }
}

/// The configured size counts as much as so many answers.
const WORTH: u32 = 10;
/// Models that are told apart.
const MODELS_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_with_short_answers_comes_to_reserve_little() {
        let sizes = LearnedSizes::new(256, 4_096).unwrap();
        assert_eq!(sizes.estimate("short"), 256);
        (0..2_000).for_each(|number| sizes.ended("short", number % 40));
        assert!(sizes.estimate("short") < 128, "{}", sizes.estimate("short"));
        assert_eq!(sizes.estimate("another"), 256);
        assert!(LearnedSizes::new(256, 100).is_err(), "it cannot begin above the most");
    }
}
