//! The escrow of one process among several: its budget grows as it leases from a shared counter.
//!
//! The shared counter of a window, one atomic number, caps what all processes admit in it. Each
//! process sees the part that it has leased so far, and shares that among the tenants it meets:
//! fairness is per process.
//!
//! # Guarantee
//! - Everything that [`Escrow`](super::Escrow) guarantees holds of the visible budget, which grows
//!   or stays while a window lasts.
//! - Credits are spent in the window that paid for them: before the local instant at which it may
//!   have ended, by whatever clock is passed in. What is then left is dropped.
//! - A grant of a window that is over is dropped.
//!
//! # Proven by
//! `tests/it/escrow.rs::what_is_leased_bounds_what_is_admitted_…`, a fleet on clocks that are
//! minutes apart and drift, with mutants that count a lease's time otherwise.

use super::ledger::{Asked, Asks, Ledger};
use super::tiers::Tiers;
use super::{EscrowRules, EscrowStats, TenantStats};
use crate::lease::surely_within;
use crate::{Cost, Decision, Invalid, Micros, Outcome, Retry, Span, Window};

/// Credits that the shared counter has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscrowGrant {
    /// The end of the window that pays, on the clock of the store: it says which window it is.
    pub window_end: Micros,
    /// The instant from which the credits are not spent any more, on the local clock.
    pub until: Micros,
    /// How many; none is a window in which there is nothing left to lease.
    pub units: u64,
}

impl EscrowGrant {
    /// A grant that was asked for at `sent` on the local clock and made at `at` on the store's, in
    /// the window that ends there at `window_end`.
    ///
    /// The store read its clock after the ask was sent, so that the window lasts at least its rest
    /// at the grant, counted from `sent`: whatever the two clocks show, as long as the local one
    /// does not run more than 0.1 % slower.
    #[must_use]
    pub fn new(window_end: Micros, at: Micros, sent: Micros, units: u64) -> Self {
        let until = sent + surely_within(window_end.since(at));
        Self { window_end, until, units }
    }
}

/// A decision on the visible budget.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedDecision {
    /// The decision. Its reset is on the store's clock, its retry on the local one.
    pub decision: Decision,
    /// Why it is a denial that more credits could change; `None` if it is not one.
    pub shortage: Option<Shortage>,
}

/// Why the visible budget does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// There is not so much left of it, or will not be before it dies, which is the retry.
    Spent,
    /// What is left is claimed by others, until enough of their claims lapse, which is the retry.
    Claimed,
}

/// The escrow of one process whose budget is leased. Each window starts with nothing visible.
#[derive(Clone, Debug)]
pub struct LeasedEscrow {
    window: Window,
    /// The end of the store's window that is open; none before the first grant.
    window_end: Option<Micros>,
    /// When the visible credits die, on the local clock.
    until: Micros,
    latest: Micros,
    ledger: Ledger,
}

impl LeasedEscrow {
    /// An escrow by these rules, of which `limit` is the budget of all processes together.
    ///
    /// # Errors
    /// As [`Escrow::new`](super::Escrow::new).
    pub fn new(rules: &EscrowRules) -> Result<Self, Invalid> {
        let window = Window::fixed(rules.limit, rules.window)?;
        let ledger = Ledger::new(Tiers::new(rules)?, rules.lapse());
        let (until, latest) = (Micros::ZERO, Micros::ZERO);
        Ok(Self { window, window_end: None, until, latest, ledger })
    }

    /// Decides one request on what is visible.
    pub fn check(&mut self, tenant: &[u8], now: Micros, cost: Cost) -> LeasedDecision {
        let limit = self.window.limit();
        let judged = self.judged(now);
        let reset_at = self.window_end.unwrap_or(Micros::ZERO);
        if cost.units() > limit {
            let outcome = Outcome::Deny(Retry::Never);
            let remaining = self.ledger.look(tenant);
            let decision = Decision { outcome, limit, remaining, reset_at };
            return LeasedDecision { decision, shortage: None };
        }
        let Asked { outcome, remaining } = self.ledger.ask(tenant, judged, cost.units());
        // Nothing may be visible at all, with no instant to wait for.
        let wait = |until: Micros| Outcome::Deny(Retry::After(until.since(now).max(Span::TICK)));
        let (outcome, shortage) = match outcome {
            Asks::Admitted => (Outcome::Admit, None),
            Asks::Claimed { until } if until < self.until => (wait(until), Some(Shortage::Claimed)),
            Asks::Spent | Asks::Claimed { .. } => (wait(self.until), Some(Shortage::Spent)),
        };
        let decision = Decision { outcome, limit, remaining, reset_at };
        LeasedDecision { decision, shortage }
    }

    /// Makes granted credits visible; says whether they can still be spent.
    pub fn grant(&mut self, now: Micros, grant: EscrowGrant) -> bool {
        let judged = self.judged(now);
        if self.window_end.is_some_and(|open| grant.window_end < open) {
            return false;
        }
        if self.window_end != Some(grant.window_end) {
            self.window_end = Some(grant.window_end);
            self.until = Micros::ZERO;
            self.ledger.open(0);
        }
        if grant.until <= judged {
            return false;
        }
        // Each grant shows on its own that the window lasts until then.
        self.until = self.until.max(grant.until);
        let room = self.window.limit() - self.ledger.stats().budget;
        self.ledger.grow(grant.units.min(room));
        true
    }

    /// What is visible, as of the latest check or grant.
    #[must_use]
    pub fn stats(&self) -> EscrowStats {
        self.ledger.stats()
    }

    /// One tenant in the current window; `None` if it has no place there.
    #[must_use]
    pub fn tenant_stats(&self, tenant: &[u8]) -> Option<TenantStats> {
        self.ledger.tenant(tenant)
    }

    /// The strategy of the shared counter.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The instant to judge at; what has died by then is dropped.
    fn judged(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now.judged());
        if self.until <= self.latest {
            self.ledger.drop_unspent();
        }
        self.latest
    }
}
