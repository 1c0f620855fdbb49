//! Steps that are wrong in one thing. Each calls the shipped functions with something changed.

use admittance_core::budget::{self, Budget, Debt, LeaseKey, Line, Phase, Settlement, Together};
use admittance_core::{Cadence, Micros, Span};
use admittance_sim::cost::Steps;

/// The same lines with other budgets.
fn with(
    lines: &mut [Line<'_>],
    change: impl Fn(Budget) -> Budget,
    step: impl FnOnce(&mut [Line<'_>]) -> Together,
) -> Together {
    let budgets: Vec<Budget> = lines.iter().map(|line| change(*line.budget)).collect();
    let lines = lines.iter_mut().zip(&budgets);
    let again = |(line, budget): (_, _)| {
        let line: &mut Line<'_> = line;
        Line { budget, account: line.account, units: line.units }
    };
    let mut lines: Vec<Line<'_>> = lines.map(again).collect();
    step(&mut lines)
}

fn endless(budget: Budget) -> Budget {
    budget.limited(Budget::UNITS_MAX).unwrap()
}

/// Counts whatever is debited: nobody is stopped.
#[derive(Clone, Copy)]
pub(crate) struct NeverStops;

impl Steps for NeverStops {
    fn debit(self, lines: &mut [Line<'_>], lease: LeaseKey, now: Micros) -> Together {
        with(lines, endless, |lines| budget::debit(lines, Some(lease), now))
    }
}

/// Reserves whatever is asked for.
#[derive(Clone, Copy)]
pub(crate) struct ReservesAnything;

impl Steps for ReservesAnything {
    fn reserve(self, lines: &mut [Line<'_>], lease: LeaseKey, ttl: Span, now: Micros) -> Together {
        with(lines, endless, |lines| budget::reserve(lines, lease, ttl, now))
    }
}

/// Charges the accounts one after the other, each for itself.
#[derive(Clone, Copy)]
pub(crate) struct OneByOne;

impl Steps for OneByOne {
    fn debit(self, lines: &mut [Line<'_>], lease: LeaseKey, now: Micros) -> Together {
        let one =
            |line: &mut Line<'_>| line.account.debit(line.budget, Some(lease), line.units, now);
        Together::of(lines.iter_mut().map(one).collect())
    }
}

/// Draws nothing from the reservation.
#[derive(Clone, Copy)]
pub(crate) struct DrawsNothing;

impl Steps for DrawsNothing {
    fn debit(self, lines: &mut [Line<'_>], _: LeaseKey, now: Micros) -> Together {
        budget::debit(lines, None, now)
    }
}

/// Leases live twice as long as they say.
#[derive(Clone, Copy)]
pub(crate) struct LivesLonger;

impl Steps for LivesLonger {
    fn reserve(self, lines: &mut [Line<'_>], lease: LeaseKey, ttl: Span, now: Micros) -> Together {
        budget::reserve(lines, lease, Span::from_us(ttl.us() * 2), now)
    }
}

/// Nothing that is reserved ever ends, unless somebody settles.
#[derive(Clone, Copy)]
pub(crate) struct NeverReclaims;

impl Steps for NeverReclaims {
    fn reserve(self, lines: &mut [Line<'_>], lease: LeaseKey, _: Span, now: Micros) -> Together {
        budget::reserve(lines, lease, Budget::TTL_MAX, now)
    }
}

/// Believes that what was debited is what was produced.
#[derive(Clone, Copy)]
pub(crate) struct IgnoresTheTruth;

impl Steps for IgnoresTheTruth {
    fn settle(self, lines: &mut [Line<'_>], lease: LeaseKey, _: bool, now: Micros) -> Together {
        budget::settle(lines, lease, false, now)
    }
}

/// Gives nothing back.
#[derive(Clone, Copy)]
pub(crate) struct GivesNothingBack;

impl Steps for GivesNothingBack {
    fn settle(self, lines: &mut [Line<'_>], lease: LeaseKey, _: bool, now: Micros) -> Together {
        let _ = budget::look(lines, now);
        for line in lines.iter_mut() {
            if let Some(lease) = line.account.lease(lease) {
                line.units = line.units.max(lease.debited + lease.unspent);
            }
        }
        budget::settle(lines, lease, true, now)
    }
}

/// A settlement that comes again is booked again.
#[derive(Clone, Copy)]
pub(crate) struct SettlesAgain;

impl Steps for SettlesAgain {
    fn settle(
        self,
        lines: &mut [Line<'_>],
        lease: LeaseKey,
        is_known: bool,
        now: Micros,
    ) -> Together {
        let mut said = budget::settle(lines, lease, is_known, now);
        for (line, answered) in lines.iter_mut().zip(&mut said.each) {
            if let Settlement::Before(settled) = answered.settlement {
                let (ghost, ttl) = (LeaseKey(u128::MAX - lease.0), Span::from_secs(1));
                let reserve = budget::Reserve { lease: ghost, units: 0, ttl };
                let _ = line.account.reserve(&endless(*line.budget), reserve, now);
                let again = Some(settled.debt.max(1));
                *answered = line.account.settle(line.budget, ghost, again, now);
            }
        }
        said
    }
}

/// What has expired cannot be settled any more.
#[derive(Clone, Copy)]
pub(crate) struct TooLate;

impl Steps for TooLate {
    fn settle(
        self,
        lines: &mut [Line<'_>],
        lease: LeaseKey,
        is_known: bool,
        now: Micros,
    ) -> Together {
        let said = budget::look(lines, now);
        let is_expired = |line: &Line<'_>| {
            let lease = line.account.lease(lease);
            lease.is_some_and(|lease| matches!(lease.phase, Phase::Expired(_)))
        };
        if lines.iter().any(is_expired) {
            return said;
        }
        budget::settle(lines, lease, is_known, now)
    }
}

/// Remembers one lease that has ended, and no other.
#[derive(Clone, Copy)]
pub(crate) struct RemembersOne;

impl Steps for RemembersOne {
    fn settle(
        self,
        lines: &mut [Line<'_>],
        lease: LeaseKey,
        is_known: bool,
        now: Micros,
    ) -> Together {
        let change = |budget: Budget| budget.remembering(Budget::OPEN_MAX, 1);
        with(lines, change, |lines| budget::settle(lines, lease, is_known, now))
    }
}

/// Forgives debt that is to be carried, and carries what is to be forgiven.
#[derive(Clone, Copy)]
pub(crate) struct OtherDebt;

impl OtherDebt {
    fn change(budget: Budget) -> Budget {
        budget.debt(match budget.debts() {
            Debt::Carry => Debt::Forgive,
            Debt::Forgive => Debt::Carry,
        })
    }
}

impl Steps for OtherDebt {
    fn look(self, lines: &mut [Line<'_>], now: Micros) -> Together {
        with(lines, Self::change, |lines| budget::look(lines, now))
    }

    fn debit(self, lines: &mut [Line<'_>], lease: LeaseKey, now: Micros) -> Together {
        with(lines, Self::change, |lines| budget::debit(lines, Some(lease), now))
    }
}

/// Debt stops nobody who has reserved.
#[derive(Clone, Copy)]
pub(crate) struct DebtBlocksNobody;

impl Steps for DebtBlocksNobody {
    fn reserve(self, lines: &mut [Line<'_>], lease: LeaseKey, ttl: Span, now: Micros) -> Together {
        let debts = budget::look(lines, now);
        let debts: Vec<u64> = debts.each.iter().map(|it| it.standing.debt).collect();
        let budgets = lines.iter().zip(debts);
        let budgets = budgets.map(|(line, debt)| line.budget.limited(line.budget.limit() + debt));
        let budgets: Vec<Budget> = budgets.map(Result::unwrap).collect();
        let lines = lines.iter_mut().zip(&budgets);
        let again =
            lines.map(|(line, budget)| Line { budget, account: line.account, units: line.units });
        budget::reserve(&mut again.collect::<Vec<_>>(), lease, ttl, now)
    }
}

/// Windows begin anew twice as often as they should.
#[derive(Clone, Copy)]
pub(crate) struct RollsEarly;

impl RollsEarly {
    fn change(budget: Budget) -> Budget {
        let half = Span::from_us(budget.cadence().shortest().us() / 2);
        Budget::new(budget.limit(), Cadence::every(half)).unwrap().debt(budget.debts())
    }
}

impl Steps for RollsEarly {
    fn look(self, lines: &mut [Line<'_>], now: Micros) -> Together {
        with(lines, Self::change, |lines| budget::look(lines, now))
    }

    fn reserve(self, lines: &mut [Line<'_>], lease: LeaseKey, ttl: Span, now: Micros) -> Together {
        with(lines, Self::change, |lines| budget::reserve(lines, lease, ttl, now))
    }

    fn debit(self, lines: &mut [Line<'_>], lease: LeaseKey, now: Micros) -> Together {
        with(lines, Self::change, |lines| budget::debit(lines, Some(lease), now))
    }

    fn settle(
        self,
        lines: &mut [Line<'_>],
        lease: LeaseKey,
        is_known: bool,
        now: Micros,
    ) -> Together {
        with(lines, Self::change, |lines| budget::settle(lines, lease, is_known, now))
    }
}

/// Says to go on until it says stop.
#[derive(Clone, Copy)]
pub(crate) struct NeverSoft;

impl Steps for NeverSoft {
    fn debit(self, lines: &mut [Line<'_>], lease: LeaseKey, now: Micros) -> Together {
        with(lines, |budget| budget.soft(0), |lines| budget::debit(lines, Some(lease), now))
    }
}

/// A store that forgets everything when it restarts, and does not say so.
#[derive(Clone, Copy)]
pub(crate) struct Forgets;

impl Steps for Forgets {
    fn keeps(self) -> bool {
        false
    }
}
