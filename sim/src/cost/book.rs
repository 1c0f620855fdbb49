//! What the ledger knows of one account: where each unit of each window went.
//!
//! It keeps every window for itself, and does not forget those that are over: what was taken out
//! of a window is spent, reserved, given back or gone there, whenever that happens.

use std::collections::{BTreeMap, BTreeSet};

use admittance_core::budget::{Budget, Debt, LeaseKey, Settled, Settlement};

/// One account's units.
pub(super) struct Book {
    period: u64,
    pub(super) index: u64,
    pub(super) windows: BTreeMap<u64, Window>,
    leases: BTreeMap<LeaseKey, Entry>,
    open: BTreeSet<(u64, LeaseKey)>,
    ended: BTreeSet<(u64, LeaseKey)>,
    settled: usize,
    pub(super) debt: u64,
    /// Leases that were not settled when nothing was left.
    pub(super) exposed: Option<u64>,
    pub(super) x_most: u64,
    pub(super) overrun_most: u64,
    pub(super) limit_most: u64,
}

/// Where the units of one window went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// The largest limit that it had.
    pub(super) limit: u64,
    /// The largest part of a debit beyond a reservation.
    pub(super) x: u64,
    /// All that was reserved or debited beyond a reservation, ever.
    taken: u64,
    pub(super) spent: u64,
    pub(super) reserved: u64,
    returned: u64,
    gone: u64,
    pub(super) lost: u64,
    /// What was really served.
    pub(super) served: u64,
    /// What became debt in it.
    pub(super) owed: u64,
}

impl Window {
    /// Whether each unit is in one place.
    pub(super) const fn is_whole(&self) -> bool {
        self.taken == self.spent + self.reserved + self.returned + self.gone + self.lost
    }
}

struct Entry {
    window: u64,
    unspent: u64,
    ttl: u64,
    debited: u64,
    /// What each window was charged for it, and what was really served of that.
    charges: BTreeMap<u64, Charged>,
    life: Life,
}

#[derive(Clone, Copy, Default)]
struct Charged {
    units: u64,
    served: u64,
}

#[derive(Clone, Copy)]
enum Life {
    Open(u64),
    Expired(u64),
    Settled(Settled),
}

/// Which windows a debit was charged to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    own: (u64, u64),
    beyond: (u64, u64),
}

impl Book {
    pub(super) fn new(period: u64) -> Self {
        Self {
            period,
            index: 0,
            windows: BTreeMap::new(),
            leases: BTreeMap::new(),
            open: BTreeSet::new(),
            ended: BTreeSet::new(),
            settled: 0,
            debt: 0,
            exposed: None,
            x_most: 0,
            overrun_most: 0,
            limit_most: 0,
        }
    }

    /// Everything that time alone does.
    pub(super) fn pass(&mut self, now: u64, budget: &Budget) {
        while let Some((until, key)) = self.open.pop_first() {
            if until > now {
                self.open.insert((until, key));
                break;
            }
            let Some(entry) = self.leases.get_mut(&key) else { continue };
            let end = (entry.window + 1) * self.period;
            let window = self.windows.entry(entry.window).or_default();
            window.reserved = window.reserved.saturating_sub(entry.unspent);
            *(if until < end { &mut window.returned } else { &mut window.gone }) += entry.unspent;
            (entry.unspent, entry.life) = (0, Life::Expired(until + KEPT));
            self.ended.insert((until + KEPT, key));
        }
        let index = self.index_at(now).max(self.index);
        if index > self.index {
            let before = self.windows.get(&self.index).copied().unwrap_or_default();
            // What was still reserved when it ended pays nothing, whatever became of it since.
            let used = before.spent + before.reserved + before.gone;
            let unused = (index - self.index - 1).saturating_mul(budget.limit());
            let spare = budget.limit().saturating_sub(used).saturating_add(unused);
            self.debt = match budget.debts() {
                Debt::Forgive => 0,
                Debt::Carry => self.debt.saturating_sub(spare),
            };
            self.index = index;
        }
        while let Some((until, key)) = self.ended.pop_first() {
            if until > now {
                self.ended.insert((until, key));
                break;
            }
            let gone = self.leases.remove(&key);
            let is_settled = gone.is_some_and(|entry| matches!(entry.life, Life::Settled(_)));
            self.settled -= usize::from(is_settled);
        }
        let limit = &mut self.windows.entry(self.index).or_default().limit;
        *limit = (*limit).max(budget.limit());
        self.limit_most = self.limit_most.max(budget.limit());
    }

    pub(super) fn present(&self) -> Window {
        self.windows.get(&self.index).copied().unwrap_or_default()
    }

    pub(super) const fn index_at(&self, now: u64) -> u64 {
        now / self.period
    }

    pub(super) fn end(&self) -> u64 {
        (self.index + 1) * self.period
    }

    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Leases that may still be settled.
    pub(super) fn unsettled(&self) -> u64 {
        u64::try_from(self.leases.len() - self.settled).unwrap_or(u64::MAX)
    }

    pub(super) fn unspent(&self, key: LeaseKey) -> u64 {
        self.leases.get(&key).map_or(0, |entry| entry.unspent)
    }

    pub(super) fn used(&self) -> u64 {
        let present = self.present();
        self.debt + present.spent + present.reserved
    }

    /// What is left, unless it is overdrawn.
    pub(super) fn left(&self, budget: &Budget) -> u64 {
        budget.limit().saturating_sub(self.used())
    }

    pub(super) fn would_reserve(&self, budget: &Budget, key: LeaseKey, units: u64) -> bool {
        match self.leases.get(&key).map(|entry| entry.life) {
            Some(Life::Open(_)) => true,
            Some(_) => false,
            None => {
                let is_full = self.open.len() >= usize::try_from(budget.open_max()).unwrap_or(0)
                    || self.unsettled() >= budget.unsettled_max().into();
                self.left(budget) >= units.max(1) && !is_full
            }
        }
    }

    pub(super) fn would_debit(&self, budget: &Budget, key: LeaseKey, units: u64) -> bool {
        match self.leases.get(&key) {
            Some(Entry { life: Life::Settled(_), .. }) => false,
            Some(entry) if entry.unspent >= units => true,
            _ => units == 0 || self.left(budget) > 0,
        }
    }

    pub(super) fn reserve(&mut self, key: LeaseKey, units: u64, ttl: u64, now: u64) {
        if self.leases.contains_key(&key) {
            return self.hear(key, now);
        }
        let until = now + ttl;
        let (window, charges, life) = (self.index, BTreeMap::new(), Life::Open(until));
        let entry = Entry { window, unspent: units, ttl, debited: 0, charges, life };
        self.leases.insert(key, entry);
        self.open.insert((until, key));
        let present = self.windows.entry(self.index).or_default();
        present.taken += units;
        present.reserved += units;
    }

    pub(super) fn debit(&mut self, key: LeaseKey, units: u64, now: u64) -> Parts {
        let entry = self.leases.get_mut(&key);
        let own = entry.as_ref().map_or(0, |entry| entry.unspent.min(units));
        let beyond = units - own;
        let mut from = self.index;
        if let Some(entry) = entry {
            from = entry.window;
            entry.unspent -= own;
            entry.debited += units;
            entry.charges.entry(from).or_default().units += own;
            entry.charges.entry(self.index).or_default().units += beyond;
        }
        let source = self.windows.entry(from).or_default();
        source.reserved = source.reserved.saturating_sub(own);
        source.spent += own;
        let present = self.windows.entry(self.index).or_default();
        present.taken += beyond;
        present.spent += beyond;
        present.x = present.x.max(beyond);
        self.x_most = self.x_most.max(beyond);
        self.hear(key, now);
        Parts { own: (from, own), beyond: (self.index, beyond) }
    }

    /// What was debited has really been served.
    pub(super) fn serve(&mut self, key: LeaseKey, parts: Parts) {
        for (window, units) in [parts.own, parts.beyond] {
            self.windows.entry(window).or_default().served += units;
            let charged = self.leases.get_mut(&key).and_then(|it| it.charges.get_mut(&window));
            if let Some(charged) = charged {
                charged.served += units;
            }
        }
    }

    pub(super) fn settle(
        &mut self,
        budget: &Budget,
        key: LeaseKey,
        actual: Option<u64>,
        now: u64,
    ) -> Settlement {
        let Some(entry) = self.leases.get_mut(&key) else { return Settlement::Unknown };
        match entry.life {
            Life::Settled(settled) => return Settlement::Before(settled),
            Life::Open(until) => self.open.remove(&(until, key)),
            Life::Expired(until) => self.ended.remove(&(until, key)),
        };
        let told = actual.unwrap_or(entry.debited);
        let more = told.saturating_sub(entry.debited);
        let own = more.min(entry.unspent);
        let rest = entry.unspent - own;
        entry.unspent = 0;
        // What was served of debits whose answers came too late: the earliest first.
        let heard: u64 = entry.charges.values().map(|charged| charged.served).sum();
        let mut unheard = told.min(entry.debited).saturating_sub(heard);
        for (window, charged) in &mut entry.charges {
            let part = unheard.min(charged.units - charged.served.min(charged.units));
            charged.served += part;
            unheard -= part;
            self.windows.entry(*window).or_default().served += part;
        }
        let source = self.windows.entry(entry.window).or_default();
        source.reserved = source.reserved.saturating_sub(own + rest);
        source.spent += own;
        source.served += own;
        let mut returned = 0;
        if entry.window == self.index {
            source.returned += rest;
            returned += rest;
        } else {
            source.gone += rest;
        }
        let over = entry.debited.saturating_sub(told);
        let charged = entry.charges.get(&self.index).copied().unwrap_or_default();
        // Only what cannot have been charged to an earlier window.
        let earlier = entry.debited - charged.units;
        let back = over.saturating_sub(earlier).min(charged.units);
        let present = self.windows.entry(self.index).or_default();
        present.spent = present.spent.saturating_sub(back);
        present.returned += back;
        returned += back;
        let debt = more - own;
        present.owed += debt;
        self.debt += debt;
        self.overrun_most = self.overrun_most.max(debt);
        let settled = Settled { returned, debt };
        entry.life = Life::Settled(settled);
        self.settled += 1;
        self.ended.insert((now + KEPT, key));
        self.forget_settled(budget, key);
        Settlement::Now(settled)
    }

    /// Of too many that are remembered, those go that were settled first, and not this one.
    fn forget_settled(&mut self, budget: &Budget, but: LeaseKey) {
        while self.ended.len() > usize::try_from(budget.ended_max()).unwrap_or(usize::MAX) {
            let is_settled =
                |key| matches!(self.leases.get(key), Some(Entry { life: Life::Settled(_), .. }));
            let gone = self.ended.iter().find(|(_, key)| *key != but && is_settled(key)).copied();
            let Some(gone) = gone else { return };
            self.ended.remove(&gone);
            self.leases.remove(&gone.1);
            self.settled -= 1;
        }
    }

    /// The store has forgotten all of it; says how much of the present window that was.
    pub(super) fn forget(&mut self) -> u64 {
        let lost = self.present().spent + self.present().reserved;
        for window in self.windows.values_mut() {
            window.lost += window.spent + window.reserved;
            (window.spent, window.reserved) = (0, 0);
        }
        self.leases.clear();
        self.open.clear();
        self.ended.clear();
        (self.settled, self.debt, self.index, self.exposed) = (0, 0, 0, None);
        lost
    }

    fn hear(&mut self, key: LeaseKey, now: u64) {
        let Some(entry) = self.leases.get_mut(&key) else { return };
        match &mut entry.life {
            Life::Open(until) => {
                self.open.remove(&(*until, key));
                *until = (*until).max(now + entry.ttl);
                self.open.insert((*until, key));
            }
            Life::Expired(until) => {
                self.ended.remove(&(*until, key));
                *until = (*until).max(now + KEPT);
                self.ended.insert((*until, key));
            }
            Life::Settled(_) => {}
        }
    }
}

const KEPT: u64 = Budget::ENDED_KEPT.us();
