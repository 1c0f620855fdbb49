//! Metrics in the text that Prometheus and OpenMetrics collectors read, on a port of their own.
//!
//! # Guarantee
//! - They are answered by a thread of their own, also while the service is behind.
//! - `GET /metrics` is answered; another method there is 405, everything else 404. A request has at
//!   most 8 KiB and five seconds, and at most 16 are served at once.
//! - A family's samples stand together under one `# TYPE` and one `# HELP`; no label is a key.
//!
//! # Proven by
//! The tests below; `tests/load.rs` asks a live one.

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
}

/// How the service stands against its load.
impl Source for Service {
    fn metrics(&self) -> Vec<Metric> {
        self.shedder().map_or_else(Vec::new, |shedder| shedder.status().metrics().collect())
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
            let all = sources.iter().flat_map(|source| source.metrics());
            let mut response = Response::new(Full::from(exposition(all)));
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
    let mut families: Vec<(Metric, Vec<Metric>)> = Vec::new();
    for metric in metrics {
        match families.iter_mut().find(|(first, _)| first.name == metric.name) {
            Some((_, samples)) => samples.push(metric),
            None => families.push((metric, vec![metric])),
        }
    }
    let mut text = String::new();
    for (Metric { name, kind, help, .. }, samples) in families {
        let (kind, suffix) = match kind {
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Counter => ("counter", "_total"),
        };
        let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {}", escaped(help));
        for sample in samples {
            let _ = write!(text, "{name}{suffix}");
            if let Some(class) = sample.class {
                let _ = write!(text, "{{class=\"{}\"}}", class.name());
            }
            let _ = writeln!(text, " {}", number(sample.millionths));
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
