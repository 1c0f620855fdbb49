//! What the slot table needs from memory, so that one protocol runs on the machine and under a
//! checker that explores its interleavings.

use std::fmt::Debug;
use std::ops::Deref;

/// One key and its state word, read and swapped as one value.
///
/// Were they two atomics, a slot reused between the two reads would admit one key on another's
/// state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The key's fingerprint; zero in an empty slot.
    pub(crate) key: u64,
    /// The strategy's word; its top bit is [`HELD`].
    pub(crate) word: u64,
}

impl Slot {
    pub(crate) const EMPTY: Self = Self { key: 0, word: 0 };

    pub(crate) const fn is_empty(self) -> bool {
        self.key == 0
    }

    pub(crate) const fn is_held(self) -> bool {
        self.word & HELD != 0
    }
}

/// Set in a word while a decision over several limits is being written: nobody else may change,
/// move or forget the slot.
pub(crate) const HELD: u64 = 1 << 63;

/// Sixteen bytes that are read and swapped whole.
pub(crate) trait Cell: Send + Sync {
    /// Reads the slot.
    fn load(&self) -> Slot;

    /// Reads the slot's key alone. Only good for finding the slot that is then loaded whole.
    fn key(&self) -> u64;

    /// Puts `to` in place of `from`; says whether `from` was there.
    fn swap(&self, from: Slot, to: Slot) -> bool;
}

/// A number that many threads read and few write.
pub(crate) trait Count: Send + Sync + Debug + Default {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    fn raise_to(&self, value: u64);
    fn add(&self, value: u64);
    fn subtract(&self, value: u64);
    /// Adds one unless that would exceed `max`; says whether it did.
    fn increment_up_to(&self, max: u64) -> bool;
}

/// A lock of one byte.
pub(crate) trait Flag: Send + Sync {
    /// Takes the lock if nobody has it.
    fn try_take(&self) -> bool;
    /// Gives the lock back.
    fn give(&self);
}

/// Four slots that lie on one cache line.
#[repr(C, align(64))]
pub(crate) struct Group<C>(pub(crate) [C; SLOTS]);

/// Slots per group: what a cache line holds.
pub(crate) const SLOTS: usize = 4;

/// A kind of memory.
pub(crate) trait Memory: Sized + 'static {
    type Cell: Cell;
    type Count: Count;
    type Flag: Flag;
    type Groups: Deref<Target = [Group<Self::Cell>]> + Send + Sync;
    type Flags: Deref<Target = [Self::Flag]> + Send + Sync;

    /// Empty groups.
    fn groups(count: usize) -> Self::Groups;

    /// Locks that nobody has.
    fn flags(count: usize) -> Self::Flags;

    /// Asks for a line that will be read soon.
    fn prefetch(group: &Group<Self::Cell>);

    /// Waits a little for another thread, longer the more often it was in vain.
    fn pause(tries: u32);
}
