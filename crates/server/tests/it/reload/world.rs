//! A service through reloads, beside a model that counts.

use std::fmt::Debug;
use std::sync::Arc;

use admittance::budget::{LeaseKey, Settlement};
use admittance::{Cost, ManualClock, Micros};
use admittance_server::{Asked, Config, Expected, Fail, Service, Terms, Work};

use super::live::START_US;

/// How a configuration takes the place of another.
pub(crate) trait Way: Sized {
    fn new(service: Arc<Service>) -> Self;
    fn service(&self) -> Arc<Service>;
    /// Whether it did.
    async fn reload(&mut self, file: &str) -> bool;
    /// Whether a lease that was given out so many reloads ago is known.
    fn knows(&self, _reloads_ago: u32) -> bool {
        true
    }
}

fn read(file: &str) -> Option<Config> {
    Config::parse("test", file, Fail::Open).ok()
}

/// What ships.
pub(crate) struct Honest(Arc<Service>);

impl Way for Honest {
    fn new(service: Arc<Service>) -> Self {
        Self(service)
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.0)
    }

    async fn reload(&mut self, file: &str) -> bool {
        match read(file) {
            Some(config) => self.0.reload(&config).await.is_ok(),
            None => false,
        }
    }
}

/// Makes everything new.
pub(crate) struct Anew(Arc<Service>);

impl Way for Anew {
    fn new(service: Arc<Service>) -> Self {
        Self(service)
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.0)
    }

    async fn reload(&mut self, file: &str) -> bool {
        let Some(config) = read(file).filter(|config| config.load == read(FILES[0]).unwrap().load)
        else {
            return false;
        };
        self.0 = Arc::new(Service::new(&config, Arc::new(clock())));
        true
    }
}

/// Puts in what it has read so far, and then finds that the rest cannot be.
pub(crate) struct Early(Arc<Service>);

impl Way for Early {
    fn new(service: Arc<Service>) -> Self {
        Self(service)
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.0)
    }

    async fn reload(&mut self, file: &str) -> bool {
        let Some(config) = read(file) else {
            let half = read("limiters: { api: { strategy: gcra, limit: 1, period: 1s } }");
            self.0.reload(&half.unwrap()).await.unwrap();
            return false;
        };
        self.0.reload(&config).await.is_ok()
    }
}

/// Does not know what was given out before.
pub(crate) struct Forgetful(Arc<Service>);

impl Way for Forgetful {
    fn new(service: Arc<Service>) -> Self {
        Self(service)
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.0)
    }

    async fn reload(&mut self, file: &str) -> bool {
        match read(file) {
            Some(config) => self.0.reload(&config).await.is_ok(),
            None => false,
        }
    }

    fn knows(&self, reloads_ago: u32) -> bool {
        reloads_ago == 0
    }
}

/// Files that keep some of their policies, and what of them the model must know: how many places
/// `gate` has, and whether there is `extra`. The last two cannot be read, or not be served.
const FILES: [&str; 5] = [
    "limiters:
  api: { strategy: fixedWindow, limit: 300, period: 1h }
  gate: { concurrency: { minLimit: 9, maxLimit: 9 } }
  tokens: { tokenBudget: { budget: 1000000, period: 1h } }
  only-here: { strategy: gcra, limit: 5, period: 1h }
",
    "limiters:
  api: { strategy: fixedWindow, limit: 300, period: 1h, fail: closed }
  gate: { concurrency: { minLimit: 4, maxLimit: 4 }, leaseTtl: 5s }
  tokens: { tokenBudget: { budget: 2000000, period: 1h, leaseTtl: 20s } }
  extra:
    strategy: fixedWindow
    limit: 1000000
    period: 1h
    concurrency: { minLimit: 500000, maxLimit: 500000 }
    cost: { budget: 1000000, period: 1h }
",
    "limiters:
  api: { strategy: fixedWindow, limit: 300, period: 1h }
  gate: { concurrency: { minLimit: 6, maxLimit: 6 }, load: { class: critical } }
  tokens: { tokenBudget: { budget: 1000000, period: 1h, maxKeys: 77 } }
  extra:
    strategy: fixedWindow
    limit: 900000
    period: 1h
    concurrency: { minLimit: 500000, maxLimit: 500000 }
    cost: { budget: 1000000, period: 1h }
",
    "limiters:\n  api: { strategy: fixedWindow, limit: 300, period: 1h, limmit: 4 }\n",
    "load: off\nlimiters: {}\n",
];
const GATES: [usize; 3] = [9, 4, 6];
const HAS_EXTRA: [bool; 3] = [false, true, true];

/// What should be.
#[derive(Default)]
struct Model {
    file: usize,
    reloads: u32,
    api: u64,
    spent: u64,
    reserved: Vec<(LeaseKey, u64)>,
    /// Leases of `gate` and `extra`, with the reload that they were given out after.
    gate: Vec<(String, u32)>,
    extra: Vec<(String, u32)>,
}

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"))
}

fn same<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, wanted {wanted:?}")) }
}

fn answered<T, E: ToString>(answer: Result<T, E>) -> Result<T, String> {
    answer.map_err(|refusal| refusal.to_string())
}

/// Runs one case; what went wrong, if anything did.
pub(crate) async fn run<W: Way>(seed: u64, steps: u32) -> Result<(), String> {
    let config = read(FILES[0]).expect("valid");
    let mut way = W::new(Arc::new(Service::new(&config, Arc::new(clock()))));
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut model = Model::default();
    for _ in 0..steps {
        match dice.u32(..100) {
            0..30 => check(&way, &mut model).await?,
            30..50 => admit(&way, &mut model).await?,
            50..65 => release(&way, &mut model, &mut dice).await?,
            65..70 => beat(&way, &model).await?,
            70..80 => reserve(&way, &mut model, &mut dice).await?,
            80..88 => settle(&way, &mut model, &mut dice).await?,
            88..92 => {
                let units = dice.u64(1..20);
                let cost = Cost::new(units).expect("in range");
                let _ = answered(way.service().debit("tokens", "k", cost).await)?;
                model.spent += units;
            }
            _ => reload(&mut way, &mut model, &mut dice).await?,
        }
        stands(&way, &model).await?;
    }
    // Everybody goes home.
    while !model.gate.is_empty() || !model.extra.is_empty() {
        release(&way, &mut model, &mut dice).await?;
    }
    while !model.reserved.is_empty() {
        settle(&way, &mut model, &mut dice).await?;
    }
    stands(&way, &model).await
}

async fn check<W: Way>(way: &W, model: &mut Model) -> Result<(), String> {
    let decision = answered(way.service().check("api", "k", Cost::ONE).await)?.decision;
    let is_admitted = model.api < 300;
    model.api += u64::from(is_admitted);
    let wanted = (is_admitted, 300 - model.api);
    same("api", (decision.is_admit(), decision.remaining), wanted)
}

async fn admit<W: Way>(way: &W, model: &mut Model) -> Result<(), String> {
    let service = way.service();
    let gate = answered(service.admit("gate", "k").await)?;
    same("gate", gate.decision.is_admit(), model.gate.len() < GATES[model.file])?;
    model.gate.extend(gate.lease.map(|lease| (lease.id, model.reloads)));
    if HAS_EXTRA[model.file] {
        let cost = Cost::new(7).expect("in range");
        let extra = answered(service.admit_work(&Work { cost, ..Work::new("extra", "k") }).await)?;
        same("extra", extra.decision.is_admit(), true)?;
        model.extra.extend(extra.lease.map(|lease| (lease.id, model.reloads)));
    }
    Ok(())
}

async fn release<W: Way>(
    way: &W,
    model: &mut Model,
    dice: &mut fastrand::Rng,
) -> Result<(), String> {
    let leases = if dice.bool() { &mut model.gate } else { &mut model.extra };
    if leases.is_empty() {
        return Ok(());
    }
    let (lease, given) = leases.swap_remove(dice.usize(..leases.len()));
    if way.knows(model.reloads - given) {
        answered(way.service().release(&lease, false).await)?;
    }
    Ok(())
}

async fn beat<W: Way>(way: &W, model: &Model) -> Result<(), String> {
    let all = || model.gate.iter().chain(&model.extra);
    let leases = all().map(|(lease, _)| lease.clone()).collect();
    let heard = answered(way.service().heartbeat(leases).await)?;
    same("leases that were heard of", heard.live.len(), all().count())
}

async fn reserve<W: Way>(
    way: &W,
    model: &mut Model,
    dice: &mut fastrand::Rng,
) -> Result<(), String> {
    let units = dice.u64(1..50);
    let asked = [Asked { policy: "tokens", key: "k", units }];
    let (terms, expected) = (Terms::default(), Expected::default());
    let reserved = answered(way.service().reserve(&asked, terms, expected).await)?;
    let lease = reserved.lease.ok_or("nothing was reserved")?;
    model.reserved.push((lease, units));
    Ok(())
}

async fn settle<W: Way>(
    way: &W,
    model: &mut Model,
    dice: &mut fastrand::Rng,
) -> Result<(), String> {
    if model.reserved.is_empty() {
        return Ok(());
    }
    let (lease, units) = model.reserved.swap_remove(dice.usize(..model.reserved.len()));
    let actual = dice.u64(..=units);
    let asked = [Asked { policy: "tokens", key: "k", units: actual }];
    let settled = way.service().settle(&asked, lease, true, Expected::default()).await;
    let settlement = answered(settled)?.lines[0].answered.settlement;
    model.spent += actual;
    same("tokens settled", matches!(settlement, Settlement::Now(_)), true)
}

async fn reload<W: Way>(
    way: &mut W,
    model: &mut Model,
    dice: &mut fastrand::Rng,
) -> Result<(), String> {
    let file = dice.usize(..FILES.len());
    let is_reloaded = way.reload(FILES[file]).await;
    same("whether it was reloaded", is_reloaded, file < GATES.len())?;
    if is_reloaded {
        model.reloads += 1;
        model.file = file;
    }
    Ok(())
}

/// What must hold at any time.
async fn stands<W: Way>(way: &W, model: &Model) -> Result<(), String> {
    let service = way.service();
    let api = answered(service.peek("api", "k").await)?;
    same("api remaining", api.remaining, 300 - model.api)?;
    let gate = answered(service.policy("gate"))?.gate().map(|gate| gate.stats());
    let gate = gate.ok_or("gate has no gate")?;
    same("gate in flight", gate.in_flight as usize, model.gate.len())?;
    same("gate limit", gate.limit as usize, GATES[model.file])?;
    let held = model.gate.len() + model.extra.len();
    same("leases are held", service.leases_held(), held)?;
    let asked = [Asked { policy: "tokens", key: "k", units: 0 }];
    let looked = answered(service.budget(&asked).await)?;
    let standing = looked.lines[0].answered.standing;
    let reserved: u64 = model.reserved.iter().map(|(_, units)| units).sum();
    same("tokens", (standing.spent, standing.reserved), (model.spent, reserved))
}

/// The seeds to run.
pub(crate) fn cases() -> Vec<u64> {
    if let Some(seed) = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return vec![seed];
    }
    let count = if std::env::var_os("ADMITTANCE_LONG").is_some() { 100 } else { 10 };
    eprintln!("seeds 1 to {count}");
    (1..=count).collect()
}
