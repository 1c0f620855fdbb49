//! Who asks when, and for how long.

use fastrand::Rng;

use super::setup::{Demand, Setup};
use crate::demand::Zipf;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The true instant.
    pub(super) at: u64,
    pub(super) node: usize,
    /// How long the work takes.
    pub(super) length: u64,
}

/// All requests of a run, in order. Gaps are evenly spread from nothing to twice their mean.
pub(super) struct Load {
    random: Rng,
    demand: Demand,
    nodes: Zipf,
    gap_ns: u64,
    now_ns: u64,
    end_ns: u64,
    /// The least and the most that work takes, and the most that any does.
    least: u64,
    most: u64,
    hold: u64,
    long_ppm: u64,
}

impl Load {
    pub(super) fn new(setup: &Setup, random: Rng) -> Self {
        let asked = u64::from(setup.room()) * setup.load_percent;
        let spread = setup.work.us() * setup.spread_percent / 100;
        let is_even = setup.demand == Demand::Steady;
        Self {
            random,
            demand: setup.demand,
            nodes: if is_even { Zipf::even(setup.nodes) } else { Zipf::new(setup.nodes) },
            gap_ns: (setup.work.us() * 100_000 / asked).max(1),
            now_ns: 0,
            end_ns: setup.seconds * 1_000_000_000,
            least: (setup.work.us() - spread).max(1),
            most: (setup.work.us() + spread).min(setup.rules.max_hold.us()),
            hold: setup.rules.max_hold.us(),
            long_ppm: setup.long_ppm,
        }
    }

    /// The next request; none when the run is over.
    pub(super) fn next(&mut self) -> Option<Arrival> {
        let second = self.now_ns / 1_000_000_000;
        let (gap_ns, moved) = match self.demand {
            Demand::Steady | Demand::Skewed => (self.gap_ns, 0),
            Demand::Drifting => {
                let from_peak = (second % SWING).abs_diff(SWING / 2);
                (self.gap_ns * 8 / (8 - (7 * from_peak * 2 / SWING)), second / SECONDS_PER_MOVE)
            }
        };
        self.now_ns += self.random.u64(0..=2 * gap_ns);
        if self.now_ns >= self.end_ns {
            return None;
        }
        let moved = usize::try_from(moved).unwrap_or(0);
        let node = (self.nodes.choose(&mut self.random) + moved * 17) % self.nodes.len();
        Some(Arrival { at: self.now_ns / 1_000, node, length: self.length() })
    }

    /// How long some work takes.
    pub(super) fn length(&mut self) -> u64 {
        let is_long = self.long_ppm > 0 && self.random.u64(0..1_000_000) < self.long_ppm;
        // Half of it takes all that it may: what is kept for too short a time shows.
        if is_long && self.random.bool() {
            self.hold
        } else if is_long {
            self.random.u64(1..=self.hold)
        } else {
            self.random.u64(self.least..=self.most)
        }
    }
}

/// How long the same nodes are asked most.
const SECONDS_PER_MOVE: u64 = 8;
/// From one peak of the load to the next, in seconds.
const SWING: u64 = 32;
