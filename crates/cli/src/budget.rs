//! `budget`, `reserve`, `debit` and `settle`: the accounts of a key, asked of a running service.

use std::fmt::Write as _;
use std::process::ExitCode;

use admittance::Decision;
use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{
    Account, Answer, Charge, DebitRequest, Flow, LookRequest, ReserveRequest, SettleRequest,
    Settlement, SettlementKind,
};

use tonic::Response;

use crate::args::{AskArgs, DebitArgs, ReserveArgs, SettleArgs};
use crate::ask::{call_on, respond, wire};
use crate::shown::{Length, json_text, print, printable, until};
use crate::{DENIED, Failure};

/// Shows how a key's accounts stand.
pub(crate) fn budget(args: &AskArgs) -> Result<ExitCode, Failure> {
    let request = LookRequest { charges: vec![charge(args, 0)] };
    let answer = call_on(&args.target, async move |channel| {
        BudgetsClient::new(channel).look(request).await
    })?;
    let answer = answered(answer.answer)?;
    let table =
        || format!("{} {}\n{}", printable(&args.policy), printable(&args.key), table(&answer));
    print(&if args.json { json(&answer, "") } else { table() });
    Ok(ExitCode::SUCCESS)
}

/// Counts what is about to be served.
pub(crate) fn debit(args: &DebitArgs) -> Result<ExitCode, Failure> {
    let lease_id = args.lease.clone().unwrap_or_default();
    let request = DebitRequest { charges: vec![charge(&args.ask, args.units)], lease_id };
    let response = respond(&args.ask.target, async move |channel| {
        BudgetsClient::new(channel).debit(request).await
    })?;
    let is_store = is_by_store(&response);
    report(&args.ask, &answered(response.into_inner().answer)?, "", is_store)
}

/// Takes an estimate out of what is left.
pub(crate) fn reserve(args: &ReserveArgs) -> Result<ExitCode, Failure> {
    let request = ReserveRequest {
        charges: vec![charge(&args.ask, args.units)],
        ttl_ms: args.ttl_ms.map_or(0, wire),
        class: args.class.clone().unwrap_or_default(),
        prediction: args.prediction.map_or(0, wire),
        lease_id: args.lease.clone().unwrap_or_default(),
    };
    let response = respond(&args.ask.target, async move |channel| {
        BudgetsClient::new(channel).reserve(request).await
    })?;
    let is_store = is_by_store(&response);
    let reserved = response.into_inner();
    let mut held = String::new();
    if !reserved.lease_id.is_empty() {
        let units = reserved.reserved.first().copied().unwrap_or(0);
        let ms = u64::try_from(reserved.ttl_ms).unwrap_or(0);
        let _ = if args.ask.json {
            write!(held, ",\"lease_id\":{},\"reserved\":{units}", json_text(&reserved.lease_id))
        } else {
            let lease = printable(&reserved.lease_id);
            writeln!(held, "reserved {units} for {} as lease {lease}", Length { ms })
        };
    }
    report(&args.ask, &answered(reserved.answer)?, &held, is_store)
}

/// Ends a lease with what was produced.
pub(crate) fn settle(args: &SettleArgs) -> Result<ExitCode, Failure> {
    let request = SettleRequest {
        charges: vec![charge(&args.ask, args.actual.unwrap_or(0))],
        lease_id: args.lease.clone(),
        unknown: args.actual.is_none(),
        class: args.class.clone().unwrap_or_default(),
        prediction: args.prediction.map_or(0, wire),
        stopped: args.stopped,
    };
    let settled = call_on(&args.ask.target, async move |channel| {
        BudgetsClient::new(channel).settle(request).await
    })?;
    let answer = answered(settled.answer)?;
    let mut text = String::new();
    for account in &answer.accounts {
        let settlement = account.settlement.unwrap_or_default();
        let _ = writeln!(text, "{}  {}", printable(&account.window), outcome(&settlement));
    }
    print(&if args.ask.json { json(&answer, "") } else { text + &table(&answer) });
    Ok(ExitCode::SUCCESS)
}

fn outcome(settlement: &Settlement) -> String {
    let Settlement { returned, debt, .. } = settlement;
    match settlement.kind() {
        SettlementKind::Now => format!("settled: {returned} came back, {debt} became debt"),
        SettlementKind::Before => {
            format!("had been settled: {returned} came back, {debt} became debt")
        }
        SettlementKind::Unknown => "no such lease, or no longer; nothing changed".into(),
        SettlementKind::Unspecified => "no settlement".into(),
    }
}

/// Whether the accounts were asked at all.
fn is_by_store<T>(response: &Response<T>) -> bool {
    response.metadata().get("admittance-source").is_none()
}

/// Prints an answer; the exit code says the same. What the fail mode answered says nothing of how
/// the accounts stand.
fn report(
    args: &AskArgs,
    answer: &Answer,
    extra: &str,
    is_store: bool,
) -> Result<ExitCode, Failure> {
    if args.json {
        let source = if is_store { "store" } else { "fail-mode" };
        print(&json(answer, &format!("{extra},\"source\":\"{source}\"")));
    } else if !is_store {
        let verdict = if answer.allowed { "admitted" } else { "denied  " };
        let (policy, key) = (printable(&args.policy), printable(&args.key));
        let how = "by the fail mode: the store cannot be asked";
        print(&format!("{verdict}  {policy} {key}  {how}\n{extra}"));
    } else {
        let verdict = if answer.allowed { "admitted" } else { "denied  " };
        let (policy, key) = (printable(&args.policy), printable(&args.key));
        let mut text = format!("{verdict}  {policy} {key}  {}", what_now(answer));
        text.push('\n');
        print(&(text + extra + &table(answer)));
    }
    Ok(if answer.allowed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
}

fn what_now(answer: &Answer) -> String {
    let retry_ms = u64::try_from(answer.retry_after_ms).unwrap_or(0);
    let place = usize::try_from(answer.binding).ok();
    let by = place.and_then(|place| answer.accounts.get(place));
    let by = by.map_or_else(String::new, |account| format!("by {}, ", printable(&account.window)));
    match answer.flow() {
        Flow::SoftStop => format!("{} left: come to an end", answer.remaining),
        Flow::Stop if retry_ms == Decision::NEVER_MS => {
            format!("{by}for ever: it never fits, or its lease has ended")
        }
        Flow::Stop => format!("{by}retry in {}", Length { ms: retry_ms }),
        Flow::GoOn | Flow::Unspecified => format!("{} left", answer.remaining),
    }
}

/// The accounts, a line each.
fn table(answer: &Answer) -> String {
    const HEAD: [&str; 7] = ["window", "limit", "spent", "reserved", "debt", "left", "ends in"];
    let row = |account: &Account| {
        let end = u64::try_from(account.window_end).unwrap_or(0);
        let Account { limit, spent, reserved, debt, left, .. } = account;
        let numbers = [limit, spent, reserved, debt, left].map(i64::to_string);
        let mut row = vec![printable(&account.window)];
        row.extend(numbers);
        row.push(until(end).to_string());
        row
    };
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(answer.accounts.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "  {cell:<width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The answer on one line.
fn json(answer: &Answer, extra: &str) -> String {
    let flow = match answer.flow() {
        Flow::GoOn | Flow::Unspecified => "go_on",
        Flow::SoftStop => "soft_stop",
        Flow::Stop => "stop",
    };
    let Answer { allowed, retry_after_ms, remaining, binding, .. } = answer;
    let mut text = format!(
        "{{\"allowed\":{allowed},\"flow\":\"{flow}\",\"retry_after_ms\":{retry_after_ms},\
         \"remaining\":{remaining},\"binding\":{binding}{extra},\"accounts\":["
    );
    for (place, account) in answer.accounts.iter().enumerate() {
        let Account { limit, spent, reserved, debt, left, open_leases, window_end, .. } = account;
        let comma = if place == 0 { "" } else { "," };
        let window = json_text(&account.window);
        let _ = write!(
            text,
            "{comma}{{\"window\":{window},\"limit\":{limit},\"spent\":{spent},\
             \"reserved\":{reserved},\"debt\":{debt},\"left\":{left},\
             \"open_leases\":{open_leases},\"window_end\":{window_end}}}"
        );
    }
    text.push_str("]}\n");
    text
}

fn charge(args: &AskArgs, units: u64) -> Charge {
    Charge { policy: args.policy.clone(), key: args.key.clone(), units: Some(wire(units)) }
}

fn answered(answer: Option<Answer>) -> Result<Answer, Failure> {
    answer.ok_or_else(|| Failure("the service answered without an answer".into()))
}
