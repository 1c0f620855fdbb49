//! Strategies of your own on any shared store, by compare and swap.
//!
//! A built-in strategy runs inside the store, in one round trip. A store cannot run Rust, so a
//! strategy of your own is run here: its state is read, stepped, and written back only if nobody
//! changed it meanwhile. That is two round trips when admitted, one when denied, and one more for
//! each time somebody else was faster.
//!
//! # Guarantee
//! As for built-in strategies: racing callers are admitted as some order of them would be, a
//! denial writes nothing, and the store's clock decides. The number of tries is bounded; when they
//! are used up, nothing was charged and the error says so.
//!
//! # Proven by
//! `admittance-testkit`: `custom_strategies_decide_exactly` over every store, with a store that
//! swaps without comparing.

use admittance_core::{Cost, Decision, Forecast, Micros, Strategy};

use super::StoreError;

/// A strategy whose states can be stored outside this process.
pub trait Portable: Strategy {
    /// A short word for everything that the stored bytes depend on. A strategy of another shape
    /// does not meet this one's states.
    fn shape(&self) -> String;

    /// The state as bytes.
    fn encode(&self, state: &Self::State) -> Vec<u8>;

    /// The state again, or `None` if these bytes are not one.
    fn decode(&self, bytes: &[u8]) -> Option<Self::State>;
}

/// One key's place in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// The strategy's shape.
    pub shape: &'a str,
    /// Whom or what is counted.
    pub key: &'a [u8],
}

/// What a cell holds, and the instant the store's clock showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The bytes; `None` if there are none.
    pub bytes: Option<Vec<u8>>,
    /// The time the store used.
    pub at: Micros,
}

/// A change of a cell that happens only if nobody changed it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap<'a> {
    /// What the cell must hold.
    pub expected: Option<&'a [u8]>,
    /// What it shall hold; `None` empties it.
    pub new: Option<&'a [u8]>,
    /// The instant from which the store may forget it.
    pub idle_at: Micros,
}

/// Whether a [`Swap`] happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// It did.
    Done,
    /// It did not: the cell holds this.
    Conflict(Loaded),
}

/// A store that keeps bytes in cells and changes them by compare and swap.
pub trait Cells: Send + Sync {
    /// What a cell holds.
    ///
    /// # Errors
    /// The store could not answer.
    fn load(&self, cell: Cell<'_>) -> impl Future<Output = Result<Loaded, StoreError>> + Send;

    /// Changes a cell if it holds what is expected.
    ///
    /// # Errors
    /// The store could not answer; [`StoreError::recovery`] says whether it may have happened.
    fn swap(
        &self,
        cell: Cell<'_>,
        swap: Swap<'_>,
    ) -> impl Future<Output = Result<Swapped, StoreError>> + Send;
}

impl<S: Cells> Cells for std::sync::Arc<S> {
    fn load(&self, cell: Cell<'_>) -> impl Future<Output = Result<Loaded, StoreError>> + Send {
        (**self).load(cell)
    }

    fn swap(
        &self,
        cell: Cell<'_>,
        swap: Swap<'_>,
    ) -> impl Future<Output = Result<Swapped, StoreError>> + Send {
        (**self).swap(cell, swap)
    }
}

/// A policy that decides by a strategy of your own, with its states in a shared store.
#[derive(Debug)]
pub struct Custom<P, S> {
    policy: String,
    shape: String,
    strategy: P,
    store: S,
    tries_max: u32,
}

impl<P: Portable, S: Cells> Custom<P, S> {
    /// How often a check is tried before it gives up, if nobody says otherwise. A check loses to
    /// another only if that one was admitted, so a key whose limit is lower never gets here.
    pub const TRIES_MAX_DEFAULT: u32 = 64;

    /// A policy of this name, decided by `strategy`.
    pub fn new(policy: impl Into<String>, strategy: P, store: S) -> Self {
        let shape = strategy.shape();
        let tries_max = Self::TRIES_MAX_DEFAULT;
        Self { policy: policy.into(), shape, strategy, store, tries_max }
    }

    /// How often a check is tried before it gives up; at least once.
    #[must_use]
    pub fn tries_max(self, tries_max: u32) -> Self {
        Self { tries_max: tries_max.max(1), ..self }
    }

    /// Decides a request.
    ///
    /// # Errors
    /// The store could not answer, the tries are used up, or the stored bytes are no state.
    pub async fn check(&self, key: &[u8], cost: Cost) -> Result<Decision, StoreError> {
        let mut loaded = self.store.load(self.cell(key)).await?;
        for _ in 0..self.tries_max {
            let state = self.decoded(&loaded)?;
            let step = self.strategy.step(state, loaded.at, cost);
            let Some(state) = step.state.filter(|_| step.decision.is_admit()) else {
                return Ok(step.decision);
            };
            let new = self.strategy.encode(&state);
            let swap = Swap {
                expected: loaded.bytes.as_deref(),
                new: Some(&new),
                idle_at: self.strategy.idle_at(&state),
            };
            match self.store.swap(self.cell(key), swap).await? {
                Swapped::Done => return Ok(step.decision),
                Swapped::Conflict(now_there) => loaded = now_there,
            }
        }
        Err(StoreError::Contended { tries: self.tries_max })
    }

    /// Whether a request of cost 1 would be admitted, and what remains. Charges nothing.
    ///
    /// # Errors
    /// The store could not answer, or the stored bytes are no state.
    pub async fn peek(&self, key: &[u8]) -> Result<Decision, StoreError> {
        let loaded = self.store.load(self.cell(key)).await?;
        Ok(self.strategy.peek(self.decoded(&loaded)?.as_ref(), loaded.at))
    }

    /// How many requests of `cost` would pass now, and when that changes. Charges nothing.
    ///
    /// # Errors
    /// The store could not answer, or the stored bytes are no state.
    pub async fn forecast(&self, key: &[u8], cost: Cost) -> Result<Forecast, StoreError> {
        let loaded = self.store.load(self.cell(key)).await?;
        Ok(self.strategy.forecast(self.decoded(&loaded)?.as_ref(), loaded.at, cost))
    }

    /// Forgets a key; says whether there was anything to forget.
    ///
    /// # Errors
    /// The store could not answer, or the tries are used up.
    pub async fn reset(&self, key: &[u8]) -> Result<bool, StoreError> {
        let mut loaded = self.store.load(self.cell(key)).await?;
        for _ in 0..self.tries_max {
            let expected = loaded.bytes.as_deref();
            if expected.is_none() {
                return Ok(false);
            }
            let swap = Swap { expected, new: None, idle_at: loaded.at };
            match self.store.swap(self.cell(key), swap).await? {
                Swapped::Done => return Ok(true),
                Swapped::Conflict(now_there) => loaded = now_there,
            }
        }
        Err(StoreError::Contended { tries: self.tries_max })
    }

    fn cell<'a>(&'a self, key: &'a [u8]) -> Cell<'a> {
        Cell { policy: &self.policy, shape: &self.shape, key }
    }

    /// Bytes that are no state are not taken for a key never seen: that would admit.
    fn decoded(&self, loaded: &Loaded) -> Result<Option<P::State>, StoreError> {
        let decode = |bytes: &Vec<u8>| self.strategy.decode(bytes).ok_or(StoreError::Unreadable);
        loaded.bytes.as_ref().map(decode).transpose()
    }
}
