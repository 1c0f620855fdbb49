//! What must hold of a sizer. Each check says what it measured, or what was broken.

use std::num::NonZeroU16;

use admittance_core::learn::{LeaseCost, Sizer, trace};
use admittance_core::{Cost, EXACT_MAX};
use fastrand::Rng;

use crate::size::Size;
use crate::size::demand::{
    HOSTILE, ORDER_COST, STEADY, best_fixed, cost_of, hostile, least, paid, steady,
};
use crate::timeline::{generator, long, spread};

pub(crate) type Check = Result<String, String>;

/// The cost of `demand` served by `sizer`, which nobody tells what comes.
pub(crate) fn run(demand: &[u64], mut sizer: impl Size) -> f64 {
    let mut sum = 0.0;
    for &demand in demand {
        sum += cost_of(demand, sizer.size());
        sizer.feed(demand);
    }
    sum
}

/// Any settings, any numbers, any order: a size between 1 and the largest.
pub(crate) fn stays_in_range<S: Size>(new: impl Fn(LeaseCost) -> S) -> Check {
    let mut rng = generator(51);
    let nonzero = |number: u64| NonZeroU16::new(u16::try_from(number).unwrap()).unwrap();
    let runs = long(300);
    for _ in 0..runs {
        let limit = Cost::new(spread(&mut rng, EXACT_MAX)).unwrap();
        let mut cost = LeaseCost::new(limit);
        if rng.bool() {
            cost = cost
                .with_order_cost(nonzero(spread(&mut rng, 65_535)))
                .with_strand_penalty(nonzero(spread(&mut rng, 65_535)))
                .with_size_max(Cost::new(spread(&mut rng, EXACT_MAX)).unwrap())
                .with_demand_max(Cost::new(spread(&mut rng, EXACT_MAX)).unwrap());
        }
        let size_max = limit.units().min(LeaseCost::SIZE_MAX);
        let size_max = size_max.min(cost.size_max().units());
        let mut sizer = new(cost);
        let mut draw = |of: &[u64]| match rng.usize(..of.len() + 2) {
            at if at < of.len() => of[at],
            at if at == of.len() => rng.u64(..),
            _ => spread(&mut rng, limit.units()),
        };
        for window in 0..1_000 {
            let size = sizer.size();
            if !(1..=size_max).contains(&size) {
                return Err(format!("{size} at window {window}, beyond {size_max}: {cost:?}"));
            }
            if draw(&[0, 1]).is_multiple_of(2) {
                sizer.predict(draw(&[0, 1, u64::MAX, EXACT_MAX]));
            }
            sizer.feed(draw(&[0, 1, u64::MAX, limit.units()]));
        }
    }
    Ok(format!("{runs} runs of 1,000 windows stayed in range"))
}

/// At most 1.2 times the best fixed size over 1,000 windows.
pub(crate) fn near_the_best_fixed<S: Size>(new: impl Fn(LeaseCost) -> S) -> Check {
    let mut rng = generator(52);
    let mut found = String::from("over the best fixed size, 1,000 windows:");
    for (kind, (name, _)) in STEADY.iter().enumerate() {
        let mut worst: f64 = 0.0;
        for mean in [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000] {
            for _ in 0..long(5) {
                let limit = LeaseCost::new(Cost::new(200 * mean).unwrap());
                let demand = steady(kind, mean, 1_000, 200 * mean, &mut rng);
                let ratio =
                    run(&demand, new(limit)) / best_fixed(&demand, limit.size_max().units());
                worst = worst.max(ratio);
                if ratio > 1.2 || ratio.is_nan() {
                    return Err(format!("{ratio:.3} times the best fixed: {name} of {mean}"));
                }
            }
        }
        found += &format!(" {name} {worst:.3};");
    }
    Ok(found)
}

/// Regret(T) ≤ C · √T. Steady demand: C is three times the least cost of a window with the largest
/// demand. Hostile demand: C is half of the steepest slope there can be, that of the largest demand
/// at the best size for the smallest.
pub(crate) fn regret<S: Size>(windows: usize, new: impl Fn(LeaseCost) -> S) -> Check {
    let mut rng = generator(53);
    let mut found = format!("regret({windows}) / (C · √T) at worst:");
    let names = STEADY.iter().map(|kind| kind.0).chain(HOSTILE.iter().map(|kind| kind.0));
    for (kind, name) in names.enumerate() {
        let mut worst = f64::MIN;
        for limit in [100, 10_000, 1_000_000] {
            for _ in 0..long(3) {
                let cost = LeaseCost::new(Cost::new(limit).unwrap());
                let demand = match kind.checked_sub(STEADY.len()) {
                    None => steady(kind, limit / 50, windows, limit, &mut rng),
                    Some(kind) => hostile(kind, windows, limit, &mut rng),
                };
                let largest = demand.iter().copied().max().unwrap_or(1).max(1);
                let smallest = demand.iter().copied().filter(|&demand| demand > 0).min();
                let smallest = cost.optimum(smallest.unwrap_or(1)).units() as f64;
                let slope = ORDER_COST * largest as f64 / smallest;
                let c = if kind < STEADY.len() { 3.0 * least(largest) } else { slope / 2.0 };
                let best = best_fixed(&demand, cost.size_max().units());
                let over = run(&demand, new(cost)) - best;
                worst = worst.max(over / c / (windows as f64).sqrt());
            }
        }
        found += &format!(" {name} {worst:.3};");
        if worst > 1.0 || worst.is_nan() {
            return Err(found);
        }
    }
    Ok(found)
}

/// Cheaper than each fixed size on the named trace, by the formula and as a holder would pay.
pub(crate) fn beats_every_fixed<S: Size>(windows: usize, new: impl Fn(LeaseCost) -> S) -> Check {
    let demand: Vec<u64> = trace::drifting(windows).collect();
    let largest = 65_536;
    let mut sizer = new(LeaseCost::new(Cost::new(largest).unwrap()));
    let mut own = [0.0; 2];
    for &demand in &demand {
        own[0] += cost_of(demand, sizer.size());
        own[1] += paid(demand, sizer.size());
        sizer.feed(demand);
    }
    // One period has each demand twice, and its end shows how often it was begun.
    let mut counts = std::collections::BTreeMap::new();
    for &demand in &demand {
        *counts.entry(demand).or_insert(0.0) += 1.0;
    }
    // Above the largest demand every window takes one lease, and a larger one only strands more.
    let mut best = [(f64::INFINITY, 0); 2];
    for size in 1..=largest {
        for (best, cost) in best.iter_mut().zip([cost_of, paid]) {
            let sum = counts.iter().map(|(&demand, times)| times * cost(demand, size)).sum();
            *best = if sum < best.0 { (sum, size) } else { *best };
        }
    }
    let [formula, held] = [0, 1].map(|kind| own[kind] / best[kind].0);
    let found = format!(
        "{windows} drifting windows: {formula:.3} of the best fixed size ({}) by the formula, \
         {held:.3} of the best ({}) in round trips and stranded units",
        best[0].1, best[1].1
    );
    if formula < 1.0 && held < 1.0 { Ok(found) } else { Err(found) }
}

/// A thousand windows without demand, then the same size as before.
pub(crate) fn rest_changes_nothing<S: Size>(new: impl Fn(LeaseCost) -> S) -> Check {
    let mut sizer = new(LeaseCost::new(Cost::new(100_000).unwrap()));
    let mut rng = generator(54);
    for rest in [1, 1_000] {
        for demand in steady(4, 10_000, 100, 100_000, &mut rng) {
            sizer.feed(demand);
        }
        let before = sizer.size();
        (0..rest).for_each(|_| sizer.feed(0));
        if sizer.size() != before {
            return Err(format!("{before} before {rest} idle windows, {} after", sizer.size()));
        }
    }
    Ok("the same size after rest".into())
}

/// Told the truth before every window: at most 1.01 times the cost of the best size for each, and
/// at the start, until the predictions are trusted, as much as ten windows of the largest demand.
pub(crate) fn true_predictions<S: Size>(new: impl Fn(LeaseCost) -> S) -> Check {
    let mut worst = (0.0, "");
    for (name, limit, demand) in futures() {
        let cost = LeaseCost::new(Cost::new(limit).unwrap());
        let mut sizer = new(cost);
        let (mut own, mut knowing) = (0.0, 0.0);
        for &demand in &demand {
            sizer.predict(demand);
            own += cost_of(demand, sizer.size());
            knowing += cost_of(demand, cost.optimum(demand).units());
            sizer.feed(demand);
        }
        let ratio = (own - 10.0 * least(limit)) / knowing;
        // A sum that is not a number is no better than any other that is too large.
        if ratio.is_nan() || ratio > worst.0 {
            worst = (if ratio.is_nan() { f64::INFINITY } else { ratio }, name);
        }
    }
    let found =
        format!("ten windows and {:.4} times the cost of knowing, at worst: {}", worst.0, worst.1);
    if worst.0 <= 1.01 { Ok(found) } else { Err(found) }
}

/// What a false prophet says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Foresight {
    /// Nothing to speak of.
    Tiny,
    /// All there can be.
    Huge,
    /// Any magnitude.
    Random,
    /// Much when little comes, little when much comes.
    Opposite,
    /// The truth while it is not believed, the worst once it is.
    Betraying,
}

impl Foresight {
    fn says(self, demand: u64, limit: u64, trust: f64, rng: &mut Rng) -> u64 {
        match self {
            Self::Tiny => 1,
            Self::Huge => u64::MAX,
            Self::Random => spread(rng, limit),
            Self::Opposite => (limit / demand.max(1)).max(1),
            Self::Betraying if trust < 0.5 => demand,
            Self::Betraying => {
                let dearer = cost_of(demand, 6) > cost_of(demand, limit.min(1_000_000));
                if dearer { 1 } else { u64::MAX }
            }
        }
    }
}

/// At most `factor` times the cost of the learner alone, and `windows` of the worst cost.
pub(crate) fn false_predictions<S: Size>(
    foresight: Foresight,
    (factor, windows): (f64, f64),
    new: impl Fn(LeaseCost) -> S,
) -> Check {
    let mut rng = generator(55);
    let mut worst = (0.0, "");
    for (name, limit, demand) in futures() {
        let cost = LeaseCost::new(Cost::new(limit).unwrap());
        let mut sizer = new(cost);
        let mut own = 0.0;
        for &demand in &demand {
            sizer.predict(foresight.says(demand, limit, sizer.trust(), &mut rng));
            own += cost_of(demand, sizer.size());
            sizer.feed(demand);
        }
        let alone = run(&demand, Sizer::learned(cost));
        let one_window = ORDER_COST * limit as f64 + limit.min(1_000_000) as f64 / 2.0 + 1_000.0;
        let ratio = (own - windows * one_window) / alone;
        if ratio > worst.0 {
            worst = (ratio, name);
        }
    }
    let found = format!(
        "{foresight:?}: {:.3} times the learner and {windows} worst windows, at worst: {}",
        worst.0, worst.1
    );
    if worst.0 <= factor { Ok(found) } else { Err(found) }
}

/// What there is to predict: name, limit and 10,000 windows.
fn futures() -> impl Iterator<Item = (&'static str, u64, Vec<u64>)> {
    let mut rng = generator(56);
    let drifting = ("drifting", 65_536, trace::drifting(10_000).collect());
    let mut all = vec![drifting];
    for limit in [10_000, 1_000_000] {
        for (kind, (name, _)) in STEADY.iter().enumerate() {
            all.push((name, limit, steady(kind, limit / 50, 10_000, limit, &mut rng)));
        }
        for (kind, (name, _)) in HOSTILE.iter().enumerate() {
            all.push((name, limit, hostile(kind, 10_000, limit, &mut rng)));
        }
    }
    all.into_iter()
}
