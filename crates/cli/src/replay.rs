//! `admittance replay`: recorded traffic through a policy, at the times of the trace.
//!
//! # Guarantee
//! Decisions are those of core's steps, one key after another as the trace has them: what the
//! service would have decided with room for every key. Time comes from the trace alone and may go
//! back. Memory grows with the number of keys, not with the length of the trace.
//!
//! # Proven by
//! The tests below, each with a mutant that fails it, and `tests/it/replay.rs`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use admittance::{Decision, Strategy};
use admittance_server::Fail;

use crate::args::{ReplayArgs, policies};
use crate::machine::Rated;
use crate::shown::{DecisionJson, complain, printable};
use crate::trace::{BadLine, Request, Trace};
use crate::{FAILED, Failure};

/// Replays a file, or standard input.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let config = policies(args.config.as_ref(), Fail::Open).map_err(Failure::new)?;
    let found = config.policies.iter().find(|policy| policy.name == args.policy);
    let Some(policy) = found else {
        let names: Vec<&str> = config.policies.iter().map(|p| p.name.as_str()).take(20).collect();
        let (name, names) = (&args.policy, names.join(", "));
        return Err(Failure(format!("unknown policy {name:?}; configured policies: {names}")));
    };
    let Some(rate) = &policy.rate else {
        let name = printable(&args.policy);
        let why = "a replay goes through a rate strategy, and it has none";
        return Err(Failure(format!("policy {name} cannot be replayed: {why}")));
    };
    if rate.escrow.is_some() {
        let name = printable(&args.policy);
        let why = "its keys share one budget, and a replay goes through a strategy key by key";
        return Err(Failure(format!("policy {name} is a fairEscrow: {why}")));
    }
    let mut replay = Replay::new(rate.strategy);
    let finished = replay.all(Trace::new(opened(&args.trace)?), &args.trace);
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

/// A trace, or standard input.
pub(crate) fn opened(trace: &Path) -> Result<Box<dyn io::BufRead>, Failure> {
    if trace == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(trace);
    let file =
        file.map_err(|error| Failure(format!("{}: cannot be read: {error}", trace.display())))?;
    Ok(Box::new(BufReader::new(file)))
}

/// What is wrong with a line of a trace.
pub(crate) fn at_line(trace: &Path, bad: &BadLine) -> Failure {
    let name = if trace == Path::new("-") { Path::new("<stdin>") } else { trace };
    Failure(format!("{}:{}: {}", name.display(), bad.number, bad.message))
}

/// Traffic of many keys through one strategy.
struct Replay<S: Strategy> {
    rated: Rated<S>,
    allowed: u64,
    denied: u64,
    /// How often each key was denied that was.
    denied_keys: HashMap<String, u64>,
}

impl<S: Strategy> Replay<S> {
    fn new(strategy: S) -> Self {
        Self { rated: Rated::new(strategy), allowed: 0, denied: 0, denied_keys: HashMap::new() }
    }

    /// Decides every request and prints each decision.
    fn all<R: io::BufRead>(&mut self, trace: Trace<R>, name: &Path) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        for request in trace {
            let written = match request {
                Ok(request) => writeln!(out, "{}", DecisionJson(&self.step(request))),
                Err(bad) => {
                    let _ = out.flush();
                    return Err(at_line(name, &bad));
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
        let decision = self.rated.step(&request.key, request.at, request.cost);
        if decision.is_admit() {
            self.allowed += 1;
        } else {
            self.denied += 1;
            *self.denied_keys.entry(request.key).or_default() += 1;
        }
        decision
    }

    fn summary(&self) -> Summary<'_> {
        let denied = self.denied_keys.iter().map(|(key, denied)| (*denied, key.as_str()));
        let most_denied = most(denied);
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

/// The keys with the largest counts, those of the same count by their names.
pub(crate) fn most<'k>(counted: impl Iterator<Item = (u64, &'k str)>) -> Vec<(u64, &'k str)> {
    let mut all: Vec<(u64, &str)> = counted.collect();
    all.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    all.truncate(MOST_MAX);
    all
}

const MOST_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use admittance::{
        Builtin, Cost, Forecast, Gcra, Micros, Outcome, Retry, Share, SlidingLog, SlidingWindow,
        Span, Step, Tat, Window,
    };

    use super::*;
    use crate::trace::More;

    /// What a mutant does wrong with each step.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Wrong {
        Nothing,
        /// A step back in time forgets the key.
        ForgetsOnStepBack,
        /// A denial is charged.
        ChargesDenials,
        /// The wait is a millisecond short.
        WaitsTooShort,
    }

    /// A strategy with one mistake built in.
    struct Mutant {
        inner: Builtin,
        wrong: Wrong,
    }

    impl Strategy for Mutant {
        /// The state, and the latest instant asked at.
        type State = (Option<<Builtin as Strategy>::State>, Micros);

        fn step(&self, state: Option<Self::State>, now: Micros, cost: Cost) -> Step<Self::State> {
            let (before, latest) = state.unwrap_or((None, now));
            let forgets = self.wrong == Wrong::ForgetsOnStepBack && now < latest;
            let before = before.filter(|_| !forgets);
            let mut step = self.inner.step(before.clone(), now, cost);
            if let Outcome::Deny(Retry::After(wait)) = step.decision.outcome {
                match self.wrong {
                    Wrong::ChargesDenials => {
                        let later = now + wait;
                        step.state = self.inner.step(before, later, cost).state;
                    }
                    Wrong::WaitsTooShort => {
                        let short = Span::from_us(wait.us().saturating_sub(1_000));
                        step.decision.outcome = Outcome::Deny(Retry::After(short));
                    }
                    Wrong::Nothing | Wrong::ForgetsOnStepBack => {}
                }
            }
            Step { state: Some((step.state, latest.max(now))), decision: step.decision }
        }

        fn peek(&self, _: Option<&Self::State>, now: Micros) -> Decision {
            self.inner.peek(None, now)
        }

        fn forecast(&self, _: Option<&Self::State>, now: Micros, cost: Cost) -> Forecast {
            self.inner.forecast(None, now, cost)
        }

        fn idle_at(&self, _: &Self::State) -> Micros {
            Micros::HORIZON
        }

        fn used(&self, _: &Self::State, _: Micros) -> Share {
            Share::NONE
        }
    }

    fn strategies() -> [Builtin; 4] {
        let second = Span::from_secs(1);
        let gcra = Tat::gcra(Gcra { limit: 7, period: second, burst: 7 }).expect("valid");
        [
            gcra.into(),
            Window::fixed(7, second).expect("valid").into(),
            SlidingWindow::new(7, second, 10).expect("valid").into(),
            SlidingLog::new(7, second).expect("valid").into(),
        ]
    }

    fn request(at_ms: u64) -> Request {
        let at = Micros::from_epoch_ms(at_ms).expect("in range");
        Request { at, key: "k".into(), cost: Cost::ONE, more: More::default() }
    }

    /// However the times of a trace jump within one second, at most two limits pass.
    fn a_step_back_opens_nothing(wrong: Wrong) -> bool {
        strategies().into_iter().all(|inner| {
            let mutant = Mutant { inner, wrong };
            let mut replay = Replay::new(mutant);
            let mut rng = fastrand::Rng::with_seed(5);
            for _ in 0..500 {
                let _ = replay.step(request(10_000 + rng.u64(..1_000)));
            }
            replay.allowed <= 14
        })
    }

    /// After a denial, waiting as long as it says admits, and a millisecond less does not.
    fn the_wait_is_the_truth(wrong: Wrong) -> bool {
        strategies().into_iter().all(|inner| {
            let mutant = Mutant { inner, wrong };
            let mut replay = Replay::new(mutant);
            let mut denied = replay.step(request(10_000));
            while denied.is_admit() {
                denied = replay.step(request(10_000));
            }
            let wait = denied.retry_after_ms();
            let early = wait > 1 && replay.step(request(10_000 + wait - 1)).is_admit();
            !early && replay.step(request(10_000 + wait)).is_admit()
        })
    }

    #[test]
    fn times_that_go_back_open_nothing() {
        assert!(a_step_back_opens_nothing(Wrong::Nothing));
        assert!(!a_step_back_opens_nothing(Wrong::ForgetsOnStepBack));
    }

    #[test]
    fn waiting_as_told_admits_and_less_does_not() {
        assert!(the_wait_is_the_truth(Wrong::Nothing));
        assert!(!the_wait_is_the_truth(Wrong::ChargesDenials));
        assert!(!the_wait_is_the_truth(Wrong::WaitsTooShort));
    }

    #[test]
    fn the_most_denied_come_first_and_equals_by_name() {
        let limit = Window::fixed(1, Span::from_secs(1)).expect("valid");
        let mut replay = Replay::<Builtin>::new(limit.into());
        for n in 0..12_u8 {
            for _ in 0..=(1 + n / 4) {
                let _ = replay.step(Request { key: format!("k{n:02}"), ..request(0) });
            }
        }
        let summary = replay.summary();
        assert_eq!((summary.allowed, summary.denied), (12, 4 + 8 + 12));
        let keys: Vec<&str> = summary.most_denied.iter().map(|(_, key)| *key).collect();
        let expected = ["k08", "k09", "k10", "k11", "k04", "k05", "k06", "k07", "k00", "k01"];
        assert_eq!(keys, expected);
    }
}
