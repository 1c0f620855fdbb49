//! Admitted work, measured: how long it waited to begin, and how long it kept a worker.
//!
//! Root work is what came from outside and was admitted. What it spawns is not: children run from
//! their worker's own queue, and the shortest of all waits says nothing about the queue that
//! requests stand in.
//!
//! # Guarantee
//! Work counts as waiting from its admission, or from its arrival if that was noted, until it is
//! first polled or dropped, whichever comes first, and once. It counts as ended once, also when it
//! is dropped or panics.
//!
//! # Proven by
//! `tests/it/load.rs`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use admittance_core::Span;
use admittance_core::load::Delays;
use pin_project_lite::pin_project;

use super::shedder::{Arrival, Shared};

/// Work that was admitted and has not begun. Dropping it says that it never will. One that is
/// leaked waits for ever, and takes the room of another.
#[must_use = "work that is dropped counts as gone"]
pub struct Root {
    shared: Arc<Shared>,
    admitted_ns: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Begun { busy_ns: u64 },
    Ended,
}

impl Root {
    /// Work that has a place among those that wait.
    #[inline]
    pub(super) fn new(shared: Arc<Shared>, arrival: Option<Arrival>) -> Self {
        let admitted_ns = arrival.map_or_else(|| shared.clock.now_ns(), |arrival| arrival.at_ns);
        Self { shared, admitted_ns, state: State::Waiting }
    }

    /// Has waited since an earlier instant.
    #[cfg(feature = "tower")]
    pub(super) fn since(mut self, arrived_ns: u64) -> Self {
        self.admitted_ns = self.admitted_ns.min(arrived_ns);
        self
    }

    /// Measures a future: it begins when it is first polled.
    pub fn measure<F: Future>(self, future: F) -> Measured<F> {
        Measured { future, root: self }
    }

    /// Runs a closure and measures it: for pools of threads.
    pub fn run<T>(mut self, work: impl FnOnce() -> T) -> T {
        let _turn = self.turn();
        work()
    }

    /// Where a worker takes it up, until the turn is dropped.
    fn turn(&mut self) -> Turn<'_> {
        let from_ns = self.shared.clock.now_ns();
        if self.state == State::Waiting {
            self.state = State::Begun { busy_ns: 0 };
            let delay = Span::from_us(from_ns.saturating_sub(self.admitted_ns) / 1_000);
            let work = &self.shared.work;
            work.delays[Delays::bucket(delay)].fetch_add(1, Ordering::Relaxed);
            work.begun.fetch_add(1, Ordering::Relaxed);
            work.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Turn { root: self, from_ns }
    }

    fn end(&mut self) {
        match self.state {
            State::Waiting => {
                self.shared.work.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            State::Begun { busy_ns } => {
                self.shared.work.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
                self.shared.work.ended.fetch_add(1, Ordering::Relaxed);
            }
            State::Ended => {}
        }
        self.state = State::Ended;
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.end();
    }
}

/// The time that a worker spends on it, also if that ends in a panic.
struct Turn<'a> {
    root: &'a mut Root,
    from_ns: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let State::Begun { busy_ns } = &mut self.root.state {
            let spent_ns = self.root.shared.clock.now_ns().saturating_sub(self.from_ns);
            *busy_ns = busy_ns.saturating_add(spent_ns);
            self.root.shared.work.done_ns.fetch_add(spent_ns, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Waiting => "waiting",
            State::Begun { .. } => "begun",
            State::Ended => "ended",
        };
        f.debug_tuple("Root").field(&state).finish()
    }
}

pin_project! {
    /// A future whose wait and whose time on workers are measured.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Measured<F> {
        #[pin]
        future: F,
        root: Root,
    }
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let turn = this.root.turn();
        let polled = this.future.poll(context);
        drop(turn);
        if polled.is_ready() {
            this.root.end();
        }
        polled
    }
}
