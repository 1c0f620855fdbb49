//! Measured work: how much waits, that it counts once, and what room there is.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use admittance::load::{Class, Root};

use super::*;

/// A shedder that knows that its work takes five milliseconds, and so that ten may wait for fifty.
pub(super) fn with_room() -> (Shedder, ManualClock, Driver<Held>) {
    let clock = start();
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &Held { is_quick: true, ..Held::default() });
    for _ in 0..20 {
        let root = shedder.admit(Class::Default, "a").unwrap();
        root.run(|| clock.advance(Span::from_ms(5)));
    }
    pass(&mut driver, &clock, interval());
    assert_eq!(shedder.status().room, Some(10));
    (shedder, clock, driver)
}

#[test]
fn room_bounds_what_waits_critical_work_excepted() {
    let (shedder, clock, mut driver) = with_room();
    let mut waiting: Vec<Root> =
        (0..10).map(|_| shedder.admit(Class::Default, "a").unwrap()).collect();
    let before = shedder.status();
    let told = shedder.admit(Class::Default, "a").unwrap_err();
    assert_eq!(told.retry, interval());
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected, since.waiting), (0, 1, 10), "counted as refused");
    assert!(!shedder.reject_key("a"), "what is not admitted here does not wait here");
    waiting.push(shedder.admit(Class::Critical, "a").unwrap());
    assert_eq!(shedder.status().waiting, 11);
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

#[test]
fn an_idle_wait_makes_nobody_late_and_the_end_of_long_work_neither() {
    let (shedder, clock, _driver) = with_room();
    let long = shedder.admit_any(Class::Default).unwrap();
    // Polled for three milliseconds now and then.
    let mut polled = Box::pin(long.measure(std::future::poll_fn(|_: &mut Context<'_>| {
        clock.advance(Span::from_ms(3));
        Poll::<()>::Pending
    })));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        let before = shedder.status().rejected;
        let arrival = shedder.arrival();
        assert!(polled.as_mut().poll(&mut context).is_pending());
        clock.advance(Span::from_secs(10));
        assert!(admits_since(&shedder, arrival), "a process that was not run is not behind");
        assert_eq!(shedder.status().rejected, before);
    }
    let arrival = shedder.arrival();
    drop(polled);
    assert!(admits_since(&shedder, arrival), "what ends now was not all done now");
}

#[cfg(feature = "tower")]
fn admits_since(shedder: &Shedder, arrival: admittance::load::Arrival) -> bool {
    layered(shedder, admittance::load::Sorted::any(Class::Default).since(arrival))
}

#[cfg(not(feature = "tower"))]
fn admits_since(_: &Shedder, _: admittance::load::Arrival) -> bool {
    true
}

/// Whether a layer in front of a service lets through what is sorted like this.
#[cfg(feature = "tower")]
fn layered(shedder: &Shedder, sorted: admittance::load::Sorted) -> bool {
    use axum::body::Body;
    use axum::http::{Request, Response};
    use tower_layer::Layer;
    use tower_service::Service;

    #[derive(Clone)]
    struct Done;

    impl Service<Request<Body>> for Done {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            std::future::ready(Ok(Response::new(Body::empty())))
        }
    }

    let sort = move |_: &Request<Body>, _: &Shedder| sorted;
    let mut service = admittance::load::LoadLayer::new(shedder.clone()).sort_with(sort).layer(Done);
    let mut answer = pin!(service.call(Request::new(Body::empty())));
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response.status().is_success(),
        Poll::Pending => panic!("it answers at once"),
    }
}

#[cfg(feature = "tower")]
#[test]
fn what_came_before_more_was_done_than_may_wait_is_refused_critical_work_excepted() {
    use admittance::load::Sorted;
    let (shedder, clock, _driver) = with_room();
    let arrival = shedder.arrival();
    let work = |ms| {
        let root = shedder.admit_any(Class::Critical).unwrap();
        root.run(|| clock.advance(Span::from_ms(ms)));
    };
    work(49);
    assert!(layered(&shedder, Sorted::any(Class::Default).since(arrival)));
    work(1);
    let before = shedder.status();
    assert!(!layered(&shedder, Sorted::any(Class::Default).since(arrival)));
    assert!(!layered(&shedder, Sorted::later(Class::Default).since(arrival)));
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (0, 2), "each is counted once");
    assert!(layered(&shedder, Sorted::any(Class::Critical).since(arrival)));
    assert!(layered(&shedder, Sorted::any(Class::Default).since(shedder.arrival())));
    let before = shedder.status();
    assert!(layered(&shedder, Sorted::later(Class::Default)));
    assert!(!shedder.would_reject(Class::Default, 1u64));
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (0, 0), "the service counts it, not the layer");
}
