//! `admittance serve`: from flags to a running service.

use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use admittance::concurrency::Node;
use admittance::store::Traffic;
use admittance::{BreakerState, GuardSettings, Guarded, PreciseClock, Span};
use admittance_server::{
    AnyStore, Config, DRAIN_MAX, Defaults, Doors, Drained, Instance, MetricSource, MetricsDoor,
    PolicyConfig, Service, Stopped, StoreConfig, TierConfig, Unservable,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::{FieldsArg, ServeArgs, SwitchArg, Target};
use crate::observe::Observing;
use crate::reload::{Rereading, Seen};
use crate::stores::{Chosen, agreed};
use crate::{Failure, certificates, secure, shown};

/// Serves until SIGTERM or SIGINT, then drains.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let chosen = Chosen::of(&args.store)?;
    let store_deadline = match &args.store.store_deadline {
        None => chosen.deadline(),
        Some(given) => StoreConfig::parse_deadline(given)
            .map_err(|why| Failure(format!("--store-deadline: {why}")))?,
    };
    let defaults = Defaults { fail: args.fail.into(), store_deadline };
    let observing = Observing::start(&args.observe)?;
    let rereading = rereading(args, defaults);
    let config = rereading.read().map_err(Failure::new)?;
    if !config.warnings.is_empty() {
        tracing::warn!("warning: {}", config.warnings.to_string().trim_end());
    }
    if args.validate {
        shown::print(&config.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let address = address(args)?;
    let work = artificial_work(args)?;
    let certificates = certificates::seen(&args.tls);
    let (fleet, tls) = (secure::fleet_secret(args)?, secure::tls(&args.tls)?);
    let connections_max = Some(secure::connections(args)?);
    let fields = FieldsArg::all(&args.rate_limit_headers).map_err(Failure)?;
    let (monitor, parents) = (secure::monitor_secret(args)?, observing.parents());
    let doors = Doors { fleet, monitor, tls, fields, connections_max, parents };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = args.workers {
        runtime.worker_threads(workers.into());
    }
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    let done = runtime.block_on(async {
        let service = service(&chosen, &config, args).await?.with_artificial_work(work);
        let service = service.with_monitor(args.monitor == SwitchArg::On);
        let service = service.with_denial_log(args.observe.denials());
        let service = Arc::new(service);
        let outages = Outages::new(&service, &chosen);
        outages.watch();
        let is_memory = chosen.is_memory();
        let fits = Box::new(move |config: &Config| fits(config, is_memory));
        let after = Box::new(move || outages.watch());
        Rereading { fits, after, ..rereading }.start(Arc::clone(&service))?;
        if let Some(tls) = &doors.tls {
            certificates::reread(tls.clone(), certificates, !args.no_watch)?;
        }
        tokio::spawn(tell_of_stopped_peers(service.stopped()));
        listen(address, service, &config, args, (&chosen, doors)).await
    });
    // What did not finish in time must not hold up the exit.
    runtime.shutdown_background();
    let done = done.map(|ended| ended.unwrap_or_else(Instant::now));
    // As long as the whole of the end may take, and not at all if there was no beginning.
    observing.finish(*done.as_ref().unwrap_or(&Instant::now()) + END_MAX);
    done.map(|_| ExitCode::SUCCESS)
}

/// The service on the store that was chosen, which need not be there yet.
async fn service(chosen: &Chosen, config: &Config, args: &ServeArgs) -> Result<Service, Failure> {
    fits(config, chosen.is_memory())?;
    let Some(store) = chosen.open(&args.store, config).await? else {
        return Ok(Service::new(config, Arc::new(PreciseClock::new())));
    };
    let instance = instance(args)?;
    let service = Service::on_store_as(&instance, config, &store, &GuardSettings::default());
    let service = service.map_err(Failure::new)?;
    // A chance to connect before the first request waits for it.
    if let Some(guard) = service.guards().next()
        && let Err(error) = guard.try_store(FIRST_TRY_MAX).await
    {
        tracing::warn!(
            "store {chosen}: {error}; policies answer by their fail mode until it serves"
        );
    }
    Ok(service)
}

/// What is read again while it serves. What depends on the store is not known yet.
fn rereading(args: &ServeArgs, defaults: Defaults) -> Rereading {
    Rereading {
        path: args.config.clone(),
        seen: args.config.as_deref().map(Seen::new),
        defaults,
        no_load_shedding: args.no_load_shedding,
        is_watched: !args.no_watch,
        fits: Box::new(|_| Ok(())),
        after: Box::new(|| ()),
    }
}

/// Refuses what the store that was chosen cannot serve.
fn fits(config: &Config, is_memory: bool) -> Result<(), Failure> {
    if !is_memory {
        return agreed(config);
    }
    let is_distributed = |policy: &&PolicyConfig| {
        policy.concurrency.as_ref().is_some_and(|gate| gate.fleet.is_some())
    };
    match config.policies.iter().find(is_distributed) {
        Some(policy) => Err(Failure::new(Unservable::NoFleet { policy: policy.name.clone() })),
        None => Ok(()),
    }
}

/// The name that the flags or the environment give this instance.
fn instance(args: &ServeArgs) -> Result<Instance, Failure> {
    let of_environment = || {
        let names = ["ADMITTANCE_NODE_ID", "TK_NODE_ID"];
        names.iter().find_map(|name| std::env::var(name).ok())
    };
    let Some(node_id) = args.node_id.clone().or_else(of_environment) else {
        return Ok(Instance::default());
    };
    // Refused here, where it can be told; the service has no use for the node itself.
    Node::new(&node_id, 0).map_err(|why| Failure(format!("--node-id: {why}")))?;
    Ok(Instance { node_id })
}

/// Whoever tells of what stands before the store, also of what a reload has put there.
struct Outages {
    service: Arc<Service>,
    store: String,
    told: Mutex<Vec<Weak<Guarded<AnyStore>>>>,
}

impl Outages {
    fn new(service: &Arc<Service>, chosen: &Chosen) -> Self {
        let (service, store) = (Arc::clone(service), chosen.to_string());
        Self { service, store, told: Mutex::default() }
    }

    /// Tells of those that nobody tells of yet.
    fn watch(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|guard| guard.strong_count() > 0);
        for guard in self.service.guards() {
            let known = Arc::downgrade(&guard);
            if !told.iter().any(|one| Weak::ptr_eq(one, &known)) {
                let (store, batches) = (self.store.clone(), guard.states_of(Traffic::Batch));
                tokio::spawn(tell_of_batches(store.clone(), batches, known.clone()));
                tokio::spawn(tell_of_outages(store, guard.states(), known.clone()));
                told.push(known);
            }
        }
    }
}

/// Says when the store is given up and when it is back, once each.
async fn tell_of_outages(
    store: String,
    mut states: watch::Receiver<BreakerState>,
    guard: Weak<Guarded<AnyStore>>,
) {
    let mut is_out = false;
    while states.changed().await.is_ok() {
        let Some(guard) = guard.upgrade() else { return };
        let state = *states.borrow_and_update();
        match (state, is_out) {
            (BreakerState::Open, false) => {
                let why = guard.last_failure().map_or(String::new(), |why| format!(": {why}"));
                tracing::warn!(
                    "store {store} is no longer asked{}; policies answer by their fail mode",
                    shown::printable(&why)
                );
                is_out = true;
            }
            (BreakerState::Closed, true) => {
                let counters = guard.counters();
                tracing::warn!(
                    "store {store} is asked again; {} asks did not reach it so far",
                    counters.turned_away
                );
                is_out = false;
            }
            _ => {}
        }
    }
}

/// The same of batches alone, while single asks are answered.
async fn tell_of_batches(
    store: String,
    mut states: watch::Receiver<BreakerState>,
    guard: Weak<Guarded<AnyStore>>,
) {
    let mut is_out = false;
    while states.changed().await.is_ok() {
        let Some(guard) = guard.upgrade() else { return };
        let state = *states.borrow_and_update();
        match (state, is_out) {
            (BreakerState::Open, false) => {
                let why = guard.last_failure_of(Traffic::Batch);
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                tracing::warn!(
                    "store {store} is no longer asked for batches{}; policies answer them by \
                     their fail mode",
                    shown::printable(&why)
                );
                is_out = true;
            }
            (BreakerState::Closed, true) => {
                tracing::warn!("store {store} is asked for batches again");
                is_out = false;
            }
            _ => {}
        }
    }
}

/// Says which peers get nothing more in a window.
async fn tell_of_stopped_peers(mut stopped: watch::Receiver<Stopped>) {
    while stopped.changed().await.is_ok() {
        let stopped = stopped.borrow_and_update().clone();
        let peer = stopped.peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string());
        tracing::warn!(
            "{peer} borrowed so much of policy {} so late or so fast that it gets nothing more in \
             this window; its clock is probably ahead ({} so far)",
            shown::printable(&stopped.policy),
            stopped.count
        );
    }
}

/// Where collectors of metrics are answered, if they are.
fn metrics(args: &ServeArgs, service: &Arc<Service>) -> Result<Option<MetricsDoor>, Failure> {
    let Some(port) = args.metrics_port else { return Ok(None) };
    let service: Arc<dyn MetricSource> = Arc::<Service>::clone(service);
    let address = SocketAddr::from((args.metrics_host, port));
    if !address.ip().is_loopback() && !args.insecure {
        return Err(Failure(format!(
            "--metrics-host {} is reachable from other machines, and metrics have no TLS; listen \
             on 127.0.0.1, or add --insecure if something else protects the port",
            args.metrics_host
        )));
    }
    let opened = MetricsDoor::open(address, vec![service]);
    opened.map(Some).map_err(|error| {
        Failure(format!("cannot listen on {address}: {error}; choose another with --metrics-port"))
    })
}

/// How long every check keeps a worker beyond its need.
fn artificial_work(args: &ServeArgs) -> Result<Duration, Failure> {
    let Some(length) = &args.artificial_work else { return Ok(Duration::ZERO) };
    let work = StoreConfig::parse_deadline(length);
    let work = work.map_err(|why| Failure(format!("--artificial-work: {why}")))?;
    Ok(Duration::from_micros(work.us()))
}

async fn listen(
    address: SocketAddr,
    service: Arc<Service>,
    config: &Config,
    args: &ServeArgs,
    (chosen, doors): (&Chosen, Doors),
) -> Result<Option<Instant>, Failure> {
    let no_signal = |error| Failure(format!("cannot listen for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signal)?;
    let mut ended = None;
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        ended = Some(Instant::now());
    };
    // The port opens last: from here on, who connects is served.
    let bound = TcpListener::bind(address).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = bound.map_err(|error| {
        Failure(format!("cannot listen on {address}: {error}; choose another with --port"))
    })?;
    let metrics = metrics(args, &service)?;
    let metrics_address = metrics.as_ref().map(MetricsDoor::address);
    shown::print(&greeting(address, metrics_address, config, args, chosen));
    for warning in secure::warnings(address.ip(), &service, &doors) {
        tracing::warn!("{warning}");
    }
    let drained = admittance_server::serve_with(listener, service, doors, shutdown).await;
    if drained.map_err(Failure::new)? == Drained::CutShort {
        let seconds = DRAIN_MAX.as_secs();
        tracing::warn!("some calls were still unanswered after {seconds} s");
    }
    Ok(ended)
}

/// The address to bind, refused if it would open an unprotected port to others.
fn address(args: &ServeArgs) -> Result<SocketAddr, Failure> {
    let host = args.host.as_str();
    let unresolved = |why: &str| Failure(format!("--host {host:?}: {why}; write e.g. 127.0.0.1"));
    let mut found = (host, args.port).to_socket_addrs().map_err(|e| unresolved(&e.to_string()))?;
    let address = found.next().ok_or_else(|| unresolved("no address"))?;
    secure::may_listen(address.ip(), args)?;
    Ok(address)
}

/// Where the service is, what it runs, and a first call to try.
fn greeting(
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    config: &Config,
    args: &ServeArgs,
    chosen: &Chosen,
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("admittance {version} listening on {address}\n");
    let from = match &args.config {
        Some(path) => path.display().to_string(),
        None => "built-in examples; --config FILE for your own".into(),
    };
    let _ = writeln!(text, "store: {chosen}, fail: {}", config.defaults.fail.name());
    match (&args.tls.cert, &args.tls.ca) {
        (Some(_), Some(_)) => text.push_str("TLS: for clients with a certificate\n"),
        (Some(_), None) => text.push_str("TLS: for everybody\n"),
        (None, _) => {}
    }
    if let Some(metrics) = metrics {
        let _ = writeln!(text, "metrics: http://{metrics}/metrics");
    }
    let _ = writeln!(text, "policies ({from}):");
    for policy in config.policies.iter().take(POLICIES_SHOWN_MAX) {
        let name = shown::printable(&policy.name);
        let _ = writeln!(text, "  {name}: {}", kind(policy));
    }
    if config.policies.len() > POLICIES_SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", config.policies.len() - POLICIES_SHOWN_MAX);
    }
    // What is simplest to ask for first.
    let verbs = ["check", "debit", "admit"];
    let tried = verbs.iter().find_map(|verb| {
        let first = config.policies.iter().find(|policy| policy.asked_with() == *verb);
        first.map(|policy| (*verb, policy))
    });
    if let Some((verb, first)) = tried {
        let me = std::env::args().next().unwrap_or_else(|| "admittance".into());
        let is_default = address == SocketAddr::from(([127, 0, 0, 1], 50051));
        let is_default = is_default && args.tls.cert.is_none();
        let target = || Target::shown(&address.to_string(), &args.tls);
        let target = if is_default { String::new() } else { target() };
        let name = shown::word(&first.name);
        let scheme = if args.tls.cert.is_some() { "https" } else { "http" };
        let _ = writeln!(text, "http: POST {scheme}://{address}/v1/{verb}, see /openapi.json");
        let _ = writeln!(text, "try: {me} {verb} {name} user-1{target}");
    }
    text
}

/// What a policy limits, and how.
fn kind(policy: &PolicyConfig) -> String {
    let gate = policy.concurrency.as_ref().map(|gate| {
        let (min, max) = (gate.limit.min, gate.limit.max);
        let name = if gate.fleet.is_some() { "distributedConcurrency" } else { "concurrency" };
        if min == max { format!("{name} of {max}") } else { format!("{name} of {min} to {max}") }
    });
    let cost = policy.cost.as_ref().map(|cost| {
        let each = cost.budgets.iter().map(|(name, budget)| format!("{} a {name}", budget.limit()));
        let name = match (cost.is_axis, cost.is_shared) {
            (true, _) => "cost",
            (false, true) => "fleetBudget",
            (false, false) => "tokenBudget",
        };
        format!("{name} of {}", each.collect::<Vec<_>>().join(", "))
    });
    let rate = policy.rate.as_ref().map(|rate| {
        let before = match rate.tier {
            _ if rate.escrow.is_some() => "fairEscrow over ",
            TierConfig::CachedDeny => "cached-deny before ",
            TierConfig::Leased(_) => "leased from ",
            TierConfig::Federated(_) => "federated ",
            _ => "",
        };
        format!("{before}{}", rate.rule)
    });
    let joint = policy.joint.as_ref().map(|_| "joint".to_owned());
    let limits: Vec<String> = [rate, gate, cost, joint].into_iter().flatten().collect();
    if limits.is_empty() { "load only".into() } else { limits.join(", ") }
}

/// How long after the signal the process may be there, spans that are still sent included.
const END_MAX: Duration = Duration::from_millis(4_900);
/// How long the first connection may hold up the start.
const FIRST_TRY_MAX: Span = Span::from_secs(1);
/// More than this does not fit a screen.
const POLICIES_SHOWN_MAX: usize = 20;
