//! The shipped machines of a fleet that shares one limit, over random walks: far longer runs, with
//! more of everything at once, than can all be visited.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use admittance_core::concurrency::Split;
use admittance_models::shares::fleet::{Fleet, Step};
use admittance_models::shares::setting::{Budget, Mutant, Setting, Start};
use admittance_models::shares::{Case, setting};

#[test]
fn no_random_walk_breaks_a_bound() {
    let seed = seed();
    println!("replay with ADMITTANCE_SEED={seed}");
    let mut dice = Dice::new(seed);
    let (mut full, mut steps) = (0, 0);
    let walks = if std::env::var_os("ADMITTANCE_LONG").is_some() { 50_000 } else { 5_000 };
    for walk in 0..walks {
        let (case, setting) = any_setting(&mut dice, Mutant::None);
        let walked = walk_along(&setting, &mut dice);
        full += walked.full;
        steps += walked.trace.len();
        assert!(walked.broken.is_none(), "seed {seed}, walk {walk}: {case:?} {walked:?}");
    }
    println!("{steps} steps, {full} of them with the limit in flight");
    assert!(full > steps / 20, "{full} of {steps}: walks in which too little happens");
}

#[test]
fn walks_find_what_is_broken() {
    for mutant in [
        Mutant::NoUnacked,
        Mutant::NoInFlight,
        Mutant::TornReport,
        Mutant::StaleTaken,
        Mutant::AnswersAsTheyCome,
        Mutant::NoHold,
        Mutant::NoFence,
        Mutant::LifeFromArrival,
        Mutant::EpochsMixed,
        Mutant::NotQuiet,
        Mutant::SameLife,
        Mutant::SameIncarnation,
        Mutant::LeaveForgets,
    ] {
        let mut dice = Dice::new(seed());
        let is_broken = (0..20_000).any(|_| {
            let (_, setting) = any_setting(&mut dice, mutant);
            walk_along(&setting, &mut dice).broken.is_some()
        });
        assert!(is_broken, "{mutant:?} passed");
    }
}

#[derive(Debug)]
struct Walked {
    trace: Vec<Step>,
    broken: Option<Box<Fleet>>,
    /// Steps after which the limit was in flight.
    full: usize,
}

fn walk_along(setting: &Setting, dice: &mut Dice) -> Walked {
    let mut fleet = Fleet::new(setting);
    let mut walked = Walked { trace: Vec::new(), broken: None, full: 0 };
    let (patience, is_prompt) = (3 + dice.below(30), dice.below(2) == 0);
    let mut steps = Vec::new();
    while walked.trace.len() < 400 {
        steps.clear();
        fleet.steps(setting, &mut steps);
        if steps.is_empty() {
            break;
        }
        let mut step = steps[dice.below(steps.len())];
        if step == Step::Wait && dice.below(patience) > 0 {
            step = steps[dice.below(steps.len())];
        }
        let deliver = steps.iter().find(|step| matches!(step, Step::Deliver(_)));
        if let Some(deliver) = deliver.filter(|_| is_prompt && dice.below(4) > 0) {
            step = *deliver;
        }
        let acquire = steps.iter().find(|step| matches!(step, Step::Acquire(_)));
        if let Some(acquire) = acquire.filter(|_| dice.below(3) == 0) {
            step = *acquire;
        }
        fleet.take(setting, step);
        walked.trace.push(step);
        let (in_flight, limit) = (fleet.in_flight(), fleet.limit());
        walked.full += usize::from(limit > 0 && in_flight == limit);
        if in_flight > limit || fleet.broken != Default::default() {
            walked.broken = Some(Box::new(fleet));
            break;
        }
        if fleet.network.len() > UNDER_WAY_MAX {
            // Lost.
            fleet.network.remove(dice.below(fleet.network.len()));
        }
    }
    walked
}

fn any_setting(dice: &mut Dice, mutant: Mutant) -> (Case, Setting) {
    let mut some = |most: u8| if dice.below(2) == 0 { 0 } else { most };
    let budget = Budget {
        beats: [40; 3],
        acquires: 60,
        releases: some(30),
        votes: some(4),
        copies: some(10),
        crashes: some(3),
        leaves: some(1),
        flushes: some(1),
        failovers: some(1),
        steps_back: some(3),
    };
    let votes: [&[u32]; 4] = [&[1, 2, 3, 5], &[1], &[4], &[2]];
    let starts = [Start::Empty, Start::Founded, Start::Flushed, Start::NewEpoch];
    let case = Case {
        nodes: 2 + dice.below(2),
        limit: [1, 2, 3, 4, 5][dice.below(5)],
        votes: votes[dice.below(4)],
        split: [Split::Equal, Split::Demand][dice.below(2)],
        handoff: true,
        hold: [1, 2, 5, 12][dice.below(4)],
        aborts: dice.below(8) == 0,
        start: starts[dice.below(4)],
        tenths: 100,
        budget,
    };
    let grid = [200, 500, 2_000][dice.below(3)];
    (case, Setting { grid, ..setting(&case, mutant) })
}

struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides
    }
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    seed.unwrap_or(1)
}

/// Messages under way beyond which some are lost.
const UNDER_WAY_MAX: usize = 12;
