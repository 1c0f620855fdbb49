//! A backend with a known capacity.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, VecDeque};

use fastrand::Rng;

/// What works on the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backend {
    /// How many requests it works on at full speed.
    pub servers: u32,
    /// How long one takes on average, in nanoseconds.
    pub service_ns: u64,
    /// How much that varies.
    pub service: Service,
    /// What happens to more than it has servers for.
    pub discipline: Discipline,
}

/// How long the work of one request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Always the same.
    Constant,
    /// Within 20 % of the mean.
    Uniform,
    /// With a standard deviation as large as the mean.
    Exponential,
    /// One in ten takes twenty times as long as the others.
    Mixed,
}

/// What happens to more requests than there are servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// They wait, first come first served.
    Queue,
    /// All are worked on, each the slower.
    Sharing,
}

impl Service {
    fn draw(self, mean_ns: u64, random: &mut Rng) -> f64 {
        let mean = mean_ns as f64;
        match self {
            Self::Constant => mean,
            Self::Uniform => mean * (0.8 + 0.4 * random.f64()),
            Self::Exponential => -mean * (1.0 - random.f64()).ln(),
            // 0.9 · 1 + 0.1 · 20 = 2.9.
            Self::Mixed if random.u32(0..10) == 0 => mean * 20.0 / 2.9,
            Self::Mixed => mean / 2.9,
        }
    }
}

/// A request in the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inside {
    pub(super) started_ns: u64,
    pub(super) in_flight: u32,
    pub(super) ceiling: u32,
}

/// A backend at work. Time is counted in nanoseconds from the start.
pub(super) struct Working {
    pub(super) backend: Backend,
    now_ns: f64,
    /// Work that one server would have done; with sharing it goes slower than time.
    done: f64,
    /// On their way, by when they are there.
    coming: BinaryHeap<Reverse<(Ordered, u64)>>,
    /// By how much must be done until each is.
    running: BinaryHeap<Reverse<(Ordered, u64)>>,
    waiting: VecDeque<u64>,
    inside: HashMap<u64, Inside>,
    count: u64,
}

impl Working {
    pub(super) fn new(backend: Backend) -> Self {
        Self {
            backend,
            now_ns: 0.0,
            done: 0.0,
            coming: BinaryHeap::new(),
            running: BinaryHeap::new(),
            waiting: VecDeque::new(),
            inside: HashMap::new(),
            count: 0,
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns as u64
    }

    /// Sends a request on its way.
    pub(super) fn send(&mut self, request: Inside, random: &mut Rng) {
        self.count += 1;
        self.inside.insert(self.count, request);
        let way = WAY * self.backend.service_ns as f64 * random.f64();
        self.coming.push(Reverse((Ordered(self.now_ns + way), self.count)));
    }

    /// The next request that is done.
    pub(super) fn next(&mut self, random: &mut Rng) -> Option<Inside> {
        loop {
            let speed = self.speed();
            let ends = self
                .running
                .peek()
                .map(|Reverse((Ordered(end), _))| self.now_ns + (end - self.done).max(0.0) / speed);
            let comes = self.coming.peek().map(|Reverse((Ordered(at), _))| *at);
            match (comes, ends) {
                (Some(at), end) if end.is_none_or(|end| at < end) => {
                    self.advance(at, speed);
                    let Reverse((_, id)) = self.coming.pop()?;
                    self.waiting.push_back(id);
                    self.work(random);
                }
                (_, end) => {
                    self.advance(end?, speed);
                    let Reverse((_, id)) = self.running.pop()?;
                    self.work(random);
                    return self.inside.remove(&id);
                }
            }
        }
    }

    fn advance(&mut self, at: f64, speed: f64) {
        self.done += (at - self.now_ns) * speed;
        self.now_ns = at;
    }

    /// How fast each request is worked on.
    fn speed(&self) -> f64 {
        let running = self.running.len().max(1) as f64;
        match self.backend.discipline {
            Discipline::Queue => 1.0,
            Discipline::Sharing => (f64::from(self.backend.servers) / running).min(1.0),
        }
    }

    /// Takes up what may be worked on.
    fn work(&mut self, random: &mut Rng) {
        let most = match self.backend.discipline {
            Discipline::Queue => self.backend.servers as usize,
            Discipline::Sharing => usize::MAX,
        };
        while self.running.len() < most {
            let Some(id) = self.waiting.pop_front() else { break };
            let work = self.backend.service.draw(self.backend.service_ns, random);
            self.running.push(Reverse((Ordered(self.done + work), id)));
        }
    }
}

/// A time or an amount of work, which is never NaN.
#[derive(Clone, Copy, Debug)]
struct Ordered(f64);

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

/// The longest way to the backend, as a part of its mean time. Without it, requests that all take
/// the same time stay in step for ever, and one too many waits for a whole service.
const WAY: f64 = 0.1;
