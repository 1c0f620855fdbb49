//! Accounts, clients, and what is under way between them.

use std::hash::{Hash, Hasher};

use admittance_core::budget::{
    self, Account, Answered, Budget, Debt, LeaseKey, Line, Phase, Settled, Settlement, Standing,
    Together,
};
use admittance_core::{Cadence, Micros, Span};

use super::cases::Case;

/// Everything between two steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Ticks since the start.
    tick: u64,
    accounts: Vec<Booked>,
    clients: Vec<Client>,
    /// What is under way, in order.
    under_way: Vec<Message>,
    copies: u8,
    overruns: u8,
    /// What did not hold in the step before, a bit for each.
    broken: u8,
    /// For the hash of an account: what its budget is.
    budgets: Vec<Budget>,
}

/// An account and what is known of it from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Booked {
    account: Account,
    /// The same one, looked at in every tick.
    watched: Account,
    /// The largest x in the present window.
    x: u64,
    /// What should be owed.
    debt: u64,
    /// How each lease was settled, and when it was last heard of.
    known: Vec<Known>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Known {
    settled: Option<(u64, u64, u64)>,
    heard: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    stage: Stage,
    debits: u8,
    served: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    New,
    Reserves,
    Streams,
    Debits(u64),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    client: usize,
    act: Act,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// A reservation of so much.
    Reserve(u64),
    /// A debit of so much.
    Debit(u64),
    /// It is over, and this was produced.
    Settle(u64),
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A client sends something.
    Send(usize, Act),
    /// A client waits for its debit no longer.
    GiveUp(usize),
    /// A client serves one unit that it has not debited.
    Overrun(usize),
    /// A message is delivered.
    Deliver {
        /// Which one.
        place: usize,
        /// Whether its answer is heard.
        is_heard: bool,
        /// Whether another copy stays under way.
        is_copied: bool,
    },
}

/// What mutants do to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// A debit is never refused.
    NeverStops,
    /// A reservation that does not fit is taken all the same.
    ReservesAnything,
    /// Leases live a tick longer.
    LivesLonger,
    /// Accounts are charged one after the other.
    OneByOne,
    /// A settlement that comes again is booked again.
    SettlesAgain,
    /// What was debited is taken for what was produced.
    IgnoresTheTruth,
    /// Debt is forgotten with its window.
    Forgives,
    /// A settlement forgets all but one of those before it.
    ForgetsEnded,
    /// The crossing debit is refused too: nothing is wrong but that the bound is not reached.
    StopsBefore,
    /// The account that is asked rolls its windows later than it should.
    RollsLate,
}

/// What did not hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum Broken {
    Bound = 1,
    Deadline = 2,
    Once = 4,
    Debt = 8,
    Conserved = 16,
    Same = 32,
}

/// What happened that is worth knowing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Owed,
    Blocked,
    Paid,
    Expired,
    Gone,
    Again,
    Late,
    Forgotten,
}

impl Seen {
    pub(super) const COUNT: usize = 8;
}

impl World {
    pub(super) fn new(case: &Case) -> Self {
        let client = Client { stage: Stage::New, debits: 0, served: 0 };
        let known = vec![Known::default(); case.estimates.len()];
        let (account, watched) = (Account::default(), Account::default());
        let booked = Booked { account, watched, x: 0, debt: 0, known };
        Self {
            tick: 0,
            accounts: vec![booked; case.limits.len()],
            clients: vec![client; case.estimates.len()],
            under_way: Vec::new(),
            copies: case.copies,
            overruns: case.overruns,
            broken: 0,
            budgets: case.limits.iter().enumerate().map(budget).collect(),
        }
    }

    pub(super) const fn is_broken(&self, broken: Broken) -> bool {
        self.broken & broken as u8 != 0
    }

    /// What is in use of the first account, and the most debt of any.
    pub(super) fn used_and_debt(&self, case: &Case) -> (u64, u64) {
        let standing = |place: usize| self.accounts[place].watched.standing(&self.budgets[place]);
        let first = standing(0);
        let debt = (0..case.limits.len()).map(|place| standing(place).debt).max();
        (first.spent + first.reserved, debt.unwrap_or(0))
    }

    pub(super) fn steps(&self, case: &Case, steps: &mut Vec<Step>) {
        if self.tick < case.ticks {
            steps.push(Step::Tick);
        }
        for (place, client) in self.clients.iter().enumerate() {
            let mut send = |act| steps.push(Step::Send(place, act));
            match client.stage {
                Stage::New => send(Act::Reserve(case.estimates[place])),
                Stage::Streams => {
                    if client.debits < case.debits {
                        (1..=case.chunk).for_each(|units| send(Act::Debit(units)));
                    }
                    send(Act::Settle(client.served));
                    if self.overruns > 0 {
                        steps.push(Step::Overrun(place));
                    }
                }
                Stage::Debits(_) => steps.push(Step::GiveUp(place)),
                Stage::Reserves | Stage::Done => {}
            }
        }
        for (place, message) in self.under_way.iter().enumerate() {
            // A second copy of the same one is delivered in the same way.
            if place > 0 && self.under_way[place - 1] == *message {
                continue;
            }
            for is_copied in [false, true] {
                for is_heard in [false, true] {
                    let is_awaited = self.is_awaited(*message);
                    if (is_heard && !is_awaited) || (is_copied && self.copies == 0) {
                        continue;
                    }
                    steps.push(Step::Deliver { place, is_heard, is_copied });
                }
            }
        }
    }

    fn is_awaited(&self, message: Message) -> bool {
        match (self.clients[message.client].stage, message.act) {
            (Stage::Reserves, Act::Reserve(_)) => true,
            (Stage::Debits(waits), Act::Debit(units)) => waits == units,
            _ => false,
        }
    }

    pub(super) fn take(&mut self, case: &Case, mutant: Mutant, step: Step) -> Vec<Seen> {
        self.broken = 0;
        let mut seen = Vec::new();
        match step {
            Step::Tick => self.pass(mutant, &mut seen),
            Step::Send(place, act) => {
                let client = &mut self.clients[place];
                client.stage = match act {
                    Act::Reserve(_) => Stage::Reserves,
                    Act::Debit(units) => Stage::Debits(units),
                    Act::Settle(_) => Stage::Done,
                };
                client.debits += u8::from(matches!(act, Act::Debit(_)));
                self.send(Message { client: place, act });
            }
            Step::GiveUp(place) => self.clients[place].stage = Stage::Streams,
            Step::Overrun(place) => {
                self.overruns -= 1;
                self.clients[place].served += 1;
            }
            Step::Deliver { place, is_heard, is_copied } => {
                let message = self.under_way.remove(place);
                if is_copied {
                    self.copies -= 1;
                    self.send(message);
                }
                let said = self.apply(case, mutant, message, &mut seen);
                if is_heard {
                    self.hear(message, said.decision.is_admit());
                }
            }
        }
        self.check();
        seen
    }

    fn send(&mut self, message: Message) {
        self.under_way.push(message);
        self.under_way.sort_unstable();
    }

    fn hear(&mut self, message: Message, is_admitted: bool) {
        let client = &mut self.clients[message.client];
        client.stage = match (message.act, is_admitted) {
            (Act::Reserve(_), false) => Stage::Done,
            (Act::Debit(units), true) => {
                client.served += units;
                Stage::Streams
            }
            _ => Stage::Streams,
        };
    }

    fn breaks(&mut self, broken: Broken, is_so: bool) {
        self.broken |= if is_so { broken as u8 } else { 0 };
    }

    /// A tick: what time alone does to the account that is looked at.
    fn pass(&mut self, mutant: Mutant, seen: &mut Vec<Seen>) {
        self.tick += 1;
        let now = instant(self.tick);
        for place in 0..self.accounts.len() {
            let budget = self.budgets[place];
            let booked = &mut self.accounts[place];
            let before = booked.watched.standing(&budget);
            let rules =
                if mutant == Mutant::Forgives { budget.debt(Debt::Forgive) } else { budget };
            let after = booked.watched.look(&rules, now).standing;
            if after.window_end > before.window_end {
                let spare = budget.limit().saturating_sub(before.spent + before.reserved);
                let was = booked.debt;
                (booked.debt, booked.x) = (booked.debt.saturating_sub(spare), 0);
                if was > 0 && booked.debt == 0 {
                    seen.push(Seen::Paid);
                }
            } else if after.reserved < before.reserved && after.spent == before.spent {
                seen.push(Seen::Expired);
            } else {
                let is_changed = after.spent != before.spent || after.reserved != before.reserved;
                self.breaks(Broken::Conserved, is_changed);
            }
        }
    }

    fn apply(
        &mut self,
        case: &Case,
        mutant: Mutant,
        message: Message,
        seen: &mut Vec<Seen>,
    ) -> Together {
        let now = instant(self.tick);
        let before: Vec<Account> = self.accounts.iter().map(|it| it.watched.clone()).collect();
        let asked = self.accounts.iter_mut().map(|it| &mut it.account).collect();
        let said = step(case, &self.budgets, mutant, asked, message, now);
        // The one that is looked at in every tick needs nobody to roll it.
        let mutant = if mutant == Mutant::RollsLate { Mutant::None } else { mutant };
        let watched = self.accounts.iter_mut().map(|it| &mut it.watched).collect();
        let expected = step(case, &self.budgets, mutant, watched, message, now);
        self.breaks(Broken::Same, said != expected);
        for (place, before) in before.iter().enumerate() {
            self.book(place, before, &said, message, seen);
        }
        said
    }

    /// Books a step from outside, and holds the answer against it.
    fn book(
        &mut self,
        place: usize,
        before: &Account,
        said: &Together,
        message: Message,
        seen: &mut Vec<Seen>,
    ) {
        let (budget, key) = (self.budgets[place], lease(message.client));
        let was = before.standing(&budget);
        let answered = said.each[place];
        let is = answered.standing;
        let known = before.lease(key).copied();
        let unspent = known.map_or(0, |lease| lease.unspent);
        let is_admitted = said.decision.is_admit();
        let is_present =
            known.is_some_and(|lease| budget_end(&budget, lease.window) == is.window_end);
        let (mut taken, mut returned) = (0, 0);
        let booked = &mut self.accounts[place];
        match message.act {
            Act::Reserve(units) if is_admitted && known.is_none() => taken = units,
            Act::Debit(units) if is_admitted => {
                let x = units - unspent.min(units);
                booked.x = booked.x.max(x);
                taken = x;
            }
            _ => {}
        }
        let is_new = matches!(message.act, Act::Reserve(_)) && known.is_none();
        if is_admitted && !matches!(message.act, Act::Settle(_)) {
            booked.known[message.client].heard = self.tick;
        }
        let room = budget.limit().saturating_sub(was.spent + was.reserved);
        if is_new && !answered.decision.is_admit() && room > 0 && was.debt >= room {
            seen.push(Seen::Blocked);
        }
        let mut is_wrong = false;
        if let Act::Settle(actual) = message.act {
            returned = self.settled(place, known, answered, message.client, actual, seen);
            let booked = &mut self.accounts[place];
            is_wrong = !is_present && returned > 0 && known.is_some();
            if unspent > 0 && !is_present && booked.known[message.client].settled.is_some() {
                seen.push(Seen::Gone);
            }
        }
        let (was_used, is_used) = (was.spent + was.reserved, is.spent + is.reserved);
        is_wrong |= is_used + returned != was_used + taken;
        self.breaks(Broken::Conserved, is_wrong);
    }

    /// A settlement: once, and debt for what was beyond. Says what it gave back.
    fn settled(
        &mut self,
        place: usize,
        lease: Option<budget::Lease>,
        answered: Answered,
        client: usize,
        actual: u64,
        seen: &mut Vec<Seen>,
    ) -> u64 {
        let booked = &mut self.accounts[place];
        let known = &mut booked.known[client];
        let is_remembered = known.settled.is_some_and(|(at, ..)| self.tick < at + KEPT_TICKS);
        let is_wrong;
        let mut back = 0;
        match answered.settlement {
            Settlement::Now(Settled { returned, debt }) => {
                is_wrong = is_remembered || lease.is_none();
                let beyond = lease.map_or(0, |lease| lease.debited + lease.unspent);
                booked.debt += actual.saturating_sub(beyond);
                known.settled = Some((self.tick, returned, debt));
                back = returned;
                seen.extend((debt > 0).then_some(Seen::Owed));
                let is_late = lease.is_some_and(|it| matches!(it.phase, Phase::Expired(_)));
                seen.extend(is_late.then_some(Seen::Late));
            }
            Settlement::Before(Settled { returned, debt }) => {
                let is_same = known.settled.is_some_and(|(_, a, b)| (a, b) == (returned, debt));
                is_wrong = !is_same;
                seen.push(Seen::Again);
            }
            Settlement::Unknown => {
                // Never while it is remembered, nor while it is open.
                is_wrong = is_remembered || lease.is_some();
                seen.extend(known.settled.is_some().then_some(Seen::Forgotten));
            }
            Settlement::None => is_wrong = true,
        }
        self.breaks(Broken::Once, is_wrong);
        back
    }

    /// What must hold at every instant.
    fn check(&mut self) {
        let now = instant(self.tick);
        for place in 0..self.accounts.len() {
            let (budget, booked) = (self.budgets[place], &self.accounts[place]);
            let Standing { spent, reserved, debt, .. } = booked.watched.standing(&budget);
            let is_beyond = spent + reserved > budget.limit() + booked.x.max(1) - 1;
            let is_other_debt = debt != booked.debt;
            let is_late = |(client, known): (usize, &Known)| {
                let phase = booked.watched.lease(lease(client)).map(|lease| lease.phase);
                let end = instant(known.heard + TTL_TICKS);
                matches!(phase, Some(Phase::Open(until)) if until <= now || until > end)
            };
            let is_late = booked.known.iter().enumerate().any(is_late);
            booked.watched.assert_invariants(&budget);
            booked.account.assert_invariants(&budget);
            self.breaks(Broken::Bound, is_beyond);
            self.breaks(Broken::Debt, is_other_debt);
            self.breaks(Broken::Deadline, is_late);
        }
    }
}

/// Runs the shipped step, or a mutant of it.
fn step(
    case: &Case,
    budgets: &[Budget],
    mutant: Mutant,
    accounts: Vec<&mut Account>,
    message: Message,
    now: Micros,
) -> Together {
    let (key, act) = (lease(message.client), message.act);
    let changed: Vec<Budget> = budgets.iter().map(|it| mutated(mutant, act, *it)).collect();
    let units = match act {
        Act::Reserve(units) | Act::Debit(units) | Act::Settle(units) => units,
    };
    let lines = accounts.into_iter().zip(&changed);
    let mut lines: Vec<Line<'_>> =
        lines.map(|(account, budget)| Line { budget, account, units }).collect();
    match act {
        Act::Reserve(_) => {
            let more = u64::from(mutant == Mutant::LivesLonger);
            budget::reserve(&mut lines, key, ticks(TTL_TICKS + more), now)
        }
        Act::Debit(_) if mutant == Mutant::OneByOne => {
            let one = |line: &mut Line<'_>| line.account.debit(line.budget, Some(key), units, now);
            Together::of(lines.iter_mut().map(one).collect())
        }
        Act::Debit(_) if mutant == Mutant::StopsBefore => {
            let left = budget::look(&mut lines, now).decision.remaining;
            let unspent = lines[0].account.lease(key).map_or(0, |lease| lease.unspent);
            // More than anybody has.
            let units = if units > left + unspent { case.limits[0] + 1 } else { units };
            lines.iter_mut().for_each(|line| line.units = units);
            if units <= case.limits[0] {
                return budget::debit(&mut lines, Some(key), now);
            }
            budget::reserve(&mut lines, LeaseKey(u128::MAX), ticks(1), now)
        }
        Act::Debit(_) => budget::debit(&mut lines, Some(key), now),
        Act::Settle(_) => {
            let said = budget::settle(&mut lines, key, mutant != Mutant::IgnoresTheTruth, now);
            if mutant == Mutant::SettlesAgain { again(&mut lines, now, said) } else { said }
        }
    }
}

/// Books a settlement that was booked before once more: as debt of somebody who is not there.
fn again(lines: &mut [Line<'_>], now: Micros, mut said: Together) -> Together {
    for (line, answered) in lines.iter_mut().zip(&mut said.each) {
        if let Settlement::Before(_) = answered.settlement {
            let lease = LeaseKey(u128::MAX);
            let asked = budget::Reserve { lease, units: 0, ttl: ticks(1) };
            if line.account.reserve(line.budget, asked, now).decision.is_admit() {
                *answered = line.account.settle(line.budget, lease, Some(1), now);
            }
        }
    }
    said
}

fn mutated(mutant: Mutant, act: Act, budget: Budget) -> Budget {
    let endless = || budget.limited(Budget::UNITS_MAX).unwrap_or(budget);
    match (mutant, act) {
        (Mutant::NeverStops, Act::Debit(_)) | (Mutant::ReservesAnything, Act::Reserve(_)) => {
            endless()
        }
        (Mutant::Forgives, _) => budget.debt(Debt::Forgive),
        (Mutant::ForgetsEnded, Act::Settle(_)) => budget.remembering(Budget::OPEN_MAX, 1),
        (Mutant::RollsLate, _) => {
            let longer = Span::from_us(budget.cadence().shortest().us() * 2);
            Budget::new(budget.limit(), Cadence::every(longer)).unwrap_or(budget)
        }
        _ => budget,
    }
}

/// The budget of one account: of the second, windows are longer.
fn budget((place, limit): (usize, &u64)) -> Budget {
    let window = ticks(WINDOW_TICKS * (place as u64 + 1));
    Budget::new(*limit, Cadence::every(window)).expect("a case has limits that fit")
}

/// When the window with this index ends; the first has index 1.
fn budget_end(budget: &Budget, index: u64) -> Micros {
    let window = budget.cadence().shortest().us();
    Micros::saturating_from_epoch_us(index * window)
}

const fn ticks(count: u64) -> Span {
    Span::from_us(count * TICK.us())
}

fn instant(tick: u64) -> Micros {
    Micros::ZERO + ticks(tick)
}

const fn lease(client: usize) -> LeaseKey {
    LeaseKey(client as u128)
}

impl Hash for World {
    /// All that an account knows: how it stands, and every lease.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.tick, self.copies, self.overruns, self.broken).hash(state);
        self.clients.hash(state);
        self.under_way.hash(state);
        for (booked, budget) in self.accounts.iter().zip(&self.budgets) {
            (booked.x, booked.debt, &booked.known).hash(state);
            for account in [&booked.account, &booked.watched] {
                let Standing { spent, reserved, debt, open, window_end } = account.standing(budget);
                (spent, reserved, debt, open, window_end).hash(state);
                let keys = (0..self.clients.len()).map(lease).chain([LeaseKey(u128::MAX)]);
                for key in keys {
                    let known = account.lease(key).map(|lease| {
                        let phase = match lease.phase {
                            Phase::Open(until) => (0, until, 0, 0),
                            Phase::Expired(until) => (1, until, 0, 0),
                            Phase::Settled(until, it) => (2, until, it.returned, it.debt),
                        };
                        (lease.window, lease.unspent, lease.charged, lease.debited, phase)
                    });
                    known.hash(state);
                }
            }
        }
    }
}

/// So long that a lease that has ended is remembered for six of them.
const TICK: Span = Span::from_secs(100);
const WINDOW_TICKS: u64 = 3;
const TTL_TICKS: u64 = 2;
const KEPT_TICKS: u64 = Budget::ENDED_KEPT.us() / TICK.us();
