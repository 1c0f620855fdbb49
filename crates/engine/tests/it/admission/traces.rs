//! A denial leaves no trace on any axis.

use admittance::admission::Request;
use admittance::{Atomicity, Axis, Span};

use crate::admission::{
    Here, InTwo, KEYS, Kind, Mutant, Random, Rules, Stored, Work, World, long, run, seeded, told,
};

/// A world in which work comes, goes on and ends at random.
pub(crate) struct Scenario<K: Kind> {
    pub(crate) world: World<K>,
    held: Vec<Work<K>>,
    random: Random,
}

/// How often each axis bound, and worth at last.
pub(crate) type Denials = [usize; 5];

impl<K: Kind> Scenario<K> {
    pub(crate) const fn new(world: World<K>, random: Random) -> Self {
        Self { world, held: Vec::new(), random }
    }

    /// Something happens; says what denied, if anything did.
    pub(crate) async fn step(&mut self, atomicity: Atomicity) -> Result<Option<usize>, String> {
        let random = &mut self.random;
        match random.u8(..10) {
            0..=5 => return self.ask(atomicity).await,
            6 => self.world.clock.advance(Span::from_ms(random.u64(..40_000))),
            _ if self.held.is_empty() => {}
            7 => {
                let nth = random.usize(..self.held.len());
                let _ = self.held[nth].debit(random.u64(..6)).await.unwrap();
            }
            8 => {
                let nth = random.usize(..self.held.len());
                let _ = self.held[nth].settle(random.u64(..12)).await.unwrap();
            }
            _ => self.end(),
        }
        told().await;
        Ok(None)
    }

    fn end(&mut self) {
        let work = self.held.swap_remove(self.random.usize(..self.held.len()));
        match self.random.u8(..4) {
            0 => work.finish(),
            1 => work.ignore(),
            2 => work.dropped(),
            _ => self.world.drop_work(work),
        }
    }

    async fn ask(&mut self, atomicity: Atomicity) -> Result<Option<usize>, String> {
        let key = KEYS[self.random.usize(..KEYS.len())];
        let most = 2 + self.world.rules.budgets[0].limit() / 2;
        let request = Request::new(key).cost(self.random.u64(..most)).value(self.random.f64());
        let before = self.world.state();
        let got = self.world.admit(atomicity, request).await;
        if let Some(work) = got.work {
            self.held.push(work);
            return Ok(None);
        }
        let (mut after, binding) = (self.world.state(), got.verdicts.binding());
        if atomicity == Atomicity::PerAxis && binding == Some(Axis::Cost) {
            after = after.but_for_the_rate_of(key, &before);
        }
        if before != after {
            return Err(format!("{:?} denied: {before:?}, and then {after:?}", binding));
        }
        Ok(Some(binding.map_or(4, |axis| axis as usize)))
    }

    /// Everything ends: nobody holds anything.
    async fn over(mut self) -> Result<(), String> {
        while !self.held.is_empty() {
            self.end();
        }
        told().await;
        let state = self.world.state();
        let is_held = |standing: &admittance::budget::Standing| standing.reserved > 0;
        let is_open = |standing: &admittance::budget::Standing| standing.open > 0;
        let mut each = state.accounts.iter().flatten();
        match state.in_flight > 0 || each.any(|one| is_held(one) || is_open(one)) {
            true => Err(format!("nobody is there, and it is held: {state:?}")),
            false => Ok(()),
        }
    }
}

async fn scenarios<K: Kind>(
    random: &mut Random,
    count: usize,
    atomicity: Atomicity,
    mutant: Mutant,
) -> Result<Denials, String> {
    let mut denials = Denials::default();
    for nth in 0..count {
        let world = World::<K>::new(Rules::random(random), mutant);
        let mut scenario = Scenario::new(world, random.fork());
        let named = |why: String| format!("scenario {nth}: {why}");
        for _ in 0..STEPS {
            if let Some(denied) = scenario.step(atomicity).await.map_err(named)? {
                denials[denied] += 1;
            }
        }
        scenario.over().await.map_err(named)?;
    }
    Ok(denials)
}

fn leave_no_trace<K: Kind>() {
    let mut random = seeded(1);
    for (atomicity, count) in [(Atomicity::All, long(10_000)), (Atomicity::PerAxis, long(500))] {
        let denials = run(scenarios::<K>(&mut random, count, atomicity, Mutant::Nothing)).unwrap();
        println!("{atomicity:?}: denied by {:?}, {} by worth", &denials[..4], denials[4]);
        assert!(denials.iter().all(|&times| times > count / 20), "{denials:?}");
    }
}

#[test]
fn a_denial_leaves_no_trace_in_this_process() {
    leave_no_trace::<Here>();
}

#[test]
fn a_denial_leaves_no_trace_in_a_store() {
    leave_no_trace::<Stored>();
}

#[test]
fn a_denial_leaves_no_trace_in_two_places() {
    leave_no_trace::<InTwo>();
}

#[test]
fn a_trace_that_a_composition_leaves_is_noticed() {
    fn is_seen<K: Kind>(mutant: Mutant) -> bool {
        run(scenarios::<K>(&mut seeded(2), 300, Atomicity::All, mutant)).is_err()
    }
    for mutant in [
        Mutant::KeepsThePermit,
        Mutant::ChargesTheRate,
        Mutant::JudgesWorthLast,
        Mutant::ForgetsTheReservation,
    ] {
        assert!(is_seen::<Here>(mutant), "{mutant:?}");
        assert!(is_seen::<Stored>(mutant), "{mutant:?}");
        assert!(is_seen::<InTwo>(mutant), "{mutant:?}");
    }
}

const STEPS: usize = 16;
