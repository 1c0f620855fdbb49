//! `admittance serve`: from flags to a running service.

use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;

use admittance::PreciseClock;
use admittance_server::{Config, DRAIN_MAX, Drained, Service};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ServeArgs, policies};
use crate::{Failure, shown};

/// Serves until SIGTERM or SIGINT, then drains.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let config = policies(args.config.as_ref(), args.fail.into()).map_err(Failure::new)?;
    if !config.warnings.is_empty() {
        shown::complain(&format!("warning: {}", config.warnings.to_string().trim_end()));
    }
    if args.validate {
        shown::print(&config.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let address = address(args)?;
    let service = Arc::new(Service::new(&config, Arc::new(PreciseClock::new())));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    let done = runtime.block_on(listen(address, service, &config, args));
    // What did not finish in time must not hold up the exit.
    runtime.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

async fn listen(
    address: SocketAddr,
    service: Arc<Service>,
    config: &Config,
    args: &ServeArgs,
) -> Result<(), Failure> {
    let no_signal = |error| Failure(format!("cannot listen for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signal)?;
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    // The port opens last: from here on, who connects is served.
    let bound = TcpListener::bind(address).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = bound.map_err(|error| {
        Failure(format!("cannot listen on {address}: {error}; choose another with --port"))
    })?;
    shown::print(&greeting(address, config, args));
    let drained = admittance_server::serve(listener, service, shutdown).await;
    if drained.map_err(Failure::new)? == Drained::CutShort {
        let seconds = DRAIN_MAX.as_secs();
        shown::complain(&format!("some calls were still unanswered after {seconds} s"));
    }
    Ok(())
}

/// The address to bind, refused if it would open an unprotected port to others.
fn address(args: &ServeArgs) -> Result<SocketAddr, Failure> {
    let host = args.host.as_str();
    let unresolved = |why: &str| Failure(format!("--host {host:?}: {why}; write e.g. 127.0.0.1"));
    let mut found = (host, args.port).to_socket_addrs().map_err(|e| unresolved(&e.to_string()))?;
    let address = found.next().ok_or_else(|| unresolved("no address"))?;
    if !address.ip().is_loopback() && !args.insecure {
        return Err(Failure(format!(
            "--host {host} is reachable from other machines, and this version has no TLS yet; \
             listen on 127.0.0.1, or add --insecure if something else protects the port"
        )));
    }
    Ok(address)
}

/// Where the service is, what it runs, and a first call to try.
fn greeting(address: SocketAddr, config: &Config, args: &ServeArgs) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("admittance {version} listening on {address}\n");
    let from = match &args.config {
        Some(path) => path.display().to_string(),
        None => "built-in examples; --config FILE for your own".into(),
    };
    let _ = writeln!(text, "store: memory, fail: {}", config.fail.name());
    let _ = writeln!(text, "policies ({from}):");
    for policy in config.policies.iter().take(POLICIES_SHOWN_MAX) {
        let _ = writeln!(text, "  {}: {}", shown::printable(&policy.name), policy.rule);
    }
    if config.policies.len() > POLICIES_SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", config.policies.len() - POLICIES_SHOWN_MAX);
    }
    if let Some(first) = config.policies.first() {
        let me = std::env::args().next().unwrap_or_else(|| "admittance".into());
        let is_default = address == SocketAddr::from(([127, 0, 0, 1], 50051));
        let target = if is_default { String::new() } else { format!(" --target {address}") };
        let name = shown::word(&first.name);
        let _ = writeln!(text, "try: {me} check {name} user-1{target}");
    }
    text
}

/// More than this does not fit a screen.
const POLICIES_SHOWN_MAX: usize = 20;
