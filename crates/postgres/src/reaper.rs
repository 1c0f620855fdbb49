//! Deletes rows that nobody will miss.
//!
//! # Guarantee
//! - A row goes only when it has decided as none does for [`GRACE_US`], by the server's clock: a
//!   clock that steps back by less gives no budget twice. A lease that was given back is forgotten
//!   a minute after nothing of it would be taken back any more. A fleet goes a day after its last
//!   step, or when its rules reserve nothing any more if that is later; an owner of notes a minute
//!   after it was here. An account goes with its leases a minute after it was the same as none, or
//!   a minute after the last of its leases would have been forgotten had none been settled before
//!   its end: one with debt lives as long as the debt.
//! - Checks are never waited for: a row that one holds is passed over. A statement looks at
//!   [`PAGES_PER_STEP`] pages and deletes at most [`ROWS_PER_STEP`] rows, on a connection of its
//!   own, and the next one begins when it has been answered.
//! - While there is more to delete than one statement may, no tick is waited for.
//!
//! # Proven by
//! `tests/it/storage.rs`, `tests/it/races.rs`, `tests/it/accounts.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use admittance::{REMEMBERED, Span, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_postgres::types::ToSql;

use crate::carry::{Answered, numbers};
use crate::failure;
use crate::link::Link;
use crate::statements::Durability;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// How many keys were forgotten.
    pub keys: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    link: Link,
    hook: Arc<AtomicI64>,
    answer_within: Duration,
}

impl Reaper {
    pub(crate) fn new(link: Link, hook: Arc<AtomicI64>, answer_within: Duration) -> Self {
        Self { link, hook, answer_within }
    }

    /// Looks at some pages of every table every so often, for as long as it is not stopped.
    pub(crate) async fn run(self, every: Duration) {
        let mut ticks = tokio::time::interval(every.max(EVERY_MIN));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pages = Pages::default();
        loop {
            ticks.tick().await;
            self.turn(&mut pages).await;
        }
    }

    /// What is done at a tick: a round, and another one at once for as long as a round deletes as
    /// much as one statement may. So it keeps up with keys that become idle faster than a round
    /// per tick deletes, and does not walk without pause for a few.
    pub(crate) async fn turn(&self, pages: &mut Pages) -> Reaped {
        let mut reaped = Reaped::default();
        loop {
            let (keys, others) = self.round(pages).await;
            reaped.keys += u64::try_from(keys).unwrap_or(0);
            if keys + others < ROWS_PER_STEP {
                return reaped;
            }
        }
    }

    /// Some statements over each of the tables. Gives how many keys and other rows went.
    async fn round(&self, pages: &mut Pages) -> (i64, i64) {
        let (mut keys, mut others) = (0, 0);
        for (page, walk) in pages.iter_mut().zip(WALKS) {
            for _ in 0..STEPS_PER_ROUND {
                // A server that is away is asked again at the next tick.
                let Ok(step) = self.step(walk, *page).await else { return (0, 0) };
                *page = step.next;
                keys += step.keys;
                others += step.others;
                if step.is_last() {
                    break;
                }
            }
        }
        (keys, others)
    }

    /// Looks at every page once.
    pub(crate) async fn sweep(&self) -> Result<Reaped, StoreError> {
        self.link.tried().await;
        let mut reaped = Reaped::default();
        for walk in WALKS {
            let mut page = 0;
            loop {
                let step = self.step(walk, page).await?;
                reaped.keys += u64::try_from(step.keys).unwrap_or(0);
                if step.is_last() {
                    break;
                }
                page = step.next;
            }
        }
        Ok(reaped)
    }

    async fn step(&self, walk: Walk, page: i64) -> Result<Step, StoreError> {
        let ready = self.link.ready()?;
        let hook = Some(self.hook.load(Ordering::Relaxed)).filter(|hook| *hook >= 0);
        let statements = &ready.statements;
        let keys: [&(dyn ToSql + Sync); 5] =
            [&page, &PAGES_PER_STEP, &ROWS_PER_STEP, &GRACE_US, &hook];
        let returned: [&(dyn ToSql + Sync); 4] = [&page, &PAGES_PER_STEP, &ROWS_PER_STEP, &hook];
        let fleets: [&(dyn ToSql + Sync); 3] = [&ROWS_PER_STEP, &REMEMBERED_US, &hook];
        let boxes: [&(dyn ToSql + Sync); 3] = [&ROWS_PER_STEP, &GRACE_US, &hook];
        let (statement, given) = match walk {
            Walk::Keys(durability) => (&statements.of(durability).reap, &keys[..]),
            Walk::Accounts(durability) => (&statements.of(durability).reap_accounts, &keys[..]),
            Walk::Returned(durability) => (&statements.of(durability).forget, &returned[..]),
            Walk::Fleets => (&statements.fleets.reap_fleets, &fleets[..]),
            Walk::Boxes => (&statements.fleets.reap_boxes, &boxes[..]),
        };
        let step = tokio::time::timeout(self.answer_within, numbers(&ready, statement, given));
        let Ok(answered) = step.await else {
            ready.give_up();
            let waited = u64::try_from(self.answer_within.as_micros()).unwrap_or(u64::MAX);
            return Err(StoreError::Timeout { waited: Span::from_us(waited) });
        };
        if answered.as_ref().is_err_and(failure::is_read_only) {
            ready.give_up();
        }
        let answered = answered.map_err(|error| failure::of_statement(&error))?;
        let Some(Answered::Numbers(numbers)) = answered.first() else {
            return Err(StoreError::Unreadable);
        };
        let &[rows, next, entries] = numbers.as_slice() else {
            return Err(StoreError::Unreadable);
        };
        Ok(match walk {
            Walk::Keys(_) | Walk::Accounts(_) => Step { keys: rows, next, others: entries },
            _ => Step { keys: 0, next, others: rows },
        })
    }
}

/// What one statement did.
struct Step {
    keys: i64,
    /// The page to go on at.
    next: i64,
    /// Entries of forgotten logs, or leases, or fleets and their nodes, or owners and their notes.
    others: i64,
}

impl Step {
    /// Whether the tables have been walked through and nothing is left over.
    fn is_last(&self) -> bool {
        self.next == 0 && self.keys < ROWS_PER_STEP && self.others < ROWS_PER_STEP
    }
}

/// What is walked through.
#[derive(Clone, Copy, Debug)]
enum Walk {
    /// Keys, with what is left of forgotten logs.
    Keys(Durability),
    /// Accounts, with their leases.
    Accounts(Durability),
    /// Leases that were given back.
    Returned(Durability),
    /// Fleets that are not heard, with their nodes.
    Fleets,
    /// Owners that are not here, with what waits for them.
    Boxes,
}

const WALKS: [Walk; 8] = [
    Walk::Keys(Durability::Logged),
    Walk::Keys(Durability::Unlogged),
    Walk::Accounts(Durability::Logged),
    Walk::Accounts(Durability::Unlogged),
    Walk::Returned(Durability::Logged),
    Walk::Returned(Durability::Unlogged),
    Walk::Fleets,
    Walk::Boxes,
];

/// Where each walk goes on.
pub(crate) type Pages = [i64; WALKS.len()];

/// A minute.
const GRACE_US: i64 = 60_000_000;
/// A day.
const REMEMBERED_US: i64 = 86_400_000_000;
/// Half a mebibyte.
const PAGES_PER_STEP: i64 = 64;
const ROWS_PER_STEP: i64 = 500;
const STEPS_PER_ROUND: usize = 64;
const EVERY_MIN: Duration = Duration::from_millis(10);

const _: () = assert!(REMEMBERED.us() == REMEMBERED_US.cast_unsigned(), "as the seam promises");
