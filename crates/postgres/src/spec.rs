//! A strategy, or a budget, as the eight numbers that the functions in the database take.

use admittance::budget::{Budget, Debt};
use admittance::{Builtin, Cadence, Tat, Weekday};

use crate::key::Kind;

/// Eight numbers: the kind, the limit, and what `migrations/0002_steps.sql` says for each kind.
pub(crate) type Spec = [i64; 8];

/// The kind of a strategy's state, and the strategy as numbers. `None` for a strategy that this
/// version has no function for.
pub(crate) fn spec(strategy: &Builtin) -> Option<(Kind, Spec)> {
    let (kind, rest) = match strategy {
        Builtin::Tat(tat) => (Kind::Tat, of_tat(tat)),
        Builtin::Window(window) => {
            let [cadence, a, b] = of_cadence(window.cadence())?;
            (Kind::Window, [cadence, a, b, 0, 0, 0])
        }
        Builtin::SlidingWindow(sliding) => {
            (Kind::Sliding, [number(sliding.window().us()), number(sliding.buckets()), 0, 0, 0, 0])
        }
        Builtin::SlidingLog(log) => (Kind::Log, [number(log.window().us()), 0, 0, 0, 0, 0]),
        _ => return None,
    };
    let [a, b, c, d, e, f] = rest;
    Some((kind, [i64::from(kind as u8), number(strategy.limit()), a, b, c, d, e, f]))
}

fn of_tat(tat: &Tat) -> [i64; 6] {
    let (unit, tolerance) = (tat.unit(), tat.tolerance());
    let denominator = unit.denominator;
    let narrow =
        if denominator <= NARROW_MAX { unit.whole * denominator + unit.fraction } else { 0 };
    [denominator, unit.whole, unit.fraction, tolerance.whole, tolerance.fraction, narrow]
        .map(number)
}

/// A budget as `migrations/0010_budgets.sql` says. `None` for windows that this version has no
/// function for.
pub(crate) fn of_budget(budget: &Budget) -> Option<Spec> {
    let [cadence, a, b] = of_cadence(budget.cadence())?;
    let (open_max, ended_max) = (i64::from(budget.open_max()), i64::from(budget.ended_max()));
    let carries = i64::from(budget.debts() == Debt::Carry);
    Some([open_max, number(budget.limit()), cadence, a, b, carries, ended_max, 0])
}

fn of_cadence(cadence: Cadence) -> Option<[i64; 3]> {
    let east = |minutes: i16| i64::from(minutes) * 60_000_000;
    Some(match cadence {
        Cadence::Fixed { period, anchor_us } => {
            let period = number(period.us());
            [0, period, anchor_us.rem_euclid(period.max(1))]
        }
        Cadence::Day { offset_minutes } => [1, east(offset_minutes), 0],
        Cadence::Week { offset_minutes, starts_on } => {
            let shift = (starts_on as i64 - Weekday::Thursday as i64).rem_euclid(7);
            [2, east(offset_minutes), shift]
        }
        Cadence::Month { offset_minutes } => [3, east(offset_minutes), 0],
        _ => return None,
    })
}

/// Below 2^53 ticks, and half of that for a charge, a TAT in 1/D ticks stays below 2^63.
const NARROW_MAX: u64 = 512;

/// Everything here is below 2^63.
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
