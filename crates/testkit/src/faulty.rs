//! A store that fails by a script, to test what stands before a store.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use admittance::{Applied, AppliedMany, AppliedSeveral, Group, Many, Op, Span, Store, StoreError};

/// What happens to one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing goes wrong.
    None,
    /// The store does not serve; nothing is charged.
    Unavailable,
    /// The op never reaches the store; the caller learns only that time ran out.
    LostBefore {
        /// How long the caller waited.
        waited: Span,
    },
    /// The op is applied but the answer is lost; the caller learns only that time ran out.
    LostAfter {
        /// How long the caller waited.
        waited: Span,
    },
}

/// A store whose first ops meet the faults of a script, one each in the order they come, and whose
/// later ops meet none. No time passes: a timeout is told, not waited for.
///
/// # Example
/// ```
/// use admittance::{Action, Builtin, ManualClock, Memory, Op, Recovery, Span, Store, Window};
/// use admittance_testkit::{Fault, Faulty, block_on};
/// let store = Faulty::new(Memory::new(ManualClock::default()), [Fault::Unavailable]);
/// let strategy = Builtin::from(Window::fixed(1, Span::from_secs(1))?);
/// let op = Op { policy: "api", strategy: &strategy, key: b"ann", action: Action::Peek };
/// let failed = block_on(store.apply(op)).expect_err("by the script");
/// assert_eq!(failed.recovery(), Recovery::Retry);
/// assert!(block_on(store.apply(op)).is_ok());
/// # Ok::<(), admittance::Invalid>(())
/// ```
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    script: Mutex<VecDeque<Fault>>,
}

impl<S: Store> Faulty<S> {
    /// `inner`, with these faults to come.
    pub fn new(inner: S, script: impl IntoIterator<Item = Fault>) -> Self {
        Self { inner, script: Mutex::new(script.into_iter().collect()) }
    }

    /// The store without faults.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// How many faults are still to come.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    async fn meet<T>(
        &self,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.next() {
            Fault::None => asked.await,
            Fault::Unavailable => Err(StoreError::Unavailable),
            Fault::LostBefore { waited } => Err(StoreError::Timeout { waited }),
            Fault::LostAfter { waited } => {
                asked.await?;
                Err(StoreError::Timeout { waited })
            }
        }
    }

    fn next(&self) -> Fault {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.pop_front().unwrap_or(Fault::None)
    }
}

impl<S: Store> Store for Faulty<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.meet(self.inner.apply(op)).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.meet(self.inner.check_many(many)).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.meet(self.inner.several(group)).await
    }
}
