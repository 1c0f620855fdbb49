//! `admittance plan` beside a witness that shares no code with it: two real services, each asked
//! line by line with a clock that stands where the trace says, and what they answered compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use admittance::budget::LeaseKey;
use admittance::{Axis, Cost, ManualClock, Micros};
use admittance_server::{Asked, Config, Expected, Fail, Service, Shedding, Work};

/// Every kind of policy that a trace can ask, as it is served.
const CURRENT: &str = "
limiters:
  api: { strategy: gcra, limit: 5, period: 1s }
  spend:
    tokenBudget:
      windows:
        second: { budget: 8, period: 1s }
        minute: { budget: 300, period: 1m }
  gate: { concurrency: { minLimit: 3, maxLimit: 3 }, leaseTtl: 1m }
  llm:
    concurrency: { minLimit: 4, maxLimit: 4 }
    cost: { budget: 16, period: 2s, leaseTtl: 1m }
    leaseTtl: 1m
  whole:
    strategy: gcra
    limit: 4
    period: 1s
    concurrency: { minLimit: 3, maxLimit: 3 }
    cost: { budget: 24, period: 3s, leaseTtl: 1m }
    leaseTtl: 1m
  axes:
    strategy: fixedWindow
    limit: 2
    period: 1s
    cost: { budget: 18, period: 2s, leaseTtl: 1m }
    atomicity: perAxis
  tried:
    strategy: slidingWindow
    limit: 6
    period: 2s
    concurrency: { minLimit: 2, maxLimit: 2 }
    leaseTtl: 1m
  old: { strategy: tokenBucket, capacity: 3, refillPerSec: 2 }
";
/// The same policies with other numbers: one refuses nobody, one went, one came.
const CANDIDATE: &str = "
limiters:
  api: { strategy: slidingWindowLog, limit: 6, period: 1s }
  spend:
    tokenBudget:
      windows:
        second: { budget: 10, period: 1s }
        minute: { budget: 220, period: 1m }
  gate: { concurrency: { minLimit: 2, maxLimit: 2 }, leaseTtl: 1m }
  llm:
    concurrency: { minLimit: 3, maxLimit: 3 }
    cost: { budget: 20, period: 2s, leaseTtl: 1m }
    leaseTtl: 1m
  whole:
    strategy: gcra
    limit: 6
    period: 1s
    concurrency: { minLimit: 4, maxLimit: 4 }
    cost: { budget: 18, period: 3s, leaseTtl: 1m }
    leaseTtl: 1m
  axes:
    strategy: fixedWindow
    limit: 2
    period: 1s
    cost: { budget: 12, period: 2s, leaseTtl: 1m }
  tried:
    strategy: slidingWindow
    limit: 4
    period: 2s
    concurrency: { minLimit: 2, maxLimit: 2 }
    leaseTtl: 1m
    shadow: true
  new: { strategy: fixedWindow, limit: 3, period: 1s }
";
const POLICIES: [&str; 9] = ["api", "spend", "gate", "llm", "whole", "axes", "tried", "old", "new"];

/// One line of a trace.
struct Line {
    at_ms: u64,
    policy: &'static str,
    key: String,
    cost: u32,
    hold_ms: u64,
    actual: Option<u64>,
}

/// Traffic of a few keys in bursts; more than ten keys, so that not all of them are shown.
fn trace(seed: u64) -> Vec<Line> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut at_ms = 1_700_000_000_000_u64;
    let lines = (0..LINES).map(|_| {
        at_ms += if rng.u8(..4) == 0 { rng.u64(..120) } else { rng.u64(..12) };
        Line {
            at_ms,
            policy: POLICIES[rng.usize(..POLICIES.len())],
            // A few keys come more often than others.
            key: format!("k{}", if rng.u8(..3) > 0 { rng.u8(..3) } else { rng.u8(..15) }),
            cost: rng.u32(1..=9),
            hold_ms: if rng.u8(..6) == 0 { 0 } else { rng.u64(..700) },
            actual: (rng.u8(..3) == 0).then(|| rng.u64(..20)),
        }
    });
    lines.collect()
}

fn text(lines: &[Line]) -> String {
    lines.iter().fold(String::new(), |mut text, line| {
        let Line { at_ms, policy, key, cost, hold_ms, actual } = line;
        let actual = actual.map(|units| format!(",\"actual\":{units}")).unwrap_or_default();
        writeln!(
            text,
            "{{\"at\":{at_ms},\"policy\":\"{policy}\",\"key\":\"{key}\",\"cost\":{cost},\
             \"hold_ms\":{hold_ms}{actual}}}"
        )
        .expect("text");
        text
    })
}

/// What a witness does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// It settles with what was expected.
    SettlesExpected,
    /// What it holds, it holds a millisecond longer.
    HoldsLonger,
}

/// What is held until an instant.
struct Held {
    until_ms: u64,
    /// The name of its lease.
    id: String,
    line: usize,
}

/// One configuration, served.
struct Witness {
    service: Service,
    clock: ManualClock,
    held: Vec<Held>,
    wrong: Wrong,
}

impl Witness {
    fn new(policies: &str, wrong: Wrong) -> Self {
        let config = Config::parse("test", policies, Fail::Open).expect("valid policies");
        let clock = ManualClock::default();
        let config = Config { load: Shedding(None), ..config };
        let service = Service::new(&config, Arc::new(clock.clone()));
        Self { service, clock, held: Vec::new(), wrong }
    }

    fn stand_at(&self, ms: u64) {
        self.clock.set(Micros::from_epoch_ms(ms).expect("in range"));
    }

    /// Ends what is due, each at its instant.
    async fn end_until(&mut self, ms: u64, lines: &[Line]) {
        // What was admitted first ends first if both are due at one instant.
        self.held.sort_by_key(|held| held.until_ms);
        let due = self.held.iter().take_while(|held| held.until_ms <= ms).count();
        for Held { until_ms, id, line } in self.held.drain(..due).collect::<Vec<_>>() {
            self.stand_at(until_ms);
            let Line { policy, key, cost, actual, .. } = &lines[line];
            let known = self.service.policy(policy).expect("it was admitted by it");
            if known.config().cost.is_some() {
                let expected = u64::from(*cost);
                let units = match self.wrong {
                    Wrong::SettlesExpected => expected,
                    _ => actual.unwrap_or(expected),
                };
                let code = u128::from_str_radix(&id[id.len() - 32..], 16).expect("a number");
                let asked = [Asked { policy, key, units }];
                let settled =
                    self.service.settle(&asked, LeaseKey(code), true, Expected::default());
                settled.await.expect("settled");
            }
            self.service.release(&id, false).await.expect("released");
        }
    }

    /// Whether a line is admitted, and what its denial is called.
    async fn ask(&mut self, number: usize, lines: &[Line]) -> (bool, &'static str) {
        let line = &lines[number];
        self.end_until(line.at_ms, lines).await;
        self.stand_at(line.at_ms);
        let (policy, key) = (line.policy, line.key.as_str());
        if self.service.policy(policy).is_err() {
            return (false, "");
        }
        let cost = Cost::new(line.cost.into()).expect("in range");
        let (decided, axis) = match policy {
            "api" | "old" | "new" => (self.service.check(policy, key, cost).await, Axis::Rate),
            "spend" => (self.service.debit(policy, key, cost).await, Axis::Cost),
            _ => {
                let work = Work { cost, ..Work::new(policy, key) };
                let admitted = self.service.admit_work(&work).await.expect("decided");
                if let Some(lease) = admitted.lease {
                    let longer = u64::from(self.wrong == Wrong::HoldsLonger);
                    let until_ms = line.at_ms + line.hold_ms + longer;
                    self.held.push(Held { until_ms, id: lease.id, line: number });
                }
                let is_admit = admitted.decision.is_admit();
                self.end_until(line.at_ms, lines).await;
                return (is_admit, admitted.binding.map_or("", Axis::name));
            }
        };
        let is_admit = decided.expect("decided").decision.is_admit();
        (is_admit, if is_admit { "" } else { axis.name() })
    }
}

/// Line, policy, key, kind and axis of a flip.
type Flip = (usize, String, String, String, String);
/// Newly denied and newly admitted: how many, and the keys with the most.
type Counted = BTreeMap<String, [(u64, Vec<(String, u64)>); 2]>;

/// What a plan says, or ought to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    flips: Vec<Flip>,
    requests: BTreeMap<String, [u64; 3]>,
    counted: Counted,
}

const KINDS: [&str; 2] = ["newly_denied", "newly_admitted"];

/// What two services show, asked the same at the same instants.
async fn witnessed(lines: &[Line], policies: [&str; 2], wrong: Wrong) -> Told {
    let [current, candidate] = policies;
    let (mut current, mut candidate) =
        (Witness::new(current, wrong), Witness::new(candidate, wrong));
    let mut told = Told::default();
    for number in 0..lines.len() {
        let Line { policy, key, .. } = &lines[number];
        let (before, after) =
            (current.ask(number, lines).await, candidate.ask(number, lines).await);
        let counts = told.requests.entry((*policy).to_owned()).or_default();
        counts[0] += 1;
        let (kind, axis) = match (before.0, after.0) {
            (true, false) => (KINDS[0], after.1),
            (false, true) => (KINDS[1], before.1),
            (admitted, _) => {
                counts[if admitted { 1 } else { 2 }] += 1;
                continue;
            }
        };
        let (policy, kind) = ((*policy).to_owned(), kind.to_owned());
        told.flips.push((number + 1, policy, key.clone(), kind, axis.to_owned()));
    }
    for policy in told.requests.keys() {
        let of_kind = KINDS.map(|kind| {
            let mut keys: BTreeMap<&str, u64> = BTreeMap::new();
            let flips = told.flips.iter().filter(|flip| flip.1 == *policy && flip.3 == kind);
            flips.for_each(|flip| *keys.entry(&flip.2).or_default() += 1);
            let mut most: Vec<(String, u64)> =
                keys.into_iter().map(|(key, count)| (key.to_owned(), count)).collect();
            let all = most.iter().map(|(_, count)| count).sum();
            most.sort_by(|(one, a), (other, b)| b.cmp(a).then(one.cmp(other)));
            most.truncate(10);
            (all, most)
        });
        told.counted.insert(policy.clone(), of_kind);
    }
    told
}

/// A directory of this test's own, gone when it ends.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the command says. Tests that run at once have files of their own.
fn planned(test: &str, lines: &[Line]) -> Told {
    let place = format!("admittance-plan-{test}-{}", std::process::id());
    let place = Place(std::env::temp_dir().join(place));
    std::fs::create_dir_all(&place.0).expect("a directory");
    for (name, text) in
        [("a.yaml", CURRENT), ("b.yaml", CANDIDATE), ("t.jsonl", text(lines).as_str())]
    {
        std::fs::write(place.0.join(name), text).expect("written");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_admittance"));
    command.args(["plan", "--current", "a.yaml", "--candidate", "b.yaml", "--each", "--json"]);
    let output = command.arg("t.jsonl").current_dir(&place.0).output().expect("it runs");
    let said = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let complaints = said(output.stderr);
    assert_eq!((output.status.code(), complaints.as_str()), (Some(0), ""));
    let said = said(output.stdout);
    let mut said: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let summary = said.pop().expect("a summary");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
    let flips = said.iter().map(|flip| {
        let line = usize::try_from(number(&flip["line"])).expect("small");
        let [policy, key, kind, axis] =
            ["policy", "key", "flip", "axis"].map(|name| word(&flip[name]));
        (line, policy, key, kind, axis)
    });
    let mut told = Told { flips: flips.collect(), ..Told::default() };
    for (policy, counts) in summary["policies"].as_object().expect("an object") {
        let three = ["requests", "both_admit", "both_deny"].map(|name| number(&counts[name]));
        told.requests.insert(policy.clone(), three);
        let of_kind = KINDS.map(|kind| {
            let most = counts[format!("most_{kind}")].as_array().expect("a list").iter();
            let most = most.map(|one| (word(&one["key"]), number(&one["count"])));
            (number(&counts[kind]), most.collect())
        });
        told.counted.insert(policy.clone(), of_kind);
    }
    told
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(17);
    println!("ADMITTANCE_SEED={seed}");
    seed
}

#[tokio::test]
async fn plan_names_the_flips_that_two_services_show_asked_line_by_line() {
    let rounds = if std::env::var_os("ADMITTANCE_LONG").is_some() { 40 } else { 4 };
    let seed = seed();
    for seed in seed..seed + rounds {
        let lines = trace(seed);
        let (said, shown) = (
            planned("witness", &lines),
            witnessed(&lines, [CURRENT, CANDIDATE], Wrong::Nothing).await,
        );
        for (said, shown) in said.flips.iter().zip(&shown.flips) {
            assert_eq!(said, shown, "seed {seed}");
        }
        assert_eq!(said.flips.len(), shown.flips.len(), "seed {seed}");
        assert_eq!((said.requests, said.counted), (shown.requests, shown.counted.clone()));
        // Each axis flips somewhere, in both ways, and so does each policy.
        for axis in ["rate", "cost", "concurrency"] {
            for kind in KINDS {
                let is_it = |flip: &&Flip| flip.3 == kind && flip.4 == axis;
                assert!(shown.flips.iter().any(|flip| is_it(&flip)), "{kind} by {axis}");
            }
        }
        for (policy, counted) in &shown.counted {
            assert!(counted.iter().any(|(count, _)| *count > 0), "{policy}");
        }
    }
}

/// The candidate, with one number of one policy changed.
fn another_candidate(policy: &str) -> String {
    let (old, new) = match policy {
        "api" => ("slidingWindowLog, limit: 6", "slidingWindowLog, limit: 7"),
        "spend" => ("budget: 10", "budget: 11"),
        "gate" => ("minLimit: 2, maxLimit: 2", "minLimit: 3, maxLimit: 3"),
        "llm" => ("budget: 20", "budget: 21"),
        "whole" => ("budget: 18", "budget: 19"),
        "axes" => ("    cost: { budget: 12", "    atomicity: perAxis\n    cost: { budget: 12"),
        "new" => ("limit: 3, period: 1s", "limit: 4, period: 1s"),
        _ => ("    shadow: true\n", ""),
    };
    let changed = CANDIDATE.replacen(old, new, 1);
    assert_ne!(changed, CANDIDATE, "{policy}");
    changed
}

#[tokio::test]
async fn a_plan_of_something_else_is_told_apart() {
    let lines = trace(seed());
    let said = planned("apart", &lines);
    // Another candidate, by one number of one policy; the files swapped.
    for policy in ["api", "spend", "gate", "llm", "whole", "axes", "tried", "new"] {
        let other = another_candidate(policy);
        let shown = witnessed(&lines, [CURRENT, &other], Wrong::Nothing).await;
        assert!(said.flips != shown.flips, "{policy}");
        assert!(said.counted[policy] != shown.counted[policy], "{policy}");
    }
    assert!(said != witnessed(&lines, [CANDIDATE, CURRENT], Wrong::Nothing).await, "swapped");
    // The same policies, ended otherwise.
    for wrong in [Wrong::SettlesExpected, Wrong::HoldsLonger] {
        let shown = witnessed(&lines, [CURRENT, CANDIDATE], wrong).await;
        assert!(said != shown, "{wrong:?}");
    }
    // One flip of a plan, moved.
    let shown = witnessed(&lines, [CURRENT, CANDIDATE], Wrong::Nothing).await;
    assert!(said == shown, "the plan itself");
    for place in 0..said.flips.len() {
        let mut moved = said.clone();
        moved.flips[place].0 += 1;
        assert!(moved != shown, "flip {place}");
    }
    let mut moved = said.clone();
    let [(denied, keys), _] = moved.counted.get_mut("gate").expect("asked");
    assert!(*denied > 1 && keys.len() > 1);
    keys[0].1 -= 1;
    keys[1].1 += 1;
    assert!(moved != shown, "a flip of one key was counted for another");
}

/// Long enough that every axis of every policy flips both ways.
const LINES: usize = 2_500;
