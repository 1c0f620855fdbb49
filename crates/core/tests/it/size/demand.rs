//! Demand per window: steady in distribution, and hostile.

use fastrand::Rng;

use crate::timeline::spread;

/// The costs that a sizer has unless somebody sets others.
pub(crate) const ORDER_COST: f64 = 20.0;

/// The cost of a window by the formula of the design.
pub(crate) fn cost_of(demand: u64, size: u64) -> f64 {
    if demand == 0 {
        return 0.0;
    }
    ORDER_COST * demand as f64 / size as f64 + size as f64 / 2.0
}

/// The cost of a window as a holder would pay it: whole round trips, and what is left of the last.
pub(crate) fn paid(demand: u64, size: u64) -> f64 {
    let leases = demand.div_ceil(size);
    ORDER_COST * leases as f64 + (leases * size - demand) as f64
}

/// The least cost of a window.
pub(crate) fn least(demand: u64) -> f64 {
    (2.0 * ORDER_COST * demand as f64).sqrt()
}

/// Of all fixed sizes the least sum of costs. The sum is convex, so that the best whole size is a
/// neighbour of the best real one.
pub(crate) fn best_fixed(demand: &[u64], size_max: u64) -> f64 {
    let busy = demand.iter().filter(|&&demand| demand > 0).count().max(1) as f64;
    let all: f64 = demand.iter().map(|&demand| demand as f64).sum();
    let best = (2.0 * ORDER_COST * all / busy).sqrt().clamp(1.0, size_max as f64);
    [best.floor(), best.ceil()]
        .map(|size| ORDER_COST * all / size + busy * size / 2.0)
        .into_iter()
        .fold(f64::INFINITY, f64::min)
}

/// One window's demand, of a mean.
type Draw = fn(&mut Rng, f64) -> f64;
/// One window's demand, of a limit and the number of the window.
type Attack = fn(&mut Rng, u64, usize) -> u64;

/// Steady demand of a mean of about `mean`; the last ones have a long tail.
pub(crate) const STEADY: [(&str, Draw); 7] = [
    ("constant", |_, mean| mean),
    ("uniform", |rng, mean| 2.0 * mean * rng.f64()),
    ("normal", |rng, mean| mean + mean.sqrt() * normal(rng)),
    ("on or off", |rng, mean| if rng.bool() { 2.0 * mean } else { 0.0 }),
    ("exponential", |rng, mean| -mean * (1.0 - rng.f64()).ln()),
    ("log-normal", |rng, mean| mean * (1.5 * normal(rng)).exp()),
    (
        "a fiftyfold in one of fifty",
        |rng, mean| {
            if rng.u8(..50) == 0 { 25.0 * mean } else { 0.5 * mean }
        },
    ),
];

/// `windows` of one of [`STEADY`], at most `limit` each.
pub(crate) fn steady(
    kind: usize,
    mean: u64,
    windows: usize,
    limit: u64,
    rng: &mut Rng,
) -> Vec<u64> {
    (0..windows).map(|_| whole(STEADY[kind].1(rng, mean as f64)).min(limit)).collect()
}

/// Demand that nobody would call steady: each of them has hurt some learner.
pub(crate) const HOSTILE: [(&str, Attack); 7] = [
    ("all or one, by turns", |_, limit, at| if at.is_multiple_of(2) { limit } else { 1 }),
    ("one for long, then all", |_, limit, at| if at % 100 < 90 { 1 } else { limit }),
    ("all for long, then one", |_, limit, at| if at % 100 < 90 { limit } else { 1 }),
    ("blocks that double", |_, limit, at| if at.max(1).ilog2() % 2 == 0 { limit } else { 1 }),
    ("any magnitude", |rng, limit, _| spread(rng, limit)),
    ("a single giant", |_, limit, at| if at == 50 { limit } else { 10.min(limit) }),
    ("bursts after rest", |rng, limit, at| if at % 10 == 0 { spread(rng, limit) } else { 0 }),
];

pub(crate) fn hostile(kind: usize, windows: usize, limit: u64, rng: &mut Rng) -> Vec<u64> {
    (0..windows).map(|at| HOSTILE[kind].1(rng, limit, at)).collect()
}

/// Twelve uniform numbers less six: nearly normal, and bounded.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}
