//! The prices of the fluid relaxation, by trying every vertex of its dual.

use alloc::vec::Vec;

use super::{Bid, Prices, counted};
use crate::EXACT_MAX;

/// At most so many kinds are told apart.
pub const KINDS_MAX: usize = 64;

/// Requests that are worth the same and take the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// How many are expected in the time that the budgets are for. What is not more than zero, or
    /// no number, is left out.
    pub weight: f64,
    /// What each is worth.
    pub value: f64,
    /// The units each costs.
    pub cost: u64,
    /// The milliseconds for which each holds a permit.
    pub hold: f64,
}

impl Kind {
    /// One request of this kind.
    #[must_use]
    pub fn bid(&self) -> Bid {
        Bid::new(Some(self.value), self.cost, Some(self.hold))
    }
}

/// What may be spent in a period. A budget that is absent or infinite binds nobody; one that is
/// negative or not a number is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    /// Admits.
    pub rate: Option<f64>,
    /// Units of cost.
    pub cost: Option<f64>,
    /// Milliseconds with a permit, see [`Self::with_concurrency`].
    pub concurrency: Option<f64>,
}

impl Budgets {
    /// With at most `limit` permits at once, for a period of `period_ms`: by Little's law together
    /// they are held for at most `limit · period_ms`.
    #[must_use]
    pub fn with_concurrency(self, limit: u64, period_ms: u64) -> Self {
        Self { concurrency: Some(limit as f64 * period_ms as f64), ..self }
    }

    /// The same budgets for a time `factor` times as long.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scaled = |budget: Option<f64>| budget.map(|budget| budget * factor);
        Self {
            rate: scaled(self.rate),
            cost: scaled(self.cost),
            concurrency: scaled(self.concurrency),
        }
    }

    /// Each budget; infinite if it binds nobody.
    pub(super) fn amounts(&self) -> [f64; 3] {
        [self.rate, self.cost, self.concurrency].map(|budget| match budget {
            None | Some(f64::INFINITY) => f64::INFINITY,
            Some(budget) => counted(budget),
        })
    }
}

/// The best prices for what is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solution {
    /// The price of one admit, before it is rounded.
    pub rate: f64,
    /// The price of one unit of cost, before it is rounded.
    pub cost: f64,
    /// The price of one millisecond with a permit, before it is rounded.
    pub concurrency: f64,
    /// What can be earned in a period at most, if requests could be admitted in parts.
    pub worth: f64,
    /// How many kinds are worth less than their price.
    pub refused: usize,
    /// These prices, rounded. Kinds that share the last units of a budget, and so are worth exactly
    /// their price, pass.
    pub prices: Prices,
    /// These prices, or others that refuse some of the kinds that share by a part in 2³⁰ of their
    /// value: whichever earn most when requests come evenly mixed and are served while every budget
    /// lasts.
    pub advised: Prices,
}

/// The prices at which the budgets are worth the least to somebody who would buy them, which are
/// those that earn the most; of equally good ones the most selective. Total: it never panics.
///
/// With 64 kinds and three budgets it tries 47,905 vertices.
#[must_use]
pub fn solve(kinds: &[Kind], budgets: Budgets) -> Solution {
    let kinds_left = modelled(kinds);
    let dual = Dual { kinds: &kinds_left, budgets: budgets.amounts() };
    let best = dual.best();
    let mut prices = Prices::rounded(best.prices);
    for kind in kinds {
        let bid = kind.bid();
        if minus(bid.value(), price(best.prices, uses(&bid))) >= 0.0 {
            prices = prices.lowered_for(&bid);
        }
    }
    let advised = dual.nearby(best.prices).map_or(prices, Prices::rounded);
    let [rate, cost, concurrency] = best.prices;
    let (worth, refused) = (best.worth, best.refused);
    Solution { rate, cost, concurrency, worth, refused, prices, advised }
}

/// A kind as the solver sees it.
#[derive(Clone, Copy)]
struct Counted {
    weight: f64,
    value: f64,
    /// Of rate, cost and concurrency.
    uses: [f64; 3],
}

impl Counted {
    /// Both, as one kind that is worth as much and takes as much.
    fn joined(&self, other: &Self) -> Self {
        let weight = self.weight + other.weight;
        let part = other.weight / weight;
        let mean = |one: f64, other: f64| one + (other - one) * part;
        let [_, cost, hold] = self.uses;
        let uses = [1.0, mean(cost, other.uses[1]), mean(hold, other.uses[2])];
        Self { weight, value: mean(self.value, other.value), uses }
    }

    /// What kinds are told apart by.
    const fn place(&self) -> [f64; 3] {
        [self.uses[1], self.uses[2], self.value]
    }
}

/// The kinds that count, each once, at most [`KINDS_MAX`].
fn modelled(kinds: &[Kind]) -> Vec<Counted> {
    let counts = |kind: &&Kind| kind.weight > 0.0;
    let mut all: Vec<Counted> = kinds
        .iter()
        .filter(counts)
        .map(|kind| {
            let bid = kind.bid();
            let weight = kind.weight.min(EXACT_MAX as f64);
            Counted { weight, value: bid.value(), uses: uses(&bid) }
        })
        .collect();
    all.sort_by(|one, other| {
        let pairs = one.place().into_iter().zip(other.place());
        pairs.fold(core::cmp::Ordering::Equal, |found, (one, other)| {
            found.then(one.total_cmp(&other))
        })
    });
    all.dedup_by(|next, kept| {
        let same = next.place() == kept.place();
        if same {
            kept.weight += next.weight;
        }
        same
    });
    while all.len() > NEAREST_MAX {
        all = all
            .chunks(2)
            .filter_map(|pair| pair.iter().copied().reduce(|one, other| one.joined(&other)))
            .collect();
    }
    join_nearest(&mut all);
    // The largest first: a point that is too dear is soon known to be.
    let largest = |kind: &Counted| kind.weight * kind.value;
    all.sort_by(|one, other| largest(other).total_cmp(&largest(one)));
    all
}

/// Joins the lightest kind with its nearest until at most [`KINDS_MAX`] are left.
fn join_nearest(kinds: &mut Vec<Counted>) {
    let range = |of: usize| {
        let places = kinds.iter().map(|kind| kind.place()[of]);
        let (least, most) =
            places.fold((f64::INFINITY, 0.0_f64), |(l, m), at| (l.min(at), m.max(at)));
        if most > least { most - least } else { 1.0 }
    };
    let ranges = if kinds.len() > KINDS_MAX { [range(0), range(1), range(2)] } else { [1.0; 3] };
    while kinds.len() > KINDS_MAX {
        let lightest = (0..kinds.len()).min_by(|&one, &other| {
            kinds[one].weight.total_cmp(&kinds[other].weight).then(one.cmp(&other))
        });
        let Some(lightest) = lightest else { return };
        let light = kinds.remove(lightest);
        let far = |kind: &Counted| {
            let pairs = kind.place().into_iter().zip(light.place()).zip(ranges);
            pairs.map(|((at, from), range)| (at - from) / range).map(|d| d * d).sum::<f64>()
        };
        let nearest = kinds.iter_mut().min_by(|one, other| far(one).total_cmp(&far(other)));
        if let Some(nearest) = nearest {
            *nearest = nearest.joined(&light);
        }
    }
}

/// A vertex, and what the dual is there.
#[derive(Clone, Copy)]
struct Vertex {
    prices: [f64; 3],
    worth: f64,
    refused: usize,
}

impl Vertex {
    /// Whether this is preferred to one that is worth the same.
    fn is_more_selective(&self, other: &Self) -> bool {
        if self.refused != other.refused {
            return self.refused > other.refused;
        }
        for budget in [2, 1, 0] {
            let more = minus(self.prices[budget], other.prices[budget]);
            if more != 0.0 {
                return more > 0.0;
            }
        }
        false
    }
}

struct Dual<'a> {
    kinds: &'a [Counted],
    budgets: [f64; 3],
}

impl Dual<'_> {
    fn best(&self) -> Vertex {
        let nothing = [0.0; 3];
        let origin = self.at(nothing, f64::INFINITY);
        let mut best =
            origin.unwrap_or(Vertex { prices: nothing, worth: f64::INFINITY, refused: 0 });
        // First how little it can be, then which of those that are as little: one pass could
        // creep upwards, each step within what counts as equal.
        self.each_vertex(&mut |prices| {
            if let Some(vertex) = self.at(prices, best.worth) {
                best = vertex;
            }
        });
        let bound = best.worth + best.worth * EQUAL_WORTH;
        self.each_vertex(&mut |prices| {
            if let Some(vertex) = self.at(prices, bound)
                && vertex.is_more_selective(&best)
            {
                best = vertex;
            }
        });
        best
    }

    /// The dual at `prices`, unless it is above `bound`.
    fn at(&self, prices: [f64; 3], bound: f64) -> Option<Vertex> {
        let mut worth = 0.0;
        for (budget, price) in self.budgets.into_iter().zip(prices) {
            // What is infinite has no price, and infinity times zero is no number.
            if price > 0.0 {
                worth += budget * price;
            }
        }
        let mut refused = 0;
        for kind in self.kinds {
            if worth > bound {
                return None;
            }
            let surplus = minus(kind.value, price(prices, kind.uses));
            worth += kind.weight * surplus.max(0.0);
            refused += usize::from(surplus < 0.0);
        }
        (worth <= bound).then_some(Vertex { prices, worth, refused })
    }

    /// Prices at which of the kinds that are worth exactly `prices` some are worth a little more
    /// than their price and some a little less, if they earn more first come first served; of
    /// those, the ones that earn the most.
    fn nearby(&self, prices: [f64; 3]) -> Option<[f64; 3]> {
        let priced: Vec<usize> = (0..3).filter(|&budget| prices[budget] > 0.0).collect();
        let sharing: Vec<usize> = (0..self.kinds.len())
            .filter(|&kind| {
                let kind = &self.kinds[kind];
                minus(kind.value, price(prices, kind.uses)) == 0.0
            })
            .take(SHARING_MAX)
            .collect();
        let (mut best, mut most) = (None, self.first_come(prices));
        each_choice(priced.len(), sharing.len(), &mut |chosen| {
            let kinds = chosen.map(|at| sharing[at]);
            for above in 0..1_usize << priced.len() {
                let tilt = [0, 1, 2].map(|kind| match above >> kind & 1 {
                    1 => 1.0 + NEARBY,
                    _ => 1.0 - NEARBY,
                });
                self.meet(&priced, kinds, tilt, &mut |other| {
                    let earns = self.first_come(other);
                    if earns > most + most * EQUAL_WORTH {
                        (best, most) = (Some(other), earns);
                    }
                });
            }
        });
        best
    }

    /// What is earned if requests come evenly mixed, those worth their price are admitted, and who
    /// uses a budget that is gone is not.
    fn first_come(&self, prices: [f64; 3]) -> f64 {
        let (mut left, mut time, mut earned) = (self.budgets, 1.0, 0.0);
        // Each turn ends with the period or with a budget.
        for _ in 0..=left.len() {
            let (mut flow, mut worth) = ([0.0; 3], 0.0);
            for kind in self.kinds {
                let fits =
                    left.iter().zip(kind.uses).all(|(left, uses)| *left > 0.0 || uses == 0.0);
                if fits && minus(kind.value, price(prices, kind.uses)) >= 0.0 {
                    worth += kind.weight * kind.value;
                    flow.iter_mut().zip(kind.uses).for_each(|(f, uses)| *f += kind.weight * uses);
                }
            }
            let lasts = |budget: usize| match flow[budget] > 0.0 {
                true => left[budget] / flow[budget],
                false => f64::INFINITY,
            };
            let lasting = [lasts(0), lasts(1), lasts(2)];
            let turn = lasting.into_iter().fold(time, f64::min);
            earned += worth * turn;
            time -= turn;
            for (budget, left) in left.iter_mut().enumerate() {
                *left = if lasting[budget] <= turn { 0.0 } else { *left - flow[budget] * turn };
            }
        }
        earned
    }

    /// Every point with no negative price where as many planes meet as there are budgets, but the
    /// origin: of some budgets the price is zero, and as many kinds as there are others are worth
    /// exactly their price.
    fn each_vertex(&self, found: &mut impl FnMut([f64; 3])) {
        for some in 1..8_usize {
            let priced: Vec<usize> = (0..3).filter(|budget| some >> budget & 1 == 1).collect();
            if priced.iter().all(|&budget| self.budgets[budget].is_finite()) {
                each_choice(priced.len(), self.kinds.len(), &mut |kinds| {
                    self.meet(&priced, kinds, [1.0; 3], found);
                });
            }
        }
    }

    /// Where the first `priced.len()` of these kinds, at so many times their value, are worth
    /// exactly their price, with prices on these budgets alone. Gauss with the largest pivot; a
    /// difference that rounding alone can have made is none, so that parallel planes do not meet.
    fn meet(
        &self,
        priced: &[usize],
        kinds: [usize; 3],
        times: [f64; 3],
        found: &mut impl FnMut([f64; 3]),
    ) {
        let size = priced.len();
        let mut rows = [[0.0; 4]; 3];
        for ((row, kind), times) in rows.iter_mut().zip(kinds).zip(times).take(size) {
            let kind = &self.kinds[kind];
            for (cell, &budget) in row.iter_mut().zip(priced) {
                *cell = kind.uses[budget];
            }
            row[3] = kind.value * times;
        }
        for at in 0..size {
            let largest = (at..size).max_by(|&one, &other| {
                rows[one][at].abs().total_cmp(&rows[other][at].abs()).then(other.cmp(&one))
            });
            rows.swap(at, largest.unwrap_or(at));
            let pivot = rows[at];
            if pivot[at] == 0.0 {
                return;
            }
            for row in rows.iter_mut().take(size).skip(at + 1) {
                let times = row[at] / pivot[at];
                for (cell, above) in row.iter_mut().zip(pivot) {
                    *cell = minus(*cell, above * times);
                }
            }
        }
        let mut prices = [0.0; 3];
        for at in (0..size).rev() {
            let mut left = rows[at][3];
            for later in at + 1..size {
                left = minus(left, rows[at][later] * prices[priced[later]]);
            }
            let price = left / rows[at][at];
            if !(price.is_finite() && price >= 0.0) {
                return;
            }
            prices[priced[at]] = price;
        }
        found(prices);
    }
}

/// Every choice of `size` out of `count`, up to three; what is beyond them is zero.
fn each_choice(size: usize, count: usize, found: &mut impl FnMut([usize; 3])) {
    if size == 0 {
        return;
    }
    for one in 0..count {
        if size == 1 {
            found([one, 0, 0]);
            continue;
        }
        for two in one + 1..count {
            if size == 2 {
                found([one, two, 0]);
                continue;
            }
            (two + 1..count).for_each(|three| found([one, two, three]));
        }
    }
}

/// What a bid takes of rate, cost and concurrency.
pub(super) fn uses(bid: &Bid) -> [f64; 3] {
    [1.0, bid.cost() as f64, bid.hold()]
}

fn price(prices: [f64; 3], uses: [f64; 3]) -> f64 {
    prices[0] * uses[0] + prices[1] * uses[1] + prices[2] * uses[2]
}

/// The difference, or zero if rounding alone can have made it.
fn minus(one: f64, other: f64) -> f64 {
    let difference = one - other;
    if difference.abs() <= one.abs().max(other.abs()) * EQUAL { 0.0 } else { difference }
}

/// Numbers this close, relative to the larger, are equal.
const EQUAL: f64 = 1e-12;
/// Objectives this close, relative to the smaller, are equal.
const EQUAL_WORTH: f64 = 1e-10;
/// By which part of its value a kind that shares is let pass or refused.
const NEARBY: f64 = 1.0 / (1_u64 << 30) as f64;
/// So many kinds that share are told apart.
const SHARING_MAX: usize = 8;
/// How many kinds are joined with their nearest; of more, neighbours are joined first.
const NEAREST_MAX: usize = 1_024;
