//! What a candidate holds beside a lease that its parent has given out.
//!
//! # Guarantee
//! - It ends as the lease does, and once: also if the candidate's store answers only after that.
//!
//! # Proven by
//! The tests below, and `tests/it/shadow_admit.rs`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use admittance::admission::{Admission, Charges};
use admittance::gate::{CounterClock, GateClock};
use admittance::relay::Told;
use admittance::{Micros, Span};

use crate::leases::Renewing;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// What its holder said; nothing if nobody was heard of in time.
    pub(crate) told: Option<Told>,
    /// How long ago that was.
    pub(crate) ago: Span,
}

impl Ending {
    /// Nobody holds it, and that says nothing about the load.
    pub(crate) const RECLAIMED: Self = Self { told: None, ago: Span::ZERO };

    /// Whether what was expected has been produced.
    pub(crate) const fn is_finished(&self) -> bool {
        matches!(self.told, Some(Told::Finish | Told::Beat))
    }

    /// Frees the permit of an admission that ends so.
    pub(crate) fn free<X: Charges, G: GateClock>(&self, admission: &mut Admission<X, G>) {
        let Some(permit) = admission.take_permit() else { return };
        match self.told {
            // A client that is gone is not work that was dropped.
            None => permit.ignore(),
            Some(Told::Overload) => permit.ended_ago(self.ago).overload(),
            Some(Told::Finish | Told::Beat) => permit.ended_ago(self.ago).finish(),
        }
    }

    /// Tells the accounts of an admission whose permit is free: what it was expected to cost if it
    /// is finished, what was debited if not.
    pub(crate) async fn tell<X: Charges, G: GateClock>(self, admission: Admission<X, G>) {
        if admission.lease().is_none() {
            return;
        }
        // What could not be told is told once more when the admission is dropped.
        let _ = match self.is_finished() {
            true => admission.finished().await,
            false => admission.dropped_told().await,
        };
    }
}

/// What one candidate holds.
pub(crate) struct Beside<X: Charges, G: GateClock = CounterClock>(Mutex<Stage<X, G>>);

enum Stage<X: Charges, G: GateClock> {
    /// It has not answered, or has denied.
    Empty,
    Held(Box<Holding<X, G>>),
    Ended(Ending),
}

struct Holding<X: Charges, G: GateClock> {
    admission: Admission<X, G>,
    renewing: Option<(Renewing, Micros)>,
}

impl<X: Charges, G: GateClock> Beside<X, G> {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Stage::Empty))
    }

    /// Holds what the candidate has admitted. Gives it back if the lease has ended meanwhile, with
    /// how it did.
    pub(crate) fn hold(
        &self,
        admission: Admission<X, G>,
        renewing: Option<(Renewing, Micros)>,
    ) -> Option<(Admission<X, G>, Ending)> {
        let mut stage = self.lock();
        if let Stage::Ended(ending) = *stage {
            return Some((admission, ending));
        }
        *stage = Stage::Held(Box::new(Holding { admission, renewing }));
        None
    }

    /// Whether anything is held.
    pub(crate) fn is_held(&self) -> bool {
        matches!(*self.lock(), Stage::Held(_))
    }

    /// The lease has ended so. Says what was held.
    pub(crate) fn end(&self, ending: Ending) -> Option<Admission<X, G>> {
        match std::mem::replace(&mut *self.lock(), Stage::Ended(ending)) {
            Stage::Held(held) => Some(held.admission),
            Stage::Empty | Stage::Ended(_) => None,
        }
    }

    /// The lease was heard of. What must be renewed elsewhere joins `due`.
    pub(crate) fn renew(&self, heard_at: Micros, due: &mut Vec<Renewing>) {
        let Stage::Held(held) = &mut *self.lock() else { return };
        if let Some((renewing, at)) = &mut held.renewing
            && *at <= heard_at
        {
            *at = renewing.due(heard_at);
            due.push(renewing.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stage<X, G>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<X: Charges, G: GateClock> fmt::Debug for Beside<X, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Beside")
    }
}

#[cfg(test)]
mod tests {
    use admittance::admission::{Admitter, Nothing, Request};
    use admittance::gate::{Gate, LimitRules};

    use super::*;

    /// Holds one place of two, and how many are in flight then.
    fn held(beside: &Beside<Nothing>) -> (Admitter<Nothing>, Option<Ending>) {
        let gate = Gate::new(LimitRules::fixed(2)).expect("valid");
        let admitter = Admitter::new(Nothing).concurrency(gate).build().expect("valid");
        let admitted = admitter.admit_sync(Request::new("k")).expect("answered").admitted();
        let came_late = beside.hold(admitted.expect("admitted"), None);
        let ending = came_late.map(|(mut admission, ending)| {
            ending.free(&mut admission);
            ending
        });
        (admitter, ending)
    }

    fn in_flight(admitter: &Admitter<Nothing>) -> u32 {
        admitter.gate().expect("a gate").stats().in_flight
    }

    #[test]
    fn what_is_held_ends_once_and_as_the_lease_does() {
        for told in [None, Some(Told::Finish), Some(Told::Overload)] {
            let ending = Ending { told, ago: Span::ZERO };
            let beside = Beside::new();
            let (admitter, none) = held(&beside);
            assert_eq!((none, in_flight(&admitter)), (None, 1));
            let mut admission = beside.end(ending).expect("it was held");
            ending.free(&mut admission);
            assert_eq!(in_flight(&admitter), 0, "{told:?}");
            assert!(beside.end(ending).is_none(), "a second end finds nothing");
        }
    }

    #[test]
    fn an_answer_that_comes_after_the_end_is_ended_so_at_once() {
        let beside = Beside::new();
        let ending = Ending { told: Some(Told::Overload), ago: Span::ZERO };
        assert!(beside.end(ending).is_none());
        let (admitter, came_late) = held(&beside);
        assert_eq!((came_late, in_flight(&admitter)), (Some(ending), 0));
    }
}
