//! `monitor`: what a running service decides, for whom, and whom it denies.

use std::fmt::Write as _;
use std::process::ExitCode;

use admittance_proto::v1;
use admittance_proto::v1::monitor_client::MonitorClient;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use crate::Failure;
use crate::args::Target;
use crate::ask::{connected, refused};
use crate::secure::MONITOR_SECRETS;
use crate::shown::{json_text, print, printable};

#[derive(Debug, clap::Args)]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON: the whole snapshot, or one denial a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print denials as they happen, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Only this policy's
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    #[command(flatten)]
    pub(crate) secret: SecretArg,
}

/// What the service was started with. Nothing prints it.
#[derive(clap::Args)]
pub(crate) struct SecretArg {
    /// What the service has as --monitor-secret; also read from ADMITTANCE_MONITOR_SECRET, where
    /// other users of the machine do not see it
    #[arg(long, value_name = "SECRET")]
    monitor_secret: Option<String>,
}

impl std::fmt::Debug for SecretArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretArg")
    }
}

/// The secret that a flag or the environment gives.
fn secret(flag: Option<&String>) -> Option<String> {
    let of_environment = || MONITOR_SECRETS.iter().find_map(|name| std::env::var(name).ok());
    flag.cloned().or_else(of_environment).filter(|secret| !secret.is_empty())
}

/// Shows what a service has decided in this minute, or follows whom it denies.
pub(crate) fn monitor(args: &MonitorArgs) -> Result<ExitCode, Failure> {
    let secret = secret(args.secret.monitor_secret.as_ref());
    let secret: Option<MetadataValue<Ascii>> = match secret.as_deref().map(str::parse) {
        Some(Ok(secret)) => Some(secret),
        Some(Err(_)) => {
            return Err(Failure("--monitor-secret: it cannot be sent as a header".into()));
        }
        None => None,
    };
    connected(&args.target, async |channel| {
        let mut door = MonitorClient::new(channel);
        if args.watch {
            let policy = args.policy.clone().unwrap_or_default();
            let request = with(v1::WatchRequest { policy }, secret.as_ref());
            let watched = door.watch(request).await;
            let mut events = watched.map_err(|status| refused(&status))?.into_inner();
            while let Some(event) = events.message().await.map_err(|status| refused(&status))? {
                if let Some(denial) = event.denial {
                    print(&if args.json { denial_json(&denial) } else { denial_line(&denial) });
                }
            }
            return Ok(());
        }
        let taken = door.get_snapshot(with(v1::GetSnapshotRequest {}, secret.as_ref())).await;
        let taken = taken.map_err(|status| refused(&status))?.into_inner();
        let missing = || Failure("the service answered without a snapshot".into());
        let snapshot = taken.snapshot.ok_or_else(missing)?;
        print(&match args.json {
            true => format!("{}\n", snapshot.raw_json),
            false => text(&snapshot, args.policy.as_deref()),
        });
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn with<T>(message: T, secret: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(secret) = secret {
        request.metadata_mut().insert("x-monitor-secret", secret.clone());
    }
    request
}

fn text(snapshot: &v1::Snapshot, only: Option<&str>) -> String {
    let is_shown = |name: &str| only.is_none_or(|only| only == name);
    let meta = snapshot.meta.clone().unwrap_or_default();
    let seconds = (meta.generated_at.max(0) % meta.window_ms.max(1)) / 1_000;
    let mut text = format!(
        "{}  {seconds} s into a window of {} s\n",
        printable(&meta.node_id),
        meta.window_ms / 1_000
    );
    let policies = snapshot.policies.iter().filter(|policy| is_shown(&policy.name));
    let policies: Vec<&v1::PolicySummary> = policies.collect();
    let names = policies.iter().map(|policy| printable(&policy.name).chars().count());
    let width = names.max().unwrap_or(0).max("policy".len());
    let head = ["allowed", "denied", "limit", "p50 ms", "p99 ms"];
    let _ = write!(text, "{:<width$}", "policy");
    for head in head {
        let _ = write!(text, "  {head:>9}");
    }
    text.push_str("  most requests; most denials\n");
    for policy in policies {
        let latency = policy.latency.unwrap_or_default();
        let _ = write!(text, "{:<width$}", printable(&policy.name));
        for number in [policy.allowed, policy.denied, policy.limit] {
            let _ = write!(text, "  {number:>9}");
        }
        let _ = write!(text, "  {:>9.3}  {:>9.3}", latency.p50_ms, latency.p99_ms);
        let (requested, denied) = (keys(&policy.top_requested), keys(&policy.top_denied));
        let _ = writeln!(text, "  {requested}; {denied}");
    }
    for guard in snapshot.guards.iter().filter(|guard| is_shown(&guard.name)) {
        let v1::GuardSummary { limit, inflight, share, l_global, nodes, .. } = guard;
        let fenced = if guard.fenced { ", fenced" } else { "" };
        let _ = writeln!(
            text,
            "{}: {inflight} of {limit} in flight, share {share} of {l_global}, {nodes} \
             nodes{fenced}",
            printable(&guard.name)
        );
    }
    let denials = snapshot.recent_denials.iter().filter(|denial| is_shown(&denial.policy));
    let denials: Vec<&v1::DenialEvent> = denials.collect();
    for denial in &denials[denials.len().saturating_sub(DENIALS_SHOWN)..] {
        text.push_str(&denial_line(denial));
    }
    text
}

/// The first few keys with their counts.
fn keys(keys: &[v1::KeyCount]) -> String {
    let shown = keys.iter().take(KEYS_SHOWN);
    let shown = shown.map(|one| format!("{} {}", printable(&one.key), one.count));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "-".into() } else { shown }
}

fn denial_line(denial: &v1::DenialEvent) -> String {
    let v1::DenialEvent { at, policy, key, axis, limit, remaining, retry_after_ms } = denial;
    let axis = if axis.is_empty() { String::new() } else { format!(" by {}", printable(axis)) };
    format!(
        "{at}  denied{axis}  {} {}  {remaining} of {limit} left, retry in {retry_after_ms} ms\n",
        printable(policy),
        printable(key)
    )
}

/// A denial on one line, with the names that snapshots have.
fn denial_json(denial: &v1::DenialEvent) -> String {
    let v1::DenialEvent { at, limit, remaining, retry_after_ms, .. } = denial;
    format!(
        "{{\"at\":{at},\"policy\":{},\"key\":{},\"axis\":{},\"limit\":{limit},\
         \"remaining\":{remaining},\"retryAfterMs\":{retry_after_ms}}}\n",
        json_text(&denial.policy),
        json_text(&denial.key),
        json_text(&denial.axis)
    )
}

/// How many keys of each kind fit a line.
const KEYS_SHOWN: usize = 3;
/// How many denials fit a screen.
const DENIALS_SHOWN: usize = 10;
