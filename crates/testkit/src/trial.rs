//! One strategy on one fresh store, asked in few words.

use admittance::{
    Action, Answer, Applied, Builtin, Cost, Decimal, Decision, Forecast, Gcra, Invalid, Micros, Op,
    SlidingLog, SlidingWindow, Span, Store, Tat, TokenBucket, Window,
};

use crate::{Contract, Fact, Harness, Violation};

/// A store under one contract with one strategy.
pub(crate) struct Trial<'h, H: Harness> {
    pub(crate) harness: &'h H,
    pub(crate) store: H::Store,
    pub(crate) contract: Contract,
    pub(crate) strategy: Builtin,
    pub(crate) policy: &'static str,
}

impl<'h, H: Harness> Trial<'h, H> {
    /// A fresh store whose clock shows [`START`].
    pub(crate) async fn new(harness: &'h H, contract: Contract, strategy: Builtin) -> Self {
        let store = harness.fresh().await;
        harness.set_clock(&store, START).await;
        Self { harness, store, contract, strategy, policy: "policy" }
    }

    pub(crate) fn violated(&self, fact: Fact) -> Violation {
        let (strategy, fact) = (Box::new(self.strategy), Box::new(fact));
        Violation { contract: self.contract, strategy, fact }
    }

    pub(crate) async fn set_clock(&self, now: Micros) {
        self.harness.set_clock(&self.store, now).await;
    }

    pub(crate) async fn apply(&self, key: &[u8], action: Action) -> Result<Applied, Violation> {
        let op = Op { policy: self.policy, strategy: &self.strategy, key, action };
        self.store.apply(op).await.map_err(|error| self.violated(Fact::Failed(error)))
    }

    pub(crate) async fn check(&self, key: &[u8], units: u64) -> Result<Decision, Violation> {
        let applied = self.apply(key, Action::Check(cost(units))).await?;
        applied.decision().ok_or_else(|| self.violated(Fact::WrongKind(applied.answer)))
    }

    /// A check whose answer is another contract's business.
    pub(crate) async fn spend(&self, key: &[u8], units: u64) -> Result<(), Violation> {
        self.check(key, units).await.map(drop)
    }

    pub(crate) async fn peek(&self, key: &[u8]) -> Result<Decision, Violation> {
        let applied = self.apply(key, Action::Peek).await?;
        applied.decision().ok_or_else(|| self.violated(Fact::WrongKind(applied.answer)))
    }

    pub(crate) async fn forecast(&self, key: &[u8], units: u64) -> Result<Forecast, Violation> {
        match self.apply(key, Action::Forecast(cost(units))).await?.answer {
            Answer::Forecast(forecast) => Ok(forecast),
            other => Err(self.violated(Fact::WrongKind(other))),
        }
    }

    pub(crate) async fn reset(&self, key: &[u8]) -> Result<bool, Violation> {
        match self.apply(key, Action::Reset).await?.answer {
            Answer::Reset(found) => Ok(found),
            other => Err(self.violated(Fact::WrongKind(other))),
        }
    }

    /// How many requests of cost 1 pass until one does not, at most one more than the limit.
    pub(crate) async fn drain(&self, key: &[u8]) -> Result<u64, Violation> {
        let mut admitted = 0;
        while admitted <= LIMIT && self.check(key, 1).await?.is_admit() {
            admitted += 1;
        }
        Ok(admitted)
    }

    pub(crate) fn counted(&self, at: Micros, expected: u64, seen: u64) -> Result<(), Violation> {
        match expected == seen {
            true => Ok(()),
            false => Err(self.violated(Fact::WrongCount { at, expected, admitted: seen })),
        }
    }

    pub(crate) fn bounded(&self, at: Micros, bound: u64, seen: u64) -> Result<(), Violation> {
        match seen <= bound {
            true => Ok(()),
            false => Err(self.violated(Fact::OverAdmitted { at, bound, admitted: seen })),
        }
    }

    pub(crate) fn answered(
        &self,
        at: Micros,
        expected: Answer,
        given: Answer,
    ) -> Result<(), Violation> {
        match expected == given {
            true => Ok(()),
            false => Err(self.violated(Fact::WrongAnswer { at, expected, given })),
        }
    }
}

pub(crate) fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap_or(Cost::MAX)
}

/// One strategy of each kind that stores keep apart, all with the same [`LIMIT`].
pub(crate) fn strategies() -> Vec<Builtin> {
    every_kind().expect("parameters within every range")
}

fn every_kind() -> Result<Vec<Builtin>, Invalid> {
    let hour = Span::from_secs(3_600);
    let gcra = |limit| Tat::gcra(Gcra { limit, period: hour, burst: LIMIT });
    let capacity = Decimal::whole(LIMIT).expect("a small number");
    let refill_per_sec = "0.03".parse().expect("a decimal");
    Ok(vec![
        gcra(LIMIT)?.into(),
        // Denominators of 1,009 and 4,999: the widest words, and what does not fit one.
        gcra(1_009)?.into(),
        gcra(4_999)?.into(),
        Tat::token_bucket(TokenBucket { capacity, refill_per_sec })?.into(),
        Window::fixed(LIMIT, hour)?.into(),
        Window::quota(LIMIT, admittance::Cadence::Month { offset_minutes: 90 })?.into(),
        SlidingWindow::new(LIMIT, hour, 1)?.into(),
        SlidingWindow::new(LIMIT, hour, 10)?.into(),
        SlidingLog::new(LIMIT, hour)?.into(),
    ])
}

/// The most that passes at one instant, by every strategy of [`strategies`].
pub(crate) const LIMIT: u64 = 10;

/// A real instant, on no boundary.
pub(crate) const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_123_457);
