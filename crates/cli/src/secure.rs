//! Certificates and secrets, from flags, files and the environment, for the service and for those
//! who ask it.
//!
//! # Guarantee
//! No secret is ever printed, neither in an error nor in the greeting.
//!
//! # Proven by
//! `tests/it/secure.rs`.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZero;
use std::path::Path;

use admittance_server::{CONNECTIONS_MAX, DoorSecret, Doors, Service, Tls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::Failure;
use crate::args::{ServeArgs, Target, TlsArgs};

/// Certificates for the doors, if the flags name some.
pub(crate) fn tls(args: &TlsArgs) -> Result<Option<Tls>, Failure> {
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return Ok(None) };
    Tls::load(cert, key, args.ca.as_deref()).map(Some).map_err(Failure::new)
}

/// Refuses an address at which others could read and spend what is not theirs.
pub(crate) fn may_listen(ip: IpAddr, args: &ServeArgs) -> Result<(), Failure> {
    if ip.is_loopback() || args.tls.cert.is_some() || args.insecure {
        return Ok(());
    }
    Err(Failure(format!(
        "--host {} is reachable from other machines; add --tls-cert FILE and --tls-key FILE (and \
         --tls-ca FILE for clients with certificates only), listen on 127.0.0.1, or add \
         --insecure if something else protects the port",
        args.host
    )))
}

/// What borrowers must send.
pub(crate) fn fleet_secret(args: &ServeArgs) -> Result<DoorSecret, Failure> {
    let file = args.fleet_secret_file.as_deref();
    let names = ["ADMITTANCE_FLEET_SECRET", "THROTTLEKIT_FLEET_SECRET"];
    secret(args.fleet_secret.as_deref(), file.map(|file| ("--fleet-secret-file", file)), &names)
}

/// A secret of a flag, of a file, or of the environment, in this order. A line end after it does
/// not count: files have one.
pub(crate) fn secret(
    flag: Option<&str>,
    file: Option<(&str, &Path)>,
    names: &[&str],
) -> Result<DoorSecret, Failure> {
    if let Some((flag, path)) = file {
        let wrong = |why: &dyn fmt::Display| {
            let path = path.display();
            Failure(format!("{flag} {path}: {why}; it must hold the secret on one line"))
        };
        let text = read(path, SECRET_MAX).map_err(|error| wrong(&error))?;
        let text = String::from_utf8(text).map_err(|_| wrong(&"not text"))?;
        return line(&text).map(DoorSecret::new).ok_or_else(|| wrong(&NOT_A_LINE));
    }
    let of_environment = || {
        let named = names.iter().map(|name| (*name, std::env::var(name).unwrap_or_default()));
        named.into_iter().find(|(_, secret)| !secret.is_empty())
    };
    let given = flag.map(|secret| ("the secret's flag", secret.to_owned())).or_else(of_environment);
    // None is none; one that no header can carry would let nobody in.
    match given.filter(|(_, secret)| !secret.is_empty()) {
        Some((name, secret)) => line(&secret)
            .map(DoorSecret::new)
            .ok_or_else(|| Failure(format!("{name}: {NOT_A_LINE}"))),
        None => Ok(DoorSecret::new("")),
    }
}

/// A secret as a header can carry it. What stands there instead may be a secret all the same, so it
/// is not shown.
fn line(text: &str) -> Option<&str> {
    let line = text.trim_end_matches(['\r', '\n']);
    let is_fit = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_graphic());
    is_fit.then_some(line)
}

const NOT_A_LINE: &str = "not a line of visible ASCII characters";

/// What operators must send.
pub(crate) fn monitor_secret(args: &ServeArgs) -> Result<DoorSecret, Failure> {
    let file = args.monitor_secret_file.as_deref();
    let file = file.map(|file| ("--monitor-secret-file", file));
    secret(args.monitor_secret.as_deref(), file, &MONITOR_SECRETS)
}

/// Where the environment has it.
pub(crate) const MONITOR_SECRETS: [&str; 2] =
    ["ADMITTANCE_MONITOR_SECRET", "THROTTLEKIT_MONITOR_SECRET"];

/// What an operator should know of how the service is reached; nothing if only loopback can.
pub(crate) fn warnings(ip: IpAddr, service: &Service, doors: &Doors) -> Vec<String> {
    let closed = [
        ("fleet", "borrow", service.has_federated() && !doors.fleet.is_set()),
        ("monitor", "look", service.is_watched() && !doors.monitor.is_set()),
    ];
    let closed = closed.into_iter().filter(|(_, _, is_closed)| *is_closed && !ip.is_loopback());
    let warning = |(door, does, _): (&str, &str, bool)| {
        let variable = door.to_uppercase();
        format!(
            "warning: the {door} door has no secret, so only loopback may {does}; set \
             --{door}-secret-file FILE or ADMITTANCE_{variable}_SECRET"
        )
    };
    closed.map(warning).collect()
}

/// How many connections may be open at once: what was asked for, or what the limit of open files
/// leaves beside those that stores, logs and files need. The limit is raised as far as it may be.
pub(crate) fn connections(args: &ServeArgs) -> Result<NonZero<u32>, Failure> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, ..limit };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = raised;
        }
    }
    let files = limit.current.unwrap_or(u64::MAX);
    let possible = u32::try_from(files.saturating_sub(FILES_KEPT)).unwrap_or(u32::MAX);
    let wanted = args.max_connections.unwrap_or(CONNECTIONS_MAX);
    if args.max_connections.is_some() && possible < wanted {
        return Err(Failure(format!(
            "--max-connections {wanted}: the limit of open files is {files}, and {FILES_KEPT} are \
             kept for stores, logs and files; raise it (ulimit -n), or ask for at most {possible}"
        )));
    }
    NonZero::new(wanted.min(possible)).ok_or_else(|| {
        Failure(format!("the limit of open files is {files}, which leaves no connection; raise it"))
    })
}

impl Target {
    /// Whether it is asked over TLS.
    fn is_tls(&self) -> bool {
        self.address.starts_with("https://")
            || self.tls_ca.is_some()
            || self.tls_cert.is_some()
            || self.tls_name.is_some()
    }

    /// Where it is, and how it is known.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Failure> {
        let address = &self.address;
        let is_tls = self.is_tls();
        let (http, https) = (address.strip_prefix("http://"), address.strip_prefix("https://"));
        if is_tls && http.is_some() {
            return Err(Failure(format!(
                "--target {address} is in the clear, --tls flags are not"
            )));
        }
        let bare = http.or(https).unwrap_or(address);
        let scheme = if is_tls { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{bare}"))
            .map_err(|_| Failure(format!("--target {address:?} is not HOST:PORT")))?;
        if !is_tls {
            return Ok(endpoint);
        }
        let Some(authority) = &self.tls_ca else {
            let why = "TLS needs --tls-ca FILE, the authority that signed its certificate";
            return Err(Failure(format!("--target {address}: {why}")));
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem(authority)?));
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            tls = tls.identity(Identity::from_pem(pem(cert)?, pem(key)?));
        }
        if let Some(name) = &self.tls_name {
            tls = tls.domain_name(name);
        }
        endpoint.tls_config(tls).map_err(|error| {
            Failure(format!("TLS to {address}: {}", crate::ask::innermost(&error)))
        })
    }

    /// The flags that reach a service like this one, as they would be typed.
    pub(crate) fn shown(address: &str, tls: &TlsArgs) -> String {
        let Some(_) = &tls.cert else { return format!(" --target {address}") };
        let mutual = if tls.ca.is_some() { " --tls-cert FILE --tls-key FILE" } else { "" };
        format!(" --target https://{address} --tls-ca FILE{mutual}")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = read(path, PEM_MAX);
    read.map_err(|error| Failure(format!("{}: {error}; it must be a PEM file", path.display())))
}

fn read(path: &Path, max: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > max) {
        return Err(std::io::Error::other(format!("more than {max} bytes")));
    }
    Ok(bytes)
}

/// What is kept of the open files for others than connections.
const FILES_KEPT: u64 = 200;
const SECRET_MAX: u64 = 4 << 10;
const PEM_MAX: u64 = 1 << 20;
