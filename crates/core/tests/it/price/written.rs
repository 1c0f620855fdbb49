//! The solver written once more: every three planes by Cramer's rule, with a place for every
//! mistake.

use admittance_core::learn::price::{Budgets, Kind};

use crate::price::instances::{amounts, apart, dual, uses};

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The rule as it is.
    None,
    /// Only points where nothing is free are tried, and the origin.
    NoAxes,
    /// Prices below zero are tried too.
    Negative,
    /// Of equally good prices, those that refuse the fewest kinds.
    LeastSelective,
    /// Of equally good prices, the larger ones, however many kinds they refuse.
    NotCounted,
    /// Of equally good prices that refuse as many, the larger price of rate first.
    RateFirst,
    /// Only objectives of the very same bits are equally good.
    NoTolerance,
    /// The third budget is not looked at.
    TwoBudgets,
    /// A kind that stands there twice counts twice.
    TwiceCounted,
    /// The densest kinds (value for cost) are admitted until the budget of cost is gone; the first
    /// that does not fit sets the price of cost, and rate has none.
    Densest,
    /// No price at all.
    Marginal,
}

pub(crate) fn solve(mutant: Mutant, kinds: &[Kind], budgets: Budgets) -> [f64; 3] {
    let budgets = match mutant {
        Mutant::Marginal => return [0.0; 3],
        Mutant::Densest => return densest(kinds, budgets),
        Mutant::TwoBudgets => Budgets { concurrency: None, ..budgets },
        _ => budgets,
    };
    let kinds = if mutant == Mutant::TwiceCounted { kinds.to_vec() } else { apart(kinds) };
    let points = points(mutant, &kinds, budgets);
    let worth = |prices: &[f64; 3]| dual(&kinds, budgets, *prices);
    let least = points.iter().map(worth).fold(f64::INFINITY, f64::min);
    let most = if mutant == Mutant::NoTolerance { least } else { least + least.abs() * 1e-10 };
    let refused = |prices: &[f64; 3]| {
        let refused = |kind: &&Kind| below(kind.value, price(*prices, uses(kind)));
        kinds.iter().filter(refused).count()
    };
    let equal = points.iter().filter(|prices| worth(prices) <= most);
    let order = |one: &&[f64; 3], other: &&[f64; 3]| {
        let larger = |budget: usize| match () {
            () if below(one[budget], other[budget]) => std::cmp::Ordering::Less,
            () if below(other[budget], one[budget]) => std::cmp::Ordering::Greater,
            () => std::cmp::Ordering::Equal,
        };
        let refused = refused(one).cmp(&refused(other));
        let refused = match mutant {
            Mutant::LeastSelective => refused.reverse(),
            Mutant::NotCounted => std::cmp::Ordering::Equal,
            _ => refused,
        };
        let [first, second, third] =
            if mutant == Mutant::RateFirst { [0, 1, 2] } else { [2, 1, 0] };
        refused.then(larger(first)).then(larger(second)).then(larger(third))
    };
    *equal.max_by(order).unwrap()
}

fn points(mutant: Mutant, kinds: &[Kind], budgets: Budgets) -> Vec<[f64; 3]> {
    let axis = |budget: usize| {
        let mut plane = [0.0; 4];
        plane[budget] = 1.0;
        plane
    };
    let amounts = amounts(budgets);
    let (free, priced): (Vec<usize>, Vec<usize>) =
        (0..3).partition(|&budget| amounts[budget].is_infinite());
    let fixed: Vec<[f64; 4]> = free.into_iter().map(axis).collect();
    let mut planes: Vec<[f64; 4]> = kinds
        .iter()
        .map(|kind| {
            let [rate, cost, hold] = uses(kind);
            [rate, cost, hold, kind.value]
        })
        .collect();
    if mutant != Mutant::NoAxes {
        planes.extend(priced.iter().map(|&budget| axis(budget)));
    }
    let mut points = vec![[0.0; 3]];
    let mut meet = |some: &[usize]| {
        let mut three = fixed.clone();
        three.extend(some.iter().map(|&plane| planes[plane]));
        if let Some(point) = cramer(&three)
            && (mutant == Mutant::Negative || point.iter().all(|&price| price >= 0.0))
        {
            points.push(point);
        }
    };
    for one in 0..planes.len() {
        match priced.len() {
            1 => meet(&[one]),
            2 => (one + 1..planes.len()).for_each(|two| meet(&[one, two])),
            3 => {
                for two in one + 1..planes.len() {
                    (two + 1..planes.len()).for_each(|three| meet(&[one, two, three]));
                }
            }
            _ => {}
        }
    }
    points
}

fn cramer(planes: &[[f64; 4]]) -> Option<[f64; 3]> {
    let column = |of: usize| [planes[0][of], planes[1][of], planes[2][of]];
    let all = [column(0), column(1), column(2)];
    let below = determinant(all);
    if below.abs() < 1e-9 {
        return None;
    }
    let mut point = [0.0; 3];
    for (budget, price) in point.iter_mut().enumerate() {
        let mut some = all;
        some[budget] = column(3);
        let found = determinant(some) / below;
        *price = if found.abs() < 1e-12 { 0.0 } else { found };
    }
    Some(point)
}

fn determinant([a, b, c]: [[f64; 3]; 3]) -> f64 {
    a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0])
        + a[2] * (b[0] * c[1] - b[1] * c[0])
}

fn densest(kinds: &[Kind], budgets: Budgets) -> [f64; 3] {
    let density = |kind: &Kind| kind.value / (kind.cost as f64).max(1e-9);
    let mut kinds = kinds.to_vec();
    kinds.sort_by(|one, other| density(other).total_cmp(&density(one)));
    let mut left = amounts(budgets)[1];
    for kind in &kinds {
        left -= kind.weight * kind.cost as f64;
        if left < 0.0 {
            return [0.0, density(kind), 0.0];
        }
    }
    [0.0; 3]
}

fn price(prices: [f64; 3], uses: [f64; 3]) -> f64 {
    prices.into_iter().zip(uses).map(|(price, uses)| price * uses).sum()
}

fn below(one: f64, other: f64) -> bool {
    other - one > 1e-11 * other.abs().max(one.abs())
}
