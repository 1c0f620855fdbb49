//! What a request is told that there is no room for: when it comes, or while its body does. And
//! that calls whose connection ends hold none.

use std::sync::Mutex;

use admittance::ManualClock;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use super::super::room::Room;
use super::super::turns::Begun;
use super::*;
use crate::config::{Config, Fail, Shedding};
use crate::load::Peer;

/// An answer, read whole.
struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    async fn of<B: http_body::Body>(response: Response<B>) -> Self
    where
        B::Error: std::fmt::Debug,
    {
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("the whole body").to_bytes();
        Self { status: head.status.as_u16(), headers: head.headers, body }
    }

    fn field(&self, name: http::HeaderName) -> &[u8] {
        self.headers.get(name).map(http::HeaderValue::as_bytes).unwrap_or_default()
    }

    /// Whether it is what HTTP says of what cannot be done now: 503, when to come back, and a
    /// problem document that says the same and why.
    fn is_no_room(&self) -> bool {
        let problem: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or_default();
        self.status == 503
            && self.field(CONTENT_TYPE) == b"application/problem+json"
            && self.field(RETRY_AFTER) == b"1"
            && problem["status"] == 503
            && detail == NoRoom.to_string()
    }
}

fn dispatch() -> Dispatch {
    let policies = "limiters: { api: { strategy: fixedWindow, limit: 9, period: 1h } }";
    let config = Config::parse("test", policies, Fail::Open).expect("valid policies");
    let config = Config { load: Shedding(None), ..config };
    let service = Arc::new(Service::new(&config, Arc::new(ManualClock::default())));
    // Nobody drains: what is never sent is not heard of either.
    let (_, draining) = watch::channel(false);
    Dispatch::new(&service, &Doors::default(), &draining).expect("it can be served")
}

/// What a connection is answered that holds so much, over HTTP/1 or HTTP/2.
async fn answered(held: &Arc<Held>, is_h2: bool, request: Request<Full<Bytes>>) -> Reply {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (dispatch, held) = (Arc::new(dispatch()), Arc::clone(held));
    tokio::spawn(async move {
        let answering = service_fn(move |request| dispatch.answer(request, &held));
        let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        let _ = http.serve_connection(TokioIo::new(ours), answering).await;
    });
    let theirs = TokioIo::new(theirs);
    let response = if is_h2 {
        let shaken = http2::handshake(TokioExecutor::new(), theirs).await;
        let (mut sender, connection) = shaken.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = http1::handshake(theirs).await.expect("it speaks HTTP/1");
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    Reply::of(response.expect("an answer")).await
}

fn check(is_h2: bool, key: &str) -> Request<Full<Bytes>> {
    let body = format!("{{\"policy\":\"api\",\"key\":\"{key}\"}}");
    let (path, host) = match is_h2 {
        true => ("http://localhost/v1/check", None),
        false => ("/v1/check", Some("localhost")),
    };
    let mut request = Request::post(path).header(CONTENT_TYPE, "application/json");
    if let Some(host) = host {
        request = request.header("host", host);
    }
    request.body(Full::from(body)).expect("a request")
}

/// A connection whose calls hold all that they may.
fn full() -> (Arc<Held>, Vec<Arc<Charged>>) {
    let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
    let held = Held::new(peer, &Arc::new(Room::default()), None);
    let request = Request::new(());
    let calls: Vec<_> = std::iter::from_fn(|| held.call(&request).ok()).collect();
    assert!(calls.len() > 1_000, "{} calls", calls.len());
    (held, calls)
}

#[tokio::test]
async fn without_room_a_request_over_http_is_503_with_a_problem_document() {
    for is_h2 in [false, true] {
        let (held, mut calls) = full();
        assert!(answered(&held, is_h2, check(is_h2, "k")).await.is_no_room(), "at its head");
        // Room for its head, and not for what becomes of its body.
        calls.truncate(calls.len() - 4);
        let large = check(is_h2, &"k".repeat(2_000));
        assert!(answered(&held, is_h2, large).await.is_no_room(), "as its body arrives");
        // One whose body is small has room, and one that is large gets it when others are done.
        assert_eq!(answered(&held, is_h2, check(is_h2, "k")).await.status, 200);
        calls.clear();
        let large = check(is_h2, &"k".repeat(2_000));
        assert_eq!(answered(&held, is_h2, large).await.status, 200);
    }
}

#[tokio::test]
async fn other_answers_are_not_taken_for_it() {
    // That of gRPC is 200 to who does not speak it; one that is late has another status; one in
    // plain words has no document; one without a time says not when to come back.
    let grpc: Response<Body> = Status::resource_exhausted(NoRoom.to_string()).into_http();
    assert!(!Reply::of(grpc).await.is_no_room());
    assert!(!Reply::of(crate::http::too_late()).await.is_no_room());
    let plain = Response::builder().status(503).header(RETRY_AFTER, "1");
    let plain = plain.body(Body::new(Full::from(NoRoom.to_string()))).expect("a response");
    assert!(!Reply::of(plain).await.is_no_room());
    let mut untimed = crate::http::no_room(&NoRoom.to_string());
    untimed.headers_mut().remove(RETRY_AFTER);
    assert!(!Reply::of(untimed).await.is_no_room());
}

/// Calls whose requests do not end, and one that has the transport end the connection at once.
fn calls_and_an_end() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u32, body: &[u8]| {
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        bytes.extend_from_slice(&length[1..]);
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(body);
    };
    let (settings, headers, end_of_headers) = (4, 1, 4);
    frame(settings, 0, 0, b"");
    for call in 0..100 {
        // POST, http, and two fields that are written out: a path and an authority.
        frame(headers, end_of_headers, 1 + 2 * call, b"\x83\x86\x04\x09/v1/check\x01\x01h");
    }
    // CONNECT to an authority, with a content-length of 5: nothing can follow that.
    frame(headers, end_of_headers, 201, b"\x02\x07CONNECT\x01\x01h\x0f\x0d\x015");
    bytes
}

type Conversation = Pin<Box<dyn Future<Output = ()>>>;

/// How many calls of a connection still hold something when it has ended as they began.
async fn left_over<E>(
    begin: E,
    mut advance: impl FnMut(Pin<&mut Conversation>, &mut Context<'_>) -> Poll<()>,
) -> usize
where
    E: Http2ServerConnExec<Answering, Answer> + Clone + 'static,
{
    let (ours, mut theirs) = tokio::io::duplex(64 << 10);
    theirs.write_all(&calls_and_an_end()).await.expect("there is room");
    let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
    let held = Held::new(peer, &Arc::new(Room::default()), None);
    let (dispatch, holding) = (Arc::new(dispatch()), Arc::clone(&held));
    let answering = service_fn(move |request| dispatch.answer(request, &holding));
    let http = hyper::server::conn::http2::Builder::new(begin);
    let conversation = http.serve_connection(TokioIo::new(ours), answering);
    let mut conversation: Conversation = Box::pin(async move {
        let _ = conversation.await;
    });
    std::future::poll_fn(|context| advance(Pin::new(&mut conversation), context)).await;
    drop((conversation, advance));
    // What has begun ends by itself: its peer is gone.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    Arc::strong_count(&held) - 1
}

type Begins = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Keeps calls, and is kept by them.
#[derive(Clone, Default)]
struct Keeps(Arc<Mutex<Vec<Begins>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Keeps {
    fn execute(&self, call: F) {
        self.0.lock().expect("no panic").push(Box::pin(call));
    }
}

#[tokio::test]
async fn calls_that_begin_as_their_connection_ends_hold_nothing() {
    let begun = Begun::default();
    let begin = begun.begin();
    assert_eq!(left_over(begin, move |it, context| begun.poll(it, context)).await, 0);
    let kept = Keeps::default();
    let keeps = kept.clone();
    let left = left_over(keeps, move |it, context| {
        let _ = &kept;
        it.poll(context)
    });
    assert_eq!(left.await, 100, "what keeps them is told apart");
}
