//! A limit that begins with nothing left, for a node that goes on alone.
//!
//! When a shared store is lost, nobody knows what was admitted a moment ago. Who assumes that it
//! was everything cannot be wrong in the dangerous direction.
//!
//! # Guarantee
//! A key never seen decides as one whose whole limit was spent at `since`. So a node that starts
//! its part of a limit this way adds nothing to what the store admitted before.
//!
//! # Proven by
//! `tests/it/laws.rs::a_spent_limit_…`.

use crate::{Cost, Decision, Forecast, Micros, Share, Step, Strategy};

/// A strategy whose keys have spent everything at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentAt<S> {
    inner: S,
    limit: Cost,
    since: Micros,
}

impl<S: Strategy> SpentAt<S> {
    /// `inner`, of which `limit` units were spent at `since`.
    pub const fn new(inner: S, limit: Cost, since: Micros) -> Self {
        Self { inner, limit, since }
    }

    /// What decides once something has come back.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn state(&self, state: Option<S::State>) -> Option<S::State> {
        state.or_else(|| self.inner.step(None, self.since, self.limit).state)
    }
}

impl<S: Strategy> Strategy for SpentAt<S> {
    type State = S::State;

    fn step(&self, state: Option<S::State>, now: Micros, cost: Cost) -> Step<S::State> {
        let is_new = state.is_none();
        let step = self.inner.step(self.state(state), now, cost);
        // A denial leaves what was there: nothing.
        let keeps = step.decision.is_admit() || !is_new;
        Step { state: step.state.filter(|_| keeps), decision: step.decision }
    }

    fn ask(&self, state: Option<&S::State>, now: Micros, cost: Cost) -> Decision {
        self.inner.ask(self.state(state.cloned()).as_ref(), now, cost)
    }

    fn peek(&self, state: Option<&S::State>, now: Micros) -> Decision {
        self.inner.peek(self.state(state.cloned()).as_ref(), now)
    }

    fn forecast(&self, state: Option<&S::State>, now: Micros, cost: Cost) -> Forecast {
        self.inner.forecast(self.state(state.cloned()).as_ref(), now, cost)
    }

    fn idle_at(&self, state: &S::State) -> Micros {
        self.inner.idle_at(state)
    }

    fn used(&self, state: &S::State, now: Micros) -> Share {
        self.inner.used(state, now)
    }
}
