//! Strategies that are nearly right. Each tells one lie, and a check that does not notice it checks
//! nothing.

use admittance_core::{
    Cost, Decision, Forecast, Micros, Outcome, Retry, Share, Span, Step, Strategy,
};

/// The lie that a [`MutantStrategy`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    RetryShort,
    RetryLong,
    NeverIsFinite,
    RemainingHigh,
    LimitHigh,
    ResetLate,
    PeekCharged,
    SpendableHigh,
    NextEarly,
    FullLate,
    IdleEarly,
    IdleLate,
    DenialCharges,
    AdmitsOneMore,
}

impl Mutant {
    pub(crate) const ALL: [Self; 14] = [
        Self::RetryShort,
        Self::RetryLong,
        Self::NeverIsFinite,
        Self::RemainingHigh,
        Self::LimitHigh,
        Self::ResetLate,
        Self::PeekCharged,
        Self::SpendableHigh,
        Self::NextEarly,
        Self::FullLate,
        Self::IdleEarly,
        Self::IdleLate,
        Self::DenialCharges,
        Self::AdmitsOneMore,
    ];
}

/// A strategy that lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MutantStrategy<S> {
    pub(crate) inner: S,
    pub(crate) mutant: Mutant,
}

impl<S> MutantStrategy<S> {
    fn lie(&self, decision: Decision) -> Decision {
        let mut told = decision;
        match (self.mutant, decision.outcome) {
            (Mutant::RetryShort, Outcome::Deny(Retry::After(wait))) => {
                told.outcome = after(wait.us().saturating_sub(1));
            }
            (Mutant::RetryLong, Outcome::Deny(Retry::After(wait))) => {
                told.outcome = after(wait.us() + 1);
            }
            (Mutant::NeverIsFinite, Outcome::Deny(Retry::Never)) => told.outcome = after(1_000_000),
            (Mutant::RemainingHigh, Outcome::Deny(_)) => told.remaining += 1,
            (Mutant::LimitHigh, _) => told.limit += 1,
            (Mutant::ResetLate, _) => told.reset_at = decision.reset_at + Span::TICK,
            _ => {}
        }
        told
    }
}

fn after(us: u64) -> Outcome {
    Outcome::Deny(Retry::After(Span::from_us(us)))
}

impl<S: Strategy> Strategy for MutantStrategy<S> {
    type State = S::State;

    fn step(&self, state: Option<S::State>, now: Micros, cost: Cost) -> Step<S::State> {
        let Step { state, decision } = self.inner.step(state, now, cost);
        let decision = self.lie(decision);
        if decision.is_admit() {
            return Step { state, decision };
        }
        match self.mutant {
            Mutant::DenialCharges => {
                Step { state: self.inner.step(state, now, Cost::ONE).state, decision }
            }
            Mutant::AdmitsOneMore if decision.outcome != Outcome::Deny(Retry::Never) => {
                Step { state, decision: Decision { outcome: Outcome::Admit, ..decision } }
            }
            _ => Step { state, decision },
        }
    }

    fn peek(&self, state: Option<&S::State>, now: Micros) -> Decision {
        let decision = self.lie(self.inner.peek(state, now));
        let charged = self.mutant == Mutant::PeekCharged && decision.is_admit();
        Decision { remaining: decision.remaining - u64::from(charged), ..decision }
    }

    fn forecast(&self, state: Option<&S::State>, now: Micros, cost: Cost) -> Forecast {
        let mut told = self.inner.forecast(state, now, cost);
        match self.mutant {
            Mutant::SpendableHigh => told.spendable_now += 1,
            Mutant::NextEarly => told.next_replenish_at = told.next_replenish_at - Span::TICK,
            Mutant::FullLate => told.full_at = told.full_at + Span::TICK,
            _ => {}
        }
        told
    }

    fn idle_at(&self, state: &S::State) -> Micros {
        let idle_at = self.inner.idle_at(state);
        match self.mutant {
            Mutant::IdleEarly => idle_at - Span::TICK,
            Mutant::IdleLate => idle_at + Span::TICK,
            _ => idle_at,
        }
    }

    fn used(&self, state: &S::State, now: Micros) -> Share {
        self.inner.used(state, now)
    }
}
