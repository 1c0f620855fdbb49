//! A port of its own for collectors.
//!
//! # Guarantee
//! - They are answered by a thread of their own, also while the service is behind.
//! - `GET /metrics`, `/healthz` and `/health` are answered; another method there is 405, everything
//!   else 404. A request has at most 8 KiB and five seconds, and at most 16 are served at once.
//!
//! # Proven by
//! `tests/load.rs` and `tests/logs.rs` of the command ask a live one; its bounds have no test.

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

/// The most bytes of a request's head.
const REQUEST_MAX: usize = 8 << 10;
/// How long a request may take to come.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How many collectors may ask at once.
const CONNECTIONS_MAX: usize = 16;

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
