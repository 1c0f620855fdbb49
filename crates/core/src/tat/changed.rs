//! A key's state that another rate wrote: the units it lent are kept, not the instant.
//!
//! A state carries the T it was written under. A strategy with another T judges what of it is
//! still lent, u = (TAT − now)/T, and admits if u and the cost are within its own capacity. An
//! admission writes ⌈u⌉ and the cost at its own T; a denial writes nothing, so u goes on shrinking
//! at the rate that was promised when the units were taken.
//!
//! # Guarantee
//! - No interval of length d admits more than the largest burst + the largest rate·d among the
//!   numbers that its requests were judged by, in whatever order.
//! - A change costs a key less than one unit: what ⌈u⌉ rounds up.
//! - The wait is the earliest instant at which u is small enough, exact to the tick.
//! - Raising limit and burst never lengthens a wait.
//!
//! # Proven by
//! `tests/it/laws/changed.rs`, with the rule that keeps the instant as the mutant.

use super::{Tat, TatState, Ticks, gcd};
use crate::{Cost, Decision, EXACT_MAX, Forecast, Micros, Outcome, Retry, Share, Span, Step};

/// What a state that another rate wrote has still lent at one instant.
pub(super) struct Lent<'a> {
    own: &'a Tat,
    now: Micros,
    /// How far the TAT leads `now`, in 1/D ticks of the D it was written over.
    lead: u128,
    /// The T it was written under.
    unit: u128,
    denominator: u128,
    /// How much of a lead the part of a capacity that is not a whole unit allows.
    spare: u128,
    /// When all of it is back, if nobody spends.
    full_at: Micros,
}

impl Tat {
    /// What has been lent, if the state was written under another T. A state of the same T is one
    /// of this strategy, but for its [fraction](Self::adopted).
    pub(super) fn lent(&self, state: &TatState, now: Micros) -> Option<Lent<'_>> {
        if state.unit == self.ticks_per_unit || self.is_same_rate(state.unit) {
            return None;
        }
        let denominator = u128::from(state.unit.denominator.max(1));
        let unit =
            (u128::from(state.unit.whole) * denominator + u128::from(state.unit.fraction)).max(1);
        let tat = u128::from(state.whole) * denominator + u128::from(state.fraction);
        let lead = tat.saturating_sub(u128::from(now.judged().epoch_us()) * denominator);
        let full_at = Micros::result(self.parts_as_ticks(tat, denominator));
        let spare = self.spare(unit);
        let now = now.judged();
        (lead > 0).then_some(Lent { own: self, now, lead, unit, denominator, spare, full_at })
    }

    /// A state of this very T, over this strategy's denominator. What does not fit it is rounded
    /// up. One that another T wrote is idle here, or it would have been [lent](Self::lent).
    pub(super) fn adopted(&self, state: &TatState) -> (u64, u64) {
        let denominator = state.unit.denominator;
        if denominator == self.denominator || state.fraction == 0 {
            return (state.whole, state.fraction);
        }
        let parts = u128::from(state.fraction) * u128::from(self.denominator);
        let fraction = u64::try_from(parts.div_ceil(u128::from(denominator.max(1))));
        match fraction {
            Ok(fraction) if fraction < self.denominator => (state.whole, fraction),
            _ => (state.whole.saturating_add(1), 0),
        }
    }

    /// The state in this strategy's numbers, as if they had taken the place of the state's own at
    /// `since`: what was lent then is lent, and comes back at this rate from then on.
    #[must_use]
    pub fn converted(&self, state: &TatState, since: Micros) -> TatState {
        let lead = match self.lent(state, since) {
            Some(lent) => muldiv_ceil(lent.lead, self.unit, lent.unit),
            None if state.unit == self.ticks_per_unit => return *state,
            None => {
                let (whole, fraction) = self.adopted(state);
                return TatState { whole, fraction, unit: self.ticks_per_unit };
            }
        };
        // A lead of centuries is one until the horizon: no state lies past it.
        let horizon = u128::from(EXACT_MAX) * u128::from(self.denominator);
        self.state(self.at(since).saturating_add(lead).min(horizon))
    }

    /// Whether a T is this strategy's, over another denominator.
    fn is_same_rate(&self, unit: Ticks) -> bool {
        let own = self.ticks_per_unit;
        let over = |fraction: u64, denominator: u64| u128::from(fraction) * u128::from(denominator);
        unit.whole == own.whole
            && over(unit.fraction, own.denominator) == over(own.fraction, unit.denominator)
    }

    /// The part of the capacity that is not a whole unit, times another T; rounded down, which
    /// loses nothing, since every lead is a whole number of 1/D ticks.
    fn spare(&self, unit: u128) -> u128 {
        let part = self.tolerance - self.unit * u128::from(self.limit);
        if part == 0 {
            return 0;
        }
        // A capacity has nine places at most, so both are small.
        let divisor = gcd(part, self.unit);
        let (part, whole) = (part / divisor, self.unit / divisor);
        unit / whole * part + unit % whole * part / whole
    }

    fn parts_as_ticks(&self, parts: u128, denominator: u128) -> u64 {
        u64::try_from(parts.div_ceil(denominator)).unwrap_or(EXACT_MAX)
    }
}

impl Lent<'_> {
    /// Decides one request; the state is the one it was if it is denied.
    pub(super) fn step(&self, state: TatState, cost: Cost) -> Step<TatState> {
        match self.judge(cost) {
            Outcome::Admit => {
                let units = self.units().saturating_add(cost.units());
                let next = self.own.at(self.now) + self.own.unit * u128::from(units);
                let decision = self.own.decision(Outcome::Admit, next, self.now);
                Step { state: Some(self.own.state(next)), decision }
            }
            denied @ Outcome::Deny(_) => {
                Step { state: Some(state), decision: self.decision(denied) }
            }
        }
    }

    pub(super) fn peek(&self) -> Decision {
        self.decision(self.judge(Cost::ONE))
    }

    pub(super) fn forecast(&self, cost: Cost) -> Forecast {
        let spendable = self.remaining();
        let next_replenish_at = match self.own.limit.checked_sub(spendable.saturating_add(1)) {
            None => self.full_at,
            Some(within) => Micros::result(self.now.epoch_us() + self.wait(within).us()),
        };
        let spendable_now = spendable / cost.units();
        Forecast { spendable_now, next_replenish_at, full_at: self.full_at }
    }

    pub(super) fn used(&self) -> Share {
        Share::of(self.units(), self.own.limit)
    }

    fn judge(&self, cost: Cost) -> Outcome {
        let Some(within) = self.own.limit.checked_sub(cost.units()) else {
            return Outcome::Deny(Retry::Never);
        };
        match self.wait(within) {
            Span::ZERO => Outcome::Admit,
            wait => Outcome::Deny(Retry::After(wait)),
        }
    }

    fn decision(&self, outcome: Outcome) -> Decision {
        let (limit, remaining) = (self.own.limit, self.remaining());
        Decision { outcome, limit, remaining, reset_at: self.full_at }
    }

    /// ⌈u⌉.
    fn units(&self) -> u64 {
        u64::try_from(self.lead.div_ceil(self.unit)).unwrap_or(u64::MAX)
    }

    /// Whole units that fit beside what is lent.
    fn remaining(&self) -> u64 {
        let beyond = self.lead.saturating_sub(self.spare);
        let held = u64::try_from(beyond.div_ceil(self.unit)).unwrap_or(u64::MAX);
        self.own.limit.saturating_sub(held)
    }

    /// How long until no more is lent than so many units and what is spare.
    fn wait(&self, units: u64) -> Span {
        let units = u128::from(units);
        // Before multiplying: more units than are lent must not overflow.
        let allowed = if units > self.lead / self.unit { self.lead } else { units * self.unit };
        let beyond = self.lead.saturating_sub(allowed.saturating_add(self.spare));
        Span::from_us(self.own.parts_as_ticks(beyond, self.denominator))
    }
}

/// ⌈a · b / c⌉, exactly; the largest number there is if it is larger than that. All are below
/// 2^107, and c is not zero.
fn muldiv_ceil(a: u128, b: u128, c: u128) -> u128 {
    let (whole, part) = (b / c, b % c);
    let mut quotient = a.saturating_mul(whole);
    // a · part / c, bit by bit, the highest first.
    let (mut more, mut rest) = (0_u128, 0_u128);
    for bit in (0..u128::BITS - a.leading_zeros()).rev() {
        rest = 2 * rest + if a >> bit & 1 == 1 { part } else { 0 };
        more = more.saturating_mul(2).saturating_add(rest / c);
        rest %= c;
    }
    quotient = quotient.saturating_add(more);
    if rest > 0 { quotient.saturating_add(1) } else { quotient }
}
