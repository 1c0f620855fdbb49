//! Why a set of parameters was refused.

use core::fmt;

use crate::EXACT_MAX;

/// Why a set of parameters was refused. Each variant says what would be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Invalid {
    /// The parameter must be at least one.
    Zero(Parameter),
    /// The parameter is larger than can be kept exact beside the others.
    TooLarge {
        /// Which parameter.
        parameter: Parameter,
        /// What was asked for; the largest number there is if it could not even be counted.
        given: u64,
        /// The largest value that would fit beside the other parameters.
        max: u64,
    },
    /// The parameter is smaller than the strategy can work with.
    TooSmall {
        /// Which parameter.
        parameter: Parameter,
        /// What was asked for.
        given: u64,
        /// The smallest value that would do.
        min: u64,
    },
    /// The rate has no exact representation: its reduced fraction needs this denominator.
    Inexact {
        /// Which parameter.
        parameter: Parameter,
        /// The largest denominator that can be kept exact.
        denominator_max: u64,
    },
    /// There are more of them than are kept.
    TooMany {
        /// Which parameter.
        parameter: Parameter,
        /// How many were asked for.
        given: usize,
        /// The most there may be.
        max: usize,
    },
    /// An offset from UTC lies within fourteen hours.
    OffsetOutOfRange {
        /// What was asked for.
        minutes: i64,
    },
    /// The parameter does not suit the law it is for, alone or beside the others.
    Unfit {
        /// Which parameter.
        parameter: Parameter,
        /// What would do: "must ...".
        must: &'static str,
    },
}

/// The name of a parameter, as users write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Parameter {
    /// Units per period or window.
    Limit,
    /// The period of a rate, in microseconds.
    Period,
    /// The most units at one instant.
    Burst,
    /// A token bucket's size.
    Capacity,
    /// A token bucket's rate.
    RefillPerSec,
    /// The length of a window, in microseconds.
    Window,
    /// How many buckets a sliding window has.
    Buckets,
    /// How many may wait in a shaper.
    MaxQueue,
    /// Where fixed windows are anchored.
    Anchor,
    /// The part of a limit that one node goes on with alone.
    Share,
    /// The weight of a tenant.
    Weight,
    /// How many different weights tenants have.
    DifferentWeights,
    /// How many keys are kept at most.
    MaxKeys,
    /// How many credits are leased at once.
    Quantum,
    /// The percentages of a limit that classes are guaranteed.
    Guaranteed,
    /// The lowest limit that is inferred.
    MinLimit,
    /// The highest limit that is inferred.
    MaxLimit,
    /// The limit before anything is known.
    InitialLimit,
    /// How many samples the baseline is the least of.
    RttWindow,
    /// How far one step goes.
    Smoothing,
    /// How many times the baseline counts as unloaded.
    Tolerance,
    /// What an overload multiplies the limit by.
    BackoffRatio,
    /// Growth only while throughput grows.
    ThroughputGuard,
    /// The time above which nothing is healthy.
    RttMax,
    /// How the baseline is measured anew.
    Recalibrate,
    /// Units that may be spent in a window.
    Budget,
    /// What a unit costs that was reserved and not needed.
    Hold,
    /// What a unit costs that was needed and not reserved.
    Overrun,
    /// The smallest reservation.
    MinReserve,
    /// The largest reservation.
    MaxReserve,
    /// The reservation before anything is known.
    InitialReserve,
    /// How many classes of work are told apart.
    MaxClasses,
    /// How long work may wait before less of it may start.
    DelayTarget,
    /// How often a level is judged.
    Interval,
    /// How often a level may rise.
    RiseEvery,
    /// How long admitted work may be made to wait.
    WaitMax,
    /// How often a probe is sent.
    ProbeEvery,
    /// How many probes a deviation is taken over.
    ProbeWindow,
    /// The deviation below which a level may rise.
    LowerThreshold,
    /// How many ways into an executor are measured.
    Paths,
    /// After how long a key's place is drawn anew.
    Rotation,
    /// What an admit must be worth for the place it takes in the rate.
    RatePrice,
    /// What an admit must be worth for each unit it costs.
    CostPrice,
    /// What an admit must be worth for each millisecond it holds a permit.
    ConcurrencyPrice,
    /// How long requests are recorded before prices are solved anew.
    SampleWindow,
    /// What an admission goes by.
    Axes,
    /// What a denial by one axis leaves on the others.
    Atomicity,
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "limit",
            Self::Period => "period",
            Self::Burst => "burst",
            Self::Capacity => "capacity",
            Self::RefillPerSec => "refillPerSec",
            Self::Window => "window",
            Self::Buckets => "buckets",
            Self::MaxQueue => "maxQueue",
            Self::Anchor => "anchor",
            Self::Share => "share",
            Self::Weight => "weight",
            Self::DifferentWeights => "different weights",
            Self::MaxKeys => "maxKeys",
            Self::Quantum => "quantum",
            Self::Guaranteed => "guaranteed",
            Self::MinLimit => "minLimit",
            Self::MaxLimit => "maxLimit",
            Self::InitialLimit => "initialLimit",
            Self::RttWindow => "rttWindow",
            Self::Smoothing => "smoothing",
            Self::Tolerance => "tolerance",
            Self::BackoffRatio => "backoffRatio",
            Self::ThroughputGuard => "throughputGuard",
            Self::RttMax => "rttMax",
            Self::Recalibrate => "recalibrate",
            Self::Budget => "budget",
            Self::Hold => "hold",
            Self::Overrun => "overrun",
            Self::MinReserve => "minReserve",
            Self::MaxReserve => "maxReserve",
            Self::InitialReserve => "initialReserve",
            Self::MaxClasses => "maxClasses",
            Self::DelayTarget => "target",
            Self::Interval => "interval",
            Self::RiseEvery => "riseEvery",
            Self::WaitMax => "waitMax",
            Self::ProbeEvery => "probeEvery",
            Self::ProbeWindow => "window",
            Self::LowerThreshold => "lowerThreshold",
            Self::Paths => "paths",
            Self::Rotation => "rotation",
            Self::RatePrice => "prices.rate",
            Self::CostPrice => "prices.cost",
            Self::ConcurrencyPrice => "prices.concurrency",
            Self::SampleWindow => "sampleWindow",
            Self::Axes => "axes",
            Self::Atomicity => "atomicity",
        })
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Zero(parameter) => write!(f, "{parameter} must be more than zero"),
            Self::TooLarge { parameter, given, max } => {
                write!(f, "{parameter} is too large to stay exact: ")?;
                match given {
                    u64::MAX => write!(f, "it cannot be counted; ")?,
                    _ => write!(f, "{given} given; ")?,
                }
                write!(f, "the largest that fits beside the other parameters is {max}")
            }
            Self::TooSmall { parameter, given, min } => {
                write!(f, "{parameter} is too small: {given} given, at least {min} needed")
            }
            Self::Inexact { parameter, denominator_max } => write!(
                f,
                "{parameter} cannot be kept exact: as a reduced fraction its denominator is above \
                 {denominator_max}; use fewer decimal places"
            ),
            Self::TooMany { parameter, given, max } => {
                write!(f, "{parameter}: {given} given; the most is {max}")
            }
            Self::OffsetOutOfRange { minutes } => {
                write!(f, "offsetMinutes is {minutes}; it must lie between -840 and 840")
            }
            Self::Unfit { parameter, must } => write!(f, "{parameter} must {must}"),
        }
    }
}

impl core::error::Error for Invalid {}

/// Refuses zero and what no executor can count.
pub(crate) fn counted(parameter: Parameter, given: u64) -> Result<u64, Invalid> {
    within(parameter, given, EXACT_MAX)
}

/// Refuses zero and more than `max`.
pub(crate) fn within(parameter: Parameter, given: u64, max: u64) -> Result<u64, Invalid> {
    match given {
        0 => Err(Invalid::Zero(parameter)),
        _ if given > max => Err(Invalid::TooLarge { parameter, given, max }),
        _ => Ok(given),
    }
}
