//! The law of the standing queue: work waits longer than it should, so less may start.
//!
//! The delay of an interval is a low percentile of how long root work waited, on the path where it
//! waited longest. A burst lets some wait long and many short; only a queue that does not empty
//! makes nearly all wait.
//!
//! - **Good** is what could be served of what is offered now: the work begun per second while there
//!   was a queue, or more if more began without one, against what is offered per second. Where
//!   begun work is not counted it is what was admitted before the last cut, less a sixteenth if
//!   steps up led there and less a quarter if not.
//! - **Down**: above the target t, a delay d multiplies the level by max(½, 1 − ½·(d − t)/t), but
//!   not below what lets the queue drain within a few intervals if good is known and work begins:
//!   a queue of ten milliseconds is gone soon, and to halve would leave workers idle. If a cut does
//!   not help, and the next does not, good is not gone by: one key may be more of the work than
//!   its part of the level.
//! - **Hold**: until what begins was admitted after the cut, and as long as the queue drains, no
//!   further cut is made; a second at most. So a pause of the whole process costs one cut. The
//!   exception is a level that is known to be too high, by a quarter or more.
//! - **Up**: whenever the delay is low, whatever the load. Every quarter of a second half as much
//!   again up to the good level; in any case by a step that grows as n^1.5 while nothing speaks
//!   against it.
//! - Never below the floor.
//!
//! What it does not do: it takes every long wait for a queue. Work that waits for something that
//! does not become shorter when less is admitted is shed down to the floor.

use alloc::vec;
use alloc::vec::Vec;

use super::jitter::growth;
use super::{Delays, Fixed, Level, Seen};
use crate::{Invalid, Micros, Parameter, Span};

/// What the law of the standing queue goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DelayRules {
    /// How long work may wait.
    pub target: Span,
    /// How often the level is judged.
    pub interval: Span,
    /// How often it may rise.
    pub rise_every: Span,
    /// What it never falls below.
    pub floor: Level,
    /// How long admitted work may be made to wait at most: when as much is waiting as is done in
    /// this time, the rest is refused at once.
    pub wait_max: Span,
}

impl Default for DelayRules {
    fn default() -> Self {
        Self {
            target: Span::from_ms(5),
            interval: Span::from_ms(100),
            rise_every: Span::from_ms(250),
            floor: Level::from_percent(1),
            wait_max: Span::from_ms(50),
        }
    }
}

impl DelayRules {
    pub(super) fn checked(self) -> Result<Self, Invalid> {
        let long = Span::from_secs(3_600);
        let spans = [
            (Parameter::DelayTarget, self.target),
            (Parameter::Interval, self.interval),
            (Parameter::RiseEvery, self.rise_every),
            (Parameter::WaitMax, self.wait_max),
        ];
        for (parameter, span) in spans {
            if span == Span::ZERO {
                return Err(Invalid::Zero(parameter));
            }
            if span > long {
                return Err(Invalid::Unfit { parameter, must: "be an hour at most" });
            }
        }
        Ok(self)
    }
}

/// The state of the law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delay {
    rules: DelayRules,
    level: Level,
    /// What could be served, as far as cuts tell.
    good: Level,
    /// How many steps the run has had; below zero if they went down.
    run: i64,
    /// The delay at the last cut or since then, and when that was; nothing once it has drained.
    cut: Option<(Span, Micros)>,
    /// How many cuts there were since work last waited little, at a level about good.
    in_vain: u32,
    rises_at: Micros,
    /// Per path: what was recorded, and for how many intervals it has been too little to judge.
    paths: Vec<(Delays, u32)>,
    rates: Rates,
    /// How many intervals in a row nothing waited too long.
    quiet: u32,
}

impl Delay {
    pub(super) fn new(rules: DelayRules, paths: usize) -> Self {
        Self {
            rules,
            level: Level::FULL,
            good: Level::FULL,
            run: 0,
            cut: None,
            in_vain: 0,
            rises_at: Micros::ZERO,
            paths: vec![(Delays::default(), 0); paths],
            rates: Rates::default(),
            quiet: QUIET,
        }
    }

    pub(super) fn record(&mut self, path: usize, delays: &Delays) {
        if let Some((recorded, _)) = self.paths.get_mut(path) {
            recorded.merge(delays);
        }
    }

    /// What an unfinished probe says: that work waits at least this long. If that is not too long
    /// it says nothing.
    pub(super) fn waits(&mut self, path: usize, age: Span) {
        if age > self.rules.target
            && let Some((recorded, _)) = self.paths.get_mut(path)
        {
            recorded.record(age);
        }
    }

    /// Whether nothing is wrong and nothing was of late: a probe now and then is enough.
    pub(super) fn is_calm(&self) -> bool {
        self.level == Level::FULL && self.quiet >= QUIET
    }

    pub(super) fn judge(&mut self, now: Micros, seen: &Seen) -> Fixed {
        let slow = self.paths.iter().any(|(delays, _)| delays.above(self.rules.target) > 0);
        self.quiet = if slow { 0 } else { self.quiet.saturating_add(1) };
        let (mean, spread) = self.shown();
        let worst = self.worst();
        // What a bucket cannot tell from the target is not above it.
        let above = |delay| Delays::bucket(delay) > Delays::bucket(self.rules.target);
        let queued = worst.is_some_and(|(delay, _)| above(delay));
        self.rates.learn(seen, queued);
        match worst {
            Some((delay, longest)) if queued => self.fall(now, delay, longest, seen),
            Some(_) => self.rise(now),
            None => {}
        }
        Fixed { level: self.level, run: self.run, mean, spread }
    }

    fn fall(&mut self, now: Micros, delay: Span, longest: Span, seen: &Seen) {
        let enough = self.enough(delay, seen);
        // More is admitted than is done: that need not be seen again.
        let is_known = enough.is_some_and(|enough| self.level > enough.times(5, 4));
        if let Some((before, at)) = self.cut
            && !is_known
        {
            // What begins now was admitted before the cut, and says nothing about it.
            let shows = Span::from_us(longest.us().saturating_add(self.rules.interval.us()));
            if now.since(at) < shows.min(HOLD_MAX) {
                return;
            }
            // It drains: what is admitted now is less than what is done.
            if delay.us() < before.us() - before.us() / 4 {
                self.cut = Some((delay, now));
                return;
            }
        }
        let before = self.level;
        let target = self.rules.target.us();
        let over = delay.us().min(2 * target) - target;
        // 1 − ½·(d − t)/t, which is ½ at twice the target.
        let cut = before.times(2 * target - over, 2 * target);
        // Cuts that did not help say that the count misleads: one key may be much of the work.
        let trusted = enough.filter(|_| self.in_vain < MISLED);
        self.in_vain = if is_known { 0 } else { self.in_vain.saturating_add(1) };
        let least = trusted.unwrap_or(Level::NOTHING).min(before).max(self.rules.floor);
        self.level = cut.max(least);
        // After small steps up it was nearly right; after another cut it was not.
        let (good, of) = if self.run > 0 { (15, 16) } else { (3, 4) };
        self.good = before.times(good, of).max(self.level);
        self.cut = Some((delay, now));
        self.run = (self.run.min(0) - 1).max(-RUN_MAX);
        self.rises_at = now;
    }

    /// The level at which a queue of this delay is gone after a few intervals; nothing if work does
    /// not begin, or that is not counted.
    fn enough(&self, delay: Span, seen: &Seen) -> Option<Level> {
        if seen.begun == 0 {
            return None;
        }
        let long = self.rules.interval.us() * DRAIN;
        Some(self.rates.good()?.times(long - delay.us().min(long / 2), long))
    }

    fn rise(&mut self, now: Micros) {
        (self.cut, self.in_vain) = (None, 0);
        if now < self.rises_at || self.level == Level::FULL {
            if self.level == Level::FULL {
                self.run = 0;
            }
            return;
        }
        self.rises_at = now + self.rules.rise_every;
        let good = self.rates.good().unwrap_or(self.good);
        self.run = (self.run.max(0) + 1).min(RUN_MAX);
        let step = growth(self.run.unsigned_abs());
        let least = Level::from_parts(self.level.parts() + 1);
        let beyond = self.level.times(STEP_PARTS + step, STEP_PARTS).max(least);
        self.level = self.level.times(3, 2).min(good).max(beyond);
    }

    /// The low percentile of the worst path, and the high one. What is too little to judge is kept
    /// a while.
    fn worst(&mut self) -> Option<(Span, Span)> {
        let mut worst = None;
        for (delays, kept) in &mut self.paths {
            if delays.count() >= ENOUGH {
                let high = delays.percentile(100 - LOW_PERCENTILE);
                worst = worst.max(delays.percentile(LOW_PERCENTILE).zip(high));
            } else if *kept < KEPT_MAX {
                *kept += 1;
                continue;
            }
            (*delays, *kept) = (Delays::default(), 0);
        }
        worst
    }

    fn shown(&self) -> (Span, Span) {
        let mut all = Delays::default();
        for (delays, _) in &self.paths {
            all.merge(delays);
        }
        all.mean_and_spread()
    }
}

/// What is offered and what could be served, in thousandths per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rates {
    offered: Option<u64>,
    served: Option<u64>,
}

impl Rates {
    fn learn(&mut self, seen: &Seen, queued: bool) {
        let us = seen.elapsed.us().max(1);
        let rate = |count: u64| {
            let rate = u128::from(count) * 1_000_000_000 / u128::from(us);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let mix = |old: Option<u64>, new: u64| old.map_or(new, |old| old - old / 4 + new / 4);
        self.offered = Some(mix(self.offered, rate(seen.offered)));
        let begun = rate(seen.begun);
        if seen.begun > 0 && (queued || self.served.is_none_or(|served| begun > served)) {
            self.served = Some(mix(self.served, begun));
        }
    }

    /// A little less than what could be served of what is offered now.
    fn good(&self) -> Option<Level> {
        let served = self.served?;
        Some(Level::ratio(served - served / 32, self.offered?))
    }
}

/// The percentile that stands for an interval: lower than what a burst reaches, higher than the
/// few that never queue.
const LOW_PERCENTILE: u64 = 10;
/// Fewer samples than this do not have a tenth.
const ENOUGH: u64 = 8;
/// For how many intervals too few samples are kept.
const KEPT_MAX: u32 = 4;
/// After how many intervals without a long wait it is calm.
const QUIET: u32 = 10;
/// However long work waits, the next cut need not be later than this.
const HOLD_MAX: Span = Span::from_secs(1);
/// Of how many parts of the level a step up is one.
const STEP_PARTS: u64 = 256;
/// Steps do not grow further than this run; by then a step is more than the level itself.
const RUN_MAX: i64 = 64;
/// Within how many intervals a queue is to drain.
const DRAIN: u64 = 4;
/// After so many cuts in vain the count of what began is no longer gone by.
const MISLED: u32 = 2;
