//! Checks over shared stores, beside what the same server does when it decides nothing.
//!
//! Every contender travels through the same lanes, from the same callers, in turns. Throughputs
//! are compared round by round. The callers, the driver and the server share the machine's cores,
//! so the figures are for comparing within one run, not for sizing.

pub(crate) mod load;
mod outage;
mod postgres;
mod redis;

use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use self::load::{Asked, Round, round};
use crate::report::{Spread, paired, spread};

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    pub(crate) keys: usize,
}

pub(crate) const FULL: Effort =
    Effort { rounds: 7, length: Duration::from_millis(1_000), keys: 100_000 };
pub(crate) const QUICK: Effort =
    Effort { rounds: 2, length: Duration::from_millis(200), keys: 5_000 };

/// Starts the servers, measures, prints, and writes JSON.
pub(crate) fn run(effort: Effort, only: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let mut report = Report::default();
    runtime.block_on(async {
        if only.is_empty() || only == "redis" {
            redis::run(effort, &mut report).await;
        }
        if only.is_empty() || only == "postgres" {
            postgres::run(effort, &mut report).await;
        }
        if only.is_empty() || only == "outage" {
            outage::run(effort, &mut report).await;
        }
    });
    report.finish();
}

/// Something that is measured, behind one type.
pub(crate) struct Contender {
    name: &'static str,
    run: Box<dyn Fn(usize, usize, Duration) -> Measured>,
}

type Measured = Pin<Box<dyn Future<Output = Round> + Send>>;

impl Contender {
    pub(crate) fn new<A: Asked>(name: &'static str, asked: A) -> Self {
        let asked = Arc::new(asked);
        let run = move |callers, keys, length| -> Measured {
            let asked = Arc::clone(&asked);
            Box::pin(async move { round(&asked, callers, keys, length).await })
        };
        Self { name, run: Box::new(run) }
    }
}

/// What was measured of one scenario.
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) rows: Vec<(&'static str, Vec<Round>)>,
}

impl Scenario {
    /// Lets the contenders take turns. Who goes first changes from round to round.
    pub(crate) async fn measure(
        name: String,
        contenders: &[Contender],
        callers: usize,
        effort: Effort,
    ) -> Self {
        let mut rows: Vec<_> = contenders.iter().map(|c| (c.name, Vec::new())).collect();
        let keys = if name.contains("one key") { 1 } else { effort.keys };
        for contender in contenders {
            // Connections, scripts and rows are made before anything is measured.
            (contender.run)(callers, keys, effort.length / 4).await;
        }
        for turn in 0..effort.rounds {
            for place in 0..contenders.len() {
                let place = (place + turn) % contenders.len();
                let measured = (contenders[place].run)(callers, keys, effort.length).await;
                rows[place].1.push(measured);
            }
        }
        let scenario = Self { name, rows };
        scenario.print();
        scenario
    }

    fn throughputs(&self, contender: &str) -> Option<Vec<f64>> {
        let (_, rounds) = self.rows.iter().find(|(name, _)| *name == contender)?;
        Some(rounds.iter().map(|round| round.per_second).collect())
    }

    /// Ours over theirs, round by round: above one is faster.
    pub(crate) fn ratio(&self, ours: &str, theirs: &str) -> Option<Spread> {
        Some(paired(&self.throughputs(ours)?, &self.throughputs(theirs)?))
    }

    fn print(&self) {
        println!("\n{}", self.name);
        let [contender, rate, quartiles] = ["contender", "asks/s", "quartiles"];
        println!("  {contender:34} {rate:>9} {quartiles:>19}  p50 us  p99 us  ours/it");
        let ours = self.rows[0].0;
        for (name, rounds) in &self.rows {
            let rates: Vec<f64> = rounds.iter().map(|round| round.per_second).collect();
            let Spread { median, low, high } = spread(&rates);
            let of = |pick: fn(&Round) -> f64| {
                spread(&rounds.iter().map(pick).collect::<Vec<_>>()).median
            };
            let (p50, p99) = (of(|round| round.p50), of(|round| round.p99));
            let ratio = self.ratio(ours, name).map_or(f64::NAN, |ratio| ratio.median);
            let quartiles = format!("{low:.0} – {high:.0}");
            println!(
                "  {name:34} {median:>9.0} {quartiles:>19} {p50:>7.0} {p99:>7.0}  {ratio:>7.2}"
            );
        }
    }
}

/// A claim about a ratio of throughputs, and what was measured.
struct Target {
    claim: String,
    at_least: f64,
    measured: Spread,
}

/// Everything a run found.
#[derive(Default)]
struct Report {
    scenarios: Vec<Scenario>,
    targets: Vec<Target>,
    /// Facts that are no ratio: bytes per key, waits during an outage.
    facts: Vec<(String, f64)>,
}

impl Report {
    fn claim(&mut self, at_least: f64, scenario: &Scenario, ours: &str, theirs: &str) {
        if let Some(measured) = scenario.ratio(ours, theirs) {
            let claim = format!("{}: {ours} / {theirs}", scenario.name);
            self.targets.push(Target { claim, at_least, measured });
        }
    }

    fn fact(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        println!("  {name}: {value:.1}");
        self.facts.push((name, value));
    }

    fn finish(&self) {
        println!("\nTargets, as medians of paired ratios of throughput (quartiles)");
        for Target { claim, at_least, measured: Spread { median, low, high } } in &self.targets {
            let verdict = if median >= at_least { "reached" } else { "MISSED" };
            println!("  {verdict:8} {median:.2} ({low:.2} – {high:.2}) of {at_least:.2}  {claim}");
        }
        let path = "target/bench-stores.json";
        match std::fs::write(path, self.json()) {
            Ok(()) => println!("\nEvery round: {path}"),
            Err(error) => eprintln!("cannot write {path}: {error}"),
        }
    }

    fn json(&self) -> String {
        let mut rows = Vec::new();
        for scenario in &self.scenarios {
            for (contender, rounds) in &scenario.rows {
                let list = |pick: fn(&Round) -> f64| {
                    let all: Vec<String> =
                        rounds.iter().map(|round| format!("{:.1}", pick(round))).collect();
                    all.join(", ")
                };
                let mut row = String::new();
                let name = &scenario.name;
                let _ = write!(
                    row,
                    "{{\"scenario\": \"{name}\", \"contender\": \"{contender}\", \
                     \"per_second\": [{}], \"p50_us\": [{}], \"p99_us\": [{}]}}",
                    list(|round| round.per_second),
                    list(|round| round.p50),
                    list(|round| round.p99),
                );
                rows.push(row);
            }
        }
        let targets = self.targets.iter().map(|target| {
            let Target { claim, at_least, measured: Spread { median, low, high } } = target;
            format!(
                "{{\"claim\": \"{claim}\", \"at_least\": {at_least}, \"median\": {median:.4}, \
                 \"low\": {low:.4}, \"high\": {high:.4}}}"
            )
        });
        let targets: Vec<String> = targets.collect();
        let facts = self.facts.iter().map(|(name, value)| format!("\"{name}\": {value:.2}"));
        let facts: Vec<String> = facts.collect();
        let between = ",\n    ";
        format!(
            "{{\n  \"rows\": [\n    {}\n  ],\n  \"targets\": [\n    {}\n  ],\n  \"facts\": {{\n    \
             {}\n  }}\n}}\n",
            rows.join(between),
            targets.join(between),
            facts.join(between)
        )
    }
}

/// A key as people have them, 24 bytes long.
pub(crate) fn key(number: usize) -> String {
    format!("tenant:{:06}:user:{:05}", number / 10, number % 10)
}

/// 3,600 per hour: about what each of the keys is asked for, so that few are denied.
pub(crate) fn strategy() -> admittance::Builtin {
    let (limit, period) = (3_600, admittance::Span::from_secs(3_600));
    let gcra = admittance::Gcra { limit, period, burst: limit };
    admittance::Tat::gcra(gcra).expect("exact").into()
}

/// A store, asked to check.
struct Checked<S> {
    store: S,
    strategy: admittance::Builtin,
}

impl<S> Checked<S> {
    fn new(store: S) -> Self {
        Self { store, strategy: strategy() }
    }
}

impl<S: admittance::Store + 'static> Asked for Checked<S> {
    async fn ask(&self, number: usize) {
        let key = key(number);
        let action = admittance::Action::Check(admittance::Cost::ONE);
        let (policy, strategy) = ("api", &self.strategy);
        let op = admittance::Op { policy, strategy, key: key.as_bytes(), action };
        let _ = self.store.apply(op).await.expect("the store serves");
    }
}

const CALLERS: [usize; 3] = [1, 16, 256];
