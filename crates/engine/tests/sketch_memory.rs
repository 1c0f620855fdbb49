//! A sketch's memory does not follow its keys. In a process of its own, for its allocator counts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;

use admittance::{ManualClock, SketchLimiter, SketchSize, Span, Window};

/// The system's allocator, with a count of the bytes that each thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed on as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + layout.size());
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The bytes that a million new keys take.
fn asked_for_a_million_keys(mut check: impl FnMut(u64)) -> usize {
    let before = ASKED.get();
    (0..1_000_000).for_each(&mut check);
    ASKED.get() - before
}

#[test]
fn a_million_keys_take_no_memory_beyond_what_the_sketch_reports() {
    let window = Window::fixed(10, Span::from_secs(1)).unwrap();
    let size = SketchSize::Cells { rows: 4, columns: 1_000 };
    let builder = SketchLimiter::builder(window, size).clock(ManualClock::default());
    let before = ASKED.get();
    let sketch = builder.build().unwrap();
    let asked = ASKED.get() - before;
    assert_eq!(sketch.bytes(), 32_000);
    assert!(asked >= sketch.bytes() && asked < sketch.bytes() + 1_000, "{asked} bytes");

    let of_sketch = asked_for_a_million_keys(|key| {
        let _ = sketch.check(key);
    });
    assert_eq!((of_sketch, sketch.bytes()), (0, 32_000));
    let mut exact = HashMap::new();
    let of_exact = asked_for_a_million_keys(|key| *exact.entry(key).or_insert(0) += 1);
    assert!(of_exact > 0, "a count of each key passes as fixed memory");
}
