//! The grantor: one pure step over the counter that a limit shares.
//!
//! The counter is the strategy's own state. A node that leases and one that asks for every request
//! therefore share one limit.
//!
//! # Guarantee
//! - What is granted is charged as a check of that cost would be, so no window and no interval
//!   grants more than the limit.
//! - All that is needed is granted if the limit has it; if not even the least that helps is left,
//!   nothing is.
//! - A give-back restores no more than was granted and not spent: within the window that paid, and
//!   for a continuous limit only what has not come back by itself since, as if it had never been
//!   granted. Given back in full it could be renewed for ever; a mutant does that.
//! - A give-back goes by the numbers of the grant. If others have counted since, so that the state
//!   is of another rate, it restores nothing.
//!
//! # Proven by
//! `tests/it/lease.rs`, and the conformance suite of `admittance-testkit` for every store.

use core::fmt;

use super::{Ask, GIVE_BACK_MAX, GiveBack, Grant};
use crate::{
    Builtin, BuiltinState, Cost, Decision, Micros, Outcome, Strategy, Tat, TatState, Window,
    WindowState,
};

/// A strategy whose limit can be leased.
pub trait Grantor: Strategy {
    /// Charges what is granted of `ask`.
    fn grant(&self, state: Option<Self::State>, now: Micros, ask: Ask) -> Granted<Self::State> {
        let before = self.peek(state.as_ref(), now);
        let (left, ask) = (before.remaining, self.in_time(&before, now, ask.bounded()));
        let give = if left < ask.least { 0 } else { ask.want.max(ask.need).min(left) };
        let (state, after) = match Cost::new(give) {
            Some(cost) => {
                let step = self.step(state, now, cost);
                (step.state, step.decision)
            }
            None => (state, before),
        };
        // Who got nothing is told when there is something again.
        let missing = if give == 0 { ask.need.max(1) } else { ask.need.saturating_sub(give) };
        let outcome = match Cost::new(missing) {
            Some(rest) => self.ask(state.as_ref(), now, rest).outcome,
            None => Outcome::Admit,
        };
        Granted {
            state,
            grant: Grant { granted: give, decision: Decision { outcome, ..after }, at: now },
        }
    }

    /// Takes back what was not spent; says how many units that restored. The caller sees to it that
    /// a lease is given back once.
    fn give_back(
        &self,
        state: Option<Self::State>,
        now: Micros,
        back: &GiveBack,
    ) -> (Option<Self::State>, u64) {
        let Some(state) = state else { return (None, 0) };
        if now.since(back.granted_at) > GIVE_BACK_MAX {
            return (Some(state), 0);
        }
        let (state, restored) = self.restore(state, now, back);
        (Some(state), restored)
    }

    /// What is asked for that there is still time to use.
    #[doc(hidden)]
    fn in_time(&self, before: &Decision, now: Micros, ask: Ask) -> Ask;

    /// The state with the units back that had not come back without it.
    #[doc(hidden)]
    fn restore(&self, state: Self::State, now: Micros, back: &GiveBack) -> (Self::State, u64);
}

/// What one step of the grantor gives.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted<S> {
    /// The state after it.
    pub state: Option<S>,
    /// The answer to the holder.
    pub grant: Grant,
}

impl Grantor for Window {
    fn in_time(&self, before: &Decision, now: Micros, ask: Ask) -> Ask {
        let left = before.reset_at.since(now).us();
        if left < ask.round_trip.us().saturating_mul(ROUND_TRIPS_MIN) {
            return Ask { want: ask.need, ..ask };
        }
        ask
    }

    fn restore(&self, state: WindowState, now: Micros, back: &GiveBack) -> (WindowState, u64) {
        let judged = self.judged(Some(&state), now);
        if self.cadence.end(judged.index) != back.paid_until {
            return (state, 0);
        }
        let restored = back.units.min(judged.count);
        (WindowState { count: judged.count - restored, ..judged }, restored)
    }
}

impl Grantor for Tat {
    fn in_time(&self, _before: &Decision, _now: Micros, ask: Ask) -> Ask {
        ask
    }

    fn restore(&self, state: TatState, now: Micros, back: &GiveBack) -> (TatState, u64) {
        let came_back = self.units_in(now.since(back.granted_at));
        // Nobody holds more than the limit, unless it was lowered since.
        let units = back.units.min(self.limit).saturating_sub(came_back);
        let restored = units.min(self.whole_units_lent(&state, now));
        (self.without(&state, restored), restored)
    }
}

/// Calls the strategy with its own kind of state, if it can be leased.
macro_rules! leased {
    ($self:ident, $state:ident, |$inner:ident, $own:ident| $call:expr, $wrap:expr, $none:expr) => {
        match $self {
            Builtin::Window($inner) => {
                let $own = match $state {
                    Some(BuiltinState::Window(own)) => Some(own),
                    _ => None,
                };
                $wrap($call, BuiltinState::Window)
            }
            Builtin::Tat($inner) => {
                let $own = match $state {
                    Some(BuiltinState::Tat(own)) => Some(own),
                    _ => None,
                };
                $wrap($call, BuiltinState::Tat)
            }
            Builtin::SlidingWindow(_) | Builtin::SlidingLog(_) => $none,
        }
    };
}

impl Builtin {
    /// Grants as [`Grantor::grant`] does.
    ///
    /// # Errors
    /// The strategy cannot be leased.
    pub fn grant(
        &self,
        state: Option<BuiltinState>,
        now: Micros,
        ask: Ask,
    ) -> Result<Granted<BuiltinState>, NotLeasable> {
        fn wrap<S>(granted: Granted<S>, wrap: fn(S) -> BuiltinState) -> Granted<BuiltinState> {
            Granted { state: granted.state.map(wrap), grant: granted.grant }
        }
        Ok(leased!(
            self,
            state,
            |inner, own| inner.grant(own, now, ask),
            wrap,
            return Err(self.not_leasable())
        ))
    }

    /// Takes back as [`Grantor::give_back`] does.
    ///
    /// # Errors
    /// The strategy cannot be leased.
    pub fn give_back(
        &self,
        state: Option<BuiltinState>,
        now: Micros,
        back: &GiveBack,
    ) -> Result<(Option<BuiltinState>, u64), NotLeasable> {
        fn wrap<S>(
            (state, restored): (Option<S>, u64),
            wrap: fn(S) -> BuiltinState,
        ) -> (Option<BuiltinState>, u64) {
            (state.map(wrap), restored)
        }
        Ok(leased!(
            self,
            state,
            |inner, own| inner.give_back(own, now, back),
            wrap,
            return Err(self.not_leasable())
        ))
    }

    /// Whether the limit can be leased.
    ///
    /// # Errors
    /// Why it cannot.
    pub const fn leasable(&self) -> Result<(), NotLeasable> {
        match self {
            Self::Window(_) | Self::Tat(_) => Ok(()),
            Self::SlidingWindow(_) | Self::SlidingLog(_) => Err(self.not_leasable()),
        }
    }

    const fn not_leasable(&self) -> NotLeasable {
        NotLeasable(())
    }
}

/// Why a strategy cannot be leased: a unit spent late moves a sliding window that has already been
/// judged, so that no lease of it has an end. Use it in mode strict or cached-deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLeasable(());

impl fmt::Display for NotLeasable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "sliding windows, sliding logs and rolling quotas cannot be leased: what a lease \
             spends late would belong to a window already judged; use mode strict or cached-deny",
        )
    }
}

impl core::error::Error for NotLeasable {}

/// A lease must outlive this many round trips, or it is not given.
const ROUND_TRIPS_MIN: u64 = 4;
