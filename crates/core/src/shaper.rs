//! A leaky bucket that delays instead of denying.
//!
//! Units leave one by one, `T` apart. A request that comes while others are still leaving is told
//! how long to wait; once `max_queue` units wait, it is refused.
//!
//! # Guarantee
//! Accepted units start no faster than the rate, in the order they were accepted, and none waits
//! longer than `max_queue · T`. A refusal changes nothing, and its retry is exact.
//!
//! # Proven by
//! `tests/it/laws.rs::a_shaper_spaces_what_it_accepts`.

use crate::{
    Cost, Gcra, Invalid, Micros, Outcome, Parameter, Retry, Span, Strategy, Tat, TatState,
};

/// Spreads requests evenly, with a bound on how many may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaper {
    /// One starts and `max_queue` wait: a burst of `max_queue + 1` is accepted at one instant.
    tat: Tat,
}

/// What a shaper answers.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaped {
    /// Start after this long; the place is taken.
    Start {
        /// How long to wait, possibly not at all.
        delay: Span,
        /// The state to keep.
        state: TatState,
    },
    /// The queue is full; nothing changed.
    Refuse(Retry),
}

impl Shaper {
    /// Builds a shaper of `limit` units per `period` in which at most `max_queue` units wait.
    ///
    /// # Errors
    /// Zeroes (but `max_queue` may be zero) and numbers that cannot be kept exact.
    pub fn new(limit: u64, period: Span, max_queue: u64) -> Result<Self, Invalid> {
        let burst = max_queue.saturating_add(1);
        let tat = Tat::gcra(Gcra { limit, period, burst }).map_err(|invalid| match invalid {
            Invalid::TooLarge { parameter: Parameter::Burst, max, .. } => {
                let (parameter, given) = (Parameter::MaxQueue, max_queue);
                Invalid::TooLarge { parameter, given, max: max - 1 }
            }
            other => other,
        })?;
        Ok(Self { tat })
    }

    /// Takes a place for a request of `cost`, or says why not. `None` is a shaper never used.
    pub fn step(&self, state: Option<TatState>, now: Micros, cost: Cost) -> Shaped {
        let start = state.map_or(now, |state| self.tat.idle_at(&state));
        let step = self.tat.step(state, now, cost);
        match (step.decision.outcome, step.state) {
            (Outcome::Deny(retry), _) => Shaped::Refuse(retry),
            (Outcome::Admit, Some(state)) => Shaped::Start { delay: start.since(now), state },
            (Outcome::Admit, None) => unreachable!("an admission leaves a state"),
        }
    }
}
