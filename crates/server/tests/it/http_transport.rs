//! HTTP as bytes on a socket: versions, several requests on one connection, bodies in pieces, and a
//! service that stops.

use admittance_server::Drained;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::live::Live;
use crate::web::Web;

const POLICIES: &str = "limiters: { api: { strategy: gcra, limit: 100, period: 1h } }";
const ASK: &str = r#"{"policy":"api","key":"k"}"#;

/// Sends all of it and reads until the service closes.
async fn exchange(live: &Live, sent: &str) -> String {
    let mut stream = TcpStream::connect(live.address).await.expect("the port is open");
    stream.write_all(sent.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    answer
}

fn post(version: &str, headers: &str) -> String {
    let length = ASK.len();
    format!(
        "POST /v1/check HTTP/{version}\r\nHost: a\r\n{headers}Content-Length: {length}\r\n\r\n{ASK}"
    )
}

/// The parts of a conversation that begin an answer.
fn answers(text: &str) -> Vec<&str> {
    text.split("HTTP/1.").skip(1).collect()
}

fn remaining(answer: &str) -> Option<&str> {
    answer.split("\"remaining\":").nth(1)?.split(',').next()
}

#[tokio::test]
async fn requests_in_one_packet_are_answered_in_order() {
    let live = Live::with(POLICIES).await;
    let last = post("1.1", "Connection: close\r\n");
    let sent = format!("{}{}{last}", post("1.1", ""), post("1.1", ""));
    let text = exchange(&live, &sent).await;
    let answers = answers(&text);
    let left: Vec<_> = answers.iter().map(|answer| remaining(answer)).collect();
    assert_eq!(left, [Some("99"), Some("98"), Some("97")], "{text}");
    assert!(answers.iter().all(|answer| answer.starts_with("1 200 OK\r\n")), "{text}");
}

#[tokio::test]
async fn the_oldest_version_is_answered_and_closed_unless_it_asks_otherwise() {
    let live = Live::with(POLICIES).await;
    let text = exchange(&live, &post("1.0", "")).await;
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    let kept = format!("{}{}", post("1.0", "Connection: keep-alive\r\n"), post("1.0", ""));
    let text = exchange(&live, &kept).await;
    assert_eq!(answers(&text).len(), 2, "{text}");
}

#[tokio::test]
async fn a_body_may_come_in_chunks() {
    let live = Live::with(POLICIES).await;
    let (one, other) = ASK.split_at(7);
    let sent = format!(
        "POST /v1/check HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\
         \r\n\r\n{:x}\r\n{one}\r\n{:x}\r\n{other}\r\n0\r\n\r\n",
        one.len(),
        other.len()
    );
    let text = exchange(&live, &sent).await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert_eq!(remaining(&text), Some("99"));
}

#[tokio::test]
async fn a_head_is_a_get_without_its_body() {
    let live = Live::with(POLICIES).await;
    let sent = "HEAD /v1/policies HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let head = exchange(&live, sent).await;
    let got = exchange(&live, &sent.replace("HEAD", "GET")).await;
    let (fields, body) = got.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let length = format!("content-length: {}\r\n", body.len());
    assert!(head.contains(&length) && format!("{fields}\r\n").contains(&length), "{head}");
    let mut web = Web::to_h2(live.address).await;
    let request = http::Request::head("/v1/policies").body(Default::default()).expect("a request");
    let reply = web.send(request).await;
    let same = (200, body.len().to_string(), String::new());
    assert_eq!((reply.status, reply.header("content-length").to_owned(), reply.text), same);
}

#[tokio::test]
async fn a_body_that_says_it_is_too_large_is_refused_before_it_comes() {
    let live = Live::with(POLICIES).await;
    let sent = "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 4194305\r\n\r\n";
    let text = exchange(&live, sent).await;
    assert!(text.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{text}");
}

#[tokio::test]
async fn a_connection_is_kept_and_both_versions_answer_alike() {
    let live = Live::with(POLICIES).await;
    let (mut one, mut two) = (Web::to(live.address).await, Web::to_h2(live.address).await);
    let ask = json!({ "policy": "api", "key": "k" });
    for left in (0..20).rev() {
        let web = if left % 2 == 0 { &mut one } else { &mut two };
        let reply = web.post("/v1/check", &ask).await;
        assert_eq!(reply.json()["decision"]["remaining"], left + 80);
        assert!(reply.header("ratelimit").starts_with(&format!("\"api\";r={};", left + 80)));
    }
}

#[tokio::test]
async fn a_request_that_has_begun_is_answered_when_the_service_stops() {
    let live = Live::with(POLICIES).await;
    let address = live.address;
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    let (one, other) = ASK.split_at(7);
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        ASK.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // It has begun: the service asks for the body.
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.expect("an answer");
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(one.as_bytes()).await.expect("sent");
    let stopped = live.stop();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(other.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("text");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert_eq!(stopped.await.expect("no panic").expect("served"), Drained::Whole);
}
