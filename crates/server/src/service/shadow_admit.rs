//! Candidates of policies for admissions, and of budgets: what they hold, and how that ends.
//!
//! # Guarantee
//! - A candidate that admits what its parent admits holds it for as long as the parent's lease
//!   lives, and it ends as that does. Debits and settlements of the lease go to its accounts too,
//!   under the same number. One that admits what its parent denies ends it at once: nobody works.
//!
//! # Proven by
//! `tests/it/shadow_admit.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admittance::admission::{Admission, Admitting, Request};
use admittance::budget::{Act, Booked, BookedBy, Charge, Entry, LeaseKey, Settlement};
use admittance::{Axis, Micros, Source, StoreError};

use super::admit::Admits;
use super::axes::Axes;
use super::cost::{Asked, CostLine, Costed, Costs, Expected};
use super::shadow::Candidate;
use super::{Admitted, Policy, Service, Work};
use crate::beside::{Beside, Ending};
use crate::lease_id::LeaseId;

/// What became of an ask of an admission.
struct Beheld {
    candidate: Arc<Candidate>,
    /// Whether the parent admitted.
    parent: bool,
    /// Where it is held, if the parent gave a lease.
    held: Option<Arc<Beside<Axes>>>,
    now: Micros,
}

impl Beheld {
    fn holds(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.is_held())
    }

    /// Counts what the candidate said; gives back what must end now.
    fn heard(
        &self,
        admits: &Admits,
        key: &str,
        said: Result<Admitting<Axes>, StoreError>,
    ) -> Option<(Admission<Axes>, Ending)> {
        let admission = match said {
            Err(_) => {
                self.candidate.failed(1);
                return None;
            }
            Ok(Admitting::Denied(denial)) => {
                // Places and prices are nobody else's.
                let source = match denial.binding() {
                    None | Some(Axis::Concurrency) => Source::Store,
                    Some(_) => denial.source(),
                };
                self.candidate.heard(self.parent, false, source);
                return None;
            }
            Ok(Admitting::Admitted(admission)) => admission,
        };
        self.candidate.heard(self.parent, true, admission.source());
        match &self.held {
            Some(held) if self.parent => {
                let renewing = admits.renewing(&admission, key);
                let renewing = renewing.map(|renewing| {
                    let due = renewing.due(self.now);
                    (renewing, due)
                });
                held.hold(admission, renewing)
            }
            _ => Some((admission, Ending::RECLAIMED)),
        }
    }
}

impl Service {
    /// Has candidates see what the policy decided about a piece of work.
    pub(super) fn admit_beside(&self, policy: &Policy, work: &Work<'_>, admitted: &Admitted) {
        let is_shed = admitted.binding == Some(Axis::Load);
        if policy.shadows.candidates.is_empty() || is_shed || admitted.source == Source::FailMode {
            return;
        }
        let lease = admitted.lease.as_ref().and_then(|lease| LeaseId::parse(&lease.id));
        let (parent, now) = (admitted.decision.is_admit(), self.leases.now());
        for (candidate, beside) in self.beside(policy) {
            let Some(admits) = &beside.admits else { continue };
            // The number that its parent's reservation has is that of its own: in other accounts.
            let named = beside.has_cost_axis().then(|| lease.unwrap_or_else(|| self.leases.name()));
            let number = named.map(|named| named.code());
            let held = lease.map(|_| Arc::new(Beside::new()));
            let beheld = Beheld { candidate: Arc::clone(candidate), parent, held, now };
            if admits.is_at_once() {
                let asked = catch_unwind(AssertUnwindSafe(|| {
                    self.admit_at_once(&beheld, admits, work.request(), number);
                }));
                match asked {
                    Ok(()) if beheld.holds() => self.attach(lease, &beheld),
                    Ok(()) => {}
                    Err(_) => candidate.failed(1),
                }
            } else {
                // It may answer after the lease has ended, and must learn of that.
                self.attach(lease, &beheld);
                self.queue_admit(beheld, &beside, work, number);
            }
        }
    }

    fn attach(&self, lease: Option<LeaseId>, beheld: &Beheld) {
        if let (Some(lease), Some(held)) = (lease, &beheld.held) {
            self.leases.attach(lease.lease, Arc::clone(held));
        }
    }

    fn admit_at_once(
        &self,
        beheld: &Beheld,
        admits: &Admits,
        request: Request<'_>,
        number: Option<LeaseKey>,
    ) {
        let request = Request { lease: number, ..request };
        let mut asking = pin!(admits.admitter().admit(request));
        let Poll::Ready(said) = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            beheld.candidate.failed(1);
            return;
        };
        let key = str::from_utf8(request.key).unwrap_or_default();
        if let Some((admission, ending)) = beheld.heard(admits, key, said) {
            self.leases.end_admission(admission, ending);
        }
    }

    fn queue_admit(
        &self,
        beheld: Beheld,
        beside: &Arc<Policy>,
        work: &Work<'_>,
        number: Option<LeaseKey>,
    ) {
        let Some(room) = self.queue.room(&beheld.candidate, 1, work.key.len()) else { return };
        let (beside, key) = (Arc::clone(beside), work.key.to_owned());
        let (cost, value, hold_ms) = (work.cost, work.value, work.hold_ms);
        room.ask(async move {
            let Some(admits) = &beside.admits else { return };
            let work = Work { policy: "", key: &key, cost, value, hold_ms };
            let request = Request { lease: number, ..work.request() };
            let said = admits.admitter().admit(request).await;
            if let Some((mut admission, ending)) = beheld.heard(admits, &key, said) {
                ending.free(&mut admission);
                ending.tell(admission).await;
            }
        });
    }

    /// Has candidates see what was reserved, debited or settled. `expected` is learned from if that
    /// is known now.
    pub(super) fn book_beside(
        &self,
        asked: &[Asked<'_>],
        act: Act,
        costs: &Costs,
        expected: Expected<'_>,
    ) {
        if costs.source == Source::FailMode {
            return;
        }
        for one in asked {
            let Ok(policy) = self.policy(one.policy) else { continue };
            if policy.shadows.candidates.is_empty() {
                continue;
            }
            let is_own = |line: &&CostLine| line.policy == one.policy && line.key == one.key;
            let mut own = costs.lines.iter().filter(is_own);
            let own = own.all(|line| line.answered.decision.is_admit());
            let compared = matches!(act, Act::Debit(_) | Act::Reserve { .. });
            if compared && own != costs.decision.is_admit() {
                // Another has denied: nothing will be done, though this one would have it.
                continue;
            }
            for (candidate, beside) in self.beside(&policy) {
                let Some(cost) = &beside.cost else { continue };
                let booking = Booking {
                    candidate: Arc::clone(candidate),
                    units: match (act, one.units) {
                        (Act::Reserve { .. }, 0) => cost.estimate(expected),
                        (_, units) => units,
                    },
                    parent: compared.then_some(own),
                    // A lease that nobody has been given needs a number of its own.
                    act: match act {
                        Act::Reserve { ttl, .. } if !own => {
                            Act::Reserve { lease: self.leases.name().code(), ttl }
                        }
                        act => act,
                    },
                };
                self.book_one(&booking, cost, &beside, one.key, expected);
            }
        }
    }

    fn book_one(
        &self,
        booking: &Booking,
        cost: &Costed,
        beside: &Arc<Policy>,
        key: &str,
        expected: Expected<'_>,
    ) {
        if !cost.is_shared() {
            let here = &self.ledger.here;
            let booked = catch_unwind(AssertUnwindSafe(|| {
                let entry = |act| booking.entry(cost, key, act, |entry| here.book_now(entry));
                booking.heard(cost, entry(booking.act), Source::Store, expected);
                if let Some(act) = booking.undone() {
                    let _ = entry(act);
                }
            }));
            if booked.is_err() {
                booking.candidate.failed(1);
            }
            return;
        }
        let bytes = key.len() + expected.class.len();
        let Some(room) = self.queue.room(&booking.candidate, 1, bytes) else { return };
        let (booking, beside) = (booking.clone(), Arc::clone(beside));
        let (key, class) = (key.to_owned(), expected.class.to_owned());
        let (prediction, is_stopped) = (expected.prediction, expected.is_stopped);
        room.ask(async move {
            let Some(cost) = &beside.cost else { return };
            let expected = Expected { class: &class, prediction, is_stopped };
            match booking.book_there(cost, &key, booking.act).await {
                Ok(BookedBy { booked, source }) => {
                    booking.heard(cost, Ok(booked), source, expected);
                    if let Some(act) = booking.undone() {
                        let _ = booking.book_there(cost, &key, act).await;
                    }
                }
                Err(error) => booking.heard(cost, Err(error), Source::Store, expected),
            }
        });
    }
}

/// What is asked of a candidate's accounts.
#[derive(Clone)]
struct Booking {
    candidate: Arc<Candidate>,
    units: u64,
    act: Act,
    /// Whether the parent admitted, if that is to be compared.
    parent: Option<bool>,
}

impl Booking {
    fn entry<T>(&self, cost: &Costed, key: &str, act: Act, book: impl FnOnce(Entry<'_>) -> T) -> T {
        let charges = cost.charges(key.as_bytes(), self.units);
        book(Entry { charges: &charges, act })
    }

    async fn book_there(&self, cost: &Costed, key: &str, act: Act) -> Result<BookedBy, StoreError> {
        let charges: Vec<Charge<'_>> = cost.charges(key.as_bytes(), self.units);
        let shared = cost.shared().ok_or(StoreError::Lost)?;
        shared.book(Entry { charges: &charges, act }).await
    }

    fn heard(
        &self,
        cost: &Costed,
        said: Result<Booked, StoreError>,
        source: Source,
        expected: Expected<'_>,
    ) {
        let Ok(booked) = said else {
            self.candidate.failed(1);
            return;
        };
        if let Some(parent) = self.parent {
            self.candidate.heard(parent, booked.together.decision.is_admit(), source);
        }
        let mut settlements = booked.together.each.iter().map(|answered| answered.settlement);
        let is_first = settlements.any(|settlement| matches!(settlement, Settlement::Now(_)));
        if matches!(self.act, Act::Settle(_)) && is_first {
            cost.learn(expected, self.units);
        }
    }

    /// What takes a reservation back that nobody will use.
    const fn undone(&self) -> Option<Act> {
        match (self.act, self.parent) {
            (Act::Reserve { lease, .. }, Some(false)) => Some(Act::Abandon(lease)),
            _ => None,
        }
    }
}
