//! Mode leased: requests spend what this node has borrowed, and one of many asks the store.
//!
//! # What happens to a request
//! ```text
//!   hash ─► record ─► word has the cost ─► admitted           no lock, nothing allocated
//!                       │ no
//!                       ▼
//!                     holder, under the record's lock ─► a task asks the store
//!                       │ waits
//!                       ▼
//!                     answered by the grant, or by the fail mode after the deadline
//! ```
//! One task per limiter watches the deadlines of all its keys and one tells the store what is given
//! back; one task per ask waits for the store, longer than the request does if need be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use admittance_core::learn::Sizer;
use admittance_core::lease::{
    Answer, Busy, GiveBack, LeaseId, Missed, Paid, Request, Rules, Waiter,
};
use admittance_core::{Cost, Decision, Micros, Outcome, Span};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::clock::LeaseClock;
use super::machine;
use super::table::{Cold, Record, Table};
use crate::key::{Fingerprint, Secret};
use crate::store::{Action, Decided, Op, SharedLimiter, Source, Store, StoreError};

/// A limit that is leased.
pub(super) struct Leased<S: Store + 'static, C: LeaseClock + 'static> {
    inner: Arc<Inner<S, C>>,
    driver: AbortHandle,
    teller: AbortHandle,
}

struct Inner<S: Store + 'static, C> {
    shared: Arc<SharedLimiter<S>>,
    rules: Rules,
    /// What a new key's sizer starts as.
    sizer: Sizer,
    clock: C,
    table: Table,
    secret: Secret,
    generation: u32,
    incarnation: u64,
    runtime: Handle,
    ids: AtomicU64,
    waiters: AtomicU64,
    dues: Mutex<BinaryHeap<Reverse<(Micros, u32)>>>,
    wake: Notify,
    /// Give-backs on their way to the task that tells the store.
    returns: mpsc::Sender<(Box<[u8]>, GiveBack)>,
    /// Wall time less lease time when it was last looked at.
    apart: Mutex<Option<u64>>,
    /// How often everything was dropped.
    drops: AtomicU64,
    is_closed: AtomicBool,
    counted: Counted,
}

#[derive(Default)]
struct Counted {
    asked: AtomicU64,
    granted: AtomicU64,
    given_back: AtomicU64,
    unanswered: AtomicU64,
    strict: AtomicU64,
    dropped: AtomicU64,
}

/// What leasing has cost and saved so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Asks for a lease that were sent.
    pub asked: u64,
    /// Units that were granted.
    pub granted: u64,
    /// Units that were sent back.
    pub given_back: u64,
    /// Requests that waited in vain and were left to the fail mode.
    pub unanswered: u64,
    /// Requests of keys that found no record, which asked the store one by one.
    pub strict: u64,
    /// How often everything held was dropped because the machine's clocks came apart.
    pub dropped: u64,
}

impl<S: Store + 'static, C: LeaseClock + 'static> Leased<S, C> {
    pub(super) fn start(
        shared: Arc<SharedLimiter<S>>,
        rules: Rules,
        sizer: Sizer,
        max_keys: usize,
        clock: C,
    ) -> Self {
        machine::count_forks();
        let (returns, returned) = mpsc::channel(RETURNS_MAX);
        let inner = Arc::new(Inner {
            shared,
            rules,
            sizer,
            clock,
            table: Table::new(max_keys),
            secret: Secret::of_process(),
            generation: machine::generation(),
            incarnation: incarnation(),
            runtime: Handle::current(),
            ids: AtomicU64::new(0),
            waiters: AtomicU64::new(0),
            dues: Mutex::default(),
            wake: Notify::new(),
            returns,
            apart: Mutex::default(),
            drops: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            counted: Counted::default(),
        });
        let driver = tokio::spawn(drive(Arc::downgrade(&inner))).abort_handle();
        let teller = tokio::spawn(tell(Arc::downgrade(&inner), returned)).abort_handle();
        Self { inner, driver, teller }
    }

    /// Spends what this node holds for the key.
    #[inline]
    pub(super) fn spend(&self, key: &[u8], cost: Cost) -> Option<Decided> {
        self.inner.spend(self.inner.secret.hash(&key), cost)
    }

    pub(super) async fn check(&self, key: &[u8], cost: Cost) -> Result<Decided, StoreError> {
        let hash = self.inner.secret.hash(&key);
        match self.inner.spend(hash, cost) {
            Some(decided) => Ok(decided),
            None => self.inner.miss(hash, key, cost).await,
        }
    }

    pub(super) fn stats(&self) -> LeaseStats {
        let counted = &self.inner.counted;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LeaseStats {
            asked: read(&counted.asked),
            granted: read(&counted.granted),
            given_back: read(&counted.given_back),
            unanswered: read(&counted.unanswered),
            strict: read(&counted.strict),
            dropped: read(&counted.dropped),
        }
    }

    /// Gives back everything that is held, and waits until the store has been told. Requests from
    /// now on ask the store one by one.
    pub(super) async fn close(&self) {
        let inner = &self.inner;
        inner.is_closed.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for (_, record) in inner.table.every() {
            let mut cold = record.lock();
            cold.holder.close(&inner.rules, record, inner.clock.now());
            answer_waiting(&mut cold);
            while let Some(back) = cold.holder.poll_return() {
                all.push((cold.key.clone(), back));
            }
        }
        let mut telling = JoinSet::new();
        for (key, back) in all {
            tell_one(inner, &mut telling, key, back).await;
        }
        while telling.join_next().await.is_some() {}
    }
}

impl<S: Store + 'static, C: LeaseClock + 'static> Drop for Leased<S, C> {
    fn drop(&mut self) {
        self.driver.abort();
        self.teller.abort();
    }
}

impl<S: Store + 'static, C: LeaseClock + 'static> Inner<S, C> {
    #[inline]
    fn spend(self: &Arc<Self>, key: Fingerprint, cost: Cost) -> Option<Decided> {
        let (place, record) = self.table.find(key)?;
        if machine::generation() != self.generation {
            return None;
        }
        let paid = record.spend(key, self.clock.now(), cost)?;
        if paid.remaining <= self.rules.low_water && self.rules.low_water > 0 {
            self.refill(place, record, key);
        }
        Some(self.admitted(paid, Source::Node))
    }

    fn admitted(&self, paid: Paid, source: Source) -> Decided {
        let (limit, remaining) = (self.rules.strategy().limit(), paid.remaining);
        let decision = Decision { outcome: Outcome::Admit, limit, remaining, reset_at: paid.until };
        Decided { decision, source }
    }

    #[cold]
    fn refill(self: &Arc<Self>, place: u32, record: &Record, key: Fingerprint) {
        if record.is_refilling.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(mut cold) = record.lock_for(key) {
            self.heed_drop(record, &mut cold);
            cold.holder.refill();
            self.pump(place, record, &mut cold, key);
            // Asked or not, spends of this lease need not come here again.
            record.is_refilling.store(true, Ordering::Release);
        }
    }

    async fn miss(
        self: &Arc<Self>,
        hash: Fingerprint,
        key: &[u8],
        cost: Cost,
    ) -> Result<Decided, StoreError> {
        if machine::generation() != self.generation {
            // The locks may be held by threads that this process does not have.
            return Ok(self.shared.without_store(key, cost));
        }
        if self.is_closed.load(Ordering::SeqCst) {
            return self.shared.check(key, cost).await;
        }
        if self.shared.store().outage().is_some() {
            let held = self.from_held(hash, cost);
            return Ok(held.unwrap_or_else(|| self.shared.without_store(key, cost)));
        }
        let (record, id, told) = match self.join(hash, key, cost) {
            Joined::Decided(decided) => return Ok(decided),
            Joined::Alone => {
                self.counted.strict.fetch_add(1, Ordering::Relaxed);
                return self.shared.check(key, cost).await;
            }
            Joined::Waits { record, id, told } => (record, id, told),
        };
        let waits = Waits { inner: self, record, hash, id };
        let answer = told.await.unwrap_or(Answer::Unanswered);
        std::mem::forget(waits);
        Ok(match answer {
            Answer::Admitted(paid) => self.admitted(paid, Source::Store),
            Answer::Denied(decision) => self.shared.by_store(decision),
            Answer::Unanswered => {
                self.counted.unanswered.fetch_add(1, Ordering::Relaxed);
                self.shared.without_store(key, cost)
            }
        })
    }

    /// Lets a request join those that wait for the store, unless it need not.
    fn join(self: &Arc<Self>, hash: Fingerprint, key: &[u8], cost: Cost) -> Joined<'_> {
        let fresh = |cold: &mut Cold| {
            cold.key = key.into();
            cold.sizer = Some(self.sizer);
            cold.holder = cold.holder.renewed(self.sizer.size().units());
        };
        let found = self.table.find_or_insert(hash, fresh);
        let locked =
            found.and_then(|(place, record)| Some((place, record, record.lock_for(hash)?)));
        let Some((place, record, mut cold)) = locked else { return Joined::Alone };
        self.drop_if_clocks_came_apart();
        self.heed_drop(record, &mut cold);
        let id = self.waiters.fetch_add(1, Ordering::Relaxed);
        let missed = cold.holder.miss(&self.rules, record, self.clock.now(), Waiter { id, cost });
        let joined = match missed {
            Ok(Missed::Admitted(paid)) => Joined::Decided(self.admitted(paid, Source::Node)),
            Ok(Missed::Never(decision)) => {
                Joined::Decided(Decided { decision, source: Source::Node })
            }
            Err(Busy) => Joined::Decided(self.shared.without_store(key, cost)),
            Ok(Missed::Waits) => {
                let (tell, told) = oneshot::channel();
                cold.waiting.push_back((id, tell));
                Joined::Waits { record, id, told }
            }
        };
        self.pump(place, record, &mut cold, hash);
        joined
    }

    /// Pays a request from leases that are not in the word, without asking for more.
    fn from_held(self: &Arc<Self>, hash: Fingerprint, cost: Cost) -> Option<Decided> {
        let (place, record) = self.table.find(hash)?;
        let mut cold = record.lock_for(hash)?;
        self.drop_if_clocks_came_apart();
        self.heed_drop(record, &mut cold);
        let mut rules = self.rules;
        rules.waiters_max = 0;
        let waiter = Waiter { id: self.waiters.fetch_add(1, Ordering::Relaxed), cost };
        let missed = cold.holder.miss(&rules, record, self.clock.now(), waiter);
        self.pump(place, record, &mut cold, hash);
        match missed {
            Ok(Missed::Admitted(paid)) => Some(self.admitted(paid, Source::Node)),
            _ => None,
        }
    }

    /// Does what the holder wants done.
    fn pump(
        self: &Arc<Self>,
        place: u32,
        record: &Record,
        cold: &mut MutexGuard<'_, Cold>,
        hash: Fingerprint,
    ) {
        let is_open = !self.is_closed.load(Ordering::SeqCst);
        // The word may hold another lease now, which may run low too.
        record.is_refilling.store(false, Ordering::Release);
        loop {
            if let (Some(demand), Some(mut sizer)) = (cold.holder.poll_demand(), cold.sizer) {
                sizer.feed(demand);
                cold.sizer = Some(sizer);
                cold.holder.set_size(sizer.size().units());
            }
            let count = self.ids.fetch_add(1, Ordering::Relaxed);
            let fresh = LeaseId { incarnation: self.incarnation, count };
            let now = self.clock.now();
            let request = cold.holder.poll_request(&self.rules, record, now, fresh);
            let Some(request) = request.filter(|_| is_open) else { break };
            self.counted.asked.fetch_add(1, Ordering::Relaxed);
            let asking = Arc::clone(self).ask(place, hash, cold.key.clone(), request);
            self.runtime.spawn(asking);
        }
        answer_waiting(cold);
        while let Some(back) = cold.holder.poll_return() {
            // What finds no place is lost to the window that paid for it, and to nobody else.
            let _ = self.returns.try_send((cold.key.clone(), back));
        }
        // Here too: the word was emptied, if at all, before or after this step filled it.
        self.heed_drop(record, cold);
        let due = cold.holder.poll_deadline(&self.rules);
        if let Some(due) = due.filter(|due| cold.dues.last().is_none_or(|next| due < next)) {
            cold.dues.push(due);
            let mut dues = self.dues.lock().unwrap_or_else(PoisonError::into_inner);
            let is_next = dues.peek().is_none_or(|Reverse((next, _))| due < *next);
            dues.push(Reverse((due, place)));
            if is_next {
                self.wake.notify_one();
            }
        }
    }

    /// Asks the grantor and feeds its answer to the holder, however late it is while it is of use.
    async fn ask(self: Arc<Self>, place: u32, hash: Fingerprint, key: Box<[u8]>, request: Request) {
        let op = self.op(&key, Action::Lease(request.ask));
        let answer = self.shared.store().outlast(op, self.rules.patience()).await;
        let grant = answer.ok().and_then(|applied| applied.answer.grant());
        let record = self.table.record(place);
        let Some(mut cold) = record.lock_for(hash) else { return };
        self.heed_drop(record, &mut cold);
        let now = self.clock.now();
        match grant {
            Some(grant) => {
                self.counted.granted.fetch_add(grant.granted, Ordering::Relaxed);
                cold.holder.handle_grant(&self.rules, record, now, request.id, &grant);
            }
            None => cold.holder.handle_failure(&self.rules, record, now, request.id),
        }
        self.pump(place, record, &mut cold, hash);
    }

    async fn give_back(&self, key: &[u8], back: GiveBack) {
        self.counted.given_back.fetch_add(back.units, Ordering::Relaxed);
        let op = self.op(key, Action::GiveBack(back));
        // Whether it arrives does not matter; it is not sent again.
        let _ = self.shared.store().apply(op).await;
    }

    fn op<'a>(&'a self, key: &'a [u8], action: Action) -> Op<'a> {
        Op { policy: self.shared.policy(), strategy: self.rules.strategy(), key, action }
    }

    /// Looks at the keys whose time has come; says when the next one's will.
    fn look(self: &Arc<Self>) -> Option<Span> {
        self.drop_if_clocks_came_apart();
        loop {
            let now = self.clock.now();
            let mut dues = self.dues.lock().unwrap_or_else(PoisonError::into_inner);
            let &Reverse((due, place)) = dues.peek()?;
            if now < due {
                return Some(due.since(now));
            }
            dues.pop();
            drop(dues);
            let record = self.table.record(place);
            let mut cold = record.lock();
            self.heed_drop(record, &mut cold);
            cold.dues.pop();
            cold.holder.handle_deadline(&self.rules, record, now);
            let hash = self.secret.hash(&&cold.key[..]);
            self.pump(place, record, &mut cold, hash);
        }
    }

    /// Drops everything if wall time and lease time have moved differently since the last look: one
    /// of them did not count some time that passed.
    fn drop_if_clocks_came_apart(&self) {
        if !self.came_apart() {
            return;
        }
        self.counted.dropped.fetch_add(1, Ordering::Relaxed);
        // First: whoever has a lock that is not to be had sees it when it is done.
        self.drops.fetch_add(1, Ordering::SeqCst);
        for (_, record) in self.table.every() {
            match record.try_lock() {
                Some(mut cold) => self.heed_drop(record, &mut cold),
                None => record.drain(),
            }
        }
    }

    /// Forgets what the key holds if everything was dropped since it was last looked at.
    fn heed_drop(&self, record: &Record, cold: &mut Cold) {
        let drops = self.drops.load(Ordering::SeqCst);
        if cold.drops != drops {
            cold.drops = drops;
            cold.holder.forget(record);
            answer_waiting(cold);
        }
    }

    fn came_apart(&self) -> bool {
        let lease = self.clock.now();
        let wall = self.clock.wall().epoch_us();
        if self.clock.now().since(lease) > READ_MAX {
            return false; // This thread was held up between the two: they say nothing.
        }
        let apart = wall.wrapping_sub(lease.epoch_us());
        let mut known = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.replace(apart).unwrap_or(apart);
        let moved = apart.wrapping_sub(before).min(before.wrapping_sub(apart));
        moved > APART_MAX.us()
    }
}

/// What became of a request that the word could not pay.
enum Joined<'a> {
    Decided(Decided),
    /// There is no record for its key.
    Alone,
    Waits {
        record: &'a Record,
        id: u64,
        told: oneshot::Receiver<Answer>,
    },
}

/// Passes the holder's answers on to the requests that wait for them.
fn answer_waiting(cold: &mut Cold) {
    while let Some((id, answer)) = cold.holder.poll_answer() {
        let place = cold.waiting.iter().position(|(waiting, _)| *waiting == id);
        if let Some((_, tell)) = place.and_then(|place| cold.waiting.remove(place)) {
            // Nobody is left to hear it if the request was given up just now.
            let _ = tell.send(answer);
        }
    }
}

/// A request that waits. If it is given up, the holder forgets it.
struct Waits<'a, S: Store + 'static, C: LeaseClock + 'static> {
    inner: &'a Arc<Inner<S, C>>,
    record: &'a Record,
    hash: Fingerprint,
    id: u64,
}

impl<S: Store + 'static, C: LeaseClock + 'static> Drop for Waits<'_, S, C> {
    fn drop(&mut self) {
        if machine::generation() != self.inner.generation {
            return;
        }
        if let Some(mut cold) = self.record.lock_for(self.hash) {
            cold.holder.abandon(self.id);
            cold.waiting.retain(|(id, _)| *id != self.id);
        }
    }
}

/// Watches the deadlines of all keys, for as long as the limiter lives.
async fn drive<S: Store + 'static, C: LeaseClock + 'static>(inner: Weak<Inner<S, C>>) {
    loop {
        let Some(held) = inner.upgrade() else { return };
        let wait = held.look().unwrap_or(LOOK_EVERY).min(LOOK_EVERY);
        let woken = held.wake.notified();
        // Woken or not, the next look says what is due.
        let _ = tokio::time::timeout(wait.into(), woken).await;
    }
}

/// Tells the store what is given back, some at a time, for as long as the limiter lives.
async fn tell<S: Store + 'static, C: LeaseClock + 'static>(
    inner: Weak<Inner<S, C>>,
    mut returned: mpsc::Receiver<(Box<[u8]>, GiveBack)>,
) {
    let mut telling = JoinSet::new();
    while let Some((key, back)) = returned.recv().await {
        let Some(inner) = inner.upgrade() else { return };
        tell_one(&inner, &mut telling, key, back).await;
    }
}

async fn tell_one<S: Store + 'static, C: LeaseClock + 'static>(
    inner: &Arc<Inner<S, C>>,
    telling: &mut JoinSet<()>,
    key: Box<[u8]>,
    back: GiveBack,
) {
    while telling.try_join_next().is_some() {}
    if telling.len() >= RETURNS_AT_ONCE {
        let _ = telling.join_next().await;
    }
    let inner = Arc::clone(inner);
    telling.spawn(async move { inner.give_back(&key, back).await });
}

/// A number that no other process has, and no earlier one had.
fn incarnation() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Clocks that have come apart by more than this are not of one machine's time.
const APART_MAX: Span = Span::from_ms(100);
/// Clocks that took longer to read than this were not read at once.
const READ_MAX: Span = Span::from_ms(20);
/// How often the clocks are compared at least.
const LOOK_EVERY: Span = Span::from_secs(1);
/// Give-backs that wait to be told.
const RETURNS_MAX: usize = 4_096;
/// Give-backs under way at once.
const RETURNS_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FailMode, GuardSettings, Guarded};
    use crate::two_tier::{Batch, Leasing, TwoTier};
    use crate::{Clock, Memory};
    use admittance_core::Window;
    use tokio::time::Instant;

    #[derive(Clone, Copy)]
    struct Time(Instant);

    impl Clock for Time {
        fn now(&self) -> Micros {
            let us = u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX);
            Micros::ZERO + Span::from_us(us)
        }
    }

    impl LeaseClock for Time {
        fn now(&self) -> Micros {
            Clock::now(self)
        }

        fn wall(&self) -> Micros {
            Clock::now(self)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_has_a_few_dues_however_often_it_asks() {
        let time = Time(Instant::now());
        let guard = Guarded::start(Memory::new(time), GuardSettings::default());
        let strategy = Window::fixed(100_000, Span::from_secs(3_600)).expect("exact").into();
        let shared = SharedLimiter::new("api", strategy, Arc::new(guard), FailMode::Closed);
        let leasing = Leasing { batch: Batch::Fixed(3), ..Leasing::default() };
        let tier = TwoTier::leased_on(shared.expect("exact"), leasing, time).expect("leasable");
        for _ in 0..2_000 {
            let _ = tier.check(b"ann", Cost::ONE).await.expect("decided");
            tokio::time::sleep(std::time::Duration::from_millis(15)).await;
        }
        let crate::two_tier::Tier::Leased(leased) = &tier.tier else { panic!("leased") };
        let dues = leased.inner.dues.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert!(dues <= 4, "{dues} for one key");
    }
}
