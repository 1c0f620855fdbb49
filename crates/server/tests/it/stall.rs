//! Peers that hold their place without using it: the only place of a service, which the next client
//! then gets. Time is not waited for: it passes when nobody has anything to do.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use admittance::{ManualClock, Micros};
use admittance_proto::v1;
use admittance_server::{CALL_MAX, Doors, Fail, Service};
use bytes::Bytes;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::live::{self, Live, START_US};

const POLICY: &str = "limiters: { api: { strategy: fixedWindow, limit: 9, period: 1h } }";

async fn with_one_place() -> Live {
    let config = live::config(POLICY, Fail::Open);
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let service = Arc::new(Service::new(&config, Arc::new(clock.clone())));
    let doors = Doors { connections_max: NonZero::new(1), ..Doors::default() };
    Live::serving(service, clock, doors).await
}

/// How long it takes until a client is served that comes after all others.
async fn until_served(live: &Live) -> Duration {
    let since = Instant::now();
    let mut stream = TcpStream::connect(live.address).await.expect("the port is open");
    let ask = b"GET /healthz HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    since.elapsed()
}

async fn sent(live: &Live, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(live.address).await.expect("the port is open");
    stream.write_all(bytes).await.expect("sent");
    stream
}

#[tokio::test(start_paused = true)]
async fn who_does_not_say_what_it_wants_gives_its_place_back() {
    let live = with_one_place().await;
    let begins: [&[u8]; 5] = [
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
        b"G",
        b"GET /healthz HTTP/1.1\r\nhost: ",
        b"POST /v1/check HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n{",
    ];
    for begin in begins {
        let held = sent(&live, begin).await;
        let waited = until_served(&live).await;
        assert!(waited <= 2 * CALL_MAX, "{begin:?}: {waited:?}");
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_byte_by_byte_is_not_waited_for() {
    let live = with_one_place().await;
    let mut stream = sent(&live, b"GET /healthz HTTP/1.1\r\n").await;
    let dripping = tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            if stream.write_all(b"x").await.is_err() {
                return;
            }
        }
    });
    assert!(until_served(&live).await <= CALL_MAX + Duration::from_secs(1));
    dripping.await.expect("it was disconnected");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_of_http1_is_closed_and_one_of_http2_is_not() {
    let live = with_one_place().await;
    let mut stream = sent(&live, b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let mut answer = [0; 512];
    assert!(stream.read(&mut answer).await.expect("an answer") > 0);
    let waited = until_served(&live).await;
    assert!(waited >= CALL_MAX - Duration::from_millis(1) && waited <= 2 * CALL_MAX, "{waited:?}");
    // Clients of gRPC keep theirs, as long as they answer pings.
    let mut client = live.client().await;
    for _ in 0..3 {
        let request = v1::PeekRequest { policy: "api".into(), key: "k".into() };
        assert!(client.peek(request).await.is_ok());
        sleep(Duration::from_secs(600)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_no_bytes_gives_its_place_back() {
    let live = with_one_place().await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("smaller");
    let mut stream = socket.connect(live.address).await.expect("the port is open");
    let batch = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n".repeat(1_000);
    // Until neither side can send any more.
    while let Ok(sent) = timeout(Duration::from_secs(1), stream.write_all(&batch)).await {
        sent.expect("it is not disconnected yet");
    }
    assert!(until_served(&live).await <= 2 * CALL_MAX);
    drop(stream);
}

/// A call whose answer has no room to come.
async fn untaken(live: &Live, window: u32, keys: usize) -> h2::client::ResponseFuture {
    let socket = TcpStream::connect(live.address).await.expect("the port is open");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (client, connection) = builder.handshake::<_, Bytes>(socket).await.expect("HTTP/2");
    // It answers pings, and whatever else can be answered without taking anything.
    tokio::spawn(connection);
    let path = format!("{}/throttlekit.v1.RateLimiter/CheckMany", live.url());
    let request = http::Request::post(path).header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(()).expect("a request");
    let keys = (0..keys).map(|key| key.to_string()).collect();
    let many = v1::CheckManyRequest { policy: "api".into(), keys, cost: 1 };
    let mut framed = vec![0];
    let length = u32::try_from(many.encoded_len()).expect("short");
    framed.extend(length.to_be_bytes());
    framed.extend(many.encode_to_vec());
    let mut client = client.ready().await.expect("room for a call");
    let (response, mut body) = client.send_request(request, false).expect("sent");
    body.send_data(framed.into(), true).expect("sent");
    response
}

#[tokio::test(start_paused = true)]
async fn who_leaves_an_answer_untaken_gives_its_place_back() {
    for (window, keys) in [(0, 1), (1, 1_000), (20_000, 2_000)] {
        let live = with_one_place().await;
        let response = untaken(&live, window, keys).await;
        let mut body = response.await.expect("its head needs no window").into_body();
        let waited = until_served(&live).await;
        assert!(waited <= 3 * CALL_MAX, "{window}, {keys}: {waited:?}");
        let mut last = body.data().await;
        while matches!(last, Some(Ok(_))) {
            last = body.data().await;
        }
        assert!(matches!(last, Some(Err(_))), "{last:?}: it was disconnected");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_nothing_to_say_is_not_cut() {
    let live = Live::with(POLICY).await;
    let mut health = HealthClient::new(live.channel().await);
    let request = HealthCheckRequest { service: String::new() };
    let mut watching = health.watch(request).await.expect("served").into_inner();
    assert!(watching.message().await.expect("no error").is_some());
    let silence = timeout(Duration::from_secs(300), watching.message()).await;
    assert!(silence.is_err(), "{silence:?}");
}

/// Reflection is asked and answered in one stream, which could be kept open for ever.
#[tokio::test(start_paused = true)]
async fn reflection_ends_when_a_call_must() {
    let live = Live::with(POLICY).await;
    let mut reflection = ServerReflectionClient::new(live.channel().await);
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    // Asks once, and then never says that this was all.
    let asking = tokio_stream::once(asked.clone()).chain(tokio_stream::pending());
    let since = Instant::now();
    let answers = reflection.server_reflection_info(asking).await.expect("served");
    let mut answers = answers.into_inner();
    assert!(answers.message().await.expect("no error").is_some());
    while let Ok(Some(_)) = answers.message().await {}
    let waited = since.elapsed();
    assert!((CALL_MAX..=2 * CALL_MAX).contains(&waited), "{waited:?}");
    // Nor are names so long, or so many.
    let long = ServerReflectionRequest { host: "x".repeat(20_000), ..asked.clone() };
    let asking = tokio_stream::once(long).chain(tokio_stream::pending());
    let answers = reflection.server_reflection_info(asking).await.expect("served");
    assert!(!matches!(answers.into_inner().message().await, Ok(Some(_))));
    let some = ServerReflectionRequest { host: "x".repeat(1_000), ..asked };
    let many = tokio_stream::iter(std::iter::repeat_n(some, 1_000));
    let mut answers = reflection.server_reflection_info(many).await.expect("served").into_inner();
    let mut count = 0;
    while let Ok(Some(_)) = answers.message().await {
        count += 1;
    }
    assert!((1..=32).contains(&count), "{count}");
}
