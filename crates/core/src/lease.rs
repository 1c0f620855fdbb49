//! Leasing: a node borrows a batch of a shared limit and spends it on its own.
//!
//! Two machines, and nothing else: the [grantor](Grantor) is a pure step over the limit's one
//! shared counter, which any store runs; the [`Holder`] is a node's side of one key. They exchange
//! [`Ask`], [`Grant`] and [`GiveBack`]. Neither reads a clock or sends a message.
//!
//! ```text
//!   requests ──► word: credits, expiry ──► admitted            one swap, nothing leaves the node
//!                  │ short
//!                  ▼
//!                holder ──── Ask { need, want } ───► grantor: the counter in the store
//!                  ▲                                   │
//!                  └── Grant { granted, paid_until } ──┘
//! ```
//!
//! # Guarantee
//! - **Coupled**, for fixed windows and quotas: every admission is paid by one window of the
//!   store, and no window pays for more than the limit, for any number of nodes, whatever their
//!   wall clocks say and whatever happens to messages, as long as the store keeps what it granted.
//! - **Continuous**, for gcra and token bucket with lease time e: no interval of length d admits
//!   more than burst + rate·(d + e), for any number of nodes.
//! - A denial happens only if what the store has left and the node's own credits together are less
//!   than the cost, at the grantor's instant.
//!
//! No clocks are compared. A lease lives for a duration, counted from before its request was sent,
//! on the node's own clock; the store read its clock after that. So the credits die before the
//! window that paid for them ends, if the node's clock is at most [`DRIFT_MAX_PPM`] slower.
//!
//! # Proven by
//! `models/` explores these very machines with every message lost, late, twice or out of order;
//! `tests/it/lease.rs` holds the single steps, and the same fleet in long random runs.

mod credits;
mod grantor;
mod holder;
mod rules;
mod word;

pub use credits::{LEASES_MAX, Paid};
pub use grantor::{Granted, Grantor, NotLeasable};
pub use holder::{ATTEMPTS_MAX, Answer, Busy, Holder, Missed, Request, Waiter};
pub use rules::{Coupling, Rules};
pub use word::{CREDITS_MAX, Word, WordCell};

use crate::{Decision, EXACT_MAX, Micros, Span};

/// What a holder asks of the grantor.
///
/// `need` is admitted by the store at its own instant: it is not a lease and does not expire.
/// What is granted beyond it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// What requests are waiting for; nothing if the holder only fills up.
    pub need: u64,
    /// The least that helps any of those requests: with less left than this, nothing is granted.
    /// A denial then consumes nothing.
    pub least: u64,
    /// What the holder would like, at least `need`.
    pub want: u64,
    /// How long the last answer took. A lease that would not outlive four of these is not given.
    pub round_trip: Span,
}

impl Ask {
    /// The same with numbers that every executor keeps exact. No limit has more units than that.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            need: self.need.min(EXACT_MAX),
            least: self.least.min(EXACT_MAX),
            want: self.want.min(EXACT_MAX),
            round_trip: self.round_trip.min(Span::from_us(EXACT_MAX)),
        }
    }
}

/// What the grantor gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Units charged to the limit and handed to the holder; may be less than asked for, or none.
    pub granted: u64,
    /// The store's decision about what was needed, after the grant: an admission if all of it was
    /// granted, else how long the rest has to wait; one unit, if nothing was needed and nothing was
    /// granted. `reset_at` is the end of the window that paid.
    pub decision: Decision,
    /// The store's instant.
    pub at: Micros,
}

/// Which request a grant answers, and so which lease it is: never used twice by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// Drawn at random when the holder's process starts.
    pub incarnation: u64,
    /// Counted within the process, over all keys.
    pub count: u64,
}

/// Unspent credits that go back. The holder has given them up before it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GiveBack {
    /// The lease. The grantor takes back from each lease once.
    pub id: LeaseId,
    /// Credits that were not spent.
    pub units: u64,
    /// The store's instant of the grant.
    pub granted_at: Micros,
    /// The end of the window that paid, as the grant said it.
    pub paid_until: Micros,
}

impl GiveBack {
    /// The same with numbers that every executor keeps exact. No lease has more units than that.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self { units: self.units.min(EXACT_MAX), ..self }
    }

    /// Whether the grant was made before the key was reset, or as it was: then there is nothing to
    /// restore, since the reset has forgotten it.
    #[must_use]
    pub fn is_from_before(&self, reset_at: Option<Micros>) -> bool {
        reset_at.is_some_and(|reset_at| self.granted_at <= reset_at)
    }
}

/// How long credits live that were granted with `left` to go in the window that pays for them,
/// counted from before the request was sent: a tick less than what is left, and less by as much as
/// the node's clock may be slow. `None` if that is no time at all.
#[must_use]
pub fn lifetime(left: Span) -> Option<Span> {
    let life = surely_within(left.min(LIFETIME_MAX));
    (life > Span::ZERO).then_some(life)
}

/// What of `left` on the store's clock is surely not over yet, counted on a node's own: a tick
/// less, and less by as much as that may be slow.
pub(crate) fn surely_within(left: Span) -> Span {
    let slow = left.us().div_ceil(1_000_000 / DRIFT_MAX_PPM);
    Span::from_us(left.us().saturating_sub(slow).saturating_sub(Span::TICK.us()))
}

/// How much slower a node's clock may run than the store's, in parts per million. The bounds assume
/// it; quartz is a hundred times better.
pub const DRIFT_MAX_PPM: u64 = 1_000;

/// No lease lives longer than this, however long its window is.
pub const LIFETIME_MAX: Span = Span::from_secs(60);

/// Nothing is taken back later than this after the grant. So a grantor need not remember for longer
/// which leases have been given back.
pub const GIVE_BACK_MAX: Span = Span::from_secs(120);

const _: () = assert!(LIFETIME_MAX.us() < GIVE_BACK_MAX.us(), "what dies can still be given back");
