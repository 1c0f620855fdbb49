//! What others notice of hostile clients: the same calls, with and without an attack, in turn.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::Effort;
use super::callers::{self, Call, Measured, Shape};
use super::servers::{POLICIES, Server};
use crate::report::{paired, spread};

/// Slow connections that are open at once.
const SLOW: usize = 1_000;
/// How many new keys a second a hostile batch caller uses.
const KEYS: usize = 100_000;

/// Prints the p99 of honest callers, calm and attacked.
pub(super) fn run(effort: Effort) {
    println!("\n## hostile clients: {SLOW} slow connections, malformed bytes, oversized bodies,");
    println!("## {KEYS} new keys a second; Check over gRPC meanwhile");
    for shape in [Shape::of(1, 1), Shape::of(8, 1)] {
        let server = Server::ours(Call::Grpc, &["--log-level", "off"], POLICIES);
        let (mut calm, mut attacked): (Vec<Measured>, Vec<Measured>) = Default::default();
        for round in 0..=effort.rounds {
            let one = callers::round(&server, Call::Grpc, shape, effort.round);
            let attack = Attack::start(server.address);
            let other = callers::round(&server, Call::Grpc, shape, effort.round);
            attack.stop();
            // The first warms up.
            if round > 0 {
                calm.push(one);
                attacked.push(other);
            }
        }
        let p99 =
            |rounds: &[Measured]| -> Vec<f64> { rounds.iter().map(|one| one.p99_us).collect() };
        let (calm, attacked) = (p99(&calm), p99(&attacked));
        let ratio = paired(&attacked, &calm);
        println!("\n{shape}");
        println!("  p99 calm     {:>8.0} µs", spread(&calm).median);
        println!("  p99 attacked {:>8.0} µs", spread(&attacked).median);
        print!("  attacked/calm {:.2} ({:.2} – {:.2})", ratio.median, ratio.low, ratio.high);
        println!("  at most 2: {}", if ratio.median <= 2.0 { "holds" } else { "FAILS" });
        println!("  {} KiB resident at the end", server.resident_kib());
    }
}

/// Attackers on a thread of their own, on the callers' core.
struct Attack {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Attack {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut open = Vec::with_capacity(SLOW);
                for place in 0..SLOW {
                    open.push(slow(address, place).await);
                }
                let _ = tell.send(());
                tokio::join!(
                    trickle(&mut open, &stopped),
                    malformed(address, &stopped),
                    oversized(address, &stopped),
                    flood(address, &stopped),
                );
            });
        });
        told.recv().expect("it begins");
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

/// Connects and says a part of something.
async fn slow(address: SocketAddr, place: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    let part: &[u8] = match place % 4 {
        0 => b"",
        1 => b"PRI * HTTP/2.0\r\n",
        2 => b"POST /v1/check HTTP/1.1\r\nhost: a\r\nx-slow: ",
        _ => b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 4000\r\n\r\n{",
    };
    let _ = stream.write_all(part).await;
    stream
}

/// One byte a second on each that takes one.
async fn trickle(open: &mut [TcpStream], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for (place, stream) in open.iter().enumerate() {
            if place % 4 > 1 {
                let _ = stream.try_write(b" ");
            }
            if place % 100 == 0 {
                sleep(Duration::from_millis(100)).await;
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }
}

/// A hundred connections a second with bytes that mean nothing.
async fn malformed(address: SocketAddr, stop: &AtomicBool) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    while !stop.load(Ordering::Relaxed) {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for _ in 0..512 {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            bytes.push(random.to_be_bytes()[0]);
        }
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let _ = stream.write_all(&bytes).await;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Ten bodies a second that say they are far too long.
async fn oversized(address: SocketAddr, stop: &AtomicBool) {
    let head = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n";
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let _ = stream.write_all(head).await;
            let _ = stream.write_all(&[b' '; 65_536]).await;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Keys that nobody has used before, in batches.
async fn flood(address: SocketAddr, stop: &AtomicBool) {
    let url = format!("http://{address}");
    let mut client = RateLimiterClient::connect(url).await.expect("the port is open");
    let mut next = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        let keys = (next..next + KEYS / 100).map(|key| format!("flood-{key}")).collect();
        next += KEYS / 100;
        let batch = v1::CheckManyRequest { policy: "api".into(), keys, cost: 1 };
        let _ = client.check_many(batch).await;
        sleep(Duration::from_millis(10)).await;
    }
}
