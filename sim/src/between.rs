//! What lies between the machines and the world, where a test can break a rule.
//!
//! The machines are the shipped ones and stay as they are. What they are told passes through a
//! [`Between`]; [`Nothing`] passes everything on as it is. A mutant changes one thing, such as the
//! instant that a grant's lifetime counts from, and the checks of the same run must catch it.

use admittance_core::lease::{Ask, GiveBack, Grant, LeaseId, Word};
use admittance_core::{Micros, Span};

/// What may be changed on the way. Every default changes nothing.
pub trait Between: Copy {
    /// What the grantor is asked.
    #[must_use]
    fn ask(self, ask: Ask) -> Ask {
        ask
    }

    /// Whether the store keeps what it has granted.
    #[must_use]
    fn is_kept(self, _id: LeaseId) -> bool {
        true
    }

    /// What the holder is told.
    #[must_use]
    fn grant(self, _heard: &Heard, grant: Grant) -> Grant {
        grant
    }

    /// What the grantor is given back, at its own instant.
    #[must_use]
    fn give_back(self, _now: Micros, back: GiveBack) -> GiveBack {
        back
    }

    /// Which attempt the next one is.
    #[must_use]
    fn id(self, fresh: LeaseId) -> LeaseId {
        fresh
    }

    /// What the cell holds after `next` is put in place of `before`, and what the holder is told
    /// was there. `kept` is the cell's own.
    #[must_use]
    fn publish(self, _kept: &mut u64, before: Word, next: Word) -> Published {
        Published { stored: next, told: before }
    }

    /// What happens when a holder's deadline has come.
    #[must_use]
    fn deadline(self) -> Deadline {
        Deadline::Told
    }
}

/// What happens when a holder's deadline has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// The holder is told.
    Told,
    /// The holder is asked what it wants, and not told.
    Untold,
    /// Nobody looks.
    Missed,
}

/// A word that was swapped.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// What the cell holds now.
    pub stored: Word,
    /// What the holder is told that it held.
    pub told: Word,
}

/// What a node knows when a grant arrives.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// When its request was sent, on its lease clock.
    pub sent: Micros,
    /// When the grant arrived, on its lease clock.
    pub now: Micros,
    /// The same instant on its wall clock, which may be minutes wrong.
    pub wall: Micros,
}

impl Heard {
    /// How long the answer took.
    #[must_use]
    pub fn round_trip(&self) -> Span {
        self.now.since(self.sent)
    }
}

/// The world as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Between for Nothing {}
