//! What the slot table needs from memory, so that one protocol runs on the machine and under a
//! checker that explores its interleavings.

use std::fmt::Debug;
use std::ops::Deref;

/// One key and its state word, read as one value.
///
/// Were they two atomics, a slot reused between the two reads would admit one key on another's
/// state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The key's fingerprint; zero in an empty slot.
    pub(crate) key: u64,
    /// The strategy's word, and above it what [`Layout`] says.
    pub(crate) word: u64,
}

impl Slot {
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

/// How a word is divided between the strategy and the table.
///
/// A charge changes the word alone, and swapping sixteen bytes costs three times as much as
/// swapping eight (measured: it keeps the next check's line from being fetched meanwhile). Eight
/// are enough if no later tenant of the slot can bring back a word that a slow check still
/// remembers. While a key stays in a slot its words only grow; each time a key leaves, the slot's
/// *tenure* counts up, three bits above the strategy's. So a check is fooled only if it sleeps
/// between its read and its swap while exactly eight keys, or a multiple, leave its slot and the
/// next one there has the very same word.
///
/// A strategy that needs more than sixty bits is swapped whole, sixteen bytes each time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    value_mask: u64,
}

impl Layout {
    /// The layout for a strategy whose words have this many bits.
    pub(crate) const fn for_bits(bits: u32) -> Self {
        let has_tenure = bits <= TENURE_SHIFT;
        Self { value_mask: if has_tenure { (1 << TENURE_SHIFT) - 1 } else { HELD - 1 } }
    }

    /// Whether eight bytes are enough to swap.
    #[inline]
    pub(crate) const fn has_tenure(self) -> bool {
        self.value_mask != HELD - 1
    }

    /// The strategy's part of a word.
    #[inline]
    pub(crate) const fn value(self, word: u64) -> u64 {
        word & self.value_mask
    }

    /// A slot's word with another value, held by nobody.
    #[inline]
    pub(crate) const fn with_value(self, word: u64, value: u64) -> u64 {
        (word & !self.value_mask & !HELD) | value
    }

    /// What is left of a slot whose key is gone.
    pub(crate) const fn vacated(self, old: Slot) -> Slot {
        let tenures = !self.value_mask & !HELD;
        let next = (old.word & tenures).wrapping_add(1 << TENURE_SHIFT) & tenures;
        Slot { key: 0, word: next }
    }
}

const TENURE_SHIFT: u32 = 60;

/// Sixteen bytes that are read and swapped whole.
pub(crate) trait Cell: Send + Sync {
    /// Reads the slot.
    fn load(&self) -> Slot;

    /// Reads the slot's key alone. Only good for finding the slot that is then loaded whole.
    fn key(&self) -> u64;

    /// Puts `to` in place of `from`; says whether `from` was there.
    fn swap(&self, from: Slot, to: Slot) -> bool;

    /// Puts the word `to` in place of the word `from`, whosever it is; says whether it was there.
    fn swap_word(&self, from: u64, to: u64) -> bool;
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

    /// Whether nobody's key is in a slot that was just read.
    fn is_vacant(slot: Slot) -> bool {
        slot.is_empty()
    }

    /// Waits a little for another thread, longer the more often it was in vain.
    fn pause(tries: u32);
}
