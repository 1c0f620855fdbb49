//! What drives a law in the checks, and laws with a mistake each.

use admittance_core::load::{
    DelayRules, Delays, JitterRules, Level, Regulator, Seen, Tasks, Traffic,
};
use admittance_core::{Micros, Span};

/// What a check of a law drives.
pub(crate) trait Law {
    fn probed(&mut self, path: usize, delay: Span);
    fn worked(&mut self, path: usize, delays: &Delays);
    fn waits(&mut self, path: usize, age: Span);
    fn adjust(&mut self, now: Micros, seen: &Seen) -> Verdict;
}

/// What a law said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) level: Level,
    pub(crate) run: i64,
    pub(crate) probes: u32,
}

impl Law for Regulator {
    fn probed(&mut self, path: usize, delay: Span) {
        self.probed(path, delay);
    }

    fn worked(&mut self, path: usize, delays: &Delays) {
        self.worked(path, delays);
    }

    fn waits(&mut self, path: usize, age: Span) {
        self.waits(path, age);
    }

    fn adjust(&mut self, now: Micros, seen: &Seen) -> Verdict {
        let found = self.adjust(now, seen, &Traffic::NONE);
        Verdict { level: found.level, run: found.run, probes: found.probes }
    }
}

pub(crate) fn shipped_jitter(rules: JitterRules) -> Regulator {
    Regulator::new(admittance_core::load::Law::Jitter(rules), 1).unwrap()
}

pub(crate) fn shipped_delay(rules: DelayRules, paths: usize) -> Regulator {
    Regulator::new(admittance_core::load::Law::Delay(rules), paths).unwrap()
}

/// The mistakes of a law of the standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JitterFlaw {
    None,
    /// n^1.5 is rounded up.
    RoundedUp,
    /// n^1.3, as the original's other tests have it.
    OtherExponent,
    /// The run goes on when the direction changes.
    NoReset,
    /// Less is admitted only if there is load, too.
    DecreaseNeedsLoad,
    /// The variance of all instead of that of a sample.
    Population,
    /// A run of any length, and steps in 32 bits: the original.
    Unbounded,
}

/// The law of the standard deviation in floating point, and its mutants.
pub(crate) struct FloatJitter {
    rules: JitterRules,
    delays: Vec<f64>,
    percent: i32,
    run: i64,
    mutant: JitterFlaw,
}

impl FloatJitter {
    pub(crate) fn new(rules: JitterRules, mutant: JitterFlaw) -> Self {
        Self { rules, delays: Vec::new(), percent: 100, run: 0, mutant }
    }

    fn deviation(&self) -> f64 {
        let count = self.delays.len() as f64;
        if count < 2.0 {
            return 0.0;
        }
        let mean = self.delays.iter().sum::<f64>() / count;
        let squares: f64 = self.delays.iter().map(|delay| (delay - mean).powi(2)).sum();
        let others = if self.mutant == JitterFlaw::Population { count } else { count - 1.0 };
        libm::sqrt(squares / others)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the original truncates")]
    fn step(&self) -> i32 {
        let run = self.run.unsigned_abs() as f64;
        match self.mutant {
            JitterFlaw::RoundedUp => run.powf(1.5).ceil() as i32,
            JitterFlaw::OtherExponent => run.powf(1.3) as i32,
            _ => (run * libm::sqrt(run) + 1e-9) as i32,
        }
    }
}

impl Law for FloatJitter {
    fn probed(&mut self, _: usize, delay: Span) {
        self.delays.push(delay.us() as f64);
        if self.delays.len() > self.rules.window {
            self.delays.remove(0);
        }
    }

    fn worked(&mut self, _: usize, _: &Delays) {}

    fn waits(&mut self, _: usize, _: Span) {}

    fn adjust(&mut self, _: Micros, seen: &Seen) -> Verdict {
        let deviation = self.deviation();
        let loaded = seen.load.reaches(self.rules.load_target);
        let falls = loaded || self.mutant != JitterFlaw::DecreaseNeedsLoad;
        let longest = if self.mutant == JitterFlaw::Unbounded { i64::MAX } else { 50 };
        self.run = if deviation > self.rules.upper.us() as f64 && falls {
            let before =
                if self.mutant == JitterFlaw::NoReset { -self.run.abs() } else { self.run };
            (before.min(0) - 1).max(-longest)
        } else if deviation < self.rules.lower.us() as f64 && loaded {
            let before = if self.mutant == JitterFlaw::NoReset { self.run.abs() } else { self.run };
            (before.max(0) + 1).min(longest)
        } else {
            0
        };
        let step = if self.run < 0 { -self.step() } else { self.step() };
        self.percent = self.percent.wrapping_add(step).clamp(0, 100);
        let level = Level::from_percent(self.percent.unsigned_abs());
        let probes = self.rules.interval.us() / self.rules.probe_every.us();
        Verdict { level, run: self.run, probes: u32::try_from(probes).unwrap() }
    }
}

/// The mistakes of a law of the standing queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelayFlaw {
    None,
    /// However long the delay, no cut stops at one half.
    CutUnbounded,
    /// What is lost is a part of the delay, not of the target.
    CutByDelay,
    NoFloor,
    /// The next interval may cut again: the queue of before is shed twice.
    NoHold,
    /// A queue that drains is cut all the same.
    CutsWhileDraining,
    /// A hold goes on after the queue is gone: the next queue waits for it.
    HoldOutlivesTheQueue,
    /// The original's gate: what was shed lowers the load that a rise would need.
    RiseNeedsLoad,
    /// One percent at a time.
    RiseSlow,
    /// All at once.
    RiseAtOnce,
    /// Half as much again as nothing is nothing.
    StuckAtNothing,
    /// Steps above the good level that stay as small as the first.
    StepsStaySmall,
    AgesIgnored,
    /// A probe that was sent a moment ago counts as one that came back at once.
    YoungAgesCount,
    FewDecide,
    FewAreKept,
    BestPath,
    /// The 90th percentile: a burst is a queue.
    HighPercentile,
    NeverCalm,
    AlwaysCalm,
    /// One interval without a long wait is enough.
    CalmAtOnce,
    /// What a bucket cannot tell from the target is above it.
    TargetIsTooLong,
    /// A hold between the interval and a second: a panic if the interval is longer.
    HoldIsClamped,
}

/// The law of the standing queue, written more simply, and its mutants.
pub(crate) struct Simple {
    rules: DelayRules,
    mutant: DelayFlaw,
    level: u64,
    good: u64,
    run: u64,
    cut: Option<(Span, Micros)>,
    rises_at: Micros,
    paths: Vec<(Delays, u32)>,
    quiet: u32,
}

impl Simple {
    pub(crate) fn new(rules: DelayRules, paths: usize, mutant: DelayFlaw) -> Self {
        Self {
            rules,
            mutant,
            level: FULL,
            good: FULL,
            run: 0,
            cut: None,
            rises_at: Micros::ZERO,
            paths: vec![(Delays::default(), 0); paths],
            quiet: 100,
        }
    }

    fn is(&self, mutant: DelayFlaw) -> bool {
        self.mutant == mutant
    }

    fn delay(&mut self) -> Option<Span> {
        let enough = if self.is(DelayFlaw::FewDecide) { 1 } else { 8 };
        let percent = if self.is(DelayFlaw::HighPercentile) { 90 } else { 10 };
        let kept_max = if self.is(DelayFlaw::FewAreKept) { u32::MAX } else { 4 };
        let mut found = Vec::new();
        for (delays, kept) in &mut self.paths {
            if delays.count() >= enough {
                found.extend(delays.percentile(percent));
            } else if *kept < kept_max {
                *kept += 1;
                continue;
            }
            (*delays, *kept) = (Delays::default(), 0);
        }
        let best = found.iter().copied().min();
        if self.is(DelayFlaw::BestPath) { best } else { found.into_iter().max() }
    }

    fn fall(&mut self, now: Micros, delay: Span) {
        if let Some((before, at)) = self.cut
            && !self.is(DelayFlaw::NoHold)
        {
            let longest = Span::from_secs(1);
            let hold = match self.mutant {
                DelayFlaw::HoldIsClamped => before.clamp(self.rules.interval, longest),
                _ => before.min(longest).max(self.rules.interval),
            };
            let drains = delay.us() < before.us() * 3 / 4;
            if now.since(at) < hold {
                return;
            }
            if drains && !self.is(DelayFlaw::CutsWhileDraining) {
                self.cut = Some((delay, now));
                return;
            }
        }
        let target = u128::from(self.rules.target.us());
        let over = u128::from(delay.us()) - target;
        let (lost, of) = match self.mutant {
            DelayFlaw::CutUnbounded => (over.min(2 * target), 2 * target),
            DelayFlaw::CutByDelay => (over, 2 * u128::from(delay.us())),
            _ => (over.min(target), 2 * target),
        };
        let before = self.level;
        let level = u64::try_from(u128::from(before) * (of - lost) / of).unwrap();
        let floor = if self.is(DelayFlaw::NoFloor) { 0 } else { self.rules.floor.parts() };
        self.level = level.max(floor);
        self.good = u64::midpoint(before, self.level);
        self.cut = Some((delay, now));
        self.run = 0;
        self.rises_at = now;
    }

    fn rise(&mut self, now: Micros, seen: &Seen) {
        if !self.is(DelayFlaw::HoldOutlivesTheQueue) {
            self.cut = None;
        }
        if self.is(DelayFlaw::RiseNeedsLoad) && !seen.load.reaches(800) || now < self.rises_at {
            return;
        }
        self.rises_at = now + self.rules.rise_every;
        // Where begun work is counted, all of it could be served: that is all the checks say.
        let good = if seen.begun > 0 { FULL / 32 * 31 } else { self.good };
        let next = match self.mutant {
            DelayFlaw::RiseSlow => self.level + FULL / 100,
            DelayFlaw::RiseAtOnce => FULL,
            _ if self.level < good => (self.level * 3 / 2).min(good),
            _ => {
                self.run += 1;
                let run = if self.is(DelayFlaw::StepsStaySmall) { 1 } else { self.run.min(64) };
                self.level + self.level * (run * run * run).isqrt() / 512
            }
        };
        let least = self.level + u64::from(!self.is(DelayFlaw::StuckAtNothing));
        self.level = next.max(least).min(FULL);
    }
}

impl Law for Simple {
    fn probed(&mut self, path: usize, delay: Span) {
        if let Some((delays, _)) = self.paths.get_mut(path) {
            delays.record(delay);
        }
    }

    fn worked(&mut self, path: usize, delays: &Delays) {
        if let Some((recorded, _)) = self.paths.get_mut(path) {
            recorded.merge(delays);
        }
    }

    fn waits(&mut self, path: usize, age: Span) {
        let young = age <= self.rules.target && !self.is(DelayFlaw::YoungAgesCount);
        if !young && !self.is(DelayFlaw::AgesIgnored) {
            self.probed(path, age);
        }
    }

    fn adjust(&mut self, now: Micros, seen: &Seen) -> Verdict {
        let target = self.rules.target;
        let slow = self.paths.iter().any(|(delays, _)| delays.above(target) > 0);
        self.quiet = if slow { 0 } else { self.quiet.saturating_add(1) };
        let strict = self.is(DelayFlaw::TargetIsTooLong);
        let above = |delay: Span| {
            delay > target && (strict || Delays::bucket(delay) > Delays::bucket(target))
        };
        match self.delay() {
            Some(delay) if above(delay) => self.fall(now, delay),
            Some(_) => self.rise(now, seen),
            None => {}
        }
        let rest = if self.is(DelayFlaw::CalmAtOnce) { 1 } else { 10 };
        let calm = self.level == FULL && self.quiet >= rest;
        let calm = (calm || self.is(DelayFlaw::AlwaysCalm)) && !self.is(DelayFlaw::NeverCalm);
        let probes = if calm { 1 } else { 10 };
        Verdict { level: Level::from_parts(self.level), run: 0, probes }
    }
}

pub(crate) const FULL: u64 = Level::FULL.parts();

/// So many tasks per worker, in tenths.
pub(crate) fn tenths(tenths: u64) -> Tasks {
    Tasks { tasks: tenths, workers: 10 }
}
