//! One decision over four axes: load, concurrency, rate, cost.
//!
//! The axes are asked in that order, the cheapest refusal first, and asking stops at the first that
//! denies: what comes after it is neither touched nor told. What was told becomes one [`Decision`]
//! by [`Decision::combine`], and the first denial names the [`Axis`] that bound.
//!
//! [`fused`] is the part of it that lives in a store: rate limits and budgets in one step.
//!
//! # Guarantee
//! - With [`Atomicity::All`] a denial leaves no trace: nothing is charged on any axis. With
//!   [`Atomicity::PerAxis`] the rate stays charged when the cost denies. From the same state both
//!   give the same answer to whether the work may start, and the same axis.
//! - The answer is a function of what the axes said and of nothing else.
//!
//! # Proven by
//! `tests/it/admission.rs`.

use crate::budget::{self, LeaseKey, Line, Together};
use crate::several::{self, Ask, Several};
use crate::{Decision, Micros, Outcome, Retry, Span, Strategy};

/// What a decision is about. Ordered as the axes are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Axis {
    /// Whether the process can take it on at all.
    Load,
    /// How many at once.
    Concurrency,
    /// How often.
    Rate,
    /// How much of a budget.
    Cost,
}

impl Axis {
    /// All of them, in the order in which they are asked.
    pub const ALL: [Self; 4] = [Self::Load, Self::Concurrency, Self::Rate, Self::Cost];

    /// The word for it, on the wire, in metrics and in spans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Concurrency => "concurrency",
            Self::Rate => "rate",
            Self::Cost => "cost",
        }
    }
}

/// What a denial by one axis leaves on those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Atomicity {
    /// Nothing.
    #[default]
    All,
    /// What they charged.
    PerAxis,
}

/// What each axis said. An axis that is not there, or was not asked because one before it denied,
/// said nothing.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Verdicts {
    each: [Option<Decision>; Axis::ALL.len()],
    is_policy_denied: bool,
}

impl Verdicts {
    /// Nobody was asked: admits.
    pub const NONE: Self = Self { each: [None; Axis::ALL.len()], is_policy_denied: false };

    /// Refused by what the request is worth, before any axis was asked.
    pub const POLICY_DENIED: Self = Self { is_policy_denied: true, ..Self::NONE };

    /// Adds what this axis said.
    #[inline]
    pub const fn add(&mut self, axis: Axis, decision: Decision) {
        self.each[axis as usize] = Some(decision);
    }

    /// With what this axis said.
    #[inline]
    pub const fn with(mut self, axis: Axis, decision: Decision) -> Self {
        self.add(axis, decision);
        self
    }

    /// What an axis said, if it was asked.
    #[must_use]
    pub const fn of(&self, axis: Axis) -> Option<Decision> {
        self.each[axis as usize]
    }

    /// What those that were asked said, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (Axis, Decision)> {
        Axis::ALL.into_iter().zip(self.each).filter_map(|(axis, said)| Some((axis, said?)))
    }

    /// The one answer. Waiting does not make a request worth more: what is refused by its worth is
    /// so for good, and nobody's limit is told.
    pub fn decision(&self) -> Decision {
        let outcome = match self.is_policy_denied {
            true => Outcome::Deny(Retry::Never),
            false => Outcome::Admit,
        };
        let none = Decision { outcome, ..Decision::NEUTRAL };
        self.iter().fold(none, |decision, (_, said)| decision.combine(said))
    }

    /// Whether the work may start.
    #[inline]
    #[must_use]
    pub fn is_admit(&self) -> bool {
        !self.is_policy_denied && self.binding().is_none()
    }

    /// The first axis that denied.
    #[inline]
    #[must_use]
    pub fn binding(&self) -> Option<Axis> {
        self.iter().find(|(_, said)| !said.is_admit()).map(|(axis, _)| axis)
    }

    /// The label that metrics and spans carry: the axis that bound, [`POLICY`](Self::POLICY) if
    /// none did because the request is not worth it, nothing if it was admitted.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self.binding() {
            _ if self.is_policy_denied => Self::POLICY,
            Some(axis) => axis.name(),
            None => "",
        }
    }

    /// The label of a request that is not worth its price.
    pub const POLICY: &'static str = "policy";

    /// Whether it was refused by what it is worth; no axis bound then.
    #[must_use]
    pub const fn is_policy_denied(&self) -> bool {
        self.is_policy_denied
    }
}

/// What is asked of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CostAct {
    /// Count what is about to be served.
    Debit(Option<LeaseKey>),
    /// Take an estimate out of what is left.
    Reserve {
        /// A number that was never used before.
        lease: LeaseKey,
        /// How long the lease lives without being heard of.
        ttl: Span,
    },
}

/// What rate limits and budgets answered in one step.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// What the rate limits said. They admit if there are none.
    pub rate: Several,
    /// What the budgets said; nothing if there are none, or a rate limit denied.
    pub cost: Option<Together>,
}

impl Fused {
    /// What the two axes say, those of them that were asked.
    pub fn verdicts(&self) -> Verdicts {
        let rate = match self.rate.each.is_empty() {
            true => Verdicts::NONE,
            false => Verdicts::NONE.with(Axis::Rate, self.rate.decision),
        };
        match &self.cost {
            Some(cost) => rate.with(Axis::Cost, cost.decision),
            None => rate,
        }
    }

    /// Whether both admit.
    #[must_use]
    pub fn is_admit(&self) -> bool {
        let cost = self.cost.as_ref();
        self.rate.decision.is_admit() && cost.is_none_or(|cost| cost.decision.is_admit())
    }
}

/// Rate limits and then budgets, all of the rate limits or none, all of the budgets or none; and
/// with [`Atomicity::All`] all of both or none.
///
/// A rate limit that would have admitted when a budget did not reports its peek, as it does beside
/// one that did not.
pub fn fused<S: Strategy>(
    rates: &mut [Ask<'_, S>],
    lines: &mut [Line<'_>],
    act: CostAct,
    atomicity: Atomicity,
    now: Micros,
) -> Fused {
    if lines.is_empty() {
        return Fused { rate: several::all(rates, now), cost: None };
    }
    if atomicity == Atomicity::PerAxis {
        let rate = several::all(rates, now);
        let is_asked = rate.decision.is_admit();
        return Fused { rate, cost: is_asked.then(|| charge(lines, act, now)) };
    }
    let is_admitted =
        |ask: &Ask<'_, S>| ask.strategy.ask(ask.state.as_ref(), now, ask.cost).is_admit();
    if !rates.iter().all(is_admitted) {
        return Fused { rate: several::all(rates, now), cost: None };
    }
    let cost = charge(lines, act, now);
    let rate = match cost.decision.is_admit() {
        true => several::all(rates, now),
        false => peek(rates, now),
    };
    Fused { rate, cost: Some(cost) }
}

/// What limits report that are not charged.
fn peek<S: Strategy>(rates: &[Ask<'_, S>], now: Micros) -> Several {
    let peek = |ask: &Ask<'_, S>| ask.strategy.peek(ask.state.as_ref(), now);
    let each: alloc::vec::Vec<Decision> = rates.iter().map(peek).collect();
    Several::of_all(each)
}

fn charge(lines: &mut [Line<'_>], act: CostAct, now: Micros) -> Together {
    match act {
        CostAct::Debit(lease) => budget::debit(lines, lease, now),
        CostAct::Reserve { lease, ttl } => budget::reserve(lines, lease, ttl, now),
    }
}
