//! Over the gRPC door: one Check per request, and leases from the fleet door.

use std::sync::Arc;
use std::time::{Duration, Instant};

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    Cost, FailMode, GuardSettings, Guarded, PreciseClock, SharedLimiter, Span, Window,
};
use admittance_client::FleetStore;
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{Config, Fail, Service, serve};
use tokio::net::TcpListener;

use super::Effort;

pub(super) async fn run(effort: Effort) {
    let text = format!(
        "limiters:\n  api: {{ strategy: fixedWindow, limit: {LIMIT}, period: 60s, \
         federated: {{ batch: 16 }} }}\n"
    );
    let config = Config::parse("bench", &text, Fail::Closed).expect("valid");
    let service = Arc::new(Service::new(&config, Arc::new(PreciseClock::new())));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let serving = tokio::spawn(serve(listener, service, std::future::pending()));
    println!("\ngRPC on loopback, one key, {CALLERS} callers");
    println!("  {:22} {:>12} {:>22}", "", "requests/s", "round trips/request");
    let one = checks(&url, effort.length).await;
    println!("  {:22} {one:>12.0} {:>22.4}", "Check", 1.0);
    for (name, batch) in [
        ("leased, batch 10", Batch::Fixed(10)),
        ("leased, batch 100", Batch::Fixed(100)),
        ("leased, batch 1000", Batch::Fixed(1_000)),
        ("leased, learned", Batch::Learned),
    ] {
        let client = Arc::new(client(&url, batch));
        let (asked, per_second) = leased(&client, effort.length).await;
        let trips = client.stats().asked as f64 / asked.max(1) as f64;
        println!("  {name:22} {per_second:>12.0} {trips:>22.4}");
    }
    serving.abort();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn checks(url: &str, length: Duration) -> f64 {
    let started = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let url = url.to_owned();
            tokio::spawn(async move {
                let mut client = RateLimiterClient::connect(url).await.expect("it serves");
                let mut asked = 0_u64;
                while started.elapsed() < length {
                    let (policy, key) = ("api".to_owned(), KEY.to_owned());
                    let request = v1::CheckRequest { policy, key, cost: 1 };
                    client.check(request).await.expect("a reply");
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    let mut asked = 0;
    for caller in callers {
        asked += caller.await.expect("a caller does not panic");
    }
    asked as f64 / started.elapsed().as_secs_f64()
}

fn client(url: &str, batch: Batch) -> TwoTier<FleetStore> {
    let store = FleetStore::connect(url, None).expect("an address");
    let settings = GuardSettings { deadline: Span::from_secs(1), ..GuardSettings::default() };
    let guard = Arc::new(Guarded::start(store, settings));
    let window = Window::fixed(LIMIT, Span::from_secs(60)).expect("exact").into();
    let shared = SharedLimiter::new("api", window, guard, FailMode::Closed).expect("exact");
    TwoTier::leased(shared, Leasing { batch, ..Leasing::default() }).expect("leasable")
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn leased(client: &Arc<TwoTier<FleetStore>>, length: Duration) -> (u64, f64) {
    let started = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let client = Arc::clone(client);
            tokio::spawn(async move {
                let mut asked = 0_u64;
                while started.elapsed() < length {
                    for _ in 0..64 {
                        let _ = client.check(KEY.as_bytes(), Cost::ONE).await;
                        asked += 1;
                    }
                    tokio::task::yield_now().await;
                }
                asked
            })
        })
        .collect();
    let mut asked = 0;
    for caller in callers {
        asked += caller.await.expect("a caller does not panic");
    }
    (asked, asked as f64 / started.elapsed().as_secs_f64())
}

const CALLERS: usize = 16;
const KEY: &str = "tenant:000001:user:00001";
/// So much that nothing is denied.
const LIMIT: u64 = 1 << 40;
