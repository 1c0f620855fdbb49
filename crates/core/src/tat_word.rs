//! A TAT in one machine word, for stores that swap a key's whole state at once.
//!
//! The word is the TAT in 1/D ticks since the epoch. It needs no base instant of its own: the word
//! form exists only for strategies whose TAT fits 63 bits up to the horizon, so a table never has
//! to move its words to a later base while others read them. Zero is the key never seen, and the
//! top bit is left to the store.
//!
//! # Guarantee
//! Decides exactly as [`Tat`] does.
//!
//! # Proven by
//! `tests/it/words.rs::a_word_decides_as_the_strategy_does`, with a mutant.

use crate::reciprocal::Reciprocal;
use crate::{Cost, Decision, Micros, Outcome, Retry, Share, Span, Strategy, Tat, TatState};

/// A gcra or token bucket whose state is one word.
#[derive(Clone, Copy, Debug)]
pub struct TatWord {
    tat: Tat,
    denominator: u64,
    unit: u64,
    tolerance: u64,
    limit: u64,
    by_unit: Reciprocal,
    by_denominator: Reciprocal,
}

impl TatWord {
    /// The word form of a strategy, or `None` if its TAT could need more than 63 bits. That is so
    /// for denominators from about two thousand up: 1,000 per second has 1 and 7 per second has 7,
    /// but 4,999 per second has 4,999.
    #[must_use]
    pub fn new(tat: &Tat) -> Option<Self> {
        if Self::largest(tat) >= 1 << 63 {
            return None;
        }
        let unit = u64::try_from(tat.unit).ok()?;
        Some(Self {
            tat: *tat,
            denominator: tat.denominator,
            unit,
            tolerance: u64::try_from(tat.tolerance).ok()?,
            limit: tat.limit,
            by_unit: Reciprocal::new(unit),
            by_denominator: Reciprocal::new(tat.denominator),
        })
    }

    /// How many bits the word can need, at most 63.
    #[must_use]
    pub fn bits(&self) -> u32 {
        u128::BITS - Self::largest(&self.tat).leading_zeros()
    }

    /// The largest number that a step computes: the TAT leads `now` by at most one tolerance, and
    /// one step adds at most another.
    fn largest(tat: &Tat) -> u128 {
        u128::from(Micros::HORIZON.epoch_us()) * u128::from(tat.denominator) + 2 * tat.tolerance
    }

    /// Decides one request; returns the word to keep, which is the word given if it was denied.
    #[inline(always)]
    pub fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
        let at = now.judged().epoch_us() * self.denominator;
        let tat = word.max(at);
        let reach = at + self.tolerance;
        // Before multiplying: a cost that never fits must not overflow either.
        if cost.units() > self.limit {
            return (word, self.decision(Outcome::Deny(Retry::Never), tat, reach));
        }
        let next = tat + self.unit * cost.units();
        if next <= reach {
            return (next, self.decision(Outcome::Admit, next, reach));
        }
        let wait = Span::from_us(self.by_denominator.ceil(next - reach));
        (word, self.decision(Outcome::Deny(Retry::After(wait)), tat, reach))
    }

    /// Whether the word decides as zero does from `now` on.
    #[inline]
    #[must_use]
    pub fn is_idle(&self, word: u64, now: Micros) -> bool {
        word <= now.judged().epoch_us() * self.denominator
    }

    /// How much of the limit is in use.
    #[must_use]
    pub fn used(&self, word: u64, now: Micros) -> Share {
        Share::of(word.saturating_sub(now.judged().epoch_us() * self.denominator), self.tolerance)
    }

    /// The state the word stands for.
    #[must_use]
    pub fn unpack(&self, word: u64) -> Option<TatState> {
        let (whole, fraction) = (word / self.denominator, word % self.denominator);
        (word != 0).then_some(TatState { whole, fraction, unit: self.tat.unit() })
    }

    /// The word of a state that the strategy made. One that another rate's units lead past the
    /// horizon is kept there: more does not fit, and nobody waits for it.
    #[must_use]
    pub fn pack(&self, state: TatState) -> u64 {
        let tat = u128::from(state.whole) * u128::from(self.denominator);
        let last = Self::largest(&self.tat) - self.tat.tolerance;
        u64::try_from((tat + u128::from(state.fraction)).min(last)).unwrap_or(0)
    }

    /// The strategy the word belongs to.
    #[must_use]
    pub const fn strategy(&self) -> &Tat {
        &self.tat
    }

    /// When the word becomes the same as zero.
    #[must_use]
    pub fn idle_at(&self, word: u64) -> Micros {
        self.unpack(word).map_or(Micros::ZERO, |state| self.tat.idle_at(&state))
    }

    #[inline(always)]
    fn decision(&self, outcome: Outcome, tat: u64, reach: u64) -> Decision {
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.by_unit.floor(reach.saturating_sub(tat)).min(self.limit),
            reset_at: Micros::result(self.by_denominator.ceil(tat)),
        }
    }
}
