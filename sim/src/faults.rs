//! When things go wrong, and with which clocks nodes are born.

use admittance_core::Span;
use fastrand::Rng;

use crate::between::Between;
use crate::clock::LeaseClock;
use crate::node::Node;
use crate::queue::{Event, Fault, Queue};
use crate::setup::Setup;
use crate::store::REPLICATION_LAG_MAX;

/// A node whose clocks are as wrong as the setup says; every fourth drifts as far as it may.
pub(crate) fn born<B: Between>(setup: &Setup, random: &mut Rng) -> Node<B> {
    let signed = |span: u64| i64::try_from(span).unwrap_or(i64::MAX);
    let skew = signed(setup.faults.skew.us());
    Node {
        clock: drifting(setup.faults.drift_ppm, random),
        // Drawn alike however large it is, so that it alone differs.
        skew_us: random.i64(..) % (skew + 1),
        incarnation: random.u64(..),
        count: 0,
        is_up: true,
        seats: std::iter::repeat_with(|| None).take(setup.keys).collect(),
    }
}

/// A clock that drifts by at most so much; every fourth one by just that.
pub(crate) fn drifting(most_ppm: u64, random: &mut Rng) -> LeaseClock {
    let drift = i64::try_from(most_ppm).unwrap_or(i64::MAX);
    let drift_ppm = match random.u64(0..8) {
        0 => drift,
        1 => -drift,
        _ => random.i64(-drift..=drift),
    };
    LeaseClock { epoch: random.u64(EPOCHS), drift_ppm }
}

/// Puts everything that goes wrong into the queue.
pub(crate) fn schedule(setup: &Setup, random: &mut Rng, queue: &mut Queue<Event>) {
    let window = setup.window.us();
    let end = window * u64::try_from(setup.windows).unwrap_or(u64::MAX);
    let mut happen = |at: u64, fault: Fault| queue.push(at, Event::Fault(fault));
    for _ in 0..setup.faults.partitions {
        let at = random.u64(0..end);
        let count = random.usize(1..=setup.nodes.div_ceil(2));
        let nodes = random.choose_multiple(0..setup.nodes, count);
        happen(at, Fault::Cut(nodes.clone()));
        happen(at + random.u64(window / 2..=4 * window), Fault::Heal(nodes));
    }
    for _ in 0..setup.faults.crashes {
        let (at, node) = (random.u64(0..end), random.usize(0..setup.nodes));
        happen(at, Fault::Crash { node, is_clean: random.bool() });
        happen(at + random.u64(1..=2 * window), Fault::Restart { node });
    }
    for _ in 0..setup.faults.failovers {
        let at = random.u64(0..end);
        happen(at, Fault::StoreDown);
        let (lag, step) = if random.bool() {
            (random.u64(1..=REPLICATION_LAG_MAX.us()), random.u64(0..=STEP_BACK_MAX.us()))
        } else {
            (0, 0)
        };
        let (lag, step) = (Span::from_us(lag), Span::from_us(step));
        happen(at + random.u64(1..=OUTAGE_MAX.us()), Fault::StoreUp { lag, step });
    }
}

/// How far the next store's clock may be behind.
const STEP_BACK_MAX: Span = Span::from_ms(50);
/// The longest that there is no store.
const OUTAGE_MAX: Span = Span::from_secs(1);
/// What a lease clock may show when its machine is seen first.
pub(crate) const EPOCHS: std::ops::Range<u64> = 1..1 << 50;
