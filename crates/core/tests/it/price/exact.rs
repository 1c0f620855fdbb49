//! The solver in rational arithmetic: every vertex, and the rule for ties to the letter.

use admittance_core::learn::price::{Budgets, Kind};
use num_rational::Ratio;
use num_traits::{ToPrimitive, Zero};

use crate::price::instances::{amounts, apart, uses};

type Rational = Ratio<i128>;

pub(crate) struct Solved {
    prices: [Rational; 3],
    /// How many points are as good.
    pub(crate) equally_good: usize,
}

impl Solved {
    pub(crate) fn prices(&self) -> [f64; 3] {
        self.prices.map(|price| price.to_f64().unwrap())
    }

    /// Whether the kind is worth less than its price.
    pub(crate) fn refuses(&self, kind: &Kind) -> bool {
        rational(kind.value) < price(self.prices, uses(kind).map(rational))
    }
}

/// Of whole numbers alone.
pub(crate) fn solve(kinds: &[Kind], budgets: Budgets) -> Solved {
    let kinds = apart(kinds);
    let amounts = amounts(budgets);
    let mut planes: Vec<[Rational; 4]> = (0..3).map(axis).collect();
    for kind in &kinds {
        let [rate, cost, hold] = uses(kind).map(rational);
        planes.push([rate, cost, hold, rational(kind.value)]);
    }
    let mut points: Vec<[Rational; 3]> = Vec::new();
    for one in 0..planes.len() {
        for two in one + 1..planes.len() {
            for three in two + 1..planes.len() {
                points.extend(meet([planes[one], planes[two], planes[three]]));
            }
        }
    }
    let allowed = |point: &[Rational; 3]| {
        (0..3).all(|budget| {
            point[budget] >= Rational::zero()
                && (amounts[budget].is_finite() || point[budget].is_zero())
        })
    };
    points.retain(allowed);
    points.sort();
    points.dedup();
    let worth = |point: &[Rational; 3]| {
        let mut worth = Rational::zero();
        for (amount, price) in amounts.into_iter().zip(point) {
            if !price.is_zero() {
                worth += rational(amount) * price;
            }
        }
        for kind in &kinds {
            let surplus = rational(kind.value) - price(*point, uses(kind).map(rational));
            worth += rational(kind.weight) * surplus.max(Rational::zero());
        }
        worth
    };
    let least = points.iter().map(worth).min().unwrap();
    points.retain(|point| worth(point) == least);
    let refused = |point: &[Rational; 3]| {
        let below = |kind: &&Kind| rational(kind.value) < price(*point, uses(kind).map(rational));
        kinds.iter().filter(below).count()
    };
    let equally_good = points.len();
    let prices = points.into_iter().max_by_key(|point| {
        let [rate, cost, concurrency] = *point;
        (refused(point), concurrency, cost, rate)
    });
    Solved { prices: prices.unwrap(), equally_good }
}

fn axis(budget: usize) -> [Rational; 4] {
    let mut plane = [Rational::zero(); 4];
    plane[budget] = Rational::from_integer(1);
    plane
}

fn price(prices: [Rational; 3], uses: [Rational; 3]) -> Rational {
    prices.into_iter().zip(uses).map(|(price, uses)| price * uses).sum()
}

fn meet(planes: [[Rational; 4]; 3]) -> Option<[Rational; 3]> {
    let column = |of: usize| planes.map(|plane| plane[of]);
    let all = [column(0), column(1), column(2)];
    let below = determinant(all);
    if below.is_zero() {
        return None;
    }
    Some([0, 1, 2].map(|budget| {
        let mut some = all;
        some[budget] = column(3);
        determinant(some) / below
    }))
}

fn determinant([a, b, c]: [[Rational; 3]; 3]) -> Rational {
    a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0])
        + a[2] * (b[0] * c[1] - b[1] * c[0])
}

/// Exact for whole numbers.
fn rational(whole: f64) -> Rational {
    assert!(whole.fract() == 0.0, "{whole}");
    Rational::from_integer(whole.to_i128().unwrap())
}
