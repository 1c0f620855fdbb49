//! Real instances on one real Redis or Postgres: places that one instance holds and another frees,
//! and a backend that never sees more than the fleet's limit while instances are killed.
//!
//! `ADMITTANCE_LONG=1` kills and restarts instances for ten times as long.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::service::Service;
use crate::stores;

const POLICIES: &str = "
limiters:
  fleet:
    distributedConcurrency:
      minLimit: 12
      maxLimit: 12
      heartbeatMs: 200
      leaseTtl: 800ms
      maxHold: 3s
      eager: true
    # Longer than any work: these clients send no heartbeats.
    leaseTtl: 10s
  single: { concurrency: { minLimit: 1, maxLimit: 1 }, leaseTtl: 5s }
";
const LIMIT: i64 = 12;
/// Shorter than `maxHold`, counted from before the ask: who comes to this end aborts.
const WORK_MAX: Duration = Duration::from_millis(2_500);

type Client = RateLimiterClient<Channel>;

fn client(service: &Service) -> Client {
    let channel = Channel::from_shared(format!("http://{}", service.address)).expect("an address");
    RateLimiterClient::new(channel.connect_lazy())
}

fn policies(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
    std::fs::write(&path, POLICIES).expect("it can be written");
    path
}

fn instance(store: &str, policies: &Path, id: &str) -> Service {
    let policies = policies.display().to_string();
    Service::start(&["--store", store, "--config", &policies, "--node-id", id])
}

async fn admit(client: &mut Client, policy: &str) -> Option<v1::AdmitResponse> {
    let (policy, key) = (policy.to_owned(), "k".to_owned());
    let request = v1::AdmitRequest { policy, key, ..Default::default() };
    client.admit(request).await.ok().map(tonic::Response::into_inner)
}

/// A release, sent again while it could not be passed on.
async fn release(client: &mut Client, lease_id: String) {
    let request = v1::ReleaseRequest { lease_id, dropped: false };
    while let Err(status) = client.release(request.clone()).await {
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    }
}

async fn beat(client: &mut Client, lease_id: &str) -> v1::HeartbeatResponse {
    let lease_ids = vec![lease_id.to_owned()];
    let heard = client.heartbeat(v1::HeartbeatRequest { lease_ids }).await;
    heard.expect("a reply").into_inner()
}

/// A heartbeat, sent again while it could not be passed on: a lease that is in neither list says
/// that the store was too slow.
async fn told(client: &mut Client, lease_id: &str) -> v1::HeartbeatResponse {
    loop {
        let heard = beat(client, lease_id).await;
        if !heard.live_ids.is_empty() || !heard.reclaimed_ids.is_empty() {
            return heard;
        }
    }
}

/// A backend that counts who is there at once, and stops working for who hangs up.
struct Backend {
    address: String,
    now: Arc<AtomicI64>,
    most: Arc<AtomicI64>,
    served: Arc<AtomicU64>,
}

impl Backend {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let backend =
            Self { address, now: Arc::default(), most: Arc::default(), served: Arc::default() };
        let (now, most) = (Arc::clone(&backend.now), Arc::clone(&backend.most));
        let served = Arc::clone(&backend.served);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let there = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(there, Ordering::SeqCst);
                let (now, served) = (Arc::clone(&now), Arc::clone(&served));
                tokio::spawn(async move { work(stream, &now, &served).await });
            }
        });
        backend
    }
}

async fn work(mut stream: TcpStream, now: &AtomicI64, served: &AtomicU64) {
    let (mut tens_of_ms, mut more) = ([0; 1], [0; 1]);
    if stream.read_exact(&mut tens_of_ms).await.is_ok() {
        let length = Duration::from_millis(10) * tens_of_ms[0].into();
        tokio::select! {
            () = tokio::time::sleep(length) => {}
            // Nothing more is sent: this ends when the other side hangs up.
            _ = stream.read(&mut more) => {}
        }
    }
    // Gone from here before the other side can know that it is done.
    now.fetch_sub(1, Ordering::SeqCst);
    served.fetch_add(1, Ordering::Relaxed);
    let _ = stream.write_all(&[1]).await;
}

/// Asks for a place, works in it, frees it; from before asking no longer than `WORK_MAX`.
async fn gateway(address: String, backend: String, stop: Arc<AtomicBool>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let mut client = RateLimiterClient::new(channel.connect_lazy());
    while !stop.load(Ordering::Relaxed) {
        let until = Instant::now() + WORK_MAX;
        let admitted = tokio::time::timeout_at(until, admit(&mut client, "fleet")).await;
        let Ok(Some(admitted)) = admitted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if admitted.lease_id.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        // One in eight takes about as long as is allowed: a killed instance's places must be kept
        // for it.
        let tens_of_ms = if random.u8(..) < 32 { random.u8(150..240) } else { random.u8(1..6) };
        let working = async {
            let mut stream = TcpStream::connect(&backend).await?;
            stream.write_all(&[tens_of_ms]).await?;
            stream.read_exact(&mut [0; 1]).await
        };
        // An abort closes the connection, and the backend stops working for it.
        let _ = tokio::time::timeout_at(until, working).await;
        let lease_id = admitted.lease_id;
        let _ = client.release(v1::ReleaseRequest { lease_id, dropped: false }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_never_sees_more_than_the_limit_while_instances_are_killed() {
    let (store, policies) = (stores::redis(), policies("killed"));
    let backend = Backend::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut instances: Vec<Service> =
        (0..4).map(|id| instance(&store, &policies, &format!("node-{id}"))).collect();
    let mut gateways = Vec::new();
    let mut send = |service: &Service, seed: u64| {
        for nth in 0..4 {
            let (address, backend) = (service.address.clone(), backend.address.clone());
            let gateway = gateway(address, backend, Arc::clone(&stop), seed * 4 + nth);
            gateways.push(tokio::spawn(gateway));
        }
    };
    for (seed, service) in instances.iter().enumerate() {
        send(service, seed as u64);
    }
    // A new fleet waits for what an older one may have granted; then it uses all of its limit.
    let began = Instant::now();
    while backend.most.load(Ordering::SeqCst) < LIMIT && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let steady = backend.most.load(Ordering::SeqCst);
    let is_long = std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1");
    for round in 0..if is_long { 60 } else { 6 } {
        let nth = round % 4;
        instances[nth].signal("KILL");
        tokio::time::sleep(Duration::from_millis(300)).await;
        instances[nth] = instance(&store, &policies, &format!("node-{nth}"));
        send(&instances[nth], 100 + round as u64);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.store(true, Ordering::Relaxed);
    for gateway in gateways {
        gateway.await.expect("no panic");
    }
    let (most, served) =
        (backend.most.load(Ordering::SeqCst), backend.served.load(Ordering::Relaxed));
    println!("at most {most} of {LIMIT} at once ({steady} before the first kill), {served} served");
    assert!(most <= LIMIT, "{most} at once, of at most {LIMIT}");
    assert!(served > 0 && steady == LIMIT, "all places were used: {steady}");
}

/// A place that `a` holds, told about at `b`.
async fn what_one_is_told_reaches_the_other(store: &str, policies: &Path) {
    let (one, two) = (instance(store, policies, "a"), instance(store, policies, "b"));
    let (mut a, mut b) = (client(&one), client(&two));
    let held = admit(&mut a, "single").await.expect("a reply").lease_id;
    assert!(!held.is_empty());
    // Longer than a lease lives: the heartbeats at the other instance keep it. The life is such
    // that a busy machine does not miss it.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(told(&mut b, &held).await.live_ids, [&*held]);
    }
    assert!(admit(&mut a, "single").await.expect("a reply").lease_id.is_empty(), "it is held");
    release(&mut b, held.clone()).await;
    assert_eq!(told(&mut b, &held).await.reclaimed_ids, [&*held]);
    let again = loop {
        let again = admit(&mut a, "single").await.expect("a reply").lease_id;
        if !again.is_empty() {
            break again;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Nobody is heard of this one; at the other instance that shows too.
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if !admit(&mut a, "single").await.expect("a reply").lease_id.is_empty() {
            break;
        }
    }
    loop {
        let heard = beat(&mut b, &again).await;
        if heard.reclaimed_ids == [&*again] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_place_is_kept_and_freed_through_another_instance_on_redis() {
    what_one_is_told_reaches_the_other(&stores::redis(), &policies("redis")).await;
}

#[tokio::test]
async fn a_place_is_kept_and_freed_through_another_instance_on_postgres() {
    what_one_is_told_reaches_the_other(&stores::postgres(), &policies("postgres")).await;
}
