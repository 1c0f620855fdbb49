//! A sliding window, estimated from a ring of buckets.
//!
//! The window is cut into S buckets. The estimate is the S newest buckets plus the part of the
//! one before them that the window still covers, as if its units had come evenly. S = 1 is the
//! classic estimator of two counters.
//!
//! # Guarantee
//! With buckets of width w = window / S: no interval of (S − 1)·w admits more than the limit, and
//! one of a whole window admits at most 2·limit − 1. The retry is the earliest instant that
//! admits, found by ageing the buckets one by one.
//!
//! # Proven by
//! `tests/it/oracle.rs::sliding_window_…`,
//! `tests/it/laws.rs::a_sliding_window_bounds_what_it_says`.

use alloc::boxed::Box;
use alloc::vec;

use crate::invalid::{counted, within};
use crate::{
    Cost, Decimal, Decision, EXACT_MAX, Forecast, Invalid, Micros, Outcome, Parameter, Retry,
    Share, Span, Step, Strategy,
};

/// At most about `limit` in any window, estimated from `buckets` buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    window: u64,
    buckets: u64,
}

/// What each bucket of the ring has admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingState {
    /// The latest instant admitted at; an earlier one is judged here.
    latest: Micros,
    /// The bucket that `latest` lies in. The ring holds it and the S before it.
    newest: u64,
    /// Bucket b is at place b mod (S + 1).
    counts: Box<[u64]>,
}

/// The state of the ring at one instant.
struct View {
    /// The bucket the instant lies in.
    index: u64,
    /// How far into the bucket it is, in 1/S ticks; the bucket is `window` of those long.
    elapsed: u64,
    /// Units in the S newest buckets.
    full: u64,
    /// Units in the bucket before those.
    oldest: u64,
}

impl SlidingWindow {
    /// The number of buckets a sliding window has if nobody says otherwise.
    pub const BUCKETS_DEFAULT: u64 = 10;

    /// The most buckets a sliding window may have.
    pub const BUCKETS_MAX: u64 = 1_000;

    /// Builds a sliding window.
    ///
    /// # Errors
    /// Zeroes, buckets shorter than a tick, and numbers that cannot be kept exact.
    pub fn new(limit: u64, window: Span, buckets: u64) -> Result<Self, Invalid> {
        let limit = counted(Parameter::Limit, limit)?;
        let buckets = within(Parameter::Buckets, buckets, Self::BUCKETS_MAX)?;
        // A place within a bucket is counted in 1/S ticks: window · S of them must be exact.
        let window_max = (EXACT_MAX / buckets).min(WINDOW_MAX);
        let window = within(Parameter::Window, window.us(), window_max)?;
        if window < buckets {
            let (parameter, given) = (Parameter::Window, window);
            return Err(Invalid::TooSmall { parameter, given, min: buckets });
        }
        Ok(Self { limit, window, buckets })
    }

    /// The most that the estimate may reach.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    #[must_use]
    pub const fn window(&self) -> Span {
        Span::from_us(self.window)
    }

    /// How many buckets the window is cut into.
    #[must_use]
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// The bytes that a key's ring takes.
    pub(crate) const fn heap_bytes_max(&self) -> u64 {
        (self.buckets + 1) * size_of::<u64>() as u64
    }

    /// The same window with a part of the limit; `None` if not one unit is left.
    pub(crate) fn scaled(&self, share: Decimal) -> Option<Self> {
        Some(Self { limit: share.of(self.limit)?, ..*self })
    }

    /// The bucket an instant lies in, and how far into it, in 1/S ticks.
    fn place(&self, at: Micros) -> (u64, u64) {
        // Below 2^52 · 1,000 < 2^62.
        let parts = at.epoch_us() * self.buckets;
        (parts / self.window, parts % self.window)
    }

    /// The first instant at or after `parts` 1/S ticks from the start of bucket `index`.
    fn instant(&self, index: u64, parts: u64) -> Micros {
        Micros::result((index * self.window + parts).div_ceil(self.buckets))
    }

    /// The instant to judge at: never earlier than one already admitted at.
    fn judged(state: Option<&SlidingState>, now: Micros) -> Micros {
        let now = now.judged();
        state.map_or(now, |state| state.latest.max(now))
    }

    fn view(&self, state: Option<&SlidingState>, at: Micros) -> View {
        let (index, elapsed) = self.place(at);
        let count = |bucket: Option<u64>| match (state, bucket) {
            (Some(state), Some(bucket)) => state.count(bucket),
            _ => 0,
        };
        let full = (0..self.buckets).map(|age| count(index.checked_sub(age))).sum();
        View { index, elapsed, full, oldest: count(index.checked_sub(self.buckets)) }
    }

    /// Whole units that fit at a view. The estimate is rounded up, since what remains is not to be
    /// promised too high.
    fn remaining(&self, view: &View) -> u64 {
        let weighted = u128::from(view.oldest) * u128::from(self.window - view.elapsed);
        let aged = u64::try_from(weighted.div_ceil(u128::from(self.window))).unwrap_or(EXACT_MAX);
        self.limit.saturating_sub(view.full.saturating_add(aged))
    }

    /// The earliest instant at which `cost` fits, for a cost that does not fit at the view.
    fn fits_at(&self, state: Option<&SlidingState>, view: View, cost: Cost) -> Micros {
        let mut view = view;
        let target = self.limit - cost.units();
        // While bucket b is the newest one, the estimate falls from full + oldest to full.
        while view.full > target {
            let next = view.index + 1;
            let leaving = next.checked_sub(self.buckets);
            let leaving = leaving.map_or(0, |bucket| state.map_or(0, |state| state.count(bucket)));
            view = View { index: next, elapsed: 0, full: view.full - leaving, oldest: leaving };
        }
        let room = u128::from(target - view.full);
        let oldest = u128::from(view.oldest);
        // full + oldest · (window − elapsed)/window ≤ target, solved for the first `elapsed`.
        let window = u128::from(self.window);
        let elapsed = match oldest.saturating_sub(room) {
            0 => 0,
            excess => (excess * window).div_ceil(oldest),
        };
        self.instant(view.index, u64::try_from(elapsed).unwrap_or(self.window))
    }

    fn decide(&self, state: Option<&SlidingState>, now: Micros, cost: Cost) -> Decision {
        let view = self.view(state, Self::judged(state, now));
        let remaining = self.remaining(&view);
        let reset_at = self.reset_at(&view);
        let (outcome, remaining) = if cost.units() > self.limit {
            (Outcome::Deny(Retry::Never), remaining)
        } else if cost.units() <= remaining {
            (Outcome::Admit, remaining - cost.units())
        } else {
            let wait = self.fits_at(state, view, cost).since(now);
            (Outcome::Deny(Retry::After(wait)), remaining)
        };
        Decision { outcome, limit: self.limit, remaining, reset_at }
    }

    /// When the bucket of a view, and with it everything, has left the window.
    fn reset_at(&self, view: &View) -> Micros {
        self.instant(view.index + 1 + self.buckets, 0)
    }
}

impl Strategy for SlidingWindow {
    type State = SlidingState;

    fn step(&self, state: Option<SlidingState>, now: Micros, cost: Cost) -> Step<SlidingState> {
        let decision = self.decide(state.as_ref(), now, cost);
        if !decision.is_admit() {
            return Step { state, decision };
        }
        let at = Self::judged(state.as_ref(), now);
        let (index, _) = self.place(at);
        let mut state = state.unwrap_or_else(|| SlidingState {
            latest: at,
            newest: index,
            counts: vec![0; usize::try_from(self.buckets + 1).unwrap_or(2)].into_boxed_slice(),
        });
        state.advance(at, index);
        *state.slot(index) += cost.units();
        Step { state: Some(state), decision }
    }

    fn ask(&self, state: Option<&SlidingState>, now: Micros, cost: Cost) -> Decision {
        self.decide(state, now, cost)
    }

    fn peek(&self, state: Option<&SlidingState>, now: Micros) -> Decision {
        let remaining = self.remaining(&self.view(state, Self::judged(state, now)));
        Decision { remaining, ..self.decide(state, now, Cost::ONE) }
    }

    fn forecast(&self, state: Option<&SlidingState>, now: Micros, cost: Cost) -> Forecast {
        let view = self.view(state, Self::judged(state, now));
        Forecast {
            spendable_now: self.remaining(&view) / cost.units(),
            next_replenish_at: self.instant(view.index + 1, 0),
            full_at: self.reset_at(&view),
        }
    }

    fn idle_at(&self, state: &SlidingState) -> Micros {
        self.instant(state.newest + 1 + self.buckets, 0)
    }

    fn used(&self, state: &SlidingState, now: Micros) -> Share {
        let view = self.view(Some(state), Self::judged(Some(state), now));
        Share::of(self.limit.saturating_sub(self.remaining(&view)), self.limit)
    }
}

impl SlidingState {
    /// Units admitted in a bucket; nothing if it is not in the ring.
    fn count(&self, bucket: u64) -> u64 {
        let length = self.counts.len() as u64;
        let held = bucket <= self.newest && self.newest - bucket < length;
        if held { self.counts[Self::at(bucket, length)] } else { 0 }
    }

    fn slot(&mut self, bucket: u64) -> &mut u64 {
        let length = self.counts.len() as u64;
        &mut self.counts[Self::at(bucket, length)]
    }

    fn at(bucket: u64, length: u64) -> usize {
        usize::try_from(bucket % length).unwrap_or(0)
    }

    /// Turns the ring forward to a bucket, emptying those it passes.
    fn advance(&mut self, at: Micros, bucket: u64) {
        let passed = (bucket - self.newest).min(self.counts.len() as u64);
        for age in 0..passed {
            *self.slot(bucket - age) = 0;
        }
        self.newest = bucket;
        self.latest = at;
    }
}

/// A window is at most this many ticks, so that the end of the next one stays below 2^53.
const WINDOW_MAX: u64 = (1 << 51) - 1;
