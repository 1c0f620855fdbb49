//! Metrics in the text that Prometheus and OpenMetrics collectors read, on a port of their own.
//!
//! # Guarantee
//! - They are answered by a thread of their own, also while the service is behind.
//! - `GET /metrics` is answered; another method there is 405, everything else 404. A request has at
//!   most 8 KiB and five seconds, and at most 16 are served at once.
//! - A family's samples stand together under one `# TYPE` and one `# HELP`; no label is a key.
//! - `admittance_admissions_total` counts by the label that the answer went by: the axis that
//!   bound, `policy` for what was not worth its price, and `none` for what was admitted.
//!
//! # Proven by
//! The tests below; `tests/load.rs` asks a live one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use admittance::load::{Metric, MetricKind};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::Service;

/// The most bytes of a request's head.
const REQUEST_MAX: usize = 8 << 10;
/// How long a request may take to come.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How many collectors may ask at once.
const CONNECTIONS_MAX: usize = 16;

/// What metrics come from: asked whenever a collector asks.
pub trait Source: Send + Sync {
    /// Each number, as it is now.
    fn metrics(&self) -> Vec<Metric>;

    /// Each number that has labels of its own.
    fn labelled(&self) -> Vec<Labelled> {
        Vec::new()
    }
}

/// A number with labels, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// What it is called, without what counters end in.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: MetricKind,
    /// What it says.
    pub help: &'static str,
    /// What it is about.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: u64,
}

/// How the service stands against its load, and what became of admissions.
impl Source for Service {
    fn metrics(&self) -> Vec<Metric> {
        self.shedder().map_or_else(Vec::new, |shedder| shedder.status().metrics().collect())
    }

    fn labelled(&self) -> Vec<Labelled> {
        let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
        let mut all = Vec::new();
        for policy in self.policies() {
            let name = || ("policy", policy.name().to_owned());
            if let Some(stats) = policy.admissions() {
                all.extend(stats.by_label().map(|(label, value)| {
                    let axis = if label.is_empty() { ADMITTED } else { label };
                    let labels = vec![name(), ("axis", axis.to_owned())];
                    let (name, help) = ("admittance_admissions", "Admissions by what bound them.");
                    Labelled { name, kind: counter, help, labels, value }
                }));
            }
            if let Some(gate) = policy.gate() {
                let stats = gate.stats();
                let of = |name_of, kind, help, value| {
                    let labels = vec![name()];
                    Labelled { name: name_of, kind, help, labels, value }
                };
                let in_flight = u64::from(stats.in_flight);
                all.push(of("admittance_in_flight", gauge, "Permits that are out.", in_flight));
                let help = "Permits that ended as overload.";
                all.push(of("admittance_overloaded", counter, help, stats.overloaded));
            }
        }
        let held = u64::try_from(self.leases_held()).unwrap_or(u64::MAX);
        for (name, kind, help, value) in [
            ("admittance_leases", gauge, "Leases that clients hold here.", held),
            (
                "admittance_leases_reclaimed",
                counter,
                "Leases taken back because nobody was heard.",
                self.leases_reclaimed(),
            ),
        ] {
            all.push(Labelled { name, kind, help, labels: Vec::new(), value });
        }
        all
    }
}

/// Answers collectors until it is dropped.
#[must_use = "dropping it ends it"]
#[derive(Debug)]
pub struct MetricsDoor {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsDoor {
    /// Listens, and answers from these sources on a thread of its own.
    ///
    /// # Errors
    /// The address cannot be listened on, or there is no thread.
    pub fn open(address: SocketAddr, sources: Vec<Arc<dyn Source>>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let serving = move || {
            runtime.block_on(async {
                // The runtime is there, so the listener can be had.
                if let Ok(listener) = TcpListener::from_std(listener) {
                    serve(listener, sources.into(), stopped).await;
                }
            });
        };
        let thread =
            std::thread::Builder::new().name("admittance-metrics".into()).spawn(serving)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsDoor {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

type Sources = Arc<[Arc<dyn Source>]>;

async fn serve(listener: TcpListener, sources: Sources, mut stopped: watch::Receiver<bool>) {
    let accepting = async {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let sources = Arc::clone(&sources);
            tokio::spawn(async move {
                let answer = service_fn(move |request| {
                    let answered = answer(&request, &sources);
                    async { Ok::<_, Infallible>(answered) }
                });
                let mut http = http1::Builder::new();
                http.max_buf_size(REQUEST_MAX).keep_alive(false);
                http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME);
                let served = http.serve_connection(TokioIo::new(stream), answer);
                // Who does not take its answer is not waited for.
                let _ = tokio::time::timeout(REQUEST_TIME * 2, served).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
}

fn answer(request: &Request<Incoming>, sources: &Sources) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET) => {
            let plain = sources.iter().flat_map(|source| source.metrics()).map(Sample::from);
            let labelled = sources.iter().flat_map(|source| source.labelled()).map(Sample::from);
            let text = written(plain.chain(labelled));
            let mut response = Response::new(Full::from(text));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
            response
        }
        ("/metrics", _) => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "ask with GET\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            response
        }
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    }
}

/// Metrics as text, families together in the order of their first sample.
pub fn exposition(metrics: impl IntoIterator<Item = Metric>) -> String {
    written(metrics.into_iter().map(Sample::from))
}

/// One line, and what stands above those of its family.
struct Sample {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    labels: Vec<(&'static str, String)>,
    number: String,
}

impl From<Metric> for Sample {
    fn from(Metric { name, kind, help, class, millionths }: Metric) -> Self {
        let labels = class.into_iter().map(|class| ("class", class.name().to_owned())).collect();
        Self { name, kind, help, labels, number: number(millionths) }
    }
}

impl From<Labelled> for Sample {
    fn from(Labelled { name, kind, help, labels, value }: Labelled) -> Self {
        Self { name, kind, help, labels, number: value.to_string() }
    }
}

fn written(samples: impl IntoIterator<Item = Sample>) -> String {
    let mut places: HashMap<&'static str, usize> = HashMap::new();
    let mut families: Vec<Vec<Sample>> = Vec::new();
    for sample in samples {
        let place = *places.entry(sample.name).or_insert_with(|| {
            families.push(Vec::new());
            families.len() - 1
        });
        families[place].push(sample);
    }
    let mut text = String::new();
    for samples in families {
        let Some(Sample { name, kind, help, .. }) = samples.first() else { continue };
        let (kind, suffix) = match kind {
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Counter => ("counter", "_total"),
        };
        let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {}", escaped(help));
        for sample in &samples {
            let labels = sample.labels.iter().map(|(label, value)| {
                let value = escaped(value).replace('"', "\\\"");
                format!("{label}=\"{value}\"")
            });
            let labels: Vec<String> = labels.collect();
            let labels =
                if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "{name}{suffix}{labels} {}", sample.number);
        }
    }
    text.push_str("# EOF\n");
    text
}

/// Millionths as a decimal number, exactly.
fn number(millionths: i128) -> String {
    let sign = if millionths < 0 { "-" } else { "" };
    let (whole, parts) =
        (millionths.unsigned_abs() / 1_000_000, millionths.unsigned_abs() % 1_000_000);
    if parts == 0 {
        return format!("{sign}{whole}");
    }
    let parts = format!("{parts:06}");
    format!("{sign}{whole}.{}", parts.trim_end_matches('0'))
}

fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The label of what no axis bound: an empty one would be none.
const ADMITTED: &str = "none";

#[cfg(test)]
mod tests {
    use admittance::load::Class;

    use super::*;

    fn metric(name: &'static str, kind: MetricKind, millionths: i128) -> Metric {
        Metric { name, kind, help: "What it says.", class: None, millionths }
    }

    #[test]
    fn families_stand_together_and_counters_end_in_total() {
        let refused = metric("a_refused", MetricKind::Counter, 3_000_000);
        let of = |class, metric| Metric { class: Some(class), ..metric };
        let text = exposition([
            of(Class::Critical, refused),
            metric("a_level_ratio", MetricKind::Gauge, 250_000),
            of(Class::Background, Metric { millionths: 0, ..refused }),
        ]);
        let expected = "\
# TYPE a_refused counter
# HELP a_refused What it says.
a_refused_total{class=\"critical\"} 3
a_refused_total{class=\"background\"} 0
# TYPE a_level_ratio gauge
# HELP a_level_ratio What it says.
a_level_ratio 0.25
# EOF
";
        assert_eq!(text, expected);
    }

    #[test]
    fn labels_are_escaped_and_every_decision_has_its_own() {
        use std::sync::Arc;

        use admittance::ManualClock;

        use crate::{Config, Fail};
        let text = "limiters: { 'a\"b\\c': { concurrency: { maxLimit: 3 } } }";
        let config = Config::parse("test", text, Fail::Open).expect("a policy");
        let service = Service::new(&config, Arc::new(ManualClock::default()));
        let text = written(service.labelled().into_iter().map(Sample::from));
        let line = |axis: &str| {
            format!("admittance_admissions_total{{policy=\"a\\\"b\\\\c\",axis=\"{axis}\"}} 0\n")
        };
        for axis in ["none", "policy", "load", "concurrency", "rate", "cost"] {
            assert!(text.contains(&line(axis)), "{axis}: {text}");
        }
        assert!(text.contains("admittance_leases 0\n"), "{text}");
    }

    #[test]
    fn numbers_are_exact() {
        for (millionths, text) in [
            (0, "0"),
            (1, "0.000001"),
            (-1_500_000, "-1.5"),
            (i128::from(u64::MAX) * 1_000_000, "18446744073709551615"),
        ] {
            assert_eq!(number(millionths), text);
        }
    }
}
