//! One admission and its end in this process, beside the single axes it is made of, each as one
//! would use it alone, and beside governor and a semaphore chained by hand.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use admittance::admission::{Admitter, Admitting, Local, Request};
use admittance::budget::{Act, Budget, Budgets, Charge, LeaseKey, MemoryAccounts};
use admittance::gate::{Gate, LimitRules};
use admittance::load::{LoadRules, Shedder};
use admittance::{Builtin, Cadence, Gcra, Limiter, Span, SystemClock, Tat};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::Semaphore;

use super::Effort;
use crate::report::{Row, Scenario, Spread, Target, print_targets, spread};

/// Does it so many times on this thread, the loop inside.
type Pass = Box<dyn Fn(usize, usize) + Send + Sync>;

const PARTS: [&str; 4] = ["load alone", "concurrency alone", "rate alone", "cost alone"];
const SUM: &str = "sum of the four";
const FOUR: &str = "admit + finish, four axes";
const TWO: &str = "admit + finish, rate and concurrency";
const CHAINED: &str = "governor + Semaphore, chained";

pub(super) fn run(effort: Effort) {
    let mut targets = Vec::new();
    for threads in [1, 2] {
        let contenders: Vec<(&'static str, Pass)> = vec![
            (PARTS[0], load()),
            (PARTS[1], concurrency()),
            (PARTS[2], rate()),
            (PARTS[3], cost()),
            (FOUR, four()),
            (TWO, two()),
            ("admit denied by cost", denied()),
            (CHAINED, chained()),
        ];
        let name = format!("admissions, {threads} thread(s), a key each");
        let scenario = measure(name, &contenders, threads, effort);
        print(&scenario);
        let measured = scenario.ratio(FOUR, SUM).expect("both were measured");
        let claim = CLAIMS[threads - 1];
        targets.push(Target { claim, at_most: 1.3, measured });
    }
    print_targets(&targets);
}

const CLAIMS: [&str; 2] = [
    "four axes over the sum of the single ones, 1 thread",
    "four axes over the sum of the single ones, 2 threads",
];

/// Runs every contender once per round, so that what disturbs the machine disturbs all of them.
fn measure(
    name: String,
    contenders: &[(&'static str, Pass)],
    threads: usize,
    effort: Effort,
) -> Scenario {
    let row = |(name, _): &(&'static str, Pass)| Row { contender: name, nanos: vec![] };
    let mut rows: Vec<Row> = contenders.iter().map(row).collect();
    let times = effort.admissions;
    for (_, pass) in contenders {
        time(pass, threads, times);
    }
    for round in 0..effort.rounds {
        // Who goes first changes from round to round.
        for turn in 0..contenders.len() {
            let place = (turn + round) % contenders.len();
            rows[place].nanos.push(time(&contenders[place].1, threads, times));
        }
    }
    let parts: Vec<&Row> = rows.iter().filter(|row| PARTS.contains(&row.contender)).collect();
    let sum = |round: usize| parts.iter().map(|row| row.nanos[round]).sum();
    let nanos = (0..effort.rounds).map(sum).collect();
    rows.insert(PARTS.len(), Row { contender: SUM, nanos });
    Scenario { name, rows }
}

/// Nanoseconds each and per thread.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn time(pass: &Pass, threads: usize, times: usize) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    let one = |thread| {
        barrier.wait();
        let started = Instant::now();
        pass(thread, times);
        started.elapsed().as_secs_f64() * 1e9 / times as f64
    };
    std::thread::scope(|scope| {
        let one = &one;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let mine = one(0);
        let theirs: f64 = others.into_iter().map(|other| other.join().expect("no panic")).sum();
        (mine + theirs) / threads as f64
    })
}

fn print(scenario: &Scenario) {
    println!("\n{}", scenario.name);
    println!("  {:40} {:>9}  {:>19}  of sum  of chained", "", "ns", "quartiles");
    for row in &scenario.rows {
        let Spread { median, low, high } = spread(&row.nanos);
        let quartiles = format!("{low:.1} – {high:.1}");
        let of = |name: &str| scenario.ratio(row.contender, name).map_or(f64::NAN, |of| of.median);
        let (sum, chained) = (of(SUM), of(CHAINED));
        println!(
            "  {:40} {median:>9.1}  {quartiles:>19}  {sum:>6.2}  {chained:>10.2}",
            row.contender
        );
    }
}

fn key(thread: usize) -> Vec<u8> {
    format!("tenant:000001:user:{thread:05}").into_bytes()
}

fn shedder() -> Shedder {
    Shedder::new(LoadRules::default()).expect("good rules")
}

fn gate() -> Gate {
    Gate::new(LimitRules::fixed(64)).expect("good rules")
}

/// So much that nothing is denied.
fn limiter() -> Limiter<Builtin, SystemClock> {
    let limit = 1_000_000_000;
    let gcra = Gcra { limit, period: Span::from_secs(1), burst: limit };
    Limiter::new(Builtin::from(Tat::gcra(gcra).expect("exact")))
}

fn budget(limit: u64) -> Budget {
    Budget::new(limit, Cadence::every(Span::from_secs(365 * 86_400))).expect("exact")
}

fn budgets(limit: u64) -> Budgets {
    Budgets::new("tokens", [budget(limit)]).expect("one window")
}

fn load() -> Pass {
    let shedder = shedder();
    Box::new(move |thread, times| {
        let key = key(thread);
        for _ in 0..times {
            assert!(!black_box(shedder.reject_key(black_box(&key[..]))));
        }
    })
}

fn concurrency() -> Pass {
    let gate = gate();
    Box::new(move |_, times| {
        for _ in 0..times {
            black_box(gate.acquire().expect("there is room")).finish();
        }
    })
}

fn rate() -> Pass {
    let limiter = limiter();
    Box::new(move |thread, times| {
        let key = key(thread);
        for _ in 0..times {
            assert!(black_box(limiter.check(black_box(&key[..]))).is_admit());
        }
    })
}

fn cost() -> Pass {
    let accounts = MemoryAccounts::new(SystemClock::new());
    let budget = budget(LIMIT);
    // What an admission of this process remembers.
    let budget = budget.remembering(budget.open_max(), Local::<Builtin>::ENDED_MAX);
    let leases = AtomicU64::new(0);
    Box::new(move |thread, times| {
        let key = key(thread);
        let first = leases.fetch_add(times as u64, Ordering::Relaxed);
        for lease in first..first + times as u64 {
            let lease = LeaseKey(u128::from(lease));
            let charge = |units| Charge { policy: "tokens", budget: &budget, key: &key, units };
            let reserve = Act::Reserve { lease, ttl: Budget::TTL_MAX };
            let reserved = accounts.one_now(&charge(300), reserve).expect("it fits");
            assert!(black_box(reserved).decision.is_admit());
            let settled = accounts.one_now(&charge(20), Act::Settle(lease)).expect("it is there");
            let _ = black_box(settled);
        }
    })
}

fn four() -> Pass {
    let axes = Local::new().rate(limiter()).cost(&budgets(LIMIT));
    let admitter = Admitter::new(axes).load(shedder()).concurrency(gate());
    let admitter = admitter.build().expect("four axes");
    Box::new(move |thread, times| {
        let key = key(thread);
        for _ in 0..times {
            let asked = Request::new(black_box(&key)).cost(300);
            let mut work = match admitter.admit_sync(asked) {
                Ok(Admitting::Admitted(work)) => work,
                other => panic!("there is room for all: {other:?}"),
            };
            let _ = black_box(work.settle_sync(20).expect("it is there"));
            work.finish();
        }
    })
}

fn two() -> Pass {
    let admitter = Admitter::new(Local::new().rate(limiter())).concurrency(gate());
    let admitter = admitter.build().expect("two axes");
    Box::new(move |thread, times| {
        let key = key(thread);
        for _ in 0..times {
            match admitter.admit_sync(Request::new(black_box(&key))) {
                Ok(Admitting::Admitted(work)) => work.finish(),
                other => panic!("there is room for all: {other:?}"),
            }
        }
    })
}

fn denied() -> Pass {
    let axes = Local::new().rate(limiter()).cost(&budgets(1));
    let admitter = Admitter::new(axes).load(shedder()).concurrency(gate());
    let admitter = admitter.build().expect("four axes");
    Box::new(move |thread, times| {
        let key = key(thread);
        for _ in 0..times {
            let asked = Request::new(black_box(&key)).cost(300);
            let denied = admitter.admit_sync(asked).expect("an answer");
            assert!(!black_box(denied).is_admit());
        }
    })
}

/// As people chain them: a permit first, then the rate; on a denial the permit is dropped.
fn chained() -> Pass {
    let quota = Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero"));
    let governor: DefaultKeyedRateLimiter<Vec<u8>> = RateLimiter::keyed(quota);
    let semaphore = Arc::new(Semaphore::new(64));
    Box::new(move |thread, times| {
        let key = key(thread);
        for _ in 0..times {
            let permit = Arc::clone(&semaphore).try_acquire_owned().expect("there is room");
            assert!(black_box(governor.check_key(black_box(&key))).is_ok());
            drop(black_box(permit));
        }
    })
}

const LIMIT: u64 = 1 << 45;
