//! Threads that meet in the middle of a step of the tier in this process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use admittance::two_tier::{Batch, BootClock, LeaseClock, Leasing, TwoTier};
use admittance::{
    Cost, FailMode, GuardSettings, Guarded, Memory, Micros, PreciseClock, SharedLimiter, Source,
    Span, Window,
};

thread_local! {
    /// At which reading of the lease clock after one of the wall's this thread stops.
    static STOPS_AT: Cell<Option<u32>> = const { Cell::new(None) };
    static HAS_SEEN_WALL: Cell<bool> = const { Cell::new(false) };
}

/// The machine's clock, beside a wall clock that can be set. A thread that asks for it is held
/// inside a step: after the clocks were compared, with the key's lock in its hand.
#[derive(Clone)]
struct Gate {
    ahead_ms: Arc<AtomicU64>,
    meet: Arc<Barrier>,
}

impl LeaseClock for Gate {
    fn now(&self) -> Micros {
        if let (Some(readings), true) = (STOPS_AT.get(), HAS_SEEN_WALL.get()) {
            STOPS_AT.set(readings.checked_sub(1));
            if readings == 0 {
                self.meet.wait();
                self.meet.wait();
            }
        }
        BootClock.now()
    }

    fn wall(&self) -> Micros {
        HAS_SEEN_WALL.set(true);
        BootClock.now() + Span::from_ms(self.ahead_ms.load(Ordering::SeqCst))
    }
}

#[test]
fn clocks_that_come_apart_cost_the_credits_of_a_key_that_is_busy_too() {
    (0..3).for_each(busy_at);
}

fn busy_at(reading: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let gate = Gate { ahead_ms: Arc::default(), meet: Arc::new(Barrier::new(2)) };
    let tier = Arc::new(runtime.block_on(async { tier(2, gate.clone()) }));
    // Two units in the word, and another lease of five.
    while tier.stats().granted < 10 {
        let _ = runtime.block_on(tier.check(b"ann", Cost::ONE)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let busy = std::thread::spawn({
        let (tier, handle) = (Arc::clone(&tier), runtime.handle().clone());
        move || {
            STOPS_AT.set(Some(reading));
            handle.block_on(tier.check(b"ann", Cost::new(3).unwrap())).unwrap()
        }
    });
    gate.meet.wait();
    gate.ahead_ms.store(60_000, Ordering::SeqCst);
    let _ = runtime.block_on(tier.check(b"bob", Cost::ONE)).unwrap();
    assert_eq!(tier.stats().dropped, 1);
    gate.meet.wait();
    let is_new = busy.join().unwrap().source == Source::Store;
    let held = tier.spend(b"ann", Cost::ONE);
    assert!(is_new || held.is_none(), "{reading}: credits that were to be dropped");
}

#[test]
fn a_thread_that_is_held_up_between_two_clocks_costs_nobody_their_credits() {
    #[derive(Clone)]
    struct HeldUp(Arc<AtomicU64>);
    impl LeaseClock for HeldUp {
        fn now(&self) -> Micros {
            BootClock.now()
        }
        fn wall(&self) -> Micros {
            std::thread::sleep(Duration::from_millis(self.0.load(Ordering::SeqCst)));
            BootClock.now()
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ms = Arc::new(AtomicU64::new(0));
    let tier = runtime.block_on(async { tier(0, HeldUp(Arc::clone(&ms))) });
    let _ = runtime.block_on(tier.check(b"ann", Cost::ONE)).unwrap();
    ms.store(150, Ordering::SeqCst);
    let _ = runtime.block_on(tier.check(b"bob", Cost::ONE)).unwrap();
    assert_eq!(tier.stats().dropped, 0);
    assert!(tier.spend(b"ann", Cost::ONE).is_some());
}

fn tier<C: LeaseClock + 'static>(low_water: u64, clock: C) -> TwoTier<Memory<PreciseClock>, C> {
    let guard = Guarded::start(Memory::new(PreciseClock::new()), GuardSettings::default());
    let strategy = Window::fixed(1_000, Span::from_secs(3_600)).unwrap().into();
    let shared = SharedLimiter::new("api", strategy, Arc::new(guard), FailMode::Closed);
    let leasing = Leasing { batch: Batch::Fixed(5), low_water, ..Leasing::default() };
    TwoTier::leased_on(shared.unwrap(), leasing, clock).unwrap()
}
