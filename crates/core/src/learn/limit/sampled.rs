//! Laws that move the limit with every sample: gradient2 and AIMD.

use super::minimum::Minimum;
use super::rules::{LimitAlgorithm, LimitRules, Recalibrate};
use super::{Ending, Sample};

/// The baseline, and when it is measured anew.
#[derive(Clone, Debug)]
pub(super) struct Sampled {
    minimum: Minimum,
    recalibration: Option<Recalibration>,
}

impl Sampled {
    pub(super) fn new(rules: &LimitRules) -> Self {
        Self {
            minimum: Minimum::new(rules.rtt_window),
            recalibration: rules.recalibrate.map(|rule| Recalibration::new(rule, rules.seed)),
        }
    }

    /// The next estimate.
    #[inline]
    pub(super) fn settle(
        &mut self,
        rules: &LimitRules,
        estimate: f64,
        sample: Sample,
        is_overload: bool,
        now_ns: u64,
    ) -> f64 {
        // What failed, or took no time that the clock could tell, says nothing of the baseline.
        let timed = (sample.ending == Ending::Finish && sample.rtt_ns > 0).then_some(sample.rtt_ns);
        if let Some(recalibration) = &mut self.recalibration {
            match recalibration.settle(timed, now_ns) {
                Stage::Off => {}
                Stage::On => return estimate,
                Stage::Over(least) => {
                    if let Some(least) = least {
                        self.minimum.reset(least);
                    }
                    return estimate;
                }
            }
        }
        let noload = timed.map_or(0, |rtt| self.minimum.feed(rtt));
        let free =
            Unloaded { tolerated: rules.tolerance * noload as f64, rtt: sample.rtt_ns as f64 };
        let next = match rules.algorithm {
            LimitAlgorithm::Aimd if is_overload || !free.is_so() => estimate * rules.backoff_ratio,
            LimitAlgorithm::Aimd => estimate + 1.0,
            _ => {
                let gradient = if is_overload { GRADIENT_MIN } else { free.gradient() };
                let new = estimate * gradient + libm::sqrt(estimate);
                (1.0 - rules.smoothing) * estimate + rules.smoothing * new
            }
        };
        // A place that nobody wanted says nothing about one more.
        let is_idle = 2 * u64::from(sample.in_flight) < u64::from(sample.ceiling);
        let next = if is_idle { next.min(estimate) } else { next };
        next.clamp(f64::from(rules.min), f64::from(rules.max))
    }

    /// What no limit is above now.
    #[inline]
    pub(super) fn clamp(&self) -> u32 {
        match &self.recalibration {
            Some(recalibration) if recalibration.left > 0 => recalibration.rule.clamp,
            _ => u32::MAX,
        }
    }

    pub(super) fn is_recalibrating(&self) -> bool {
        self.recalibration.as_ref().is_some_and(|it| it.left > 0)
    }

    pub(super) fn baseline_ns(&self) -> Option<u64> {
        self.minimum.get()
    }
}

/// A time, against what is tolerated. A time of nothing is tolerated always.
struct Unloaded {
    tolerated: f64,
    rtt: f64,
}

impl Unloaded {
    fn is_so(&self) -> bool {
        self.tolerated >= self.rtt
    }

    /// Tolerated by taken, between one half and one; divided only where neither is certain.
    fn gradient(&self) -> f64 {
        if self.tolerated >= self.rtt {
            1.0
        } else if self.tolerated <= GRADIENT_MIN * self.rtt {
            GRADIENT_MIN
        } else {
            self.tolerated / self.rtt
        }
    }
}

/// When the baseline is measured anew, and what was seen since.
#[derive(Clone, Debug)]
struct Recalibration {
    rule: Recalibrate,
    /// When the next one begins; unknown before the first sample.
    next_ns: Option<u64>,
    /// How many samples this one still takes; zero between two.
    left: u32,
    least_ns: u64,
    random: u64,
}

enum Stage {
    Off,
    On,
    /// It has ended; the least time, if there was any.
    Over(Option<u64>),
}

impl Recalibration {
    const fn new(rule: Recalibrate, seed: u64) -> Self {
        Self { rule, next_ns: None, left: 0, least_ns: u64::MAX, random: seed }
    }

    /// The sample that begins one was taken before it, and does not count.
    fn settle(&mut self, timed: Option<u64>, now_ns: u64) -> Stage {
        if self.left > 0 {
            self.least_ns = self.least_ns.min(timed.unwrap_or(u64::MAX));
            self.left -= 1;
            if self.left > 0 {
                return Stage::On;
            }
            self.next_ns = Some(self.after(now_ns));
            return Stage::Over((self.least_ns < u64::MAX).then_some(self.least_ns));
        }
        match self.next_ns {
            None => self.next_ns = Some(self.after(now_ns)),
            Some(next_ns) if now_ns >= next_ns => {
                self.left = self.rule.samples;
                self.least_ns = u64::MAX;
            }
            Some(_) => {}
        }
        Stage::Off
    }

    /// One period from now, more or less.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
    fn after(&mut self, now_ns: u64) -> u64 {
        // SplitMix64: any seed will do, and two that differ by one have nothing in common.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let part = ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        let factor = 1.0 + self.rule.jitter * (2.0 * part - 1.0);
        let wait_ns = self.rule.every.us() as f64 * 1e3 * factor;
        now_ns.saturating_add(wait_ns as u64)
    }
}

/// No sample takes away more than half, smoothing aside.
const GRADIENT_MIN: f64 = 0.5;
