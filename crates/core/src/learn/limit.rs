//! How many at once: a limit inferred from how long the work took.
//!
//! A [`Limit`] is told what each piece of work showed, a [`Sample`], and says how many may be in
//! flight. It has no clock and no timer: everything happens when work settles.
//!
//! # Laws
//! The **baseline** is how long work takes without load: the least time of the last `rtt_window`
//! samples that finished. What failed, and what took no time that the clock could tell, is not
//! among them.
//! - **gradient2**: `gradient = clamp(tolerance · baseline / time, 0.5, 1)`, 0.5 on overload, 1 for
//!   a time of zero; `new = estimate · gradient + √estimate`; the estimate moves to
//!   `(1 − smoothing) · estimate + smoothing · new`.
//! - **AIMD**: `estimate · backoff_ratio` on overload or if the time is above `tolerance ·
//!   baseline`, `estimate + 1` otherwise.
//! - **fixed**: the initial limit, for ever.
//!
//! The estimate stays between `min` and `max`; the limit is the estimate rounded down. A sample
//! taken when fewer than half the places of the ceiling were used makes nothing grow. A time above
//! `rtt_max` is an overload, however the work ended.
//!
//! A **recalibration**, if the rules have one, clamps the limit every so often until so many
//! samples have settled; the least time of those is the baseline then, and the estimate goes on
//! from where it was.
//!
//! # Two presets
//! [`LimitRules::seed_defaults`] is gradient2 as it stands above, with a tolerance of 2. Where
//! places are always taken, the least of the last samples is itself the time of a queue: the
//! baseline follows the limit and the limit runs to its maximum. Where lengths vary much, the
//! least is far below the mean, every sample looks like congestion, and the limit stays at its
//! minimum.
//!
//! [`LimitRules::stable`] is gradient2 with both guards. Means of windows take the place of single
//! samples, and the baseline is measured in short dips of the limit to three quarters: the limit
//! grows while throughput grows with it and rests a tenth above the knee. From a cold start it
//! doubles until congestion is seen. An `rtt_max` keeps a
//! backend that only times out, always after the same time, from looking healthy; no comparison
//! could tell. Set it to what nobody waits for.
//!
//! # Guarantee
//! - No input makes a limit panic, become NaN or leave `min` to `max`, except that a
//!   recalibration's clamp may lie below `min`.
//! - What is ignored changes nothing; what is idle makes nothing grow.
//! - **stable**, in front of a backend with 4 to 300 places, FIFO or shared, whose work always
//!   takes the same time, varies by a fifth or is exponential, and callers who want more than it
//!   can do: the limit settles within 25 % of the knee with at least 95 % of the best throughput
//!   and less than twice the no-load 99th percentile. From a cold start at 4 it is at three
//!   quarters of the knee within 3,000 samples and 12 for each place, and on the way not above
//!   three times the knee (2.5 was measured). Within 15,000 samples it follows when the places
//!   halve or double, and when work takes 25 % longer or shorter for good; one run in a hundred
//!   takes up to 40,000. A fleet of ten before a knee of a hundred, heartbeats of a second and work
//!   of 100 ms, is there within a minute, and within 25 % for 95 % of the time after. These are
//!   measured, from seeds, not proven; where one request in ten takes twenty times as long, some
//!   runs take longer than 90,000 samples to get there.
//! - A backend with fewer places than `min` is not protected: the limit stays near `min`.
//!
//! # Proven by
//! `tests/it/limit.rs`: the formulas against a second writing, the traces that lead such limits
//! astray, and mutants. `sim/tests/it/knee.rs` closes the loop over simulated queues.
//!
//! # Example
//! ```
//! use admittance_core::learn::{Ending, Limit, LimitRules, Sample};
//!
//! let mut limit = Limit::new(LimitRules::stable())?;
//! assert_eq!(limit.limit(), 4);
//! // Twenty places, a millisecond each, and always one more caller than the limit lets through.
//! for now_ns in 0..20_000 {
//!     let in_flight = limit.limit();
//!     let rtt_ns = 50_000 * u64::from(in_flight.max(20));
//!     let (ceiling, ending) = (in_flight, Ending::Finish);
//!     limit.settle(Sample { rtt_ns, in_flight, ceiling, ending }, now_ns);
//! }
//! assert!((16..=24).contains(&limit.limit()), "{:?}", limit.stats());
//! # Ok::<(), admittance_core::Invalid>(())
//! ```

mod minimum;
mod rules;
mod sampled;
mod windowed;

use crate::Invalid;
use sampled::Sampled;
use windowed::Windowed;

pub use rules::{LimitAlgorithm, LimitRules, Recalibrate, ThroughputGuard};

/// How one piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It was done; how long it took says something.
    Finish,
    /// It ended in a way that says nothing about the load: a cache hit, a caller that went away.
    Ignore,
    /// It was dropped, refused or timed out downstream.
    Overload,
}

/// What one piece of work showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// How long it took, in nanoseconds.
    pub rtt_ns: u64,
    /// How many were in flight when it started, itself included.
    pub in_flight: u32,
    /// How many could have been: the limit, or the share of a fleet's if that was lower.
    pub ceiling: u32,
    /// How it ended.
    pub ending: Ending,
}

/// What a node of a fleet is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Followed {
    /// The fleet's limit.
    pub limit: u32,
    /// By when every node has heard it, on the clock of [`Limit::settle`]: samples from before then
    /// may show another one.
    pub known_ns: u64,
    /// Whether this node has measured anything of late, so that its estimate is its own.
    pub is_measured: bool,
}

/// How many may be in flight, inferred from samples.
#[derive(Clone, Debug)]
pub struct Limit {
    rules: LimitRules,
    /// What counts as overload, in nanoseconds.
    rtt_max_ns: u64,
    /// From `rules.min` to `rules.max`.
    estimate: f64,
    /// What the gate holds to.
    limit: u32,
    last_rtt_ns: u64,
    samples: u64,
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    Fixed,
    Sampled(Sampled),
    Windowed(Windowed),
}

/// What a limit knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStats {
    /// What is estimated, before it is rounded down to the limit. A recalibration and a dip lower
    /// the limit and leave this as it is.
    pub estimate: f64,
    /// How long work takes without load, if anything is known: the least of the window, or with a
    /// throughput guard the mean of what was seen in dips.
    pub baseline_ns: Option<u64>,
    /// How long the last piece of work took that was not ignored.
    pub last_rtt_ns: Option<u64>,
    /// Whether the limit is lowered to measure the baseline: a recalibration, or a dip.
    pub is_recalibrating: bool,
    /// How many samples were counted. Those that were ignored are not.
    pub samples: u64,
}

impl Limit {
    /// A limit that has seen nothing.
    ///
    /// # Errors
    /// If a rule is out of its range or contradicts another; the error says what would do.
    pub fn new(rules: LimitRules) -> Result<Self, Invalid> {
        rules.check()?;
        let law = match (rules.algorithm, rules.throughput_guard) {
            (LimitAlgorithm::Fixed, _) => Law::Fixed,
            (_, Some(guard)) => Law::Windowed(Windowed::new(guard, rules.initial)),
            (_, None) => Law::Sampled(Sampled::new(&rules)),
        };
        Ok(Self {
            rules,
            rtt_max_ns: rules.rtt_max.map_or(u64::MAX, |most| most.us().saturating_mul(1_000)),
            estimate: f64::from(rules.initial),
            limit: rules.initial,
            last_rtt_ns: 0,
            samples: 0,
            law,
        })
    }

    /// What the limit was made of.
    #[must_use]
    pub const fn rules(&self) -> &LimitRules {
        &self.rules
    }

    /// How many may be in flight now. At most [`PERMITS_MAX`](crate::concurrency::PERMITS_MAX).
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Learns from work that has ended; `now_ns` is any count of nanoseconds that does not go
    /// back. Returns [`limit`](Self::limit).
    #[inline]
    pub fn settle(&mut self, sample: Sample, now_ns: u64) -> u32 {
        if sample.ending == Ending::Ignore {
            return self.limit;
        }
        self.samples += 1;
        self.last_rtt_ns = sample.rtt_ns;
        let is_overload = sample.ending == Ending::Overload || sample.rtt_ns > self.rtt_max_ns;
        match &mut self.law {
            Law::Fixed => {}
            Law::Sampled(law) => {
                self.estimate = law.settle(&self.rules, self.estimate, sample, is_overload, now_ns);
                self.limit = whole(self.estimate).min(law.clamp());
            }
            Law::Windowed(law) => {
                if law.settle(sample, is_overload) {
                    self.estimate = law.close(&self.rules, self.estimate, now_ns);
                    self.limit = law.limit(&self.rules, self.estimate);
                    law.open(sample.in_flight.min(self.rules.max), self.limit, now_ns);
                }
            }
        }
        self.limit
    }

    /// The fleet's limit was heard at `now_ns`. A node that has measured nothing goes on from it,
    /// or from the nearest that the rules allow; what was measured of the baseline stays. To one
    /// that has, it says under which limit its samples were taken.
    pub fn follow(&mut self, told: Followed, now_ns: u64) {
        let told = Followed { limit: told.limit.clamp(self.rules.min, self.rules.max), ..told };
        match &mut self.law {
            Law::Fixed => {}
            Law::Sampled(_) if told.is_measured => {}
            Law::Sampled(law) => {
                self.estimate = f64::from(told.limit);
                self.limit = told.limit.min(law.clamp());
            }
            Law::Windowed(law) => {
                self.estimate = law.hear(told, self.estimate, now_ns);
                self.limit = law.limit(&self.rules, self.estimate);
                law.hold_to(self.limit);
            }
        }
    }

    /// Goes on as `next`, from the nearest to its own limit that the rules of `next` allow; one
    /// that is fixed is what it says. What was measured under the old rules is forgotten.
    pub fn adopt(&mut self, next: Self) {
        let rules = next.rules;
        let initial = match rules.algorithm {
            LimitAlgorithm::Fixed => rules.initial,
            _ => whole(self.estimate).clamp(rules.min, rules.max),
        };
        let (samples, last_rtt_ns) = (self.samples, self.last_rtt_ns);
        let next = Self::new(LimitRules { initial, ..rules }).unwrap_or(next);
        *self = Self { rules, samples, last_rtt_ns, ..next };
    }

    /// Whether what is estimated should count among what other nodes of a fleet found, if anything
    /// was measured at all: with a throughput guard, whether a window was completed since the
    /// estimate was last taken over from the fleet, or is being filled under load.
    #[inline]
    #[must_use]
    pub fn has_vote(&self) -> bool {
        match &self.law {
            Law::Fixed | Law::Sampled(_) => true,
            Law::Windowed(law) => law.has_vote(),
        }
    }

    /// What is known.
    #[must_use]
    pub fn stats(&self) -> LimitStats {
        let (baseline_ns, is_recalibrating) = match &self.law {
            Law::Fixed => (None, false),
            Law::Sampled(law) => (law.baseline_ns(), law.is_recalibrating()),
            Law::Windowed(law) => (law.baseline_ns(), law.is_dip()),
        };
        LimitStats {
            estimate: self.estimate,
            baseline_ns,
            last_rtt_ns: (self.samples > 0).then_some(self.last_rtt_ns),
            is_recalibrating,
            samples: self.samples,
        }
    }
}

/// Rounded down. An estimate lies between the rules' bounds, which fit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn whole(estimate: f64) -> u32 {
    estimate as u32
}
