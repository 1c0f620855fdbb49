//! Several limits in one decision, all or nothing.
//!
//! # Guarantee
//! With [`all`], state changes only if every limit admits. With [`any`], exactly one limit is
//! charged, the first in written order that admits. A denial leaves no trace in either.
//!
//! # Proven by
//! `tests/it/laws.rs::a_denial_by_one_limit_leaves_no_trace_on_the_others` and `any_charges_…`.

use alloc::vec::Vec;

use crate::{Cost, Decision, Micros, Outcome, Retry, Strategy};

/// One limit among several: what decides, what it knows, what is asked of it.
#[derive(Debug)]
pub struct Ask<'a, S: Strategy> {
    /// The limit's strategy.
    pub strategy: &'a S,
    /// The key's state, changed only if the whole admits.
    pub state: &'a mut Option<S::State>,
    /// What the request costs here.
    pub cost: Cost,
}

/// What several limits decided together.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Several {
    /// The one answer.
    pub decision: Decision,
    /// The limit that bound: with [`all`] the one to wait longest for, with [`any`] the one that
    /// was charged or else the one to wait shortest for. `None` when [`all`] admits.
    pub binding: Option<usize>,
    /// What each limit said, in written order. A limit that was not charged reports its peek.
    pub each: Vec<Decision>,
}

impl Several {
    /// What limits say together that were all charged, or none of them.
    pub fn of_all(each: Vec<Decision>) -> Self {
        let (decision, binding) = combined(each.iter().copied());
        Self { decision, binding, each }
    }

    /// What limits say together of which one would have been enough, and all denied. Waiting for
    /// the soonest is enough, and the most of what remains could still pass.
    pub fn denied_by_every(each: Vec<Decision>) -> Self {
        let never = Decision {
            outcome: Outcome::Deny(Retry::Never),
            limit: 0,
            remaining: 0,
            reset_at: Micros::ZERO,
        };
        let looser = |a: Decision, b: &Decision| Decision {
            outcome: a.outcome.min(b.outcome),
            limit: a.limit.max(b.limit),
            remaining: a.remaining.max(b.remaining),
            reset_at: a.reset_at.max(b.reset_at),
        };
        Self { decision: each.iter().fold(never, looser), binding: mildest(&each), each }
    }
}

/// Admits only if every limit admits, and charges all of them or none.
pub fn all<S: Strategy>(asks: &mut [Ask<'_, S>], now: Micros) -> Several {
    let asked = asks.iter().map(|ask| ask.strategy.ask(ask.state.as_ref(), now, ask.cost));
    let mut each: Vec<Decision> = asked.collect();
    let is_admitted = each.iter().all(Decision::is_admit);
    for (ask, decision) in asks.iter_mut().zip(&mut each) {
        if is_admitted {
            let step = ask.strategy.step(ask.state.take(), now, ask.cost);
            (*ask.state, *decision) = (step.state, step.decision);
        } else if decision.is_admit() {
            *decision = ask.strategy.peek(ask.state.as_ref(), now);
        }
    }
    Several::of_all(each)
}

/// Admits if one limit admits, and charges the first that does. No limits at all admit nothing.
pub fn any<S: Strategy>(asks: &mut [Ask<'_, S>], now: Micros) -> Several {
    let asked = asks.iter().map(|ask| ask.strategy.ask(ask.state.as_ref(), now, ask.cost));
    let mut each: Vec<Decision> = asked.collect();
    let Some(first) = each.iter().position(Decision::is_admit) else {
        return Several::denied_by_every(each);
    };
    for (place, (ask, decision)) in asks.iter_mut().zip(&mut each).enumerate() {
        if place == first {
            let step = ask.strategy.step(ask.state.take(), now, ask.cost);
            (*ask.state, *decision) = (step.state, step.decision);
        } else if decision.is_admit() {
            *decision = ask.strategy.peek(ask.state.as_ref(), now);
        }
    }
    Several { decision: each[first], binding: Some(first), each }
}

/// The one answer of limits that were all charged, or none of them; and the denial to wait longest
/// for, the first of equals.
pub(crate) fn combined(each: impl Iterator<Item = Decision> + Clone) -> (Decision, Option<usize>) {
    let denials = each.clone().enumerate().filter(|(_, decision)| !decision.is_admit());
    let hardest = denials.reduce(
        |hardest, other| {
            if other.1.outcome > hardest.1.outcome { other } else { hardest }
        },
    );
    (each.fold(Decision::NEUTRAL, Decision::combine), hardest.map(|(place, _)| place))
}

/// The denial to wait shortest for, the first of equals.
fn mildest(each: &[Decision]) -> Option<usize> {
    each.iter().enumerate().min_by_key(|(_, decision)| decision.outcome).map(|(place, _)| place)
}
