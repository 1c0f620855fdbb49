//! Prices only take admits away, and a prior that refuses everything is left after one window.

use admittance::admission::{Admitter, Joint, Local, Request};
use admittance::budget::{Budget, Budgets as Purse};
use admittance::learn::price::{Budgets, Prices, RefinementRules};
use admittance::{Atomicity, Builtin, Cadence, Limiter, ManualClock, Span, Window};

use crate::admission::{
    Here, InTwo, KEYS, Kind, MINUTE, Mutant, Random, Rules, Stored, World, long, run, seeded, told,
};

/// Two worlds in the same state all the time: one with prices, one without. Who is refused by worth
/// in the one asks there once more without prices, and then hears what the other heard.
async fn pair<K: Kind>(random: &mut Random, mutant: Mutant) -> Result<[usize; 3], String> {
    let rules = Rules::random(random);
    let joint = World::<K>::new(rules.clone(), mutant);
    let marginal = World::<K>::new(rules, Mutant::Nothing);
    let (mut held, mut counts) = (Vec::new(), [0; 3]);
    for _ in 0..12 {
        let step = Span::from_ms(random.u64(..15_000));
        [&joint, &marginal].iter().for_each(|world| world.clock.advance(step));
        let key = KEYS[random.usize(..2)];
        let request = Request::new(key).cost(random.u64(..12)).value(random.f64());
        let one = joint.admit(Atomicity::All, request).await;
        let other = marginal.marginal.admit(request).await.unwrap();
        let wrong = |what: &str| {
            Err(format!("{what}: {:?}, without prices {:?}", one.verdicts, other.verdicts()))
        };
        if one.verdicts.is_admit() && !other.is_admit() {
            return wrong("admitted only because of its price");
        }
        counts[0] += usize::from(one.verdicts.is_admit());
        let is_refused = one.verdicts.is_policy_denied();
        counts[1] += usize::from(is_refused && other.is_admit());
        counts[2] += usize::from(!is_refused && !other.is_admit());
        let same = if is_refused {
            joint.marginal.admit(request).await.unwrap().admitted().ok()
        } else {
            one.work
        };
        if same.is_some() != other.is_admit() {
            return wrong("another state");
        }
        held.extend(same);
        held.extend(other.admitted().ok());
        if joint.state() != marginal.state() {
            return Err(format!("{:?}, and {:?}", joint.state(), marginal.state()));
        }
        if held.len() > 2 && random.bool() {
            held.clear();
            told().await;
        }
    }
    Ok(counts)
}

fn pairs<K: Kind>(mutant: Mutant, count: usize) -> Result<(), String> {
    let mut random = seeded(6);
    let mut sums = [0; 3];
    for nth in 0..count {
        let counts = run(pair::<K>(&mut random, mutant)).map_err(|why| format!("{nth}: {why}"))?;
        sums = std::array::from_fn(|place| sums[place] + counts[place]);
    }
    let [both, fewer, neither] = sums;
    println!("{both} by both, {fewer} only without prices, {neither} by neither");
    assert!(sums.iter().all(|&count| count > 100), "{sums:?}");
    Ok(())
}

#[test]
fn prices_only_take_admits_away_in_this_process() {
    pairs::<Here>(Mutant::Nothing, long(500)).unwrap();
}

#[test]
fn prices_only_take_admits_away_in_a_store() {
    pairs::<Stored>(Mutant::Nothing, long(500)).unwrap();
}

#[test]
fn prices_only_take_admits_away_in_two_places() {
    pairs::<InTwo>(Mutant::Nothing, long(500)).unwrap();
}

#[test]
fn worth_that_is_judged_once_all_is_charged_is_noticed() {
    assert!(pairs::<Here>(Mutant::JudgesWorthLast, 100).is_err());
    assert!(pairs::<Stored>(Mutant::JudgesWorthLast, 100).is_err());
}

/// How many of a minute's requests are admitted in each of some minutes.
fn admitted(joint: &Joint, minutes: usize) -> Vec<usize> {
    let clock = ManualClock::default();
    let requests = Limiter::builder(Builtin::from(Window::fixed(100, MINUTE).unwrap()));
    let requests = requests.clock(clock.clone()).build();
    let tokens = Purse::new("tokens", [Budget::new(500, Cadence::every(MINUTE)).unwrap()]);
    let axes = Local::on(clock.clone()).rate(requests).cost(&tokens.unwrap());
    let admitter = Admitter::new(axes).joint(joint.clone()).build().unwrap();
    let minute = |_| {
        let asks = (0..60).filter(|_| {
            clock.advance(Span::from_secs(1));
            let got = admitter.admit_sync(Request::new("ann").cost(10).value(2.0)).unwrap();
            let is_admit = got.is_admit();
            if let Ok(work) = got.admitted() {
                work.finish();
            }
            is_admit
        });
        asks.count()
    };
    (0..minutes).map(minute).collect()
}

#[test]
fn a_prior_that_refuses_everything_is_left_after_one_window() {
    let budgets = Budgets { rate: Some(100.0), cost: Some(500.0), ..Budgets::default() };
    let rules = RefinementRules::new(budgets, MINUTE, MINUTE).unwrap();
    let prior = Prices::given(1_000.0, 0.0, 0.0).unwrap();
    let refined = Joint::refined_here(prior, rules);
    let minutes = admitted(&refined, 4);
    println!("admitted in each minute: {minutes:?}");
    assert_eq!((minutes[0], refined.adopted()), (0, Some(true)));
    assert!(minutes[2] >= 49 && minutes[3] >= 49, "500 units are 50 of them: {minutes:?}");
    // The same prices that nobody refines refuse for ever.
    assert_eq!(admitted(&Joint::given(prior), 4), [0; 4]);
}
