//! Two threads that race for all four axes: once nobody is there, nothing is held, and what was
//! charged is what was admitted.

use std::sync::Barrier;

use admittance::admission::Request;
use admittance::budget::Budget;
use admittance::{Atomicity, Axis, Cadence, Window};

use crate::admission::kinds::ready;
use crate::admission::{
    Here, InTwo, KEYS, Kind, MINUTE, Mutant, Random, Rules, Stored, World, long, run, seeded, told,
};

/// What one thread was told and has settled.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    admitted: u64,
    settled: u64,
    bound: [usize; 5],
}

/// Asks and ends as often as is said, without a runtime of its own.
fn work<K: Kind>(world: &World<K>, random: &mut Random, asks: usize) -> Sum {
    let (mut sum, mut held) = (Sum::default(), None);
    for _ in 0..asks {
        let cost = random.u64(1..8);
        let request =
            Request::new(KEYS[0]).cost(cost).value(if random.u8(..4) > 0 { 0.8 } else { 0.2 });
        let got = ready(world.admit(Atomicity::All, request));
        let Some(mut work) = got.work else {
            let binding = got.verdicts.binding();
            sum.bound[binding.map_or(4, |axis| axis as usize)] += 1;
            // Whoever holds a place gives it back, and the other has its turn.
            held = None;
            std::thread::yield_now();
            continue;
        };
        sum.admitted += 1;
        let actual = random.u64(..cost + 2);
        sum.settled += actual;
        let _ = ready(work.settle(actual)).unwrap();
        match random.u8(..4) {
            0 => work.finish(),
            1 => work.dropped(),
            2 => world.drop_work(work),
            _ => held = Some(work),
        }
    }
    drop(held);
    sum
}

/// A race, and what is wrong at its end.
async fn race<K: Kind>(random: &mut Random, mutant: Mutant) -> Result<[usize; 5], String> {
    let day = Cadence::Day { offset_minutes: 0 };
    let rules = Rules {
        strategy: Window::fixed(random.u64(20..300), MINUTE).unwrap().into(),
        budgets: vec![Budget::new(random.u64(50..1_000), day).unwrap()],
        places: 1,
        ..Rules::plain()
    };
    let world = World::<K>::new(rules, mutant);
    let before = world.state();
    let (barrier, runtime) = (Barrier::new(2), tokio::runtime::Handle::current());
    let seeds = [random.u64(..), random.u64(..)];
    let sums = std::thread::scope(|scope| {
        let threads = seeds.map(|seed| {
            let (world, barrier, runtime) = (&world, &barrier, &runtime);
            scope.spawn(move || {
                let _entered = runtime.enter();
                barrier.wait();
                work(world, &mut Random::with_seed(seed), ASKS)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    told().await;
    let after = world.state();
    let admitted: u64 = sums.iter().map(|sum| sum.admitted).sum();
    let settled: u64 = sums.iter().map(|sum| sum.settled).sum();
    let standing = after.accounts[0][0];
    let wrong = |what: &str| Err(format!("{what}: {sums:?}, {after:?}"));
    if after.in_flight != 0 || standing.reserved != 0 || standing.open != 0 {
        return wrong("nobody is there, and something is held");
    }
    if standing.spent + standing.debt != settled {
        return wrong("what was spent is not what was settled");
    }
    if before.rates[0].0.remaining - after.rates[0].0.remaining != admitted {
        return wrong("the rate is not charged once for each that was admitted");
    }
    Ok(std::array::from_fn(|nth| sums[0].bound[nth] + sums[1].bound[nth]))
}

fn races<K: Kind>(mutant: Mutant, times: usize) -> Result<[usize; 5], String> {
    let mut random = seeded(4);
    let mut bound = [0; 5];
    for nth in 0..times {
        let seen =
            run(race::<K>(&mut random, mutant)).map_err(|why| format!("race {nth}: {why}"))?;
        bound = std::array::from_fn(|place| bound[place] + seen[place]);
    }
    println!("bound by {:?}, {} by worth", &bound[..4], bound[4]);
    Ok(bound)
}

fn nothing_is_left<K: Kind>() {
    let bound = races::<K>(Mutant::Nothing, long(100)).unwrap();
    for axis in [Axis::Concurrency, Axis::Rate, Axis::Cost] {
        assert!(bound[axis as usize] > 0, "{axis:?} never bound, which proves nothing");
    }
}

#[test]
fn racing_threads_leave_nothing_behind_in_this_process() {
    nothing_is_left::<Here>();
}

#[test]
fn racing_threads_leave_nothing_behind_in_a_store() {
    nothing_is_left::<Stored>();
}

#[test]
fn racing_threads_leave_nothing_behind_in_two_places() {
    nothing_is_left::<InTwo>();
}

#[test]
fn what_racing_threads_leave_is_noticed() {
    for mutant in [Mutant::KeepsThePermit, Mutant::ChargesTheRate, Mutant::JudgesWorthLast] {
        assert!(races::<Here>(mutant, 20).is_err(), "{mutant:?}");
        assert!(races::<InTwo>(mutant, 20).is_err(), "{mutant:?}");
    }
}

const ASKS: usize = 400;
