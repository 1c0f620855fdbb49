//! Policies in process, at the times of a trace: what `replay` and `plan` decide by.
//!
//! # Guarantee
//! - Decisions are those of core's steps and accounts, with room for every key. Time comes from the
//!   trace alone and may go back; a permit that was given back stays so.
//! - The axes of a policy are asked as an admission does: concurrency, rate, cost; the first that
//!   denies binds, and what those before it took is given back unless the policy says `perAxis`.
//! - Memory grows with the number of keys and with what is held at once, not with the length of the
//!   trace.
//!
//! # Proven by
//! The tests of `plan.rs`, `tests/it/plan.rs`, and `tests/it/plan_witness.rs` beside real services.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use admittance::{
    Atomicity, Axis, Builtin, Cost, Decision, Limiter, Micros, OnFull, Span, Strategy,
};
use admittance_core::budget::{self, Account, Budget, LeaseKey, Line};
use admittance_server::{CostConfig, PolicyConfig, ShadowConfig};

/// Traffic of many keys through one strategy.
pub(crate) struct Rated<S: Strategy> {
    strategy: S,
    keys: HashMap<String, Option<S::State>>,
}

impl<S: Strategy> Rated<S> {
    pub(crate) fn new(strategy: S) -> Self {
        Self { strategy, keys: HashMap::new() }
    }

    /// Decides one request.
    pub(crate) fn step(&mut self, key: &str, at: Micros, cost: Cost) -> Decision {
        let state = self.state(key);
        let before = state.take();
        let step = self.strategy.step(before, at, cost);
        *self.state(key) = step.state;
        step.decision
    }

    fn state(&mut self, key: &str) -> &mut Option<S::State> {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), None);
        }
        self.keys.get_mut(key).expect("it was put there")
    }
}

impl Rated<Builtin> {
    /// The same, and what it takes is given back unless `also` agrees, which is asked of what was
    /// admitted.
    fn step_if(&mut self, key: &str, at: Micros, also: impl FnOnce() -> bool) -> Decision {
        let before = self.state(key).clone();
        let step = self.strategy.step(before, at, Cost::ONE);
        if !step.decision.is_admit() || also() {
            *self.state(key) = step.state;
        }
        step.decision
    }
}

/// What is asked of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked<'a> {
    pub(crate) at: Micros,
    pub(crate) key: &'a str,
    pub(crate) cost: Cost,
    /// For how long what is admitted is held.
    pub(crate) hold: Span,
    /// What it has cost in the end, if that is not what was expected.
    pub(crate) actual: Option<u64>,
}

/// What a policy said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) is_admit: bool,
    /// Which axis denied. Of a policy that refuses nobody, which would have.
    pub(crate) axis: Option<Axis>,
    /// What that axis said, or the last that was asked.
    pub(crate) decision: Decision,
}

/// What can be asked of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Check,
    Admit,
    Debit,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Admit => "admit",
            Self::Debit => "debit",
        }
    }
}

/// One policy.
pub(crate) struct Machine {
    kind: Kind,
    refuses: bool,
    atomicity: Atomicity,
    rate: Option<Rated<Builtin>>,
    gate: Option<Places>,
    purse: Option<Purse>,
    held: BinaryHeap<Reverse<Held>>,
    latest: Micros,
    count: u64,
}

/// The places of a concurrency axis.
struct Places {
    limit: u32,
    taken: u32,
}

/// The accounts of a cost axis.
struct Purse {
    budgets: Vec<Budget>,
    accounts: HashMap<String, Vec<Account>>,
}

/// Something that is held until an instant. What was held first is given back first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    until: Micros,
    count: u64,
    key: String,
    actual: u64,
}

impl Machine {
    /// Why the policy cannot be asked here at all.
    pub(crate) fn cannot(policy: &PolicyConfig) -> Option<&'static str> {
        let escrow = policy.rate.as_ref().and_then(|rate| rate.escrow.as_ref());
        escrow.map(|_| "its keys share one budget (fairEscrow), and a trace is asked key by key")
    }

    /// What the policy has that is not asked, or asked otherwise.
    pub(crate) fn unasked(policy: &PolicyConfig) -> Vec<&'static str> {
        let mut unasked = Vec::new();
        if let Some(gate) = &policy.concurrency {
            if gate.limit.min < gate.limit.max {
                unasked.push("a limit that is learned stays at its maxLimit");
            }
            if gate.fleet.is_some() {
                unasked.push("one instance has the whole limit of its fleet");
            }
        }
        if policy.rate.as_ref().is_some_and(|rate| !rate.tier.is_strict()) {
            unasked.push("leases and remembered denials are left out: every check is exact");
        }
        let rate = policy.rate.as_ref().filter(|rate| rate.escrow.is_none());
        let keys =
            rate.is_some_and(|rate| rate.max_keys != Limiter::max_keys_default(&rate.strategy));
        let cost = policy.cost.as_ref();
        if keys || cost.is_some_and(|cost| cost.max_keys != CostConfig::MAX_KEYS_DEFAULT) {
            unasked.push("maxKeys is left out: there is room for every key");
        }
        if rate.is_some_and(|rate| rate.on_full != OnFull::default()) {
            unasked.push("onFull is left out: there is room for every key");
        }
        if policy.joint.is_some() {
            unasked.push("prices (joint) are left out");
        }
        if policy.load.is_some() {
            unasked.push("load is left out");
        }
        unasked
    }

    pub(crate) fn new(policy: &PolicyConfig) -> Self {
        let is_gated = policy.concurrency.is_some();
        let kind = match (is_gated || policy.is_admission(), &policy.cost) {
            (true, _) => Kind::Admit,
            (false, Some(_)) => Kind::Debit,
            (false, None) => Kind::Check,
        };
        Self {
            kind,
            refuses: policy.shadow != ShadowConfig::Whole,
            atomicity: policy.atomicity,
            rate: policy.rate.as_ref().map(|rate| Rated::new(rate.strategy)),
            gate: policy
                .concurrency
                .as_ref()
                .map(|gate| Places { limit: gate.limit.max, taken: 0 }),
            purse: policy.cost.as_ref().map(|cost| Purse {
                budgets: cost.budgets.iter().map(|(_, budget)| *budget).collect(),
                accounts: HashMap::new(),
            }),
            held: BinaryHeap::new(),
            latest: Micros::ZERO,
            count: 0,
        }
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Decides one request.
    pub(crate) fn ask(&mut self, asked: &Asked<'_>) -> Said {
        let mut said = match self.kind {
            Kind::Check => self.check(asked),
            Kind::Admit => self.admit(asked),
            Kind::Debit => self.debit(asked),
        };
        said.is_admit |= !self.refuses;
        said
    }

    fn check(&mut self, asked: &Asked<'_>) -> Said {
        match &mut self.rate {
            Some(rate) => said(Axis::Rate, rate.step(asked.key, asked.at, asked.cost)),
            // It limits nothing.
            None => said(Axis::Load, Decision::NEUTRAL),
        }
    }

    fn debit(&mut self, asked: &Asked<'_>) -> Said {
        let Some(purse) = &mut self.purse else { return said(Axis::Cost, Decision::NEUTRAL) };
        let decision = purse.with(asked.key, asked.cost.units(), |lines| {
            budget::debit(lines, None, asked.at).decision
        });
        said(Axis::Cost, decision)
    }

    fn admit(&mut self, asked: &Asked<'_>) -> Said {
        self.give_back(asked.at);
        if let Some(Places { limit, taken }) = &self.gate
            && taken >= limit
        {
            let limit = u64::from(*limit);
            let outcome = admittance::Outcome::Deny(admittance::Retry::After(Span::ZERO));
            let decision = Decision { outcome, limit, remaining: 0, reset_at: asked.at };
            return said(Axis::Concurrency, decision);
        }
        self.count += 1;
        let lease = LeaseKey(u128::from(self.count));
        let (units, at) = (asked.cost.units(), asked.at);
        let mut cost = None;
        let mut reserve = |purse: &mut Purse| {
            let decision = purse.with(asked.key, units, |lines| {
                budget::reserve(lines, lease, Budget::TTL_MAX, at).decision
            });
            cost = Some(decision);
            decision.is_admit()
        };
        let is_kept = self.atomicity == Atomicity::PerAxis;
        let rate = match (&mut self.rate, &mut self.purse) {
            (None, None) => None,
            (None, Some(purse)) => {
                reserve(purse);
                None
            }
            (Some(rate), None) => Some(rate.step(asked.key, at, Cost::ONE)),
            (Some(rate), Some(purse)) => {
                let also = || reserve(purse) || is_kept;
                Some(rate.step_if(asked.key, at, also))
            }
        };
        let said = match (rate, cost) {
            (Some(rate), _) if !rate.is_admit() => said(Axis::Rate, rate),
            (_, Some(cost)) => said(Axis::Cost, cost),
            (Some(rate), None) => said(Axis::Rate, rate),
            (None, None) => said(Axis::Concurrency, Decision::NEUTRAL),
        };
        if said.axis.is_none() {
            self.hold(asked);
        }
        said
    }

    fn hold(&mut self, asked: &Asked<'_>) {
        if let Some(gate) = &mut self.gate {
            gate.taken += 1;
        }
        let (until, key) = (asked.at.max(self.latest) + asked.hold, asked.key.to_owned());
        let actual = asked.actual.unwrap_or(asked.cost.units());
        self.held.push(Reverse(Held { until, count: self.count, key, actual }));
        self.give_back(asked.at);
    }

    /// Ends what is not held any more.
    fn give_back(&mut self, at: Micros) {
        self.latest = self.latest.max(at);
        while self.held.peek().is_some_and(|Reverse(held)| held.until <= self.latest) {
            let Some(Reverse(Held { until, count, key, actual })) = self.held.pop() else { return };
            if let Some(gate) = &mut self.gate {
                gate.taken = gate.taken.saturating_sub(1);
            }
            if let Some(purse) = &mut self.purse {
                let lease = LeaseKey(u128::from(count));
                let _ = purse.with(&key, actual, |lines| budget::settle(lines, lease, true, until));
            }
        }
    }
}

impl Purse {
    fn with<T>(&mut self, key: &str, units: u64, ask: impl FnOnce(&mut [Line<'_>]) -> T) -> T {
        if !self.accounts.contains_key(key) {
            let accounts = self.budgets.iter().map(|_| Account::default()).collect();
            self.accounts.insert(key.to_owned(), accounts);
        }
        let accounts = self.accounts.get_mut(key).expect("it was put there");
        let lines = self.budgets.iter().zip(accounts);
        let lines = lines.map(|(budget, account)| Line { budget, account, units });
        ask(&mut lines.collect::<Vec<_>>())
    }
}

fn said(axis: Axis, decision: Decision) -> Said {
    let is_admit = decision.is_admit();
    Said { is_admit, axis: (!is_admit).then_some(axis), decision }
}
