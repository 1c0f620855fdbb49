//! Forks wait for what runs without the interpreter's lock on memory that a child gets a copy of.
//!
//! # Guarantee
//! No lock of an `Embedded` is held by another thread while Python forks: in the child that thread
//! does not exist, and nobody would ever let go.
//!
//! # Argument
//! A visitor says that it is there, then looks whether somebody forks; who forks says so, then
//! waits until nobody is there. In one order of all four one of the two sees the other.
//!
//! # Proven by
//! `tests/test_fork.py`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

/// How many are about to fork.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// How many are in memory that is copied.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Somebody who must be gone before a fork.
pub(crate) struct Visit(());

impl Visit {
    /// Nothing while somebody forks.
    pub(crate) fn begin() -> Option<Self> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let visit = Self(());
        (FORKING.load(Ordering::SeqCst) == 0).then_some(visit)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Python calls it before a fork.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    FORKING.fetch_add(1, Ordering::SeqCst);
    while INSIDE.load(Ordering::SeqCst) > 0 {
        // Who is inside may need the lock to leave.
        py.detach(|| std::thread::sleep(LOOK_EVERY));
    }
}

/// Python calls it after a fork, in the parent.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// In the child: those who were about to fork beside it are not here.
pub(crate) fn forget() {
    FORKING.store(0, Ordering::SeqCst);
    INSIDE.store(0, Ordering::SeqCst);
}

/// The longest batch takes a few milliseconds.
const LOOK_EVERY: Duration = Duration::from_micros(50);
