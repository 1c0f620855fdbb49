//! What an answer costs: `reject(key)` beside the hash of the key alone.

use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;

use admittance::load::{Class, LoadKey, LoadRules, Prober, Seed, Shedder, Tasks, on_pool};
use admittance::{Gcra, Key, Limiter, Span, Tat};

use super::Effort;
use crate::report::{Row, Scenario, Spread, Target, print_targets, spread};
use crate::workload;

const HASH: &str = "keyed hash alone";
const FOLD: &str = "foldhash alone";
const OPEN: &str = "reject(key), nothing shed";
const SHUT: &str = "reject(key), 99 % shed";
const RANDOM: &str = "reject()";
const ADMIT: &str = "admit(key), measured, ended";
const RATE: &str = "a rate check of ours";

pub(super) fn run(effort: Effort) {
    let strings: Vec<String> = workload::strings(KEYS);
    let uuids: Vec<String> = (0..KEYS).map(uuid).collect();
    let numbers: Vec<u64> = workload::numbers(KEYS);
    let mut targets = Vec::new();
    let mut measured = |name: &'static str, scenario: Scenario| {
        print(&scenario);
        for ours in [OPEN, SHUT] {
            let over = scenario.ratio(ours, HASH).expect("both were measured");
            let claim = match (name, ours) {
                ("numbers", OPEN) => "reject(number) over its hash",
                ("numbers", _) => "reject(number) over its hash, shedding",
                ("words", OPEN) => "reject(word) over its hash",
                ("words", _) => "reject(word) over its hash, shedding",
                (_, OPEN) => "reject(uuid) over its hash",
                _ => "reject(uuid) over its hash, shedding",
            };
            targets.push(Target { claim, at_most: 3.0, measured: over });
        }
    };
    measured("numbers", scenario("keys that are numbers", &numbers, effort));
    measured("words", scenario("keys of about ten bytes", &strings, effort));
    measured("uuids", scenario("keys of 36 bytes", &uuids, effort));
    print_targets(&targets);
}

/// Everything that can be asked, over the same keys.
fn scenario<K: LoadKey + Key + Fold>(name: &str, keys: &[K], effort: Effort) -> Scenario {
    let open = Shedder::new(LoadRules::default()).expect("valid rules");
    let (shut, held) = drowned();
    let limit = Gcra { limit: 1 << 28, period: Span::from_secs(1), burst: 1 << 28 };
    let limiter = Limiter::new(Tat::gcra(limit).expect("exact"));
    let seed = Seed(black_box(7));
    let fold = foldhash::quality::FixedState::with_seed(black_box(7));
    let contenders: [Contender<'_, K>; 7] = [
        pass(HASH, move |key: &K| key.hashed(seed).get()),
        pass(FOLD, move |key: &K| key.fold(fold.build_hasher())),
        pass(OPEN, |key: &K| u64::from(open.reject_key(key))),
        pass(SHUT, |key: &K| u64::from(shut.reject_key(key))),
        pass(RANDOM, |_: &K| u64::from(open.reject())),
        pass(ADMIT, |key: &K| match open.admit(Class::Default, key) {
            Ok(root) => root.run(|| 1),
            Err(_) => 0,
        }),
        pass(RATE, |key: &K| u64::from(limiter.check(key).is_admit())),
    ];
    let row = |(name, _): &Contender<'_, K>| Row { contender: name, nanos: vec![] };
    let mut rows: Vec<Row> = contenders.iter().map(row).collect();
    for round in 0..=effort.rounds {
        for turn in 0..contenders.len() {
            let place = (turn + round) % contenders.len();
            let nanos = contenders[place].1(keys, effort.asks);
            // The first round warms up.
            if round > 0 {
                rows[place].nanos.push(nanos);
            }
        }
    }
    drop(held);
    Scenario { name: name.to_owned(), rows }
}

/// Nanoseconds for each of so many asks.
type Pass<'a, K> = Box<dyn Fn(&[K], usize) -> f64 + 'a>;
type Contender<'a, K> = (&'static str, Pass<'a, K>);

/// A loop of its own for each, so that what is asked is inlined as it would be in a program.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn pass<'a, K>(name: &'static str, ask: impl Fn(&K) -> u64 + 'a) -> Contender<'a, K> {
    let pass = move |keys: &[K], asks: usize| {
        let started = Instant::now();
        let mut sum = 0_u64;
        for key in keys.iter().cycle().take(asks) {
            sum = sum.wrapping_add(ask(black_box(key)));
        }
        black_box(sum);
        started.elapsed().as_secs_f64() * 1e9 / asks as f64
    };
    (name, Box::new(pass))
}

/// A shedder at its floor: none of its executor's probes ever runs.
fn drowned() -> (Shedder, (Prober, mpsc::Receiver<admittance::load::Probe>)) {
    let shedder = Shedder::new(LoadRules::default()).expect("valid rules");
    let (probes, kept) = mpsc::channel();
    let keep = move |probe| probes.send(probe).unwrap_or_default();
    let prober = shedder.start(on_pool(keep, || Tasks { tasks: 1, workers: 1 }));
    let prober = prober.expect("there is a thread");
    while shedder.percent() > 1 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    (shedder, (prober, kept))
}

/// The same key for the hasher that people would take.
trait Fold {
    fn fold(&self, hasher: impl Hasher) -> u64;
}

impl Fold for u64 {
    fn fold(&self, mut hasher: impl Hasher) -> u64 {
        hasher.write_u64(*self);
        hasher.finish()
    }
}

impl Fold for String {
    fn fold(&self, mut hasher: impl Hasher) -> u64 {
        hasher.write(self.as_bytes());
        hasher.finish()
    }
}

fn uuid(number: usize) -> String {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:08x}-{:04x}-4{:03x}-a{:03x}-{number:012x}", mixed >> 32, mixed & 0xffff, 7, 9)
}

fn print(scenario: &Scenario) {
    println!("\n{}, one thread", scenario.name);
    println!("  {:32} {:>8}  {:>15}  over hash", "", "ns", "quartiles");
    for row in &scenario.rows {
        let Spread { median, low, high } = spread(&row.nanos);
        let quartiles = format!("{low:.1} – {high:.1}");
        let over = scenario.ratio(row.contender, HASH).map_or(1.0, |over| over.median);
        println!("  {:32} {median:>8.1}  {quartiles:>15}  {over:>9.2}", row.contender);
    }
}

/// Few enough to stay in the nearest cache: what is measured is the answer, not the memory.
const KEYS: usize = 256;
