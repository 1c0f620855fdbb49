//! What a check allocates: nothing.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use admittance::load::{Class, LoadRules, Probe, Shedder, Tasks, on_pool};
use admittance::{
    Builtin, BuiltinState, Cost, Decision, Forecast, Gcra, Key, Limiter, ManualClock, Micros,
    Share, SlidingLog, SlidingWindow, Span, Step, Strategy, Tat, Window,
};

/// The system's allocator, counting what each thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Counts bytes that a thread has got, or given back if there are less than none.
fn count_bytes(more: usize, less: usize) {
    BYTES.set(BYTES.get() + more.cast_signed() as i64 - less.cast_signed() as i64);
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing, since
// the thread's counter is constant-initialised and needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        count_bytes(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        count_bytes(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        count_bytes(size, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_bytes(0, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often the work allocates.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap())
}

fn gcra(limit: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: Span::from_secs(3_600), burst: 100 }).unwrap().into()
}

/// Strategies of the slot table: narrow words, wide words, windows.
fn in_slots() -> [Builtin; 3] {
    [gcra(100), gcra(1_009), Window::fixed(100, Span::from_secs(60)).unwrap().into()]
}

/// What a limiter can be asked, so that one that allocates goes through the same lines.
trait Asked {
    fn check_cost(&self, key: &str, cost: Cost) -> Decision;
    fn peek(&self, key: &str) -> Decision;
}

impl Asked for Limiter<Builtin, ManualClock> {
    fn check_cost(&self, key: &str, cost: Cost) -> Decision {
        Self::check_cost(self, key, cost)
    }

    fn peek(&self, key: &str) -> Decision {
        Self::peek(self, key)
    }
}

/// A limiter that copies its keys, as one with a map from strings would.
struct Copying(Limiter<Builtin, ManualClock>);

impl Asked for Copying {
    fn check_cost(&self, key: &str, cost: Cost) -> Decision {
        self.0.check_cost(std::hint::black_box(key.to_owned()), cost)
    }

    fn peek(&self, key: &str) -> Decision {
        self.0.peek(std::hint::black_box(key.to_owned()))
    }
}

/// Allocations of many checks and peeks of keys that are there, denials included.
fn of_present_keys(limiter: &impl Asked) -> u64 {
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    let two = Cost::new(2).unwrap();
    for key in &keys {
        let _ = limiter.check_cost(key, Cost::ONE);
    }
    allocations(|| {
        for _ in 0..100 {
            for key in &keys {
                let _ = limiter.check_cost(key, Cost::ONE);
                let _ = limiter.check_cost(key, two);
                let _ = limiter.peek(key);
            }
        }
    })
}

#[test]
fn checks_and_peeks_of_present_keys_allocate_nothing() {
    for strategy in in_slots() {
        let limiter = Limiter::builder(strategy).clock(clock()).build();
        assert_eq!(of_present_keys(&limiter), 0, "{strategy:?}");
        assert!(of_present_keys(&Copying(limiter)) > 0, "a copy per key is seen");
    }
    // Rings live behind a pointer, which is allocated with the key and not again.
    let ring = SlidingWindow::new(100, Span::from_secs(60), 10).unwrap();
    for strategy in [gcra(4_999), ring.into()] {
        let limiter = Limiter::builder(strategy).clock(clock()).build();
        assert_eq!(of_present_keys(&limiter), 0, "{strategy:?}");
    }
}

fn fill(limiter: &Limiter<Builtin, ManualClock>, keys: u64) {
    for key in 0..keys {
        let _ = limiter.check(key);
    }
}

#[test]
fn new_keys_in_a_region_that_is_there_allocate_nothing() {
    for strategy in in_slots() {
        let limiter = Limiter::builder(strategy).max_keys(1_000_000).clock(clock()).build();
        // Growth within the first region, and eviction when it is full, included.
        let grows = allocations(|| fill(&limiter, 500_000));
        assert_eq!(grows, 0, "{strategy:?}");
        assert_eq!(limiter.stats().keys, 500_000);
        let full = Limiter::builder(strategy).max_keys(1_000).clock(clock()).build();
        assert_eq!(allocations(|| fill(&full, 50_000)), 0);
    }
}

/// The most bytes that a limiter has while new keys come without end and spend all that they may, a
/// microsecond apart.
fn flooded<S: Strategy>(build: impl FnOnce() -> Limiter<S, ManualClock>, keys: u64) -> u64 {
    let before = BYTES.get();
    let limiter = build();
    let mut most = 0;
    for key in 0..keys {
        while limiter.check(key).is_admit() {
            limiter.clock().advance(Span::TICK);
        }
        most = most.max(BYTES.get() - before);
    }
    u64::try_from(most).unwrap()
}

/// A strategy whose states have as much again for nothing, as those of a queue that doubles.
struct Doubling(Builtin);

impl Strategy for Doubling {
    type State = (BuiltinState, Vec<u8>);

    fn step(&self, state: Option<Self::State>, now: Micros, cost: Cost) -> Step<Self::State> {
        let (state, spare) = state.unzip();
        let Step { state, decision } = self.0.step(state, now, cost);
        let room = usize::try_from(self.0.heap_bytes_max()).unwrap();
        let spare = spare.unwrap_or_else(|| Vec::with_capacity(room));
        Step { state: state.map(|state| (state, spare)), decision }
    }

    fn peek(&self, state: Option<&Self::State>, now: Micros) -> Decision {
        self.0.peek(state.map(|(state, _)| state), now)
    }

    fn forecast(&self, state: Option<&Self::State>, now: Micros, cost: Cost) -> Forecast {
        self.0.forecast(state.map(|(state, _)| state), now, cost)
    }

    fn idle_at(&self, (state, _): &Self::State) -> Micros {
        self.0.idle_at(state)
    }

    fn used(&self, (state, _): &Self::State, now: Micros) -> Share {
        self.0.used(state, now)
    }
}

#[test]
fn a_flood_takes_no_more_memory_than_is_said() {
    let hour = Span::from_secs(3_600);
    let ring = |buckets| SlidingWindow::new(3, hour, buckets).unwrap().into();
    let log = |limit| SlidingLog::new(limit, hour).unwrap().into();
    let gcra = |limit| Tat::gcra(Gcra { limit, period: hour, burst: 3 }).unwrap().into();
    let strategies: [(Builtin, u64); 9] = [
        (gcra(3), 100_000),
        (gcra(1_009), 100_000),
        (Window::fixed(3, hour).unwrap().into(), 100_000),
        (gcra(4_999), 20_000),
        (ring(10), 20_000),
        (ring(1_000), 2_000),
        (log(3), 20_000),
        (log(100), 2_000),
        (log(10_000), 10),
    ];
    for (strategy, many) in strategies {
        for max_keys in [1, 10, many] {
            let builder = || Limiter::builder(strategy).max_keys(max_keys).clock(clock());
            let bytes = flooded(|| builder().build(), 2 * max_keys + 10);
            let bound = Limiter::BYTES_FIXED + max_keys * Limiter::bytes_per_key(&strategy);
            assert!(bytes <= bound, "{bytes} of {bound} for {max_keys} of {strategy:?}");
            assert!(max_keys < many || 3 * bytes > bound, "{bytes} of {bound} of {strategy:?}");
        }
        if strategy.heap_bytes_max() > 100 {
            let builder = || Limiter::custom(Doubling(strategy)).max_keys(many).clock(clock());
            let bytes = flooded(|| builder().build(), 2 * many);
            let bound = Limiter::BYTES_FIXED + many * Limiter::bytes_per_key(&strategy);
            assert!(bytes > bound, "the mutant passed: {bytes} of {bound} of {strategy:?}");
            // As was said of every strategy once.
            assert!(bytes > Limiter::BYTES_FIXED + many * 128);
        }
        let keys = Limiter::max_keys_default(&strategy);
        assert!(keys * Limiter::bytes_per_key(&strategy) <= Limiter::BYTES_DEFAULT);
    }
}

#[test]
fn a_batch_into_a_vector_with_room_allocates_nothing() {
    let keys: Vec<u64> = (0..1_000).collect();
    for strategy in in_slots() {
        let limiter = Limiter::builder(strategy).clock(clock()).build();
        let mut decisions = Vec::new();
        let first = allocations(|| limiter.check_many(&keys, Cost::ONE, &mut decisions));
        assert_eq!(first, 1, "the vector itself");
        for _ in 0..10 {
            let again = allocations(|| limiter.check_many(&keys, Cost::ONE, &mut decisions));
            assert_eq!(again, 0, "{strategy:?}");
        }
    }
}

#[test]
fn keys_of_every_kind_allocate_nothing() {
    fn of(key: impl Key, limiter: &Limiter<Builtin, ManualClock>) -> u64 {
        let _ = limiter.check(&key);
        allocations(|| assert!(limiter.check(&key).is_admit()))
    }
    let limiter = Limiter::builder(gcra(100)).clock(clock()).build();
    let address: std::net::IpAddr = [127, 0, 0, 1].into();
    assert_eq!(of("text", &limiter), 0);
    assert_eq!(of(b"bytes", &limiter), 0);
    assert_eq!(of(7_u64, &limiter), 0);
    assert_eq!(of(7_u128, &limiter), 0);
    assert_eq!(of(address, &limiter), 0);
    assert_eq!(of(("tenant", ("route", 7_u64)), &limiter), 0);
}

/// A lease that is spent: no allocation per request, through `spend` and through `check` alike.
#[cfg(feature = "tokio")]
#[test]
fn spending_a_lease_allocates_nothing() {
    use std::sync::Arc;

    use admittance::two_tier::{Batch, Leasing, TwoTier};
    use admittance::{FailMode, GuardSettings, Guarded, Memory, PreciseClock, SharedLimiter};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let window = Window::fixed(1_000_000, Span::from_secs(86_400)).unwrap().into();
    let node = runtime.block_on(async {
        let guard = Guarded::start(Memory::new(PreciseClock::new()), GuardSettings::default());
        let shared = SharedLimiter::new("api", window, Arc::new(guard), FailMode::Closed).unwrap();
        let leasing = Leasing { batch: Batch::Fixed(100_000), ..Leasing::default() };
        let node = TwoTier::leased(shared, leasing).unwrap();
        let _ = node.check(b"key", Cost::ONE).await.unwrap();
        node
    });
    let spends = || (0..1_000).for_each(|_| assert!(node.spend(b"key", Cost::ONE).is_some()));
    assert_eq!(allocations(spends), 0);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let checks = || {
        for _ in 0..1_000 {
            let check = std::pin::pin!(node.check(b"key", Cost::ONE));
            assert!(check.poll(&mut context).is_ready(), "nothing is waited for");
        }
    };
    assert_eq!(allocations(checks), 0);
    // The same lines see what a miss costs.
    let miss = || {
        let check = std::pin::pin!(node.check(b"another key", Cost::ONE));
        assert!(
            check.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
        );
    };
    assert!(allocations(miss) > 0);
}

#[test]
fn a_permit_allocates_nothing_whichever_way_it_ends() {
    use admittance::gate::{Gate, LimitRules};

    for rules in [LimitRules::stable(), LimitRules::seed_defaults(), LimitRules::fixed(4)] {
        let gate = Gate::new(rules).unwrap();
        let permits = || {
            for _ in 0..10_000 {
                gate.acquire_scoped().unwrap().finish();
                gate.acquire().unwrap().overload();
                drop(gate.acquire().unwrap());
                let mut stream = gate.acquire().unwrap();
                stream.first_byte();
            }
        };
        assert_eq!(allocations(permits), 0, "{rules:?}");
        let held: Vec<_> = std::iter::from_fn(|| gate.acquire().ok()).collect();
        assert_eq!(allocations(|| assert!(gate.acquire().is_err())), 0, "a refusal");
        // The same lines see a permit that is put in a box.
        drop(held);
        assert!(allocations(|| drop(Box::new(gate.acquire().unwrap()))) > 0);
    }
}

#[test]
fn a_debit_of_a_known_key_allocates_nothing() {
    use admittance::Cadence;
    use admittance::budget::{Act, Budget, Charge, Entry, MemoryAccounts};

    let clock = clock();
    let accounts = MemoryAccounts::new(clock.clone());
    let budget = Budget::new(5_000, Cadence::every(Span::from_secs(60))).unwrap();
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    let charge = |key| Charge { policy: "tokens", budget: &budget, key, units: 1 };
    let debits = || {
        for _ in 0..100 {
            for key in &keys {
                let _ = accounts.debit_now(&charge(key.as_bytes()), None).unwrap();
            }
        }
    };
    debits();
    // Denials, and the windows after them, included.
    for _ in 0..60 {
        assert_eq!(allocations(debits), 0);
    }
    clock.advance(Span::from_secs(60));
    assert_eq!(allocations(debits), 0);
    // The same lines see what an entry costs.
    let entry = || {
        let charges = [charge(b"key-1")];
        let entry = Entry { charges: &charges, act: Act::Debit(None) };
        let _ = accounts.book_now(entry).unwrap();
    };
    assert!(allocations(entry) > 0);
}

/// What is asked about load, so that one that allocates goes through the same lines.
trait Sheds {
    fn reject_key(&self, key: &str) -> bool;
    fn shedder(&self) -> &Shedder;
}

impl Sheds for Shedder {
    fn reject_key(&self, key: &str) -> bool {
        Self::reject_key(self, key)
    }

    fn shedder(&self) -> &Shedder {
        self
    }
}

/// Remembers whom it was asked about.
struct Remembers(Shedder, std::cell::RefCell<Vec<String>>);

impl Sheds for Remembers {
    fn reject_key(&self, key: &str) -> bool {
        self.1.borrow_mut().push(key.to_owned());
        self.0.reject_key(key)
    }

    fn shedder(&self) -> &Shedder {
        &self.0
    }
}

/// How often answers about load allocate, once the thread is known.
fn of_load(sheds: &impl Sheds) -> u64 {
    let shedder = sheds.shedder();
    let _ = (shedder.reject(), sheds.reject_key("first"));
    let now = Micros::from_epoch_ms(1).unwrap();
    allocations(|| {
        for number in 0..1_000u64 {
            let _ = (shedder.reject(), shedder.reject_as(Class::Background));
            let _ = (sheds.reject_key("user-42"), shedder.reject_key(number));
            let _ = shedder.decide(Class::Critical, number, now);
            if let Ok(root) = shedder.admit(Class::Default, number) {
                root.run(|| {});
            }
        }
    })
}

#[test]
fn an_answer_about_load_allocates_nothing_whether_it_admits_or_refuses() {
    let clock = clock();
    let shedder = Shedder::with_clock(LoadRules::default(), Arc::new(clock.clone())).unwrap();
    assert_eq!(of_load(&shedder), 0);
    // Probes that nobody runs: the level falls.
    let mut held = Vec::new();
    let executor = on_pool(move |probe: Probe| held.push(probe), Tasks::default);
    let mut driver = shedder.drive(executor, Arc::new(clock.clone())).unwrap();
    for _ in 0..1_000 {
        driver.step();
        clock.advance(Span::from_ms(10));
    }
    assert_eq!(shedder.percent(), 1);
    assert_eq!(of_load(&shedder), 0);
    assert!(shedder.status().rejected > 1_000);
    assert!(of_load(&Remembers(shedder, std::cell::RefCell::default())) > 0);
}

/// All four axes in this process, with room for one at a time.
mod admission {
    use std::sync::Arc;

    use admittance::admission::{Admitter, Admitting, Joint, Local, Request};
    use admittance::budget::{Budget, Budgets};
    use admittance::gate::{Gate, LimitRules, Permit};
    use admittance::learn::price::Prices;
    use admittance::load::{LoadRules, Probe, Shedder, Tasks, on_pool};
    use admittance::{Atomicity, Builtin, Cadence, Limiter, ManualClock, Span, Window};

    use super::{allocations, clock};

    type Composed = Admitter<Local<Builtin, ManualClock>>;

    fn composed(shedder: &Shedder, limit: u64, units: u64, atomicity: Atomicity) -> Composed {
        let (clock, minute) = (clock(), Span::from_secs(60));
        let limiter = Limiter::builder(Builtin::from(Window::fixed(limit, minute).unwrap()));
        let limiter = limiter.clock(clock.clone()).build();
        let budgets = [Budget::new(units, Cadence::every(minute)).unwrap()];
        let budgets = Budgets::new("tokens", budgets).unwrap();
        let axes = Local::on(clock).rate(limiter).cost(&budgets);
        let gate = Gate::new(LimitRules::fixed(1)).unwrap();
        let joint = Joint::given(Prices::given(0.5, 0.0, 0.0).unwrap());
        let admitter = Admitter::new(axes).load(shedder.clone()).concurrency(gate);
        admitter.joint(joint).atomicity(atomicity).build().unwrap()
    }

    /// One that sheds nearly everything, as long as what is given with it lives.
    fn behind() -> (Shedder, impl Sized) {
        let clock = clock();
        let shedder = Shedder::with_clock(LoadRules::default(), Arc::new(clock.clone())).unwrap();
        let mut held = Vec::new();
        let executor = on_pool(move |probe: Probe| held.push(probe), Tasks::default);
        let mut driver = shedder.drive(executor, Arc::new(clock.clone())).unwrap();
        while shedder.percent() > 1 {
            driver.step();
            clock.advance(Span::from_ms(10));
        }
        (shedder, driver)
    }

    /// How often many asks allocate once the key is known, and under which label they are told.
    fn asked(admitter: &Composed, request: Request<'_>) -> (u64, &'static str) {
        let mut label = "nobody asked";
        let mut ask = || match admitter.admit_sync(request).unwrap() {
            Admitting::Admitted(work) => {
                label = work.verdicts().label();
                work.finish();
            }
            Admitting::Denied(denied) => label = denied.verdicts().label(),
        };
        (0..100).for_each(|_| ask());
        (allocations(|| (0..1_000).for_each(|_| ask())), label)
    }

    const MUCH: u64 = 1_000_000;

    #[test]
    fn an_admission_over_all_four_axes_allocates_nothing_from_its_beginning_to_its_end() {
        let key = [b'k'; 64];
        for atomicity in [Atomicity::All, Atomicity::PerAxis] {
            let quiet = Shedder::new(LoadRules::default()).unwrap();
            let admitter = composed(&quiet, MUCH, MUCH, atomicity);
            for length in [1, 16, 64] {
                let request = Request::new(&key[..length]).cost(3);
                assert_eq!(asked(&admitter, request), (0, ""), "{length} bytes, {atomicity:?}");
            }
            // Debited, settled and dropped likewise.
            let streams = || {
                for _ in 0..1_000 {
                    let got = admitter.admit_sync(Request::new(&key).cost(3)).unwrap();
                    let Admitting::Admitted(mut work) = got else { panic!("there is room") };
                    let _ = work.debit_sync(2).unwrap();
                    let _ = work.settle_sync(2).unwrap();
                    drop(work);
                }
            };
            assert_eq!(allocations(streams), 0);
            // The same lines see a key that must be copied.
            let (allocated, _) = asked(&admitter, Request::new(&[b'k'; 65]).cost(3));
            assert!(allocated >= 1_000, "{allocated}");
        }
    }

    #[test]
    fn a_denial_by_any_axis_or_by_worth_allocates_nothing() {
        let (shedder, _driver) = behind();
        let quiet = Shedder::new(LoadRules::default()).unwrap();
        let request = Request::new("ann").cost(3);
        for atomicity in [Atomicity::All, Atomicity::PerAxis] {
            let of = |shedder, limit, units| composed(shedder, limit, units, atomicity);
            assert_eq!(asked(&of(&shedder, MUCH, MUCH), request), (0, "load"));
            let full = of(&quiet, MUCH, MUCH);
            let held: Permit = full.gate().unwrap().acquire().unwrap();
            assert_eq!(asked(&full, request), (0, "concurrency"));
            drop(held);
            assert_eq!(asked(&of(&quiet, 10, MUCH), request), (0, "rate"));
            assert_eq!(asked(&of(&quiet, MUCH, 10), request), (0, "cost"));
            assert_eq!(asked(&full, request.value(0.25)), (0, "policy"));
        }
    }
}
