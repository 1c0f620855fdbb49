//! Budgets in a store that can be lost: what each fail mode answers, that nodes that go on alone
//! stay within every window together, and what reaches the store.
//!
//! Time is tokio's, which stands still until everything waits, and a manual clock.

mod alone;
mod guard;
mod modes;
mod parts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use admittance::budget::{
    Accounts, Act, Answered, Booked, BookedBy, Budget, Charge, Entry, LeaseKey, SharedAccounts,
};
use admittance::{
    Applied, AppliedMany, AppliedSeveral, BreakerRules, BreakerState, Cadence, FailMode, Group,
    GuardSettings, Guarded, ManualClock, Many, Memory, Micros, Op, Span, Store, StoreError,
};

/// How a store behaves for now.
#[derive(Clone, Debug)]
enum Mood {
    Serves,
    /// Never answers.
    Hangs,
    /// Does what it is asked, and never answers.
    BooksAndHangs,
    Fails(StoreError),
}

/// A store that can be lost.
struct Moody {
    memory: Memory<ManualClock>,
    mood: Mutex<Mood>,
    booked: AtomicU64,
}

impl Moody {
    fn becomes(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn lose(&self) {
        self.becomes(Mood::Fails(StoreError::Unavailable));
    }

    fn is_lost(&self) -> bool {
        !matches!(*self.mood.lock().unwrap(), Mood::Serves)
    }

    async fn meet(&self) -> Result<(), StoreError> {
        let mood = self.mood.lock().unwrap().clone();
        match mood {
            Mood::Serves | Mood::BooksAndHangs => Ok(()),
            Mood::Hangs => std::future::pending().await,
            Mood::Fails(error) => Err(error),
        }
    }
}

impl Store for Moody {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.meet().await?;
        self.memory.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.meet().await?;
        self.memory.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.meet().await?;
        self.memory.several(group).await
    }
}

impl Accounts for Moody {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.booked.fetch_add(1, Ordering::SeqCst);
        self.meet().await?;
        let booked = self.memory.book(entry).await;
        let hangs = matches!(*self.mood.lock().unwrap(), Mood::BooksAndHangs);
        if hangs { std::future::pending().await } else { booked }
    }
}

const WINDOW: Span = Span::from_secs(60);
const TTL: Span = Span::from_secs(30);

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
        let (memory, mood) = (Memory::new(clock.clone()), Mutex::new(Mood::Serves));
        let store = Arc::new(Moody { memory, mood, booked: AtomicU64::new(0) });
        Self { store, clock }
    }

    fn guard(&self, run_max: u32) -> Arc<Guarded<Arc<Moody>>> {
        let rules = BreakerRules { run_max, probes_needed: 2, ..BreakerRules::default() };
        let clock = Arc::new(self.clock.clone());
        let settings = GuardSettings { rules, clock, ..GuardSettings::default() };
        Arc::new(Guarded::start(Arc::clone(&self.store), settings))
    }

    fn node(&self, fail: FailMode) -> Node {
        SharedAccounts::new(self.guard(1), fail).unwrap()
    }

    fn booked(&self) -> u64 {
        self.store.booked.load(Ordering::SeqCst)
    }
}

/// Brings the store back and waits until the guard knows.
async fn recover<S>(world: &World, guard: &Guarded<S>) {
    world.store.becomes(Mood::Serves);
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
