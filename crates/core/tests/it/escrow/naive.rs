//! The three rules as the design writes them, by scans over all tenants; and broken forms of them.

use admittance_core::{Cost, Decision, Escrow, LeasedEscrow, Micros, Outcome, Retry, Span};

use crate::timeline::result;

/// What every implementation is asked, the broken ones too. Tenants are numbers here.
pub(crate) trait Judge {
    fn check(&mut self, tenant: usize, now: Micros, cost: Cost) -> Decision;
    fn backlog(&mut self, tenant: usize, now: Micros, units: u64);
    fn used(&self, tenant: usize) -> u64;
}

/// Tenants and their weights: numbers of 1/10 each.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) limit: u64,
    pub(crate) window: u64,
    pub(crate) tenths: Vec<u64>,
    /// Tenants with a weight of their own are those whose weight is not 1.
    pub(crate) max_keys: usize,
}

pub(crate) fn name(tenant: usize) -> [u8; 2] {
    u16::try_from(tenant).expect("few tenants").to_be_bytes()
}

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Rule 2 does not mind the budget.
    NoCap,
    /// First come, first served: whatever is left can be borrowed.
    ClaimsIgnored,
    /// Nothing is one's own: a tenant's claim stands against itself.
    GuaranteeIgnored,
    /// A tenant that asked once keeps its share for the whole window.
    ClaimsNeverLapse,
    /// A claim is there only at the instant of the ask.
    ClaimsLapseAtOnce,
    /// Claims are not capped by what is waiting.
    BacklogIgnored,
    /// One who borrows gets everything that is left.
    WholeSlack,
    /// Everybody weighs the same.
    WeightsIgnored,
    /// Guarantees are rounded up.
    RoundedUp,
    /// What was used in a window counts in the next.
    CarriesUse,
    /// Who was met in a window counts in the next.
    CarriesWeights,
    /// An earlier instant opens an earlier window again.
    StepsBack,
    /// A refused ask is charged.
    ChargesDenials,
    /// Those without a place are admitted as long as anything is left.
    NoPlaceNoRules,
    /// The wait is always until the window ends.
    WaitsForTheEnd,
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    setting: Setting,
    mutant: Option<Mutant>,
    window: Option<u64>,
    latest: u64,
    pub(crate) visible: u64,
    tenants: Vec<Option<Tenant>>,
    /// Used by those without a place.
    placeless: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    used: u64,
    backlog: u64,
    asked: u64,
}

impl Naive {
    pub(crate) fn new(setting: &Setting, mutant: Option<Mutant>) -> Self {
        Self {
            setting: setting.clone(),
            mutant,
            window: None,
            latest: 0,
            visible: setting.limit,
            tenants: vec![None; setting.tenths.len()],
            placeless: 0,
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn tenths(&self, tenant: usize) -> u128 {
        if self.is(Mutant::WeightsIgnored) { 10 } else { self.setting.tenths[tenant].into() }
    }

    fn everybody(&self) -> u128 {
        let met = (0..self.tenants.len()).filter(|&j| self.tenants[j].is_some());
        met.map(|j| self.tenths(j)).sum()
    }

    fn total(&self) -> u64 {
        self.placeless + self.tenants.iter().flatten().map(|tenant| tenant.used).sum::<u64>()
    }

    fn guarantee(&self, tenant: usize) -> u64 {
        let (product, all) = (self.tenths(tenant) * u128::from(self.visible), self.everybody());
        let guarantee =
            if self.is(Mutant::RoundedUp) { product.div_ceil(all) } else { product / all };
        guarantee.try_into().unwrap()
    }

    fn lapse(&self) -> u64 {
        self.setting.window.div_ceil(10)
    }

    fn claim(&self, tenant: usize, at: u64) -> u64 {
        let Some(state) = self.tenants[tenant] else { return 0 };
        let lapsed = match self.mutant {
            Some(Mutant::ClaimsNeverLapse) => false,
            Some(Mutant::ClaimsLapseAtOnce) => at > state.asked,
            _ => at >= state.asked + self.lapse(),
        };
        if lapsed {
            return 0;
        }
        let backlog = if self.is(Mutant::BacklogIgnored) { u64::MAX } else { state.backlog };
        self.guarantee(tenant).saturating_sub(state.used).min(backlog)
    }

    fn claims_of_others(&self, tenant: usize, at: u64) -> u64 {
        if self.is(Mutant::ClaimsIgnored) {
            return 0;
        }
        let own = self.is(Mutant::GuaranteeIgnored);
        let others = (0..self.tenants.len()).filter(|&j| j != tenant || own);
        others.map(|j| self.claim(j, at)).sum()
    }

    /// The rules for one cost, word by word.
    fn admits(&self, tenant: usize, at: u64, cost: u64) -> bool {
        let left = self.visible.saturating_sub(self.total());
        if let Some(state) = self.tenants[tenant] {
            let guaranteed = if self.is(Mutant::RoundedUp) {
                state.used + cost <= self.guarantee(tenant)
            } else {
                u128::from(state.used + cost) * self.everybody()
                    <= self.tenths(tenant) * u128::from(self.visible)
            };
            if guaranteed && self.is(Mutant::NoCap) {
                return true;
            }
            if guaranteed && cost <= left && !self.is(Mutant::GuaranteeIgnored) {
                return true;
            }
        } else if self.is(Mutant::NoPlaceNoRules) {
            return cost <= left;
        }
        cost <= left.saturating_sub(self.claims_of_others(tenant, at))
    }

    /// The largest cost that would be admitted: admission is monotone, so halving finds it.
    fn remaining(&self, tenant: usize, at: u64) -> u64 {
        let (mut low, mut high) = (0, self.visible);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.admits(tenant, at, middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    fn place(&mut self, tenant: usize, at: u64) {
        let named = |tenant: &usize| self.setting.tenths[*tenant] != 10;
        let named_max = (0..self.tenants.len()).filter(named).count();
        let met = (0..self.tenants.len()).filter(|&j| self.tenants[j].is_some());
        let plain = met.filter(|j| !named(j)).count();
        if let Some(state) = &mut self.tenants[tenant] {
            state.asked = at;
        } else if named(&tenant) || plain < self.setting.max_keys - named_max {
            self.tenants[tenant] = Some(Tenant { used: 0, backlog: u64::MAX, asked: at });
        }
    }

    fn judged(&mut self, now: u64) -> u64 {
        self.latest = if self.is(Mutant::StepsBack) { now } else { self.latest.max(now) };
        let index = self.latest / self.setting.window;
        if self.window != Some(index) {
            self.window = Some(index);
            match self.mutant {
                Some(Mutant::CarriesUse) => {}
                Some(Mutant::CarriesWeights) => {
                    for tenant in self.tenants.iter_mut().flatten() {
                        (tenant.used, tenant.asked) = (0, self.latest);
                    }
                }
                _ => self.tenants.fill(None),
            }
            self.placeless = 0;
        }
        self.latest
    }

    fn never(&self, tenant: usize, now: u64) -> Decision {
        let index = now / self.setting.window;
        let fresh = self.window.is_none_or(|open| index > open);
        let end = (index.max(self.window.unwrap_or(0)) + 1) * self.setting.window;
        let remaining =
            if fresh { self.setting.limit } else { self.remaining(tenant, self.latest) };
        let outcome = Outcome::Deny(Retry::Never);
        Decision { outcome, limit: self.setting.limit, remaining, reset_at: result(end) }
    }

    fn charge(&mut self, tenant: usize, cost: u64) {
        let mut cost = cost;
        if self.is(Mutant::WholeSlack)
            && self.tenants[tenant].is_some_and(|t| t.used + cost > self.guarantee(tenant))
        {
            cost = self.visible - self.total();
        }
        match &mut self.tenants[tenant] {
            Some(state) => {
                state.used += cost;
                if state.backlog != u64::MAX {
                    state.backlog = state.backlog.saturating_sub(cost);
                }
            }
            None => self.placeless += cost,
        }
    }

    /// When the same request would be admitted if nobody else asked: one claim after the other.
    pub(crate) fn freed(&self, tenant: usize, at: u64, cost: u64, end: u64) -> u64 {
        if self.is(Mutant::WaitsForTheEnd) {
            return end;
        }
        let lapses = self.tenants.iter().flatten().map(|state| state.asked + self.lapse());
        let mut lapses: Vec<u64> = lapses.filter(|&lapse| lapse > at && lapse < end).collect();
        lapses.sort_unstable();
        lapses.into_iter().find(|&lapse| self.admits(tenant, lapse, cost)).unwrap_or(end)
    }
}

impl Judge for Naive {
    fn check(&mut self, tenant: usize, now: Micros, cost: Cost) -> Decision {
        let (now, cost) = (now.epoch_us(), cost.units());
        if cost > self.setting.limit {
            return self.never(tenant, now);
        }
        let at = self.judged(now);
        self.place(tenant, at);
        let end = (self.window.unwrap() + 1) * self.setting.window;
        let outcome = if self.admits(tenant, at, cost) {
            self.charge(tenant, cost);
            Outcome::Admit
        } else {
            let until = self.freed(tenant, at, cost, end);
            if self.is(Mutant::ChargesDenials) {
                self.charge(tenant, 1);
            }
            Outcome::Deny(Retry::After(Span::from_us(until - now)))
        };
        let remaining = self.remaining(tenant, at);
        Decision { outcome, limit: self.setting.limit, remaining, reset_at: result(end) }
    }

    fn backlog(&mut self, tenant: usize, now: Micros, units: u64) {
        let at = self.judged(now.epoch_us());
        self.place(tenant, at);
        if let Some(state) = &mut self.tenants[tenant] {
            state.backlog = units;
        }
    }

    fn used(&self, tenant: usize) -> u64 {
        self.tenants[tenant].map_or(0, |state| state.used)
    }
}

impl Judge for Escrow {
    fn check(&mut self, tenant: usize, now: Micros, cost: Cost) -> Decision {
        Self::check(self, &name(tenant), now, cost)
    }

    fn backlog(&mut self, tenant: usize, now: Micros, units: u64) {
        Self::backlog(self, &name(tenant), now, units);
    }

    fn used(&self, tenant: usize) -> u64 {
        self.tenant_stats(&name(tenant)).map_or(0, |stats| stats.used)
    }
}

/// What is visible is all that a leased escrow answers about.
pub(crate) fn leased(
    escrow: &mut LeasedEscrow,
    tenant: usize,
    now: Micros,
    cost: Cost,
) -> Decision {
    escrow.check(&name(tenant), now, cost).decision
}
