//! The store in this process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use admittance_core::{Builtin, Decision};

use super::lend::Returned;
use super::{
    Applied, AppliedMany, AppliedSeveral, Combine, Group, Many, Merged, Op, Store, StoreError,
};
use crate::budget::{Accounts, Booked, Entry, MemoryAccounts};
use crate::limiter::{MAX_KEYS_DEFAULT, Together};
use crate::several::{all_at, any_at};
use crate::{Clock, Limiter, OnFull, Stats};

/// The store in this process: one [`Limiter`] per policy, made when the policy is first asked.
///
/// Its futures are ready at once. It is bounded: by the number of policies, and in each by the
/// number of keys.
pub struct Memory<C> {
    clock: C,
    policies: RwLock<HashMap<Box<str>, Policy<C>>>,
    policies_max: usize,
    max_keys: u64,
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
    /// An empty store on this clock, with room for a thousand policies of a million keys.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self {
            accounts: MemoryAccounts::new(clock.clone()),
            clock,
            policies: RwLock::default(),
            policies_max: POLICIES_MAX_DEFAULT,
            max_keys: MAX_KEYS_DEFAULT,
            on_full: OnFull::Evict,
            returned: Returned::default(),
        }
    }

    /// How many policies are kept at most; at least one.
    #[must_use]
    pub fn policies_max(self, policies_max: usize) -> Self {
        Self { policies_max: policies_max.max(1), ..self }
    }

    /// How many keys each policy keeps at most, of policies first asked from now on.
    #[must_use]
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, accounts: self.accounts.max_keys(max_keys), ..self }
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

    fn limiter(&self, name: &str, strategy: &Builtin) -> Result<Shared<C>, StoreError> {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = policies.get(name).and_then(|policy| policy.of(strategy)) {
            return Ok(found);
        }
        drop(policies);
        self.make(name, strategy)
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
        let builder = Limiter::builder(*strategy).max_keys(self.max_keys);
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
        let limits = &merged.limits;
        let limiters = limits.iter().map(|limit| self.limiter(limit.policy, limit.strategy));
        let limiters: Vec<Shared<C>> = limiters.collect::<Result<_, _>>()?;
        let asks = limiters.iter().zip(limits);
        let asks: Vec<_> =
            asks.map(|(limiter, limit)| limiter.ask(limit.key, limit.cost)).collect();
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
