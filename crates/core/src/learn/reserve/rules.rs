//! What a wrong reservation costs, and which reservations there may be.

use core::num::NonZeroU32;
use core::ops::RangeInclusive;

use crate::budget::Budget;
use crate::invalid::within;
use crate::{Invalid, Parameter};

/// What a wrong reservation costs, per unit. Only the ratio of the two moves an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    /// A unit that was reserved and not needed: nobody else could have it meanwhile.
    pub hold: u64,
    /// A unit that was needed and not reserved: the work may be stopped there.
    pub overrun: u64,
}

impl Weights {
    /// The largest weight.
    pub const MAX: u64 = 1_000;
}

/// Nine in ten fit their reservation.
impl Default for Weights {
    fn default() -> Self {
        Self { hold: 1, overrun: 9 }
    }
}

/// How reservations are learned: what a wrong one costs, and which there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReserveRules {
    weights: Weights,
    min: u64,
    max: u64,
    initial: Option<u64>,
    /// How many samples `initial` counts as.
    worth: u32,
    memory: Option<NonZeroU32>,
    is_looking_back: bool,
}

impl ReserveRules {
    /// Reservations in `range`, whose ends are whole units.
    ///
    /// # Errors
    /// A weight of zero or above [`Weights::MAX`], and a range that is empty or goes beyond
    /// [`Budget::UNITS_MAX`].
    pub fn new(weights: Weights, range: RangeInclusive<u64>) -> Result<Self, Invalid> {
        within(Parameter::Hold, weights.hold, Weights::MAX)?;
        within(Parameter::Overrun, weights.overrun, Weights::MAX)?;
        let (min, max) = range.into_inner();
        within(Parameter::MaxReserve, max, Budget::UNITS_MAX)?;
        if min > max {
            let must = "not be above maxReserve";
            return Err(Invalid::Unfit { parameter: Parameter::MinReserve, must });
        }
        Ok(Self {
            weights,
            min,
            max,
            initial: None,
            worth: 0,
            memory: None,
            is_looking_back: false,
        })
    }

    /// The same, and the first estimate is `initial`, which counts as much as `worth` samples that
    /// were seen before. With zero the first sample may move it by the whole range.
    ///
    /// # Errors
    /// If `initial` is not in the range.
    pub fn starting_at(self, initial: u64, worth: u32) -> Result<Self, Invalid> {
        if !(self.min..=self.max).contains(&initial) {
            let must = "lie between minReserve and maxReserve";
            return Err(Invalid::Unfit { parameter: Parameter::InitialReserve, must });
        }
        Ok(Self { initial: Some(initial), worth, ..self })
    }

    /// The same, and steps become no shorter than after so many samples: what is older is soon
    /// outweighed. Without it they shrink for ever.
    #[must_use]
    pub const fn remembering(self, samples: NonZeroU32) -> Self {
        Self { memory: Some(samples), ..self }
    }

    /// The same, and [`Predicted`](super::Predicted) weighs what the last 64 samples would have
    /// needed against what was learned of all. Half a kilobyte more each.
    #[must_use]
    pub const fn looking_back(self) -> Self {
        Self { is_looking_back: true, ..self }
    }

    /// What a wrong reservation costs.
    #[must_use]
    pub const fn weights(&self) -> Weights {
        self.weights
    }

    /// The smallest reservation.
    #[must_use]
    pub const fn min(&self) -> u64 {
        self.min
    }

    /// The largest reservation.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// After how many samples steps stop shrinking.
    #[must_use]
    pub const fn memory(&self) -> Option<NonZeroU32> {
        self.memory
    }

    /// Whether the last samples are weighed against all.
    #[must_use]
    pub const fn is_looking_back(&self) -> bool {
        self.is_looking_back
    }

    /// τ = overrun / (hold + overrun): the part of all work that should fit its reservation.
    #[must_use]
    pub fn fractile(&self) -> f64 {
        self.overrun() / (self.hold() + self.overrun())
    }

    /// What a reservation cost for work that needed `actual`. Exact; more than
    /// [`Budget::UNITS_MAX`] units count as that many.
    #[must_use]
    pub fn loss(&self, reserved: u64, actual: u64) -> u64 {
        let reserved = reserved.min(Budget::UNITS_MAX);
        let actual = actual.min(Budget::UNITS_MAX);
        let idle = reserved.saturating_sub(actual);
        let beyond = actual.saturating_sub(reserved);
        self.weights.hold * idle + self.weights.overrun * beyond
    }

    /// Of all reservations in the range the one with the least sum of losses, known only
    /// afterwards: the τ-quantile of `actuals`, which are put into another order. The lowest, if
    /// there are several; `None` of none.
    #[must_use]
    pub fn best_fixed(&self, actuals: &mut [u64]) -> Option<u64> {
        let Weights { hold, overrun } = self.weights;
        let many = u128::try_from(actuals.len()).unwrap_or(u128::MAX);
        // The τ-quantile: as many at most as it, of all, as overrun of both weights.
        let place = many.saturating_mul(overrun.into()).div_ceil((hold + overrun).into());
        let place = usize::try_from(place.checked_sub(1)?).ok()?;
        let (_, quantile, _) = actuals.select_nth_unstable(place);
        Some((*quantile).clamp(self.min, self.max))
    }

    /// Where an estimate starts: the reservation whose worst loss is the least. `hold · (r − min)`
    /// and `overrun · (max − r)` are the same there.
    pub(super) fn start(&self) -> f64 {
        match self.initial {
            Some(initial) => initial as f64,
            None => self.clamped(self.min as f64 + self.fractile() * self.spread()),
        }
    }

    pub(super) fn worth(&self) -> u64 {
        u64::from(self.worth)
    }

    /// The memory; the largest number there is stands for none.
    pub(super) fn memory_or_all(&self) -> u32 {
        self.memory.map_or(u32::MAX, NonZeroU32::get)
    }

    /// What counts as needed. Beyond the range all reservations of the range are off by the same.
    pub(super) fn counted(&self, actual: u64) -> f64 {
        actual.clamp(self.min, self.max) as f64
    }

    /// The loss of a reservation that need not be whole.
    pub(super) fn loss_at(&self, reserved: f64, actual: f64) -> f64 {
        let idle = reserved - actual;
        if idle > 0.0 { self.hold() * idle } else { -self.overrun() * idle }
    }

    /// The slope of the loss.
    pub(super) fn slope(&self, reserved: f64, actual: f64) -> f64 {
        if reserved > actual {
            self.hold()
        } else if reserved < actual {
            -self.overrun()
        } else {
            0.0
        }
    }

    /// `(D / G) / √t`, where t is the number of the sample or, if that is less, the memory.
    pub(super) fn step(&self, sample: u64) -> f64 {
        let sample = sample.max(1).min(self.memory.map_or(u64::MAX, |most| most.get().into()));
        self.spread() / self.hold().max(self.overrun()) / libm::sqrt(sample as f64)
    }

    pub(super) fn clamped(&self, reserved: f64) -> f64 {
        reserved.clamp(self.min as f64, self.max as f64)
    }

    /// The whole reservation that is off by the least in the worst case: rounding up by `1 − part`
    /// costs at most `hold` of each, rounding down by `part` at most `overrun`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    pub(super) fn whole(&self, reserved: f64) -> u64 {
        let reserved = self.clamped(reserved);
        let below = libm::floor(reserved);
        let part = reserved - below;
        let is_up = self.hold() * (1.0 - part) < self.overrun() * part;
        let units = below as u64 + u64::from(is_up);
        units.clamp(self.min, self.max)
    }

    fn spread(&self) -> f64 {
        (self.max - self.min) as f64
    }

    fn hold(&self) -> f64 {
        self.weights.hold as f64
    }

    fn overrun(&self) -> f64 {
        self.weights.overrun as f64
    }
}

const _: () = {
    assert!(Budget::UNITS_MAX <= crate::EXACT_MAX, "a float must hold every reservation");
    assert!(Budget::UNITS_MAX.checked_mul(Weights::MAX).is_some(), "a loss must be countable");
};
