//! How a limit is inferred: every number that can be chosen, and what is refused.

use crate::concurrency::PERMITS_MAX;
use crate::{Invalid, Parameter, Span};

/// How a limit is inferred. The fields are the parameters of the formulas beside
/// [`Limit`](super::Limit).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitRules {
    /// Which law moves the limit.
    pub algorithm: LimitAlgorithm,
    /// The limit is never lower, except while the baseline is recalibrated.
    pub min: u32,
    /// The limit is never higher; at most [`PERMITS_MAX`].
    pub max: u32,
    /// The limit before the first sample; from `min` to `max`.
    pub initial: u32,
    /// The baseline is the least time of so many samples; at most [`RTT_WINDOW_MAX`]. Not used
    /// with a throughput guard, which measures its own.
    ///
    /// [`RTT_WINDOW_MAX`]: Self::RTT_WINDOW_MAX
    pub rtt_window: u32,
    /// How far one step goes towards the new value: above 0, at most 1.
    pub smoothing: f64,
    /// How many times the baseline counts as unloaded: from 1 to 100.
    pub tolerance: f64,
    /// What AIMD multiplies by: above 0, below 1.
    pub backoff_ratio: f64,
    /// Growth only while throughput grows with it. Gradient2 only.
    pub throughput_guard: Option<ThroughputGuard>,
    /// Work that took longer was overloaded, however it ended.
    pub rtt_max: Option<Span>,
    /// Whether, and how, the baseline is measured anew. Not together with a throughput guard.
    pub recalibrate: Option<Recalibrate>,
    /// Of the jitter of recalibrations. Processes should have different ones.
    pub seed: u64,
}

/// The law that moves a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitAlgorithm {
    /// By the ratio of the baseline to the time that work takes.
    Gradient2,
    /// Down by a factor when work is slow or fails, up by one otherwise.
    Aimd,
    /// Not at all: the initial limit holds.
    Fixed,
}

/// Growth only while throughput grows with it: the limit moves once per window of samples, and
/// every so many windows it dips, which shows what the topmost places were good for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThroughputGuard {
    /// The fewest samples of a window: from 16 to 10,000. A window lasts until its mean is known
    /// to [`precision`](Self::precision), or for twenty times as many.
    pub window: u32,
    /// The standard error, as a part of the mean, at which a window ends: from 0.01 to 0.5.
    pub precision: f64,
    /// How many windows are between two dips: from 1 to 1,000.
    pub every: u32,
    /// The part of the limit that is left in a dip: from 0.5 to 0.9.
    pub dip: f64,
}

impl ThroughputGuard {
    /// What the `stable` preset has.
    pub const STABLE: Self = Self { window: 100, precision: 0.04, every: 16, dip: 0.75 };
}

/// Every so often the limit is clamped, so that queues drain and the baseline shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recalibrate {
    /// From the end of one recalibration to the beginning of the next.
    pub every: Span,
    /// How far that time varies either way, as a part of it: from 0 to 0.9.
    pub jitter: f64,
    /// The limit meanwhile.
    pub clamp: u32,
    /// How many samples it takes; at most 1,000,000.
    pub samples: u32,
}

impl Recalibrate {
    /// Every minute ± 15 % to 3 for 50 samples.
    pub const SEED: Self = Self { every: Span::from_secs(60), jitter: 0.15, clamp: 3, samples: 50 };
}

impl LimitRules {
    /// No baseline is the least of more samples.
    pub const RTT_WINDOW_MAX: u32 = 10_000;

    /// Gradient2 from 4 to 512 with a tolerance of 2 and no guard. Its weaknesses are known and
    /// tested: prefer [`stable`](Self::stable).
    #[must_use]
    pub const fn seed_defaults() -> Self {
        Self {
            algorithm: LimitAlgorithm::Gradient2,
            min: 4,
            max: 512,
            initial: 4,
            rtt_window: 100,
            smoothing: 0.2,
            tolerance: 2.0,
            backoff_ratio: 0.9,
            throughput_guard: None,
            rtt_max: None,
            recalibrate: None,
            seed: 0,
        }
    }

    /// Gradient2 from 4 to 512 with a tolerance of 1.1 and both guards. Set
    /// [`rtt_max`](Self::rtt_max), ten seconds here, to what nobody waits for.
    #[must_use]
    pub const fn stable() -> Self {
        Self {
            smoothing: 0.3,
            tolerance: 1.1,
            throughput_guard: Some(ThroughputGuard::STABLE),
            rtt_max: Some(Span::from_secs(10)),
            ..Self::seed_defaults()
        }
    }

    /// Always `limit`.
    #[must_use]
    pub const fn fixed(limit: u32) -> Self {
        Self {
            algorithm: LimitAlgorithm::Fixed,
            min: limit,
            max: limit,
            initial: limit,
            ..Self::seed_defaults()
        }
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.check_bounds()?;
        let is_fixed = self.algorithm == LimitAlgorithm::Fixed;
        let is_window = (1..=Self::RTT_WINDOW_MAX).contains(&self.rtt_window);
        ranged(Parameter::RttWindow, is_window, "lie between 1 and 10,000")?;
        ranged(
            Parameter::Smoothing,
            self.smoothing > 0.0 && self.smoothing <= 1.0,
            "lie above 0 and not above 1",
        )?;
        ranged(
            Parameter::Tolerance,
            (1.0..=100.0).contains(&self.tolerance),
            "lie between 1 and 100",
        )?;
        let is_backoff = self.backoff_ratio > 0.0 && self.backoff_ratio < 1.0;
        ranged(Parameter::BackoffRatio, is_backoff, "lie above 0 and below 1")?;
        if self.rtt_max == Some(Span::ZERO) {
            return Err(Invalid::Zero(Parameter::RttMax));
        }
        if let Some(guard) = self.throughput_guard {
            let is_gradient = self.algorithm == LimitAlgorithm::Gradient2;
            ranged(
                Parameter::ThroughputGuard,
                is_gradient,
                "be off unless the algorithm is gradient2",
            )?;
            guard.check()?;
        }
        if let Some(recalibrate) = self.recalibrate {
            let alone = !is_fixed && self.throughput_guard.is_none();
            ranged(
                Parameter::Recalibrate,
                alone,
                "be off with a fixed limit and beside a throughput guard",
            )?;
            recalibrate.check()?;
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), Invalid> {
        let permits = 1..=PERMITS_MAX;
        ranged(Parameter::MinLimit, permits.contains(&self.min), "lie between 1 and 1,048,575")?;
        ranged(Parameter::MaxLimit, permits.contains(&self.max), "lie between 1 and 1,048,575")?;
        ranged(Parameter::MaxLimit, self.max >= self.min, "not be below minLimit")?;
        let is_between = (self.min..=self.max).contains(&self.initial);
        ranged(Parameter::InitialLimit, is_between, "lie between minLimit and maxLimit")
    }
}

impl Default for LimitRules {
    fn default() -> Self {
        Self::seed_defaults()
    }
}

impl ThroughputGuard {
    fn check(&self) -> Result<(), Invalid> {
        let fits = (16..=10_000).contains(&self.window)
            && (0.01..=0.5).contains(&self.precision)
            && (1..=1_000).contains(&self.every)
            && (0.5..=0.9).contains(&self.dip);
        ranged(
            Parameter::ThroughputGuard,
            fits,
            "have a window of 16 to 10,000 samples, a precision of 0.01 to 0.5, a dip to 0.5 to \
             0.9 and 1 to 1,000 windows between dips",
        )
    }
}

impl Recalibrate {
    fn check(&self) -> Result<(), Invalid> {
        let fits = self.every > Span::ZERO
            && (0.0..=0.9).contains(&self.jitter)
            && (1..=PERMITS_MAX).contains(&self.clamp)
            && (1..=1_000_000).contains(&self.samples);
        ranged(
            Parameter::Recalibrate,
            fits,
            "come after more than no time, with a jitter of 0 to 0.9, a clamp of at least 1 and 1 \
             to 1,000,000 samples",
        )
    }
}

fn ranged(parameter: Parameter, fits: bool, must: &'static str) -> Result<(), Invalid> {
    if fits { Ok(()) } else { Err(Invalid::Unfit { parameter, must }) }
}

// The messages name them.
const _: () = assert!(PERMITS_MAX == 1_048_575 && LimitRules::RTT_WINDOW_MAX == 10_000);
