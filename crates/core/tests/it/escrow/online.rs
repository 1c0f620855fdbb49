//! Timelines on which tenants come, go quiet and come back: every field of every answer.

use std::ops::ControlFlow;

use admittance_core::{Cost, Decision, Escrow, EscrowRules, Micros, Span};
use fastrand::Rng;

use crate::escrow::batch::weight;
use crate::escrow::naive::{Judge, Mutant, Naive, Setting, name};
use crate::escrow::{MUTANT_MAX, shipped};
use crate::timeline::{Clock, Timeline, cost, generator, instant, long, spread};

/// Timelines, and asks in each.
const TIMELINES: usize = 2_000;
const ASKS: usize = 60;

fn setting(rng: &mut Rng) -> Setting {
    let tenants = rng.usize(1..=24);
    let tenths: Vec<u64> = (0..tenants).map(|_| weight(rng)).collect();
    let named = tenths.iter().filter(|&&tenths| tenths != 10).count();
    let max_keys = named.max(1) + rng.usize(0..=8);
    let limit = if rng.bool() { spread(rng, 300) } else { spread(rng, 1 << 52) };
    Setting { limit, window: spread(rng, 1 << 40), tenths, max_keys }
}

/// Drives two through the same timeline until they differ.
fn differ(one: &mut impl Judge, other: &mut impl Judge, setting: &Setting, rng: &mut Rng) -> bool {
    let lapse = setting.window.div_ceil(10);
    let mut clock = Timeline::new(rng, Clock::Jumping, setting.window, lapse);
    let mut last: Option<Decision> = None;
    (0..ASKS)
        .try_for_each(|_| {
            let now = clock.next(rng, last.as_ref());
            let tenant = rng.usize(..setting.tenths.len());
            if rng.u8(..8) == 0 {
                let units = rng.u64(0..=setting.limit);
                one.backlog(tenant, now, units);
                other.backlog(tenant, now, units);
            }
            let cost = cost(rng, setting.limit, last.map_or(1, |last| last.remaining));
            let (left, right) = (one.check(tenant, now, cost), other.check(tenant, now, cost));
            last = Some(left);
            let same = left == right && one.used(tenant) == other.used(tenant);
            if same { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .is_break()
}

#[test]
fn every_answer_is_the_one_a_scan_by_the_rules_gives() {
    let mut rng = generator(44);
    for case in 0..long(TIMELINES) {
        let setting = setting(&mut rng);
        let (mut escrow, mut naive) = (shipped(&setting), Naive::new(&setting, None));
        assert!(!differ(&mut escrow, &mut naive, &setting, &mut rng), "{case}: {setting:?}");
    }
}

#[test]
fn no_mutant_answers_as_the_rules_do() {
    for mutant in [
        Mutant::NoCap,
        Mutant::ClaimsIgnored,
        Mutant::GuaranteeIgnored,
        Mutant::ClaimsNeverLapse,
        Mutant::ClaimsLapseAtOnce,
        Mutant::BacklogIgnored,
        Mutant::WholeSlack,
        Mutant::WeightsIgnored,
        Mutant::RoundedUp,
        Mutant::CarriesUse,
        Mutant::CarriesWeights,
        Mutant::StepsBack,
        Mutant::ChargesDenials,
        Mutant::NoPlaceNoRules,
        Mutant::WaitsForTheEnd,
    ] {
        let mut rng = generator(45);
        let caught = (0..MUTANT_MAX).any(|_| {
            let setting = setting(&mut rng);
            let (mut escrow, mut mutant) = (shipped(&setting), Naive::new(&setting, Some(mutant)));
            differ(&mut escrow, &mut mutant, &setting, &mut rng)
        });
        assert!(caught, "{mutant:?}");
    }
}

/// Whether, on a clock that goes where it likes, no window admits more than its budget.
fn is_safe(judge: &mut impl Judge, setting: &Setting, rng: &mut Rng) -> bool {
    let mut clock = Timeline::new(rng, Clock::Jumping, setting.window, setting.window.div_ceil(10));
    let (mut last, mut spent) = (None, std::collections::BTreeMap::<Micros, u64>::new());
    for _ in 0..ASKS {
        let now = clock.next(rng, last.as_ref());
        let tenant = rng.usize(..setting.tenths.len());
        let cost = cost(rng, setting.limit, last.map_or(1, |last: Decision| last.remaining));
        let decision = judge.check(tenant, now, cost);
        if decision.is_admit() {
            *spent.entry(decision.reset_at).or_default() += cost.units();
        }
        last = Some(decision);
    }
    spent.values().all(|&spent| spent <= setting.limit)
}

#[test]
fn no_window_admits_more_than_its_budget_whatever_the_clock_does() {
    let mut rng = generator(46);
    for _ in 0..long(TIMELINES) {
        let setting = setting(&mut rng);
        assert!(is_safe(&mut shipped(&setting), &setting, &mut rng), "{setting:?}");
    }
    for mutant in [Mutant::NoCap, Mutant::StepsBack] {
        let caught = (0..MUTANT_MAX).any(|_| {
            let setting = setting(&mut rng);
            !is_safe(&mut Naive::new(&setting, Some(mutant)), &setting, &mut rng)
        });
        assert!(caught, "{mutant:?}");
    }
}

/// Whether what idle tenants do not claim any more can be had, and not earlier.
fn lends_in_time(judge: &mut impl Judge, setting: &Setting) -> bool {
    let lapse = setting.window.div_ceil(10);
    let at = |us| instant(3 * setting.window + us);
    for tenant in 0..setting.tenths.len() {
        if !judge.check(tenant, at(0), Cost::ONE).is_admit() {
            return true;
        }
    }
    let left = setting.limit - setting.tenths.len() as u64;
    let Some(left) = Cost::new(left) else { return true };
    let early = judge.check(0, at(lapse - 1), left);
    // The first tenant's own ask renews its own claim only.
    let late = judge.check(0, at(lapse), left);
    let alone = setting.tenths.len() == 1;
    alone || (!early.is_admit() && late.is_admit())
}

#[test]
fn a_claim_lapses_a_tenth_of_a_window_after_its_tenant_last_asked() {
    let mut rng = generator(47);
    let mut setting = || {
        let tenths = vec![10; rng.usize(1..=9)];
        Setting { limit: rng.u64(40..1_000), window: rng.u64(20..1 << 30), tenths, max_keys: 9 }
    };
    for _ in 0..long(TIMELINES) {
        let setting = setting();
        assert!(lends_in_time(&mut shipped(&setting), &setting), "{setting:?}");
    }
    for mutant in [Mutant::ClaimsNeverLapse, Mutant::ClaimsLapseAtOnce, Mutant::ClaimsIgnored] {
        let caught = (0..MUTANT_MAX).any(|_| {
            let setting = setting();
            !lends_in_time(&mut Naive::new(&setting, Some(mutant)), &setting)
        });
        assert!(caught, "{mutant:?}");
    }
}

/// The answers in a second window, after a first in which one tenant asked as often as told.
fn second_window(
    judge: &mut impl Judge,
    setting: &Setting,
    asks: usize,
    seed: u64,
) -> Vec<Decision> {
    for _ in 0..asks {
        let _in_the_first = judge.check(0, instant(setting.window - 1), Cost::ONE);
    }
    let mut rng = Rng::with_seed(seed);
    let mut decisions = Vec::new();
    for step in 0..ASKS as u64 {
        let now = instant(setting.window + step * setting.window / (ASKS as u64 + 1));
        let tenant = rng.usize(..setting.tenths.len());
        let cost = Cost::new(rng.u64(1..=setting.limit)).unwrap();
        decisions.push(judge.check(tenant, now, cost));
    }
    decisions
}

#[test]
fn asking_too_much_in_one_window_changes_nothing_in_the_next() {
    let mut rng = generator(48);
    let changes = |rng: &mut Rng, mutant: Option<Mutant>| {
        let tenths = (0..rng.usize(1..6)).map(|_| weight(rng)).collect();
        let limit = rng.u64(1..40);
        let setting = Setting { limit, window: rng.u64(2..1 << 30), tenths, max_keys: 9 };
        let (seed, asks) = (rng.u64(..), rng.usize(1..100));
        let answers = |asks: usize| match mutant {
            None => second_window(&mut shipped(&setting), &setting, asks, seed),
            mutant => second_window(&mut Naive::new(&setting, mutant), &setting, asks, seed),
        };
        answers(asks) != answers(0)
    };
    for _ in 0..long(TIMELINES) {
        assert!(!changes(&mut rng, None));
    }
    for mutant in [Mutant::CarriesUse, Mutant::CarriesWeights] {
        assert!((0..MUTANT_MAX).any(|_| changes(&mut rng, Some(mutant))), "{mutant:?}");
    }
}

#[test]
fn waiting_exactly_the_retry_admits_and_with_few_claims_one_tick_less_does_not() {
    let mut rng = generator(49);
    let (mut by_lapse, mut crowded) = (0, 0);
    for _ in 0..long(TIMELINES) {
        let tenants = if rng.bool() { rng.usize(2..=30) } else { rng.usize(40..=120) };
        let window = rng.u64(100..1 << 30);
        let limit = rng.u64(1..2_000);
        let mut escrow = Escrow::new(&EscrowRules::new(limit, Span::from_us(window))).unwrap();
        let mut now = 5 * window;
        for _ in 0..200 {
            now += rng.u64(0..=window / 100);
            let cost = Cost::new(rng.u64(1..=limit.min(30))).unwrap();
            let tenant = rng.usize(..tenants);
            let decision = Judge::check(&mut escrow, tenant, instant(now), cost);
            let Some(retry) = decision.retry_after() else { continue };
            let then = instant(now) + retry;
            by_lapse += usize::from(then < decision.reset_at);
            let patient = escrow.clone().check(&name(tenant), then, cost);
            assert!(patient.is_admit(), "after {retry:?}");
            if tenants <= 30 {
                let early = then - Span::TICK;
                assert!(!escrow.clone().check(&name(tenant), early, cost).is_admit());
            } else {
                crowded += 1;
            }
        }
    }
    assert!(by_lapse > 100 && crowded > 100, "{by_lapse} waits end early, {crowded} in a crowd");
}

#[test]
fn tenants_beyond_the_most_are_lent_what_nobody_claims_and_named_ones_have_a_place() {
    let mut rules = EscrowRules::new(100, Span::from_secs(10));
    rules.weights.insert(Box::from(*b"gold"), "2".parse().unwrap());
    rules.max_keys = 3;
    let mut escrow = Escrow::new(&rules).unwrap();
    let units = |units| Cost::new(units).unwrap();
    let now = Micros::ZERO;
    assert!(escrow.check(b"a", now, units(10)).is_admit());
    assert!(escrow.check(b"b", now, units(10)).is_admit());
    for crowd in 0..1_000_u32 {
        let decision = escrow.check(&crowd.to_be_bytes(), now, Cost::ONE);
        assert!(!decision.is_admit() && decision.remaining == 0, "all is claimed: {decision:?}");
    }
    assert_eq!(escrow.stats().tenants, 2, "nothing is kept of a thousand names");
    assert!(escrow.check(b"gold", now, units(40)).is_admit(), "half of 100 is its own");
    assert_eq!(escrow.stats().tenants, 3);
    // Of the 40 left, 15 are a's, 15 b's and 10 gold's; once they lapse the crowd may have them.
    let later = instant(1_000_000);
    let mut lent = 0;
    for crowd in 0..1_000_u32 {
        lent += u64::from(escrow.check(&crowd.to_be_bytes(), later, Cost::ONE).is_admit());
    }
    assert_eq!(lent, 40, "never more than the budget");
    let stats = escrow.stats();
    assert_eq!((stats.used, stats.without_place, stats.tenants), (100, 40, 3));
}
