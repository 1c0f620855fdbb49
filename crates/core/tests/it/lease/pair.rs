//! A node and a store in one process.

use std::cell::Cell;

use admittance_core::lease::{
    Answer, Ask, GiveBack, Grant, Holder, LeaseId, Missed, Paid, Request, Rules, Waiter, Word,
    WordCell,
};
use admittance_core::{Builtin, BuiltinState, Cost, Gcra, Micros, Span, Tat, Window};

/// A node and a store, with nothing between them but the test.
pub(crate) struct Pair {
    pub(crate) rules: Rules,
    pub(crate) holder: Holder,
    pub(crate) cell: TestCell,
    /// The node's clock.
    pub(crate) now: Micros,
    /// The store's clock.
    pub(crate) store: Micros,
    pub(crate) state: Option<BuiltinState>,
    pub(crate) count: u64,
    pub(crate) waiters: u64,
}

#[derive(Default)]
pub(crate) struct TestCell(pub(crate) Cell<(Word, Micros)>);

impl WordCell for TestCell {
    fn publish(&self, next: Word, paid_until: Micros) -> Word {
        self.0.replace((next, paid_until)).0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    Local,
    Admitted(Paid),
    Never,
    Waits(u64),
    Busy,
}

impl Pair {
    pub(crate) fn new(strategy: impl Into<Builtin>, lease_time: Span, size: u64) -> Self {
        let mut rules = Rules::new(strategy, lease_time).unwrap();
        rules.deadline = ms(20);
        Self {
            rules,
            holder: Holder::new(size),
            cell: TestCell::default(),
            now: at(5_000),
            store: at(1_000_000),
            state: None,
            count: 0,
            waiters: 0,
        }
    }

    /// Ten per window of a second, at the beginning of one.
    pub(crate) fn windowed(size: u64) -> Self {
        Self::new(Window::fixed(10, ms(1_000)).unwrap(), Span::ZERO, size)
    }

    /// One per 100 ms, ten at once, leases of 500 ms.
    pub(crate) fn continuous(size: u64) -> Self {
        let gcra = Gcra { limit: 10, period: ms(1_000), burst: 10 };
        Self::new(Tat::gcra(gcra).unwrap(), ms(500), size)
    }

    pub(crate) fn wait(&mut self, span: Span) {
        (self.now, self.store) = (self.now + span, self.store + span);
    }

    pub(crate) fn check(&mut self, cost: u64) -> Checked {
        let cost = Cost::new(cost).unwrap();
        let (word, paid_until) = self.cell.0.get();
        if let Some(next) = word.spend(self.now, cost) {
            self.cell.0.set((next, paid_until));
            return Checked::Local;
        }
        let waiter = Waiter { id: self.waiters, cost };
        self.waiters += 1;
        match self.holder.miss(&self.rules, &self.cell, self.now, waiter) {
            Ok(Missed::Admitted(paid)) => Checked::Admitted(paid),
            Ok(Missed::Never(_)) => Checked::Never,
            Ok(Missed::Waits) => Checked::Waits(waiter.id),
            Err(_) => Checked::Busy,
        }
    }

    pub(crate) fn request(&mut self) -> Option<Request> {
        let fresh = LeaseId { incarnation: 7, count: self.count };
        self.count += 1;
        self.holder.poll_request(&self.rules, &self.cell, self.now, fresh)
    }

    pub(crate) fn grant(&mut self, request: Request) -> Grant {
        let granted = self.rules.strategy().grant(self.state.take(), self.store, request.ask);
        let granted = granted.unwrap();
        self.state = granted.state;
        granted.grant
    }

    pub(crate) fn reply(&mut self, id: LeaseId, grant: Grant) {
        self.holder.handle_grant(&self.rules, &self.cell, self.now, id, &grant);
    }

    /// A request, its grant and its reply at one instant.
    pub(crate) fn trip(&mut self) -> Grant {
        let request = self.request().expect("something is wanted");
        let grant = self.grant(request);
        self.reply(request.id, grant);
        grant
    }

    pub(crate) fn deadline(&mut self) {
        self.holder.handle_deadline(&self.rules, &self.cell, self.now);
    }

    pub(crate) fn answers(&mut self) -> Vec<(u64, Answer)> {
        std::iter::from_fn(|| self.holder.poll_answer()).collect()
    }

    pub(crate) fn admitted(&mut self) -> Vec<u64> {
        let answers = self.answers().into_iter();
        answers.filter(|(_, it)| matches!(it, Answer::Admitted(_))).map(|(id, _)| id).collect()
    }

    pub(crate) fn returns(&mut self) -> Vec<GiveBack> {
        std::iter::from_fn(|| self.holder.poll_return()).collect()
    }

    pub(crate) fn take_back(&mut self, back: &GiveBack) -> u64 {
        let (state, restored) =
            self.rules.strategy().give_back(self.state.take(), self.store, back).unwrap();
        self.state = state;
        restored
    }

    pub(crate) fn credits(&self) -> u64 {
        self.cell.0.get().0.credits()
    }

    /// Spends everything that the store has left, at some other node.
    pub(crate) fn drain_store(&mut self, leave: u64) {
        let ask = Ask { need: 0, least: 0, want: u64::MAX >> 12, round_trip: Span::ZERO };
        let granted = self.rules.strategy().grant(self.state.take(), self.store, ask).unwrap();
        let back = GiveBack {
            id: LeaseId { incarnation: 1, count: 0 },
            units: leave,
            granted_at: self.store,
            paid_until: granted.grant.decision.reset_at,
        };
        self.state = granted.state;
        assert_eq!(self.take_back(&back), leave);
    }
}

pub(crate) fn at(ms: u64) -> Micros {
    Micros::from_epoch_ms(ms).unwrap()
}

pub(crate) fn ms(ms: u64) -> Span {
    Span::from_ms(ms)
}
