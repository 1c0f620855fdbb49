//! The servers that are measured, each a process of its own on the first core.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::callers::Call;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The program that ships.
    Ours,
    /// The library under it with a constant answer.
    Echo,
    /// A peer's server.
    Peer,
}

impl Kind {
    /// What the ratio of our checks per second to its should be, and whether it is.
    pub(super) fn verdict(self, ratio: f64) -> &'static str {
        match self {
            Self::Ours => "",
            Self::Echo if ratio >= 0.85 => "  at least 0.85: holds",
            Self::Echo => "  at least 0.85: FAILS",
            Self::Peer if ratio > 1.0 => "  ahead of it: holds",
            Self::Peer => "  ahead of it: FAILS",
        }
    }
}

/// A server that runs until this is dropped.
pub(super) struct Server {
    kind: Kind,
    call: Call,
    pub(super) address: SocketAddr,
    child: Child,
    _policies: Option<Policies>,
}

/// A file that goes with what needs it.
pub(super) struct Policies(PathBuf);

impl Drop for Policies {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Policies {
    pub(super) fn new(text: &str) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (me, nth) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let name = format!("admittance-bench-{me}-{nth}.yaml");
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("a temporary file");
        Self(path)
    }
}

/// Has the callers stay off the server's core. Threads that are started later inherit it.
pub(super) fn pin_callers() {
    let me = std::process::id().to_string();
    let pinned = Command::new("taskset").args(["-pc", "1", &me]).stdout(Stdio::null()).status();
    assert!(pinned.is_ok_and(|status| status.success()), "taskset (util-linux) and two cores");
}

impl Server {
    /// Starts one; `None` if it is not installed, which is said.
    pub(super) fn start(kind: Kind, call: Call) -> Option<Self> {
        match kind {
            Kind::Ours => Some(Self::ours(call, &[], POLICIES)),
            Kind::Echo => Some(Self::echo(call)),
            Kind::Peer => Self::peer(call),
        }
    }

    /// Ours, with more flags.
    pub(super) fn ours(call: Call, flags: &[&str], policies: &str) -> Self {
        let program = beside("admittance");
        assert!(program.exists(), "build the program first: cargo build --release");
        let policies = Policies::new(policies);
        let mut command = on_its_core(&program);
        command.args(["serve", "--workers", "1", "--port", "0", "--config"]).arg(&policies.0);
        command.args(flags);
        let mut server = Self::listening(Kind::Ours, call, command);
        server._policies = Some(policies);
        server
    }

    fn echo(call: Call) -> Self {
        let mut command = on_its_core(&beside("admittance-bench"));
        command.args(["service-echo", call.name()]);
        Self::listening(Kind::Echo, call, command)
    }

    /// One that takes spans and forgets them, beside the callers.
    pub(super) fn collector() -> Self {
        let mut command = Command::new(beside("admittance-bench"));
        command.args(["service-echo", "collector"]);
        Self::listening(Kind::Echo, Call::Grpc, command)
    }

    /// One that prints where it listens, as the last word of its first line.
    fn listening(kind: Kind, call: Call, mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = lines.next().expect("a line").expect("text");
        let address = first.split_whitespace().next_back().expect("a word");
        let address = address.parse().expect("an address");
        thread::spawn(move || lines.for_each(drop));
        Self { kind, call, address, child, _policies: None }
    }

    fn peer(call: Call) -> Option<Self> {
        let own = std::env::var("THROTTLECRAB_SERVER");
        let program = own.unwrap_or_else(|_| "throttlecrab-server".into());
        if Command::new(&program).arg("--version").output().is_err() {
            println!(
                "throttlecrab-server is not here and is left out: `cargo install \
                 throttlecrab-server`, or THROTTLECRAB_SERVER=/path/to/it"
            );
            return None;
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let port = address.port().to_string();
        let name = call.name();
        let mut command = on_its_core(&PathBuf::from(program));
        command.args([&format!("--{name}"), &format!("--{name}-host"), "127.0.0.1"]);
        command.args([&format!("--{name}-port"), &port, "--log-level", "error"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("it starts");
        let until = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "it does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Some(Self { kind: Kind::Peer, call, address, child, _policies: None })
    }

    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) const fn name(&self) -> &'static str {
        match (self.kind, self.call) {
            (Kind::Ours, _) => "admittance",
            (Kind::Echo, Call::Grpc) => "bare tonic echo",
            (Kind::Echo, Call::Http) => "bare axum echo",
            (Kind::Peer, _) => "throttlecrab-server",
        }
    }

    /// What its processor has done for it so far.
    pub(super) fn processor_time(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(path).expect("it runs");
        let after = text.rsplit_once(')').expect("a name").1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks: u64 =
            fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// How much memory it holds, in KiB.
    pub(super) fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("it runs");
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
        line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("KiB")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn on_its_core(program: &PathBuf) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program).env("TOKIO_WORKER_THREADS", "1");
    command
}

fn beside(name: &str) -> PathBuf {
    std::env::current_exe().expect("a program").with_file_name(name)
}

/// As many keys as callers use, and a limit that admits: what is measured is the door.
pub(super) const POLICIES: &str = "
load: { target: 10s, waitMax: 10s }
limiters:
  api: { strategy: gcra, limit: 1000000000, period: 1s }
";
