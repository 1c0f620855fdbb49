//! Callers, a limit and a backend in one loop.

use admittance_core::learn::{Ending, Limit, LimitRules, Sample};
use fastrand::Rng;

use super::backend::{Backend, Inside, Working};

/// What a loop is closed over: the shipped limit, or a mutant.
pub trait Settles {
    /// How many may be in flight.
    fn limit(&self) -> u32;
    /// Learns from work that has ended.
    fn settle(&mut self, sample: Sample, now_ns: u64);
}

impl Settles for Limit {
    fn limit(&self) -> u32 {
        self.limit()
    }

    fn settle(&mut self, sample: Sample, now_ns: u64) {
        self.settle(sample, now_ns);
    }
}

/// A closed loop.
#[derive(Clone, Debug)]
pub struct Closed {
    /// What works.
    pub backend: Backend,
    /// How many want to be in flight at once; as soon as one is done it comes again.
    pub callers: u32,
    /// How many requests are settled.
    pub samples: usize,
    /// What becomes of the backend, in order.
    pub changes: Vec<Change>,
    /// Where all chance comes from.
    pub seed: u64,
}

/// From so many samples on the backend is another.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// After how many samples.
    pub after: usize,
    /// What it is then.
    pub backend: Backend,
}

/// What was seen, sample by sample.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The limit after each sample.
    pub limits: Vec<u32>,
    /// How long each took, in nanoseconds.
    pub rtts_ns: Vec<u64>,
    /// When each was done.
    pub done_ns: Vec<u64>,
}

impl Closed {
    /// More callers than the backend serves, and nothing changes.
    #[must_use]
    pub fn new(backend: Backend, samples: usize, seed: u64) -> Self {
        Self { backend, callers: 2_000, samples, changes: Vec::new(), seed }
    }

    /// Runs it against a limit.
    pub fn run(&self, limit: &mut impl Settles) -> Figures {
        let mut random = Rng::with_seed(self.seed);
        let mut working = Working::new(self.backend);
        let mut changes = self.changes.iter().peekable();
        let mut in_flight = 0;
        let mut figures = Figures::default();
        while figures.limits.len() < self.samples {
            if let Some(change) = changes.next_if(|it| figures.limits.len() >= it.after) {
                working.backend = change.backend;
            }
            let ceiling = limit.limit();
            while in_flight < ceiling.min(self.callers) {
                in_flight += 1;
                let started_ns = working.now_ns();
                working.send(Inside { started_ns, in_flight, ceiling }, &mut random);
            }
            let Some(done) = working.next(&mut random) else { break };
            in_flight -= 1;
            let now_ns = working.now_ns();
            let rtt_ns = now_ns - done.started_ns;
            let Inside { in_flight, ceiling, .. } = done;
            let ending = Ending::Finish;
            limit.settle(Sample { rtt_ns, in_flight, ceiling, ending }, now_ns);
            figures.limits.push(limit.limit());
            figures.rtts_ns.push(rtt_ns);
            figures.done_ns.push(now_ns);
        }
        figures
    }
}

impl Figures {
    /// The part from one sample to another.
    #[must_use]
    pub fn part(&self, from: usize, to: usize) -> Self {
        Self {
            limits: self.limits[from..to].to_vec(),
            rtts_ns: self.rtts_ns[from..to].to_vec(),
            done_ns: self.done_ns[from..to].to_vec(),
        }
    }

    /// The last third.
    #[must_use]
    pub fn settled(&self) -> Self {
        self.part(self.limits.len() * 2 / 3, self.limits.len())
    }

    /// The median of the limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        let mut limits = self.limits.clone();
        limits.sort_unstable();
        limits.get(limits.len() / 2).copied().unwrap_or(0)
    }

    /// Requests per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        match (self.done_ns.first(), self.done_ns.last()) {
            (Some(first), Some(last)) if last > first => {
                (self.done_ns.len() - 1) as f64 * 1e9 / (last - first) as f64
            }
            _ => 0.0,
        }
    }

    /// The time that one in a hundred takes longer than, in nanoseconds.
    #[must_use]
    pub fn p99_ns(&self) -> u64 {
        let mut rtts = self.rtts_ns.clone();
        rtts.sort_unstable();
        rtts.get(rtts.len() * 99 / 100).copied().unwrap_or(0)
    }
}

/// What a sweep of fixed limits finds.
#[derive(Clone, Copy, Debug)]
pub struct Knee {
    /// The least number at once with 95 % of the most throughput.
    pub at: u32,
    /// The most throughput, per second.
    pub best: f64,
    /// The 99th percentile of one at a time, in nanoseconds.
    pub no_load_p99_ns: u64,
}

impl Knee {
    /// Sweeps the backend between half as many at once as it has servers and twice as many.
    /// Throughput does not fall with more at once, so that halving the range finds the knee.
    /// Each step takes so many samples.
    #[must_use]
    pub fn of(backend: Backend, samples: usize, seed: u64) -> Self {
        let swept = |at: u32| {
            let rules = LimitRules::fixed(at.max(1));
            let mut limit = Limit::new(rules).expect("one or more");
            Closed { callers: u32::MAX, ..Closed::new(backend, samples, seed) }.run(&mut limit)
        };
        let best = swept(backend.servers * 2).settled().throughput();
        let (mut low, mut high) = (backend.servers / 2, backend.servers * 2);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if swept(middle).settled().throughput() >= 0.95 * best {
                high = middle;
            } else {
                low = middle;
            }
        }
        Self { at: high, best, no_load_p99_ns: swept(1).p99_ns() }
    }
}
