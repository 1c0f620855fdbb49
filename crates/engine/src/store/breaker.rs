//! When to stop asking a store that does not answer, and when to ask it again.
//!
//! ```text
//!            a run of failures, or too many of a window
//!   closed ───────────────────────────────────────────► open ◄────────┐
//!     ▲                                                  │            │
//!     │                                         a probe passes        │ a probe fails
//!     │                                                  ▼            │
//!     └────────── enough probes in a row pass ─────── probing ────────┘
//! ```
//!
//! A machine that is fed: it has no clock, no task and no store. Time is a span since its owner
//! began, on a clock that does not step back. Requests pass while it is closed and at no other
//! time; whoever owns it makes the probes.
//!
//! Two rules open it, because each misses what the other sees. A store that is gone fails every
//! ask: a short run of failures shows that soonest. A store that is slow answers some and not
//! others, so that no run gets long: the share of failures within a window shows that. Windows
//! follow one another and do not slide, so two counters are enough.
//!
//! # Guarantee
//! - While it is open or probing no request passes.
//! - Answers to what was asked before it last opened change nothing: a late success does not close
//!   it and a late failure does not open it again.
//! - It holds a handful of numbers, whatever happens.
//!
//! # Proven by
//! The tests below, against a model and with machines that are nearly right; `tests/it/guarded.rs`.
//!
//! # Example
//! ```
//! use admittance::{Breaker, BreakerRules, BreakerState, Span};
//! let rules = BreakerRules { run_max: 2, probes_needed: 1, ..BreakerRules::default() };
//! let mut breaker = Breaker::new(rules);
//! let at = Span::from_ms;
//! for ms in [1, 2] {
//!     let pass = breaker.pass().expect("closed");
//!     breaker.handle_answer(pass, at(ms), false);
//! }
//! assert_eq!((breaker.state(), breaker.pass()), (BreakerState::Open, None));
//! assert_eq!(breaker.poll_probe(), Some(at(2)), "the first probe is due at once");
//! breaker.handle_probe(at(2), true);
//! assert_eq!(breaker.state(), BreakerState::Closed);
//! ```

use admittance_core::Span;

/// When a [`Breaker`] opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRules {
    /// Opens after this many failures in a row; at least one.
    pub run_max: u32,
    /// How long a window is, over which failures are counted.
    pub window: Span,
    /// Opens if within a window this many were asked, or more, and too many of them failed.
    pub asked_min: u32,
    /// How many of a hundred may fail within a window; at this many it opens.
    pub failed_percent: u32,
    /// How long after a probe the next one is made, while it is open or probing.
    pub probe_every: Span,
    /// Closes after this many probes in a row have passed; at least one.
    pub probes_needed: u32,
}

impl Default for BreakerRules {
    /// Opens after 8 failures in a row, or when half of at least 32 within a second failed; probes
    /// every 100 ms, and closes after 3 that passed.
    fn default() -> Self {
        Self {
            run_max: 8,
            window: Span::from_secs(1),
            asked_min: 32,
            failed_percent: 50,
            probe_every: Span::from_ms(100),
            probes_needed: 3,
        }
    }
}

/// What a [`Breaker`] does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// They pass.
    Closed,
    /// They do not, and the last probe failed or none was made yet.
    Open,
    /// They do not yet, but the last probe passed.
    Probing,
}

/// Leave to ask the store once; its answer is told with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    opened: u64,
}

/// Decides whether a store is asked at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    rules: BreakerRules,
    place: Place,
    /// How often it has opened.
    opened: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Closed {
        /// Failures since the last success.
        run: u32,
        window_began: Span,
        asked: u32,
        failed: u32,
    },
    Open {
        probe_at: Span,
    },
    Probing {
        passed: u32,
        probe_at: Span,
    },
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub const fn new(rules: BreakerRules) -> Self {
        Self { rules, place: closed(Span::ZERO), opened: 0 }
    }

    /// What it does with requests now.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        match self.place {
            Place::Closed { .. } => BreakerState::Closed,
            Place::Open { .. } => BreakerState::Open,
            Place::Probing { .. } => BreakerState::Probing,
        }
    }

    /// How often it has opened.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    /// Leave to ask the store, if there is any.
    #[must_use]
    pub const fn pass(&self) -> Option<Pass> {
        match self.place {
            Place::Closed { .. } => Some(Pass { opened: self.opened }),
            Place::Open { .. } | Place::Probing { .. } => None,
        }
    }

    /// Takes in whether the store answered what was asked with `pass`. Says whether this opened it.
    pub fn handle_answer(&mut self, pass: Pass, now: Span, answered: bool) -> bool {
        let Place::Closed { run, window_began, asked, failed } = &mut self.place else {
            return false;
        };
        if pass.opened != self.opened {
            return false;
        }
        if now.us().saturating_sub(window_began.us()) >= self.rules.window.us() {
            (*window_began, *asked, *failed) = (now, 0, 0);
        }
        *asked = asked.saturating_add(1);
        if answered {
            *run = 0;
            return false;
        }
        *run = run.saturating_add(1);
        *failed = failed.saturating_add(1);
        let too_many = u64::from(*failed) * 100
            >= u64::from(*asked) * u64::from(self.rules.failed_percent)
            && *asked >= self.rules.asked_min;
        if *run < self.rules.run_max && !too_many {
            return false;
        }
        self.opened += 1;
        // At once: what looked like an outage may have been a moment.
        self.place = Place::Open { probe_at: now };
        true
    }

    /// When the next probe is due; `None` while it is closed.
    #[must_use]
    pub const fn poll_probe(&self) -> Option<Span> {
        match self.place {
            Place::Closed { .. } => None,
            Place::Open { probe_at } | Place::Probing { probe_at, .. } => Some(probe_at),
        }
    }

    /// Takes in how a probe went. Says whether this closed it.
    pub fn handle_probe(&mut self, now: Span, passed: bool) -> bool {
        let probe_at = Span::from_us(now.us().saturating_add(self.rules.probe_every.us()));
        let before = match self.place {
            Place::Closed { .. } => return false,
            Place::Open { .. } => 0,
            Place::Probing { passed, .. } => passed,
        };
        self.place = match (passed, before + 1 >= self.rules.probes_needed) {
            (true, true) => closed(now),
            (true, false) => Place::Probing { passed: before + 1, probe_at },
            (false, _) => Place::Open { probe_at },
        };
        self.state() == BreakerState::Closed
    }
}

const fn closed(now: Span) -> Place {
    Place::Closed { run: 0, window_began: now, asked: 0, failed: 0 }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
