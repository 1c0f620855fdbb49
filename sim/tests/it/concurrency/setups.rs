//! Small fleets in a hostile world, one per seed.

use admittance_core::Span;
use admittance_core::concurrency::{Aggregate, FleetRules, MemberRules, Outage, Split};
use admittance_sim::concurrency::{Demand, Faults, Limits, Setup};
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

/// A fleet of up to twelve nodes, small limits, short lives, and a great deal that goes wrong.
pub(crate) fn hostile(seed: u64) -> Setup {
    let mut random = Rng::with_seed(seed);
    let heartbeat = random.u64(100..=1_000);
    let hold = random.u64(100..=5_000);
    Setup {
        seed,
        nodes: random.usize(2..=12),
        joiners: 0,
        seconds: 40,
        limits: Limits::Fixed {
            limit: random.u32(1..=60),
            changes: if random.bool() { 0 } else { random.usize(1..=8) },
        },
        rules: FleetRules {
            aggregate: if random.bool() { Aggregate::Median } else { Aggregate::Min },
            split: if random.bool() { Split::Equal } else { Split::Demand },
            handoff: true,
            ttl: Span::from_ms(heartbeat * random.u64(2..=5)),
            max_hold: Span::from_ms(hold),
        },
        member: MemberRules { outage: Outage::FailClosed, fence: true, eager: random.bool() },
        heartbeat: Span::from_ms(heartbeat),
        debounce: Span::from_ms(random.u64(1..=50)),
        demand: match random.u8(0..4) {
            0 => Demand::Steady,
            1 => Demand::Skewed,
            2 => Demand::Bursty,
            _ => Demand::Drifting,
        },
        load_percent: random.u64(100..=400),
        servers: if random.bool() { 1_000 } else { random.u32(1..=60) },
        work: Span::from_ms(random.u64(10..=(hold / 4).max(10))),
        spread_percent: 100,
        long_ppm: random.u64(0..=200_000),
        faults: faults(&mut random, heartbeat),
        only: None,
    }
}

/// A fleet of up to five nodes that are cut off often, with reports that take about as long as the
/// time between two, and work that takes as long as it may: what lasts a moment too long shows.
pub(crate) fn sharp(seed: u64) -> Setup {
    let mut random = Rng::with_seed(seed);
    let heartbeat = random.u64(50..=200);
    let hold = random.u64(50..=400);
    Setup {
        nodes: random.usize(2..=5),
        seconds: 60,
        limits: Limits::Fixed { limit: random.u32(2..=12), changes: 0 },
        rules: FleetRules {
            ttl: Span::from_ms(heartbeat * random.u64(2..=8)),
            max_hold: Span::from_ms(hold),
            ..hostile(seed).rules
        },
        heartbeat: Span::from_ms(heartbeat),
        debounce: Span::from_ms(random.u64(1..=10)),
        demand: Demand::Steady,
        load_percent: 400,
        servers: 1_000,
        work: Span::from_ms((hold / 2).max(10)),
        long_ppm: 800_000,
        faults: Faults {
            drift_ppm: 1_000,
            loss_ppm: random.u64(0..=200_000),
            duplicate_ppm: random.u64(0..=200_000),
            slow_ppm: random.u64(0..=20_000),
            latency: Span::from_us(random.u64(1_000..=heartbeat * 1_000)),
            partitions: 20,
            crashes: random.usize(0..=4),
            leaves: 0,
            pauses: random.usize(0..=4),
            failovers: 0,
            steps: 0,
        },
        ..hostile(seed)
    }
}

fn faults(random: &mut Rng, heartbeat: u64) -> Faults {
    Faults {
        drift_ppm: 1_000,
        loss_ppm: random.u64(0..=200_000),
        duplicate_ppm: random.u64(0..=100_000),
        slow_ppm: random.u64(0..=100_000),
        latency: Span::from_us(random.u64(100..=heartbeat * 100)),
        partitions: random.usize(0..=4),
        crashes: random.usize(0..=20),
        leaves: random.usize(0..=20),
        pauses: random.usize(0..=10),
        failovers: random.usize(0..=3),
        steps: random.usize(0..=2),
    }
}
