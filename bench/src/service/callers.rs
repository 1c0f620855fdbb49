//! Who calls: so many connections, so many calls at once on each.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admittance_proto::v1;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::servers::{Kind, Server};

/// Over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// gRPC, whose calls share a connection.
    Grpc,
    /// HTTP/1.1, one at a time on each.
    Http,
}

impl Call {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }
}

/// How many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    connections: usize,
    each: usize,
}

impl Shape {
    pub(super) const fn of(connections: usize, each: usize) -> Self {
        Self { connections, each }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, each } = self;
        write!(f, "{connections} × {each} callers (connections × calls at once on each)")
    }
}

/// What one round found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// What one check cost the server's processor.
    pub(super) processor_us: f64,
}

/// Calls for so long.
pub(super) fn round(server: &Server, call: Call, shape: Shape, length: Duration) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = Vec::new();
        for connection in 0..shape.connections {
            callers.extend(connect(server, call, shape.each, connection).await);
        }
        let before = server.processor_time();
        let began = Instant::now();
        let mut calling = JoinSet::new();
        for caller in callers {
            calling.spawn(caller.run(Arc::clone(&stop)));
        }
        tokio::time::sleep(length).await;
        stop.store(true, Ordering::Relaxed);
        let mut times: Vec<Duration> = Vec::new();
        while let Some(taken) = calling.join_next().await {
            times.extend(taken.expect("no panic"));
        }
        let (took, processor) = (began.elapsed(), server.processor_time() - before);
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        let count = u32::try_from(times.len()).expect("not so many");
        Measured {
            per_second: f64::from(count) / took.as_secs_f64(),
            p50_us: at(50),
            p99_us: at(99),
            processor_us: processor.as_secs_f64() * 1e6 / f64::from(count),
        }
    })
}

/// One that calls again as soon as it is answered.
enum Caller {
    Grpc { client: Grpc<Channel>, kind: Kind, seed: usize },
    Http { sender: http1::SendRequest<Full<Bytes>>, kind: Kind, seed: usize },
}

async fn connect(server: &Server, call: Call, each: usize, connection: usize) -> Vec<Caller> {
    let (address, kind): (SocketAddr, Kind) = (server.address, server.kind());
    let seeds = (0..each).map(|place| connection * each + place);
    match call {
        Call::Grpc => {
            let endpoint = Channel::from_shared(format!("http://{address}")).expect("a uri");
            let channel = endpoint.connect().await.expect("the port is open");
            seeds
                .map(|seed| Caller::Grpc { client: Grpc::new(channel.clone()), kind, seed })
                .collect()
        }
        Call::Http => {
            let stream = TcpStream::connect(address).await.expect("the port is open");
            let _ = stream.set_nodelay(true);
            let shaken = http1::handshake(TokioIo::new(stream)).await;
            let (sender, conversation) = shaken.expect("HTTP/1");
            tokio::spawn(conversation);
            vec![Caller::Http { sender, kind, seed: connection }]
        }
    }
}

impl Caller {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Vec<Duration> {
        let mut times = Vec::with_capacity(1 << 14);
        let mut turn = 0_usize;
        while !stop.load(Ordering::Relaxed) {
            turn += 1;
            let began = Instant::now();
            self.call(turn).await;
            times.push(began.elapsed());
        }
        times
    }

    async fn call(&mut self, turn: usize) {
        match self {
            Self::Grpc { client, kind, seed } => {
                let key = key(*seed, turn);
                client.ready().await.expect("connected");
                match kind {
                    Kind::Ours | Kind::Echo => {
                        let request = v1::CheckRequest { policy: "api".into(), key, cost: 1 };
                        let path = PathAndQuery::from_static("/throttlekit.v1.RateLimiter/Check");
                        let codec: ProstCodec<_, v1::CheckResponse> = ProstCodec::default();
                        let answer = client.unary(tonic::Request::new(request), path, codec).await;
                        let decision = answer.expect("answered").into_inner().decision;
                        assert!(decision.is_some_and(|decision| decision.allowed));
                    }
                    Kind::Peer => {
                        let request = Throttle { key, ..THROTTLE };
                        let path = PathAndQuery::from_static("/throttlecrab.RateLimiter/Throttle");
                        let codec: ProstCodec<_, Throttled> = ProstCodec::default();
                        let answer = client.unary(tonic::Request::new(request), path, codec).await;
                        assert!(answer.expect("answered").into_inner().allowed);
                    }
                }
            }
            Self::Http { sender, kind, seed } => {
                let key = key(*seed, turn);
                let (path, body) = match kind {
                    Kind::Ours | Kind::Echo => {
                        let body = format!(r#"{{"policy":"api","key":"{key}","cost":1}}"#);
                        ("/v1/check", body)
                    }
                    Kind::Peer => {
                        let Throttle { max_burst, count_per_period, period, quantity, .. } =
                            THROTTLE;
                        let limits = format!(
                            r#""max_burst":{max_burst},"count_per_period":{count_per_period}"#
                        );
                        let spent = format!(r#""period":{period},"quantity":{quantity}"#);
                        let body = format!(r#"{{"key":"{key}",{limits},{spent}}}"#);
                        ("/throttle", body)
                    }
                };
                let request = http::Request::post(path)
                    .header("host", "127.0.0.1")
                    .header("content-type", "application/json")
                    .body(Full::new(Bytes::from(body)))
                    .expect("a request");
                sender.ready().await.expect("connected");
                let answer = sender.send_request(request).await.expect("answered");
                assert!(answer.status().is_success(), "{}", answer.status());
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                assert!(!body.is_empty());
            }
        }
    }
}

/// Ten thousand keys, each caller walking through them from its own place.
fn key(seed: usize, turn: usize) -> String {
    format!("user-{}", (seed.wrapping_mul(7_919) + turn) % 10_000)
}

/// The peer's own messages.
#[derive(Clone, PartialEq, prost::Message)]
struct Throttle {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Throttled {
    #[prost(bool, tag = "1")]
    allowed: bool,
}

const THROTTLE: Throttle = Throttle {
    key: String::new(),
    max_burst: 1_000_000,
    count_per_period: 1_000_000,
    period: 1,
    quantity: 1,
};
