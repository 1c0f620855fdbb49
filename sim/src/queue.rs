//! What is going to happen, in order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use admittance_core::lease::{GiveBack, Grant, LeaseId, Request};
use admittance_core::{Micros, Span};

/// What is going to happen. Two things at one instant happen in the order in which they were put
/// here.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    count: u64,
}

/// Something that happens to a fleet that leases.
pub(crate) enum Event {
    /// An ask reaches the store.
    Ask { port: Port, request: Request, sent: Micros },
    /// A give-back reaches the store.
    Return { node: usize, key: usize, back: GiveBack },
    /// A grant reaches its node.
    Grant { port: Port, id: LeaseId, sent: Micros, grant: Grant, facts: Facts },
    /// A node learns that an ask will not be answered.
    Failure { port: Port, id: LeaseId },
    /// A holder wants to be called.
    Due { port: Port },
    /// Something goes wrong, or right again.
    Fault(Fault),
}

/// One life of a node, and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) node: usize,
    pub(crate) incarnation: u64,
    pub(crate) key: usize,
}

/// What was true when the store granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// What the store had left before.
    pub(crate) left: u64,
    /// What the node had that could be added to it, if that can be told.
    pub(crate) own: Option<Own>,
    /// What the store admitted by itself.
    pub(crate) need: u64,
}

/// Credits of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) units: u64,
    /// Of these, at most so many came while the ask was on its way, so that it did not count them.
    pub(crate) overtook: u64,
}

pub(crate) enum Fault {
    Cut(Vec<usize>),
    Heal(Vec<usize>),
    Crash { node: usize, is_clean: bool },
    Restart { node: usize },
    StoreDown,
    StoreUp { lag: Span, step: Span },
}

struct Entry<E> {
    at: u64,
    count: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }

    pub(crate) fn push(&mut self, at: u64, event: E) {
        self.count += 1;
        self.heap.push(Reverse(Entry { at, count: self.count, event }));
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.count).cmp(&(other.at, other.count))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Entry<E> {}
