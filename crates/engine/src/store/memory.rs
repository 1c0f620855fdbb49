//! The store in this process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use admittance_core::budget::{self, Line};
use admittance_core::{Atomicity, Builtin, CostAct, Decision, Fused, Micros, Several};

use super::lend::Returned;
use super::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Combine, FuseAsk, Fuses, Group, Many,
    Merged, Op, Store, StoreError,
};
use crate::budget::{AccountStats, Accounts, Booked, Entry, MemoryAccounts, lines};
use crate::clock::behind_wall;
use crate::limiter::Together;
use crate::several::{Ask, all_at, any_at, denied_at, peeks_at};
use crate::{Clock, Limiter, OnFull, Stats};

/// The store in this process: one [`Limiter`] per policy, made when the policy is first asked.
///
/// Its futures are ready at once. It is bounded: by the number of policies, and in each by the
/// number of keys.
pub struct Memory<C> {
    clock: C,
    policies: RwLock<HashMap<Box<str>, Policy<C>>>,
    policies_max: usize,
    /// As many as a limiter keeps by default if nobody says how many.
    max_keys: Option<u64>,
    on_full: OnFull,
    returned: Returned,
    accounts: MemoryAccounts<C>,
}

type Shared<C> = Arc<Limiter<Builtin, C>>;

/// A policy's limiters: the one asked last, and the one before it. While a changed policy spreads,
/// callers with the old strategy and with the new one take turns; each finds its own state again,
/// where a limiter made anew at every turn would admit a burst each time.
struct Policy<C> {
    newest: Arc<Limiter<Builtin, C>>,
    before: Option<Arc<Limiter<Builtin, C>>>,
}

impl<C: Clock + Clone> Memory<C> {
    /// An empty store on this clock, with room for a thousand policies, each of as many keys as a
    /// limiter [keeps by default](Limiter::max_keys_default).
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self {
            accounts: MemoryAccounts::new(clock.clone()),
            clock,
            policies: RwLock::default(),
            policies_max: POLICIES_MAX_DEFAULT,
            max_keys: None,
            on_full: OnFull::Evict,
            returned: Returned::default(),
        }
    }

    /// How many policies are kept at most; at least one.
    #[must_use]
    pub fn policies_max(self, policies_max: usize) -> Self {
        let accounts = self.accounts.policies_max(policies_max);
        Self { policies_max: policies_max.max(1), accounts, ..self }
    }

    /// How many keys each policy keeps at most, of policies first asked from now on.
    #[must_use]
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys: Some(max_keys), accounts: self.accounts.max_keys(max_keys), ..self }
    }

    /// What happens to a new key when its policy may keep no more.
    #[must_use]
    pub fn on_full(self, on_full: OnFull) -> Self {
        Self { on_full, ..self }
    }

    /// What is held for a policy; nothing for one that was never asked.
    pub fn stats(&self, policy: &str) -> Stats {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.get(policy).map_or_else(Stats::default, |policy| policy.newest.stats())
    }

    /// How many accounts of budgets are held, of all policies.
    pub fn account_stats(&self) -> AccountStats {
        self.accounts.stats()
    }

    fn limiter(&self, name: &str, strategy: &Builtin) -> Result<Shared<C>, StoreError> {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = policies.get(name).and_then(|policy| policy.of(strategy)) {
            return Ok(found);
        }
        drop(policies);
        self.make(name, strategy)
    }

    fn limiters(&self, merged: &Merged<'_>) -> Result<Vec<Shared<C>>, StoreError> {
        let limits = merged.limits.iter();
        limits.map(|limit| self.limiter(limit.policy, limit.strategy)).collect()
    }

    /// Makes the limiter, unless somebody else has meanwhile.
    #[cold]
    fn make(&self, name: &str, strategy: &Builtin) -> Result<Shared<C>, StoreError> {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        let known = policies.get(name);
        if let Some(found) = known.and_then(|policy| policy.of(strategy)) {
            return Ok(found);
        }
        if known.is_none() && policies.len() >= self.policies_max {
            return Err(StoreError::TooManyPolicies { max: self.policies_max });
        }
        let max_keys = self.max_keys.unwrap_or_else(|| Limiter::max_keys_default(strategy));
        let builder = Limiter::builder(*strategy).max_keys(max_keys);
        let made = Arc::new(builder.on_full(self.on_full).clock(self.clock.clone()).build());
        let before = policies.remove(name).map(|policy| policy.newest);
        policies.insert(name.into(), Policy { newest: Arc::clone(&made), before });
        Ok(made)
    }
}

impl<C: Clock + Clone> Store for Memory<C> {
    // Nothing is charged before the future is polled, as with any other store.
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.limiter(op.policy, op.strategy)?.apply(op.key, op.action, &self.returned)
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        many.checked()?;
        let limiter = self.limiter(many.policy, many.strategy)?;
        let mut decisions: Vec<Decision> = Vec::with_capacity(many.keys.len());
        let at = limiter.check_many_at(many.keys, many.cost, &mut decisions);
        Ok(AppliedMany { decisions, at })
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        let merged = Merged::of(&group)?;
        let limiters = self.limiters(&merged)?;
        let asks = asks(&limiters, &merged);
        let clock = Together::precisely(&self.clock as &dyn Clock);
        let several = match group.combine {
            Combine::All => all_at(&asks, &clock),
            Combine::Any => any_at(&asks, &clock),
        };
        Ok(AppliedSeveral { several: merged.spread(several), at: clock.now() })
    }
}

impl<C: Clock + Clone> Accounts for Memory<C> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.accounts.book_now(entry)
    }

    fn book_at_once(&self, entry: Entry<'_>) -> Option<Result<Booked, StoreError>> {
        Some(self.accounts.book_now(entry))
    }
}

impl<C: Clock + Clone> Fuses for Memory<C> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.fuse_now(ask)
    }

    fn fuse_at_once(&self, ask: FuseAsk<'_>) -> Option<Result<AppliedFused, StoreError>> {
        Some(self.fuse_now(ask))
    }
}

impl<C: Clock + Clone> Memory<C> {
    fn fuse_now(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        let (merged, act) = ask.checked()?;
        let limiters = self.limiters(&merged)?;
        let asks = asks(&limiters, &merged);
        let rates = |now| all_at(&asks, &Together::fixed(&self.clock as &dyn Clock, now));
        let (fused, at) = if ask.entry.charges.is_empty() {
            let now = self.clock.precise();
            (Fused { rate: rates(now), cost: None }, now)
        } else {
            // The accounts' locks come first, and all that is locked for limits is let go of
            // before them: whoever asks for limits alone never waits for an account.
            self.accounts.several(ask.entry, |accounts, now| {
                let steady = behind_wall(&self.clock, now);
                let mut lines = lines(ask.entry, accounts);
                match ask.atomicity {
                    Atomicity::PerAxis => {
                        let rate = rates(steady);
                        let is_asked = rate.decision.is_admit();
                        let cost = is_asked.then(|| charge_if(&mut lines, act, now, || true));
                        Fused { rate, cost }
                    }
                    Atomicity::All => {
                        let rates = || rates(steady);
                        all_or_none((&asks, steady), (&mut lines, now), act, rates)
                    }
                }
            })?
        };
        Ok(AppliedFused { fused: Fused { rate: merged.spread(fused.rate), ..fused }, at })
    }
}

/// Limits and budgets all or none. Nobody else can change the accounts meanwhile, but the limits:
/// they are charged last, once every account has admitted, and if they deny then, nothing is.
fn all_or_none(
    (asks, steady): (&[Ask<'_>], Micros),
    (lines, now): (&mut [Line<'_>], Micros),
    act: CostAct,
    charge: impl FnOnce() -> Several,
) -> Fused {
    if let Some(rate) = denied_at(asks, steady) {
        return Fused { rate, cost: None };
    }
    let mut charged = None;
    let cost = charge_if(lines, act, now, || charged.insert(charge()).decision.is_admit());
    match charged {
        None => Fused { rate: peeks_at(asks, steady), cost: Some(cost) },
        Some(rate) if rate.decision.is_admit() => Fused { rate, cost: Some(cost) },
        Some(rate) => Fused { rate, cost: None },
    }
}

fn charge_if(
    lines: &mut [Line<'_>],
    act: CostAct,
    now: Micros,
    also: impl FnOnce() -> bool,
) -> budget::Together {
    match act {
        CostAct::Debit(lease) => budget::debit_if(lines, lease, now, also),
        CostAct::Reserve { lease, ttl } => budget::reserve_if(lines, lease, ttl, now, also),
    }
}

fn asks<'a, C: Clock>(limiters: &'a [Shared<C>], merged: &Merged<'_>) -> Vec<Ask<'a>> {
    let asks = limiters.iter().zip(&merged.limits);
    asks.map(|(limiter, limit)| limiter.ask(limit.key, limit.cost)).collect()
}

impl<C: Clock> Policy<C> {
    /// The limiter that decides by this very strategy.
    fn of(&self, strategy: &Builtin) -> Option<Shared<C>> {
        let mut both = std::iter::once(&self.newest).chain(&self.before);
        both.find(|limiter| limiter.strategy() == strategy).cloned()
    }
}

impl<C> fmt::Debug for Memory<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        let mut memory = f.debug_struct("Memory");
        memory.field("policies", &policies.len()).finish_non_exhaustive()
    }
}

const POLICIES_MAX_DEFAULT: usize = 1_000;
