//! Laws with a defect each: around the shipped regulator, or written anew in a few lines.

use admittance_core::load::{
    Adjustment, Cutoff, Delays, JitterRules, Law, Level, Seen, Tasks, Traffic,
};
use admittance_core::{Micros, Span};
use admittance_sim::load::{Regulates, Shipped};

pub(crate) fn shipped() -> Shipped {
    Shipped::new(Law::default()).unwrap()
}

pub(crate) fn jitter() -> Shipped {
    Shipped::new(Law::Jitter(JitterRules::default())).unwrap()
}

/// What is not told to the shipped regulator, or told wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Children and probes count as root work, on one path.
    Children,
    /// A probe counts once it has run.
    FinishedProbes,
    /// Nobody says how much began.
    NoBegun,
    /// It is asked only while there is load.
    WithLoad,
}

pub(crate) struct Misled {
    told: Told,
    inner: Shipped,
    last: Option<Adjustment>,
}

impl Misled {
    pub(crate) fn new(told: Told) -> Self {
        Self { told, inner: shipped(), last: None }
    }

    fn path(&self, path: usize) -> usize {
        if self.told == Told::Children { 0 } else { path }
    }
}

impl Regulates for Misled {
    fn interval(&self) -> Span {
        self.inner.interval()
    }

    fn probed(&mut self, path: usize, delay: Span) {
        self.inner.probed(self.path(path), delay);
    }

    fn worked(&mut self, path: usize, delays: &Delays) {
        self.inner.worked(path, delays);
    }

    fn spawned(&mut self, path: usize, delays: &Delays) {
        if self.told == Told::Children {
            self.inner.worked(path, delays);
        }
    }

    fn waits(&mut self, path: usize, age: Span) {
        if self.told != Told::FinishedProbes {
            self.inner.waits(self.path(path), age);
        }
    }

    fn adjust(&mut self, now: Micros, seen: &Seen, traffic: &Traffic) -> Adjustment {
        let mut seen = seen.clone();
        match self.told {
            Told::NoBegun => seen.begun = 0,
            Told::WithLoad => {
                if let Some(last) = self.last
                    && last.level < Level::FULL
                    && !has_load(seen.load)
                {
                    return last;
                }
            }
            Told::Children | Told::FinishedProbes => {}
        }
        let adjustment = self.inner.adjust(now, &seen, traffic);
        self.last = Some(adjustment);
        adjustment
    }
}

fn has_load(load: Tasks) -> bool {
    load.reaches(800)
}

/// What the law that is written anew does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Nothing.
    None,
    /// It rises only if there is load.
    Gated,
    /// It cuts again before the first cut can be seen.
    NoHold,
    /// It rises by a hundredth at a time.
    Additive,
    /// It falls to nothing.
    NoFloor,
    /// It never cuts by more than a twentieth.
    Timid,
}

/// The law of the standing queue in its plainest form: it does not know rates.
pub(crate) struct Plain {
    mutant: Mutant,
    paths: [Delays; 3],
    recent: Traffic,
    level: Level,
    good: Level,
    cut: Option<Micros>,
    rises_at: Micros,
    is_rising: bool,
}

impl Plain {
    pub(crate) fn new(mutant: Mutant) -> Self {
        Self {
            mutant,
            paths: [(); 3].map(|()| Delays::default()),
            recent: Traffic::NONE,
            level: Level::FULL,
            good: Level::FULL,
            cut: None,
            rises_at: Micros::ZERO,
            is_rising: false,
        }
    }

    fn fall(&mut self, now: Micros, low: Span, high: Span) {
        if let Some(at) = self.cut
            && self.mutant != Mutant::NoHold
        {
            let shows = Span::from_us(high.us() + 100_000).min(Span::from_secs(1));
            if now.since(at) < shows {
                return;
            }
        }
        let over = low.us().min(2 * TARGET) - TARGET;
        let before = self.level;
        self.level = match self.mutant {
            Mutant::Timid => before.times(19, 20),
            _ => before.times(2 * TARGET - over, 2 * TARGET),
        };
        if self.mutant != Mutant::NoFloor {
            self.level = self.level.max(Level::from_percent(1));
        }
        self.good = if self.is_rising { before.times(15, 16) } else { before.times(3, 4) };
        self.is_rising = false;
        self.cut = Some(now);
        self.rises_at = now;
    }

    fn rise(&mut self, now: Micros, load: Tasks) {
        self.cut = None;
        if now < self.rises_at || self.mutant == Mutant::Gated && !has_load(load) {
            return;
        }
        self.rises_at = now + Span::from_ms(250);
        self.is_rising = true;
        let hundredth = Level::from_percent(1).parts();
        let beyond = match self.mutant {
            Mutant::Additive => Level::from_parts(self.level.parts() + hundredth),
            _ if self.level < self.good => self.level.times(3, 2).min(self.good),
            _ => self.level.times(7, 6),
        };
        self.level = beyond;
    }
}

impl Regulates for Plain {
    fn interval(&self) -> Span {
        Span::from_ms(100)
    }

    fn probed(&mut self, path: usize, delay: Span) {
        self.paths[path].record(delay);
    }

    fn worked(&mut self, path: usize, delays: &Delays) {
        self.paths[path].merge(delays);
    }

    fn waits(&mut self, path: usize, age: Span) {
        if age.us() > TARGET {
            self.paths[path].record(age);
        }
    }

    fn adjust(&mut self, now: Micros, seen: &Seen, traffic: &Traffic) -> Adjustment {
        self.recent.fade(traffic);
        let paths = self.paths.iter().filter(|delays| delays.count() >= 8);
        let worst = paths.filter_map(|it| it.percentile(10).zip(it.percentile(90))).max();
        match worst {
            Some((low, high)) if low.us() > TARGET => self.fall(now, low, high),
            Some(_) => self.rise(now, seen.load),
            None => {}
        }
        self.paths.iter_mut().for_each(|delays| *delays = Delays::default());
        Adjustment {
            level: self.level,
            cutoff: Cutoff::new(self.level, &self.recent),
            room: u64::MAX,
            ahead: Span::from_us(u64::MAX),
            probes: 10,
            run: 0,
            mean: Span::ZERO,
            spread: Span::ZERO,
        }
    }
}

const TARGET: u64 = 5_000;
