//! Policies out of a configuration, with what is kept of those before.
//!
//! Nothing here changes what serves: policies are made beside those that answer, and what must
//! change in something that both have, such as a gate's limit, is noted for when all are made.
//!
//! # Guarantee
//! - A policy that is the same in both configurations is the same object in both.
//! - Of one that is not: its rate, its gate and its accounts are kept as `docs/SERVICE.md` says,
//!   and its counters always.
//! - If anything cannot be made, nothing that answers has been touched.
//!
//! # Proven by
//! `tests/it/reload.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use admittance::budget::SharedAccounts;
use admittance::concurrency::Node;
use admittance::gate::{Gate, LimitRules};
use admittance::two_tier::{Leasing, TwoTier};
use admittance::{FailMode, GuardSettings, Guarded, Invalid, Parts, SharedLimiter, Span};

use super::admit::Admits;
use super::axes::Axes;
use super::cost::{Costed, Ledger};
use super::gated::Gated;
use super::instance::Unservable;
use super::rate::{Here, Rate};
use super::shadow::Shadows;
use super::{Policies, Policy, Rules, SharedClock};
use crate::config::{Config, CostConfig, PolicyConfig, RateConfig, TierConfig};
use crate::escrow::Escrow;
use crate::http::Quotas;
use crate::store::AnyStore;

/// What policies are made on, and what they have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) place: Place,
    pub(super) node: Node,
    pub(super) clock: SharedClock,
    pub(super) settings: GuardSettings,
    /// The prefix of policies that have none of their own.
    /// The policies that run beside others.
    pub(super) candidates: BTreeSet<String>,
    /// One for each deadline that policies have: what is too slow for one may do for another. Those
    /// that run beside others have their own: no outage that only they see is one of who decides.
    pub(super) guards: BTreeMap<(Span, bool), Arc<Guarded<AnyStore>>>,
    /// Where costs are charged in the store: one for each deadline and fail mode.
    pub(super) shared: Vec<(Rules, Arc<SharedAccounts<AnyStore>>)>,
    /// This instance's part of every limit, without and with what others leave to it.
    pub(super) parts: [Option<Arc<Parts>>; 2],
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Where policies live.
#[derive(Clone)]
pub(super) enum Place {
    /// In this process, whose memory those with a tier lend and borrow in: what they do elsewhere.
    Here(AnyStore),
    /// In a store that instances share.
    There(AnyStore),
}

impl Place {
    const fn store(&self) -> &AnyStore {
        match self {
            Self::Here(store) | Self::There(store) => store,
        }
    }

    pub(super) const fn is_here(&self) -> bool {
        matches!(self, Self::Here(_))
    }
}

/// Policies that have been made.
pub(super) struct Made {
    pub(super) policies: Policies,
    /// Gates that go on with another limit.
    pub(super) limits: Vec<(Gate, LimitRules)>,
}

impl Common {
    /// What stands between the store and those who decide.
    pub(super) fn guards(&self) -> Vec<Arc<Guarded<AnyStore>>> {
        let deciding = self.guards.iter().filter(|((_, is_candidate), _)| !is_candidate);
        deciding.map(|(_, guard)| Arc::clone(guard)).collect()
    }

    fn is_candidate(&self, policy: &PolicyConfig) -> bool {
        self.candidates.contains(&policy.name)
    }

    /// Makes every policy of a configuration; `before` are those that answer now.
    pub(super) fn make(
        &mut self,
        config: &Config,
        ledger: &Ledger,
        before: &Policies,
    ) -> Result<Made, Unservable> {
        let candidates = config.policies.iter().flat_map(|policy| policy.shadow.candidates());
        self.candidates = candidates.cloned().collect();
        self.meet(config)?;
        let (mut policies, mut limits) = (Policies::new(), Vec::new());
        for policy in &config.policies {
            let old = before.get(&policy.name);
            let old = old.map(|old| {
                let has_role =
                    self.place.is_here() || old.is_candidate == self.is_candidate(policy);
                Old { has_role, ..Old::new(old, policy) }
            });
            let made = match &old {
                Some(old) if old.is_same(policy) => Arc::clone(old.policy),
                _ => {
                    let (made, limit) = self.policy(config, policy, ledger, old.as_ref())?;
                    limits.extend(limit);
                    Arc::new(made)
                }
            };
            policies.insert(policy.name.clone(), made);
        }
        self.let_go(config);
        Ok(Made { policies, limits })
    }

    /// Takes part where policies need a part of every limit.
    fn meet(&mut self, config: &Config) -> Result<(), Unservable> {
        let Place::There(store) = &self.place else { return Ok(()) };
        for reserve in [false, true] {
            let part = &mut self.parts[usize::from(reserve)];
            let fail = FailMode::Granted { reserve };
            let Some(policy) = config.policies.iter().find(|policy| policy.fail == fail) else {
                continue;
            };
            let Some(fleet) = store.fleet() else {
                return Err(Unservable::NoParts { policy: policy.name.clone() });
            };
            if part.is_none() {
                *part = Some(Arc::new(Parts::start(fleet, self.node.clone(), reserve)?));
            }
        }
        Ok(())
    }

    /// Keeps nothing that no policy needs.
    fn let_go(&mut self, config: &Config) {
        let has = |is: &dyn Fn(&PolicyConfig) -> bool| config.policies.iter().any(is);
        let candidates = &self.candidates;
        let is_candidate = |policy: &PolicyConfig| candidates.contains(&policy.name);
        self.guards.retain(|guarded, _| {
            has(&|policy| *guarded == (policy.store.deadline, is_candidate(policy)))
        });
        self.shared.retain(|(rules, _)| {
            let of = |it: &PolicyConfig| (it.store.deadline, it.fail, is_candidate(it));
            has(&|policy| policy.cost.is_some() && *rules == of(policy))
        });
        for (part, reserve) in self.parts.iter_mut().zip([false, true]) {
            if !has(&|policy| policy.fail == FailMode::Granted { reserve }) {
                *part = None;
            }
        }
    }

    fn policy(
        &mut self,
        config: &Config,
        policy: &PolicyConfig,
        ledger: &Ledger,
        old: Option<&Old<'_>>,
    ) -> Result<(Policy, Option<(Gate, LimitRules)>), Unservable> {
        let kept = old.and_then(|old| old.gate(policy));
        let (gate, limit) = match (&policy.concurrency, kept) {
            (Some(wanted), Some((gate, is_same))) => {
                let rules = Gated::rules(wanted, &self.node);
                let limit = (!is_same).then(|| (gate.gate().clone(), rules));
                (Some(gate), limit)
            }
            (Some(_), None) => (Some(Arc::new(self.gated(policy)?)), None),
            (None, _) => (None, None),
        };
        let rate = match (&policy.rate, old.and_then(|old| old.rate(policy, &self.place))) {
            (Some(_), Some(kept)) => Some(kept),
            (Some(rate), None) => Some(Arc::new(self.rate(policy, rate, old)?)),
            (None, _) => None,
        };
        let cost = match &policy.cost {
            Some(cost) => Some(Arc::new(self.costed(config, policy, cost, old)?)),
            None => None,
        };
        let is_there = matches!(rate.as_deref(), Some(Rate::There(_)))
            || cost.as_ref().is_some_and(|cost| cost.is_shared());
        let guard = is_there.then(|| self.guard(policy));
        let former = old.map(|old| &**old.policy);
        let joint = former.filter(|old| old.config.joint == policy.joint);
        let before = (former.and_then(Policy::counted), joint.and_then(Policy::joint));
        let admits = Admits::new(policy, gate.as_deref(), before, || {
            let ttl = policy.reservation_ttl();
            let purse = cost.as_ref().and_then(|cost| cost.purse(ledger, ttl));
            Axes::new(rate.as_ref(), purse, guard.as_ref(), &self.clock)
        })?;
        let config = policy.clone();
        let unasked = former.map_or_else(Arc::default, |old| Arc::clone(&old.unasked));
        let watched = former.map_or_else(Arc::default, |old| Arc::clone(&old.watched));
        let shadows = Shadows::new(&policy.shadow, former.map(|old| &old.shadows));
        let is_candidate = self.is_candidate(policy);
        let counts = former.map_or_else(Arc::default, |old| Arc::clone(&old.counts));
        let made = Policy {
            quotas: Quotas::new(policy),
            config,
            rate,
            gate,
            cost,
            admits,
            unasked,
            watched,
            counts,
            shadows,
            is_candidate,
        };
        Ok((made, limit))
    }

    fn gated(&self, policy: &PolicyConfig) -> Result<Gated, Unservable> {
        let Some(gate) = &policy.concurrency else {
            return Err(Unservable::NoFleet { policy: policy.name.clone() });
        };
        let fleet = match &self.place {
            Place::Here(_) => None,
            Place::There(store) => store.fleet(),
        };
        match fleet {
            Some(fleet) => Ok(Gated::on(policy, gate, fleet, &self.node)?),
            None if gate.fleet.is_some() && !self.place.is_here() => {
                Err(Unservable::NoFleet { policy: policy.name.clone() })
            }
            None => Ok(Gated::here(policy, gate, &self.clock, &self.node)?),
        }
    }

    /// A policy's rate axis, wherever its keys live.
    fn rate(
        &mut self,
        policy: &PolicyConfig,
        rate: &RateConfig,
        old: Option<&Old<'_>>,
    ) -> Result<Rate, Invalid> {
        if self.place.is_here() {
            let clock = Arc::clone(&self.clock);
            match (&rate.escrow, rate.tier.is_strict()) {
                (None, true) => {
                    return Ok(Rate::Here(match old.and_then(|old| old.policy.rate.as_deref()) {
                        Some(Rate::Here(former)) => Here::instead_of(former, rate, clock),
                        _ => Here::new(rate, clock),
                    }));
                }
                (Some(escrow), _) => {
                    let escrow = Escrow::here(escrow, clock)?;
                    return Ok(Rate::Together(Box::new(escrow)));
                }
                (None, false) => {}
            }
        }
        let guard = self.guard(policy);
        if let Some(escrow) = &rate.escrow {
            let escrow = Escrow::there(policy, escrow, &guard)?;
            return Ok(Rate::Together(Box::new(escrow)));
        }
        let name = policy.store_name();
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

    /// What stands between a policy and the store.
    fn guard(&mut self, policy: &PolicyConfig) -> Arc<Guarded<AnyStore>> {
        let deadline = policy.store.deadline;
        let guarded = (deadline, self.is_candidate(policy));
        let (store, settings) = (self.place.store(), &self.settings);
        let guard = self.guards.entry(guarded).or_insert_with(|| {
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
        old: Option<&Old<'_>>,
    ) -> Result<Costed, Unservable> {
        let old = old.and_then(|old| old.policy.cost.as_deref());
        if !cost.is_shared || self.place.is_here() {
            return Ok(Costed::new(cost, &policy.name, None, old));
        }
        if !self.place.store().has_accounts() {
            return Err(Unservable::NoAccounts { policy: policy.name.clone() });
        }
        let name = policy.store_name();
        // Policies that can be charged together must go on alone together: what one entry takes of
        // a part, another must see.
        let rules = (policy.store.deadline, policy.fail, self.is_candidate(policy));
        if let Some((_, shared)) = self.shared.iter().find(|(known, _)| *known == rules) {
            return Ok(Costed::new(cost, name, Some(Arc::clone(shared)), old));
        }
        let guard = self.guard(policy);
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
        Ok(Costed::new(cost, name, Some(shared), old))
    }
}

/// What a policy was before.
struct Old<'a> {
    policy: &'a Arc<Policy>,
    /// Whether it is called the same in the store, and its fleet.
    has_name: bool,
    has_fleet: bool,
    /// Whether it decides, or runs beside another, as it did; where that makes a difference.
    has_role: bool,
}

impl<'a> Old<'a> {
    fn new(policy: &'a Arc<Policy>, new: &PolicyConfig) -> Self {
        fn fleet(of: &PolicyConfig) -> Option<&str> {
            let fleet = of.concurrency.as_ref()?.fleet.as_ref()?;
            Some(fleet.name(of))
        }
        let old = &policy.config;
        Self {
            policy,
            has_name: old.store_name() == new.store_name(),
            has_fleet: fleet(old) == fleet(new),
            has_role: true,
        }
    }

    fn is_same(&self, new: &PolicyConfig) -> bool {
        self.policy.config == *new && self.has_name && self.has_fleet && self.has_role
    }

    /// Its rate, if that is still what is limited, where it is counted and how it fails.
    fn rate(&self, new: &PolicyConfig, place: &Place) -> Option<Arc<Rate>> {
        let old = &self.policy.config;
        let is_same_there = || {
            let is_kept_so = self.has_name && self.has_role;
            is_kept_so && old.fail == new.fail && old.store.deadline == new.store.deadline
        };
        let rate = self.policy.rate.as_ref()?;
        let is_counted_here = place.is_here() && !matches!(**rate, Rate::Tiered(_));
        let is_same = old.rate == new.rate && (is_counted_here || is_same_there());
        is_same.then(|| Arc::clone(rate))
    }

    /// Its gate, if it is still of the same fleet, or of none; and whether its limit is the same.
    fn gate(&self, new: &PolicyConfig) -> Option<(Arc<Gated>, bool)> {
        let (old, new) = (self.policy.config.concurrency.as_ref()?, new.concurrency.as_ref()?);
        let is_kept = self.has_fleet && old.fleet == new.fleet;
        let gate = self.policy.gate.as_ref().filter(|_| is_kept)?;
        Some((Arc::clone(gate), old.limit == new.limit))
    }
}
