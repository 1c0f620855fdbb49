//! A rehearsal of what a connection will be asked, before anybody asks it.
//!
//! A new connection reads the catalogs, compiles each function and plans each of its statements the
//! first time that it is called: tens of milliseconds, more than a decision waits. So every one of
//! them is called before the connection counts as up, at the start and after each break.
//!
//! # Guarantee
//! - Each function that decides has run, with a new row, a known one and one that is spent, for
//!   every kind of strategy, and for the tables that policies use.
//! - Nothing of it stays: it is one transaction that is rolled back, under keys that nobody has and
//!   no two connections share, so that none waits for another.
//!
//! - A server that refuses some of it is asked all the same: who needs that is told why.
//!
//! # Proven by
//! `tests/it/warm.rs`.

use std::hash::{BuildHasher, RandomState};

use admittance::budget::{Act, Budget, Charge, Entry, LeaseKey};
use admittance::lease::{GiveBack, LeaseId};
use admittance::{
    Builtin, Cadence, Gcra, Guarded, Micros, SlidingLog, SlidingWindow, Span, Tat, Window, lease,
};
use futures_util::future::try_join_all;
use tokio_postgres::Error;

use crate::carry::{Ask, Asked, answer_alone};
use crate::fuse::Fuse;
use crate::link::Ready;
use crate::statements::Durability;
use crate::store::{Names, given_back, leased};

/// Calls every function that decides, and leaves nothing behind.
pub(crate) async fn warm(ready: &Ready, names: &Names) -> Result<(), Error> {
    let key = RandomState::new().hash_one(0).to_be_bytes();
    ready.client.batch_execute("BEGIN").await?;
    // In order, as they are sent: a connection answers one after another.
    let asked = rehearsal(names, &key).into_iter().map(|asks| answer_alone(ready, asks));
    let answered = try_join_all(asked).await;
    ready.client.batch_execute("ROLLBACK").await?;
    match answered {
        // What a server refuses, a replica or one that grants less, it tells whoever asks for it.
        Err(error) if error.code().is_some() => Ok(()),
        answered => answered.map(drop),
    }
}

/// What is asked, as the batches that it travels in.
fn rehearsal(names: &Names, key: &[u8]) -> Vec<Vec<Ask>> {
    let used = [(Durability::Logged, true), (Durability::Unlogged, names.has_unlogged())];
    used.into_iter()
        .filter(|(_, is_used)| *is_used)
        .flat_map(|(durability, _)| decisions(names, durability, key))
        .collect()
}

fn decisions(names: &Names, durability: Durability, key: &[u8]) -> Vec<Vec<Ask>> {
    // Strategies of one shape have one key, and none may occur twice in an ask for several.
    let own = |(strategy, nth)| names.asked(POLICY, strategy, &[key, &[nth]].concat()).ok();
    let asked: Vec<Asked> = strategies().iter().zip(0u8..).filter_map(own).collect();
    let op = |op: &Asked| Ask::Op { durability, op: op.clone() };
    let mut asks: Vec<Vec<Ask>> = Vec::new();
    // New, known, spent.
    for _ in 0..3 {
        asks.extend(asked.iter().map(|one| vec![op(one)]));
    }
    // Written by another rate.
    if let Ok(changed) = names.asked(POLICY, &strategies()[1], &[key, &[0]].concat()) {
        asks.push(vec![op(&changed)]);
    }
    asks.push(asked.iter().map(op).collect());
    let spare = [key, b"+"].concat();
    let gcra = &strategies()[0];
    if let Ok(one) = names.asked(POLICY, gcra, &spare) {
        let ask = lease::Ask { need: 1, least: 1, want: 1, round_trip: Span::ZERO };
        asks.push(vec![Ask::Lease { durability, op: one.clone(), ask: leased(ask) }]);
        let id = LeaseId { incarnation: 0, count: 0 };
        let (granted_at, paid_until) = (Micros::ZERO, Micros::ZERO);
        let back = given_back(GiveBack { id, units: 1, granted_at, paid_until });
        asks.push(vec![Ask::GiveBack { durability, op: one, back }]);
    }
    // All of them are charged, and then none.
    let durable = vec![durability == Durability::Logged; asked.len()];
    let ops = fresh(&asked);
    for any in [false, true, false] {
        asks.push(vec![Ask::Several { any, durable: durable.clone(), ops: ops.clone() }]);
    }
    asks.extend(accounts(names, durability, key, &(durable, fresh(&ops))));
    asks
}

fn accounts(
    names: &Names,
    durability: Durability,
    key: &[u8],
    (durable, ops): &(Vec<bool>, Vec<Asked>),
) -> Vec<Vec<Ask>> {
    let Ok(budget) = Budget::new(4, Cadence::every(HOUR)) else { return Vec::new() };
    let lease = LeaseKey(0);
    let charge = Charge { policy: POLICY, budget: &budget, key, units: 1 };
    let book = |entry: &Entry<'_>| Some(names.book(entry).ok()?.in_tables(durability));
    let reserve = |lease, ttl| Act::Reserve { lease, ttl };
    let (own, short) = (reserve(lease, HOUR), reserve(LeaseKey(1), Span::TICK));
    let mut asks = Vec::new();
    // One lease is debited and settled, the other ends by its time.
    for act in [DEBIT, own, short, Act::Debit(Some(lease)), Act::Settle(lease), DEBIT, DEBIT] {
        let entry = Entry { charges: &[charge], act };
        asks.extend(book(&entry).map(|book| vec![Ask::Book(book)]));
    }
    let spare = [key, b"+"].concat();
    let two = [charge, Charge { key: &spare, ..charge }];
    asks.extend(book(&Entry { charges: &two, act: DEBIT }).map(|book| vec![Ask::Book(book)]));
    let fuse = |book| vec![Ask::Fuse(Fuse::new(durable.clone(), ops.clone(), book))];
    let unspent = [&spare[..], b"+"].concat();
    let one = [Charge { key: &unspent, ..charge }];
    asks.extend(book(&Entry { charges: &one, act: DEBIT }).map(fuse));
    asks
}

/// The same of keys that are new.
fn fresh(asked: &[Asked]) -> Vec<Asked> {
    let fresh = |one: &Asked| Asked { key: [&one.key[..], b"+"].concat(), ..one.clone() };
    asked.iter().map(fresh).collect()
}

/// One of each kind that has functions of its own, with room for two.
fn strategies() -> Vec<Builtin> {
    let narrow = Tat::gcra(Gcra { limit: 2, period: HOUR, burst: 2 }).map(Builtin::from);
    let wide = Tat::gcra(Gcra { limit: 4_999, period: HOUR, burst: 2 }).map(Builtin::from);
    let window = Window::fixed(2, HOUR).map(Builtin::from);
    let sliding = SlidingWindow::new(2, HOUR, 10).map(Builtin::from);
    let log = SlidingLog::new(2, HOUR).map(Builtin::from);
    [narrow, wide, window, sliding, log].into_iter().flatten().collect()
}

const DEBIT: Act = Act::Debit(None);
const HOUR: Span = Span::from_secs(3_600);
/// Probes have the same.
const POLICY: &str = Guarded::<()>::PROBE_POLICY;
