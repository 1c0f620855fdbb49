//! Measured work: how much waits, that it counts once, and what room there is.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use admittance::load::{Class, Root};

use super::*;

/// A shedder that knows that its work takes ten milliseconds, and so that five may wait for fifty.
pub(super) fn with_room() -> (Shedder, ManualClock, Driver<Held>) {
    let clock = start();
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &Held { is_quick: true, ..Held::default() });
    for _ in 0..10 {
        let root = shedder.admit(Class::Default, "a").unwrap();
        root.run(|| clock.advance(Span::from_ms(10)));
    }
    pass(&mut driver, &clock, interval());
    assert_eq!(shedder.status().room, Some(5));
    (shedder, clock, driver)
}

#[test]
fn room_bounds_what_waits_critical_work_excepted() {
    let (shedder, clock, mut driver) = with_room();
    let mut waiting: Vec<Root> =
        (0..5).map(|_| shedder.admit(Class::Default, "a").unwrap()).collect();
    let before = shedder.status();
    let told = shedder.admit(Class::Default, "a").unwrap_err();
    assert_eq!(told.retry, interval());
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected, since.waiting), (0, 1, 5), "counted as refused");
    assert!(!shedder.reject_key("a"), "what is not admitted here does not wait here");
    waiting.push(shedder.admit(Class::Critical, "a").unwrap());
    assert_eq!(shedder.status().waiting, 6);
    // Default work lacked room: what matters less does not take it from now on.
    assert!(!shedder.reject_as(Class::Background), "not yet");
    pass(&mut driver, &clock, interval());
    assert!(shedder.reject_as(Class::Background) && shedder.reject_as(Class::Sheddable));
    assert!(!shedder.reject_as(Class::Default) && !shedder.reject_as(Class::Critical));
    waiting.clear();
    assert_eq!(shedder.status().waiting, 0);
    pass(&mut driver, &clock, interval());
    assert!(!shedder.reject_as(Class::Background), "there was room again");
}

/// Work in one state and another, so that a count that forgets some goes through the same lines.
trait Counted: Sized {
    fn new(shedder: &Shedder) -> Self;
    fn run(self, work: impl FnOnce());
    fn measure<F: Future<Output = ()>>(self, future: F) -> impl Future<Output = ()>;
}

impl Counted for Root {
    fn new(shedder: &Shedder) -> Self {
        shedder.admit_any(Class::Default).unwrap()
    }

    fn run(self, work: impl FnOnce()) {
        Self::run(self, work);
    }

    fn measure<F: Future<Output = ()>>(self, future: F) -> impl Future<Output = ()> {
        Self::measure(self, future)
    }
}

/// Counts down when it is done and not when it is dropped.
struct Forgets(Root);

impl Counted for Forgets {
    fn new(shedder: &Shedder) -> Self {
        Self(Root::new(shedder))
    }

    fn run(self, work: impl FnOnce()) {
        work();
        self.0.run(|| {});
    }

    fn measure<F: Future<Output = ()>>(self, future: F) -> impl Future<Output = ()> {
        let kept = std::mem::ManuallyDrop::new(self.0);
        async move {
            future.await;
            drop(std::mem::ManuallyDrop::into_inner(kept));
        }
    }
}

/// Pends once, then is done; or panics.
struct Once {
    panics: bool,
    polled: u32,
    clock: ManualClock,
}

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.clock.advance(Span::from_ms(3));
        assert!(!self.panics, "the work failed");
        self.polled += 1;
        if self.polled == 1 { Poll::Pending } else { Poll::Ready(()) }
    }
}

/// The ways of work to an end; whether after each of them nothing waits.
fn ends_whatever_becomes_of_it<C: Counted>(shedder: &Shedder, clock: &ManualClock) -> bool {
    let once = |panics| Once { panics, polled: 0, clock: clock.clone() };
    let mut context = Context::from_waker(Waker::noop());
    let waiting = || shedder.status().waiting;
    drop(C::new(shedder));
    C::new(shedder).run(|| {});
    let failed = catch_unwind(AssertUnwindSafe(|| C::new(shedder).run(|| panic!("it failed"))));
    let mut ends = failed.is_err() && waiting() == 0;
    // Before it is polled, midway, done, and after that polled no more.
    drop(C::new(shedder).measure(once(false)));
    ends &= waiting() == 0;
    let mut midway = Box::pin(C::new(shedder).measure(once(false)));
    assert!(midway.as_mut().poll(&mut context).is_pending());
    ends &= waiting() == 0;
    drop(midway);
    let mut done = Box::pin(C::new(shedder).measure(once(false)));
    assert!(done.as_mut().poll(&mut context).is_pending());
    assert!(done.as_mut().poll(&mut context).is_ready());
    drop(done);
    let mut panics = Box::pin(C::new(shedder).measure(once(true)));
    assert!(catch_unwind(AssertUnwindSafe(|| panics.as_mut().poll(&mut context))).is_err());
    drop(panics);
    ends && waiting() == 0
}

#[test]
fn work_stops_waiting_once_whatever_becomes_of_it() {
    let clock = start();
    let shedder = shedder(&clock);
    assert!(ends_whatever_becomes_of_it::<Root>(&shedder, &clock));
    assert_eq!((shedder.status().allowed, shedder.status().waiting), (7, 0));
    let shedder = super::shedder(&clock);
    assert!(!ends_whatever_becomes_of_it::<Forgets>(&shedder, &clock));
}

#[test]
fn the_time_on_a_worker_counts_also_if_the_work_panics_or_is_dropped_midway() {
    // Each way keeps a worker for three milliseconds: in fifty there is room for sixteen.
    type Way = fn(&Shedder, &ManualClock);
    let panics: Way = |shedder, clock| {
        let once = Once { panics: true, polled: 0, clock: clock.clone() };
        let mut work = Box::pin(shedder.admit_any(Class::Default).unwrap().measure(once));
        let mut context = Context::from_waker(Waker::noop());
        assert!(catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context))).is_err());
    };
    let midway: Way = |shedder, clock| {
        let once = Once { panics: false, polled: 0, clock: clock.clone() };
        let mut work = pin!(shedder.admit_any(Class::Default).unwrap().measure(once));
        assert!(work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    };
    let closure: Way = |shedder, clock| {
        let root = shedder.admit_any(Class::Default).unwrap();
        root.run(|| clock.advance(Span::from_ms(3)));
    };
    for way in [panics, midway, closure] {
        let clock = start();
        let shedder = shedder(&clock);
        let mut driver = drive(&shedder, &clock, &Held { is_quick: true, ..Held::default() });
        for _ in 0..10 {
            way(&shedder, &clock);
        }
        pass(&mut driver, &clock, interval());
        assert_eq!(shedder.status().room, Some(16));
        drop(driver);
        assert_eq!(shedder.status().room, None, "nothing is bounded where nothing is measured");
    }
}

#[test]
fn work_that_waits_too_long_lowers_the_level_though_no_probe_does() {
    let clock = start();
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &Held { is_quick: true, ..Held::default() });
    let mut longest = Span::ZERO;
    for _ in 0..100 {
        driver.step();
        longest = longest.max(shedder.status().average);
        let waiting: Vec<_> =
            (0..10).filter_map(|_| shedder.admit_any(Class::Default).ok()).collect();
        clock.advance(Span::from_ms(20));
        waiting.into_iter().for_each(|root| root.run(|| {}));
    }
    assert!(shedder.percent() < 50, "{:?}", shedder.status());
    assert!(longest >= Span::from_ms(10), "{longest:?}");
    pass(&mut driver, &clock, Span::from_secs(15));
    assert_eq!(shedder.percent(), 100);
}
