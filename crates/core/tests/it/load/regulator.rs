//! What a regulator says besides the level: room, who is kept while there is none, and which
//! rules it refuses.

use admittance_core::load::{
    Class, Cutoff, DelayRules, Delays, JitterRules, Law, Level, Place, Regulator, Seen, Tasks,
    Traffic,
};
use admittance_core::{Micros, Span};

use crate::timeline::{generator, long, spread};

fn regulator() -> Regulator {
    Regulator::new(Law::default(), 1).unwrap()
}

fn seen(ended: u64, busy: Span, workers: u64) -> Seen {
    Seen { ended, busy, load: Tasks { tasks: 0, workers }, ..Seen::default() }
}

#[test]
fn there_is_room_for_what_is_done_within_the_longest_wait_and_for_one_each_at_least() {
    let mut law = regulator();
    let room =
        |law: &mut Regulator, seen: &Seen| law.adjust(Micros::ZERO, seen, &Traffic::NONE).room;
    let unknown = seen(0, Span::ZERO, 4);
    assert_eq!(room(&mut law, &unknown), u64::MAX, "nothing is known of the work");
    // A hundred that took a millisecond each: fifty in 50 ms, on each of four workers.
    let steady = seen(100, Span::from_ms(100), 4);
    assert_eq!(room(&mut law, &steady), 200);
    assert_eq!(room(&mut law, &unknown), 200, "it is remembered");
    // Five times slower for once: alone that would leave room for forty.
    let after = room(&mut law, &seen(100, Span::from_ms(500), 4));
    assert!((60..180).contains(&after), "one interval moves it a little: {after}");
    // Work that grows slower by far: a few each while there is time for it, then one each.
    for _ in 0..100 {
        room(&mut law, &seen(1, Span::from_secs(10), 4));
    }
    let pressed = |workers| {
        let offered = Seen { offered: u64::MAX, elapsed: Span::from_ms(100), ..Seen::default() };
        Seen { load: Tasks { tasks: 0, workers }, ..offered }
    };
    assert_eq!(room(&mut law, &unknown), 4 * 8);
    assert_eq!(room(&mut law, &pressed(4)), 4);
    assert_eq!(room(&mut law, &pressed(0)), 1, "no workers are one");
    for _ in 0..200 {
        room(&mut law, &seen(u64::MAX, Span::ZERO, u64::MAX));
    }
    assert_eq!(room(&mut law, &seen(0, Span::ZERO, u64::MAX)), u64::MAX, "no overflow");
    let mut jitter = Regulator::new(Law::Jitter(JitterRules::default()), 1).unwrap();
    assert_eq!(room(&mut jitter, &steady), u64::MAX, "this law knows no room");
}

#[test]
fn a_few_may_wait_until_more_is_asked_for_than_can_be_done() {
    // A millisecond each, which is twenty times the longest wait; four workers.
    let rules = DelayRules { wait_max: Span::from_us(50), ..DelayRules::default() };
    let mut law = Regulator::new(Law::Delay(rules), 1).unwrap();
    let mut asked = |percent: u64| {
        let (elapsed, offered) = (Span::from_ms(100), 4 * percent);
        let known = seen(100, Span::from_ms(100), 4);
        let found = law.adjust(Micros::ZERO, &Seen { elapsed, offered, ..known }, &Traffic::NONE);
        (found.room, found.ahead)
    };
    let (few, one) = ((32, Span::from_ms(32)), (4, Span::from_us(200)));
    for percent in [10, 50, 90, 90, 110, 90] {
        assert_eq!(asked(percent), few, "{percent} %");
    }
    assert_eq!(asked(300), one, "a burst is met at once");
    // On average more than can be done, then less again.
    assert_eq!(asked(90), one);
    (0..9).for_each(|_| _ = asked(90));
    assert_eq!(asked(90), few);
    (0..30).for_each(|_| _ = asked(110));
    assert_eq!(asked(110), one, "a little too much for long");
}

#[test]
fn one_that_lacked_room_is_no_crowd() {
    let mut traffic = Traffic::NONE;
    (0..320).for_each(|_| traffic.count(Class::Default, Place(0)));
    assert_eq!(traffic.crowded([0; 4]), None);
    assert_eq!(traffic.crowded([0, 10, 0, 0]), None, "a thirty-second");
    assert_eq!(traffic.crowded([0, 11, 0, 0]), Some(Class::Default));
    assert_eq!(traffic.crowded([0, 10, 1, 0]), Some(Class::Sheddable));
    assert_eq!(traffic.crowded([0, u64::MAX, 0, 0]), Some(Class::Default));
}

#[test]
fn while_a_class_lacks_room_the_classes_after_it_are_refused() {
    let (first, last) = (Place(0), Place(u32::MAX));
    for crowded in Class::ALL {
        let seen = Seen { crowded: Some(crowded), ..Seen::default() };
        let found = regulator().adjust(Micros::ZERO, &seen, &Traffic::NONE);
        assert_eq!(found.level, Level::FULL, "room is not a matter of the level");
        assert_eq!(found.cutoff, Cutoff::through(crowded));
        for class in Class::ALL {
            let kept = class <= crowded;
            assert_eq!(found.cutoff.admits(class, first), kept);
            assert_eq!(found.cutoff.admits(class, last), kept);
        }
    }
    // And never more than the level admits.
    let mut law = regulator();
    let mut delays = Delays::default();
    delays.add(Delays::bucket(Span::from_ms(20)), 100);
    law.worked(0, &delays);
    let seen = Seen { crowded: Some(Class::Background), ..Seen::default() };
    let found = law.adjust(Micros::ZERO, &seen, &Traffic::NONE);
    assert_eq!(found.cutoff, Cutoff::new(Level::from_percent(50), &Traffic::NONE));
    let seen = Seen { crowded: Some(Class::Critical), ..Seen::default() };
    let found = law.adjust(Micros::ZERO, &seen, &Traffic::NONE);
    assert_eq!(found.cutoff, Cutoff::through(Class::Critical));
}

/// Any traffic, up to the largest counts: who is admitted is who the level admits of traffic that
/// fades by half in each interval.
#[test]
fn the_cut_off_is_that_of_the_level_over_recent_traffic() {
    let mut rng = generator(131);
    for _ in 0..long(100) {
        let mut law = regulator();
        let mut recent = Traffic::NONE;
        for step in 1..20u64 {
            let mut since = Traffic::NONE;
            for cell in since.0.iter_mut().flatten() {
                *cell = match rng.u8(..8) {
                    0 => u64::MAX,
                    1..4 => 0,
                    _ => spread(&mut rng, u64::MAX),
                };
            }
            recent.fade(&since);
            let mut delays = Delays::default();
            delays.add(Delays::bucket(Span::from_us(spread(&mut rng, 50_000))), 20);
            law.worked(0, &delays);
            let crowded = rng.bool().then(|| Class::ALL[rng.usize(..4)]);
            let seen = Seen { crowded, offered: u64::MAX, ..Seen::default() };
            let now = Micros::from_epoch_ms(step * 250).unwrap();
            let found = law.adjust(now, &seen, &since);
            let open = crowded.map_or(Cutoff::OPEN, Cutoff::through);
            assert_eq!(found.cutoff, Cutoff::new(found.level, &recent).min(open));
        }
    }
}

#[test]
fn mean_and_spread_are_those_of_what_was_judged() {
    let mut law = regulator();
    for us in [10, 20, 30, 10, 20, 30, 10, 20, 30] {
        law.probed(0, Span::from_us(us));
    }
    let found = law.adjust(Micros::ZERO, &Seen::default(), &Traffic::NONE);
    assert_eq!((found.mean.us(), found.spread.us()), (20, 8));
    let mut law = Regulator::new(Law::Jitter(JitterRules::default()), 1).unwrap();
    [100, 200, 300].iter().for_each(|us| law.probed(0, Span::from_us(*us)));
    let found = law.adjust(Micros::ZERO, &Seen::default(), &Traffic::NONE);
    assert_eq!((found.mean.us(), found.spread.us(), found.probes), (200, 100, 10));
}

#[test]
fn rules_that_make_no_sense_are_refused_with_what_would_do() {
    let fair = DelayRules::default();
    let jitter = JitterRules::default();
    let (hour, more) = (Span::from_secs(3_600), Span::from_us(3_600_000_001));
    for span in [Span::ZERO, more] {
        for rules in [
            DelayRules { target: span, ..fair },
            DelayRules { interval: span, ..fair },
            DelayRules { rise_every: span, ..fair },
            DelayRules { wait_max: span, ..fair },
        ] {
            assert!(Regulator::new(Law::Delay(rules), 1).is_err(), "{rules:?}");
        }
    }
    let widest = DelayRules { target: hour, interval: hour, rise_every: hour, ..fair };
    assert!(Regulator::new(Law::Delay(widest), 1).is_ok());
    for rules in [
        JitterRules { probe_every: Span::ZERO, ..jitter },
        JitterRules { interval: Span::from_ms(99), ..jitter },
        JitterRules { window: 1, ..jitter },
        JitterRules { window: 1_025, ..jitter },
        JitterRules { lower: Span::from_ms(101), ..jitter },
    ] {
        assert!(Regulator::new(Law::Jitter(rules), 1).is_err(), "{rules:?}");
    }
    for (paths, fits) in [(0, false), (1, true), (8, true), (9, false)] {
        let refused = Regulator::new(Law::default(), paths).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(refused.is_ok(), fits, "{refused:?}");
        assert!(fits || refused.unwrap_err().contains("between 1 and 8"));
    }
}
