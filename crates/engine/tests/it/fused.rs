//! Rate limits and budgets of one process in one step: racing threads, and what is refused.
//!
//! That answers are core's is in `admittance-testkit`. Here the clock stands still and every cost
//! is a whole number of units, so that what racing threads did is the same as some order of them
//! exactly if the counts are.

use std::sync::Barrier;

use admittance::budget::{Accounts, Act, Budget, Charge, Entry, LeaseKey};
use admittance::{
    Action, Atomicity, Axis, Builtin, Cadence, Cost, FuseAsk, Fused, Fuses, Gcra, Limit,
    ManualClock, Memory, Op, Recovery, SlidingLog, Span, Store, StoreError, Tat,
};

const HOUR: Span = Span::from_secs(3_600);

fn gcra(limit: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: HOUR, burst: limit }).unwrap().into()
}

fn log(limit: u64) -> Builtin {
    SlidingLog::new(limit, HOUR).unwrap().into()
}

fn budget(limit: u64) -> Budget {
    Budget::new(limit, Cadence::Day { offset_minutes: 0 }).unwrap()
}

/// Two limits, one in each kind of table, and two budgets.
struct World {
    store: Memory<ManualClock>,
    rates: [Builtin; 2],
    budgets: [Budget; 2],
}

impl World {
    fn new(rate: u64, budgets: u64) -> Self {
        let store = Memory::new(ManualClock::default());
        let rates = [gcra(rate), log(rate)];
        Self { store, rates, budgets: [budget(budgets), budget(budgets)] }
    }

    /// Both orders are asked, so that whoever locks as it is written waits for ever.
    fn fuse(&self, turn: usize, cost: u64, act: Act, atomicity: Atomicity) -> Fused {
        let [one, other] = &self.rates;
        let cost_of = Cost::new(cost).unwrap();
        let limit = |policy, strategy| Limit { policy, strategy, key: b"ann", cost: cost_of };
        let mut limits = [limit("one", one), limit("other", other)];
        let charge = |place: usize| {
            let policy = ["here", "there"][place];
            Charge { policy, budget: &self.budgets[place], key: b"ann", units: cost }
        };
        let mut charges = [charge(0), charge(1)];
        if turn % 2 == 1 {
            limits.reverse();
            charges.reverse();
        }
        let entry = Entry { charges: &charges, act };
        let ask = FuseAsk { limits: &limits, entry, atomicity };
        self.store.fuse_at_once(ask).unwrap().unwrap().fused
    }

    /// What is left of each limit, and what is taken of each budget.
    fn left(&self) -> ([u64; 2], [u64; 2]) {
        let rate = |policy, strategy| {
            let op = Op { policy, strategy, key: b"ann", action: Action::Peek };
            ready(self.store.apply(op)).unwrap().decision().unwrap().remaining
        };
        let taken = |policy, budget| {
            let charges = [Charge { policy, budget, key: b"ann", units: 0 }];
            let booked = self.store.book_at_once(Entry { charges: &charges, act: Act::Look });
            let standing = booked.unwrap().unwrap().together.each[0].standing;
            standing.spent + standing.reserved
        };
        let [one, other] = &self.rates;
        let [here, there] = &self.budgets;
        ([rate("one", one), rate("other", other)], [taken("here", here), taken("there", there)])
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => unreachable!("memory answers at once"),
    }
}

/// What each of two threads was told.
fn race(times: usize, call: impl Fn(usize, usize) -> Fused + Sync) -> Vec<Fused> {
    let barrier = Barrier::new(THREADS);
    let run = |thread| {
        barrier.wait();
        (0..times).map(|time| call(thread, time)).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        calls.into_iter().flat_map(|call| call.join().unwrap()).collect()
    })
}

fn admitted(told: &[Fused]) -> u64 {
    told.iter().filter(|fused| fused.is_admit()).count() as u64
}

#[test]
fn racing_threads_admit_what_the_tighter_axis_holds_and_charge_nobody_else() {
    for round in 0..ROUNDS {
        let world = World::new(100, 60);
        let told =
            race(70, |thread, time| world.fuse(thread + time, 1, Act::Debit(None), Atomicity::All));
        assert_eq!(admitted(&told), 60, "round {round}");
        assert_eq!(world.left(), ([40; 2], [60; 2]), "a denied cost charged a limit");
        let denied = told.iter().filter(|fused| !fused.is_admit());
        let bound = denied.map(|fused| fused.verdicts().binding());
        assert!(bound.into_iter().all(|axis| axis == Some(Axis::Cost)));

        let world = World::new(60, 100);
        for atomicity in [Atomicity::All, Atomicity::PerAxis] {
            let told =
                race(70, |thread, time| world.fuse(thread + time, 1, Act::Debit(None), atomicity));
            let expected = if atomicity == Atomicity::All { 60 } else { 0 };
            assert_eq!(admitted(&told), expected, "round {round}");
            assert_eq!(world.left(), ([0; 2], [60; 2]), "a denied rate charged a budget");
        }
    }
}

#[test]
fn per_axis_a_denied_cost_leaves_the_rate_charged() {
    let world = World::new(100, 60);
    let told =
        race(70, |thread, time| world.fuse(thread + time, 1, Act::Debit(None), Atomicity::PerAxis));
    assert_eq!(admitted(&told), 60);
    assert_eq!(world.left(), ([0; 2], [60; 2]));
}

#[test]
fn what_racing_threads_of_many_costs_were_admitted_is_what_is_taken() {
    for round in 0..ROUNDS {
        let world = World::new(300, 260);
        let cost = |thread: usize, time: usize| 1 + ((7 * time + 3 * thread + round) % 5) as u64;
        let told = race(100, |thread, time| {
            let lease = LeaseKey((thread * 1_000 + time + 1) as u128);
            let reserve = Act::Reserve { lease, ttl: HOUR };
            let act = if time % 3 == 0 { reserve } else { Act::Debit(None) };
            world.fuse(thread + time, cost(thread, time), act, Atomicity::All)
        });
        let taken = told.iter().enumerate().filter(|(_, fused)| fused.is_admit());
        let taken: u64 = taken.map(|(place, _)| cost(place / 100, place % 100)).sum();
        let (left, spent) = world.left();
        assert_eq!((left, spent), ([300 - taken; 2], [taken; 2]), "round {round}");
        assert!((260..265).contains(&taken), "a debit needs one, and takes all it is");
    }
}

#[test]
fn those_who_ask_for_one_axis_alone_race_with_those_who_ask_for_both() {
    for round in 0..ROUNDS {
        let world = World::new(100, 100);
        let alone = std::sync::atomic::AtomicU64::new(0);
        let told = race(80, |thread, time| {
            if thread == 1 {
                let (policy, strategy) = ("other", &world.rates[1]);
                let action = Action::Check(Cost::ONE);
                let op = Op { policy, strategy, key: b"ann", action };
                let applied = ready(world.store.apply(op)).unwrap();
                let is_admitted = applied.decision().unwrap().is_admit();
                alone.fetch_add(u64::from(is_admitted), std::sync::atomic::Ordering::Relaxed);
            }
            world.fuse(thread + time, 1, Act::Debit(None), Atomicity::All)
        });
        let (both, alone) = (admitted(&told), alone.into_inner());
        let left = ([100 - both, 100 - both - alone], [both; 2]);
        assert_eq!(world.left(), left, "round {round}: {both} and {alone}");
        assert_eq!(both + alone, 100, "round {round}");
    }
}

#[test]
fn what_no_executor_takes_is_refused_and_charges_nothing() {
    let (store, rate, day) = (Memory::new(ManualClock::default()), gcra(5), budget(5));
    let limit = |cost| Limit { policy: "api", strategy: &rate, key: b"ann", cost };
    let charge = |units| Charge { policy: "api", budget: &day, key: b"ann", units };
    let ask = |limits: &[Limit<'_>], charges: &[Charge<'_>], act| {
        let entry = Entry { charges, act };
        let ask = FuseAsk { limits, entry, atomicity: Atomicity::All };
        store.fuse_at_once(ask).unwrap().map(|applied| applied.fused)
    };
    let (debit, one) = (Act::Debit(None), limit(Cost::ONE));
    for act in [Act::Look, Act::Settle(LeaseKey(1)), Act::Abandon(LeaseKey(1))] {
        let error = ask(&[one], &[charge(1)], act).unwrap_err();
        assert_eq!(error.recovery(), Recovery::Operator, "{error}");
    }
    let error = ask(&[one], &[charge(1), charge(1)], debit).unwrap_err();
    assert_eq!(error, StoreError::TwoLimits);
    let error = ask(&[one; 65], &[charge(1)], debit).unwrap_err();
    assert_eq!(error, StoreError::TooMany { asked: 65, max: 64 });
    let error = ask(&[one], &[charge(u64::MAX)], debit).unwrap_err();
    assert_eq!(error, StoreError::CostTooLarge);

    // One axis alone, and none at all; a limit that is written twice is charged twice.
    assert!(ask(&[one; 2], &[], debit).unwrap().cost.is_none());
    let told = ask(&[], &[charge(2)], debit).unwrap();
    assert_eq!((told.rate.each.len(), told.is_admit()), (0, true));
    assert!(ask(&[], &[], debit).unwrap().is_admit());
    let told = ask(&[one; 2], &[charge(1)], debit).unwrap();
    assert_eq!(told.rate.decision.remaining, 1);
    assert_eq!(told.rate.each.len(), 2);
    assert_eq!(told.cost.unwrap().each[0].standing.spent, 3);
}

const THREADS: usize = 2;
/// Enough that the threads meet.
const ROUNDS: usize = 50;
