//! Services that are nearly right: the real one, with something before it that spoils some of its
//! answers. Each must be noticed, by the property that it breaks, and what spoils nothing must not.
//!
//! `ADMITTANCE_SEED=n` replays a run.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use admittance_fuzz::live::{Live, service};
use admittance_fuzz::{Source, TARGETS, connection, grpc, http as over_http};
use fastrand::Rng;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

thread_local! {
    /// Whether a panic of this thread is looked for, and so not worth a word.
    static LOOKED_FOR: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics quiet that are looked for. Before the first service begins: what notes the panics
/// of services asks this one afterwards.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_spoilt = info.payload_as_str() == Some(SPOILT);
            if !LOOKED_FOR.get() && !is_spoilt {
                before(info);
            }
        }));
    });
}

/// What a panic says, quietly.
fn broken(run: impl FnOnce()) -> Option<String> {
    LOOKED_FOR.set(true);
    let caught = catch_unwind(AssertUnwindSafe(run)).err();
    LOOKED_FOR.set(false);
    caught.map(|panic| match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
    })
}

/// Makes a service, and feeds one.
type Make = fn(Spoils) -> Live;
type Feed = fn(&Live, &[u8]);

/// What the first of these inputs that breaks the target says.
fn noticed(target: &str, live: &Live, feed: Feed, inputs: usize) -> Option<String> {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let mut rng = Rng::with_seed(seed.unwrap_or(9));
    let target = TARGETS.iter().find(|known| known.name == target).unwrap();
    let source = Source { corpus: &[], words: target.words, make: target.make };
    (0..inputs).find_map(|_| {
        let input = source.draw(&mut rng);
        broken(|| feed(live, &input))
    })
}

/// What is done to answers that are no admissions, and to whoever sends what is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoils {
    Nothing,
    /// gRPC: UNKNOWN, INTERNAL without a reason, no status at all.
    Unknown,
    Internal,
    NoStatus,
    /// 500.
    Fails,
    /// A refusal in plain words; one whose document has another status; JSON that is cut short.
    Plain,
    OtherStatus,
    Short,
    /// The connection ends without an answer, or nothing happens at all.
    HangsUp,
    Hangs,
    /// A task panics beside the answer.
    Panics,
    /// From then on nobody is answered.
    Dies,
}

type Sent = UnsyncBoxBody<Bytes, hyper::Error>;

fn body(bytes: Bytes, trailers: HeaderMap) -> Sent {
    let body = Full::new(bytes).map_err(|never: Infallible| match never {});
    if trailers.is_empty() {
        return body.boxed_unsync();
    }
    body.with_trailers(async { Some(Ok(trailers)) }).boxed_unsync()
}

/// What the real service says, on a connection of its own.
async fn passed_on(to: SocketAddr, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let io = TokioIo::new(TcpStream::connect(to).await.unwrap());
    if request.version() == Version::HTTP_2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        return sender.send_request(request).await.unwrap();
    }
    let (mut sender, connection) = http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(request).await.unwrap()
}

/// One answer, spoilt if it is a refusal.
async fn answer(
    to: SocketAddr,
    (spoils, dead): (Spoils, Arc<AtomicBool>),
    request: Request<Incoming>,
) -> Result<Response<Sent>, &'static str> {
    let is_endless = request.uri().path().ends_with("/Watch");
    let (head, asked) = request.into_parts();
    let asked = asked.collect().await.map_err(|_| "the request broke off")?.to_bytes();
    let answer = passed_on(to, Request::from_parts(head, Full::new(asked))).await;
    if is_endless {
        return Ok(answer.map(BodyExt::boxed_unsync));
    }
    let (mut head, said) = answer.into_parts();
    let said = said.collect().await.map_err(|_| "the answer broke off")?;
    let mut trailers = said.trailers().cloned().unwrap_or_default();
    let mut said = said.to_bytes();
    let status = head.headers.get("grpc-status").or(trailers.get("grpc-status"));
    let is_refused = status.is_some_and(|status| status != "0") || head.status.is_client_error();
    if dead.load(Ordering::SeqCst) {
        return Err(SPOILT);
    }
    dead.store(spoils == Spoils::Dies && is_refused, Ordering::SeqCst);
    if !is_refused || spoils == Spoils::Nothing {
        return Ok(Response::from_parts(head, body(said, trailers)));
    }
    head.headers.remove(CONTENT_LENGTH);
    head.headers.remove(TRANSFER_ENCODING);
    let mut say = |code: &'static str, message: &'static str| {
        head.headers.remove("grpc-status");
        trailers.clear();
        head.headers.insert("grpc-status", HeaderValue::from_static(code));
        head.headers.insert("grpc-message", HeaderValue::from_static(message));
    };
    match spoils {
        Spoils::Unknown => say("2", "who knows"),
        Spoils::Internal => say("13", "it did not work"),
        Spoils::NoStatus => {
            head.headers.remove("grpc-status");
            trailers.clear();
        }
        Spoils::Fails => head.status = StatusCode::INTERNAL_SERVER_ERROR,
        Spoils::Plain => {
            head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            said = Bytes::from_static(b"no");
        }
        Spoils::OtherStatus => head.status = StatusCode::IM_A_TEAPOT,
        Spoils::Short => said = said.slice(..said.len() / 2),
        Spoils::HangsUp => return Err(SPOILT),
        Spoils::Hangs => std::future::pending().await,
        Spoils::Panics => drop(tokio::spawn(async { panic!("{SPOILT}") }).await),
        Spoils::Nothing | Spoils::Dies => {}
    }
    Ok(Response::from_parts(head, body(said, trailers)))
}

/// The real service, behind what spoils its answers.
fn spoilt(spoils: Spoils) -> Live {
    Live::serving(patience(spoils), move |listener| async move {
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = inner.local_addr().unwrap();
        tokio::spawn(service(inner));
        let dead = Arc::new(AtomicBool::new(false));
        while let Ok((stream, _)) = listener.accept().await {
            let dead = Arc::clone(&dead);
            tokio::spawn(async move {
                let answering =
                    service_fn(|request| answer(to, (spoils, Arc::clone(&dead)), request));
                let http = Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), answering).await;
            });
        }
    })
}

/// Who waits for ever is found however short it is; all others are given time.
fn patience(spoils: Spoils) -> Duration {
    Duration::from_millis(if spoils == Spoils::Hangs { 500 } else { 30_000 })
}

/// The same, bytes for bytes: what is spoilt is what happens when a peer says that it is done.
fn spoilt_connections(spoils: Spoils) -> Live {
    Live::serving(patience(spoils), move |listener| async move {
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = inner.local_addr().unwrap();
        tokio::spawn(service(inner));
        let (die, dead) = watch::channel(false);
        while let Ok((stream, _)) = listener.accept().await {
            let (die, mut dead) = (die.clone(), dead.clone());
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    _ = dead.wait_for(|dead| *dead) => {}
                    () = carried(stream, to, spoils, &die) => {}
                }
            });
        }
    })
}

async fn carried(stream: TcpStream, to: SocketAddr, spoils: Spoils, die: &watch::Sender<bool>) {
    let (mut from_peer, mut to_peer) = stream.into_split();
    let (mut from_service, mut to_service) = TcpStream::connect(to).await.unwrap().into_split();
    let there = async {
        let _ = tokio::io::copy(&mut from_peer, &mut to_service).await;
        let _ = to_service.shutdown().await;
        match spoils {
            Spoils::Panics => drop(tokio::spawn(async { panic!("{SPOILT}") }).await),
            Spoils::Dies => drop(die.send(true)),
            _ => {}
        }
    };
    let back = async {
        let _ = tokio::io::copy(&mut from_service, &mut to_peer).await;
        if spoils == Spoils::Hangs {
            std::future::pending::<()>().await;
        }
        let _ = to_peer.shutdown().await;
    };
    tokio::join!(there, back);
}

/// What spoils nothing is not noticed, and each of these is, by what it breaks.
fn each_is_noticed(target: &str, (make, feed): (Make, Feed), cases: &[(Spoils, &str)]) {
    quiet();
    let honest = make(Spoils::Nothing);
    assert_eq!(noticed(target, &honest, feed, 300), None, "{target}");
    for (spoils, wanted) in cases {
        let said = noticed(target, &make(*spoils), feed, 300);
        assert!(said.as_ref().is_some_and(|said| said.contains(wanted)), "{spoils:?}: {said:?}");
    }
}

#[test]
fn a_service_that_answers_calls_wrongly_is_noticed() {
    let cases = [
        (Spoils::Unknown, ": unknown: "),
        (Spoils::Internal, "internal, \"it did not work\""),
        (Spoils::NoStatus, ": no status: "),
        (Spoils::Fails, "left: 500"),
        (Spoils::HangsUp, ": no answer at all"),
        (Spoils::Hangs, "neither answered nor hung up"),
        (Spoils::Panics, "a task of the service panicked"),
        (Spoils::Dies, "an honest caller is answered"),
    ];
    each_is_noticed("grpc", (spoilt, grpc::feed), &cases);
}

#[test]
fn a_service_that_answers_requests_over_http_wrongly_is_noticed() {
    let cases = [
        (Spoils::Fails, "status: 500"),
        (Spoils::Plain, "no problem document"),
        (Spoils::OtherStatus, "left: "),
        (Spoils::Short, "not JSON"),
        (Spoils::HangsUp, ": no answer at all"),
        (Spoils::Hangs, "neither answered nor hung up"),
        (Spoils::Panics, "a task of the service panicked"),
        (Spoils::Dies, "an honest caller is answered"),
    ];
    each_is_noticed("http", (spoilt, over_http::feed), &cases);
}

#[test]
fn a_service_that_treats_connections_wrongly_is_noticed() {
    let cases = [
        (Spoils::Hangs, "neither answered nor hung up"),
        (Spoils::Panics, "a task of the service panicked"),
        (Spoils::Dies, "an honest caller is answered"),
    ];
    each_is_noticed("connection", (spoilt_connections, connection::feed), &cases);
}

const SPOILT: &str = "as it was asked to";
