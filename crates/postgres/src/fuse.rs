//! Limits and budgets in one step: one statement and one round trip.
//!
//! # Guarantee
//! - What all [`Fuses`] promise, at one instant, which is read once every row is locked.
//! - Rows are locked in one order: limits before accounts, of each the logged ones first, by key.
//!   So asks for limits, for accounts and for both never wait for each other in a circle.
//! - What was charged is durable when it is answered, unless all its policies are
//!   [`unlogged`](crate::Builder::unlogged). A denial does not wait for the disk.
//!
//! # Proven by
//! `tests/it/fused.rs`: the suite of `admittance-testkit`, edited functions that it must notice.

use admittance::{AppliedFused, Atomicity, Decision, FuseAsk, Fused, Fuses, Several, StoreError};
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::budget::{Book, Columns, together};
use crate::carry::{Answered, Ask, Asked, numbers};
use crate::link::Ready;
use crate::store::{decision, instant};

/// Limits and an entry as the function in the database takes them.
#[derive(Clone, Debug)]
pub(crate) struct Fuse {
    is_per_axis: bool,
    durable: Vec<bool>,
    ops: Vec<Asked>,
    book: Book,
}

impl Fuses for PostgresStore {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        let (merged, _) = ask.checked()?;
        let limits = &merged.limits;
        let (durable, ops) = self.limits_asked(limits)?;
        let is_per_axis = ask.atomicity == Atomicity::PerAxis;
        let book = self.book_of(&ask.entry)?;
        let numbers = self.numbers(Ask::Fuse(Fuse { is_per_axis, durable, ops, book })).await?;
        let (at, each) = numbers.split_first().ok_or(StoreError::Unreadable)?;
        let told = each.split_at_checked(4 * limits.len());
        let (rate, cost) = told.ok_or(StoreError::Unreadable)?;
        let each = limits.iter().zip(rate.chunks(4));
        let each = each.map(|(limit, four)| decision(limit.strategy.limit(), four));
        let each: Vec<Decision> = each.collect::<Result<_, _>>()?;
        let rate = merged.spread(Several::of_all(each));
        let cost = match cost.is_empty() {
            true => None,
            false => Some(together(&ask.entry, cost)?),
        };
        Ok(AppliedFused { fused: Fused { rate, cost }, at: instant(*at) })
    }
}

impl Fuse {
    /// All limits and the entry, or nothing.
    pub(crate) const fn new(durable: Vec<bool>, ops: Vec<Asked>, book: Book) -> Self {
        Self { is_per_axis: false, durable, ops, book }
    }

    /// How many keys and accounts it is about.
    pub(crate) fn keys(&self) -> usize {
        self.ops.len() + self.book.accounts()
    }

    pub(crate) async fn run(
        &self,
        ready: &Ready,
        hook: Option<i64>,
    ) -> Result<Vec<Answered>, Error> {
        let Self { is_per_axis, durable, ops, book } = self;
        let limits: Vec<&[u8]> = ops.iter().map(|op| op.key.as_slice()).collect();
        let limit_specs: Vec<i64> = ops.iter().flat_map(|op| op.spec).collect();
        let costs: Vec<i64> = ops.iter().map(|op| op.cost).collect();
        let Columns { keys, durable: accounts_durable, specs, units } = book.columns();
        let (act, lease, ttl) = book.act();
        let given: [&(dyn ToSql + Sync); 13] = [
            is_per_axis,
            &limits,
            durable,
            &limit_specs,
            &costs,
            &keys,
            &accounts_durable,
            &specs,
            &units,
            act,
            lease,
            ttl,
            &hook,
        ];
        numbers(ready, &ready.statements.fuse, &given).await
    }
}
