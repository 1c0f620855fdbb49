//! Budgets in a store that can be lost: what each fail mode answers, that nodes that go on alone
//! stay within every window together, and what reaches the store.
//!
//! Time is tokio's, which stands still until everything waits, and a manual clock.

mod alone;
mod guard;
mod modes;
mod parts;

use std::sync::Arc;

use admittance::budget::{
    Accounts, Act, Answered, Booked, BookedBy, Budget, Charge, Entry, LeaseKey, SharedAccounts,
};
use admittance::{
    BreakerRules, BreakerState, Cadence, FailMode, GuardSettings, Guarded, ManualClock, Memory,
    Micros, Span, StoreError,
};
use admittance_testkit::{Behavior, Scripted};

/// A store that can be lost.
type Moody = Scripted<Memory<ManualClock>>;

const WINDOW: Span = Span::from_secs(60);
const TTL: Span = Span::from_secs(30);
const DEADLINE: Span = Span::from_ms(20);

/// A store, and what its nodes share.
#[derive(Clone)]
struct World {
    store: Arc<Moody>,
    clock: ManualClock,
}

type Node = SharedAccounts<Arc<Moody>>;

impl World {
    fn new() -> Self {
        let clock = ManualClock::at(Micros::from_epoch_ms(1_700_000_040_000).unwrap());
        let store = Arc::new(Scripted::new(Memory::new(clock.clone())));
        Self { store, clock }
    }

    fn guard(&self, run_max: u32) -> Arc<Guarded<Arc<Moody>>> {
        let rules = BreakerRules { run_max, probes_needed: 2, ..BreakerRules::default() };
        let clock = Arc::new(self.clock.clone());
        let settings = GuardSettings { deadline: DEADLINE, rules, clock };
        Arc::new(Guarded::start(Arc::clone(&self.store), settings))
    }

    fn node(&self, fail: FailMode) -> Node {
        SharedAccounts::new(self.guard(1), fail).unwrap()
    }

    fn booked(&self) -> u64 {
        self.store.asked()
    }
}

/// Brings the store back and waits until the guard knows.
async fn recover<S>(world: &World, guard: &Guarded<S>) {
    world.store.serves();
    let mut states = guard.states();
    let closed = states.wait_for(|state| *state == BreakerState::Closed);
    closed.await.expect("the guard lives");
}

fn budget(limit: u64) -> Budget {
    Budget::new(limit, Cadence::every(WINDOW)).unwrap()
}

fn local(share: &str) -> FailMode {
    FailMode::Local { share: share.parse().unwrap() }
}

fn reserve(lease: u128) -> Act {
    Act::Reserve { lease: LeaseKey(lease), ttl: TTL }
}

const DEBIT: Act = Act::Debit(None);

async fn book<S: Accounts + 'static>(
    node: &SharedAccounts<S>,
    budget: &Budget,
    units: u64,
    act: Act,
) -> Result<BookedBy, StoreError> {
    let charges = [Charge { policy: "p", budget, key: b"k", units }];
    node.book(Entry { charges: &charges, act }).await
}

fn only(booked: &BookedBy) -> Answered {
    booked.booked.together.each[0]
}
