//! What is asked about rate and cost, with turns for others in between, and one fault in a run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use admittance::admission::Rates;
use admittance::budget::{Accounts, Act, Booked, Budget, Charge, Entry, MemoryAccounts};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Builtin, Cost, Decided, FuseAsk, Fuses,
    Group, Limit, Limiter, ManualClock, Many, Memory, Op, Source, Span, Store, StoreError,
};

/// What happens to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not taken, and nothing was done.
    Unavailable,
    /// The answer is lost, and nothing was done; or something was.
    Lost { is_done: bool },
    /// It says that it took too long, and nothing was done; or something was.
    Timeout { is_done: bool },
    /// It panics before or after it is done.
    Panics { is_done: bool },
    /// It is done, or answered, long after anybody waits for it.
    Late { is_done: bool },
    /// It is done once nobody waits for it any more: it was on its way.
    Strays,
    /// It says that the ask itself is wrong.
    Wrong,
}

impl Fault {
    fn any(random: &mut fastrand::Rng) -> Self {
        let is_done = random.bool();
        match random.u8(..7) {
            0 => Self::Unavailable,
            1 => Self::Lost { is_done },
            2 => Self::Timeout { is_done },
            3 => Self::Panics { is_done },
            4 => Self::Late { is_done },
            5 => Self::Strays,
            _ => Self::Wrong,
        }
    }
}

/// Which ask of a run goes wrong, and how.
pub(crate) struct Plan(Mutex<Run>);

struct Run {
    random: fastrand::Rng,
    fault: Fault,
    /// Which ask it is; none if nothing goes wrong any more.
    nth: Option<u32>,
    /// Whether those after it go wrong too, and those in the background.
    is_lasting: bool,
    asked: u32,
    is_front: bool,
    happened: usize,
}

impl Plan {
    pub(crate) fn new() -> Arc<Self> {
        let (random, fault) = (fastrand::Rng::with_seed(0), Fault::Unavailable);
        let run = Run {
            random,
            fault,
            nth: None,
            is_lasting: false,
            asked: 0,
            is_front: false,
            happened: 0,
        };
        Arc::new(Self(Mutex::new(run)))
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.0.lock().unwrap()
    }

    /// Another run begins.
    pub(crate) fn begin(&self, random: &mut fastrand::Rng, is_lasting: bool) {
        let mut run = self.lock();
        run.random = random.fork();
        run.fault = Fault::any(random);
        run.nth = Some(random.u32(..6));
        (run.is_lasting, run.asked) = (is_lasting, 0);
    }

    /// The next ask goes wrong like this; if it lasts, those after it and in the background too.
    pub(crate) fn next_goes(&self, fault: Fault, is_lasting: bool) {
        let mut run = self.lock();
        (run.fault, run.nth, run.is_lasting, run.asked) = (fault, Some(0), is_lasting, 0);
    }

    /// Nothing goes wrong any more.
    pub(crate) fn end(&self) {
        self.lock().nth = None;
    }

    /// Whether what was asked may be done only later.
    pub(crate) fn strays(&self) -> bool {
        self.lock().fault == Fault::Strays
    }

    pub(crate) fn happened(&self) -> usize {
        self.lock().happened
    }

    /// The fault of the next ask, and how many turns others have before and after it.
    fn next(&self) -> (Option<Fault>, [u32; 2]) {
        let mut run = self.lock();
        let pauses = [run.random.u32(..3), run.random.u32(..3)];
        let Some(nth) = run.nth else { return (None, pauses) };
        if !run.is_front && !run.is_lasting {
            return (None, pauses);
        }
        let now = run.asked;
        run.asked += 1;
        let is_now = now == nth || run.is_lasting && now > nth;
        run.happened += usize::from(is_now);
        (is_now.then_some(run.fault), pauses)
    }

    /// Asks, if nothing happens to it; `strays` has it done later.
    async fn ask<T>(
        &self,
        act: impl Future<Output = Result<T, StoreError>>,
        strays: impl FnOnce(),
    ) -> Result<T, StoreError> {
        let (fault, [before, after]) = self.next();
        pause(before).await;
        let timeout = Err(StoreError::Timeout { waited: Span::from_ms(20) });
        match fault {
            Some(Fault::Unavailable) => return Err(StoreError::Unavailable),
            Some(Fault::Lost { is_done: false }) => return Err(StoreError::Lost),
            Some(Fault::Timeout { is_done: false }) => return timeout,
            Some(Fault::Panics { is_done: false }) => resume_unwind(Box::new("before")),
            Some(Fault::Late { is_done: false }) => tokio::time::sleep(LATE).await,
            Some(Fault::Strays) => {
                strays();
                // Dropped meanwhile, unless nobody has a deadline.
                tokio::time::sleep(LATE).await;
                return timeout;
            }
            Some(Fault::Wrong) => return Err(StoreError::CostTooLarge),
            _ => {}
        }
        let answer = act.await;
        pause(after).await;
        match fault {
            Some(Fault::Lost { .. }) => Err(StoreError::Lost),
            Some(Fault::Timeout { .. }) => timeout,
            Some(Fault::Panics { .. }) => resume_unwind(Box::new("after")),
            Some(Fault::Late { is_done: true }) => {
                tokio::time::sleep(LATE).await;
                answer
            }
            _ => answer,
        }
    }

    /// Waits for a future as the caller would: until it is ready, panics, or is dropped.
    pub(crate) async fn front<T>(&self, cut: Cut, future: impl Future<Output = T>) -> Front<T> {
        let mut future = pin!(future);
        let mut polls = 0;
        let poll = std::future::poll_fn(|context| {
            if cut == (Cut::Turns(polls)) {
                return Poll::Ready(Front::Cancelled);
            }
            polls += 1;
            self.lock().is_front = true;
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
            self.lock().is_front = false;
            match polled {
                Ok(Poll::Ready(value)) => Poll::Ready(Front::Ready(value)),
                Ok(Poll::Pending) => Poll::Pending,
                Err(_) => Poll::Ready(Front::Panicked),
            }
        });
        match cut {
            Cut::Time(time) => tokio::time::timeout(time, poll).await.unwrap_or(Front::Cancelled),
            Cut::Turns(_) | Cut::Never => poll.await,
        }
    }
}

/// When a caller goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Never,
    /// After so many turns.
    Turns(u32),
    /// After so long.
    Time(Duration),
}

impl Cut {
    pub(crate) fn any(random: &mut fastrand::Rng) -> Self {
        match random.u8(..8) {
            0..=1 => Self::Turns(random.u32(..6)),
            2 => Self::Time(Duration::from_millis(random.u64(1..40))),
            _ => Self::Never,
        }
    }
}

/// What became of a future.
pub(crate) enum Front<T> {
    Ready(T),
    Cancelled,
    Panicked,
}

/// Lets others have some turns.
async fn pause(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// An entry that outlives who asks.
struct Owned {
    charges: Vec<(String, Budget, Vec<u8>, u64)>,
    act: Act,
}

impl Owned {
    fn of(entry: Entry<'_>) -> Self {
        let own =
            |one: &Charge<'_>| (one.policy.to_owned(), *one.budget, one.key.to_vec(), one.units);
        Self { charges: entry.charges.iter().map(own).collect(), act: entry.act }
    }

    fn charges(&self) -> Vec<Charge<'_>> {
        let each = self.charges.iter();
        each.map(|(policy, budget, key, units)| Charge { policy, budget, key, units: *units })
            .collect()
    }
}

/// Books once nobody waits for it any more.
fn book_later<A: Accounts + 'static>(accounts: &Arc<A>, entry: Entry<'_>) {
    let (accounts, entry) = (Arc::clone(accounts), Owned::of(entry));
    tokio::spawn(async move {
        tokio::time::sleep(STRAYS).await;
        let charges = entry.charges();
        let _ = accounts.book(Entry { charges: &charges, act: entry.act }).await;
    });
}

/// Longer than a guard waits, and shorter than it goes on telling.
const STRAYS: Duration = Duration::from_millis(50);
/// Longer than anybody waits.
const LATE: Duration = Duration::from_millis(100);

/// A store of limits and accounts.
pub(crate) struct FaultyMemory {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inner: Arc<Memory<ManualClock>>,
    /// Whether limits and accounts are on different servers.
    pub(crate) is_across: bool,
}

impl Store for FaultyMemory {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.plan.ask(self.inner.apply(op), || ()).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.plan.ask(self.inner.check_many(many), || ()).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.plan.ask(self.inner.several(group), || ()).await
    }
}

impl Accounts for FaultyMemory {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.plan.ask(self.inner.book(entry), || book_later(&self.inner, entry)).await
    }
}

impl Fuses for FaultyMemory {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        if self.is_across {
            return Err(StoreError::AcrossSlots);
        }
        let strays = || {
            let (inner, entry, atomicity) =
                (Arc::clone(&self.inner), Owned::of(ask.entry), ask.atomicity);
            let limits = ask.limits.iter();
            let limits = limits.map(|one| (one.policy.to_owned(), *one.strategy, one.key.to_vec()));
            let limits: Vec<(String, Builtin, Vec<u8>)> = limits.collect();
            tokio::spawn(async move {
                tokio::time::sleep(STRAYS).await;
                let limits = limits.iter().map(|(policy, strategy, key)| Limit {
                    policy,
                    strategy,
                    key,
                    cost: Cost::ONE,
                });
                let (limits, charges): (Vec<Limit<'_>>, _) = (limits.collect(), entry.charges());
                let entry = Entry { charges: &charges, act: entry.act };
                let _ = inner.fuse(FuseAsk { limits: &limits, entry, atomicity }).await;
            });
        };
        self.plan.ask(self.inner.fuse(ask), strays).await
    }
}

/// A rate that is waited for.
#[derive(Clone)]
pub(crate) struct FaultyRates {
    pub(crate) plan: Arc<Plan>,
    pub(crate) limiter: Arc<Limiter<Builtin, ManualClock>>,
}

impl Rates for FaultyRates {
    async fn charge(&self, key: &[u8]) -> Result<Decided, StoreError> {
        let charge = async { Ok(self.limiter.check(key)) };
        Ok(Decided { decision: self.plan.ask(charge, || ()).await?, source: Source::Store })
    }

    async fn look(&self, key: &[u8]) -> Result<Decided, StoreError> {
        let look = async { Ok(self.limiter.peek(key)) };
        Ok(Decided { decision: self.plan.ask(look, || ()).await?, source: Source::Store })
    }
}

/// Accounts that are waited for.
#[derive(Clone)]
pub(crate) struct FaultyAccounts {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inner: Arc<MemoryAccounts<ManualClock>>,
}

impl Accounts for FaultyAccounts {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.plan.ask(self.inner.book(entry), || book_later(&self.inner, entry)).await
    }
}
