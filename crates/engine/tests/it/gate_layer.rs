//! A gate in front of real axum and tonic servers.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use admittance::gate::{Ending, Gate, GateLayer, LimitRules, Measure, Outcome, Refused};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::get;
use http_body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A body whose frames a test sends.
struct Sent(mpsc::UnboundedReceiver<Result<Frame<Bytes>, &'static str>>);

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(context)
    }
}

type Frames = mpsc::UnboundedSender<Result<Frame<Bytes>, &'static str>>;

/// A server with a page, an error, an empty page and a stream whose frames come from the test.
async fn server(layer: GateLayer) -> (SocketAddr, mpsc::UnboundedReceiver<Frames>) {
    server_with(|app| app.layer(layer)).await
}

async fn server_with(
    wrap: impl FnOnce(Router) -> Router,
) -> (SocketAddr, mpsc::UnboundedReceiver<Frames>) {
    let (begun, streams) = mpsc::unbounded_channel();
    let stream = move || {
        let begun = begun.clone();
        async move {
            let (send, frames) = mpsc::unbounded_channel();
            begun.send(send).unwrap();
            Response::new(Body::new(Sent(frames)))
        }
    };
    let busy = || async { (StatusCode::SERVICE_UNAVAILABLE, "not now") };
    let sized = || async {
        let (frames, sent) = mpsc::unbounded_channel();
        frames.send(Ok(Frame::data(Bytes::from("four")))).unwrap();
        // Whoever asks for more waits.
        tokio::spawn(async move { frames.closed().await });
        let body = Body::new(Sent(sent));
        Response::builder().header("content-length", "4").body(body).unwrap()
    };
    let app = Router::new()
        .route("/", get(|| async { "done" }))
        .route("/sized", get(sized))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }))
        .route("/busy", get(busy))
        .route("/stream", get(stream));
    let app = wrap(app);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, streams)
}

/// A connection on which this was asked for.
async fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn answer(address: SocketAddr, path: &str) -> String {
    let mut text = String::new();
    ask(address, path).await.read_to_string(&mut text).await.unwrap();
    text
}

/// Waits for what another task will do; a minute is for a machine that is very busy.
async fn until(what: impl Fn() -> bool) {
    let waits = async {
        while !what() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("it never came about");
}

fn gate() -> Gate {
    Gate::new(LimitRules::fixed(1)).unwrap()
}

#[tokio::test]
async fn a_body_has_ended_when_all_of_its_length_was_sent() {
    let gate = gate();
    let (address, _) = server(GateLayer::new(gate.clone())).await;
    assert!(answer(address, "/sized").await.ends_with("four"));
    until(|| gate.stats().in_flight == 0).await;
    assert_eq!((gate.stats().finished, gate.stats().ignored), (1, 0));
}

#[tokio::test]
async fn axum_holds_a_permit_until_the_body_ends_and_refuses_meanwhile() {
    let gate = gate();
    let (address, mut streams) = server(GateLayer::new(gate.clone())).await;
    assert!(answer(address, "/").await.ends_with("done"));
    until(|| gate.stats().finished == 1).await;
    let mut streaming = ask(address, "/stream").await;
    let frames = streams.recv().await.unwrap();
    frames.send(Ok(Frame::data(Bytes::from("some")))).unwrap();
    let mut some = [0; 1_000];
    assert!(streaming.read(&mut some).await.unwrap() > 0);
    let refused = answer(address, "/").await.to_lowercase();
    assert!(refused.starts_with("http/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    assert_eq!((gate.stats().in_flight, gate.stats().refused), (1, 1));
    drop(frames);
    until(|| gate.stats().in_flight == 0).await;
    assert_eq!(gate.stats().finished, 2);
    assert!(answer(address, "/").await.ends_with("done"));
}

/// Whether a stream that has begun and not ended still has its place.
async fn is_held_while_streaming(gate: &Gate, wrap: impl FnOnce(Router) -> Router) -> bool {
    let (address, mut streams) = server_with(wrap).await;
    let mut streaming = ask(address, "/stream").await;
    let frames = streams.recv().await.unwrap();
    frames.send(Ok(Frame::data(Bytes::from("some")))).unwrap();
    let mut some = [0; 1_000];
    assert!(streaming.read(&mut some).await.unwrap() > 0);
    gate.stats().in_flight == 1
}

#[tokio::test]
async fn a_layer_that_ends_the_permit_with_the_head_is_noticed() {
    let gate = gate();
    let layer = GateLayer::new(gate.clone());
    assert!(is_held_while_streaming(&gate, |app| app.layer(layer)).await);
    let gate = Gate::new(LimitRules::fixed(1)).unwrap();
    let of_mutant = gate.clone();
    let mutant = axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
        let permit = of_mutant.acquire().unwrap();
        async move {
            let response = next.run(request).await;
            permit.finish();
            response
        }
    });
    assert!(!is_held_while_streaming(&gate, |app| app.layer(mutant)).await);
}

#[tokio::test]
async fn axum_frees_the_place_of_a_client_that_goes_away() {
    let gate = gate();
    let (address, mut streams) = server(GateLayer::new(gate.clone())).await;
    let streaming = ask(address, "/stream").await;
    let frames = streams.recv().await.unwrap();
    assert_eq!(gate.stats().in_flight, 1);
    drop(streaming);
    // Whoever writes to nobody finds out; then the body is dropped, and the frames' receiver.
    until(|| {
        let _ = frames.send(Ok(Frame::data(Bytes::from("more"))));
        frames.is_closed()
    })
    .await;
    until(|| gate.stats().in_flight == 0).await;
    assert_eq!((gate.stats().ignored, gate.stats().finished), (1, 0));
}

#[tokio::test]
async fn endings_are_judged_by_status_and_by_how_the_body_ends() {
    let gate = gate();
    let (address, mut streams) = server(GateLayer::new(gate.clone())).await;
    assert!(answer(address, "/busy").await.ends_with("not now"));
    until(|| gate.stats().overloaded == 1).await;
    assert!(answer(address, "/empty").await.starts_with("HTTP/1.1 204"));
    until(|| gate.stats().finished == 1).await;
    assert!(answer(address, "/nowhere").await.starts_with("HTTP/1.1 404"));
    until(|| gate.stats().finished == 2).await;
    let streaming = ask(address, "/stream").await;
    streams.recv().await.unwrap().send(Err("it broke")).unwrap();
    until(|| gate.stats().overloaded == 2).await;
    drop(streaming);
    let stats = gate.stats();
    assert_eq!((stats.acquired, stats.in_flight, stats.lost), (4, 0, 0));
}

#[tokio::test]
async fn a_judge_of_ones_own_sees_head_and_trailers() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let gate = gate();
    let layer = GateLayer::new(gate.clone()).judge_with(move |outcome| {
        told.lock().unwrap().push(format!("{outcome:?}"));
        match outcome {
            Outcome::Trailers(_) => Ending::Overload,
            _ => Ending::Ignore,
        }
    });
    let (address, mut streams) = server(layer).await;
    let streaming = ask(address, "/stream").await;
    let frames = streams.recv().await.unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    frames.send(Ok(Frame::trailers(trailers))).unwrap();
    until(|| gate.stats().overloaded == 1).await;
    drop(streaming);
    let seen = seen.lock().unwrap();
    assert!(seen[0].starts_with("Head { status: 200"), "{seen:?}");
    assert!(seen[1].starts_with("Trailers("), "{seen:?}");
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn streams_are_measured_by_their_head_or_their_first_data() {
    for measure in [Measure::Head, Measure::FirstData] {
        let gate = gate();
        let (address, mut streams) = server(GateLayer::new(gate.clone()).measure(measure)).await;
        let streaming = ask(address, "/stream").await;
        let frames = streams.recv().await.unwrap();
        let samples = || gate.limit_stats().map_or(0, |known| known.samples);
        if measure == Measure::FirstData {
            assert_eq!(samples(), 0, "there is no data yet");
            frames.send(Ok(Frame::data(Bytes::from("some")))).unwrap();
        }
        until(|| samples() == 1).await;
        assert_eq!(gate.stats().in_flight, 1, "it goes on");
        drop(frames);
        until(|| gate.stats().finished == 1).await;
        assert_eq!(samples(), 1, "and its length is no sample");
        drop(streaming);
    }
}

/// A health service behind a gate, which has a call and a stream, and a client of it.
async fn health(gate: Gate) -> HealthClient<tonic::transport::Channel> {
    let layer = GateLayer::new(gate).refuse_with(|refused: Refused| {
        tonic::Status::resource_exhausted(refused.to_string()).into_http::<tonic::body::Body>()
    });
    let (_reporter, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn tonic_holds_a_permit_until_the_stream_ends_and_refuses_meanwhile() {
    let gate = gate();
    let mut client = health(gate.clone()).await;
    let request = || HealthCheckRequest { service: String::new() };
    client.check(request()).await.unwrap();
    until(|| gate.stats().finished == 1).await;
    let mut watch = client.watch(request()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let refused = client.check(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("1 are in flight of 1"), "{refused:?}");
    assert_eq!(gate.stats().in_flight, 1);
    drop(watch);
    until(|| gate.stats().in_flight == 0).await;
    assert_eq!(gate.stats().ignored, 1, "the client went away");
    // A status other than ok is in the head or in the trailers; this one says nothing about load.
    let unknown = HealthCheckRequest { service: "unknown".into() };
    assert_eq!(client.check(unknown).await.unwrap_err().code(), Code::NotFound);
    until(|| gate.stats().finished == 2).await;
    assert_eq!(gate.stats().overloaded, 0);
}

#[test]
fn grpc_statuses_of_overload_are_told_from_others() {
    let ending = |status: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", status.parse().unwrap());
        let head = Outcome::Head { status: StatusCode::OK, headers: &headers };
        assert_eq!(head.ending(), Outcome::Trailers(&headers).ending());
        head.ending()
    };
    assert_eq!(["4", "8", "14"].map(ending), [Ending::Overload; 3]);
    assert_eq!(["0", "5", "13", "48"].map(ending), [Ending::Finish; 4]);
    assert_eq!(Outcome::Failed.ending(), Ending::Overload);
}

/// A future that a client gives up before the service has answered.
#[tokio::test]
async fn a_response_that_is_given_up_before_its_head_frees_the_place() {
    use tower_layer::Layer;
    use tower_service::Service;

    /// A service that never answers.
    struct Silent;

    impl Service<()> for Silent {
        type Response = Response<Body>;
        type Error = &'static str;
        type Future = std::future::Pending<Result<Response<Body>, &'static str>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            std::future::pending()
        }
    }

    let gate = gate();
    let mut service = GateLayer::new(gate.clone()).layer(Silent);
    let mut waiting = Box::pin(service.call(()));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let refused = service.call(()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(gate.stats().in_flight, 1);
    drop(waiting);
    assert_eq!((gate.stats().in_flight, gate.stats().ignored), (0, 1));
}
