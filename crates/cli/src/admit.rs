//! `admit` and `explain`: work on every axis of a policy, asked of a running service.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use admittance::Decision;
use admittance_proto::admissions::admissions_client::AdmissionsClient;
use admittance_proto::admissions::{
    AdmissionRequest, AdmissionResponse, AxisDecision, ExplanationResponse,
};
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_proto::v1::{HeartbeatRequest, ReleaseRequest};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Channel;

use crate::args::{AdmitArgs, AskArgs, WorkArgs};
use crate::ask::{call_on, connected, refused, wire};
use crate::shown::{Length, complain, json_text, print, printable, until};
use crate::{DENIED, Failure};

/// Starts work, and holds what it takes while a command runs.
pub(crate) fn admit(args: &AdmitArgs) -> Result<ExitCode, Failure> {
    let ask = &args.work.ask;
    connected(&ask.target, async |channel| {
        let request = request(&args.work);
        let admitted = AdmissionsClient::new(channel.clone()).admit(request).await;
        let admitted = admitted.map_err(|status| refused(&status))?.into_inner();
        let decision = decided(admitted.decision.as_ref())?;
        let is_run = !args.command.is_empty();
        let shown = match ask.json {
            true => json(&admitted, decision),
            false => text(ask, &admitted, decision),
        };
        match is_run {
            // Standard output is the command's.
            true if decision.allowed => {}
            true => complain(&shown.trim_end()),
            false => print(&shown),
        }
        match (is_run, decision.allowed) {
            (true, true) => run(args, channel, &admitted).await,
            (true, false) => Ok(ExitCode::from(TRY_LATER)),
            (false, true) => Ok(ExitCode::SUCCESS),
            (false, false) => Ok(ExitCode::from(DENIED)),
        }
    })
}

/// Says what an admission would be told, and why.
pub(crate) fn explain(args: &WorkArgs) -> Result<ExitCode, Failure> {
    let request = request(args);
    let explained = call_on(&args.ask.target, async move |channel| {
        AdmissionsClient::new(channel).explain(request).await
    })?;
    let decision = decided(explained.decision.as_ref())?;
    print(&match args.ask.json {
        true => explained_json(&explained, decision),
        false => explained_text(args, &explained, decision),
    });
    Ok(if decision.allowed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
}

fn request(args: &WorkArgs) -> AdmissionRequest {
    AdmissionRequest {
        policy: args.ask.policy.clone(),
        key: args.ask.key.clone(),
        cost: wire(args.cost),
        hold: args.hold.unwrap_or(0.0),
        value: args.value,
    }
}

/// Runs the command with its lease kept alive, and releases the lease as what came of it.
async fn run(
    args: &AdmitArgs,
    channel: Channel,
    admitted: &AdmissionResponse,
) -> Result<ExitCode, Failure> {
    let mut client = RateLimiterClient::new(channel);
    let ended = supervised(args, &mut client, admitted).await;
    let dropped = !ended.as_ref().is_ok_and(ExitStatus::success);
    if !admitted.lease_id.is_empty() {
        let request = ReleaseRequest { lease_id: admitted.lease_id.clone(), dropped };
        if let Err(status) = client.release(request).await {
            let failure = refused(&status);
            complain(&format!("the lease could not be released and ends by itself: {failure}"));
        }
    }
    let status = ended?;
    // As shells say it.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(DENIED)))
}

/// The command from its start to its end. An interrupt at the terminal reaches it without us; a
/// request to terminate is passed on.
async fn supervised(
    args: &AdmitArgs,
    client: &mut RateLimiterClient<Channel>,
    admitted: &AdmissionResponse,
) -> Result<ExitStatus, Failure> {
    let no_signal = |error| Failure(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signal)?;
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Failure("no command".into()));
    };
    let mut child = Command::new(program).args(rest).spawn().map_err(|error| {
        Failure(format!("cannot run {}: {error}", printable(&program.to_string_lossy())))
    })?;
    let mut beats = tokio::time::interval(beat_every(admitted));
    let mut is_held = !admitted.lease_id.is_empty();
    beats.tick().await;
    loop {
        tokio::select! {
            ended = child.wait() => {
                return ended.map_err(|error| Failure(format!("cannot wait for it: {error}")));
            }
            _ = interrupt.recv() => {}
            _ = terminate.recv() => pass_on(&mut child).await,
            _ = beats.tick(), if is_held => {
                is_held = beat(client, &admitted.lease_id).await;
            }
        }
    }
}

/// Asks the command to end, or ends it if it cannot be asked.
async fn pass_on(child: &mut Child) {
    let Some(id) = child.id() else { return };
    let asked = Command::new("kill").args(["-s", "TERM", &id.to_string()]).status().await;
    if !asked.is_ok_and(|status| status.success()) {
        let _ = child.start_kill();
    }
}

/// Keeps the lease; says whether it is still there.
async fn beat(client: &mut RateLimiterClient<Channel>, lease_id: &str) -> bool {
    let request = HeartbeatRequest { lease_ids: vec![lease_id.to_owned()] };
    // One that fails is followed by another.
    let Ok(heard) = client.heartbeat(request).await else { return true };
    let is_held = heard.into_inner().reclaimed_ids.is_empty();
    if !is_held {
        complain(&"the lease was taken back; the command goes on without it");
    }
    is_held
}

/// Three times in the life of a lease, which the service tells: its clock may be another than ours.
fn beat_every(admitted: &AdmissionResponse) -> Duration {
    let ttl = u64::try_from(admitted.lease_ttl_ms).unwrap_or(0);
    Duration::from_millis((ttl / 3).clamp(BEAT_MIN_MS, BEAT_MAX_MS))
}

fn decided(decision: Option<&AxisDecision>) -> Result<&AxisDecision, Failure> {
    decision.ok_or_else(|| Failure("the service answered without a decision".into()))
}

fn text(ask: &AskArgs, admitted: &AdmissionResponse, decision: &AxisDecision) -> String {
    let verdict = if decision.allowed { "admitted" } else { "denied  " };
    let (policy, key) = (printable(&ask.policy), printable(&ask.key));
    let why = why(&admitted.binding_axis, admitted.policy_denied, decision);
    let mut text = format!("{verdict}  {policy} {key}  {why}\n");
    if !admitted.lease_id.is_empty() {
        let end = u64::try_from(admitted.lease_expires_at).unwrap_or(0);
        let lease = printable(&admitted.lease_id);
        let _ = writeln!(text, "held for {} as lease {lease}", until(end));
    }
    text + &table(&admitted.axes)
}

fn why(binding: &str, is_policy_denied: bool, decision: &AxisDecision) -> String {
    if is_policy_denied {
        return "worth less than its price".into();
    }
    if decision.allowed {
        return format!("{} of {} left", decision.remaining, decision.limit);
    }
    format!("by {}, {}", printable(binding), retry(decision.retry_after_ms))
}

fn retry(ms: i64) -> String {
    match u64::try_from(ms).unwrap_or(0) {
        Decision::NEVER_MS => "and waiting does not help".into(),
        ms => format!("retry in {}", Length { ms }),
    }
}

fn explained_text(
    args: &WorkArgs,
    explained: &ExplanationResponse,
    decision: &AxisDecision,
) -> String {
    let verdict = if decision.allowed { "would admit" } else { "would deny " };
    let (policy, key) = (printable(&args.ask.policy), printable(&args.ask.key));
    let why = why(&explained.binding_axis, explained.policy_denied, decision);
    let mut text = format!("{verdict}  {policy} {key}  {why}\n");
    text += &table(&explained.axes);
    if let Some(worth) = &explained.worth {
        let _ = writeln!(text, "worth {}, for a price of {}", worth.value, worth.price);
    }
    if let Some(most) = explained.cost_max {
        let _ = writeln!(text, "a cost of at most {most} passes the budgets now");
    }
    if let Some(ms) = explained.wait_ms {
        let _ = writeln!(text, "every axis: {}", retry(ms));
    }
    text
}

/// The axes, a line each.
fn table(axes: &[AxisDecision]) -> String {
    let mut rows = vec![["axis", "says", "limit", "left", "full again in"].map(str::to_owned)];
    for said in axes {
        let reset = u64::try_from(said.reset_at).unwrap_or(0);
        let says = match said.allowed {
            true => "admit".into(),
            false => format!("deny, {}", retry(said.retry_after_ms)),
        };
        let limit = u64::try_from(said.limit).unwrap_or(0);
        let left = [said.limit, said.remaining].map(|number| match limit {
            Decision::NEVER_MS => "-".into(),
            _ => number.to_string(),
        });
        let [limit, left] = left;
        rows.push([printable(&said.axis), says, limit, left, until(reset).to_string()]);
    }
    if axes.is_empty() {
        return String::new();
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 5] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "  {cell:<width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn json(admitted: &AdmissionResponse, decision: &AxisDecision) -> String {
    let (lease, end) = (json_text(&admitted.lease_id), admitted.lease_expires_at);
    let begin = begin(&admitted.binding_axis, admitted.policy_denied, decision);
    let axes = axes_json(&admitted.axes);
    format!("{{{begin},\"lease_id\":{lease},\"lease_expires_at\":{end},\"axes\":[{axes}]}}\n")
}

fn explained_json(explained: &ExplanationResponse, decision: &AxisDecision) -> String {
    let begin = begin(&explained.binding_axis, explained.policy_denied, decision);
    let number = |number: Option<i64>| number.map_or_else(|| "null".into(), |it| it.to_string());
    let (wait, most) = (number(explained.wait_ms), number(explained.cost_max));
    let worth = explained.worth.as_ref().map_or_else(
        || "null".into(),
        |worth| format!("{{\"value\":{},\"price\":{}}}", worth.value, worth.price),
    );
    let axes = axes_json(&explained.axes);
    format!(
        "{{{begin},\"worth\":{worth},\"wait_ms\":{wait},\"cost_max\":{most},\"axes\":[{axes}]}}\n"
    )
}

fn begin(binding: &str, is_policy_denied: bool, decision: &AxisDecision) -> String {
    let binding = json_text(binding);
    format!("{},\"binding_axis\":{binding},\"policy_denied\":{is_policy_denied}", fields(decision))
}

fn axes_json(axes: &[AxisDecision]) -> String {
    let each = axes.iter();
    let each = each.map(|said| format!("{{\"axis\":{},{}}}", json_text(&said.axis), fields(said)));
    each.collect::<Vec<_>>().join(",")
}

fn fields(said: &AxisDecision) -> String {
    let AxisDecision { allowed, limit, remaining, reset_at, retry_after_ms, .. } = said;
    format!(
        "\"allowed\":{allowed},\"limit\":{limit},\"remaining\":{remaining},\
         \"reset_at\":{reset_at},\"retry_after_ms\":{retry_after_ms}"
    )
}

/// The exit code of a command that was not run, as mailers say it: try again later.
const TRY_LATER: u8 = 75;
const BEAT_MIN_MS: u64 = 50;
const BEAT_MAX_MS: u64 = 500;
