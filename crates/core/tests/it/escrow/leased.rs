//! Several processes that lease from one counter, on clocks that do not agree.

use std::collections::BTreeMap;

use admittance_core::{Cost, Decision, EscrowGrant, LeasedEscrow, Micros, Span};
use fastrand::Rng;

use crate::escrow::batch::weight;
use crate::escrow::naive::{self, Judge, Mutant, Naive, Setting, name};
use crate::escrow::{MUTANT_MAX, rules};
use crate::timeline::{generator, instant, long};

/// Runs of a fleet, and events in each.
const RUNS: usize = 1_000;
const EVENTS: usize = 400;

/// How a driver reads a grant. The first is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    FromSend,
    /// The lifetime counts from the arrival.
    FromArrival,
    /// The store's clock is taken for one's own.
    WallClock,
    /// Credits live on.
    NoExpiry,
    /// Drift is not thought of.
    NoDrift,
}

/// A process: a clock that is off by minutes and drifts, and an escrow.
struct Process {
    escrow: LeasedEscrow,
    offset: u64,
    /// Parts per million by which the clock is slow.
    slow_ppm: u64,
    /// A lease on its way: when it arrives, and what it says.
    coming: Option<Coming>,
}

struct Coming {
    arrives: u64,
    sent: Micros,
    at: u64,
    window_end: u64,
    units: u64,
}

impl Process {
    fn local(&self, now: u64) -> Micros {
        let slow = u128::from(now) * u128::from(self.slow_ppm) / 1_000_000;
        instant(now - u64::try_from(slow).unwrap() + self.offset)
    }

    fn grant(&self, reading: Reading, arrival: Micros, coming: &Coming) -> EscrowGrant {
        let (window_end, at) = (instant(coming.window_end), instant(coming.at));
        let right = EscrowGrant::new(window_end, at, coming.sent, coming.units);
        let rest = window_end.since(at);
        match reading {
            Reading::FromSend => right,
            Reading::FromArrival => EscrowGrant { until: arrival + rest, ..right },
            Reading::WallClock => EscrowGrant { until: window_end, ..right },
            Reading::NoExpiry => EscrowGrant { until: Micros::HORIZON, ..right },
            Reading::NoDrift => EscrowGrant { until: coming.sent + rest, ..right },
        }
    }
}

/// Often nothing, at most this long.
fn step(rng: &mut Rng, most: u64) -> u64 {
    if rng.bool() { 0 } else { rng.u64(0..=most) }
}

/// A fleet on one counter: whether every admission was paid by the window in which it was made,
/// and none paid for more than its budget. Also what was admitted in all.
fn run(rng: &mut Rng, reading: Reading) -> (bool, u64) {
    let window = rng.u64(1_000..1_000_000);
    let limit = rng.u64(1..200);
    let tenths: Vec<u64> = (0..rng.usize(1..6)).map(|_| weight(rng)).collect();
    let setting = Setting { limit, window, tenths, max_keys: 20 };
    let mut processes: Vec<Process> = (0..rng.usize(1..4))
        .map(|_| Process {
            escrow: LeasedEscrow::new(&rules(&setting)).unwrap(),
            offset: rng.u64(..600_000_000),
            slow_ppm: rng.u64(..=999),
            coming: None,
        })
        .collect();
    let quantum = rng.u64(1..=limit);
    let (mut counters, mut paid) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
    let (mut now, mut holds, mut all) = (10_000_000_000, true, 0);
    for _ in 0..EVENTS {
        // Often just where the window ends.
        now = if rng.u8(..8) == 0 {
            (now / window + 1) * window
        } else {
            now + step(rng, window / 20)
        };
        let process = rng.usize(..processes.len());
        let process = &mut processes[process];
        let local = process.local(now);
        if let Some(coming) = process.coming.take_if(|coming| coming.arrives <= now) {
            let grant = process.grant(reading, local, &coming);
            let _spendable = process.escrow.grant(local, grant);
        }
        let cost = Cost::new(rng.u64(1..=limit.min(5))).unwrap();
        let tenant = rng.usize(..setting.tenths.len());
        let answer = process.escrow.check(&name(tenant), local, cost);
        if answer.decision.is_admit() {
            let payer = answer.decision.reset_at.epoch_us();
            let used = paid.entry(payer).or_default();
            *used += cost.units();
            all += cost.units();
            holds &= *used <= limit && now < payer && payer - window <= now;
        } else if answer.shortage.is_some() && process.coming.is_none() {
            // The store reads its clock somewhere between the sending and the arrival.
            let at = now + step(rng, window / 8);
            let arrives = at + step(rng, window / 8);
            let window_end = (at / window + 1) * window;
            let taken = counters.entry(window_end).or_default();
            let units = quantum.min(limit - *taken);
            *taken += units;
            process.coming = Some(Coming { arrives, sent: local, at, window_end, units });
        }
    }
    (holds, all)
}

#[test]
fn what_is_leased_bounds_what_is_admitted_and_is_spent_in_its_own_window() {
    let mut rng = generator(50);
    let mut admitted = 0;
    for case in 0..long(RUNS) {
        let (holds, all) = run(&mut rng, Reading::FromSend);
        assert!(holds, "run {case}");
        admitted += all;
    }
    assert!(admitted > 1_000, "{admitted}");
    for mutant in [Reading::FromArrival, Reading::WallClock, Reading::NoExpiry, Reading::NoDrift] {
        assert!((0..MUTANT_MAX).any(|_| !run(&mut rng, mutant).0), "{mutant:?}");
    }
}

/// Whether a leased escrow whose budget grows answers as the rules do on what is visible.
fn differs(rng: &mut Rng, mutant: Option<Mutant>) -> bool {
    let tenths: Vec<u64> = (0..rng.usize(1..12)).map(|_| weight(rng)).collect();
    let limit = rng.u64(1..2_000);
    let setting = Setting { limit, window: 1 << 30, tenths, max_keys: 20 };
    let mut escrow = LeasedEscrow::new(&rules(&setting)).unwrap();
    let mut naive = Naive::new(&setting, mutant);
    naive.visible = 0;
    let end = instant(1 << 30);
    let mut now = 0;
    for step in 0..120 {
        now += if rng.u8(..4) == 0 { rng.u64(0..=1 << 22) } else { 0 };
        if rng.u8(..6) == 0 || step == 0 {
            let units = rng.u64(0..=limit - naive.visible);
            let grant = EscrowGrant { window_end: end, until: end, units };
            assert!(escrow.grant(instant(now), grant));
            naive.visible += units;
        }
        let tenant = rng.usize(..setting.tenths.len());
        let cost = Cost::new(rng.u64(1..=limit.min(60))).unwrap();
        let left: Decision = naive::leased(&mut escrow, tenant, instant(now), cost);
        if left != naive.check(tenant, instant(now), cost) {
            return true;
        }
    }
    false
}

#[test]
fn on_a_budget_that_grows_every_answer_is_the_one_the_rules_give() {
    let mut rng = generator(51);
    for case in 0..long(RUNS) {
        assert!(!differs(&mut rng, None), "run {case}");
    }
    for mutant in
        [Mutant::NoCap, Mutant::ClaimsIgnored, Mutant::ClaimsNeverLapse, Mutant::RoundedUp]
    {
        assert!((0..MUTANT_MAX).any(|_| differs(&mut rng, Some(mutant))), "{mutant:?}");
    }
}

#[test]
fn a_grant_that_comes_too_late_is_dropped() {
    let setting = Setting { limit: 10, window: 1_000, tenths: vec![10], max_keys: 1 };
    let mut escrow = LeasedEscrow::new(&rules(&setting)).unwrap();
    let grant = |window_end, until, units| EscrowGrant {
        window_end: instant(window_end),
        until: instant(until),
        units,
    };
    let check = |escrow: &mut LeasedEscrow, now| {
        naive::leased(escrow, 0, instant(now), Cost::ONE).is_admit()
    };
    assert!(!escrow.grant(instant(500), grant(1_000, 500, 10)), "it died on the way");
    assert!(!check(&mut escrow, 500));
    assert!(escrow.grant(instant(500), grant(2_000, 1_900, 1)));
    assert!(!escrow.grant(instant(501), grant(1_000, 1_900, 10)), "its window is over");
    assert!(check(&mut escrow, 600));
    assert!(!check(&mut escrow, 600), "one credit was granted");
    assert!(escrow.grant(instant(700), grant(2_000, 1_000, 5)));
    assert!(check(&mut escrow, 1_899), "each grant shows that the window lasts until then");
    assert!(!check(&mut escrow, 1_900), "the rest is dropped");
    assert_eq!(escrow.stats().used, 2);
    let new = EscrowGrant::new(instant(5_000), instant(3_000), instant(100), 7);
    // 2,000 ticks are left, less two for drift and one.
    assert_eq!((new.until, new.units), (instant(100) + Span::from_us(1_997), 7));
}
