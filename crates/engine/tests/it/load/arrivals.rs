//! Work that was here before it was asked for: it is late by what was done in between, not by time.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use admittance::load::{Class, LoadLayer, Sorted};
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::work::with_room;
use super::*;

/// A service that answers.
#[derive(Clone, Copy)]
struct Answers;

impl Service<Request<()>> for Answers {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

/// Whether a layer lets a request through that is sorted like this.
fn passes(shedder: &Shedder, sorted: Sorted) -> bool {
    let sort = move |_: &Request<()>, _: &Shedder| sorted;
    let mut service = LoadLayer::new(shedder.clone()).sort_with(sort).layer(Answers);
    let answer = pin!(service.call(Request::new(())));
    let Poll::Ready(Ok(answer)) = answer.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("a layer does not wait");
    };
    answer.status().is_success()
}

fn work(shedder: &Shedder, clock: &ManualClock, ms: u64) {
    let root = shedder.admit_any(Class::Default).unwrap();
    root.run(|| clock.advance(Span::from_ms(ms)));
}

#[test]
fn what_more_was_done_before_than_may_wait_is_late_critical_work_excepted() {
    let (shedder, clock, _driver) = with_room();
    let any = Sorted::any(Class::Default).since(shedder.arrival());
    let critical = Sorted::any(Class::Critical).since(shedder.arrival());
    work(&shedder, &clock, 49);
    assert!(passes(&shedder, any), "49 of 50 ms");
    work(&shedder, &clock, 1);
    let before = shedder.status();
    assert!(!passes(&shedder, any) && passes(&shedder, critical));
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (1, 1), "each counts once");
    assert!(passes(&shedder, Sorted::any(Class::Default).since(shedder.arrival())));
}

#[test]
fn time_alone_makes_nothing_late() {
    let (shedder, clock, _driver) = with_room();
    let any = Sorted::any(Class::Default).since(shedder.arrival());
    clock.advance(Span::from_secs(600));
    assert!(passes(&shedder, any), "the process was not run, and is behind with nothing");
}

#[test]
fn what_is_judged_later_counts_there_or_where_it_is_late() {
    let (shedder, clock, _driver) = with_room();
    let later = Sorted::later(Class::Default).since(shedder.arrival());
    let before = shedder.status();
    assert!(passes(&shedder, later));
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (0, 0), "the service has not judged it yet");
    assert!(!shedder.reject_key_as(Class::Default, "a"));
    assert!(!shedder.would_reject(Class::Default, "b"), "and this counts nothing");
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (1, 0));
    work(&shedder, &clock, 50);
    let before = shedder.status();
    assert!(!passes(&shedder, later));
    let since = shedder.status().since(&before);
    assert_eq!((since.allowed, since.rejected), (0, 1), "nobody else will count it");
}
