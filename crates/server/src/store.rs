//! The store that a service decides by, whichever it is.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use admittance::{Applied, AppliedMany, AppliedSeveral, Group, Many, Op, Store, StoreError};

/// Any shared store. What it costs, an allocation per ask, is nothing beside a round trip; what is
/// decided in this process does not go through it.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

impl AnyStore {
    /// This store, whatever its type.
    pub fn new(store: impl Store + 'static) -> Self {
        Self(Arc::new(store))
    }
}

impl Store for AnyStore {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.0.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.0.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.0.several(group).await
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyStore")
    }
}

type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`Store`] with its futures in boxes, so that its type can be forgotten.
trait Erased: Send + Sync {
    fn apply<'a>(&'a self, op: Op<'a>) -> Asked<'a, Applied>;
    fn check_many<'a>(&'a self, many: Many<'a>) -> Asked<'a, AppliedMany>;
    fn several<'a>(&'a self, group: Group<'a>) -> Asked<'a, AppliedSeveral>;
}

impl<S: Store> Erased for S {
    fn apply<'a>(&'a self, op: Op<'a>) -> Asked<'a, Applied> {
        Box::pin(Store::apply(self, op))
    }

    fn check_many<'a>(&'a self, many: Many<'a>) -> Asked<'a, AppliedMany> {
        Box::pin(Store::check_many(self, many))
    }

    fn several<'a>(&'a self, group: Group<'a>) -> Asked<'a, AppliedSeveral> {
        Box::pin(Store::several(self, group))
    }
}
