//! Presets in front of backends, side by side.

use std::fmt;

use admittance_core::learn::{Limit, LimitRules};

use super::backend::{Backend, Discipline, Service};
use super::closed::{Closed, Knee};

/// One preset in front of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What the backend is.
    pub backend: Backend,
    /// What a sweep found.
    pub knee: Knee,
    /// The median of the limit in the last third.
    pub limit: u32,
    /// Throughput in the last third, as a part of the best.
    pub throughput: f64,
    /// The 99th percentile in the last third, by that without load.
    pub p99: f64,
}

impl Row {
    /// Runs a preset.
    #[must_use]
    pub fn of(rules: LimitRules, backend: Backend, knee: Knee, samples: usize, seed: u64) -> Self {
        let mut limit = Limit::new(rules).expect("a preset");
        let settled = Closed::new(backend, samples, seed).run(&mut limit).settled();
        Self {
            backend,
            knee,
            limit: settled.limit(),
            throughput: settled.throughput() / knee.best,
            p99: settled.p99_ns() as f64 / knee.no_load_p99_ns as f64,
        }
    }

    /// The limit, as a part of the knee.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        f64::from(self.limit) / f64::from(self.knee.at)
    }

    /// Within 25 % of the knee, 95 % of the throughput, less than twice the time.
    #[must_use]
    pub fn held(&self) -> bool {
        (0.75..=1.25).contains(&self.ratio()) && self.throughput >= 0.95 && self.p99 < 2.0
    }
}

/// The backends of the table. The last kind is reported, not judged: so much chance takes longer
/// than the runs are.
pub fn backends() -> impl Iterator<Item = Backend> {
    let kinds = [
        (Service::Constant, Discipline::Queue),
        (Service::Uniform, Discipline::Queue),
        (Service::Exponential, Discipline::Queue),
        (Service::Constant, Discipline::Sharing),
        (Service::Exponential, Discipline::Sharing),
        (Service::Mixed, Discipline::Queue),
    ];
    kinds.into_iter().flat_map(|(service, discipline)| {
        SIZES.map(|(servers, us)| Backend { servers, service_ns: us * 1_000, service, discipline })
    })
}

/// The heading of the columns of rows.
pub const HEADING: &str = "service      discipline servers  mean us  knee | \
     stable /knee  rate   p99 | seed /knee  rate    p99";

/// Both presets in front of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Both {
    /// [`LimitRules::stable`].
    pub stable: Row,
    /// [`LimitRules::seed_defaults`].
    pub seed: Row,
}

impl Both {
    /// Sweeps the backend and runs both.
    #[must_use]
    pub fn of(backend: Backend, samples: usize, seed: u64) -> Self {
        let knee = Knee::of(backend, samples.min(60_000), seed);
        let row = |rules| Row::of(rules, backend, knee, samples, seed);
        Self { stable: row(LimitRules::stable()), seed: row(LimitRules::seed_defaults()) }
    }

    /// Whether the `stable` preset is as good as it must be, or is not judged here.
    #[must_use]
    pub fn held(&self) -> bool {
        self.stable.held() || self.stable.backend.service == Service::Mixed
    }
}

impl fmt::Display for Both {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stable, seed } = self;
        let Backend { servers, service_ns, service, discipline } = stable.backend;
        let (service, discipline) = (format!("{service:?}"), format!("{discipline:?}"));
        write!(f, "{service:12} {discipline:10} {servers:7} {:8}", service_ns / 1_000)?;
        let Row { limit, throughput, p99, .. } = stable;
        write!(
            f,
            " {:5} | {limit:6} {:5.2} {throughput:5.2} {p99:5.2}",
            stable.knee.at,
            stable.ratio()
        )?;
        let Row { limit, throughput, p99, .. } = seed;
        write!(f, " | {limit:4} {:5.2} {throughput:5.2} {p99:6.2}", seed.ratio())?;
        f.write_str(if self.held() { "" } else { "  missed" })
    }
}

/// How many servers, and how long they take on average, in microseconds.
const SIZES: [(u32, u64); 10] = [
    (4, 200),
    (5, 200_000),
    (6, 1_000),
    (8, 10_000),
    (12, 200),
    (20, 200_000),
    (50, 1_000),
    (100, 10_000),
    (200, 200),
    (300, 200_000),
];
