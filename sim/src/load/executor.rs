//! Workers and their queues.

use std::collections::VecDeque;

use fastrand::Rng;

use super::setup::Queues;

/// Something that waits for a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// When it was admitted, or sent.
    pub(super) since: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// Work that takes so long.
    Work { takes: u64 },
    /// A probe on a path.
    Probe { path: usize },
}

/// Where a task arrives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    Global,
    Own(usize),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Worker {
    own: VecDeque<Task>,
    /// What it does and until when, if anything. A worker that is stuck does nothing until then.
    pub(super) busy: Option<(Option<u64>, u64)>,
    taken: u32,
}

pub(super) struct Executor {
    queues: Queues,
    global: VecDeque<Task>,
    pub(super) workers: Vec<Worker>,
    idle: Vec<usize>,
}

impl Executor {
    pub(super) fn new(workers: usize, queues: Queues) -> Self {
        Self {
            queues,
            global: VecDeque::new(),
            workers: vec![Worker::default(); workers],
            idle: (0..workers).rev().collect(),
        }
    }

    /// Where work arrives.
    pub(super) fn lane(&self, random: &mut Rng) -> Lane {
        match self.queues {
            Queues::Stealing { .. } if random.bool() => {
                Lane::Own(random.usize(..self.workers.len()))
            }
            _ => Lane::Global,
        }
    }

    /// Queues a task.
    pub(super) fn put(&mut self, task: Task, lane: Lane) {
        match lane {
            Lane::Own(worker) if self.workers[worker].own.len() < OWN_MAX => {
                self.workers[worker].own.push_back(task);
            }
            _ => self.global.push_back(task),
        }
    }

    /// A worker that has nothing to do; it is no longer idle.
    pub(super) fn wake(&mut self) -> Option<usize> {
        self.idle.pop()
    }

    /// Takes a worker out of the idle ones.
    pub(super) fn wake_this(&mut self, worker: usize) {
        self.idle.retain(|idle| *idle != worker);
    }

    /// The next task of a worker. If there is none it is idle.
    pub(super) fn take(&mut self, worker: usize, random: &mut Rng) -> Option<Task> {
        let task = self.find(worker, random);
        if task.is_none() {
            self.idle.push(worker);
        }
        task
    }

    fn find(&mut self, worker: usize, random: &mut Rng) -> Option<Task> {
        let Queues::Stealing { every } = self.queues else {
            return self.global.pop_front();
        };
        let taken = &mut self.workers[worker].taken;
        *taken = taken.wrapping_add(1);
        if (*taken).is_multiple_of(every.max(1))
            && let Some(task) = self.global.pop_front()
        {
            return Some(task);
        }
        if let Some(task) = self.workers[worker].own.pop_front() {
            return Some(task);
        }
        let share = (self.global.len() / self.workers.len() + 1).min(OWN_MAX / 2);
        if let Some(task) = self.global.pop_front() {
            let rest = share.saturating_sub(1).min(self.global.len());
            let rest: Vec<Task> = self.global.drain(..rest).collect();
            self.workers[worker].own.extend(rest);
            return Some(task);
        }
        self.steal(worker, random)
    }

    fn steal(&mut self, worker: usize, random: &mut Rng) -> Option<Task> {
        let count = self.workers.len();
        let first = random.usize(..count);
        for other in (0..count).map(|nth| (first + nth) % count).filter(|other| *other != worker) {
            let own = &mut self.workers[other].own;
            let half = own.len().div_ceil(2);
            let stolen: Vec<Task> = own.drain(..half).collect();
            if let Some((task, rest)) = stolen.split_first() {
                self.workers[worker].own.extend(rest);
                return Some(*task);
            }
        }
        None
    }

    /// How many tasks are queued or run.
    pub(super) fn tasks(&self) -> usize {
        let own: usize = self.workers.iter().map(|worker| worker.own.len()).sum();
        let busy = self.workers.iter().filter(|worker| worker.busy.is_some()).count();
        self.global.len() + own + busy
    }
}

/// So many fit into a worker's own queue.
const OWN_MAX: usize = 256;
