//! The service core: policies by name, and what may be asked of them.
//!
//! Every door (gRPC now, HTTP later) turns its messages into these calls and these refusals into
//! its own codes. Nothing here knows a transport.
//!
//! # Guarantee
//! - A request that is refused has charged nothing, whichever of its parts was wrong.
//! - All keys of [`Service::check_many`] are decided at one instant, repeated keys in order; in a
//!   cluster at one instant per slot. Those of a policy with a tier are decided each by itself.
//! - A check is always decided: by the store, or by the policy's fail mode if the store cannot, and
//!   the answer says by which. A look is refused if the store cannot.
//! - What a caller sends is bounded: a key has at most [`KEY_MAX`] bytes, a batch at most
//!   [`BATCH_MAX`] keys, and no answer grows with either.
//!
//! # Proven by
//! `tests/grpc.rs`, over a live door, with a manual clock; `tests/fail.rs`, with a store that can
//! be lost.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use admittance::{Cost, SystemClock};
//! use admittance_server::{Config, Fail, Refusal, Service};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let service = Service::new(&Config::built_in(Fail::Open)?, Arc::new(SystemClock::new()));
//! assert_eq!(service.check("api", "user-1", Cost::ONE).await?.decision.remaining, 4);
//! let refused = service.check("nope", "user-1", Cost::ONE).await;
//! assert!(matches!(refused, Err(Refusal::UnknownPolicy { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admit;
mod axes;
mod cost;
mod gated;
mod instance;
mod lend;
mod load;
mod many;
mod rate;
mod refusal;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use admittance::budget::{MemoryAccounts, SharedAccounts};
use admittance::two_tier::{Leasing, TwoTier};
use admittance::{
    Clock, Cost, Decided, Decision, FailMode, Forecast, GuardSettings, Guarded, Invalid, Memory,
    Parts, SharedLimiter, Source, Span, StoreError,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{Config, CostConfig, GateConfig, PolicyConfig, RateConfig, TierConfig};
use crate::escrow::Escrow;
use crate::leases::Leases;
use crate::peers::Peers;
use crate::store::{AnyFleet, AnyStore};

use self::admit::{Admits, Unasked};
pub use self::admit::{Admitted, SWEEP, Work};
pub(crate) use self::axes::Axes;
pub use self::cost::{Asked, CostLine, Costs, Expected, Reserved, Terms};
use self::cost::{Costed, Ledger};
pub(crate) use self::cost::{lease_text, parse_held, parse_lease};
use self::gated::Gated;
pub use self::instance::{Instance, Unservable};
pub use self::lend::{Lent, Stopped};
use self::load::Guarding;
use self::rate::{Here, Rate, Unanswered};
pub use self::refusal::{Known, Operation, Refusal, cost, units};

/// A clock that every policy reads; tests put a manual one here.
pub type SharedClock = Arc<dyn Clock + Send + Sync>;

/// The most bytes a key may have.
pub const KEY_MAX: usize = 4_096;

/// The most keys one batch may have.
pub const BATCH_MAX: usize = 10_000;

/// The policies of one process.
#[derive(Debug)]
pub struct Service {
    policies: BTreeMap<String, Policy>,
    /// One for each deadline that policies have: what is too slow for one may do for another.
    guards: BTreeMap<Span, Arc<Guarded<AnyStore>>>,
    /// Who borrows over the fleet door.
    peers: Peers,
    stopped: watch::Sender<Stopped>,
    /// Names what goes back of what was lent there.
    lent: AtomicU64,
    incarnation: u64,
    /// The permits that clients hold.
    leases: Leases,
    /// What the cost axis keeps in this process.
    ledger: Ledger,
    /// Where it is charged in the store: one for each deadline and fail mode that policies have.
    shared: Vec<(Rules, Arc<SharedAccounts<AnyStore>>)>,
    /// This instance's part of every limit, without and with what others leave to it.
    parts: [Option<Arc<Parts>>; 2],
    /// What it has against its own overload.
    guarding: Guarding,
}

/// What policies must have in common to be charged together: the store's deadline, the fail mode.
type Rules = (Span, FailMode);

/// One policy, ready to decide.
pub struct Policy {
    config: PolicyConfig,
    rate: Option<Arc<Rate>>,
    gate: Option<Gated>,
    cost: Option<Costed>,
    admits: Option<Admits>,
    unasked: Unasked,
}

impl Service {
    /// A service for these policies on the in-process store.
    ///
    /// # Panics
    /// If a policy's escrow or tier has rules that cannot be kept; a configuration that was read
    /// has none. Outside of a tokio runtime if a policy has a tier, whose tasks run there.
    #[must_use]
    pub fn new(config: &Config, clock: SharedClock) -> Self {
        // Policies with a tier lend and borrow within this process: what they do elsewhere.
        let memory = AnyStore::new(Memory::new(Arc::clone(&clock)));
        let settings = GuardSettings { clock: Arc::new(Arc::clone(&clock)), ..Default::default() };
        let node = Instance::default().node();
        let mut service = Self::empty(config, Arc::clone(&clock), None);
        for policy in &config.policies {
            let gate = policy.concurrency.as_ref().map(|gate| {
                let gated = Gated::here(config, policy, gate, &clock, &node);
                gated.expect("the reader has built it once")
            });
            let rate =
                policy.rate.as_ref().map(|rate| match (&rate.escrow, rate.tier.is_strict()) {
                    (None, true) => Rate::Here(Here::new(rate, Arc::clone(&clock))),
                    (Some(escrow), _) => {
                        let escrow = Escrow::here(escrow, Arc::clone(&clock));
                        Rate::Together(Box::new(escrow.expect("the reader has built it once")))
                    }
                    (None, false) => {
                        let rate = service.in_store(config, policy, rate, &memory, &settings);
                        rate.expect("the reader has built it once")
                    }
                });
            let cost = policy.cost.as_ref();
            let cost = cost.map(|cost| Costed::new(cost, &policy.name, None));
            let axes = (rate.map(Arc::new), gate, cost);
            service.add(policy, axes, None, &clock).expect("the reader has built it once");
        }
        // What stands before this process's memory is nobody's concern: it always answers.
        service.guards.clear();
        service
    }

    fn empty(config: &Config, clock: SharedClock, relay: Option<AnyFleet>) -> Self {
        let mut here = MemoryAccounts::new(Arc::clone(&clock)).policies_max(config.policies.len());
        for policy in &config.policies {
            if let Some(cost) = &policy.cost {
                here = here.max_keys_of(&policy.name, cost.accounts_max());
            }
        }
        let ttl_min = config.policies.iter().filter_map(PolicyConfig::lease_ttl).min();
        Self {
            policies: BTreeMap::new(),
            guards: BTreeMap::new(),
            peers: Peers::default(),
            stopped: watch::Sender::default(),
            lent: AtomicU64::new(0),
            incarnation: std::hash::RandomState::new().hash_one(std::process::id()),
            leases: Leases::new(clock, relay, ttl_min.unwrap_or(GateConfig::LEASE_TTL_DEFAULT)),
            ledger: Ledger::new(here),
            shared: Vec::new(),
            parts: [None, None],
            guarding: Guarding::new(config),
        }
    }

    /// A service for these policies on a shared store. The clock is for going on without it. Must
    /// be made within a tokio runtime, where the store is probed.
    ///
    /// # Errors
    /// A share that cannot be kept exact; a configuration that was read has none. A policy whose
    /// instances share one limit, in a store where they do not meet.
    pub fn on_store(
        config: &Config,
        store: &AnyStore,
        settings: &GuardSettings,
    ) -> Result<Self, Unservable> {
        Self::on_store_as(&Instance::default(), config, store, settings)
    }

    /// The same for an instance with a name of its own.
    ///
    /// # Errors
    /// As [`on_store`](Self::on_store).
    pub fn on_store_as(
        instance: &Instance,
        config: &Config,
        store: &AnyStore,
        settings: &GuardSettings,
    ) -> Result<Self, Unservable> {
        let node = instance.node();
        let clock: SharedClock = Arc::new(Arc::clone(&settings.clock));
        let mut service = Self::empty(config, Arc::clone(&clock), store.fleet());
        for reserve in [false, true] {
            let fail = FailMode::Granted { reserve };
            let Some(policy) = config.policies.iter().find(|policy| policy.fail == fail) else {
                continue;
            };
            let Some(fleet) = store.fleet() else {
                return Err(Unservable::NoParts { policy: policy.name.clone() });
            };
            let parts = Parts::start(fleet, node.clone(), reserve)?;
            service.parts[usize::from(reserve)] = Some(Arc::new(parts));
        }
        for policy in &config.policies {
            let gate = match (&policy.concurrency, store.fleet()) {
                (Some(gate), Some(fleet)) => Some(Gated::on(config, policy, gate, fleet, &node)?),
                (Some(gate), None) if gate.fleet.is_some() => {
                    return Err(Unservable::NoFleet { policy: policy.name.clone() });
                }
                (Some(gate), None) => Some(Gated::here(config, policy, gate, &clock, &node)?),
                (None, _) => None,
            };
            let rate = match &policy.rate {
                Some(rate) => Some(service.in_store(config, policy, rate, store, settings)?),
                None => None,
            };
            let cost = match &policy.cost {
                Some(cost) => Some(service.costed(config, policy, cost, store, settings)?),
                None => None,
            };
            let is_there = matches!(rate, Some(Rate::There(_)))
                || cost.as_ref().is_some_and(Costed::is_shared);
            let guard = is_there.then(|| service.guard(policy, store, settings));
            service.add(policy, (rate.map(Arc::new), gate, cost), guard.as_ref(), &clock)?;
        }
        Ok(service)
    }

    /// Adds a policy with these axes, and what decides them together if anything does.
    fn add(
        &mut self,
        config: &PolicyConfig,
        (rate, gate, cost): (Option<Arc<Rate>>, Option<Gated>, Option<Costed>),
        guard: Option<&Arc<Guarded<AnyStore>>>,
        clock: &SharedClock,
    ) -> Result<(), Invalid> {
        let admits = Admits::new(config, gate.as_ref(), || {
            let ttl = config.reservation_ttl();
            let purse = cost.as_ref().and_then(|cost| cost.purse(&self.ledger, ttl));
            Axes::new(rate.as_ref(), purse, guard, clock)
        })?;
        let (config, unasked) = (config.clone(), Unasked::default());
        let policy = Policy { config, rate, gate, cost, admits, unasked };
        self.policies.insert(policy.name().to_owned(), policy);
        Ok(())
    }

    /// What stands between a policy and the store.
    fn guard(
        &mut self,
        policy: &PolicyConfig,
        store: &AnyStore,
        settings: &GuardSettings,
    ) -> Arc<Guarded<AnyStore>> {
        let deadline = policy.store.deadline;
        let guard = self.guards.entry(deadline).or_insert_with(|| {
            let settings = GuardSettings { deadline, ..settings.clone() };
            Arc::new(Guarded::start(store.clone(), settings))
        });
        Arc::clone(guard)
    }

    /// A policy's cost axis: in this process, or in the store that instances share.
    fn costed(
        &mut self,
        config: &Config,
        policy: &PolicyConfig,
        cost: &CostConfig,
        store: &AnyStore,
        settings: &GuardSettings,
    ) -> Result<Costed, Unservable> {
        if !cost.is_shared {
            return Ok(Costed::new(cost, &policy.name, None));
        }
        if !store.has_accounts() {
            return Err(Unservable::NoAccounts { policy: policy.name.clone() });
        }
        let name = config.store_name(policy);
        // Policies that can be charged together must go on alone together: what one entry takes of
        // a part, another must see.
        let rules = (policy.store.deadline, policy.fail);
        if let Some((_, shared)) = self.shared.iter().find(|(known, _)| *known == rules) {
            return Ok(Costed::new(cost, name, Some(Arc::clone(shared))));
        }
        let guard = self.guard(policy, store, settings);
        let keys = config.policies.iter().filter_map(|policy| policy.cost.as_ref());
        let max_keys = keys.map(CostConfig::accounts_max).max().unwrap_or(1);
        let mut shared = SharedAccounts::new(guard, policy.fail)?.max_keys(max_keys);
        if let FailMode::Granted { reserve } = policy.fail
            && let Some(parts) = &self.parts[usize::from(reserve)]
        {
            shared = shared.parts(Arc::clone(parts));
        }
        let shared = Arc::new(shared);
        self.shared.push((rules, Arc::clone(&shared)));
        Ok(Costed::new(cost, name, Some(shared)))
    }

    /// Where a policy lives whose keys are in a store.
    fn in_store(
        &mut self,
        config: &Config,
        policy: &PolicyConfig,
        rate: &RateConfig,
        store: &AnyStore,
        settings: &GuardSettings,
    ) -> Result<Rate, Invalid> {
        let guard = &self.guard(policy, store, settings);
        if let Some(escrow) = &rate.escrow {
            let escrow = Escrow::there(config, policy, escrow, guard)?;
            return Ok(Rate::Together(Box::new(escrow)));
        }
        let (name, guard) = (config.store_name(policy), Arc::clone(guard));
        let limiter = SharedLimiter::new(name, rate.strategy, guard, policy.fail)?;
        let mut limiter = limiter.max_keys(rate.max_keys);
        if let FailMode::Granted { reserve } = policy.fail
            && let Some(parts) = &self.parts[usize::from(reserve)]
        {
            limiter = limiter.parts(Arc::clone(parts));
        }
        let max_keys = usize::try_from(rate.max_keys).unwrap_or(usize::MAX);
        Ok(match rate.tier {
            TierConfig::Strict => Rate::There(Arc::new(limiter)),
            TierConfig::CachedDeny => {
                Rate::Tiered(Arc::new(TwoTier::cached_deny(limiter, max_keys)))
            }
            TierConfig::Leased(leasing) | TierConfig::Federated(leasing) => {
                let leasing = Leasing { max_keys: max_keys.min(leasing.max_keys), ..leasing };
                let tier = TwoTier::leased(limiter, leasing);
                Rate::Tiered(Arc::new(tier.expect("the reader has checked it")))
            }
        })
    }

    /// Gives back what this process holds of shared limits. To be called when no more requests
    /// come.
    pub async fn close(&self) {
        let mut closing = JoinSet::new();
        for policy in self.policies.values() {
            if let Some(Rate::Tiered(tier)) = policy.rate.as_deref() {
                let tier = Arc::clone(tier);
                closing.spawn(async move { tier.close().await });
            }
        }
        // All are told first: then each says its farewell while the others do.
        let gates: Vec<_> =
            self.policies.values().filter_map(|policy| policy.gate.as_ref()).collect();
        gates.iter().for_each(|gate| gate.begin_close());
        self.parts.iter().flatten().for_each(|parts| parts.begin_close());
        for gate in gates {
            gate.close().await;
        }
        for parts in self.parts.iter().flatten() {
            // If it cannot be said, the part ends by itself.
            let _ = parts.close().await;
        }
        self.leases.close().await;
        while closing.join_next().await.is_some() {}
    }

    /// What stands before the shared store, one for each deadline that policies have; none for the
    /// in-process store.
    pub fn guards(&self) -> impl Iterator<Item = &Arc<Guarded<AnyStore>>> {
        self.guards.values()
    }

    /// Whether any policy has a budget.
    #[must_use]
    pub fn has_budgets(&self) -> bool {
        self.policies.values().any(|policy| policy.cost.is_some())
    }

    /// The policy with this name.
    ///
    /// # Errors
    /// [`Refusal::UnknownPolicy`].
    pub fn policy(&self, name: &str) -> Result<&Policy, Refusal> {
        self.policies.get(name).ok_or_else(|| Refusal::UnknownPolicy {
            name: name.chars().take(NAME_SHOWN_MAX).collect(),
            known: self.known(),
        })
    }

    /// Every policy, by name.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values()
    }

    /// Decides one request.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long.
    pub async fn check(&self, policy: &str, key: &str, cost: Cost) -> Result<Decided, Refusal> {
        let policy = self.policy(policy)?;
        let key = bounded(key)?;
        if policy.is_load_only() {
            let unlimited = Decided { decision: self.unlimited(), source: Source::Node };
            return Ok(self.shed(policy, key)?.unwrap_or(unlimited));
        }
        let rate = policy.rate(Operation::Check)?;
        if let Some(denied) = self.shed(policy, key)? {
            return Ok(denied);
        }
        self.work();
        let decided = rate.check(key.as_bytes(), cost).await;
        decided.map_err(|error| policy.failed(error))
    }

    /// Decides a request for each key, all at one instant.
    ///
    /// # Errors
    /// An unknown policy, too many keys, a key that is too long; then none is charged.
    pub async fn check_many(
        &self,
        policy: &str,
        keys: &[String],
        cost: Cost,
    ) -> Result<(Vec<Decision>, Source), Refusal> {
        let policy = self.policy(policy)?;
        if keys.len() > BATCH_MAX {
            return Err(Refusal::BatchTooLong { length: keys.len() });
        }
        for key in keys {
            bounded(key)?;
        }
        let unlimited = || vec![self.unlimited(); keys.len()];
        if policy.is_load_only() {
            let Some(denied) = self.shed_many(policy, keys)? else {
                return Ok((unlimited(), Source::Node));
            };
            return Ok((many::merged(denied, unlimited()), Source::Node));
        }
        let rate = policy.rate(Operation::CheckMany)?;
        let Some(denied) = self.shed_many(policy, keys)? else {
            let decided = rate.check_many(keys, cost).await;
            return decided.map_err(|why| policy.unanswered(why, Operation::CheckMany));
        };
        let kept: Vec<_> = many::kept(&denied, keys).collect();
        let decided = rate.check_many(&kept, cost).await;
        let decided = decided.map_err(|why| policy.unanswered(why, Operation::CheckMany));
        let (decisions, source) = decided?;
        Ok((many::merged(denied, decisions), source.max(Source::Node)))
    }

    /// Says what a request of cost 1 would get. Charges nothing.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long, a store that does not answer.
    pub async fn peek(&self, policy: &str, key: &str) -> Result<Decision, Refusal> {
        let policy = self.policy(policy)?;
        let key = bounded(key)?;
        let seen = policy.rate(Operation::Peek)?.peek(key).await;
        seen.map_err(|why| policy.unanswered(why, Operation::Peek))
    }

    /// Says how many requests of `cost` would pass and when that changes. Charges nothing.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long, a store that does not answer.
    pub async fn forecast(&self, policy: &str, key: &str, cost: Cost) -> Result<Forecast, Refusal> {
        let policy = self.policy(policy)?;
        let key = bounded(key)?;
        let seen = policy.rate(Operation::Forecast)?.forecast(key, cost).await;
        seen.map_err(|why| policy.unanswered(why, Operation::Forecast))
    }

    fn known(&self) -> Known {
        let mut room = KNOWN_SHOWN_MAX;
        let fits = self.policies.keys().take_while(|name| {
            let enough = name.len() <= room;
            room = room.saturating_sub(name.len());
            enough
        });
        let names: Vec<String> = fits.cloned().collect();
        Known { more: self.policies.len() - names.len(), names }
    }
}

impl Policy {
    /// The name that requests ask for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What the policy was configured with.
    #[must_use]
    pub const fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// What it answers when its store cannot.
    #[must_use]
    pub const fn fail(&self) -> FailMode {
        self.config.fail
    }

    /// How many asks its fail mode has answered; none if it lives in this process.
    #[must_use]
    pub fn answered_by_fail_mode(&self) -> u64 {
        let rate = self.rate.as_ref().map_or(0, |rate| rate.answered_by_fail_mode());
        rate + self.cost.as_ref().map_or(0, Costed::answered_by_fail_mode)
    }

    fn is_federated(&self) -> bool {
        self.config.rate.as_ref().is_some_and(|rate| rate.tier.is_federated())
    }

    /// The rate axis, for an operation on it alone.
    fn rate(&self, operation: Operation) -> Result<&Rate, Refusal> {
        // A request to a policy that limits something else too is admitted: it must hold its place,
        // or be worth its price.
        let rate = self.rate.as_deref().filter(|_| self.admits.is_none());
        rate.ok_or_else(|| self.cannot(operation))
    }

    fn cannot(&self, operation: Operation) -> Refusal {
        Refusal::Unsupported { policy: self.name().to_owned(), operation }
    }

    fn unanswered(&self, why: Unanswered, operation: Operation) -> Refusal {
        match why {
            Unanswered::Unsupported => self.cannot(operation),
            Unanswered::Store(error) => self.failed(error),
        }
    }

    fn failed(&self, error: StoreError) -> Refusal {
        Refusal::Store { policy: self.name().to_owned(), error }
    }
}

fn bounded(key: &str) -> Result<&str, Refusal> {
    if key.len() <= KEY_MAX { Ok(key) } else { Err(Refusal::KeyTooLong { length: key.len() }) }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policy = f.debug_struct("Policy");
        policy.field("config", &self.config).finish_non_exhaustive()
    }
}

/// Messages travel in HTTP/2 headers, of which clients accept 8 KiB.
const KNOWN_SHOWN_MAX: usize = 512;
const NAME_SHOWN_MAX: usize = 64;
