//! Several budgets in one step: all of them are charged, or none.

use alloc::vec::Vec;

use super::{Account, Answered, Budget, Flow, LeaseKey, Reserve};
use crate::several::combined;
use crate::{Decision, Micros, Outcome, Span};

/// One account among several.
#[derive(Debug)]
pub struct Line<'a> {
    /// Its rules.
    pub budget: &'a Budget,
    /// What is known of it.
    pub account: &'a mut Account,
    /// What is reserved, debited, or was produced in this budget's units.
    pub units: u64,
}

/// What several accounts answered together.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Together {
    /// The one answer.
    pub decision: Decision,
    /// The hardest of what each says.
    pub flow: Flow,
    /// Which line denied; of several, the one to wait longest for.
    pub binding: Option<usize>,
    /// What each account said. One that would have admitted when another did not tells how it
    /// stands.
    pub each: Vec<Answered>,
}

impl Together {
    /// What these answers say together.
    pub fn of(each: Vec<Answered>) -> Self {
        let (decision, binding) = combined(each.iter().map(|answered| answered.decision));
        let flow = each.iter().map(|answered| answered.flow).max().unwrap_or(Flow::GoOn);
        let flow = if decision.is_admit() { flow } else { Flow::Stop };
        Self { decision, flow, binding, each }
    }
}

/// How each account stands: [`Account::look`].
pub fn look(lines: &mut [Line<'_>], now: Micros) -> Together {
    let look = |line: &mut Line<'_>| line.account.look(line.budget, now);
    Together::of(lines.iter_mut().map(look).collect())
}

/// Debits every account or none: [`Account::debit`].
pub fn debit(lines: &mut [Line<'_>], lease: Option<LeaseKey>, now: Micros) -> Together {
    debit_if(lines, lease, now, || true)
}

/// Debits every account or none, if `also` agrees, which is asked once all accounts have admitted
/// and before any is charged. If it does not, none is charged, and the answer is what was judged.
pub fn debit_if(
    lines: &mut [Line<'_>],
    lease: Option<LeaseKey>,
    now: Micros,
    also: impl FnOnce() -> bool,
) -> Together {
    let judge = |line: &Line<'_>| line.account.judge_debit(line.budget, lease, line.units, now);
    let commit = |line: &mut Line<'_>| line.account.commit_debit(lease, line.units, now);
    all_or_none(lines, lease, now, judge, commit, also)
}

/// Reserves in every account or in none: [`Account::reserve`].
pub fn reserve(lines: &mut [Line<'_>], lease: LeaseKey, ttl: Span, now: Micros) -> Together {
    reserve_if(lines, lease, ttl, now, || true)
}

/// Reserves in every account or in none, if `also` agrees, as in [`debit_if`].
pub fn reserve_if(
    lines: &mut [Line<'_>],
    lease: LeaseKey,
    ttl: Span,
    now: Micros,
    also: impl FnOnce() -> bool,
) -> Together {
    let asked = |line: &Line<'_>| Reserve { lease, units: line.units, ttl };
    let judge = |line: &Line<'_>| line.account.judge_reserve(line.budget, asked(line), now);
    let commit = |line: &mut Line<'_>| {
        let asked = asked(line);
        line.account.commit_reserve(asked, now);
    };
    all_or_none(lines, Some(lease), now, judge, commit, also)
}

/// Settles in every account: [`Account::settle`]. Each line's units are what was produced, unless
/// nobody knows.
pub fn settle(lines: &mut [Line<'_>], lease: LeaseKey, is_known: bool, now: Micros) -> Together {
    let settle = |line: &mut Line<'_>| {
        let actual = is_known.then_some(line.units);
        line.account.settle(line.budget, lease, actual, now)
    };
    Together::of(lines.iter_mut().map(settle).collect())
}

fn all_or_none(
    lines: &mut [Line<'_>],
    lease: Option<LeaseKey>,
    now: Micros,
    judge: impl Fn(&Line<'_>) -> Outcome,
    commit: impl Fn(&mut Line<'_>),
    also: impl FnOnce() -> bool,
) -> Together {
    for line in lines.iter_mut() {
        line.account.advance(line.budget, now);
    }
    let outcomes: Vec<Outcome> = lines.iter().map(judge).collect();
    if outcomes.iter().all(|outcome| *outcome == Outcome::Admit) && also() {
        lines.iter_mut().for_each(commit);
    }
    let each = lines.iter().zip(outcomes);
    let answer = |(line, outcome): (&Line<'_>, _)| line.account.answer(line.budget, lease, outcome);
    Together::of(each.map(answer).collect())
}
