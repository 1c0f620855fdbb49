//! A whole service on a port of this machine's loopback, and the other end of its connections.
//!
//! # Guarantee
//! Panics of the service's tasks are noted wherever they are caught, and
//! `Live::unharmed` is the check after every input: nothing has panicked, and an honest
//! caller is answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock, PoisonError};
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

/// A service and the other end of its connections.
pub struct Live {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    /// What the service's threads are called: no other service's are.
    threads: String,
    patience: Duration,
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
    LIVE.get_or_init(|| Live::serving(PATIENCE, service))
}

/// Serves every kind of policy on a port, for as long as it is polled.
pub async fn service(listener: TcpListener) {
    let config = Config::parse("live.yaml", POLICIES, Fail::Open);
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    // How busy the machine is must not decide what is answered.
    let config = Config { load: Shedding(None), ..config };
    let clock = ManualClock::at(Micros::saturating_from_epoch_us(START_US));
    let service = Arc::new(Service::new(&config, Arc::new(clock)));
    let served = serve(listener, service, std::future::pending()).await;
    served.expect("it can be served");
}

impl Live {
    /// Whatever serves on a port, with threads of its own, and how long its callers wait for it.
    pub fn serving<S>(patience: Duration, serve: impl FnOnce(TcpListener) -> S) -> Self
    where
        S: Future<Output = ()> + Send + 'static,
    {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        note_panics();
        let threads = format!("{THREADS}-{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let built = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(&threads)
            .enable_all()
            .build();
        let runtime = built.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(serve(listener));
        let (http1, http2) = (Mutex::default(), Mutex::default());
        Self { runtime, address, threads, patience, http1, http2 }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.expect("the port is open");
        let _ = stream.set_nodelay(true);
        stream
    }

    /// Sends a request over HTTP/1; `None` if a connection of its own ended without an answer.
    pub(crate) async fn over_http1(&self, request: Request<Sent>) -> Option<Answer> {
        let kept = &mut *self.http1.lock().await;
        loop {
            let is_new = kept.as_ref().is_none_or(http1::SendRequest::is_closed);
            if is_new {
                let io = TokioIo::new(self.connect().await);
                let Ok((sender, connection)) = http1::handshake(io).await else { return None };
                tokio::spawn(connection);
                *kept = Some(sender);
            }
            let sender = kept.as_mut().expect("connected");
            let answer = match self.in_time(sender.ready()).await {
                Ok(()) => self.in_time(sender.send_request(request.clone())).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => return Some(self.read(answer).await),
                Err(_) => *kept = None,
            }
            // One that was kept may have been hung up on, for what was sent before.
            if is_new {
                return None;
            }
        }
    }

    /// Sends a request over HTTP/2; `None` as over HTTP/1.
    pub(crate) async fn over_http2(&self, request: Request<Sent>) -> Option<Response<Incoming>> {
        let kept = &mut *self.http2.lock().await;
        loop {
            let is_new = kept.as_ref().is_none_or(http2::SendRequest::is_closed);
            if is_new {
                let io = TokioIo::new(self.connect().await);
                let shaken = http2::handshake(TokioExecutor::new(), io).await;
                let Ok((sender, connection)) = shaken else { return None };
                tokio::spawn(connection);
                *kept = Some(sender);
            }
            let sender = kept.as_mut().expect("connected");
            match self.in_time(sender.send_request(request.clone())).await {
                Ok(answer) => return Some(answer),
                Err(_) => *kept = None,
            }
            if is_new {
                return None;
            }
        }
    }

    /// All of an answer.
    pub(crate) async fn read(&self, answer: Response<Incoming>) -> Answer {
        let (head, body) = answer.into_parts();
        let body = self.in_time(Limited::new(body, ANSWER_MAX).collect()).await;
        match body {
            Ok(body) => {
                let trailers = body.trailers().cloned().unwrap_or_default();
                Answer { head, body: body.to_bytes(), trailers }
            }
            Err(error) => panic!("an answer broke off: {error}, after {head:?}"),
        }
    }

    /// Nobody waits for ever: whatever is sent, the service answers or hangs up.
    pub(crate) async fn in_time<T>(&self, future: impl Future<Output = T>) -> T {
        let patience = self.patience;
        let waited = tokio::time::timeout(patience, future).await;
        waited
            .unwrap_or_else(|_| panic!("the service neither answered nor hung up in {patience:?}"))
    }

    /// Nothing has panicked, and an honest caller is answered.
    pub(crate) async fn unharmed(&self) {
        let panicked = PANICKED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(!panicked.contains(&self.threads), "a task of the service panicked");
        let asked = CheckRequest { policy: HONEST.into(), key: "h".into(), cost: 1 };
        let request = grpc("/throttlekit.v1.RateLimiter/Check", framed(&asked.encode_to_vec()));
        let answer = self.over_http2(request).await.expect("an honest caller is answered");
        let answer = self.read(answer).await;
        let message = answer.body.get(5..).expect("an honest caller is answered in a frame");
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

/// Notes on whose threads something panics, beside what is done about it anyway.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // The thread that feeds runs in the same runtime's context, but has another name.
            let thread = std::thread::current();
            if let Some(name) = thread.name().filter(|name| name.starts_with(THREADS)) {
                let mut panicked = PANICKED.lock().unwrap_or_else(PoisonError::into_inner);
                panicked.push(name.to_owned());
            }
            before(info);
        }));
    });
}

/// The names of threads of services that have panicked.
static PANICKED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
const THREADS: &str = "fuzzed-service";
const HONEST: &str = "honest";
/// Longer than any call may take.
const PATIENCE: Duration = Duration::from_secs(30);
const ANSWER_MAX: usize = 32 << 20;
const START_US: u64 = 1_700_000_000_000_250;

/// The names of the policies that are served, for inputs that are to mean something.
pub(crate) const NAMES: &[&str] = &[
    "gcra",
    "bucket",
    "window",
    "sliding",
    "log",
    "month",
    "leased",
    "lent",
    "places",
    "both",
    "tokens",
    "all",
    "tenants",
    "behind",
    "honest",
    "nobody",
    "",
    "gcra-b",
    "window-b",
    "places-b",
    "tokens-b",
    "all-b",
    "tenants-b",
    "tried",
    "tried-places",
    "tried-tokens",
];

/// One of everything.
const POLICIES: &str = "limiters:
  honest: { strategy: gcra, limit: 1000000, period: 1s }
  gcra: { strategy: gcra, limit: 5, period: 1h, shadow: [gcra-b, window-b] }
  gcra-b: { strategy: gcra, limit: 3, period: 1h }
  bucket: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.5, maxKeys: 100, onFull: deny }
  window: { strategy: fixedWindow, limit: 10, period: 1m, maxKeys: 100, shadow: [window-b] }
  window-b: { strategy: slidingWindow, limit: 4, period: 1m, maxKeys: 10 }
  sliding: { strategy: slidingWindow, limit: 10, period: 1h }
  log: { strategy: slidingWindowLog, limit: 3, period: 1h }
  month: { strategy: quota, limit: 100, resetCadence: calendar-month }
  leased: { strategy: gcra, limit: 5, period: 1h, burst: 5, twoTier: { mode: leased, batch: 5 } }
  lent: { strategy: fixedWindow, limit: 1000, period: 1h, federated: { batch: 16 } }
  places: { concurrency: { minLimit: 1, maxLimit: 4 }, shadow: [places-b] }
  places-b: { concurrency: { minLimit: 1, maxLimit: 2 } }
  both: { strategy: gcra, limit: 5, period: 1h, concurrency: { minLimit: 2, maxLimit: 2 } }
  tokens: { tokenBudget: { budget: 1000, period: 1m, reserve: learned }, shadow: [tokens-b] }
  tokens-b: { tokenBudget: { budget: 100, period: 1h, reserve: 7 } }
  tenants:
    fairEscrow: { limit: 1000, windowMs: 60000, weights: { gold: 5, trial: 0.5 } }
    shadow: [tenants-b]
  tenants-b: { fairEscrow: { limit: 9, windowMs: 60000 } }
  tried: { strategy: gcra, limit: 2, period: 1h, shadow: true }
  tried-places: { concurrency: { minLimit: 1, maxLimit: 1 }, shadow: true }
  tried-tokens: { tokenBudget: { budget: 9, period: 1m }, shadow: true }
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
    shadow: [all-b]
  all-b:
    strategy: fixedWindow
    limit: 50
    period: 1m
    concurrency: { maxLimit: 8 }
    cost: { budget: 1000, period: 1m }
";
