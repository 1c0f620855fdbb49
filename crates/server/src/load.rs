//! How the service protects itself: which of its calls are shed first, how a call that is shed is
//! answered, and since when a call has been here.
//!
//! # Guarantee
//! - Every method of every service has a class, and health checks have none: they are never shed.
//! - A call that is shed is answered `RESOURCE_EXHAUSTED`, with the time until the answer may be
//!   another in `grpc-retry-pushback-ms` and as `google.rpc.RetryInfo`.
//! - What a call waited for the task of its connection counts as its wait.
//!
//! # Proven by
//! The tests below; `tests/it/load.rs`; `tests/it/load.rs` of the command, under three times what
//! it can do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use admittance::Span;
use admittance::load::{Arrival, Class, Shed, Shedder, Sorted};
use admittance_proto::load as wire;
use admittance_proto::load::load_server::Load;
use http::Response;
use prost::Message;
use tonic::body::Body;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::grpc::Reply;
use crate::service::Service;

/// What is done with the calls of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Never shed.
    Exempt,
    /// Shed with its class.
    Of(Class),
    /// The same, but a policy may have it shed by key or with another class.
    OfPolicy(Class),
}

/// What is done with a method, by its path. A path that no service has is answered as unknown,
/// which is worth little.
pub(crate) fn kind(path: &str) -> Kind {
    // The paths of the HTTP door have theirs where they are dispatched.
    if let Some(kind) = crate::http::kind(path) {
        return kind;
    }
    let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
    listed(service, method).unwrap_or(Kind::Of(Class::Background))
}

fn listed(service: &str, method: &str) -> Option<Kind> {
    use Class::{Background, Critical, Default, Sheddable};
    Some(match (service, method) {
        // Who does not hear that this process lives restarts it, and then nobody is served.
        ("/grpc.health.v1.Health", _) => Kind::Exempt,
        // What frees something, or keeps it from being taken back, relieves everybody.
        ("/throttlekit.v1.RateLimiter", "Release" | "Heartbeat") => Kind::Of(Critical),
        ("/admittance.v1.Budgets", "Settle") => Kind::Of(Critical),
        ("/throttlekit.v1.RateLimiter", "Check" | "CheckMany" | "Debit" | "Admit") => {
            Kind::OfPolicy(Default)
        }
        ("/admittance.v1.Admissions", "Admit") => Kind::OfPolicy(Default),
        ("/admittance.v1.Admissions", "Explain") => Kind::Of(Sheddable),
        ("/admittance.v1.Budgets", "Reserve" | "Debit") => Kind::Of(Default),
        ("/throttlekit.v1.Fleet", "Reserve") => Kind::Of(Default),
        ("/throttlekit.v1.RateLimiter", "Peek" | "Forecast") => Kind::Of(Sheddable),
        ("/admittance.v1.Budgets", "Look") => Kind::Of(Sheddable),
        // What an operator wants to know just then.
        ("/admittance.v1.Load", "Status") => Kind::Of(Sheddable),
        ("/throttlekit.v1.Monitor", "GetSnapshot" | "Watch") => Kind::Of(Background),
        ("/grpc.reflection.v1.ServerReflection", _) => Kind::Of(Background),
        ("/grpc.reflection.v1alpha.ServerReflection", _) => Kind::Of(Background),
        _ => return None,
    })
}

/// Sorts calls; with `by_policy` those that a policy has a say in are left to it.
pub(crate) fn sort(path: &str, peer: &Peer, by_policy: bool) -> Sorted {
    let sorted = match kind(path) {
        Kind::Exempt => return Sorted::exempt(),
        Kind::OfPolicy(class) if by_policy => Sorted::later(class),
        Kind::Of(class) | Kind::OfPolicy(class) => Sorted::any(class),
    };
    match peer.ready.arrival() {
        Some(arrival) => sorted.since(arrival),
        None => sorted,
    }
}

/// The answer to a call that is shed.
pub(crate) fn refuse(shed: Shed) -> Response<Body> {
    status(shed).into_http()
}

/// The same as a status.
pub(crate) fn status(shed: Shed) -> Status {
    let (code, message) = (Code::ResourceExhausted, shed.to_string());
    let mut metadata = MetadataMap::new();
    // What clients that retry by themselves go by.
    metadata.insert("grpc-retry-pushback-ms", MetadataValue::from(shed.retry.ms_ceil()));
    let details = Details::new(code, &message, shed.retry).encode_to_vec();
    Status::with_details_and_metadata(code, message, details.into(), metadata)
}

/// `google.rpc.Status` with one detail.
#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, optional, tag = "3")]
    detail: Option<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, Copy, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Duration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl Details {
    fn new(code: Code, message: &str, retry: Span) -> Self {
        let seconds = i64::try_from(retry.us() / 1_000_000).unwrap_or(i64::MAX);
        let nanos = i32::try_from(retry.us() % 1_000_000 * 1_000).unwrap_or(0);
        let info = RetryInfo { retry_delay: Some(Duration { seconds, nanos }) };
        let type_url = "type.googleapis.com/google.rpc.RetryInfo".to_owned();
        let detail = Some(Any { type_url, value: info.encode_to_vec() });
        Self { code: code.into(), message: message.to_owned(), detail }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) ready: Arc<Ready>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, shedder: Option<Shedder>) -> Self {
        Self { address, ready: Ready::new(shedder) }
    }
}

/// Since when a connection has had something to read. A request begins, and with it the layer, only
/// after the task of its connection has read it: on one busy worker that can be several requests
/// later.
#[derive(Debug)]
pub(crate) struct Ready {
    shedder: Option<Shedder>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waker: Option<Waker>,
    /// When there was something to read, since it was last waited for.
    noted: Option<Arrival>,
    /// That of what was read last.
    read: Option<Arrival>,
}

impl Ready {
    pub(crate) fn new(shedder: Option<Shedder>) -> Arc<Self> {
        Arc::new(Self { shedder, state: Mutex::default() })
    }

    /// Whether anybody wants to know.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.shedder.is_some()
    }

    /// The task looks for something to read, and is to be woken if there is nothing.
    pub(crate) fn looks(&self, task: &Waker) {
        let mut state = self.state();
        match &mut state.waker {
            Some(waker) => waker.clone_from(task),
            none => *none = Some(task.clone()),
        }
    }

    /// Something was read, or nothing was there. What one look after the other finds was there at
    /// the first.
    pub(crate) fn has_looked(&self, has_read: bool) {
        let mut state = self.state();
        if has_read {
            let now = || self.shedder.as_ref().map(Shedder::arrival);
            state.noted = state.noted.or_else(now);
            state.read = state.noted;
        } else {
            state.noted = None;
        }
    }

    fn arrival(&self) -> Option<Arrival> {
        self.state().read
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Called when there is something to read.
impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state();
        if state.noted.is_none() {
            state.noted = self.shedder.as_ref().map(Shedder::arrival);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Says how the service stands.
#[derive(Clone, Debug)]
pub(crate) struct LoadDoor {
    service: Arc<Service>,
}

impl LoadDoor {
    pub(crate) const fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

#[tonic::async_trait]
impl Load for LoadDoor {
    async fn status(
        &self,
        _: tonic::Request<wire::LoadStatusRequest>,
    ) -> Reply<wire::LoadStatusResponse> {
        Ok(tonic::Response::new(standing(&self.service)))
    }
}

/// How a service stands against its load.
pub(crate) fn standing(service: &Service) -> wire::LoadStatusResponse {
    let Some(shedder) = service.shedder() else {
        return wire::LoadStatusResponse { percent: 100, ..Default::default() };
    };
    let status = shedder.status();
    let classes = Class::ALL.into_iter().zip(status.rejected_by_class);
    let classes = classes.map(|(class, rejected)| {
        let name = class.name().to_owned();
        wire::LoadClass { name, rejected }
    });
    wire::LoadStatusResponse {
        enabled: true,
        percent: status.percent,
        allowed: status.allowed,
        rejected: status.rejected,
        classes: classes.collect(),
        step: status.step,
        average_us: status.average.us(),
        spread_us: status.spread.us(),
        waiting: status.waiting,
        room: status.room,
        probes_sent: status.probes_sent,
        probes_finished: status.probes_finished,
        probes_lost: status.probes_lost,
        adjustments: status.adjustments,
        moves: status.moves,
        stuck_workers: status.stuck_workers,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use admittance_proto::DESCRIPTORS;
    use prost_types::FileDescriptorSet;

    use super::*;

    type Table = fn(&str, &str) -> Option<Kind>;

    /// The methods that a table has no class for.
    fn missing(table: Table) -> BTreeSet<String> {
        let sets = [
            DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut missing = BTreeSet::new();
        for set in sets {
            for file in FileDescriptorSet::decode(set).expect("our own").file {
                for service in &file.service {
                    let path = format!("/{}.{}", file.package(), service.name());
                    let methods = service.method.iter().map(|method| method.name());
                    let unlisted = methods.filter(|method| table(&path, method).is_none());
                    missing.extend(unlisted.map(|method| format!("{path}/{method}")));
                }
            }
        }
        missing
    }

    #[test]
    fn every_method_of_every_service_has_a_class() {
        assert_eq!(missing(listed), BTreeSet::new());
    }

    #[test]
    fn a_method_without_a_class_is_found() {
        let without: Table = |service, method| listed(service, method).filter(|_| method != "Look");
        let found: Vec<_> = missing(without).into_iter().collect();
        assert_eq!(found, ["/admittance.v1.Budgets/Look"]);
    }

    #[test]
    fn monitoring_goes_first_then_checks_then_what_relieves_everybody() {
        let class = |path: &str| match kind(path) {
            Kind::Of(class) | Kind::OfPolicy(class) => class,
            Kind::Exempt => panic!("{path} is exempt"),
        };
        let order = [
            "/throttlekit.v1.RateLimiter/Release",
            "/throttlekit.v1.RateLimiter/Check",
            "/throttlekit.v1.RateLimiter/Peek",
            "/throttlekit.v1.Monitor/Watch",
        ];
        assert_eq!(order.map(class), Class::ALL);
        for health in ["/grpc.health.v1.Health/Check", "/healthz", "/readyz"] {
            assert_eq!(kind(health), Kind::Exempt, "{health}");
        }
        let order = ["/v1/release", "/v1/check", "/v1/peek", "/openapi.json"];
        assert_eq!(order.map(class), Class::ALL);
        for unknown in ["", "/", "/a/b/c", "Check", "/throttlekit.v1.RateLimiter/"] {
            assert_eq!(kind(unknown), Kind::Of(Class::Background), "{unknown:?}");
        }
    }

    #[test]
    fn what_is_read_has_been_here_since_the_task_was_woken() {
        let shedder = Shedder::new(admittance::load::LoadRules::default()).expect("in range");
        let ready = Ready::new(Some(shedder));
        ready.looks(Waker::noop());
        Waker::from(Arc::clone(&ready)).wake();
        let woken = ready.state().noted.expect("noted");
        // Several looks find what came together.
        for _ in 0..3 {
            ready.looks(Waker::noop());
            ready.has_looked(true);
            assert_eq!(ready.arrival(), Some(woken));
        }
        ready.has_looked(false);
        // What is found without a wait has only just come.
        ready.has_looked(true);
        assert_ne!(ready.arrival(), Some(woken));
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let status = status(Shed { class: Class::Default, retry: Span::from_us(40_250) });
        assert_eq!(status.code(), Code::ResourceExhausted);
        let said = "this process is behind and sheds default work; ask again in 41 ms";
        assert_eq!(status.message(), said);
        let pushback = status.metadata().get("grpc-retry-pushback-ms").expect("a hint");
        assert_eq!(pushback, "41");
        let details = Details::decode(status.details()).expect("details");
        let info = RetryInfo::decode(&*details.detail.expect("one").value).expect("RetryInfo");
        assert_eq!(info.retry_delay, Some(Duration { seconds: 0, nanos: 40_250_000 }));
    }
}
