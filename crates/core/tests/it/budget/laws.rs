//! Laws that an account keeps by itself, without a ledger beside it.

use std::collections::BTreeMap;

use admittance_core::budget::{Account, Budget, Debt, LeaseKey, Reserve};
use admittance_core::{Cadence, Micros, Outcome, Retry, Span};
use fastrand::Rng;

use crate::budget::draw::{Ask, Drawn, Stepped, instant};
use crate::timeline::{generator, long};
use admittance_testdata::budget::Mutant;
use admittance_testdata::budget::ScanningAccount;

const TIMELINES: usize = 1_000;
const STEPS: usize = 60;

/// What was not kept.
type Broken = Result<(), String>;

/// Waiting exactly the retry admits the same ask, one tick less does not, and a reservation that is
/// told never is never admitted. Crowds of up to 64 leases, and bounds on them that are lowered.
fn retry_is_the_truth<A: Stepped>(new: impl Fn() -> A) -> Broken {
    let mut rng = generator(82);
    for timeline in 0..long(TIMELINES) {
        let mut drawn = Drawn::new(&mut rng, false);
        let mut account = new();
        if timeline % 3 == 0 {
            crowd(&mut account, &mut drawn, &mut rng);
        }
        for _ in 0..STEPS {
            let (ask, at) = drawn.next(&mut rng);
            let answered = account.ask(&drawn.budget, ask, at);
            drawn.told(answered);
            let Outcome::Deny(retry) = answered.decision.outcome else { continue };
            let asked = |instant| {
                let mut account = account.clone();
                account.ask(&drawn.budget, ask, instant).decision.is_admit()
            };
            let told = format!("{ask:?} at {at:?}: {retry:?}");
            match (retry, ask) {
                (Retry::After(wait), _) => {
                    if !asked(at + wait) {
                        return Err(format!("still denied: {told}"));
                    }
                    if asked(at + wait - Span::TICK) {
                        return Err(format!("admitted before: {told}"));
                    }
                }
                (Retry::Never, Ask::Reserve(reserve)) if reserve.units > drawn.budget.limit() => {
                    let later = [1, 1_000, 1_000_000_000, 100_000_000_000_000];
                    if later.into_iter().any(|wait| asked(at + Span::from_us(wait))) {
                        return Err(format!("admitted after all: {told}"));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Up to 64 leases of one unit, some with the window's end before theirs; then sometimes a bound
/// that many of them are too much for.
fn crowd<A: Stepped>(account: &mut A, drawn: &mut Drawn, rng: &mut Rng) {
    let count = if rng.bool() { 64 } else { rng.u64(60..64) };
    let limit = count + rng.u64(0..20);
    let day = Cadence::every(Span::from_secs(86_400));
    let cadence = if rng.bool() { day } else { drawn.budget.cadence() };
    drawn.budget = Budget::new(limit, cadence).unwrap();
    for number in 0..count {
        let ttl = Span::from_us(rng.u64(1..1_000_000));
        let lease = LeaseKey(1_000 + u128::from(number));
        let reserve = Ask::Reserve(Reserve { lease, units: 1, ttl });
        drawn.told(account.ask(&drawn.budget, reserve, instant(drawn.now)));
    }
    let spend = Ask::Debit(None, limit - count + 1);
    drawn.told(account.ask(&drawn.budget, spend, instant(drawn.now)));
    if rng.bool() {
        let ended_max = if rng.bool() { rng.u32(1..60) } else { u32::MAX };
        drawn.budget = drawn.budget.remembering(rng.u32(1..60), ended_max);
    } else if rng.bool() {
        // No more come, so that those who wait see all.
        drawn.budget = drawn.budget.remembering(64, u32::MAX);
    } else {
        drawn.budget = drawn.budget.remembering(1, u32::MAX);
    }
}

#[test]
fn retry_is_the_truth_and_never_means_never() {
    retry_is_the_truth(Account::default).unwrap();
    for mutant in [
        Mutant::WaitsForTheNextWindow,
        Mutant::WaitsForTheBudgetOnly,
        Mutant::WaitsForOneOfSeveral,
        Mutant::WaitsForOneUnsettled,
        Mutant::LooksAtNoLease,
        Mutant::LooksAtOneLess,
        Mutant::NeverSaysNever,
    ] {
        let broken = retry_is_the_truth(|| ScanningAccount::new(mutant));
        println!("{mutant:?}: {}", broken.expect_err("it lies about waiting"));
    }
}

#[test]
fn with_more_leases_than_are_looked_at_the_wait_ends_with_the_last_of_those() {
    let budget = Budget::new(100, Cadence::every(Span::from_secs(60))).unwrap();
    let (mut account, start) = (Account::default(), Micros::ZERO);
    for number in 1..=100_u64 {
        let (lease, ttl) = (LeaseKey(number.into()), Span::from_ms(number));
        let reserved = account.reserve(&budget, Reserve { lease, units: 1, ttl }, start);
        assert!(reserved.decision.is_admit());
    }
    let all = Reserve { lease: LeaseKey(0), units: 100, ttl: Span::from_secs(1) };
    let denied = account.clone().reserve(&budget, all, start);
    let expected = Outcome::Deny(Retry::After(Span::from_ms(64)));
    assert_eq!(denied.decision.outcome, expected);
    let few = Reserve { units: 64, ..all };
    assert_eq!(account.clone().reserve(&budget, few, start).decision.outcome, expected);
    // By then 36 are open, and all are looked at.
    let later = start + Span::from_ms(64);
    let denied = account.reserve(&budget, all, later).decision;
    assert_eq!(denied.retry_after(), Some(Span::from_ms(36)));
}

/// Leases that nobody settles, one after the other, as many as an account takes.
#[test]
fn a_lease_is_settled_however_many_ended_since() {
    let budget = Budget::new(1_000_000, Cadence::every(Span::from_secs(86_400))).unwrap();
    let budget = budget.remembering(4, 8);
    let (mut account, ttl) = (Account::default(), Span::from_secs(1));
    let at = |second: u64| Micros::ZERO + Span::from_secs(second);
    let lease = |second: u64| LeaseKey(second.into());
    let mut taken = 0;
    for second in 0..20 {
        let reserve = Reserve { lease: lease(second), units: 10, ttl };
        let decision = account.reserve(&budget, reserve, at(second)).decision;
        // One is open and twelve may be unsettled; until the first is forgotten, nothing else is.
        let expected = match second {
            ..12 => Outcome::Admit,
            _ => Outcome::Deny(Retry::After(Span::from_secs(601 - second))),
        };
        assert_eq!(decision.outcome, expected, "{second}");
        taken += u64::from(decision.is_admit());
    }
    for settled in 0..taken {
        let answered = account.settle(&budget, lease(settled), Some(100), at(20));
        assert_eq!(answered.standing.debt, (settled + 1) * 100);
    }
    // What was settled makes room, and is forgotten itself, the oldest first.
    assert_eq!(account.remembered(), 8);
    let again = account.settle(&budget, lease(11), Some(100), at(20));
    assert_eq!(again.standing.debt, 1_200, "it was booked before");
    let reserve = Reserve { lease: lease(100), units: 10, ttl };
    assert!(account.reserve(&budget, reserve, at(20)).decision.is_admit());
}

#[test]
fn debt_is_remembered_up_to_a_bound() {
    let budget = Budget::new(1_000, Cadence::every(Span::from_secs(60))).unwrap();
    let (mut account, start) = (Account::default(), Micros::ZERO);
    let ttl = Span::from_secs(10);
    for number in 0..4 {
        let lease = LeaseKey(number);
        let reserved = account.reserve(&budget, Reserve { lease, units: 0, ttl }, start);
        assert!(reserved.decision.is_admit());
    }
    let mut expected = 0;
    for number in 0..4 {
        let actual = Some(Budget::UNITS_MAX);
        let settled = account.settle(&budget, LeaseKey(number), actual, start);
        expected = (expected + Budget::UNITS_MAX).min(Budget::DEBT_MAX);
        assert_eq!(settled.standing.debt, expected);
    }
    assert_eq!(expected, Budget::DEBT_MAX);
}

/// Looking at any instants in between changes nothing: what has ended has ended, however late it
/// is noticed.
fn looking_changes_nothing<A: Stepped>(new: impl Fn() -> A) -> Broken {
    let mut rng = generator(83);
    for _ in 0..long(TIMELINES) {
        let mut drawn = Drawn::new(&mut rng, true);
        let (mut seldom, mut often, mut before) = (new(), new(), drawn.now);
        for _ in 0..STEPS {
            let (ask, at) = drawn.next(&mut rng);
            let mut looks: Vec<u64> = (0..4).map(|_| rng.u64(before..=at.epoch_us())).collect();
            looks.sort_unstable();
            for look in looks {
                let _ = often.ask(&drawn.budget, Ask::Look, instant(look));
            }
            let expected = seldom.ask(&drawn.budget, ask, at);
            let given = often.ask(&drawn.budget, ask, at);
            if expected != given {
                return Err(format!("{ask:?} at {at:?}: {expected:?}, and looked at {given:?}"));
            }
            drawn.told(expected);
            before = at.epoch_us();
        }
    }
    Ok(())
}

#[test]
fn looking_at_an_account_changes_nothing() {
    looking_changes_nothing(Account::default).unwrap();
    let broken = looking_changes_nothing(|| ScanningAccount::new(Mutant::UnusedWindowsPayNothing));
    println!("{}", broken.expect_err("windows that are looked at pay"));
}

/// How much a stream asks for before it begins.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    Nothing,
    Exact,
    Most,
    /// Much for those that need little, and little for those that need much.
    Adverse,
    Random,
}

impl Sizes {
    const ALL: [Self; 5] = [Self::Nothing, Self::Exact, Self::Most, Self::Adverse, Self::Random];

    fn of(self, rng: &mut Rng, need: u64, most: u64) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Exact => need,
            Self::Most => most,
            Self::Adverse => most - need,
            Self::Random => rng.u64(0..=most),
        }
    }
}

/// One that debits before it serves.
#[derive(Clone, Copy)]
struct Stream {
    lease: LeaseKey,
    need: u64,
    debited: u64,
    /// What it has reserved and not spent, and of which window.
    own: (u64, u64),
    /// What it last debited beyond that, and in which window.
    last: (u64, u64),
    is_over: bool,
}

/// Many streams at once, which debit `g` at a time before they serve, whatever they reserve, by
/// names that are sometimes asked for twice, and which settle later, sometimes twice, sometimes
/// with less than they debited: what is served on a window's account is at most `g − 1` more than
/// its limit.
fn overshoot_is_bounded<A: Stepped>(new: impl Fn() -> A) -> Broken {
    let mut rng = generator(84);
    for run in 0..long(TIMELINES) {
        let (sizes, most) = (Sizes::ALL[run % Sizes::ALL.len()], rng.u64(1..40));
        let chunk = if run % 2 == 0 { 1 } else { rng.u64(1..8) };
        let limit = rng.u64(1..100);
        let budget = Budget::new(limit, Cadence::every(Span::from_us(1_000))).unwrap();
        let (mut account, mut streams, mut now) = (new(), Vec::new(), 1_000_000);
        // What was served on each window's account.
        let mut served: BTreeMap<u64, u64> = BTreeMap::new();
        for number in 0..400 {
            now += if rng.u8(..4) == 0 { rng.u64(0..60) } else { 0 };
            let at = instant(now);
            if streams.len() < 8 {
                let (lease, need) = (LeaseKey(number), rng.u64(1..=most));
                let units = sizes.of(&mut rng, need, most);
                let ask = Ask::Reserve(Reserve { lease, units, ttl: Span::from_us(5_000) });
                let mut answered = account.ask(&budget, ask, at);
                if rng.u8(..4) == 0 {
                    answered = account.ask(&budget, ask, at);
                }
                if answered.decision.is_admit() {
                    let own = (answered.standing.window_end.epoch_us(), answered.unspent);
                    let (last, is_over) = ((0, 0), false);
                    streams.push(Stream { lease, need, debited: 0, own, last, is_over });
                }
                continue;
            }
            let place = rng.usize(..streams.len());
            let stream = &mut streams[place];
            if stream.is_over {
                let Stream { lease, debited, last: (window, beyond), .. } = *stream;
                let cut = rng.u64(0..=beyond);
                *served.entry(window).or_default() -= cut;
                for _ in 0..rng.u8(1..3) {
                    let _ = account.ask(&budget, Ask::Settle(lease, Some(debited - cut)), at);
                }
                streams.swap_remove(place);
                continue;
            }
            let units = chunk.min(stream.need - stream.debited);
            let answered = account.ask(&budget, Ask::Debit(Some(stream.lease), units), at);
            if answered.decision.is_admit() {
                let drawn = units.min(stream.own.1);
                stream.own.1 -= drawn;
                stream.debited += units;
                stream.last = (answered.standing.window_end.epoch_us(), units - drawn);
                *served.entry(stream.own.0).or_default() += drawn;
                *served.entry(stream.last.0).or_default() += units - drawn;
            }
            stream.is_over = stream.debited == stream.need || !answered.decision.is_admit();
        }
        let over = served.iter().find(|(_, units)| **units > limit + chunk - 1);
        if let Some((window, units)) = over {
            return Err(format!("{units} of {limit} by {chunk} in {window}, {sizes:?}"));
        }
    }
    Ok(())
}

#[test]
fn whatever_is_reserved_debits_of_g_overshoot_by_at_most_g_less_one() {
    overshoot_is_bounded(Account::default).unwrap();
    for mutant in [
        Mutant::ReservesWithoutRoom,
        Mutant::ReservesTwice,
        Mutant::RefundsToTheWrongWindow,
        Mutant::SettlesTwice,
    ] {
        let broken = overshoot_is_bounded(|| ScanningAccount::new(mutant));
        println!("{mutant:?}: {}", broken.expect_err("more is served than there is"));
    }
}

/// What was produced beyond everything is owed until windows have paid it, unit for unit.
fn debt_is_carried_until_paid<A: Stepped>(new: impl Fn() -> A) -> Broken {
    let mut rng = generator(85);
    for run in 0..long(TIMELINES) {
        let (limit, period) = (rng.u64(1..50), 1_000);
        let budget = Budget::new(limit, Cadence::every(Span::from_us(period))).unwrap();
        let budget = if run % 3 == 0 { budget.debt(Debt::Forgive) } else { budget };
        let (mut account, mut now) = (new(), 1_000_000 + rng.u64(..period));
        let lease = LeaseKey(9);
        let (reserved, actual) = (rng.u64(0..=limit), rng.u64(0..=5 * limit));
        let ask = Ask::Reserve(Reserve { lease, units: reserved, ttl: Span::from_us(500) });
        let _ = account.ask(&budget, ask, instant(now));
        let settle = Ask::Settle(lease, Some(actual));
        let mut standing = account.ask(&budget, settle, instant(now)).standing;
        let mut owed = actual.saturating_sub(reserved);
        if standing.debt != owed {
            return Err(format!("{owed} are owed of {limit}, and it says {standing:?}"));
        }
        for _ in 0..12 {
            // Some of what is left is spent, and then some windows pass.
            let left = limit.saturating_sub(owed + standing.spent);
            let spent = if left > 0 { rng.u64(0..=left) } else { 0 };
            let debited = account.ask(&budget, Ask::Debit(None, spent), instant(now));
            let windows = rng.u64(0..3);
            now += windows * period;
            let spare = limit.saturating_sub(debited.standing.spent);
            if windows > 0 {
                let paid = spare + (windows - 1) * limit;
                let is_forgiven = budget.debts() == Debt::Forgive;
                owed = if is_forgiven { 0 } else { owed.saturating_sub(paid) };
            }
            let looked = account.ask(&budget, Ask::Look, instant(now));
            standing = looked.standing;
            let remaining = limit.saturating_sub(owed + standing.spent);
            if (standing.debt, looked.decision.remaining) != (owed, remaining) {
                return Err(format!("{owed} are owed of {limit}, and it says {looked:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn debt_is_carried_exactly_until_windows_have_paid_it_unless_it_is_forgiven() {
    debt_is_carried_until_paid(Account::default).unwrap();
    for mutant in [
        Mutant::ForgetsDebt,
        Mutant::NeverForgives,
        Mutant::PaysWithWhatIsSpent,
        Mutant::UnusedWindowsPayNothing,
        Mutant::OverrunsAreFree,
        Mutant::OverrunsAreSpent,
    ] {
        let broken = debt_is_carried_until_paid(|| ScanningAccount::new(mutant));
        println!("{mutant:?}: {}", broken.expect_err("debt is not what it was"));
    }
}
