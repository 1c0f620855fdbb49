//! Policies that are tried out on live traffic: what they decide changes nothing for those who
//! decide, and is counted exactly.

use std::sync::Arc;

use admittance::{
    Axis, Cost, Decision, GuardSettings, ManualClock, Memory, Micros, Span, StoreError, Verdicts,
};
use admittance_proto::v1;
use admittance_server::{
    AnyStore, Asked, CandidateCounts, Config, Expected, Fail, Service, ShadowConfig, Terms, Work,
};
use admittance_testkit::{Behavior, Scripted};

use crate::live::{self, Live, START_US};

/// Parents, and the candidates that may run beside them.
const POLICIES: &str = "
limiters:
  rate: { strategy: gcra, limit: 5, period: 1s, shadow: [rate-b, rate-c] }
  rate-b: { strategy: gcra, limit: 5, period: 1s, burst: 2 }
  rate-c: { strategy: fixedWindow, limit: 9, period: 1s }
  log: { strategy: slidingWindowLog, limit: 4, period: 1s, shadow: [log-b] }
  log-b: { strategy: tokenBucket, capacity: 3, refillPerSec: 4 }
  budget: { BUDGET: { budget: 60, windowMs: 2000 }, shadow: [budget-b] }
  budget-b: { BUDGET: { budget: 40, windowMs: 3000 } }
  gate: { concurrency: { minLimit: 3, maxLimit: 3 }, shadow: [gate-b] }
  gate-b: { concurrency: { minLimit: 2, maxLimit: 2 } }
  all:
    strategy: gcra
    limit: 9
    period: 1s
    concurrency: { minLimit: 4, maxLimit: 4 }
    cost: { budget: 90, windowMs: 2000 }
    shadow: [all-b]
  all-b:
    strategy: gcra
    limit: 7
    period: 1s
    concurrency: { minLimit: 5, maxLimit: 5 }
    cost: { budget: 70, windowMs: 2000 }
";
const PARENTS: [&str; 5] = ["rate", "log", "budget", "gate", "all"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Here,
    Store,
}

/// What is done to the candidates before they are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nobody,
    AsWritten,
    /// A mutant: each parent runs beside itself.
    Itself,
    /// A mutant: candidates have their parent's limits, under its name in the store.
    SameKeys,
}

fn config(at: Where, beside: Beside) -> Config {
    let kind = if at == Where::Here { "tokenBudget" } else { "fleetBudget" };
    let text = POLICIES.replace("BUDGET", kind);
    let mut config = live::config(&text, Fail::Open);
    let written = config.policies.clone();
    for policy in &mut config.policies {
        match (beside, &policy.shadow) {
            (Beside::Nobody, _) => policy.shadow = ShadowConfig::Off,
            (Beside::Itself, ShadowConfig::Beside(_)) => {
                policy.shadow = ShadowConfig::Beside(vec![policy.name.clone()]);
            }
            (Beside::SameKeys, _) => {
                let Some(parent) = policy.name.strip_suffix("-b") else { continue };
                let same = written.iter().find(|written| written.name == parent).unwrap();
                (policy.rate, policy.cost) = (same.rate.clone(), same.cost.clone());
                policy.prefix = Some(parent.to_owned());
            }
            _ => {}
        }
    }
    config
}

fn service(at: Where, beside: Beside, clock: &ManualClock) -> Service {
    let config = config(at, beside);
    let shared: Arc<ManualClock> = Arc::new(clock.clone());
    match at {
        Where::Here => Service::new(&config, shared),
        Where::Store => {
            let settings = GuardSettings { clock: shared, ..GuardSettings::default() };
            let store = AnyStore::fused(Memory::new(clock.clone()));
            Service::on_store(&config, &store, &settings).unwrap()
        }
    }
}

fn start() -> ManualClock {
    ManualClock::at(Micros::from_epoch_us(START_US).unwrap())
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(5);
    println!("ADMITTANCE_SEED={seed}");
    seed
}

fn cases(few: usize) -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { few * 10 } else { few }
}

/// What one parent's requests came to, in full, but for the names of leases.
async fn step(
    service: &Service,
    rng: &mut fastrand::Rng,
    leases: &mut Vec<(String, &'static str, String)>,
    reserved: &mut Vec<(admittance::budget::LeaseKey, String)>,
) -> String {
    let key = format!("k{}", rng.u8(..3));
    let cost = Cost::new(rng.u64(1..=3)).unwrap();
    match rng.u8(..12) {
        0..=2 => format!("{:?}", service.check("rate", &key, cost).await),
        3 => format!("{:?}", service.check("log", &key, cost).await),
        4 => {
            let keys: Vec<String> = (0..rng.u8(..5)).map(|n| format!("k{}", n % 3)).collect();
            format!("{:?}", service.check_many("rate", &keys, cost).await)
        }
        5 => format!("{:?}", service.debit("budget", &key, cost).await),
        6 | 7 => {
            let policy = if rng.bool() { "gate" } else { "all" };
            let units = Cost::new(rng.u64(1..=20)).unwrap();
            let work = Work { cost: units, ..Work::new(policy, &key) };
            let mut admitted = service.admit_work(&work).await.unwrap();
            let lease = admitted.lease.take();
            if admitted.binding == Some(Axis::Concurrency) {
                // How long to wait for a place is guessed from how long work really takes.
                (admitted.decision, admitted.verdicts) = (Decision::NEUTRAL, Verdicts::NONE);
            }
            let said = format!("{admitted:?} {:?}", lease.as_ref().map(|lease| lease.until));
            leases.extend(lease.map(|lease| (lease.id, policy, key)));
            said
        }
        8 if !leases.is_empty() => {
            let (id, ..) = leases.swap_remove(rng.usize(..leases.len()));
            format!("{:?}", service.release(&id, rng.bool()).await)
        }
        9 if !leases.is_empty() => {
            let heard = service.heartbeat(leases.iter().map(|it| it.0.clone()).collect()).await;
            let heard = heard.unwrap();
            leases.retain(|(id, ..)| heard.live.contains(id));
            format!("{} {} {:?}", heard.live.len(), heard.reclaimed.len(), heard.next_deadline)
        }
        10 => {
            let asked = [Asked { policy: "budget", key: &key, units: rng.u64(1..30) }];
            let said = service.reserve(&asked, Terms::default(), Expected::default()).await;
            let said = said.unwrap();
            reserved.extend(said.lease.map(|lease| (lease, key.clone())));
            format!("{:?} {:?} {:?}", said.costs, said.ttl, said.units)
        }
        11 if !reserved.is_empty() => {
            let (lease, key) = reserved[rng.usize(..reserved.len())].clone();
            let asked = [Asked { policy: "budget", key: &key, units: rng.u64(1..20) }];
            match rng.bool() {
                true => format!("{:?}", service.debit_lease(&asked, Some(lease)).await),
                false => {
                    let settled = service.settle(&asked, lease, true, Expected::default());
                    format!("{:?}", settled.await)
                }
            }
        }
        _ => format!("{} {}", service.sweep(), service.leases_held()),
    }
}

/// Everything that was decided along a timeline.
async fn timeline(at: Where, beside: Beside, seed: u64) -> (Vec<String>, Service) {
    let clock = start();
    let service = service(at, beside, &clock);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut leases, mut reserved) = (Vec::new(), Vec::new());
    let mut said = Vec::new();
    for _ in 0..400 {
        said.push(step(&service, &mut rng, &mut leases, &mut reserved).await);
        if rng.u8(..4) == 0 {
            clock.advance(Span::from_ms(rng.u64(..400)));
        }
        if rng.bool() {
            service.shadows_told().await;
        }
    }
    service.shadows_told().await;
    service.all_told().await;
    for policy in PARENTS {
        let policy = service.policy(policy).unwrap();
        said.push(format!("{:?}", policy.admissions()));
        said.push(format!("{:?}", policy.gate().map(|gate| gate.stats().in_flight)));
    }
    (said, service)
}

/// Whether all is decided as with nobody beside.
async fn is_as_alone(at: Where, beside: Beside) -> bool {
    let mut seeds = fastrand::Rng::with_seed(seed());
    for _ in 0..cases(20) {
        let seed = seeds.u64(..);
        let (alone, _) = timeline(at, Beside::Nobody, seed).await;
        let (tried, service) = timeline(at, beside, seed).await;
        if beside == Beside::AsWritten {
            for policy in PARENTS {
                let shadowed = service.policy(policy).unwrap().shadowed().unwrap();
                for counts in shadowed.candidates {
                    assert_eq!((counts.dropped, counts.failed), (0, 0), "{policy} {counts:?}");
                    let asked = counts.both_admit + counts.both_deny;
                    assert!(asked + counts.newly_denied > 0, "{policy} {counts:?}");
                }
            }
        }
        if let Some(place) = (0..alone.len()).find(|&place| alone[place] != tried[place]) {
            if beside == Beside::AsWritten {
                println!("seed {seed}, step {place}:\n{}\n{}", alone[place], tried[place]);
            }
            return false;
        }
    }
    true
}

#[tokio::test]
async fn decisions_are_the_same_with_candidates_in_this_process_and_without() {
    assert!(is_as_alone(Where::Here, Beside::AsWritten).await);
    assert!(!is_as_alone(Where::Here, Beside::Itself).await, "the parent is charged twice");
}

#[tokio::test]
async fn decisions_are_the_same_with_candidates_in_a_store_and_without() {
    assert!(is_as_alone(Where::Store, Beside::AsWritten).await);
    assert!(!is_as_alone(Where::Store, Beside::Itself).await, "the parent is charged twice");
    assert!(!is_as_alone(Where::Store, Beside::SameKeys).await, "they have the parent's keys");
}

fn counted(counts: &CandidateCounts) -> [u64; 4] {
    [counts.both_admit, counts.both_deny, counts.newly_denied, counts.newly_admitted]
}

/// Counts as an observer would who asks each policy by itself, at the same instants.
async fn counts_are_those_of_each_alone(at: Where, wrong: bool) -> bool {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..cases(20) {
        let clock = start();
        let service = service(at, Beside::AsWritten, &clock);
        let alone = self::service(at, Beside::Nobody, &clock);
        let pairs = [("rate", "rate-b"), ("rate", "rate-c"), ("log", "log-b")];
        let mut expected = [[0; 4]; 4];
        let mut count = |place: usize, parent: bool, candidate: bool| {
            // A mutant: the one taken for the other.
            let both = if wrong { (candidate, parent) } else { (parent, candidate) };
            let kind = match both {
                (true, true) => 0,
                (false, false) => 1,
                (true, false) => 2,
                (false, true) => 3,
            };
            expected[place][kind] += 1;
        };
        for _ in 0..300 {
            let key = format!("k{}", rng.u8(..3));
            let cost = Cost::new(rng.u64(1..=3)).unwrap();
            clock.advance(Span::from_ms(rng.u64(..150)));
            let policy = ["rate", "log", "budget", "many"][rng.usize(..4)];
            if policy == "budget" {
                let _ = service.debit(policy, &key, cost).await.unwrap();
                let parent = alone.debit(policy, &key, cost).await.unwrap().decision.is_admit();
                let beside = alone.debit("budget-b", &key, cost).await.unwrap();
                count(3, parent, beside.decision.is_admit());
            } else if policy == "many" {
                let keys = vec![key.clone(), "k1".into(), key];
                service.check_many("rate", &keys, cost).await.unwrap();
                let (parent, _) = alone.check_many("rate", &keys, cost).await.unwrap();
                for (place, candidate) in ["rate-b", "rate-c"].into_iter().enumerate() {
                    let (beside, _) = alone.check_many(candidate, &keys, cost).await.unwrap();
                    for (parent, beside) in parent.iter().zip(beside) {
                        count(place, parent.is_admit(), beside.is_admit());
                    }
                }
            } else {
                let _ = service.check(policy, &key, cost).await.unwrap();
                let parent = alone.check(policy, &key, cost).await.unwrap().decision.is_admit();
                for (place, (_, candidate)) in
                    pairs.iter().enumerate().filter(|(_, (parent, _))| *parent == policy)
                {
                    let beside = alone.check(candidate, &key, cost).await.unwrap();
                    count(place, parent, beside.decision.is_admit());
                }
            }
            service.shadows_told().await;
        }
        let of = |policy: &str| service.policy(policy).unwrap().shadowed().unwrap().candidates;
        let (rate, log, budget) = (of("rate"), of("log"), of("budget"));
        let found = [&rate[0], &rate[1], &log[0], &budget[0]].map(counted);
        if found != expected {
            return false;
        }
        let newly_admitted: u64 = found.iter().map(|counts| counts[3]).sum();
        assert!(found[0][2] > 0 && newly_admitted > 0, "the traffic shows something: {found:?}");
    }
    true
}

#[tokio::test]
async fn counts_are_those_of_an_observer_who_asks_each_policy_by_itself() {
    for at in [Where::Here, Where::Store] {
        assert!(counts_are_those_of_each_alone(at, false).await, "{at:?}");
        assert!(!counts_are_those_of_each_alone(at, true).await, "{at:?}");
    }
}

/// A store that fails one policy alone, in one way or another.
fn fails(clock: &ManualClock, way: fn() -> Behavior) -> Scripted<Memory<ManualClock>> {
    Scripted::with(Memory::new(clock.clone()), move |request| match request.policy() {
        Some("b") => way(),
        _ => Behavior::serve(),
    })
}

fn refuses() -> Behavior {
    Behavior::fail(StoreError::Unavailable)
}

fn panics() -> Behavior {
    panic!("the store of the candidate breaks")
}

/// So many checks with a candidate whose store fails so, and what was counted of it.
async fn beside_one_that_fails(way: fn() -> Behavior, checks: usize) -> CandidateCounts {
    let clock = start();
    let text = "limiters:\n  a: { strategy: gcra, limit: 100, period: 1s, fail: closed, shadow: \
                [b] }\n  b: { strategy: gcra, limit: 50, period: 1s, fail: closed }\n";
    let config = live::config(text, Fail::Open);
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..GuardSettings::default() };
    let store = fails(&clock, way);
    let service = Service::on_store(&config, &AnyStore::new(store), &settings).unwrap();
    let alone = Config::parse(
        "test",
        "limiters: { a: { strategy: gcra, limit: 100, period: 1s } }",
        Fail::Open,
    );
    let alone = Service::new(&alone.unwrap(), Arc::new(clock.clone()));
    for n in 0..checks {
        let key = format!("k{}", n % 3);
        let tried = service.check("a", &key, Cost::ONE).await.unwrap();
        assert_eq!(tried, alone.check("a", &key, Cost::ONE).await.unwrap(), "check {n}");
        if n % 7 == 0 {
            clock.advance(Span::from_ms(1));
        }
    }
    let guards: Vec<_> = service.guards().collect();
    assert!(guards.len() == 1 && guards[0].outage().is_none(), "the parent's store is well");
    service.shadows_told().await;
    service.policy("a").unwrap().shadowed().unwrap().candidates.remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_candidate_whose_store_refuses_hangs_or_panics_does_not_touch_its_parent() {
    for way in [refuses, Behavior::hang, panics] {
        let counts = beside_one_that_fails(way, 1_000).await;
        assert_eq!(counted(&counts), [0; 4], "nothing was decided: {counts:?}");
        assert_eq!(counts.failed + counts.dropped, 1_000, "{counts:?}");
        assert!(counts.failed > 0, "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn asks_that_wait_are_bounded_and_what_does_not_fit_is_counted() {
    let counts = beside_one_that_fails(Behavior::hang, 40_000).await;
    assert!(counts.dropped > 0, "{counts:?}");
    assert_eq!(counts.failed + counts.dropped, 40_000, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_counts_and_gives_a_new_candidate_a_breaker_of_its_own() {
    let read = |limit: u64, shadow: &str| {
        let text = format!(
            "limiters:\n  a: {{ strategy: gcra, limit: {limit}, period: 1s, fail: closed{shadow} \
             }}\n  b: {{ strategy: gcra, limit: 50, period: 1s, fail: closed }}\n"
        );
        live::config(&text, Fail::Open)
    };
    let clock = start();
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..GuardSettings::default() };
    let store = fails(&clock, refuses);
    let store = AnyStore::new(store);
    let service = Service::on_store(&read(1_000, ""), &store, &settings).unwrap();
    assert_eq!(service.policy("a").unwrap().shadowed(), None);
    let mut asked = 0;
    for (limit, shadow) in [(1_000, ", shadow: [b]"), (2_000, ", shadow: [b]")] {
        service.reload(&read(limit, shadow)).await.unwrap();
        for _ in 0..100 {
            let decided = service.check("a", "k", Cost::ONE).await.unwrap();
            assert!(decided.decision.is_admit() && decided.source == admittance::Source::Store);
            service.shadows_told().await;
        }
        asked += 100;
        assert!(service.guards().all(|guard| guard.outage().is_none()));
        let counts = service.policy("a").unwrap().shadowed().unwrap().candidates.remove(0);
        assert_eq!(counts.failed, asked, "{counts:?}");
    }
    service.reload(&read(1_000, "")).await.unwrap();
    assert_eq!(service.policy("a").unwrap().shadowed(), None);
}

#[tokio::test]
async fn a_policy_that_refuses_nobody_says_what_it_would_have_done() {
    let policies = "
limiters:
  try: { strategy: fixedWindow, limit: 2, period: 1h, shadow: true }
  gate: { concurrency: { minLimit: 1, maxLimit: 1 }, shadow: true }
  spend: { tokenBudget: { budget: 10, period: 1h }, shadow: true }
";
    let live = Live::with(policies).await;
    let mut client = live.client().await;
    let denied = |metadata: &tonic::metadata::MetadataMap| {
        metadata.get("admittance-shadow").map(|value| value.to_str().unwrap().to_owned())
    };
    for n in 0..4 {
        let ask = v1::CheckRequest { policy: "try".into(), key: "k".into(), cost: 1 };
        let reply = client.check(ask).await.unwrap();
        let expected = (n >= 2).then(|| "denied".to_owned());
        assert_eq!(denied(reply.metadata()), expected, "check {n}");
        let decision = reply.into_inner().decision.unwrap();
        let said = (decision.allowed, decision.limit, decision.remaining, decision.retry_after_ms);
        assert_eq!(said, (true, 2, (1 - n).max(0), 0), "check {n}");
    }
    let keys = vec!["k".into(), "new".into()];
    let ask = v1::CheckManyRequest { policy: "try".into(), keys, cost: 1 };
    let reply = client.check_many(ask).await.unwrap();
    assert_eq!(denied(reply.metadata()).as_deref(), Some("denied"));
    assert!(reply.into_inner().decisions.iter().all(|decision| decision.allowed));
    let admit =
        || v1::AdmitRequest { policy: "gate".into(), key: "k".into(), ..Default::default() };
    let first = client.admit(admit()).await.unwrap().into_inner();
    let second = client.admit(admit()).await.unwrap();
    assert_eq!(denied(second.metadata()).as_deref(), Some("denied"));
    let second = second.into_inner();
    assert!(!first.lease_id.is_empty() && second.lease_id.is_empty(), "only what is held is held");
    let decision = second.decision.unwrap();
    assert!(decision.allowed && second.binding_axis.is_empty() && decision.retry_after_ms == 0);
    for (tokens, is_denied) in [(10, false), (8, true), (2, true)] {
        let ask = v1::DebitRequest { policy: "spend".into(), key: "k".into(), tokens };
        let reply = client.debit(ask).await.unwrap();
        assert_eq!(denied(reply.metadata()).is_some(), is_denied, "{tokens}");
        assert!(reply.into_inner().decision.unwrap().allowed);
    }
    let counted = |policy: &str| live.service.policy(policy).unwrap().shadowed().unwrap().denied;
    assert_eq!((counted("try"), counted("gate"), counted("spend")), (3, 1, 2));
    let stats = live.service.policy("gate").unwrap().admissions().unwrap();
    assert_eq!((stats.admitted, stats.denied), (2, [0; 4]), "none was denied");
}

/// Prints what candidates cost a check in this process; asserts nothing.
#[tokio::test]
async fn what_a_candidate_costs_a_check_is_printed() {
    for beside in [Beside::Nobody, Beside::AsWritten] {
        let service = service(Where::Here, beside, &start());
        let checks = 100_000_u32;
        let began = std::time::Instant::now();
        for _ in 0..checks {
            let _ = service.check("log", "k", Cost::ONE).await.unwrap();
        }
        println!("{beside:?}: {} ns per check", began.elapsed().as_nanos() / u128::from(checks));
    }
}
