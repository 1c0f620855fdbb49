//! Rate limits and budgets in one ask of a store.
//!
//! The step itself is [`fused`](admittance_core::fused) in core. An executor runs it natively over
//! all keys and accounts of a [`FuseAsk`]: memory under the accounts' locks, Redis as a script.
//!
//! # Guarantee
//! What every implementation of [`Fuses`] promises, held by `admittance-testkit`:
//! - An ask is one atomic step with respect to every other on the same keys and accounts, and
//!   answers what the pure step answers, in every field and in both modes, at one instant.
//! - With [`Atomicity::All`] a denial charges nothing, neither a limit nor a budget.
//!
//! # Proven by
//! `tests/it/fused.rs` and `admittance-testkit`, with executors that are nearly right.
//!
//! # Example
//! ```
//! use admittance::budget::{Act, Budget, Charge, Entry};
//! use admittance::{
//!     Atomicity, Axis, Builtin, Cadence, Cost, FuseAsk, Fuses, Limit, ManualClock, Memory, Span,
//!     Window,
//! };
//! let store = Memory::new(ManualClock::default());
//! let strategy = Builtin::from(Window::fixed(10, Span::from_secs(60))?);
//! let limits = [Limit { policy: "llm", strategy: &strategy, key: b"ann", cost: Cost::ONE }];
//! let minute = Budget::new(1_000, Cadence::every(Span::from_secs(60)))?;
//! let charges = [Charge { policy: "llm", budget: &minute, key: b"ann", units: 600 }];
//! let entry = Entry { charges: &charges, act: Act::Debit(None) };
//! let ask = FuseAsk { limits: &limits, entry, atomicity: Atomicity::All };
//! let ask = || store.fuse_at_once(ask).expect("memory answers at once");
//! assert!(ask()?.fused.is_admit() && ask()?.fused.is_admit());
//! // The budget is used up, and the limit is not charged for that.
//! let denied = ask()?.fused;
//! assert_eq!(denied.verdicts().binding(), Some(Axis::Cost));
//! assert_eq!(denied.rate.decision.remaining, 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use admittance_core::{Atomicity, CostAct, Fused, Micros};

use super::{Combine, Group, Limit, Merged, Store, StoreError};
use crate::budget::{Accounts, Act, Entry};

/// A place where both the state of keys and accounts live, and are asked in one step.
pub trait Fuses: Store + Accounts {
    /// Decides limits and budgets at one instant, in one atomic step.
    ///
    /// A future that is dropped before it is ready may or may not have charged.
    ///
    /// # Errors
    /// As [`Store::several`] and [`Accounts::book`]: nothing was charged if the ask
    /// [is refused](FuseAsk::checked), and on a cluster [`StoreError::AcrossSlots`].
    fn fuse(
        &self,
        ask: FuseAsk<'_>,
    ) -> impl Future<Output = Result<AppliedFused, StoreError>> + Send;

    /// The same without waiting, if that can be done here; `None` if not, and nothing was charged.
    fn fuse_at_once(&self, ask: FuseAsk<'_>) -> Option<Result<AppliedFused, StoreError>> {
        let _ = ask;
        None
    }
}

impl<F: Fuses> Fuses for Arc<F> {
    fn fuse(
        &self,
        ask: FuseAsk<'_>,
    ) -> impl Future<Output = Result<AppliedFused, StoreError>> + Send {
        (**self).fuse(ask)
    }

    fn fuse_at_once(&self, ask: FuseAsk<'_>) -> Option<Result<AppliedFused, StoreError>> {
        (**self).fuse_at_once(ask)
    }
}

/// Limits and budgets that decide together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseAsk<'a> {
    /// At most [`Group::LIMITS_MAX`] limits, all of which must admit, as with [`Combine::All`].
    /// None at all admit.
    pub limits: &'a [Limit<'a>],
    /// What is asked of the budgets once the limits admit: a debit or a reservation. Without
    /// charges no budget is asked.
    pub entry: Entry<'a>,
    /// What a denial by a budget leaves on the limits.
    pub atomicity: Atomicity,
}

impl<'a> FuseAsk<'a> {
    /// The limits as they are to be executed, and what is asked of the budgets; refuses what no
    /// executor takes.
    ///
    /// # Errors
    /// As [`Merged::of`] and [`Entry::checked`], and [`StoreError::Refused`] if the entry is
    /// neither a debit nor a reservation.
    pub fn checked(&self) -> Result<(Merged<'a>, CostAct), StoreError> {
        let act = match self.entry.act {
            Act::Debit(lease) => CostAct::Debit(lease),
            Act::Reserve { lease, ttl } => CostAct::Reserve { lease, ttl },
            Act::Look | Act::Settle(_) | Act::Abandon(_) => {
                let detail = "only a debit or a reservation is asked together with limits";
                return Err(StoreError::Refused { detail: detail.into() });
            }
        };
        if !self.entry.charges.is_empty() {
            self.entry.checked()?;
        }
        Ok((Merged::of(&Group { combine: Combine::All, limits: self.limits })?, act))
    }
}

/// What became of a [`FuseAsk`].
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedFused {
    /// What the limits and the budgets said, in written order.
    pub fused: Fused,
    /// The time the store used: the one clock that all its callers share.
    pub at: Micros,
}
