//! Both modes, from the same state, say the same.

use admittance::admission::Request;
use admittance::{Atomicity, Axis};

use crate::admission::traces::Scenario;
use crate::admission::{Here, InTwo, Kind, Mutant, Rules, Stored, World, long, run, seeded};

/// Two worlds with the same history, one asked in each mode.
async fn twins<K: Kind>(random: &mut fastrand::Rng) -> Result<Option<Axis>, String> {
    let rules = Rules { is_behind: false, ..Rules::random(random) };
    let seed = random.u64(..);
    let mut twins = [(); 2].map(|()| {
        let world = World::<K>::new(rules.clone(), Mutant::Nothing);
        Scenario::new(world, fastrand::Rng::with_seed(seed))
    });
    let steps = random.usize(..10);
    for twin in &mut twins {
        for _ in 0..steps {
            twin.step(Atomicity::All).await?;
        }
    }
    let [one, other] = &twins;
    let before = one.world.state();
    if before != other.world.state() {
        return Err("twins that differ".into());
    }
    let (nth, cost) = (random.usize(..2), random.u64(..12));
    let request = Request::new(crate::admission::KEYS[nth]).cost(cost).value(random.f64());
    let all = one.world.admit(Atomicity::All, request).await;
    let per_axis = other.world.admit(Atomicity::PerAxis, request).await;
    let (a, b) = (all.verdicts, per_axis.verdicts);
    let same = |is: bool, what: &str| if is { Ok(()) } else { Err(format!("{what}: {a:?} {b:?}")) };
    same(a.is_admit() == b.is_admit(), "whether it is admitted")?;
    same(a.label() == b.label(), "what binds")?;
    for axis in Axis::ALL {
        let is_charged_in_one = a.binding() == Some(Axis::Cost) && axis == Axis::Rate;
        match is_charged_in_one {
            true => same(a.of(axis) == Some(before.rates[nth].0), "the peek")?,
            // Two places do not share their time with the gate.
            false => same(
                a.of(axis).map(|said| (said.outcome, said.limit, said.remaining))
                    == b.of(axis).map(|said| (said.outcome, said.limit, said.remaining)),
                axis.name(),
            )?,
        }
    }
    Ok(a.binding())
}

fn agree<K: Kind>() {
    let mut random = seeded(3);
    let mut bound = [0_usize; 5];
    for nth in 0..long(1_000) {
        let binding = run(twins::<K>(&mut random)).unwrap_or_else(|why| panic!("{nth}: {why}"));
        bound[binding.map_or(4, |axis| axis as usize)] += 1;
    }
    println!("bound by {:?}, and {} by none", &bound[..4], bound[4]);
    assert!(bound[1..].iter().all(|&count| count > 20), "{bound:?}");
}

#[test]
fn both_modes_admit_the_same_and_are_bound_by_the_same_axis_in_this_process() {
    agree::<Here>();
}

#[test]
fn both_modes_admit_the_same_and_are_bound_by_the_same_axis_in_a_store() {
    agree::<Stored>();
}

#[test]
fn both_modes_admit_the_same_and_are_bound_by_the_same_axis_in_two_places() {
    agree::<InTwo>();
}
