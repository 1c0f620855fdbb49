//! An admission that its handler meters and its response's body ends.
//!
//! Both may happen at once: a task that streams may be debiting when the client goes away. Whoever
//! ends it says so first and then tries to take it; whoever uses it looks, when done, whether its
//! end was said meanwhile. The lock around what was said orders the two: one of them sees the
//! other.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};

use admittance_core::budget::Flow;
use admittance_core::learn::Ending;
use admittance_core::{Decision, Outcome, Retry, Verdicts};
use tokio::sync::MutexGuard;

use crate::admission::{Admission, Charges, Metered};
use crate::gate::GateClock;
use crate::{Source, StoreError};

/// What was admitted, for its handler: an extension of the request. Clones are handles to the same;
/// none of them keeps it from ending with the response.
#[derive(Clone)]
pub struct Admitted(Arc<dyn Holds>);

impl Admitted {
    pub(super) fn new<X: Charges, G: GateClock>(admission: Admission<X, G>) -> Self {
        let verdicts = admission.verdicts();
        let (admission, said) = (tokio::sync::Mutex::new(Some(admission)), Default::default());
        Self(Arc::new(Shared { verdicts, admission, said }))
    }

    /// What each axis said.
    pub fn verdicts(&self) -> Verdicts {
        self.0.verdicts()
    }

    /// Counts `units` that are about to be served: see [`Admission::debit`]. Once the response has
    /// ended, nothing is counted, and the flow is a stop.
    ///
    /// # Errors
    /// As [`Admission::debit`].
    pub async fn debit(&self, units: u64) -> Result<Metered, StoreError> {
        self.0.meter(Meter::Debit(units)).await
    }

    /// Tells what was produced: see [`Admission::settle`]. Once the response has ended, it is too
    /// late.
    ///
    /// # Errors
    /// As [`Admission::settle`].
    pub async fn settle(&self, actual: u64) -> Result<Metered, StoreError> {
        self.0.meter(Meter::Settle(actual)).await
    }

    /// The time until now is what counts for the concurrency axis: see [`Admission::first_byte`].
    pub fn first_byte(&self) {
        self.0.say(Said { is_begun: true, end: None });
    }

    /// It is over.
    pub(super) fn end(&self, end: End) {
        self.0.say(Said { is_begun: false, end: Some(end) });
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("verdicts", &self.verdicts()).finish_non_exhaustive()
    }
}

/// How it ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Judged by the response.
    Judged(Ending),
    /// The client went away, or the handler panicked.
    Gone,
}

enum Meter {
    Debit(u64),
    Settle(u64),
}

/// What was said and is not done yet.
#[derive(Clone, Copy, Default)]
struct Said {
    is_begun: bool,
    end: Option<End>,
}

impl Said {
    const fn is_nothing(&self) -> bool {
        !self.is_begun && self.end.is_none()
    }
}

type Metering<'a> = Pin<Box<dyn Future<Output = Result<Metered, StoreError>> + Send + 'a>>;

/// An admission of whatever axes.
trait Holds: Send + Sync {
    fn verdicts(&self) -> Verdicts;
    fn meter(&self, meter: Meter) -> Metering<'_>;
    fn say(&self, said: Said);
}

struct Shared<X: Charges, G: GateClock> {
    verdicts: Verdicts,
    admission: tokio::sync::Mutex<Option<Admission<X, G>>>,
    said: std::sync::Mutex<Said>,
}

impl<X: Charges, G: GateClock> Holds for Shared<X, G> {
    fn verdicts(&self) -> Verdicts {
        self.verdicts
    }

    fn meter(&self, meter: Meter) -> Metering<'_> {
        Box::pin(async move {
            // Made before the wait: whose turn it is while the future is dropped must carry out
            // what was said meanwhile.
            let mut in_use = InUse { held: None, of: self };
            in_use.held = Some(self.admission.lock().await);
            match (in_use.held.as_deref_mut().and_then(Option::as_mut), meter) {
                (None, _) => Ok(OVER),
                (Some(admission), Meter::Debit(units)) => admission.debit(units).await,
                (Some(admission), Meter::Settle(actual)) => admission.settle(actual).await,
            }
        })
    }

    fn say(&self, said: Said) {
        {
            let mut all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            all.is_begun |= said.is_begun;
            all.end = all.end.or(said.end);
        }
        self.carry_out();
    }
}

impl<X: Charges, G: GateClock> Shared<X, G> {
    /// Does what was said, unless somebody uses the admission, who will then.
    fn carry_out(&self) {
        let said = || *self.said.lock().unwrap_or_else(PoisonError::into_inner);
        while !said().is_nothing() {
            let Ok(mut held) = self.admission.try_lock() else { return };
            let said =
                std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner));
            if let (true, Some(admission)) = (said.is_begun, held.as_mut()) {
                admission.first_byte();
            }
            let ended = said.end.and_then(|end| Some((end, held.take()?)));
            drop(held);
            match ended {
                Some((End::Judged(Ending::Finish), admission)) => admission.finish(),
                Some((End::Judged(Ending::Ignore), admission)) => admission.ignore(),
                Some((End::Judged(Ending::Overload), admission)) => admission.dropped(),
                Some((End::Gone, admission)) => drop(admission),
                None => {}
            }
        }
    }
}

/// An admission in use or waited for, also by a future that is dropped.
struct InUse<'a, X: Charges, G: GateClock> {
    held: Option<MutexGuard<'a, Option<Admission<X, G>>>>,
    of: &'a Shared<X, G>,
}

impl<X: Charges, G: GateClock> Drop for InUse<'_, X, G> {
    fn drop(&mut self) {
        drop(self.held.take());
        self.of.carry_out();
    }
}

/// What is said to one who meters what has ended.
const OVER: Metered = Metered {
    decision: Decision { outcome: Outcome::Deny(Retry::Never), ..Decision::NEUTRAL },
    flow: Flow::Stop,
    source: Source::Node,
    ..Metered::UNMETERED
};
