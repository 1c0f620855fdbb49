//! The standard services beside ours: health and reflection.

use admittance_server::Drained;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::live::Live;

const POLICIES: &str = "limiters: { api: { strategy: gcra, limit: 5, period: 1h } }";

fn service(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.into() }
}

#[tokio::test]
async fn health_knows_the_server_and_the_service_and_nothing_else() {
    let live = Live::with(POLICIES).await;
    let mut client = HealthClient::new(live.channel().await);
    for name in ["", "throttlekit.v1.RateLimiter"] {
        let answer = client.check(service(name)).await.expect("known").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let refused = client.check(service("nope")).await.expect_err("unknown");
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "unknown service \"nope\""));
}

#[tokio::test]
async fn a_watcher_is_told_of_the_drain_and_does_not_hold_it_up() {
    let live = Live::with(POLICIES).await;
    let mut client = HealthClient::new(live.channel().await);
    let mut known = client.watch(service("")).await.expect("a stream").into_inner();
    let mut unknown = client.watch(service("nope")).await.expect("a stream").into_inner();
    let first = known.message().await.expect("no error").expect("a message");
    assert_eq!(first.status(), ServingStatus::Serving);
    let first = unknown.message().await.expect("no error").expect("a message");
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);

    let done = live.stop();
    let second = known.message().await.expect("no error").expect("a message");
    assert_eq!(second.status(), ServingStatus::NotServing);
    assert!(known.message().await.expect("no error").is_none(), "the stream ends");
    assert!(unknown.message().await.expect("no error").is_none(), "the stream ends");
    // Whole: its time was not over when everything had been answered.
    assert_eq!(done.await.expect("no panic").expect("no error"), Drained::Whole);
}

const SERVED: [&str; 7] = [
    "admittance.v1.Admissions",
    "admittance.v1.Load",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "throttlekit.v1.Monitor",
    "throttlekit.v1.RateLimiter",
];

/// The two versions differ in nothing but their package.
macro_rules! reflection_lists_what_is_served {
    ($name:ident, $version:ident) => {
        #[tokio::test]
        async fn $name() {
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;

            let live = Live::with(POLICIES).await;
            let mut client = ServerReflectionClient::new(live.channel().await);
            let ask = |request| ServerReflectionRequest {
                host: String::new(),
                message_request: Some(request),
            };
            let symbol = "throttlekit.v1.RateLimiter".to_owned();
            let requests = tokio_stream::iter([
                ask(MessageRequest::ListServices(String::new())),
                ask(MessageRequest::FileContainingSymbol(symbol)),
            ]);
            let answers = client.server_reflection_info(requests).await.expect("a stream");
            let answers: Vec<_> = answers.into_inner().collect().await;
            let mut answers = answers
                .into_iter()
                .map(|answer| answer.expect("no error").message_response.expect("an answer"));
            let Some(MessageResponse::ListServicesResponse(list)) = answers.next() else {
                panic!("not a list");
            };
            let mut names: Vec<String> = list.service.into_iter().map(|s| s.name).collect();
            names.sort();
            assert_eq!(names, SERVED);
            let Some(MessageResponse::FileDescriptorResponse(files)) = answers.next() else {
                panic!("not a file");
            };
            assert!(!files.file_descriptor_proto.is_empty());
        }
    };
}

reflection_lists_what_is_served!(reflection_v1_lists_what_is_served, v1);
reflection_lists_what_is_served!(reflection_v1alpha_lists_what_is_served, v1alpha);
