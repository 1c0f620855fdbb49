//! The relay seam: what reaches an instance of a service through another one.
//!
//! A permit is held by the instance that admitted. Behind a load balancer its release or heartbeat
//! may arrive at another. That one leaves a note for the owner in the store they share, and the
//! owner collects its notes every now and then. An admission that stays with one instance never
//! touches the relay.
//!
//! # Guarantee
//! What every implementation of [`Relay`] promises, held by `admittance-testkit` against the one in
//! memory:
//! - Each call is atomic with respect to every other for the same owner.
//! - A lease's end is taken once: a release after a release, or after the owner said that the lease
//!   has ended, is answered [`Posted::Ended`], for [`ENDED_KEPT`].
//! - Notes are collected once, one per lease, with their age on the store's own clock: no clocks
//!   are compared.
//! - Nothing is left for an owner that is not here.
//! - Bounded: [`NOTES_MAX`] notes and [`ENDED_MAX`] ended leases per owner.
//!
//! # Proven by
//! `admittance-testkit`, whose suite runs over every relay, with broken ones that it must catch.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use admittance_core::{Micros, Span};

use crate::{Clock, StoreError};

/// Where instances leave notes for one another.
pub trait Relay: Send + Sync {
    /// Says that an owner is here, which of its leases have ended, and takes its notes, ordered by
    /// lease.
    ///
    /// # Errors
    /// The store could not answer. Notes may have been taken and lost: their leases end by time.
    fn collect(
        &self,
        collect: Collect<'_>,
    ) -> impl Future<Output = Result<Vec<Collected>, StoreError>> + Send;

    /// What an owner signs its leases with; `None` if it is not here.
    ///
    /// # Errors
    /// The store could not answer.
    fn secret(&self, owner: u64)
    -> impl Future<Output = Result<Option<Secret>, StoreError>> + Send;

    /// Leaves notes for an owner, in order: what came of each, or `None` if it is not here.
    ///
    /// # Errors
    /// The store could not answer; some notes may have been left.
    fn post(
        &self,
        owner: u64,
        notes: &[Note],
    ) -> impl Future<Output = Result<Option<Vec<Posted>>, StoreError>> + Send;
}

impl<R: Relay> Relay for Arc<R> {
    fn collect(
        &self,
        collect: Collect<'_>,
    ) -> impl Future<Output = Result<Vec<Collected>, StoreError>> + Send {
        (**self).collect(collect)
    }

    fn secret(
        &self,
        owner: u64,
    ) -> impl Future<Output = Result<Option<Secret>, StoreError>> + Send {
        (**self).secret(owner)
    }

    fn post(
        &self,
        owner: u64,
        notes: &[Note],
    ) -> impl Future<Output = Result<Option<Vec<Posted>>, StoreError>> + Send {
        (**self).post(owner, notes)
    }
}

/// What an owner signs the names of its leases with, so that nobody can make one up.
pub type Secret = [u8; 32];

/// An owner says that it is here.
#[derive(Clone, Copy, Debug)]
pub struct Collect<'a> {
    /// Who, drawn at random when it started, at most [`EXACT_MAX`](crate::EXACT_MAX).
    pub owner: u64,
    /// What it signs with.
    pub secret: &'a Secret,
    /// How long it is here without another call.
    pub ttl: Span,
    /// Leases that have ended without a note: taken back because nobody was heard.
    pub ended: &'a [u64],
}

/// Something that another instance was told about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// Which, as the owner counts them, at most [`EXACT_MAX`](crate::EXACT_MAX).
    pub lease: u64,
    /// What.
    pub told: Told,
}

/// What an instance is told about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// Its holder is alive.
    Beat,
    /// Its work is done.
    Finish,
    /// Its work failed, or was dropped.
    Overload,
}

/// What came of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posted {
    /// It is left for the owner.
    Left,
    /// The lease has ended.
    Ended,
    /// The owner has too many notes already; this one is not among them.
    Full,
}

/// A note that was collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Collected {
    /// What was told.
    pub note: Note,
    /// How long ago.
    pub age: Span,
}

/// The relay in this process, for tests, and what the others are held to.
#[derive(Debug, Default)]
pub struct MemoryRelay<C> {
    clock: C,
    boxes: Mutex<HashMap<u64, Letters>>,
}

/// What waits for one owner.
#[derive(Debug, Default)]
struct Letters {
    secret: Secret,
    here_until: Micros,
    notes: BTreeMap<u64, (Told, Micros)>,
    ended: BTreeMap<u64, Micros>,
}

impl<C: Clock> MemoryRelay<C> {
    /// One in which nobody is here.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self { clock, boxes: Mutex::default() }
    }

    fn boxes(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Letters>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> Relay for MemoryRelay<C> {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        let (mut boxes, now) = (self.boxes(), self.clock.precise());
        boxes.retain(|owner, letters| now < letters.here_until || *owner == collect.owner);
        let letters = boxes.entry(collect.owner).or_default();
        if letters.here_until <= now {
            *letters = Letters::default();
        }
        letters.secret = *collect.secret;
        letters.here_until = now + collect.ttl;
        for lease in collect.ended {
            letters.end(*lease, now);
        }
        let notes = std::mem::take(&mut letters.notes).into_iter();
        Ok(notes
            .map(|(lease, (told, at))| Collected { note: Note { lease, told }, age: now.since(at) })
            .collect())
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        let (boxes, now) = (self.boxes(), self.clock.precise());
        Ok(boxes.get(&owner).filter(|letters| now < letters.here_until).map(|here| here.secret))
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        let (mut boxes, now) = (self.boxes(), self.clock.precise());
        let here = boxes.get_mut(&owner).filter(|letters| now < letters.here_until);
        Ok(here.map(|letters| notes.iter().map(|note| letters.leave(*note, now)).collect()))
    }
}

impl Letters {
    fn leave(&mut self, note: Note, now: Micros) -> Posted {
        let is_ended = self.ended.get(&note.lease).is_some_and(|at| now < *at + ENDED_KEPT);
        if is_ended {
            return Posted::Ended;
        }
        if self.notes.len() >= NOTES_MAX && !self.notes.contains_key(&note.lease) {
            return Posted::Full;
        }
        self.notes.insert(note.lease, (note.told, now));
        if note.told != Told::Beat {
            self.end(note.lease, now);
        }
        Posted::Left
    }

    /// Remembers an end, and forgets what is too old, then the oldest, if there are too many.
    fn end(&mut self, lease: u64, now: Micros) {
        self.ended.insert(lease, now);
        self.ended.retain(|_, at| now < *at + ENDED_KEPT);
        while self.ended.len() > ENDED_MAX {
            let oldest = self.ended.iter().min_by_key(|(lease, at)| (**at, **lease));
            let Some(lease) = oldest.map(|(lease, _)| *lease) else { return };
            self.ended.remove(&lease);
        }
    }
}

/// The most notes that wait for one owner.
pub const NOTES_MAX: usize = 10_000;

/// The most ended leases that are remembered for one owner; the oldest are forgotten first.
pub const ENDED_MAX: usize = 10_000;

/// How long the end of a lease is remembered.
pub const ENDED_KEPT: Span = Span::from_secs(30);
