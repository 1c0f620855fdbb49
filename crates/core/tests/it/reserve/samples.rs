//! What work needs in the end: steady in distribution, and hostile; and what is predicted of it.

use fastrand::Rng;

use crate::timeline::spread;

/// What a source of samples may look at.
pub(crate) struct Seen {
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// The number of the sample, and how many there will be.
    pub(crate) at: usize,
    pub(crate) of: usize,
    /// What would be reserved now: a hostile source may know it.
    pub(crate) exact: f64,
}

impl Seen {
    fn part(&self, part: f64) -> u64 {
        whole(self.min as f64 + part * (self.max - self.min) as f64)
    }

    fn is_above_middle(&self) -> bool {
        self.exact > f64::midpoint(self.min as f64, self.max as f64)
    }
}

/// What one piece of work needs.
type Draw = fn(&mut Rng, &Seen) -> u64;

pub(crate) const SOURCES: [(&str, Draw); 20] = [
    ("least", |_, seen| seen.min),
    ("most", |_, seen| seen.max),
    ("middle", |_, seen| seen.part(0.5)),
    ("uniform", |rng, seen| rng.u64(seen.min..=seen.max)),
    ("exponential", |rng, seen| seen.part(-0.1 * (1.0 - rng.f64()).ln())),
    ("log-normal", |rng, seen| seen.part(0.05 * normal(rng).exp())),
    ("heavy tail", |rng, seen| seen.part(0.005 * (1.0 - rng.f64()).powf(-1.0 / 1.1))),
    ("two values", |rng, seen| if rng.u8(..10) == 0 { seen.max } else { seen.part(0.1) }),
    ("any magnitude", |rng, seen| spread(rng, seen.max)),
    ("extremes by turns", |_, seen| if seen.at.is_multiple_of(2) { seen.max } else { seen.min }),
    ("nine low, one high", |_, seen| if seen.at % 10 == 9 { seen.max } else { seen.min }),
    ("nine high, one low", |_, seen| if seen.at % 10 == 9 { seen.min } else { seen.max }),
    ("sorted up", |_, seen| seen.part(seen.at as f64 / seen.of as f64)),
    ("sorted down", |_, seen| seen.part(1.0 - seen.at as f64 / seen.of as f64)),
    ("a shift up", |_, seen| if 2 * seen.at < seen.of { seen.min } else { seen.max }),
    ("a shift down", |_, seen| if 2 * seen.at < seen.of { seen.max } else { seen.min }),
    (
        "blocks that double",
        |_, seen| {
            if seen.at.max(1).ilog2() % 2 == 0 { seen.max } else { seen.min }
        },
    ),
    ("saw", |_, seen| seen.part((seen.at % 100) as f64 / 100.0)),
    ("against the estimate", |_, seen| if seen.is_above_middle() { seen.min } else { seen.max }),
    ("beyond the range", |rng, seen| if rng.bool() { u64::MAX } else { seen.min / 2 }),
];

/// Those that have a distribution.
pub(crate) const STEADY: std::ops::Range<usize> = 3..9;

/// What is predicted of work that will need `actual`.
pub(crate) struct Foresight {
    pub(crate) name: &'static str,
    predict: fn(&mut Rng, u64, &Foreseen) -> Option<u64>,
}

/// What a predictor may look at.
pub(crate) struct Foreseen {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) at: usize,
    /// The weight of the predictions.
    pub(crate) trust: f64,
}

impl Foreseen {
    /// The end of the range that is farther from the truth.
    fn opposite(&self, actual: u64) -> u64 {
        let to_max = self.max.saturating_sub(actual);
        if to_max > actual.saturating_sub(self.min) { self.max } else { self.min }
    }
}

impl Foresight {
    /// Whether there is a prediction for every piece of work.
    pub(crate) fn is_always(&self) -> bool {
        !["none", "sometimes, and right at first"].contains(&self.name)
    }

    pub(crate) fn predict(&self, rng: &mut Rng, actual: u64, seen: &Foreseen) -> Option<u64> {
        (self.predict)(rng, actual, seen)
    }
}

pub(crate) const TRUE: Foresight = Foresight { name: "true", predict: |_, actual, _| Some(actual) };

pub(crate) const NONE: Foresight = Foresight { name: "none", predict: |_, _, _| None };

/// Within about a third of the truth.
pub(crate) const NOISY: Foresight = Foresight {
    name: "noisy",
    predict: |rng, actual, _| Some(whole(actual as f64 * (0.3 * normal(rng)).exp())),
};

/// Right as long as nobody follows, wrong when somebody does.
pub(crate) const BETRAYING: Foresight = Foresight {
    name: "betraying",
    predict: |_, actual, seen| Some(if seen.trust >= 0.5 { seen.opposite(actual) } else { actual }),
};

pub(crate) const FORESIGHTS: [Foresight; 11] = [
    TRUE,
    NOISY,
    BETRAYING,
    NONE,
    Foresight { name: "nothing", predict: |_, _, _| Some(0) },
    Foresight { name: "all there is", predict: |_, _, _| Some(u64::MAX) },
    Foresight { name: "random", predict: |rng, _, seen| Some(rng.u64(seen.min..=seen.max)) },
    Foresight { name: "opposite", predict: |_, actual, seen| Some(seen.opposite(actual)) },
    Foresight {
        name: "right by turns",
        predict: |_, actual, seen| {
            Some(if seen.at % 2 == 0 { seen.opposite(actual) } else { actual })
        },
    },
    Foresight {
        name: "wrong for long",
        predict: |_, actual, seen| {
            Some(if seen.at < 1_000 { seen.opposite(actual) } else { actual })
        },
    },
    Foresight {
        name: "sometimes, and right at first",
        predict: |rng, actual, seen| {
            let told = if seen.at < 500 { actual } else { seen.opposite(actual) };
            rng.bool().then_some(told)
        },
    },
];

/// Twelve uniform numbers less six: nearly normal, and bounded.
pub(crate) fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}
