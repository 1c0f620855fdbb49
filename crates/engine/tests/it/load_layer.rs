//! Load shedding in front of real axum and tonic servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use admittance::load::{
    Class, Driver, Executor, LoadLayer, LoadRules, Probe, Shed, Shedder, Sorted, Tasks,
};
use admittance::{ManualClock, Micros, Span};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_layer::Layer;
use tower_service::Service;

/// An executor that runs its probes at once or never.
struct Held(Vec<Probe>, bool);

impl Executor for Held {
    fn schedule(&mut self, _: usize, probe: Probe) {
        if self.1 { probe.run() } else { self.0.push(probe) }
    }

    fn load(&mut self) -> Tasks {
        Tasks { tasks: 1, workers: 1 }
    }
}

/// A shedder, and what moves it.
struct Regulated {
    shedder: Shedder,
    clock: ManualClock,
    driver: Driver<Held>,
}

impl Regulated {
    fn new(is_quick: bool) -> Self {
        let clock = ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap());
        let shedder = Shedder::with_clock(LoadRules::default(), Arc::new(clock.clone())).unwrap();
        let held = Held(Vec::new(), is_quick);
        let driver = shedder.drive(held, Arc::new(clock.clone())).unwrap();
        Self { shedder, clock, driver }
    }

    /// Lets time pass, while work of this class is asked for.
    fn pass(&mut self, span: Span, class: Class) {
        for _ in 0..span.us() / 10_000 {
            (0..100u64).for_each(|key| _ = self.shedder.reject_key_as(class, key));
            self.driver.step();
            self.clock.advance(Span::from_ms(10));
        }
    }

    /// One whose executor has been stuck for ten seconds: a hundredth may start.
    fn behind(class: Class) -> Self {
        let mut regulated = Self::new(false);
        regulated.pass(Span::from_secs(10), class);
        assert_eq!(regulated.shedder.percent(), 1);
        regulated
    }
}

/// A server that counts what reaches it.
async fn server(wrap: impl FnOnce(Router) -> Router) -> (SocketAddr, Arc<AtomicU64>) {
    let reached = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reached);
    let page = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { "done" }
    };
    let app = wrap(Router::new().route("/", get(page.clone())).route("/healthz", get(page)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, reached)
}

async fn answer(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text.to_lowercase()
}

/// Waits for what another task will do; a minute is for a machine that is very busy.
async fn until(what: impl Fn() -> bool) {
    let waits = async {
        while !what() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("it never came about");
}

/// By its path, its header of a class and its header of a user.
fn sort(request: &Request<Body>, shedder: &Shedder) -> Sorted {
    let header = |name| request.headers().get(name).map(|value| value.as_bytes());
    let class = match header("x-class") {
        Some(b"critical") => Class::Critical,
        Some(b"background") => Class::Background,
        _ => Class::Default,
    };
    match header("x-user") {
        _ if request.uri().path() == "/healthz" => Sorted::exempt(),
        Some(user) => Sorted::key(class, shedder.hashed(user)),
        None => Sorted::any(class),
    }
}

/// How many of so many requests were refused, and how many reached the service.
async fn refused_and_reached(shedder: &Shedder, wrap: impl FnOnce(Router) -> Router) -> (u64, u64) {
    let (address, reached) = server(wrap).await;
    let mut refused = 0;
    for _ in 0..20 {
        // Background work is shed entirely where a hundredth of the default class may start.
        let told = answer(address, "/", "x-class: background\r\n").await;
        if told.starts_with("http/1.1 503") {
            assert!(told.contains("retry-after: 1\r\n"), "{told}");
            refused += 1;
        }
    }
    assert_eq!(shedder.status().waiting, 0);
    (refused, reached.load(Ordering::Relaxed))
}

#[tokio::test]
async fn what_axum_sheds_is_told_when_to_come_back_and_never_reaches_the_service() {
    let Regulated { shedder, driver: _driver, .. } = Regulated::behind(Class::Default);
    let layer = LoadLayer::new(shedder.clone()).sort_with(sort);
    assert_eq!(refused_and_reached(&shedder, |app| app.layer(layer)).await, (20, 0));
    // One that asks when the work is done.
    let of_mutant = shedder.clone();
    let mutant = axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
        let is_shed = of_mutant.reject_as(Class::Background);
        async move {
            let mut response = next.run(request).await;
            if is_shed {
                *response.status_mut() = axum::http::StatusCode::SERVICE_UNAVAILABLE;
                response.headers_mut().insert("retry-after", 1.into());
            }
            response
        }
    });
    assert_eq!(refused_and_reached(&shedder, |app| app.layer(mutant)).await, (20, 20));
}

#[tokio::test]
async fn exempt_requests_pass_classes_go_in_order_and_a_key_has_its_answer() {
    let Regulated { shedder, driver: _driver, .. } = Regulated::behind(Class::Default);
    let layer = LoadLayer::new(shedder.clone()).sort_with(sort);
    let (address, reached) = server(|app| app.layer(layer)).await;
    let before = shedder.status();
    assert!(answer(address, "/healthz", "x-class: background\r\n").await.ends_with("done"));
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (0, 0), "what is exempt is not counted");
    assert!(answer(address, "/", "x-class: critical\r\n").await.ends_with("done"));
    assert_eq!(reached.load(Ordering::Relaxed), 2);
    let (mut admitted, mut refused) = (0, 0);
    for user in 0..400 {
        let user = format!("user-{user}");
        let is_refused = shedder.reject_key(user.as_str());
        if !is_refused || user.ends_with('7') {
            let told = answer(address, "/", &format!("x-user: {user}\r\n")).await;
            assert_eq!(told.starts_with("http/1.1 503"), is_refused, "{user}: {told}");
            *(if is_refused { &mut refused } else { &mut admitted }) += 1;
        }
    }
    assert!(admitted > 0 && refused > 0, "{admitted} {refused}");
    assert_eq!(reached.load(Ordering::Relaxed), 2 + admitted);
}

/// A service that ends when it is told to, and says when it has begun.
#[derive(Clone)]
struct Slow(Arc<Notify>);

impl Service<()> for Slow {
    type Response = axum::http::Response<Body>;
    type Error = &'static str;
    type Future = std::pin::Pin<
        Box<dyn Future<Output = Result<axum::http::Response<Body>, &'static str>> + Send>,
    >;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let told = Arc::clone(&self.0);
        Box::pin(async move {
            told.notified().await;
            Ok(axum::http::Response::new(Body::empty()))
        })
    }
}

#[tokio::test]
async fn a_request_waits_until_it_is_polled_and_has_ended_when_its_client_goes_away() {
    let mut regulated = Regulated::new(true);
    let shedder = regulated.shedder.clone();
    let mut service = LoadLayer::new(shedder.clone()).layer(Slow(Arc::new(Notify::new())));
    let mut context = Context::from_waker(std::task::Waker::noop());
    let never = service.call(());
    assert_eq!(shedder.status().waiting, 1);
    drop(never);
    assert_eq!(shedder.status().waiting, 0, "it was given up before it was polled");
    for _ in 0..10 {
        let mut begun = Box::pin(service.call(()));
        regulated.clock.advance(Span::from_ms(7));
        assert!(begun.as_mut().poll(&mut context).is_pending());
        assert_eq!(shedder.status().waiting, 0);
        drop(begun);
    }
    regulated.pass(Span::from_ms(100), Class::Default);
    let status = shedder.status();
    assert!(status.average >= Span::from_ms(5), "they waited: {status:?}");
    assert!(status.room.is_some(), "they have ended");
}

/// How long the first request of a clone that is called later is said to have waited.
async fn waits_of_clones(layer: LoadLayer, regulated: &mut Regulated) -> Span {
    let told = Arc::new(Notify::new());
    let service = layer.layer(Slow(Arc::clone(&told)));
    for _ in 0..100 {
        let mut clone = service.clone();
        regulated.clock.advance(Span::from_ms(7));
        told.notify_one();
        clone.call(()).await.unwrap();
    }
    regulated.driver.step();
    regulated.shedder.status().average
}

#[tokio::test]
async fn the_wait_of_a_task_that_calls_a_clone_is_measured_if_that_is_asked_for() {
    let mut regulated = Regulated::new(true);
    let layer = LoadLayer::new(regulated.shedder.clone()).wait_from_clone();
    let waited = waits_of_clones(layer, &mut regulated).await;
    assert!(waited >= Span::from_ms(6), "{waited:?}");
    let mut regulated = Regulated::new(true);
    let layer = LoadLayer::new(regulated.shedder.clone());
    assert_eq!(waits_of_clones(layer, &mut regulated).await, Span::ZERO);
}

/// A health service that sheds, and a client of it.
async fn health(layer: LoadLayer) -> HealthClient<tonic::transport::Channel> {
    let layer = layer.refuse_with(|shed: Shed| {
        tonic::Status::resource_exhausted(shed.to_string()).into_http::<tonic::body::Body>()
    });
    let (_reporter, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn request() -> HealthCheckRequest {
    HealthCheckRequest { service: String::new() }
}

#[tokio::test]
async fn what_tonic_sheds_is_told_that_resources_are_exhausted() {
    // All that is asked for is critical: a hundredth of that, and nothing else, may start.
    let Regulated { shedder, driver, .. } = Regulated::behind(Class::Critical);
    let mut client = health(LoadLayer::new(shedder.clone())).await;
    let refused = client.check(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("this process is behind"), "{refused:?}");
    assert_eq!(shedder.status().rejected_by_class[Class::Default.index()], 1);
    drop(driver);
    client.check(request()).await.unwrap();
    assert_eq!(shedder.status().waiting, 0);
}

/// How much a request of HTTP/2 is said to wait when its task does not get a worker for a while.
async fn wait_in_tonic(layer: LoadLayer, regulated: &mut Regulated) -> Span {
    let client = health(layer).await;
    let mut asked = Vec::new();
    for _ in 0..10 {
        let mut client = client.clone();
        asked.push(tokio::spawn(async move { client.check(request()).await.map(drop) }));
    }
    // Time passes with every task that runs: whoever waits for others waits.
    let (end, mut ended) = oneshot::channel::<()>();
    let clock = regulated.clock.clone();
    let ticks = tokio::spawn(async move {
        while ended.try_recv().is_err() {
            clock.advance(Span::from_ms(1));
            tokio::task::yield_now().await;
        }
    });
    for one in asked {
        one.await.unwrap().unwrap();
    }
    end.send(()).unwrap();
    ticks.await.unwrap();
    regulated.clock.advance(Span::from_ms(100));
    regulated.driver.step();
    regulated.shedder.status().average
}

#[tokio::test]
async fn the_wait_of_requests_over_http_2_is_measured_from_their_arrival() {
    let mut regulated = Regulated::new(true);
    let layer = LoadLayer::new(regulated.shedder.clone()).wait_from_clone();
    let waited = wait_in_tonic(layer, &mut regulated).await;
    assert!(waited > Span::ZERO, "each has a task of its own, which waits for its turn");
    let mut regulated = Regulated::new(true);
    let layer = LoadLayer::new(regulated.shedder.clone());
    assert_eq!(wait_in_tonic(layer, &mut regulated).await, Span::ZERO, "the call comes too late");
}

#[tokio::test]
async fn a_client_of_tonic_that_goes_away_has_ended() {
    let regulated = Regulated::new(true);
    let shedder = regulated.shedder.clone();
    let mut client = health(LoadLayer::new(shedder.clone())).await;
    let mut watch = client.watch(request()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    drop(watch);
    drop(client);
    until(|| shedder.status().waiting == 0).await;
    assert_eq!(shedder.status().allowed, 1);
}
