//! Both doors, field by field: one seeded timeline of every operation through the gRPC door of one
//! service and the HTTP door of its twin, at the same instants.
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use admittance::Span;
use admittance_proto::admissions::admissions_client::AdmissionsClient;
use admittance_proto::admissions::{AdmissionRequest, AxisDecision};
use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::load::load_client::LoadClient;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_proto::{budgets, load, v1};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::live::Live;
use crate::web::Web;

const POLICIES: &str = "
limiters:
  api: { strategy: gcra, limit: 7, period: 10s }
  window: { strategy: fixedWindow, limit: 10, period: 1m }
  bucket: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.3 }
  log: { strategy: slidingWindowLog, limit: 3, period: 20s }
  gate: { concurrency: { minLimit: 2, maxLimit: 2 } }
  all:
    strategy: fixedWindow
    limit: 6
    period: 1m
    concurrency: { minLimit: 3, maxLimit: 3 }
    cost: { budget: 100, period: 1m, leaseTtl: 30s }
    joint: { prices: { cost: 0.01 } }
  tokens: { tokenBudget: { budget: 200, windowMs: 60000, reserve: 30 } }
  two:
    tokenBudget:
      windows:
        minute: { budget: 100, period: 1m, softStop: 10 }
        day: { budget: 500, resetCadence: calendar-day }
";

/// One request, after some time. A lease is said by how many have been given since.
#[derive(Clone, Debug)]
struct Step {
    wait_ms: u64,
    path: &'static str,
    body: Value,
    always_200: bool,
}

fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| step(&mut random)).collect()
}

fn step(random: &mut fastrand::Rng) -> Step {
    // Mostly what can be decided, and little time, so that something denies.
    let rare = random.u8(..20) == 0;
    let rates =
        if rare { ["gate", "nope"].as_slice() } else { &["api", "window", "bucket", "log"] };
    let admits = if rare { ["api"].as_slice() } else { &["gate", "all"] };
    let costs = if rare { ["all", "log"].as_slice() } else { &["tokens", "two"] };
    let key = ["", "ann"][random.usize(..2)];
    let cost = if rare { [-1, i64::MAX, 11] } else { [0, 1, 2] }[random.usize(..3)];
    let rate = rates[random.usize(..rates.len())];
    let admit = admits[random.usize(..admits.len())];
    let lease = random.usize(..4);
    let mut charges = |most: i64| {
        let from = random.usize(..costs.len());
        let charge =
            |policy: &&str| json!({ "policy": policy, "key": key, "units": random.i64(..most) });
        Value::Array(costs[from..].iter().map(charge).collect())
    };
    let charged = charges(60);
    let (path, body) = match random.u8(..18) {
        0..=3 => ("/v1/check", json!({ "policy": rate, "key": key, "cost": cost })),
        4 => {
            let keys: Vec<_> =
                (0..random.usize(..6)).map(|_| random.digit(3).to_string()).collect();
            ("/v1/check-many", json!({ "policy": rate, "keys": keys, "cost": cost }))
        }
        5 => ("/v1/peek", json!({ "policy": rate, "key": key })),
        6 => ("/v1/forecast", json!({ "policy": rate, "key": key, "cost": cost })),
        // Over the public protocol 0 tokens are 1; here they are none.
        7 if cost == 0 => ("/v1/debit", json!({ "policy": "tokens", "key": key })),
        7 => ("/v1/debit", json!({ "policy": "tokens", "key": key, "tokens": cost })),
        8..=10 => {
            let (hold, value) = (random.f64(), random.f64());
            let mut body = json!({ "policy": admit, "key": key, "cost": cost, "hold": hold });
            if random.bool() {
                body["value"] = json!(value);
            }
            (["/v1/admit", "/v1/admit", "/v1/explain"][random.usize(..3)], body)
        }
        11 => ("/v1/release", json!({ "lease_id": lease, "dropped": random.bool() })),
        12 => ("/v1/heartbeat", json!({ "lease_ids": [lease, random.usize(..6)] })),
        13 => ("/v1/reserve", json!({ "charges": charged, "ttl_ms": random.i64(..9_000) })),
        14 => ("/v1/budgets/debit", json!({ "charges": charged, "lease_id": lease })),
        15 => {
            let (unknown, stopped) = (random.bool(), random.bool());
            let body = json!({ "charges": charged, "lease_id": lease, "unknown": unknown,
                "stopped": stopped });
            ("/v1/settle", body)
        }
        16 => ("/v1/budget", json!({ "charges": charged })),
        _ => ("/v1/load", json!({})),
    };
    let wait_ms = if random.u8(..3) == 0 { random.u64(..600) } else { 0 };
    Step { wait_ms, path, body, always_200: random.bool() }
}

/// Leases by the number in which they were given.
#[derive(Default)]
struct Leases(Vec<String>);

impl Leases {
    fn named(&self, number: &Value) -> String {
        let number = number.as_u64().and_then(|number| usize::try_from(number).ok());
        let given = number.and_then(|number| self.0.iter().rev().nth(number)).cloned();
        // As long as a reservation's, so that accounts are asked for it.
        given.unwrap_or_else(|| "0".repeat(32))
    }

    /// The body with the names of this door's leases.
    fn fill(&self, body: &Value) -> Value {
        let mut body = body.clone();
        if let Some(lease) = body.get_mut("lease_id") {
            *lease = json!(self.named(lease));
        }
        if let Some(leases) = body.get_mut("lease_ids").and_then(Value::as_array_mut) {
            leases.iter_mut().for_each(|lease| *lease = json!(self.named(lease)));
        }
        body
    }

    /// The answer with numbers instead of names.
    fn number(&mut self, answer: &mut Value) {
        if let Some(lease) = answer["ok"].get_mut("lease_id") {
            let name = lease.as_str().expect("text").to_owned();
            if !name.is_empty() {
                let known = self.0.iter().position(|known| *known == name);
                let number = known.unwrap_or_else(|| {
                    self.0.push(name);
                    self.0.len() - 1
                });
                *lease = json!(number);
            }
        }
        for ids in ["live_ids", "reclaimed_ids"] {
            if let Some(ids) = answer["ok"].get_mut(ids).and_then(Value::as_array_mut) {
                let place = |id: &Value| self.0.iter().position(|known| json!(known) == *id);
                ids.iter_mut().for_each(|id| *id = json!(place(id)));
            }
        }
    }
}

/// Time passes, and what it ends has ended: the service looks for that by real time, which would be
/// between other requests at each door.
fn pass(live: &Live, step: &Step) {
    live.clock.advance(Span::from_ms(step.wait_ms));
    live.service.sweep();
}

/// A way into a service.
trait Door {
    async fn ask(&mut self, step: &Step) -> Value;
}

struct Http {
    live: Live,
    web: Web,
    leases: Leases,
}

impl Http {
    async fn new() -> Self {
        let live = Live::with(POLICIES).await;
        let web = Web::to(live.address).await;
        Self { live, web, leases: Leases::default() }
    }
}

impl Door for Http {
    async fn ask(&mut self, step: &Step) -> Value {
        pass(&self.live, step);
        let decides = ["/v1/check", "/v1/debit", "/v1/admit", "/v1/reserve", "/v1/budgets/debit"];
        let always_200 = step.always_200 && decides.contains(&step.path);
        let reply = match step.path {
            "/v1/load" => self.web.get(step.path).await,
            path if always_200 => {
                let path = format!("{path}?status=200");
                self.web.post(&path, &self.leases.fill(&step.body)).await
            }
            path => self.web.post(path, &self.leases.fill(&step.body)).await,
        };
        let mut said = reply.json();
        let is_denial = said.get("violated-policies").is_some();
        assert!(!(is_denial && always_200), "{reply:?}");
        let mut answer = if reply.status == 200 || is_denial {
            for of_problem in ["type", "title", "status", "detail", "violated-policies"] {
                said.as_object_mut().expect("an object").remove(of_problem);
            }
            if ["/v1/check", "/v1/peek", "/v1/debit"].contains(&step.path) {
                // The gRPC message has none: it is there when something denied.
                let axis = said.as_object_mut().expect("an object").remove("binding_axis");
                assert_eq!(axis.is_some(), said["decision"]["allowed"] == false, "{reply:?}");
            }
            json!({ "ok": said, "source": reply.header("admittance-source") })
        } else {
            let code = match reply.status {
                400 => Code::InvalidArgument,
                404 => Code::NotFound,
                409 => Code::FailedPrecondition,
                422 => Code::Unimplemented,
                503 => Code::Unavailable,
                other => panic!("{other}: {reply:?}"),
            };
            json!({ "error": format!("{code:?}"), "said": reply.detail() })
        };
        self.leases.number(&mut answer);
        answer
    }
}

struct Grpc {
    live: Live,
    limiter: RateLimiterClient<Channel>,
    admissions: AdmissionsClient<Channel>,
    budgets: BudgetsClient<Channel>,
    load: LoadClient<Channel>,
    leases: Leases,
}

impl Grpc {
    async fn new() -> Self {
        let live = Live::with(POLICIES).await;
        let (channel, leases) = (live.channel().await, Leases::default());
        let limiter = RateLimiterClient::new(channel.clone());
        let admissions = AdmissionsClient::new(channel.clone());
        let (budgets, load) = (BudgetsClient::new(channel.clone()), LoadClient::new(channel));
        Self { live, limiter, admissions, budgets, load, leases }
    }

    /// What the public contract has.
    async fn limited(&mut self, path: &str, body: &Value) -> Option<Result<Value, Status>> {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| body[name].as_i64().unwrap_or_default();
        let (policy, key, cost) = (text("policy"), text("key"), number("cost"));
        let names = |name: &str| serde_json::from_value(body[name].clone()).expect("names");
        let client = &mut self.limiter;
        Some(match path {
            "/v1/check" => client
                .check(v1::CheckRequest { policy, key, cost })
                .await
                .map(|reply| told(reply, |reply| json!({ "decision": decision(reply.decision) }))),
            "/v1/check-many" => {
                let asked = v1::CheckManyRequest { policy, keys: names("keys"), cost };
                let each = |each: Vec<v1::Decision>| -> Vec<_> {
                    each.into_iter().map(|one| decision(Some(one))).collect()
                };
                client
                    .check_many(asked)
                    .await
                    .map(|reply| told(reply, |reply| json!({ "decisions": each(reply.decisions) })))
            }
            "/v1/peek" => client
                .peek(v1::PeekRequest { policy, key })
                .await
                .map(|reply| told(reply, |reply| json!({ "decision": decision(reply.decision) }))),
            "/v1/forecast" => {
                let asked = v1::ForecastRequest { policy, key, cost };
                client
                    .forecast(asked)
                    .await
                    .map(|reply| told(reply, |reply| forecast(reply.forecast)))
            }
            "/v1/debit" => {
                let asked = v1::DebitRequest { policy, key, tokens: number("tokens") };
                client.debit(asked).await.map(|reply| {
                    told(reply, |reply| json!({ "decision": decision(reply.decision) }))
                })
            }
            "/v1/release" => {
                let dropped = body["dropped"].as_bool().unwrap_or_default();
                let asked = v1::ReleaseRequest { lease_id: text("lease_id"), dropped };
                client.release(asked).await.map(|reply| told(reply, |_| json!({})))
            }
            "/v1/heartbeat" => {
                let asked = v1::HeartbeatRequest { lease_ids: names("lease_ids") };
                client.heartbeat(asked).await.map(|reply| {
                    told(
                        reply,
                        |v1::HeartbeatResponse { live_ids, reclaimed_ids, next_deadline }| {
                            json!({ "live_ids": live_ids, "reclaimed_ids": reclaimed_ids,
                            "next_deadline": next_deadline })
                        },
                    )
                })
            }
            _ => return None,
        })
    }

    /// What we have added.
    async fn added(&mut self, path: &str, body: &Value) -> Result<Value, Status> {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| body[name].as_i64().unwrap_or_default();
        let flag = |name: &str| body[name].as_bool().unwrap_or_default();
        let charge = |charge: &Value| budgets::Charge {
            policy: charge["policy"].as_str().unwrap_or_default().to_owned(),
            key: charge["key"].as_str().unwrap_or_default().to_owned(),
            units: charge["units"].as_i64(),
        };
        let charges = body["charges"].as_array().into_iter().flatten().map(charge).collect();
        let work = AdmissionRequest {
            policy: text("policy"),
            key: text("key"),
            cost: number("cost"),
            hold: body["hold"].as_f64().unwrap_or_default(),
            value: body["value"].as_f64(),
        };
        let lease_id = text("lease_id");
        Ok(match path {
            "/v1/admit" => told(self.admissions.admit(work).await?, |reply| {
                let axes: Vec<_> = reply.axes.into_iter().map(axis).collect();
                let mut said = json!({ "decision": over_all(reply.decision), "axes": axes,
                    "policy_denied": reply.policy_denied, "lease_ttl_ms": reply.lease_ttl_ms,
                    "lease_id": reply.lease_id, "lease_expires_at": reply.lease_expires_at });
                unless_empty(&mut said, reply.binding_axis);
                said
            }),
            "/v1/explain" => told(self.admissions.explain(work).await?, |reply| {
                let axes: Vec<_> = reply.axes.into_iter().map(axis).collect();
                let mut said = json!({ "decision": over_all(reply.decision), "axes": axes,
                    "policy_denied": reply.policy_denied });
                unless_empty(&mut said, reply.binding_axis);
                if let Some(worth) = reply.worth {
                    said["worth"] = json!({ "value": worth.value, "price": worth.price });
                }
                reply.wait_ms.into_iter().for_each(|wait| said["wait_ms"] = json!(wait));
                reply.cost_max.into_iter().for_each(|cost| said["cost_max"] = json!(cost));
                said
            }),
            "/v1/reserve" => {
                let ttl_ms = number("ttl_ms");
                let asked = budgets::ReserveRequest { charges, ttl_ms, ..Default::default() };
                told(self.budgets.reserve(asked).await?, |reply| {
                    json!({ "answer": answer(reply.answer), "lease_id": reply.lease_id,
                        "ttl_ms": reply.ttl_ms, "reserved": reply.reserved })
                })
            }
            "/v1/budgets/debit" => {
                let asked = budgets::DebitRequest { charges, lease_id };
                told(self.budgets.debit(asked).await?, |it| json!({ "answer": answer(it.answer) }))
            }
            "/v1/settle" => {
                let (unknown, stopped) = (flag("unknown"), flag("stopped"));
                let asked = budgets::SettleRequest {
                    charges,
                    lease_id,
                    unknown,
                    stopped,
                    ..Default::default()
                };
                told(self.budgets.settle(asked).await?, |it| json!({ "answer": answer(it.answer) }))
            }
            "/v1/budget" => {
                let asked = budgets::LookRequest { charges };
                told(self.budgets.look(asked).await?, |it| json!({ "answer": answer(it.answer) }))
            }
            "/v1/load" => told(self.load.status(load::LoadStatusRequest {}).await?, standing),
            other => panic!("{other}"),
        })
    }
}

impl Door for Grpc {
    async fn ask(&mut self, step: &Step) -> Value {
        pass(&self.live, step);
        let body = self.leases.fill(&step.body);
        let said = match self.limited(step.path, &body).await {
            Some(said) => said,
            None => self.added(step.path, &body).await,
        };
        let mut answer = said.unwrap_or_else(
            |status| json!({ "error": format!("{:?}", status.code()), "said": status.message() }),
        );
        self.leases.number(&mut answer);
        answer
    }
}

fn told<T>(reply: Response<T>, shown: impl FnOnce(T) -> Value) -> Value {
    let source = reply.metadata().get("admittance-source").map(|it| it.to_str().expect("text"));
    let source = source.unwrap_or_default().to_owned();
    json!({ "ok": shown(reply.into_inner()), "source": source })
}

fn decision(decision: Option<v1::Decision>) -> Value {
    let v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms } =
        decision.expect("a decision");
    json!({ "allowed": allowed, "limit": limit, "remaining": remaining, "reset_at": reset_at,
        "retry_after_ms": retry_after_ms })
}

fn forecast(forecast: Option<v1::Forecast>) -> Value {
    let v1::Forecast { spendable_now, next_replenish_at, full_at } = forecast.expect("one");
    json!({ "forecast": { "spendable_now": spendable_now, "next_replenish_at": next_replenish_at,
        "full_at": full_at } })
}

fn over_all(decided: Option<AxisDecision>) -> Value {
    let AxisDecision { allowed, limit, remaining, reset_at, retry_after_ms, .. } =
        decided.expect("a decision");
    decision(Some(v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms }))
}

fn axis(said: AxisDecision) -> Value {
    let name = said.axis.clone();
    let mut said = over_all(Some(said));
    said["axis"] = json!(name);
    said
}

fn unless_empty(said: &mut Value, axis: String) {
    if !axis.is_empty() {
        said["binding_axis"] = json!(axis);
    }
}

fn answer(answer: Option<budgets::Answer>) -> Value {
    let answer = answer.expect("an answer");
    let flow = ["", "go_on", "soft_stop", "stop"][usize::try_from(answer.flow).expect("known")];
    let accounts: Vec<_> = answer.accounts.iter().map(account).collect();
    json!({ "allowed": answer.allowed, "flow": flow, "retry_after_ms": answer.retry_after_ms,
        "remaining": answer.remaining, "binding": answer.binding, "accounts": accounts,
        "reclaimed": answer.reclaimed })
}

fn account(account: &budgets::Account) -> Value {
    let mut said = json!({ "policy": account.policy, "key": account.key, "window": account.window,
        "limit": account.limit, "spent": account.spent, "reserved": account.reserved,
        "debt": account.debt, "left": account.left, "open_leases": account.open_leases,
        "window_end": account.window_end, "unspent": account.unspent,
        "allowed": account.allowed, "retry_after_ms": account.retry_after_ms });
    if let Some(budgets::Settlement { kind, returned, debt }) = account.settlement {
        let kind = ["", "now", "before", "unknown"][usize::try_from(kind).expect("known")];
        said["settlement"] = json!({ "kind": kind, "returned": returned, "debt": debt });
    }
    said
}

fn standing(status: load::LoadStatusResponse) -> Value {
    assert!(!status.enabled && status.classes.is_empty(), "these services shed nothing");
    json!({ "enabled": false, "percent": status.percent, "allowed": 0, "rejected": 0,
        "classes": [], "step": 0, "average_us": 0, "spread_us": 0, "waiting": 0,
        "probes_sent": 0, "probes_finished": 0, "probes_lost": 0, "adjustments": 0, "moves": 0,
        "stuck_workers": 0 })
}

/// When a permit may be free is estimated from how long work really took, which differs.
fn without_estimate(said: &mut Value) {
    let reply = &mut said["ok"];
    let mut axes = reply.get_mut("axes").and_then(Value::as_array_mut).into_iter().flatten();
    let full = axes.find(|said| said["axis"] == "concurrency" && said["allowed"] == false);
    let Some(axis) = full else { return };
    axis["retry_after_ms"] = json!("estimated");
    reply["decision"]["retry_after_ms"] = json!("estimated");
    reply.get_mut("wait_ms").into_iter().for_each(|wait| *wait = json!("estimated"));
}

/// The first step that two doors answer differently, and how many were answered, denied, refused.
async fn compared(
    one: &mut impl Door,
    other: &mut impl Door,
    steps: &[Step],
) -> (Option<String>, [usize; 3]) {
    let mut tally = [0; 3];
    for (number, step) in steps.iter().enumerate() {
        let (mut said, mut also) = (one.ask(step).await, other.ask(step).await);
        without_estimate(&mut said);
        without_estimate(&mut also);
        if said != also {
            return (Some(format!("step {number}: {step:?}\n{said:#}\n{also:#}")), tally);
        }
        let denied = [&said["ok"]["decision"], &said["ok"]["answer"]];
        let is_denied = denied.iter().any(|said| said["allowed"] == false);
        tally[if said["ok"].is_null() { 2 } else { usize::from(is_denied) }] += 1;
    }
    (None, tally)
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("replay with ADMITTANCE_SEED={seed}");
    seed
}

#[tokio::test]
async fn both_doors_answer_alike() {
    let times = if std::env::var_os("ADMITTANCE_LONG").is_some() { 10 } else { 1 };
    let steps = steps(seed(), 2_000 * times);
    let (found, tally) = compared(&mut Grpc::new().await, &mut Http::new().await, &steps).await;
    assert_eq!(found, None);
    println!("admitted, denied, refused: {tally:?}");
    assert!(tally.iter().all(|count| *count > steps.len() / 100), "{tally:?}");
}

/// An HTTP door that gets something wrong.
struct Broken {
    door: Http,
    asked: Spoil<Step>,
    said: Spoil<Value>,
}

type Spoil<T> = fn(&mut T);

impl Door for Broken {
    async fn ask(&mut self, step: &Step) -> Value {
        let mut step = step.clone();
        (self.asked)(&mut step);
        let mut said = self.door.ask(&step).await;
        (self.said)(&mut said);
        said
    }
}

#[tokio::test]
async fn a_door_that_answers_otherwise_is_caught() {
    let right: (Spoil<Step>, Spoil<Value>) = (|_| {}, |_| {});
    let mutants: [(&str, Spoil<Step>, Spoil<Value>); 9] = [
        (
            "forgets the cost",
            |step| _ = step.body.as_object_mut().map(|it| it.remove("cost")),
            right.1,
        ),
        (
            "keeps leases",
            |step| {
                if step.path == "/v1/release" {
                    step.body["lease_id"] = json!(1_000);
                }
            },
            right.1,
        ),
        (
            "turns batches round",
            |step| {
                if let Some(keys) = step.body.get_mut("keys").and_then(Value::as_array_mut) {
                    keys.reverse();
                }
            },
            right.1,
        ),
        (
            "settles with nothing",
            |step| {
                if step.path == "/v1/settle" {
                    step.body["charges"][0]["units"] = json!(0);
                }
            },
            right.1,
        ),
        (
            "forgets what is worth",
            |step| _ = step.body.as_object_mut().map(|it| it.remove("value")),
            right.1,
        ),
        ("tells seconds", right.0, |said| {
            if let Some(wait) = said["ok"]["decision"]["retry_after_ms"].as_i64() {
                said["ok"]["decision"]["retry_after_ms"] = json!(wait / 1_000 * 1_000);
            }
        }),
        ("does not say which axis", right.0, |said| {
            if let Some(said) = said["ok"].as_object_mut() {
                said.remove("binding_axis");
            }
        }),
        ("names no source", right.0, |said| {
            if said["ok"].is_object() {
                said["source"] = json!("store");
            }
        }),
        ("says one thing for another", right.0, |said| {
            if said["error"] == "Unimplemented" {
                said["error"] = json!("InvalidArgument");
            }
        }),
    ];
    let steps = steps(seed(), 2_000);
    let mut whole = Broken { door: Http::new().await, asked: right.0, said: right.1 };
    let (found, _) = compared(&mut Grpc::new().await, &mut whole, &steps).await;
    assert_eq!(found, None, "nothing is wrong with this one");
    for (name, asked, said) in mutants {
        let mut broken = Broken { door: Http::new().await, asked, said };
        let (found, _) = compared(&mut Grpc::new().await, &mut broken, &steps).await;
        assert!(found.is_some(), "{name} is not caught");
    }
}
