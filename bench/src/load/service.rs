//! The service under three times what it can do: one worker, a millisecond of work per check.
//!
//! Open loop: a thread of its own says when the next call is due, whether or not the last was
//! answered, and a call's time runs from then. The service has a runtime of one worker, the calls
//! come from another.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use admittance::PreciseClock;
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{Config, Fail, Service, serve};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// How long each part is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Without load.
    pub(crate) idle: Duration,
    /// With three times the capacity.
    pub(crate) busy: Duration,
}

pub(crate) const FULL: Settings =
    Settings { idle: Duration::from_secs(10), busy: Duration::from_secs(20) };
pub(crate) const QUICK: Settings =
    Settings { idle: Duration::from_secs(3), busy: Duration::from_secs(5) };

const POLICIES: &str = "
limiters:
  api: { strategy: gcra, limit: 1000000000, period: 1s }
  held: { concurrency: { minLimit: 10000, maxLimit: 10000 }, leaseTtl: 60s }
";
const WORK: Duration = Duration::from_millis(1);
const CONNECTIONS: usize = 8;

type Client = RateLimiterClient<Channel>;

/// Measures, and prints what was found.
pub(crate) fn run(settings: Settings) {
    println!("\n## the service: 1 worker, 1 ms of work per check, 3 times its capacity offered");
    for shedding in ["load: off", "load: { target: 1ms, waitMax: 1ms }"] {
        println!("\n{shedding}");
        measure(settings, shedding);
    }
}

fn measure(settings: Settings, shedding: &str) {
    let server = Server::start(&format!("{shedding}\n{POLICIES}"));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let clients: Vec<Client> = (0..CONNECTIONS + 1).map(|_| server.client(&runtime)).collect();
    let (keepers, clients) = clients.split_first().expect("some");

    offer(&runtime, clients, 20, Duration::from_secs(1));
    let idle = offer(&runtime, clients, 50, settings.idle);
    let capacity = capacity(&runtime, clients, Duration::from_secs(2));
    println!("  without load:  p50 {}  p99 {}", ms(idle.at(50)), ms(idle.at(99)));
    println!("  capacity:      {capacity} checks a second, one at a time and no gaps");

    let offered = capacity * 3;
    let leases = leases(&runtime, keepers, settings.busy);
    let keeping = keep(&runtime, keepers.clone(), leases, settings.busy);
    let busy = offer(&runtime, clients, offered, settings.busy);
    let kept = runtime.block_on(keeping).expect("no panic");

    let seconds = settings.busy.as_secs().max(1);
    let good = busy.in_time / seconds;
    let (p50, p99) = (busy.at(50), busy.at(99));
    println!("  offered {offered}/s:  answered {good}/s, {}% of capacity", good * 100 / capacity);
    println!("    accepted checks:    p50 {}  p99 {}", ms(p50), ms(p99));
    let times = p99.as_secs_f64() / idle.at(99).as_secs_f64().max(f64::MIN_POSITIVE);
    println!("    p99 against no load: {times:.2} times");
    println!("    shed {}, failed otherwise {}", busy.shed, busy.failed);
    println!("    refusals:           p99 {}", ms(percentile(&busy.refusals, 99)));
    let asked = kept.times.len() as u64 + kept.failed;
    println!(
        "    releases and heartbeats: {} of {asked} answered, p99 {}",
        kept.times.len(),
        ms(percentile(&kept.times, 99))
    );
    server.stop();
}

/// A service on a runtime of one worker.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Server {
    fn start(policies: &str) -> Self {
        let config = Config::parse("bench", policies, Fail::Open).expect("valid");
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("a runtime");
            // On a worker, as a service has it: not on this thread beside it.
            let serving = runtime.spawn(async move {
                let service = Service::new(&config, Arc::new(PreciseClock::new()));
                let service = Arc::new(service.with_artificial_work(WORK));
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                tell.send(listener.local_addr().expect("bound")).expect("heard");
                let until = async {
                    let _ = stopped.await;
                };
                serve(listener, service, until).await.expect("served");
            });
            runtime.block_on(serving).expect("no panic");
        });
        Self { address: told.recv().expect("it starts"), stop, thread }
    }

    fn client(&self, runtime: &Runtime) -> Client {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).expect("a uri");
        let channel = runtime.block_on(endpoint.connect()).expect("the port is open");
        RateLimiterClient::new(channel)
    }

    fn stop(self) {
        let _ = self.stop.send(());
        self.thread.join().expect("no panic");
    }
}

/// What became of calls.
#[derive(Default)]
struct Answers {
    times: Vec<Duration>,
    refusals: Vec<Duration>,
    /// Accepted, and answered before the last call was due.
    in_time: u64,
    shed: u64,
    failed: u64,
}

impl Answers {
    fn add(&mut self, due: Instant, end: Instant, answer: Result<(), Status>) {
        match answer {
            Ok(()) => {
                self.times.push(due.elapsed());
                self.in_time += u64::from(Instant::now() <= end);
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                self.shed += 1;
                self.refusals.push(due.elapsed());
            }
            Err(_) => self.failed += 1,
        }
    }

    fn at(&self, percent: usize) -> Duration {
        percentile(&self.times, percent)
    }
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

/// Offers so many checks a second for so long, at even distances, and waits for the answers.
fn offer(runtime: &Runtime, clients: &[Client], rate: u64, length: Duration) -> Answers {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let under_way = Arc::new(AtomicU64::new(0));
    let gap = Duration::from_nanos(1_000_000_000 / rate);
    let calls = length.as_nanos() / gap.as_nanos();
    let began = Instant::now();
    for call in 0..u32::try_from(calls).expect("not for ever") {
        let due = began + gap * call;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut client = clients[call as usize % clients.len()].clone();
        let (answers, under_way) = (Arc::clone(&answers), Arc::clone(&under_way));
        under_way.fetch_add(1, Ordering::Relaxed);
        runtime.spawn(async move {
            let answer = client.check(check(call)).await.map(|_| ());
            answers.lock().expect("no panic").add(due, began + length, answer);
            under_way.fetch_sub(1, Ordering::Relaxed);
        });
    }
    while under_way.load(Ordering::Relaxed) > 0 {
        thread::sleep(Duration::from_millis(10));
    }
    std::mem::take(&mut *answers.lock().expect("no panic"))
}

/// How many checks a second are answered, one after the other on each of two connections, so that
/// there is always one to begin.
fn capacity(runtime: &Runtime, clients: &[Client], length: Duration) -> u64 {
    let began = Instant::now();
    let calling = clients.iter().take(2).cloned().map(|mut client| {
        runtime.spawn(async move {
            let mut answered = 0_u64;
            while began.elapsed() < length {
                answered += u64::from(client.check(check(0)).await.is_ok());
            }
            answered
        })
    });
    let calling: Vec<_> = calling.collect();
    let answered: u64 =
        calling.into_iter().map(|call| runtime.block_on(call).expect("no panic")).sum();
    (answered * 1_000 / u64::try_from(began.elapsed().as_millis()).unwrap_or(1).max(1)).max(1)
}

fn check(user: u32) -> v1::CheckRequest {
    v1::CheckRequest { policy: "api".into(), key: format!("user-{}", user % 1_000), cost: 1 }
}

/// Leases to be kept and released while the service is behind, taken while it is not.
fn leases(runtime: &Runtime, client: &Client, length: Duration) -> Vec<String> {
    let mut client = client.clone();
    runtime.block_on(async {
        let mut leases = Vec::new();
        for _ in 0..length.as_millis() / KEEP_EVERY.as_millis() {
            let (policy, key) = ("held".to_owned(), "k".to_owned());
            let request = v1::AdmitRequest { policy, key, ..Default::default() };
            // It may be behind with what was offered before.
            if let Ok(admitted) = client.admit(request).await {
                leases.push(admitted.into_inner().lease_id);
            }
        }
        leases
    })
}

/// A heartbeat for all leases and the release of one, again and again.
fn keep(
    runtime: &Runtime,
    mut client: Client,
    mut leases: Vec<String>,
    length: Duration,
) -> tokio::task::JoinHandle<Answers> {
    runtime.spawn(async move {
        let (began, mut answers) = (Instant::now(), Answers::default());
        while began.elapsed() < length {
            let due = Instant::now();
            let lease_ids = leases.iter().take(100).cloned().collect();
            let beat = client.heartbeat(v1::HeartbeatRequest { lease_ids }).await;
            answers.add(due, began + length, beat.map(|_| ()));
            let due = Instant::now();
            let Some(lease_id) = leases.pop() else { break };
            let released = client.release(v1::ReleaseRequest { lease_id, dropped: false }).await;
            answers.add(due, began + length, released.map(|_| ()));
            tokio::time::sleep(KEEP_EVERY.saturating_sub(due.elapsed())).await;
        }
        answers.failed += answers.shed;
        answers
    })
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

const KEEP_EVERY: Duration = Duration::from_millis(20);
