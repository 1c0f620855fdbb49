//! An escrow whose budget several processes lease from one counter in a shared store.
//!
//! The counter is a fixed window of the whole budget, under one key. A process leases `quantum`
//! credits of it when a check cannot be admitted on what it has, twice as many each time that did
//! not help the same check, and what is left when that is less; it shares what it has leased among
//! the tenants it meets.
//!
//! # Guarantee
//! - All processes together admit at most the budget per window: the counter pays for everything.
//! - Credits are spent in the window of the store that paid for them: for as long as that window
//!   had left at the grant, counted from the moment the lease was asked for, less 0.1 % for drift.
//!   What is left then is dropped. Wall clocks do not matter: the clock is the one since boot,
//!   which counts the time that a machine sleeps.
//! - At most one lease is asked for at a time, and none while the window is known to be empty. All
//!   who waited while one failed share the failure.
//! - A caller that goes away does not lose the credits that were on their way for it.
//! - During an outage what was leased is spent until it dies; then the fail mode answers.
//!
//! # What it costs
//! Credits that were leased and not asked for are lost to the other processes until the window
//! ends; so are those of a lease that was not answered. One that is answered after the store's
//! deadline is there for the next request; at most four are open at once. A small `quantum` loses
//! less and asks more often. **Fairness is per process**: tenants share what their process has
//! leased, not what the others have. It is not strategy-proof.
//!
//! # Proven by
//! `tests/it/escrow.rs`, with a store that forgets what it granted; core's `tests/it/escrow.rs` for
//! clocks that disagree.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admittance_core::lease::{Ask, Grant, LIFETIME_MAX};
use admittance_core::{
    Builtin, Cost, Decision, Escrow, EscrowGrant, EscrowRules, EscrowStats, Invalid, LeasedEscrow,
    Micros, Outcome, Parameter, Retry, Shortage, Span, TenantStats,
};
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::store::{
    Action, Decided, FailMode, Guarded, Op, Outage, OutageShare, Source, Store, StoreError, within,
};
use crate::two_tier::{BootClock, LeaseClock};

/// How many credits a process leases at once: at least one, at most the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantum(u64);

impl Quantum {
    /// A quantum for these rules; a hundredth of the budget, rounded up, unless said otherwise.
    ///
    /// # Errors
    /// Zero, and more than the budget.
    pub fn new(rules: &EscrowRules, credits: Option<u64>) -> Result<Self, Invalid> {
        let parameter = Parameter::Quantum;
        match credits {
            None => Ok(Self(rules.limit.div_ceil(100))),
            Some(0) => Err(Invalid::Zero(parameter)),
            Some(given) if given > rules.limit => {
                Err(Invalid::TooLarge { parameter, given, max: rules.limit })
            }
            Some(credits) => Ok(Self(credits)),
        }
    }

    /// How many credits.
    #[must_use]
    pub const fn credits(self) -> u64 {
        self.0
    }
}

/// A budget that tenants share by weight, leased from a shared store.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use admittance::{
///     Cost, EscrowRules, FailMode, GuardSettings, Guarded, ManualClock, Memory, Quantum,
///     SharedEscrow, Span,
/// };
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = Memory::new(ManualClock::default()); // Or Redis, or Postgres.
/// let store = Arc::new(Guarded::start(store, GuardSettings::default()));
/// let rules = EscrowRules::new(1_000, Span::from_secs(60));
/// let quantum = Quantum::new(&rules, Some(50))?;
/// let escrow = SharedEscrow::new("tenants", &rules, quantum, store, FailMode::Closed)?;
/// assert!(escrow.check(b"ann", Cost::ONE).await.decision.is_admit());
/// assert_eq!(escrow.stats().budget, 50, "what this process has leased");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedEscrow<S> {
    inner: Arc<Inner<S>>,
    fail: FailMode,
    /// What `Local` goes on with; `None` if that is nothing.
    part: Option<EscrowRules>,
    alone: OutageShare<Arc<Mutex<Alone>>>,
    waiting: AtomicUsize,
    by_fail_mode: AtomicU64,
}

struct Inner<S> {
    policy: Box<str>,
    strategy: Builtin,
    quantum: Quantum,
    store: Arc<Guarded<S>>,
    /// What the lives of leases are counted by.
    clock: Arc<dyn LeaseClock>,
    state: Mutex<State>,
    /// Whoever has it may ask for a lease.
    turn: Arc<tokio::sync::Mutex<()>>,
    leases: AtomicU64,
    /// How many of them are not yet answered.
    open: AtomicUsize,
    /// How many leases failed.
    failed: AtomicU64,
}

struct State {
    escrow: LeasedEscrow,
    /// Until when the store has nothing left to lease.
    empty_until: Micros,
}

/// The local part of the budget during one outage.
struct Alone {
    /// The window in which the outage began is spent.
    from: Micros,
    escrow: Escrow,
}

/// What can be said without the store.
enum Here {
    Decided(Decision),
    Short,
}

impl<S: Store + 'static> SharedEscrow<S> {
    /// An escrow of this name in the store, whose counter all processes with that name share.
    ///
    /// # Errors
    /// Rules that cannot be kept, and a share that cannot be kept exact.
    pub fn new(
        policy: impl Into<Box<str>>,
        rules: &EscrowRules,
        quantum: Quantum,
        store: Arc<Guarded<S>>,
        fail: FailMode,
    ) -> Result<Self, Invalid> {
        Self::on_clock(policy, rules, quantum, store, fail, Arc::new(BootClock))
    }

    /// The same, with leases that are counted by a clock of your own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on_clock(
        policy: impl Into<Box<str>>,
        rules: &EscrowRules,
        quantum: Quantum,
        store: Arc<Guarded<S>>,
        fail: FailMode,
        clock: Arc<dyn LeaseClock>,
    ) -> Result<Self, Invalid> {
        let escrow = LeasedEscrow::new(rules)?;
        let strategy = Builtin::from(escrow.window());
        let part = match fail {
            FailMode::Open | FailMode::Closed | FailMode::Granted { .. } => None,
            FailMode::Local { share } => crate::store::part_of(&strategy, share)?,
        };
        let part = part.map(|part| EscrowRules { limit: part.limit(), ..rules.clone() });
        let inner = Inner {
            policy: policy.into(),
            strategy,
            quantum: Quantum(quantum.0.clamp(1, rules.limit)),
            store,
            clock,
            state: Mutex::new(State { escrow, empty_until: Micros::ZERO }),
            turn: Arc::default(),
            leases: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            failed: AtomicU64::new(0),
        };
        Ok(Self {
            inner: Arc::new(inner),
            fail,
            part,
            alone: OutageShare::new(fail)?,
            waiting: AtomicUsize::new(0),
            by_fail_mode: AtomicU64::new(0),
        })
    }

    /// Decides one request of a tenant. Must be called within the store's tokio runtime.
    pub async fn check(&self, tenant: &[u8], cost: Cost) -> Decided {
        if let Here::Decided(decision) = self.inner.here(tenant, cost) {
            return Decided { decision, source: Source::Store };
        }
        match self.leasing(tenant, cost).await {
            Ok(decision) => Decided { decision, source: Source::Store },
            Err(_) => {
                self.by_fail_mode.fetch_add(1, Ordering::Relaxed);
                Decided { decision: self.failed(tenant, cost), source: Source::FailMode }
            }
        }
    }

    /// Decides with as many credits as it takes, one lease after the other.
    async fn leasing(&self, tenant: &[u8], cost: Cost) -> Result<Decision, StoreError> {
        let inner = &self.inner;
        let _waiter = Waiter::among(&self.waiting)?;
        let failed_before = inner.failed.load(Ordering::Acquire);
        let mut turn = Arc::clone(&inner.turn).lock_owned().await;
        let (mut size, mut stillborn) = (inner.quantum.0.max(cost.units()), 0);
        loop {
            // Those who had their turn before may have leased enough for this one too.
            if let Here::Decided(decision) = inner.here(tenant, cost) {
                self.recovered();
                return Ok(decision);
            }
            if stillborn > STILLBORN_MAX || inner.failed.load(Ordering::Acquire) > failed_before {
                return Err(StoreError::Unavailable);
            }
            // In a task of its own: if this caller goes away, the credits still arrive.
            let lease = tokio::spawn(Inner::leased(Arc::clone(inner), size, turn));
            let lived;
            (turn, lived) = lease.await.unwrap_or(Err(StoreError::Lost))?;
            stillborn = if lived { 0 } else { stillborn + 1 };
            size = size.saturating_mul(2).min(inner.strategy.limit());
        }
    }

    /// What is answered when the store does not and nothing leased is left.
    fn failed(&self, tenant: &[u8], cost: Cost) -> Decision {
        let (limit, outage) = (self.inner.strategy.limit(), self.inner.store.outage());
        let denied = Outcome::Deny(self.inner.store.until_probed(outage));
        let (outcome, remaining) = match self.fail {
            _ if cost.units() > limit => (Outcome::Deny(Retry::Never), 0),
            FailMode::Open => (Outcome::Admit, limit),
            // An escrow has no part from a coordinator: the reader of a file refuses that.
            FailMode::Closed | FailMode::Granted { .. } => (denied, 0),
            FailMode::Local { .. } => match self.go_on_alone(outage, tenant, cost) {
                // What never fits the part may fit the whole when the store is back.
                Some(decision) if decision.outcome == Outcome::Deny(Retry::Never) => (denied, 0),
                Some(decision) => return decision,
                None => (denied, 0),
            },
        };
        Decision { outcome, limit, remaining, reset_at: Micros::ZERO }
    }

    /// By the local part of the budget. Before the breaker opens there is none.
    fn go_on_alone(&self, outage: Option<Outage>, tenant: &[u8], cost: Cost) -> Option<Decision> {
        let (outage, rules) = (outage?, self.part.as_ref()?);
        // Windows of its own, on the clock that says when the outage began.
        let clock = &self.inner.store.settings().clock;
        let (_, alone) = self.alone.during(Some(outage), clock, |_, since| {
            let window = rules.window.us();
            let next = (since.epoch_us() / window + 1).saturating_mul(window);
            let from = Micros::saturating_from_epoch_us(next);
            Some(Arc::new(Mutex::new(Alone { from, escrow: Escrow::new(rules).ok()? })))
        })?;
        let now = clock.precise();
        let mut alone = alone.lock().unwrap_or_else(PoisonError::into_inner);
        if now < alone.from && cost.units() <= rules.limit {
            let outcome = Outcome::Deny(Retry::After(alone.from.since(now)));
            let (limit, reset_at) = (rules.limit, alone.from);
            return Some(Decision { outcome, limit, remaining: 0, reset_at });
        }
        Some(alone.escrow.check(tenant, now, cost))
    }

    /// The store has answered: what was counted here meanwhile is of no use any more.
    fn recovered(&self) {
        self.alone.recovered(&self.inner.store);
    }
}

impl<S: Store + 'static> Inner<S> {
    /// Leases in one's turn. Gives the turn back, and whether the answer came in time.
    async fn leased(
        inner: Arc<Self>,
        size: u64,
        turn: OwnedMutexGuard<()>,
    ) -> Result<(OwnedMutexGuard<()>, bool), StoreError> {
        let lived = inner.lease(size).await;
        if lived.is_err() {
            // Before the turn is free: whoever has it next must know.
            inner.failed.fetch_add(1, Ordering::Release);
        }
        Ok((turn, lived?))
    }

    /// Leases up to `size` credits, and fewer if fewer are left. Waits for the store's deadline;
    /// what is granted later is there for whoever asks next.
    async fn lease(self: &Arc<Self>, size: u64) -> Result<bool, StoreError> {
        let open = Open::among(self)?;
        self.leases.fetch_add(1, Ordering::Relaxed);
        // Before anything leaves: the window lasts at least its rest from here.
        let sent = self.now();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let inner = &open.0;
            let ask = Ask { need: 0, least: 0, want: size, round_trip: Span::ZERO };
            let (policy, strategy) = (&*inner.policy, &inner.strategy);
            let op = Op { policy, strategy, key: KEY, action: Action::Lease(ask) };
            let applied = inner.store.outlast(op, LIFETIME_MAX).await;
            let grant = applied.and_then(|it| it.answer.grant().ok_or(StoreError::Unreadable));
            let lived = grant.map(|grant| inner.take(sent, size, &grant));
            // Nobody waits for it any more if it is late.
            let _ = tell.send(lived);
        });
        let deadline = self.store.settings().deadline;
        match within(deadline, told).await {
            Some(told) => told.unwrap_or(Err(StoreError::Lost)),
            None => Err(StoreError::Timeout { waited: deadline }),
        }
    }

    /// Adds what was granted; says whether it was still alive.
    fn take(&self, sent: Micros, size: u64, grant: &Grant) -> bool {
        let (end, at) = (grant.decision.reset_at, grant.at);
        let mut state = self.lock();
        let now = self.now();
        let lived = state.escrow.grant(now, EscrowGrant::new(end, at, sent, grant.granted));
        if grant.granted < size || grant.decision.remaining == 0 {
            // Not before the store's window is over: it had this long left, a while ago.
            state.empty_until = now + end.since(at);
        }
        lived
    }

    /// Decides by what was leased, or by what is known not to be there.
    fn here(&self, tenant: &[u8], cost: Cost) -> Here {
        let mut state = self.lock();
        let now = self.now();
        let answer = state.escrow.check(tenant, now, cost);
        let mut decision = answer.decision;
        match answer.shortage {
            Some(_) if now >= state.empty_until => return Here::Short,
            // The credits die a little before the window ends; what comes next comes after it.
            Some(Shortage::Spent) => {
                decision.outcome = Outcome::Deny(Retry::After(state.empty_until.since(now)));
            }
            Some(Shortage::Claimed) | None => {}
        }
        Here::Decided(decision)
    }
}

/// A lease that was asked for and not yet answered.
struct Open<S>(Arc<Inner<S>>);

impl<S> Open<S> {
    fn among(inner: &Arc<Inner<S>>) -> Result<Self, StoreError> {
        let more = |open: usize| (open < OPEN_MAX).then(|| open + 1);
        let entered = inner.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        // A store that is slower than its deadline must not lose the whole budget to asks whose
        // answers nobody waits for.
        entered.map(|_| Self(Arc::clone(inner))).map_err(|_| StoreError::Unavailable)
    }
}

impl<S> Drop for Open<S> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<S> Inner<S> {
    fn now(&self) -> Micros {
        self.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> SharedEscrow<S> {
    /// What this process has leased and used in the current window, as of the latest check.
    #[must_use]
    pub fn stats(&self) -> EscrowStats {
        self.inner.lock().escrow.stats()
    }

    /// One tenant in the current window; `None` if it has no place there.
    #[must_use]
    pub fn tenant_stats(&self, tenant: &[u8]) -> Option<TenantStats> {
        self.inner.lock().escrow.tenant_stats(tenant)
    }

    /// How often the store was asked for credits.
    #[must_use]
    pub fn leases(&self) -> u64 {
        self.inner.leases.load(Ordering::Relaxed)
    }

    /// How many checks the fail mode has answered.
    #[must_use]
    pub fn answered_by_fail_mode(&self) -> u64 {
        self.by_fail_mode.load(Ordering::Relaxed)
    }

    /// What it answers when the store cannot.
    #[must_use]
    pub const fn fail(&self) -> FailMode {
        self.fail
    }
}

impl<S> fmt::Debug for SharedEscrow<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut escrow = f.debug_struct("SharedEscrow");
        escrow.field("policy", &self.inner.policy).field("fail", &self.fail);
        escrow.field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// One of those who wait for credits; the rest get the fail mode.
struct Waiter<'a>(&'a AtomicUsize);

impl<'a> Waiter<'a> {
    fn among(waiting: &'a AtomicUsize) -> Result<Self, StoreError> {
        let waiter = Self(waiting);
        if waiting.fetch_add(1, Ordering::Relaxed) < WAITERS_MAX {
            return Ok(waiter);
        }
        Err(StoreError::Unavailable)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counter's key: a policy has one.
const KEY: &[u8] = b"budget";

/// How many callers may wait for credits at once.
const WAITERS_MAX: usize = 1_024;

/// After this many grants in a row that were dead on arrival the store counts as too slow.
const STILLBORN_MAX: u32 = 2;

/// Leases that are not yet answered, at most.
const OPEN_MAX: usize = 4;
