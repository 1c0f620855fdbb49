//! Who asks for what, when and where.
//!
//! Requests come one after the other, with gaps evenly spread from nothing to twice their mean.
//! Keys are chosen as Zipf says: the second is asked for half as often as the first, the third a
//! third as often. Whole numbers only, so that a seed means the same run on every machine.

use admittance_core::learn::trace;
use fastrand::Rng;

use crate::setup::{Demand, Setup};

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The true instant.
    pub(crate) at: u64,
    pub(crate) node: usize,
    pub(crate) key: usize,
    pub(crate) cost: u64,
}

/// All requests of a run, in order.
pub(crate) struct Load {
    random: Rng,
    demand: Demand,
    keys: Zipf,
    nodes: Zipf,
    cost_max: u64,
    window_ns: u64,
    slice_ns: u64,
    end_ns: u64,
    /// Requests per window, window by window.
    requests: Vec<u64>,
    now_ns: u64,
    /// The stretch in which the gaps have one mean.
    slice: Option<Slice>,
}

#[derive(Clone, Copy)]
struct Slice {
    end_ns: u64,
    /// Nothing is asked for if there is none.
    gap_ns: Option<u64>,
}

impl Load {
    pub(crate) fn new(setup: &Setup, random: Rng) -> Self {
        let keys = u64::try_from(setup.keys).unwrap_or(u64::MAX);
        let units = u128::from(setup.limit) * u128::from(keys) * u128::from(setup.load_percent);
        // A cost is (1 + cost_max) / 2 on average.
        let mean = u64::try_from(units * 2 / 100 / u128::from(1 + setup.cost_max)).unwrap_or(0);
        let requests = match setup.demand {
            Demand::Steady | Demand::Bursty => vec![mean; setup.windows],
            Demand::Drifting => trace::drifting(setup.windows)
                .map(|it| (mean.saturating_mul(DRIFT_PEAK).saturating_mul(it) >> 16).max(1))
                .collect(),
        };
        let window_ns = setup.window.us() * 1_000;
        let windows = u64::try_from(setup.windows).unwrap_or(0);
        let is_even = setup.demand == Demand::Steady;
        Self {
            random,
            demand: setup.demand,
            keys: Zipf::new(setup.keys),
            nodes: if is_even { Zipf::even(setup.nodes) } else { Zipf::new(setup.nodes) },
            cost_max: setup.cost_max,
            window_ns,
            slice_ns: window_ns / SLICES,
            end_ns: windows * window_ns,
            requests,
            now_ns: 0,
            slice: None,
        }
    }

    /// The next request; none when the run is over.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        loop {
            let slice = match self.slice.filter(|slice| self.now_ns < slice.end_ns) {
                Some(slice) => slice,
                None => self.begin_slice()?,
            };
            let gap = slice.gap_ns.map(|gap_ns| self.random.u64(0..=2 * gap_ns));
            match gap.map(|gap| self.now_ns + gap).filter(|&at| at < slice.end_ns) {
                Some(at) => {
                    self.now_ns = at;
                    return Some(self.arrive(at));
                }
                None => self.now_ns = slice.end_ns,
            }
        }
    }

    fn begin_slice(&mut self) -> Option<Slice> {
        if self.now_ns >= self.end_ns {
            return None;
        }
        let window = usize::try_from(self.now_ns / self.window_ns).ok()?;
        let mean = *self.requests.get(window)?;
        let per_window = match self.demand {
            Demand::Steady | Demand::Drifting => mean,
            Demand::Bursty if self.random.u64(0..5) == 0 => mean * 21 / 5,
            Demand::Bursty => mean / 5,
        };
        let gap_ns = self.window_ns.checked_div(per_window);
        let slice = Slice { end_ns: self.now_ns + self.slice_ns, gap_ns };
        self.slice = Some(slice);
        Some(slice)
    }

    fn arrive(&mut self, at_ns: u64) -> Arrival {
        let key = self.keys.choose(&mut self.random);
        let rank = self.nodes.choose(&mut self.random);
        let moves = usize::try_from(at_ns / self.window_ns / WINDOWS_PER_MOVE).unwrap_or(0);
        let node = (rank + key * 31 + moves * 17) % self.nodes.len();
        let cost = self.random.u64(1..=self.cost_max);
        Arrival { at: at_ns / 1_000, node, key, cost }
    }
}

/// Ranks, of which the first come up most.
pub(crate) struct Zipf {
    /// Sums of the weights so far.
    sums: Vec<u64>,
}

impl Zipf {
    pub(crate) fn new(len: usize) -> Self {
        Self::from_weights((1_u64..).map(|rank| WEIGHT / rank).take(len))
    }

    pub(crate) fn even(len: usize) -> Self {
        Self::from_weights((0..len).map(|_| 1))
    }

    fn from_weights(weights: impl Iterator<Item = u64>) -> Self {
        let mut sum = 0;
        let add = |weight| {
            sum += weight;
            sum
        };
        Self { sums: weights.map(add).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.sums.len()
    }

    pub(crate) fn choose(&self, random: &mut Rng) -> usize {
        let all = self.sums.last().copied().unwrap_or(1);
        let point = random.u64(0..all);
        self.sums.partition_point(|&sum| sum <= point)
    }
}

/// The weight of the first rank.
const WEIGHT: u64 = 1 << 20;
/// Demand that drifts is this many times the load at its peak.
const DRIFT_PEAK: u64 = 4;
/// The stretches of a window in which demand is even.
const SLICES: u64 = 10;
/// How long the same nodes are asked most.
const WINDOWS_PER_MOVE: u64 = 8;
