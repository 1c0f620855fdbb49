//! The law of the standard deviation, after the admission regulator of the Kyo scheduler.
//!
//! Every interval the standard deviation of the last probes' delays is compared with two
//! thresholds. Above the upper one the percentage steps down; below the lower one, *and if there is
//! enough load*, it steps up; otherwise the run of steps ends. The n-th step of a run is ⌊n^1.5⌋
//! hundredths.
//!
//! It is kept because people know it, and as the foil: a delay that is long and constant has no
//! deviation, and what it sheds lowers the load that it would need to recover. Use
//! [`DelayRules`](super::DelayRules).

use super::{Fixed, Level, Recent, Tasks};
use crate::{Invalid, Parameter, Span};

/// What the law of the standard deviation goes by. The defaults are the original's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JitterRules {
    /// How often a probe is sent.
    pub probe_every: Span,
    /// How many probes the deviation is taken over.
    pub window: usize,
    /// How often the percentage is judged.
    pub interval: Span,
    /// A deviation above this steps down.
    pub upper: Span,
    /// A deviation below this steps up, if there is load.
    pub lower: Span,
    /// Thousandths of a task per worker that there must be for a step up.
    pub load_target: u64,
}

impl Default for JitterRules {
    fn default() -> Self {
        Self {
            probe_every: Span::from_ms(100),
            window: 40,
            interval: Span::from_secs(1),
            upper: Span::from_ms(100),
            lower: Span::from_ms(80),
            load_target: 800,
        }
    }
}

impl JitterRules {
    pub(super) fn checked(self) -> Result<Self, Invalid> {
        let unfit = |parameter, must| Err(Invalid::Unfit { parameter, must });
        if self.probe_every == Span::ZERO {
            return Err(Invalid::Zero(Parameter::ProbeEvery));
        }
        if self.interval < self.probe_every {
            return unfit(Parameter::Interval, "not be shorter than probeEvery");
        }
        if self.window < 2 || self.window > Recent::WINDOW_MAX {
            return unfit(Parameter::ProbeWindow, "be between 2 and 1024");
        }
        if self.lower > self.upper {
            return unfit(Parameter::LowerThreshold, "not be above upperThreshold");
        }
        Ok(self)
    }
}

/// The state of the law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Jitter {
    rules: JitterRules,
    delays: Recent,
    percent: u32,
    /// How many steps the run has had; below zero if they went down.
    run: i64,
}

impl Jitter {
    pub(super) fn new(rules: JitterRules) -> Self {
        Self { rules, delays: Recent::new(rules.window), percent: 100, run: 0 }
    }

    pub(super) fn record(&mut self, delay: Span) {
        self.delays.record(delay);
    }

    pub(super) fn judge(&mut self, load: Tasks) -> Fixed {
        self.run = if self.delays.is_above(self.rules.upper) {
            // A run is never longer than what moves the percentage all the way: no step overflows.
            (self.run.min(0) - 1).max(-RUN_MAX)
        } else if self.delays.is_below(self.rules.lower) && load.reaches(self.rules.load_target) {
            (self.run.max(0) + 1).min(RUN_MAX)
        } else {
            0
        };
        let step = i64::try_from(growth(self.run.unsigned_abs())).unwrap_or(100);
        let moved = i64::from(self.percent) + self.run.signum() * step;
        self.percent = u32::try_from(moved.clamp(0, 100)).unwrap_or(100);
        Fixed {
            level: Level::from_percent(self.percent),
            run: self.run,
            mean: self.delays.mean(),
            spread: self.delays.spread(),
        }
    }
}

/// ⌊n^1.5⌋, exactly.
pub(super) fn growth(run: u64) -> u64 {
    run.saturating_mul(run).saturating_mul(run).isqrt()
}

/// Twenty-two steps are a hundred and more.
const RUN_MAX: i64 = 22;
