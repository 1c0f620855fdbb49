//! A child process that does not outlive the process that started it.
//!
//! The kernel sends a child its parent death signal when the *thread* that started it ends. One
//! thread that never ends therefore starts them all: it dies with the whole process only.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Failure;
use super::failure::{PAUSE, tail, wait_for};

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it runs and where its output goes, to the file `log`.
    pub directory: PathBuf,
    /// The user that it runs as, if it is another one; only root may ask for that.
    pub user: Option<&'static str>,
}

impl Launch {
    /// The file that the program's output is appended to.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn command(&self) -> io::Result<Command> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command.args(as_user(self.user));
        command.arg(&self.program).args(&self.arguments);
        command.current_dir(&self.directory).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }
}

/// The arguments that make `setpriv` become another user.
pub(super) fn as_user(user: Option<&'static str>) -> impl Iterator<Item = &'static str> {
    user.into_iter().flat_map(|user| ["--reuid", user, "--regid", user, "--init-groups"])
}

/// A running program. It is killed when dropped, and when this process ends in any way.
#[derive(Debug)]
pub struct Process {
    launch: Launch,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Starts a program. It runs when this returns; it may not be ready.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(launch: Launch) -> Result<Self, Failure> {
        let child = spawn(&launch)?;
        Ok(Self { launch, child: Mutex::new(Some(child)) })
    }

    /// Starts it again with the same arguments, if it does not run.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start_again(&self) -> Result<(), Failure> {
        let mut child = self.child();
        if running(&mut child).is_none() {
            *child = Some(spawn(&self.launch)?);
        }
        Ok(())
    }

    /// The id of the process, which is the program's own, if it was not killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.launch.log())
    }

    /// Asks `probe` until it says that the program is ready.
    ///
    /// # Errors
    /// The program ended, or it was not ready within twenty seconds. The log is in the error.
    pub fn wait_until_ready(&self, mut probe: impl FnMut(u32) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_WITHIN;
        let program = || self.launch.program.clone();
        loop {
            let Some(pid) = running(&mut self.child()).map(|child| child.id()) else {
                return Err(Failure::Ended { program: program(), log: self.log() });
            };
            if probe(pid) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Failure::NotReady { program: program(), log: self.log() });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Stops it where it is, with `SIGSTOP`. Its sockets stay open; the kernel goes on accepting
    /// connections for it. It has stopped when this returns.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self) -> Result<(), Failure> {
        let pid = self.signal(Signal::STOP)?;
        wait_for("a process stops", || (state(pid) == Some('T')).then_some(()))
    }

    /// Lets it go on, with `SIGCONT`.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Ends it at once, with `SIGKILL`, and waits until it has ended. Nothing happens if it does
    /// not run.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            // It fails if the program has ended by itself, and that is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks it to end, with `SIGTERM`, and waits until it has.
    ///
    /// # Errors
    /// It does not run, or it goes on for a minute.
    pub fn terminate(&self) -> Result<(), Failure> {
        self.end_by(Signal::TERM)
    }

    /// Sends a signal that ends it and waits until it has ended.
    pub(super) fn end_by(&self, signal: Signal) -> Result<(), Failure> {
        self.signal(signal)?;
        wait_for("a process ends", || {
            let mut child = self.child();
            if running(&mut child).is_some() {
                return None;
            }
            *child = None;
            Some(())
        })
    }

    fn signal(&self, signal: Signal) -> Result<u32, Failure> {
        // The lock is held: until the child is waited for, nobody else can have its id.
        let mut child = self.child();
        let child = running(&mut child).ok_or(Failure::NotRunning)?;
        kill_process(Pid::from_child(child), signal)
            .map_err(|error| Failure::io("send a signal")(error.into()))?;
        Ok(child.id())
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn running(child: &mut Option<Child>) -> Option<&mut Child> {
    let child = child.as_mut()?;
    matches!(child.try_wait(), Ok(None)).then_some(child)
}

/// Has the one thread that never ends start a program.
fn spawn(launch: &Launch) -> Result<Child, Failure> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        orders
    });
    let command = launch.command().map_err(Failure::io("open a log"))?;
    let (answer, child) = channel();
    spawner.send((command, answer)).expect("the spawner lives as long as the process");
    let child = child.recv().expect("the spawner answers every order");
    child.map_err(Failure::io("start a program through setpriv"))
}

/// Whether a process exists and has not ended. One that ended and that nobody waited for yet does
/// not count.
#[must_use]
pub fn alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The letter that `/proc` shows for a process.
pub(super) fn state(pid: u32) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// The processes whose parent is `pid`.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|child| stat(*child).is_some_and(|(_, parent)| parent == pid))
        .collect()
}

fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name before may hold anything, spaces and parentheses included.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// A loopback port that nobody listens on, different each time.
///
/// It is none of those that the kernel gives to outgoing connections (from 32768 on): a client that
/// tries again and again to reach a server that is down would at some time be given the server's
/// own port, and reach itself.
///
/// # Panics
/// If hundreds of random ports are all taken.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Not the seeded samples: two test processes must not try the same ports.
    let mut random = fastrand::Rng::new();
    (0..PORT_TRIES)
        .map(|_| random.u16(PORTS))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok() && given.insert(*port))
        .expect("a port is free")
}

/// Starts a server on one free port after another until it has one. Between the moment that a port
/// is seen to be free and the moment that the server takes it, another program may.
pub(super) fn on_free_port<T>(
    mut start: impl FnMut(u16) -> Result<T, Failure>,
) -> Result<T, Failure> {
    for _ in 1..SERVER_TRIES {
        match start(free_port()) {
            Err(failure) if failure.port_was_taken() => {}
            done => return done,
        }
    }
    start(free_port())
}

const READY_WITHIN: Duration = Duration::from_secs(20);
const PORTS: std::ops::Range<u16> = 10_000..32_000;
const PORT_TRIES: usize = 500;
const SERVER_TRIES: usize = 5;
