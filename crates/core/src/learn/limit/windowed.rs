//! Gradient2 with the throughput guard: the limit moves once per window, and dips now and then.
//!
//! # Windows
//! A window is some samples under one limit. Those of work from before the limit changed are let
//! go by. A window ends when the mean time is known to the guard's precision, so that work that
//! always takes the same time needs few samples and work of many lengths needs more. What is
//! compared are means: the least of a hundred samples says nothing where lengths vary.
//!
//! # The step
//! With `n` the estimate, `B` the baseline and `R` the mean time of the window, the next estimate
//! is `n · min(1, B / R)` and the headroom, `tolerance − 1` of that and at least one place. By
//! Little's law throughput is in flight by time. If `B` was measured with `d` in flight, then
//! `n · B / R` is `d` times the throughput with `n` by the throughput with `d`: the limit grows
//! while throughput grows with it, and comes to rest where the topmost places add nothing, at
//! `tolerance` times the backend's places, whatever it was before. That is the guard.
//!
//! # Dips
//! `B` is measured where no queue is: now and then the limit dips to three quarters for a window.
//! - In front of a backend with `K` places, `K ≤ n ≤ 4/3 K`, the dip shows the time without load.
//! - If `n` was so high that even the dip was full, time falls as in flight does. Then `B` is not
//!   raised, and the next dip comes soon and goes deeper.
//! - If work takes longer for good (a deploy), the dip is no faster. The second dip that says so
//!   is believed, since the window before the first one may have seen the change itself.
//!
//! A window that is slower or faster than chance allows calls for a dip at once.
//!
//! # A share of a fleet
//! No node can drain the backend alone. Where a share is what binds, there are no dips: `B` falls
//! with what is seen, and rises only if the share fell twice and work was no faster for it, each
//! time after the others have had some windows to follow.

use super::rules::{LimitRules, ThroughputGuard};
use super::{Sample, whole};

/// What a window has seen, and what earlier ones have shown.
#[derive(Clone, Debug)]
pub(super) struct Windowed {
    guard: ThroughputGuard,
    /// Samples of work from before the limit changed, which are let go by.
    skip: u32,
    /// How much the window has seen; an overload counts for several.
    seen: u32,
    /// How much it must see before it is looked at.
    needed: u32,
    window: Window,
    /// The mean time without load, in nanoseconds; zero if nothing is known.
    baseline: f64,
    /// How many measurements that is the mean of.
    measured: f64,
    /// Of the last window that was no dip: how many were in flight, and how long that took.
    cruise: Level,
    /// In fleets: where many were in flight, to be compared with fewer.
    high: Level,
    /// In fleets: for so many windows the estimate stays, until the others have followed.
    hold: u32,
    is_dip: bool,
    /// Whether the next dip is a deep one, because the last one did not say enough.
    is_deep: bool,
    /// Whether the last dip was slower than the baseline by more than chance.
    has_risen: bool,
    until_dip: u32,
    /// The ratio of the baseline to the time that work takes, smoothed.
    trend: f64,
    /// How much faster than usual the limit grows.
    boost: f64,
    limit: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    finished: u32,
    overloads: u32,
    rtt: f64,
    rtt_squares: f64,
    in_flight: u64,
    ceiling: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    in_flight: f64,
    rtt: f64,
}

impl Windowed {
    pub(super) fn new(guard: ThroughputGuard, limit: u32) -> Self {
        Self {
            guard,
            skip: 0,
            seen: 0,
            needed: guard.window.max(limit),
            window: Window::default(),
            baseline: 0.0,
            measured: 0.0,
            cruise: Level::default(),
            high: Level::default(),
            hold: 0,
            is_dip: false,
            is_deep: false,
            has_risen: false,
            until_dip: 1,
            trend: 1.0,
            boost: 1.0,
            limit,
        }
    }

    /// Whether the window is complete.
    #[inline]
    pub(super) fn settle(&mut self, sample: Sample, is_overload: bool) -> bool {
        if self.skip > 0 {
            self.skip = self.skip.saturating_sub(if is_overload { OVERLOAD_WEIGHT } else { 1 });
            return false;
        }
        let window = &mut self.window;
        window.in_flight += u64::from(sample.in_flight);
        window.ceiling += u64::from(sample.ceiling);
        if is_overload {
            window.overloads += 1;
            self.seen += OVERLOAD_WEIGHT;
        } else {
            let rtt = sample.rtt_ns as f64;
            window.finished += 1;
            window.rtt += rtt;
            window.rtt_squares += rtt * rtt;
            self.seen += 1;
        }
        self.seen >= self.needed && self.is_precise()
    }

    /// Whether the mean is known well enough; if not, waits for a quarter more.
    #[cold]
    fn is_precise(&mut self) -> bool {
        let window = &self.window;
        let count = f64::from(window.finished.max(1));
        let mean = window.rtt / count;
        let variance = window.rtt_squares / count - mean * mean;
        let allowed = self.guard.precision * mean;
        let most = self.guard.window * WINDOWS_MAX;
        if variance <= allowed * allowed * count || self.seen >= most {
            return true;
        }
        self.needed += self.guard.window / 4;
        false
    }

    /// The next estimate, from the window that is complete.
    pub(super) fn close(&mut self, rules: &LimitRules, estimate: f64) -> f64 {
        let window = self.window;
        let total = f64::from(window.finished + window.overloads);
        let here = Level {
            in_flight: window.in_flight as f64 / total,
            rtt: window.rtt / f64::from(window.finished.max(1)),
        };
        let ceiling = window.ceiling as f64 / total;
        let failing = f64::from(window.overloads) / total;
        let is_timed = window.finished >= window.overloads && here.rtt > 0.0;
        let is_own = ceiling >= OWN * f64::from(self.limit);
        // As few in flight as in a deep dip: what is seen is the time without load.
        let is_idle = 2.0 * here.in_flight < ceiling;
        if self.is_dip {
            self.is_dip = false;
            self.until_dip = self.guard.every;
            if is_timed {
                self.learn_from_dip(here);
            }
            return estimate;
        }
        if is_timed {
            self.learn(here, is_own, is_idle);
        }
        let ratio = if is_timed { self.baseline / here.rtt } else { 1.0 };
        let headroom = |base: f64| ((rules.tolerance - 1.0) * base).max(1.0);
        let is_slow = ratio < SLOW * (1.0 - headroom(estimate) / estimate) || failing > FAILING;
        let is_stale = ratio > FAST;
        self.trend += TREND * (ratio.min(FAST) - self.trend);
        let is_free = failing == 0.0 && !is_idle && !is_stale && self.trend >= FREE;
        self.boost = if is_free { (self.boost * 2.0).min(BOOST_MAX) } else { 1.0 };

        // Up to one failure in fifteen the headroom makes up for; more take places away.
        let gradient = ratio.clamp(0.5, 1.0) * (1.0 - failing) + 0.5 * failing;
        let base = estimate * gradient;
        let room = headroom(base) * self.boost * (1.0 - 10.0 * failing).max(0.0);
        // No further above what was used than the headroom: of places beyond, nothing is known.
        let used = (here.in_flight / ceiling.max(1.0)).min(1.0);
        let mut target = base.max(base * used + room);
        if is_idle || is_stale {
            target = target.min(estimate);
        }
        if self.hold > 0 && failing <= FAILING {
            target = estimate;
        }
        self.cruise = here;
        self.until_dip = if is_slow || is_stale { 0 } else { self.until_dip.saturating_sub(1) };
        self.is_dip = self.until_dip == 0 && is_own && !is_idle;
        let step = if is_slow || self.boost > 1.0 { 1.0 } else { rules.smoothing };
        let next = estimate + step * (target - estimate);
        next.clamp(f64::from(rules.min), f64::from(rules.max))
    }

    /// What a dip showed: the baseline, if fewer were in flight indeed and no queue was left.
    fn learn_from_dip(&mut self, here: Level) {
        let fell = here.in_flight / self.cruise.in_flight;
        // If it was nearly as much faster as fewer were in flight, even the dip was full.
        let is_full = here.rtt < self.cruise.rtt * libm::sqrt(fell * libm::sqrt(fell));
        // A window in which the backend changed is compared with one in which it did not: only a
        // second dip tells that work takes longer for good.
        let has_risen = !is_full && here.rtt > (1.0 + NEAR) * self.baseline;
        let is_sure = !is_full && (!has_risen || self.has_risen);
        if here.rtt < self.baseline || (fell <= 0.95 && is_sure) {
            self.follow(here.rtt);
        }
        self.has_risen = has_risen && !is_sure;
        self.is_deep = !is_sure;
        let is_young = self.measured < MEAN_OF;
        self.until_dip = if !is_sure {
            1
        } else if is_young {
            YOUNG
        } else {
            self.guard.every
        };
    }

    /// What a window shows of the baseline that is no dip.
    fn learn(&mut self, here: Level, is_own: bool, is_idle: bool) {
        if self.baseline == 0.0 || (is_own && is_idle) {
            self.follow(here.rtt);
        }
        if is_own || is_idle {
            self.hold = 0;
            return;
        }
        // In a fleet no node can dip alone. But if the share fell and work is no faster for it,
        // then what is seen is the work itself and no queue.
        if here.rtt < self.baseline {
            self.follow(here.rtt);
        }
        let fell = here.in_flight / self.high.in_flight;
        if self.hold > 0 {
            self.hold -= 1;
            if self.hold == 0 {
                self.judge(here, fell);
            }
        } else if here.in_flight > self.high.in_flight {
            self.high = here;
        } else if fell <= 0.85 {
            self.hold = HOLD;
        }
    }

    /// Whether fewer were any faster, when the whole fleet has had the time to follow. The first
    /// time the two may lie on different sides of a change: only the second tells.
    fn judge(&mut self, here: Level, fell: f64) {
        let is_no_faster = here.rtt > self.high.rtt * libm::sqrt(fell);
        if is_no_faster && self.has_risen && here.rtt > self.baseline {
            self.follow(here.rtt);
        }
        self.has_risen = is_no_faster && !self.has_risen;
        self.high = here;
    }

    /// Moves the baseline: to the mean where it may be chance, at once where it cannot be.
    fn follow(&mut self, rtt: f64) {
        let is_near = (rtt - self.baseline).abs() < NEAR * self.baseline;
        self.measured = if is_near { (self.measured + 1.0).min(MEAN_OF) } else { 1.0 };
        self.baseline += (rtt - self.baseline) / self.measured;
    }

    /// The limit for this estimate.
    pub(super) fn limit(&self, rules: &LimitRules, estimate: f64) -> u32 {
        let part = match (self.is_dip, self.is_deep) {
            (false, _) => 1.0,
            (true, false) => self.guard.dip,
            (true, true) => self.guard.dip * DEEPER,
        };
        let limit = whole(libm::ceil(libm::floor(estimate) * part));
        limit.max(rules.min)
    }

    /// Begins a window, after `before` samples from before the limit changed.
    pub(super) fn open(&mut self, before: u32, limit: u32) {
        let most = f64::from(before.max(limit));
        let moved = f64::from(limit.abs_diff(self.limit)) / most.max(1.0);
        self.skip = whole(most * (SKIP * moved).min(2.0));
        self.limit = limit;
        self.seen = 0;
        self.needed = self.guard.window.max(limit);
        self.window = Window::default();
    }

    pub(super) fn is_dip(&self) -> bool {
        self.is_dip
    }

    pub(super) fn baseline_ns(&self) -> Option<u64> {
        (self.baseline > 0.0).then(|| crate::learn::size::whole(self.baseline))
    }
}

/// An overload ends a window as eight samples do: a backend that fails is not waited for.
const OVERLOAD_WEIGHT: u32 = 8;
/// A window ends after so many times the fewest samples, however much times vary.
const WINDOWS_MAX: u32 = 20;
/// If the ceilings were below this part of the limit, a share was what bound.
const OWN: f64 = 0.9;
/// By this factor slower than with the usual headroom is no chance: two to three standard errors.
const SLOW: f64 = 0.83;
/// By this factor faster than the baseline is no chance.
const FAST: f64 = 1.12;
/// If more fail, the step is a whole one.
const FAILING: f64 = 0.2;
/// How much of the trend each window is.
const TREND: f64 = 0.4;
/// A trend from here on is no queue: the limit may grow faster.
const FREE: f64 = 0.96;
/// At most so many times the headroom.
const BOOST_MAX: f64 = 4.0;
/// The baseline is the mean of about so many dips.
const MEAN_OF: f64 = 5.0;
/// Windows between dips as long as the baseline is the mean of fewer.
const YOUNG: u32 = 3;
/// A baseline that is off by a larger part is another one.
const NEAR: f64 = 0.15;
/// If the limit moves by a tenth or more, twice as many samples as were in flight are let go by:
/// where all are worked on at once, some outlast the first round. If by less, so many fewer.
const SKIP: f64 = 20.0;
/// A deep dip goes to this part of a dip.
const DEEPER: f64 = 0.85;
/// In a fleet, how many windows the others have to follow.
const HOLD: u32 = 8;
