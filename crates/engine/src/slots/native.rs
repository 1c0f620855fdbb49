//! The machine's memory: 16-byte slots in zeroed pages.
//!
//! This is the only module with unsafe code. Its need is measured: a 16-byte slot that is read and
//! swapped whole halves the memory of a slot with a lock, and the standard library has no 128-bit
//! atomic.
//!
//! # Safety argument
//! - `Native::is_supported` is asked before a table is built. On x86-64 it demands `cmpxchg16b`,
//!   and AVX because Intel and AMD document aligned 16-byte vector loads as atomic on processors
//!   that have it.
//! - A cell is 16 bytes in a group aligned to 64, so every cell is aligned to 16 and no access
//!   crosses a line. Cells are reached only through the instructions below: there is no plain
//!   access and no reference to the inside. `key` reads an aligned half, which is atomic by
//!   itself; what it finds is only ever used to choose which cell to load whole. `swap_word` swaps
//!   an aligned half.
//! - `swap` and `swap_word` are locked instructions, hence full barriers. `load` is a plain load,
//!   which x86 does not reorder with other loads; the asm blocks keep the compiler from moving
//!   memory accesses across them (none is marked `nomem` or `pure`).
//! - Pages come zeroed from the allocator, and zero is an empty cell and a free lock.
//!
//! # Proven by
//! `tests/it/race.rs` on the machine; the protocol above it under shuttle in `tests` of the table,
//! with a memory whose halves are torn as the mutant.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::memory::{Cell, Count, Flag, Group, Memory, Slot};

/// The machine's memory.
#[derive(Debug)]
pub(crate) struct Native;

impl Native {
    /// Whether this processor can swap and load sixteen bytes at once.
    pub(crate) fn is_supported() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("cmpxchg16b")
            && std::arch::is_x86_feature_detected!("avx");
        #[cfg(not(target_arch = "x86_64"))]
        return portable_atomic::AtomicU128::is_lock_free();
    }
}

impl Memory for Native {
    type Cell = NativeCell;
    type Count = AtomicU64;
    type Flag = AtomicU8;
    type Groups = Zeroed<Group<NativeCell>>;
    type Flags = Zeroed<AtomicU8>;

    fn groups(count: usize) -> Self::Groups {
        Zeroed::new(count)
    }

    fn flags(count: usize) -> Self::Flags {
        Zeroed::new(count)
    }

    #[inline]
    fn prefetch(group: &Group<NativeCell>) {
        prefetch(std::ptr::from_ref(group));
    }

    fn pause(tries: u32) {
        if tries >= PAUSES_BEFORE_YIELD {
            return std::thread::yield_now();
        }
        // Two threads that fight for a line get more done if the loser lets the winner have it for
        // some dozens of checks: about a microsecond at first, longer each time.
        for _ in 0..FIRST_PAUSE << tries {
            std::hint::spin_loop();
        }
    }
}

/// Asks for a line that will be read soon.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could see; any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A slot in the machine's memory.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(16))]
pub(crate) struct NativeCell(UnsafeCell<[u64; 2]>);

// SAFETY: the inside is reached only by the two atomic accesses below.
#[cfg(target_arch = "x86_64")]
unsafe impl Sync for NativeCell {}

#[cfg(target_arch = "x86_64")]
impl NativeCell {
    pub(crate) const fn empty() -> Self {
        Self(UnsafeCell::new([0, 0]))
    }
}

#[cfg(target_arch = "x86_64")]
impl Cell for NativeCell {
    #[inline(always)]
    fn load(&self) -> Slot {
        use std::arch::x86_64::__m128i;
        let value: __m128i;
        // SAFETY: the address is valid and aligned to 16; the load is atomic with AVX (see above).
        unsafe {
            std::arch::asm!(
                "movdqa {value}, xmmword ptr [{at}]",
                value = lateout(xmm_reg) value,
                at = in(reg) self.0.get(),
                options(nostack, preserves_flags),
            );
        }
        // SAFETY: both are sixteen plain bytes; x86 keeps the low word first.
        let [key, word] = unsafe { std::mem::transmute::<__m128i, [u64; 2]>(value) };
        Slot { key, word }
    }

    #[inline(always)]
    fn key(&self) -> u64 {
        let key: u64;
        // SAFETY: the address is valid and aligned to 16, so its first half is to 8.
        unsafe {
            std::arch::asm!(
                "mov {key}, qword ptr [{at}]",
                key = lateout(reg) key,
                at = in(reg) self.0.get(),
                options(nostack, preserves_flags, readonly),
            );
        }
        key
    }

    #[inline(always)]
    fn swap(&self, from: Slot, to: Slot) -> bool {
        let swapped: u8;
        // SAFETY: the address is valid and aligned to 16. The instruction wants `rbx`, which the
        // compiler will not let us name, so it is saved and put back. All other registers are
        // named: an operand left to the compiler could be given `rbx` itself.
        unsafe {
            std::arch::asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "sete r8b",
                "mov rbx, rsi",
                in("rdi") self.0.get(),
                inout("rsi") to.key => _,
                out("r8b") swapped,
                inout("rax") from.key => _,
                inout("rdx") from.word => _,
                in("rcx") to.word,
                options(nostack),
            );
        }
        swapped != 0
    }

    #[inline(always)]
    fn swap_word(&self, from: u64, to: u64) -> bool {
        let swapped: u8;
        // SAFETY: the address is valid and aligned to 16, so its second half is to 8.
        unsafe {
            std::arch::asm!(
                "lock cmpxchg qword ptr [{at} + 8], {to}",
                "sete {swapped}",
                at = in(reg) self.0.get(),
                to = in(reg) to,
                swapped = lateout(reg_byte) swapped,
                inout("rax") from => _,
                options(nostack),
            );
        }
        swapped != 0
    }
}

/// A slot in the machine's memory.
#[cfg(not(target_arch = "x86_64"))]
#[repr(C, align(16))]
pub(crate) struct NativeCell(portable_atomic::AtomicU128);

#[cfg(not(target_arch = "x86_64"))]
impl NativeCell {
    pub(crate) const fn empty() -> Self {
        Self(portable_atomic::AtomicU128::new(0))
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Cell for NativeCell {
    fn load(&self) -> Slot {
        let both = self.0.load(Ordering::Acquire);
        Slot { key: both as u64, word: (both >> 64) as u64 }
    }

    fn key(&self) -> u64 {
        self.load().key
    }

    fn swap(&self, from: Slot, to: Slot) -> bool {
        let joined = |slot: Slot| u128::from(slot.key) | u128::from(slot.word) << 64;
        let (from, to) = (joined(from), joined(to));
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn swap_word(&self, from: u64, to: u64) -> bool {
        let slot = self.load();
        slot.word == from && self.swap(slot, Slot { word: to, ..slot })
    }
}

impl Count for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn raise_to(&self, value: u64) {
        self.fetch_max(value, Ordering::AcqRel);
    }

    fn add(&self, value: u64) {
        self.fetch_add(value, Ordering::Relaxed);
    }

    fn subtract(&self, value: u64) {
        self.fetch_sub(value, Ordering::Relaxed);
    }

    fn increment_up_to(&self, max: u64) -> bool {
        let more = |count| (count < max).then(|| count + 1);
        self.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Flag for AtomicU8 {
    fn try_take(&self) -> bool {
        self.load(Ordering::Relaxed) == 0
            && self.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give(&self) {
        self.store(0, Ordering::Release);
    }
}

/// Types for which all bytes zero is a valid value.
///
/// # Safety
/// The implementor says so.
pub(crate) unsafe trait Zeroable {}

// SAFETY: zero is an empty slot.
unsafe impl Zeroable for Group<NativeCell> {}
// SAFETY: zero is a lock that nobody has.
unsafe impl Zeroable for AtomicU8 {}

/// A slice of zeroed memory, aligned to a cache line.
///
/// The pages come from the allocator's zeroed path, which takes fresh ones from the system without
/// touching them: a segment of a hundred megabytes costs nothing until its groups are used.
pub(crate) struct Zeroed<T> {
    start: NonNull<T>,
    count: usize,
    allocation: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, as a box of the slice would.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: shared references give only shared references to the elements.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    fn new(count: usize) -> Self {
        const { assert!(align_of::<T>() <= LINE) };
        let size = size_of::<T>().checked_mul(count).and_then(|size| size.checked_add(LINE));
        let size = size.expect("a table is smaller than the address space");
        // Asking for more alignment than the allocator's own would make it write the zeroes.
        let layout = Layout::from_size_align(size, 16).expect("the size was just checked");
        // SAFETY: the layout's size is not zero.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else { handle_alloc_error(layout) };
        let ahead = allocation.align_offset(LINE);
        // SAFETY: `ahead` is less than a line, and a line more than needed was allocated.
        let start = unsafe { allocation.add(ahead) }.cast();
        Self { start, count, allocation, layout }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements of zeroes, valid by `Zeroable`, aligned, and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed once. The elements need no drop.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

const LINE: usize = 64;
const FIRST_PAUSE: u32 = 16;
const PAUSES_BEFORE_YIELD: u32 = 5;
const _: () = assert!(size_of::<Group<NativeCell>>() == LINE);
