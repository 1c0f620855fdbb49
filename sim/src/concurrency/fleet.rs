//! The fleet: nodes that admit and report, a store that runs the coordinator's step, the backend
//! behind them, and one queue of events.

use admittance_core::concurrency::{Beat, Grant, Leave, Members, Standing};
use admittance_core::learn::{Ending, Followed, Sample};
use admittance_core::{Micros, Span};
use fastrand::Rng;

use super::backend::{Backend, End, Work};
use super::between::{Between, Sent};
use super::events::{self, Event, Fault, Port, Return};
use super::ledger::Ledger;
use super::load::{Arrival, Load};
use super::node::Node;
use super::report::Report;
use super::setup::Setup;
use crate::faults;
use crate::network::Network;
use crate::queue::Queue;
use crate::setup::InvalidSetup;

/// Runs a fleet until its time is over or a bound does not hold.
///
/// # Errors
/// The setup is out of range.
pub fn run<B: Between>(setup: &Setup, between: B) -> Result<Report, InvalidSetup> {
    setup.check()?;
    let mut random = Rng::with_seed(setup.seed);
    let mut load = Load::new(setup, random.fork());
    let mut fleet = Fleet::new(setup, between, &mut random)?;
    let end = setup.seconds * 1_000_000;
    let mut arrival = load.next();
    while fleet.ledger.violation.is_none() {
        let next = fleet.queue.next_at().filter(|&at| at <= end);
        match (arrival, next) {
            (Some(request), next) if next.is_none_or(|at| request.at < at) => {
                fleet.ledger.pass(request.at);
                fleet.arrive(request);
                fleet.check(request.at);
                arrival = load.next();
            }
            (_, Some(_)) => fleet.step()?,
            (_, None) => break,
        }
    }
    fleet.ledger.pass(end);
    fleet.ledger.figures.joins_open += u64::from(fleet.join.is_some());
    Ok(fleet.ledger.close(setup))
}

struct Fleet<'a, B> {
    setup: &'a Setup,
    between: B,
    random: Rng,
    nodes: Vec<Node>,
    store: Store,
    backend: Backend,
    network: Network,
    queue: Queue<Event>,
    ledger: Ledger,
    /// What the operator says, if he does.
    limit: u32,
    join: Option<Join>,
    lengths: Load,
}

/// Where the coordinator's step runs.
struct Store {
    members: Option<Members>,
    life: String,
    lives: u64,
    is_up: bool,
    /// How much its clock has stepped back.
    behind: u64,
}

/// A node that joins, until it has its share.
#[derive(Clone, Copy)]
struct Join {
    node: usize,
    began: u64,
    /// What it is due, if it has been told.
    fair: Option<u32>,
    /// When the others had left that much.
    drained: Option<u64>,
}

impl<'a, B: Between> Fleet<'a, B> {
    fn new(setup: &'a Setup, between: B, random: &mut Rng) -> Result<Self, InvalidSetup> {
        let mut queue = Queue::new();
        events::schedule(setup, &mut random.fork(), &mut queue);
        let mut births = random.fork();
        let limit = setup.room();
        let born = |number| {
            let clock = faults::drifting(setup.faults.drift_ppm, &mut births);
            Node::new(setup, number, births.u64(..), limit, clock)
        };
        Ok(Self {
            setup,
            between,
            random: random.fork(),
            nodes: (0..setup.nodes).map(born).collect::<Result<_, _>>()?,
            store: Store { members: None, life: "1".to_owned(), lives: 1, is_up: true, behind: 0 },
            backend: Backend::new(setup.servers),
            network: Network::new(setup.faults.way(), setup.nodes, random.fork()),
            queue,
            ledger: Ledger::new(setup),
            limit,
            join: None,
            lengths: Load::new(setup, random.fork()),
        })
    }

    fn check(&mut self, at: u64) {
        self.ledger.check(at, self.backend.in_flight());
    }

    /// A request comes to its node, or to the next one that lives.
    fn arrive(&mut self, Arrival { at, node, length }: Arrival) {
        let all = self.nodes.len();
        let lives = |&node: &usize| self.nodes[node].is_up && self.nodes[node].paused_until <= at;
        let Some(node) = (0..all).map(|more| (node + more) % all).find(lives) else { return };
        self.ledger.asked(at, node);
        if !self.is_open(at, node) {
            return;
        }
        let port = Port { node, incarnation: self.nodes[node].incarnation };
        // A thread may be held up between its look at the clock and its swap; that counts as hold.
        let hold = self.setup.rules.max_hold.us();
        if self.setup.faults.pauses > 0 && self.random.u32(0..STALL_ONE_IN) == 0 {
            let stall = self.random.u64(1..hold);
            self.queue.push(at + stall, Event::Stalled { port, read: at });
        } else {
            self.admit(at, port, at + hold, length);
        }
    }

    /// Whether the node has a grant by its own clock.
    fn is_open(&self, at: u64, node: usize) -> bool {
        let node = &self.nodes[node];
        match node.member.standing(node.clock.read(at)) {
            Standing::Granted(_) | Standing::Alone => true,
            Standing::Closed => false,
        }
    }

    /// Swaps the word, if there is a place.
    fn admit(&mut self, at: u64, port: Port, deadline: u64, length: u64) {
        let Port { node: number, incarnation } = port;
        let node = &mut self.nodes[number];
        let Some(word) = node.word.acquire() else {
            if node.member.is_short() {
                self.hurry(at, number);
            }
            return;
        };
        node.word = word;
        let (in_flight, ceiling) = (word.in_flight(), word.ceiling());
        let work = Work { node: number, incarnation, at, in_flight, ceiling, length, deadline };
        let End { at: end, id } = self.backend.begin(at, work);
        self.queue.push(end, Event::End(id));
        self.ledger.admitted(at, number);
    }

    /// The next event.
    fn step(&mut self) -> Result<(), InvalidSetup> {
        let Some((at, event)) = self.queue.pop() else { return Ok(()) };
        self.ledger.pass(at);
        match event {
            Event::Tick(port) => self.tick(at, port),
            Event::Eager(port) => {
                if self.is_living(at, port, Event::Eager(port)).is_some() {
                    self.nodes[port.node].is_eager_due = false;
                    self.ledger.figures.eager += 1;
                    self.send(at, port);
                }
            }
            Event::Beat(port, beat) => self.beat(at, port, beat),
            Event::Grant(port, beat, grant) => self.grant(at, port, beat, grant),
            Event::Leave(node, leave) => self.left(at, node, &leave),
            Event::End(id) => {
                if let Some((work, next)) = self.backend.end(at, id) {
                    if let Some(End { at: end, id }) = next {
                        self.queue.push(end, Event::End(id));
                    }
                    self.ledger.figures.aborted += u64::from(at >= work.deadline);
                    self.settle(at, work, Span::from_us(at - work.at));
                }
            }
            Event::Settle(work, took) => self.settle(at, work, took),
            Event::Stalled { port, read } => {
                let again = Event::Stalled { port, read };
                let deadline = read + self.setup.rules.max_hold.us();
                if self.is_living(at, port, again).is_some() && at < deadline {
                    let length = self.lengths.length();
                    self.admit(at, port, deadline, length);
                }
            }
            Event::Fault(fault) => self.fail(at, fault)?,
        }
        self.measure(at);
        self.check(at);
        Ok(())
    }

    /// The node, if it is the one that is meant and at work; if it stands still, `again` happens
    /// when it goes on.
    fn is_living(&mut self, at: u64, port: Port, again: Event) -> Option<()> {
        let node = &self.nodes[port.node];
        if !node.is_up || node.incarnation != port.incarnation {
            return None;
        }
        if at < node.paused_until {
            self.queue.push(node.paused_until, again);
            return None;
        }
        Some(())
    }

    fn tick(&mut self, at: u64, port: Port) {
        if self.is_living(at, port, Event::Tick(port)).is_none() {
            return;
        }
        let node = &mut self.nodes[port.node];
        let now = node.clock.read(at);
        if !node.is_answered {
            node.member.lost();
        }
        self.ledger.figures.fenced += u64::from(node.member.is_fenced_anew(now));
        self.queue.push(at + self.setup.heartbeat.us(), Event::Tick(port));
        self.send(at, port);
    }

    /// An eager report is due, after the last report and its debounce.
    fn hurry(&mut self, at: u64, number: usize) {
        let node = &mut self.nodes[number];
        if node.is_eager_due {
            return;
        }
        node.is_eager_due = true;
        let due = at.max(node.sent_at + self.setup.debounce.us());
        let port = Port { node: number, incarnation: node.incarnation };
        self.queue.push(due, Event::Eager(port));
    }

    /// A node reports.
    fn send(&mut self, at: u64, port: Port) {
        self.ledger.figures.beats += 1;
        let epoch = self.random.u64(1..1 << 53);
        let node = &mut self.nodes[port.node];
        let now = node.clock.read(at);
        let is_sampled = node.take_sampled(at, self.setup.heartbeat);
        let beat = node.member.report(node.word, is_sampled, epoch, now);
        let beat = self.between.beat(&Sent { at, in_flight_before: node.reported }, beat);
        node.reported = node.word.in_flight();
        (node.is_answered, node.sent_at) = (false, at);
        for latency in self.network.send(port.node) {
            self.queue.push(at + latency, Event::Beat(port, Box::new(beat.clone())));
        }
    }

    /// A report has reached the store.
    fn beat(&mut self, at: u64, port: Port, beat: Box<Beat>) {
        if !self.store.is_up || self.network.is_cut(port.node) {
            return;
        }
        let between = self.between;
        let rules = between.rules(self.setup.rules);
        let before = self.store.members.take();
        let seen = before.clone().map(|members| between.before(&beat.report, members));
        let report = between.report(seen.as_ref(), beat.report.clone());
        let now = self.store.read(at);
        let stepped = Members::beat(seen.as_ref(), &rules, &report, &self.store.life, now);
        let Ok((after, grant)) = stepped else {
            self.store.members = before;
            return;
        };
        let after = between.after(seen.as_ref(), after);
        self.ledger.stepped(at, before.as_ref(), &after, &beat.report);
        self.store.members = Some(after);
        if let Some(join) = self.join.as_mut().filter(|join| join.node == port.node) {
            join.fair = (grant.fair > 0).then_some(grant.fair);
        }
        let grant = between.grant(&rules, grant);
        for latency in self.network.send(port.node) {
            self.queue.push(at + latency, Event::Grant(port, beat.clone(), grant));
        }
    }

    /// A farewell has reached the store.
    fn left(&mut self, at: u64, node: usize, leave: &Leave) {
        if !self.store.is_up || self.network.is_cut(node) {
            return;
        }
        let now = self.store.read(at);
        self.store.members = self.store.members.take().map(|members| {
            // One who has seen another life of the store leaves nothing behind.
            if *members.life == *self.store.life { members.leave(leave, now) } else { members }
        });
    }

    /// An answer has reached its node.
    fn grant(&mut self, at: u64, port: Port, beat: Box<Beat>, grant: Grant) {
        if self.network.is_cut(port.node)
            || self.is_living(at, port, Event::Grant(port, beat.clone(), grant)).is_none()
        {
            return;
        }
        let node = &mut self.nodes[port.node];
        let now = node.clock.read(at);
        let beat = self.between.answered(now, *beat);
        let Some(applied) = node.member.apply(&beat, &grant, now) else { return };
        node.is_answered = true;
        node.word = node.word.with_share(applied.share);
        let is_measured = beat.report.is_sampled;
        if is_measured || self.between.follows() {
            let known_ns = (at + self.setup.heartbeat.us()) * 1_000;
            node.follow(at, Followed { limit: applied.limit, known_ns, is_measured });
        }
        if applied.is_eager {
            self.hurry(at, port.node);
        }
    }

    /// Work of a node has ended after `took`.
    fn settle(&mut self, at: u64, work: Work, took: Span) {
        let port = Port { node: work.node, incarnation: work.incarnation };
        if self.is_living(at, port, Event::Settle(work, took)).is_none() {
            return;
        }
        let is_aborted = work.at + took.us() >= work.deadline;
        let sample = Sample {
            rtt_ns: took.us() * 1_000,
            in_flight: work.in_flight,
            ceiling: work.ceiling,
            ending: if is_aborted { Ending::Overload } else { Ending::Finish },
        };
        let node = &mut self.nodes[work.node];
        node.settle(at, sample);
        if node.member.has_drained(node.word.in_flight()) {
            self.hurry(at, work.node);
        }
    }

    /// Follows a node that joins: when the others had left its share, and when it has it.
    fn measure(&mut self, at: u64) {
        let Some(Join { node, began, fair: Some(fair), drained }) = self.join else { return };
        if drained.is_none() {
            let others =
                self.nodes.iter().enumerate().filter(|(it, other)| *it != node && other.is_up);
            let taken: u64 = others.map(|(_, other)| other.taken()).sum();
            let limit = self.store.members.as_ref().map_or(0, |members| u64::from(members.limit));
            if taken + u64::from(fair) <= limit {
                self.join = Some(Join { node, began, fair: Some(fair), drained: Some(at) });
            }
        }
        if self.nodes[node].word.share() >= fair {
            self.ledger.figures.joins.push(at - drained.unwrap_or(at));
            self.ledger.figures.joins_in_all.push(at - began);
            self.join = None;
        }
    }

    fn fail(&mut self, at: u64, fault: Fault) -> Result<(), InvalidSetup> {
        match fault {
            Fault::Start { node, .. } if self.nodes[node].is_up => {}
            Fault::Start { node, is_joiner } => self.start(at, node, is_joiner)?,
            Fault::Crash { node } => self.nodes[node].is_up = false,
            Fault::Leave { node } => self.leave(at, node),
            Fault::Pause { node, length } => self.pause(at, node, length),
            Fault::Cut(nodes) => self.network.cut(&nodes),
            Fault::Heal(nodes) => self.network.heal(&nodes),
            Fault::StoreDown => self.store.is_up = false,
            Fault::StoreUp(how) => self.store.come_back(how),
            Fault::StoreSteps { back } => self.store.behind += back,
            Fault::Limit(limit) => {
                self.limit = limit;
                for node in 0..self.nodes.len() {
                    let heard = at + self.random.u64(0..=TOLD_WITHIN.us());
                    self.queue.push(heard, Event::Fault(Fault::Told { node, limit }));
                }
            }
            Fault::Told { node, limit } => self.nodes[node].told(limit),
        }
        Ok(())
    }

    fn start(&mut self, at: u64, number: usize, is_joiner: bool) -> Result<(), InvalidSetup> {
        let incarnation = self.random.u64(..);
        // The machine starts anew, and its clock with it.
        let mut clock = self.nodes[number].clock;
        clock.epoch = self.random.u64(faults::EPOCHS);
        let mut node = Node::new(self.setup, number, incarnation, self.limit, clock)?;
        node.is_up = true;
        self.nodes[number] = node;
        let port = Port { node: number, incarnation };
        self.queue.push(at, Event::Tick(port));
        if is_joiner {
            self.ledger.figures.joins_open += u64::from(self.join.is_some());
            self.join = Some(Join { node: number, began: at, fair: None, drained: None });
        }
        Ok(())
    }

    fn leave(&mut self, at: u64, number: usize) {
        let node = &mut self.nodes[number];
        if !node.is_up || at < node.paused_until {
            return;
        }
        node.word = node.word.with_share(0);
        let leave = node.member.leave(node.word);
        node.is_up = false;
        for latency in self.network.send(number) {
            self.queue.push(at + latency, Event::Leave(number, leave.clone()));
        }
    }

    fn pause(&mut self, at: u64, number: usize, length: u64) {
        let is_open = self.is_open(at, number);
        let node = &mut self.nodes[number];
        if !node.is_up {
            return;
        }
        node.paused_until = node.paused_until.max(at + length);
        if is_open {
            let port = Port { node: number, incarnation: node.incarnation };
            for _ in 0..STALLED_BY_A_PAUSE {
                self.queue.push(at + length, Event::Stalled { port, read: at });
            }
        }
    }
}

impl Store {
    /// What its clock shows.
    fn read(&self, at: u64) -> Micros {
        Micros::saturating_from_epoch_us(BEGAN + at - self.behind.min(BEGAN))
    }

    fn come_back(&mut self, how: Return) {
        self.is_up = true;
        match how {
            Return::AsItWas => {}
            Return::Empty => self.members = None,
            Return::InAnotherLife => {
                self.lives += 1;
                self.life = self.lives.to_string();
            }
        }
    }
}

/// What the store's clock shows when the run begins.
const BEGAN: u64 = 1 << 50;
/// Where nodes stand still, one request of so many is held up between clock and swap.
const STALL_ONE_IN: u32 = 50;
/// So many requests have just looked at the clock when a node stops.
const STALLED_BY_A_PAUSE: usize = 3;
/// All nodes hear of another limit within this.
const TOLD_WITHIN: Span = Span::from_secs(2);
