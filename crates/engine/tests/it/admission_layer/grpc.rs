//! One admission in front of a tonic server.

use admittance::http::{AdmissionLayer, Asked, Quota};
use admittance::{Axis, Span};
use http::Request;
use tokio::net::TcpListener;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::admission_layer::world::{Here, Limits, limits, until};

/// A health service, which has a call and a stream, and a client of it.
async fn health(limits: &Limits<Here>) -> HealthClient<tonic::transport::Channel> {
    let ask = |request: &Request<tonic::body::Body>| {
        let cost =
            request.headers().get("x-cost").and_then(|cost| cost.to_str().ok()?.parse().ok());
        Asked::key("ann").cost(cost.unwrap_or(1))
    };
    let quota = Quota::new("per-user", 2).unwrap();
    let layer = AdmissionLayer::new(limits.admitter.clone(), ask).quota(Axis::Rate, quota);
    let (_reporter, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn request(cost: u64) -> tonic::Request<HealthCheckRequest> {
    let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
    request.metadata_mut().insert("x-cost", cost.into());
    request
}

fn told<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    status.metadata().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn grpc_callers_are_told_in_their_own_words() {
    let limits = limits(2, 1_000, 8);
    let mut client = health(&limits).await;
    limits.clock.advance(Span::from_ms(58_500));
    let metadata = client.check(request(1)).await.unwrap();
    assert_eq!(metadata.metadata().get("ratelimit").unwrap(), "\"per-user\";r=1;t=2");
    until(|| limits.is_idle()).await;
    let cost = client.check(request(1_000)).await.unwrap_err();
    assert_eq!(
        (cost.code(), cost.message()),
        (Code::ResourceExhausted, "denied by cost; try again in 1500 ms")
    );
    assert_eq!(told(&cost, "grpc-retry-pushback-ms"), Some("1500"));
    assert_eq!(told(&cost, "retry-after"), Some("2"));
    let never = client.check(request(1_001)).await.unwrap_err();
    assert_eq!((never.code(), told(&never, "retry-after")), (Code::ResourceExhausted, None));
    assert_eq!(told(&never, "grpc-retry-pushback-ms"), Some("-1"));
    client.check(request(1)).await.unwrap();
    let rate = client.check(request(1)).await.unwrap_err();
    assert_eq!(rate.code(), Code::ResourceExhausted);
    assert_eq!(told(&rate, "ratelimit"), Some("\"per-user\";r=0;t=2"));
    until(|| limits.is_idle()).await;
}

#[tokio::test]
async fn tonic_holds_what_was_admitted_until_the_stream_ends() {
    let limits = limits(100, 1_000, 1);
    let mut client = health(&limits).await;
    let mut watch = client.watch(request(100)).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    assert_eq!((limits.gate.stats().in_flight, limits.open()), (1, 1));
    let refused = client.check(request(1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with("denied by concurrency"), "{refused:?}");
    drop(watch);
    until(|| limits.is_idle()).await;
    assert_eq!(limits.gate.stats().ignored, 1, "the client went away");
    let mut unknown = request(1);
    unknown.get_mut().service = "unknown".into();
    assert_eq!(client.check(unknown).await.unwrap_err().code(), Code::NotFound);
    until(|| limits.is_idle()).await;
    assert_eq!((limits.gate.stats().finished, limits.gate.stats().overloaded), (1, 0));
}
