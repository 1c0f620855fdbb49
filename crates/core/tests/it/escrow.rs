//! The escrow against the design's rules, the four properties, and the split it approaches.
//!
//! Each check is generic over [`Judge`], so that the shipped escrow, a scan written straight from
//! the rules, and broken scans go through the same lines. A check that lets its mutant pass fails.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

mod batch;
mod leased;
mod naive;
mod online;
mod split;

use crate::timeline::{generator, long};
use admittance_core::{
    Cost, Decimal, Escrow, EscrowRules, Invalid, Micros, Parameter, Retry, Span,
};
use batch::{Batch, Broken};
use naive::{Judge, Mutant, Naive, Setting, name};

/// Random batches for the four properties.
const BATCHES: usize = 20_000;

/// Batches or timelines within which a mutant must be caught.
const MUTANT_MAX: usize = 5_000;

pub(crate) fn rules(setting: &Setting) -> EscrowRules {
    let mut rules = EscrowRules::new(setting.limit, Span::from_us(setting.window));
    rules.max_keys = setting.max_keys;
    for (tenant, &tenths) in setting.tenths.iter().enumerate() {
        if tenths != 10 {
            let weight: Decimal = format!("{}.{}", tenths / 10, tenths % 10).parse().unwrap();
            rules.weights.insert(Box::from(name(tenant)), weight);
        }
    }
    rules
}

pub(crate) fn shipped(setting: &Setting) -> Escrow {
    Escrow::new(&rules(setting)).unwrap()
}

#[test]
fn the_four_properties_hold_on_random_batches() {
    let mut rng = generator(41);
    let (mut refused, mut borrowed) = (0, 0);
    for _ in 0..long(BATCHES) {
        let batch = Batch::random(&mut rng);
        let mut escrow = shipped(&batch.setting);
        assert_eq!(batch.broken(&mut escrow, &mut rng), None, "{batch:?}");
        let wanted: u64 = batch.waiting.iter().flatten().sum();
        refused += usize::from(escrow.stats().used < wanted);
        borrowed += usize::from(escrow.stats().borrowed > 0);
    }
    assert!(refused > BATCHES / 3, "the budget is contended in {refused}");
    assert!(borrowed > BATCHES / 3, "something is borrowed in {borrowed}");
}

#[test]
fn the_rules_by_scans_have_the_four_properties_too() {
    let mut rng = generator(42);
    for _ in 0..long(BATCHES / 10) {
        let batch = Batch::random(&mut rng);
        let mut naive = Naive::new(&batch.setting, None);
        assert_eq!(batch.broken(&mut naive, &mut rng), None, "{batch:?}");
    }
}

#[test]
fn each_property_has_mutants_that_break_it() {
    for (mutant, broken) in [
        (Mutant::NoCap, Broken::Safety),
        (Mutant::ClaimsIgnored, Broken::SharingIncentive),
        (Mutant::ClaimsIgnored, Broken::BoundedUnfairness),
        (Mutant::WeightsIgnored, Broken::SharingIncentive),
        (Mutant::RoundedUp, Broken::SharingIncentive),
        (Mutant::GuaranteeIgnored, Broken::SharingIncentive),
        (Mutant::GuaranteeIgnored, Broken::WorkConservation),
        (Mutant::BacklogIgnored, Broken::WorkConservation),
        (Mutant::WholeSlack, Broken::BoundedUnfairness),
        (Mutant::ChargesDenials, Broken::BoundedUnfairness),
    ] {
        let mut rng = generator(43);
        let caught = (0..MUTANT_MAX).any(|_| {
            let batch = Batch::random(&mut rng);
            let mut mutant = Naive::new(&batch.setting, Some(mutant));
            batch.broken(&mut mutant, &mut rng) == Some(broken)
        });
        assert!(caught, "{mutant:?} must break {broken:?}");
    }
}

#[test]
fn rules_that_cannot_be_kept_are_refused_with_the_reason() {
    let good = || EscrowRules::new(10, Span::from_secs(1));
    let decimal = |text: &str| text.parse::<Decimal>().unwrap();
    let refused = |change: &dyn Fn(&mut EscrowRules)| {
        let mut rules = good();
        change(&mut rules);
        Escrow::new(&rules).map(|_| ()).unwrap_err()
    };
    let weights = |rules: &mut EscrowRules, texts: &[&str]| {
        for (tenant, text) in texts.iter().enumerate() {
            rules.weights.insert(Box::from(name(tenant)), decimal(text));
        }
    };
    assert!(Escrow::new(&good()).is_ok());
    assert_eq!(refused(&|rules| rules.limit = 0), Invalid::Zero(Parameter::Limit));
    assert_eq!(refused(&|rules| rules.window = Span::ZERO), Invalid::Zero(Parameter::Window));
    assert_eq!(refused(&|rules| weights(rules, &["0"])), Invalid::Zero(Parameter::Weight));
    let (parameter, given, max) = (Parameter::Weight, 9_007_199_254_740_991, 900_719_925_474_099);
    assert_eq!(
        refused(&|rules| weights(rules, &["9007199254740991", "0.5"])),
        Invalid::TooLarge { parameter, given, max }
    );
    let parameter = Parameter::MaxKeys;
    assert_eq!(
        refused(&|rules| rules.max_keys = 0),
        Invalid::TooSmall { parameter, given: 0, min: 1 }
    );
    let two = |rules: &mut EscrowRules| {
        weights(rules, &["2", "3"]);
        rules.max_keys = 1;
    };
    assert_eq!(refused(&two), Invalid::TooSmall { parameter, given: 1, min: 2 });
    let (given, max) = (EscrowRules::MAX_KEYS_MAX + 1, EscrowRules::MAX_KEYS_MAX);
    assert_eq!(
        refused(&|rules| rules.max_keys = given),
        Invalid::TooMany { parameter, given, max }
    );
    let many = |count: u64| {
        move |rules: &mut EscrowRules| {
            for tenant in 0..count {
                let weight = Decimal::whole(tenant + 2).unwrap();
                rules.weights.insert(Box::from(tenant.to_be_bytes()), weight);
            }
        }
    };
    let (parameter, max) = (Parameter::DifferentWeights, EscrowRules::WEIGHTS_MAX);
    assert_eq!(refused(&many(256)), Invalid::TooMany { parameter, given: max + 1, max });
    let mut rules = good();
    many(255)(&mut rules);
    assert!(Escrow::new(&rules).is_ok(), "with the weight of unnamed tenants that makes 256");
}

#[test]
fn the_largest_numbers_stay_exact() {
    let mut rules = EscrowRules::new(Cost::MAX.units(), Span::from_secs(1));
    for tenant in 0..3 {
        rules.weights.insert(Box::from(name(tenant)), "9007199254740991".parse().unwrap());
    }
    let mut escrow = Escrow::new(&rules).unwrap();
    for tenant in 0..3 {
        escrow.backlog(&name(tenant), Micros::ZERO, u64::MAX);
    }
    // 2^53 − 1 = 3·3002399751580330 + 1: everybody's third, and the one that is left for whoever
    // borrows it first.
    let third = Cost::new(3_002_399_751_580_330).unwrap();
    for tenant in 0..3 {
        assert!(Judge::check(&mut escrow, tenant, Micros::ZERO, third).is_admit());
    }
    let last = Judge::check(&mut escrow, 1, Micros::ZERO, Cost::ONE);
    assert!(last.is_admit() && last.remaining == 0, "{last:?}");
    let refused = Judge::check(&mut escrow, 2, Micros::ZERO, Cost::ONE);
    assert_eq!(refused.retry_after(), Some(Span::from_secs(1)));
    assert_eq!(escrow.stats().used, Cost::MAX.units());
    let never = Escrow::new(&EscrowRules::new(5, Span::from_secs(1))).unwrap().check(
        b"t",
        Micros::ZERO,
        Cost::new(6).unwrap(),
    );
    assert_eq!(never.outcome, admittance_core::Outcome::Deny(Retry::Never));
}
