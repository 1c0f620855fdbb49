//! What a holder has: leases, each with its own end, one of them in the word.
//!
//! # Guarantee
//! - Credits are kept per lease: a grant never changes when older credits die.
//! - One window pays for one admission. Credits of different windows are not added up; credits of
//!   a continuous limit are, since each unit only has to be spent while its lease is alive.
//! - Whoever works on the leases first takes the credits out of the word and last puts some back,
//!   so requests meanwhile find the word empty, and never spend what is being counted.
//!
//! # Proven by
//! `models/`, which interleaves spends with every step; `tests/it/lease.rs`.

use alloc::vec::Vec;

use super::word::{TAG_MAX, Word, WordCell};
use super::{CREDITS_MAX, Coupling, GiveBack, Grant, LeaseId};
use crate::{Cost, Micros, Span};

/// Everything a node holds of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Credits {
    /// Those that die first come first.
    leases: Vec<Lease>,
    /// The lease in the word.
    exposed: Option<u32>,
    /// The tag of the latest lease.
    tag: u32,
    /// Units spent since they were last counted.
    spent: u64,
}

/// A borrowed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    id: LeaseId,
    tag: u32,
    credits: u64,
    /// Of the credits, those that waiting requests will be paid with.
    aside: u64,
    expiry: Micros,
    granted_at: Micros,
    paid_until: Micros,
}

/// What pays for an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paid {
    /// The end of the window that paid, on the store's clock; for a continuous limit, when all of
    /// it was to be back as of the grant.
    pub until: Micros,
    /// Credits left on this node.
    pub remaining: u64,
}

/// Units that the store has admitted for requests that waited: they pay whenever they arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub(super) units: u64,
    pub(super) paid_until: Micros,
}

impl Credits {
    /// The same, for another key: tags go on, so that no old word equals a new one.
    pub(super) fn renewed(&self) -> Self {
        Self { tag: self.tag, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.leases.len() < LEASES_MAX
    }

    /// Everything, what is set aside included.
    pub(super) fn total(&self) -> u64 {
        self.leases.iter().map(|lease| lease.credits + lease.aside).sum()
    }

    /// What is set aside.
    pub(super) fn aside(&self) -> u64 {
        self.leases.iter().map(|lease| lease.aside).sum()
    }

    /// When the next lease dies.
    pub(super) fn next_expiry(&self) -> Option<Micros> {
        self.leases.first().map(|lease| lease.expiry)
    }

    /// Units spent since the last call.
    pub(super) fn take_spent(&mut self) -> u64 {
        core::mem::take(&mut self.spent)
    }

    /// Takes the word's credits back to their lease; says whether requests spent any.
    pub(super) fn recall(&mut self, cell: &impl WordCell) -> bool {
        let Some(tag) = self.exposed.take() else { return false };
        let left = cell.publish(Word::EMPTY, Micros::ZERO);
        let Some(lease) = self.leases.iter_mut().find(|lease| lease.tag == tag) else {
            return false;
        };
        let spent = lease.credits - left.credits();
        lease.credits = left.credits();
        self.spent += spent;
        spent > 0
    }

    /// Puts the lease that dies first into the word, if there is any with credits.
    pub(super) fn expose(&mut self, cell: &impl WordCell, now: Micros) {
        debug_assert!(self.exposed.is_none(), "the word is taken before it is filled");
        self.leases.retain(|lease| lease.credits + lease.aside > 0);
        let is_fit = |lease: &&Lease| lease.credits > 0 && now < lease.expiry;
        let Some(lease) = self.leases.iter().find(is_fit) else { return };
        let word = Word::new(lease.tag, lease.credits, lease.expiry);
        let _ = cell.publish(word, lease.paid_until);
        self.exposed = Some(lease.tag);
    }

    /// Adds a lease that lives until `expiry`; what exceeds a word's room is left out.
    pub(super) fn add(&mut self, id: LeaseId, units: u64, expiry: Micros, grant: &Grant) {
        self.tag = if self.tag < TAG_MAX { self.tag + 1 } else { 1 };
        let lease = Lease {
            id,
            tag: self.tag,
            credits: units.min(CREDITS_MAX),
            aside: 0,
            expiry,
            granted_at: grant.at,
            paid_until: grant.decision.reset_at,
        };
        let place = self.leases.partition_point(|other| other.expiry <= expiry);
        self.leases.insert(place, lease);
    }

    /// Adds units to the latest lease, which was granted with them.
    pub(super) fn add_to_latest(&mut self, units: u64) {
        let tag = self.tag;
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.tag == tag) {
            lease.credits = (lease.credits + units).min(CREDITS_MAX);
        }
    }

    /// Sets aside all free credits that one window pays with: those that live longest. Says how
    /// many.
    pub(super) fn set_aside(&mut self, coupling: &Coupling, now: Micros) -> u64 {
        let alive = self.leases.iter().filter(|lease| now < lease.expiry && lease.credits > 0);
        let Some(payer) = alive.map(|lease| lease.paid_until).next_back() else { return 0 };
        let mut sum = 0;
        for lease in &mut self.leases {
            if now < lease.expiry && coupling.is_same(lease.paid_until, payer) {
                sum += lease.credits;
                lease.aside += core::mem::take(&mut lease.credits);
            }
        }
        sum
    }

    /// What was set aside is free again.
    pub(super) fn release(&mut self) {
        for lease in &mut self.leases {
            lease.credits += core::mem::take(&mut lease.aside);
        }
    }

    /// Pays `cost` from leases alive at `now` and what the store admitted, all of one window.
    pub(super) fn pay(
        &mut self,
        coupling: &Coupling,
        now: Micros,
        cost: Cost,
        admitted: Option<&mut Admitted>,
    ) -> Option<Paid> {
        let payers = self.leases.iter().filter(|lease| now < lease.expiry);
        let mut payers: Vec<Micros> = payers.map(|lease| lease.paid_until).collect();
        payers.extend(admitted.as_ref().map(|admitted| admitted.paid_until));
        let units = |payer: Micros| -> u64 {
            let is_payer =
                |lease: &&Lease| now < lease.expiry && coupling.is_same(lease.paid_until, payer);
            let own: u64 = self.leases.iter().filter(is_payer).map(|lease| lease.credits).sum();
            let store = admitted.as_ref().filter(|it| coupling.is_same(it.paid_until, payer));
            own + store.map_or(0, |admitted| admitted.units)
        };
        let payer = payers.into_iter().find(|&payer| units(payer) >= cost.units())?;
        let mut due = cost.units();
        if let Some(admitted) = admitted.filter(|it| coupling.is_same(it.paid_until, payer)) {
            let part = due.min(admitted.units);
            admitted.units -= part;
            due -= part;
        }
        for lease in &mut self.leases {
            if now < lease.expiry && coupling.is_same(lease.paid_until, payer) {
                let part = due.min(lease.credits);
                lease.credits -= part;
                due -= part;
            }
        }
        debug_assert_eq!(due, 0, "the sum was enough");
        self.spent += cost.units();
        Some(Paid { until: payer, remaining: self.total() })
    }

    /// Takes out the leases that are dead at `now`, or all of them if `now` is `None`, with what
    /// they had left.
    pub(super) fn take_dead(&mut self, now: Option<Micros>) -> Vec<GiveBack> {
        self.leases.retain(|lease| lease.credits + lease.aside > 0);
        let is_dead = |lease: &Lease| now.is_none_or(|now| lease.expiry <= now);
        let dead = self.leases.iter().filter(|lease| is_dead(lease));
        let given = dead.map(|lease| GiveBack {
            id: lease.id,
            units: lease.credits + lease.aside,
            granted_at: lease.granted_at,
            paid_until: lease.paid_until,
        });
        let given = given.collect();
        self.leases.retain(|lease| !is_dead(lease));
        given
    }

    /// Forgets everything, without a word to anybody.
    pub(super) fn forget(&mut self, cell: &impl WordCell) {
        if self.exposed.take().is_some() {
            let _ = cell.publish(Word::EMPTY, Micros::ZERO);
        }
        self.leases.clear();
    }
}

/// How long the credits of a grant live, counted from before its request was sent.
pub(super) fn life(coupling: &Coupling, grant: &Grant) -> Option<Span> {
    match coupling {
        Coupling::Windowed => super::lifetime(grant.decision.reset_at.since(grant.at)),
        Coupling::Continuous { lease_time } => super::lifetime(*lease_time),
        Coupling::CarryOver => Some(FOREVER),
    }
}

/// The most leases of one key that a node holds; what is granted beyond goes back.
pub const LEASES_MAX: usize = 8;

/// Longer than any process runs.
const FOREVER: Span = Span::from_us(1 << 51);
