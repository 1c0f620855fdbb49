//! The store in this process.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use admittance_core::budget::{self, Line};
use admittance_core::{Atomicity, Builtin, CostAct, Decision, Fused, Micros, Several, Shape};

use super::lend::Returned;
use super::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Combine, FuseAsk, Fuses, Group, Limit,
    Many, Merged, Op, Store, StoreError,
};
use crate::budget::{AccountStats, Accounts, Booked, Entry, MemoryAccounts, lines};
use crate::clock::behind_wall;
use crate::limiter::{LimiterBuilder, Together};
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

/// A policy's limiters, by shape: another shape has other states, as in any store.
struct Policy<C> {
    shapes: VecDeque<Numbers<C>>,
}

/// The limiters of one shape, each with numbers of its own. The first has a table to itself; from
/// the second on all share one, whose states say what numbers they were written under. So while a
/// changed policy spreads, and callers with old and new numbers take turns, every key keeps the
/// units that it has spent.
struct Numbers<C> {
    shape: Shape,
    /// The newest first.
    limiters: VecDeque<Shared<C>>,
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
        let newest =
            policies.get(policy).and_then(|policy| policy.shapes.front()?.limiters.front());
        newest.map_or_else(Stats::default, |limiter| limiter.stats())
    }

    /// How many accounts of budgets are held, of all policies.
    pub fn account_stats(&self) -> AccountStats {
        self.accounts.stats()
    }

    /// Asks limiters, none of which gives its keys to another meanwhile.
    fn with<T>(
        &self,
        limits: &[Limit<'_>],
        ask: impl FnOnce(&[Shared<C>]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for limit in limits {
            self.make(limit.policy, limit.strategy)?;
        }
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        let found = limits.iter().map(|limit| policies.get(limit.policy)?.of(limit.strategy));
        match found.collect::<Option<Vec<_>>>() {
            Some(limiters) => ask(&limiters),
            None => Err(StoreError::Contended { tries: 1 }),
        }
    }

    /// Asks the limiter, which gives its keys to no other meanwhile.
    fn with_one<T>(
        &self,
        name: &str,
        strategy: &Builtin,
        ask: impl Fn(&Limiter<Builtin, C>) -> T,
    ) -> Result<T, StoreError> {
        loop {
            let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(limiter) = policies.get(name).and_then(|policy| policy.of(strategy)) {
                return Ok(ask(&limiter));
            }
            drop(policies);
            self.make(name, strategy)?;
        }
    }

    /// Makes the limiter, unless there is one.
    fn make(&self, name: &str, strategy: &Builtin) -> Result<(), StoreError> {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        if policies.get(name).is_some_and(|policy| policy.of(strategy).is_some()) {
            return Ok(());
        }
        drop(policies);
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        if !policies.contains_key(name) && policies.len() >= self.policies_max {
            return Err(StoreError::TooManyPolicies { max: self.policies_max });
        }
        let policy = policies.entry(name.into()).or_insert_with(Policy::new);
        if policy.of(strategy).is_none() {
            let max_keys = self.max_keys.unwrap_or_else(|| Limiter::max_keys_default(strategy));
            let builder = Limiter::builder(*strategy).max_keys(max_keys);
            policy.add(builder.on_full(self.on_full).clock(self.clock.clone()));
        }
        Ok(())
    }
}

impl<C: Clock + Clone> Store for Memory<C> {
    // Nothing is charged before the future is polled, as with any other store.
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let Op { policy, strategy, key, action } = op;
        self.with_one(policy, strategy, |limiter| {
            limiter.apply(policy, key, action, &self.returned)
        })?
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        many.checked()?;
        self.with_one(many.policy, many.strategy, |limiter| {
            let mut decisions: Vec<Decision> = Vec::with_capacity(many.keys.len());
            let at = limiter.check_many_at(many.keys, many.cost, &mut decisions);
            AppliedMany { decisions, at }
        })
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        let merged = Merged::of(&group)?;
        self.with(&merged.limits, |limiters| {
            let asks = asks(limiters, &merged);
            let clock = Together::precisely(&self.clock as &dyn Clock);
            let several = match group.combine {
                Combine::All => all_at(&asks, &clock),
                Combine::Any => any_at(&asks, &clock),
            };
            Ok(AppliedSeveral { several: merged.spread(several), at: clock.now() })
        })
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
        self.with(&merged.limits, |limiters| self.fuse_with(ask, act, &merged, limiters))
    }

    fn fuse_with(
        &self,
        ask: FuseAsk<'_>,
        act: CostAct,
        merged: &Merged<'_>,
        limiters: &[Shared<C>],
    ) -> Result<AppliedFused, StoreError> {
        let asks = asks(limiters, merged);
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

impl<C: Clock + Clone> Policy<C> {
    fn new() -> Self {
        Self { shapes: VecDeque::new() }
    }

    /// The limiter that decides by this very strategy.
    fn of(&self, strategy: &Builtin) -> Option<Shared<C>> {
        let mut all = self.shapes.iter().flat_map(|numbers| &numbers.limiters);
        all.find(|limiter| limiter.strategy() == strategy).cloned()
    }

    fn add(&mut self, builder: LimiterBuilder<Builtin, C>) {
        let shape = builder.strategy().shape();
        match self.shapes.iter().position(|numbers| numbers.shape == shape) {
            Some(place) => {
                let mut numbers = self.shapes.remove(place).expect("it was found there");
                numbers.add(builder);
                self.shapes.push_front(numbers);
            }
            None => {
                let limiters = VecDeque::from([Arc::new(builder.build())]);
                self.shapes.push_front(Numbers { shape, limiters });
            }
        }
        self.shapes.truncate(SHAPES_MAX);
    }
}

impl<C: Clock + Clone> Numbers<C> {
    /// Makes a limiter by further numbers.
    fn add(&mut self, builder: LimiterBuilder<Builtin, C>) {
        let strategy = *builder.strategy();
        let is_shared = self.limiters.front().and_then(|limiter| limiter.shared());
        let table = is_shared.unwrap_or_else(|| {
            let table = builder.shared_table();
            for limiter in &mut self.limiters {
                *limiter = Arc::new(limiter.moved_to(Arc::clone(&table)));
            }
            table
        });
        let Some(first) = self.limiters.front() else { return };
        let made = Limiter::sharing(strategy, first.clock().clone(), table);
        self.limiters.push_front(Arc::new(made));
        self.limiters.truncate(NUMBERS_MAX);
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
/// A policy whose shape changes further loses what was spent under the shape before all these.
const SHAPES_MAX: usize = 4;
/// Limiters of one shape share their states: one that is made again loses nothing.
const NUMBERS_MAX: usize = 16;
