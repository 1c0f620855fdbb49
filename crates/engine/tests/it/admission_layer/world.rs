//! Servers, limits and stores for the tests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use admittance::admission::{Admitter, Charged, Charges, Charging, Joint, Local, Metered, Telling};
use admittance::budget::{Act, Budget, Budgets, Charge, MemoryAccounts};
use admittance::gate::{Gate, LimitRules};
use admittance::http::{AdmissionLayer, Admitted, AskFor, Asked, ByHeader};
use admittance::{Axis, Builtin, Cadence, Limiter, ManualClock, Micros, Span, StoreError, Window};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderName, Request, Response, StatusCode};
use axum::routing::get;
use axum::{Extension, Router};
use http_body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

pub(crate) type Here = Local<Builtin, ManualClock>;

/// The start of a minute.
pub(crate) fn start() -> Micros {
    Micros::from_epoch_ms(1_700_000_040_000).unwrap()
}

/// Axes of this process on a clock that a test moves.
pub(crate) struct Limits<X: Charges> {
    pub(crate) clock: ManualClock,
    pub(crate) gate: Gate,
    accounts: Arc<MemoryAccounts<ManualClock>>,
    budget: Budget,
    pub(crate) admitter: Admitter<X>,
}

/// So many requests and units a minute for each key, and so many at once.
pub(crate) fn limits(requests: u64, units: u64, places: u32) -> Limits<Here> {
    limits_of(requests, units, places, |charges| charges)
}

pub(crate) fn limits_of<X: Charges>(
    requests: u64,
    units: u64,
    places: u32,
    wrap: impl FnOnce(Here) -> X,
) -> Limits<X> {
    let clock = ManualClock::at(start());
    let minute = Span::from_secs(60);
    let window = Window::fixed(requests, minute).unwrap();
    let rate = Limiter::builder(Builtin::from(window)).clock(clock.clone()).build();
    let budget = Budget::new(units, Cadence::every(minute)).unwrap();
    let budgets = Budgets::new("tokens", [budget]).unwrap();
    let accounts = Arc::new(MemoryAccounts::new(clock.clone()));
    let charges = Local::on(clock.clone()).rate(rate).cost_in(Arc::clone(&accounts), &budgets);
    let gate = Gate::new(LimitRules::fixed(places)).unwrap();
    let admitter = Admitter::new(wrap(charges)).concurrency(gate.clone()).build().unwrap();
    Limits { clock, gate, accounts, budget, admitter }
}

/// The same without rate and cost, and with prices.
pub(crate) fn priced(joint: Joint) -> Limits<Here> {
    let limits = limits(100, 1_000, 8);
    let admitter = Admitter::new(Local::on(limits.clock.clone()));
    let admitter = admitter.concurrency(limits.gate.clone()).joint(joint).build().unwrap();
    Limits { admitter, ..limits }
}

impl<X: Charges> Limits<X> {
    /// Whether nothing is in flight and nothing is reserved.
    pub(crate) fn is_idle(&self) -> bool {
        self.gate.stats().in_flight == 0 && self.open() == 0
    }

    /// How many leases are open. What none has reserved is checked with it.
    pub(crate) fn open(&self) -> u32 {
        let of = |key: &str| {
            let (policy, budget, key) = ("tokens", &self.budget, key.as_bytes());
            let charge = Charge { policy, budget, key, units: 0 };
            let standing = self.accounts.one_now(&charge, Act::Look).unwrap().standing;
            assert!(standing.open > 0 || standing.reserved == 0, "{standing:?}");
            standing.open
        };
        of("ann") + of("bob")
    }

    /// What is left of the rate and of the budget.
    pub(crate) async fn left(&self, key: &str) -> (u64, u64) {
        let looked = self.admitter.charges().look(key.as_bytes(), 1).await.unwrap();
        (looked.rate.unwrap().remaining, looked.cost.unwrap().remaining)
    }
}

/// A layer by the header of a user, with cost and worth from headers; health checks are exempt.
pub(crate) fn layer<X: Charges>(
    limits: &Limits<X>,
) -> AdmissionLayer<X, impl AskFor<Request<Body>> + Clone + Send + Sync + 'static + use<X>> {
    let by_user = ByHeader(HeaderName::from_static("x-user"));
    AdmissionLayer::new(limits.admitter.clone(), move |request: &Request<Body>| {
        let number = |name| request.headers().get(name)?.to_str().ok()?.parse::<u32>().ok();
        let asked = by_user.ask(request).cost(number("x-cost").unwrap_or(1).into());
        match (request.uri().path(), number("x-value")) {
            ("/healthz", _) => Asked::exempt(),
            (_, Some(value)) => asked.value(value.into()).hold_ms(1.0),
            (_, None) => asked,
        }
    })
}

/// A body whose frames a test sends.
struct Sent(mpsc::UnboundedReceiver<Result<Frame<Bytes>, &'static str>>);

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(context)
    }
}

pub(crate) type Frames = mpsc::UnboundedSender<Result<Frame<Bytes>, &'static str>>;

/// A stream that has begun: its frames come from the test, which has its admission too.
pub(crate) struct Stream {
    pub(crate) frames: Frames,
    pub(crate) admitted: Option<Admitted>,
}

/// A server whose streams the test drives.
pub(crate) async fn serve(
    wrap: impl FnOnce(Router) -> Router,
) -> (SocketAddr, mpsc::UnboundedReceiver<Stream>) {
    let (begun, streams) = mpsc::unbounded_channel();
    let stream = move |admitted: Option<Extension<Admitted>>| {
        let begun = begun.clone();
        async move {
            let (frames, sent) = mpsc::unbounded_channel();
            let admitted = admitted.map(|Extension(admitted)| admitted);
            begun.send(Stream { frames, admitted }).unwrap();
            Response::new(Body::new(Sent(sent)))
        }
    };
    // As a proxy passes on what it was told: its length is known, and its end is not said.
    let sized = || async {
        let (frames, sent) = mpsc::unbounded_channel();
        let parts = ["four", "and five"].map(|part| Ok(Frame::data(Bytes::from(part))));
        parts.into_iter().for_each(|part| frames.send(part).unwrap());
        let body = Body::new(Sent(sent));
        // Whoever asks for more waits.
        tokio::spawn(async move { frames.closed().await });
        Response::builder().header("content-length", "12").body(body).unwrap()
    };
    let metered = |Extension(admitted): Extension<Admitted>| async move {
        let mut flows = Vec::new();
        for units in [30, 40] {
            flows.push(format!("{:?}", admitted.debit(units).await.unwrap().flow));
        }
        let _ = admitted.settle(75).await.unwrap();
        Ok::<_, Infallible>(flows.join(" "))
    };
    let busy = || async { (StatusCode::SERVICE_UNAVAILABLE, "not now") };
    let app = Router::new()
        .route("/", get(|| async { "done" }))
        .route("/healthz", get(|| async { "done" }))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }))
        .route("/unmodified", get(|| async { (StatusCode::NOT_MODIFIED, "as you know it") }))
        .route("/busy", get(busy))
        .route("/metered", get(metered))
        .route("/panic", get(panics))
        .route("/sized", get(sized))
        .route("/stream", get(stream));
    let app = wrap(app).into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, streams)
}

async fn panics() -> &'static str {
    panic!("a handler that panics")
}

/// A connection on which this was asked for.
pub(crate) async fn ask_for(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    ask_with("GET", address, path, headers).await
}

pub(crate) async fn ask_with(
    method: &str,
    address: SocketAddr,
    path: &str,
    headers: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

pub(crate) async fn answer(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut bytes = Vec::new();
    // A server that gives up closes the connection, if need be hard.
    let _ = ask_for(address, path, headers).await.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap().to_lowercase()
}

/// Waits for what another task will do; a minute is for a machine that is very busy.
pub(crate) async fn until(what: impl Fn() -> bool) {
    let waits = async {
        while !what() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("it never came about");
}

/// A store that has an error for every ask.
pub(crate) struct Faulty(StoreError);

impl Faulty {
    pub(crate) const fn new(error: StoreError) -> Self {
        Self(error)
    }
}

impl Charges for Faulty {
    fn has(&self, axis: Axis) -> bool {
        axis == Axis::Rate
    }

    fn now(&self) -> Micros {
        start()
    }

    async fn charge(&self, _: Charging<'_>) -> Result<Charged, StoreError> {
        Err(self.0.clone())
    }

    async fn look(&self, _: &[u8], _: u64) -> Result<Charged, StoreError> {
        Err(self.0.clone())
    }

    async fn meter(&self, _: Telling<'_>) -> Result<Metered, StoreError> {
        Err(self.0.clone())
    }
}

/// Axes that are asked over a network: every answer waits until the test lets it pass.
pub(crate) struct Far {
    here: Here,
    pub(crate) is_open: AtomicBool,
    pub(crate) asked: AtomicU64,
    let_pass: Notify,
}

impl Far {
    pub(crate) fn new(here: Here) -> Self {
        let (is_open, asked) = (AtomicBool::new(true), AtomicU64::new(0));
        Self { here, is_open, asked, let_pass: Notify::new() }
    }

    pub(crate) fn open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::SeqCst);
        self.let_pass.notify_waiters();
    }

    async fn wait(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        loop {
            let passing = self.let_pass.notified();
            if self.is_open.load(Ordering::SeqCst) {
                return;
            }
            passing.await;
        }
    }
}

impl Charges for Far {
    fn has(&self, axis: Axis) -> bool {
        self.here.has(axis)
    }

    fn now(&self) -> Micros {
        Charges::now(&self.here)
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        self.wait().await;
        self.here.charge(ask).await
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        self.here.look(key, cost).await
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        self.wait().await;
        self.here.meter(told).await
    }
}
