//! The service core: policies by name, and what may be asked of them.
//!
//! Every door (gRPC, HTTP) turns its messages into these calls and these refusals into
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
//! `tests/it/grpc.rs`, over a live door, with a manual clock; `tests/it/fail.rs`, with a store that
//! can be lost.
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
mod check;
mod cost;
mod gated;
mod instance;
mod lend;
mod load;
mod make;
mod many;
mod observed;
mod rate;
mod refusal;
mod reload;
mod shadow;
mod shadow_admit;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admittance::budget::MemoryAccounts;
use admittance::concurrency::Node;
use admittance::{
    Builtin, Clock, Cost, Decision, FailMode, Forecast, GuardSettings, Guarded, Limiter, Memory,
    Span, StoreError,
};
use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{Config, PolicyConfig, ShadowConfig};
use crate::http::Quotas;
use crate::leases::Leases;
use crate::monitor::{Monitor, Watched};
use crate::observe::{Counts, PolicyCounts};
use crate::peers::Peers;
use crate::store::AnyStore;

use self::admit::{Admits, Unasked};
pub use self::admit::{Admitted, SWEEP, Work};
pub(crate) use self::axes::Axes;
pub use self::cost::{Asked, CostLine, Costs, Expected, Reserved, Terms};
use self::cost::{Costed, Ledger};
use self::gated::Gated;
pub use self::instance::{Instance, Unservable};
pub use self::lend::{Lent, Stopped};
use self::load::Guarding;
use self::make::{Common, Place};
use self::rate::{Rate, Unanswered};
pub use self::refusal::{Known, Operation, Refusal, cost, units};
pub use self::reload::{Changed, Reloaded, Reloads, Unreloadable};
use self::reload::{Former, Kinds, Reloading, ttl_min};
pub use self::shadow::{Answer, CandidateCounts, Shadowed};
use self::shadow::{Queue, Shadows};

/// A clock that every policy reads; tests put a manual one here.
pub type SharedClock = Arc<dyn Clock + Send + Sync>;

/// The most bytes a key may have.
pub const KEY_MAX: usize = 4_096;

/// The most keys one batch may have.
pub const BATCH_MAX: usize = 10_000;

// A batch that is too long by a little is told so by its length.
const _: () = assert!(admittance_proto::FIELDS_MAX > BATCH_MAX + 8);

/// The policies of one process.
#[derive(Debug)]
pub struct Service {
    /// Replaced as a whole: a request goes by those that it found.
    policies: ArcSwap<Policies>,
    /// What they are made on, and have in common.
    common: Mutex<Common>,
    /// What there is among them.
    kinds: Kinds,
    reloading: Reloading,
    /// Accounts of what policies were before a reload.
    former: Former,
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
    /// What it has against its own overload.
    guarding: Guarding,
    /// What candidates are to be asked in the store.
    queue: Queue,
    pub(crate) monitor: Monitor,
    /// What metrics count.
    counts: Counts,
}

/// Policies by name.
type Policies = BTreeMap<String, Arc<Policy>>;

/// What policies must have in common to be charged together: the store's deadline, the fail mode,
/// whether they run beside others.
type Rules = (Span, FailMode, bool);

/// One policy, ready to decide.
pub struct Policy {
    config: PolicyConfig,
    rate: Option<Arc<Rate>>,
    gate: Option<Arc<Gated>>,
    cost: Option<Arc<Costed>>,
    admits: Option<Admits>,
    unasked: Arc<Unasked>,
    watched: Arc<Watched>,
    shadows: Shadows,
    /// Whether it runs beside another.
    is_candidate: bool,
    quotas: Quotas,
    counts: Arc<PolicyCounts>,
}

impl Service {
    /// A service for these policies on the in-process store.
    ///
    /// # Panics
    /// If a policy's escrow or tier has rules that cannot be kept; a configuration that was read
    /// has none. Outside of a tokio runtime if a policy has a tier, whose tasks run there.
    #[must_use]
    pub fn new(config: &Config, clock: SharedClock) -> Self {
        let memory = AnyStore::new(Memory::new(Arc::clone(&clock)));
        let settings = GuardSettings { clock: Arc::new(Arc::clone(&clock)), ..Default::default() };
        let node = Instance::default().node();
        let made = Self::made(config, Place::Here(memory), (clock, settings, node));
        made.expect("the reader has built it once")
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
        let clock: SharedClock = Arc::new(Arc::clone(&settings.clock));
        let with = (clock, settings.clone(), instance.node());
        let mut service = Self::made(config, Place::There(store.clone()), with)?;
        service.monitor.name(&instance.node_id);
        Ok(service)
    }

    fn made(
        config: &Config,
        place: Place,
        (clock, settings, node): (SharedClock, GuardSettings, Node),
    ) -> Result<Self, Unservable> {
        let relay = match &place {
            Place::Here(_) => None,
            Place::There(store) => store.fleet(),
        };
        let mut common = Common {
            place,
            node,
            clock: Arc::clone(&clock),
            settings,
            candidates: BTreeSet::new(),
            guards: BTreeMap::new(),
            shared: Vec::new(),
            parts: [None, None],
        };
        let ledger = Ledger::new(MemoryAccounts::new(Arc::clone(&clock)));
        ledger.bound(config, &[]);
        let policies = common.make(config, &ledger, &Policies::new())?.policies;
        let kinds = Kinds::default();
        kinds.set(&policies);
        Ok(Self {
            policies: ArcSwap::from_pointee(policies),
            common: Mutex::new(common),
            kinds,
            reloading: Reloading::new(config),
            former: Former::default(),
            peers: Peers::default(),
            stopped: watch::Sender::default(),
            lent: AtomicU64::new(0),
            incarnation: std::hash::RandomState::new().hash_one(std::process::id()),
            leases: Leases::new(clock, relay, ttl_min(config)),
            ledger,
            guarding: Guarding::new(config),
            queue: Queue::new(),
            monitor: Monitor::default(),
            counts: Counts::default(),
        })
    }

    fn common(&self) -> MutexGuard<'_, Common> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what this process holds of shared limits. To be called when no more requests
    /// come.
    pub async fn close(&self) {
        self.reloading.hurry();
        let mut closing = JoinSet::new();
        let parts = self.common().parts.clone();
        let policies = self.policies.load_full();
        for policy in policies.values() {
            if let Some(Rate::Tiered(tier)) = policy.rate.as_deref() {
                let tier = Arc::clone(tier);
                closing.spawn(async move { tier.close().await });
            }
        }
        // All are told first: then each says its farewell while the others do.
        let gates: Vec<_> = policies.values().filter_map(|policy| policy.gate.as_ref()).collect();
        gates.iter().for_each(|gate| gate.begin_close());
        parts.iter().flatten().for_each(|parts| parts.begin_close());
        for gate in gates {
            gate.close().await;
        }
        for parts in parts.iter().flatten() {
            // If it cannot be said, the part ends by itself.
            let _ = parts.close().await;
        }
        self.leases.close().await;
        while closing.join_next().await.is_some() {}
        self.reloading.all_closed().await;
    }

    /// What stands before the shared store, one for each deadline that policies have that decide;
    /// none for the in-process store.
    pub fn guards(&self) -> impl Iterator<Item = Arc<Guarded<AnyStore>>> + use<> {
        let common = self.common();
        // What stands before this process's memory is nobody's concern: it always answers.
        let shown = if common.place.is_here() { Vec::new() } else { common.guards() };
        shown.into_iter()
    }

    /// Whether any policy has a budget.
    #[must_use]
    pub fn has_budgets(&self) -> bool {
        self.kinds.has_budgets()
    }

    /// Whether any policy has a budget, or had one in which something may still be reserved.
    #[must_use]
    pub fn has_reserved(&self) -> bool {
        self.has_budgets() || self.former.is_any()
    }

    /// The policy with this name.
    ///
    /// # Errors
    /// [`Refusal::UnknownPolicy`].
    pub fn policy(&self, name: &str) -> Result<Arc<Policy>, Refusal> {
        let policies = self.policies.load();
        policies.get(name).map(Arc::clone).ok_or_else(|| Refusal::UnknownPolicy {
            name: name.chars().take(NAME_SHOWN_MAX).collect(),
            known: Known::of(policies.keys()),
        })
    }

    /// Every policy, in the order of their names.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        self.policies.load().values().map(Arc::clone).collect()
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

    /// The same of what the policy's store has, for policies that lend too: what was lent counts as
    /// spent.
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    pub async fn peek_store(&self, policy: &str, key: &str) -> Result<Decision, Refusal> {
        let policy = self.policy(policy)?;
        let key = bounded(key)?;
        let seen = policy.rate(Operation::Peek)?.peek_store(key).await;
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
}

impl Policy {
    /// The name that requests ask for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    pub(crate) fn counts(&self) -> &PolicyCounts {
        &self.counts
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
        rate + self.cost.as_ref().map_or(0, |cost| cost.answered_by_fail_mode())
    }

    /// What decides its checks, if that is all there is to them: keys in this process and nothing
    /// beside, no tier, no load to shed, no candidate. Asked directly it decides as
    /// [`Service::check`] does, and nothing is counted for metrics or the monitor.
    ///
    /// A reload may put another policy in this one's place; ask the service for it again then.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use admittance::SystemClock;
    /// use admittance_server::{Config, Fail, Service};
    ///
    /// let service = Service::new(&Config::built_in(Fail::Open)?, Arc::new(SystemClock::new()));
    /// let policy = service.policy("api")?;
    /// let limiter = policy.limiter().expect("a plain rate policy");
    /// assert_eq!(limiter.check("user-1").remaining, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn limiter(&self) -> Option<&Arc<Limiter<Builtin, SharedClock>>> {
        let is_plain = self.config.load.is_none()
            && self.config.shadow == ShadowConfig::default()
            && !self.is_candidate
            && self.admits.is_none();
        match self.rate.as_deref() {
            Some(Rate::Here(here)) if is_plain => Some(here.limiter()),
            _ => None,
        }
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

const NAME_SHOWN_MAX: usize = 64;
