//! One budget that tenants share by weight, decided in this process or leased from a store.
//!
//! The rules, and what they guarantee, are those of `admittance_core::Escrow`; here are the clock
//! and the lock. Fairness is per process, and nothing here is strategy-proof: a tenant under many
//! names has many shares.
//!
//! # Guarantee
//! - However many threads race, they are admitted as some order of them would be. All tenants of an
//!   escrow share one budget, so all checks take one lock; it is held for the few hundred
//!   nanoseconds of a check, and never while anything is waited for.
//! - Memory is bounded by the rules' `max_keys`.
//!
//! # Proven by
//! `tests/it/escrow.rs`.

#[cfg(feature = "tokio")]
mod shared;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use admittance_core::{Cost, Decision, Escrow, EscrowRules, EscrowStats, Invalid, TenantStats};

#[cfg(feature = "tokio")]
pub use self::shared::{Quantum, SharedEscrow};
use crate::clock::Wall;
use crate::{Clock, SystemClock};

/// A budget that tenants share by weight, in this process.
///
/// # Example
/// ```
/// use admittance::{Cost, EscrowRules, FairEscrow, Span};
/// let mut rules = EscrowRules::new(900, Span::from_secs(60));
/// rules.weights.insert(Box::from(*b"gold"), "2".parse()?);
/// let escrow = FairEscrow::new(&rules)?;
/// assert!(escrow.check(b"gold", Cost::ONE).is_admit());
/// assert!(escrow.check(b"anybody", Cost::ONE).is_admit());
/// assert_eq!(escrow.tenant_stats(b"gold").map(|gold| gold.guarantee), Some(600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FairEscrow<C = SystemClock> {
    clock: C,
    escrow: Mutex<Escrow>,
}

impl FairEscrow {
    /// An escrow on the system clock.
    ///
    /// # Errors
    /// Rules that cannot be kept, with the reason.
    pub fn new(rules: &EscrowRules) -> Result<Self, Invalid> {
        Self::on_clock(rules, SystemClock::new())
    }
}

impl<C: Clock> FairEscrow<C> {
    /// An escrow on a clock of your own.
    ///
    /// # Errors
    /// Rules that cannot be kept, with the reason.
    pub fn on_clock(rules: &EscrowRules, clock: C) -> Result<Self, Invalid> {
        Ok(Self { clock, escrow: Mutex::new(Escrow::new(rules)?) })
    }

    /// Decides one request of a tenant.
    pub fn check(&self, tenant: &[u8], cost: Cost) -> Decision {
        // One lock for all: its order of instants is the order of the decisions.
        let mut escrow = self.lock();
        escrow.check(tenant, Wall(&self.clock).precise(), cost)
    }

    /// The current window, as of the latest check.
    #[must_use]
    pub fn stats(&self) -> EscrowStats {
        self.lock().stats()
    }

    /// One tenant in the current window; `None` if it has no place there.
    #[must_use]
    pub fn tenant_stats(&self, tenant: &[u8]) -> Option<TenantStats> {
        self.lock().tenant_stats(tenant)
    }

    fn lock(&self) -> MutexGuard<'_, Escrow> {
        self.escrow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> fmt::Debug for FairEscrow<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.escrow.lock().unwrap_or_else(PoisonError::into_inner).stats();
        f.debug_struct("FairEscrow").field("stats", &stats).finish_non_exhaustive()
    }
}
