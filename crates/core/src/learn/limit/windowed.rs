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
//! # The climb
//! Until congestion is seen for the first time there are no dips, windows are short, and the limit
//! doubles: with `B` the mean of all that was seen so far, the next estimate is `2 · n · min(1,
//! B / R)`. By Little's law that is at most twice what is worked on at once, so that the limit
//! overshoots the knee by no more than that, and chance. A window in which `B / R` is below 0.8
//! is doubted and looked at again, with steps of 1.4 from then on; at the second one, below 0.6, at
//! a failure, or when places are left under load, the climb is over, for good.
//!
//! # A share of a fleet
//! What a node sees was seen under the fleet's limit `L` and not under what it estimates itself, so
//! its step goes from `L`: otherwise each node's estimate would wander by itself, and only the
//! median would mean anything. When `L` moves by more than a tenth, the window begins anew, does
//! not count unless half of it lies after every node has heard, and until one is complete the node
//! takes over `L` and has no vote. While it climbs it has one, as soon as it is under load.
//!
//! A node that first hears of an `L` that is not its own start has joined a fleet that has climbed,
//! and does not climb. Nor does one that hears `L` fall by a fifth: others have met congestion.
//!
//! No node can dip alone. Forty heartbeats after `L` last moved each asks for the dip by its vote,
//! until it has come: that is when half of them ask. All count from the same fall, so that they
//! soon ask at once. Who hears `L` fall takes it for a dip, whoever asked, measures, and votes for
//! what it found before.

use super::rules::{LimitRules, ThroughputGuard};
use super::{Followed, Sample, whole};

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
    /// Whether no congestion has been seen yet: windows are short, and the limit doubles.
    is_climbing: bool,
    /// Whether something has spoken against that once.
    has_doubt: bool,
    /// In fleets: the limit of the whole one that the window's samples were taken under.
    level: f64,
    /// In fleets: the limit that was heard last; zero if none was.
    heard: f64,
    /// In fleets: by when every node has heard it.
    known_ns: u64,
    /// In fleets: when the next dip is due. All count from when the limit last moved.
    dip_ns: u64,
    opened_ns: u64,
    /// Whether the last window was held back by a share.
    is_shared: bool,
    /// Whether a window was completed since the estimate was last taken over.
    has_voted: bool,
    is_dip: bool,
    /// In fleets: whether the limit has fallen since, so that what is seen is the dip.
    has_dipped: bool,
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

/// What a complete window has shown.
#[derive(Clone, Copy, Debug)]
struct Seen {
    here: Level,
    /// The part of the ceiling that was used.
    used: f64,
    /// The part that failed.
    failing: f64,
    /// Whether its times say something.
    is_timed: bool,
    is_idle: bool,
    at_ns: u64,
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
            needed: CLIMB_WINDOW.max(limit),
            window: Window::default(),
            baseline: 0.0,
            measured: 0.0,
            cruise: Level::default(),
            is_climbing: true,
            has_doubt: false,
            level: f64::from(limit),
            heard: 0.0,
            known_ns: 0,
            dip_ns: 0,
            opened_ns: 0,
            is_shared: false,
            has_voted: false,
            is_dip: false,
            has_dipped: false,
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
        let is_fleet = self.heard > 0.0;
        let precision = match (self.is_climbing, is_fleet) {
            (true, true) => SHARED_CLIMB_PRECISION.max(self.guard.precision),
            (true, false) => CLIMB_PRECISION.max(self.guard.precision),
            (false, _) => self.guard.precision,
        };
        let fewest = if self.is_climbing { CLIMB_WINDOW } else { self.guard.window };
        let is_shared = is_fleet && (self.is_climbing || self.is_shared);
        let most = fewest * if is_shared { SHARED_WINDOWS_MAX } else { WINDOWS_MAX };
        let allowed = precision * mean;
        if variance <= allowed * allowed * count || self.seen >= most {
            return true;
        }
        self.needed += fewest / 4;
        false
    }

    /// The next estimate, from the window that is complete at `now_ns`.
    pub(super) fn close(&mut self, rules: &LimitRules, estimate: f64, now_ns: u64) -> f64 {
        if self.opened_ns.midpoint(now_ns) < self.known_ns {
            // The others had not heard of the fleet's limit: this shows another one.
            return estimate;
        }
        let window = self.window;
        let total = f64::from(window.finished + window.overloads);
        let here = Level {
            in_flight: window.in_flight as f64 / total,
            rtt: window.rtt / f64::from(window.finished.max(1)),
        };
        let ceiling = window.ceiling as f64 / total;
        let mut seen = Seen {
            here,
            used: (here.in_flight / ceiling.max(1.0)).min(1.0),
            failing: f64::from(window.overloads) / total,
            is_timed: window.finished >= window.overloads && here.rtt > 0.0,
            at_ns: now_ns,
            // As few in flight as in a deep dip: what is seen is the time without load.
            is_idle: 2.0 * here.in_flight < ceiling,
        };
        self.is_shared = ceiling < OWN * f64::from(self.limit);
        self.has_voted = true;
        // Where a share binds, what was seen was seen under the fleet's limit, whatever the
        // estimate is.
        let is_fleet = self.is_shared && self.heard > 0.0;
        let from = if is_fleet { self.level } else { estimate };
        if is_fleet {
            seen.here.in_flight = from;
        }
        if self.is_dip && (!is_fleet || self.has_dipped) {
            (self.is_dip, self.has_dipped) = (false, false);
            self.until_dip = self.guard.every;
            if seen.is_timed {
                let is_least = !is_fleet && libm::floor(estimate) <= f64::from(rules.min);
                self.learn_from_dip(seen.here, is_least);
            }
            if is_fleet {
                self.until_dip = YOUNG;
            }
            return estimate;
        }
        let next = if self.is_climbing { self.climb(&seen, from) } else { None };
        let next = next.unwrap_or_else(|| self.step(rules, &seen, from));
        self.is_climbing &= next < f64::from(rules.max);
        next.clamp(f64::from(rules.min), f64::from(rules.max))
    }

    /// Twice the limit, until something speaks against it; the first time that may be chance.
    fn climb(&mut self, seen: &Seen, from: f64) -> Option<f64> {
        let Seen { here, is_idle, .. } = *seen;
        let ratio = if self.baseline > 0.0 { self.baseline / here.rtt } else { 1.0 };
        let is_doubtful = !seen.is_timed || seen.failing > 0.0 || ratio < CLIMBED;
        // Under load, and places are left: there are enough.
        let is_enough = !is_idle && seen.used < ENOUGH;
        let is_sure = self.has_doubt || seen.failing > 0.0 || ratio < CONGESTED;
        if (is_doubtful && is_sure) || is_enough {
            self.is_climbing = false;
            return None;
        }
        // Little's law: what is worked on at once. Never more than twice that.
        let base = if ratio > UNLOADED { from } else { from * ratio };
        if is_doubtful {
            self.has_doubt = true;
            return Some(base);
        }
        // Whether faster or slower: to leave out what was slow by chance would bias the mean.
        self.measured += 1.0;
        self.baseline += (here.rtt - self.baseline) / self.measured;
        let pace = if self.has_doubt { CLIMB_DOUBTED } else { CLIMB };
        Some(if is_idle { from } else { (pace * base * seen.used).max(base) })
    }

    /// Gradient2 with the guard.
    fn step(&mut self, rules: &LimitRules, seen: &Seen, from: f64) -> f64 {
        let Seen { here, used, failing, is_timed, is_idle, .. } = *seen;
        if is_timed && (self.baseline == 0.0 || (is_idle && !self.is_shared)) {
            self.follow(here.rtt);
        }
        let ratio = if is_timed { self.baseline / here.rtt } else { 1.0 };
        let headroom = |base: f64| ((rules.tolerance - 1.0) * base).max(1.0);
        let is_slow = ratio < SLOW * (1.0 - headroom(from) / from) || failing > FAILING;
        let is_stale = ratio > FAST;
        self.trend += TREND * (ratio.min(FAST) - self.trend);
        let is_free = failing == 0.0 && !is_idle && !is_stale && self.trend >= FREE;
        let most = if self.is_shared { SHARED_BOOST_MAX } else { BOOST_MAX };
        self.boost = if is_free { (self.boost * 2.0).min(most) } else { 1.0 };

        // Up to one failure in fifteen the headroom makes up for; more take places away.
        let gradient = ratio.clamp(0.5, 1.0) * (1.0 - failing) + 0.5 * failing;
        let base = from * gradient;
        let room = headroom(base) * self.boost * (1.0 - 10.0 * failing).max(0.0);
        // No further above what was used than the headroom: of places beyond, nothing is known.
        let mut target = base.max(base * used + room);
        if is_idle || is_stale {
            target = target.min(from);
        }
        self.cruise = here;
        let is_called = (is_slow || is_stale) && !self.is_shared;
        self.until_dip = if is_called { 0 } else { self.until_dip.saturating_sub(1) };
        let is_due = !self.is_shared || seen.at_ns >= self.dip_ns;
        self.is_dip |= self.until_dip == 0 && !is_idle && is_due;
        let step = if is_slow || self.boost > 1.0 { 1.0 } else { rules.smoothing };
        from + step * (target - from)
    }

    /// What a dip showed: the baseline, if fewer were in flight indeed and no queue was left.
    /// At the least limit there is nothing to dip to, and no better reading can be had: a baseline
    /// that chance made too short would otherwise keep the limit there for ever.
    fn learn_from_dip(&mut self, here: Level, is_least: bool) {
        let fell = here.in_flight / self.cruise.in_flight;
        // If it was nearly as much faster as fewer were in flight, even the dip was full.
        let is_full = !is_least && here.rtt < self.cruise.rtt * libm::sqrt(fell * libm::sqrt(fell));
        // A window in which the backend changed is compared with one in which it did not: only a
        // second dip tells that work takes longer for good.
        let has_risen = !is_full && here.rtt > (1.0 + NEAR) * self.baseline;
        let is_sure = !is_full && (!has_risen || self.has_risen);
        if here.rtt < self.baseline || ((fell <= 0.95 || is_least) && is_sure) {
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
    pub(super) fn open(&mut self, before: u32, limit: u32, now_ns: u64) {
        // Of a fleet's limit only a share is in flight here.
        let most = if self.is_shared { before.max(1) } else { before.max(limit) };
        let moved = f64::from(limit.abs_diff(self.limit)) / f64::from(limit.max(self.limit).max(1));
        let skip = if self.is_shared { 0.0 } else { (SKIP * moved).min(2.0) };
        self.limit = limit;
        self.begin(whole(f64::from(most) * skip), most, now_ns);
    }

    /// The limit is another one, and the window goes on.
    pub(super) fn hold_to(&mut self, limit: u32) {
        self.limit = limit;
    }

    fn begin(&mut self, skip: u32, places: u32, now_ns: u64) {
        let fewest = if self.is_climbing { CLIMB_WINDOW } else { self.guard.window };
        self.skip = skip;
        self.seen = 0;
        self.needed = fewest.max(places);
        self.window = Window::default();
        self.opened_ns = now_ns;
        if self.heard > 0.0 {
            self.level = self.heard;
        }
    }

    /// The fleet's limit is `told.limit`; what the estimate is then.
    pub(super) fn hear(&mut self, told: Followed, estimate: f64, now_ns: u64) -> f64 {
        let limit = f64::from(told.limit);
        // A fleet that has found its limit, or that has met congestion, has climbed.
        let is_first = self.heard == 0.0;
        let moved = (limit - self.level) / limit.max(self.level);
        self.is_climbing &= moved > -FELL && !(is_first && told.limit != self.limit);
        self.heard = limit;
        if moved.abs() > MOVED && (self.is_shared || !told.is_measured) {
            // A fall is a dip, whoever called for it; when it is over the estimate stands.
            self.is_dip = moved < 0.0 && self.has_voted && told.is_measured && !self.is_climbing;
            self.has_dipped = self.is_dip;
            self.has_voted &= moved < 0.0;
            let window = &self.window;
            let total = u64::from(window.finished + window.overloads).max(1);
            let places = u32::try_from(window.in_flight / total).unwrap_or(u32::MAX);
            self.begin(self.skip.max(places.saturating_mul(2)), places, now_ns);
            self.known_ns = told.known_ns;
            let beats = if self.measured < MEAN_OF { BEATS_YOUNG } else { BEATS };
            let beat_ns = told.known_ns.saturating_sub(now_ns);
            self.dip_ns = now_ns.saturating_add(beat_ns.saturating_mul(beats));
        }
        let is_taken = !told.is_measured || (self.is_shared && !self.has_voted);
        match (is_taken, self.is_climbing) {
            (false, _) => estimate,
            (true, false) => limit,
            // Who has not got there yet goes along, and not back with the next one.
            (true, true) => limit.max(estimate.min(CLIMB * limit)),
        }
    }

    /// Whether what is estimated counts among others: a window was completed, or one is under way
    /// that many are in flight in.
    pub(super) fn has_vote(&self) -> bool {
        let Window { in_flight, ceiling, .. } = self.window;
        self.has_voted
            || (self.is_climbing && ceiling > 0 && in_flight >= ceiling - in_flight.min(ceiling))
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
/// And after so many in a fleet, whose other nodes see the same.
const SHARED_WINDOWS_MAX: u32 = 4;
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
/// And in a fleet, where many nodes have a say.
const SHARED_BOOST_MAX: f64 = 1.2;
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
/// The fewest samples of a window of the climb.
const CLIMB_WINDOW: u32 = 32;
/// How well its mean must be known.
const CLIMB_PRECISION: f64 = 0.06;
/// And in a fleet, where the median of many counts.
const SHARED_CLIMB_PRECISION: f64 = 0.1;
/// In the climb the limit grows by this factor.
const CLIMB: f64 = 2.0;
/// And by this one if something has spoken against it once.
const CLIMB_DOUBTED: f64 = 1.4;
/// At this part of the throughput that so many in flight would have without a queue, the climb is
/// over.
const CLIMBED: f64 = 0.8;
/// Here it is over without a second look.
const CONGESTED: f64 = 0.6;
/// If less of the places is used, though not as little as without load, they are enough.
const ENOUGH: f64 = 0.75;
/// From here on what is seen in the climb counts as the time without load.
const UNLOADED: f64 = 0.9;
/// In a fleet, a limit that moved by more is another one.
const MOVED: f64 = 0.1;
/// In a fleet, how many heartbeats after the limit last moved it dips.
const BEATS: u64 = 40;
/// And as long as the baseline is the mean of few dips.
const BEATS_YOUNG: u64 = 16;
/// And one that fell by more has met congestion.
const FELL: f64 = 0.2;
