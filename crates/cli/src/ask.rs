//! `check`, `peek` and `forecast`: one call to a running service.

use std::error::Error;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use admittance::{Decision, Forecast, Outcome, Retry};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::args::{AskArgs, CostArgs, Target};
use crate::shown::{DecisionJson, ForecastJson, Length, print, printable, until};
use crate::{DENIED, Failure};

/// Charges a key.
pub(crate) fn check(args: &CostArgs) -> Result<ExitCode, Failure> {
    let AskArgs { policy, key, .. } = &args.ask;
    let cost = wire(args.cost);
    let request = v1::CheckRequest { policy: policy.clone(), key: key.clone(), cost };
    let answer = call(&args.ask.target, async move |mut client| client.check(request).await)?;
    let decision = decision(answer.decision)?;
    let verdict = if decision.is_admit() { "admitted" } else { "denied  " };
    report(&args.ask, verdict, args.cost, &decision)
}

/// Looks without charging.
pub(crate) fn peek(args: &AskArgs) -> Result<ExitCode, Failure> {
    let request = v1::PeekRequest { policy: args.policy.clone(), key: args.key.clone() };
    let answer = call(&args.target, async move |mut client| client.peek(request).await)?;
    let decision = decision(answer.decision)?;
    let verdict = if decision.is_admit() { "would admit" } else { "would deny " };
    report(args, verdict, 1, &decision)
}

/// Looks ahead without charging.
pub(crate) fn forecast(args: &CostArgs) -> Result<ExitCode, Failure> {
    let AskArgs { policy, key, json, target } = &args.ask;
    let cost = wire(args.cost);
    let request = v1::ForecastRequest { policy: policy.clone(), key: key.clone(), cost };
    let answer = call(target, async move |mut client| client.forecast(request).await)?;
    let missing = || Failure("the service answered without a forecast".into());
    let forecast = Forecast::try_from(answer.forecast.ok_or_else(missing)?);
    let forecast = forecast.map_err(Failure::new)?;
    if *json {
        print(&format!("{}\n", ForecastJson(&forecast)));
    } else {
        print(&format!(
            "forecast  {} {}  {} of cost {} now, more in {}, full in {}\n",
            printable(policy),
            printable(key),
            forecast.spendable_now,
            args.cost,
            until(forecast.next_replenish_at.epoch_ms_ceil()),
            until(forecast.full_at.epoch_ms_ceil()),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a decision; the exit code says the same.
fn report(
    args: &AskArgs,
    verdict: &str,
    cost: u64,
    decision: &Decision,
) -> Result<ExitCode, Failure> {
    let Decision { limit, remaining, .. } = decision;
    if args.json {
        print(&format!("{}\n", DecisionJson(decision)));
    } else {
        let what_now = match decision.outcome {
            Outcome::Admit if remaining == limit => "full".into(),
            Outcome::Admit => {
                format!("full again in {}", until(decision.reset_at.epoch_ms_ceil()))
            }
            Outcome::Deny(Retry::After(_)) => {
                format!("retry in {}", Length { ms: decision.retry_after_ms() })
            }
            Outcome::Deny(Retry::Never) => format!("a cost of {cost} never fits"),
        };
        let (policy, key) = (printable(&args.policy), printable(&args.key));
        print(&format!("{verdict}  {policy} {key}  {remaining} of {limit} left, {what_now}\n"));
    }
    Ok(if decision.is_admit() { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
}

fn call<T, F>(
    target: &Target,
    ask: impl FnOnce(RateLimiterClient<Channel>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    call_on(target, |channel| ask(RateLimiterClient::new(channel)))
}

/// What a call on a channel answered.
pub(crate) fn call_on<T, F>(target: &Target, ask: impl FnOnce(Channel) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    Ok(respond(target, ask)?.into_inner())
}

/// Connects and makes one call, with a limit on the time for each.
pub(crate) fn respond<T, F>(
    target: &Target,
    ask: impl FnOnce(Channel) -> F,
) -> Result<Response<T>, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    connected(target, async |channel| ask(channel).await.map_err(|status| refused(&status)))
}

/// What a call was refused with, in words.
pub(crate) fn refused(status: &Status) -> Failure {
    Failure(format!("{}: {}", code(status), printable(status.message())))
}

/// Connects and does something with the channel, whose calls have a limit on their time.
pub(crate) fn connected<T>(
    target: &Target,
    work: impl AsyncFnOnce(Channel) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let endpoint = target.endpoint()?.connect_timeout(CONNECT_MAX).timeout(CALL_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let channel = endpoint.connect().await.map_err(|error| {
            Failure(format!(
                "cannot reach {target}: {}; start the service with `admittance serve`, or name \
                 another with --target HOST:PORT",
                innermost(&error)
            ))
        })?;
        work(channel).await
    })
}

fn decision(wire: Option<v1::Decision>) -> Result<Decision, Failure> {
    let missing = || Failure("the service answered without a decision".into());
    Decision::try_from(wire.ok_or_else(missing)?).map_err(Failure::new)
}

/// The cause at the bottom, which says what happened in the fewest words.
pub(crate) fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The code as the protocol spells it: `NotFound` is `NOT_FOUND`.
fn code(status: &Status) -> String {
    let mut name = String::new();
    for c in format!("{:?}", status.code()).chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

/// Arguments have been checked to fit.
pub(crate) fn wire(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

const CONNECT_MAX: Duration = Duration::from_secs(2);
const CALL_MAX: Duration = Duration::from_secs(5);
