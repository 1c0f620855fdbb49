//! Candidates of budgets, beside calls that charge several accounts at once: each account is
//! compared by its own key, and only where its parent had a say.

use std::sync::Arc;

use admittance::{Cost, GuardSettings, ManualClock, Memory, Span};
use admittance_server::{AnyStore, Asked, Fail, Service, ShadowConfig};

use crate::live;

const POLICIES: &str = "
limiters:
  team: { BUDGET: { budget: 20, windowMs: 1000 }, shadow: [team-b] }
  team-b: { BUDGET: { budget: 14, windowMs: 1500 } }
  user: { BUDGET: { budget: 12, windowMs: 700 }, shadow: [user-b] }
  user-b: { BUDGET: { budget: 16, windowMs: 900 } }
";
const KEYS: [&str; 3] = ["ann", "bob", "cid"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Here,
    Store,
}

fn service(at: Where, has_candidates: bool, clock: &ManualClock) -> Service {
    let kind = if at == Where::Here { "tokenBudget" } else { "fleetBudget" };
    let mut config = live::config(&POLICIES.replace("BUDGET", kind), Fail::Open);
    if !has_candidates {
        config.policies.iter_mut().for_each(|policy| policy.shadow = ShadowConfig::Off);
    }
    match at {
        Where::Here => Service::new(&config, Arc::new(clock.clone())),
        Where::Store => {
            let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
            let store = AnyStore::fused(Memory::new(clock.clone()));
            Service::on_store(&config, &store, &settings).unwrap()
        }
    }
}

/// By what an observer tells who denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The account itself.
    Key,
    /// A mutant: any account of the same policy.
    Policy,
    /// A mutant: any account of the call.
    Call,
}

/// Counts as an observer would who asks each candidate by itself, for each account whose parent
/// decided as the whole call was: both admit, both deny, newly denied, newly admitted.
async fn counts_are_those_of_an_observer(at: Where, compares: By) -> bool {
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut seen = [0; 4];
    for _ in 0..cases(10) {
        let clock = ManualClock::default();
        let (service, alone) = (service(at, true, &clock), service(at, false, &clock));
        let mut expected = [[0_u64; 4]; 2];
        for _ in 0..200 {
            clock.advance(Span::from_ms(rng.u64(..120)));
            let mut asked = Vec::new();
            for policy in ["team", "user"] {
                for key in KEYS {
                    if rng.u8(..3) == 0 {
                        asked.push(Asked { policy, key, units: rng.u64(1..6) });
                    }
                }
            }
            if asked.is_empty() {
                continue;
            }
            let _ = service.debit_lease(&asked, None).await.unwrap();
            service.shadows_told().await;
            let costs = alone.debit_lease(&asked, None).await.unwrap();
            for one in &asked {
                let is_own = |policy: &str, key: &str| match compares {
                    By::Key => policy == one.policy && key == one.key,
                    By::Policy => policy == one.policy,
                    By::Call => true,
                };
                let mut own = costs.lines.iter().filter(|line| is_own(&line.policy, &line.key));
                let parent = own.all(|line| line.answered.decision.is_admit());
                if parent != costs.decision.is_admit() {
                    continue;
                }
                let units = Cost::new(one.units).unwrap();
                let beside = format!("{}-b", one.policy);
                let candidate = alone.debit(&beside, one.key, units).await.unwrap();
                let kind = match (parent, candidate.decision.is_admit()) {
                    (true, true) => 0,
                    (false, false) => 1,
                    (true, false) => 2,
                    (false, true) => 3,
                };
                expected[usize::from(one.policy == "user")][kind] += 1;
            }
        }
        let found = ["team", "user"].map(|policy| {
            let counts = service.policy(policy).unwrap().shadowed().unwrap().candidates.remove(0);
            assert_eq!((counts.dropped, counts.failed), (0, 0), "{counts:?}");
            [counts.both_admit, counts.both_deny, counts.newly_denied, counts.newly_admitted]
        });
        if found != expected {
            return false;
        }
        found.iter().flatten().zip(0..).for_each(|(count, place)| seen[place % 4] += count);
    }
    assert!(seen.iter().all(|count| *count > 0), "the traffic shows something: {seen:?}");
    true
}

#[tokio::test]
async fn candidates_of_budgets_are_compared_by_key() {
    for at in [Where::Here, Where::Store] {
        assert!(counts_are_those_of_an_observer(at, By::Key).await, "{at:?}");
        for wrong in [By::Policy, By::Call] {
            assert!(!counts_are_those_of_an_observer(at, wrong).await, "{at:?} {wrong:?}");
        }
    }
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(8);
    println!("ADMITTANCE_SEED={seed}");
    seed
}

fn cases(few: usize) -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { few * 10 } else { few }
}
