//! A fleet that leases one key from one store, over a network that does as it likes: one step at a
//! time, chosen from outside. The model checker takes every choice, random walks take some of many
//! more; neither holds a second copy of the protocol.
//!
//! Everything that decides is shipped code: [`Holder`], [`Word::spend`], [`Builtin::grant`] and
//! [`Builtin::give_back`]. What is here is time, messages, crashes, and the counting of what was
//! admitted. A [`Mutant`] changes what goes into or comes out of the machines: the mutants.

pub use super::events::{Admitted, Message, Seen, Step};
pub use super::setting::{Budget, Mutant, NodeClock, Setting};

use std::cell::Cell;

use super::events::{add, order};
use admittance_core::lease::{
    Answer, GiveBack, Grant, Holder, LeaseId, Missed, Request, Rules, Waiter, Word, WordCell,
};
use admittance_core::{Builtin, BuiltinState, Cost, Micros, TatState, WindowState};

/// The fleet between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// True time since the start; the store's clock shows it.
    pub now: u64,
    /// What is under way.
    pub network: Vec<Message>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// What may still happen.
    pub budget: Budget,
    /// What was admitted.
    pub admitted: Admitted,
    store: Store,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Store {
    state: Option<Own>,
    returned: Vec<LeaseId>,
    /// The window to which something was last given back.
    restored: Micros,
    /// Granted since the store last lost anything; kept only if it may lose.
    granted: Vec<(Micros, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Own {
    Window(WindowState),
    Tat(TatState),
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its machine.
    pub holder: Holder,
    word: Word,
    paid_until: Micros,
    /// A request that has read its clock and the word and has not swapped yet.
    stalled: Option<(Micros, Word, Micros, bool)>,
    restarts: u64,
    count: u64,
    waiter: u64,
    /// Costs of requests that wait, by id.
    waiting: Vec<(u64, u64)>,
    /// Attempts as they were sent: for mutants, and for what a denial may rest on.
    sent: Vec<Sent>,
    is_closed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    id: LeaseId,
    at: Micros,
    aside: u64,
    need: u64,
    /// Requests that wait with lower ids are asked for by it.
    before: u64,
}

/// What the store has admitted by a grant.
#[derive(Clone, Copy, Debug, Default)]
struct ByStore {
    units: u64,
    at: u64,
    before: u64,
}

struct NodeCell<'a> {
    cell: Cell<(Word, Micros)>,
    setting: &'a Setting,
    clock: NodeClock,
}

impl WordCell for NodeCell<'_> {
    fn publish(&self, next: Word, paid_until: Micros) -> Word {
        let expiry = match self.setting.mutant {
            _ if next == Word::EMPTY => None,
            Mutant::NoExpiry => Some(u64::MAX),
            Mutant::WallClock => {
                // The wall clock shows the end of the window that much later.
                let end = paid_until.since(self.setting.store_at(0)).us() + self.clock.wall_behind;
                Some(self.clock.read(end).epoch_us())
            }
            _ => None,
        };
        let next = expiry.map_or(next, |expiry| {
            Word::from_bits(u128::from(expiry) << 64 | next.to_bits() & u128::from(u64::MAX))
        });
        self.cell.replace((next, paid_until)).0
    }
}

impl Fleet {
    /// The fleet before anything has happened.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        let node = |_: &NodeClock| Node {
            holder: Holder::new(setting.size),
            word: Word::EMPTY,
            paid_until: Micros::ZERO,
            stalled: None,
            restarts: 0,
            count: 0,
            waiter: 0,
            waiting: Vec::new(),
            sent: Vec::new(),
            is_closed: false,
        };
        Self {
            now: 0,
            network: Vec::new(),
            nodes: setting.clocks.iter().map(node).collect(),
            budget: setting.budget,
            admitted: Admitted::default(),
            store: Store::default(),
        }
    }

    /// Everything that can happen next.
    pub fn steps(&self, setting: &Setting, steps: &mut Vec<Step>) {
        let budget = &self.budget;
        for (place, node) in self.nodes.iter().enumerate() {
            if budget.checks > 0 && !node.is_closed {
                steps.extend(setting.costs.iter().map(|cost| Step::Check(place, *cost)));
                if budget.stalls > 0 && node.stalled.is_none() && node.word != Word::EMPTY {
                    steps.push(Step::Read(place));
                }
            }
            if node.stalled.is_some() {
                steps.push(Step::Swap(place));
            }
            let now = setting.clocks[place].read(self.now);
            if node.holder.poll_deadline(&setting.rules).is_some_and(|at| at <= now) {
                steps.push(Step::Deadline(place));
            }
            if budget.crashes > 0 && node.count > 0 {
                steps.push(Step::Crash(place));
            }
            if budget.closes > 0 && !node.is_closed && node.count > 0 {
                steps.push(Step::Close(place));
            }
        }
        for place in 0..self.network.len() {
            if place > 0 && self.network[place] == self.network[place - 1] {
                continue;
            }
            steps.push(Step::Deliver(place));
            if budget.copies > 0 {
                steps.push(Step::Copy(place));
            }
        }
        if budget.losses > 0 && self.store.state.is_some() {
            steps.push(Step::Lose);
        }
        if self.now < setting.horizon {
            steps.push(Step::Wait);
        }
    }

    /// Takes one step.
    pub fn take(&mut self, setting: &Setting, step: Step) -> Seen {
        let mut seen = Seen::default();
        match step {
            Step::Check(place, cost) => self.check(setting, place, cost, &mut seen),
            Step::Read(place) => {
                self.budget.checks -= 1;
                self.budget.stalls -= 1;
                let at = setting.clocks[place].read(self.now);
                let node = &self.nodes[place];
                let (word, paid_until) = (node.word, node.paid_until);
                let is_inside = self.is_inside(setting, paid_until);
                self.nodes[place].stalled = Some((at, word, paid_until, is_inside));
            }
            Step::Swap(place) => self.swap(setting, place, &mut seen),
            Step::Deliver(place) => {
                let message = self.network.remove(place);
                self.deliver(setting, message, &mut seen);
            }
            Step::Copy(place) => {
                self.budget.copies -= 1;
                let message = self.network[place];
                self.deliver(setting, message, &mut seen);
            }
            Step::Deadline(place) => {
                self.work(setting, place, &mut seen, |holder, rules, cell, now| {
                    holder.handle_deadline(rules, cell, now);
                });
            }
            Step::Crash(place) => self.crash(setting, place),
            Step::Close(place) => {
                self.budget.closes -= 1;
                self.nodes[place].is_closed = true;
                self.work(setting, place, &mut seen, |holder, rules, cell, now| {
                    holder.close(rules, cell, now);
                });
            }
            Step::Lose => {
                self.budget.losses -= 1;
                for (window, units) in std::mem::take(&mut self.store.granted) {
                    add(&mut self.admitted.lost, window, units);
                }
                self.store = Store::default();
            }
            Step::Wait => self.now = self.next_instant(setting),
        }
        self.network.sort_unstable_by_key(order);
        seen
    }

    /// The next instant of the grid, the end of a window and the tick before it, and whenever a
    /// node wants to be woken.
    fn next_instant(&self, setting: &Setting) -> u64 {
        let end = setting.window_end(self.now).since(setting.store_at(self.now)).us() + self.now;
        let before = if self.now + 1 < end { end - 1 } else { end };
        let grid = (self.now / setting.grid + 1) * setting.grid;
        let wakes = self.nodes.iter().zip(&setting.clocks).filter_map(|(node, clock)| {
            let at = clock.when(node.holder.poll_deadline(&setting.rules)?);
            (at > self.now).then_some(at)
        });
        wakes.chain([before, grid]).min().unwrap_or(grid).min(setting.horizon)
    }

    fn is_inside(&self, setting: &Setting, paid_until: Micros) -> bool {
        setting.is_continuous() || setting.window_end(self.now) == paid_until
    }

    fn check(&mut self, setting: &Setting, place: usize, cost: u64, seen: &mut Seen) {
        self.budget.checks -= 1;
        let Some(cost) = Cost::new(cost) else { return };
        let now = setting.clocks[place].read(self.now);
        let node = &mut self.nodes[place];
        let paid_until = node.paid_until;
        if let Some(next) = node.word.spend(now, cost) {
            node.word = next;
            seen.spent_locally = true;
            let is_inside = self.is_inside(setting, paid_until);
            self.admit(setting, paid_until, cost.units(), is_inside);
            return self.refill(setting, place, seen);
        }
        let waiter = Waiter { id: node.waiter, cost };
        // As many wait here as in the machine, so that the one is known by the other.
        if node.waiting.len() < setting.rules.waiters_max {
            node.waiting.push((waiter.id, cost.units()));
        }
        node.waiter += 1;
        let mut missed = None;
        self.work(setting, place, seen, |holder, rules, cell, now| {
            missed = holder.miss(rules, cell, now, waiter).ok();
        });
        if matches!(missed, Some(Missed::Waits)) {
            return;
        }
        self.nodes[place].waiting.retain(|(id, _)| *id != waiter.id);
        match missed {
            Some(Missed::Admitted(paid)) => {
                let is_inside = self.is_inside(setting, paid.until);
                self.admit(setting, paid.until, cost.units(), is_inside);
                self.refill(setting, place, seen);
            }
            _ => seen.unanswered = true,
        }
    }

    fn swap(&mut self, setting: &Setting, place: usize, seen: &mut Seen) {
        let node = &mut self.nodes[place];
        let Some((at, word, paid_until, is_inside)) = node.stalled.take() else { return };
        // The decision's clock reading is the one it was made with.
        if let Some(next) = word.spend(at, Cost::ONE).filter(|_| node.word == word) {
            node.word = next;
            self.admit(setting, paid_until, 1, is_inside);
            self.refill(setting, place, seen);
        }
    }

    /// Asks before the credits run out, as the rules say.
    fn refill(&mut self, setting: &Setting, place: usize, seen: &mut Seen) {
        let low_water = setting.rules.low_water;
        if low_water > 0 && self.nodes[place].word.credits() <= low_water {
            self.work(setting, place, seen, |holder, _, _, _| holder.refill());
        }
    }

    fn crash(&mut self, setting: &Setting, place: usize) {
        self.budget.crashes -= 1;
        let fresh = Self::new(setting).nodes.remove(place);
        let restarts = self.nodes[place].restarts + 1;
        self.nodes[place] = Node { restarts, ..fresh };
    }

    fn deliver(&mut self, setting: &Setting, message: Message, seen: &mut Seen) {
        match message {
            Message::Request(place, request) => self.grant(setting, place, request, seen),
            Message::Reply(place, id, grant, left) => {
                self.reply(setting, place, id, (grant, left), seen);
            }
            Message::GiveBack(back) => self.take_back(setting, back, seen),
        }
    }

    fn grant(&mut self, setting: &Setting, place: usize, request: Request, seen: &mut Seen) {
        let at = setting.store_at(self.now);
        let state = self.store.state.map(Own::wrap);
        let before = left(setting.rules.strategy(), state.as_ref(), at);
        let granted = setting.rules.strategy().grant(state, at, request.ask);
        let granted = granted.expect("rules are made for strategies that can be leased");
        self.store.state = granted.state.and_then(Own::unwrap);
        let grant = granted.grant;
        // If nothing is left, what was given back is among what is granted.
        let takes_all = grant.granted > 0 && grant.granted == before;
        seen.reused = takes_all && self.store.restored == grant.decision.reset_at;
        if setting.budget.losses > 0 {
            add(&mut self.store.granted, grant.decision.reset_at, grant.granted);
        }
        self.network.push(Message::Reply(place, request.id, grant, before));
    }

    fn take_back(&mut self, setting: &Setting, back: GiveBack, seen: &mut Seen) {
        if self.store.returned.contains(&back.id) && setting.mutant != Mutant::GivenBackTwice {
            return;
        }
        if !self.store.returned.contains(&back.id) {
            self.store.returned.push(back.id);
            self.store.returned.sort_unstable();
        }
        let at = setting.store_at(self.now);
        let back = match setting.mutant {
            Mutant::RefundInFull => GiveBack { granted_at: at, ..back },
            _ => back,
        };
        let state = self.store.state.map(Own::wrap);
        let given = setting.rules.strategy().give_back(state, at, &back);
        let (state, restored) = given.expect("rules are made for strategies that can be leased");
        self.store.state = state.and_then(Own::unwrap);
        if restored > 0 {
            seen.given_back = true;
            self.store.restored = back.paid_until;
        }
    }

    fn reply(
        &mut self,
        setting: &Setting,
        place: usize,
        id: LeaseId,
        (mut grant, left): (Grant, u64),
        seen: &mut Seen,
    ) {
        let now = setting.clocks[place].read(self.now);
        let node = &mut self.nodes[place];
        let sent = node.sent.iter().position(|sent| sent.id == id);
        let sent = sent.map(|sent| node.sent.remove(sent));
        if let Some(sent) = &sent {
            if setting.mutant == Mutant::OneExpiry {
                grant.granted += node.word.credits();
                node.word = Word::EMPTY;
            }
            if setting.mutant == Mutant::LifeFromArrival {
                grant.at = grant.at - now.since(sent.at);
            }
            let is_late = sent.at + setting.rules.deadline <= now;
            let held = node.holder.held();
            let late = is_late && grant.granted > 0;
            self.answer(setting, place, id, &grant, Some((sent, left)), seen);
            seen.late_used |= late && self.nodes[place].holder.held() > held;
        } else {
            self.answer(setting, place, id, &grant, None, seen);
        }
    }

    fn answer(
        &mut self,
        setting: &Setting,
        place: usize,
        id: LeaseId,
        grant: &Grant,
        sent: Option<(&Sent, u64)>,
        seen: &mut Seen,
    ) {
        let waiting = self.nodes[place].waiting.clone();
        let mut answers = Vec::new();
        let by_store = sent.map_or_else(ByStore::default, |(sent, _)| ByStore {
            units: grant.granted.min(sent.need),
            at: grant.at.since(setting.store_at(0)).us(),
            before: sent.before,
        });
        self.work_with(
            setting,
            place,
            seen,
            Some(by_store),
            &mut answers,
            |holder, rules, cell, now| {
                holder.handle_grant(rules, cell, now, id, grant);
            },
        );
        let asked = sent.map_or(0, |(sent, _)| sent.before);
        seen.asked_again |= self.nodes[place].waiting.iter().any(|(waiter, _)| *waiter < asked);
        // What the store and the node had together, less what those before it were given.
        let mut together = sent.map(|(sent, left)| left + sent.aside);
        for (waiter, answer) in answers {
            let cost = waiting.iter().find(|(known, _)| *known == waiter).map_or(0, |it| it.1);
            match (answer, &mut together) {
                (Answer::Admitted(_), Some(together)) => *together = together.saturating_sub(cost),
                (Answer::Denied(_), Some(together)) => self.admitted.stranded |= cost <= *together,
                (Answer::Denied(_), None) => self.admitted.stranded = true,
                _ => {}
            }
        }
    }

    fn work(
        &mut self,
        setting: &Setting,
        place: usize,
        seen: &mut Seen,
        step: impl FnOnce(&mut Holder, &Rules, &NodeCell<'_>, Micros),
    ) {
        self.work_with(setting, place, seen, None, &mut Vec::new(), step);
    }

    /// Feeds a node's machine and does what it then wants.
    fn work_with(
        &mut self,
        setting: &Setting,
        place: usize,
        seen: &mut Seen,
        by_store: Option<ByStore>,
        answers: &mut Vec<(u64, Answer)>,
        step: impl FnOnce(&mut Holder, &Rules, &NodeCell<'_>, Micros),
    ) {
        let clock = setting.clocks[place];
        let now = clock.read(self.now);
        let node = &mut self.nodes[place];
        let cell = NodeCell { cell: Cell::new((node.word, node.paid_until)), setting, clock };
        let kept = (node.word, node.paid_until);
        step(&mut node.holder, &setting.rules, &cell, now);
        let mut paid = drain(&mut node.holder, answers, 0);
        let incarnation = place as u64 * 16 + node.restarts;
        let fresh = match setting.mutant {
            Mutant::IdsReused => LeaseId { incarnation: place as u64, count: 0 },
            _ => LeaseId { incarnation, count: node.count },
        };
        let waiting: u64 = prefix(&node.waiting, answers, setting.rules.strategy().limit());
        if let Some(request) = node.holder.poll_request(&setting.rules, &cell, now, fresh) {
            let aside = waiting.saturating_sub(request.ask.need);
            node.sent.retain(|sent| sent.id != fresh);
            let before = node.waiter;
            node.sent.push(Sent { id: fresh, at: now, aside, need: request.ask.need, before });
            if node.sent.len() > SENT_MAX {
                node.sent.remove(0);
            }
            node.count += 1;
            self.network.push(Message::Request(place, request));
        }
        let from_grant = if by_store.is_some() { paid } else { 0 };
        paid = drain(&mut node.holder, answers, paid);
        while let Some(back) = node.holder.poll_return() {
            self.network.push(Message::GiveBack(back));
        }
        (node.word, node.paid_until) = cell.cell.into_inner();
        if setting.mutant == Mutant::KeepsWhatItGivesBack && node.word == Word::EMPTY {
            (node.word, node.paid_until) = kept;
        }
        let store = by_store.unwrap_or_default();
        self.note(setting, place, answers, (from_grant, paid), store, seen);
    }

    /// Counts what was answered. The first `from_grant` answers may have been paid by the store.
    fn note(
        &mut self,
        setting: &Setting,
        place: usize,
        answers: &[(u64, Answer)],
        (from_grant, all): (usize, usize),
        mut store: ByStore,
        seen: &mut Seen,
    ) {
        for (number, (waiter, answer)) in answers.iter().take(all).enumerate() {
            let node = &mut self.nodes[place];
            let Some(known) = node.waiting.iter().position(|(id, _)| id == waiter) else {
                continue;
            };
            let (_, cost) = node.waiting.remove(known);
            match answer {
                Answer::Admitted(_) if setting.is_continuous() => {
                    // What was needed is admitted by the store, at its own instant.
                    let part = if *waiter < store.before { cost.min(store.units) } else { 0 };
                    store.units -= part;
                    for (at, units) in [(store.at, part), (self.now, cost - part)] {
                        if units > 0 {
                            self.admitted.admit_at(at, units, setting.window);
                        }
                    }
                }
                Answer::Admitted(paid) => {
                    let is_inside = number < from_grant || self.is_inside(setting, paid.until);
                    self.admit(setting, paid.until, cost, is_inside);
                }
                Answer::Denied(_) => seen.denied = true,
                Answer::Unanswered => seen.unanswered = true,
            }
        }
    }

    fn admit(&mut self, setting: &Setting, paid_until: Micros, units: u64, is_inside: bool) {
        let admitted = &mut self.admitted;
        if setting.is_continuous() {
            admitted.admit_at(self.now, units, setting.window);
        } else if setting.is_carry_over() {
            add(&mut admitted.windows, setting.window_end(self.now), units);
        } else {
            add(&mut admitted.windows, paid_until, units);
            admitted.outside |= !is_inside;
        }
    }
}

/// The costs that the next attempt asks for: all that wait, as far as one limit goes.
fn prefix(waiting: &[(u64, u64)], answered: &[(u64, Answer)], limit: u64) -> u64 {
    let mut sum: u64 = 0;
    for (id, cost) in waiting {
        if answered.iter().any(|(known, _)| known == id) {
            continue;
        }
        if sum > 0 && sum + cost > limit {
            break;
        }
        sum += cost;
    }
    sum
}

fn drain(holder: &mut Holder, answers: &mut Vec<(u64, Answer)>, so_far: usize) -> usize {
    let mut count = so_far;
    while let Some(answer) = holder.poll_answer() {
        answers.push(answer);
        count += 1;
    }
    count
}

fn left(strategy: &Builtin, state: Option<&BuiltinState>, at: Micros) -> u64 {
    use admittance_core::Strategy;
    strategy.peek(state, at).remaining
}

impl Own {
    fn wrap(self) -> BuiltinState {
        match self {
            Self::Window(state) => BuiltinState::Window(state),
            Self::Tat(state) => BuiltinState::Tat(state),
        }
    }

    fn unwrap(state: BuiltinState) -> Option<Self> {
        match state {
            BuiltinState::Window(state) => Some(Self::Window(state)),
            BuiltinState::Tat(state) => Some(Self::Tat(state)),
            _ => None,
        }
    }
}

/// Attempts of a node that are remembered.
const SENT_MAX: usize = 8;
