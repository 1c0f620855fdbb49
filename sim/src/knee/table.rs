//! Presets against backends.

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

/// Every backend of the table.
pub fn rows() -> impl Iterator<Item = Backend> {
    let kinds = [
        (Service::Constant, Discipline::Queue),
        (Service::Uniform, Discipline::Queue),
        (Service::Exponential, Discipline::Queue),
        (Service::Constant, Discipline::Sharing),
        (Service::Exponential, Discipline::Sharing),
        (Service::Mixed, Discipline::Queue),
    ];
    kinds.into_iter().flat_map(|(service, discipline)| {
        [4, 5, 6, 8, 12, 20, 50, 100, 200, 300].into_iter().flat_map(move |servers| {
            [10_000_000].into_iter().map(move |service_ns| Backend {
                servers,
                service_ns,
                service,
                discipline,
            })
        })
    })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Backend { servers, service_ns, service, discipline } = self.backend;
        write!(
            f,
            "{service:?} {discipline:?} {servers} x {} us: knee {}, limit {} ({:.2}), throughput {:.3}, p99 {:.2}",
            service_ns / 1_000,
            self.knee.at,
            self.limit,
            self.ratio(),
            self.throughput,
            self.p99
        )
    }
}
