//! Small fleets in a hostile world, one per seed.

use admittance_core::Span;
use admittance_sim::{Batch, Demand, Faults, Kind, Setup};
use fastrand::Rng;

/// What credits are tied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Coupled,
    Continuous,
    CarryOver,
}

/// Seeds, of which the first is printed; a failing run prints its own.
pub(crate) fn seeds(form: Form) -> impl Iterator<Item = u64> {
    let first = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or(20_261_115);
    println!("{form:?}: replay with ADMITTANCE_SEED={first}");
    first..
}

/// How often to try: ten times as often if somebody has the time.
pub(crate) fn long(count: usize) -> usize {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { count * 10 } else { count }
}

/// A fleet of up to twelve nodes, small limits, short windows, and a great deal that goes wrong.
pub(crate) fn hostile(form: Form, seed: u64) -> Setup {
    let mut random = Rng::with_seed(seed);
    let limit = random.u64(1..=300);
    let is_continuous = form == Form::Continuous;
    let burst = is_continuous.then(|| random.u64(1..=limit));
    let batch = match random.u8(0..3) {
        0 => Batch::Fixed(random.u64(1..=50)),
        1 => Batch::Learned,
        _ => Batch::Predictive,
    };
    let demand = match random.u8(0..4) {
        0 => Demand::Steady,
        1 => Demand::Drifting,
        _ => Demand::Bursty,
    };
    let cost_max = if random.bool() { 1 } else { random.u64(1..=8) };
    Setup {
        seed,
        nodes: random.usize(1..=12),
        keys: random.usize(1..=3),
        limit,
        burst,
        window: Span::from_ms(random.u64(200..=3_000)),
        strategy: if is_continuous { Kind::Gcra } else { Kind::FixedWindow },
        batch,
        is_coupled: form != Form::CarryOver,
        windows: 30,
        demand,
        load_percent: random.u64(50..=400),
        cost_max: cost_max.min(burst.unwrap_or(limit)),
        low_water: if random.bool() { 0 } else { random.u64(1..=20) },
        idle_after: random.bool().then(|| Span::from_ms(random.u64(50..=1_000))),
        deadline: Span::from_ms(20),
        lease_time: is_continuous.then(|| Span::from_ms(random.u64(200..=2_000))),
        faults: faults(&mut random),
        only: None,
    }
}

fn faults(random: &mut Rng) -> Faults {
    Faults {
        skew: Span::from_secs(random.u64(0..=600)),
        drift_ppm: 1_000,
        loss_ppm: random.u64(0..=30_000),
        duplicate_ppm: random.u64(0..=50_000),
        slow_ppm: random.u64(0..=50_000),
        latency: Span::from_us(random.u64(100..=5_000)),
        partitions: random.usize(0..=3),
        failovers: random.usize(0..=6),
        crashes: random.usize(0..=10),
    }
}
