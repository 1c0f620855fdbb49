//! What was decided, counted.

use admittance_core::{Axis, Verdicts};

use crate::stripes::Stripes;

/// How often an [`Admitter`](super::Admitter) decided what.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmitterStats {
    /// Admitted.
    pub admitted: u64,
    /// Not worth their price.
    pub policy_denied: u64,
    /// Denied, by the axis that bound, in the order of [`Axis::ALL`].
    pub denied: [u64; Axis::ALL.len()],
    /// Not decided: the ask itself was wrong.
    pub failed: u64,
}

impl AdmitterStats {
    /// How many were denied by this axis.
    #[must_use]
    pub const fn denied_by(&self, axis: Axis) -> u64 {
        self.denied[axis as usize]
    }

    /// Each label with its count, as metrics show them: the labels of [`Verdicts::label`].
    pub fn by_label(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let axes = Axis::ALL.map(Axis::name).into_iter().zip(self.denied);
        [("", self.admitted), (Verdicts::POLICY, self.policy_denied)].into_iter().chain(axes)
    }
}

pub(super) struct Counts {
    admitted: Stripes,
    policy_denied: Stripes,
    denied: [Stripes; Axis::ALL.len()],
    failed: Stripes,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            admitted: Stripes::new(),
            policy_denied: Stripes::new(),
            denied: std::array::from_fn(|_| Stripes::new()),
            failed: Stripes::new(),
        }
    }

    #[inline]
    pub(super) fn admitted(&self) {
        self.admitted.add_one();
    }

    pub(super) fn failed(&self) {
        self.failed.add_one();
    }

    pub(super) fn denied(&self, verdicts: &Verdicts) {
        match verdicts.binding() {
            Some(axis) => self.denied[axis as usize].add_one(),
            None => self.policy_denied.add_one(),
        }
    }

    pub(super) fn stats(&self) -> AdmitterStats {
        AdmitterStats {
            admitted: self.admitted.sum(),
            policy_denied: self.policy_denied.sum(),
            denied: std::array::from_fn(|axis| self.denied[axis].sum()),
            failed: self.failed.sum(),
        }
    }
}
