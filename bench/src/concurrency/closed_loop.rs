//! A limit that finds a real backend's knee: a process of its own with so many places, more callers
//! than it can serve, and a gate between them.
//!
//! The knee is swept first: the least concurrency that gives 95 % of the highest throughput.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use admittance::gate::{Gate, LimitRules};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Effort;

/// What one stretch showed.
struct Seen {
    per_second: f64,
    p99: Duration,
    limit: u32,
}

pub(super) async fn run(effort: Effort) {
    println!("\nclosed loop: a backend process, work of 8 to 12 ms, {CALLERS} callers");
    println!(
        "  {:8} {:14} {:>5} {:>7} {:>11} {:>12} {:>16}",
        "places", "preset", "knee", "limit", "of the knee", "throughput", "p99 of no load's"
    );
    for places in [20, 60] {
        let backend = Backend::start(places);
        let (knee, best, no_load) = sweep(&backend, effort, places).await;
        for (name, rules) in PRESETS {
            let gate = Gate::new(rules).expect("good rules");
            let _ = stretch(&backend, &gate, effort.settle).await;
            let seen = stretch(&backend, &gate, effort.settle / 2).await;
            row(&places.to_string(), name, knee, best, no_load, &seen);
        }
        drop(backend);
    }
    moved(effort).await;
}

/// The knee moves under a gate that has found it.
async fn moved(effort: Effort) {
    let rules = LimitRules::stable();
    let gate = Gate::new(rules).expect("good rules");
    for places in [20, 60, 20] {
        let backend = Backend::start(places);
        let (knee, best, no_load) = sweep(&backend, effort, places).await;
        let _ = stretch(&backend, &gate, effort.settle).await;
        let seen = stretch(&backend, &gate, effort.settle / 2).await;
        row(&format!("→ {places}"), "stable", knee, best, no_load, &seen);
    }
}

fn row(places: &str, preset: &str, knee: u32, best: f64, no_load: Duration, seen: &Seen) {
    let of_knee = f64::from(seen.limit) / f64::from(knee);
    let throughput = 100.0 * seen.per_second / best;
    let p99 = seen.p99.as_secs_f64() / no_load.as_secs_f64();
    println!(
        "  {places:8} {preset:14} {knee:>5} {:>7} {of_knee:>11.2} {throughput:>10.1} % {p99:>16.2}",
        seen.limit
    );
}

/// The knee, the best throughput, and the p99 of a single caller.
async fn sweep(backend: &Backend, effort: Effort, places: u32) -> (u32, f64, Duration) {
    let mut swept = Vec::new();
    for percent in [50, 70, 80, 85, 90, 95, 100, 105, 110, 125, 150, 200] {
        let limit = (places * percent / 100).max(1);
        let gate = Gate::new(LimitRules::fixed(limit)).expect("good rules");
        swept.push((limit, stretch(backend, &gate, effort.sweep).await.per_second));
    }
    let best = swept.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let knee = swept.iter().find(|(_, rate)| *rate >= 0.95 * best).map_or(places, |(at, _)| *at);
    let gate = Gate::new(LimitRules::fixed(places / 4)).expect("good rules");
    let no_load = stretch(backend, &gate, effort.sweep * 2).await.p99;
    (knee, best, no_load)
}

/// All callers at once for a while; the limit is the median of what it was.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn stretch(backend: &Backend, gate: &Gate, length: Duration) -> Seen {
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (gate, stop, done) = (gate.clone(), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(caller(backend.address.clone(), gate, stop, done))
        })
        .collect();
    let began = Instant::now();
    let mut limits = Vec::new();
    while began.elapsed() < length {
        tokio::time::sleep(Duration::from_millis(20)).await;
        limits.push(gate.stats().limit);
    }
    let per_second = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.expect("no panic"));
    }
    times.sort_unstable();
    limits.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    Seen { per_second, p99, limit: limits[limits.len() / 2] }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn caller(
    address: String,
    gate: Gate,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.expect("the backend is there");
    let _ = stream.set_nodelay(true);
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(permit) = gate.acquire() else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let began = Instant::now();
        stream.write_all(&[1]).await.expect("the backend is there");
        stream.read_exact(&mut [0; 1]).await.expect("the backend answers");
        times.push(began.elapsed());
        permit.finish();
        done.fetch_add(1, Ordering::Relaxed);
    }
    times
}

/// This program once more, as a backend.
struct Backend {
    child: Child,
    address: String,
}

impl Backend {
    fn start(places: u32) -> Self {
        let me = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(me)
            .args(["backend", &places.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)
            .expect("it says where it is");
        Self { child, address: line.trim().to_owned() }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves so many at once, the others in order, until nobody holds its standard input.
pub(crate) fn backend(places: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("it starts").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let places = Arc::new(Semaphore::new(places));
        tokio::spawn(async move {
            let mut seed = 0;
            while let Ok((stream, _)) = listener.accept().await {
                seed += 1;
                tokio::spawn(serve(stream, Arc::clone(&places), seed));
            }
        });
        let mut input = BufReader::new(tokio::io::stdin());
        let _ = input.read_line(&mut String::new()).await;
    });
}

async fn serve(mut stream: TcpStream, places: Arc<Semaphore>, mut seed: u64) {
    let _ = stream.set_nodelay(true);
    let mut one = [0; 1];
    while stream.read_exact(&mut one).await.is_ok() {
        let Ok(_place) = places.acquire().await else { return };
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_micros(8_000 + (seed >> 33) % 4_000)).await;
        if stream.write_all(&one).await.is_err() {
            return;
        }
    }
}

const CALLERS: usize = 200;
const PRESETS: [(&str, LimitRules); 2] =
    [("stable", LimitRules::stable()), ("seed defaults", LimitRules::seed_defaults())];
