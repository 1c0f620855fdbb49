//! Admissions that are cancelled, panic or time out, and what they leave.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use admittance::admission::{Admission, Admitter, Admitting, Apart, Charges, InStore, Request};
use admittance::budget::{
    Accounts, Act, Budget, Budgets, Charge, Entry, MemoryAccounts, SharedAccounts, Standing,
};
use admittance::gate::{Gate, LimitRules};
use admittance::{
    Atomicity, Builtin, Cadence, FailMode, GuardSettings, Guarded, Limiter, ManualClock, Memory,
    Micros, SharedLimiter, Span, Window,
};

use crate::admission_faults::faulty::{
    Cut, Fault, FaultyAccounts, FaultyMemory, FaultyRates, Front, Plan,
};
use crate::admission_faults::{Mutant, MutantCharges};

/// How the account of the one key stands.
pub(crate) type Eyes = Box<dyn Fn() -> Standing>;

/// Rate and cost that are waited for.
pub(crate) trait Door {
    type Charges: Charges;

    fn compose(
        plan: &Arc<Plan>,
        clock: &ManualClock,
        random: &mut fastrand::Rng,
    ) -> (Self::Charges, Eyes);
}

pub(crate) const POLICY: &str = "llm";
const KEY: &[u8] = b"ann";

/// So little that it denies now and then.
pub(crate) fn budget() -> Budget {
    Budget::new(40, Cadence::every(MINUTE)).unwrap()
}

fn strategy() -> Builtin {
    Window::fixed(6, MINUTE).unwrap().into()
}

fn standing(accounts: &impl Accounts) -> Standing {
    let budget = &budget();
    let charges = [Charge { policy: POLICY, budget, key: KEY, units: 0 }];
    let booked = accounts.book_at_once(Entry { charges: &charges, act: Act::Look });
    booked.unwrap().unwrap().together.each[0].standing
}

/// One step of a store, behind its guard, with any fail mode.
pub(crate) struct FaultyStore;

impl Door for FaultyStore {
    type Charges = InStore<FaultyMemory>;

    fn compose(
        plan: &Arc<Plan>,
        clock: &ManualClock,
        random: &mut fastrand::Rng,
    ) -> (Self::Charges, Eyes) {
        let is_across = random.u8(..4) == 0;
        Self::with(plan, clock, is_across, FAIL_MODES[random.usize(..FAIL_MODES.len())]())
    }
}

/// Each of them.
const FAIL_MODES: [fn() -> FailMode; 3] =
    [|| FailMode::Open, || FailMode::Closed, || FailMode::Local { share: "0.5".parse().unwrap() }];

impl FaultyStore {
    fn with(
        plan: &Arc<Plan>,
        clock: &ManualClock,
        is_across: bool,
        fail: FailMode,
    ) -> (InStore<FaultyMemory>, Eyes) {
        let inner = Arc::new(Memory::new(clock.clone()).max_keys(100));
        let store = FaultyMemory { plan: Arc::clone(plan), inner, is_across };
        let clock = Arc::new(clock.clone());
        let settings = GuardSettings { clock, ..GuardSettings::default() };
        let store = Arc::new(Guarded::start(store, settings));
        let rate = SharedLimiter::new(POLICY, strategy(), Arc::clone(&store), fail).unwrap();
        let accounts = SharedAccounts::new(Arc::clone(&store), fail).unwrap();
        let budgets = Budgets::new(POLICY, [budget()]).unwrap();
        let axes = InStore::new(Arc::clone(&store)).rate(rate).cost(accounts, &budgets);
        (axes, Box::new(move || standing(&*store.store().inner)))
    }
}

/// How work ends while the store is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finish {
    /// Its end is waited for, and one ask goes wrong.
    Waits,
    /// It is told in the background, and nothing goes right for a second.
    Leaves,
}

/// Work that is done while the store is lost: what it has cost, with each fail mode.
pub(crate) fn finished_beside(fault: Fault, finish: Finish) -> Vec<u64> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let finished = |fail: FailMode| async move {
        let (plan, clock) = (Plan::new(), ManualClock::at(start()));
        let (axes, eyes) = FaultyStore::with(&plan, &clock, false, fail);
        let admitter = Admitter::new(axes).build().unwrap();
        let work = admitter.admit(Request::new(KEY).cost(20)).await.unwrap().admitted().unwrap();
        plan.next_goes(fault, matches!(finish, Finish::Leaves));
        match finish {
            Finish::Waits => _ = plan.front(Cut::Never, work.finished()).await,
            Finish::Leaves => {
                work.finish();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        assert!(plan.happened() > 0, "nothing went wrong");
        plan.end();
        tokio::time::sleep(TOLD).await;
        let standing = eyes();
        assert_eq!((standing.reserved, standing.open), (0, 0));
        standing.spent
    };
    FAIL_MODES.map(|fail| runtime.block_on(finished(fail()))).to_vec()
}

/// Two places.
pub(crate) struct FaultyApart;

pub(crate) fn places(plan: &Arc<Plan>, clock: &ManualClock) -> (FaultyRates, FaultyAccounts, Eyes) {
    let limiter = Limiter::builder(strategy()).max_keys(100).clock(clock.clone()).build();
    let inner = Arc::new(MemoryAccounts::new(clock.clone()).max_keys(100));
    let rates = FaultyRates { plan: Arc::clone(plan), limiter: Arc::new(limiter) };
    let accounts = FaultyAccounts { plan: Arc::clone(plan), inner: Arc::clone(&inner) };
    (rates, accounts, Box::new(move || standing(&*inner)))
}

impl Door for FaultyApart {
    type Charges = Apart<FaultyRates, FaultyAccounts>;

    fn compose(
        plan: &Arc<Plan>,
        clock: &ManualClock,
        _: &mut fastrand::Rng,
    ) -> (Self::Charges, Eyes) {
        let (rates, accounts, eyes) = places(plan, clock);
        let budgets = Budgets::new(POLICY, [budget()]).unwrap();
        (Apart::new(rates, accounts, &budgets), eyes)
    }
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) admitted: usize,
    pub(crate) denied: usize,
    pub(crate) failed: usize,
    pub(crate) cancelled: usize,
    pub(crate) panicked: usize,
    pub(crate) faults: usize,
}

/// One composition, on which several runs come after each other.
struct World<X: Charges> {
    plan: Arc<Plan>,
    clock: ManualClock,
    gate: Gate,
    admitter: Admitter<MutantCharges<X>>,
    eyes: Eyes,
    counted: Counted,
}

impl<X: Charges> World<X> {
    fn new<D: Door<Charges = X>>(random: &mut fastrand::Rng, mutant: Mutant) -> Self {
        let plan = Plan::new();
        let clock = ManualClock::at(start());
        let (inner, eyes) = D::compose(&plan, &clock, random);
        let gate = Gate::new(LimitRules::fixed(4)).unwrap();
        let axes = MutantCharges { inner, gate: gate.clone(), mutant };
        let atomicity = [Atomicity::All, Atomicity::PerAxis][random.usize(..2)];
        let admitter = Admitter::new(axes).concurrency(gate.clone()).atomicity(atomicity);
        let admitter = admitter.build().unwrap();
        Self { plan, clock, gate, admitter, eyes, counted: Counted::default() }
    }

    /// One admission, whatever becomes of it; says whether the work itself broke.
    async fn admission(&mut self, random: &mut fastrand::Rng) -> bool {
        let request = Request::new(KEY).cost(random.u64(..20));
        let cut = Cut::any(random);
        let admitter = self.admitter.clone();
        let mut work = match self.plan.front(cut, admitter.admit(request)).await {
            Front::Ready(Ok(Admitting::Admitted(work))) => work,
            Front::Ready(Ok(Admitting::Denied(_))) => {
                self.counted.denied += 1;
                return false;
            }
            Front::Ready(Err(_)) => {
                self.counted.failed += 1;
                return false;
            }
            Front::Cancelled => {
                self.counted.cancelled += 1;
                return false;
            }
            Front::Panicked => {
                self.counted.panicked += 1;
                return false;
            }
        };
        self.counted.admitted += 1;
        for _ in 0..random.u8(..3) {
            let cut = Cut::any(random);
            let _ = self.plan.front(cut, work.debit(random.u64(..9))).await;
        }
        if random.bool() {
            let cut = Cut::any(random);
            let _ = self.plan.front(cut, work.settle(random.u64(..30))).await;
        }
        self.end(work, random).await
    }

    async fn end(&self, work: Admission<MutantCharges<X>>, random: &mut fastrand::Rng) -> bool {
        let cut = Cut::any(random);
        match random.u8(..7) {
            0 => work.finish(),
            1 => work.ignore(),
            2 => drop(work),
            3 => {
                let _ = self.plan.front(cut, work.finished()).await;
            }
            4 => {
                let _ = self.plan.front(cut, work.dropped_told()).await;
                return true;
            }
            5 => {
                work.dropped();
                return true;
            }
            _ => {
                let panics = move || {
                    let _work = work;
                    resume_unwind(Box::new("the work panics"));
                };
                assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
                return true;
            }
        }
        false
    }

    /// A run, and what it leaves.
    async fn run(&mut self, random: &mut fastrand::Rng) -> Result<(), String> {
        let is_lasting = random.u8(..8) == 0;
        let (overloaded, admitted) = (self.gate.stats().overloaded, self.counted.admitted);
        self.plan.begin(random, is_lasting);
        let is_broken = self.admission(random).await;
        // Nobody is there any more, and what goes on in the background goes well from now on.
        let told = self.gate.stats();
        self.plan.end();
        tokio::time::sleep(TOLD).await;
        if told.in_flight != 0 {
            return Err(format!("{} permits are out", told.in_flight));
        }
        if told.overloaded != overloaded && !is_broken {
            return Err("an overload was told, and the work did not break".into());
        }
        // What comes after its end is told, since somebody was admitted without it, ends by itself.
        let is_late = self.plan.strays() && admitted != self.counted.admitted;
        if is_lasting || is_late {
            self.clock.advance(Span::from_secs(30));
        }
        let standing = (self.eyes)();
        // Now and then there is a new window.
        self.clock.advance(Span::from_secs(random.u64(..20)));
        match (standing.reserved, standing.open) {
            (0, 0) => Ok(()),
            _ => Err(format!("a reservation is open: {standing:?}, lasting {is_lasting}")),
        }
    }
}

/// So many runs, until one leaves something.
pub(crate) fn leak<D: Door>(count: usize, mutant: Mutant) -> Result<Counted, String> {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(20_261_116);
    println!("replay with ADMITTANCE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut sum = Counted::default();
        for nth in (0..count).step_by(RUNS_PER_WORLD) {
            let mut world = World::new::<D>(&mut random, mutant);
            for nth in nth..nth + RUNS_PER_WORLD {
                let run = world.run(&mut random).await;
                run.map_err(|why| format!("run {nth}: {why}"))?;
            }
            let one = world.counted;
            sum.admitted += one.admitted;
            sum.denied += one.denied;
            sum.failed += one.failed;
            sum.cancelled += one.cancelled;
            sum.panicked += one.panicked;
            sum.faults += world.plan.happened();
        }
        Ok(sum)
    })
}

fn start() -> Micros {
    Micros::from_epoch_ms(1_700_000_000_000).unwrap()
}

const MINUTE: Span = Span::from_secs(60);
/// Longer than the store is told again and again.
const TOLD: Duration = Duration::from_secs(20);
const RUNS_PER_WORLD: usize = 20;
