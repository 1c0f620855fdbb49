//! Gradient2 with the throughput guard: the limit moves once per window, and dips now and then.

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
    /// Of the last window that was no dip: how many were in flight, and how long that took.
    cruise: Level,
    /// In fleets: where many were in flight, to be compared with fewer.
    high: Level,
    is_dip: bool,
    until_dip: u32,
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
            cruise: Level::default(),
            high: Level::default(),
            is_dip: false,
            until_dip: 1,
            boost: 1.0,
            limit,
        }
    }

    /// Whether the window is complete.
    #[inline]
    pub(super) fn settle(&mut self, sample: Sample, is_overload: bool) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
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
        let headroom = ((rules.tolerance - 1.0) * estimate).max(1.0);
        let ratio = if is_timed { self.baseline / here.rtt } else { 1.0 };
        let usual = (estimate - headroom) / estimate;
        let is_slow = ratio < usual * SLOW;
        let is_stale = ratio > FAST;
        let gradient = ratio.clamp(0.5, 1.0) * (1.0 - failing) + 0.5 * failing;
        let room = headroom * self.boost * (1.0 - 10.0 * failing).max(0.0);
        let mut target = estimate * gradient + room;
        if is_idle || is_stale {
            target = target.min(estimate);
        }
        let is_free = is_timed && failing == 0.0 && !is_idle && !is_stale && ratio >= FREE;
        self.boost = if is_free { (self.boost * 2.0).min(BOOST_MAX) } else { 1.0 };
        self.cruise = here;
        self.until_dip = if is_slow || is_stale { 0 } else { self.until_dip.saturating_sub(1) };
        self.is_dip = self.until_dip == 0 && is_own && !is_idle;
        let step = if is_slow { 1.0 } else { rules.smoothing };
        let next = estimate + step * (target - estimate);
        next.clamp(f64::from(rules.min), f64::from(rules.max))
    }

    /// What a dip showed: the baseline, if fewer were in flight indeed.
    fn learn_from_dip(&mut self, here: Level) {
        let fell = here.in_flight / self.cruise.in_flight;
        if fell <= 0.95 || here.rtt < self.baseline {
            self.follow(here.rtt);
        }
        // If it was as much faster as fewer were in flight, even the dip was full: look again.
        if here.rtt < self.cruise.rtt * libm::sqrt(fell) {
            self.until_dip = 1;
        }
    }

    /// What a window shows of the baseline that is no dip.
    fn learn(&mut self, here: Level, is_own: bool, is_idle: bool) {
        if self.baseline == 0.0 || (is_own && is_idle) {
            self.follow(here.rtt);
        }
        if is_own || is_idle {
            return;
        }
        // In a fleet no node can dip alone. But if the share fell and work is no faster for it,
        // then what is seen is the work itself and no queue.
        if here.rtt < self.baseline {
            self.follow(here.rtt);
        }
        let fell = here.in_flight / self.high.in_flight;
        if here.in_flight > self.high.in_flight {
            self.high = here;
        } else if fell <= 0.85 {
            if here.rtt > self.baseline && here.rtt > self.high.rtt * libm::sqrt(fell) {
                self.follow(here.rtt);
            }
            self.high = here;
        }
    }

    /// Moves the baseline: by a part where it may be chance, at once where it cannot be.
    fn follow(&mut self, rtt: f64) {
        let is_near = rtt > 0.85 * self.baseline && rtt < 1.15 * self.baseline;
        self.baseline = if is_near { self.baseline + 0.3 * (rtt - self.baseline) } else { rtt };
    }

    /// The limit for this estimate.
    pub(super) fn limit(&self, rules: &LimitRules, estimate: f64) -> u32 {
        let part = if self.is_dip { self.guard.dip } else { 1.0 };
        whole(estimate * part).max(rules.min)
    }

    /// Begins a window, after `before` samples from before the limit changed.
    pub(super) fn open(&mut self, before: u32, limit: u32) {
        self.skip = if limit == self.limit { 0 } else { before.max(limit) };
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

const OVERLOAD_WEIGHT: u32 = 8;
const WINDOWS_MAX: u32 = 20;
const OWN: f64 = 0.9;
const SLOW: f64 = 0.85;
const FAST: f64 = 1.15;
const FREE: f64 = 0.95;
const BOOST_MAX: f64 = 4.0;
