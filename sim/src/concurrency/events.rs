//! What happens to a fleet, and what goes wrong and when.

use admittance_core::Span;
use admittance_core::concurrency::{Beat, Grant, Leave};
use fastrand::Rng;

use super::backend::{Work, WorkId};
use super::setup::{Limits, Setup};
use crate::queue::Queue;

/// Something that happens.
pub(super) enum Event {
    /// A node's turn to report.
    Tick(Port),
    /// A node reports out of turn.
    Eager(Port),
    /// A report reaches the store.
    Beat(Port, Box<Beat>),
    /// An answer reaches its node.
    Grant(Port, Box<Beat>, Grant),
    /// A farewell reaches the store.
    Leave(usize, Leave),
    /// Work ends, if it has not yet.
    End(WorkId),
    /// A node that stood still sees that work has ended, so long after it began.
    Settle(Work, Span),
    /// A request that read the clock at `read` goes on.
    Stalled { port: Port, read: u64 },
    /// Something goes wrong, or right again.
    Fault(Fault),
}

/// One life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) node: usize,
    pub(super) incarnation: u64,
}

pub(super) enum Fault {
    Start {
        node: usize,
        is_joiner: bool,
    },
    Crash {
        node: usize,
    },
    Leave {
        node: usize,
    },
    Pause {
        node: usize,
        length: u64,
    },
    Cut(Vec<usize>),
    Heal(Vec<usize>),
    StoreDown,
    StoreUp(Return),
    StoreSteps {
        back: u64,
    },
    /// The operator says another limit, which nodes hear one after the other.
    Limit(u32),
    Told {
        node: usize,
        limit: u32,
    },
}

/// How the store comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    AsItWas,
    Empty,
    InAnotherLife,
}

/// Puts the starts of all nodes and everything that goes wrong into the queue.
pub(super) fn schedule(setup: &Setup, random: &mut Rng, queue: &mut Queue<Event>) {
    let (end, life) = (setup.seconds * 1_000_000, setup.rules.ttl.us());
    let all = life + setup.rules.max_hold.us();
    let mut happen = |at: u64, fault: Fault| queue.push(at, Event::Fault(fault));
    let founders = setup.nodes - setup.joiners;
    for node in 0..founders {
        let at = random.u64(0..setup.heartbeat.us());
        happen(at, Fault::Start { node, is_joiner: false });
    }
    let from = setup.steady_from().us();
    let gap = end.saturating_sub(from) / (setup.joiners as u64 + 1);
    for (node, nth) in (founders..setup.nodes).zip(0..) {
        let at = from + gap * nth + random.u64(0..=gap / 4);
        happen(at, Fault::Start { node, is_joiner: true });
    }
    for _ in 0..setup.faults.partitions {
        let (at, count) = (random.u64(0..end), random.usize(1..=setup.nodes.div_ceil(2)));
        let nodes = random.choose_multiple(0..setup.nodes, count);
        happen(at, Fault::Cut(nodes.clone()));
        happen(at + random.u64(1..=2 * all), Fault::Heal(nodes));
    }
    let churn = (0..setup.faults.crashes).map(|_| true);
    for is_crash in churn.chain((0..setup.faults.leaves).map(|_| false)) {
        let (at, node) = (random.u64(0..end), random.usize(0..setup.nodes));
        happen(at, if is_crash { Fault::Crash { node } } else { Fault::Leave { node } });
        happen(at + random.u64(1..=life), Fault::Start { node, is_joiner: false });
    }
    for _ in 0..setup.faults.pauses {
        let (at, node) = (random.u64(0..end), random.usize(0..setup.nodes));
        happen(at, Fault::Pause { node, length: random.u64(1..=2 * life) });
    }
    for _ in 0..setup.faults.failovers {
        let at = random.u64(0..end);
        let returns = [Return::AsItWas, Return::Empty, Return::InAnotherLife];
        happen(at, Fault::StoreDown);
        happen(at + random.u64(1..=OUTAGE_MAX.us()), Fault::StoreUp(returns[random.usize(0..3)]));
    }
    for _ in 0..setup.faults.steps {
        let back = random.u64(1..=STEP_BACK_MAX.us());
        happen(random.u64(0..end), Fault::StoreSteps { back });
    }
    if let Limits::Fixed { limit, changes } = setup.limits {
        for _ in 0..changes {
            let next = random.u32(limit.div_ceil(4)..=limit);
            happen(random.u64(0..end), Fault::Limit(next));
        }
    }
}

/// The longest that there is no store.
const OUTAGE_MAX: Span = Span::from_secs(1);
/// How far the store's clock steps back at most.
const STEP_BACK_MAX: Span = Span::from_ms(500);
