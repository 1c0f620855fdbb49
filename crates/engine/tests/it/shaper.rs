//! The queue's order, spacing, bound and waits. Each check also gets queues with a defect, and
//! must find it. Time is a manual clock's or tokio's paused one; nothing here sleeps.

use std::pin::Pin;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use admittance::{
    Clock, Cost, ManualClock, Micros, Retry, Scheduled, Shaped, ShapedLimiter, Shaper, Span,
    TatState,
};
use fastrand::Rng;

type Checked = Result<(), String>;
type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Span, Retry>> + Send + 'a>>;

/// What the checks ask of a queue.
trait Queue: Send + Sync {
    fn try_schedule(&self, cost: Cost) -> Scheduled;
    fn schedule(&self, cost: Cost) -> Waiting<'_>;
}

impl<C: Clock> Queue for ShapedLimiter<C> {
    fn try_schedule(&self, cost: Cost) -> Scheduled {
        self.try_schedule(cost)
    }

    fn schedule(&self, cost: Cost) -> Waiting<'_> {
        Box::pin(self.schedule(cost))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Everybody starts at once.
    NeverDelays,
    /// A full queue takes more.
    NeverRefuses,
    /// A refusal names an instant that is a tick too early.
    RetriesEarly,
    /// A refused request takes a place.
    ChargesTheRefused,
    /// Reads the queue, and writes it back later.
    WritesAfterwards,
    /// Says how long to wait and does not wait.
    NeverSleeps,
    /// Gives the place back when the wait is cut short.
    Refunds,
}

struct Mistaken {
    mutant: Mutant,
    shaper: Shaper,
    clock: Box<dyn Clock>,
    state: Mutex<Option<TatState>>,
}

impl Queue for Mistaken {
    fn try_schedule(&self, cost: Cost) -> Scheduled {
        let now = self.clock.precise();
        let last = *self.state.lock().unwrap();
        if self.mutant == Mutant::WritesAfterwards {
            std::thread::yield_now();
        }
        let mut shaped = self.shaper.step(last, now, cost);
        if self.mutant == Mutant::NeverRefuses {
            let endless = Shaper::new(10, Span::from_secs(1), 1 << 30).unwrap();
            shaped = endless.step(last, now, cost);
        }
        match shaped {
            Shaped::Start { delay, state } => {
                *self.state.lock().unwrap() = Some(state);
                let is_never = self.mutant == Mutant::NeverDelays;
                Scheduled::Start { delay: if is_never { Span::ZERO } else { delay } }
            }
            Shaped::Refuse(Retry::After(wait)) if self.mutant == Mutant::RetriesEarly => {
                Scheduled::Refuse(Retry::After(Span::from_us(wait.us() - 1)))
            }
            Shaped::Refuse(retry) => {
                if let (Some(last), Mutant::ChargesTheRefused) = (last, self.mutant) {
                    let state = TatState { whole: last.whole + 100_000, ..last };
                    *self.state.lock().unwrap() = Some(state);
                }
                Scheduled::Refuse(retry)
            }
        }
    }

    fn schedule(&self, cost: Cost) -> Waiting<'_> {
        Box::pin(async move {
            let before = *self.state.lock().unwrap();
            let delay = match self.try_schedule(cost) {
                Scheduled::Start { delay } => delay,
                Scheduled::Refuse(retry) => return Err(retry),
            };
            if self.mutant == Mutant::NeverSleeps {
                return Ok(delay);
            }
            let mut refund = Refund { queue: self, before, is_due: true };
            tokio::time::sleep(delay.into()).await;
            refund.is_due = false;
            Ok(delay)
        })
    }
}

/// Puts the queue back to what it was, unless the wait came to its end.
struct Refund<'a> {
    queue: &'a Mistaken,
    before: Option<TatState>,
    is_due: bool,
}

impl Drop for Refund<'_> {
    fn drop(&mut self) {
        if self.is_due && self.queue.mutant == Mutant::Refunds {
            *self.queue.state.lock().unwrap() = self.before;
        }
    }
}

type Make<'a> = &'a dyn Fn(Shaper, Box<dyn Clock>) -> Arc<dyn Queue>;

/// A clock behind a pointer, for a queue of a clock that is not known.
struct Boxed(Box<dyn Clock>);

impl Clock for Boxed {
    fn now(&self) -> Micros {
        self.0.now()
    }
}

fn shipped(shaper: Shaper, clock: Box<dyn Clock>) -> Arc<dyn Queue> {
    Arc::new(ShapedLimiter::with_clock(shaper, Boxed(clock)))
}

/// The shipped queue passes the check, and every mutant fails it.
fn only_shipped_passes(check: fn(Make<'_>) -> Checked, mutants: &[Mutant]) {
    check(&shipped).unwrap();
    for &mutant in mutants {
        let mistaken = |shaper, clock| -> Arc<dyn Queue> {
            Arc::new(Mistaken { mutant, shaper, clock, state: Mutex::new(None) })
        };
        assert!(check(&mistaken).is_err(), "the check does not find that a queue {mutant:?}");
    }
}

fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if is_so { Ok(()) } else { Err(otherwise()) }
}

fn start() -> Micros {
    Micros::from_epoch_ms(1_700_000_000_000).unwrap()
}

/// Ten a second, of which `max_queue` may wait.
fn ten_a_second(max_queue: u64) -> Shaper {
    Shaper::new(10, Span::from_secs(1), max_queue).unwrap()
}

fn starts_are_in_order_and_apart(make: Make<'_>) -> Checked {
    let mut rng = Rng::with_seed(5);
    for max_queue in 0..12 {
        let clock = ManualClock::at(start());
        let queue = make(ten_a_second(max_queue), Box::new(clock.clone()));
        let mut free_at = start();
        for _ in 0..500 {
            clock.advance(Span::from_ms(rng.u64(0..=200) * rng.u64(0..=1)));
            let units = rng.u64(1..=3).min(max_queue + 1);
            let now = clock.now();
            let due = free_at.max(now);
            let end = due + Span::from_ms(100 * units);
            let has_place = end <= now + Span::from_ms(100 * (max_queue + 1));
            let Scheduled::Start { delay } = queue.try_schedule(Cost::new(units).unwrap()) else {
                ensure(!has_place, || format!("refused with a place free, due at {due:?}"))?;
                continue;
            };
            ensure(has_place, || format!("accepted without a place, due at {due:?}"))?;
            let is_right = now + delay == due && delay <= Span::from_ms(max_queue * 100);
            ensure(is_right, || format!("starts after {delay:?}, due at {due:?}, now {now:?}"))?;
            free_at = end;
        }
    }
    Ok(())
}

#[test]
fn work_starts_in_order_and_as_far_apart_as_the_rate_says() {
    let mutants = [Mutant::NeverDelays, Mutant::NeverRefuses, Mutant::ChargesTheRefused];
    only_shipped_passes(starts_are_in_order_and_apart, &mutants);
}

fn a_refusal_names_the_instant(make: Make<'_>) -> Checked {
    let clock = ManualClock::at(start());
    let queue = make(ten_a_second(2), Box::new(clock.clone()));
    let four = queue.try_schedule(Cost::new(4).unwrap());
    ensure(four == Scheduled::Refuse(Retry::Never), || format!("four of three: {four:?}"))?;
    for units in [3, 1, 2, 3, 2, 1] {
        let cost = Cost::new(units).unwrap();
        // Twice: a refusal takes nothing, so the second is told the same.
        let refusals = [(); 2].map(|()| {
            loop {
                if let Scheduled::Refuse(retry) = queue.try_schedule(cost) {
                    break retry;
                }
                if clock.now() > start() + Span::from_secs(60) {
                    break Retry::Never;
                }
                clock.advance(Span::TICK);
            }
        });
        let Retry::After(wait) = refusals[0] else { return Err("never refuses".into()) };
        ensure(refusals[0] == refusals[1], || format!("told {refusals:?}"))?;
        clock.advance(Span::from_us(wait.us() - 1));
        let early = queue.try_schedule(cost);
        let a_tick = Scheduled::Refuse(Retry::After(Span::TICK));
        ensure(early == a_tick, || format!("a tick early: {early:?}"))?;
        clock.advance(Span::TICK);
        let on_time = queue.try_schedule(cost);
        let is_taken = matches!(on_time, Scheduled::Start { .. });
        ensure(is_taken, || format!("after exactly {wait:?}: {on_time:?}"))?;
    }
    Ok(())
}

#[test]
fn a_full_queue_refuses_with_the_exact_instant_and_takes_nothing() {
    let mutants = [Mutant::RetriesEarly, Mutant::ChargesTheRefused];
    only_shipped_passes(a_refusal_names_the_instant, &mutants);
}

fn racers_get_a_place_each(make: Make<'_>) -> Checked {
    for round in 0..30 {
        let (threads, max_queue) = (2 + round % 7, 40);
        let clock = ManualClock::at(start());
        let queue = make(ten_a_second(max_queue), Box::new(clock));
        let barrier = Barrier::new(threads);
        let ask = || {
            barrier.wait();
            let asked = (0..60).map(|_| queue.try_schedule(Cost::ONE));
            let delays = asked.filter_map(|scheduled| match scheduled {
                Scheduled::Start { delay } => Some(delay),
                Scheduled::Refuse(_) => None,
            });
            delays.collect::<Vec<_>>()
        };
        let mut delays = std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
            started.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        delays.sort();
        let places: Vec<_> = (0..=max_queue).map(|place| Span::from_ms(place * 100)).collect();
        ensure(delays == places, || format!("places taken: {delays:?}"))?;
    }
    Ok(())
}

#[test]
fn racing_threads_get_a_place_each_and_exactly_as_many_as_there_are() {
    only_shipped_passes(racers_get_a_place_each, &[Mutant::WritesAfterwards]);
}

/// A clock that follows tokio's paused time.
struct PausedClock(tokio::time::Instant);

impl Clock for PausedClock {
    fn now(&self) -> Micros {
        start() + Span::from_us(u64::try_from(self.0.elapsed().as_micros()).unwrap())
    }
}

/// Runs a check on tokio's paused time.
fn paused<F: Future<Output = Checked>>(check: impl FnOnce(tokio::time::Instant) -> F) -> Checked {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { check(tokio::time::Instant::now()).await })
}

/// Whether something happened on time, as far as tokio's timer, which counts milliseconds, can.
fn is_at(happened: Duration, due_ms: u64) -> bool {
    (due_ms..=due_ms + 2).contains(&u64::try_from(happened.as_millis()).unwrap())
}

fn waits_are_in_order_and_apart(make: Make<'_>) -> Checked {
    paused(|began| async move {
        let queue = make(ten_a_second(4), Box::new(PausedClock(began)));
        let ask = |number: u64| {
            let queue = Arc::clone(&queue);
            let wait = async move { (number, queue.schedule(Cost::ONE).await, began.elapsed()) };
            tokio::spawn(wait)
        };
        let asked: Vec<_> = (0..8).map(ask).collect();
        for task in asked {
            let (number, answer, ended) = task.await.unwrap();
            let (due, due_ms) = match number {
                0..5 => (Ok(Span::from_ms(number * 100)), number * 100),
                _ => (Err(Retry::After(Span::from_ms(100))), 0),
            };
            ensure(answer == due && is_at(ended, due_ms), || {
                format!("number {number} is told {answer:?} after {ended:?}")
            })?;
        }
        Ok(())
    })
}

#[test]
fn futures_end_in_order_and_apart_and_a_full_queue_does_not_wait() {
    let mutants = [Mutant::NeverSleeps, Mutant::NeverDelays, Mutant::NeverRefuses];
    only_shipped_passes(waits_are_in_order_and_apart, &mutants);
}

fn a_cancelled_wait_keeps_its_place(make: Make<'_>) -> Checked {
    paused(|began| async move {
        let queue = make(ten_a_second(4), Box::new(PausedClock(began)));
        let unpolled = queue.schedule(Cost::ONE);
        drop(unpolled);
        let first = queue.schedule(Cost::ONE).await;
        ensure(first == Ok(Span::ZERO), || format!("a future never polled counts: {first:?}"))?;
        let cancelled =
            tokio::time::timeout(Duration::from_millis(20), queue.schedule(Cost::ONE)).await;
        ensure(cancelled.is_err(), || "the second did not wait".into())?;
        let third = queue.schedule(Cost::ONE).await;
        ensure(third.is_ok() && is_at(began.elapsed(), 200), || {
            format!("the third starts {:?} after the first, in the place given up", began.elapsed())
        })
    })
}

#[test]
fn a_cancelled_future_leaves_its_place_taken() {
    only_shipped_passes(a_cancelled_wait_keeps_its_place, &[Mutant::Refunds]);
}

#[test]
fn a_waiting_future_may_move_between_threads() {
    fn sent<T: Send>(_: &T) {}
    let queue = ShapedLimiter::new(ten_a_second(1));
    sent(&ShapedLimiter::schedule(&queue, Cost::ONE));
}
