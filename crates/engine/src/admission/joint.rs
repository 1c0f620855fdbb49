//! Whether a request is worth what it takes.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use admittance_core::Micros;
use admittance_core::learn::price::{Bid, Prices, Refinement, RefinementRules, Sample};

/// The joint policy: refuses what is worth less than the scarce budgets it would take, before
/// anything is consumed. Clones are handles to the same.
///
/// It only ever refuses: what it lets pass is judged by every axis all the same.
///
/// # Example
/// ```
/// use admittance::admission::Joint;
/// use admittance::learn::price::{Bid, Prices};
/// let joint = Joint::given(Prices::given(0.5, 0.01, 0.0)?);
/// assert!(joint.prices().admits(&Bid::new(Some(2.0), 150, None)), "worth 2, for 0.5 + 1.5");
/// assert!(!joint.prices().admits(&Bid::new(Some(2.0), 151, None)));
/// # Ok::<(), admittance::Invalid>(())
/// ```
#[derive(Clone)]
pub struct Joint(Arc<Inner>);

struct Inner {
    prior: Prices,
    /// What the sample taught, once it has.
    learned: OnceLock<Prices>,
    refinement: Option<Mutex<Refinement>>,
    is_solved_here: bool,
}

impl Joint {
    /// These prices, for ever.
    #[must_use]
    pub fn given(prices: Prices) -> Self {
        Self::of(prices, None, true)
    }

    /// These prices for a window, and then what would have been better in it, if anything would.
    /// The sample is solved in a thread of its own: it takes some tens of milliseconds.
    #[must_use]
    pub fn refined(prior: Prices, rules: RefinementRules) -> Self {
        Self::of(prior, Some(rules), false)
    }

    /// The same, and the request that finds the window over solves the sample: for tests and
    /// simulations, which must not depend on when a thread runs.
    #[must_use]
    pub fn refined_here(prior: Prices, rules: RefinementRules) -> Self {
        Self::of(prior, Some(rules), true)
    }

    fn of(prior: Prices, rules: Option<RefinementRules>, is_solved_here: bool) -> Self {
        let refinement = rules.map(|rules| Mutex::new(Refinement::new(rules, prior)));
        Self(Arc::new(Inner { prior, learned: OnceLock::new(), refinement, is_solved_here }))
    }

    /// The prices that decide now.
    #[must_use]
    pub fn prices(&self) -> Prices {
        self.0.learned.get().copied().unwrap_or(self.0.prior)
    }

    /// Whether the prior was left for what the sample taught; `None` while that is open, and for
    /// prices that are not refined.
    #[must_use]
    pub fn adopted(&self) -> Option<bool> {
        self.0.refinement.as_ref().and_then(|refinement| lock(refinement).adopted())
    }

    /// Whether the request is worth its price, which is recorded while there is something to learn
    /// from it.
    pub(super) fn admits(&self, bid: &Bid, now: impl FnOnce() -> Micros) -> bool {
        if let Some(learned) = self.0.learned.get() {
            return learned.admits(bid);
        }
        if let Some(refinement) = &self.0.refinement {
            let sample = lock(refinement).observe(now(), bid);
            if let Some(sample) = sample {
                self.learn(sample);
            }
        }
        self.prices().admits(bid)
    }

    fn learn(&self, sample: Sample) {
        if self.0.is_solved_here {
            return self.0.freeze(&sample);
        }
        let inner = Arc::clone(&self.0);
        let solving = std::thread::Builder::new().name("admittance-prices".into());
        // Without a thread the prior stays.
        let _ = solving.spawn(move || inner.freeze(&sample));
    }
}

impl Inner {
    fn freeze(&self, sample: &Sample) {
        let outcome = sample.outcome();
        if let Some(refinement) = &self.refinement {
            let mut refinement = lock(refinement);
            refinement.freeze(&outcome);
            let _ = self.learned.set(refinement.prices());
        }
    }
}

fn lock(refinement: &Mutex<Refinement>) -> std::sync::MutexGuard<'_, Refinement> {
    refinement.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Joint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut joint = f.debug_struct("Joint");
        joint.field("prices", &self.prices()).field("adopted", &self.adopted()).finish()
    }
}
