//! The fleet: nodes that lease, a store that grants, and one queue of events.
//!
//! This is the driver that the engine has in tasks, in one loop: a request spends from the word or
//! misses; what the holder then wants sent, answered, given back and waited for is done.

use admittance_core::Cost;
use admittance_core::Micros;
use admittance_core::Span;
use admittance_core::learn::Sizer;
use admittance_core::lease::{Answer, Busy, LIFETIME_MAX, Missed, Request, Rules, Waiter};
use fastrand::Rng;

use crate::between::{Between, Deadline, Heard};
use crate::clock::LeaseClock;
use crate::demand::{Arrival, Load};
use crate::faults::{self, EPOCHS};
use crate::ledger::{Admission, Check, Ledger};
use crate::network::Network;
use crate::node::{Node, Waits};
use crate::queue::{Event, Facts, Fault, Own, Port, Queue};
use crate::report::Report;
use crate::setup::{InvalidSetup, Setup};
use crate::store::Store;

/// Runs a fleet until its last window is over or a bound does not hold.
///
/// # Errors
/// The setup is out of range.
pub fn run<B: Between>(setup: &Setup, between: B) -> Result<Report, InvalidSetup> {
    let (rules, sizer) = setup.rules()?;
    let mut random = Rng::with_seed(setup.seed);
    let mut load = Load::new(setup, random.fork());
    let mut fleet = Fleet::new(setup, rules, sizer, between, &mut random);
    let windows = u64::try_from(setup.windows).unwrap_or(u64::MAX);
    let end = windows * setup.window.us() + DEADLINES_AFTER * setup.deadline.us();
    let mut arrival = load.next();
    while fleet.ledger.violation.is_none() {
        let next = fleet.queue.next_at().filter(|&at| at <= end);
        match (arrival, next) {
            (Some(request), next) if next.is_none_or(|at| request.at < at) => {
                fleet.arrive(request)?;
                arrival = load.next();
            }
            (_, Some(_)) => fleet.step()?,
            (_, None) => break,
        }
    }
    fleet.ledger.figures.simulated = Span::from_us(end);
    fleet.check_answered(end);
    Ok(fleet.ledger.close(setup))
}

pub(crate) struct Fleet<B> {
    between: B,
    rules: Rules,
    sizer: Sizer,
    pub(crate) random: Rng,
    pub(crate) nodes: Vec<Node<B>>,
    pub(crate) store: Store<B>,
    pub(crate) network: Network,
    pub(crate) queue: Queue<Event>,
    pub(crate) ledger: Ledger,
    waiters: u64,
}

impl<B: Between> Fleet<B> {
    fn new(setup: &Setup, rules: Rules, sizer: Sizer, between: B, random: &mut Rng) -> Self {
        let mut queue = Queue::new();
        faults::schedule(setup, &mut random.fork(), &mut queue);
        let mut births = random.fork();
        let nodes = std::iter::repeat_with(|| faults::born(setup, &mut births));
        Self {
            between,
            rules,
            sizer,
            random: random.fork(),
            nodes: nodes.take(setup.nodes).collect(),
            store: Store::new(*rules.strategy(), setup, between),
            network: Network::new(setup.faults.way(), setup.nodes, random.fork()),
            queue,
            ledger: Ledger::new(setup, rules.coupling()),
            waiters: 0,
        }
    }

    /// A request comes to its node, or to the next one that lives.
    fn arrive(&mut self, arrival: Arrival) -> Result<(), InvalidSetup> {
        let Arrival { at, key, cost: units, .. } = arrival;
        let reading = self.store.read(at);
        let part = self.ledger.offered(reading, key, units);
        let all = self.nodes.len();
        let lives = |&node: &usize| self.nodes[node].is_up;
        let Some(node) = (0..all).map(|more| (arrival.node + more) % all).find(lives) else {
            self.ledger.figures.unanswered += 1;
            return Ok(());
        };
        let cost = Cost::new(units).ok_or_else(|| InvalidSetup::new("a request that is free"))?;
        let peak = self.store.peak(at);
        let (now, between, sizer) = (self.nodes[node].clock.read(at), self.between, self.sizer);
        let incarnation = self.nodes[node].incarnation;
        let port = Port { node, incarnation, key };
        let seat = self.nodes[node].seat(key, sizer, between);
        let paid = if let Some((left, paid_until)) = seat.spot.spend(now, cost) {
            let is_low = self.rules.low_water > 0 && left <= self.rules.low_water;
            if is_low && !seat.is_refilling {
                seat.is_refilling = true;
                seat.holder.refill();
                self.pump(at, port, None);
            }
            Some(paid_until)
        } else {
            self.waiters += 1;
            let waiter = Waiter { id: self.waiters, cost };
            let missed = seat.holder.miss(&self.rules, &seat.spot, now, waiter);
            let paid = match missed {
                Ok(Missed::Admitted(paid)) => Some(paid.until),
                Ok(Missed::Waits) => {
                    seat.waiting.push(Waits { id: waiter.id, since: now, cost: units, part });
                    None
                }
                Ok(Missed::Never(_)) => {
                    self.ledger.figures.denials += 1;
                    None
                }
                Err(Busy) => {
                    self.ledger.figures.unanswered += 1;
                    None
                }
            };
            self.pump(at, port, None);
            paid
        };
        if let Some(paid_until) = paid {
            self.nodes[node].seat(key, sizer, between).loses(paid_until, units);
            let (cost, has_waited) = (units, false);
            let it = Admission { at, reading, peak, node, key, cost, paid_until, part, has_waited };
            self.ledger.admitted(it, None);
        }
        Ok(())
    }

    /// The next event.
    fn step(&mut self) -> Result<(), InvalidSetup> {
        let Some((at, event)) = self.queue.pop() else { return Ok(()) };
        match event {
            Event::Ask { port, request, sent } => self.grant(at, port, request, sent)?,
            Event::Return { node, key, back } => {
                if self.store.is_up() && !self.network.is_cut(node) {
                    let restored = self.store.give_back(at, key, &back);
                    self.ledger.figures.restored += restored.map_err(InvalidSetup::new)?;
                }
            }
            Event::Grant { port, .. } if self.network.is_cut(port.node) => {}
            Event::Grant { port, id, sent, grant, facts } => {
                let store = self.store.read(at);
                let Some(node) = self.living(port) else { return Ok(()) };
                let (now, wall) = (node.clock.read(at), node.wall(store));
                let (rules, between) = (self.rules, self.between);
                let Some(seat) = self.nodes[port.node].seats[port.key].as_mut() else {
                    return Ok(());
                };
                if let Some(place) = seat.open.iter().position(|&open| open == id) {
                    seat.open.swap_remove(place);
                    seat.gains(&rules, sent, now, &grant);
                    self.ledger.figures.heard += grant.granted;
                }
                let told = between.grant(&Heard { sent, now, wall }, grant);
                seat.holder.handle_grant(&rules, &seat.spot, now, id, &told);
                seat.is_refilling = false;
                self.pump(at, port, Some((grant.decision.reset_at, facts)));
            }
            Event::Failure { port, id } => {
                let Some(node) = self.living(port) else { return Ok(()) };
                let now = node.clock.read(at);
                let rules = self.rules;
                let Some(seat) = self.nodes[port.node].seats[port.key].as_mut() else {
                    return Ok(());
                };
                seat.open.retain(|&open| open != id);
                seat.holder.handle_failure(&rules, &seat.spot, now, id);
                seat.is_refilling = false;
                self.pump(at, port, None);
            }
            Event::Due { port } => self.due(at, port),
            Event::Fault(fault) => self.fail(at, fault),
        }
        Ok(())
    }

    /// The node, if it is still the one that is meant.
    fn living(&self, port: Port) -> Option<&Node<B>> {
        let node = &self.nodes[port.node];
        (node.is_up && node.incarnation == port.incarnation).then_some(node)
    }

    /// An ask has reached the store.
    fn grant(
        &mut self,
        at: u64,
        port: Port,
        request: Request,
        sent: Micros,
    ) -> Result<(), InvalidSetup> {
        let Port { node, key, .. } = port;
        let Request { id, ask } = request;
        if !self.store.is_up() || self.network.is_cut(node) {
            // Half of them are refused, the others go nowhere.
            let is_refused = self.store.is_up() || self.random.bool();
            let wait = if is_refused { REFUSAL } else { LIFETIME_MAX };
            self.queue.push(at + wait.us(), Event::Failure { port, id });
            return Ok(());
        }
        let left = self.store.left(at, key);
        let grant = self.store.grant(at, key, id, ask).map_err(InvalidSetup::new)?;
        self.ledger.figures.granted += grant.granted;
        self.ledger.figures.refusals += u64::from(grant.granted == 0);
        let (rules, paid_until) = (self.rules, grant.decision.reset_at);
        let own = self.living(port).and_then(|node| {
            let now = node.clock.read(at);
            node.seats[key].as_ref().and_then(|seat| seat.own(&rules, now, paid_until))
        });
        let facts = Facts { left, own, need: grant.granted.min(ask.need) };
        let mut is_sent = false;
        for latency in self.network.send(node) {
            is_sent = true;
            self.queue.push(at + latency, Event::Grant { port, id, sent, grant, facts });
        }
        if !is_sent {
            self.queue.push(at + LIFETIME_MAX.us(), Event::Failure { port, id });
        }
        Ok(())
    }

    /// A holder's time has come.
    fn due(&mut self, at: u64, port: Port) {
        let Some(node) = self.living(port) else { return };
        let (now, rules) = (node.clock.read(at), self.rules);
        let Some(seat) = self.nodes[port.node].seats[port.key].as_mut() else { return };
        let deadline = self.between.deadline();
        if seat.due != Some(at) || deadline == Deadline::Missed {
            return;
        }
        seat.due = None;
        if deadline == Deadline::Told {
            seat.holder.handle_deadline(&rules, &seat.spot, now);
        }
        self.pump(at, port, None);
    }

    /// Does what the holder wants done. `granted` is the end of the window that paid for a grant
    /// that was just fed, with what was true then.
    fn pump(&mut self, at: u64, port: Port, granted: Option<(Micros, Facts)>) {
        self.send(at, port);
        self.answer(at, port, granted);
        let Port { node, key, .. } = port;
        let clock = self.nodes[node].clock;
        let Some(seat) = self.nodes[node].seats[key].as_mut() else { return };
        while let Some(back) = seat.holder.poll_return() {
            seat.loses(back.paid_until, back.units);
            self.ledger.figures.given_back += back.units;
            for latency in self.network.send(node) {
                self.queue.push(at + latency, Event::Return { node, key, back });
            }
        }
        let Some(due) = seat.holder.poll_deadline(&self.rules) else { return };
        let due = clock.reaches(due).max(at);
        let before = if seat.spins.0 == at { seat.spins.1 } else { 0 };
        seat.spins = (at, if due == at { before + 1 } else { 0 });
        if seat.spins.1 > SPINS_MAX {
            let detail = format!("key {key}, node {node}: wants to be called for ever at once");
            self.ledger.violate(Check::Quiet, at, detail);
        }
        if seat.due.is_none_or(|before| due < before) {
            seat.due = Some(due);
            self.queue.push(due, Event::Due { port });
        }
    }

    /// Sends what the holder asks for.
    fn send(&mut self, at: u64, port: Port) {
        let Port { node: place, key, .. } = port;
        loop {
            let node = &mut self.nodes[place];
            let (now, fresh) = (node.clock.read(at), node.fresh(self.between));
            let Some(seat) = node.seats[key].as_mut() else { return };
            if let Some(demand) = seat.holder.poll_demand() {
                seat.sizer.feed(demand);
                seat.holder.set_size(seat.sizer.size().units());
            }
            let request = seat.holder.poll_request(&self.rules, &seat.spot, now, fresh);
            let Some(request) = request else { return };
            seat.asks(request.id);
            self.ledger.asked(place, key, request.ask.want);
            let mut is_sent = false;
            for latency in self.network.send(place) {
                is_sent = true;
                self.queue.push(at + latency, Event::Ask { port, request, sent: now });
            }
            if !is_sent {
                let failure = Event::Failure { port, id: request.id };
                self.queue.push(at + LIFETIME_MAX.us(), failure);
            }
        }
    }

    /// Tells the requests that waited, and judges what they are told.
    fn answer(&mut self, at: u64, port: Port, granted: Option<(Micros, Facts)>) {
        let Port { node, key, .. } = port;
        let (reading, peak) = (self.store.read(at), self.store.peak(at));
        let now = self.nodes[node].clock.read(at);
        let Some(seat) = self.nodes[node].seats[key].as_mut() else { return };
        let mut late = granted.map_or(0, |(_, facts)| facts.need);
        let (mut spent, mut denied) = (0, None);
        while let Some((id, answer)) = seat.holder.poll_answer() {
            let Some(place) = seat.waiting.iter().position(|waits| waits.id == id) else {
                let detail =
                    format!("key {key}, node {node}: an answer to nobody, or a second one");
                self.ledger.violate(Check::Answered, at, detail);
                continue;
            };
            let Waits { since, cost, part, .. } = seat.waiting.swap_remove(place);
            let wait = now.since(since);
            self.ledger.figures.wait_max = self.ledger.figures.wait_max.max(wait);
            // A clock that runs fast may skip a tick.
            if wait.us() > self.rules.deadline.us() + Span::TICK.us() {
                let detail = format!("key {key}, node {node}: waited {} us", wait.us());
                self.ledger.violate(Check::Deadline, at, detail);
            }
            match answer {
                Answer::Admitted(paid) => {
                    let paid_until = paid.until;
                    seat.loses(paid_until, cost);
                    let by_grant = granted.is_some_and(|(until, _)| until == paid_until);
                    spent += cost;
                    let has_waited = true;
                    let it = Admission {
                        at,
                        reading,
                        peak,
                        node,
                        key,
                        cost,
                        paid_until,
                        part,
                        has_waited,
                    };
                    self.ledger.admitted(it, by_grant.then_some(&mut late));
                }
                Answer::Denied(_) => {
                    self.ledger.figures.denials += 1;
                    denied = Some(denied.map_or(cost, |least: u64| least.min(cost)));
                }
                Answer::Unanswered => self.ledger.figures.unanswered += 1,
            }
        }
        if let Some(cost) = denied {
            self.judge(at, port, granted.map(|(_, facts)| facts), cost, spent);
        }
    }

    /// A request of `cost` was denied by a grant that let others spend `spent`.
    fn judge(&mut self, at: u64, port: Port, facts: Option<Facts>, cost: u64, spent: u64) {
        let Some(Facts { left, own, .. }) = facts else {
            let detail = "a denial that no grant brought".to_owned();
            self.ledger.violate(Check::Denial, at, detail);
            return;
        };
        let Some(Own { units: own, overtook }) = own else { return };
        self.ledger.figures.denials_judged += 1;
        if left + own < cost + spent {
            return;
        }
        if left + own - overtook < cost + spent {
            self.ledger.figures.denials_overtaken += 1;
            return;
        }
        let Port { node, key, .. } = port;
        let detail = format!(
            "key {key}, node {node}: denied {cost} after {spent} with {left} left in the store and \
             {own} on the node"
        );
        self.ledger.violate(Check::Denial, at, detail);
    }

    /// A node gives back what it holds before it goes.
    fn shut_down(&mut self, at: u64, node: usize) {
        let (now, incarnation) = (self.nodes[node].clock.read(at), self.nodes[node].incarnation);
        for key in 0..self.nodes[node].seats.len() {
            if let Some(seat) = self.nodes[node].seats[key].as_mut() {
                seat.holder.close(&self.rules, &seat.spot, now);
                self.pump(at, Port { node, incarnation, key }, None);
            }
        }
    }

    fn check_answered(&mut self, at: u64) {
        let seats = self.nodes.iter().flat_map(|node| node.seats.iter().flatten());
        let left: usize = seats.map(|seat| seat.waiting.len()).sum();
        if left > 0 {
            let detail = format!("{left} requests are still waiting");
            self.ledger.violate(Check::Answered, at, detail);
        }
    }

    fn fail(&mut self, at: u64, fault: Fault) {
        match fault {
            Fault::Cut(nodes) => self.network.cut(&nodes),
            Fault::Heal(nodes) => self.network.heal(&nodes),
            Fault::StoreDown => self.store.fall(at),
            Fault::StoreUp { lag, step } => {
                for lost in self.store.fail_over(at, lag, step) {
                    self.ledger.lost(lost);
                }
            }
            Fault::Crash { node, is_clean } => {
                if is_clean {
                    self.shut_down(at, node);
                }
                let node = &mut self.nodes[node];
                node.is_up = false;
                for seat in node.seats.iter_mut().filter_map(Option::take) {
                    let waiting = u64::try_from(seat.waiting.len()).unwrap_or(u64::MAX);
                    self.ledger.figures.crashed += waiting;
                }
            }
            // It may have crashed again while it was down.
            Fault::Restart { node } if self.nodes[node].is_up => {}
            Fault::Restart { node } => {
                let node = &mut self.nodes[node];
                node.is_up = true;
                node.incarnation = self.random.u64(..);
                node.count = 0;
                // The machine started anew, and its clock with it.
                node.clock = LeaseClock { epoch: self.random.u64(EPOCHS), ..node.clock };
            }
        }
    }
}

/// Deadlines that are simulated after the last window, so that every request can be answered.
const DEADLINES_AFTER: u64 = 4;
/// How long a refusal takes.
const REFUSAL: Span = Span::from_ms(1);
/// A holder may want to be called again at once this often.
const SPINS_MAX: u32 = 100;
