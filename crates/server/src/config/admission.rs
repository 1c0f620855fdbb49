//! A policy of several axes: strategy, `concurrency`, `cost`, `load`, and how they go together.

use admittance::{Atomicity, Builtin, FailMode, Limiter, Span};

use super::policy::{Raw, Reader};
use super::problem::{Place, Problem};
use super::rule::Rule;
use super::{
    CostConfig, Defaults, GateConfig, PolicyConfig, RateConfig, StoreConfig, TierConfig, budget,
    concurrency, escrow, joint, lease, load, shadow,
};

impl PolicyConfig {
    /// Whether Admit decides all of its axes as one: it has a `cost` block, or prices. One with
    /// `tokenBudget` or `fleetBudget` is for Debit and the budget service, and is none.
    #[must_use]
    pub fn is_admission(&self) -> bool {
        self.joint.is_some() || self.cost.as_ref().is_some_and(|cost| cost.is_axis)
    }

    /// What it is asked with: `check`, `debit` or `admit`.
    #[must_use]
    pub fn asked_with(&self) -> &'static str {
        match self {
            _ if self.concurrency.is_some() || self.is_admission() => "admit",
            Self { cost: Some(_), .. } => "debit",
            _ => "check",
        }
    }

    /// Whether one axis could stay charged when another denies.
    pub(super) const fn charges_two(&self) -> bool {
        self.rate.is_some() && self.cost.is_some()
    }
}

/// The axes of a policy that are limits.
pub(super) struct Axes {
    pub(super) rate: Option<RateConfig>,
    pub(super) concurrency: Option<GateConfig>,
    pub(super) cost: Option<CostConfig>,
}

impl Reader<'_, '_> {
    /// The policy that has a strategy, or other axes, or both. `None` if anything is wrong with it.
    pub(super) fn admission(&mut self, defaults: Defaults, raw: &Raw<'_>) -> Option<PolicyConfig> {
        let concurrency = self.concurrency(raw);
        let cost = self.cost_axis(raw);
        let is_rated = !is_without_rate(raw);
        let ruled = if is_rated { self.ruled(raw) } else { None };
        let strategy = ruled.map(|(_, strategy)| strategy);
        let (fail, mut store) = self.shared(defaults, &shares_of(strategy, cost.as_ref()), raw);
        let rate = ruled.and_then(|ruled| self.rate(ruled, &mut store.deadline, raw));
        if rate.is_some() != is_rated {
            return None;
        }
        self.joined(Axes { rate, concurrency, cost }, (fail?, store), raw)
    }

    fn rate(
        &mut self,
        (rule, strategy): (Rule, Builtin),
        deadline: &mut Span,
        raw: &Raw<'_>,
    ) -> Option<RateConfig> {
        let (rule, strategy, tier) = self.tier(rule, strategy, deadline, raw)?;
        let max_keys = raw.max_keys.value().copied();
        Some(RateConfig {
            rule,
            strategy,
            max_keys: max_keys.unwrap_or_else(|| Limiter::max_keys_default(&strategy)),
            on_full: raw.on_full.value().copied().unwrap_or_default(),
            tier,
            escrow: None,
        })
    }

    /// The cost axis, if the policy has one that can be used.
    pub(super) fn cost_axis(&mut self, raw: &Raw<'_>) -> Option<CostConfig> {
        raw.cost.value().and_then(|block| self.costs(block))
    }

    /// The policy that has these axes, with what holds for all of them.
    pub(super) fn joined(
        &mut self,
        axes: Axes,
        (fail, store): (FailMode, StoreConfig),
        raw: &Raw<'_>,
    ) -> Option<PolicyConfig> {
        let joint = self.joint(&axes, raw);
        let Axes { rate, concurrency, cost } = axes;
        let policy = PolicyConfig {
            name: self.name.key.clone(),
            rate,
            concurrency,
            cost,
            load: raw.load.value().copied(),
            joint,
            atomicity: raw.atomicity.value().copied().unwrap_or_default(),
            prefix: raw.prefix.value().map(ToOwned::to_owned),
            fail,
            store,
            shadow: raw.shadow.value().cloned().unwrap_or_default(),
        };
        self.atomic(&policy, raw);
        Some(policy)
    }

    /// Whether the policy can keep what it says of a denial.
    fn atomic(&mut self, policy: &PolicyConfig, raw: &Raw<'_>) {
        let given = raw.keys.iter().find(|(key, _)| *key == ATOMICITY).map(|(_, place)| *place);
        if let Some(place) = given.filter(|_| policy.rate.is_none() || raw.cost.is_absent()) {
            let path = format!("{}.{ATOMICITY}", self.path);
            let message = "has no effect: only of rate and cost could one stay charged when the \
                           other denies"
                .into();
            self.warnings.push(Problem { place: Some(place), path, message });
        }
        if policy.atomicity == Atomicity::PerAxis || policy.cost.is_none() {
            return;
        }
        let Some(block) = policy.rate.as_ref().and_then(leases) else { return };
        let message = format!(
            "all cannot be kept by {block} beside cost: what it leases can be neither seen nor \
             held before it is charged; write atomicity: perAxis, or remove {block}"
        );
        self.report(given.unwrap_or(self.name.place), ATOMICITY, message);
    }
}

/// The block by which the rate is leased or remembered here, if it is.
fn leases(rate: &RateConfig) -> Option<&'static str> {
    match rate.tier {
        _ if rate.escrow.is_some() => Some(escrow::BLOCK),
        TierConfig::Strict => None,
        TierConfig::CachedDeny | TierConfig::Leased(_) => Some(lease::TWO_TIER),
        TierConfig::Federated(_) => Some(lease::FEDERATED),
    }
}

/// What a share of the limit is taken of: each of the limits that are in a store.
pub(super) fn shares_of(strategy: Option<Builtin>, cost: Option<&CostConfig>) -> Vec<Builtin> {
    strategy.into_iter().chain(cost.and_then(CostConfig::smallest)).collect()
}

/// Whether the policy does not limit how often, but something else.
fn is_without_rate(raw: &Raw<'_>) -> bool {
    let gates = [raw.concurrency.is_absent(), raw.distributed.is_absent()];
    let others = [raw.cost.is_absent(), raw.load.is_absent(), raw.joint.is_absent()];
    let has_others = gates.contains(&false) || others.contains(&false);
    // A budget has shares too.
    let of_both = |key: &str| !raw.cost.is_absent() && matches!(key, "share" | "reserveLocal");
    let is_rate = |(key, _): &(&str, Place)| !NOT_OF_RATE.contains(key) && !of_both(key);
    has_others && !raw.keys.iter().any(is_rate)
}

const ATOMICITY: &str = "atomicity";
/// Keys that a policy may have without a strategy.
const NOT_OF_RATE: &[&str] = &[
    "prefix",
    "fail",
    "hashTag",
    "waitReplicas",
    "storeDeadline",
    "durable",
    "leaseTtl",
    ATOMICITY,
    concurrency::LOCAL,
    concurrency::DISTRIBUTED,
    budget::AXIS,
    joint::BLOCK,
    load::BLOCK,
    shadow::BLOCK,
];
