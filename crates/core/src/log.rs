//! A sliding window, exact: the instant of every accepted unit is kept.
//!
//! # Guarantee
//! No interval of a window's length, open at its start, admits more than the limit. The price is
//! memory: up to one entry per unit of the limit, which is why the limit is capped. Units admitted
//! at one instant share an entry.
//!
//! # Proven by
//! `tests/it/oracle.rs::sliding_log_…`, `tests/it/laws.rs::a_sliding_log_bounds_every_window`.

use alloc::collections::VecDeque;

use crate::invalid::within;
use crate::{
    Cost, Decimal, Decision, Forecast, Invalid, Micros, Outcome, Parameter, Retry, Share, Span,
    Step, Strategy,
};

/// At most `limit` in any window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    window: Span,
}

/// When the accepted units came, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// Instants, strictly rising, with the units accepted at each.
    entries: VecDeque<(Micros, u64)>,
    /// The sum of the units.
    units: u64,
}

impl SlidingLog {
    /// The largest limit: 16 bytes each, so 1.6 MB for a key that uses all of it.
    pub const LIMIT_MAX: u64 = 100_000;

    /// Builds a sliding log.
    ///
    /// # Errors
    /// Zeroes, a limit above [`LIMIT_MAX`](Self::LIMIT_MAX), a window of 2^52 ticks or more.
    pub fn new(limit: u64, window: Span) -> Result<Self, Invalid> {
        let limit = within(Parameter::Limit, limit, Self::LIMIT_MAX)?;
        within(Parameter::Window, window.us(), WINDOW_MAX)?;
        Ok(Self { limit, window })
    }

    /// The most units in any window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    #[must_use]
    pub const fn window(&self) -> Span {
        self.window
    }

    /// The same window with a part of the limit; `None` if not one unit is left.
    pub(crate) fn scaled(&self, share: Decimal) -> Option<Self> {
        Some(Self { limit: share.of(self.limit)?, ..*self })
    }

    /// The instant to judge at: never earlier than one already admitted at.
    fn judged(state: Option<&LogState>, now: Micros) -> Micros {
        let latest = state.and_then(|state| state.entries.back());
        latest.map_or(now.judged(), |&(latest, _)| latest.max(now.judged()))
    }

    fn is_live(&self, entry: Micros, at: Micros) -> bool {
        entry + self.window > at
    }

    /// The entries still in the window that ends at `at`, oldest first.
    fn live<'a>(
        &self,
        state: Option<&'a LogState>,
        at: Micros,
    ) -> impl Iterator<Item = (Micros, u64)> + use<'a> {
        let (all, expired) = match state {
            Some(state) => (state.entries.range(..), self.expired(state, at).0),
            None => (EMPTY.range(..), 0),
        };
        all.skip(expired).copied()
    }

    /// How many entries, and how many units in them, have left the window.
    fn expired(&self, state: &LogState, at: Micros) -> (usize, u64) {
        let gone = state.entries.iter().take_while(|(entry, _)| !self.is_live(*entry, at));
        gone.fold((0, 0), |(entries, units), (_, more)| (entries + 1, units + more))
    }

    fn live_units(&self, state: Option<&LogState>, at: Micros) -> u64 {
        state.map_or(0, |state| state.units - self.expired(state, at).1)
    }

    fn decide(&self, state: Option<&LogState>, now: Micros, cost: Cost) -> Decision {
        let at = Self::judged(state, now);
        let live = self.live_units(state, at);
        // A limit that was lowered since may be exceeded already.
        let left = self.limit.saturating_sub(live);
        let oldest = self.live(state, at).next().map(|(entry, _)| entry);
        let reset_at = oldest.unwrap_or(at) + self.window;
        let (outcome, remaining) = if cost.units() > self.limit {
            (Outcome::Deny(Retry::Never), left)
        } else if cost.units() <= left {
            (Outcome::Admit, left - cost.units())
        } else {
            let wait = self.frees_at(state, at, live + cost.units() - self.limit).since(now);
            (Outcome::Deny(Retry::After(wait)), left)
        };
        Decision { outcome, limit: self.limit, remaining, reset_at }
    }

    /// When `units` of the live ones will have left the window.
    fn frees_at(&self, state: Option<&LogState>, at: Micros, units: u64) -> Micros {
        let mut freed = 0;
        for (entry, more) in self.live(state, at) {
            freed += more;
            if freed >= units {
                return entry + self.window;
            }
        }
        at + self.window
    }
}

impl Strategy for SlidingLog {
    type State = LogState;

    fn step(&self, state: Option<LogState>, now: Micros, cost: Cost) -> Step<LogState> {
        let decision = self.decide(state.as_ref(), now, cost);
        if !decision.is_admit() {
            // Nothing is pruned here either: a denial must not make a later step back forget.
            return Step { state, decision };
        }
        let at = Self::judged(state.as_ref(), now);
        let mut state = state.unwrap_or(LogState { entries: VecDeque::new(), units: 0 });
        let (entries, units) = self.expired(&state, at);
        state.entries.drain(..entries);
        state.units = state.units - units + cost.units();
        match state.entries.back_mut() {
            Some((latest, units)) if *latest == at => *units += cost.units(),
            _ => state.entries.push_back((at, cost.units())),
        }
        Step { state: Some(state), decision }
    }

    fn ask(&self, state: Option<&LogState>, now: Micros, cost: Cost) -> Decision {
        self.decide(state, now, cost)
    }

    fn peek(&self, state: Option<&LogState>, now: Micros) -> Decision {
        let live = self.live_units(state, Self::judged(state, now));
        Decision {
            remaining: self.limit.saturating_sub(live),
            ..self.decide(state, now, Cost::ONE)
        }
    }

    fn forecast(&self, state: Option<&LogState>, now: Micros, cost: Cost) -> Forecast {
        let at = Self::judged(state, now);
        let oldest = self.live(state, at).next().map(|(entry, _)| entry);
        let newest = state.and_then(|state| state.entries.back()).map(|&(entry, _)| entry);
        let leaves = |entry: Option<Micros>| match (oldest, entry) {
            (Some(_), Some(entry)) => entry + self.window,
            _ => at,
        };
        Forecast {
            spendable_now: self.limit.saturating_sub(self.live_units(state, at)) / cost.units(),
            next_replenish_at: leaves(oldest),
            full_at: leaves(newest),
        }
    }

    fn idle_at(&self, state: &LogState) -> Micros {
        state.entries.back().map_or(Micros::ZERO, |&(latest, _)| latest + self.window)
    }

    fn used(&self, state: &LogState, now: Micros) -> Share {
        Share::of(self.live_units(Some(state), Self::judged(Some(state), now)), self.limit)
    }
}

static EMPTY: VecDeque<(Micros, u64)> = VecDeque::new();

/// A window is at most this many ticks, so that its end stays below 2^53.
const WINDOW_MAX: u64 = (1 << 52) - 1;
