//! Messages that take their time, get lost, arrive twice, and overtake each other.

use fastrand::Rng;

use admittance_core::Span;

/// What happens to messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// How long one takes on average.
    pub(crate) latency: Span,
    /// In a million, how many are lost, how many arrive twice, and how many take up to a hundred
    /// times as long.
    pub(crate) loss_ppm: u64,
    pub(crate) duplicate_ppm: u64,
    pub(crate) slow_ppm: u64,
}

/// Between the nodes and the store.
pub(crate) struct Network {
    random: Rng,
    way: Way,
    /// How many partitions each node is behind.
    cut: Vec<u32>,
}

impl Network {
    pub(crate) fn new(way: Way, nodes: usize, random: Rng) -> Self {
        Self { random, way, cut: vec![0; nodes] }
    }

    /// How long a message and its copies take; none if it is lost.
    pub(crate) fn send(&mut self, node: usize) -> impl Iterator<Item = u64> + use<> {
        let is_lost = self.is_cut(node) || self.happens(self.way.loss_ppm);
        let first = (!is_lost).then(|| self.latency());
        let is_double = !is_lost && self.happens(self.way.duplicate_ppm);
        // A copy may come much later: after the attempt it answers is closed.
        let second = is_double.then(|| self.latency() + self.random.u64(0..COPY_LATE_MAX_US));
        first.into_iter().chain(second)
    }

    /// Whether messages of the node get through.
    pub(crate) fn is_cut(&self, node: usize) -> bool {
        self.cut[node] > 0
    }

    pub(crate) fn cut(&mut self, nodes: &[usize]) {
        for &node in nodes {
            self.cut[node] += 1;
        }
    }

    pub(crate) fn heal(&mut self, nodes: &[usize]) {
        for &node in nodes {
            self.cut[node] -= 1;
        }
    }

    /// Whether something does that happens so often in a million.
    pub(crate) fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.random.u64(0..1_000_000) < ppm
    }

    /// From half to one and a half times the mean, unless it is slow.
    fn latency(&mut self) -> u64 {
        let mean = self.way.latency.us().max(2);
        let usual = self.random.u64(mean / 2..=mean + mean / 2);
        let times = if self.happens(self.way.slow_ppm) { self.random.u64(2..=100) } else { 1 };
        usual * times
    }
}

/// How much later than the first a copy may come.
const COPY_LATE_MAX_US: u64 = 200_000;
