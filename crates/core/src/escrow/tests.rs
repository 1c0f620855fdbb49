//! The work of a check, counted: nodes of the trees and classes looked at, not time.

use std::format;

use super::*;

/// The most and the average number of visits of a check among this many tenants, once all are met.
fn work(tenants: u64, weights: u64) -> (u64, u64) {
    let mut rules = EscrowRules::new(1_000_000_000, Span::from_secs(1_000));
    for tenant in 0..tenants {
        let weight = Decimal::whole(1 + tenant % weights).expect("small");
        rules.weights.insert(format!("{tenant}").into_bytes().into(), weight);
    }
    let mut escrow = Escrow::new(&rules).expect("valid");
    let mut rng = fastrand::Rng::with_seed(tenants);
    let (mut most, mut all, checks) = (0, 0, 20_000);
    let mut now = 0;
    let mut check = |escrow: &mut Escrow, tenant: u64, cost: u64| {
        now += 20_000;
        let (tenant, cost) = (format!("{tenant}"), Cost::new(cost).expect("not zero"));
        let before = escrow.ledger.visits();
        let now = Micros::saturating_from_epoch_us(now);
        let _decided = escrow.check(tenant.as_bytes(), now, cost);
        escrow.ledger.visits() - before
    };
    for tenant in 0..tenants {
        check(&mut escrow, tenant, 1);
    }
    for _ in 0..checks {
        // Some tenants far more than others, so that uses differ and guarantees are exceeded.
        let tenant = rng.u64(..tenants) * rng.u64(..tenants) / tenants;
        let cost = 1 + rng.u64(..5_000);
        let visits = check(&mut escrow, tenant, cost);
        (most, all) = (most.max(visits), all + visits);
    }
    (most, all / checks)
}

#[test]
fn the_work_of_a_check_grows_with_the_logarithm_of_the_tenants() {
    for weights in [1, 8] {
        for tenants in [10, 100, 1_000, 10_000] {
            let (most, average) = work(tenants, weights);
            std::println!("{weights} weights, {tenants} tenants: {average} visits, most {most}");
            // A number is taken out and put back; for a tenant whose claim had lapsed, twice. The
            // most is not bounded: claims lapse in crowds, for which the asks before have paid.
            let bound = 3 * u64::from(tenants.ilog2()) + 6;
            assert!(average <= bound, "{tenants} tenants: {average} visits on average");
        }
    }
}

#[test]
fn a_tenant_that_comes_costs_a_step_per_weight_and_no_scan() {
    for (tenants, weights) in [(10_000_u64, 1_u64), (10_000, 200)] {
        let mut rules = EscrowRules::new(1_000_000_000, Span::from_secs(1_000));
        for tenant in 0..tenants {
            let weight = Decimal::whole(1 + tenant % weights).expect("small");
            rules.weights.insert(format!("{tenant}").into_bytes().into(), weight);
        }
        let mut escrow = Escrow::new(&rules).expect("valid");
        let mut most = 0;
        for tenant in 0..tenants {
            let before = escrow.ledger.visits();
            let cost = Cost::new(1 + tenant).expect("not zero");
            let tenant = format!("{tenant}");
            let _decided = escrow.check(tenant.as_bytes(), Micros::ZERO, cost);
            most = most.max(escrow.ledger.visits() - before);
        }
        // Each class is walked once, and the newcomer's number put in, taken out and put in.
        let depth = 2 * u64::from((tenants / weights + 1).ilog2()) + 1;
        assert!(most <= weights * (1 + depth) + 3 * depth, "{weights} weights: {most} visits");
        assert!(most < tenants, "{weights} weights: {most} visits of {tenants}");
    }
}
