//! Small worlds in which a great deal goes wrong, one per seed.

use admittance_core::Span;
use admittance_core::budget::Debt;
use admittance_sim::cost::{Estimate, Faults, Setup};
use fastrand::Rng;

/// Seeds, of which the first is printed; a failing run prints its own.
pub(crate) fn seeds() -> impl Iterator<Item = u64> {
    let first = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or(20_261_115);
    println!("replay with ADMITTANCE_SEED={first}");
    first..
}

/// How often to try: ten times as often if somebody has the time.
pub(crate) fn long(count: usize) -> usize {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { count * 10 } else { count }
}

/// Up to three keys with a few streams each, windows that are shorter than some streams, leases
/// that are shorter than some pauses, accounts that remember little.
pub(crate) fn hostile(seed: u64) -> Setup {
    let mut random = Rng::with_seed(seed);
    let (short, chunk) = (random.u64(1..=30), random.u64(1..=12));
    let limit = random.u64(20..=600);
    let estimate = match random.u8(0..5) {
        0 => Estimate::Nothing,
        1 => Estimate::Fixed(random.u64(1..=limit / 2)),
        2 => Estimate::Most,
        3 => Estimate::Quantile(random.u64(10..=95)),
        _ => Estimate::Adversarial,
    };
    Setup {
        seed,
        seconds: 400,
        keys: random.usize(1..=3),
        streams: random.usize(1..=8),
        instances: random.usize(1..=3),
        limits: [limit, limit * random.u64(2..=8), limit * random.u64(1..=6)],
        windows: [
            Span::from_secs(random.u64(5..=60)),
            Span::from_secs(random.u64(60..=300)),
            Span::from_secs(random.u64(3..=90)),
        ],
        weights: [1, 1, random.u64(1..=5)],
        debt: if random.u8(0..4) == 0 { Debt::Forgive } else { Debt::Carry },
        remembered: if random.bool() { (4_096, 16_384) } else { (random.u32(2..=6), 8) },
        chunk,
        short,
        max_tokens: random.u64(short..=limit.max(short)),
        pace: Span::from_ms(random.u64(20..=400)),
        think: Span::from_secs(random.u64(1..=8)),
        patience: Span::from_ms(random.u64(100..=800)),
        ttl: Span::from_ms(random.u64(500..=10_000)),
        estimate,
        faults: faults(&mut random),
        ..Setup::calm(seed)
    }
}

fn faults(random: &mut Rng) -> Faults {
    Faults {
        drift_ppm: 1_000,
        loss_ppm: random.u64(0..=100_000),
        duplicate_ppm: random.u64(0..=100_000),
        slow_ppm: random.u64(0..=100_000),
        latency: Span::from_us(random.u64(100..=20_000)),
        death_ppm: random.u64(0..=20_000),
        overrun_ppm: random.u64(0..=50_000),
        pause_ppm: random.u64(0..=50_000),
        late_ppm: random.u64(0..=300_000),
        again_ppm: random.u64(0..=300_000),
        crashes: random.usize(0..=10),
        restarts: random.usize(0..=6),
        losses: 0,
        changes: if random.bool() { 0 } else { random.usize(1..=8) },
    }
}

/// Nobody overruns, and every debit is one token.
pub(crate) fn by_token(seed: u64) -> Setup {
    let setup = hostile(seed);
    let faults = Faults { overrun_ppm: 0, changes: 0, ..setup.faults };
    Setup { chunk: 1, weights: [1, 1, 1], faults, ..setup }
}

/// The store forgets everything now and then.
pub(crate) fn forgetful(seed: u64) -> Setup {
    let setup = hostile(seed);
    let faults = Faults { losses: 4, ..setup.faults };
    Setup { faults, ..setup }
}
