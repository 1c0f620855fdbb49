//! Another configuration, while requests are answered.
//!
//! All of it is [made](super::make) beside what answers, then put in its place in one step. A
//! request goes by the policies that it found.
//!
//! # Guarantee
//! - All of the new configuration, or none: what cannot be served changes nothing.
//! - No request waits for a reload, and none is refused by one: who has found a policy that is
//!   removed is answered by it.
//! - Leases that were given out are released, heard of, debited and settled as before, those of
//!   policies that are gone too; a reservation can be settled for as long as any may live.
//! - What was spent is kept, in units where the numbers change; `docs/SERVICE.md` has the table.
//! - Bounded: of what policies were, the accounts of the last [`FORMER_MAX`] are found, each for
//!   [`Budget::TTL_MAX`].
//!
//! # Proven by
//! `tests/it/reload.rs`, with mutants, and `tests/it/reload.rs` of the command, under load.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use admittance::{Cost, SystemClock};
//! use admittance_server::{Config, Fail, Service};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let policies = "limiters: { api: { strategy: gcra, limit: 5, period: 1h } }";
//! let config = Config::parse("policies.yaml", policies, Fail::Open)?;
//! let service = Service::new(&config, Arc::new(SystemClock::new()));
//! assert_eq!(service.check("api", "ann", Cost::ONE).await?.decision.remaining, 4);
//!
//! let policies = "limiters: { api: { strategy: gcra, limit: 5, period: 1h, fail: closed } }";
//! let reloaded = service.reload(&Config::parse("policies.yaml", policies, Fail::Open)?).await?;
//! assert_eq!(reloaded.to_string(), "changed api; 0 kept");
//! assert_eq!(service.check("api", "ann", Cost::ONE).await?.decision.remaining, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admittance::budget::Budget;
use admittance::{Micros, Parts, Span};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cost::{Asked, Costed, Ledger};
use super::gated::Gated;
use super::instance::Unservable;
use super::rate::Rate;
use super::{Policies, Policy, Service};
use crate::config::{Config, GateConfig, PolicyConfig, Shedding, quoted};

/// What became of each policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Policies that were not there.
    pub added: Vec<String>,
    /// Policies that are gone.
    pub removed: Vec<String>,
    /// Policies that are not as they were.
    pub changed: Vec<Changed>,
    /// How many are.
    pub kept: usize,
}

/// A policy that is not as it was, and which of its axes have begun anew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// The policy.
    pub policy: String,
    /// Its rate is counted from nothing in this process; in a store, as the store knows it. In this
    /// process one that only has other numbers is not.
    pub is_rate_new: bool,
    /// Its gate is another: permits that are out count at the old one.
    pub is_gate_new: bool,
}

/// Why a configuration cannot take the place of another. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreloadable {
    /// No service can be made of it.
    #[error("{0}")]
    Unservable(#[from] Unservable),
    /// Load is shed by rules that were there from the start.
    #[error(
        "load: how the service sheds cannot change while it serves; restart it, or write what \
         it started with"
    )]
    Load,
    /// The store was opened with something else.
    #[error(
        "policy {}: hashTag, waitReplicas and durable are what the store was opened with under \
         the name {}; restart, or give the policy a prefix that was not there",
        quoted(policy),
        quoted(name)
    )]
    StoreOptions {
        /// The policy.
        policy: String,
        /// Its name in the store.
        name: String,
    },
}

/// How reloads went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloads {
    /// Those that took their place.
    pub succeeded: u64,
    /// Those that changed nothing: what could not be read, and what could not be served.
    pub failed: u64,
    /// When the present configuration took its place, on the service's clock.
    pub last: Option<Micros>,
}

impl Service {
    /// Puts another configuration in the place of the present one. One at a time: others wait.
    ///
    /// # Errors
    /// Why it cannot be; then nothing has changed.
    pub async fn reload(&self, config: &Config) -> Result<Reloaded, Unreloadable> {
        let _alone = self.reloading.alone.lock().await;
        let reloaded = self.replace(config).await;
        match &reloaded {
            Ok(_) => self.reloading.succeeded(self.leases.now()),
            Err(_) => self.reload_failed(),
        }
        reloaded
    }

    /// Counts a configuration that could not even be read.
    pub fn reload_failed(&self) {
        self.reloading.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// How reloads went.
    #[must_use]
    pub fn reloads(&self) -> Reloads {
        let Reloading { succeeded, failed, last_us, .. } = &self.reloading;
        let last = Some(last_us.load(Ordering::Relaxed)).filter(|us| *us > 0);
        Reloads {
            succeeded: succeeded.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
            last: last.and_then(Micros::from_epoch_us),
        }
    }

    async fn replace(&self, config: &Config) -> Result<Reloaded, Unreloadable> {
        let mut common = self.common().clone();
        self.reloading.allows(config, common.place.is_here())?;
        let parts_before = common.parts.clone();
        let old = self.policies.load_full();
        let made = common.make(config, &self.ledger, &old)?;
        if !self.kinds.gives_leases() && made.policies.values().any(|one| one.gives_leases()) {
            // Other instances must find this one before a lease of it can come to them.
            let _ = tokio::time::timeout(COLLECT_MAX, self.collect()).await;
        }
        let reloaded = compared(&old, &made.policies);
        // Nothing fails from here on. What both need is there while both answer.
        self.ledger.bound(config, &self.former.names_with(&old));
        let leaving = leaving(&old, &made.policies);
        self.kinds.add(&made.policies);
        // Before they are gone: who settles in between must find them.
        let until = self.leases.now() + Budget::TTL_MAX;
        for policy in old.values() {
            let new = made.policies.get(policy.name());
            if let Some(cost) = &policy.cost
                && !new.is_some_and(|new| new.has_accounts_of(cost))
            {
                self.former.add(policy.name(), cost, until);
            }
        }
        self.policies.store(Arc::new(made.policies));
        let new = self.policies.load_full();
        let parts_after = common.parts.clone();
        *self.common() = common;
        self.kinds.set(&new);
        self.leases.set_ttl_min(ttl_min(config));
        for (gate, rules) in made.limits {
            // The reader has built one of these rules.
            let _ = gate.set_rules(rules);
        }
        self.forget_former();
        drop(old);
        let parts = parts_before.into_iter().zip(parts_after);
        let parts = parts.filter_map(|(before, after)| before.filter(|_| after.is_none()));
        self.reloading.close(leaving, parts.collect());
        Ok(reloaded)
    }

    /// Forgets accounts that nobody can hold a reservation in any more.
    pub(super) fn forget_former(&self) {
        let over = self.former.over(self.leases.now());
        if over.is_empty() {
            return;
        }
        let policies = self.policies.load();
        for cost in over {
            let is_used = policies
                .values()
                .any(|policy| policy.cost.as_ref().is_some_and(|used| used.name() == cost.name()));
            if cost.is_here() && !is_used && !self.former.has_name(cost.name()) {
                self.ledger.here.forget(cost.name());
            }
        }
    }
}

impl Policy {
    fn has_accounts_of(&self, cost: &Costed) -> bool {
        self.cost.as_ref().is_some_and(|own| own.has_accounts_of(cost))
    }
}

/// What became of each policy.
fn compared(old: &Policies, new: &Policies) -> Reloaded {
    let mut reloaded = Reloaded::default();
    reloaded.removed.extend(old.keys().filter(|name| !new.contains_key(*name)).cloned());
    for (name, new) in new {
        match old.get(name) {
            None => reloaded.added.push(name.clone()),
            Some(old) if Arc::ptr_eq(old, new) => reloaded.kept += 1,
            Some(old) => {
                let is_rate_new = is_other(old.rate.as_ref(), new.rate.as_ref())
                    && heir(old, Some(new)).is_none();
                let is_gate_new = is_other(old.gate.as_ref(), new.gate.as_ref());
                let policy = name.clone();
                reloaded.changed.push(Changed { policy, is_rate_new, is_gate_new });
            }
        }
    }
    reloaded
}

fn is_other<T>(old: Option<&Arc<T>>, new: Option<&Arc<T>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

/// The rate that goes on in this process with what an old one's keys have spent.
fn heir(old: &Policy, new: Option<&Arc<Policy>>) -> Option<Arc<Rate>> {
    let (old, new) = (old.rate.as_ref()?, new?.rate.as_ref()?);
    match (&**old, &**new) {
        (Rate::Here(before), Rate::Here(after)) if !Arc::ptr_eq(old, new) => {
            after.goes_on_from(before).then(|| Arc::clone(new))
        }
        _ => None,
    }
}

/// What gives something back, or over to another, when nobody goes by it any more.
struct Leaving {
    /// Counted by who still goes by it.
    policy: Arc<Policy>,
    rate: Option<Arc<Rate>>,
    gate: Option<Arc<Gated>>,
    /// What the rate's keys have spent goes there.
    heir: Option<Arc<Rate>>,
}

fn leaving(old: &Policies, new: &Policies) -> Vec<Leaving> {
    let gone = old.iter().filter_map(|(name, old)| {
        let new = new.get(name);
        let rate = old.rate.as_ref().filter(|rate| {
            let kept = new.and_then(|new| new.rate.as_ref());
            matches!(***rate, Rate::Tiered(_)) && is_other(kept, Some(rate))
        });
        let gate = old.gate.as_ref().filter(|gate| {
            let kept = new.and_then(|new| new.gate.as_ref());
            matches!(***gate, Gated::Fleet(_)) && is_other(kept, Some(gate))
        });
        let heir = heir(old, new);
        (rate.is_some() || gate.is_some() || heir.is_some()).then(|| Leaving {
            policy: Arc::clone(old),
            rate: rate.cloned(),
            gate: gate.cloned(),
            heir,
        })
    });
    gone.collect()
}

impl Leaving {
    async fn close(self, mut hurry: watch::Receiver<bool>) {
        let Self { policy, rate, gate, heir } = self;
        let is_used = async {
            while Arc::strong_count(&policy) > 1 {
                tokio::time::sleep(LOOKED_EVERY).await;
            }
        };
        tokio::select! {
            // No call takes longer, and one that does is answered by the store or denied.
            _ = tokio::time::timeout(crate::serve::CALL_MAX, is_used) => {}
            _ = hurry.wait_for(|hurry| *hurry) => {}
        }
        if let Some(heir) = heir.filter(|_| !*hurry.borrow()) {
            // A table may have millions of keys. Until it is done, keys move as they are asked.
            let _ = tokio::task::spawn_blocking(move || {
                if let Rate::Here(here) = &*heir {
                    here.take_over();
                }
            })
            .await;
        }
        if let Some(Rate::Tiered(tier)) = rate.as_deref() {
            tier.close().await;
        }
        if let Some(gate) = gate {
            gate.close().await;
        }
    }
}

/// What reloads go by, and how they went.
pub(super) struct Reloading {
    alone: tokio::sync::Mutex<()>,
    load: Shedding,
    /// What the store was opened with: names in it whose options are not the usual ones.
    options: BTreeMap<String, Options>,
    closing: Mutex<JoinSet<()>>,
    hurry: watch::Sender<bool>,
    succeeded: AtomicU64,
    failed: AtomicU64,
    last_us: AtomicU64,
}

/// What a store must be told about a name when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    hash_tag: Option<String>,
    wait_replicas: u64,
    durable: bool,
}

impl Options {
    const USUAL: Self = Self { hash_tag: None, wait_replicas: 0, durable: true };

    fn of(policy: &PolicyConfig) -> Self {
        let store = &policy.store;
        let (wait_replicas, durable) = (store.wait_replicas, store.durable);
        Self { hash_tag: store.hash_tag.clone(), wait_replicas, durable }
    }
}

impl Reloading {
    pub(super) fn new(config: &Config) -> Self {
        let options = config.policies.iter().map(|policy| {
            let name = policy.store_name().to_owned();
            (name, Options::of(policy))
        });
        Self {
            alone: tokio::sync::Mutex::default(),
            load: config.load,
            options: options.filter(|(_, options)| *options != Options::USUAL).collect(),
            closing: Mutex::default(),
            hurry: watch::Sender::new(false),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
        }
    }

    /// Refuses what only a restart can change.
    fn allows(&self, config: &Config, is_here: bool) -> Result<(), Unreloadable> {
        if config.load != self.load {
            return Err(Unreloadable::Load);
        }
        for policy in config.policies.iter().filter(|_| !is_here) {
            let name = policy.store_name();
            let opened = self.options.get(name).unwrap_or(&Options::USUAL);
            if *opened != Options::of(policy) {
                let (policy, name) = (policy.name.clone(), name.to_owned());
                return Err(Unreloadable::StoreOptions { policy, name });
            }
        }
        Ok(())
    }

    fn succeeded(&self, now: Micros) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
        self.last_us.store(now.epoch_us(), Ordering::Relaxed);
    }

    /// Closes what nobody needs any more, once nobody goes by it.
    fn close(&self, leaving: Vec<Leaving>, parts: Vec<Arc<Parts>>) {
        let mut closing = lock(&self.closing);
        while closing.try_join_next().is_some() {}
        for one in leaving {
            closing.spawn(one.close(self.hurry.subscribe()));
        }
        for part in parts {
            closing.spawn(async move {
                // If it cannot be said, the part ends by itself.
                let _ = part.close().await;
            });
        }
    }

    /// Closes at once what still waits for requests to be answered.
    pub(super) fn hurry(&self) {
        let _ = self.hurry.send_replace(true);
    }

    /// Waits until all is closed that was to be.
    pub(super) async fn all_closed(&self) {
        let mut closing = std::mem::take(&mut *lock(&self.closing));
        while closing.join_next().await.is_some() {}
    }
}

impl fmt::Debug for Reloading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("succeeded", &self.succeeded).finish_non_exhaustive()
    }
}

/// What there is among the policies, to be asked at every request.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    is_federated: AtomicBool,
    has_budgets: AtomicBool,
    gives_leases: AtomicBool,
    is_shed_by_policy: AtomicBool,
}

impl Kinds {
    fn each(&self, policies: &Policies) -> [(&AtomicBool, bool); 4] {
        let any = |is: fn(&Policy) -> bool| policies.values().any(|policy| is(policy));
        [
            (&self.is_federated, any(Policy::is_federated)),
            (&self.has_budgets, any(|policy| policy.cost.is_some())),
            (&self.gives_leases, any(Policy::gives_leases)),
            (&self.is_shed_by_policy, any(|policy| policy.config.load.is_some())),
        ]
    }

    pub(super) fn set(&self, policies: &Policies) {
        self.each(policies).into_iter().for_each(|(kind, is)| kind.store(is, Ordering::Relaxed));
    }

    /// What there is among these too.
    fn add(&self, policies: &Policies) {
        for (kind, _) in self.each(policies).into_iter().filter(|(_, is)| *is) {
            kind.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_federated(&self) -> bool {
        self.is_federated.load(Ordering::Relaxed)
    }

    pub(super) fn has_budgets(&self) -> bool {
        self.has_budgets.load(Ordering::Relaxed)
    }

    pub(super) fn gives_leases(&self) -> bool {
        self.gives_leases.load(Ordering::Relaxed)
    }

    pub(super) fn is_shed_by_policy(&self) -> bool {
        self.is_shed_by_policy.load(Ordering::Relaxed)
    }
}

/// Accounts of what policies were, in which reservations may still be open.
#[derive(Debug, Default)]
pub(super) struct Former(Mutex<VecDeque<Was>>);

#[derive(Debug)]
struct Was {
    policy: String,
    cost: Arc<Costed>,
    until: Micros,
}

impl Former {
    fn add(&self, policy: &str, cost: &Arc<Costed>, until: Micros) {
        let mut all = lock(&self.0);
        if let Some(again) = all.iter().position(|was| Arc::ptr_eq(&was.cost, cost)) {
            all.remove(again);
        }
        all.push_back(Was { policy: policy.to_owned(), cost: Arc::clone(cost), until });
    }

    /// The accounts of what this policy was last.
    pub(super) fn get(&self, policy: &str) -> Option<Arc<Costed>> {
        let all = lock(&self.0);
        all.iter().rev().find(|was| was.policy == policy).map(|was| Arc::clone(&was.cost))
    }

    pub(super) fn has_any(&self, asked: &[Asked<'_>]) -> bool {
        let all = lock(&self.0);
        !all.is_empty() && all.iter().any(|was| asked.iter().any(|one| one.policy == was.policy))
    }

    pub(super) fn is_any(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Takes out those whose time is over, and those that are too many.
    fn over(&self, now: Micros) -> Vec<Arc<Costed>> {
        let mut all = lock(&self.0);
        let too_many = all.len().saturating_sub(FORMER_MAX);
        let late = all.iter().take_while(|was| was.until <= now).count();
        all.drain(..late.max(too_many)).map(|was| was.cost).collect()
    }

    fn has_name(&self, name: &str) -> bool {
        lock(&self.0).iter().any(|was| was.cost.name() == name)
    }

    /// What accounts are called that are kept beside those of the configuration.
    fn names_with(&self, old: &Policies) -> Vec<(Box<str>, u64)> {
        let old = old.values().filter_map(|policy| policy.cost.as_ref());
        let all = lock(&self.0);
        let former = all.iter().map(|was| &was.cost);
        let here = former.chain(old).filter(|cost| cost.is_here());
        here.map(|cost| (cost.name().into(), cost.accounts_max())).collect()
    }
}

impl Ledger {
    /// Has room for the accounts of this configuration and of those that are kept beside them.
    pub(super) fn bound(&self, config: &Config, kept: &[(Box<str>, u64)]) {
        let mut bounds: BTreeMap<Box<str>, u64> = kept.iter().cloned().collect();
        let names: BTreeSet<&str> = config.policies.iter().map(|one| one.name.as_str()).collect();
        let more = bounds.keys().filter(|name| !names.contains(&***name)).count();
        for policy in &config.policies {
            if let Some(cost) = &policy.cost {
                bounds.insert(policy.name.as_str().into(), cost.accounts_max());
            }
        }
        self.here.set_bounds(config.policies.len() + more, bounds);
    }
}

/// The shortest that leases live.
pub(super) fn ttl_min(config: &Config) -> Span {
    let shortest = config.policies.iter().filter_map(PolicyConfig::lease_ttl).min();
    shortest.unwrap_or(GateConfig::LEASE_TTL_DEFAULT)
}

/// As one line: `added a, b; removed c; changed d (rate anew); 7 kept`.
impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = self.changed.iter().map(|changed| {
            let anew = match (changed.is_rate_new, changed.is_gate_new) {
                (true, true) => " (rate and concurrency anew)",
                (true, false) => " (rate anew)",
                (false, true) => " (concurrency anew)",
                (false, false) => "",
            };
            format!("{}{anew}", changed.policy)
        });
        for (what, names) in [
            ("added", self.added.clone()),
            ("removed", self.removed.clone()),
            ("changed", changed.collect()),
        ] {
            if !names.is_empty() {
                let more = names.len().saturating_sub(SHOWN_MAX);
                write!(f, "{what} {}", names[..names.len() - more].join(", "))?;
                if more > 0 {
                    write!(f, " and {more} more")?;
                }
                f.write_str("; ")?;
            }
        }
        write!(f, "{} kept", self.kept)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many accounts of what policies were are found at most.
const FORMER_MAX: usize = 10_000;
/// How long saying that this instance is here may hold up a reload.
const COLLECT_MAX: Duration = Duration::from_millis(500);
/// How often it is looked whether anybody still goes by a policy.
const LOOKED_EVERY: Duration = Duration::from_millis(50);
/// More names than this are not told.
const SHOWN_MAX: usize = 20;
