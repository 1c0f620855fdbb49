//! Gradient2, AIMD and recalibration once more, written straight from the formulas, without a ring
//! and without a shortcut; and the mistakes that a check must notice.

use admittance_core::learn::{Ending, LimitAlgorithm, LimitRules, Sample};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    /// The baseline is the least time ever seen.
    NeverForgets,
    /// Grows although nobody wanted the places.
    GrowsIdle,
    /// Does not add the root.
    NoHeadroom,
    /// What says nothing is taken for work that was done.
    IgnoreCounts,
    /// What failed is taken for work that was done.
    OverloadIsFine,
    /// Time without end is healthy.
    NoRttMax,
    /// The estimate starts anew after a recalibration.
    ForgetsEstimate,
    /// May leave the range.
    NotClamped,
}

impl Mutant {
    pub(crate) const ALL: [Self; 8] = [
        Self::NeverForgets,
        Self::GrowsIdle,
        Self::NoHeadroom,
        Self::IgnoreCounts,
        Self::OverloadIsFine,
        Self::NoRttMax,
        Self::ForgetsEstimate,
        Self::NotClamped,
    ];
}

pub(crate) struct Written {
    rules: LimitRules,
    mutant: Mutant,
    times: Vec<u64>,
    pub(crate) estimate: f64,
    next_ns: Option<u64>,
    recalibrating: Option<Vec<u64>>,
    counted: u32,
}

impl Written {
    /// Recalibrations must have no jitter.
    pub(crate) fn new(rules: LimitRules, mutant: Mutant) -> Self {
        Self {
            rules,
            mutant,
            times: Vec::new(),
            estimate: f64::from(rules.initial),
            next_ns: None,
            recalibrating: None,
            counted: 0,
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    pub(crate) fn limit(&self) -> u32 {
        let limit = self.estimate.floor() as u32;
        match (self.rules.recalibrate, &self.recalibrating) {
            (Some(rule), Some(_)) => limit.min(rule.clamp),
            _ => limit,
        }
    }

    pub(crate) fn settle(&mut self, sample: Sample, now_ns: u64) {
        let ending = match sample.ending {
            Ending::Ignore if self.mutant != Mutant::IgnoreCounts => return,
            Ending::Overload if self.mutant != Mutant::OverloadIsFine => Ending::Overload,
            _ => Ending::Finish,
        };
        let most = self.rules.rtt_max.map_or(u64::MAX, |most| most.us().saturating_mul(1_000));
        let is_late = sample.rtt_ns > most && self.mutant != Mutant::NoRttMax;
        let is_timed = ending == Ending::Finish && sample.rtt_ns > 0;
        if self.recalibrates(is_timed.then_some(sample.rtt_ns), now_ns) {
            return;
        }
        if is_timed {
            self.times.push(sample.rtt_ns);
        }
        if self.mutant == Mutant::NeverForgets {
            // Of all times only the least counts: keeping them all takes quadratic time.
            self.times = self.times.iter().min().copied().into_iter().collect();
        }
        self.step(sample, ending == Ending::Overload || is_late);
    }

    fn recalibrates(&mut self, timed: Option<u64>, now_ns: u64) -> bool {
        let Some(rule) = self.rules.recalibrate else { return false };
        let period = rule.every.us() * 1_000;
        if let Some(seen) = &mut self.recalibrating {
            seen.extend(timed);
            self.counted += 1;
            if self.counted == rule.samples {
                if let Some(least) = seen.iter().min() {
                    self.times = vec![*least];
                }
                if self.mutant == Mutant::ForgetsEstimate {
                    self.estimate = f64::from(self.rules.initial);
                }
                self.recalibrating = None;
                self.next_ns = Some(now_ns.saturating_add(period));
            }
            return true;
        }
        if now_ns >= *self.next_ns.get_or_insert(now_ns.saturating_add(period)) {
            self.recalibrating = Some(Vec::new());
            self.counted = 0;
        }
        false
    }

    fn step(&mut self, sample: Sample, is_overload: bool) {
        let LimitRules { smoothing, tolerance, backoff_ratio, .. } = self.rules;
        let window = self.rules.rtt_window as usize;
        let from = self.times.len().saturating_sub(window);
        let noload = self.times[from..].iter().min().copied().unwrap_or(0) as f64;
        let rtt = sample.rtt_ns as f64;
        let next = if self.rules.algorithm == LimitAlgorithm::Aimd {
            let is_slow = rtt > tolerance * noload;
            if is_overload || is_slow { self.estimate * backoff_ratio } else { self.estimate + 1.0 }
        } else {
            let gradient = match sample.rtt_ns {
                _ if is_overload => 0.5,
                0 => 1.0,
                _ => (tolerance * noload / rtt).clamp(0.5, 1.0),
            };
            let root = if self.mutant == Mutant::NoHeadroom { 0.0 } else { self.estimate.sqrt() };
            let new = self.estimate * gradient + root;
            (1.0 - smoothing) * self.estimate + smoothing * new
        };
        let is_idle = 2.0 * f64::from(sample.in_flight) < f64::from(sample.ceiling);
        if is_idle && next > self.estimate && self.mutant != Mutant::GrowsIdle {
            return;
        }
        self.estimate = next;
        if self.mutant != Mutant::NotClamped {
            let (min, max) = (f64::from(self.rules.min), f64::from(self.rules.max));
            self.estimate = next.clamp(min, max);
        }
    }
}
