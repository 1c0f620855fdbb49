//! The shape every rate algorithm has: one total, pure step.

use crate::{Cost, Decision, Micros};

/// A rate algorithm: total, pure functions of their arguments.
///
/// The built-in ones are [`Tat`](crate::Tat) (gcra and token bucket), [`Window`](crate::Window)
/// (fixed windows and calendar quotas), [`SlidingWindow`](crate::SlidingWindow) and
/// [`SlidingLog`](crate::SlidingLog). Implement it for your own: every store can run it.
///
/// # Laws
/// - A denial returns the state it was given.
/// - [`ask`](Self::ask) says what [`step`](Self::step) would say.
/// - From [`idle_at`](Self::idle_at) on, a state decides as `None` does.
/// - A `now` earlier than one already admitted at never admits more than that one would have.
pub trait Strategy {
    /// Everything remembered about one key.
    type State: Clone;

    /// Decides one request of `cost` at `now`. `None` is a key never seen. The state goes in and
    /// comes out by value, so that a large one is changed in place without a copy.
    fn step(&self, state: Option<Self::State>, now: Micros, cost: Cost) -> Step<Self::State>;

    /// What [`step`](Self::step) would decide. Override it where a clone of the state is dear.
    fn ask(&self, state: Option<&Self::State>, now: Micros, cost: Cost) -> Decision {
        self.step(state.cloned(), now, cost).decision
    }

    /// Admits if a request of cost 1 would be admitted; `remaining` is what is there before any
    /// charge. Nothing is consumed.
    fn peek(&self, state: Option<&Self::State>, now: Micros) -> Decision;

    /// When there will be more, and when there will be everything.
    fn forecast(&self, state: Option<&Self::State>, now: Micros, cost: Cost) -> Forecast;

    /// The instant from which the state decides as `None` does, so that a store may forget it.
    fn idle_at(&self, state: &Self::State) -> Micros;

    /// Whether its windows begin and end when a wall clock says. The instants it is given are then
    /// the wall clock's, and else of a clock that nobody sets.
    fn follows_calendar(&self) -> bool {
        false
    }

    /// How much of the limit is in use at `now`. A full store forgets the key with the least.
    fn used(&self, state: &Self::State, now: Micros) -> Share;
}

/// What one step gives: the state to keep and the answer to send.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<S> {
    /// The state after the step; `None` only if there was none and the request was denied.
    pub state: Option<S>,
    /// The answer.
    pub decision: Decision,
}

/// What is spendable, and when that changes if nobody spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forecast {
    /// How many requests of the asked cost would pass right now.
    pub spendable_now: u64,
    /// The next instant at which more can pass. Rounded up.
    pub next_replenish_at: Micros,
    /// The instant at which everything can pass again. Rounded up.
    pub full_at: Micros,
}

/// A fraction of a limit, from 0 to 1 in steps of 2^-32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// The whole limit.
    pub const WHOLE: Self = Self(1 << 32);

    /// `part` of `whole`, at most the whole.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        if part >= whole {
            return Self::WHOLE;
        }
        let parts = (u128::from(part) << 32) / u128::from(whole);
        Self(u64::try_from(parts).unwrap_or(Self::WHOLE.0))
    }
}
