//! A budget per window: fixed windows, and quotas that reset on a civil boundary.
//!
//! # Guarantee
//! No window admits more than the limit. Across a boundary up to twice the limit can pass in less
//! than a window's length: that is what a fixed window is, and a test holds it.
//! A clock that steps back into an earlier window meets the later one's count, not a fresh budget.
//!
//! # Proven by
//! `tests/it/oracle.rs::windows_…`,
//! `tests/it/laws.rs::a_fixed_window_admits_twice_across_a_boundary`.

use crate::invalid::counted;
use crate::{
    Cadence, Cost, Decimal, Decision, Forecast, Invalid, Micros, Outcome, Parameter, Retry, Share,
    Span, Step, Strategy,
};

/// At most `limit` per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub(crate) limit: u64,
    pub(crate) cadence: Cadence,
}

/// What was spent in the latest window that admitted anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowState {
    /// The window's index.
    pub index: u64,
    /// Units spent in it; none only if all were given back.
    pub count: u64,
}

impl Window {
    /// Epoch-aligned windows of one length.
    ///
    /// # Errors
    /// Zeroes, and numbers that cannot be kept exact.
    pub fn fixed(limit: u64, window: Span) -> Result<Self, Invalid> {
        Self::quota(limit, Cadence::every(window))
    }

    /// Windows that begin as the cadence says.
    ///
    /// # Errors
    /// Zeroes, numbers that cannot be kept exact, and offsets that no place has.
    pub fn quota(limit: u64, cadence: Cadence) -> Result<Self, Invalid> {
        Ok(Self { limit: counted(Parameter::Limit, limit)?, cadence: cadence.checked()? })
    }

    /// The budget of one window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// When the windows begin.
    #[must_use]
    pub const fn cadence(&self) -> Cadence {
        self.cadence
    }

    /// The same windows with a part of the budget; `None` if not one unit is left.
    pub(crate) fn scaled(&self, share: Decimal) -> Option<Self> {
        Some(Self { limit: share.of(self.limit)?, ..*self })
    }

    /// The window to judge at and what it has spent: the latest of now's and the state's, so that
    /// stepping back in time opens nothing.
    pub(crate) fn judged(&self, state: Option<&WindowState>, now: Micros) -> WindowState {
        let index = self.cadence.index(now);
        match state {
            Some(state) if state.index >= index => *state,
            _ => WindowState { index, count: 0 },
        }
    }

    pub(crate) fn decide(&self, judged: WindowState, now: Micros, cost: Cost) -> Decision {
        let left = self.limit.saturating_sub(judged.count);
        let reset_at = self.cadence.end(judged.index);
        let (outcome, remaining) = if cost.units() > self.limit {
            (Outcome::Deny(Retry::Never), left)
        } else if cost.units() <= left {
            (Outcome::Admit, left - cost.units())
        } else {
            (Outcome::Deny(Retry::After(reset_at.since(now))), left)
        };
        Decision { outcome, limit: self.limit, remaining, reset_at }
    }
}

impl Strategy for Window {
    type State = WindowState;

    fn step(&self, state: Option<WindowState>, now: Micros, cost: Cost) -> Step<WindowState> {
        let judged = self.judged(state.as_ref(), now);
        let decision = self.decide(judged, now, cost);
        if !decision.is_admit() {
            return Step { state, decision };
        }
        let count = judged.count + cost.units();
        Step { state: Some(WindowState { count, ..judged }), decision }
    }

    fn peek(&self, state: Option<&WindowState>, now: Micros) -> Decision {
        let judged = self.judged(state, now);
        let decision = self.decide(judged, now, Cost::ONE);
        Decision { remaining: self.limit.saturating_sub(judged.count), ..decision }
    }

    fn forecast(&self, state: Option<&WindowState>, now: Micros, cost: Cost) -> Forecast {
        let judged = self.judged(state, now);
        let end = self.cadence.end(judged.index);
        Forecast {
            spendable_now: self.limit.saturating_sub(judged.count) / cost.units(),
            next_replenish_at: end,
            full_at: end,
        }
    }

    fn idle_at(&self, state: &WindowState) -> Micros {
        self.cadence.end(state.index)
    }

    fn follows_calendar(&self) -> bool {
        true
    }

    fn used(&self, state: &WindowState, now: Micros) -> Share {
        if self.idle_at(state) <= now { Share::NONE } else { Share::of(state.count, self.limit) }
    }
}
