//! The HTTP door, over a live socket: what it answers, and how it refuses.

use std::sync::Arc;

use admittance::http::Fields;
use admittance::{ManualClock, Micros, Span};
use admittance_server::{BATCH_MAX, DoorSecret, Doors, Fail, KEY_MAX, MESSAGE_MAX, Service};
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::live::{self, Live, START_US};
use crate::web::{Reply, Web, documented};

const POLICIES: &str = "
limiters:
  api: { strategy: gcra, limit: 5, period: 1h }
  gate: { concurrency: { minLimit: 1, maxLimit: 1 } }
  both: { strategy: fixedWindow, limit: 2, period: 1m, concurrency: { minLimit: 9, maxLimit: 9 } }
  tokens: { tokenBudget: { budget: 100, windowMs: 60000 } }
  'naïve': { strategy: gcra, limit: 1, period: 1h }
";

const START_MS: u64 = START_US.div_ceil(1_000);

#[tokio::test]
async fn a_check_is_answered_with_its_decision_and_the_fields_of_the_draft() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let reply = web.post("/v1/check", &json!({ "policy": "api", "key": "k" })).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    let decision = json!({ "allowed": true, "limit": 5, "remaining": 4,
        "reset_at": START_MS + 720_000, "retry_after_ms": 0 });
    assert_eq!(reply.json(), json!({ "decision": decision }));
    assert_eq!(reply.header("ratelimit-policy"), r#""api";q=5;w=3600"#);
    assert_eq!(reply.header("ratelimit"), r#""api";r=4;t=720"#);
    for absent in ["retry-after", "x-ratelimit-limit", "ratelimit-limit", "admittance-source"] {
        assert_eq!(reply.header(absent), "", "{absent}");
    }
}

#[tokio::test]
async fn a_denial_is_429_with_a_problem_that_has_the_whole_answer() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let ask = json!({ "policy": "api", "key": "k", "cost": 5 });
    assert_eq!(web.post("/v1/check", &ask).await.status, 200);
    let denied = web.post("/v1/check", &ask).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, "3600"));
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(denied.header("ratelimit"), r#""api";r=0;t=3600"#);
    let decision = json!({ "allowed": false, "limit": 5, "remaining": 0,
        "reset_at": START_MS + 3_600_000, "retry_after_ms": 3_600_000 });
    let wanted = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "detail": "denied by rate; ask again in 3600000 ms",
        "violated-policies": ["api"],
        "binding_axis": "rate",
        "decision": decision,
    });
    assert_eq!(denied.json(), wanted);
    // Who wants a reply gets one.
    let reply = web.post("/v1/check?status=200", &ask).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    assert_eq!(reply.json(), json!({ "decision": decision, "binding_axis": "rate" }));
    assert_eq!(reply.header("retry-after"), "");
    // What only looks is answered.
    let look = web.post("/v1/peek", &json!({ "policy": "api", "key": "k" })).await;
    assert_eq!((look.status, &look.json()["decision"]["allowed"]), (200, &json!(false)));
    assert_eq!(look.header("ratelimit"), r#""api";r=0;t=720"#);
    // The wait is the truth.
    live.clock.advance(Span::from_ms(3_599_999));
    assert_eq!(web.post("/v1/check", &ask).await.status, 429);
    live.clock.advance(Span::from_ms(1));
    assert_eq!(web.post("/v1/check", &ask).await.status, 200);
}

#[tokio::test]
async fn what_never_fits_says_no_time_to_come_back() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let never = web.post("/v1/check", &json!({ "policy": "api", "key": "k", "cost": 6 })).await;
    assert_eq!((never.status, never.header("retry-after")), (429, ""));
    assert_eq!(never.detail(), "denied by rate; waiting does not help");
    assert_eq!(never.json()["decision"]["retry_after_ms"], 9_007_199_254_740_991_i64);
}

#[tokio::test]
async fn an_admission_tells_each_axis_and_permits_that_are_out_are_503() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let ask = json!({ "policy": "gate", "key": "k" });
    let admitted = web.post("/v1/admit", &ask).await;
    let lease = admitted.json()["lease_id"].clone();
    assert_eq!(
        (admitted.status, admitted.json()["axes"][0]["axis"].clone()),
        (200, json!("concurrency"))
    );
    let policy = r#""gate";q=1;qu="concurrent-requests""#;
    assert_eq!(admitted.header("ratelimit-policy"), policy);
    let denied = web.post("/v1/admit", &ask).await;
    assert_eq!((denied.status, denied.json()["binding_axis"].clone()), (503, json!("concurrency")));
    let kind = denied.json()["type"].as_str().expect("a type").to_owned();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
    assert_eq!(denied.json()["lease_id"], "");
    let heard = web.post("/v1/heartbeat", &json!({ "leaseIds": [lease, "nobody's"] })).await;
    assert_eq!(heard.json()["live_ids"], json!([lease]));
    assert_eq!(heard.json()["reclaimed_ids"], json!(["nobody's"]));
    let released = web.post("/v1/release", &json!({ "lease_id": lease })).await;
    assert_eq!((released.status, released.json()), (200, json!({})));
    assert_eq!(web.post("/v1/admit", &ask).await.status, 200);

    let ask = json!({ "policy": "both", "key": "k" });
    for _ in 0..2 {
        assert_eq!(web.post("/v1/admit", &ask).await.status, 200);
    }
    let denied = web.post("/v1/admit", &ask).await;
    assert_eq!(
        (denied.status, denied.json()["violated-policies"].clone()),
        (429, json!(["both/rate"]))
    );
    let told = denied.header("ratelimit");
    assert!(told.contains(r#""both/concurrency";r="#), "{told}");
    assert!(told.contains(r#""both/rate";r=0;t="#), "{told}");
}

#[tokio::test]
async fn a_budget_is_reserved_debited_and_settled() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let charge = |units: u64| json!([{ "policy": "tokens", "key": "k", "units": units }]);
    let reserved = web.post("/v1/reserve", &json!({ "charges": charge(60) })).await;
    assert_eq!((reserved.status, reserved.json()["reserved"].clone()), (200, json!([60])));
    let policy = r#""tokens";q=100;qu="admittance-units";w=60"#;
    assert_eq!(reserved.header("ratelimit-policy"), policy);
    assert!(reserved.header("ratelimit").starts_with(r#""tokens";r=40;t="#), "{reserved:?}");
    let lease = reserved.json()["lease_id"].clone();
    let denied = web.post("/v1/reserve", &json!({ "charges": charge(60) })).await;
    assert_eq!(
        (denied.status, denied.json()["violated-policies"].clone()),
        (429, json!(["tokens"]))
    );
    assert_eq!(denied.json()["answer"]["accounts"][0]["reserved"], 60);
    let debit = json!({ "policy": "tokens", "key": "k", "tokens": 10, "lease_id": lease });
    let debited = web.post("/v1/debit", &debit).await;
    assert_eq!((debited.status, debited.json()["flow"].clone()), (200, json!("go_on")));
    let debit = json!({ "charges": charge(10), "lease_id": lease });
    let debited = web.post("/v1/budgets/debit", &debit).await;
    assert_eq!(debited.json()["answer"]["accounts"][0]["spent"], 20);
    let unsaid = json!({ "charges": [{ "policy": "tokens", "key": "k" }], "lease_id": lease });
    assert_eq!(web.post("/v1/settle", &unsaid).await.status, 400);
    let stray = json!({ "charges": charge(30), "lease_id": "0".repeat(32) });
    assert_eq!(web.post("/v1/settle", &stray).await.status, 404);
    let settle = json!({ "charges": charge(30), "leaseId": lease });
    let settled = web.post("/v1/settle", &settle).await;
    let settlement = settled.json()["answer"]["accounts"][0]["settlement"].clone();
    assert_eq!(settlement, json!({ "kind": "now", "returned": 30, "debt": 0 }));
    let look = web.post("/v1/budget", &json!({ "charges": charge(0) })).await;
    assert_eq!(look.json()["answer"]["accounts"][0]["left"], 70);
    let debited = web.post("/v1/debit", &json!({ "policy": "tokens", "key": "k" })).await;
    assert_eq!(debited.json()["decision"]["remaining"], 69);
    assert!(debited.json().get("flow").is_none(), "without a lease there is no flow");
    let nothing = json!({ "policy": "tokens", "key": "k", "tokens": 0 });
    assert_eq!(web.post("/v1/debit", &nothing).await.json()["decision"]["remaining"], 69);
    let over = json!({ "policy": "tokens", "key": "k", "tokens": 70 });
    // What was started is finished: the next is denied.
    assert_eq!(web.post("/v1/debit", &over).await.status, 200);
    let denied = web.post("/v1/debit", &over).await;
    assert_eq!((denied.status, denied.json()["binding_axis"].clone()), (429, json!("cost")));
}

/// A path, a body, the status it gets, and a part of what is said.
type Wrong = (&'static str, String, u16, &'static str);

/// What cannot be read.
fn unreadable() -> Vec<Wrong> {
    vec![
        ("/v1/check", String::new(), 400, "the body is empty"),
        ("/v1/check", "{".into(), 400, "EOF while parsing an object at line 1 column 1"),
        ("/v1/check", "{\"policy\": \"api\",\n \"key\": 7}".into(), 400, "line 2 column 9"),
        ("/v1/check", "[]".into(), 400, "line 1 column"),
        ("/v1/check", json!({ "policy": "api" }).to_string(), 400, "missing field `key`"),
        (
            "/v1/check",
            json!({ "polciy": "api", "key": "k" }).to_string(),
            400,
            "did you mean `policy`?",
        ),
        (
            "/v1/reserve",
            json!({ "charges": [{ "policy": "tokens", "key": "k", "unit": 1 }] }).to_string(),
            400,
            "did you mean `units`?",
        ),
        (
            "/v1/check",
            json!({ "policy": "api", "key": "k", "cost": 1.5 }).to_string(),
            400,
            "whole numbers",
        ),
        (
            "/v1/check",
            r#"{"policy":"api","key":"k","cost":9223372036854775808}"#.into(),
            400,
            "whole numbers",
        ),
        (
            "/v1/check",
            r#"{"policy":"api","key":"a","key":"b"}"#.into(),
            400,
            "duplicate field `key`",
        ),
        ("/v1/check", "{\"policy\":\"api\",\"key\":\"\u{1}\"}".into(), 400, "control character"),
    ]
}

/// What can be read, and not be decided.
fn undecidable() -> Vec<Wrong> {
    let long = "k".repeat(KEY_MAX + 1);
    let keys = vec!["k"; BATCH_MAX + 1];
    let two = json!([{ "policy": "tokens", "key": "k" }, { "policy": "tokens", "key": "k" }]);
    vec![
        (
            "/v1/check",
            json!({ "policy": "api", "key": "k", "cost": -1 }).to_string(),
            400,
            "cost is -1",
        ),
        (
            "/v1/check",
            json!({ "policy": "api", "key": "k", "cost": 1_u64 << 53 }).to_string(),
            400,
            "cost is 9007199254740992",
        ),
        ("/v1/check", json!({ "policy": "api", "key": long }).to_string(), 400, "4097 bytes"),
        (
            "/v1/check-many",
            json!({ "policy": "api", "keys": keys }).to_string(),
            400,
            "longer than 10000",
        ),
        (
            "/v1/check",
            json!({ "policy": "nope", "key": "k" }).to_string(),
            404,
            "unknown policy \"nope\"; configured policies",
        ),
        (
            "/v1/check",
            json!({ "policy": "gate", "key": "k" }).to_string(),
            422,
            "policy \"gate\" does not support check",
        ),
        ("/v1/debit", json!({ "policy": "api", "key": "k" }).to_string(), 422, "debit"),
        (
            "/v1/debit",
            json!({ "policy": "tokens", "key": "k", "lease_id": "x" }).to_string(),
            400,
            "lease_id",
        ),
        ("/v1/reserve", json!({ "charges": [] }).to_string(), 400, "0 accounts"),
        ("/v1/budget", json!({ "charges": two }).to_string(), 400, "twice"),
        (
            "/v1/check?status=201",
            json!({ "policy": "api", "key": "k" }).to_string(),
            400,
            "?status=200",
        ),
        (
            "/v1/peek?status=200",
            json!({ "policy": "api", "key": "k" }).to_string(),
            400,
            "nothing to say in a query",
        ),
    ]
}

#[tokio::test]
async fn every_wrong_request_is_told_what_to_do_and_charges_nothing() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    for (path, body, status, said) in unreadable().into_iter().chain(undecidable()) {
        let reply = web.post_text(path, body.clone()).await;
        let shown: String = body.chars().take(60).collect();
        assert_eq!(reply.status, status, "{path} {shown}: {reply:?}");
        assert!(reply.detail().contains(said), "{path} {shown}: {}", reply.detail());
        assert!(reply.detail().len() < 1_000, "what was sent is not sent back whole");
        assert_eq!(reply.header("content-type"), "application/problem+json");
    }
    let left = web.post("/v1/peek", &json!({ "policy": "api", "key": "k" })).await;
    assert_eq!(left.json()["decision"]["remaining"], 5, "nothing was charged");
}

#[tokio::test]
async fn paths_methods_and_types_that_are_not_served_are_refused() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let ask = json!({ "policy": "api", "key": "k" }).to_string();
    let mut send = async |method: Method, path: &str, kind: &str| {
        let mut request = Request::new(Full::from(ask.clone()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        if !kind.is_empty() {
            request.headers_mut().insert("content-type", kind.parse().expect("a type"));
        }
        web.send(request).await
    };
    for path in ["/", "/v1", "/v1/check/", "/v1/Check", "/v2/check", "/favicon.ico", "//v1/check"] {
        let reply = send(Method::POST, path, "application/json").await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.detail().contains("/openapi.json"), "{path}");
    }
    for (method, path, allowed) in [
        (Method::GET, "/v1/check", "OPTIONS, POST"),
        (Method::HEAD, "/v1/check", "OPTIONS, POST"),
        (Method::PUT, "/v1/check", "OPTIONS, POST"),
        (Method::POST, "/v1/policies", "GET, HEAD, OPTIONS"),
        (Method::DELETE, "/healthz", "GET, HEAD, OPTIONS"),
    ] {
        let reply = send(method.clone(), path, "application/json").await;
        assert_eq!((reply.status, reply.header("allow")), (405, allowed), "{method} {path}");
    }
    let options = send(Method::OPTIONS, "/v1/check", "").await;
    assert_eq!((options.status, options.header("allow")), (204, "OPTIONS, POST"));
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let reply = send(Method::POST, "/v1/check", kind).await;
        assert_eq!(reply.status, 415, "{kind}");
        documented(&Method::POST, "/v1/check", &reply).expect("documented");
    }
    for kind in ["", "application/json; charset=utf-8", "Application/JSON"] {
        assert_eq!(send(Method::POST, "/v1/check", kind).await.status, 200, "{kind}");
    }
    // gRPC has its own answers.
    let grpc = send(Method::POST, "/throttlekit.v1.RateLimiter/Check", "application/grpc").await;
    assert_eq!(grpc.status, 505);
    // What only looks like one of its paths is no call.
    for path in ["/v1.0/check", "/throttlekit.v1.RateLimiter/Check"] {
        assert_eq!(send(Method::POST, path, "application/json").await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_body_has_a_bound() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let mut body = json!({ "policy": "api", "key": "k" }).to_string();
    body.push_str(&" ".repeat(MESSAGE_MAX - body.len()));
    assert_eq!(web.post_text("/v1/check", body.clone()).await.status, 200);
    let mut web = Web::to_h2(live.address).await;
    body.push(' ');
    let reply = web.post_text("/v1/check", body).await;
    assert_eq!(reply.status, 413);
    assert!(reply.detail().contains("4194304"), "{}", reply.detail());
}

#[tokio::test]
async fn names_in_camel_case_are_understood_and_text_may_be_escaped() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let escaped = r#"{"policy":"\u0061pi","key":"\ud83d\ude00\"\\"}"#;
    assert_eq!(web.post_text("/v1/check", escaped).await.status, 200);
    let plain = json!({ "policy": "api", "key": "😀\"\\" });
    let reply = web.post("/v1/check", &plain).await;
    assert_eq!(reply.json()["decision"]["remaining"], 3, "the same key");
    let named = json!({ "charges": [{ "policy": "tokens", "key": "k", "units": 1 }],
        "ttlMs": 5, "leaseId": "0123456789abcdef0123456789abcdef" });
    let reserved = web.post("/v1/reserve", &named).await;
    assert_eq!(reserved.json()["lease_id"], named["leaseId"]);
    assert_eq!(reserved.json()["ttl_ms"], 5);
}

#[tokio::test]
async fn a_policy_that_a_field_cannot_name_is_told_in_the_problem() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let ask = json!({ "policy": "naïve", "key": "k" });
    let reply = web.post("/v1/check", &ask).await;
    assert_eq!((reply.status, reply.header("ratelimit-policy")), (200, ""));
    let denied = web.post("/v1/check", &ask).await;
    assert_eq!((denied.status, denied.header("ratelimit")), (429, ""));
    assert_eq!(denied.json()["violated-policies"], json!(["naïve"]));
}

async fn with_fields(fields: Fields) -> Live {
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let config = live::config(POLICIES, Fail::Open);
    let service = Arc::new(Service::new(&config, Arc::new(clock.clone())));
    Live::serving(service, clock, Doors { fields, ..Doors::default() }).await
}

#[tokio::test]
async fn the_older_fields_are_written_if_the_operator_wants_them() {
    let live = with_fields(Fields::default().with_three().with_x()).await;
    let mut web = Web::to(live.address).await;
    let ask = json!({ "policy": "api", "key": "k" });
    let reply = web.post("/v1/check", &ask).await;
    let reset = (START_US + 720_000_000).div_ceil(1_000_000).to_string();
    for (name, value) in [
        ("ratelimit", r#""api";r=4;t=720"#),
        ("ratelimit-limit", "5"),
        ("ratelimit-remaining", "4"),
        ("ratelimit-reset", "720"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "4"),
        ("x-ratelimit-reset", &reset),
    ] {
        assert_eq!(reply.header(name), value, "{name}");
    }
    let live = with_fields(Fields::NONE).await;
    let mut web = Web::to(live.address).await;
    let reply = web.post("/v1/check", &ask).await;
    let told = |headers: &HeaderMap| headers.keys().any(|name| name.as_str().contains("ratelimit"));
    assert!(!told(&reply.headers), "{reply:?}");
}

#[tokio::test]
async fn what_is_asked_with_get_is_answered() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    assert_eq!(web.get("/healthz").await.text, "ok\n");
    let ready = web.get("/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (200, json!({ "status": "ready", "store": "memory" }))
    );
    let policies = web.get("/v1/policies").await.json();
    let shown: Vec<&Value> = policies["policies"].as_array().expect("a list").iter().collect();
    let names: Vec<&str> = shown.iter().filter_map(|policy| policy["name"].as_str()).collect();
    assert_eq!(names, ["api", "both", "gate", "naïve", "tokens"]);
    let limit = json!({ "name": "api", "axis": "rate", "kind": "gcra", "limit": 5,
        "window_ms": 3_600_000 });
    assert_eq!(*shown[0], json!({ "name": "api", "asked_with": "check", "limits": [limit] }));
    assert_eq!(web.get("/v1/load").await.json()["enabled"], false);
    let document = web.get("/openapi.json").await;
    assert_eq!(document.text, admittance_server::openapi());
    let metrics = web.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"));
    assert!(metrics.text.ends_with("# EOF\n"));
    let older = Request::get("/metrics").header("accept", "text/plain;version=0.0.4");
    let older = web.send(older.body(Full::default()).expect("a request")).await;
    assert!(older.header("content-type").starts_with("text/plain; version=0.0.4"));
    assert!(!older.text.contains("# EOF"));
}

#[tokio::test]
async fn the_snapshot_is_for_those_who_know_the_secret() {
    let config = live::config(POLICIES, Fail::Open);
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let service = Arc::new(Service::new(&config, Arc::new(clock.clone())));
    let doors = Doors { monitor: DoorSecret::new("open sesame"), ..Doors::default() };
    let live = Live::serving(service, clock, doors).await;
    let mut web = Web::to(live.address).await;
    web.post("/v1/check", &json!({ "policy": "api", "key": "k" })).await;
    let refused = web.get("/v1/snapshot").await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, "Bearer"));
    let head = Request::head("/v1/snapshot").body(Full::default()).expect("a request");
    assert_eq!(web.send(head).await.status, 401, "HEAD is guarded as GET is");
    for (name, value, status) in [
        ("x-monitor-secret", "open says me", 401),
        ("x-monitor-secret", "open sesame", 200),
        ("authorization", "Bearer open sesame", 200),
    ] {
        let request = Request::get("/v1/snapshot").header(name, value);
        let reply = web.send(request.body(Full::default()).expect("a request")).await;
        assert_eq!(reply.status, status, "{name}: {value}");
        documented(&Method::GET, "/v1/snapshot", &reply).expect("documented");
        assert_eq!(reply.json().get("policies").is_some(), status == 200, "{}", reply.text);
        let head = Request::head("/v1/snapshot").header(name, value);
        let head = web.send(head.body(Full::default()).expect("a request")).await;
        let kind = reply.header("content-type");
        assert_eq!((head.status, head.header("content-type"), &*head.text), (status, kind, ""));
    }
}

#[tokio::test]
async fn answers_that_the_document_does_not_know_are_found() {
    let live = Live::with(POLICIES).await;
    let mut web = Web::to(live.address).await;
    let good = web.post("/v1/check", &json!({ "policy": "api", "key": "k" })).await;
    let judged = |reply: &Reply| documented(&Method::POST, "/v1/check", reply);
    let teapot = Reply { status: 418, ..good.clone() };
    assert!(judged(&teapot).expect_err("found").contains("418"));
    let mut untyped = good.clone();
    untyped.headers.insert("content-type", "text/html".parse().expect("a type"));
    assert!(judged(&untyped).expect_err("found").contains("text/html"));
    for lie in [
        json!({}),
        json!({ "decision": {} }),
        json!({ "decision": { "allowed": "yes", "limit": 5, "remaining": 4, "reset_at": 0,
            "retry_after_ms": 0 } }),
    ] {
        let lying = Reply { text: lie.to_string(), ..good.clone() };
        assert!(judged(&lying).is_err(), "{lie}");
    }
}

/// The document that is checked in, for people and tools that have no service at hand.
#[test]
fn the_document_is_the_one_that_is_checked_in() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    if std::env::var_os("ADMITTANCE_WRITE").is_some() {
        std::fs::write(path, admittance_server::openapi()).expect("written");
    }
    let kept = std::fs::read_to_string(path).expect("docs/openapi.json is there");
    let command = "ADMITTANCE_WRITE=1 cargo test -p admittance-server --test it http::the_document";
    assert!(kept == admittance_server::openapi(), "write it anew: {command}");
}
