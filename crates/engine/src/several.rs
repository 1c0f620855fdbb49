//! Several limits in one decision, all or nothing, over any limiters and keys.
//!
//! # Guarantee
//! - [`all`] charges every limit or none. A denial is decided by reads alone and leaves no trace;
//!   an admission becomes visible in every limit before any other decision can come between.
//! - [`any`] charges exactly one limit, the first in written order that admits.
//! - A limit and key that occur twice are charged the sum. Nothing is ever given back to a rate
//!   limit: a refund after somebody else's admission would admit too much.
//! - Threads that decide over the same limits in different orders do not block each other: locks
//!   and holds are taken in the order of addresses.
//!
//! # Proven by
//! `tests/it/several.rs`: equality with core, racing threads, no trace; `slots::tests` under
//! shuttle.
//!
//! # Example
//! ```
//! use admittance::{Cost, Gcra, Limiter, Span, Tat, all};
//! let per = |limit| Tat::gcra(Gcra { limit, period: Span::from_secs(60), burst: limit });
//! let (users, routes) = (Limiter::new(per(2)?), Limiter::new(per(3)?));
//! let check = |user, route| all(&[users.ask(user, Cost::ONE), routes.ask(route, Cost::ONE)]);
//! assert!(check("ann", "/search").decision.is_admit());
//! assert!(check("ann", "/search").decision.is_admit());
//! let denied = check("ann", "/search");
//! assert_eq!(denied.binding, Some(0), "ann has used up her own limit");
//! assert_eq!(routes.peek("/search").remaining, 1, "and the route was not charged for it");
//! # Ok::<(), admittance::Invalid>(())
//! ```

use std::sync::MutexGuard;

use admittance_core::{Cost, Decision, Micros, Several, Strategy};

use crate::clock::Reading;
use crate::key::Fingerprint;
use crate::limiter::{Together, full, never};
use crate::locked::{Locked, Shard, lock};
use crate::slots::{Held, Memory, Native, NotHeld, Table, Want, Word};
use crate::{Clock, Limiter};

/// One limit among several: a limiter, a key, a cost. Made by [`Limiter::ask`].
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a borrowed question with nothing to show")]
pub struct Ask<'a> {
    pub(crate) limit: Limit<'a>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) key: Fingerprint,
    pub(crate) cost: Cost,
    /// The limiter asked alone.
    pub(crate) alone: &'a dyn Alone,
}

/// Where the limit's states are.
#[derive(Clone, Copy)]
pub(crate) enum Limit<'a> {
    Slots(&'a Word, &'a Table<Native>),
    Locked(&'a dyn Lockable),
}

/// A limiter that decides by itself, whatever its strategy.
pub(crate) trait Alone {
    /// The instant that the limit is judged at.
    fn instant(&self, reading: Reading) -> Micros;
    fn decide(
        &self,
        key: Fingerprint,
        clock: &Together<'_, dyn Clock + '_>,
        cost: Cost,
    ) -> Decision;
    fn weigh(&self, key: Fingerprint, now: Micros, cost: Cost) -> Decision;
    fn peek(&self, key: Fingerprint, now: Micros) -> Decision;
}

/// A locked table of any strategy.
pub(crate) trait Lockable: Sync {
    /// The address of the key's shard.
    fn place(&self, key: Fingerprint) -> usize;
    /// Locks the key's shard.
    fn lock(&self, key: Fingerprint) -> Box<dyn Opened + '_>;
}

/// A locked shard of any strategy.
pub(crate) trait Opened {
    fn weigh(&mut self, key: Fingerprint, now: Micros, cost: Cost) -> Decision;
    fn charge(&mut self, key: Fingerprint, now: Micros, cost: Cost) -> Decision;
}

/// Admits only if every limit admits, and charges all of them or none. The instant is read from
/// the first limit's clock. No limits at all admit.
pub fn all(asks: &[Ask<'_>]) -> Several {
    match asks.first() {
        Some(first) => all_at(asks, &Together::at(first.clock)),
        None => Several::of_all(Vec::new()),
    }
}

pub(crate) fn all_at(asks: &[Ask<'_>], clock: &Together<'_, dyn Clock + '_>) -> Several {
    let merged = Merged::of(asks);
    let mut tries = 0;
    loop {
        // What the cheap clock admits is admitted; what it denies is judged by the precise one.
        let ahead_us = clock.wall_ahead_us();
        let mut reading = Reading { now: clock.now(), ahead_us };
        let mut attempt = merged.attempt(reading);
        if let Attempt::Denied(_) = attempt {
            reading.now = clock.precise();
            attempt = merged.attempt(reading);
        }
        match attempt {
            Attempt::Charged(decisions) | Attempt::Denied(decisions) => {
                return merged.answer(asks, &decisions, reading);
            }
            Attempt::Raced => Native::pause(tries),
        }
        tries += 1;
    }
}

/// Admits if one limit admits, and charges the first in written order that does. The instant is
/// read from the first limit's clock. No limits at all admit nothing.
pub fn any(asks: &[Ask<'_>]) -> Several {
    match asks.first() {
        Some(first) => any_at(asks, &Together::at(first.clock)),
        None => Several::denied_by_every(Vec::new()),
    }
}

pub(crate) fn any_at(asks: &[Ask<'_>], clock: &Together<'_, dyn Clock + '_>) -> Several {
    let mut each = Vec::with_capacity(asks.len());
    for (place, ask) in asks.iter().enumerate() {
        let decision = ask.alone.decide(ask.key, clock, ask.cost);
        each.push(decision);
        if decision.is_admit() {
            let reading = Reading { now: clock.now(), ahead_us: clock.wall_ahead_us() };
            each.extend(asks[place + 1..].iter().map(|rest| rest.untouched(reading)));
            return Several { decision, binding: Some(place), each };
        }
    }
    Several::denied_by_every(each)
}

/// What limits say that are not to be charged if one of them denies: nothing if none does.
pub(crate) fn denied_at(asks: &[Ask<'_>], now: Micros) -> Option<Several> {
    let reading = reading_at(asks, now);
    let weigh = |ask: &Ask<'_>| ask.alone.weigh(ask.key, ask.instant(reading), ask.cost);
    let weighed: Vec<Decision> = asks.iter().map(weigh).collect();
    if weighed.iter().all(Decision::is_admit) {
        return None;
    }
    let told = weighed.into_iter().zip(asks).map(|(decision, ask)| match decision.is_admit() {
        true => ask.alone.peek(ask.key, ask.instant(reading)),
        false => decision,
    });
    Some(Several::of_all(told.collect()))
}

/// What limits say that are not charged although all admit.
pub(crate) fn peeks_at(asks: &[Ask<'_>], now: Micros) -> Several {
    let reading = reading_at(asks, now);
    let peek = |ask: &Ask<'_>| ask.alone.peek(ask.key, ask.instant(reading));
    Several::of_all(asks.iter().map(peek).collect())
}

/// A reading of the first limit's clock that was made already.
fn reading_at(asks: &[Ask<'_>], now: Micros) -> Reading {
    Reading { now, ahead_us: asks.first().map_or(0, |ask| ask.clock.wall_ahead_us()) }
}

impl Ask<'_> {
    /// What a limit that is not charged reports.
    fn untouched(&self, reading: Reading) -> Decision {
        let now = self.instant(reading);
        let decision = self.alone.weigh(self.key, now, self.cost);
        if decision.is_admit() { self.alone.peek(self.key, now) } else { decision }
    }

    fn instant(&self, reading: Reading) -> Micros {
        self.alone.instant(reading)
    }

    /// The limiter, as a number.
    fn identity(&self) -> usize {
        std::ptr::from_ref(self.alone).cast::<()>().addr()
    }
}

/// The asks with repeated limits and keys added together.
struct Merged<'a> {
    asks: Vec<Ask<'a>>,
    /// Which merged ask each ask became.
    place_of: Vec<usize>,
    /// Merged asks that cost more together than any limit holds.
    excessive: Vec<usize>,
}

enum Attempt {
    Charged(Vec<Decision>),
    Denied(Vec<Decision>),
    /// Somebody else changed a limit between the reading and the writing.
    Raced,
}

impl<'a> Merged<'a> {
    fn of(asks: &[Ask<'a>]) -> Self {
        let mut merged: Vec<Ask<'a>> = Vec::with_capacity(asks.len());
        let mut place_of = Vec::with_capacity(asks.len());
        let mut excessive = Vec::new();
        for ask in asks {
            let is_same =
                |other: &Ask<'a>| other.identity() == ask.identity() && other.key == ask.key;
            match merged.iter().position(is_same) {
                Some(place) => {
                    let sum = merged[place].cost.checked_add(ask.cost);
                    if sum.is_none() {
                        excessive.push(place);
                    }
                    merged[place].cost = sum.unwrap_or(Cost::MAX);
                    place_of.push(place);
                }
                None => {
                    place_of.push(merged.len());
                    merged.push(*ask);
                }
            }
        }
        Self { asks: merged, place_of, excessive }
    }

    /// Reads everything, and if everything admits, charges everything. The locks come first, so
    /// that nobody waits for a lock while holding a slot.
    fn attempt(&self, reading: Reading) -> Attempt {
        let mut opened = self.open();
        let mut decisions = Vec::with_capacity(self.asks.len());
        let (mut wants, mut places) = (Vec::new(), Vec::new());
        for (place, ask) in self.asks.iter().enumerate() {
            let now = ask.instant(reading);
            match ask.limit {
                Limit::Slots(judge, table) => {
                    let weighed = table.weigh(judge, ask.key, now, ask.cost);
                    decisions.push(self.kept(place, table.max_keys(), weighed.decision));
                    wants.push(Want { table, judge, key: ask.key, now, weighed });
                    places.push(place);
                }
                Limit::Locked(table) => {
                    let shard = find(&mut opened, table.place(ask.key));
                    decisions.push(shard.weigh(ask.key, now, ask.cost));
                }
            }
        }
        for &place in &self.excessive {
            if decisions[place].is_admit() {
                decisions[place] = never(decisions[place]);
            }
        }
        if decisions.iter().any(|decision| !decision.is_admit()) {
            return Attempt::Denied(decisions);
        }
        match Held::all(&wants) {
            Ok(held) => held.write(),
            Err(NotHeld::Raced) => return Attempt::Raced,
            Err(NotHeld::NoRoom(want, room_at)) => {
                let (refused, now) = (places[want], wants[want].now);
                decisions[refused] = full(decisions[refused], room_at.since(now));
                return Attempt::Denied(decisions);
            }
            Err(NotHeld::Never(want)) => {
                decisions[places[want]] = never(decisions[places[want]]);
                return Attempt::Denied(decisions);
            }
        }
        for (ask, decision) in self.asks.iter().zip(&mut decisions) {
            if let Limit::Locked(table) = ask.limit {
                let shard = find(&mut opened, table.place(ask.key));
                *decision = shard.charge(ask.key, ask.instant(reading), ask.cost);
            }
        }
        Attempt::Charged(decisions)
    }

    /// Locks every shard that is asked, each once, in the order of their addresses.
    fn open(&self) -> Vec<(usize, Box<dyn Opened + 'a>)> {
        let mut places: Vec<(usize, &'a dyn Lockable, Fingerprint)> = Vec::new();
        for ask in &self.asks {
            if let Limit::Locked(table) = ask.limit {
                places.push((table.place(ask.key), table, ask.key));
            }
        }
        places.sort_by_key(|(place, ..)| *place);
        places.dedup_by_key(|(place, ..)| *place);
        places.into_iter().map(|(place, table, key)| (place, table.lock(key))).collect()
    }

    /// A decision over more keys of one table than it keeps can never be written.
    fn kept(&self, place: usize, max_keys: u64, decision: Decision) -> Decision {
        let same = |other: &&Ask<'_>| other.identity() == self.asks[place].identity();
        let earlier = self.asks[..place].iter().filter(same).count() as u64;
        match earlier < max_keys || !decision.is_admit() {
            true => decision,
            false => never(decision),
        }
    }

    /// The answer in the asks' own order.
    fn answer(&self, asks: &[Ask<'_>], decisions: &[Decision], reading: Reading) -> Several {
        let is_admitted = decisions.iter().all(Decision::is_admit);
        let each = self.place_of.iter().zip(asks).map(|(&place, ask)| match decisions[place] {
            decision if is_admitted || !decision.is_admit() => decision,
            _ => ask.alone.peek(ask.key, ask.instant(reading)),
        });
        Several::of_all(each.collect())
    }
}

fn find<'b, 'a>(
    opened: &'b mut [(usize, Box<dyn Opened + 'a>)],
    place: usize,
) -> &'b mut (dyn Opened + 'a) {
    let found = opened.iter_mut().find(|(at, _)| *at == place);
    found.expect("every shard that is asked was locked").1.as_mut()
}

/// A locked table and the strategy it runs.
impl<S, C> Lockable for Limiter<S, C>
where
    S: Strategy<State: Send> + Sync,
    C: Clock,
{
    fn place(&self, key: Fingerprint) -> usize {
        let shard = self.locked().map(|table| std::ptr::from_ref(table.shard(key)).addr());
        shard.unwrap_or(0)
    }

    fn lock(&self, key: Fingerprint) -> Box<dyn Opened + '_> {
        let table = self.locked().expect("only limiters with a locked table are asked to lock");
        let shard = lock(table.shard(key));
        Box::new(Guard { table, strategy: self.strategy(), new: 0, shard })
    }
}

struct Guard<'a, S: Strategy> {
    table: &'a Locked<S>,
    strategy: &'a S,
    /// New keys weighed so far: each needs room of its own.
    new: usize,
    shard: MutexGuard<'a, Shard<S::State>>,
}

impl<S: Strategy> Opened for Guard<'_, S> {
    fn weigh(&mut self, key: Fingerprint, now: Micros, cost: Cost) -> Decision {
        let earlier = self.new;
        self.new += usize::from(self.shard.get(key).is_none());
        self.table.weigh_in(&mut self.shard, self.strategy, key, now, cost, earlier)
    }

    fn charge(&mut self, key: Fingerprint, now: Micros, cost: Cost) -> Decision {
        self.table.step_in(&mut self.shard, self.strategy, key, now, cost)
    }
}
