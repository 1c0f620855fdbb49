//! Arrivals, an executor and a regulator in one loop. Time is whole microseconds from the start.

use admittance_core::load::{
    Adjustment, Class, Cutoff, Delays, Hashed, Moment, Seed, Seen, Tasks, Traffic,
};
use admittance_core::{Micros, Span};
use fastrand::Rng;

use super::executor::{Executor, Lane, Task, What};
use super::figures::{Figures, Part};
use super::regulates::{GLOBAL, LOCAL, PATHS, Regulates, WORK};
use super::setup::{Fault, Keys, Measures, Queues, Service, Setup};
use crate::queue::Queue;

/// Runs a world around a regulator.
pub fn run(setup: &Setup, regulator: &mut impl Regulates) -> Figures {
    let mut world = World::new(setup, regulator);
    let end = setup.length.us();
    while let Some((at, event)) = world.coming.pop() {
        if at >= end {
            break;
        }
        world.now = at;
        world.happen(event);
    }
    world.figures
}

enum Event {
    Arrive,
    /// A task that was held up is queued.
    Queued(Task, Lane),
    /// A worker may be done.
    Ends(usize),
    Probe(usize),
    Adjust,
    Begins(Fault),
    Over(Fault),
}

struct World<'a, R> {
    setup: &'a Setup,
    regulator: &'a mut R,
    now: u64,
    /// When the next arrival is, between microseconds too: many may come within one.
    next: f64,
    coming: Queue<Event>,
    executor: Executor,
    random: Rng,
    /// For what the regulated world does not share with one that is not: executors draw apart, so
    /// that two laws meet the same arrivals.
    scheduling: Rng,
    whose: Vec<f64>,
    adjustment: Adjustment,
    /// How much was admitted and has not begun.
    waiting: u64,
    /// When the probes were sent that have not run, by path.
    unfinished: [Vec<u64>; PATHS],
    sent: u64,
    since: Interval,
    late: u64,
    is_slow: bool,
    figures: Figures,
}

/// What is measured between two adjustments.
struct Interval {
    traffic: Traffic,
    began: u64,
    waited: Delays,
    spawned: Delays,
    offered: u64,
    begun: u64,
    ended: u64,
    busy: u64,
    /// How many of each class lacked room.
    lacked: [u64; 4],
}

impl Interval {
    fn new(began: u64) -> Self {
        let (waited, spawned) = (Delays::default(), Delays::default());
        let traffic = Traffic::NONE;
        Self {
            traffic,
            began,
            waited,
            spawned,
            offered: 0,
            begun: 0,
            ended: 0,
            busy: 0,
            lacked: [0; 4],
        }
    }
}

impl<'a, R: Regulates> World<'a, R> {
    fn new(setup: &'a Setup, regulator: &'a mut R) -> Self {
        let mut coming = Queue::new();
        coming.push(0, Event::Adjust);
        coming.push(0, Event::Arrive);
        for (at, fault) in &setup.faults {
            coming.push(at.us(), Event::Begins(*fault));
        }
        let parts = usize::try_from(setup.length.us() / PART).unwrap_or(0);
        let traffic = Traffic::NONE;
        let load = Tasks { tasks: 0, workers: setup.workers as u64 };
        let nothing = Seen { elapsed: Span::from_us(1), load, ..Seen::default() };
        let adjustment = regulator.adjust(Micros::ZERO, &nothing, &traffic);
        Self {
            setup,
            regulator,
            now: 0,
            next: 0.0,
            coming,
            executor: Executor::new(setup.workers, setup.queues),
            random: Rng::with_seed(setup.seed),
            scheduling: Rng::with_seed(setup.seed ^ 0x5c4e_d01e),
            whose: zipf(),
            adjustment: Adjustment { cutoff: Cutoff::OPEN, ..adjustment },
            waiting: 0,
            unfinished: [const { Vec::new() }; PATHS],
            sent: 0,
            since: Interval::new(0),
            late: 0,
            is_slow: false,
            figures: Figures {
                parts: vec![Part::default(); parts],
                levels: Vec::new(),
                capacity: setup.workers as u64 * PART,
            },
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive => self.arrive(),
            Event::Queued(task, lane) => self.queue(task, lane),
            Event::Ends(worker) => self.ends(worker),
            Event::Probe(path) => self.probe(path),
            Event::Adjust => self.adjust(),
            Event::Begins(fault) => self.begins(fault),
            Event::Over(Fault::Slow { .. }) => self.is_slow = false,
            Event::Over(Fault::Late { .. }) => self.late = 0,
            Event::Over(Fault::Stuck { .. }) => {}
        }
    }

    fn arrive(&mut self) {
        let percent = self.setup.offered_at(self.now);
        let each =
            self.setup.mean.us() as f64 * 100.0 / (percent * self.setup.workers as u64) as f64;
        self.next += exponential(each, &mut self.random);
        self.coming.push(whole(self.next).max(self.now), Event::Arrive);
        let (class, key, takes) = (self.class(), self.key(), self.takes());
        let place = key.place(Moment::at(Micros::saturating_from_epoch_us(self.now), ROTATION));
        self.since.offered += 1;
        self.since.traffic.count(class, place);
        let has_room =
            !self.setup.has_room || class == Class::Critical || self.waiting < self.adjustment.room;
        let may_start = self.adjustment.cutoff.admits(class, place);
        let is_admitted = may_start && has_room;
        if may_start && !has_room {
            self.since.lacked[class.index()] += 1;
        }
        let part = self.part();
        part.offered[class.index()] += 1;
        if is_admitted {
            part.admitted[class.index()] += 1;
            self.waiting += 1;
            let lane = self.executor.lane(&mut self.scheduling);
            self.submit(Task { since: self.now, what: What::Work { takes } }, lane);
        }
    }

    fn submit(&mut self, task: Task, lane: Lane) {
        if self.late > 0 {
            self.coming.push(self.now + self.late, Event::Queued(task, lane));
        } else {
            self.queue(task, lane);
        }
    }

    fn queue(&mut self, task: Task, lane: Lane) {
        self.executor.put(task, lane);
        if let Some(worker) = self.executor.wake() {
            self.work(worker);
        }
    }

    /// Lets a worker take up what is queued until it is busy or there is no more.
    fn work(&mut self, worker: usize) {
        while let Some(task) = self.executor.take(worker, &mut self.scheduling) {
            let waited = Span::from_us(self.now - task.since);
            match task.what {
                What::Probe { path } => {
                    let unfinished = &mut self.unfinished[path];
                    if let Some(index) = unfinished.iter().position(|sent| *sent == task.since) {
                        unfinished.swap_remove(index);
                    }
                    self.regulator.probed(path, waited);
                }
                What::Work { takes } => {
                    self.waiting -= 1;
                    self.since.begun += 1;
                    self.since.waited.record(waited);
                    for _ in 0..self.setup.children {
                        self.since.spawned.record(Span::from_us(1));
                    }
                    self.part().waited.record(waited);
                    let lasts = if self.is_slow { 2 * takes } else { takes };
                    let ends = self.now + lasts;
                    self.since.busy += lasts;
                    self.executor.workers[worker].busy = Some((Some(takes), ends));
                    self.coming.push(ends, Event::Ends(worker));
                    return;
                }
            }
        }
    }

    fn ends(&mut self, worker: usize) {
        let Some((takes, ends)) = self.executor.workers[worker].busy else { return };
        if ends > self.now {
            // It was stuck meanwhile.
            self.coming.push(ends, Event::Ends(worker));
            return;
        }
        if let Some(takes) = takes {
            self.since.ended += 1;
            self.part().done += takes;
        }
        self.executor.workers[worker].busy = None;
        self.work(worker);
    }

    fn begins(&mut self, fault: Fault) {
        match fault {
            Fault::Stuck { workers, lasts } => {
                for worker in 0..workers.min(self.setup.workers) {
                    if let Some((_, ends)) = &mut self.executor.workers[worker].busy {
                        *ends += lasts.us();
                        continue;
                    }
                    self.executor.wake_this(worker);
                    let ends = self.now + lasts.us();
                    self.executor.workers[worker].busy = Some((None, ends));
                    self.coming.push(ends, Event::Ends(worker));
                }
            }
            Fault::Slow { lasts } => {
                self.is_slow = true;
                self.coming.push(self.now + lasts.us(), Event::Over(fault));
            }
            Fault::Late { by, lasts } => {
                self.late = by.us();
                self.coming.push(self.now + lasts.us(), Event::Over(fault));
            }
        }
    }

    fn probe(&mut self, path: usize) {
        if self.unfinished[path].len() >= UNFINISHED_MAX {
            return;
        }
        self.sent += 1;
        self.unfinished[path].push(self.now);
        let next = usize::try_from(self.sent).unwrap_or(0) % self.setup.workers;
        let lane = if path == LOCAL { Lane::Own(next) } else { Lane::Global };
        self.submit(Task { since: self.now, what: What::Probe { path } }, lane);
    }

    fn adjust(&mut self) {
        let interval = std::mem::replace(&mut self.since, Interval::new(self.now));
        let is_measured = self.setup.measures == Measures::Work;
        if is_measured {
            self.regulator.worked(WORK, &interval.waited);
            self.regulator.spawned(WORK, &interval.spawned);
        }
        for (path, unfinished) in self.unfinished.iter().enumerate() {
            for sent in unfinished {
                self.regulator.waits(path, Span::from_us(self.now - sent));
            }
        }
        let counted = |count: u64| if is_measured { count } else { 0 };
        let (tasks, workers) = (self.executor.tasks() as u64, self.setup.workers as u64);
        let seen = Seen {
            elapsed: Span::from_us((self.now - interval.began).max(1)),
            load: Tasks { tasks, workers },
            offered: interval.offered,
            begun: counted(interval.begun),
            ended: counted(interval.ended),
            busy: Span::from_us(counted(interval.busy)),
            crowded: interval.traffic.crowded(interval.lacked),
        };
        let now = Micros::saturating_from_epoch_us(self.now);
        self.adjustment = self.regulator.adjust(now, &seen, &interval.traffic);
        self.figures.levels.push((Span::from_us(self.now), self.adjustment.level));
        let every = self.regulator.interval().us();
        self.coming.push(self.now + every, Event::Adjust);
        let probes = u64::from(self.adjustment.probes).min(PROBES_MAX);
        let is_stealing = matches!(self.setup.queues, Queues::Stealing { .. });
        for path in [GLOBAL, LOCAL] {
            for nth in (0..probes).filter(|_| path == GLOBAL || is_stealing) {
                // Not two at one instant: they are told apart by when they were sent.
                let at = self.now + (2 * nth + 1) * every / (2 * probes) + path as u64;
                self.coming.push(at, Event::Probe(path));
            }
        }
    }

    fn part(&mut self) -> &mut Part {
        let index = usize::try_from(self.now / PART).unwrap_or(usize::MAX);
        let last = self.figures.parts.len() - 1;
        &mut self.figures.parts[index.min(last)]
    }

    fn class(&mut self) -> Class {
        let all: u32 = self.setup.classes.iter().sum();
        let mut drawn = self.random.u32(..all.max(1));
        for (class, part) in Class::ALL.into_iter().zip(self.setup.classes) {
            if drawn < part {
                return class;
            }
            drawn -= part;
        }
        Class::Default
    }

    fn key(&mut self) -> Hashed {
        let key = match self.setup.keys {
            Keys::Even => self.random.u64(..100_000),
            Keys::Heavy if self.random.u32(..5) == 0 => 100_000,
            Keys::Heavy => self.random.u64(..100_000),
            Keys::Zipf => {
                let drawn = self.random.f64() * self.whose.last().copied().unwrap_or(1.0);
                self.whose.partition_point(|sum| *sum < drawn) as u64
            }
        };
        Seed(self.setup.seed).number(key)
    }

    /// How long the work of an arrival takes.
    fn takes(&mut self) -> u64 {
        let mean = self.setup.mean.us();
        match self.setup.service {
            Service::Constant => mean,
            Service::Exponential => whole(exponential(mean as f64, &mut self.random)).max(1),
            // 19/20 · 1 + 1/20 · 20 = 39/20.
            Service::Mixed if self.random.u32(..20) == 0 => mean * 400 / 39,
            Service::Mixed => mean * 20 / 39,
        }
    }
}

fn exponential(mean: f64, random: &mut Rng) -> f64 {
    -mean * (1.0 - random.f64()).ln()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
fn whole(us: f64) -> u64 {
    us as u64
}

/// How often one of the first n keys comes, for each n.
fn zipf() -> Vec<f64> {
    let mut sum = 0.0;
    (1..=10_000_u32)
        .map(|nth| {
            sum += 1.0 / f64::from(nth);
            sum
        })
        .collect()
}

/// Figures are counted for each tenth of a second.
const PART: u64 = 100_000;
/// How long a key keeps its place.
const ROTATION: Span = Span::from_secs(3_600);
/// So many probes of a path may be on their way.
const UNFINISHED_MAX: usize = 16;
/// So many are sent between two adjustments at most.
const PROBES_MAX: u64 = 64;
