//! All that looks at decisions, at once: the monitor with those who watch it, spans and logs that
//! somebody collects, metrics that somebody reads, candidates beside every policy. Nothing that is
//! answered or kept differs from a service where all of it is off.

use std::sync::Arc;

use admittance::budget::LeaseKey;
use admittance::{
    Axis, Clock as _, Cost, Decision, GuardSettings, ManualClock, Memory, Micros, Span, Verdicts,
};
use admittance_proto::v1;
use admittance_proto::v1::monitor_client::MonitorClient;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{
    AnyStore, Asked, Config, DenialLog, Expected, Fail, MetricForm, Service, ShadowConfig, Terms,
    Work, exposition_of,
};
use tonic::transport::Channel;

use crate::live::{self, Live, START_US};
use crate::seen::Collector;

/// Every kind of policy, each with another beside it, and one that refuses nobody.
const POLICIES: &str = "
limiters:
  gcra: { strategy: gcra, limit: 5, period: 1s, shadow: [gcra-b, gcra-c] }
  gcra-b: { strategy: gcra, limit: 5, period: 1s, burst: 2 }
  gcra-c: { strategy: fixedWindow, limit: 9, period: 1s }
  bucket: { strategy: tokenBucket, capacity: 6, refillPerSec: 4, shadow: [bucket-b] }
  bucket-b: { strategy: tokenBucket, capacity: 3, refillPerSec: 4 }
  window: { strategy: fixedWindow, limit: 6, period: 1s, shadow: [window-b] }
  window-b: { strategy: fixedWindow, limit: 4, period: 2s }
  sliding: { strategy: slidingWindow, limit: 6, period: 1s, shadow: [sliding-b] }
  sliding-b: { strategy: slidingWindow, limit: 4, period: 2s }
  log: { strategy: slidingWindowLog, limit: 4, period: 1s, shadow: [log-b] }
  log-b: { strategy: tokenBucket, capacity: 3, refillPerSec: 4 }
  month: { strategy: quota, limit: 90, resetCadence: calendar-month, shadow: [month-b] }
  month-b: { strategy: quota, limit: 30, resetCadence: calendar-day }
  tenants: { fairEscrow: { limit: 12, period: 1s }, shadow: [tenants-b] }
  tenants-b: { fairEscrow: { limit: 7, period: 1s } }
  budget: { BUDGET: { budget: 60, windowMs: 2000 }, shadow: [budget-b] }
  budget-b: { BUDGET: { budget: 40, windowMs: 3000 } }
  gate: { concurrency: { minLimit: 3, maxLimit: 3 }, leaseTtl: 2s, shadow: [gate-b] }
  gate-b: { concurrency: { minLimit: 2, maxLimit: 2 } }
  all:
    strategy: gcra
    limit: 9
    period: 1s
    concurrency: { minLimit: 6, maxLimit: 6 }
    cost: { budget: 90, windowMs: 2000 }
    leaseTtl: 2s
    shadow: [all-b]
  all-b:
    strategy: gcra
    limit: 7
    period: 1s
    concurrency: { minLimit: 5, maxLimit: 5 }
    cost: { budget: 70, windowMs: 2000 }
  axes:
    strategy: fixedWindow
    limit: 9
    period: 1s
    cost: { budget: 50, windowMs: 1000 }
    atomicity: perAxis
    shadow: [axes-b]
  axes-b: { strategy: fixedWindow, limit: 9, period: 1s, cost: { budget: 30, windowMs: 1000 } }
  priced:
    strategy: fixedWindow
    limit: 5
    period: 1s
    joint: { prices: { rate: 2 } }
    shadow: [priced-b]
  priced-b: { strategy: fixedWindow, limit: 5, period: 1s, joint: { prices: { rate: 1 } } }
  tried: { strategy: gcra, limit: 2, period: 1s, shadow: true }
";
const LIMITERS: [&str; 8] =
    ["tenants", "gcra", "bucket", "window", "sliding", "log", "month", "tried"];
const ADMITTERS: [&str; 4] = ["gate", "all", "axes", "priced"];
const KEYS: [&str; 3] = ["ann", "bob", "cid"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Here,
    Store,
}

/// Who is asked there. Tenants that share a store lease from it by the clock that the machine has
/// had since its start, so that their answers are never the same twice.
fn limiters(at: Where) -> &'static [&'static str] {
    match at {
        Where::Here => &LIMITERS,
        Where::Store => &LIMITERS[1..],
    }
}

/// Who looks, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looking {
    Nobody,
    All,
    /// A mutant: this policy is among its own candidates, so it is charged once more.
    ChargesThrough(&'static str),
    /// A mutant: who looks at the monitor asks a policy too, now and then.
    Asks,
}

fn config(at: Where, looking: Looking) -> Config {
    let kind = if at == Where::Here { "tokenBudget" } else { "fleetBudget" };
    let mut config = live::config(&POLICIES.replace("BUDGET", kind), Fail::Open);
    for policy in &mut config.policies {
        match (looking, &mut policy.shadow) {
            (Looking::Nobody, shadow @ ShadowConfig::Beside(_)) => *shadow = ShadowConfig::Off,
            (Looking::ChargesThrough(name), ShadowConfig::Beside(beside))
                if policy.name == name =>
            {
                *beside = vec![name.to_owned()];
            }
            _ => {}
        }
    }
    config
}

fn service(at: Where, looking: Looking, clock: &ManualClock) -> Service {
    let config = config(at, looking);
    let shared: Arc<ManualClock> = Arc::new(clock.clone());
    let service = match at {
        Where::Here => Service::new(&config, shared),
        Where::Store => {
            let settings = GuardSettings { clock: shared, ..GuardSettings::default() };
            let store = AnyStore::fused(Memory::new(clock.clone()));
            Service::on_store(&config, &store, &settings).unwrap()
        }
    };
    match looking {
        Looking::Nobody => service.with_monitor(false),
        _ => service.with_denial_log(DenialLog { per_second: 1_000, with_keys: true }),
    }
}

/// Whose calls are compared, and what they hold.
struct Caller {
    at: Where,
    live: Live,
    door: RateLimiterClient<Channel>,
    rng: fastrand::Rng,
    /// Leases of admissions: their names, policies and keys.
    leases: Vec<(String, &'static str, &'static str)>,
    reserved: Vec<(LeaseKey, &'static str)>,
}

impl Caller {
    async fn new(at: Where, looking: Looking, seed: u64) -> Self {
        let clock = ManualClock::at(Micros::from_epoch_us(START_US).unwrap());
        let service = Arc::new(service(at, looking, &clock));
        let live = Live::of(service, clock).await;
        let door = live.client().await;
        let rng = fastrand::Rng::with_seed(seed);
        Self { at, live, door, rng, leases: Vec::new(), reserved: Vec::new() }
    }

    /// One call, over the door or not; its answer in full, but for names of leases and for what is
    /// guessed from real time.
    async fn call(&mut self) -> String {
        let rng = &mut self.rng;
        let key = KEYS[rng.usize(..KEYS.len())];
        let limiters = limiters(self.at);
        let policy = limiters[rng.usize(..limiters.len())];
        let cost = Cost::new(rng.u64(1..=3)).unwrap();
        let is_over_door = rng.bool();
        match rng.u8(..20) {
            0..6 if is_over_door => self.check_over_door(policy, key, cost).await,
            0..6 => {
                let said = self.live.service.check_answer(policy, key, cost).await;
                format!("{said:?}")
            }
            6 | 7 => {
                let keys = (0..rng.usize(..5)).map(|place| KEYS[place % 3].to_owned()).collect();
                self.batch(policy, keys, cost, is_over_door).await
            }
            8 | 9 => self.debit(key, is_over_door).await,
            10..14 => {
                let policy = ADMITTERS[rng.usize(..ADMITTERS.len())];
                self.admit(policy, key, is_over_door).await
            }
            14 | 15 => self.release(is_over_door).await,
            16 => self.heartbeat().await,
            17 => self.reserve(key).await,
            18 => self.told().await,
            _ => {
                let service = &self.live.service;
                format!("{} {}", service.leases_held(), service.leases_reclaimed())
            }
        }
    }

    async fn check_over_door(&mut self, policy: &str, key: &str, cost: Cost) -> String {
        let (policy, key) = (policy.to_owned(), key.to_owned());
        let cost = i64::try_from(cost.units()).unwrap();
        match self.rng.u8(..8) {
            0 => {
                let ask = v1::PeekRequest { policy, key };
                said(self.door.peek(ask).await)
            }
            1 => {
                let ask = v1::ForecastRequest { policy, key, cost };
                said(self.door.forecast(ask).await)
            }
            _ => {
                let ask = v1::CheckRequest { policy, key, cost };
                said(self.door.check(ask).await)
            }
        }
    }

    async fn batch(
        &mut self,
        policy: &str,
        keys: Vec<String>,
        cost: Cost,
        is_over_door: bool,
    ) -> String {
        if !is_over_door {
            let said = self.live.service.check_many_answer(policy, &keys, cost).await;
            return format!("{said:?}");
        }
        let (policy, cost) = (policy.to_owned(), i64::try_from(cost.units()).unwrap());
        said(self.door.check_many(v1::CheckManyRequest { policy, keys, cost }).await)
    }

    async fn debit(&mut self, key: &str, is_over_door: bool) -> String {
        let units = self.rng.u32(1..20);
        if !is_over_door {
            let units = Cost::new(units.into()).unwrap();
            return format!("{:?}", self.live.service.debit_answer("budget", key, units).await);
        }
        let (policy, key) = ("budget".to_owned(), key.to_owned());
        said(self.door.debit(v1::DebitRequest { policy, key, tokens: units.into() }).await)
    }

    async fn admit(
        &mut self,
        policy: &'static str,
        key: &'static str,
        is_over_door: bool,
    ) -> String {
        let (units, value) = (self.rng.u32(1..=20), self.rng.u8(..4));
        if is_over_door {
            let (cost, value) = (units.into(), value.into());
            let ask =
                v1::AdmitRequest { policy: policy.into(), key: key.into(), cost, hold: 1, value };
            let reply = self.door.admit(ask).await.unwrap();
            let metadata = format!("{:?}", reply.metadata().get("admittance-shadow"));
            let mut reply = reply.into_inner();
            let lease = std::mem::take(&mut reply.lease_id);
            if reply.binding_axis == Axis::Concurrency.name()
                && let Some(decision) = &mut reply.decision
            {
                // How long to wait for a permit is guessed from how long work really takes.
                decision.retry_after_ms = 0;
            }
            let held = (!lease.is_empty()).then_some((lease, policy, key));
            let said = format!("{reply:?} {metadata} {}", held.is_some());
            self.leases.extend(held);
            return said;
        }
        let (cost, value) = (Cost::new(units.into()).unwrap(), Some(f64::from(value)));
        let work = Work { cost, value, ..Work::new(policy, key) };
        let mut admitted = self.live.service.admit_work(&work).await.unwrap();
        let lease = admitted.lease.take();
        if admitted.binding == Some(Axis::Concurrency) {
            (admitted.decision, admitted.verdicts) = (Decision::NEUTRAL, Verdicts::NONE);
        }
        let said = format!("{admitted:?} {:?}", lease.as_ref().map(|lease| lease.until));
        self.leases.extend(lease.map(|lease| (lease.id, policy, key)));
        said
    }

    async fn release(&mut self, is_over_door: bool) -> String {
        if self.leases.is_empty() {
            return String::new();
        }
        let (lease_id, ..) = self.leases.swap_remove(self.rng.usize(..self.leases.len()));
        let dropped = self.rng.bool();
        match is_over_door {
            true => said(self.door.release(v1::ReleaseRequest { lease_id, dropped }).await),
            false => format!("{:?}", self.live.service.release(&lease_id, dropped).await),
        }
    }

    async fn heartbeat(&mut self) -> String {
        let ids = self.leases.iter().map(|lease| lease.0.clone()).collect();
        let heard = self.live.service.heartbeat(ids).await.unwrap();
        self.leases.retain(|(id, ..)| heard.live.contains(id));
        format!("{} {} {:?}", heard.live.len(), heard.reclaimed.len(), heard.next_deadline)
    }

    async fn reserve(&mut self, key: &'static str) -> String {
        let asked = [Asked { policy: "budget", key, units: self.rng.u64(1..30) }];
        let service = &self.live.service;
        let said = service.reserve(&asked, Terms::default(), Expected::default()).await.unwrap();
        self.reserved.extend(said.lease.map(|lease| (lease, key)));
        format!("{:?} {:?} {:?}", said.costs, said.ttl, said.units)
    }

    /// Says what work has cost, of a reservation or of an admission, before its end or at it.
    async fn told(&mut self) -> String {
        let admitted = self.leases.iter().filter(|lease| ["all", "axes"].contains(&lease.1));
        let admitted = admitted.map(|(id, policy, key)| (code(id), *policy, *key));
        let reserved = self.reserved.iter().map(|(lease, key)| (*lease, "budget", *key));
        let all: Vec<_> = admitted.chain(reserved).collect();
        if all.is_empty() {
            return String::new();
        }
        let (lease, policy, key) = all[self.rng.usize(..all.len())];
        let asked = [Asked { policy, key, units: self.rng.u64(1..20) }];
        match self.rng.bool() {
            true => format!("{:?}", self.live.service.debit_lease(&asked, Some(lease)).await),
            false => {
                let settled = self.live.service.settle(&asked, lease, true, Expected::default());
                format!("{:?}", settled.await)
            }
        }
    }

    /// What the service keeps, of every policy that decides and every key.
    async fn kept(&self) -> Vec<String> {
        let service = &self.live.service;
        let mut kept = vec![format!("{} {}", service.leases_held(), service.leases_reclaimed())];
        for key in KEYS {
            for policy in LIMITERS {
                let forecast = service.forecast(policy, key, Cost::ONE).await;
                kept.push(format!("{:?} {forecast:?}", service.peek(policy, key).await));
            }
            for policy in ["budget", "all", "axes"] {
                let asked = [Asked { policy, key, units: 0 }];
                kept.push(format!("{:?}", service.budget(&asked).await));
            }
        }
        for policy in ADMITTERS.into_iter().chain(LIMITERS) {
            let policy = service.policy(policy).unwrap();
            let in_flight = policy.gate().map(|gate| gate.stats().in_flight);
            kept.push(format!("{:?} {in_flight:?}", policy.admissions()));
        }
        kept
    }
}

fn said<T: std::fmt::Debug>(reply: Result<tonic::Response<T>, tonic::Status>) -> String {
    match reply {
        Ok(reply) => {
            let shadow = format!("{:?}", reply.metadata().get("admittance-shadow"));
            format!("{:?} {shadow}", reply.into_inner())
        }
        Err(status) => format!("{:?} {}", status.code(), status.message()),
    }
}

/// The part of a lease's name that accounts know it by.
fn code(id: &str) -> LeaseKey {
    LeaseKey(u128::from_str_radix(&id[id.len() - 32..], 16).unwrap())
}

/// Who watches the monitor, and reads its snapshots and the metrics.
struct Watchers {
    monitor: MonitorClient<Channel>,
    _unread: tonic::Streaming<v1::WatchResponse>,
    reading: tokio::task::JoinHandle<()>,
}

impl Watchers {
    async fn of(live: &Live) -> Self {
        let mut monitor = MonitorClient::connect(live.url()).await.unwrap();
        let unread = monitor.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
        let gcra = v1::WatchRequest { policy: "gcra".into() };
        let mut read = monitor.watch(gcra).await.unwrap().into_inner();
        let reading = tokio::spawn(async move { while let Ok(Some(_)) = read.message().await {} });
        Self { monitor, _unread: unread, reading }
    }

    async fn look(&mut self, service: &Service) {
        let snapshot = self.monitor.get_snapshot(v1::GetSnapshotRequest {}).await.unwrap();
        assert!(snapshot.into_inner().snapshot.is_some());
        assert!(!exposition_of(service, MetricForm::OpenMetrics).is_empty());
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// All that was answered along a timeline, and what is kept at its end; up to the first answer that
/// is not the expected one.
async fn timeline(
    (at, looking): (Where, Looking),
    (seed, calls): (u64, usize),
    expected: Option<&[String]>,
) -> Vec<String> {
    let is_looked_at = looking != Looking::Nobody;
    // Spans are made only where somebody wants them.
    let collector = is_looked_at.then(Collector::start);
    let mut caller = Caller::new(at, looking, seed).await;
    let mut watchers = match is_looked_at {
        true => Some(Watchers::of(&caller.live).await),
        false => None,
    };
    let service = Arc::clone(&caller.live.service);
    let mut answers = Vec::with_capacity(calls);
    for call in 0..calls {
        answers.push(caller.call().await);
        if expected.is_some_and(|expected| expected[call] != answers[call]) {
            return answers;
        }
        if caller.rng.u8(..3) == 0 {
            caller.live.clock.advance(Span::from_us(caller.rng.u64(..300_000)));
            // At once: the service sweeps by itself too, by a clock that is not the test's.
            service.sweep();
        }
        // Asks of candidates in a store find the store as it was, or as it is later.
        if caller.rng.bool() {
            service.shadows_told().await;
        }
        if let Some(watchers) = watchers.as_mut().filter(|_| call % 40 == 0) {
            watchers.look(&service).await;
        }
        if looking == Looking::Asks && call % 40 == 0 {
            let _ = service.check("window", "ann", Cost::ONE).await.unwrap();
        }
    }
    service.shadows_told().await;
    service.all_told().await;
    answers.push(format!("{:?}", caller.live.clock.now()));
    answers.extend(caller.kept().await);
    if let Some((collector, guard)) = collector {
        drop(guard);
        let collected = collector.taken();
        let named = |name: &str| collected.spans.values().any(|span| span["name"] == name);
        assert!(named("admittance.check") && named("admittance.admit"), "spans are made");
        assert!(!collected.events.is_empty(), "denials are logged");
    }
    if looking == Looking::All {
        are_asked(&service, at);
    }
    answers
}

/// Every candidate has seen something, and none was lost.
fn are_asked(service: &Service, at: Where) {
    let mut candidates = 0;
    let unasked = LIMITERS.iter().filter(|name| !limiters(at).contains(name)).count();
    for policy in service.policies().iter().filter(|it| at == Where::Here || it.name() != "tenants")
    {
        for counts in policy.shadowed().unwrap_or_default().candidates {
            assert_eq!((counts.dropped, counts.failed), (0, 0), "{counts:?}");
            assert!(counts.both_admit > 0, "{counts:?}");
            candidates += 1;
        }
    }
    assert_eq!(candidates + unasked, 13);
}

/// Where a timeline differs first from one that nobody looks at.
async fn difference(
    (at, looking): (Where, Looking),
    (seed, calls): (u64, usize),
    alone: &[String],
) -> Option<String> {
    let seen = timeline((at, looking), (seed, calls), Some(alone)).await;
    let place = (0..alone.len()).find(|&place| seen.get(place) != alone.get(place))?;
    let seen = seen.get(place);
    Some(format!("{at:?}, seed {seed}, call {place}:\n{}\n{seen:?}", alone[place]))
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(31);
    println!("ADMITTANCE_SEED={seed}");
    seed
}

#[tokio::test]
async fn all_that_looks_at_once_changes_no_field_of_any_answer() {
    let rounds = if std::env::var_os("ADMITTANCE_LONG").is_some() { 30 } else { 3 };
    let seed = seed();
    for seed in seed..seed + rounds {
        let run = (seed, 2_000);
        for at in [Where::Here, Where::Store] {
            let alone = timeline((at, Looking::Nobody), run, None).await;
            assert_eq!(difference((at, Looking::All), run, &alone).await, None);
        }
    }
}

#[tokio::test]
async fn a_look_that_changes_anything_is_caught() {
    let run = (seed(), 600);
    for at in [Where::Here, Where::Store] {
        let decides = limiters(at).iter().filter(|name| **name != "tried");
        let decides: Vec<_> = decides.chain(&ADMITTERS).chain(&["budget"]).collect();
        let alone = timeline((at, Looking::Nobody), run, None).await;
        let through = decides.iter().map(|policy| Looking::ChargesThrough(policy));
        for looking in through.chain([Looking::Asks]) {
            let found = difference((at, looking), run, &alone).await;
            assert!(found.is_some(), "{at:?} {looking:?}");
        }
    }
}
