//! What can be asked for a permit: ours, the peers, and the floor.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use admittance::gate::{CounterClock, Gate, GateClock, LimitRules};
use congestion_limiter::limiter::{DefaultLimiter, Limiter, Outcome};
use congestion_limiter::limits::{Aimd, LimitAlgorithm, Vegas};
use tokio::sync::Semaphore;
use tower::limit::ConcurrencyLimit;
use tower::{Service, service_fn};
use tower_resilience_adaptive::{AdaptiveService, ConcurrencyAlgorithm, Gradient2};

/// Something that gives permits, to be asked from several threads.
pub(super) trait Permits: Send + Sync {
    /// Takes and ends so many, one after the other.
    fn pass(&self, times: usize);
}

/// Someone in the race.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) make: fn() -> Box<dyn Permits>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ours,
    Floor,
    /// A limit that somebody chose.
    Fixed,
    /// A limit that is inferred.
    Adaptive,
}

/// All of them; the floor that targets are held against first.
pub(super) fn all() -> Vec<Contender> {
    let contender = |name, kind, make| Contender { name, kind, make };
    vec![
        contender(FLOOR, Kind::Floor, || Box::new(Floor::new(CounterClock::new()))),
        contender("floor, Instant", Kind::Floor, || Box::new(Floor::new(SystemInstant::new()))),
        contender("admittance stable", Kind::Ours, || scoped(LimitRules::stable())),
        contender("admittance seed", Kind::Ours, || scoped(LimitRules::seed_defaults())),
        contender("admittance fixed", Kind::Ours, || scoped(LimitRules::fixed(PLACES))),
        contender("admittance stable, owned", Kind::Ours, || owned(LimitRules::stable())),
        contender("tokio Semaphore", Kind::Fixed, || {
            Box::new(Semaphore::new(PLACES as usize)) as Box<dyn Permits>
        }),
        contender("tower ConcurrencyLimit", Kind::Fixed, || Box::new(Tower::new())),
        contender("congestion-limiter AIMD", Kind::Adaptive, || {
            congestion(Aimd::new_with_initial_limit(PLACES as usize))
        }),
        contender("congestion-limiter Vegas", Kind::Adaptive, || {
            congestion(Vegas::new_with_initial_limit(PLACES as usize))
        }),
        contender("tower-resilience AIMD", Kind::Adaptive, || {
            let aimd = tower_resilience_adaptive::Aimd::builder();
            resilience(aimd.initial_limit(PLACES as usize).build().expect("in range"))
        }),
        contender("tower-resilience Gradient2", Kind::Adaptive, || {
            let gradient = Gradient2::builder();
            resilience(gradient.initial_limit(PLACES as usize).build().expect("in range"))
        }),
    ]
}

pub(super) const FLOOR: &str = "floor";

/// The least that anything measured must do: count one more and one fewer, and read the clock
/// twice.
struct Floor<C> {
    count: AtomicU64,
    clock: C,
}

impl<C: GateClock> Floor<C> {
    fn new(clock: C) -> Self {
        Self { count: AtomicU64::new(0), clock }
    }
}

impl<C: GateClock> Permits for Floor<C> {
    fn pass(&self, times: usize) {
        for _ in 0..times {
            self.count.fetch_add(1, Ordering::AcqRel);
            let started = self.clock.now_ns();
            black_box(self.clock.now_ns() - black_box(started));
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The standard library's monotonic clock.
struct SystemInstant(Instant);

impl SystemInstant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn new() -> Self {
        Self(Instant::now())
    }
}

impl GateClock for SystemInstant {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

struct Scoped(Gate);
struct Owned(Gate);

fn scoped(rules: LimitRules) -> Box<dyn Permits> {
    Box::new(Scoped(Gate::new(rules).expect("in range")))
}

fn owned(rules: LimitRules) -> Box<dyn Permits> {
    Box::new(Owned(Gate::new(rules).expect("in range")))
}

impl Permits for Scoped {
    fn pass(&self, times: usize) {
        for _ in 0..times {
            self.0.acquire_scoped().expect("two threads, at least four places").finish();
        }
    }
}

impl Permits for Owned {
    fn pass(&self, times: usize) {
        for _ in 0..times {
            self.0.acquire().expect("two threads, at least four places").finish();
        }
    }
}

impl Permits for Semaphore {
    fn pass(&self, times: usize) {
        for _ in 0..times {
            drop(black_box(self.try_acquire().expect("enough places")));
        }
    }
}

/// What the services of tower's limits do: nothing.
type Nothing = fn(()) -> std::future::Ready<Result<(), std::convert::Infallible>>;

fn nothing(_: ()) -> std::future::Ready<Result<(), std::convert::Infallible>> {
    std::future::ready(Ok(()))
}

struct Tower(ConcurrencyLimit<tower::util::ServiceFn<Nothing>>);

impl Tower {
    fn new() -> Self {
        Self(ConcurrencyLimit::new(service_fn(nothing as Nothing), PLACES as usize))
    }
}

impl Permits for Tower {
    fn pass(&self, times: usize) {
        serve(&mut self.0.clone(), times);
    }
}

struct Resilience<A>(AdaptiveService<tower::util::ServiceFn<Nothing>, A>);

fn resilience<A: ConcurrencyAlgorithm + 'static>(algorithm: A) -> Box<dyn Permits> {
    let service = service_fn(nothing as Nothing);
    Box::new(Resilience(AdaptiveService::new(service, Arc::new(algorithm))))
}

impl<A: ConcurrencyAlgorithm + 'static> Permits for Resilience<A> {
    fn pass(&self, times: usize) {
        serve(&mut self.0.clone(), times);
    }
}

fn serve<S: Service<()>>(service: &mut S, times: usize) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        while service.poll_ready(&mut context).is_pending() {
            std::hint::spin_loop();
        }
        let _ = black_box(at_once(service.call(())));
    }
}

struct Congestion<T>(DefaultLimiter<T>);

fn congestion<T: LimitAlgorithm + Send + Sync + std::fmt::Debug + 'static>(
    algorithm: T,
) -> Box<dyn Permits> {
    Box::new(Congestion(DefaultLimiter::new(algorithm)))
}

impl<T: LimitAlgorithm + Send + Sync + std::fmt::Debug + 'static> Permits for Congestion<T> {
    fn pass(&self, times: usize) {
        for _ in 0..times {
            let token = loop {
                if let Some(token) = at_once(self.0.try_acquire()) {
                    break token;
                }
                std::hint::spin_loop();
            };
            black_box(at_once(self.0.release(token, Some(Outcome::Success))));
        }
    }
}

/// Callers that are refused: all places are taken while they ask.
pub(super) fn refusing() -> Vec<Contender> {
    let contender = |name, kind, make| Contender { name, kind, make };
    vec![
        contender("admittance", Kind::Ours, || {
            let gate = Gate::new(LimitRules::fixed(1)).expect("in range");
            let permit = gate.acquire().expect("it is free");
            Box::new(Full { ask: move || gate.acquire_scoped().is_err(), _held: permit })
        }),
        contender("tokio Semaphore", Kind::Fixed, || {
            let full = Semaphore::new(0);
            Box::new(Full { ask: move || full.try_acquire().is_err(), _held: () })
        }),
        contender("congestion-limiter", Kind::Adaptive, || {
            let full = DefaultLimiter::new(Aimd::new_with_initial_limit(1));
            let held = at_once(full.try_acquire());
            let ask = move || at_once(full.try_acquire()).is_none();
            Box::new(Full { ask, _held: held })
        }),
    ]
}

struct Full<F, H> {
    ask: F,
    _held: H,
}

impl<F: Fn() -> bool + Send + Sync, H: Send + Sync> Permits for Full<F, H> {
    fn pass(&self, times: usize) {
        let refused = (0..times).filter(|_| black_box((self.ask)())).count();
        assert_eq!(refused, times, "every place is taken");
    }
}

/// The result of a future that waits for nothing, or is spun on until it no longer does.
fn at_once<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::hint::spin_loop();
    }
}

/// More than are ever taken.
const PLACES: u32 = 100;
