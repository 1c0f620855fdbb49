//! Many callers at once: what they spend together is what the limit says.

use std::sync::Barrier;

use admittance::budget::{
    Accounts, Act, Answered, Booked, Budget, Charge, Entry, LeaseKey, Settlement,
};
use admittance::{Cadence, Span};

use super::{Budgets, TimedEntry, failed};
use crate::departure::{Departure, Promise};
use crate::join_all;
use crate::trial::START;

/// However many callers come at once, on threads of their own or taking turns on one thread
/// wherever the executor waits:
/// - unit by unit they debit exactly the limit, and by `g` at a time at most `g − 1` more;
/// - with reservations among them, spent + reserved never exceeds limit + (largest x − 1);
/// - reservations of `s` are admitted exactly as often as `s` fits;
/// - a reservation that many ask for by one name is taken once, and one that many settle is settled
///   once, with one result for all;
/// - entries over the same accounts in another order all come to an end, and charge alike.
///
/// # Errors
/// The first count that is another.
pub async fn accounts_are_atomic<B: Budgets>(budgets: &B) -> Result<(), Departure> {
    for on_threads in [false, true] {
        debits_stop_at_the_limit(&Race::new(budgets, on_threads, 100).await, 1).await?;
        debits_stop_at_the_limit(&Race::new(budgets, on_threads, 100).await, 7).await?;
        all_that_is_taken_stays_bounded(&Race::new(budgets, on_threads, 200).await).await?;
        reserves_fill_the_limit(&Race::new(budgets, on_threads, 100).await, 7).await?;
        one_lease_is_taken_and_settled_once(&Race::new(budgets, on_threads, 100).await).await?;
        orders_do_not_matter(&Race::new(budgets, on_threads, 50).await).await?;
    }
    Ok(())
}

/// One account, and many who ask at once.
struct Race<'b, B: Budgets> {
    budgets: &'b B,
    accounts: B::Accounts,
    on_threads: bool,
    budget: Budget,
}

impl<'b, B: Budgets> Race<'b, B> {
    async fn new(budgets: &'b B, on_threads: bool, limit: u64) -> Self {
        let accounts = budgets.fresh().await;
        budgets.set_clock(&accounts, START).await;
        let cadence = Cadence::Day { offset_minutes: 0 };
        let budget = Budget::new(limit, cadence).expect("within every range");
        Self { budgets, accounts, on_threads, budget }
    }

    fn charge<'a>(&'a self, key: &'a [u8], units: u64) -> Charge<'a> {
        Charge { policy: "raced", budget: &self.budget, key, units }
    }

    async fn book(&self, charges: &[Charge<'_>], act: Act) -> Result<Booked, Departure> {
        let entry = Entry { charges, act };
        let booked = self.accounts.book(entry).await;
        let asked = TimedEntry { at: START, entry };
        booked.map_err(|error| failed(Promise::Atomic, asked, &error))
    }

    /// Books on the one account that all callers share.
    async fn ask(&self, units: u64, act: Act) -> Result<Answered, Departure> {
        Ok(self.book(&[self.charge(b"one", units)], act).await?.together.each[0])
    }

    /// What `count` callers get at once.
    async fn at_once<T: Send, F: Future<Output = Result<T, Departure>> + Send>(
        &self,
        count: usize,
        call: impl Fn(usize) -> F + Sync,
    ) -> Result<Vec<T>, Departure> {
        if !self.on_threads {
            return join_all((0..count).map(call)).await.into_iter().collect();
        }
        let barrier = Barrier::new(count);
        let run = |place| {
            barrier.wait();
            self.budgets.wait(call(place))
        };
        std::thread::scope(|scope| {
            let calls: Vec<_> = (0..count).map(|place| scope.spawn(move || run(place))).collect();
            calls.into_iter().map(|call| call.join().expect("a caller does not panic")).collect()
        })
    }

    fn counted<A: PartialEq + std::fmt::Debug>(
        &self,
        asked: &str,
        expected: A,
        given: A,
    ) -> Result<(), Departure> {
        Departure::unless_equal(Promise::Atomic, (START, &asked), &expected, &given)
    }
}

async fn debits_stop_at_the_limit<B: Budgets>(
    race: &Race<'_, B>,
    units: u64,
) -> Result<(), Departure> {
    // Each goes on until it is told to stop: the last of them are.
    let debit = |_| async {
        let mut admitted = 0;
        while race.ask(units, Act::Debit(None)).await?.decision.is_admit() {
            admitted += 1;
            if admitted > race.budget.limit() {
                break;
            }
        }
        Ok(admitted)
    };
    let admitted: u64 = race.at_once(RACERS, debit).await?.into_iter().sum();
    let expected = race.budget.limit().div_ceil(units);
    race.counted("debits by many", expected, admitted)?;
    let spent = race.ask(0, Act::Look).await?.standing.spent;
    race.counted("what debits by many spent", expected * units, spent)
}

async fn all_that_is_taken_stays_bounded<B: Budgets>(race: &Race<'_, B>) -> Result<(), Departure> {
    let ttl = Span::from_secs(60);
    let is_bounded = |asked: &str, answered: &Answered| {
        let taken = answered.standing.spent + answered.standing.reserved;
        let bound = race.budget.limit() + LARGEST - 1;
        race.counted(asked, taken.min(bound), taken)
    };
    let stream = |place: usize| async move {
        let (lease, place) = (LeaseKey(place as u128 + 1), place as u64);
        let reserved = race.ask(place % 9, Act::Reserve { lease, ttl }).await?;
        is_bounded("reserves beside debits", &reserved)?;
        let mut produced = 0;
        for chunk in 0..12 {
            // Some without a lease, some with one that was refused.
            let own = (place % 3 > 0).then_some(lease);
            let units = 1 + (place + chunk) % LARGEST;
            let debited = race.ask(units, Act::Debit(own)).await?;
            is_bounded("debits beside reserves", &debited)?;
            if !debited.decision.is_admit() {
                break;
            }
            produced += if own.is_some() { units } else { 0 };
        }
        let settled = race.ask(produced, Act::Settle(lease)).await?;
        is_bounded("settlements beside debits", &settled)
    };
    race.at_once(RACERS, stream).await?;
    let standing = race.ask(0, Act::Look).await?.standing;
    let given = (standing.reserved, standing.debt, standing.open);
    race.counted("nothing is kept and nothing owed", (0, 0, 0), given)
}

async fn reserves_fill_the_limit<B: Budgets>(
    race: &Race<'_, B>,
    units: u64,
) -> Result<(), Departure> {
    let ttl = Span::from_secs(60);
    let reserve = |place: usize| async move {
        let lease = LeaseKey((place as u128) << 64 | 1);
        Ok(race.ask(units, Act::Reserve { lease, ttl }).await?.decision.is_admit())
    };
    let reserved = race.at_once(RESERVES, reserve).await?;
    let admitted = reserved.into_iter().filter(|is_admitted| *is_admitted).count() as u64;
    race.counted("reserves by many", race.budget.limit() / units, admitted)?;
    let standing = race.ask(0, Act::Look).await?.standing;
    let given = (u64::from(standing.open), standing.reserved);
    race.counted("what many reserved", (admitted, admitted * units), given)
}

async fn one_lease_is_taken_and_settled_once<B: Budgets>(
    race: &Race<'_, B>,
) -> Result<(), Departure> {
    let (lease, ttl) = (LeaseKey(u128::MAX), Span::from_secs(60));
    let reserve = |_| race.ask(60, Act::Reserve { lease, ttl });
    for reserved in race.at_once(RACERS, reserve).await? {
        let standing = reserved.standing;
        let given = (reserved.decision.is_admit(), standing.reserved, standing.open);
        race.counted("one reserve by many", (true, 60, 1), given)?;
    }
    let _ = race.ask(50, Act::Debit(Some(lease))).await?;
    // Each tells something else: the first is believed.
    let settle = |place: usize| race.ask(52 + place as u64 % 30, Act::Settle(lease));
    let settled = race.at_once(RACERS, settle).await?;
    let results = settled.iter().map(|answered| match answered.settlement {
        Settlement::Now(settled) => (1, Some(settled)),
        Settlement::Before(settled) => (0, Some(settled)),
        _ => (0, None),
    });
    let results: Vec<_> = results.collect();
    race.counted("settlements that did it", 1, results.iter().map(|(now, _)| now).sum())?;
    let first = results.iter().find(|(now, _)| *now == 1).and_then(|(_, settled)| *settled);
    for (_, settled) in &results {
        race.counted("the result that all are told", first, *settled)?;
    }
    let standing = race.ask(0, Act::Look).await?.standing;
    let first = first.unwrap_or_default();
    let expected = (60 - first.returned, 0, first.debt, 0);
    let given = (standing.spent, standing.reserved, standing.debt, standing.open);
    race.counted("what one settlement leaves", expected, given)
}

async fn orders_do_not_matter<B: Budgets>(race: &Race<'_, B>) -> Result<(), Departure> {
    let debit = |place: usize| async move {
        let (first, second) = (race.charge(b"one", 1), race.charge(b"other", 1));
        let charges = if place.is_multiple_of(2) { [first, second] } else { [second, first] };
        let booked = race.book(&charges, Act::Debit(None)).await?;
        Ok(u64::from(booked.together.decision.is_admit()))
    };
    let admitted: u64 = race.at_once(RACERS, debit).await?.into_iter().sum();
    race.counted("debits in either order", race.budget.limit(), admitted)?;
    let looked = race.book(&[race.charge(b"one", 0), race.charge(b"other", 0)], Act::Look).await?;
    let given: Vec<u64> = looked.together.each.iter().map(|each| each.standing.spent).collect();
    race.counted("what either order spent", vec![admitted; 2], given)
}

/// Callers at once.
const RACERS: usize = 64;
const RESERVES: usize = 200;
/// The most that one debits at a time.
const LARGEST: u64 = 5;
