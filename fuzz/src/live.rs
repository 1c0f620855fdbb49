//! A whole service on a port of this machine's loopback, and the other end of its connections.
//!
//! # Guarantee
//! Panics of the service's tasks are counted wherever they are caught, and
//! [`unharmed`](Live::unharmed) is the check after every input: nothing has panicked, and an honest
//! caller is answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use admittance::{ManualClock, Micros};
use admittance_proto::v1::{CheckRequest, CheckResponse};
use admittance_server::{Config, Fail, Service, Shedding, serve};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

/// What is sent.
pub(crate) type Sent = Full<Bytes>;

/// The service.
pub(crate) struct Live {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    http1: Mutex<Option<http1::SendRequest<Sent>>>,
    http2: Mutex<Option<http2::SendRequest<Sent>>>,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

/// The one of this process.
pub(crate) fn live() -> &'static Live {
    static LIVE: OnceLock<Live> = OnceLock::new();
    LIVE.get_or_init(Live::start)
}

impl Live {
    fn start() -> Self {
        count_panics();
        let built = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(THREADS)
            .enable_all()
            .build();
        let runtime = built.expect("a runtime");
        let config = Config::parse("live.yaml", POLICIES, Fail::Open);
        let config = config.unwrap_or_else(|report| panic!("{report}"));
        // How busy the machine is must not decide what is answered.
        let config = Config { load: Shedding(None), ..config };
        let clock = ManualClock::at(Micros::saturating_from_epoch_us(START_US));
        let address = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("bound");
            let service = Arc::new(Service::new(&config, Arc::new(clock)));
            tokio::spawn(serve(listener, service, std::future::pending()));
            address
        });
        Self { runtime, address, http1: Mutex::default(), http2: Mutex::default() }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.expect("the port is open");
        let _ = stream.set_nodelay(true);
        stream
    }

    /// Sends a request over HTTP/1; `None` if the connection ended without an answer.
    pub(crate) async fn over_http1(&self, request: Request<Sent>) -> Option<Answer> {
        let kept = &mut *self.http1.lock().await;
        if kept.as_mut().is_none_or(|kept| kept.is_closed()) {
            let io = TokioIo::new(self.connect().await);
            let (sender, connection) = http1::handshake(io).await.expect("a connection");
            tokio::spawn(connection);
            *kept = Some(sender);
        }
        let sender = kept.as_mut().expect("connected");
        if in_time(sender.ready()).await.is_err() {
            *kept = None;
            return None;
        }
        let answer = in_time(sender.send_request(request)).await;
        if answer.is_err() {
            *kept = None;
        }
        let answer = answer.ok()?;
        Some(read(answer).await)
    }

    /// Sends a request over HTTP/2.
    pub(crate) async fn over_http2(&self, request: Request<Sent>) -> Option<Response<Incoming>> {
        let kept = &mut *self.http2.lock().await;
        if kept.as_ref().is_none_or(http2::SendRequest::is_closed) {
            let io = TokioIo::new(self.connect().await);
            let handshake = http2::handshake(TokioExecutor::new(), io).await;
            let (sender, connection) = handshake.expect("a connection");
            tokio::spawn(connection);
            *kept = Some(sender);
        }
        let sender = kept.as_mut().expect("connected");
        let answer = in_time(sender.send_request(request)).await;
        if answer.is_err() {
            *kept = None;
        }
        answer.ok()
    }

    /// Nothing has panicked, and an honest caller is answered.
    pub(crate) async fn unharmed(&self) {
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a task of the service panicked");
        let asked = CheckRequest { policy: HONEST.into(), key: "h".into(), cost: 1 };
        let request = grpc("/throttlekit.v1.RateLimiter/Check", framed(&asked.encode_to_vec()));
        let answer = self.over_http2(request).await.expect("an honest caller is answered");
        let answer = read(answer).await;
        let message = answer.body.get(5..).expect("a frame");
        let said = CheckResponse::decode(message).expect("an answer");
        assert!(said.decision.is_some(), "an honest caller is answered: {said:?}");
    }
}

/// A gRPC call.
pub(crate) fn grpc(path: &str, body: Vec<u8>) -> Request<Sent> {
    let request = Request::post(format!("http://fuzz{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    request.body(Full::new(Bytes::from(body))).expect("a request")
}

/// A message as a frame.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// All of an answer.
pub(crate) async fn read(answer: Response<Incoming>) -> Answer {
    let (head, body) = answer.into_parts();
    let body = in_time(Limited::new(body, ANSWER_MAX).collect()).await;
    match body {
        Ok(body) => {
            let trailers = body.trailers().cloned().unwrap_or_default();
            Answer { head, body: body.to_bytes(), trailers }
        }
        Err(error) => panic!("an answer broke off: {error}, after {head:?}"),
    }
}

/// Nobody waits for ever: whatever is sent, the service answers or hangs up.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("the service neither answered nor hung up in {PATIENCE:?}"))
}

/// Counts panics on the service's threads, beside what is done about them anyway.
fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // The thread that feeds runs in the same runtime's context, but has another name.
        if std::thread::current().name() == Some(THREADS) {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        before(info);
    }));
}

static PANICS: AtomicU64 = AtomicU64::new(0);
const THREADS: &str = "fuzzed-service";
const HONEST: &str = "honest";
/// Longer than any call may take.
const PATIENCE: Duration = Duration::from_secs(30);
const ANSWER_MAX: usize = 32 << 20;
const START_US: u64 = 1_700_000_000_000_250;

/// The names of the policies that are served, for inputs that are to mean something.
pub(crate) const NAMES: &[&str] = &[
    "gcra", "bucket", "window", "sliding", "log", "month", "leased", "lent", "places", "both",
    "tokens", "all", "tenants", "behind", "honest", "nobody", "",
];

/// One of everything.
const POLICIES: &str = "limiters:
  honest: { strategy: gcra, limit: 1000000, period: 1s }
  gcra: { strategy: gcra, limit: 5, period: 1h }
  bucket: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.5, maxKeys: 100, onFull: deny }
  window: { strategy: fixedWindow, limit: 10, period: 1m, maxKeys: 100 }
  sliding: { strategy: slidingWindow, limit: 10, period: 1h }
  log: { strategy: slidingWindowLog, limit: 3, period: 1h }
  month: { strategy: quota, limit: 100, resetCadence: calendar-month }
  leased: { strategy: gcra, limit: 5, period: 1h, burst: 5, twoTier: { mode: leased, batch: 5 } }
  lent: { strategy: fixedWindow, limit: 1000, period: 1h, federated: { batch: 16 } }
  places: { concurrency: { minLimit: 1, maxLimit: 4 } }
  both: { strategy: gcra, limit: 5, period: 1h, concurrency: { minLimit: 2, maxLimit: 2 } }
  tokens: { tokenBudget: { budget: 1000, period: 1m, reserve: learned } }
  tenants: { fairEscrow: { limit: 1000, windowMs: 60000, weights: { gold: 5, trial: 0.5 } } }
  behind: { strategy: gcra, limit: 9, period: 1m, load: { class: background, by: random } }
  all:
    strategy: gcra
    limit: 1000
    period: 1m
    concurrency: { maxLimit: 64 }
    cost:
      windows:
        minute: { budget: 100000, period: 1m }
        day: { budget: 20000000, resetCadence: calendar-day }
      reserve: learned
    load: { class: default }
    joint:
      kinds:
        - { weight: 60, value: 5, cost: 10, hold: 1.5 }
        - { weight: 60.25, value: 0.75, cost: 30, hold: 2s }
      budgets: { period: 1h, rate: 500, cost: 700.5, concurrency: 3 }
";
