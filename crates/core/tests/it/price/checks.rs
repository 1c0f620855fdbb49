//! What must hold of a solver. Each check says what it measured, or what was broken.

use admittance_core::learn::price::{Budgets, Kind};
use microlp::{ComparisonOp, OptimizationDirection, Problem};

use crate::price::exact;
use crate::price::instances::{amounts, demand, dual, instance, ties, uses};
use crate::timeline::{generator, long};

pub(crate) type Check = Result<String, String>;

/// The prices of rate, cost and concurrency before they are rounded.
pub(crate) type Solver<'a> = &'a dyn Fn(&[Kind], Budgets) -> [f64; 3];

const fn kind(weight: f64, value: f64, cost: u64, hold: f64) -> Kind {
    Kind { weight, value, cost, hold }
}

const fn budgets(rate: f64, cost: f64, concurrency: Option<f64>) -> Budgets {
    Budgets { rate: Some(rate), cost: Some(cost), concurrency }
}

/// Instances small enough to solve by hand.
pub(crate) fn by_hand(solver: Solver<'_>) -> Check {
    let ten_and_one = [kind(5.0, 10.0, 1, 0.0), kind(5.0, 1.0, 1, 0.0)];
    let cheap_and_dear = [kind(10.0, 6.0, 1, 1.0), kind(10.0, 9.0, 4, 1.0)];
    let three = [cheap_and_dear[0], cheap_and_dear[1], kind(10.0, 12.0, 1, 7.0)];
    let long = Some(1e6);
    let fixtures: [(&str, &[Kind], Budgets, [f64; 3]); 12] = [
        ("nothing expected", &[], budgets(1.0, 1.0, long), [0.0; 3]),
        ("enough of all", &ten_and_one, budgets(100.0, 100.0, long), [0.0; 3]),
        ("the second in part", &ten_and_one, budgets(7.0, 100.0, None), [1.0, 0.0, 0.0]),
        ("the first exactly", &ten_and_one, budgets(5.0, 100.0, None), [10.0, 0.0, 0.0]),
        ("the first in part", &ten_and_one, budgets(3.0, 100.0, None), [10.0, 0.0, 0.0]),
        ("no rate", &ten_and_one, budgets(0.0, 100.0, None), [10.0, 0.0, 0.0]),
        ("rate and cost alike", &ten_and_one, budgets(7.0, 7.0, None), [0.0, 1.0, 0.0]),
        ("cost alone", &cheap_and_dear, budgets(100.0, 30.0, None), [0.0, 2.25, 0.0]),
        ("rate and cost", &cheap_and_dear, budgets(10.0, 25.0, None), [5.0, 1.0, 0.0]),
        ("all three", &three, budgets(12.0, 24.0, Some(36.0)), [4.0, 1.0, 1.0]),
        ("hold alone", &three, budgets(100.0, 1e3, Some(55.0)), [0.0, 0.0, 12.0 / 7.0]),
        ("a third", &[kind(2.0, 1.0, 3, 0.0)], budgets(9.0, 3.0, None), [0.0, 1.0 / 3.0, 0.0]),
    ];
    for (name, kinds, budgets, expected) in &fixtures {
        let found = solver(kinds, *budgets);
        if !near(found, *expected, 1e-14) {
            return Err(format!("{name}: {found:?}, not {expected:?}"));
        }
    }
    Ok(format!("{} fixtures", fixtures.len()))
}

/// A certificate of optimality, found without the solver: parts of each kind that keep within the
/// budgets, spend what has a price, admit what is worth more than its price and refuse what is
/// worth less.
pub(crate) fn certified(three: bool, solver: Solver<'_>) -> Check {
    let mut rng = generator(if three { 83 } else { 82 });
    let count = long(10_000);
    let (mut priced, mut shared) = ([0; 4], 0);
    for _ in 0..count {
        let (kinds, budgets) = instance(&mut rng, 8, three);
        let prices = solver(&kinds, budgets);
        let tight = certificate(&kinds, budgets, prices)
            .map_err(|why| format!("{why}: {prices:?} for {kinds:?} {budgets:?}"))?;
        priced[prices.iter().filter(|price| **price > 0.0).count()] += 1;
        shared += usize::from(tight > 0);
    }
    Ok(format!("{count} certificates; {priced:?} with 0 to 3 prices, {shared} with a shared kind"))
}

/// How many kinds are worth exactly their price.
fn certificate(kinds: &[Kind], budgets: Budgets, prices: [f64; 3]) -> Result<usize, String> {
    if prices.iter().any(|price| !(*price >= 0.0 && price.is_finite())) {
        return Err("no prices".into());
    }
    let amounts = amounts(budgets);
    let mut left = amounts;
    let mut tight: Vec<&Kind> = Vec::new();
    for kind in kinds {
        let price: f64 = uses(kind).into_iter().zip(prices).map(|(uses, price)| uses * price).sum();
        if (kind.value - price).abs() <= 1e-9 * kind.value.max(price) {
            tight.push(kind);
        } else if kind.value > price {
            left.iter_mut().zip(uses(kind)).for_each(|(left, uses)| *left -= kind.weight * uses);
        }
    }
    let slack = demand(kinds).map(|demand| 1e-8 * (demand + 1e-3));
    let proves = |parts: &[f64]| {
        let mut over = left;
        for (kind, part) in tight.iter().zip(parts) {
            over.iter_mut().zip(uses(kind)).for_each(|(o, uses)| *o -= part * kind.weight * uses);
        }
        parts.iter().all(|part| (-1e-8..=1.0 + 1e-8).contains(part))
            && (0..3).all(|budget| over[budget] >= -slack[budget])
            && (0..3).all(|budget| prices[budget] == 0.0 || over[budget] <= slack[budget])
    };
    // The parts that keep within the budgets are a polytope: one of its corners proves it, where
    // some parts are 0 or 1 and the others spend as many budgets.
    let found = (0..3_usize.pow(u32::try_from(tight.len()).unwrap())).any(|corner| {
        let state = |at: usize| corner / 3_usize.pow(u32::try_from(at).unwrap()) % 3;
        let open: Vec<usize> = (0..tight.len()).filter(|&at| state(at) == 2).collect();
        if open.len() > 3 {
            return false;
        }
        let mut parts: Vec<f64> = (0..tight.len()).map(|at| f64::from(state(at) == 1)).collect();
        if open.is_empty() {
            return proves(&parts);
        }
        (0..8_usize).filter(|spent| spent.count_ones() as usize == open.len()).any(|spent| {
            let spent: Vec<usize> = (0..3).filter(|budget| spent >> budget & 1 == 1).collect();
            let rows = spent.iter().map(|&budget| {
                let ask = |at: usize| tight[at].weight * uses(tight[at])[budget];
                let fixed: f64 = (0..tight.len()).filter(|at| state(*at) == 1).map(ask).sum();
                let mut row: Vec<f64> = open.iter().map(|&at| ask(at)).collect();
                row.push(left[budget] - fixed);
                row
            });
            let Some(solved) = linear(rows.collect()) else { return false };
            open.iter().zip(solved).for_each(|(&at, part)| parts[at] = part);
            proves(&parts)
        })
    });
    if found { Ok(tight.len()) } else { Err("no parts prove it".into()) }
}

/// Gauss and Jordan, with the largest pivot.
fn linear(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = rows.len();
    for at in 0..size {
        let largest =
            (at..size).max_by(|&a, &b| rows[a][at].abs().total_cmp(&rows[b][at].abs()))?;
        rows.swap(at, largest);
        let pivot = rows[at].clone();
        if pivot[at].abs() < 1e-9 || !pivot[size].is_finite() {
            return None;
        }
        for (number, row) in rows.iter_mut().enumerate() {
            if number != at {
                let times = row[at] / pivot[at];
                row.iter_mut().zip(&pivot).for_each(|(cell, above)| *cell -= times * above);
            }
        }
    }
    Some((0..size).map(|at| rows[at][size] / rows[at][at]).collect())
}

/// Random prices, near the found ones and far, are never a smaller dual.
pub(crate) fn never_beaten(solver: Solver<'_>) -> Check {
    let mut rng = generator(84);
    let count = long(2_000);
    for number in 0..count {
        let (kinds, budgets) = instance(&mut rng, 12, number % 2 == 0);
        let prices = solver(&kinds, budgets);
        let least = dual(&kinds, budgets, prices);
        let all: f64 = kinds.iter().map(|kind| kind.weight * kind.value).sum();
        if prices.iter().any(|price| *price < 0.0) {
            return Err(format!("{prices:?} is below zero"));
        }
        for _ in 0..100 {
            let near = rng.bool();
            let other: Vec<f64> = (0..3)
                .map(|budget| match budget {
                    2 if budgets.concurrency.is_none() => 0.0,
                    _ if rng.u8(..6) == 0 => 0.0,
                    _ if near => prices[budget] * (0.9 + 0.2 * rng.f64()) + 1e-3 * rng.f64(),
                    _ => {
                        let kind = kinds[rng.usize(..kinds.len())];
                        kind.value * rng.f64() / uses(&kind)[budget].max(1e-3)
                    }
                })
                .collect();
            let found = dual(&kinds, budgets, [other[0], other[1], other[2]]);
            if found < least - 1e-12 * all {
                return Err(format!("{other:?} gives {found}, {prices:?} {least}: {kinds:?}"));
            }
        }
    }
    Ok(format!("{count} instances, 100 other prices each"))
}

/// Small whole numbers: the prices are those of rational arithmetic, ties included.
pub(crate) fn as_brute_force(three: bool, solver: Solver<'_>) -> Check {
    let mut rng = generator(if three { 86 } else { 85 });
    let count = long(4_000);
    let mut tied = 0;
    for _ in 0..count {
        let (kinds, budgets) = ties(&mut rng, three);
        let oracle = exact::solve(&kinds, budgets);
        let found = solver(&kinds, budgets);
        if !near(found, oracle.prices(), 1e-9) {
            let expected = oracle.prices();
            return Err(format!("{found:?}, not {expected:?}: {kinds:?} {budgets:?}"));
        }
        tied += usize::from(oracle.equally_good > 1);
    }
    Ok(format!("{count} instances, {tied} with several vertices as good"))
}

/// The dual is what an independent solver finds for the primal.
pub(crate) fn agrees_with_another_solver(solver: Solver<'_>) -> Check {
    let mut rng = generator(87);
    let (small, large) = (long(2_000), long(10));
    let mut widest: f64 = 0.0;
    for number in 0..small + large {
        let most = if number < small { 12 } else { 64 };
        let (kinds, budgets) = instance(&mut rng, most, number % 2 == 0);
        let found = dual(&kinds, budgets, solver(&kinds, budgets));
        let expected = primal(&kinds, budgets);
        let all: f64 = kinds.iter().map(|kind| kind.weight * kind.value).sum();
        let apart = (found - expected).abs() / expected.max(1e-5 * all).max(1e-9);
        if apart > 1e-7 {
            return Err(format!("{found}, not {expected}: {kinds:?} {budgets:?}"));
        }
        widest = widest.max(apart);
    }
    Ok(format!("{small} instances of 12 kinds and {large} of 64, at most {widest:.1e} apart"))
}

/// The most that can be earned, by the simplex method of a crate.
pub(crate) fn primal(kinds: &[Kind], budgets: Budgets) -> f64 {
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let parts: Vec<_> =
        kinds.iter().map(|kind| problem.add_var(kind.weight * kind.value, (0.0, 1.0))).collect();
    for (budget, amount) in amounts(budgets).into_iter().enumerate() {
        if amount.is_finite() {
            // In parts of the demand, which is kinder to its tolerances.
            let all = demand(kinds)[budget].max(1e-9);
            let row: Vec<_> = parts
                .iter()
                .zip(kinds)
                .map(|(&part, kind)| (part, kind.weight * uses(kind)[budget] / all))
                .collect();
            problem.add_constraint(row, ComparisonOp::Le, amount / all);
        }
    }
    problem.solve().unwrap().solution().unwrap().objective()
}

fn near(found: [f64; 3], expected: [f64; 3], by: f64) -> bool {
    found.into_iter().zip(expected).all(|(one, other)| (one - other).abs() <= by * (1.0 + other))
}
