//! The way to a service far away: its connection, deadlines, and what may be sent again.
//!
//! # Guarantee
//! - Every call ends at its deadline, whatever the service does.
//! - A call that could charge twice is sent again only if no connection was made.
//! - A connection whose other end is gone without a word is given up: after a few calls without an
//!   answer, or by a ping without one.
//! - Once closed, nothing is asked any more, and who waits without a deadline is told.
//!
//! # Proven by
//! `tests/test_service.py`, `tests/test_close.py`, `tests/test_tls.py`.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status};

use crate::failure::{Failure, has_cause, is_unsent};
use crate::process::PerProcess;
use crate::runtime;

/// What becomes of a call that is sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twice {
    /// It may charge twice.
    Charges,
    /// It comes to the same.
    Same,
}

/// How long a call may take, and how often it may be sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
}

/// Certificates, as PEM.
#[derive(Default)]
pub(crate) struct Pem {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) name: Option<String>,
}

/// A service, and the connection of this process to it.
pub(crate) struct Dialer {
    target: Box<str>,
    endpoint: Endpoint,
    line: PerProcess<Line>,
    is_closed: AtomicBool,
    /// It is closed now.
    closing: PerProcess<Arc<Notify>>,
}

/// A connection, and how many calls in a row had no answer on it.
#[derive(Clone)]
struct Line {
    channel: Channel,
    late: Arc<AtomicU32>,
}

impl Dialer {
    /// Who is at this address. Nothing is connected before the first call.
    pub(crate) fn new(target: &str, pem: Pem) -> PyResult<Self> {
        let (scheme, address) = target.split_once("://").unwrap_or(("", target));
        let Pem { ca, cert, key, name } = &pem;
        let has_pem = ca.is_some() || cert.is_some() || key.is_some() || name.is_some();
        let is_tls = match scheme {
            "https" => true,
            "http" if has_pem => return Err(bad("http:// is without TLS; write https://")),
            "" | "http" => has_pem,
            _ => return Err(bad("the target is not one; write host:port or https://host:port")),
        };
        let scheme = if is_tls { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
        let wrong = |_| bad("the target is not one; write host:port or https://host:port");
        let mut endpoint = endpoint
            .map_err(wrong)?
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_MAX)
            // What waits without a deadline must notice when nobody is at the other end any more.
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_MAX)
            .keep_alive_while_idle(true);
        if is_tls {
            let tls = endpoint.tls_config(tls(pem)?);
            endpoint = tls.map_err(|error| bad(&format!("the certificates: {error}")))?;
        }
        let (line, is_closed, closing) =
            (PerProcess::new(), AtomicBool::new(false), PerProcess::new());
        Ok(Self { target: address.into(), endpoint, line, is_closed, closing })
    }

    /// Closes the connection; what is asked from now on has no answer.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.line.forget();
        if let Some(closing) = self.closing.known() {
            closing.notify_waiters();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Ends when the backend is closed.
    pub(crate) async fn closed(&self) {
        let Ok(closing) = self.closing.get(|| Ok::<_, Infallible>(Arc::default()));
        let mut closing = pin!(closing.notified());
        // From here on a word of it is heard; one before it has set the flag.
        closing.as_mut().enable();
        if !self.is_closed() {
            closing.await;
        }
    }

    /// The connection of this process.
    pub(crate) fn channel(&self) -> Result<Channel, Failure> {
        Ok(self.line()?.channel)
    }

    fn line(&self) -> Result<Line, Failure> {
        if self.is_closed() {
            return Err(Failure::closed());
        }
        let dial = || Line { channel: self.endpoint.connect_lazy(), late: Arc::default() };
        let line = self.line.get(|| runtime::within(dial));
        line.map_err(|error| Status::internal(error.to_string()).into())
    }

    /// Nobody has answered in time. After a few in a row the connection is given up: one whose
    /// other end is gone without a word would be late for ever.
    fn was_late(&self, line: &Line) {
        if line.late.fetch_add(1, Ordering::Relaxed) + 1 == LATE_MAX {
            self.line.forget_if(|kept| Arc::ptr_eq(&kept.late, &line.late));
        }
    }

    /// Makes a call, again if that may be.
    pub(crate) async fn call<T, F>(
        &self,
        twice: Twice,
        options: Options,
        mut ask: impl FnMut(Channel, Duration) -> F,
    ) -> Result<Response<T>, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let until = Instant::now() + options.timeout;
        let mut pause = PAUSE_FIRST;
        let mut left = options.retries;
        loop {
            let line = self.line()?;
            let left_over = until.saturating_duration_since(Instant::now());
            let asked = ask(line.channel.clone(), left_over);
            let status = match timeout_at(until, asked).await {
                Ok(Ok(response)) => {
                    line.late.store(0, Ordering::Relaxed);
                    return Ok(response);
                }
                // The transport has the same deadline, and may notice first.
                Ok(Err(status)) if !is_late(&status) => status,
                Ok(Err(_)) | Err(_) => {
                    self.was_late(&line);
                    return Err(self.failed(late(options.timeout)));
                }
            };
            line.late.store(0, Ordering::Relaxed);
            let wait = jittered(pause);
            if left == 0 || !may_repeat(twice, &status) || Instant::now() + wait >= until {
                return Err(self.failed(status));
            }
            left -= 1;
            pause *= 2;
            sleep(wait).await;
        }
    }

    pub(crate) fn failed(&self, status: Status) -> Failure {
        Failure { status, target: Some(self.target.clone()), is_closed: false }
    }
}

/// Half as long to half as long again, so that those who were refused together come back apart.
fn jittered(pause: Duration) -> Duration {
    let us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    pause / 2 + Duration::from_micros(fastrand::u64(0..=us))
}

fn may_repeat(twice: Twice, status: &Status) -> bool {
    // What the transport says by itself has a cause; the service's own words have none.
    let is_lost = status.code() == Code::Unavailable || status.source().is_some();
    is_unsent(status) || twice == Twice::Same && is_lost
}

fn is_late(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded || has_cause::<tonic::TimeoutExpired>(status)
}

fn late(timeout: Duration) -> Status {
    Status::deadline_exceeded(format!("no answer within {} ms", timeout.as_millis()))
}

fn tls(Pem { ca, cert, key, name }: Pem) -> PyResult<ClientTlsConfig> {
    let ca = ca.ok_or_else(|| bad("TLS needs tls_ca, who signed the service's certificate"))?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    match (cert, key) {
        (Some(cert), Some(key)) => tls = tls.identity(Identity::from_pem(cert, key)),
        (None, None) => {}
        _ => return Err(bad("tls_cert and tls_key belong together; give both or neither")),
    }
    if let Some(name) = name {
        tls = tls.domain_name(name);
    }
    Ok(tls)
}

fn bad(message: &str) -> PyErr {
    PyValueError::new_err(message.to_owned())
}

/// A call's own deadline is mostly shorter.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How often a quiet connection is pinged, and how long the answer may take.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_MAX: Duration = Duration::from_secs(5);
/// After so many calls in a row without an answer another connection is made.
const LATE_MAX: u32 = 3;
/// How long to wait before a call is sent again, half of it more or less by chance; then twice as
/// long.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
