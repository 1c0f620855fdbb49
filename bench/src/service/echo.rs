//! The libraries under the doors, answering a constant to the same messages.

use std::convert::Infallible;
use std::task::{Context, Poll};

use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_server::{RateLimiter, RateLimiterServer};
use axum::routing::post;
use axum::serve::ListenerExt;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Serves until it is killed.
pub(crate) fn serve(door: &str) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    let door = door.to_owned();
    // On a worker, as the service has it.
    let serving = runtime.spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("listening on {}", listener.local_addr().expect("bound"));
        match door.as_str() {
            "grpc" => grpc(listener).await,
            "collector" => collector(listener).await,
            _ => http(listener).await,
        }
    });
    let ended: Result<Infallible, _> = runtime.block_on(serving);
    drop(ended);
}

async fn grpc(listener: TcpListener) -> Infallible {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = tonic::transport::Server::builder().add_service(RateLimiterServer::new(Echo));
    served.serve_with_incoming(incoming).await.expect("served");
    unreachable!("it serves for ever")
}

async fn collector(listener: TcpListener) -> Infallible {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = tonic::transport::Server::builder().add_service(Collector);
    served.serve_with_incoming(incoming).await.expect("served");
    unreachable!("it serves for ever")
}

/// Takes spans as a collector does, decodes nothing of them and forgets them.
#[derive(Clone)]
struct Collector;

impl tonic::server::NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

/// A message whose every field is passed over.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Anything {}

impl tower::Service<http::Request<tonic::body::Body>> for Collector {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = tonic::codegen::BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let codec: ProstCodec<Anything, Anything> = ProstCodec::default();
            Ok(tonic::server::Grpc::new(codec).unary(Collector, request).await)
        })
    }
}

impl tonic::server::UnaryService<Anything> for Collector {
    type Response = Anything;
    type Future = std::future::Ready<Result<Response<Anything>, Status>>;

    fn call(&mut self, _: Request<Anything>) -> Self::Future {
        std::future::ready(Ok(Response::new(Anything {})))
    }
}

async fn http(listener: TcpListener) -> Infallible {
    let router = axum::Router::new().route("/v1/check", post(check));
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).await.expect("served");
    unreachable!("it serves for ever")
}

#[derive(Deserialize)]
struct Check {
    policy: String,
    key: String,
    #[serde(default)]
    cost: i64,
}

#[derive(Serialize)]
struct Checked {
    allowed: bool,
    limit: i64,
    remaining: i64,
    reset_at: i64,
    retry_after_ms: i64,
}

async fn check(axum::Json(asked): axum::Json<Check>) -> axum::Json<Checked> {
    let Check { policy, key, cost } = asked;
    std::hint::black_box((policy, key, cost));
    let v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms } = DECISION;
    axum::Json(Checked { allowed, limit, remaining, reset_at, retry_after_ms })
}

struct Echo;

const DECISION: v1::Decision = v1::Decision {
    allowed: true,
    limit: 1_000_000_000,
    remaining: 999_999_999,
    reset_at: 1_800_000_000_000,
    retry_after_ms: 0,
};

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RateLimiter for Echo {
    async fn check(&self, request: Request<v1::CheckRequest>) -> Reply<v1::CheckResponse> {
        std::hint::black_box(request.into_inner());
        Ok(Response::new(v1::CheckResponse { decision: Some(DECISION) }))
    }

    async fn check_many(&self, _: Request<v1::CheckManyRequest>) -> Reply<v1::CheckManyResponse> {
        Err(Status::unimplemented(""))
    }

    async fn peek(&self, _: Request<v1::PeekRequest>) -> Reply<v1::PeekResponse> {
        Err(Status::unimplemented(""))
    }

    async fn forecast(&self, _: Request<v1::ForecastRequest>) -> Reply<v1::ForecastResponse> {
        Err(Status::unimplemented(""))
    }

    async fn debit(&self, _: Request<v1::DebitRequest>) -> Reply<v1::DebitResponse> {
        Err(Status::unimplemented(""))
    }

    async fn admit(&self, _: Request<v1::AdmitRequest>) -> Reply<v1::AdmitResponse> {
        Err(Status::unimplemented(""))
    }

    async fn release(&self, _: Request<v1::ReleaseRequest>) -> Reply<v1::ReleaseResponse> {
        Err(Status::unimplemented(""))
    }

    async fn heartbeat(&self, _: Request<v1::HeartbeatRequest>) -> Reply<v1::HeartbeatResponse> {
        Err(Status::unimplemented(""))
    }
}
