//! What is counted of connections and of the requests that come over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::stripes::Striped;

/// Counts of everything that is served on a port.
#[derive(Debug, Default)]
pub(crate) struct DoorCounts {
    accepted: AtomicU64,
    open: AtomicU64,
    unshaken: AtomicU64,
    turned_away: AtomicU64,
    grpc: [Striped<{ GRPC_CODES.len() }>; CALLS.len()],
    http: [Striped<{ HTTP_CODES.len() }>; CALLS.len()],
}

/// Which door a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorKind {
    /// The services with dotted names.
    Grpc,
    /// Every other path.
    Http,
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct Open(Arc<DoorCounts>);

/// What was counted of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) accepted: u64,
    pub(crate) open: u64,
    pub(crate) unshaken: u64,
    pub(crate) turned_away: u64,
}

impl DoorCounts {
    /// A connection was accepted; it is open until what this gives is dropped.
    pub(crate) fn accepted(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// A handshake did not succeed.
    pub(crate) fn unshaken(&self) {
        self.unshaken.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection came from an address that has too many.
    pub(crate) fn turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with this code: a gRPC status, or one of HTTP.
    pub(crate) fn answered(&self, door: DoorKind, call: usize, code: u16) {
        match door {
            DoorKind::Grpc => self.grpc[call].add(code.into(), 1),
            DoorKind::Http => {
                let known = HTTP_CODES.iter().position(|known| *known == code);
                self.http[call].add(known.unwrap_or(0), 1);
            }
        }
    }

    pub(crate) fn connections(&self) -> Connections {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (accepted, open) = (load(&self.accepted), load(&self.open));
        let (unshaken, turned_away) = (load(&self.unshaken), load(&self.turned_away));
        Connections { accepted, open, unshaken, turned_away }
    }

    /// Requests by door, call and code: all that occurred.
    pub(crate) fn requests(&self) -> Vec<(&'static str, &'static str, String, u64)> {
        let mut all = Vec::new();
        for (call, counts) in CALLS.into_iter().zip(&self.grpc) {
            let codes = GRPC_CODES.into_iter().zip(counts.sums()).filter(|(_, count)| *count > 0);
            all.extend(codes.map(|(code, count)| ("grpc", call, code.to_owned(), count)));
        }
        for (call, counts) in CALLS.into_iter().zip(&self.http) {
            let codes = HTTP_CODES.into_iter().zip(counts.sums()).filter(|(_, count)| *count > 0);
            all.extend(codes.map(|(code, count)| {
                let code = if code == 0 { "other".to_owned() } else { code.to_string() };
                ("http", call, code, count)
            }));
        }
        all
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The call that a path of a gRPC service names.
pub(crate) fn grpc_call(path: &str) -> &'static str {
    // What nearly everybody asks need not be taken apart.
    if path == "/throttlekit.v1.RateLimiter/Check" {
        return "check";
    }
    let mut parts = path.trim_start_matches('/').split('/');
    let (service, method) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let service = service.rsplit('.').next().unwrap_or_default();
    match (service, method) {
        ("RateLimiter", "Check") => "check",
        ("RateLimiter", "CheckMany") => "checkMany",
        ("RateLimiter", "Peek") => "peek",
        ("RateLimiter", "Forecast") => "forecast",
        ("RateLimiter" | "Budgets", "Debit") => "debit",
        ("RateLimiter" | "Admissions", "Admit") => "admit",
        ("RateLimiter", "Release") => "release",
        ("RateLimiter", "Heartbeat") => "heartbeat",
        ("Admissions", "Explain") => "explain",
        ("Budgets", "Reserve") => "reserve",
        ("Budgets", "Settle") => "settle",
        ("Budgets", "Look") => "budget",
        ("Fleet", "Reserve") => "lend",
        ("Load", _) => "load",
        ("Monitor", "GetSnapshot") => "snapshot",
        ("Monitor", "Watch") => "watch",
        ("Health", _) => "health",
        ("ServerReflection", _) => "reflection",
        _ => OTHER,
    }
}

/// The call that any other path names.
pub(crate) fn http_call(path: &str) -> &'static str {
    match path {
        "/v1/check" => "check",
        "/v1/check-many" => "checkMany",
        "/v1/peek" => "peek",
        "/v1/forecast" => "forecast",
        "/v1/debit" | "/v1/budgets/debit" => "debit",
        "/v1/admit" => "admit",
        "/v1/release" => "release",
        "/v1/heartbeat" => "heartbeat",
        "/v1/explain" => "explain",
        "/v1/reserve" => "reserve",
        "/v1/settle" => "settle",
        "/v1/budget" => "budget",
        "/v1/load" => "load",
        "/v1/snapshot" => "snapshot",
        "/v1/policies" => "policies",
        "/openapi.json" => "openapi",
        "/healthz" | "/readyz" => "health",
        "/metrics" => "metrics",
        _ => OTHER,
    }
}

/// Where a call is counted.
pub(crate) fn place_of(call: &str) -> usize {
    CALLS.iter().position(|known| *known == call).unwrap_or(0)
}

/// What is asked for at a path that is none of ours.
pub(crate) const OTHER: &str = "other";

/// Everything that can be asked of the service.
pub(crate) const CALLS: [&str; 22] = [
    OTHER,
    "check",
    "checkMany",
    "peek",
    "forecast",
    "debit",
    "admit",
    "release",
    "heartbeat",
    "explain",
    "reserve",
    "settle",
    "budget",
    "lend",
    "load",
    "snapshot",
    "watch",
    "policies",
    "openapi",
    "health",
    "metrics",
    "reflection",
];

/// The codes of gRPC, each in its place.
pub(crate) const GRPC_CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The codes of HTTP that the doors answer with, and first any other.
const HTTP_CODES: [u16; 22] = [
    0, 200, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 422, 429, 431, 500, 501,
    503, 504, 505,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_place() {
        let methods = [
            "/throttlekit.v1.RateLimiter/Check",
            "/admittance.v1.Budgets/Look",
            "/grpc.health.v1.Health/Check",
            "/throttlekit.v1.Fleet/Reserve",
        ];
        let names: Vec<_> = methods.into_iter().map(grpc_call).collect();
        assert_eq!(names, ["check", "budget", "health", "lend"]);
        assert_eq!(grpc_call("/a.B/c"), OTHER);
        assert_eq!(http_call("/v1/check-many"), "checkMany");
        for call in CALLS {
            assert_eq!(CALLS[place_of(call)], call);
        }
    }

    #[test]
    fn requests_are_counted_by_door_call_and_code() {
        let counts = Arc::new(DoorCounts::default());
        counts.answered(DoorKind::Grpc, place_of("check"), 5);
        counts.answered(DoorKind::Grpc, place_of("check"), 99);
        counts.answered(DoorKind::Http, place_of("check"), 429);
        counts.answered(DoorKind::Http, place_of("check"), 418);
        let of = |door, code: &str| (door, "check", code.to_owned(), 1);
        let wanted = [of("grpc", "NOT_FOUND"), of("http", "other"), of("http", "429")];
        assert_eq!(counts.requests(), wanted, "there is no gRPC code 99");
        let open = counts.accepted();
        assert_eq!(counts.connections().open, 1);
        drop(open);
        assert_eq!((counts.connections().open, counts.connections().accepted), (0, 1));
    }
}
