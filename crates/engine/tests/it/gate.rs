//! What a gate promises to one caller, and to many at once.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use admittance::gate::{Event, Gate, LimitRules, PERMITS_MAX, Partition, Permit, Refused};
use admittance::{Clock, ManualClock, Micros, Span};

fn at(us: u64) -> Micros {
    Micros::from_epoch_us(us).unwrap()
}

fn manual(limit: u32) -> (Gate<ManualClock>, ManualClock) {
    let clock = ManualClock::at(Micros::ZERO);
    (Gate::builder(LimitRules::fixed(limit)).clock(clock.clone()).build().unwrap(), clock)
}

#[test]
fn a_refusal_says_how_long_the_last_work_took_and_at_least_a_millisecond() {
    let (gate, clock) = manual(1);
    let permit = gate.acquire().unwrap();
    let refused = gate.acquire().unwrap_err();
    let hint = Refused { retry: Span::from_ms(1), limit: 1, in_flight: 1, is_fenced: false };
    assert_eq!(refused, hint, "nothing is known yet");
    clock.advance(Span::from_us(5_001));
    permit.finish();
    let permit = gate.acquire().unwrap();
    assert_eq!(gate.acquire().unwrap_err().retry, Span::from_us(5_001));
    clock.advance(Span::from_us(3));
    permit.finish();
    let _permit = gate.acquire().unwrap();
    assert_eq!(gate.acquire().unwrap_err().retry, Span::from_ms(1), "3 µs are no hint");
    assert_eq!(gate.stats().refused, 3);
    let told = "1 are in flight of 1 that may be; try again after 1 ms";
    assert_eq!(gate.acquire_scoped().unwrap_err().to_string(), told);
}

#[test]
fn every_way_to_end_a_permit_frees_its_place_and_is_counted() {
    let (gate, _) = manual(1);
    gate.acquire().unwrap().finish();
    gate.acquire().unwrap().ignore();
    gate.acquire().unwrap().overload();
    drop(gate.acquire().unwrap());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _permit = gate.acquire().unwrap();
        resume_unwind(Box::new("the work failed"));
    }));
    assert!(panicked.is_err());
    gate.acquire_scoped().unwrap().finish();
    drop(gate.acquire_scoped().unwrap());
    let stats = gate.stats();
    assert_eq!((stats.acquired, stats.in_flight, stats.refused), (7, 0, 0));
    assert_eq!((stats.finished, stats.ignored, stats.overloaded), (2, 3, 2));
    assert_eq!(stats.lost, 0);
}

#[test]
fn a_stream_is_measured_by_its_first_byte_and_holds_its_place_to_the_end() {
    let (gate, clock) = manual(2);
    let mut stream = gate.acquire().unwrap();
    clock.advance(Span::from_ms(3));
    stream.first_byte();
    let known = gate.limit_stats().unwrap();
    assert_eq!((known.samples, known.last_rtt_ns), (1, Some(3_000_000)), "it counts at once");
    clock.advance(Span::from_secs(60));
    stream.first_byte();
    assert_eq!(gate.stats().in_flight, 1, "it goes on");
    stream.finish();
    let (stats, known) = (gate.stats(), gate.limit_stats().unwrap());
    assert_eq!((stats.in_flight, stats.finished, stats.acquired), (0, 1, 1));
    assert_eq!((known.samples, known.last_rtt_ns), (1, Some(3_000_000)), "no minute is counted");
    assert_eq!(stats.last_rtt, Some(Span::from_ms(3)));
    let mut stream = gate.acquire().unwrap();
    stream.first_byte();
    stream.overload();
    assert_eq!(gate.limit_stats().unwrap().samples, 3, "that it broke off is told too");
    assert_eq!(gate.stats().overloaded, 1);
}

#[test]
fn a_fenced_gate_admits_nothing_from_the_instant_of_the_fence() {
    let lease = ManualClock::default();
    let shown = lease.clone();
    let builder = Gate::builder(LimitRules::fixed(4)).lease_clock(move || shown.now());
    let gate = builder.build().unwrap();
    gate.set_share(3);
    gate.fence_at(at(100));
    lease.set(at(99));
    let before = gate.acquire().unwrap();
    lease.set(at(100));
    let refused = gate.acquire().unwrap_err();
    assert!(refused.is_fenced);
    assert_eq!((refused.in_flight, refused.limit), (1, 3));
    assert!(refused.to_string().starts_with("this node's share"), "{refused}");
    before.finish();
    assert!(gate.acquire_as(0).unwrap_err().is_fenced, "also after a place was freed");
    gate.fence_at(at(101));
    assert!(gate.acquire().is_ok());
    lease.set(at(5_000));
    assert!(gate.acquire().is_err());
    gate.unfence();
    assert!(gate.acquire().is_ok());
}

#[test]
fn a_gate_without_a_fence_does_not_read_the_lease_clock() {
    let builder = Gate::builder(LimitRules::fixed(1)).lease_clock(|| panic!("it was read"));
    let gate = builder.build().unwrap();
    let _permit = gate.acquire().unwrap();
    assert!(gate.acquire().is_err());
}

#[test]
fn the_lower_of_limit_and_share_holds_and_both_are_in_one_reading() {
    let (gate, _) = manual(3);
    assert_eq!(gate.snapshot().share(), PERMITS_MAX);
    let permits: Vec<Permit<ManualClock>> = (0..3).map(|_| gate.acquire().unwrap()).collect();
    gate.set_share(2);
    let word = gate.snapshot();
    assert_eq!((word.in_flight(), word.limit(), word.share(), word.ceiling()), (3, 3, 2, 2));
    drop(permits);
    let _two = [gate.acquire().unwrap(), gate.acquire().unwrap()];
    assert_eq!(gate.acquire().unwrap_err().limit, 2);
}

#[test]
fn a_limit_is_learned_followed_and_published() {
    let clock = ManualClock::default();
    let rules = LimitRules::seed_defaults();
    let gate = Gate::builder(rules).clock(clock.clone()).build().unwrap();
    assert!(!gate.take_sampled());
    for _ in 0..50 {
        let limit = gate.stats().limit;
        let permits: Vec<_> = (0..limit).map(|_| gate.acquire().unwrap()).collect();
        clock.advance(Span::from_ms(1));
        permits.into_iter().for_each(Permit::finish);
    }
    assert!(gate.stats().limit > 100, "nothing was ever slow: {:?}", gate.stats());
    assert!(gate.take_sampled());
    drop(gate.acquire().unwrap());
    assert!(!gate.take_sampled(), "what is ignored is no sample");
    gate.follow(17, Span::ZERO, false);
    assert_eq!(gate.stats().limit, 17);
    gate.follow(1, Span::ZERO, false);
    assert_eq!(gate.stats().limit, 4, "within the rules");
    assert!(!gate.take_sampled());
}

#[test]
fn a_refusal_and_a_drained_share_are_told() {
    let (gate, _) = manual(5);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    assert!(gate.on_event(move |event| tell.lock().unwrap().push(event)));
    assert!(!gate.on_event(|_| ()), "only once");
    let mut permits: Vec<_> = (0..4).map(|_| gate.acquire().unwrap()).collect();
    gate.set_share(2);
    let told = || std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told(), []);
    drop(permits.pop());
    assert_eq!(told(), [], "still above it");
    assert!(gate.acquire().is_err());
    assert_eq!(told(), [Event::Refused]);
    drop(permits.pop());
    assert_eq!(told(), [Event::Drained]);
    drop(permits.pop());
    assert_eq!(told(), [], "what is below it is this node's own");
    drop(permits.pop());
    assert_eq!(told(), []);
}

#[test]
fn a_class_keeps_its_guaranteed_places_whatever_the_others_take() {
    let partition = Partition::new(&[50, 20]).unwrap();
    let builder = Gate::builder(LimitRules::fixed(10)).partition(partition);
    let gate = builder.build().unwrap();
    let greedy: Vec<_> = std::iter::from_fn(|| gate.acquire_as(1).ok()).collect();
    assert_eq!(greedy.len(), 5, "its own two and the three of all");
    assert!(gate.acquire().is_err(), "nothing is left for those without a class");
    assert!(gate.acquire_as(99).is_err());
    let first: Vec<_> = std::iter::from_fn(|| gate.acquire_as(0).ok()).collect();
    assert_eq!(first.len(), 5, "what it is guaranteed");
    assert_eq!((gate.stats().in_flight, gate.stats().limit), (10, 10));
    // The share falls to four: two for class 0, one for class 1, one for all.
    gate.set_share(4);
    drop(greedy);
    let word = gate.snapshot();
    assert_eq!((word.share(), word.limit()), (4, 10));
    assert_eq!(word.in_flight(), 5 + 1 + 1, "the others may still fill their parts");
    assert_eq!(gate.stats().in_flight, 5, "and have not");
    let others: Vec<_> = std::iter::from_fn(|| gate.acquire_as(1).ok()).collect();
    assert_eq!(others.len(), 2, "and they can");
    drop((first, others));
    assert_eq!(gate.snapshot().in_flight(), 0);
    assert_eq!(gate.stats().acquired, 12);
}

/// Something that gives places to racing threads.
trait Door: Sync {
    type Place;
    fn enter(&self, class: usize) -> Option<Self::Place>;
}

impl Door for Gate {
    type Place = Permit;

    fn enter(&self, class: usize) -> Option<Permit> {
        self.acquire_as(class).ok()
    }
}

/// Mutant: looks, and then counts. Its first four callers all look before any of them counts.
struct Hasty {
    held: Arc<AtomicU32>,
    limit: u32,
    looks: AtomicU32,
    all_have_looked: Barrier,
}

struct HastyPlace(Arc<AtomicU32>);

impl Hasty {
    fn new(limit: u32) -> Self {
        let (held, looks) = (Arc::default(), AtomicU32::new(0));
        Hasty { held, limit, looks, all_have_looked: Barrier::new(RACERS) }
    }
}

impl Door for Hasty {
    type Place = HastyPlace;

    fn enter(&self, _class: usize) -> Option<HastyPlace> {
        let full = self.held.load(Ordering::SeqCst) >= self.limit;
        if (self.looks.fetch_add(1, Ordering::SeqCst) as usize) < RACERS {
            self.all_have_looked.wait();
        }
        if full {
            return None;
        }
        self.held.fetch_add(1, Ordering::SeqCst);
        Some(HastyPlace(Arc::clone(&self.held)))
    }
}

impl Drop for HastyPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

const RACERS: usize = 4;

/// The most that four threads held at once. In the first pass nobody gives back before all have
/// asked, so that what is held then does not depend on how the threads are run.
fn most_held(door: &impl Door, passes: u32) -> u32 {
    let (held, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let all_have_asked = Barrier::new(RACERS);
    let race = |class: usize| {
        for pass in 0..passes {
            let place = door.enter(class);
            if place.is_some() {
                most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            }
            if pass == 0 {
                all_have_asked.wait();
            }
            if let Some(place) = place {
                std::thread::yield_now();
                held.fetch_sub(1, Ordering::SeqCst);
                drop(place);
            }
        }
    };
    let race = &race;
    std::thread::scope(|scope| (0..RACERS).for_each(|c| drop(scope.spawn(move || race(c)))));
    most.load(Ordering::SeqCst)
}

#[test]
fn racing_threads_never_hold_more_than_the_limit_with_classes_or_without() {
    let passes = if std::env::var_os("ADMITTANCE_LONG").is_some() { 500_000 } else { 50_000 };
    let gate = Gate::new(LimitRules::fixed(3)).unwrap();
    assert_eq!(most_held(&gate, passes), 3, "all are used, and no more");
    let partition = Partition::new(&[34, 34]).unwrap();
    let builder = Gate::builder(LimitRules::fixed(3)).partition(partition);
    assert_eq!(most_held(&builder.build().unwrap(), passes), 3);
    assert!(most_held(&Hasty::new(3), passes) > 3, "the mutant is seen");
}
