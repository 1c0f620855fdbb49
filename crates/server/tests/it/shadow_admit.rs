//! What candidates hold beside the leases of their parents: for as long, and it ends the same way.

use std::sync::Arc;

use admittance::budget::LeaseKey;
use admittance::{Cost, GuardSettings, ManualClock, Memory, Span};
use admittance_server::{AnyStore, Asked, Expected, Fail, Service, Work};

use crate::live;

const POLICIES: &str = "
limiters:
  gate: { concurrency: { minLimit: 3, maxLimit: 3 }, leaseTtl: 1s, shadow: [gate-b] }
  gate-b: { concurrency: { minLimit: 2, maxLimit: 2 } }
  all:
    concurrency: { minLimit: 100, maxLimit: 100 }
    cost: { budget: 100000, period: 1h, leaseTtl: 10s }
    leaseTtl: 1s
    shadow: [all-b]
  all-b:
    strategy: gcra
    limit: 1000
    period: 1s
    concurrency: { minLimit: 100, maxLimit: 100 }
    cost: { budget: 100000, period: 1h, leaseTtl: 10s }
  rated: { strategy: gcra, limit: 1, period: 1h, concurrency: { maxLimit: 9 }, shadow: [free] }
  free: { concurrency: { minLimit: 1, maxLimit: 1 } }
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Here,
    Store,
}

fn service(at: Where, clock: &ManualClock) -> Service {
    let config = live::config(POLICIES, Fail::Open);
    match at {
        Where::Here => Service::new(&config, Arc::new(clock.clone())),
        Where::Store => {
            let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
            let store = AnyStore::fused(Memory::new(clock.clone()));
            Service::on_store(&config, &store, &settings).unwrap()
        }
    }
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(6);
    println!("ADMITTANCE_SEED={seed}");
    seed
}

fn cases(few: usize) -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { few * 10 } else { few }
}

fn in_flight(service: &Service, policy: &str) -> u32 {
    service.policy(policy).unwrap().gate().unwrap().stats().in_flight
}

/// Places of both as a model has them: what is held beside ends with its lease. A mutant keeps it.
async fn places_are_those_of_the_model(at: Where, keeps: bool) -> bool {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..cases(30) {
        let clock = ManualClock::default();
        let service = service(at, &clock);
        let (mut counts, mut beside) = ([0_u64; 4], 0_u32);
        // A lease, whether the candidate holds a place with it, and until when it lives.
        let mut held: Vec<(String, bool, u64)> = Vec::new();
        let mut now = 0;
        for _ in 0..200 {
            match rng.u8(..5) {
                0..=2 => {
                    let admitted = service.admit("gate", "k").await.unwrap();
                    let (parent, candidate) = (held.len() < 3, beside < 2);
                    assert_eq!(admitted.decision.is_admit(), parent);
                    counts[match (parent, candidate) {
                        (true, true) => 0,
                        (false, false) => 1,
                        (true, false) => 2,
                        (false, true) => 3,
                    }] += 1;
                    if let Some(lease) = admitted.lease {
                        beside += u32::from(candidate);
                        held.push((lease.id, candidate, now + 1_000));
                    }
                }
                3 if !held.is_empty() => {
                    let (id, candidate, _) = held.swap_remove(rng.usize(..held.len()));
                    service.release(&id, rng.bool()).await.unwrap();
                    beside -= u32::from(candidate && !keeps);
                }
                _ => {
                    let ms = rng.u64(..400);
                    clock.advance(Span::from_ms(ms));
                    now += ms;
                    service.sweep();
                    for (_, candidate, _) in held.extract_if(.., |it| it.2 <= now) {
                        beside -= u32::from(candidate && !keeps);
                    }
                }
            }
            service.shadows_told().await;
            if in_flight(&service, "gate-b") != beside {
                return false;
            }
        }
        let shadowed = service.policy("gate").unwrap().shadowed().unwrap();
        let found = &shadowed.candidates[0];
        let found = [found.both_admit, found.both_deny, found.newly_denied, found.newly_admitted];
        assert_eq!(found, counts);
    }
    true
}

#[tokio::test]
async fn a_candidate_holds_its_place_for_as_long_as_the_lease_of_its_parent_lives() {
    for at in [Where::Here, Where::Store] {
        assert!(places_are_those_of_the_model(at, false).await, "{at:?}");
        assert!(!places_are_those_of_the_model(at, true).await, "{at:?}");
    }
}

/// What is spent, reserved and owed of both.
async fn accounts(service: &Service, policy: &str) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    for key in ["k0", "k1"] {
        let costs = service.budget(&[Asked { policy, key, units: 0 }]).await.unwrap();
        let standing = costs.lines[0].answered.standing;
        all.push((standing.spent, standing.reserved, standing.debt));
    }
    all
}

#[tokio::test]
async fn accounts_of_a_candidate_are_charged_as_those_of_its_parent_are() {
    for at in [Where::Here, Where::Store] {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..cases(20) {
            let clock = ManualClock::default();
            let service = service(at, &clock);
            let mut held: Vec<(String, String)> = Vec::new();
            for step in 0..120 {
                let key = format!("k{}", rng.u8(..2));
                match rng.u8(..6) {
                    0 | 1 => {
                        let cost = Cost::new(rng.u64(1..=20)).unwrap();
                        let work = Work { cost, ..Work::new("all", &key) };
                        let lease = service.admit_work(&work).await.unwrap().lease.unwrap();
                        held.push((lease.id, key));
                    }
                    2 | 3 if !held.is_empty() => {
                        let (id, key) = &held[rng.usize(..held.len())];
                        let lease = LeaseKey(u128::from_str_radix(&code(id), 16).unwrap());
                        let asked = [Asked { policy: "all", key, units: rng.u64(..30) }];
                        if rng.bool() {
                            service.debit_lease(&asked, Some(lease)).await.unwrap();
                        } else {
                            let settled = service.settle(&asked, lease, true, Expected::default());
                            settled.await.unwrap();
                        }
                    }
                    4 if !held.is_empty() => {
                        let (id, _) = held.swap_remove(rng.usize(..held.len()));
                        service.release(&id, rng.bool()).await.unwrap();
                    }
                    _ => {
                        clock.advance(Span::from_ms(rng.u64(..200)));
                        let ids = held.iter().map(|(id, _)| id.clone()).collect();
                        let heard = service.heartbeat(ids).await.unwrap();
                        service.sweep();
                        held.retain(|(id, _)| heard.live.contains(id));
                    }
                }
                service.shadows_told().await;
                service.all_told().await;
                let (own, beside) =
                    (accounts(&service, "all").await, accounts(&service, "all-b").await);
                assert_eq!(own, beside, "{at:?}, step {step}");
            }
            let asked = [Asked { policy: "all", key: "k0", units: 7 }];
            service.debit_lease(&asked, None).await.unwrap();
            service.shadows_told().await;
            assert_eq!(accounts(&service, "all").await, accounts(&service, "all-b").await);
        }
    }
}

/// The part of a lease's name that accounts know it by.
fn code(id: &str) -> String {
    id.chars().rev().take(32).collect::<Vec<_>>().into_iter().rev().collect()
}

#[tokio::test]
async fn nothing_is_held_for_work_that_the_parent_denied() {
    for at in [Where::Here, Where::Store] {
        let service = service(at, &ManualClock::default());
        let first = service.admit("rated", "k").await.unwrap().lease.unwrap();
        service.shadows_told().await;
        assert_eq!(in_flight(&service, "free"), 1);
        assert!(!service.admit("rated", "k").await.unwrap().decision.is_admit());
        service.release(&first.id, false).await.unwrap();
        assert_eq!(in_flight(&service, "free"), 0);
        assert!(!service.admit("rated", "k").await.unwrap().decision.is_admit());
        service.shadows_told().await;
        assert_eq!(in_flight(&service, "free"), 0, "{at:?}");
        let shadowed = service.policy("rated").unwrap().shadowed().unwrap();
        let counts = &shadowed.candidates[0];
        let counts = (counts.both_admit, counts.both_deny, counts.newly_admitted);
        assert_eq!(counts, (1, 1, 1), "{at:?}");
    }
}

#[tokio::test]
async fn a_candidate_that_answers_after_the_lease_has_ended_holds_nothing() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let service = service(Where::Store, &ManualClock::default());
    for _ in 0..200 {
        // Its ask has not been sent when the lease ends.
        let lease = service.admit("all", "k0").await.unwrap().lease.unwrap();
        service.release(&lease.id, rng.bool()).await.unwrap();
        if rng.bool() {
            service.shadows_told().await;
        }
    }
    service.shadows_told().await;
    service.all_told().await;
    assert_eq!((in_flight(&service, "all"), in_flight(&service, "all-b")), (0, 0));
    let reserved: Vec<u64> = accounts(&service, "all-b").await.iter().map(|it| it.1).collect();
    assert_eq!(reserved, [0, 0]);
}
