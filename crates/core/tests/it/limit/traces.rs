//! What is known to lead limits of this family astray, as traces.
//!
//! The backend is a formula: work takes `service · max(1, in flight / servers)`, give or take a
//! fifth. Real queues are simulated in `admittance-sim`.

use admittance_core::learn::{Ending, Sample};
use fastrand::Rng;

use super::Infer;

/// What the work of one sample meets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend {
    pub(crate) servers: f64,
    pub(crate) service_ns: f64,
    /// How many want to be in flight.
    pub(crate) demand: u32,
    /// Every so many requests one takes twenty times as long.
    pub(crate) long_every: Option<u32>,
    pub(crate) ending: Ending,
    /// Between two requests that settle.
    pub(crate) gap_ns: u64,
}

impl Backend {
    pub(crate) const FIFTY: Self = Self {
        servers: 50.0,
        service_ns: 1e7,
        demand: 2_000,
        long_every: None,
        ending: Ending::Finish,
        gap_ns: 200_000,
    };
    /// It answers nothing; callers give up after thirty seconds.
    pub(crate) const HUNG: Self = Self { servers: 1e9, service_ns: 3e10, ..Self::FIFTY };

    /// The least at once with 95 % of the most throughput.
    pub(crate) fn knee(&self) -> f64 {
        (0.95 * self.servers).ceil()
    }
}

/// The limit after each of so many samples.
pub(crate) fn run(
    limit: &mut impl Infer,
    random: &mut Rng,
    samples: usize,
    backend: impl Fn(f64) -> Backend,
) -> Vec<u32> {
    let mut now_ns = 0;
    let mut limits = Vec::with_capacity(samples);
    for index in 0..samples {
        let it = backend(index as f64 / samples as f64);
        let ceiling = limit.limit();
        let in_flight = ceiling.min(it.demand);
        let load = (f64::from(in_flight) / it.servers).max(1.0);
        let is_long = it.long_every.is_some_and(|every| random.u32(0..every) == 0);
        let service = it.service_ns * if is_long { 20.0 } else { 1.0 };
        let rtt = service * (load - 0.2 + 0.4 * random.f64());
        now_ns += it.gap_ns;
        let rtt_ns = rtt as u64;
        limit.settle(Sample { rtt_ns, in_flight, ceiling, ending: it.ending }, now_ns);
        limits.push(limit.limit());
    }
    limits
}

/// The median of the last third.
pub(crate) fn settled(limits: &[u32]) -> f64 {
    let mut last = limits[limits.len() * 2 / 3..].to_vec();
    last.sort_unstable();
    f64::from(last[last.len() / 2])
}
