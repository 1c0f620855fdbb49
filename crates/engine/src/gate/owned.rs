//! A word, and a value that whoever set the word's top mark may change.
//!
//! # Why not a mutex
//! The value would need one although the word already says who may change it, and locking and
//! unlocking it are two swaps more on the path of every permit: 89 ns instead of 76 for acquire and
//! finish, where two readings of the clock and two additions take 44 (the benchmark's floor; the
//! target is twice that).
//!
//! # Safety argument
//! The word is private to this file. The mark [`OWNED`] is set only in [`OwnedWord::own`], by a
//! swap of a word without it, and cleared only in [`Owner::leave`], which consumes the [`Owner`]
//! that the swap gave. So there is at most one owner, and only through `&mut` of it is the value
//! reached. Both swaps acquire and release: an owner sees all that the last one did. An owner that
//! is dropped without leaving keeps the mark set, and nobody reaches the value again.
//!
//! # Proven by
//! `tests.rs` beside this file, whose estimate notices a second owner.

use std::cell::UnsafeCell;

use super::atom::Atom;

/// A word whose mark [`OWNED`] guards a value. The word comes first, so that it shares its line
/// with what its user puts before it.
#[repr(C)]
pub(super) struct OwnedWord<A, T> {
    word: A,
    value: UnsafeCell<T>,
}

// SAFETY: see the safety argument; the value moves from thread to thread, one at a time.
unsafe impl<A: Sync, T: Send> Sync for OwnedWord<A, T> {}

/// Whoever may change the value.
pub(super) struct Owner<'a, A, T>(&'a OwnedWord<A, T>);

/// Somebody may change the value.
pub(super) const OWNED: u64 = 1 << 63;

impl<A: Atom, T> OwnedWord<A, T> {
    pub(super) fn new(bits: u64, value: T) -> Self {
        Self { word: A::new(bits & !OWNED), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.word.get()
    }

    /// Changes everything but who owns the value, or says what is there instead of `from`.
    #[inline]
    pub(super) fn replace(&self, from: u64, to: u64) -> Result<(), u64> {
        self.word.replace(from, to & !OWNED | from & OWNED)
    }

    /// Takes the value, which nobody has in `from`, and changes the rest of the word to `to`.
    #[inline]
    pub(super) fn own(&self, from: u64, to: u64) -> Result<Owner<'_, A, T>, u64> {
        if from & OWNED != 0 {
            return Err(from);
        }
        self.word.replace(from, to | OWNED).map(|()| Owner(self))
    }

    /// Clears marks; what was there before.
    pub(super) fn clear(&self, marks: u64) -> u64 {
        self.word.clear(marks & !OWNED)
    }
}

impl<A: Atom, T> Owner<'_, A, T> {
    /// The value.
    #[inline]
    pub(super) fn value(&mut self) -> &mut T {
        // SAFETY: see the safety argument: this is the one owner, and it is borrowed for as long.
        unsafe { &mut *self.0.value.get() }
    }

    /// Gives the value back and changes the rest of the word to `to`; or says what is there
    /// instead of `from`, and owns on.
    #[inline]
    pub(super) fn leave(self, from: u64, to: u64) -> Result<(), (Self, u64)> {
        self.0.word.replace(from, to & !OWNED).map_err(|now| (self, now))
    }
}
