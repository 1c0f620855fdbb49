//! Notes left for whoever has the estimate.
//!
//! # Guarantee
//! A note that was taken in is taken out once. Nobody waits: a full ring takes nothing in, and
//! taking out stops at a place that somebody has claimed and not yet written. That one tells when
//! it has, and whatever lies behind is taken out then.

use super::atom::Atom;
use super::note::Note;

/// A queue with many writers and, at any moment, one reader.
pub(super) struct Ring<A> {
    /// How many places were ever claimed.
    claimed: Line<A>,
    /// How many were ever emptied. Only the reader writes it.
    emptied: Line<A>,
    /// Zero where nothing is.
    places: [A; PLACES],
}

#[repr(align(64))]
struct Line<A>(A);

impl<A: Atom> Ring<A> {
    pub(super) fn new() -> Self {
        let places = std::array::from_fn(|_| A::new(0));
        Self { claimed: Line(A::new(0)), emptied: Line(A::new(0)), places }
    }

    /// Takes a note in; says whether there was room.
    pub(super) fn put(&self, note: Note) -> bool {
        let mut claimed = self.claimed.0.get();
        loop {
            // Read after `claimed`: it may be ahead of what we read there, never behind.
            let held = claimed.saturating_sub(self.emptied.0.get());
            if held >= PLACES as u64 {
                return false;
            }
            match self.claimed.0.replace(claimed, claimed + 1) {
                Ok(()) => break,
                Err(now) => claimed = now,
            }
        }
        self.place(claimed).put(note.to_bits());
        true
    }

    /// Takes the oldest note out. Only for whoever has the estimate.
    pub(super) fn take(&self) -> Option<Note> {
        let emptied = self.emptied.0.get();
        let place = self.place(emptied);
        let note = Note::from_bits(place.get())?;
        place.put(0);
        self.emptied.0.put(emptied + 1);
        Some(note)
    }

    /// How many notes wait.
    pub(super) fn waiting(&self) -> u64 {
        let emptied = self.emptied.0.get();
        self.claimed.0.get().saturating_sub(emptied)
    }

    fn place(&self, number: u64) -> &A {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
        let at = (number % PLACES as u64) as usize;
        &self.places[at]
    }
}

/// How many notes wait at most. A full ring means that the thread with the estimate was stopped
/// while so many permits ended; what it would have learned from more of them is little.
pub(super) const PLACES: usize = 64;
