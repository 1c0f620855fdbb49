//! Which door answers a request: by its path, and by whether it says that it is gRPC.
//!
//! # Guarantee
//! - A call that there is no [room](super::room) for is refused before it is read.
//! - Every request is answered, within [`CALL_MAX`] or what its caller allows if that is less.
//! - What is shed, what there is no room for, and what takes too long, is answered in the words of
//!   the protocol that it came in.
//!
//! # Proven by
//! The tests below and in `dispatch/room_tests.rs`; `tests/it/load.rs` and `tests/it/http_load.rs`.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use admittance::load::{
    LoadFuture, LoadLayer, LoadRules, LoadService, RefuseShed, Shed, Shedder, Sort, Sorted,
};
use admittance_proto::admissions::admissions_server::AdmissionsServer;
use admittance_proto::budgets::budgets_server::BudgetsServer;
use admittance_proto::load::load_server::LoadServer;
use admittance_proto::v1::fleet_server::FleetServer;
use admittance_proto::v1::monitor_server::MonitorServer;
use admittance_proto::v1::rate_limiter_server::RateLimiterServer;
use admittance_proto::{ADMISSIONS, BUDGETS, DESCRIPTORS, FLEET, LOAD, MONITOR, RATE_LIMITER};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic_health::pb::health_server::HealthServer;
use tower_layer::Layer;
use tower_service::Service as Tower;
use tracing::instrument::Instrumented;
use tracing::{Instrument as _, Span};

use super::call::Call;
use super::room::{Answer, Arriving, Call as Charged, Held, NoRoom};
use super::{CALL_MAX, Doors, MESSAGE_MAX, Parents, ServeError};
use crate::Service;
use crate::admissions::AdmissionsDoor;
use crate::budgets::BudgetsDoor;
use crate::door_secret::DoorSecret;
use crate::fleet::FleetDoor;
use crate::grpc::RateLimiterDoor;
use crate::health::{Healthy, Served};
use crate::http::HttpDoor;
use crate::load::{self, LoadDoor};
use crate::monitor::door::MonitorDoor;
use crate::observe::doors::DoorCounts;

/// All doors.
pub(super) struct Dispatch {
    grpc: LoadService<Grpc, Sorting, RefuseGrpc>,
    http: LoadService<HttpDoor, Sorting, RefuseHttp>,
    seen: Seen,
}

/// What requests are counted in, and which traces they belong to.
struct Seen {
    counts: Arc<DoorCounts>,
    parents: Parents,
}

impl Dispatch {
    pub(super) fn new(
        service: &Arc<Service>,
        doors: &Doors,
        draining: &watch::Receiver<bool>,
    ) -> Result<Self, ServeError> {
        // Both doors show it, one look at a time.
        let monitor = service.monitor().is_on().then(|| {
            MonitorDoor::new(Arc::clone(service), doors.monitor.clone(), draining.clone())
        });
        let grpc = Services::new(service, &doors.fleet, monitor.clone(), draining)?;
        let grpc = Grpc(Arc::new(grpc));
        let http = HttpDoor::new(Arc::clone(service), doors.fields, monitor, draining.clone());
        let shedder = service.shedder().cloned().unwrap_or_else(|| {
            let idle = Shedder::new(LoadRules::default());
            idle.expect("the defaults are in range")
        });
        let shedding = LoadLayer::new(shedder).sort_with(Sorting(Arc::clone(service)));
        Ok(Self {
            grpc: shedding.clone().refuse_with(RefuseGrpc).layer(grpc),
            http: shedding.refuse_with(RefuseHttp).layer(http),
            seen: Seen {
                counts: Arc::clone(service.counts().doors()),
                parents: doors.parents.clone(),
            },
        })
    }

    /// Answers one request, if there is room for it.
    pub(super) fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        held: &Arc<Held>,
    ) -> Answering {
        let is_grpc = is_grpc(&request);
        let seen = Call::of(&request, is_grpc);
        let unusual = is_grpc.then(|| Unusual::of(request.uri().path())).flatten();
        let is_head = request.method() == Method::HEAD;
        let dispatch = Arc::clone(self);
        let (call, stage, is_refused) = match entered(request, unusual, held) {
            Ok((call, request)) => (call, Stage::Waits { request: Some(request) }, false),
            Err(none) => {
                let timed = refused(no_room(none, is_grpc)).instrument(Span::none());
                (held.refused(), Stage::Runs { timed }, true)
            }
        };
        let call = Some(call);
        Answering { stage, call, dispatch, seen, unusual, is_grpc, is_head, is_refused }
    }

    /// Has a door begin to answer.
    fn begin(&self, request: Request<Arriving>, seen: Call, is_grpc: bool) -> Instrumented<Timed> {
        let span = seen.span(&request, &self.seen.parents).unwrap_or_else(Span::none);
        span.in_scope(|| self.door(request, is_grpc)).instrument(span)
    }

    fn door(&self, request: Request<Arriving>, is_grpc: bool) -> Timed {
        match is_grpc {
            true if request.version() != Version::HTTP_2 => refused(crate::http::needs_http2()),
            true => timeout(allowed(request.headers()), self.grpc.clone().call(request)),
            false => timeout(CALL_MAX, self.http.clone().call(request)),
        }
    }
}

/// A call that ends in time. Both doors have the same type of future.
type Timed = tokio::time::Timeout<LoadFuture<Door, Body>>;
type Door = BoxFuture<Response<Body>, Infallible>;

fn refused(response: Response<Body>) -> Timed {
    timeout(CALL_MAX, LoadFuture::Shed { response: Some(response) })
}

pin_project! {
    /// A request that is being answered. Not an `async` block, which would hold what it awaits
    /// twice, and is moved with all that before it begins.
    pub(super) struct Answering {
        #[pin]
        stage: Stage,
        call: Option<Arc<Charged>>,
        dispatch: Arc<Dispatch>,
        seen: Call,
        unusual: Option<Unusual>,
        is_grpc: bool,
        is_head: bool,
        is_refused: bool,
    }
}

pin_project! {
    /// A door is asked in the request's own first turn: its wait until then counts as one, and what
    /// panics there ends that request.
    #[project = Staged]
    enum Stage {
        Waits { request: Option<Request<Arriving>> },
        Runs { #[pin] timed: Instrumented<Timed> },
    }
}

impl Future for Answering {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let is_grpc = *this.is_grpc;
        if let Staged::Waits { request } = this.stage.as_mut().project() {
            let request = request.take().expect("it begins once");
            let timed = this.dispatch.begin(request, *this.seen, is_grpc);
            this.stage.set(Stage::Runs { timed });
        }
        let Staged::Runs { mut timed } = this.stage.project() else {
            unreachable!("it has just begun");
        };
        let response = match ready!(timed.as_mut().poll(context)) {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_) if is_grpc => Status::deadline_exceeded("the call took too long").into_http(),
            Err(_) => crate::http::too_late(),
        };
        let span = timed.span();
        if !span.is_none() {
            this.seen.record(span, &response);
        }
        this.seen.count(&this.dispatch.seen.counts, &response);
        let response = if *this.is_head { head_of(response) } else { response };
        let call = this.call.take().expect("a future is not polled after it is done");
        Poll::Ready(Ok(match *this.is_refused {
            true => response.map(|body| Answer::new(body, call)),
            false => sent(response, call, *this.unusual, is_grpc),
        }))
    }
}

/// An answer as its peer takes it.
fn sent(
    response: Response<Body>,
    call: Arc<Charged>,
    unusual: Option<Unusual>,
    is_grpc: bool,
) -> Response<Answer> {
    if unusual == Some(Unusual::Watch) {
        call.goes_on();
        return response.map(|body| Answer::watch(body, call));
    }
    // What is shown rather than asked for may be long, whatever the request was.
    let response = match call.fits(response.body().size_hint().lower()) {
        Ok(()) => response,
        Err(none) => no_room(none, is_grpc),
    };
    response.map(|body| Answer::new(body, call))
}

/// What is said where there is no room.
fn no_room(none: NoRoom, is_grpc: bool) -> Response<Body> {
    match is_grpc {
        true => Status::resource_exhausted(none.to_string()).into_http(),
        false => crate::http::no_room(&none.to_string()),
    }
}

/// A request that there is room for.
fn entered(
    request: Request<Incoming>,
    unusual: Option<Unusual>,
    held: &Arc<Held>,
) -> Result<(Arc<Charged>, Request<Arriving>), NoRoom> {
    let call = held.call(&request)?;
    let (head, body) = request.into_parts();
    let body = match unusual {
        Some(Unusual::Talk) => Arriving::talk(body, Arc::clone(&call))?,
        Some(Unusual::Shown) => {
            call.fits(SHOWN_MAX)?;
            Arriving::new(body, Arc::clone(&call))
        }
        Some(Unusual::Watch) | None => Arriving::new(body, Arc::clone(&call)),
    };
    Ok((call, Request::from_parts(head, body)))
}

/// Calls whose requests do not tell how much room they need, or for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusual {
    /// The answer goes on, for as long as the caller listens.
    Watch,
    /// The request goes on too.
    Talk,
    /// The answer is long, whatever the request was.
    Shown,
}

impl Unusual {
    fn of(path: &str) -> Option<Self> {
        match (named(path), path.rsplit('/').next()) {
            (HEALTH | MONITOR, Some("Watch")) => Some(Self::Watch),
            (MONITOR, _) => Some(Self::Shown),
            (REFLECTION | REFLECTION_ALPHA, _) => Some(Self::Talk),
            _ => None,
        }
    }
}

/// An answer to HEAD: what the whole one would say of its length, and nothing more. Over HTTP/2 the
/// transport would send the body, which a client takes for a broken connection.
fn head_of(answer: Response<Body>) -> Response<Body> {
    let length = answer.body().size_hint().exact();
    let (mut head, _) = answer.into_parts();
    if let Some(length) = length.filter(|length| *length > 0) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(head, Body::empty())
}

/// Whether a request is a gRPC call: its path begins with a dotted name, and it says so. Who does
/// not say so would take the answer, which is 200 whatever comes of it, for an admission.
fn is_grpc<B>(request: &Request<B>) -> bool {
    let path = request.uri().path().strip_prefix('/').unwrap_or_default();
    let kind = request.headers().get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    path.split_once('/').is_some_and(|(service, _)| service.contains('.'))
        && kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// The service that a path names.
fn named(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or(path, |(service, _)| service)
}

/// How long a call may take: what its caller says, if that is less than what we say.
fn allowed(headers: &HeaderMap) -> Duration {
    let given = headers.get("grpc-timeout").and_then(|value| value.to_str().ok());
    given.and_then(in_words).map_or(CALL_MAX, |given| given.min(CALL_MAX))
}

/// At most eight digits and a unit.
fn in_words(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// For services that want to know who asks.
fn with_peer(mut request: Request<Arriving>) -> Request<Arriving> {
    let peer = request.body().peer().clone();
    request.extensions_mut().insert(peer);
    request
}

/// The gRPC services by their names.
#[derive(Clone)]
struct Grpc(Arc<Services>);

struct Services {
    limiter: RateLimiterServer<RateLimiterDoor>,
    admissions: AdmissionsServer<AdmissionsDoor>,
    status: LoadServer<LoadDoor>,
    service: Arc<Service>,
    fleet: FleetServer<FleetDoor>,
    budgets: BudgetsServer<BudgetsDoor>,
    monitor: Option<MonitorServer<MonitorDoor>>,
    health: HealthServer<Healthy>,
    /// For each [`Served`], made when first asked.
    reflections: [OnceLock<Reflection>; Served::COUNT],
}

/// Older clients ask for v1alpha, newer ones for v1.
struct Reflection {
    v1: Boxed,
    alpha: Boxed,
}

/// A service whose type has no name.
type Boxed = Box<dyn Fn(Request<Arriving>) -> Door + Send + Sync>;

fn boxed<S>(service: S) -> Boxed
where
    S: Tower<Request<Arriving>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| Box::pin(service.clone().call(request)))
}

impl Services {
    fn new(
        service: &Arc<Service>,
        fleet: &DoorSecret,
        monitor: Option<MonitorDoor>,
        draining: &watch::Receiver<bool>,
    ) -> Result<Self, ServeError> {
        let fleet = FleetServer::new(FleetDoor::new(Arc::clone(service), fleet.clone()))
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX);
        let budgets = BudgetsServer::new(BudgetsDoor::new(Arc::clone(service)))
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX);
        let monitor = monitor.map(|door| {
            MonitorServer::new(door)
                .max_decoding_message_size(NAME_MAX)
                .max_encoding_message_size(MESSAGE_MAX)
        });
        // What is served now can be described; then so can what is served later.
        let served = Served::by(service);
        let reflections = [const { OnceLock::new() }; Served::COUNT];
        let _ = reflections[served.nth()].set(Reflection::new(served)?);
        Ok(Self {
            service: Arc::clone(service),
            limiter: RateLimiterServer::new(RateLimiterDoor::new(Arc::clone(service)))
                .max_decoding_message_size(MESSAGE_MAX)
                .max_encoding_message_size(MESSAGE_MAX),
            admissions: AdmissionsServer::new(AdmissionsDoor::new(Arc::clone(service)))
                .max_decoding_message_size(MESSAGE_MAX),
            status: LoadServer::new(LoadDoor::new(Arc::clone(service)))
                .max_decoding_message_size(MESSAGE_MAX),
            fleet,
            budgets,
            monitor,
            health: HealthServer::new(Healthy::new(draining.clone(), Arc::clone(service)))
                .max_decoding_message_size(NAME_MAX),
            reflections,
        })
    }

    fn call(&self, request: Request<Arriving>) -> Door {
        match named(request.uri().path()) {
            RATE_LIMITER => self.limiter.clone().call(request),
            ADMISSIONS => self.admissions.clone().call(request),
            LOAD => self.status.clone().call(request),
            HEALTH => self.health.clone().call(request),
            FLEET if self.service.has_federated() => self.fleet.clone().call(with_peer(request)),
            BUDGETS if self.service.has_reserved() => self.budgets.clone().call(request),
            MONITOR if let Some(monitor) = &self.monitor => {
                monitor.clone().call(with_peer(request))
            }
            REFLECTION if let Some(reflection) = self.reflection() => (reflection.v1)(request),
            REFLECTION_ALPHA if let Some(reflection) = self.reflection() => {
                (reflection.alpha)(request)
            }
            _ => {
                let unknown = Status::unimplemented("no such service is served here");
                Box::pin(async move { Ok(unknown.into_http()) })
            }
        }
    }
}

impl Services {
    /// Of what is served now: a reload may have changed it.
    fn reflection(&self) -> Option<&Reflection> {
        let served = Served::by(&self.service);
        let reflection = &self.reflections[served.nth()];
        if reflection.get().is_none() {
            let _ = reflection.set(Reflection::new(served).ok()?);
        }
        reflection.get()
    }
}

impl Reflection {
    fn new(served: Served) -> Result<Self, ServeError> {
        let v1 = reflection(served).build_v1()?.max_decoding_message_size(NAME_MAX);
        let alpha = reflection(served).build_v1alpha()?.max_decoding_message_size(NAME_MAX);
        Ok(Self { v1: boxed(v1), alpha: boxed(alpha) })
    }
}

impl Tower<Request<Arriving>> for Grpc {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Door;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Arriving>) -> Door {
        self.0.call(request)
    }
}

/// Reflection of what is served here, which is less than what the contract describes.
fn reflection(served: Served) -> tonic_reflection::server::Builder<'static> {
    let mut reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(RATE_LIMITER)
        .with_service_name(ADMISSIONS)
        .with_service_name(LOAD)
        .with_service_name(HEALTH)
        .with_service_name(REFLECTION)
        .with_service_name(REFLECTION_ALPHA);
    for name in served.names() {
        reflection = reflection.with_service_name(name);
    }
    reflection
}

/// Says which calls are shed first.
#[derive(Clone, Debug)]
struct Sorting(Arc<Service>);

impl Sort<Request<Arriving>> for Sorting {
    fn sort(&self, request: &Request<Arriving>, _: &Shedder) -> Sorted {
        let (path, peer) = (request.uri().path(), request.body().peer());
        match self.0.shedder() {
            Some(_) => load::sort(path, peer, self.0.is_shed_by_policy()),
            None => Sorted::exempt(),
        }
    }
}

/// Answers those that are.
#[derive(Clone, Copy, Debug)]
struct RefuseGrpc;

impl RefuseShed<Body> for RefuseGrpc {
    fn refuse(&self, shed: Shed) -> Response<Body> {
        load::refuse(shed)
    }
}

/// The same for requests over HTTP.
#[derive(Clone, Copy, Debug)]
struct RefuseHttp;

impl RefuseShed<Body> for RefuseHttp {
    fn refuse(&self, shed: Shed) -> Response<Body> {
        crate::http::shed(shed)
    }
}

/// What a snapshot holds at most, as it is made and as it is sent.
const SHOWN_MAX: u64 = 8 << 20;
/// The most bytes of a message that names something, and does nothing else.
const NAME_MAX: usize = 16 << 10;
const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

#[cfg(test)]
mod room_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_may_allow_less_time_and_not_more() {
        for (text, wanted) in [
            ("5S", Duration::from_secs(5)),
            ("1H", CALL_MAX),
            ("20m", Duration::from_millis(20)),
            ("99999999u", CALL_MAX),
            ("7n", Duration::from_nanos(7)),
            ("0S", Duration::ZERO),
            ("", CALL_MAX),
            ("S", CALL_MAX),
            ("123456789m", CALL_MAX),
            ("-1S", CALL_MAX),
            ("5µ", CALL_MAX),
        ] {
            let mut headers = HeaderMap::new();
            let value = http::HeaderValue::from_bytes(text.as_bytes()).expect("a header");
            headers.insert("grpc-timeout", value);
            assert_eq!(allowed(&headers), wanted, "{text:?}");
        }
    }

    #[test]
    fn an_answer_to_head_has_a_length_and_no_body() {
        let whole = crate::http::too_late();
        let length = whole.body().size_hint().exact().expect("known");
        let head = head_of(whole);
        assert!(head.body().is_end_stream());
        assert_eq!(head.headers()[CONTENT_LENGTH], http::HeaderValue::from(length));
        let empty = head_of(Status::unimplemented("no").into_http());
        assert!(empty.body().is_end_stream() && !empty.headers().contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn calls_that_need_other_room_are_known_by_their_paths() {
        for (path, unusual) in [
            ("/grpc.health.v1.Health/Watch", Some(Unusual::Watch)),
            ("/grpc.health.v1.Health/Check", None),
            ("/throttlekit.v1.Monitor/Watch", Some(Unusual::Watch)),
            ("/throttlekit.v1.Monitor/GetSnapshot", Some(Unusual::Shown)),
            ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Some(Unusual::Talk)),
            ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Some(Unusual::Talk)),
            ("/throttlekit.v1.RateLimiter/CheckMany", None),
        ] {
            assert_eq!(Unusual::of(path), unusual, "{path}");
        }
    }

    #[test]
    fn a_path_names_its_service() {
        for (path, name) in [
            ("/throttlekit.v1.RateLimiter/Check", RATE_LIMITER),
            ("/grpc.health.v1.Health/", HEALTH),
            ("/v1/check", "v1"),
            ("/", ""),
            ("*", "*"),
        ] {
            assert_eq!(named(path), name);
        }
    }
}
