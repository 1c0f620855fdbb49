//! What the proxy asks of a meter: small, so that a broken one can be put in its place by a test.

use admittance::StoreError;
use admittance::budget::{Accounts, Meter, Payer, Reservation, Reserving, Together};

/// Where requests reserve.
pub trait Metering: Send + Sync + 'static {
    /// A reservation that a request draws on. Dropped, it is settled with what was debited.
    type Work: Work;

    /// Takes an estimate out of every account of the payer, or out of none.
    ///
    /// # Errors
    /// The store could not answer.
    fn reserve(
        &self,
        payer: Payer,
        tokens: u64,
    ) -> impl Future<Output = Result<Began<Self::Work>, StoreError>> + Send;

    /// How the accounts stand.
    ///
    /// # Errors
    /// The store could not answer.
    fn look(&self, payer: &Payer) -> impl Future<Output = Result<Together, StoreError>> + Send;
}

/// What came of asking for a reservation.
#[derive(Debug)]
pub enum Began<W> {
    /// It is held.
    Held(W),
    /// It did not fit.
    Denied(Together),
}

/// A reservation.
pub trait Work: Send + 'static {
    /// Counts tokens that are about to be passed on; [`Flow::Stop`](admittance::budget::Flow::Stop)
    /// says that they must not be.
    ///
    /// # Errors
    /// The store could not answer: then they must not be passed on either.
    fn debit(&mut self, tokens: u64) -> impl Future<Output = Result<Together, StoreError>> + Send;

    /// Ends it with what was produced.
    ///
    /// # Errors
    /// The store could not answer; it will be told again.
    fn settle(self, actual: u64) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl<A: Accounts + 'static> Metering for Meter<A> {
    type Work = Reservation<A>;

    async fn reserve(&self, payer: Payer, tokens: u64) -> Result<Began<Self::Work>, StoreError> {
        Ok(match self.reserve(payer, tokens).await? {
            Reserving::Held(work) => Began::Held(work),
            Reserving::Denied(together) => Began::Denied(together),
        })
    }

    async fn look(&self, payer: &Payer) -> Result<Together, StoreError> {
        self.look(payer).await
    }
}

impl<A: Accounts + 'static> Work for Reservation<A> {
    async fn debit(&mut self, tokens: u64) -> Result<Together, StoreError> {
        self.debit(tokens).await
    }

    async fn settle(self, actual: u64) -> Result<(), StoreError> {
        self.settle(actual).await.map(|_| ())
    }
}
