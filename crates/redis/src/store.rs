//! The store.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admittance::lease::{self, GiveBack, Grant, LeaseId};
use admittance::store::lanes::Size;
use admittance::{
    Action, Answer, Applied, AppliedMany, AppliedSeveral, Builtin, Cell, Cells, Combine, Decision,
    Forecast, Group, Limit, Loaded, Many, Merged, Micros, Op, Several, Store, StoreError, Swap,
    Swapped,
};

use crate::ask::{Arg, Ask, CELLS_MAX, Item, Params, Told, UNREADABLE, What, decision, instant};
use crate::builder::{Builder, PolicyOptions};
use crate::carry::Carrier;
use crate::names::{name, slot};
use crate::scripts::{Family, Lendable, Script};
use crate::ways::Ways;

/// The store in Redis or Valkey: one server, the primary of a sentinel, or a cluster.
///
/// Built with [`RedisStore::builder`]; its clones are the same store.
///
/// A server runs one script at a time, and everybody else's asks wait for it. So one
/// [`check_many`](Store::check_many) may have at most [`CELLS_MAX`](Self::CELLS_MAX) cells: a key
/// of a sliding window has one per bucket and one more, a key of any other strategy has one. With
/// more it is [`StoreError::TooMany`], which says how many keys may be asked for at once, and
/// nothing is charged.
///
/// On a cluster, [`check_many`](Store::check_many) is one script per slot, all at the same time:
/// each slot's keys are checked at one instant, and the latest of those is the one that is given.
/// If one slot's server fails, the whole ask does: it is [`StoreError::Lost`] if the keys of the
/// others may have been charged. Limits that are decided together must share a slot: they do if
/// they have one key, or if their policies have one [`hash_tag`](crate::PolicyOptions::hash_tag).
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    ways: Ways,
    carrier: Arc<Carrier>,
    prefix: String,
    policies: HashMap<String, PolicyOptions>,
    clock: Clock,
    /// What tests call the server's life; nothing is the server's own word.
    life: Mutex<String>,
}

/// The server's clock, or the one that a test sets.
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn real() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    pub(crate) fn manual(now: Micros) -> Self {
        Self(AtomicU64::new(now.epoch_us()))
    }

    fn now(&self) -> Option<Micros> {
        Micros::from_epoch_us(self.0.load(Ordering::Acquire))
    }
}

impl RedisStore {
    /// The most cells that one ask may have.
    pub const CELLS_MAX: usize = CELLS_MAX;

    /// Starts from a URL: `redis://host`, `rediss://user:password@host:port/db`,
    /// `redis+cluster://host,host`, `redis+sentinel://host,host/name`, or the same with `valkey`.
    #[must_use]
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    pub(crate) fn start(
        carrier: Carrier,
        size: Size,
        prefix: String,
        policies: HashMap<String, PolicyOptions>,
        clock: Clock,
    ) -> Self {
        let carrier = Arc::new(carrier);
        let does_any_wait = policies.values().any(|options| options.wait_replicas > 0);
        let ways = Ways::start(Arc::clone(&carrier), size, does_any_wait);
        let life = Mutex::default();
        let shared = Shared { ways, carrier, prefix, policies, clock, life };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the clock of a store that was built with one.
    #[doc(hidden)]
    pub fn set_now(&self, now: Micros) {
        self.shared.clock.0.store(now.epoch_us(), Ordering::Release);
    }

    /// Says which life the server is in, to those that ask on behalf of a fleet.
    #[doc(hidden)]
    pub fn set_life(&self, life: &str) {
        life.clone_into(&mut self.shared.life.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn life(&self) -> String {
        self.shared.life.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs ops one after another, each at its own instant, in one round trip.
    ///
    /// # Errors
    /// The first that failed.
    #[doc(hidden)]
    pub async fn replay(&self, steps: &[(Micros, Op<'_>)]) -> Result<Vec<Applied>, StoreError> {
        let mut asks = Vec::with_capacity(steps.len());
        for (at, op) in steps {
            asks.push(Ask { now: Some(*at), ..self.asked(op)? });
        }
        let told = self.carry_in_order(asks).await;
        told.into_iter().zip(steps).map(|(told, (_, op))| applied(op, &told?)).collect()
    }

    /// The name that a key has in the server.
    #[doc(hidden)]
    #[must_use]
    pub fn stored_name(&self, policy: &str, strategy: &Builtin, key: &[u8]) -> Vec<u8> {
        self.name(policy, &strategy.shape().to_string(), key)
    }

    /// The name of something that is not a policy's key. It lies in the slot of `key`, or of the
    /// policy's hash tag.
    pub(crate) fn name_of(&self, shape: &str, policy: &str, key: &[u8]) -> Vec<u8> {
        let tag = self.options(policy).and_then(|options| options.hash_tag.as_deref());
        name(&self.shared.prefix, tag, "", shape, key)
    }

    pub(crate) fn name(&self, policy: &str, shape: &str, key: &[u8]) -> Vec<u8> {
        let tag = self.options(policy).and_then(|options| options.hash_tag.as_deref());
        name(&self.shared.prefix, tag, policy, shape, key)
    }

    fn options(&self, policy: &str) -> Option<&PolicyOptions> {
        self.shared.policies.get(policy)
    }

    pub(crate) fn replicas(&self, policy: &str) -> u32 {
        self.options(policy).map_or(0, |options| options.wait_replicas)
    }

    fn ask_of(&self, policy: &str, what: What) -> Ask {
        self.ask_now(what, self.replicas(policy))
    }

    fn asked(&self, op: &Op<'_>) -> Result<Ask, StoreError> {
        let (family, params) = Params::of(op.strategy)?;
        let name = self.stored_name(op.policy, op.strategy, op.key);
        let (script, params, cost) = match op.action {
            Action::Lease(ask) => {
                return Ok(self.lease(op.policy, name, lendable(family)?, params, ask));
            }
            Action::GiveBack(back) => {
                let marker = self.name(op.policy, &marker(back.id), op.key);
                let names = [name, marker, self.name(op.policy, RESET, op.key)];
                return Ok(self.give_back(names, lendable(family)?, params, back));
            }
            Action::Check(cost) => (Script::Check(family), params, cost.units()),
            Action::Peek => (Script::Peek(family), params, 1),
            Action::Forecast(cost) => (Script::Forecast(family), params, cost.units()),
            Action::Reset => {
                let mark = || self.name(op.policy, RESET, op.key);
                let mark = Lendable::of(family).is_some().then(mark);
                let keys = std::iter::once(name).chain(mark).collect();
                let what = What::Whole { script: Script::Reset, keys, args: Vec::new() };
                return Ok(self.ask_of(op.policy, what));
            }
            _ => return Err(refused("this version of the Redis store does not know the action")),
        };
        let items = vec![Item { name, cost }];
        Ok(self.ask_of(op.policy, What::Keys { script, params, items }))
    }

    fn lease(
        &self,
        policy: &str,
        name: Vec<u8>,
        family: Lendable,
        params: Params,
        ask: lease::Ask,
    ) -> Ask {
        let lease::Ask { need, least, want, round_trip } = ask.bounded();
        let args = numbers(&params, &[need, least, want, round_trip.us()]);
        self.ask_of(policy, What::Whole { script: Script::Lease(family), keys: vec![name], args })
    }

    fn give_back(
        &self,
        names: [Vec<u8>; 3],
        family: Lendable,
        params: Params,
        back: GiveBack,
    ) -> Ask {
        let GiveBack { units, granted_at, paid_until, .. } = back.bounded();
        let args = numbers(&params, &[units, granted_at.epoch_us(), paid_until.epoch_us()]);
        let (script, keys) = (Script::GiveBack(family), names.into());
        // What a failover undoes here is nobody's advantage: the units stay charged.
        self.ask_now(What::Whole { script, keys, args }, 0)
    }

    /// A script of its own; all its keys must share a slot of a cluster.
    pub(crate) async fn whole(
        &self,
        script: Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Arg>,
        replicas: u32,
    ) -> Result<Told, StoreError> {
        let told = self.ask(self.ask_now(What::Whole { script, keys, args }, replicas)).await?;
        told.into_iter().next().ok_or(StoreError::Unreadable)
    }

    pub(crate) fn ask_now(&self, what: What, replicas: u32) -> Ask {
        Ask { what, now: self.shared.clock.now(), replicas }
    }

    pub(crate) async fn ask(&self, ask: Ask) -> Result<Vec<Told>, StoreError> {
        self.shared.ways.ask(ask).await
    }

    pub(crate) async fn carry_in_order(
        &self,
        asks: Vec<Ask>,
    ) -> Vec<Result<Vec<Told>, StoreError>> {
        self.shared.carrier.carry_in_order(asks).await
    }

    /// The limits' names.
    pub(crate) fn names(&self, limits: &[Limit<'_>]) -> Vec<Vec<u8>> {
        let name = |limit: &Limit<'_>| self.stored_name(limit.policy, limit.strategy, limit.key);
        limits.iter().map(name).collect()
    }

    /// Refuses names that no script can have together.
    pub(crate) fn in_one_slot(&self, names: &[Vec<u8>]) -> Result<(), StoreError> {
        if self.shared.carrier.is_cluster() {
            let mut slots = names.iter().map(|name| slot(name));
            let first = slots.next();
            if slots.any(|slot| Some(slot) != first) {
                return Err(StoreError::AcrossSlots);
            }
        }
        Ok(())
    }
}

impl Store for RedisStore {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let ask = self.asked(&op)?;
        applied(&op, &self.shared.ways.ask(ask).await?)
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        many.checked()?;
        let (family, params) = Params::of(many.strategy)?;
        let (asked, max) = (many.keys.len(), params.keys_max());
        if asked > max {
            return Err(StoreError::TooMany { asked, max });
        }
        let (shape, cost) = (many.strategy.shape().to_string(), many.cost.units());
        let item = |key: &&[u8]| Item { name: self.name(many.policy, &shape, key), cost };
        let items: Vec<Item> = many.keys.iter().map(item).collect();
        if items.is_empty() {
            let at = self.whole(Script::Reset, Vec::new(), Vec::new(), 0).await?.at();
            return Ok(AppliedMany { decisions: Vec::new(), at });
        }
        let what = What::Keys { script: Script::Check(family), params, items };
        let told = self.shared.ways.ask(self.ask_of(many.policy, what)).await?;
        let (mut decisions, mut at) = (Vec::with_capacity(many.keys.len()), Micros::ZERO);
        for told in &told {
            at = at.max(told.at());
            decide_each(many.strategy.limit(), told, &mut decisions)?;
        }
        Ok(AppliedMany { decisions, at })
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        let merged = Merged::of(&group)?;
        let names = self.names(&merged.limits);
        self.in_one_slot(&names)?;
        let args = limit_args(&merged.limits)?;
        let replicas = merged.limits.iter().map(|limit| self.replicas(limit.policy)).max();
        let script = match group.combine {
            Combine::All => Script::All,
            Combine::Any => Script::Any,
            _ => return Err(refused("this version of the Redis store cannot combine so")),
        };
        let told = self.whole(script, names, args, replicas.unwrap_or(0)).await?;
        let Told::Numbers { at, numbers } = told else { return Err(StoreError::Unreadable) };
        if numbers == [UNREADABLE] {
            return Err(StoreError::Unreadable);
        }
        let each = decisions(&merged.limits, &numbers)?;
        let several = match group.combine {
            Combine::All => Several::of_all(each),
            _ => match each.iter().position(Decision::is_admit) {
                Some(first) => Several { decision: each[first], binding: Some(first), each },
                None => Several::denied_by_every(each),
            },
        };
        Ok(AppliedSeveral { several: merged.spread(several), at })
    }
}

impl Cells for RedisStore {
    async fn load(&self, cell: Cell<'_>) -> Result<Loaded, StoreError> {
        let told = self.whole(Script::Load, vec![self.cell(cell)], Vec::new(), 0).await?;
        match loaded(told)? {
            (LOADED_NOTHING | LOADED, loaded) => Ok(loaded),
            _ => Err(StoreError::Unreadable),
        }
    }

    async fn swap(&self, cell: Cell<'_>, swap: Swap<'_>) -> Result<Swapped, StoreError> {
        let given = |bytes: Option<&[u8]>| {
            [Arg::Number(bytes.is_some().into()), Arg::Bytes(bytes.unwrap_or_default().to_vec())]
        };
        let mut args = Vec::with_capacity(5);
        args.extend(given(swap.expected));
        args.extend(given(swap.new));
        // An expiry of 0 is not one to the server.
        args.push(Arg::Number(swap.idle_at.epoch_ms_ceil().max(1).cast_signed()));
        let replicas = self.replicas(cell.policy);
        let told = self.whole(Script::Swap, vec![self.cell(cell)], args, replicas).await?;
        match loaded(told)? {
            (SWAPPED, _) => Ok(Swapped::Done),
            (LOADED_NOTHING | LOADED, loaded) => Ok(Swapped::Conflict(loaded)),
            _ => Err(StoreError::Unreadable),
        }
    }
}

impl RedisStore {
    fn cell(&self, cell: Cell<'_>) -> Vec<u8> {
        // No built-in strategy's shape begins so: they do not meet.
        self.name(cell.policy, &["=", cell.shape].concat(), cell.key)
    }
}

fn loaded(told: Told) -> Result<(i64, Loaded), StoreError> {
    match told {
        Told::Cell { at, code, bytes } => Ok((code, Loaded { bytes, at })),
        Told::Numbers { .. } => Err(StoreError::Unreadable),
    }
}

/// Limits as the scripts of several read them: the family, the cost, the parameters.
pub(crate) fn limit_args(limits: &[Limit<'_>]) -> Result<Vec<Arg>, StoreError> {
    let mut args = Vec::with_capacity(limits.len() * 8);
    for limit in limits {
        let (family, params) = Params::of(limit.strategy)?;
        let numbers = [family.number(), limit.cost.units().cast_signed()];
        let numbers = numbers.iter().chain(params.numbers());
        args.extend(numbers.map(|&number| Arg::Number(number)));
    }
    Ok(args)
}

/// What limits say from the three numbers that a script told of each.
pub(crate) fn decisions(
    limits: &[Limit<'_>],
    numbers: &[i64],
) -> Result<Vec<Decision>, StoreError> {
    let numbers = numbers.chunks(3).zip(limits);
    numbers.map(|(numbers, limit)| decision(limit.strategy.limit(), numbers)).collect()
}

fn decide_each(limit: u64, told: &Told, into: &mut Vec<Decision>) -> Result<(), StoreError> {
    let Told::Numbers { numbers, .. } = told else { return Err(StoreError::Unreadable) };
    for numbers in numbers.chunks(3) {
        into.push(decision(limit, numbers)?);
    }
    Ok(())
}

/// The answer to an op of one key.
fn applied(op: &Op<'_>, told: &[Told]) -> Result<Applied, StoreError> {
    let [Told::Numbers { at, numbers }] = told else { return Err(StoreError::Unreadable) };
    let answer = match (op.action, numbers.as_slice()) {
        (Action::Reset, [found]) => Answer::Reset(*found > 0),
        (Action::Forecast(_), [UNREADABLE, ..]) => return Err(StoreError::Unreadable),
        (Action::Forecast(_), &[spendable, soon, full]) => Answer::Forecast(Forecast {
            spendable_now: spendable.unsigned_abs(),
            next_replenish_at: instant(soon),
            full_at: instant(full),
        }),
        (Action::Lease(_), [decided @ .., granted]) => Answer::Lease(Grant {
            granted: granted.unsigned_abs(),
            decision: decision(op.strategy.limit(), decided)?,
            at: *at,
        }),
        (Action::GiveBack(_), [UNREADABLE]) => return Err(StoreError::Unreadable),
        (Action::GiveBack(_), [restored]) => Answer::GivenBack(restored.unsigned_abs()),
        (_, numbers) => Answer::Decision(decision(op.strategy.limit(), numbers)?),
    };
    Ok(Applied { answer, at: *at })
}

/// The family, if its limits can be leased.
fn lendable(family: Family) -> Result<Lendable, StoreError> {
    Lendable::of(family).ok_or(StoreError::NotLeasable)
}

/// Stands where a shape does in the name of what says that a lease has been given back. No shape of
/// a strategy begins so, and a key's names share its slot.
fn marker(id: LeaseId) -> String {
    format!("-{:x}-{:x}", id.incarnation, id.count)
}

/// A strategy's parameters, and then what is asked.
fn numbers(params: &Params, asked: &[u64]) -> Vec<Arg> {
    let asked = asked.iter().map(|number| number.cast_signed());
    params.numbers().iter().copied().chain(asked).map(Arg::Number).collect()
}

fn refused(detail: &str) -> StoreError {
    StoreError::Refused { detail: detail.into() }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut store = f.debug_struct("RedisStore");
        store.field("servers", &self.shared.carrier).field("prefix", &self.shared.prefix);
        store.finish_non_exhaustive()
    }
}

/// Stands where a shape does in the name of what remembers when a key was reset.
const RESET: &str = "-reset";
/// What the cell scripts answer.
const LOADED_NOTHING: i64 = 0;
const LOADED: i64 = 1;
const SWAPPED: i64 = 2;
