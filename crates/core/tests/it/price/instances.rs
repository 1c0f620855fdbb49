//! Kinds and budgets to solve, and the dual straight from its formula.

use admittance_core::learn::price::{Budgets, Kind};
use fastrand::Rng;

/// What a kind takes of rate, cost and concurrency.
pub(crate) fn uses(kind: &Kind) -> [f64; 3] {
    [1.0, kind.cost as f64, kind.hold]
}

pub(crate) fn amounts(budgets: Budgets) -> [f64; 3] {
    [budgets.rate, budgets.cost, budgets.concurrency].map(|budget| budget.unwrap_or(f64::INFINITY))
}

/// R·p_rate + C·p_cost + K·p_concurrency + Σ w·max(0, v − p·a).
pub(crate) fn dual(kinds: &[Kind], budgets: Budgets, prices: [f64; 3]) -> f64 {
    let paid = amounts(budgets).into_iter().zip(prices);
    let paid: f64 = paid.filter(|(_, price)| *price != 0.0).map(|(b, price)| b * price).sum();
    let surplus = |kind: &Kind| {
        let price: f64 = uses(kind).into_iter().zip(prices).map(|(uses, price)| uses * price).sum();
        kind.weight * (kind.value - price).max(0.0)
    };
    paid + kinds.iter().map(surplus).sum::<f64>()
}

/// What all kinds together ask for of each budget.
pub(crate) fn demand(kinds: &[Kind]) -> [f64; 3] {
    let mut demand = [0.0; 3];
    for kind in kinds {
        demand.iter_mut().zip(uses(kind)).for_each(|(sum, uses)| *sum += kind.weight * uses);
    }
    demand
}

/// Kinds of the same value, cost and hold as one.
pub(crate) fn apart(kinds: &[Kind]) -> Vec<Kind> {
    let mut apart: Vec<Kind> = Vec::new();
    for kind in kinds {
        let same = apart
            .iter_mut()
            .find(|one| (one.value, one.cost, one.hold) == (kind.value, kind.cost, kind.hold));
        match same {
            Some(one) => one.weight += kind.weight,
            None => apart.push(*kind),
        }
    }
    apart
}

/// An instance of up to `most` kinds, of three sorts: drawn from a few levels, so that values,
/// costs and densities are often equal; drawn freely; and worth about what is taken, so that
/// several budgets have a price.
pub(crate) fn instance(rng: &mut Rng, most: usize, three: bool) -> (Vec<Kind>, Budgets) {
    let sort = rng.u8(..3);
    let kinds: Vec<Kind> = (0..rng.usize(1..=most)).map(|_| drawn(rng, sort)).collect();
    let [rate, cost, hold] = demand(&kinds);
    let mut part = || match rng.u8(..8) {
        0 if sort < 2 => 0.0,
        1 if sort < 2 => 1.0,
        _ if sort < 2 => 1.2 * rng.f64(),
        _ => 0.4 + 0.2 * rng.f64(),
    };
    let budgets = Budgets {
        rate: Some(rate * part()),
        cost: Some(cost * part()),
        concurrency: three.then(|| hold * part()),
    };
    (kinds, budgets)
}

fn drawn(rng: &mut Rng, sort: u8) -> Kind {
    if sort == 0 {
        return Kind {
            weight: f64::from(rng.u32(1..=4)),
            value: f64::from(rng.u32(0..=8)),
            cost: rng.u64(0..=6),
            hold: f64::from(rng.u32(0..=6)),
        };
    }
    let weight = 100.0 * rng.f64() + 0.001;
    let (cost, hold) = (rng.u64(0..=1_000_000), f64::from(rng.u32(0..=5_000_000)) / 1_000.0);
    let fair = 1.0 + 4.0 * cost as f64 / 1e6 + 4.0 * hold / 5e3;
    let value = if sort == 1 { 10.0 * rng.f64() } else { fair * (0.8 + 0.4 * rng.f64()) };
    Kind { weight, value, cost, hold }
}

/// Small whole numbers throughout, where nearly everything ties.
pub(crate) fn ties(rng: &mut Rng, three: bool) -> (Vec<Kind>, Budgets) {
    let mut kinds: Vec<Kind> = (0..rng.usize(1..=5))
        .map(|_| Kind {
            weight: f64::from(rng.u32(1..=3)),
            value: f64::from(rng.u32(0..=6)),
            cost: rng.u64(0..=4),
            hold: if three { f64::from(rng.u32(0..=4)) } else { 0.0 },
        })
        .collect();
    if rng.bool() {
        // One of them stands there more than once.
        let again = kinds[rng.usize(..kinds.len())];
        kinds.extend((0..rng.usize(1..=3)).map(|_| again));
    }
    // Half of the budgets are exactly what some of the kinds ask for.
    let exactly: Vec<Kind> = kinds.iter().copied().filter(|_| rng.bool()).collect();
    let (all, exactly) = (demand(&kinds), demand(&exactly));
    let [rate, cost, hold] = [0, 1, 2].map(|budget| match rng.bool() {
        true => exactly[budget],
        false => f64::from(rng.u8(0..=10)).min(all[budget] + 1.0),
    });
    let budgets =
        Budgets { rate: Some(rate), cost: Some(cost), concurrency: three.then_some(hold) };
    (kinds, budgets)
}

/// So many kinds that no two are the same, worth about what they take, with budgets for a half.
pub(crate) fn many(rng: &mut Rng, count: usize, three: bool) -> (Vec<Kind>, Budgets) {
    let kinds: Vec<Kind> = (0..count).map(|_| drawn(rng, 2)).collect();
    let [rate, cost, hold] = demand(&kinds);
    let budgets = Budgets {
        rate: Some(0.5 * rate),
        cost: Some(0.5 * cost),
        concurrency: three.then_some(0.5 * hold),
    };
    (kinds, budgets)
}
