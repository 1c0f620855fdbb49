//! Accounts of budgets: wherever they live, held to the pure step.
//!
//! Implement [`Budgets`] for an executor and run [`accounts_equal_core`], [`accounts_are_atomic`],
//! [`accounts_charge_all_or_none`] and [`accounts_are_apart`].
//!
//! # Guarantee
//! An executor that passes answers what core's step answers, in every field of every answer, at
//! its own instants; atomically, so that racing callers spend what the limit says; over several
//! accounts all or nothing; and no account has anything to do with another.
//!
//! # Proven by
//! `tests/it/budgets.rs`: the accounts in memory pass, and each of many flawed ones does not.

mod apart;
mod draw;
mod pure;
mod races;

use admittance::budget::{Accounts, Booked, Entry};
use admittance::{Micros, StoreError};

pub use self::apart::{accounts_are_apart, accounts_charge_all_or_none};
pub(crate) use self::draw::any_budget;
pub use self::races::accounts_are_atomic;
use crate::block_on;
use crate::departure::{Departure, Promise};
use crate::timeline::{generator, long};

/// A kind of accounts under test.
pub trait Budgets: Sync {
    /// The accounts.
    type Accounts: Accounts;

    /// Accounts of which none is known.
    fn fresh(&self) -> impl Future<Output = Self::Accounts> + Send;

    /// Sets the clock that they are stepped by. It may go back.
    fn set_clock(&self, accounts: &Self::Accounts, now: Micros) -> impl Future<Output = ()> + Send;

    /// Books entries one after another, each with the clock at its instant. An executor behind a
    /// network may send all of them in one call.
    fn replay(
        &self,
        accounts: &Self::Accounts,
        entries: &[TimedEntry<'_>],
    ) -> impl Future<Output = Result<Vec<Booked>, StoreError>> + Send {
        async move {
            let mut booked = Vec::with_capacity(entries.len());
            for timed in entries {
                self.set_clock(accounts, timed.at).await;
                booked.push(accounts.book(timed.entry).await?);
            }
            Ok(booked)
        }
    }

    /// How many random timelines [`accounts_equal_core`] compares. An executor behind a network may
    /// ask for fewer.
    fn timelines(&self) -> usize {
        TIMELINES_DEFAULT
    }

    /// Runs a future to its end on the calling thread, as each of the racing callers does. One
    /// whose futures need a runtime enters it here, as in [`Harness::wait`](crate::Harness).
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        block_on(future)
    }
}

/// An entry and the instant it is booked at.
#[derive(Clone, Copy, Debug)]
pub struct TimedEntry<'a> {
    /// What the clock of the accounts shows.
    pub at: Micros,
    /// What is booked.
    pub entry: Entry<'a>,
}

/// Every answer is core's, in every field: looks, debits with and without a lease, reservations,
/// settlements and abandoned leases, over one to four accounts; leases that are used up, that run
/// out, that are settled late, twice, under a name that was used before or that nobody knows, in
/// crowds that nobody looks through to the end; debt up to the most that is remembered; limits and
/// bounds that change; while the clock stops, crawls, lands on every end and the tick before it,
/// jumps over many windows, and steps back.
///
/// An executor may forget an account from its `idle_at` on. So once one may be forgotten, the clock
/// steps back no further than to where that makes no difference. One that is not idle keeps what a
/// look and a denial brought it to.
///
/// # Errors
/// The first answer that is another.
pub async fn accounts_equal_core<B: Budgets>(budgets: &B) -> Result<(), Departure> {
    let mut rng = generator(74);
    let mut accounts = budgets.fresh().await;
    let scripted = std::iter::once(draw::lowered_bounds());
    let drawn = (0..long(budgets.timelines())).map(|number| draw::timeline(&mut rng, number));
    for (timeline, steps) in scripted.chain(drawn).enumerate() {
        if timeline % TIMELINES_PER_STORE == 0 {
            accounts = budgets.fresh().await;
        }
        let charges: Vec<Vec<_>> = steps.iter().map(draw::Step::charges).collect();
        let entries = steps.iter().zip(&charges).map(|(step, charges)| TimedEntry {
            at: step.expected.at,
            entry: Entry { charges, act: step.act },
        });
        let entries: Vec<TimedEntry<'_>> = entries.collect();
        let replayed = budgets.replay(&accounts, &entries).await;
        let given = replayed.map_err(|error| failed(Promise::Equals, entries[0], &error))?;
        let compared = entries.iter().zip(&steps).zip(given);
        for (place, ((timed, step), given)) in compared.enumerate() {
            let asked = format!("timeline {timeline}, step {place}: {:?}", timed.entry);
            let asked = (timed.at, &asked as _);
            Departure::unless_equal(Promise::Equals, asked, &step.expected, &given)?;
        }
    }
    Ok(())
}

fn failed(promise: Promise, asked: TimedEntry<'_>, error: &StoreError) -> Departure {
    Departure {
        promise,
        at: asked.at,
        asked: format!("{:?}", asked.entry),
        expected: "an answer".to_owned(),
        given: format!("{error:?}"),
    }
}

/// Executors are bounded, also in the number of keys.
const TIMELINES_PER_STORE: usize = 200;
/// `ADMITTANCE_LONG=1` runs ten times as many.
const TIMELINES_DEFAULT: usize = 2_000;
