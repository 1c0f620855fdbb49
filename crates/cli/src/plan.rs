//! `admittance plan`: who would be newly denied, or newly admitted, by another configuration.
//!
//! Recorded traffic goes through both configurations, in process, at the times of the trace, each
//! from a cold start.
//!
//! # Guarantee
//! - A flip is a request that one configuration admits and the other does not; each is counted
//!   once, with the policy and the key that it asked for.
//! - That no more are newly denied than may be is never said of requests that were left out.
//! - Memory grows with the number of keys, not with the length of the trace.
//!
//! # Proven by
//! The tests below, each with mutants; `tests/it/plan.rs`, which compares with what `replay` says
//! of both; `tests/it/plan_witness.rs`, which compares with what two services answer.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufWriter, Write};
use std::process::ExitCode;

use admittance::budget::Budget;
use admittance::{Axis, Decimal, Span};
use admittance_server::{Config, Fail, PolicyConfig};

use crate::args::{PlanArgs, policies};
use crate::machine::{Asked, Kind, Machine, Said};
use crate::replay::{at_line, most, opened};
use crate::shown::{complain, json_text, print, printable};
use crate::trace::{BadLine, Request, Trace};
use crate::{DENIED, Failure};

/// Runs a trace through both.
pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let current = policies(Some(&args.current), Fail::Open).map_err(Failure::new)?;
    let candidate = policies(Some(&args.candidate), Fail::Open).map_err(Failure::new)?;
    let only = args.policy.as_deref();
    let mut plan = Plan::new(&current, &candidate, only)?;
    for unasked in plan.unasked() {
        complain(&unasked);
    }
    let mut tally = Flips::default();
    let mut trace = Trace::of_policies(opened(&args.trace)?);
    let mut out = BufWriter::new(io::stdout().lock());
    while let Some(request) = next(&mut trace).map_err(|bad| at_line(&args.trace, &bad))? {
        let line = trace.number();
        let seen = plan.ask(line, &request).map_err(|message| {
            let bad = BadLine { number: line, message };
            at_line(&args.trace, &bad)
        })?;
        let flip = tally.saw(&seen);
        if let (true, Some(flip)) = (args.each, flip) {
            // Whoever reads may have seen enough; the summary is still worth its exit code.
            let _ = writeln!(out, "{}", seen.json(flip));
        }
    }
    let _ = out.flush();
    drop(out);
    for (policy, requests) in &plan.skipped {
        let policy = printable(policy);
        complain(&format!("policy {policy}: {requests} requests are left out"));
    }
    print(&if args.json { tally.json() } else { tally.text() });
    let Some(most) = &args.max_newly_denied else { return Ok(ExitCode::SUCCESS) };
    match most.judge(&tally.total(), &plan.skipped) {
        Verdict::Kept => Ok(ExitCode::SUCCESS),
        Verdict::Exceeded(message) => {
            complain(&message);
            Ok(ExitCode::from(DENIED))
        }
        Verdict::Unknown(message) => Err(Failure(message)),
    }
}

fn next<R: BufRead>(trace: &mut Trace<R>) -> Result<Option<Request>, BadLine> {
    trace.next().transpose()
}

/// How many may be newly denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Most {
    text: String,
    /// So many, or so many millionths of a percent.
    count: u64,
    is_percent: bool,
}

impl Most {
    /// `10`, or `0.5%`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (digits, is_percent) = match text.strip_suffix('%') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let number: Option<Decimal> = digits.parse().ok();
        let count = match is_percent {
            true => number.and_then(|number| number.times(PERCENT)),
            false => number.and_then(Decimal::as_whole),
        };
        let wrong = || "not a whole number, nor a percentage such as 0.5%".to_owned();
        Ok(Self { text: text.to_owned(), count: count.ok_or_else(wrong)?, is_percent })
    }

    /// Whether no more are newly denied than may be. What was left out may have been admitted as
    /// before, or not: too many without it are too many, and too few with it are not known.
    fn judge(&self, total: &Counts, skipped: &BTreeMap<String, u64>) -> Verdict {
        let (denied, left_out) = (total.newly_denied, skipped.values().sum::<u64>());
        if self.is_exceeded(denied, total.requests + left_out) {
            let most = &self.text;
            let message = format!("{denied} requests are newly denied; at most {most} may be");
            return Verdict::Exceeded(message);
        }
        if left_out == 0 {
            return Verdict::Kept;
        }
        let each = skipped.iter().map(|(policy, requests)| {
            format!("{requests} requests of policy {}", printable(policy))
        });
        Verdict::Unknown(format!(
            "whether at most {} are newly denied is not known: {} are left out of the comparison; \
             take these lines out of the trace, and try the policy that is left out beside the \
             one that is served (shadow: [candidate])",
            self.text,
            each.collect::<Vec<_>>().join(", ")
        ))
    }

    fn is_exceeded(&self, denied: u64, requests: u64) -> bool {
        let (denied, requests, count) = (u128::from(denied), u128::from(requests), self.count);
        match self.is_percent {
            true => denied * 100 * u128::from(PERCENT) > u128::from(count) * requests,
            false => denied > u128::from(count),
        }
    }
}

/// What is known of how many are newly denied.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// No more than may be.
    Kept,
    /// More than may be, in words.
    Exceeded(String),
    /// Too few were compared to say so; in words, why and what to do.
    Unknown(String),
}

/// Both configurations while they are asked.
pub(crate) struct Plan<'c> {
    only: Option<&'c str>,
    sides: [Side<'c>; 2],
    /// Requests of policies that cannot be asked here.
    skipped: BTreeMap<String, u64>,
}

/// One configuration.
struct Side<'c> {
    file: &'static str,
    policies: BTreeMap<&'c str, &'c PolicyConfig>,
    machines: HashMap<&'c str, Machine>,
}

impl<'c> Side<'c> {
    fn new(file: &'static str, config: &'c Config) -> Self {
        let named = config.policies.iter().map(|policy| (policy.name.as_str(), policy));
        Self { file, policies: named.collect(), machines: HashMap::new() }
    }

    /// What it says; nothing if it has no such policy.
    fn ask(
        &mut self,
        name: &str,
        op: Option<Kind>,
        asked: &Asked<'_>,
    ) -> Result<Option<Said>, String> {
        let Some((&name, &policy)) = self.policies.get_key_value(name) else { return Ok(None) };
        let machine = self.machines.entry(name).or_insert_with(|| Machine::new(policy));
        if let Some(op) = op.filter(|op| *op != machine.kind()) {
            let (kind, file) = (machine.kind().name(), self.file);
            let (op, name) = (op.name(), printable(name));
            return Err(format!("op is {op}, and policy {name} of the {file} file is for {kind}"));
        }
        let units = asked.cost.units();
        if policy.cost.is_some() && units > Budget::UNITS_MAX {
            return Err(format!("cost is {units}; accounts count {} at most", Budget::UNITS_MAX));
        }
        Ok(Some(machine.ask(asked)))
    }
}

/// What both said to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen<'r> {
    line: u64,
    policy: &'r str,
    key: &'r str,
    current: Option<Said>,
    candidate: Option<Said>,
}

/// What another configuration changes for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flip {
    NewlyDenied,
    NewlyAdmitted,
}

impl<'c> Plan<'c> {
    fn new(
        current: &'c Config,
        candidate: &'c Config,
        only: Option<&'c str>,
    ) -> Result<Self, Failure> {
        let sides = [Side::new("current", current), Side::new("candidate", candidate)];
        if let Some(name) = only
            && sides.iter().all(|side| !side.policies.contains_key(name))
        {
            let name = printable(name);
            return Err(Failure(format!("unknown policy {name}: neither file has it")));
        }
        Ok(Self { only, sides, skipped: BTreeMap::new() })
    }

    /// What is not asked, or not as the service would.
    fn unasked(&self) -> Vec<String> {
        let mut said = Vec::new();
        for Side { file, policies, .. } in &self.sides {
            let asked = policies.values().filter(|it| self.only.is_none_or(|only| only == it.name));
            for policy in asked {
                let name = printable(&policy.name);
                let cannot = Machine::cannot(policy).map(|why| format!("left out: {why}"));
                let unasked = Machine::unasked(policy).into_iter().map(ToOwned::to_owned);
                said.extend(
                    cannot.into_iter().chain(unasked).map(|why| format!("{file} {name}: {why}")),
                );
            }
        }
        said
    }

    /// Asks both.
    fn ask<'r>(&mut self, line: u64, request: &'r Request) -> Result<Seen<'r>, String>
    where
        'c: 'r,
    {
        let named = self.only.or(request.more.policy.as_deref());
        let policy = named.ok_or("names no policy; write \"policy\", or give --policy NAME")?;
        let mut seen = Seen { line, policy, key: &request.key, current: None, candidate: None };
        let configs = || self.sides.iter().filter_map(|side| side.policies.get(policy));
        if configs().next().is_none() {
            let policy = printable(policy);
            return Err(format!("unknown policy {policy}: neither file has it"));
        }
        if configs().any(|policy| Machine::cannot(policy).is_some()) {
            *self.skipped.entry(policy.to_owned()).or_default() += 1;
            seen.policy = "";
            return Ok(seen);
        }
        let asked = Asked {
            at: request.at,
            key: &request.key,
            cost: request.cost,
            hold: request.more.hold.unwrap_or(Span::ZERO),
            actual: request.more.actual,
        };
        let op = request.more.op;
        seen.current = self.sides[0].ask(policy, op, &asked)?;
        seen.candidate = self.sides[1].ask(policy, op, &asked)?;
        Ok(seen)
    }
}

impl Seen<'_> {
    /// Whether nobody could be asked.
    const fn is_skipped(&self) -> bool {
        self.current.is_none() && self.candidate.is_none()
    }

    fn is_admit(said: Option<&Said>) -> bool {
        said.is_some_and(|said| said.is_admit)
    }

    /// What changes.
    fn flip(&self) -> Option<Flip> {
        let current = Self::is_admit(self.current.as_ref());
        match (current, Self::is_admit(self.candidate.as_ref())) {
            (true, false) => Some(Flip::NewlyDenied),
            (false, true) => Some(Flip::NewlyAdmitted),
            _ => None,
        }
    }

    /// Which axis denied where one did, and why.
    fn reason(&self, flip: Flip) -> (&'static str, String) {
        let denied = match flip {
            Flip::NewlyDenied => &self.candidate,
            Flip::NewlyAdmitted => &self.current,
        };
        let Some(said) = denied else { return ("", "no such policy".into()) };
        let axis = said.axis.map_or("", Axis::name);
        let (limit, remaining) = (said.decision.limit, said.decision.remaining);
        let wait = match (said.axis, said.decision.retry_after()) {
            (Some(Axis::Concurrency), _) => String::new(),
            (_, Some(_)) => format!(", retry after {} ms", said.decision.retry_after_ms()),
            (_, None) => ", never".into(),
        };
        (axis, format!("{remaining} of {limit} left{wait}"))
    }

    fn json(&self, flip: Flip) -> String {
        let (axis, reason) = self.reason(flip);
        format!(
            "{{\"line\":{},\"policy\":{},\"key\":{},\"flip\":\"{}\",\"axis\":\"{axis}\",\
             \"reason\":{}}}",
            self.line,
            json_text(self.policy),
            json_text(self.key),
            flip.name(),
            json_text(&reason),
        )
    }
}

impl Flip {
    const fn name(self) -> &'static str {
        match self {
            Self::NewlyDenied => "newly_denied",
            Self::NewlyAdmitted => "newly_admitted",
        }
    }
}

/// What a trace came to, by policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Flips(BTreeMap<String, Counts>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    requests: u64,
    both_admit: u64,
    both_deny: u64,
    newly_denied: u64,
    newly_admitted: u64,
    /// Of each key that has any: newly denied, newly admitted.
    keys: HashMap<String, [u64; 2]>,
    /// The first of both.
    first: [Option<Example>; 2],
}

/// One flip, to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Example {
    line: u64,
    key: String,
    axis: &'static str,
    reason: String,
}

/// Counts what both said.
trait Tally {
    fn saw(&mut self, seen: &Seen<'_>) -> Option<Flip>;
}

impl Tally for Flips {
    fn saw(&mut self, seen: &Seen<'_>) -> Option<Flip> {
        if seen.is_skipped() {
            return None;
        }
        if !self.0.contains_key(seen.policy) {
            self.0.insert(seen.policy.to_owned(), Counts::default());
        }
        let counts = self.0.get_mut(seen.policy)?;
        counts.requests += 1;
        let flip = seen.flip();
        let Some(flip) = flip else {
            match Seen::is_admit(seen.current.as_ref()) {
                true => counts.both_admit += 1,
                false => counts.both_deny += 1,
            }
            return None;
        };
        let place = usize::from(flip == Flip::NewlyAdmitted);
        match flip {
            Flip::NewlyDenied => counts.newly_denied += 1,
            Flip::NewlyAdmitted => counts.newly_admitted += 1,
        }
        counts.keys.entry(seen.key.to_owned()).or_default()[place] += 1;
        counts.first[place].get_or_insert_with(|| {
            let (axis, reason) = seen.reason(flip);
            Example { line: seen.line, key: seen.key.to_owned(), axis, reason }
        });
        Some(flip)
    }
}

impl Counts {
    /// The keys with the most flips of one kind.
    fn most(&self, place: usize) -> Vec<(u64, &str)> {
        let keys = self.keys.iter().filter(|(_, counts)| counts[place] > 0);
        most(keys.map(|(key, counts)| (counts[place], key.as_str())))
    }

    fn line(&self) -> String {
        let Self { requests, both_admit, both_deny, newly_denied, newly_admitted, .. } = self;
        format!(
            "{requests} requests: {newly_denied} newly denied, {newly_admitted} newly admitted, \
             {both_admit} admitted by both, {both_deny} denied by both"
        )
    }

    fn fields(&self) -> String {
        let Self { requests, both_admit, both_deny, newly_denied, newly_admitted, .. } = self;
        format!(
            "\"requests\":{requests},\"newly_denied\":{newly_denied},\
             \"newly_admitted\":{newly_admitted},\"both_admit\":{both_admit},\
             \"both_deny\":{both_deny}"
        )
    }
}

impl Flips {
    fn total(&self) -> Counts {
        self.0.values().fold(Counts::default(), |mut sum, one| {
            sum.requests += one.requests;
            sum.both_admit += one.both_admit;
            sum.both_deny += one.both_deny;
            sum.newly_denied += one.newly_denied;
            sum.newly_admitted += one.newly_admitted;
            sum
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (policy, counts) in &self.0 {
            text.push_str(&format!("{}: {}\n", printable(policy), counts.line()));
            for (place, what) in ["newly denied", "newly admitted"].into_iter().enumerate() {
                if let Some(Example { line, key, axis, reason }) = &counts.first[place] {
                    let axis = if axis.is_empty() { String::new() } else { format!("{axis}, ") };
                    let key = printable(key);
                    text.push_str(&format!("  first {what}: line {line}, {key}: {axis}{reason}\n"));
                }
                for (count, key) in counts.most(place) {
                    text.push_str(&format!("  {what} {count}  {}\n", printable(key)));
                }
            }
        }
        text.push_str(&format!("total: {}\n", self.total().line()));
        text
    }

    fn json(&self) -> String {
        let policies: Vec<String> = self
            .0
            .iter()
            .map(|(policy, counts)| {
                let example = |place: usize| match &counts.first[place] {
                    None => "null".to_owned(),
                    Some(Example { line, key, axis, reason }) => format!(
                        "{{\"line\":{line},\"key\":{},\"axis\":\"{axis}\",\"reason\":{}}}",
                        json_text(key),
                        json_text(reason)
                    ),
                };
                let most = |place: usize| {
                    let keys = counts.most(place).into_iter().map(|(count, key)| {
                        format!("{{\"key\":{},\"count\":{count}}}", json_text(key))
                    });
                    keys.collect::<Vec<_>>().join(",")
                };
                format!(
                    "{}:{{{},\"first_newly_denied\":{},\"first_newly_admitted\":{},\
                 \"most_newly_denied\":[{}],\"most_newly_admitted\":[{}]}}",
                    json_text(policy),
                    counts.fields(),
                    example(0),
                    example(1),
                    most(0),
                    most(1)
                )
            })
            .collect();
        let total = self.total().fields();
        format!("{{\"policies\":{{{}}},\"total\":{{{total}}}}}\n", policies.join(","))
    }
}

/// A percent, in millionths.
const PERCENT: u64 = 1_000_000;

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
