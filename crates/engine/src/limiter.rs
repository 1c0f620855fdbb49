//! A limit over many keys, decided in this process.
//!
//! # Guarantee
//! - However many threads race on one key, they admit exactly what one after another would.
//! - No allocation per check, no timer, no sweeper; memory is bounded by `max_keys`.
//! - A denial charges nothing.
//!
//! # Proven by
//! The conformance suite of `admittance-testkit`, `tests/it/race.rs`, `tests/it/bounded.rs` and
//! `tests/allocation.rs`.

mod former;

use std::fmt;
use std::sync::{Arc, OnceLock};

use admittance_core::{Builtin, Cost, Decision, Forecast, Micros, Outcome, Retry, Span, Strategy};

use crate::clock::{Reading, Wall};
use crate::key::{Fingerprint, Secret};
use crate::locked::{Locked, lock};
use crate::several::{Alone, Ask, Limit};
use crate::slots::{self, Layout, Native, Word, with_judge};
use crate::{Clock, Key, SystemClock};

/// A limit over many keys.
///
/// # Example
/// ```
/// use admittance::{Cost, Limiter, ManualClock, Micros, Span, Window};
/// let clock = ManualClock::at(Micros::ZERO);
/// let limiter = Limiter::builder(Window::fixed(100, Span::from_secs(60))?)
///     .max_keys(10_000)
///     .clock(clock.clone())
///     .build();
/// let forty = Cost::new(40).expect("not zero");
/// assert!(limiter.check_cost("job", forty).is_admit());
/// assert!(limiter.check_cost("job", forty).is_admit());
/// assert!(!limiter.check_cost("job", forty).is_admit());
/// clock.advance(Span::from_secs(60));
/// assert!(limiter.check_cost("job", forty).is_admit());
/// # Ok::<(), admittance::Invalid>(())
/// ```
pub struct Limiter<S: Strategy = Builtin, C = SystemClock> {
    strategy: S,
    clock: C,
    secret: Secret,
    table: Table<S>,
    /// The limiter whose place this one took, while it has keys that are not here.
    former: Option<Box<dyn former::Before<S, C>>>,
}

/// Where the keys' states live.
#[expect(clippy::large_enum_variant, reason = "a box would cost every check a line")]
pub(crate) enum Table<S: Strategy> {
    /// The strategy's state is one word, and this processor can swap it together with the key.
    Slots(Word, slots::Table<Native>),
    Locked(Arc<Locked<S>>),
}

/// Requests that are decided at one instant. Made by [`Limiter::batch`].
#[expect(missing_debug_implementations, reason = "a borrowed question with nothing to show")]
pub struct Batch<'a, S: Strategy, C: Clock> {
    limiter: &'a Limiter<S, C>,
    clock: Together<'a, C>,
    cost: Cost,
}

impl<S: Strategy, C: Clock> Batch<'_, S, C> {
    /// Decides a request for each key, repeated keys in order, and adds one decision per key.
    pub fn check<K: Key>(&self, keys: &[K], decisions: &mut Vec<Decision>) {
        self.limiter.check_batch(keys, &self.clock, self.cost, decisions);
    }
}

/// What a limiter does with a new key when it may not keep any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFull {
    /// Forget the key with the least of its limit in use among the new key's neighbours, or one
    /// further off if they have all used much of theirs. It can then pass one burst more than its
    /// limit; [`Stats::evictions`] counts how often that was.
    #[default]
    Evict,
    /// Deny the new key.
    Deny,
}

/// What a limiter holds and has had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys held, those not yet reused after going idle included.
    pub keys: u64,
    /// Live keys forgotten to make room.
    pub evictions: u64,
    /// New keys that a check denied because there was no room.
    pub refusals: u64,
}

/// Builds a [`Limiter`].
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct LimiterBuilder<S, C> {
    strategy: S,
    word: Option<Word>,
    clock: C,
    max_keys: u64,
    on_full: OnFull,
}

impl Limiter {
    /// A limiter on the system clock that keeps as many keys as
    /// [`max_keys_default`](Self::max_keys_default) says: a million if their states are small.
    #[must_use]
    pub fn new(strategy: impl Into<Builtin>) -> Self {
        Self::builder(strategy).build()
    }

    /// A limiter with something other than the defaults.
    pub fn builder(strategy: impl Into<Builtin>) -> LimiterBuilder<Builtin, SystemClock> {
        let strategy = strategy.into();
        let max_keys = Self::max_keys_default(&strategy);
        LimiterBuilder { word: Word::of(&strategy), max_keys, ..LimiterBuilder::of(strategy) }
    }
}

impl<S: Strategy> Limiter<S> {
    /// A limiter that runs a strategy of your own.
    pub fn custom(strategy: S) -> LimiterBuilder<S, SystemClock> {
        LimiterBuilder::of(strategy)
    }
}

impl<S: Strategy> LimiterBuilder<S, SystemClock> {
    fn of(strategy: S) -> Self {
        let (clock, on_full) = (SystemClock::new(), OnFull::Evict);
        Self { strategy, word: None, clock, max_keys: MAX_KEYS_DEFAULT, on_full }
    }
}

impl<S: Strategy, C: Clock> LimiterBuilder<S, C> {
    /// How many keys are kept at most; at least one. Unless said otherwise it is what
    /// [`Limiter::max_keys_default`] gives, and a million for a strategy of your own. The table for
    /// strategies with larger states divides them among its shards, so that a shard may be full
    /// when the table is not quite.
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys: max_keys.clamp(1, MAX_KEYS_MAX), ..self }
    }

    /// What happens to a new key when there is no room.
    pub fn on_full(self, on_full: OnFull) -> Self {
        Self { on_full, ..self }
    }

    /// Where time comes from.
    pub fn clock<D: Clock>(self, clock: D) -> LimiterBuilder<S, D> {
        let Self { strategy, word, clock: _, max_keys, on_full } = self;
        LimiterBuilder { strategy, word, clock, max_keys, on_full }
    }

    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S, C> {
        let table = match self.word {
            Some(word) if Native::is_supported() => {
                let layout = Layout::for_bits(word.bits());
                Table::Slots(word, slots::Table::new(layout, self.max_keys, self.on_full))
            }
            _ => Table::Locked(Arc::new(Locked::new(self.max_keys, self.on_full))),
        };
        let (strategy, clock) = (self.strategy, self.clock);
        Limiter { strategy, clock, secret: Secret::of_process(), table, former: None }
    }

    pub(crate) const fn strategy(&self) -> &S {
        &self.strategy
    }

    /// A table that limiters by other numbers can [share](Limiter::sharing): its states say what
    /// they were written under.
    pub(crate) fn shared_table(&self) -> Arc<Locked<S>> {
        Arc::new(Locked::new(self.max_keys, self.on_full))
    }
}

impl<S: Strategy, C> Limiter<S, C> {
    /// A limiter over keys that others have too.
    pub(crate) fn sharing(strategy: S, clock: C, table: Arc<Locked<S>>) -> Self {
        Self {
            strategy,
            clock,
            secret: Secret::of_process(),
            table: Table::Locked(table),
            former: None,
        }
    }
}

impl<S: Strategy, C: Clock> Limiter<S, C> {
    /// Decides a request of cost 1.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        self.check_cost(key, Cost::ONE)
    }

    /// Decides a request.
    #[inline]
    pub fn check_cost(&self, key: impl Key, cost: Cost) -> Decision {
        self.decide(self.hash(&key), &self.clock, cost)
    }

    /// Decides a request for each key, all at one instant, repeated keys in order. `decisions` is
    /// emptied first and then holds one decision per key.
    pub fn check_many<K: Key>(&self, keys: &[K], cost: Cost, decisions: &mut Vec<Decision>) {
        let _ = self.check_many_at(keys, cost, decisions);
    }

    /// The same, and which instant it was.
    pub(crate) fn check_many_at<K: Key>(
        &self,
        keys: &[K],
        cost: Cost,
        decisions: &mut Vec<Decision>,
    ) -> Micros {
        decisions.clear();
        let batch = self.batch(cost);
        batch.check(keys, decisions);
        batch.clock.now()
    }

    /// Requests of one cost that are decided at one instant, which is read now, although they are
    /// asked for a part at a time.
    ///
    /// # Example
    /// ```
    /// use admittance::{Cost, Limiter, Span, Window};
    /// let limiter = Limiter::new(Window::fixed(1, Span::from_secs(60))?);
    /// let (batch, mut decisions) = (limiter.batch(Cost::ONE), Vec::new());
    /// for part in ["ann", "bob", "ann"].chunks(2) {
    ///     batch.check(part, &mut decisions);
    ///     // Others may have their turn here.
    /// }
    /// assert!(decisions[1].is_admit() && !decisions[2].is_admit());
    /// # Ok::<(), admittance::Invalid>(())
    /// ```
    pub fn batch(&self, cost: Cost) -> Batch<'_, S, C> {
        Batch { limiter: self, clock: Together::precisely(&self.clock), cost }
    }

    fn check_batch<K: Key>(
        &self,
        keys: &[K],
        clock: &Together<'_, C>,
        cost: Cost,
        decisions: &mut Vec<Decision>,
    ) {
        decisions.reserve(keys.len());
        // The strategy is found once for all: each gets a loop of its own.
        match &self.table {
            Table::Slots(Word::Tat(judge), table) => {
                let (fetch, decide) =
                    (|key| table.prefetch(key), |key| table.check(judge, key, clock, cost));
                self.in_batches(keys, decisions, fetch, decide);
            }
            Table::Slots(Word::Window(judge), table) => {
                let clock = &Wall(clock);
                let (fetch, decide) =
                    (|key| table.prefetch(key), |key| table.check(judge, key, clock, cost));
                self.in_batches(keys, decisions, fetch, decide);
            }
            Table::Locked(table) => {
                let now = self.instant(clock);
                let decide = |key| table.step(&self.strategy, key, now, cost);
                self.in_batches(keys, decisions, |_| {}, decide);
            }
        }
    }

    /// Decides keys in order, having asked for the memory of several at once.
    #[inline(always)]
    fn in_batches<K: Key>(
        &self,
        keys: &[K],
        decisions: &mut Vec<Decision>,
        fetch: impl Fn(Fingerprint),
        decide: impl Fn(Fingerprint) -> Decision,
    ) {
        for batch in keys.chunks(BATCH) {
            batch.iter().for_each(Key::prefetch);
            let mut hashes = [Fingerprint::new(0); BATCH];
            for (slot, key) in hashes.iter_mut().zip(batch) {
                *slot = self.hash(key);
                fetch(*slot);
            }
            decisions.extend(hashes[..batch.len()].iter().map(|&key| decide(key)));
        }
    }

    /// Whether a request of cost 1 would be admitted, and what remains. Charges nothing.
    pub fn peek(&self, key: impl Key) -> Decision {
        Alone::peek(self, self.hash(&key), self.instant(&self.clock))
    }

    /// How many requests of `cost` would pass now, and when that changes. Charges nothing.
    pub fn forecast(&self, key: impl Key, cost: Cost) -> Forecast {
        self.forecast_at(self.hash(&key), self.instant(&self.clock), cost)
    }

    /// Forgets a key, as if it had never been seen; says whether there was anything to forget.
    pub fn reset(&self, key: impl Key) -> bool {
        self.forget(self.hash(&key))
    }

    /// What the limiter holds and has had to do.
    pub fn stats(&self) -> Stats {
        match &self.table {
            Table::Slots(_, table) => table.stats(),
            Table::Locked(table) => table.stats(),
        }
    }

    /// The strategy that decides.
    pub const fn strategy(&self) -> &S {
        &self.strategy
    }

    /// Where time comes from.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// The table, if limiters by other numbers can [share](Self::sharing) it.
    pub(crate) fn shared(&self) -> Option<Arc<Locked<S>>> {
        match &self.table {
            Table::Slots(..) => None,
            Table::Locked(table) => Some(Arc::clone(table)),
        }
    }

    pub(crate) fn locked(&self) -> Option<&Locked<S>> {
        match &self.table {
            Table::Slots(..) => None,
            Table::Locked(table) => Some(table),
        }
    }

    pub(crate) fn forecast_at(&self, key: Fingerprint, now: Micros, cost: Cost) -> Forecast {
        match &self.table {
            Table::Slots(word, table) => {
                with_judge!(word, |judge| table.forecast(judge, key, now, cost))
            }
            Table::Locked(table) => table.forecast(&self.strategy, key, now, cost),
        }
    }

    pub(crate) fn forget(&self, key: Fingerprint) -> bool {
        match &self.table {
            Table::Slots(_, table) => table.reset(key),
            Table::Locked(table) => table.reset(key),
        }
    }

    pub(crate) const fn table(&self) -> &Table<S> {
        &self.table
    }

    /// The key, whose state is here from now on.
    #[inline(always)]
    pub(crate) fn hash<K: Key + ?Sized>(&self, key: &K) -> Fingerprint {
        let key = self.secret.hash(key);
        self.meet(key);
        key
    }

    /// The hash of a name that is no key.
    pub(crate) fn hash_of(&self, name: &str) -> Fingerprint {
        self.secret.hash(name)
    }

    /// Has a key's state from the limiter whose place this one took.
    #[inline(always)]
    fn meet(&self, key: Fingerprint) {
        if let Some(former) = &self.former {
            former.bring(key, self);
        }
    }

    #[inline(always)]
    pub(crate) fn decide(&self, key: Fingerprint, clock: &impl Clock, cost: Cost) -> Decision {
        match &self.table {
            Table::Slots(Word::Tat(judge), table) => table.check(judge, key, clock, cost),
            Table::Slots(Word::Window(judge), table) => table.check(judge, key, &Wall(clock), cost),
            Table::Locked(table) => table.step(&self.strategy, key, self.instant(clock), cost),
        }
    }

    /// The instant to judge at, by this clock.
    pub(crate) fn instant(&self, clock: &impl Clock) -> Micros {
        let reading = Reading { now: clock.precise(), ahead_us: clock.wall_ahead_us() };
        reading.of(&self.strategy)
    }
}

impl<S: Strategy<State: Send> + Sync, C: Clock> Limiter<S, C> {
    /// This limit as one of several, for [`all`](crate::all) and [`any`](crate::any).
    pub fn ask(&self, key: impl Key, cost: Cost) -> Ask<'_> {
        let limit = match &self.table {
            Table::Slots(word, table) => Limit::Slots(word, table),
            Table::Locked(_) => Limit::Locked(self),
        };
        Ask { limit, clock: &self.clock, key: self.hash(&key), cost, alone: self }
    }
}

impl<S: Strategy, C: Clock> Alone for Limiter<S, C> {
    fn instant(&self, reading: Reading) -> Micros {
        reading.of(&self.strategy)
    }

    fn decide(
        &self,
        key: Fingerprint,
        clock: &Together<'_, dyn Clock + '_>,
        cost: Cost,
    ) -> Decision {
        self.decide(key, clock, cost)
    }

    fn weigh(&self, key: Fingerprint, now: Micros, cost: Cost) -> Decision {
        match &self.table {
            Table::Slots(word, table) => {
                with_judge!(word, |judge| table.weigh(judge, key, now, cost).decision)
            }
            Table::Locked(table) => {
                table.weigh_in(&mut lock(table.shard(key)), &self.strategy, key, now, cost, 0)
            }
        }
    }

    fn peek(&self, key: Fingerprint, now: Micros) -> Decision {
        match &self.table {
            Table::Slots(word, table) => with_judge!(word, |judge| table.peek(judge, key, now)),
            Table::Locked(table) => table.peek(&self.strategy, key, now),
        }
    }
}

impl<S: Strategy + fmt::Debug, C: Clock> fmt::Debug for Limiter<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut limiter = f.debug_struct("Limiter");
        limiter.field("strategy", &self.strategy).field("stats", &self.stats());
        limiter.finish_non_exhaustive()
    }
}

/// One reading for decisions that are made together: one cheap, and one precise if that denies.
pub(crate) struct Together<'a, C: Clock + ?Sized> {
    clock: &'a C,
    now: Micros,
    precise: OnceLock<Micros>,
    ahead_us: i64,
}

impl<'a, C: Clock + ?Sized> Together<'a, C> {
    pub(crate) fn at(clock: &'a C) -> Self {
        let now = clock.now();
        Self { clock, now, precise: OnceLock::new(), ahead_us: clock.wall_ahead_us() }
    }

    /// One reading for all: many decisions share its price, and are made at one instant even if
    /// some of them deny.
    pub(crate) fn precisely(clock: &'a C) -> Self {
        Self::fixed(clock, clock.precise())
    }

    /// A reading that somebody has made already.
    pub(crate) fn fixed(clock: &'a C, now: Micros) -> Self {
        Self { clock, now, precise: OnceLock::from(now), ahead_us: clock.wall_ahead_us() }
    }

    /// The same for limits that are judged at that instant, also if they go by the wall clock.
    pub(crate) fn at_instant(clock: &'a C, now: Micros) -> Self {
        Self { ahead_us: 0, ..Self::fixed(clock, now) }
    }
}

impl<C: Clock + ?Sized> Clock for Together<'_, C> {
    fn now(&self) -> Micros {
        self.now
    }

    fn precise(&self) -> Micros {
        *self.precise.get_or_init(|| self.clock.precise())
    }

    fn wall_ahead_us(&self) -> i64 {
        self.ahead_us
    }
}

/// A decision made at an instant later than the caller's: waits grow by the difference.
pub(crate) fn judged_later(decision: Decision, by: Span) -> Decision {
    match decision.outcome {
        Outcome::Deny(Retry::After(wait)) => {
            let wait = Span::from_us(wait.us() + by.us());
            Decision { outcome: Outcome::Deny(Retry::After(wait)), ..decision }
        }
        Outcome::Admit | Outcome::Deny(Retry::Never) => decision,
    }
}

/// What would have been admitted had there been room for the key.
pub(crate) fn full(admitted: Decision, wait: Span) -> Decision {
    let outcome = Outcome::Deny(Retry::After(wait.max(Span::TICK)));
    Decision { outcome, remaining: 0, ..admitted }
}

/// What would have been admitted were there ever room for the key beside the others.
pub(crate) fn never(admitted: Decision) -> Decision {
    Decision { outcome: Outcome::Deny(Retry::Never), remaining: 0, ..admitted }
}

/// As many keys as the processor can fetch lines for at once.
const BATCH: usize = 16;
/// What a custom strategy's states take is not known here.
const MAX_KEYS_DEFAULT: u64 = 1_000_000;
/// More than any machine's memory holds.
const MAX_KEYS_MAX: u64 = 1 << 36;
