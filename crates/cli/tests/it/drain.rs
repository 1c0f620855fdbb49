//! What a signal does to a service at work.
//!
//! A service whose calls were not all answered when its time was over says so; one that says
//! nothing did not need that time. So no clock is needed here to know which it was.

use std::time::Duration;

use admittance_proto::v1;
use bytes::Bytes;
use prost::Message;
use tokio::net::TcpStream;

use crate::service::Service;

/// A call that has begun: its headers and half of its body are sent.
struct HalfSent {
    body: h2::SendStream<Bytes>,
    rest: Bytes,
    response: h2::client::ResponseFuture,
}

async fn begin(address: &str) -> HalfSent {
    let socket = TcpStream::connect(address).await.expect("the port is open");
    let (client, mut connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let mut pings = connection.ping_pong().expect("asked for once");
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{address}/throttlekit.v1.RateLimiter/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    let mut client = client.ready().await.expect("room for a call");
    let (response, mut body) = client.send_request(request, false).expect("sent");
    let check = v1::CheckRequest { policy: "api".into(), key: "k".into(), cost: 1 };
    let message = check.encode_to_vec();
    let length = u32::try_from(message.len()).expect("short");
    let mut framed = vec![0];
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    let mut framed = Bytes::from(framed);
    let rest = framed.split_off(8);
    body.send_data(framed, false).expect("sent");
    // A ping may overtake the call on its way out, but not twice: after the second answer the
    // service has the call.
    for _ in 0..2 {
        pings.ping(h2::Ping::opaque()).await.expect("an answer");
    }
    HalfSent { body, rest, response }
}

/// Returns once nobody can connect any more.
async fn until_closed(address: &str) {
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn is_answered_after(signal: &str) {
    let service = Service::start(&[]);
    let address = service.address.clone();
    let mut call = begin(&address).await;
    service.signal(signal);
    until_closed(&address).await;
    call.body.send_data(call.rest, true).expect("the connection still stands");
    let response = call.response.await.expect("an answer");
    assert_eq!(response.status(), 200);
    let data = response.into_body().data().await.expect("a message").expect("no error");
    let answer = v1::CheckResponse::decode(&data[5..]).expect("a reply");
    let decision = answer.decision.expect("a decision");
    assert_eq!((decision.allowed, decision.remaining), (true, 4));
    let (code, complaints) = service.wait();
    assert_eq!((code, complaints.as_str()), (Some(0), ""), "it ends with its last answer");
}

#[tokio::test]
async fn a_call_in_flight_is_answered_after_sigterm() {
    is_answered_after("TERM").await;
}

#[tokio::test]
async fn a_call_in_flight_is_answered_after_sigint() {
    is_answered_after("INT").await;
}

#[tokio::test]
async fn a_call_that_never_ends_does_not_keep_the_process() {
    let service = Service::start(&[]);
    let _call = begin(&service.address).await;
    let _silent = TcpStream::connect(&service.address).await.expect("open");
    service.signal("TERM");
    let (code, complaints) = service.wait();
    assert_eq!(code, Some(0));
    assert_eq!(complaints, "some calls were still unanswered after 4 s\n");
}

#[test]
fn an_idle_service_ends_at_once() {
    let service = Service::start(&[]);
    service.signal("TERM");
    let (code, complaints) = service.wait();
    assert_eq!((code, complaints.as_str()), (Some(0), ""));
}
