//! What must hold of an estimate. Each check says what it measured, or what was broken.

use std::collections::VecDeque;
use std::f64::consts::LN_2;
use std::num::NonZeroU32;

use admittance_core::budget::Budget;
use admittance_core::learn::reserve::{Learned, ReserveRules, Weights};
use fastrand::Rng;

use crate::reserve::Estimate;
use crate::reserve::samples::{
    FORESIGHTS, Foreseen, Foresight, SOURCES, STEADY, Seen, TRUE, normal, whole,
};
use crate::timeline::{generator, long, spread};

pub(crate) type Check = Result<String, String>;

/// Balanced, lopsided either way, and extreme.
pub(crate) const WEIGHTS: [(u64, u64); 8] =
    [(1, 1), (1, 4), (1, 9), (1, 99), (9, 1), (7, 3), (1_000, 1), (1, 1_000)];
const RANGES: [(u64, u64); 4] = [(0, 1), (0, 100), (16, 4_096), (0, 1_000_000)];

pub(crate) fn rules((hold, overrun): (u64, u64), (min, max): (u64, u64)) -> ReserveRules {
    ReserveRules::new(Weights { hold, overrun }, min..=max).unwrap()
}

/// D · G.
fn scale(rules: &ReserveRules) -> f64 {
    let Weights { hold, overrun } = rules.weights();
    ((rules.max() - rules.min()) * hold.max(overrun)) as f64
}

/// The loss by the formula of the design, of what counts as needed.
pub(crate) fn loss(rules: &ReserveRules, r: f64, actual: u64) -> f64 {
    let Weights { hold, overrun } = rules.weights();
    let c = actual.clamp(rules.min(), rules.max()) as f64;
    hold as f64 * (r - c).max(0.0) + overrun as f64 * (c - r).max(0.0)
}

fn best(rules: &ReserveRules, actuals: &[u64]) -> f64 {
    let fixed = rules.best_fixed(&mut actuals.to_vec()).unwrap() as f64;
    actuals.iter().map(|&actual| loss(rules, fixed, actual)).sum()
}

/// The best fixed reservation, in hindsight, is the τ-quantile: against every reservation there is.
pub(crate) fn quantile(find: impl Fn(&ReserveRules, &mut [u64]) -> u64) -> Check {
    let mut rng = generator(71);
    let runs = long(3_000);
    let mut ties = 0;
    for _ in 0..runs {
        let max = spread(&mut rng, 60);
        let min = rng.u64(0..=max);
        let weights = (spread(&mut rng, 20), spread(&mut rng, 20));
        let rules = rules(weights, (min, max));
        // Some of them beyond the range, many of them the same.
        let values = rng.u64(1..=80);
        let actuals: Vec<u64> = (0..rng.usize(1..40)).map(|_| rng.u64(0..values)).collect();
        let sum = |r: u64| actuals.iter().map(|&actual| rules.loss(r, actual)).sum::<u64>();
        let least = (min..=max).map(sum).min().unwrap();
        let mut cheapest = (min..=max).filter(|&r| sum(r) == least);
        let lowest = cheapest.next().unwrap();
        ties += usize::from(cheapest.next().is_some());
        let found = find(&rules, &mut actuals.clone());
        if found != lowest {
            return Err(format!("{found}, not {lowest}, of {actuals:?} by {rules:?}"));
        }
    }
    Ok(format!("{runs} runs, in {ties} of them several were best"))
}

/// Any rules, any numbers: an estimate in the range, before and after it is rounded.
pub(crate) fn stays_in_range<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(72);
    let runs = long(300);
    for _ in 0..runs {
        let max = spread(&mut rng, Budget::UNITS_MAX);
        let min = if rng.bool() { 0 } else { rng.u64(0..=max) };
        let weights = (spread(&mut rng, Weights::MAX), spread(&mut rng, Weights::MAX));
        let mut rules = rules(weights, (min, max));
        if rng.bool() {
            let samples = u32::try_from(spread(&mut rng, 1_000)).unwrap();
            rules = rules.remembering(NonZeroU32::new(samples).unwrap());
        }
        if rng.bool() {
            rules = rules.starting_at(rng.u64(min..=max), rng.u32(..)).unwrap();
        }
        let mut estimate = new(rules);
        let mut draw = || match rng.u8(..8) {
            0 => 0,
            1 => min,
            2 => max,
            3 => u64::MAX,
            4 => rng.u64(..),
            5 => rng.u64(min..=max),
            _ => spread(&mut rng, max),
        };
        for sample in 0..1_000 {
            let (actual, predicted) = (draw(), draw());
            let predicted = (predicted % 3 > 0).then_some(predicted);
            let exact = estimate.exact(predicted);
            let is_within = (min as f64..=max as f64).contains(&exact);
            let whole = estimate.whole(predicted);
            if !is_within || !(min..=max).contains(&whole) {
                return Err(format!("{exact} and {whole} at sample {sample}: {rules:?}"));
            }
            if actual % 5 == 0 {
                estimate.learn_stopped(actual);
            } else {
                estimate.learn(predicted, actual);
            }
        }
    }
    Ok(format!("{runs} runs of 1,000 samples stayed in range"))
}

/// The worst loss of the first sample is the least there can be.
pub(crate) fn starts_where_least_can_be_lost<E: Estimate>(
    new: impl Fn(ReserveRules) -> E,
) -> Check {
    for weights in WEIGHTS {
        for range in RANGES {
            let rules = rules(weights, range);
            let worst = |r: u64| rules.loss(r, range.0).max(rules.loss(r, range.1));
            let found = new(rules).whole(None);
            let beside = [found.saturating_sub(1), found + 1];
            if beside.into_iter().any(|r| rules.loss(r, r) == 0 && worst(r) < worst(found)) {
                return Err(format!("{found} is not the least: {rules:?}"));
            }
        }
    }
    Ok("no neighbour of any start has a smaller worst loss".into())
}

/// Regret(T) ≤ 1.5 · D · G · √(T + worth), for every T on the way; the start counts as `worth`.
pub(crate) fn regret<E: Estimate>(
    samples: usize,
    range: (u64, u64),
    worth: usize,
    new: impl Fn(ReserveRules) -> E,
) -> Check {
    let mut rng = generator(73);
    let mut found = format!("regret over the envelope, {samples} samples of {range:?}, at worst:");
    for (name, source) in SOURCES {
        let mut worst = f64::MIN;
        for weights in WEIGHTS {
            let rules = rules(weights, range);
            let mut estimate = new(rules);
            let (mut actuals, mut paid, mut next) = (Vec::new(), 0.0, 1);
            for at in 0..samples {
                let exact = estimate.exact(None);
                let seen = Seen { min: range.0, max: range.1, at, of: samples, exact };
                let actual = source(&mut rng, &seen);
                paid += loss(&rules, exact, actual);
                actuals.push(actual);
                estimate.learn(None, actual);
                if at + 1 == next || at + 1 == samples {
                    next = next * 3 / 2 + 1;
                    let root = ((actuals.len() + worth) as f64).sqrt();
                    let envelope = 1.5 * scale(&rules) * root;
                    let over = (paid - best(&rules, &actuals)) / envelope;
                    worst = worst.max(over);
                    if over > 1.0 || over.is_nan() {
                        let sample = at + 1;
                        return Err(format!("{over:.3} at {sample}: {name}, {weights:?}"));
                    }
                }
            }
        }
        found += &format!(" {name} {worst:.3};");
    }
    Ok(found)
}

/// To round costs at most hold · overrun / (hold + overrun) a sample.
pub(crate) fn rounding<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(74);
    let mut worst = f64::MIN;
    for weights in WEIGHTS {
        let bound = (weights.0 * weights.1) as f64 / (weights.0 + weights.1) as f64;
        for range in [(0, 1), (0, 7), (3, 100)] {
            let rules = rules(weights, range);
            let mut estimate = new(rules);
            for _ in 0..long(2_000) {
                let predicted = rng.bool().then(|| rng.u64(range.0..=range.1));
                let (exact, whole) = (estimate.exact(predicted), estimate.whole(predicted));
                for actual in [range.0, range.1, whole] {
                    let rounded = loss(&rules, whole as f64, actual);
                    let over = (rounded - loss(&rules, exact, actual)) / bound;
                    worst = worst.max(over);
                    if over > 1.0 + 1e-9 {
                        return Err(format!("{over:.3}: {exact} became {whole}, {weights:?}"));
                    }
                }
                estimate.learn(predicted, rng.u64(range.0..=range.1));
            }
        }
    }
    Ok(format!("to round cost {worst:.3} of its bound at worst"))
}

/// Of steady work, the part that fits its reservation is τ.
pub(crate) fn fits<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(75);
    let mut found = String::from("fits less what should, at worst:");
    for (name, source) in &SOURCES[STEADY][..4] {
        let mut worst: f64 = 0.0;
        for weights in [(1, 1), (1, 4), (1, 9), (9, 1), (7, 3)] {
            let rules = rules(weights, (16, 4_096));
            let mut estimate = new(rules);
            let (mut fit, of) = (0_u32, 40_000);
            for at in 0..of {
                let exact = estimate.exact(None);
                let seen = Seen { min: 16, max: 4_096, at, of, exact };
                let actual = source(&mut rng, &seen);
                fit += u32::from(2 * at >= of && actual <= estimate.whole(None));
                estimate.learn(None, actual);
            }
            let off = f64::from(fit) / 20_000.0 - rules.fractile();
            worst = if off.abs() > worst.abs() { off } else { worst };
            if off.abs() > 0.03 {
                return Err(format!("{off:+.3}: {name}, {weights:?}"));
            }
        }
        found += &format!(" {name} {worst:+.3};");
    }
    Ok(found)
}

/// With a memory of m, the envelope holds of every stretch of m samples, however old the learner.
pub(crate) fn follows<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(76);
    let (memory, samples, range) = (100, 20_000, (0, 10_000));
    let mut worst = f64::MIN;
    for weights in [(1, 1), (1, 4), (4, 1)] {
        let rules = rules(weights, range).remembering(NonZeroU32::new(memory).unwrap());
        let memory = memory as usize;
        for (name, source) in SOURCES {
            let mut estimate = new(rules);
            let mut trace = Vec::new();
            for at in 0..samples {
                let exact = estimate.exact(None);
                let seen = Seen { min: range.0, max: range.1, at, of: samples, exact };
                let actual = source(&mut rng, &seen);
                trace.push((exact, actual));
                estimate.learn(None, actual);
            }
            for from in (0..samples - memory).step_by(memory / 4) {
                let stretch = &trace[from..from + memory];
                let paid: f64 = stretch.iter().map(|&(r, c)| loss(&rules, r, c)).sum();
                let actuals: Vec<u64> = stretch.iter().map(|&(_, c)| c).collect();
                let envelope = 1.5 * scale(&rules) * (memory as f64).sqrt();
                let over = (paid - best(&rules, &actuals)) / envelope;
                worst = worst.max(over);
                if over > 1.0 {
                    return Err(format!("{over:.3} from {from} on: {name}, {weights:?}"));
                }
            }
        }
    }
    Ok(format!("{worst:.3} of the envelope at worst, of any {memory} samples"))
}

/// With k others in flight, 2 · k · D · G · √T more.
pub(crate) fn late<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(77);
    let mut found = String::from("regret over its envelope at worst:");
    for others in [1_usize, 7, 63] {
        let mut worst = f64::MIN;
        for weights in WEIGHTS {
            for (name, source) in SOURCES {
                let (samples, range) = (4_000, (0, 1_000));
                let rules = rules(weights, range);
                let mut estimate = new(rules);
                let mut flying = VecDeque::new();
                let (mut paid, mut actuals) = (0.0, Vec::new());
                for at in 0..samples {
                    let exact = estimate.exact(None);
                    let seen = Seen { min: range.0, max: range.1, at, of: samples, exact };
                    let actual = source(&mut rng, &seen);
                    paid += loss(&rules, exact, actual);
                    actuals.push(actual);
                    flying.push_back(actual);
                    if flying.len() > others {
                        // One of the oldest ends, so that none flies for ever.
                        let which = rng.usize(..flying.len().min(8));
                        estimate.learn(None, flying.remove(which).unwrap());
                    }
                }
                let root = (samples as f64).sqrt();
                let envelope = (1.5 + 2.0 * others as f64) * scale(&rules) * root;
                let over = (paid - best(&rules, &actuals)) / envelope;
                worst = worst.max(over);
                if over > 1.0 {
                    return Err(format!("{over:.3}: {others} others, {name}, {weights:?}"));
                }
            }
        }
        found += &format!(" {others} others {worst:.3};");
    }
    Ok(found)
}

/// What a stretch beside the shipped learner and the predictions alone came to.
#[derive(Default)]
struct Beside {
    blend: f64,
    predictions: f64,
    learner: f64,
    /// Σs² and the largest s.
    squares: f64,
    most: f64,
    /// How many whole reservations were not what was needed.
    wrong: usize,
}

impl Beside {
    /// What the blend cost beyond the better of the two, over its envelope.
    fn ratio(&self) -> f64 {
        let envelope = (LN_2 * self.squares).sqrt() + (4.0 / 3.0 * LN_2 + 2.0) * self.most;
        // Where the two never differ, rounding of floats is all there is.
        let envelope = envelope + 1e-6 * (1.0 + self.learner);
        (self.blend - self.predictions.min(self.learner)) / envelope
    }
}

/// Stretches of `every` samples each, one after the other.
fn beside(
    rng: &mut Rng,
    (stretches, every): (usize, usize),
    (source, foresight): (usize, &Foresight),
    rules: ReserveRules,
    mut estimate: impl Estimate,
) -> Vec<Beside> {
    let (min, max) = (rules.min(), rules.max());
    let mut learner = Learned::new(rules);
    let of = stretches * every;
    let mut all: Vec<Beside> = (0..stretches).map(|_| Beside::default()).collect();
    for at in 0..of {
        let seen = Seen { min, max, at, of, exact: estimate.exact(None) };
        let actual = SOURCES[source].1(rng, &seen);
        let foreseen = Foreseen { min, max, at, trust: estimate.trust() };
        let prediction = foresight.predict(rng, actual, &foreseen);
        let learned = loss(&rules, learner.exact(), actual);
        let predicted = prediction
            .map_or(learned, |prediction| loss(&rules, prediction.clamp(min, max) as f64, actual));
        let found = &mut all[at / every];
        found.blend += loss(&rules, estimate.exact(prediction), actual);
        found.predictions += predicted;
        found.learner += learned;
        found.squares += (predicted - learned).powi(2);
        found.most = found.most.max((predicted - learned).abs());
        let whole = estimate.whole(prediction) as f64;
        found.wrong += usize::from(loss(&rules, whole, actual) > 0.0);
        estimate.learn(prediction, actual);
        learner.learn(actual);
    }
    all
}

/// The blend against the better of the two: √(ln 2 · Σs²) + (4/3 · ln 2 + 2) · S.
pub(crate) fn blend<E: Estimate>(samples: usize, new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(78);
    let mut said = format!("blend over its envelope, {samples} samples, at worst:");
    for foresight in &FORESIGHTS {
        let mut worst = f64::MIN;
        for weights in [(1, 1), (1, 9), (9, 1), (1, 99)] {
            for (source, (name, _)) in SOURCES.iter().enumerate() {
                let rules = rules(weights, (16, 4_096));
                let drawn = (source, foresight);
                let found = beside(&mut rng, (1, samples), drawn, rules, new(rules));
                let ratio = found[0].ratio();
                worst = worst.max(ratio);
                if ratio > 1.0 || ratio.is_nan() {
                    let of = foresight.name;
                    return Err(format!("{ratio:.3}: {of} predictions, {name}, {weights:?}"));
                }
            }
        }
        said += &format!(" {} {worst:.3};", foresight.name);
    }
    Ok(said)
}

/// With a memory of m, the same of every m predictions by themselves.
pub(crate) fn blend_of_stretches<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(85);
    let mut worst = f64::MIN;
    let always = FORESIGHTS.iter().filter(|foresight| foresight.is_always());
    for foresight in always {
        for (source, (name, _)) in SOURCES.iter().enumerate() {
            let rules = rules((1, 4), (16, 4_096)).remembering(NonZeroU32::new(300).unwrap());
            let all = beside(&mut rng, (10, 300), (source, foresight), rules, new(rules));
            for (stretch, found) in all.iter().enumerate() {
                let ratio = found.ratio();
                worst = worst.max(ratio);
                if ratio > 1.0 || ratio.is_nan() {
                    let of = foresight.name;
                    return Err(format!("{ratio:.3}: {of} predictions, {name}, {stretch}"));
                }
            }
        }
    }
    Ok(format!("{worst:.3} of the envelope at worst, of every 300 predictions"))
}

/// True predictions cost (16/3 · ln 2 + 2) · S in all, and of steady work few whole reservations
/// are wrong.
pub(crate) fn true_predictions<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(79);
    let (mut worst, mut wrong) = (f64::MIN, 0);
    for weights in WEIGHTS {
        for (source, (name, _)) in SOURCES.iter().enumerate() {
            let rules = rules(weights, (16, 4_096));
            let found = beside(&mut rng, (1, 2_000), (source, &TRUE), rules, new(rules));
            let found = &found[0];
            let ratio = found.blend / found.most.max(1e-9);
            worst = worst.max(ratio);
            if STEADY.contains(&source) {
                wrong = wrong.max(found.wrong);
            }
            if ratio > 16.0 / 3.0 * LN_2 + 2.0 || wrong > WRONG_MAX {
                return Err(format!("{ratio:.3} S, {wrong} wrong: {name}, {weights:?}"));
            }
        }
    }
    Ok(format!("true predictions cost {worst:.3} S in all, {wrong} of 2,000 wrong, at worst"))
}

/// Of 2,000 reservations with true predictions.
const WRONG_MAX: usize = 100;

/// Steady work: the loss of whole reservations over that of the best fixed one. The range is so
/// many times the quantile.
pub(crate) fn near_the_best_fixed<E: Estimate>(
    bounds: &[(u64, usize, f64)],
    new: impl Fn(ReserveRules) -> E,
) -> Check {
    let mut rng = generator(82);
    let mut said = String::from("over the best fixed:");
    for &(times, samples, bound) in bounds {
        let (mut worst, mut sum, mut runs) = (0.0_f64, 0.0, 0.0);
        for weights in [(1, 1), (1, 4), (1, 9)] {
            for _ in 0..long(5) {
                let needed = |rng: &mut Rng| whole(300.0 * (0.8 * normal(rng)).exp());
                let mut actuals: Vec<u64> = (0..samples).map(|_| needed(&mut rng)).collect();
                let wide = rules(weights, (1, 1_000_000));
                let quantile = wide.best_fixed(&mut actuals.clone()).unwrap();
                let rules = rules(weights, (1, times * quantile));
                let mut estimate = new(rules);
                let mut paid = 0.0;
                rng.shuffle(&mut actuals);
                for &actual in &actuals {
                    paid += loss(&rules, estimate.whole(None) as f64, actual);
                    estimate.learn(None, actual);
                }
                let ratio = paid / best(&rules, &actuals);
                (worst, sum, runs) = (worst.max(ratio), sum + ratio, runs + 1.0);
                if ratio > bound {
                    return Err(format!("{ratio:.3}: {times} × {samples}, {weights:?}"));
                }
            }
        }
        let mean = sum / runs;
        said += &format!(" range {times} × quantile, {samples}: {mean:.3}, {worst:.3} at worst;");
    }
    Ok(said)
}

/// How many samples it takes, after `age` of them, until what is learned costs less than 1.2 times
/// the best, when all work needs ten times as much, and when it needs that much less again.
pub(crate) fn follows_within<E: Estimate>(age: usize, most: usize, estimate: &mut E) -> Check {
    let mut rng = generator(83);
    let rules = rules((1, 4), (1, 8_000));
    let mut needed = |scale: f64| whole(scale * (0.5 * normal(&mut rng)).exp());
    for _ in 0..age {
        estimate.learn(None, needed(200.0));
    }
    let mut taken = [0, 0];
    for (taken, scale) in taken.iter_mut().zip([2_000.0, 200.0]) {
        let actuals: Vec<u64> = (0..2_000).map(|_| needed(scale)).collect();
        let near = 1.2 * best(&rules, &actuals);
        let cost = |r: u64| actuals.iter().map(|&c| loss(&rules, r as f64, c)).sum::<f64>();
        while cost(estimate.whole(None)) > near {
            estimate.learn(None, needed(scale));
            *taken += 1;
            if *taken > most {
                return Err(format!("after {age}: more than {most} samples to {scale}"));
            }
        }
    }
    Ok(format!("after {age}: tenfold in {} samples, back in {}", taken[0], taken[1]))
}

/// What was stopped below the estimate changes nothing; what was stopped above it raises it.
pub(crate) fn stopped<E: Estimate>(new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(84);
    let mut raised = 0;
    for weights in WEIGHTS {
        let mut estimate = new(rules(weights, (0, 1_000)));
        for _ in 0..1_000 {
            estimate.learn(None, rng.u64(..1_000));
            let (before, served) = (estimate.exact(None), rng.u64(..1_000));
            estimate.learn_stopped(served);
            let after = estimate.exact(None);
            let is_above = (served + 1) as f64 > before;
            raised += usize::from(is_above);
            if after < before || (after > before) != is_above {
                return Err(format!("{before} became {after} by {served}, {weights:?}"));
            }
        }
    }
    Ok(format!("of 8,000 stopped, {raised} were above the estimate"))
}

/// The last samples' quantile alone, which is what a learner that trusts its eyes would do.
pub(crate) struct RecentAlone {
    rules: ReserveRules,
    last: VecDeque<u64>,
}

impl RecentAlone {
    pub(crate) fn new(rules: ReserveRules) -> Self {
        Self { rules, last: VecDeque::new() }
    }
}

impl Estimate for RecentAlone {
    fn exact(&self, _: Option<u64>) -> f64 {
        let mut last: Vec<u64> = self.last.iter().copied().collect();
        let start = || Learned::new(self.rules).exact();
        self.rules.best_fixed(&mut last).map_or_else(start, |quantile| quantile as f64)
    }

    fn whole(&self, _: Option<u64>) -> u64 {
        whole(self.exact(None))
    }

    fn learn(&mut self, _: Option<u64>, actual: u64) {
        self.last.push_back(actual);
        if self.last.len() > 64 {
            self.last.pop_front();
        }
    }

    fn learn_stopped(&mut self, _: u64) {}

    fn trust(&self) -> f64 {
        0.0
    }
}

/// What looks back against the better of the learner and the quantile of the last 64.
pub(crate) fn looks_back<E: Estimate>(samples: usize, new: impl Fn(ReserveRules) -> E) -> Check {
    let mut rng = generator(86);
    let mut said = format!("looking back over its envelope, {samples} samples, at worst:");
    for (name, source) in SOURCES {
        let mut worst = f64::MIN;
        for weights in [(1, 1), (1, 9), (9, 1), (1, 99)] {
            let (min, max) = (16, 100_000);
            let rules = rules(weights, (min, max));
            let (mut estimate, mut learner) = (new(rules), Learned::new(rules));
            let mut recent = RecentAlone::new(rules);
            let mut found = Beside::default();
            for at in 0..samples {
                let exact = estimate.exact(None);
                let actual = source(&mut rng, &Seen { min, max, at, of: samples, exact });
                let learned = loss(&rules, learner.exact(), actual);
                let seen = loss(&rules, recent.exact(None), actual);
                found.blend += loss(&rules, exact, actual);
                (found.learner, found.predictions) =
                    (found.learner + learned, found.predictions + seen);
                found.squares += (seen - learned).powi(2);
                found.most = found.most.max((seen - learned).abs());
                estimate.learn(None, actual);
                learner.learn(actual);
                recent.learn(None, actual);
            }
            worst = worst.max(found.ratio());
            if found.ratio() > 1.0 || found.ratio().is_nan() {
                return Err(format!("{:.3}: {name}, {weights:?}", found.ratio()));
            }
        }
        said += &format!(" {name} {worst:.3};");
    }
    Ok(said)
}
