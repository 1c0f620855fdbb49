//! Carries asks to the database: those of one batch together, in as few statements as possible.
//!
//! # Guarantee
//! - One ask alone is one statement and one round trip. Checks and looks that travel together are
//!   one statement per kind of table, the others a statement each, all sent at once.
//! - An answer that does not come in time is an error, and its connection is closed. So is one to
//!   a server that can only be read: it would stay there while its successor is elsewhere.
//!
//! # Proven by
//! `tests/it/storage.rs`, `tests/it/races.rs`, `tests/it/outages.rs`, `tests/it/standby.rs`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use admittance::store::lanes::Carry;
use admittance::{Span, StoreError};
use futures_util::future::join_all;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use crate::budget::Book;
use crate::failure;
use crate::fuse::Fuse;
use crate::link::{Link, Ready};
use crate::spec::Spec;
use crate::statements::Durability;

/// One ask of the database.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// A check, a peek or a forecast.
    Op {
        durability: Durability,
        op: Asked,
    },
    /// A check of each of several keys, at one instant.
    Many {
        durability: Durability,
        keys: Vec<Vec<u8>>,
        spec: Spec,
        cost: i64,
    },
    Several {
        any: bool,
        durable: Vec<bool>,
        ops: Vec<Asked>,
    },
    Reset {
        durability: Durability,
        key: Vec<u8>,
        is_log: bool,
    },
    /// A part of a limit: what is needed, what is enough, what is wished, the round trip.
    Lease {
        durability: Durability,
        op: Asked,
        ask: [i64; 4],
    },
    /// What comes back of a lease: whose and which, the units, when granted, paid until when.
    GiveBack {
        durability: Durability,
        op: Asked,
        back: [i64; 5],
    },
    Load {
        durability: Durability,
        key: Vec<u8>,
    },
    Swap {
        durability: Durability,
        key: Vec<u8>,
        swap: OwnedSwap,
    },
    /// A node reports: the rules it brings, who it is, what it says.
    Beat {
        fleet: Vec<u8>,
        rules: [i64; 5],
        node: (Vec<u8>, i64),
        said: [i64; 7],
        /// The life of the store instead of the server's, for tests.
        life: Option<String>,
    },
    /// A node leaves: who it is, its sequence, what it has in flight.
    Leave {
        fleet: Vec<u8>,
        node: (Vec<u8>, i64),
        said: [i64; 2],
    },
    /// An owner is here: what it signs with, for how long, which leases have ended.
    Collect {
        owner: Vec<u8>,
        secret: Vec<u8>,
        ttl: i64,
        ended: Vec<i64>,
    },
    Secret {
        owner: Vec<u8>,
    },
    /// Notes for an owner: which leases, what of each.
    Post {
        owner: Vec<u8>,
        leases: Vec<i64>,
        tolds: Vec<i64>,
    },
    /// An entry in accounts.
    Book(Book),
    /// Limits, and an entry in accounts.
    Fuse(Fuse),
}

/// What is asked of one key.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) key: Vec<u8>,
    pub(crate) spec: Spec,
    pub(crate) action: i32,
    pub(crate) cost: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct OwnedSwap {
    pub(crate) expected: Option<Vec<u8>>,
    pub(crate) new: Option<Vec<u8>>,
    pub(crate) idle_at: i64,
}

/// What the database answered.
#[derive(Clone, Debug)]
pub(crate) enum Answered {
    /// As the function in the database says, the instant first.
    Numbers(Vec<i64>),
    /// A cell: whether it was changed, the instant, what it holds.
    Cell { done: bool, at: i64, held: Option<Vec<u8>> },
}

/// The connections of a store, one per lane.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) links: Vec<Link>,
    pub(crate) answer_within: Duration,
    /// The instant to decide at instead of the server's, for tests; negative for none.
    pub(crate) hook: Arc<AtomicI64>,
}

/// One statement, and the asks that it answers.
struct Unit {
    places: Vec<usize>,
    call: Call,
}

/// The statements there are.
enum Call {
    One(Durability, Asked),
    Batch(Durability, Vec<Asked>),
    Other(Ask),
}

impl Call {
    /// How many keys it is about.
    fn keys(&self) -> usize {
        match self {
            Self::Batch(_, ops) | Self::Other(Ask::Several { ops, .. }) => ops.len(),
            Self::Other(Ask::Many { keys, .. }) => keys.len(),
            Self::Other(Ask::Post { leases, .. }) => leases.len(),
            Self::Other(Ask::Book(book)) => book.accounts(),
            Self::Other(Ask::Fuse(fuse)) => fuse.keys(),
            Self::One(..) | Self::Other(_) => 1,
        }
    }
}

impl Carry for Carrier {
    type Ask = Ask;
    type Answer = Answered;

    async fn carry(&self, lane: usize, asks: Vec<Ask>) -> Vec<Result<Answered, StoreError>> {
        let count = asks.len();
        let ready = match self.links[lane].ready() {
            Ok(ready) => ready,
            Err(error) => return vec![Err(error); count],
        };
        let waited =
            Span::from_us(u64::try_from(self.answer_within.as_micros()).unwrap_or(u64::MAX));
        // What no statement answers has not been answered in time.
        let mut answers = vec![Err(StoreError::Timeout { waited }); count];
        let hook = Some(self.hook.load(Ordering::Relaxed)).filter(|hook| *hook >= 0);
        let calls =
            units(asks).into_iter().map(|unit| within(&ready, unit, hook, self.answer_within));
        for (places, answered) in join_all(calls).await {
            let Some(answered) = answered else {
                ready.give_up();
                continue;
            };
            match answered {
                Ok(each) => {
                    for (place, answer) in places.into_iter().zip(each) {
                        answers[place] = Ok(answer);
                    }
                }
                Err(error) => {
                    for place in places {
                        answers[place] = Err(error.clone());
                    }
                }
            }
        }
        answers
    }
}

/// The fewest statements that answer the asks, those with the fewest keys first: a connection
/// answers in order, and one check must not wait for a thousand.
fn units(asks: Vec<Ask>) -> Vec<Unit> {
    let mut together: [(Vec<usize>, Vec<Asked>); 2] = Default::default();
    let mut units = Vec::new();
    for (place, ask) in asks.into_iter().enumerate() {
        match ask {
            Ask::Op { durability, op } => {
                let (places, ops) = &mut together[durability as usize];
                places.push(place);
                ops.push(op);
            }
            other => units.push(Unit { places: vec![place], call: Call::Other(other) }),
        }
    }
    for ((places, mut ops), durability) in
        together.into_iter().zip([Durability::Logged, Durability::Unlogged])
    {
        let call = match ops.len() {
            0 => continue,
            1 => Call::One(durability, ops.remove(0)),
            _ => Call::Batch(durability, ops),
        };
        units.push(Unit { places, call });
    }
    units.sort_by_key(|unit| unit.call.keys());
    units
}

/// Runs a statement; `None` if it is not answered in time. Tried twice if others were in the way.
async fn within(
    ready: &Ready,
    unit: Unit,
    hook: Option<i64>,
    answer_within: Duration,
) -> (Vec<usize>, Option<Result<Vec<Answered>, StoreError>>) {
    let run = async {
        match run(ready, &unit.call, hook).await {
            Err(error) if failure::is_worth_a_retry(&error) => {
                run_again(ready, &unit.call, hook).await
            }
            first => first,
        }
    };
    let answered = tokio::time::timeout(answer_within, run).await.ok();
    if let Some(Err(error)) = &answered
        && failure::is_read_only(error)
    {
        ready.give_up();
    }
    (unit.places, answered.map(|ran| ran.map_err(|error| failure::of_statement(&error))))
}

/// Runs asks that travel together, and nothing else beside them.
pub(crate) async fn answer_alone(ready: &Ready, asks: Vec<Ask>) -> Result<(), Error> {
    for unit in units(asks) {
        run(ready, &unit.call, None).await?;
    }
    Ok(())
}

async fn run_again(ready: &Ready, call: &Call, hook: Option<i64>) -> Result<Vec<Answered>, Error> {
    run(ready, call, hook).await
}

async fn run(ready: &Ready, call: &Call, hook: Option<i64>) -> Result<Vec<Answered>, Error> {
    let statements = &ready.statements;
    match call {
        Call::One(durability, Asked { key, spec, action: 0, cost }) if is_quick(spec, *cost) => {
            let [_, most, parts, .., whole, part, unit] = *spec;
            let (charge, tolerance) = (unit * cost, whole * parts + part);
            let (statement, spec) = (&statements.of(*durability).quick, spec.as_slice());
            let given: [&(dyn ToSql + Sync); 9] =
                [key, &parts, &charge, &tolerance, &unit, &most, &spec, cost, &hook];
            numbers(ready, statement, &given).await
        }
        Call::One(durability, Asked { key, spec, action, cost }) => {
            let spec = spec.as_slice();
            let statement = &statements.of(*durability).one;
            numbers(ready, statement, &[key, &spec, action, cost, &hook]).await
        }
        Call::Batch(durability, ops) => {
            let answered = batch(ready, *durability, ops, hook).await?;
            let (at, each) = answered.split_first().unwrap_or((&0, &[]));
            let one = |four: &[i64]| Answered::Numbers([&[*at], four].concat());
            Ok(each.chunks(4).map(one).collect())
        }
        Call::Other(ask) => other(ready, ask, hook).await,
    }
}

/// Whether a check has a short way of its own: gcra or token bucket, narrow, a cost that can fit.
fn is_quick(spec: &Spec, cost: i64) -> bool {
    let [_, most, .., unit] = *spec;
    unit > 0 && cost <= most
}

async fn other(ready: &Ready, ask: &Ask, hook: Option<i64>) -> Result<Vec<Answered>, Error> {
    let statements = &ready.statements;
    match ask {
        Ask::Op { durability, op } => {
            batch(ready, *durability, std::slice::from_ref(op), hook).await.map(listed)
        }
        Ask::Many { durability, keys, spec, cost } => {
            let asked =
                |key: &Vec<u8>| Asked { key: key.clone(), spec: *spec, action: 0, cost: *cost };
            let ops: Vec<Asked> = keys.iter().map(asked).collect();
            batch(ready, *durability, &ops, hook).await.map(listed)
        }
        Ask::Several { any, durable, ops } => {
            let keys: Vec<&[u8]> = ops.iter().map(|op| op.key.as_slice()).collect();
            let specs: Vec<i64> = ops.iter().flat_map(|op| op.spec).collect();
            let costs: Vec<i64> = ops.iter().map(|op| op.cost).collect();
            let statement = &statements.several;
            numbers(ready, statement, &[any, &keys, durable, &specs, &costs, &hook]).await
        }
        Ask::Reset { durability, key, is_log } => {
            numbers(ready, &statements.of(*durability).reset, &[key, is_log, &hook]).await
        }
        Ask::Lease { durability, op: Asked { key, spec, .. }, ask } => {
            let (statement, spec) = (&statements.of(*durability).lease, spec.as_slice());
            let [needed, enough, wished, trip] = ask;
            let given: [&(dyn ToSql + Sync); 7] = [key, &spec, needed, enough, wished, trip, &hook];
            numbers(ready, statement, &given).await
        }
        Ask::GiveBack { durability, op: Asked { key, spec, .. }, back } => {
            let (statement, spec) = (&statements.of(*durability).give_back, spec.as_slice());
            let [whose, which, units, granted_at, paid_until] = back;
            let given: [&(dyn ToSql + Sync); 8] =
                [key, &spec, whose, which, units, granted_at, paid_until, &hook];
            numbers(ready, statement, &given).await
        }
        Ask::Load { durability, key } => {
            held(ready, &statements.of(*durability).load, &[key, &hook]).await
        }
        Ask::Swap { durability, key, swap: OwnedSwap { expected, new, idle_at } } => {
            let statement = &statements.of(*durability).swap;
            let given: [&(dyn ToSql + Sync); 5] = [key, expected, new, idle_at, &hook];
            let row = ready.client.query_one(statement, &given).await?;
            let (done, at, held) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            Ok(vec![Answered::Cell { done, at, held }])
        }
        Ask::Book(book) => book.run(ready, hook).await,
        Ask::Fuse(fuse) => fuse.run(ready, hook).await,
        Ask::Beat { .. }
        | Ask::Leave { .. }
        | Ask::Collect { .. }
        | Ask::Secret { .. }
        | Ask::Post { .. } => of_fleets(ready, ask, hook).await,
    }
}

async fn of_fleets(ready: &Ready, ask: &Ask, hook: Option<i64>) -> Result<Vec<Answered>, Error> {
    let statements = &ready.statements.fleets;
    match ask {
        Ask::Beat { fleet, rules, node: (id, incarnation), said, life } => {
            let (rules, said) = (rules.as_slice(), said.as_slice());
            let given: [&(dyn ToSql + Sync); 7] =
                [fleet, &rules, id, incarnation, &said, life, &hook];
            numbers(ready, &statements.beat, &given).await
        }
        Ask::Leave { fleet, node: (id, incarnation), said: [sequence, in_flight] } => {
            let given: [&(dyn ToSql + Sync); 6] =
                [fleet, id, incarnation, sequence, in_flight, &hook];
            numbers(ready, &statements.leave, &given).await
        }
        Ask::Collect { owner, secret, ttl, ended } => {
            numbers(ready, &statements.collect, &[owner, secret, ttl, ended, &hook]).await
        }
        Ask::Secret { owner } => held(ready, &statements.secret, &[owner, &hook]).await,
        Ask::Post { owner, leases, tolds } => {
            numbers(ready, &statements.post, &[owner, leases, tolds, &hook]).await
        }
        other => unreachable!("{other:?} is asked elsewhere"),
    }
}

async fn held(
    ready: &Ready,
    statement: &Statement,
    given: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Answered>, Error> {
    let row = ready.client.query_one(statement, given).await?;
    Ok(vec![Answered::Cell { done: true, at: row.try_get(0)?, held: row.try_get(1)? }])
}

/// One statement for several ops; strategies that occur again are sent once.
async fn batch(
    ready: &Ready,
    durability: Durability,
    ops: &[Asked],
    hook: Option<i64>,
) -> Result<Vec<i64>, Error> {
    let mut specs: Vec<Spec> = Vec::new();
    let mut uses: Vec<i32> = Vec::with_capacity(ops.len());
    let mut seen = HashSet::with_capacity(ops.len());
    let mut again = Vec::with_capacity(ops.len());
    for op in ops {
        let found = specs.iter().position(|spec| *spec == op.spec);
        let place = found.unwrap_or_else(|| {
            specs.push(op.spec);
            specs.len() - 1
        });
        uses.push(i32::try_from(place + 1).unwrap_or(i32::MAX));
        again.push(!seen.insert(op.key.as_slice()));
    }
    let keys: Vec<&[u8]> = ops.iter().map(|op| op.key.as_slice()).collect();
    let specs: Vec<i64> = specs.into_iter().flatten().collect();
    let actions: Vec<i32> = ops.iter().map(|op| op.action).collect();
    let costs: Vec<i64> = ops.iter().map(|op| op.cost).collect();
    let statement = &ready.statements.of(durability).batch;
    let given: [&(dyn ToSql + Sync); 7] = [&keys, &specs, &uses, &actions, &costs, &again, &hook];
    let row = ready.client.query_one(statement, &given).await?;
    row.try_get(0)
}

pub(crate) async fn numbers(
    ready: &Ready,
    statement: &Statement,
    given: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Answered>, Error> {
    let row: Row = ready.client.query_one(statement, given).await?;
    row.try_get(0).map(listed)
}

fn listed(numbers: Vec<i64>) -> Vec<Answered> {
    vec![Answered::Numbers(numbers)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_of_many_keys_goes_after_those_of_few() {
        let spec = Spec::default();
        let durability = Durability::Logged;
        let op = |key: u8| Asked { key: vec![key], spec, action: 0, cost: 1 };
        let many = |count| Ask::Many { durability, keys: vec![vec![0]; count], spec, cost: 1 };
        let one = |key, durability| Ask::Op { durability, op: op(key) };
        let load = Ask::Load { durability, key: vec![9] };
        let asks = vec![
            many(1_000),
            one(1, Durability::Logged),
            many(3),
            one(2, Durability::Logged),
            one(3, Durability::Unlogged),
            load,
        ];
        let sent: Vec<Vec<usize>> = units(asks).into_iter().map(|unit| unit.places).collect();
        assert_eq!(sent, [vec![5], vec![4], vec![1, 3], vec![2], vec![0]]);
    }
}
