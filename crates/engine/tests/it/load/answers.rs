//! What is answered: by key, by class, as a decision.

use std::collections::HashSet;

use admittance::load::{Class, JitterRules, Level};
use admittance::{Decision, Outcome, Retry};

use super::*;

#[test]
fn a_decision_is_neutral_or_says_that_nothing_remains_until_the_next_adjustment() {
    let (shedder, clock, _executor, _driver) = behind(100);
    clock.advance(Span::from_us(30_001));
    let now = Micros::from_epoch_ms(5).unwrap();
    let (mut admitted, mut denied) = (0, 0);
    for key in 0..10_000u64 {
        let decision = shedder.decide(Class::Default, key, now);
        if decision == Decision::NEUTRAL {
            admitted += 1;
            continue;
        }
        denied += 1;
        assert_eq!(decision.outcome, Outcome::Deny(Retry::After(Span::from_us(69_999))));
        assert_eq!((decision.remaining, decision.reset_at), (0, now));
        assert_eq!(decision, shedder.denial(now));
    }
    assert!(admitted > 0 && denied > 9_000, "{admitted} {denied}");
    let told = shedder.admit_any(Class::Background).unwrap_err();
    assert_eq!(told.retry, Span::from_us(69_999));
    let text = "this process is behind and sheds background work; ask again in 70 ms";
    assert_eq!(told.to_string(), text);
    clock.advance(Span::from_secs(60));
    let late = shedder.denial(now).outcome;
    assert_eq!(late, Outcome::Deny(Retry::After(Span::from_ms(1))), "overdue is due at once");
}

#[test]
fn a_key_has_one_answer_on_all_replicas_whose_clocks_agree_until_its_window_ends() {
    let clock = start();
    let executor = Held::default();
    let replicas = [shedder(&clock), shedder(&clock)];
    let mut drivers = replicas.each_ref().map(|shedder| drive(shedder, &clock, &executor));
    // One was started earlier than the other.
    drivers[0].step();
    for _ in 0..1_000 {
        clock.advance(Span::from_ms(10));
        replicas.iter().for_each(offer);
        drivers.iter_mut().for_each(|driver| _ = driver.step());
    }
    let admitted = |shedder: &Shedder| -> Vec<u64> {
        (0..50_000).filter(|key| !shedder.reject_key(key)).collect()
    };
    let before = admitted(&replicas[0]);
    assert!(!before.is_empty());
    assert_eq!(before, admitted(&replicas[1]));
    let words = |shedder: &Shedder| -> Vec<bool> {
        (0..5_000).map(|key| shedder.reject_key(format!("user-{key}").as_str())).collect()
    };
    assert_eq!(words(&replicas[0]), words(&replicas[1]));
    // A rotation later every key is drawn anew; the level stays at the floor.
    clock.advance(Span::from_secs(3_600));
    replicas.iter().for_each(offer);
    drivers.iter_mut().for_each(|driver| _ = driver.step());
    let after = admitted(&replicas[0]);
    assert_eq!(after, admitted(&replicas[1]));
    let kept = after.iter().filter(|key| before.contains(key)).count();
    assert!(!after.is_empty() && kept * 4 < after.len(), "{kept} of {} kept", after.len());
    let other = LoadRules { seed: Seed(8), ..rules() };
    let other = Shedder::with_clock(other, Arc::new(clock.clone())).unwrap();
    let mut driver = drive(&other, &clock, &executor);
    for _ in 0..100 {
        offer(&other);
        pass(&mut driver, &clock, interval());
    }
    assert_ne!(after, admitted(&other), "another seed is another order");
}

#[test]
fn a_number_is_one_key_whatever_its_width_and_text_whatever_holds_it() {
    let shedder = shedder(&start());
    let number = shedder.hashed(42u64);
    assert_eq!([shedder.hashed(42u8), shedder.hashed(42i32), shedder.hashed(42i64)], [number; 3]);
    assert_eq!(shedder.hashed(-1i32), shedder.hashed(-1i64));
    let text = shedder.hashed("user-42");
    assert_eq!(
        [shedder.hashed(String::from("user-42")), shedder.hashed(b"user-42".as_slice())],
        [text, text]
    );
}

/// Whoever is admitted is admitted at every higher level, and classes go in order.
#[test]
fn the_admitted_are_nested_as_the_level_falls_and_classes_are_shed_in_order() {
    let clock = start();
    let executor = Held::default();
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &executor);
    let mut before: HashSet<(Class, u64)> = HashSet::new();
    let mut levels = Vec::new();
    for round in 0..100 {
        let mut admitted = HashSet::new();
        for class in Class::ALL {
            admitted.extend(
                (0..500)
                    .map(|key| (class, key))
                    .filter(|(class, key)| !shedder.reject_key_as(*class, key)),
            );
        }
        if round > 0 {
            assert!(admitted.iter().all(|one| before.contains(one)), "nested");
        }
        for (index, class) in Class::ALL.into_iter().enumerate().skip(1) {
            let count = |class| admitted.iter().filter(|one| one.0 == class).count();
            let whole = count(Class::ALL[index - 1]) == 500;
            assert!(count(class) == 0 || whole, "{class:?} goes before the one it follows");
        }
        levels.push(shedder.percent());
        before = admitted;
        pass(&mut driver, &clock, interval());
    }
    assert!(levels.is_sorted_by(|a, b| a >= b) && levels[99] == 1, "{levels:?}");
}

/// A clock that shows a probe that it has waited.
struct Late {
    clock: ManualClock,
    by_ns: std::sync::atomic::AtomicU64,
}

impl admittance::gate::GateClock for Late {
    fn now_ns(&self) -> u64 {
        self.clock.now().epoch_us() * 1_000 + self.by_ns.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Every second probe is a second late.
struct Jittery(Arc<Late>, u64);

impl Executor for Jittery {
    fn schedule(&mut self, _: usize, probe: Probe) {
        use std::sync::atomic::Ordering::Relaxed;
        self.1 += 1;
        self.0.by_ns.store(1_000_000_000 * (self.1 % 2), Relaxed);
        probe.run();
        self.0.by_ns.store(0, Relaxed);
    }

    fn load(&mut self) -> Tasks {
        Tasks { tasks: 9, workers: 10 }
    }
}

#[test]
fn under_the_law_of_jitter_the_driver_goes_through_the_known_sequence() {
    let jitter = JitterRules {
        probe_every: Span::from_ms(10),
        window: 10,
        interval: Span::from_ms(100),
        ..JitterRules::default()
    };
    let clock = start();
    let late = Arc::new(Late { clock: clock.clone(), by_ns: 0.into() });
    let rules = LoadRules { law: Law::Jitter(jitter), ..rules() };
    let shedder = Shedder::with_clock(rules, late.clone()).unwrap();
    let mut driver = shedder.drive(Jittery(late, 0), Arc::new(clock.clone())).unwrap();
    let mut seen = Vec::new();
    for _ in 0..7 {
        offer(&shedder);
        pass(&mut driver, &clock, Span::from_ms(100));
        seen.push(shedder.percent());
    }
    assert_eq!(seen, [99, 97, 92, 84, 73, 59, 41]);
    let status = shedder.status();
    assert_eq!((status.probes_finished, status.adjustments, status.step), (70, 7, -7));
    let rejected = (0..100_000).filter(|_| shedder.reject()).count();
    assert!((56_000..62_000).contains(&rejected), "{rejected}");
    assert_eq!(Level::from_percent(41).percent(), 41);
}
