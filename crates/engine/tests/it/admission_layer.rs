//! One admission in front of real axum and tonic servers.

mod grpc;
mod held;
mod leaks;
mod world;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use admittance::admission::{Admitter, Joint, Local};
use admittance::gate::{Gate, LimitRules};
use admittance::http::{
    AdmissionLayer, AskFor, Asked, ByClient, ByHeader, ClientAddress, Fields, OnError, Quota,
    Refusal, ToldBy, Trust, Unit, Why,
};
use admittance::learn::price::Prices;
use admittance::load::{Class, Driver, Executor, LoadRules, Probe, Shedder, Tasks};
use admittance::{Axis, ManualClock, Span, StoreError};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Extensions, HeaderName, Request, Response, StatusCode};

use world::{Faulty, answer, ask_for, layer, limits, priced, serve, start, until};

#[tokio::test]
async fn rate_binds_with_429_and_its_fields() {
    let limits = limits(2, 1_000, 8);
    let quota = Quota::new("per-user", 2).unwrap().window(Span::from_secs(60)).unwrap();
    let atonce = Quota::new("at-once", 8).unwrap().unit(Unit::ConcurrentRequests);
    let layer = layer(&limits)
        .quota(Axis::Rate, Quota::new("replaced", 1).unwrap())
        .quota(Axis::Concurrency, atonce)
        .quota(Axis::Rate, quota)
        .fields(Fields::default().with_three().with_x());
    let (address, _) = serve(|app| app.layer(layer)).await;
    limits.clock.advance(Span::from_ms(30_500));
    let first = answer(address, "/", "x-user: ann\r\n").await;
    assert!(first.starts_with("http/1.1 200") && first.ends_with("done"), "{first}");
    let policy = "\"at-once\";q=8;qu=\"concurrent-requests\", \"per-user\";q=2;w=60\r\n";
    assert!(first.contains(&format!("ratelimit-policy: {policy}")), "{first}");
    assert!(first.contains("ratelimit: \"at-once\";r=7;t=0, \"per-user\";r=1;t=30\r\n"), "{first}");
    assert!(first.contains("ratelimit-remaining: 1\r\n"), "{first}");
    assert!(!first.contains("retry-after"), "{first}");
    assert!(answer(address, "/", "x-user: ann\r\n").await.ends_with("done"));
    let denied = answer(address, "/", "x-user: ann\r\n").await;
    assert!(denied.starts_with("http/1.1 429"), "{denied}");
    assert!(denied.contains("retry-after: 30\r\n"), "{denied}");
    assert!(denied.contains("\"per-user\";r=0;t=30\r\n"), "{denied}");
    assert!(denied.contains("x-ratelimit-remaining: 0\r\n"), "{denied}");
    assert!(answer(address, "/", "x-user: bob\r\n").await.ends_with("done"), "each has its own");
    until(|| limits.is_idle()).await;
    assert_eq!(limits.admitter.stats().denied_by(Axis::Rate), 1);
    // The fields are true: not a second sooner, and then it passes.
    limits.clock.advance(Span::from_ms(29_499));
    assert!(answer(address, "/", "x-user: ann\r\n").await.starts_with("http/1.1 429"));
    limits.clock.advance(Span::from_ms(1));
    assert!(answer(address, "/", "x-user: ann\r\n").await.ends_with("done"));
}

#[tokio::test]
async fn cost_binds_with_429_and_one_that_never_fits_is_not_told_to_wait() {
    let limits = limits(100, 1_000, 8);
    let (address, _) = serve(|app| app.layer(layer(&limits))).await;
    assert!(answer(address, "/", "x-user: ann\r\nx-cost: 900\r\n").await.ends_with("done"));
    until(|| limits.is_idle()).await;
    let denied = answer(address, "/", "x-user: ann\r\nx-cost: 101\r\n").await;
    assert!(denied.starts_with("http/1.1 429"), "{denied}");
    assert!(denied.contains("retry-after: 60\r\n"), "{denied}");
    assert!(!denied.contains("ratelimit"), "nobody said what to tell: {denied}");
    let never = answer(address, "/", "x-user: ann\r\nx-cost: 1001\r\n").await;
    assert!(never.starts_with("http/1.1 429") && !never.contains("retry-after"), "{never}");
    assert_eq!(limits.admitter.stats().denied_by(Axis::Cost), 2);
    assert_eq!(limits.left("ann").await, (99, 100), "a denial took nothing");
}

#[tokio::test]
async fn concurrency_binds_with_503_while_a_body_goes_on() {
    let limits = limits(100, 1_000, 1);
    let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
    let streaming = ask_for(address, "/stream", "x-user: ann\r\n").await;
    let frames = streams.recv().await.unwrap();
    let denied = answer(address, "/", "x-user: bob\r\n").await;
    assert!(
        denied.starts_with("http/1.1 503") && denied.contains("retry-after: 1\r\n"),
        "{denied}"
    );
    assert_eq!(limits.admitter.stats().denied_by(Axis::Concurrency), 1);
    assert_eq!(limits.left("bob").await, (100, 1_000));
    let exempt = answer(address, "/healthz", "").await;
    assert!(exempt.ends_with("done"), "it is not asked: {exempt}");
    drop((frames, streaming));
    until(|| limits.is_idle()).await;
    assert!(answer(address, "/", "x-user: bob\r\n").await.ends_with("done"));
}

/// An executor whose probes never run.
struct Stuck(Vec<Probe>);

impl Executor for Stuck {
    fn schedule(&mut self, _: usize, probe: Probe) {
        self.0.push(probe);
    }

    fn load(&mut self) -> Tasks {
        Tasks { tasks: 1, workers: 1 }
    }
}

#[tokio::test]
async fn load_binds_with_503_before_anything_else_is_asked() {
    let clock = ManualClock::at(start());
    let shedder = Shedder::with_clock(LoadRules::default(), Arc::new(clock.clone())).unwrap();
    let mut driver: Driver<Stuck> =
        shedder.drive(Stuck(Vec::new()), Arc::new(clock.clone())).unwrap();
    for _ in 0..1_000 {
        (0..100u64).for_each(|key| _ = shedder.reject_key_as(Class::Default, key));
        driver.step();
        clock.advance(Span::from_ms(10));
    }
    let users = (0..1_000).map(|user| format!("user-{user}"));
    let shed = users.into_iter().find(|user| shedder.would_reject(Class::Default, user.as_bytes()));
    let shed = shed.unwrap();
    let gate = Gate::new(LimitRules::fixed(1)).unwrap();
    let charges = Local::on(clock.clone());
    let admitter = Admitter::new(charges).load(shedder.clone()).concurrency(gate.clone());
    let admitter = admitter.build().unwrap();
    let class = |request: &Request<Body>| match request.headers().contains_key("x-critical") {
        true => Class::Critical,
        false => Class::Default,
    };
    let by_user = ByHeader(HeaderName::from_static("x-user"));
    let ask = move |request: &Request<Body>| by_user.ask(request).class(class(request));
    let (address, _) = serve(|app| app.layer(AdmissionLayer::new(admitter.clone(), ask))).await;
    let denied = answer(address, "/", &format!("x-user: {shed}\r\n")).await;
    assert!(
        denied.starts_with("http/1.1 503") && denied.contains("retry-after: 1\r\n"),
        "{denied}"
    );
    assert_eq!(admitter.stats().denied_by(Axis::Load), 1);
    assert_eq!(gate.stats().acquired, 0);
    let critical = format!("x-user: {shed}\r\nx-critical: 1\r\n");
    assert!(answer(address, "/", &critical).await.ends_with("done"), "the closure says its class");
}

#[tokio::test]
async fn what_is_not_worth_its_price_is_429_without_a_wait() {
    let joint = Joint::given(Prices::given(0.5, 0.01, 0.0).unwrap());
    let limits = priced(joint);
    let (address, _) = serve(|app| app.layer(layer(&limits))).await;
    let denied = answer(address, "/", "x-user: ann\r\nx-cost: 60\r\nx-value: 1\r\n").await;
    assert!(denied.starts_with("http/1.1 429") && !denied.contains("retry-after"), "{denied}");
    assert_eq!(limits.admitter.stats().policy_denied, 1);
    let worth = answer(address, "/", "x-user: ann\r\nx-cost: 60\r\nx-value: 2\r\n").await;
    assert!(worth.ends_with("done"), "{worth}");
}

#[tokio::test]
async fn refusals_look_as_one_likes_and_have_the_fields_all_the_same() {
    let limits = limits(1, 1_000, 8);
    let problem = |refusal: &Refusal| {
        let Why::Denied(denial) = refusal.why() else { unreachable!("{refusal}") };
        let axis = denial.binding().unwrap().name();
        Response::builder().status(refusal.status()).body(Body::from(axis)).unwrap()
    };
    let layer = layer(&limits).answer_with(problem);
    let (address, _) = serve(|app| app.layer(layer)).await;
    assert!(answer(address, "/", "x-user: ann\r\n").await.ends_with("done"));
    let denied = answer(address, "/", "x-user: ann\r\n").await;
    assert!(denied.starts_with("http/1.1 429") && denied.ends_with("\r\n\r\nrate"), "{denied}");
    assert!(denied.contains("retry-after: 60\r\n"), "{denied}");
}

#[tokio::test]
async fn an_admission_that_cannot_be_decided_is_closed_unless_it_is_open() {
    for (on_error, status) in [(OnError::default(), 503), (OnError::Open, 200)] {
        let gate = Gate::new(LimitRules::fixed(1)).unwrap();
        let faulty = Faulty::new(StoreError::Unavailable);
        let admitter = Admitter::new(faulty).concurrency(gate.clone()).build().unwrap();
        let ask = |_: &Request<Body>| Asked::key("ann");
        let layer = AdmissionLayer::new(admitter.clone(), ask).on_error(on_error);
        let (address, _) = serve(|app| app.layer(layer)).await;
        let answered = answer(address, "/", "").await;
        assert!(answered.starts_with(&format!("http/1.1 {status}")), "{answered}");
        assert!(!answered.contains("retry-after"), "{answered}");
        assert_eq!((gate.stats().in_flight, admitter.stats().failed), (0, 1));
    }
}

/// How much a request costs may be what its client wrote: it must not get past every limit with a
/// number that is too large to be counted.
#[tokio::test]
async fn a_cost_that_cannot_be_counted_is_refused_however_open_the_layer_is() {
    for on_error in [OnError::Closed, OnError::Open] {
        let limits = limits(100, 1_000, 8);
        let ask = |_: &Request<Body>| Asked::key("ann").cost(u64::MAX);
        let layer = AdmissionLayer::new(limits.admitter.clone(), ask).on_error(on_error);
        let (address, _) = serve(|app| app.layer(layer)).await;
        let answered = answer(address, "/", "").await;
        assert!(answered.starts_with("http/1.1 429"), "{answered}");
        assert!(!answered.contains("retry-after"), "waiting does not help: {answered}");
        assert!(limits.is_idle());
    }
}

/// What the server knows of the connection.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

/// The statuses of three requests that claim to come from elsewhere each time.
async fn statuses(trust: Trust, told: [&str; 3]) -> [StatusCode; 3] {
    let limits = limits(1, 1_000, 8);
    let clients = ClientAddress::new(trust).unwrap();
    let ask = ByClient::new(clients, peer);
    let layer = AdmissionLayer::new(limits.admitter.clone(), ask);
    let (address, _) = serve(|app| app.layer(layer)).await;
    let mut statuses = [StatusCode::OK; 3];
    for (told, status) in told.iter().zip(&mut statuses) {
        let header = format!("{}: {told}\r\n", ToldBy::XForwardedFor.name());
        let text = answer(address, "/", &header).await;
        *status = text[9..12].parse().unwrap();
    }
    statuses
}

#[tokio::test]
async fn a_client_has_one_limit_whatever_it_writes() {
    let (ok, many) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
    let spoofed = ["1.1.1.1", "2.2.2.2", "3.3.3.3"];
    assert_eq!(statuses(Trust::Nobody, spoofed).await, [ok, many, many]);
    let elsewhere = Trust::Networks(vec!["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(statuses(elsewhere, spoofed).await, [ok, many, many]);
    let told = ["1.1.1.1, 192.0.2.7", "2.2.2.2, 192.0.2.7", "2.2.2.2, 192.0.2.8"];
    assert_eq!(statuses(Trust::Hops(1), told).await, [ok, many, ok]);
    let here = || Trust::Networks(vec!["127.0.0.0/8".parse().unwrap()]);
    assert_eq!(statuses(here(), told).await, [ok, many, ok]);
    let told = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"];
    assert_eq!(statuses(here(), told).await, [ok, many, ok]);
}

#[tokio::test]
async fn a_layer_that_believes_the_header_is_noticed() {
    let limits = limits(1, 1_000, 8);
    let mutant = ByHeader(HeaderName::from_static(ToldBy::XForwardedFor.name()));
    let layer = AdmissionLayer::new(limits.admitter.clone(), mutant);
    let (address, _) = serve(|app| app.layer(layer)).await;
    for spoofed in ["1.1.1.1", "2.2.2.2", "3.3.3.3"] {
        let header = format!("x-forwarded-for: {spoofed}\r\n");
        assert!(answer(address, "/", &header).await.ends_with("done"), "one limit each");
    }
}

#[test]
fn a_header_is_a_key_if_there_is_just_one() {
    let by = ByHeader(HeaderName::from_static("x-user"));
    let of = |values: &[&str]| {
        let mut request = Request::new(());
        for value in values {
            request.headers_mut().append("x-user", value.parse().unwrap());
        }
        by.ask(&request)
    };
    assert_eq!(of(&["ann"]), Asked::key("ann"));
    assert_eq!(of(&[]), Asked::key(""));
    assert_eq!(of(&["ann", "bob"]), Asked::key(""));
    assert_eq!(of(&[&"a".repeat(4_096)]), Asked::key("a".repeat(4_096)));
    assert_eq!(of(&[&"a".repeat(4_097)]), Asked::key(""));
}
