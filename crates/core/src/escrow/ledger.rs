//! One window of an escrow: who has used what, who may still claim what, and the three rules.
//!
//! Σ claims is kept, never summed. A guarantee ⌊w·L/W⌋ is one number per weight, so the tenants of
//! one weight form a class, and the claims of a class are g·n − Σused over its n tenants that have
//! used less than g: one walk down a tree ordered by what was used. A known backlog caps a claim;
//! min(max(0, g − used), backlog) = max(0, g − used) − max(0, g − (used + backlog)), which is a
//! second tree with the same walk. Within a class the order by used is the order by used/weight.
//! When the budget or W changes, the classes whose guarantee changed are walked again; when one
//! tenant's use changes, its own claim is all that does.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::order::{EMPTY, Orders};
use super::tiers::Tiers;
use super::{EscrowStats, TenantStats};
use crate::{Micros, Span};

/// The window that is open now. Time that comes in never goes back: the caller sees to that.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    tiers: Tiers,
    /// After this long without an ask a claim lapses.
    lapse: Span,
    /// L: the budget as far as it is visible.
    budget: u64,
    /// Σ used, at most the budget.
    used: u64,
    /// Σ claims of the tenants that have one.
    claims: u64,
    borrowed: u64,
    /// Of `used`, what went to tenants for whom there was no place.
    without_place: u64,
    /// W.
    weight: u128,
    classes: Vec<Class>,
    /// The classes that have a tenant in this window.
    met: Vec<u32>,
    names: BTreeMap<Box<[u8]>, u32>,
    tenants: Vec<Tenant>,
    /// How many of them have no weight of their own in the rules.
    plain: usize,
    /// Those whose claims have not lapsed, from the one that asked longest ago.
    oldest: u32,
    newest: u32,
    orders: Orders,
}

/// The tenants of one weight.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// ⌊w·L/W⌋ for each of them.
    guarantee: u64,
    claims: u64,
    /// What they have used, those with a claim that has not lapsed.
    used: u32,
    /// What they will have used once their backlog is served, those whose backlog is known.
    sated: u32,
    met: bool,
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    class: u32,
    used: u64,
    borrowed: u64,
    backlog: Option<u64>,
    asked: Micros,
    /// Whether its claim has not lapsed.
    live: bool,
    before: u32,
    after: u32,
}

/// What an ask came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) outcome: Asks,
    /// What the tenant could still get now.
    pub(super) remaining: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Admitted,
    /// The budget that is visible has not so much left.
    Spent,
    /// What is left is others' to claim until this instant.
    Claimed {
        until: Micros,
    },
}

impl Ledger {
    pub(super) fn new(tiers: Tiers, lapse: Span) -> Self {
        let classes = Vec::from_iter(tiers.weights().iter().map(|_| Class::default()));
        Self {
            tiers,
            lapse,
            budget: 0,
            used: 0,
            claims: 0,
            borrowed: 0,
            without_place: 0,
            weight: 0,
            classes,
            met: Vec::new(),
            names: BTreeMap::new(),
            tenants: Vec::new(),
            plain: 0,
            oldest: NOBODY,
            newest: NOBODY,
            orders: Orders::new(),
        }
    }

    /// Forgets the window and opens one with this budget. Costs as much as the tenants it forgets
    /// cost to meet.
    pub(super) fn open(&mut self, budget: u64) {
        self.budget = budget;
        (self.used, self.claims, self.borrowed, self.without_place) = (0, 0, 0, 0);
        (self.weight, self.plain) = (0, 0);
        for class in self.met.drain(..) {
            self.classes[class as usize] = Class::default();
        }
        self.names.clear();
        self.tenants.clear();
        (self.oldest, self.newest) = (NOBODY, NOBODY);
        self.orders.clear();
    }

    /// More of the budget has become visible.
    pub(super) fn grow(&mut self, units: u64) {
        self.budget += units;
        self.reweigh();
    }

    /// What is not used by now is gone.
    pub(super) fn drop_unspent(&mut self) {
        if self.budget > self.used {
            self.budget = self.used;
            self.reweigh();
        }
    }

    /// Decides by the three rules, and charges what is admitted.
    pub(super) fn ask(&mut self, tenant: &[u8], now: Micros, cost: u64) -> Asked {
        self.lapse(now);
        let place = self.place(tenant);
        if let Some(id) = place {
            self.heard_of(id, now);
        }
        let room = self.room(place);
        if cost <= room {
            self.charge(place, cost);
            return Asked { outcome: Asks::Admitted, remaining: self.room(place) };
        }
        let left = self.budget - self.used;
        let outcome = if cost > left {
            Asks::Spent
        } else {
            // Claims may exceed what is left, once newcomers have made guarantees smaller.
            let missing = cost + self.claims_of_others(place) - left;
            Asks::Claimed { until: self.freed(place, missing) }
        };
        Asked { outcome, remaining: room }
    }

    /// Says how much the tenant has waiting, which caps its claim, and counts as an ask.
    pub(super) fn backlog(&mut self, tenant: &[u8], now: Micros, units: u64) {
        self.lapse(now);
        let Some(id) = self.place(tenant) else { return };
        self.heard_of(id, now);
        self.withdraw(id);
        self.tenants[id as usize].backlog = Some(units);
        self.enter(id);
    }

    /// What a tenant could get now, without leaving a trace. For one not met yet this is a lower
    /// bound: meeting it makes the claims of the others smaller.
    pub(super) fn look(&self, tenant: &[u8]) -> u64 {
        self.room(self.names.get(tenant).copied())
    }

    pub(super) fn stats(&self) -> EscrowStats {
        EscrowStats {
            budget: self.budget,
            used: self.used,
            claims: self.claims,
            borrowed: self.borrowed,
            without_place: self.without_place,
            tenants: self.tenants.len(),
        }
    }

    pub(super) fn tenant(&self, tenant: &[u8]) -> Option<TenantStats> {
        let &id = self.names.get(tenant)?;
        let tenant = self.tenants[id as usize];
        Some(TenantStats {
            used: tenant.used,
            guarantee: self.classes[tenant.class as usize].guarantee,
            borrowed: tenant.borrowed,
            claim: self.claim(&tenant),
        })
    }

    /// Rules 1 to 3 at once: the largest cost that they admit.
    fn room(&self, place: Option<u32>) -> u64 {
        let left = self.budget - self.used;
        // (used + c)·W ≤ w·L is used + c ≤ ⌊w·L/W⌋ for whole numbers.
        let within = place.map_or(0, |id| {
            let tenant = &self.tenants[id as usize];
            self.classes[tenant.class as usize].guarantee.saturating_sub(tenant.used)
        });
        within.min(left).max(left.saturating_sub(self.claims_of_others(place)))
    }

    fn claims_of_others(&self, place: Option<u32>) -> u64 {
        self.claims - place.map_or(0, |id| self.claim(&self.tenants[id as usize]))
    }

    fn charge(&mut self, place: Option<u32>, cost: u64) {
        self.used += cost;
        let Some(id) = place else {
            self.without_place += cost;
            return;
        };
        self.withdraw(id);
        let tenant = &mut self.tenants[id as usize];
        let own = self.classes[tenant.class as usize].guarantee.max(tenant.used);
        tenant.used += cost;
        let borrowed = tenant.used.saturating_sub(own);
        tenant.borrowed += borrowed;
        tenant.backlog = tenant.backlog.map(|backlog| backlog.saturating_sub(cost));
        self.borrowed += borrowed;
        self.enter(id);
    }

    /// When enough claims of others will have lapsed for `missing` units more. The exact instant if
    /// at most [`LOOKED_AT_MAX`] claims come first; otherwise one that is late enough.
    fn freed(&self, place: Option<u32>, missing: u64) -> Micros {
        let (mut at, mut freed) = (self.oldest, 0_u64);
        for _ in 0..LOOKED_AT_MAX {
            if at == NOBODY {
                break;
            }
            let tenant = &self.tenants[at as usize];
            if Some(at) != place {
                freed += self.claim(tenant);
            }
            if freed >= missing {
                return tenant.asked + self.lapse;
            }
            at = tenant.after;
        }
        // The one who asks is the newest itself, if it has a place.
        let last = if Some(self.newest) == place {
            self.tenants[self.newest as usize].before
        } else {
            self.newest
        };
        self.tenants.get(last as usize).map_or(Micros::ZERO, |last| last.asked + self.lapse)
    }

    /// The tenant's place; a new one if there is room for it. Those whom the rules name always
    /// have one.
    fn place(&mut self, tenant: &[u8]) -> Option<u32> {
        if let Some(&id) = self.names.get(tenant) {
            return Some(id);
        }
        let (class, named) = self.tiers.class(tenant);
        if !named {
            if self.plain >= self.tiers.plain_max() {
                return None;
            }
            self.plain += 1;
        }
        let id = u32::try_from(self.tenants.len()).ok()?;
        self.names.insert(Box::from(tenant), id);
        let asked = Micros::ZERO;
        let (live, before, after) = (false, NOBODY, NOBODY);
        let backlog = None;
        self.tenants.push(Tenant {
            class,
            used: 0,
            borrowed: 0,
            backlog,
            asked,
            live,
            before,
            after,
        });
        let met = &mut self.classes[class as usize].met;
        if !*met {
            *met = true;
            self.met.push(class);
        }
        self.weight += u128::from(self.tiers.weights()[class as usize]);
        self.reweigh();
        Some(id)
    }

    /// Guarantees and claims after the budget or W changed. Classes, not tenants: at most
    /// `EscrowRules::WEIGHTS_MAX`.
    fn reweigh(&mut self) {
        for &class in &self.met {
            let weight = u128::from(self.tiers.weights()[class as usize]);
            let class = &mut self.classes[class as usize];
            // w ≤ W, so that this is at most the budget.
            let guarantee = u128::from(self.budget) * weight / self.weight;
            let guarantee = u64::try_from(guarantee).unwrap_or(self.budget);
            self.orders.count_visit();
            if guarantee == class.guarantee {
                continue;
            }
            let claims = self.orders.below(class.used, guarantee).gap(guarantee)
                - self.orders.below(class.sated, guarantee).gap(guarantee);
            // At most the guarantees of the class, and those of all classes at most the budget.
            let claims = u64::try_from(claims).unwrap_or(self.budget);
            self.claims = self.claims - class.claims + claims;
            (class.guarantee, class.claims) = (guarantee, claims);
        }
    }

    /// The tenant has asked: its claim stands from now on.
    fn heard_of(&mut self, id: u32, now: Micros) {
        if self.tenants[id as usize].live {
            self.unlink(id);
        } else {
            self.tenants[id as usize].live = true;
            self.enter(id);
        }
        let newest = core::mem::replace(&mut self.newest, id);
        let tenant = &mut self.tenants[id as usize];
        (tenant.asked, tenant.before, tenant.after) = (now, newest, NOBODY);
        match self.tenants.get_mut(newest as usize) {
            Some(before) => before.after = id,
            None => self.oldest = id,
        }
    }

    /// Lets the claims lapse of those who have not asked for long. Each ask is paid for once.
    fn lapse(&mut self, now: Micros) {
        while let Some(tenant) = self.tenants.get(self.oldest as usize) {
            if tenant.asked + self.lapse > now {
                return;
            }
            let id = self.oldest;
            self.withdraw(id);
            self.unlink(id);
            self.tenants[id as usize].live = false;
        }
    }

    fn unlink(&mut self, id: u32) {
        let Tenant { before, after, .. } = self.tenants[id as usize];
        match self.tenants.get_mut(before as usize) {
            Some(tenant) => tenant.after = after,
            None => self.oldest = after,
        }
        match self.tenants.get_mut(after as usize) {
            Some(tenant) => tenant.before = before,
            None => self.newest = before,
        }
    }

    fn claim(&self, tenant: &Tenant) -> u64 {
        if !tenant.live {
            return 0;
        }
        let guarantee = self.classes[tenant.class as usize].guarantee;
        guarantee.saturating_sub(tenant.used).min(tenant.backlog.unwrap_or(u64::MAX))
    }

    /// Takes a live tenant's claim out of the sums, so that it can change.
    fn withdraw(&mut self, id: u32) {
        let tenant = self.tenants[id as usize];
        let claim = self.claim(&tenant);
        let class = &mut self.classes[tenant.class as usize];
        class.used = self.orders.remove(class.used, tenant.used);
        if let Some(backlog) = tenant.backlog {
            class.sated = self.orders.remove(class.sated, tenant.used.saturating_add(backlog));
        }
        class.claims -= claim;
        self.claims -= claim;
    }

    /// Puts a live tenant's claim into the sums.
    fn enter(&mut self, id: u32) {
        let tenant = self.tenants[id as usize];
        let claim = self.claim(&tenant);
        let class = &mut self.classes[tenant.class as usize];
        class.used = self.orders.insert(class.used, tenant.used);
        if let Some(backlog) = tenant.backlog {
            class.sated = self.orders.insert(class.sated, tenant.used.saturating_add(backlog));
        }
        class.claims += claim;
        self.claims += claim;
    }

    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        self.orders.visits.get()
    }
}

/// No tenant: past the end of every list.
const NOBODY: u32 = u32::MAX;

/// How many claims are looked at one by one to say when enough of them will have lapsed.
pub(super) const LOOKED_AT_MAX: usize = 32;

const _: () = assert!(EMPTY == 0, "a default class has empty sets");
