//! Another configuration while leases are held: what is kept, what is refused, what is found again.

use crate::live;
mod world;

use std::sync::Arc;
use std::time::Duration;

use admittance::{Cost, GuardSettings, ManualClock, Memory, Micros, Span};
use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{Charge, ReserveRequest};
use admittance_server::{
    AnyStore, Asked, Config, Expected, Fail, Refusal, Service, Terms, Unreloadable, Unservable,
    Work,
};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use self::world::{Anew, Early, Forgetful, Honest, Way, cases, run};
use crate::live::Live;
use admittance_testkit::MemoryBackend;

fn config(policies: &str) -> Config {
    Config::parse("test", policies, Fail::Open).expect("valid policies")
}

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_us(live::START_US).expect("in range"))
}

fn here(policies: &str) -> Service {
    Service::new(&config(policies), Arc::new(clock()))
}

/// An instance on a store in which others meet too.
fn there(policies: &str) -> Service {
    there_at(policies, clock())
}

fn there_at(policies: &str, clock: ManualClock) -> Service {
    let backend = Arc::new(MemoryBackend::new(clock));
    let store = AnyStore::fused(Arc::clone(&backend)).with_fleet(backend);
    let settings = GuardSettings::default();
    Service::on_store(&config(policies), &store, &settings).expect("servable")
}

async fn all<W: Way>(steps: u32) -> Result<(), String> {
    for seed in cases() {
        run::<W>(seed, steps).await.map_err(|why| format!("seed {seed}: {why}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn through_reloads_usage_permits_and_leases_stay_exact() {
    all::<Honest>(2_000).await.unwrap();
}

#[tokio::test]
async fn a_reload_that_makes_every_limiter_new_is_caught() {
    let caught = all::<Anew>(2_000).await.expect_err("the mutant passed");
    assert!(caught.contains("api"), "{caught}");
}

#[tokio::test]
async fn a_reload_that_swaps_before_all_is_made_is_caught() {
    eprintln!("{}", all::<Early>(2_000).await.expect_err("the mutant passed"));
}

#[tokio::test]
async fn a_reload_that_forgets_old_leases_is_caught() {
    let caught = all::<Forgetful>(2_000).await.expect_err("the mutant passed");
    assert!(caught.contains("in flight") || caught.contains("leases are held"), "{caught}");
}

#[tokio::test]
async fn a_lower_limit_keeps_the_permits_that_are_out() {
    let gate = |most: u32| {
        format!("limiters: {{ w: {{ concurrency: {{ maxLimit: {most}, minLimit: {most} }} }} }}")
    };
    let service = here(&gate(4));
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.extend(service.admit("w", "k").await.unwrap().lease);
    }
    let reloaded = service.reload(&config(&gate(2))).await.unwrap();
    assert_eq!(reloaded.to_string(), "changed w; 0 kept");
    let stats = service.policy("w").unwrap().gate().unwrap().stats();
    assert_eq!((stats.limit, stats.in_flight), (2, 4));
    for expected in [false, false, true] {
        service.release(&leases.pop().unwrap().id, false).await.unwrap();
        assert_eq!(service.admit("w", "k").await.unwrap().decision.is_admit(), expected);
    }
    service.reload(&config(&gate(3))).await.unwrap();
    assert!(service.admit("w", "k").await.unwrap().decision.is_admit());
    assert!(!service.admit("w", "k").await.unwrap().decision.is_admit());
    let counted = service.policy("w").unwrap().admissions().unwrap();
    assert_eq!(counted.admitted, 6, "counted on: {counted:?}");
}

#[tokio::test]
async fn what_only_a_restart_can_change_is_refused_and_changes_nothing() {
    let policies = "limiters: { a: { strategy: gcra, limit: 5, period: 1h } }";
    let service = here(policies);
    let refused = service.reload(&config(&format!("load: off\n{policies}"))).await;
    assert_eq!(refused, Err(Unreloadable::Load));
    let service = there(policies);
    let tagged = "limiters:
  a: { strategy: gcra, limit: 5, period: 1h }
  b: { strategy: gcra, limit: 5, period: 1h, waitReplicas: 1 }";
    let refused = service.reload(&config(tagged)).await.unwrap_err();
    assert!(refused.to_string().starts_with("policy \"b\": hashTag, waitReplicas"), "{refused}");
    assert!(matches!(service.policy("b"), Err(Refusal::UnknownPolicy { .. })));
    let reloads = service.reloads();
    assert_eq!((reloads.succeeded, reloads.failed, reloads.last), (0, 1, None));
}

/// A burst of twenty is spent at ten an hour; then the rate is another, and nothing more passes.
async fn a_spent_burst_stays_spent(service: Service, waits: [u64; 3]) {
    let file = |rate: &str| format!("limiters: {{ a: {{ strategy: gcra, burst: 20, {rate} }} }}");
    let check = async || service.check("a", "ann", Cost::ONE).await.unwrap().decision;
    for _ in 0..20 {
        assert!(check().await.is_admit());
    }
    let rates = ["limit: 1, period: 1h", "limit: 10, period: 1h", "limit: 100, period: 1h"];
    for (rate, wait) in rates.into_iter().zip(waits) {
        service.reload(&config(&file(rate))).await.unwrap();
        let denied = check().await;
        assert_eq!(denied.retry_after(), Some(Span::from_secs(wait)), "{rate}: {denied:?}");
    }
    service.close().await;
}

#[tokio::test]
async fn a_rate_that_a_reload_changes_keeps_what_was_spent() {
    let policies = "limiters: { a: { strategy: gcra, burst: 20, limit: 10, period: 1h } }";
    // In this process the units come back at the rate there is; in a store, at the one that they
    // were taken at.
    a_spent_burst_stays_spent(here(policies), [3_600, 360, 36]).await;
    a_spent_burst_stays_spent(there(policies), [360, 360, 360]).await;
    let service = here(policies);
    assert!(service.check("a", "ann", Cost::ONE).await.unwrap().decision.is_admit());
    for (file, told) in [
        ("{ strategy: tokenBucket, capacity: 20, refillPerSec: 0.5 }", "changed a; 0 kept"),
        ("{ strategy: gcra, burst: 30, limit: 1, period: 1s }", "changed a; 0 kept"),
        ("{ strategy: fixedWindow, limit: 30, period: 1h }", "changed a (rate anew); 0 kept"),
        ("{ strategy: fixedWindow, limit: 25, period: 1h }", "changed a; 0 kept"),
    ] {
        let reloaded = service.reload(&config(&format!("limiters: {{ a: {file} }}"))).await;
        assert_eq!(reloaded.unwrap().to_string(), told, "{file}");
        let left = service.check("a", "ann", Cost::ONE).await.unwrap().decision;
        assert!(left.remaining + 1 < left.limit || told.contains("anew"), "{file}: {left:?}");
    }
}

#[tokio::test]
async fn what_a_store_cannot_keep_is_refused_and_changes_nothing() {
    let store = AnyStore::new(Memory::new(clock()));
    let policies = "limiters: { a: { strategy: gcra, limit: 5, period: 1h } }";
    let service = Service::on_store(&config(policies), &store, &GuardSettings::default()).unwrap();
    let before = service.policy("a").unwrap();
    let wanted = "limiters:
  a: { strategy: gcra, limit: 7, period: 1h }
  b: { fleetBudget: { budget: 5, period: 1h } }";
    let refused = service.reload(&config(wanted)).await.unwrap_err();
    let policy = "b".to_owned();
    assert_eq!(refused, Unreloadable::Unservable(Unservable::NoAccounts { policy }));
    assert!(Arc::ptr_eq(&before, &service.policy("a").unwrap()));
}

#[tokio::test]
async fn a_fleet_keeps_its_gate_and_one_that_is_removed_is_left() {
    let fleet = "distributedConcurrency: { minLimit: 4, maxLimit: 4, heartbeatMs: 50, maxHold: 0 }";
    let clock = clock();
    let service = there_at(&format!("limiters: {{ w: {{ {fleet} }} }}"), clock.clone());
    let gate = |service: &Service| service.policy("w").unwrap();
    let first = gate(&service);
    // The coordinator's clock stands still: it is quiet until told that time has passed.
    loop {
        let granted = first.fleet_gate().unwrap().granted();
        if tokio::time::timeout(Duration::from_millis(10), granted).await.is_ok() {
            break;
        }
        clock.advance(Span::from_ms(500));
    }
    let lease = service.admit("w", "k").await.unwrap().lease.unwrap();
    let other = format!("limiters: {{ w: {{ {fleet}, leaseTtl: 9s }} }}");
    let reloaded = service.reload(&config(&other)).await.unwrap();
    assert_eq!(reloaded.to_string(), "changed w; 0 kept");
    let second = gate(&service);
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!(second.gate().unwrap().stats().in_flight, 1);
    drop(first);
    let states = second.fleet_gate().unwrap().states();
    drop(second);
    service.reload(&config("limiters: {}")).await.unwrap();
    service.release(&lease.id, false).await.unwrap();
    assert_eq!(service.leases_held(), 0);
    // It leaves when nobody goes by it: its states end with it.
    let mut states = states;
    while states.changed().await.is_ok() {}
    service.close().await;
}

#[tokio::test]
async fn a_leased_rate_is_kept_and_gives_back_when_it_is_removed() {
    let leased = "strategy: fixedWindow, limit: 100, period: 1h, twoTier: { batch: 50 }";
    let service = there(&format!("limiters: {{ a: {{ {leased} }} }}"));
    for _ in 0..10 {
        assert!(service.check("a", "k", Cost::ONE).await.unwrap().decision.is_admit());
    }
    let other = format!("limiters: {{ a: {{ {leased}, load: {{ class: critical }} }} }}");
    service.reload(&config(&other)).await.unwrap();
    for _ in 0..10 {
        assert!(service.check("a", "k", Cost::ONE).await.unwrap().decision.is_admit());
    }
    // The same keys, asked one by one: all that was not spent is there again.
    let strict = "limiters: { a: { strategy: fixedWindow, limit: 100, period: 1h } }";
    let reloaded = service.reload(&config(strict)).await.unwrap();
    assert_eq!(reloaded.to_string(), "changed a (rate anew); 0 kept");
    service.close().await;
    assert_eq!(service.peek("a", "k").await.unwrap().remaining, 80);
}

#[tokio::test]
async fn services_of_the_contract_come_and_go_with_their_policies() {
    let without = "limiters: { a: { strategy: gcra, limit: 5, period: 1h } }";
    let with = "limiters: { b: { tokenBudget: { budget: 9, period: 1h } } }";
    let live = Live::with(without).await;
    let mut budgets = BudgetsClient::new(live.channel().await);
    let mut health = HealthClient::new(live.channel().await);
    let asked = || HealthCheckRequest { service: "admittance.v1.Budgets".into() };
    let charges = vec![Charge { policy: "b".into(), key: "k".into(), units: Some(4) }];
    let reserve = || ReserveRequest { charges: charges.clone(), ..ReserveRequest::default() };
    for (policies, is_there) in [(with, true), (without, false), (with, true)] {
        let config = Config { load: live::OFF, ..config(policies) };
        live.service.reload(&config).await.unwrap();
        let found = health.check(asked()).await;
        assert_eq!(found.is_ok(), is_there, "{found:?}");
        let reserved = budgets.reserve(reserve()).await;
        match is_there {
            true => assert!(reserved.is_ok(), "{reserved:?}"),
            // What was reserved can still be settled, so the service is there.
            false => assert_eq!(reserved.unwrap_err().code(), Code::NotFound),
        }
    }
    live.stop().await.unwrap().unwrap();
}

#[tokio::test]
async fn learned_prices_and_counts_outlive_a_change() {
    let with = |more: &str| {
        format!(
            "limiters: {{ w: {{ strategy: gcra, limit: 9, period: 1h, \
             joint: {{ prices: {{ rate: 0.5 }} }}{more} }} }}"
        )
    };
    let service = here(&with(""));
    assert!(service.admit("w", "k").await.unwrap().decision.is_admit());
    let cheap = Work { value: Some(0.1), ..Work::new("w", "k") };
    assert!(!service.admit_work(&cheap).await.unwrap().decision.is_admit());
    service.reload(&config(&with(", fail: closed"))).await.unwrap();
    let stats = service.policy("w").unwrap().admissions().unwrap();
    assert_eq!((stats.admitted, stats.policy_denied), (1, 1));
}

#[tokio::test]
async fn accounts_of_policies_that_are_gone_are_forgotten_when_no_lease_can_be_open() {
    let clock = clock();
    let policies = |name: u32| {
        format!("limiters: {{ p{name}: {{ tokenBudget: {{ budget: 9, period: 30d }} }} }}")
    };
    let service = Service::new(&config(&policies(0)), Arc::new(clock.clone()));
    for name in 1..50 {
        let policy = format!("p{}", name - 1);
        assert!(service.debit(&policy, "k", Cost::ONE).await.unwrap().decision.is_admit());
        service.reload(&config(&policies(name))).await.unwrap();
        clock.advance(Span::from_secs(600));
    }
    // Ten minutes apart: those of the last hour, and the present one.
    let kept = service.accounts_kept();
    assert!((6..=8).contains(&kept), "{kept} are kept");
}

#[tokio::test]
async fn what_a_removed_policy_was_still_denies_what_its_leases_debit() {
    let service = here("limiters: { t: { tokenBudget: { budget: 10, period: 1h } } }");
    let asked = |units| [Asked { policy: "t", key: "k", units }];
    let reserved = service.reserve(&asked(5), Terms::default(), Expected::default()).await.unwrap();
    let too_much = asked(50);
    // The one that goes beyond is counted whole; those after it are denied.
    assert!(service.debit_lease(&too_much, reserved.lease).await.unwrap().decision.is_admit());
    assert!(!service.debit_lease(&too_much, reserved.lease).await.unwrap().decision.is_admit());
    service.reload(&config("limiters: {}")).await.unwrap();
    assert!(!service.debit_lease(&too_much, reserved.lease).await.unwrap().decision.is_admit());
}
