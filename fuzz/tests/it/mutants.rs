//! Implementations that are nearly right, each of which its target must notice, by the property
//! that it breaks.
//!
//! `ADMITTANCE_SEED=n` replays a run.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use admittance::admission::{Admitting, Request};
use admittance::budget::{Act, Booked, Charge, Entry, LeaseKey, MemoryAccounts};
use admittance::gate::{Gate, PERMITS_MAX, Permit, Refused};
use admittance::{
    Builtin, Clock, Cost, Decision, Forecast, Limiter, ManualClock, Micros, Outcome, Retry,
    StoreError,
};
use admittance_fuzz::accounts::{self, Books};
use admittance_fuzz::admitter::{self, Admits, Charged, Held, World};
use admittance_fuzz::gate::{self, End, Gates};
use admittance_fuzz::limiter::{self, Limits};
use admittance_fuzz::{config, machines};
use admittance_server::Config;
use fastrand::Rng;

/// Whether the target breaks on some input, and says this.
fn is_noticed(wanted: &str, feed: impl Fn(&[u8])) -> bool {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let mut rng = Rng::with_seed(seed.unwrap_or(9));
    (0..50_000).any(|_| {
        let input: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(..)).collect();
        broken(|| feed(&input)).is_some_and(|said| said.contains(wanted))
    })
}

/// What a panic says, quietly.
fn broken(run: impl FnOnce()) -> Option<String> {
    // One after another: what is said of panics is for all threads.
    static QUIET: Mutex<()> = Mutex::new(());
    let _quiet = QUIET.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = catch_unwind(AssertUnwindSafe(run)).err();
    std::panic::set_hook(hook);
    caught.map(|panic| match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    AdmitsWhatIsDenied,
    ChargesDenials,
    TellsTooMuch,
    ForgetsWhenTimeStepsBack,
    LooksCharge,
}

struct Lying {
    inner: Limiter<Builtin, ManualClock>,
    lie: Lie,
    latest: Cell<Micros>,
}

impl Lying {
    fn step_back(&self, key: u8) {
        let (now, before) = (self.inner.clock().now(), self.latest.get());
        if self.lie == Lie::ForgetsWhenTimeStepsBack && now < before {
            Limits::reset(&self.inner, key);
        }
        self.latest.set(now);
    }
}

impl Limits for Lying {
    fn check(&self, key: u8, cost: Cost) -> Decision {
        self.step_back(key);
        let said = Limits::check(&self.inner, key, cost);
        let is_small = cost.units() <= said.limit;
        match (self.lie, said.outcome) {
            (Lie::AdmitsWhatIsDenied, Outcome::Deny(Retry::After(_))) if is_small => {
                Decision { outcome: Outcome::Admit, ..said }
            }
            (Lie::ChargesDenials, Outcome::Deny(_)) => {
                let _ = Limits::check(&self.inner, key, Cost::ONE);
                said
            }
            (Lie::TellsTooMuch, Outcome::Admit) => Decision { remaining: said.limit + 1, ..said },
            _ => said,
        }
    }

    fn peek(&self, key: u8) -> Decision {
        if self.lie == Lie::LooksCharge {
            let _ = Limits::check(&self.inner, key, Cost::ONE);
        }
        Limits::peek(&self.inner, key)
    }

    fn forecast(&self, key: u8, cost: Cost) -> Forecast {
        Limits::forecast(&self.inner, key, cost)
    }

    fn reset(&self, key: u8) {
        Limits::reset(&self.inner, key);
    }
}

#[test]
fn a_limiter_that_lies_is_noticed() {
    for (lie, wanted) in [
        (Lie::AdmitsWhatIsDenied, "an interval admits more than its bound"),
        (Lie::ForgetsWhenTimeStepsBack, "an interval admits more than its bound"),
        (Lie::TellsTooMuch, "more remains than the limit"),
        (Lie::ChargesDenials, "check of"),
        (Lie::LooksCharge, "peek"),
    ] {
        let feed = |bytes: &[u8]| {
            limiter::checked(bytes, |strategy, clock| {
                let inner = limiter::shipped(strategy, clock);
                Lying { inner, lie, latest: Cell::new(Micros::ZERO) }
            });
        };
        assert!(is_noticed(wanted, feed), "{lie:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    GivesOneTooMany,
    Leaks,
    IgnoresFences,
    CountsTwice,
}

struct MutantGate {
    inner: Gate<ManualClock>,
    mutant: Mutant,
    leaked: Mutex<Vec<Permit<ManualClock>>>,
}

impl Gates for MutantGate {
    fn gate(&self) -> &Gate<ManualClock> {
        &self.inner
    }

    fn acquire(&self, class: Option<usize>) -> Result<Permit<ManualClock>, Refused> {
        let taken = match class {
            None => self.inner.acquire(),
            Some(class) => self.inner.acquire_as(class),
        };
        let share = self.inner.stats().share;
        match (self.mutant, taken) {
            (Mutant::GivesOneTooMany, Err(refused)) if !refused.is_fenced => {
                self.inner.set_share(PERMITS_MAX);
                let taken = self.inner.acquire();
                self.inner.set_share(share);
                taken
            }
            (Mutant::IgnoresFences, Err(refused)) if refused.is_fenced => {
                self.inner.unfence();
                self.inner.acquire()
            }
            (_, taken) => taken,
        }
    }

    fn end(&self, permit: Permit<ManualClock>, end: End) {
        match (self.mutant, end) {
            (Mutant::Leaks, End::Overload) => self.leaked.lock().unwrap().push(permit),
            (Mutant::CountsTwice, End::Ignore) => {
                permit.ignore();
                drop(self.inner.acquire());
            }
            (_, End::Finish) => permit.finish(),
            (_, End::Ignore) => permit.ignore(),
            (_, End::Overload) => permit.overload(),
        }
    }
}

#[test]
fn a_gate_with_a_flaw_is_noticed() {
    for (mutant, wanted) in [
        (Mutant::GivesOneTooMany, "a permit too many"),
        (Mutant::Leaks, "what is in flight is what is held"),
        (Mutant::IgnoresFences, "a permit was given after the fence"),
        (Mutant::CountsTwice, "what was given"),
    ] {
        let feed = |bytes: &[u8]| {
            gate::checked(bytes, |inner| MutantGate { inner, mutant, leaked: Mutex::default() });
        };
        assert!(is_noticed(wanted, feed), "{mutant:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fraud {
    AdmitsEverything,
    BooksTwice,
    SettlesNothing,
    DenialsCharge,
    ForgetsTheSecond,
}

struct Cooked {
    inner: MemoryAccounts<ManualClock>,
    fraud: Fraud,
}

impl Books for Cooked {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let booked = match (self.fraud, entry.act) {
            (Fraud::AdmitsEverything, Act::Reserve { .. }) => {
                // The same accounts, with a hundred times as much in them.
                let scaled = entry.charges.iter().map(|charge| {
                    let limit = charge.budget.limit().saturating_mul(100);
                    charge.budget.limited(limit).unwrap_or(*charge.budget)
                });
                let scaled: Vec<_> = scaled.collect();
                let charges = entry.charges.iter().zip(&scaled);
                let charges = charges.map(|(charge, budget)| Charge { budget, ..*charge });
                let charges: Vec<_> = charges.collect();
                self.inner.book_now(Entry { charges: &charges, act: entry.act })
            }
            (Fraud::SettlesNothing, Act::Settle(_)) => {
                entry.checked()?;
                self.inner.book_now(Entry { act: Act::Look, ..entry })
            }
            (Fraud::ForgetsTheSecond, _) if entry.charges.len() > 1 => {
                entry.checked()?;
                let (first, rest) = entry.charges.split_at(1);
                let mut booked = self.inner.book_now(Entry { charges: first, ..entry })?;
                let looked = self.inner.book_now(Entry { charges: rest, act: Act::Look })?;
                booked.together.each.extend(looked.together.each);
                Ok(booked)
            }
            _ => self.inner.book_now(entry),
        }?;
        let is_admit = booked.together.decision.is_admit();
        match (self.fraud, entry.act) {
            (Fraud::BooksTwice, Act::Debit(_)) if is_admit => self.inner.book_now(entry),
            (Fraud::DenialsCharge, Act::Reserve { .. }) if !is_admit => {
                let lease = LeaseKey(1 << 90);
                let _ = self.inner.book_now(Entry { act: Act::Debit(Some(lease)), ..entry });
                Ok(booked)
            }
            _ => Ok(booked),
        }
    }
}

#[test]
fn accounts_that_are_cooked_are_noticed() {
    for (fraud, wanted) in [
        (Fraud::AdmitsEverything, "are in use"),
        (Fraud::BooksTwice, "assertion `left == right` failed: Entry"),
        (Fraud::SettlesNothing, "assertion `left == right` failed: Entry"),
        (Fraud::DenialsCharge, "assertion `left == right` failed: Entry"),
        (Fraud::ForgetsTheSecond, "assertion `left == right` failed: Entry"),
    ] {
        let feed = |bytes: &[u8]| {
            accounts::checked(bytes, |clock| Cooked { inner: MemoryAccounts::new(clock), fraud });
        };
        assert!(is_noticed(wanted, feed), "{fraud:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slip {
    KeepsThePermit,
    ChargesTheRateOfDenials,
    ChargesTheRateTwice,
    LeavesReservations,
}

struct Slipping {
    slip: Slip,
    kept: Mutex<Vec<Permit<ManualClock>>>,
}

impl Admits for Slipping {
    fn admit(
        &self,
        world: &World,
        request: Request<'_>,
    ) -> Result<Admitting<Charged, ManualClock>, StoreError> {
        let answer = admitter::Shipped.admit(world, request)?;
        match self.slip {
            Slip::ChargesTheRateOfDenials if !answer.is_admit() => {
                let _ = world.limiter.check(request.key);
            }
            Slip::ChargesTheRateTwice if answer.is_admit() => {
                let _ = world.limiter.check(request.key);
            }
            _ => {}
        }
        Ok(answer)
    }

    fn end(&self, mut held: Held, way: u8) {
        match self.slip {
            Slip::KeepsThePermit => self.kept.lock().unwrap().extend(held.take_permit()),
            Slip::LeavesReservations if way.is_multiple_of(8) => {
                drop(held.take_permit());
                return held.leave();
            }
            _ => {}
        }
        admitter::Shipped.end(held, way);
    }
}

#[test]
fn an_admitter_that_slips_is_noticed() {
    for (slip, wanted) in [
        (Slip::KeepsThePermit, "what is in flight is what is held"),
        (Slip::ChargesTheRateOfDenials, "a denial left a trace"),
        (Slip::ChargesTheRateTwice, "an admission charges the rate once"),
        (Slip::LeavesReservations, "reservations are left over"),
    ] {
        let feed = |bytes: &[u8]| {
            admitter::checked(bytes, &Slipping { slip, kept: Mutex::default() });
        };
        assert!(is_noticed(wanted, feed), "{slip:?}");
    }
}

#[test]
fn machines_that_make_a_mistake_are_noticed() {
    let mut rng = Rng::with_seed(9);
    let missed = machines::mutants().into_iter().filter(|mutant| {
        !(0..20_000).any(|_| {
            let input: Vec<u8> = (0..60).map(|_| rng.u8(..)).collect();
            machines::is_broken(&input, mutant)
        })
    });
    let missed: Vec<String> = missed.map(|mutant| format!("{mutant:?}")).collect();
    let is_rare = |one: &String| RARE.iter().any(|rare| one.starts_with(rare));
    assert!(missed.iter().all(is_rare), "{missed:#?}");
}

/// What needs so exact an order of events that chance alone seldom finds it; `models/` does.
const RARE: &[&str] = &["Shares(StaleWithLifetime", "Shares(StaleTaken"];

#[test]
fn a_resolved_form_that_loses_something_is_noticed() {
    let text = include_bytes!("../../corpus/config/axes.yaml");
    config::checked(text, &Config::to_string);
    let shown =
        Config::parse("f.yaml", str::from_utf8(text).unwrap(), admittance_server::Fail::Open);
    let lines = shown.unwrap().to_string().lines().count();
    let missed = (0..lines).filter(|&lost| {
        let without = |config: &Config| -> String {
            let shown = config.to_string();
            let kept = shown.lines().enumerate().filter(|(nth, _)| *nth != lost);
            kept.map(|(_, line)| format!("{line}\n")).collect()
        };
        broken(|| config::checked(text, &without)).is_none()
    });
    // Lines that say what would be so without them.
    let missed: Vec<usize> = missed.collect();
    assert!(missed.len() * 2 < lines, "{missed:?} of {lines}");
}
