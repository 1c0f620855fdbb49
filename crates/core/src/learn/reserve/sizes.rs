//! A learner for each class of work.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::{Predicted, ReserveRules};
use crate::invalid::within;
use crate::{Invalid, Parameter};

/// A learner for each class of work, as many as may be told apart.
///
/// A class is remembered from its first sample on, for ever. Those that come when the table is
/// full, and those with longer names than [`CLASS_BYTES_MAX`](Self::CLASS_BYTES_MAX), share one
/// learner more: nothing is forgotten to make room, so that names made up by a stranger cannot wash
/// out what was learned of others. Let the class be what the operator names (a model, a route, a
/// plan), not what a caller sends.
#[derive(Clone, Debug)]
pub struct Sizes {
    classes: BTreeMap<Box<str>, Predicted>,
    classes_max: usize,
    /// What a class is before its first sample.
    fresh: Predicted,
    /// What the classes without a place of their own share.
    others: Predicted,
}

impl Sizes {
    /// How many classes are told apart unless said otherwise.
    pub const CLASSES: u32 = 256;

    /// How many classes are told apart at most.
    pub const CLASSES_MAX: u32 = 65_536;

    /// The longest name of a class that is told apart.
    pub const CLASS_BYTES_MAX: usize = 128;

    /// A table that has seen nothing.
    ///
    /// # Errors
    /// If `classes_max` is zero or above [`CLASSES_MAX`](Self::CLASSES_MAX).
    pub fn new(rules: ReserveRules, classes_max: u32) -> Result<Self, Invalid> {
        within(Parameter::MaxClasses, classes_max.into(), Self::CLASSES_MAX.into())?;
        let (fresh, others) = (Predicted::new(rules), Predicted::new(rules));
        let classes_max = usize::try_from(classes_max).unwrap_or(usize::MAX);
        Ok(Self { classes: BTreeMap::new(), classes_max, fresh, others })
    }

    /// How much to reserve for work of a class: [`Predicted::estimate`].
    #[must_use]
    pub fn estimate(&self, class: &str, prediction: Option<u64>) -> u64 {
        self.learner(class).estimate(prediction)
    }

    /// Learns what work of a class needed: [`Predicted::learn`].
    pub fn learn(&mut self, class: &str, prediction: Option<u64>, actual: u64) {
        self.learner_mut(class).learn(prediction, actual);
    }

    /// Learns from work of a class that was stopped: [`Predicted::learn_stopped`].
    pub fn learn_stopped(&mut self, class: &str, prediction: Option<u64>, served: u64) {
        self.learner_mut(class).learn_stopped(prediction, served);
    }

    /// What is known of a class, its own or shared.
    #[must_use]
    pub fn learner(&self, class: &str) -> &Predicted {
        match self.classes.get(class) {
            Some(learner) => learner,
            None if self.has_room_for(class) => &self.fresh,
            None => &self.others,
        }
    }

    /// How many classes have a learner of their own.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    fn learner_mut(&mut self, class: &str) -> &mut Predicted {
        if !self.classes.contains_key(class) {
            if !self.has_room_for(class) {
                return &mut self.others;
            }
            self.classes.insert(class.into(), self.fresh.clone());
        }
        // It was there, or is there now.
        self.classes.get_mut(class).unwrap_or(&mut self.others)
    }

    fn has_room_for(&self, class: &str) -> bool {
        class.len() <= Self::CLASS_BYTES_MAX && self.classes.len() < self.classes_max
    }
}
