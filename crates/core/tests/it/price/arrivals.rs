//! Requests that arrive one by one against budgets that run out.

use admittance_core::learn::price::{Bid, Budgets, Kind, Outcome, Prices, Solution, solve};
use admittance_core::{Micros, Span};
use fastrand::Rng;

use crate::price::checks::Check;
use crate::price::instances::{amounts, demand};
use crate::timeline::{generator, long};

/// What arrives in a period, and for which part of it the budgets suffice.
pub(crate) struct Mixture {
    pub(crate) name: &'static str,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) budgets: Budgets,
}

impl Mixture {
    fn new(name: &'static str, kinds: Vec<Kind>, parts: [Option<f64>; 3]) -> Self {
        let [rate, cost, hold] = demand(&kinds);
        let budgets = Budgets {
            rate: parts[0].map(|part| (part * rate).floor()),
            cost: parts[1].map(|part| (part * cost).floor()),
            concurrency: parts[2].map(|part| (part * hold).floor()),
        };
        Self { name, kinds, budgets }
    }

    /// As many requests as are expected in a period, drawn by weight, in random order.
    pub(crate) fn period(&self, rng: &mut Rng) -> Vec<Bid> {
        let sum: f64 = self.kinds.iter().map(|kind| kind.weight).sum();
        let mut drawn = Vec::new();
        while (drawn.len() as f64) < sum {
            let mut at = rng.f64() * sum;
            let kind = self.kinds.iter().find(|kind| {
                at -= kind.weight;
                at < 0.0
            });
            drawn.extend(kind.map(Kind::bid));
        }
        drawn
    }
}

/// Five values and five costs, or holds; `weight` says how often they meet.
fn grid(weight: impl Fn(f64, f64) -> f64, hold: bool) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (at, value) in [1.0, 2.0, 4.0, 8.0, 16.0].into_iter().enumerate() {
        for (to, size) in [10_u32, 40, 160, 640, 2_560].into_iter().enumerate() {
            let weight = weight(at as f64 / 4.0, to as f64 / 4.0);
            if weight > 0.0 {
                let (cost, hold) =
                    if hold { (100, f64::from(size)) } else { (u64::from(size), 20.0) };
                kinds.push(Kind { weight, value, cost, hold });
            }
        }
    }
    kinds
}

pub(crate) fn mixtures() -> Vec<Mixture> {
    let near = |one: f64, other: f64| 200.0 * (-8.0 * (one - other).powi(2)).exp();
    let cost = |part| [Some(0.5), Some(part), None];
    let by_cost = |weight, value, cost| Kind { weight, value, cost, hold: 50.0 };
    let whales = vec![by_cost(950.0, 1.0, 100), by_cost(50.0, 3.0, 10_000)];
    let by_hold = |weight, value, hold| Kind { weight, value, cost: 100, hold };
    let hogs = vec![by_hold(900.0, 1.0, 20.0), by_hold(100.0, 1.5, 5_000.0)];
    vec![
        Mixture::new("value and cost independent", grid(|_, _| 40.0, false), cost(0.3)),
        Mixture::new("the dearer the less worth", grid(|v, c| near(v, 1.0 - c), false), cost(0.3)),
        Mixture::new("the dearer the more worth", grid(near, false), cost(0.3)),
        Mixture::new("rate alone", grid(|_, _| 40.0, false), [Some(0.3), None, None]),
        Mixture::new("whales that share", whales.clone(), [None, Some(0.25), None]),
        Mixture::new("whales refused", whales, [None, Some(0.15), None]),
        Mixture::new("hold independent", grid(|_, _| 40.0, true), [Some(0.6), None, Some(0.3)]),
        Mixture::new(
            "all three scarce",
            [grid(|_, _| 20.0, false), grid(|_, _| 20.0, true)].concat(),
            [Some(0.5), Some(0.3), Some(0.3)],
        ),
        Mixture::new("hogs that share permits", hogs.clone(), [Some(0.9), Some(0.9), Some(0.2)]),
        Mixture::new("hogs refused", hogs, [Some(0.9), Some(0.9), Some(0.03)]),
    ]
}

/// Every unit of cost is worth the same, whoever spends it: nothing to choose.
pub(crate) fn perfectly_correlated() -> Mixture {
    let sizes = [10_u32, 40, 160, 640, 2_560];
    let kind = |size: u32| Kind {
        weight: 200.0,
        value: 0.01 * f64::from(size),
        cost: u64::from(size),
        hold: 20.0,
    };
    Mixture::new("worth in proportion to cost", sizes.map(kind).to_vec(), [None, Some(0.3), None])
}

/// What is earned by those that pass, while every budget lasts.
pub(crate) fn earned(bids: &[Bid], budgets: Budgets, prices: Prices) -> f64 {
    let mut left = amounts(budgets);
    let mut earned = 0.0;
    for bid in bids.iter().filter(|bid| prices.admits(bid)) {
        let uses = [1.0, bid.cost() as f64, bid.hold()];
        if left.iter().zip(uses).all(|(left, uses)| uses <= *left) {
            left.iter_mut().zip(uses).for_each(|(left, uses)| *left -= uses);
            earned += bid.value();
        }
    }
    earned
}

fn given([rate, cost, concurrency]: [f64; 3]) -> Result<Prices, String> {
    Prices::given(rate, cost, concurrency).map_err(|refused| refused.to_string())
}

/// The prices to decide by.
pub(crate) type Pricing<'a> = &'a dyn Fn(&[Kind], Budgets) -> Prices;

/// Over fifty periods of each mixture, joint earns at least a twentieth more than marginal.
pub(crate) fn joint_beats_marginal(pricing: Pricing<'_>) -> Check {
    let mut rng = generator(94);
    let mut found = String::from("joint over marginal, and of what parts of requests would earn:");
    for mixture in mixtures() {
        let (joint, marginal, most) = compared(&mixture, pricing, &mut rng);
        let (gain, part) = (joint / marginal, joint / most);
        found += &format!("\n  {}: {gain:.3}, {part:.3}", mixture.name);
        if gain < 1.05 {
            return Err(format!("{gain:.3} times marginal: {}", mixture.name));
        }
    }
    Ok(found)
}

/// The foil: where every unit is worth the same, there is nothing to gain, and nothing to lose.
pub(crate) fn no_gain_where_worth_follows_cost(pricing: Pricing<'_>) -> Check {
    let mixture = perfectly_correlated();
    let (joint, marginal, _) = compared(&mixture, pricing, &mut generator(95));
    let gain = joint / marginal;
    if (gain - 1.0).abs() > 1e-3 {
        return Err(format!("{}: {gain} times marginal", mixture.name));
    }
    Ok(format!("{}: joint {joint:.0}, marginal {marginal:.0}: {gain:.6}", mixture.name))
}

/// Of a kind that shares all or nothing is admitted; which is advised is what earns more.
pub(crate) fn advised_is_the_better(pricing: Pricing<'_>) -> Check {
    let mut found = String::from("over marginal: kinds that share admitted, refused, as advised");
    for mixture in mixtures().into_iter().chain([perfectly_correlated()]) {
        let solved = solve(&mixture.kinds, mixture.budgets);
        let gain = |pricing: Pricing<'_>| {
            let (joint, marginal, _) = compared(&mixture, pricing, &mut generator(99));
            joint / marginal
        };
        let (admitted, refused) = (gain(&|_, _| solved.prices), gain(&|_, _| dearer(&solved)));
        let advised = gain(pricing);
        found += &format!("\n  {}: {admitted:.3}, {refused:.3}, {advised:.3}", mixture.name);
        if advised < 0.98 * admitted.max(refused) {
            return Err(found);
        }
    }
    Ok(found)
}

/// What refuses every kind that shares.
pub(crate) fn dearer(solved: &Solution) -> Prices {
    let [rate, cost, hold] = [solved.rate, solved.cost, solved.concurrency].map(|p| p * 1.000_001);
    Prices::given(rate, cost, hold).unwrap()
}

/// What joint and marginal earn in all, and the most that parts of requests would.
fn compared(mixture: &Mixture, pricing: Pricing<'_>, rng: &mut Rng) -> (f64, f64, f64) {
    let prices = pricing(&mixture.kinds, mixture.budgets);
    let worth = solve(&mixture.kinds, mixture.budgets).worth;
    let (mut joint, mut marginal, mut most) = (0.0, 0.0, 0.0);
    for _ in 0..long(50) {
        let bids = mixture.period(rng);
        joint += earned(&bids, mixture.budgets, prices);
        marginal += earned(&bids, mixture.budgets, Prices::ZERO);
        most += worth;
    }
    (joint, marginal, most)
}

/// A refinement that is asked and told at once.
pub(crate) trait Refine {
    fn prices(&self) -> Prices;
    /// The outcome, when there is one.
    fn observe(&mut self, now: Micros, bid: &Bid) -> Option<Outcome>;
}

/// Makes one: budgets, their period, the window, and the prior.
pub(crate) type Refiner<'a> = &'a dyn Fn(Budgets, Span, Span, Prices) -> Box<dyn Refine>;

pub(crate) const PERIOD: Span = Span::from_ms(60_000);

/// Plays `bids` evenly over `span`, from `from` on.
fn play(refine: &mut dyn Refine, bids: &[Bid], from: Micros, span: Span) -> Option<Outcome> {
    let step = span.us() / bids.len() as u64;
    let mut outcome = None;
    for (number, bid) in bids.iter().enumerate() {
        outcome = outcome.or(refine.observe(from + Span::from_us(number as u64 * step), bid));
    }
    outcome
}

/// Priors of every sort: after the window the prices earn at least what the prior does on the
/// sample, replayed here against the budgets of that time; and then they stay as they are.
pub(crate) fn never_worse_on_the_sample(new: Refiner<'_>) -> Check {
    let mut rng = generator(96);
    let (mut adopted, mut kept, mut gain): (usize, usize, f64) = (0, 0, 1.0);
    for number in 0..long(40) {
        for mixture in mixtures() {
            let prior = match rng.u8(..4) {
                0 => Prices::ZERO,
                1 => solve(&mixture.kinds, mixture.budgets).prices,
                _ => given([4.0 * rng.f64(), 0.02 * rng.f64(), 0.01 * rng.f64()])?,
            };
            // A part of a period that has no more requests than are kept.
            let mut sample = mixture.period(&mut rng);
            let requests = sample.len() as u64;
            sample.truncate(240);
            let window = Span::from_us(PERIOD.us() * sample.len() as u64 / requests);
            let mut refine = new(mixture.budgets, PERIOD, window, prior);
            let start = Micros::ZERO + Span::from_secs(number as u64);
            play(&mut *refine, &sample, start, window);
            if refine.prices() != prior {
                return Err(format!("{}: another price within the window", mixture.name));
            }
            refine.observe(start + window, &sample[0]);
            let prices = refine.prices();
            let scaled = mixture.budgets.scaled(window.us() as f64 / PERIOD.us() as f64);
            let (before, after) = (earned(&sample, scaled, prior), earned(&sample, scaled, prices));
            if after < before || (prices != prior && after <= before) {
                return Err(format!("{}: {after} after {before}", mixture.name));
            }
            if prices == prior {
                kept += 1
            } else {
                adopted += 1
            }
            gain = if before > 0.0 { gain.max(after / before) } else { gain };
            let later = mixture.period(&mut rng);
            play(&mut *refine, &later, start + window, PERIOD);
            if refine.prices() != prices {
                return Err(format!("{}: another price after the window", mixture.name));
            }
        }
    }
    Ok(format!("{adopted} priors left, {kept} kept; at most {gain:.1} times as much"))
}

/// A prior that refuses everything is left after one window, with two budgets and with three.
pub(crate) fn leaves_a_prior_that_refuses_everything(new: Refiner<'_>) -> Check {
    let mut rng = generator(97);
    let prior = given([1e9, 1e9, 1e9])?;
    let mut found = String::from("after one window of a prior that refuses everything:");
    for mixture in mixtures().into_iter().chain([perfectly_correlated(), too_large()]) {
        let mut refine = new(mixture.budgets, PERIOD, PERIOD, prior);
        play(&mut *refine, &mixture.period(&mut rng), Micros::ZERO, PERIOD);
        let later = mixture.period(&mut rng);
        refine.observe(Micros::ZERO + PERIOD, &later[0]);
        let earns = earned(&later, mixture.budgets, refine.prices());
        let marginal = earned(&later, mixture.budgets, Prices::ZERO);
        found += &format!("\n  {}: {:.3} times marginal", mixture.name, earns / marginal);
        if earns < 0.9 * marginal {
            return Err(format!("{}: {earns}, marginal {marginal}", mixture.name));
        }
    }
    Ok(found)
}

/// The relaxation would admit a part of one request that does not fit, and nothing else.
fn too_large() -> Mixture {
    let large = Kind { weight: 5.0, value: 1e6, cost: 10_000, hold: 0.0 };
    let small = Kind { weight: 100.0, value: 1.0, cost: 10, hold: 0.0 };
    Mixture::new("a few too large to fit", vec![large, small], [None, Some(0.15), None])
}

/// The second foil: the sample is not what comes after it.
pub(crate) fn loses_where_arrivals_change(new: Refiner<'_>) -> Check {
    let mut rng = generator(98);
    let kind = |weight, value| Kind { weight, value, cost: 10, hold: 20.0 };
    let budgets = Budgets { rate: Some(300.0), ..Budgets::default() };
    // Expected over the whole run: a tenth of the time as at first, then without the best.
    let (rich, poor) =
        ([kind(400.0, 10.0), kind(600.0, 4.0)], [kind(400.0, 4.0), kind(600.0, 1.0)]);
    let prior = given([4.0, 0.0, 0.0])?;
    let mut refine = new(budgets, PERIOD, PERIOD, prior);
    let (mut refined, mut fixed, mut on_sample) = (0.0, 0.0, (0.0, 0.0));
    let mut adopted = None;
    for period in 0..10 {
        let kinds = if period == 0 { &rich } else { &poor };
        let mixture = Mixture { name: "changing", kinds: kinds.to_vec(), budgets };
        let bids = mixture.period(&mut rng);
        let start = Micros::ZERO + Span::from_us(period * PERIOD.us());
        let outcome = refine.observe(start, &bids[0]);
        adopted = adopted.or(outcome);
        refined += earned(&bids, budgets, refine.prices());
        fixed += earned(&bids, budgets, prior);
        play(&mut *refine, &bids[1..], start + Span::TICK, PERIOD);
        if period == 0 {
            on_sample.0 = earned(&bids, budgets, prior);
        } else if period == 1 {
            on_sample.1 = adopted.map_or(0.0, |outcome| outcome.worth);
        }
    }
    let loss = 1.0 - refined / fixed;
    let (prior, learned) = on_sample;
    let found = format!(
        "on the sample {learned:.0} against {prior:.0} of the prior, over the whole run \
         {refined:.0} against {fixed:.0}: a loss of {:.1} %",
        100.0 * loss
    );
    if learned > prior && loss > 0.0 { Ok(found) } else { Err(found) }
}
