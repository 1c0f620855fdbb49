//! The regulator: what was measured comes in, how much may start goes out.

use super::delay::Delay;
use super::jitter::Jitter;
use super::{Class, Cutoff, DelayRules, Delays, JitterRules, Level, Traffic};
use crate::{Invalid, Micros, Span};

/// By which law a level is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// By how long work waits.
    Delay(DelayRules),
    /// By how much the delay of probes varies.
    Jitter(JitterRules),
}

impl Default for Law {
    fn default() -> Self {
        Self::Delay(DelayRules::default())
    }
}

impl Law {
    /// How often a regulator under this law is to be asked.
    #[must_use]
    pub const fn interval(&self) -> Span {
        match self {
            Self::Delay(rules) => rules.interval,
            Self::Jitter(rules) => rules.interval,
        }
    }
}

/// How many tasks an executor has, queued and running, and how many workers for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tasks {
    /// Queued or running.
    pub tasks: u64,
    /// How many can run at once.
    pub workers: u64,
}

impl Tasks {
    /// Whether there are so many thousandths of a task per worker.
    #[must_use]
    pub fn reaches(self, thousandths: u64) -> bool {
        u128::from(self.tasks) * 1_000 >= u128::from(self.workers) * u128::from(thousandths)
    }
}

/// What was counted since the regulator was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How long ago that was.
    pub elapsed: Span,
    /// What the executor has to do.
    pub load: Tasks,
    /// How much work asked to start.
    pub offered: u64,
    /// How much admitted work began; none if that is not measured.
    pub begun: u64,
    /// How much work ended whose time on a worker was measured.
    pub ended: u64,
    /// That time, all of it together.
    pub busy: Span,
    /// The first class, in the order they are kept, of which some were refused for want of room.
    pub crowded: Option<Class>,
}

/// What a regulator decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adjustment {
    /// The part of the work that may start.
    pub level: Level,
    /// Who that is.
    pub cutoff: Cutoff,
    /// How many may wait at once: what comes when so many do is refused, whoever it is.
    pub room: u64,
    /// How much may be done, by all workers together, between the coming of work and its admission;
    /// what is later than that is refused too, where its coming is known.
    pub ahead: Span,
    /// How many probes are wanted on each path until the next adjustment.
    pub probes: u32,
    /// How many steps the run has had; below zero if they went down.
    pub run: i64,
    /// The mean of the delays that were judged.
    pub mean: Span,
    /// Their standard deviation.
    pub spread: Span,
}

/// What a law made of an interval.
pub(super) struct Fixed {
    pub(super) level: Level,
    pub(super) run: i64,
    pub(super) mean: Span,
    pub(super) spread: Span,
}

/// Turns what was measured into how much may start. See the [module](super).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regulator {
    law: Law,
    state: State,
    recent: Traffic,
    /// How long one piece of work keeps a worker, on average, in 2^-8 us.
    busy: Option<u64>,
    /// How much work was asked for of what the workers can do, on average, in thousandths.
    demand: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Delay(Delay),
    Jitter(Jitter),
}

impl Regulator {
    /// The most paths that are told apart.
    pub const PATHS_MAX: usize = 8;

    /// A regulator that admits everything, and is told of delays on so many paths.
    ///
    /// # Errors
    /// A rule is out of range, or there are no paths or more than
    /// [`PATHS_MAX`](Self::PATHS_MAX).
    pub fn new(law: Law, paths: usize) -> Result<Self, Invalid> {
        if paths == 0 || paths > Self::PATHS_MAX {
            let parameter = crate::Parameter::Paths;
            return Err(Invalid::Unfit { parameter, must: "be between 1 and 8" });
        }
        let state = match law {
            Law::Delay(rules) => State::Delay(Delay::new(rules.checked()?, paths)),
            Law::Jitter(rules) => State::Jitter(Jitter::new(rules.checked()?)),
        };
        Ok(Self { law, state, recent: Traffic::NONE, busy: None, demand: 0 })
    }

    /// Takes in how long a probe took to run. A path that does not exist is ignored.
    pub fn probed(&mut self, path: usize, delay: Span) {
        match &mut self.state {
            State::Delay(law) => {
                let mut one = Delays::default();
                one.record(delay);
                law.record(path, &one);
            }
            State::Jitter(law) => law.record(delay),
        }
    }

    /// Takes in how long admitted work waited before it began. The law of the standard deviation
    /// goes by probes alone.
    pub fn worked(&mut self, path: usize, delays: &Delays) {
        if let State::Delay(law) = &mut self.state {
            law.record(path, delays);
        }
    }

    /// Takes in how long ago a probe was sent that has not run yet. Say it again every time: the
    /// probe says more the older it gets. The law of the standard deviation does not listen.
    pub fn waits(&mut self, path: usize, age: Span) {
        if let State::Delay(law) = &mut self.state {
            law.waits(path, age);
        }
    }

    /// Judges what was taken in since the last time. `now` is monotonic time, `traffic` what was
    /// offered since.
    pub fn adjust(&mut self, now: Micros, seen: &Seen, traffic: &Traffic) -> Adjustment {
        // Where nothing is offered, what was offered last is still the best guess at what will be.
        if traffic.total() > 0 {
            self.recent.fade(traffic);
        }
        if seen.ended > 0 {
            let each = u128::from(seen.busy.us()) * 256 / u128::from(seen.ended);
            let each = u64::try_from(each).unwrap_or(u64::MAX);
            self.busy = Some(self.busy.map_or(each, |busy| busy - busy / 4 + each / 4));
        }
        let fixed = match &mut self.state {
            State::Delay(law) => law.judge(now, seen),
            State::Jitter(law) => law.judge(seen.load),
        };
        let is_pressed = self.is_pressed(seen);
        let (room, ahead) = self.room(seen.load.workers, is_pressed);
        // While one class lacks room, the classes after it do not take it.
        let crowded = seen.crowded.map_or(Cutoff::OPEN, Cutoff::through);
        Adjustment {
            level: fixed.level,
            cutoff: Cutoff::new(fixed.level, &self.recent).min(crowded),
            room,
            ahead,
            probes: self.probes(),
            run: fixed.run,
            mean: fixed.mean,
            spread: fixed.spread,
        }
    }

    /// How many probes are wanted on each path until the next adjustment: one now and then while
    /// nothing is wrong.
    #[must_use]
    pub fn probes(&self) -> u32 {
        match (&self.state, self.law) {
            (State::Delay(law), _) if law.is_calm() => 1,
            (_, Law::Delay(_)) => PROBES,
            (_, Law::Jitter(rules)) => {
                let probes = rules.interval.us() / rules.probe_every.us().max(1);
                u32::try_from(probes).unwrap_or(u32::MAX)
            }
        }
    }

    /// Whether more is asked for than the workers can do: by a quarter just now, or at all on
    /// average.
    fn is_pressed(&mut self, seen: &Seen) -> bool {
        let Some(each) = self.busy else { return false };
        let wanted = u128::from(seen.offered).saturating_mul(u128::from(each) * 1_000);
        let could = u128::from(seen.elapsed.us().max(1)) * u128::from(seen.load.workers.max(1));
        let demand = wanted / could.saturating_mul(256);
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        self.demand = self.demand - self.demand / 4 + demand / 4;
        demand >= 1_250 || self.demand >= 1_000
    }

    /// How many may wait, and how much may be done before one that has come is admitted: as much as
    /// is done within the longest wait, and one for each worker at least. While the workers can do
    /// what is asked for, a few for each: random arrivals meet now and then, and that is no reason
    /// to refuse any.
    fn room(&self, workers: u64, is_pressed: bool) -> (u64, Span) {
        let Law::Delay(rules) = self.law else { return (u64::MAX, Span::from_us(u64::MAX)) };
        let (workers, wait_max) = (workers.max(1), rules.wait_max.us());
        let ahead = |wait: u64| Span::from_us(wait.saturating_mul(workers));
        let Some(busy) = self.busy else { return (u64::MAX, ahead(wait_max)) };
        let least = if is_pressed { 1 } else { FEW };
        let each = (wait_max.saturating_mul(256) / busy.max(1)).max(least);
        let few = if is_pressed { 0 } else { busy.saturating_mul(FEW) / 256 };
        (each.saturating_mul(workers), ahead(wait_max.max(few)))
    }
}

/// How many pieces of work may wait for each worker while there is time to spare.
const FEW: u64 = 8;
/// So many probes in an interval have a tenth.
const PROBES: u32 = 10;
