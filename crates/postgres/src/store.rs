//! The store: what a policy's caller asks, as asks of the database.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use admittance::lease::{self, GiveBack, Grant};
use admittance::store::lanes::{Lanes, Size};
use admittance::{
    Action, Answer, Applied, AppliedMany, AppliedSeveral, Builtin, Cell, Cells, Combine, Cost,
    Decision, Forecast, Group, Limit, Loaded, Many, Merged, Micros, Op, Outcome, Retry, Several,
    Span, Store, StoreError, Swap, Swapped,
};
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;

use crate::address::{Address, InvalidUrl};
use crate::carry::{Answered, Ask, Asked, Carrier, OwnedSwap};
use crate::key::{Kind, stored};
use crate::link::{Link, Plan};
#[cfg(feature = "testing")]
use crate::reaper::Pages;
use crate::reaper::{Reaped, Reaper};
use crate::spec::{Spec, number, spec};
use crate::statements::Durability;
use crate::{InvalidTableName, TableName};

/// State in Postgres, shared by every process that uses the same database, table name and prefix.
///
/// It lives within a tokio runtime, where its connections are kept up until it is dropped.
pub struct PostgresStore {
    lanes: Lanes<Carrier>,
    pub(crate) names: Arc<Names>,
    links: Vec<Link>,
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "only tests set it"))]
    hook: Arc<AtomicI64>,
    /// The life of the store instead of the server's, for tests.
    #[cfg(feature = "testing")]
    life: std::sync::Mutex<Option<String>>,
    reaper: Reaper,
    reaping: Option<AbortHandle>,
}

/// How policies are stored.
#[derive(Debug)]
pub(crate) struct Names {
    prefix: String,
    unlogged: HashSet<String>,
}

/// What a [`PostgresStore`] is made of.
#[derive(Clone)]
pub struct Builder {
    url: String,
    table: String,
    prefix: String,
    connections: usize,
    batch_max: usize,
    queue_max: usize,
    unlogged: HashSet<String>,
    reap_every: Option<Duration>,
    migrates: bool,
    answer_within: Duration,
    rehearses: bool,
}

/// Why a [`PostgresStore`] was not made. A server that is away is no reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// The table's name cannot be used.
    #[error(transparent)]
    Table(#[from] InvalidTableName),
}

impl Builder {
    /// What the tables and functions are called; `admittance` if nobody says otherwise.
    #[must_use]
    pub fn table(self, table: impl Into<String>) -> Self {
        Self { table: table.into(), ..self }
    }

    /// Keeps this store's keys apart from those of others in the same tables.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// How many connections there are, at least one; eight if nobody says otherwise. There is one
    /// more for the reaper.
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        Self { connections: connections.max(1), ..self }
    }

    /// How many asks travel in one batch at most; one turns coalescing off.
    #[must_use]
    pub fn batch_max(self, batch_max: usize) -> Self {
        Self { batch_max: batch_max.max(1), ..self }
    }

    /// How many asks wait for a connection at most. One more is told that the store is
    /// unavailable.
    #[must_use]
    pub fn queue_max(self, queue_max: usize) -> Self {
        Self { queue_max: queue_max.max(1), ..self }
    }

    /// Keeps a policy's state in an unlogged table: faster, and forgotten if the server crashes,
    /// as if every key were new. Policies are durable unless this says otherwise.
    #[must_use]
    pub fn unlogged(mut self, policy: impl Into<String>) -> Self {
        self.unlogged.insert(policy.into());
        self
    }

    /// How often idle rows are looked for; never with `None`.
    #[must_use]
    pub fn reap_every(self, reap_every: Option<Duration>) -> Self {
        Self { reap_every, ..self }
    }

    /// Whether tables and functions are installed when the server is first reached. On unless
    /// said otherwise; without, somebody runs [`migrate`](crate::migrate) before.
    #[must_use]
    pub fn migrates(self, migrates: bool) -> Self {
        Self { migrates, ..self }
    }

    /// How long an answer may take before its connection is given up; two seconds if nobody says
    /// otherwise. The server stops a statement at half of it, and at a quarter one that waits for a
    /// row.
    #[must_use]
    pub fn answer_within(self, answer_within: Duration) -> Self {
        Self { answer_within, ..self }
    }

    /// Leaves the functions to be called for the first time by who asks: for tests that count what
    /// is written.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn unrehearsed(self) -> Self {
        Self { rehearses: false, ..self }
    }

    /// Makes the store and waits until each connection was tried and is ready to decide, ten
    /// seconds at most. If the server is away, the store says [`StoreError::Unavailable`] until it
    /// is there.
    ///
    /// # Errors
    /// The URL or the table's name cannot be used.
    pub async fn connect(self) -> Result<PostgresStore, BuildError> {
        let store = self.build()?;
        let tried = async {
            for link in &store.links {
                link.tried().await;
            }
        };
        // What is not there by then is found later, as after any break.
        let _ = tokio::time::timeout(CONNECT_MAX, tried).await;
        Ok(store)
    }

    fn build(self) -> Result<PostgresStore, BuildError> {
        let address: Address = self.url.parse()?;
        let table: TableName = self.table.parse()?;
        let migrated = Arc::new(OnceCell::new());
        let answer_within = self.answer_within;
        let migrates = self.migrates;
        let names = Arc::new(Names { prefix: self.prefix, unlogged: self.unlogged });
        let plan = Plan { address, table, migrates, answer_within, migrated, rehearsed: None };
        let rehearsed = self.rehearses.then(|| Arc::clone(&names));
        let rehearsed = Plan { rehearsed, ..plan.clone() };
        let rehearsed = Arc::new(rehearsed);
        let links: Vec<Link> =
            (0..self.connections).map(|_| Link::start(Arc::clone(&rehearsed))).collect();
        let hook = Arc::new(AtomicI64::new(-1));
        let carrier = Carrier { links: links.clone(), answer_within, hook: Arc::clone(&hook) };
        let size =
            Size { lanes: self.connections, batch_max: self.batch_max, queue_max: self.queue_max };
        let reaper = Reaper::new(Link::start(Arc::new(plan)), Arc::clone(&hook), answer_within);
        let reaping =
            self.reap_every.map(|every| tokio::spawn(reaper.clone().run(every)).abort_handle());
        Ok(PostgresStore {
            lanes: Lanes::start(size, Arc::new(carrier)),
            names,
            links,
            hook,
            #[cfg(feature = "testing")]
            life: std::sync::Mutex::default(),
            reaper,
            reaping,
        })
    }
}

impl PostgresStore {
    /// How long a decision should wait for it: a commit on a busy machine takes tens of
    /// milliseconds, and callers that race for one key wait for each other's.
    pub const DEADLINE: Span = Span::from_ms(250);

    /// A store at a URL: `postgres://user:password@host:5432/database?sslmode=require`.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            table: TableName::default().to_string(),
            prefix: String::new(),
            connections: 8,
            batch_max: 128,
            queue_max: 10_000,
            unlogged: HashSet::new(),
            reap_every: Some(Duration::from_secs(5)),
            migrates: true,
            answer_within: Duration::from_secs(2),
            rehearses: true,
        }
    }

    /// Deletes what has been idle for a minute, in small steps, over all tables.
    ///
    /// # Errors
    /// The database could not answer; what was deleted until then stays deleted.
    pub async fn reap(&self) -> Result<Reaped, StoreError> {
        self.reaper.sweep().await
    }

    /// What the reaper in the background does at a tick.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn reap_at_a_tick(&self) -> Reaped {
        self.reaper.turn(&mut Pages::default()).await
    }

    /// Whether every connection is there, and has run what it will be asked.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected() == self.links.len()
    }

    /// How many connections are there.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.links.iter().filter(|link| link.ready().is_ok()).count()
    }

    /// Decides at this instant instead of the server's clock; `None` goes back to it.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn set_now(&self, now: Option<Micros>) {
        let now = now.map_or(-1, |now| number(now.epoch_us()));
        self.hook.store(now, std::sync::atomic::Ordering::Relaxed);
    }

    /// Takes the store to be in this life instead of the server's; `None` goes back to it.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn set_life(&self, life: Option<&str>) {
        *self.life.lock().expect("nobody panics with it") = life.map(str::to_owned);
    }

    #[cfg(feature = "testing")]
    pub(crate) fn life(&self) -> Option<String> {
        self.life.lock().expect("nobody panics with it").clone()
    }

    /// The server says which it is.
    #[cfg(not(feature = "testing"))]
    pub(crate) fn life(&self) -> Option<String> {
        None
    }

    /// The arguments of the function that decides one key: its row's key and its strategy.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn arguments(&self, policy: &str, strategy: &Builtin, key: &[u8]) -> (Vec<u8>, Vec<i64>) {
        let asked = self.names.asked(policy, strategy, key).expect("a strategy that is known");
        (asked.key, asked.spec.to_vec())
    }

    /// What the functions of leases take beside a key and a strategy.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn lent(action: Action) -> [i64; 5] {
        match action {
            Action::Lease(ask) => {
                let [needed, enough, wished, trip] = leased(ask);
                [needed, enough, wished, trip, 0]
            }
            Action::GiveBack(back) => given_back(back),
            _ => [0; 5],
        }
    }

    /// What the numbers that a function gave mean.
    ///
    /// # Errors
    /// They mean nothing.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn read(op: &Op<'_>, numbers: &[i64]) -> Result<Applied, StoreError> {
        applied(op, numbers)
    }

    /// The stored name of a fleet, or of the owner of leases.
    pub(crate) fn stored_name(&self, kind: Kind, name: &[u8]) -> Vec<u8> {
        stored(kind, [self.names.prefix.as_bytes(), b"", b""], name)
    }

    pub(crate) async fn numbers(&self, ask: Ask) -> Result<Vec<i64>, StoreError> {
        match self.lanes.ask(ask).await? {
            Answered::Numbers(numbers) => Ok(numbers),
            Answered::Cell { .. } => Err(StoreError::Unreadable),
        }
    }

    pub(crate) async fn cell(&self, ask: Ask) -> Result<(bool, Loaded), StoreError> {
        match self.lanes.ask(ask).await? {
            Answered::Cell { done, at, held } => {
                Ok((done, Loaded { bytes: held, at: instant(at) }))
            }
            Answered::Numbers(_) => Err(StoreError::Unreadable),
        }
    }
}

impl Store for PostgresStore {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let durability = self.names.durability(op.policy);
        let mut asked = self.names.asked(op.policy, op.strategy, op.key)?;
        let ask = match op.action {
            Action::Reset => {
                let is_log = asked.spec[0] == i64::from(Kind::Log as u8);
                Ask::Reset { durability, key: asked.key, is_log }
            }
            Action::Lease(ask) => {
                op.strategy.leasable().map_err(|_| StoreError::NotLeasable)?;
                Ask::Lease { durability, op: asked, ask: leased(ask) }
            }
            Action::GiveBack(back) => {
                op.strategy.leasable().map_err(|_| StoreError::NotLeasable)?;
                Ask::GiveBack { durability, op: asked, back: given_back(back) }
            }
            action => {
                (asked.action, asked.cost) = judged(action)?;
                Ask::Op { durability, op: asked }
            }
        };
        applied(&op, &self.numbers(ask).await?)
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        many.checked()?;
        let (kind, spec) = spec(many.strategy).ok_or_else(unknown)?;
        let shape = many.strategy.shape().to_string();
        let keys = many.keys.iter().map(|key| self.names.key(kind, many.policy, &shape, key));
        let (keys, cost) = (keys.collect(), number(many.cost.units()));
        let durability = self.names.durability(many.policy);
        let numbers = self.numbers(Ask::Many { durability, keys, spec, cost }).await?;
        let (at, each) = numbers.split_first().ok_or(StoreError::Unreadable)?;
        let decisions = each.chunks(4).map(|four| decision(many.strategy.limit(), four));
        Ok(AppliedMany { decisions: decisions.collect::<Result<_, _>>()?, at: instant(*at) })
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        let merged = Merged::of(&group)?;
        let any = group.combine == Combine::Any;
        let (durable, ops) = self.limits_asked(&merged.limits)?;
        let numbers = self.numbers(Ask::Several { any, durable, ops }).await?;
        let [at, charged, each @ ..] = &numbers[..] else { return Err(StoreError::Unreadable) };
        let each = merged.limits.iter().zip(each.chunks(4));
        let each = each.map(|(limit, four)| decision(limit.strategy.limit(), four));
        let each: Vec<Decision> = each.collect::<Result<_, _>>()?;
        let several = match (any, usize::try_from(*charged)) {
            (false, _) => Several::of_all(each),
            (true, Ok(place @ 1..)) => {
                let first = *each.get(place - 1).ok_or(StoreError::Unreadable)?;
                Several { decision: first, binding: Some(place - 1), each }
            }
            (true, _) => Several::denied_by_every(each),
        };
        Ok(AppliedSeveral { several: merged.spread(several), at: instant(*at) })
    }
}

impl PostgresStore {
    /// Of each limit whether it is logged, and what is asked of it.
    pub(crate) fn limits_asked(
        &self,
        limits: &[Limit<'_>],
    ) -> Result<(Vec<bool>, Vec<Asked>), StoreError> {
        let mut ops = Vec::with_capacity(limits.len());
        for limit in limits {
            let mut asked = self.names.asked(limit.policy, limit.strategy, limit.key)?;
            asked.cost = number(limit.cost.units());
            ops.push(asked);
        }
        let is_durable = |policy| self.names.durability(policy) == Durability::Logged;
        Ok((limits.iter().map(|limit| is_durable(limit.policy)).collect(), ops))
    }
}

impl Cells for PostgresStore {
    async fn load(&self, cell: Cell<'_>) -> Result<Loaded, StoreError> {
        let (durability, key) = self.names.cell(cell);
        self.cell(Ask::Load { durability, key }).await.map(|(_, loaded)| loaded)
    }

    async fn swap(&self, cell: Cell<'_>, swap: Swap<'_>) -> Result<Swapped, StoreError> {
        let (durability, key) = self.names.cell(cell);
        let swap = OwnedSwap {
            expected: swap.expected.map(<[u8]>::to_vec),
            new: swap.new.map(<[u8]>::to_vec),
            idle_at: number(swap.idle_at.epoch_us()),
        };
        match self.cell(Ask::Swap { durability, key, swap }).await? {
            (true, _) => Ok(Swapped::Done),
            (false, loaded) => Ok(Swapped::Conflict(loaded)),
        }
    }
}

impl Names {
    /// Whether any policy is in unlogged tables.
    pub(crate) fn has_unlogged(&self) -> bool {
        !self.unlogged.is_empty()
    }

    pub(crate) fn durability(&self, policy: &str) -> Durability {
        if self.unlogged.contains(policy) { Durability::Unlogged } else { Durability::Logged }
    }

    pub(crate) fn key(&self, kind: Kind, policy: &str, shape: &str, key: &[u8]) -> Vec<u8> {
        stored(kind, [self.prefix.as_bytes(), policy.as_bytes(), shape.as_bytes()], key)
    }

    pub(crate) fn asked(
        &self,
        policy: &str,
        strategy: &Builtin,
        key: &[u8],
    ) -> Result<Asked, StoreError> {
        let (kind, spec): (Kind, Spec) = spec(strategy).ok_or_else(unknown)?;
        let key = self.key(kind, policy, &strategy.shape().to_string(), key);
        Ok(Asked { key, spec, action: CHECK, cost: number(Cost::ONE.units()) })
    }

    fn cell(&self, cell: Cell<'_>) -> (Durability, Vec<u8>) {
        (self.durability(cell.policy), self.key(Kind::Cell, cell.policy, cell.shape, cell.key))
    }
}

/// The number of an action that has no function of its own, and its cost.
fn judged(action: Action) -> Result<(i32, i64), StoreError> {
    Ok(match action {
        Action::Check(cost) => (CHECK, number(cost.units())),
        Action::Peek => (PEEK, 1),
        Action::Forecast(cost) => (FORECAST, number(cost.units())),
        _ => return Err(unknown()),
    })
}

pub(crate) fn leased(ask: lease::Ask) -> [i64; 4] {
    let lease::Ask { need, least, want, round_trip } = ask.bounded();
    [need, least, want, round_trip.us()].map(number)
}

pub(crate) fn given_back(back: GiveBack) -> [i64; 5] {
    let GiveBack { id, units, granted_at, paid_until } = back.bounded();
    // A name, not a number: any of its bits may be set.
    let [whose, which] = [id.incarnation, id.count].map(u64::cast_signed);
    let [granted_at, paid_until] = [granted_at, paid_until].map(|at| number(at.epoch_us()));
    [whose, which, number(units), granted_at, paid_until]
}

/// What the numbers that a function gave mean.
fn applied(op: &Op<'_>, numbers: &[i64]) -> Result<Applied, StoreError> {
    let (at, rest) = numbers.split_first().ok_or(StoreError::Unreadable)?;
    let answer = match (op.action, rest) {
        (Action::Reset, [found]) => Answer::Reset(*found == 1),
        (Action::Forecast(_), four) => Answer::Forecast(forecast(four)?),
        (Action::Lease(_), [four @ .., granted]) => Answer::Lease(Grant {
            granted: unsigned(*granted),
            decision: decision(op.strategy.limit(), four)?,
            at: instant(*at),
        }),
        (Action::GiveBack(_), [restored]) => {
            let restored = u64::try_from(*restored).map_err(|_| StoreError::Unreadable)?;
            Answer::GivenBack(restored)
        }
        (_, four) => Answer::Decision(decision(op.strategy.limit(), four)?),
    };
    Ok(Applied { answer, at: instant(*at) })
}

pub(crate) fn decision(limit: u64, four: &[i64]) -> Result<Decision, StoreError> {
    let [outcome, wait, remaining, reset_at] = *four else { return Err(StoreError::Unreadable) };
    let outcome = match outcome {
        0 => Outcome::Admit,
        1 => Outcome::Deny(Retry::After(Span::from_us(unsigned(wait)))),
        2 => Outcome::Deny(Retry::Never),
        _ => return Err(StoreError::Unreadable),
    };
    Ok(Decision { outcome, limit, remaining: unsigned(remaining), reset_at: instant(reset_at) })
}

fn forecast(four: &[i64]) -> Result<Forecast, StoreError> {
    let [0, spendable, next, full] = *four else { return Err(StoreError::Unreadable) };
    Ok(Forecast {
        spendable_now: unsigned(spendable),
        next_replenish_at: instant(next),
        full_at: instant(full),
    })
}

pub(crate) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(crate) fn instant(us: i64) -> Micros {
    Micros::ZERO + Span::from_us(unsigned(us))
}

pub(crate) fn unknown() -> StoreError {
    StoreError::Refused { detail: "this version of admittance-postgres does not know it".into() }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(reaping) = &self.reaping {
            reaping.abort();
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut store = f.debug_struct("PostgresStore");
        store.field("connections", &self.links.len()).field("up", &self.connected());
        store.finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        let mut builder = f.debug_struct("Builder");
        builder.field("table", &self.table).field("prefix", &self.prefix);
        builder.field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// The longest that [`Builder::connect`] waits.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const CHECK: i32 = 0;
const PEEK: i32 = 1;
const FORECAST: i32 = 2;

const _: () = assert!(lease::GIVE_BACK_MAX.us() == 120_000_000, "as 0007_leases.sql has it");
