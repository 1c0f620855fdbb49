//! A Postgres server.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::directory::Directory;
use super::failure::wait_for;
use super::process::{Launch, Process, as_user, children, on_free_port, state};
use super::redis::{find_on_path, run};
use super::{Failure, alive};

/// A server with a cluster of databases of its own, on loopback, where everybody is trusted. It
/// ends when dropped.
///
/// Postgres refuses to run as root. If the tests do, the server runs as the user `postgres`.
#[derive(Debug)]
pub struct PostgresServer {
    process: Process,
    frozen: Mutex<Option<Frozen>>,
    port: u16,
    /// After the process, so that it is removed last.
    directory: Directory,
}

impl PostgresServer {
    /// Starts a server that is as careful with its data as one in production.
    ///
    /// # Errors
    /// Postgres is not installed or does not start.
    pub fn start() -> Result<Self, Failure> {
        Self::start_with(&[])
    }

    /// Starts a server with more settings, such as `fsync=off`, which win over the defaults.
    ///
    /// # Errors
    /// Postgres is not installed or does not start.
    pub fn start_with(settings: &[&str]) -> Result<Self, Failure> {
        on_free_port(|port| {
            let directory = Directory::new()?;
            let user = if geteuid().is_root() { Some("postgres") } else { None };
            let data = make_cluster(&directory, user)?;
            let mut arguments = vec!["-D".into(), data.clone().into_os_string()];
            let own = [
                format!("port={port}"),
                "listen_addresses=127.0.0.1".to_owned(),
                format!("unix_socket_directories={}", data.display()),
                "max_connections=200".to_owned(),
                // Its files are in the directory and go with it, even if the server is killed.
                "dynamic_shared_memory_type=mmap".to_owned(),
            ];
            for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
                arguments.extend(["-c".into(), setting.into()]);
            }
            let program = program("postgres")?;
            let launched = directory.path().to_owned();
            let process = Process::start(Launch { program, arguments, directory: launched, user })?;
            let server = Self { process, frozen: Mutex::new(None), port, directory };
            server.wait_until_ready()?;
            Ok(server)
        })
    }

    /// The url of the database `postgres`, which is there from the start.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of the postmaster, if it was not killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Makes an empty database and gives its url. If there is one of that name, it is dropped.
    ///
    /// # Errors
    /// The server says why, for instance that somebody uses the old one.
    pub fn database(&self, name: &str) -> Result<String, Failure> {
        let quoted = name.replace('"', "\"\"");
        self.sql(&format!("DROP DATABASE IF EXISTS \"{quoted}\""))?;
        self.sql(&format!("CREATE DATABASE \"{quoted}\""))?;
        Ok(self.url_of(name))
    }

    /// Runs statements in the database `postgres` with `psql`. Gives the rows as lines, with `|`
    /// between the columns.
    ///
    /// # Errors
    /// The first statement that fails, with what the server says.
    pub fn sql(&self, statements: &str) -> Result<String, Failure> {
        self.sql_in("postgres", statements)
    }

    /// Runs statements in another database.
    ///
    /// # Errors
    /// The first statement that fails, with what the server says.
    pub fn sql_in(&self, database: &str, statements: &str) -> Result<String, Failure> {
        let mut psql = Command::new(program("psql")?);
        psql.args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--no-password"]);
        psql.args(["--set", "ON_ERROR_STOP=1", "--command", statements]);
        psql.arg(format!("--dbname={}", self.url_of(database)));
        // A server that is paused must fail a test, not hang it.
        psql.env("PGCONNECT_TIMEOUT", "20");
        Ok(run(&mut psql)?.trim_end().to_owned())
    }

    /// Stops the postmaster and every one of its children, where they are. Each child leads a
    /// process group of its own, so each gets a `SIGSTOP` of its own. All have stopped when this
    /// returns.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self) -> Result<(), Failure> {
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if frozen.is_none() {
            let postmaster = self.pid().ok_or(Failure::NotRunning)?;
            // First, so that it starts no more of them.
            self.process.pause()?;
            *frozen = Some(Frozen::new(postmaster, children(postmaster))?);
        }
        Ok(())
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self) -> Result<(), Failure> {
        drop(self.frozen.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.pid().map(drop).ok_or(Failure::NotRunning)
    }

    /// Ends the postmaster and its children at once, as a power cut would.
    pub fn kill(&self) {
        let Some(postmaster) = self.pid() else { return };
        let backends = children(postmaster);
        self.process.kill();
        for backend in &backends {
            signal(*backend, Signal::KILL);
        }
        drop(self.frozen.lock().unwrap_or_else(PoisonError::into_inner).take());
        // The next postmaster refuses to start while one of them holds the shared memory.
        let gone = || backends.iter().all(|backend| !alive(*backend)).then_some(());
        wait_for("the backends end", gone).expect("a process that was killed ends");
    }

    /// Shuts the server down in good order if it runs, connections included, and starts it again on
    /// the same port.
    ///
    /// # Errors
    /// It does not end or does not start.
    pub fn restart(&self) -> Result<(), Failure> {
        self.end(Signal::INT)?;
        self.process.start_again()?;
        self.wait_until_ready()
    }

    /// Ends the server without a checkpoint (`SIGQUIT`) and starts it again, so that it recovers
    /// from its log: what was committed is there, and unlogged tables are empty.
    ///
    /// # Errors
    /// It does not end or does not start.
    pub fn crash_restart(&self) -> Result<(), Failure> {
        self.end(Signal::QUIT)?;
        self.process.start_again()?;
        self.wait_until_ready()
    }

    /// Ends it by a signal to the postmaster, which ends the others.
    fn end(&self, signal: Signal) -> Result<(), Failure> {
        match self.resume() {
            Ok(()) => self.process.end_by(signal),
            Err(Failure::NotRunning) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The postmaster writes its id and its status to a file, whose eighth line is the status.
    fn wait_until_ready(&self) -> Result<(), Failure> {
        let file = self.directory.join(DATA).join("postmaster.pid");
        self.process.wait_until_ready(|pid| {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            lines.next() == Some(&pid.to_string()) && lines.nth(6) == Some("ready")
        })
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A postmaster that ends by itself removes its shared memory.
        if self.end(Signal::QUIT).is_err() {
            self.kill();
        }
    }
}

/// Stopped processes, and a shell that lets them go on when this is dropped or when this process
/// ends in any way: its standard input ends then. Only the postmaster is killed with this process;
/// the others end because they see that, unless they are stopped.
#[derive(Debug)]
struct Frozen {
    shell: Child,
}

impl Frozen {
    /// Stops the backends. The postmaster has been stopped before.
    fn new(postmaster: u32, backends: Vec<u32>) -> Result<Self, Failure> {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r line; kill -CONT \"$@\"", "sh"]);
        command.args(backends.iter().chain([&postmaster]).map(u32::to_string));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = command.spawn().map_err(Failure::io("start a shell"))?;
        let frozen = Self { shell };
        for backend in &backends {
            signal(*backend, Signal::STOP);
        }
        let stopped = |pid: &u32| !alive(*pid) || state(*pid) == Some('T');
        wait_for("backends stop", || backends.iter().all(stopped).then_some(()))?;
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(mut input) = self.shell.stdin.take() {
            // It fails if somebody killed the shell, and then there is nothing to wait for.
            let _ = input.write_all(b"\n");
        }
        let _ = self.shell.wait();
    }
}

/// Sends a signal to a child of the postmaster, which may have ended.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// A data directory of its own for a server: a copy of the one that `initdb` made, which runs once
/// per process.
fn make_cluster(directory: &Directory, user: Option<&'static str>) -> Result<PathBuf, Failure> {
    static TEMPLATE: Mutex<Option<Directory>> = Mutex::new(None);
    let mut template = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = match template.take() {
        Some(made) => made,
        None => {
            let made = Directory::new()?;
            initialize(&made, user)?;
            made
        }
    };
    let original = template.insert(made).join(DATA);
    let data = directory.join(DATA);
    run(Command::new("cp").args(["--archive", "--reflink=auto"]).args([&original, &data]))?;
    Ok(data)
}

/// Runs `initdb`.
fn initialize(directory: &Directory, user: Option<&'static str>) -> Result<(), Failure> {
    let initdb = program("initdb")?;
    let data = directory.join(DATA);
    fs::create_dir(&data).map_err(Failure::io("make a directory"))?;
    if let Some(user) = user {
        run(Command::new("chown").arg(format!("{user}:")).arg(&data))?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).args(as_user(user)).arg(initdb);
    command.args(["--no-sync", "--auth=trust", "--username=postgres"]);
    // Every server copies what is made here, the first segment of the log included.
    command.arg("--wal-segsize=1");
    command.args(["--encoding=UTF8", "--locale=C", "--pgdata"]).arg(&data);
    run(command.current_dir(directory.path()))?;
    Ok(())
}

/// The newest version that Debian's packages installed, or what the shell would find.
fn program(name: &'static str) -> Result<PathBuf, Failure> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let installed = |version: &Path| version.join("bin").join(name);
    let newest = versions
        .map(|entry| entry.path())
        .filter(|version| installed(version).is_file() && installed_server(version))
        .max_by_key(|version| {
            version.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok())
        });
    newest.map(|version| installed(&version)).or_else(|| find_on_path(name)).ok_or(
        Failure::Missing { program: name, remedy: "run ./test, or apt-get install postgresql" },
    )
}

/// The client may be installed in a newer version than the server; one version is used for all.
fn installed_server(version: &Path) -> bool {
    version.join("bin/postgres").is_file()
}

const DATA: &str = "data";
