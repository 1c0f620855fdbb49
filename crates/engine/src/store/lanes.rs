//! Asks that are made at the same time travel together.
//!
//! An ask goes out at once if a lane is free. While all lanes are on their way, asks gather, and
//! the next lane to come back takes all of them (up to a bound) in one batch. So one caller alone
//! never waits for company, and the busier it gets, the more each round trip carries.
//!
//! # Guarantee
//! - No delay is added: nothing waits for a batch to fill.
//! - Bounded: at most `queue_max` asks gather, and a batch has at most `batch_max`.
//! - An ask whose caller has gone before it was sent is not sent.
//!
//! # Proven by
//! The tests below.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use super::StoreError;

/// What carries a batch of asks to a store and brings the answers back.
pub trait Carry: Send + Sync + 'static {
    /// What is asked.
    type Ask: Send + 'static;
    /// What is answered.
    type Answer: Send + 'static;

    /// Carries a batch, never empty, and answers every ask of it in order. `lane` counts from 0.
    fn carry(
        &self,
        lane: usize,
        asks: Vec<Self::Ask>,
    ) -> impl Future<Output = Vec<Result<Self::Answer, StoreError>>> + Send;
}

/// How many lanes there are, and how much they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// How many batches are on their way at the same time.
    pub lanes: usize,
    /// The most asks in one batch.
    pub batch_max: usize,
    /// The most asks that wait for a lane. One more is refused as [`StoreError::Unavailable`].
    pub queue_max: usize,
}

/// Lanes to a store. Must be made within a tokio runtime, where the lanes run until this is
/// dropped.
#[derive(Debug)]
pub struct Lanes<C: Carry> {
    queue: mpsc::Sender<Waiting<C>>,
}

#[derive(Debug)]
struct Waiting<C: Carry> {
    ask: C::Ask,
    answer: oneshot::Sender<Result<C::Answer, StoreError>>,
}

impl<C: Carry> Lanes<C> {
    /// Starts the lanes.
    pub fn start(size: Size, carry: Arc<C>) -> Self {
        let (queue, waiting) = mpsc::channel(size.queue_max.max(1));
        let waiting = Arc::new(Mutex::new(waiting));
        for lane in 0..size.lanes.max(1) {
            let (waiting, carry) = (Arc::clone(&waiting), Arc::clone(&carry));
            tokio::spawn(run(lane, size.batch_max.max(1), waiting, carry));
        }
        Self { queue }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The store's, and [`StoreError::Unavailable`] when too many wait already.
    pub async fn ask(&self, ask: C::Ask) -> Result<C::Answer, StoreError> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { ask, answer };
        self.queue.try_send(waiting).map_err(|_| StoreError::Unavailable)?;
        // A lane that ends without an answer was cut off with its runtime, perhaps after sending.
        answered.await.unwrap_or(Err(StoreError::Lost))
    }
}

async fn run<C: Carry>(
    lane: usize,
    batch_max: usize,
    queue: Arc<Mutex<mpsc::Receiver<Waiting<C>>>>,
    carry: Arc<C>,
) {
    let mut batch = Vec::with_capacity(batch_max);
    loop {
        if queue.lock().await.recv_many(&mut batch, batch_max).await == 0 {
            return;
        }
        let wanted = batch.drain(..).filter(|waiting| !waiting.answer.is_closed());
        let (asks, answers): (Vec<_>, Vec<_>) =
            wanted.map(|waiting| (waiting.ask, waiting.answer)).unzip();
        if asks.is_empty() {
            continue;
        }
        let carried = carry.carry(lane, asks).await;
        debug_assert_eq!(carried.len(), answers.len(), "every ask is answered");
        for (answer, carried) in answers.into_iter().zip(carried) {
            // A caller that has gone meanwhile does not want it any more.
            let _ = answer.send(carried);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Lock;

    use tokio::sync::Semaphore;

    use super::*;

    /// Echoes each batch once it is let through, and remembers what came.
    struct Echo {
        gate: Semaphore,
        batches: Lock<Vec<Vec<u32>>>,
    }

    impl Carry for Echo {
        type Ask = u32;
        type Answer = u32;

        async fn carry(&self, _lane: usize, asks: Vec<u32>) -> Vec<Result<u32, StoreError>> {
            self.batches.lock().expect("no panic holds it").push(asks.clone());
            self.gate.acquire().await.expect("never closed").forget();
            asks.into_iter().map(Ok).collect()
        }
    }

    fn echo() -> Arc<Echo> {
        Arc::new(Echo { gate: Semaphore::new(0), batches: Lock::default() })
    }

    fn size(lanes: usize, batch_max: usize, queue_max: usize) -> Size {
        Size { lanes, batch_max, queue_max }
    }

    fn batches(echo: &Echo) -> Vec<Vec<u32>> {
        echo.batches.lock().expect("no panic holds it").clone()
    }

    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_first_goes_at_once_and_the_others_together() {
        let echo = echo();
        let lanes = Arc::new(Lanes::start(size(1, 3, 100), Arc::clone(&echo)));
        let mut callers = Vec::new();
        for ask in 0..6 {
            let lanes = Arc::clone(&lanes);
            callers.push(tokio::spawn(async move { lanes.ask(ask).await }));
            settle().await;
        }
        assert_eq!(batches(&echo), [vec![0]], "nobody waited for company");
        echo.gate.add_permits(10);
        for (ask, caller) in (0..).zip(callers) {
            assert_eq!(caller.await.expect("no panic"), Ok(ask), "each has its own answer");
        }
        assert_eq!(batches(&echo), [vec![0], vec![1, 2, 3], vec![4, 5]]);
    }

    #[tokio::test]
    async fn who_has_gone_is_not_asked_for_and_the_queue_is_bounded() {
        let echo = echo();
        let lanes = Arc::new(Lanes::start(size(1, 10, 2), Arc::clone(&echo)));
        let mut callers = Vec::new();
        for ask in 0..3 {
            let lanes = Arc::clone(&lanes);
            callers.push(tokio::spawn(async move { lanes.ask(ask).await }));
            settle().await;
        }
        assert_eq!(lanes.ask(9).await, Err(StoreError::Unavailable), "one on its way, two wait");
        callers[1].abort();
        settle().await;
        echo.gate.add_permits(10);
        assert_eq!(callers.remove(2).await.expect("no panic"), Ok(2));
        assert_eq!(batches(&echo), [vec![0], vec![2]]);
    }
}
