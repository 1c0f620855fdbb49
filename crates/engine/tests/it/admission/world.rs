//! All four axes on one clock, composed rightly or wrongly.

use std::sync::{Arc, OnceLock};

use admittance::admission::{Admission, Admitter, Admitting, Joint, Request};
use admittance::budget::{Act, Budget, Standing};
use admittance::gate::{Gate, LimitRules};
use admittance::learn::price::{Bid, Prices};
use admittance::load::{LoadRules, Probe, Shedder, Tasks, on_pool};
use admittance::{
    Atomicity, Axis, Builtin, Cadence, Decision, Forecast, Gcra, ManualClock, Micros, Outcome,
    SlidingLog, SlidingWindow, Span, Tat, Verdicts, Window,
};

use crate::admission::kinds::Kind;
use crate::admission::spans::{self, Spans};

/// Whose requests there are.
pub(crate) const KEYS: [&[u8]; 2] = [b"ann", b"bob"];

/// What is wrong with a composition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    Nothing,
    /// The permit is not given back when a later axis denies.
    KeepsThePermit,
    /// The rate stays charged when the cost denies, in either mode.
    ChargesTheRate,
    /// The cost is asked first, and binds first.
    AsksTheCostFirst,
    /// The metric goes by the axis alone, which a request that is not worth it has none of.
    CountsByTheAxis,
    /// Whether it is worth it is asked once everything is charged.
    JudgesWorthLast,
    /// An admission that is dropped forgets its reservation.
    ForgetsTheReservation,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) strategy: Builtin,
    pub(crate) budgets: Vec<Budget>,
    pub(crate) places: u32,
    /// What a request costs in worth.
    pub(crate) prices: Prices,
    /// Whether the process sheds nearly everything.
    pub(crate) is_behind: bool,
}

impl Rules {
    /// Twice a minute, two at once, ten units a minute, worth at least a half.
    pub(crate) fn plain() -> Self {
        let budget = Budget::new(10, Cadence::every(MINUTE)).unwrap();
        Self {
            strategy: Window::fixed(2, MINUTE).unwrap().into(),
            budgets: vec![budget],
            places: 2,
            prices: Prices::given(0.5, 0.0, 0.0).unwrap(),
            is_behind: false,
        }
    }

    pub(crate) fn random(random: &mut Random) -> Self {
        let limit = random.u64(1..=5);
        let strategy = match random.u8(..4) {
            0 => Tat::gcra(Gcra { limit, period: MINUTE, burst: limit }).unwrap().into(),
            1 => Window::fixed(limit, MINUTE).unwrap().into(),
            2 => SlidingWindow::new(limit, MINUTE, 4).unwrap().into(),
            _ => SlidingLog::new(limit, MINUTE).unwrap().into(),
        };
        let cadences = [Cadence::every(MINUTE), Cadence::Day { offset_minutes: 0 }];
        let budgets = cadences.iter().take(random.usize(1..=2));
        let budgets = budgets.map(|&cadence| Budget::new(random.u64(1..40), cadence).unwrap());
        let budgets = budgets.collect();
        let [price, of_a_unit] =
            [[0.0, 0.0], [0.3, 0.03], [0.6, 0.0], [0.0, 0.06]][random.usize(..4)];
        Self {
            strategy,
            budgets,
            places: random.u32(1..=3),
            prices: Prices::given(price, of_a_unit, 0.0).unwrap(),
            is_behind: random.u8(..8) == 0,
        }
    }
}

pub(crate) type Random = fastrand::Rng;
pub(crate) type Work<K> = Admission<Arc<<K as Kind>::Charges>, ManualClock>;
type Composed<K> = Admitter<Arc<<K as Kind>::Charges>, ManualClock>;

/// All four axes, and prices.
pub(crate) struct World<K: Kind> {
    pub(crate) rules: Rules,
    pub(crate) clock: ManualClock,
    pub(crate) eyes: K,
    pub(crate) gate: Gate<ManualClock>,
    pub(crate) shedder: Shedder,
    pub(crate) mutant: Mutant,
    pub(crate) all: Composed<K>,
    pub(crate) per_axis: Composed<K>,
    /// The same without prices.
    pub(crate) marginal: Composed<K>,
}

/// What came of asking.
pub(crate) struct Got<K: Kind> {
    pub(crate) verdicts: Verdicts,
    /// The label that a counter moved under; more than one is none.
    pub(crate) counted: Option<&'static str>,
    /// The label of the span.
    pub(crate) spanned: Option<String>,
    pub(crate) work: Option<Work<K>>,
}

/// Everything that an admission could leave a trace on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) in_flight: u32,
    pub(crate) limit: u32,
    pub(crate) percent: u32,
    pub(crate) rates: Vec<(Decision, Forecast)>,
    pub(crate) accounts: Vec<Vec<Standing>>,
}

impl<K: Kind> World<K> {
    pub(crate) fn new(rules: Rules, mutant: Mutant) -> Self {
        let clock = start();
        let (eyes, charges) = K::compose(rules.strategy, &rules.budgets, &clock);
        let charges = Arc::new(charges);
        let gate = Gate::builder(LimitRules::fixed(rules.places)).clock(clock.clone());
        let gate = gate.build().unwrap();
        let shedder = shedder(rules.is_behind);
        let composed = |atomicity| {
            let admitter = Admitter::new(Arc::clone(&charges)).load(shedder.clone());
            admitter.concurrency(gate.clone()).atomicity(atomicity)
        };
        let joint = Joint::given(rules.prices);
        let all = composed(Atomicity::All).joint(joint.clone()).build().unwrap();
        let per_axis = composed(Atomicity::PerAxis).joint(joint).build().unwrap();
        let marginal = composed(Atomicity::All).build().unwrap();
        Self { rules, clock, eyes, gate, shedder, mutant, all, per_axis, marginal }
    }

    pub(crate) fn state(&self) -> State {
        let (stats, percent) = (self.gate.stats(), self.shedder.percent());
        let rates = KEYS.iter().map(|key| self.eyes.rate(key)).collect();
        let accounts = KEYS.iter().map(|key| self.eyes.book(key, 0, Act::Look)).collect();
        State { in_flight: stats.in_flight, limit: stats.limit, percent, rates, accounts }
    }

    pub(crate) fn admitter(&self, atomicity: Atomicity) -> &Composed<K> {
        match atomicity {
            Atomicity::All => &self.all,
            Atomicity::PerAxis => &self.per_axis,
        }
    }

    /// Asks, with what is wrong with this world.
    pub(crate) async fn admit(&self, atomicity: Atomicity, request: Request<'_>) -> Got<K> {
        let admitter = match self.mutant {
            Mutant::JudgesWorthLast => &self.marginal,
            _ => self.admitter(atomicity),
        };
        if self.mutant == Mutant::AsksTheCostFirst {
            let seen = admitter.explain(request).await.unwrap().seen;
            let denied = |axis| seen.of(axis).filter(|said| !said.is_admit());
            let is_first = denied(Axis::Load).or(denied(Axis::Concurrency)).is_none();
            if let Some(said) = denied(Axis::Cost).filter(|_| is_first) {
                let verdicts = Verdicts::NONE.with(Axis::Cost, said);
                let label = verdicts.label();
                let (counted, spanned) = (Some(label), Some(label.to_owned()));
                return Got { verdicts, counted, spanned, work: None };
            }
        }
        let before = admitter.stats();
        spans::taken();
        let admitting = admitter.admit(request).await.unwrap();
        let after = admitter.stats();
        let moved = before.by_label().zip(after.by_label()).filter(|(was, is)| was != is);
        let moved: Vec<&'static str> = moved.map(|((label, _), _)| label).collect();
        let counted = if let [one] = moved[..] { Some(one) } else { None };
        let got = Got { counted, spanned: spans::taken(), ..got(admitting) };
        self.spoilt(atomicity, request, got)
    }

    /// [`admit`](Self::admit) without a runtime, if that can be.
    pub(crate) fn admit_sync(&self, atomicity: Atomicity, request: Request<'_>) -> Option<Got<K>> {
        let admitter = self.admitter(atomicity);
        let before = admitter.stats();
        spans::taken();
        let admitting = K::admit_sync(admitter, request)?;
        let after = admitter.stats();
        let moved = before.by_label().zip(after.by_label()).filter(|(was, is)| was != is);
        let moved: Vec<&'static str> = moved.map(|((label, _), _)| label).collect();
        let counted = if let [one] = moved[..] { Some(one) } else { None };
        let got = Got { counted, spanned: spans::taken(), ..got(admitting) };
        Some(self.spoilt(atomicity, request, got))
    }

    fn spoilt(&self, atomicity: Atomicity, request: Request<'_>, mut got: Got<K>) -> Got<K> {
        let binding = got.verdicts.binding();
        match self.mutant {
            Mutant::KeepsThePermit if binding > Some(Axis::Concurrency) => {
                std::mem::forget(self.gate.acquire());
            }
            Mutant::ChargesTheRate
                if binding == Some(Axis::Cost) && atomicity == Atomicity::All =>
            {
                let _ = self.eyes.spend(request.key);
            }
            Mutant::CountsByTheAxis => got.counted = Some(binding.map_or("", Axis::name)),
            Mutant::JudgesWorthLast => {
                let bid = Bid::new(request.value, request.cost, request.hold_ms);
                if got.verdicts.is_admit() && !self.rules.prices.admits(&bid) {
                    let verdicts = Verdicts::POLICY_DENIED;
                    let label = verdicts.label();
                    let (counted, spanned) = (Some(label), Some(label.to_owned()));
                    return Got { verdicts, counted, spanned, work: None };
                }
            }
            _ => {}
        }
        got
    }

    /// The work is not done, and nobody says so.
    pub(crate) fn drop_work(&self, mut work: Work<K>) {
        if self.mutant == Mutant::ForgetsTheReservation {
            drop(work.take_permit());
            std::mem::forget(work);
            return;
        }
        drop(work);
    }
}

fn got<K: Kind>(admitting: Admitting<Arc<K::Charges>, ManualClock>) -> Got<K> {
    let verdicts = admitting.verdicts();
    let work = admitting.admitted().ok();
    Got { verdicts, counted: None, spanned: None, work }
}

impl State {
    /// The same, but for what one more request has charged of a key's rate.
    pub(crate) fn but_for_the_rate_of(&self, key: &[u8], other: &Self) -> Self {
        let mut state = self.clone();
        let nth = KEYS.iter().position(|&known| known == key).unwrap();
        state.rates[nth] = other.rates[nth];
        state
    }
}

/// Everybody else has had their turn.
pub(crate) async fn told() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// A shedder that admits everybody, or one that sheds nearly everything, which all share.
fn shedder(is_behind: bool) -> Shedder {
    static BEHIND: OnceLock<Shedder> = OnceLock::new();
    let fresh = |clock| Shedder::with_clock(LoadRules::default(), Arc::new(clock)).unwrap();
    if !is_behind {
        return fresh(start());
    }
    let behind = BEHIND.get_or_init(|| {
        let clock = start();
        let shedder = fresh(clock.clone());
        // Probes that nobody runs.
        let mut held = Vec::new();
        let executor = on_pool(move |probe: Probe| held.push(probe), Tasks::default);
        let mut driver = shedder.drive(executor, Arc::new(clock.clone())).unwrap();
        while shedder.percent() > 1 {
            driver.step();
            clock.advance(Span::from_ms(10));
        }
        // Dropped, it would open.
        std::mem::forget(driver);
        shedder
    });
    behind.clone()
}

fn start() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap())
}

/// What each of several axes said, put together.
pub(crate) fn folded(verdicts: &Verdicts) -> Decision {
    let first = match verdicts.is_policy_denied() {
        true => Decision { outcome: Outcome::Deny(admittance::Retry::Never), ..Decision::NEUTRAL },
        false => Decision::NEUTRAL,
    };
    Axis::ALL.iter().filter_map(|&axis| verdicts.of(axis)).fold(first, Decision::combine)
}

/// Runs a check on a clock that only stands or jumps, with spans remembered.
pub(crate) fn run<T>(check: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true);
    let _spans = tracing::subscriber::set_default(Spans);
    runtime.build().unwrap().block_on(check)
}

/// The generator of one test, and its seed.
pub(crate) fn seeded(salt: u64) -> Random {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(20_261_116);
    println!("replay with ADMITTANCE_SEED={seed}");
    Random::with_seed(seed ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// How often to try: ten times as often if somebody has the time.
pub(crate) fn long(count: usize) -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { 10 * count } else { count }
}

pub(crate) const MINUTE: Span = Span::from_secs(60);
