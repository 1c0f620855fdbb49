//! A TCP proxy that makes the network bad when told to, and counts what passes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::traffic::Requests;
use super::{Failure, free_port};

/// A proxy before a server. It passes everything until it is told otherwise; a switch acts at once,
/// on the connections that are open and on what is on its way through them.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Mutex<Option<Acceptor>>,
}

impl Proxy {
    /// Starts a proxy on a free loopback port.
    ///
    /// # Errors
    /// No port can be listened on.
    pub fn start(target: SocketAddr) -> Result<Self, Failure> {
        let shared = Arc::new(Shared::new(target));
        let mut last = None;
        for _ in 0..BIND_TRIES {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            match listen(&shared, address) {
                Ok(acceptor) => {
                    return Ok(Self { shared, address, acceptor: Mutex::new(Some(acceptor)) });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(Failure::io("listen")(last.expect("it was tried more than once")))
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Passes everything, what was held back first.
    ///
    /// # Panics
    /// If another program took the port since [`cut`](Self::cut).
    pub fn pass(&self) {
        self.switch(Mode::Pass);
    }

    /// Passes each chunk in each direction this long after it came. Chunks do not wait for each
    /// other, as on a long line: a round trip takes twice the delay, however much is on its way.
    ///
    /// # Panics
    /// If another program took the port since [`cut`](Self::cut).
    pub fn delay(&self, delay: Duration) {
        self.switch(Mode::Delay(delay));
    }

    /// Accepts connections, keeps them open, and passes nothing in either direction, the end of a
    /// connection included. What came is held back until another switch.
    ///
    /// # Panics
    /// If another program took the port since [`cut`](Self::cut).
    pub fn blackhole(&self) {
        self.switch(Mode::Blackhole);
    }

    /// Passes requests to the server and swallows its answers. A connection that lost an answer is
    /// closed by the next switch, since what came later on it could be taken for that answer.
    ///
    /// # Panics
    /// If another program took the port since [`cut`](Self::cut).
    pub fn drop_replies(&self) {
        self.switch(Mode::DropReplies);
    }

    /// Closes every connection and refuses new ones, until another switch.
    pub fn cut(&self) {
        let mut acceptor = lock(&self.acceptor);
        self.shared.set(Mode::Cut);
        if let Some(acceptor) = acceptor.take() {
            acceptor.end();
        }
        // After the last one was accepted.
        for link in lock(&self.shared.links).drain(..) {
            link.close();
        }
    }

    /// Bytes passed from clients to the server.
    #[must_use]
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.counts.bytes_to_server.load(Ordering::SeqCst)
    }

    /// Bytes passed from the server to clients, without swallowed ones.
    #[must_use]
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.counts.bytes_to_client.load(Ordering::SeqCst)
    }

    /// Chunks passed from clients to the server: one for each time that bytes came.
    #[must_use]
    pub fn chunks_to_server(&self) -> u64 {
        self.shared.counts.chunks_to_server.load(Ordering::SeqCst)
    }

    /// Connections accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.counts.connections.load(Ordering::SeqCst)
    }

    /// Commands passed to a Redis server, each element of a pipeline for itself.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.shared.counts.commands.load(Ordering::SeqCst)
    }

    /// Messages passed to a Postgres server after which a client waits: `Sync` and `Query`.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.shared.counts.round_trips.load(Ordering::SeqCst)
    }

    fn switch(&self, mode: Mode) {
        let mut acceptor = lock(&self.acceptor);
        self.shared.set(mode);
        if acceptor.is_none() {
            let listening = listen(&self.shared, self.address);
            *acceptor = Some(listening.expect("the port is still the proxy's"));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Delay(Duration),
    Blackhole,
    DropReplies,
    Cut,
}

/// What becomes of a chunk.
enum Verdict {
    Pass,
    Swallow,
    End,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    mode: Mutex<Mode>,
    switched: Condvar,
    links: Mutex<Vec<Arc<Link>>>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
    chunks_to_server: AtomicU64,
    connections: AtomicU64,
    commands: AtomicU64,
    round_trips: AtomicU64,
}

impl Shared {
    fn new(target: SocketAddr) -> Self {
        Self {
            target,
            mode: Mutex::new(Mode::Pass),
            switched: Condvar::new(),
            links: Mutex::default(),
            counts: Counts::default(),
        }
    }

    fn set(&self, mode: Mode) {
        *lock(&self.mode) = mode;
        lock(&self.links).retain(|link| {
            let lost = link.lost_a_reply.load(Ordering::SeqCst);
            if lost {
                link.close();
            }
            !lost && !link.ended.load(Ordering::SeqCst)
        });
        self.switched.notify_all();
    }

    /// Waits until what came at `since` may pass, and says what is to be done with it.
    fn admit(&self, since: Instant, link: &Link, direction: Direction) -> Verdict {
        let mut mode = lock(&self.mode);
        loop {
            mode = match *mode {
                Mode::Blackhole => self.switched.wait(mode).unwrap_or_else(PoisonError::into_inner),
                Mode::Delay(delay) => {
                    let left = (since + delay).saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Verdict::Pass;
                    }
                    let waited = self.switched.wait_timeout(mode, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Mode::DropReplies if direction == Direction::ToClient => {
                    // Under the lock of the mode, so that the next switch sees it.
                    link.lost_a_reply.store(true, Ordering::SeqCst);
                    return Verdict::Swallow;
                }
                Mode::Pass | Mode::DropReplies => return Verdict::Pass,
                Mode::Cut => return Verdict::End,
            };
        }
    }
}

/// One client's connection and the one to the server that belongs to it.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    lost_a_reply: AtomicBool,
    ended: AtomicBool,
}

impl Link {
    /// Ends both connections; the threads that read from them see it.
    fn close(&self) {
        self.ended.store(true, Ordering::SeqCst);
        // They fail if a connection has ended already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// Bytes and when they came. No bytes are the end of the connection.
type Chunk = (Instant, Vec<u8>);

/// The socket that listens and the thread that accepts.
#[derive(Debug)]
struct Acceptor {
    listener: Arc<TcpListener>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    /// Refuses from now on. To close the socket is not enough: a program that is being started has
    /// it as well until it runs, and the kernel would go on accepting.
    fn end(self) {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both)
            .expect("a socket that listens can be shut down");
        self.thread.join().expect("the thread that accepts does not panic");
    }
}

fn listen(shared: &Arc<Shared>, address: SocketAddr) -> io::Result<Acceptor> {
    let listener = Arc::new(TcpListener::bind(address)?);
    let (shared, accepts) = (Arc::clone(shared), Arc::clone(&listener));
    let thread = std::thread::spawn(move || {
        for client in accepts.incoming() {
            if *lock(&shared.mode) == Mode::Cut {
                return;
            }
            // A server that is down looks as it does without a proxy, nearly: the connection is
            // closed rather than refused.
            if let Ok(client) = client {
                let _ = carry(&shared, client);
            }
        }
    });
    Ok(Acceptor { listener, thread })
}

/// Connects to the server and starts the threads that carry: in each direction one that reads and
/// one that writes, so that a chunk which has to wait does not hide when the next one came.
fn carry(shared: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect_timeout(&shared.target, CONNECT_WITHIN)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    shared.counts.connections.fetch_add(1, Ordering::SeqCst);
    let link = Arc::new(Link {
        client,
        server,
        lost_a_reply: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let mut links = lock(&shared.links);
    links.retain(|link| !link.ended.load(Ordering::SeqCst));
    links.push(Arc::clone(&link));
    drop(links);
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (chunks, inbox) = sync_channel(CHUNKS_HELD_MAX);
        let reader = Arc::clone(&link);
        std::thread::spawn(move || read(&reader, direction, &chunks));
        let (shared, link) = (Arc::clone(shared), Arc::clone(&link));
        std::thread::spawn(move || write(&shared, &link, direction, &inbox));
    }
    Ok(())
}

fn read(link: &Link, direction: Direction, chunks: &SyncSender<Chunk>) {
    let mut from = match direction {
        Direction::ToServer => &link.client,
        Direction::ToClient => &link.server,
    };
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let length = from.read(&mut buffer).unwrap_or(0);
        let sent = chunks.send((Instant::now(), buffer[..length].to_vec()));
        if length == 0 || sent.is_err() {
            return;
        }
    }
}

fn write(shared: &Shared, link: &Link, direction: Direction, chunks: &Receiver<Chunk>) {
    let mut to = match direction {
        Direction::ToServer => &link.server,
        Direction::ToClient => &link.client,
    };
    let mut requests = Requests::default();
    for (since, chunk) in chunks {
        match shared.admit(since, link, direction) {
            Verdict::Pass if !link.ended.load(Ordering::SeqCst) => {}
            Verdict::Swallow if !chunk.is_empty() => continue,
            Verdict::Pass | Verdict::Swallow | Verdict::End => break,
        }
        if chunk.is_empty() {
            // The server may still have something to say.
            let _ = to.shutdown(Shutdown::Write);
            match direction {
                Direction::ToServer => return,
                Direction::ToClient => break,
            }
        }
        // Before it is written: whoever has the answer sees the question counted.
        count(&shared.counts, direction, &chunk, &mut requests);
        if to.write_all(&chunk).is_err() {
            break;
        }
    }
    link.close();
}

fn count(counts: &Counts, direction: Direction, chunk: &[u8], requests: &mut Requests) {
    let bytes = chunk.len() as u64;
    if direction == Direction::ToClient {
        counts.bytes_to_client.fetch_add(bytes, Ordering::SeqCst);
        return;
    }
    let complete = requests.read(chunk);
    counts.bytes_to_server.fetch_add(bytes, Ordering::SeqCst);
    counts.chunks_to_server.fetch_add(1, Ordering::SeqCst);
    counts.commands.fetch_add(complete.commands, Ordering::SeqCst);
    counts.round_trips.fetch_add(complete.round_trips, Ordering::SeqCst);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const BIND_TRIES: usize = 5;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Sixteen mebibytes at most; then the proxy reads no more and the sender's buffers fill.
const CHUNKS_HELD_MAX: usize = 1_024;
