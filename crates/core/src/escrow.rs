//! Weighted fair escrow: who gets the next credit of one budget that many tenants share.
//!
//! One budget L per window; W is the sum of the weights of the tenants that have asked in this
//! window. Tenant j is guaranteed ⌊wⱼ·L/W⌋, and its claim is what of that it has not used:
//! max(0, ⌊wⱼ·L/W⌋ − usedⱼ), at most its backlog where that is known. A request of cost c by i is
//! 1. refused if Σused + c > L;
//! 2. admitted if it stays within the guarantee: (usedᵢ + c)·W ≤ wᵢ·L;
//! 3. otherwise borrowed: admitted if c ≤ (L − Σused) − Σ claims of the others.
//!
//! Nobody knows what a tenant will ask for later. A claim lapses once its tenant has not asked for
//! a tenth of the window, rounded up to a tick: **what an idle tenant was guaranteed becomes
//! borrowable with that delay**. When it asks again its claim stands again, on what is left.
//!
//! # Guarantee
//! - *Safety*: no window admits more than L. A clock that steps back meets the later window.
//! - *Sharing incentive*: whoever asks has its guarantee, minus what was lent before it first asked
//!   (or after its claim had lapsed).
//! - *Work conservation*: of unit costs nothing is left over while somebody is refused and no claim
//!   stands. Larger costs leave less than the refused ones ask for together.
//! - *Bounded unfairness*: an admission takes its own cost and nothing more; nobody gets above what
//!   the claims of the others leave. Tenants that ask in turn, by unit costs, get at most a unit
//!   less than their share of the exact water-filling split.
//! - What was asked in one window changes nothing in the next.
//! - A check costs O(log tenants): no scan, neither when a tenant comes nor when claims lapse. The
//!   first ask of a tenant in a window, which changes every guarantee, also costs a step per
//!   different weight, of which there are at most [`EscrowRules::WEIGHTS_MAX`].
//! - At most `max_keys` tenants are kept per window. Those that come after have no guarantee and no
//!   claim: they borrow what the others do not claim. Tenants with a weight in the rules always
//!   have a place.
//!
//! It is **not strategy-proof**: a tenant that asks under many names gets many shares, and one that
//! asks for what it does not need keeps its claim. Either gains within one window only.
//!
//! # What the retry of a denial means
//! Until enough claims will have lapsed, or until the window ends. If more than 32 claims come
//! first, the wait is long enough, but a shorter one may do.
//!
//! # Proven by
//! `tests/it/escrow.rs`: each property on 20,000 random instances against the batch water-filling
//! split in exact rationals, and every field of every answer against a scan written straight from
//! the rules; with mutants for each. `escrow/tests.rs` counts the work of a check.
//!
//! # Example
//! ```
//! use admittance_core::{Cost, Escrow, EscrowRules, Micros, Span};
//! let mut rules = EscrowRules::new(90, Span::from_secs(60));
//! rules.weights.insert(Box::from(*b"gold"), "2".parse()?);
//! let mut escrow = Escrow::new(&rules)?;
//! let now = Micros::ZERO;
//! let units = |units| Cost::new(units).expect("not zero");
//! assert!(escrow.check(b"gold", now, units(50)).is_admit(), "alone: the whole budget is its own");
//! assert!(escrow.check(b"plain", now, units(30)).is_admit(), "guaranteed: a third of 90");
//! assert!(!escrow.check(b"plain", now, units(1)).is_admit(), "the rest is claimed");
//! assert!(escrow.check(b"gold", now, units(10)).is_admit(), "by gold, which is guaranteed 60");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod leased;
mod ledger;
mod order;
#[cfg(test)]
mod tests;
mod tiers;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

pub use self::leased::{EscrowGrant, LeasedDecision, LeasedEscrow, Shortage};
use self::ledger::{Asked, Asks, Ledger};
use self::tiers::Tiers;
use crate::{Cost, Decimal, Decision, Invalid, Micros, Outcome, Retry, Span, Window};

/// What an escrow is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EscrowRules {
    /// The budget of one window.
    pub limit: u64,
    /// How long a window is. Windows are aligned to the epoch.
    pub window: Span,
    /// Weights above zero, exactly as written; whoever is not named has weight 1.
    pub weights: BTreeMap<Box<[u8]>, Decimal>,
    /// How many tenants have a place in a window, those with a weight of their own included.
    pub max_keys: usize,
}

impl EscrowRules {
    /// How many tenants have a place if nobody says otherwise.
    pub const MAX_KEYS_DEFAULT: usize = 100_000;

    /// The most tenants there can be places for.
    pub const MAX_KEYS_MAX: usize = 1 << 20;

    /// The most different weights, that of unnamed tenants included. Any number of tenants may
    /// have each.
    pub const WEIGHTS_MAX: usize = 256;

    /// Rules by which every tenant has weight 1.
    #[must_use]
    pub const fn new(limit: u64, window: Span) -> Self {
        Self { limit, window, weights: BTreeMap::new(), max_keys: Self::MAX_KEYS_DEFAULT }
    }

    fn lapse(&self) -> Span {
        Span::from_us(self.window.us().div_ceil(LAPSE_PARTS))
    }
}

/// What was decided and is held in the current window, as of the latest check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EscrowStats {
    /// L, as far as it is visible here.
    pub budget: u64,
    /// Units admitted.
    pub used: u64,
    /// Units that tenants may still claim.
    pub claims: u64,
    /// Of the units used, those that were above a tenant's guarantee when admitted.
    pub borrowed: u64,
    /// Of the units used, those of tenants for which there was no place.
    pub without_place: u64,
    /// Tenants that have a place.
    pub tenants: usize,
}

/// What one tenant has in the current window, as of the latest check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantStats {
    /// Units admitted.
    pub used: u64,
    /// ⌊w·L/W⌋ as it is now.
    pub guarantee: u64,
    /// Of the units used, those that were above the guarantee when admitted.
    pub borrowed: u64,
    /// Units that are kept for it.
    pub claim: u64,
}

/// The escrow of one process: the whole budget is visible from the start of each window.
#[derive(Clone, Debug)]
pub struct Escrow {
    window: Window,
    /// The window that is open, by its index; none before the first ask.
    index: Option<u64>,
    /// The latest instant judged at; an earlier one is judged here.
    latest: Micros,
    ledger: Ledger,
}

impl Escrow {
    /// An escrow by these rules.
    ///
    /// # Errors
    /// Zeroes, more different weights or places than there can be, fewer places than named
    /// tenants, and numbers that cannot be kept exact.
    pub fn new(rules: &EscrowRules) -> Result<Self, Invalid> {
        let window = Window::fixed(rules.limit, rules.window)?;
        let ledger = Ledger::new(Tiers::new(rules)?, rules.lapse());
        Ok(Self { window, index: None, latest: Micros::ZERO, ledger })
    }

    /// Decides one request. Being refused also counts as having asked; a cost above the budget
    /// leaves no trace.
    pub fn check(&mut self, tenant: &[u8], now: Micros, cost: Cost) -> Decision {
        let limit = self.window.limit();
        if cost.units() > limit {
            let index = self.window.cadence().index(now);
            let fresh = self.index.is_none_or(|open| index > open);
            let reset_at = self.window.cadence().end(index.max(self.index.unwrap_or(0)));
            let remaining = if fresh { limit } else { self.ledger.look(tenant) };
            return Decision { outcome: Outcome::Deny(Retry::Never), limit, remaining, reset_at };
        }
        let judged = self.judged(now);
        let Asked { outcome, remaining } = self.ledger.ask(tenant, judged, cost.units());
        let reset_at = self.end();
        let outcome = match outcome {
            Asks::Admitted => Outcome::Admit,
            Asks::Spent => Outcome::Deny(Retry::After(reset_at.since(now))),
            Asks::Claimed { until } => Outcome::Deny(Retry::After(until.min(reset_at).since(now))),
        };
        Decision { outcome, limit, remaining, reset_at }
    }

    /// Says how much a tenant has waiting, where that is known: its claim is at most that, and
    /// goes down as it is admitted. Counts as an ask, and is forgotten with the window.
    pub fn backlog(&mut self, tenant: &[u8], now: Micros, units: u64) {
        let judged = self.judged(now);
        self.ledger.backlog(tenant, judged, units);
    }

    /// The current window, as of the latest check.
    #[must_use]
    pub fn stats(&self) -> EscrowStats {
        self.ledger.stats()
    }

    /// One tenant in the current window; `None` if it has no place there.
    #[must_use]
    pub fn tenant_stats(&self, tenant: &[u8]) -> Option<TenantStats> {
        self.ledger.tenant(tenant)
    }

    /// The budget of one window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.window.limit()
    }

    /// The instant to judge at, in the window that is open then.
    fn judged(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now.judged());
        let index = self.window.cadence().index(self.latest);
        if self.index != Some(index) {
            self.index = Some(index);
            self.ledger.open(self.window.limit());
        }
        self.latest
    }

    fn end(&self) -> Micros {
        self.window.cadence().end(self.index.unwrap_or(0))
    }
}

/// A claim lapses after one of this many parts of the window.
const LAPSE_PARTS: u64 = 10;
