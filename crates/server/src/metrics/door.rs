//! A port of its own for collectors.
//!
//! # Guarantee
//! - They are answered by a thread of their own, also while the service is behind.
//! - `GET /metrics`, `/healthz` and `/health` are answered; another method there is 405, everything
//!   else 404. A request has at most 8 KiB and five seconds, and at most 16 are served at once.
//!
//! # Proven by
//! The tests below, with bounds that are none; `tests/it/load.rs` and `tests/it/logs.rs` of the
//! command ask a live one.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::Source;
use super::text::{Form, written};

/// What collectors may take.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The most bytes of a request's head.
    request_max: usize,
    /// How long a request may take to come.
    request_time: Duration,
    /// How many may ask at once.
    connections_max: usize,
}

const BOUNDS: Bounds =
    Bounds { request_max: 8 << 10, request_time: Duration::from_secs(5), connections_max: 16 };

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
                    serve(listener, sources.into(), BOUNDS, stopped).await;
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

async fn serve(
    listener: TcpListener,
    sources: Sources,
    bounds: Bounds,
    mut stopped: watch::Receiver<bool>,
) {
    let accepting = async {
        let places = Arc::new(Semaphore::new(bounds.connections_max));
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
                http.max_buf_size(bounds.request_max).keep_alive(false);
                http.timer(TokioTimer::new()).header_read_timeout(bounds.request_time);
                let served = http.serve_connection(TokioIo::new(stream), answer);
                // Who does not take its answer is not waited for.
                let _ = tokio::time::timeout(bounds.request_time * 2, served).await;
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
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let form = Form::accepted(accept.unwrap_or_default());
            let families = sources.iter().flat_map(|source| source.families());
            let text = written(&families.collect::<Vec<_>>(), form);
            let mut response = Response::new(Full::from(text));
            let kind = HeaderValue::from_static(form.content_type());
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        ("/healthz" | "/health", &Method::GET | &Method::HEAD) => plain(StatusCode::OK, "ok\n"),
        ("/metrics" | "/healthz" | "/health", _) => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "ask with GET\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            response
        }
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::{Instant, timeout};

    use super::*;

    /// A door with these bounds; time passes when nobody has anything to do.
    async fn open(bounds: Bounds) -> (SocketAddr, watch::Sender<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(serve(listener, Vec::new().into(), bounds, stopped));
        (address, stop)
    }

    /// What is answered to these bytes, and after how long, if that is less than an hour.
    async fn answered(address: SocketAddr, bytes: &[u8]) -> (String, Duration) {
        let began = Instant::now();
        let mut stream = TcpStream::connect(address).await.expect("the port is open");
        stream.write_all(bytes).await.expect("sent");
        let mut answer = Vec::new();
        let hour = Duration::from_secs(3_600);
        let _ = timeout(hour, stream.read_to_end(&mut answer)).await;
        (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
    }

    async fn a_long_head_is_refused(bounds: Bounds) -> bool {
        let (address, _stop) = open(bounds).await;
        let long = |length: usize| {
            format!("GET /metrics HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(length))
        };
        let (fits, _) = answered(address, long(7 << 10).as_bytes()).await;
        let (refused, _) = answered(address, long(9 << 10).as_bytes()).await;
        fits.starts_with("HTTP/1.1 200") && !refused.starts_with("HTTP/1.1 200")
    }

    async fn who_does_not_ask_is_disconnected(bounds: Bounds) -> bool {
        let (address, _stop) = open(bounds).await;
        for part in ["", "GET /metrics HT", "GET /metrics HTTP/1.1\r\nhost: a\r\n"] {
            let (_, after) = answered(address, part.as_bytes()).await;
            if after > BOUNDS.request_time + Duration::from_secs(1) {
                return false;
            }
        }
        true
    }

    /// Whether one more than may be served waits for the others to be gone.
    async fn one_too_many_waits(bounds: Bounds) -> bool {
        let (address, _stop) = open(bounds).await;
        let mut silent = Vec::new();
        for _ in 0..16 {
            silent.push(TcpStream::connect(address).await.expect("the port is open"));
        }
        let ask = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
        let (answer, after) = answered(address, ask).await;
        answer.starts_with("HTTP/1.1 200") && after >= bounds.request_time
    }

    #[tokio::test(start_paused = true)]
    async fn collectors_are_bounded() {
        assert!(a_long_head_is_refused(BOUNDS).await);
        assert!(who_does_not_ask_is_disconnected(BOUNDS).await);
        assert!(one_too_many_waits(BOUNDS).await);
    }

    #[tokio::test(start_paused = true)]
    async fn bounds_that_are_none_are_caught() {
        assert!(!a_long_head_is_refused(Bounds { request_max: 1 << 20, ..BOUNDS }).await);
        let hour = Duration::from_secs(3_600);
        assert!(!who_does_not_ask_is_disconnected(Bounds { request_time: hour, ..BOUNDS }).await);
        assert!(!one_too_many_waits(Bounds { connections_max: 17, ..BOUNDS }).await);
    }
}
