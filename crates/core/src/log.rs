//! A sliding window, exact: the instant of every accepted unit is kept.
//!
//! # Guarantee
//! - No interval of a window's length, open at its start, admits more than the limit. The price is
//!   memory: up to one entry per unit of the limit, which is why the limit is capped. Units
//!   admitted at one instant share an entry.
//! - A check of a log with n entries reads O(log n) of them, whether it admits or denies.
//! - A log never has room for more entries than its limit, however it was filled.
//!
//! # Proven by
//! `tests/it/oracle.rs::sliding_log_…`, `tests/it/laws.rs::a_sliding_log_bounds_every_window`, and
//! the tests below, which count reads.

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    entries: VecDeque<Entry>,
    /// The units before the first entry: what lies between two entries is a difference, so whatever
    /// is looked for is found by halving.
    base: u64,
}

/// The units accepted at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Strictly after the entry before.
    at: Micros,
    /// All units up to and including this entry. Counts round at 2^64.
    total: u64,
}

/// A log at one instant.
#[derive(Clone, Copy)]
struct View {
    at: Micros,
    /// Entries that have left the window, and the total up to them.
    gone: usize,
    gone_total: u64,
    /// Units in the window.
    live: u64,
    /// The first entry in the window.
    oldest: Option<Micros>,
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

    /// The most bytes that a key's entries take.
    pub(crate) const fn heap_bytes_max(&self) -> u64 {
        self.limit * size_of::<Entry>() as u64
    }

    /// The same window with a part of the limit; `None` if not one unit is left.
    pub(crate) fn scaled(&self, share: Decimal) -> Option<Self> {
        Some(Self { limit: share.of(self.limit)?, ..*self })
    }

    /// The log as it is at `now`, or at the latest instant admitted at if that is later.
    fn view(&self, state: Option<&LogState>, now: Micros) -> View {
        let (at, empty) = (now.judged(), LogState::default());
        let state = state.unwrap_or(&empty);
        let Some(latest) = state.latest() else {
            return View { at, gone: 0, gone_total: 0, live: 0, oldest: None };
        };
        let at = latest.at.max(at);
        let gone = state.first(0, |entry| entry.at + self.window > at);
        let gone_total = if gone == 0 { state.base } else { state.entry(gone - 1).total };
        let oldest = (gone < state.entries.len()).then(|| state.entry(gone).at);
        View { at, gone, gone_total, live: latest.total.wrapping_sub(gone_total), oldest }
    }

    fn left(&self, view: &View) -> u64 {
        // A limit that was lowered since may be exceeded already.
        self.limit.saturating_sub(view.live)
    }

    fn decide(&self, state: Option<&LogState>, view: &View, now: Micros, cost: Cost) -> Decision {
        let left = self.left(view);
        let reset_at = view.oldest.unwrap_or(view.at) + self.window;
        let (outcome, remaining) = if cost.units() > self.limit {
            (Outcome::Deny(Retry::Never), left)
        } else if cost.units() <= left {
            (Outcome::Admit, left - cost.units())
        } else {
            let frees_at = self.frees_at(state, view, view.live + cost.units() - self.limit);
            (Outcome::Deny(Retry::After(frees_at.since(now))), left)
        };
        Decision { outcome, limit: self.limit, remaining, reset_at }
    }

    /// When `units` of the live ones will have left the window.
    fn frees_at(&self, state: Option<&LogState>, view: &View, units: u64) -> Micros {
        let Some(state) = state else { return view.at + self.window };
        let is_enough = |entry: Entry| entry.total.wrapping_sub(view.gone_total) >= units;
        let enough = state.first(view.gone, is_enough);
        let last = if enough < state.entries.len() { state.entry(enough).at } else { view.at };
        last + self.window
    }
}

impl LogState {
    /// Entry number `place`. Every read of the entries is made here or in [`latest`](Self::latest).
    fn entry(&self, place: usize) -> Entry {
        #[cfg(test)]
        tests::count_read();
        self.entries[place]
    }

    fn latest(&self) -> Option<Entry> {
        (!self.entries.is_empty()).then(|| self.entry(self.entries.len() - 1))
    }

    /// The first entry from `from` on that `is_found`, by halving: if an entry is, so are all after
    /// it. The number of entries if none is.
    fn first(&self, from: usize, is_found: impl Fn(Entry) -> bool) -> usize {
        let (mut low, mut high) = (from, self.entries.len());
        while low < high {
            let middle = low.midpoint(high);
            match is_found(self.entry(middle)) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    }

    /// Drops what has left the window. If everything has, the log begins anew.
    fn forget(&mut self, view: &View) {
        self.entries.drain(..view.gone);
        self.base = if self.entries.is_empty() { 0 } else { view.gone_total };
    }

    /// Adds units at an instant not before the latest one.
    fn admit(&mut self, at: Micros, units: u64, entries_max: u64) {
        let latest = self.latest();
        let total = latest.map_or(self.base, |latest| latest.total).wrapping_add(units);
        if latest.is_some_and(|latest| latest.at == at) {
            self.entries.pop_back();
        }
        self.make_room(entries_max);
        self.entries.push_back(Entry { at, total });
    }

    /// Makes room for one entry: twice as much as there was, but never for more than there can be.
    fn make_room(&mut self, entries_max: u64) {
        let count = self.entries.len();
        if count == self.entries.capacity() {
            let most = usize::try_from(entries_max).unwrap_or(usize::MAX).max(count + 1);
            let room = (2 * count).clamp(ENTRIES_AT_FIRST.min(most), most);
            self.entries.reserve_exact(room - count);
        }
    }
}

impl Strategy for SlidingLog {
    type State = LogState;

    fn step(&self, state: Option<LogState>, now: Micros, cost: Cost) -> Step<LogState> {
        let view = self.view(state.as_ref(), now);
        let decision = self.decide(state.as_ref(), &view, now, cost);
        if !decision.is_admit() {
            // Nothing is pruned here either: a denial must not make a later step back forget.
            return Step { state, decision };
        }
        let mut state = state.unwrap_or_default();
        state.forget(&view);
        state.admit(view.at, cost.units(), self.limit);
        Step { state: Some(state), decision }
    }

    fn ask(&self, state: Option<&LogState>, now: Micros, cost: Cost) -> Decision {
        self.decide(state, &self.view(state, now), now, cost)
    }

    fn peek(&self, state: Option<&LogState>, now: Micros) -> Decision {
        let view = self.view(state, now);
        Decision { remaining: self.left(&view), ..self.decide(state, &view, now, Cost::ONE) }
    }

    fn forecast(&self, state: Option<&LogState>, now: Micros, cost: Cost) -> Forecast {
        let view = self.view(state, now);
        let newest = state.and_then(LogState::latest);
        let leaves = |entry: Option<Micros>| match (view.oldest, entry) {
            (Some(_), Some(entry)) => entry + self.window,
            _ => view.at,
        };
        Forecast {
            spendable_now: self.left(&view) / cost.units(),
            next_replenish_at: leaves(view.oldest),
            full_at: leaves(newest.map(|newest| newest.at)),
        }
    }

    fn idle_at(&self, state: &LogState) -> Micros {
        state.latest().map_or(Micros::ZERO, |latest| latest.at + self.window)
    }

    fn used(&self, state: &LogState, now: Micros) -> Share {
        Share::of(self.view(Some(state), now).live, self.limit)
    }
}

/// A window is at most this many ticks, so that its end stays below 2^53.
const WINDOW_MAX: u64 = (1 << 52) - 1;
/// Entries that a new log has room for.
const ENTRIES_AT_FIRST: usize = 4;

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    std::thread_local! {
        static READS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count_read() {
        READS.set(READS.get() + 1);
    }

    fn reads<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let before = READS.get();
        let done = work();
        (done, READS.get() - before)
    }

    fn at(us: u64) -> Micros {
        Micros::from_epoch_us(1_700_000_000_000_000 + us).unwrap()
    }

    fn cost(units: u64) -> Cost {
        Cost::new(units).unwrap()
    }

    /// A log of as many entries as its limit, a tick apart.
    fn full(limit: u64) -> (SlidingLog, Option<LogState>) {
        let log = SlidingLog::new(limit, Span::from_us(limit)).unwrap();
        let admit = |state, us| {
            let step = log.step(state, at(us), Cost::ONE);
            assert!(step.decision.is_admit());
            step.state
        };
        (log, (0..limit).fold(None, admit))
    }

    /// The oldest entry's successor that frees enough, found one by one: what a denial used to do.
    fn frees_at_by_scanning(log: &SlidingLog, state: &LogState, units: u64) -> Micros {
        let enough = (0..state.entries.len()).map(|place| state.entry(place));
        let mut enough = enough.filter(|entry| entry.total - state.base >= units);
        enough.next().expect("there are so many").at + log.window
    }

    #[test]
    fn a_check_of_a_full_log_reads_few_of_its_entries() {
        for limit in [1, 10, 1_000, SlidingLog::LIMIT_MAX] {
            let (log, mut state) = full(limit);
            // Two searches, and the ends.
            let most = 2 * u64::from(limit.ilog2() + 1) + 4;
            for units in [1, limit / 2, limit] {
                let (decision, read) =
                    reads(|| log.ask(state.as_ref(), at(limit - 1), cost(units.max(1))));
                assert!(!decision.is_admit());
                assert!(read <= most, "{read} reads of {limit} entries");
            }
            let half = cost(limit.div_ceil(2));
            let (frees_at, scanned) =
                reads(|| frees_at_by_scanning(&log, state.as_ref().unwrap(), half.units()));
            let decision = log.ask(state.as_ref(), at(limit - 1), half);
            assert_eq!(decision.retry_after(), Some(frees_at.since(at(limit - 1))));
            assert!(limit < 100 || scanned > most, "the mutant passed");
            let looks: [fn(&SlidingLog, Option<&LogState>, Micros); 4] = [
                |log, state, now| _ = log.peek(state, now),
                |log, state, now| _ = log.forecast(state, now, Cost::ONE),
                |log, state, now| _ = log.used(state.unwrap(), now),
                |log, state, _| _ = log.idle_at(state.unwrap()),
            ];
            for look in looks {
                for us in [0, limit / 2, limit + limit / 2, 3 * limit] {
                    let ((), read) = reads(|| look(&log, state.as_ref(), at(us)));
                    assert!(read <= most, "{read} reads of {limit} entries");
                }
            }
            for us in [limit - 1, limit, limit + limit / 2, 2 * limit, 9 * limit] {
                let before = state.take();
                let (step, read) = reads(|| log.step(before, at(us), Cost::ONE));
                assert!(read <= most, "{read} reads of {limit} entries");
                state = step.state;
            }
        }
    }

    #[test]
    fn a_log_has_room_for_no_more_entries_than_its_limit() {
        for limit in [1, 3, 5, 100, 1_000] {
            let (log, mut state) = full(limit);
            for us in limit..3 * limit {
                let step = log.step(state, at(us), Cost::ONE);
                state = step.state;
                let room = state.as_ref().unwrap().entries.capacity() as u64;
                assert!(step.decision.is_admit() && room <= limit, "{room} of {limit}");
            }
        }
        // Left to itself, a queue makes room for what it will never hold.
        let mut queue = VecDeque::new();
        (0..1_000).for_each(|us| queue.push_back(at(us)));
        assert!(queue.capacity() > 1_000, "the mutant passed");
    }
}
