//! The world: clients, instances, the store, and one queue of events.

use std::collections::BTreeMap;

use admittance_core::Span;
use admittance_core::budget::{Flow, LeaseKey};
use fastrand::Rng;

use super::book::Parts;
use super::client::{Lengths, Stream, Wants};
use super::ledger::{Act, Ledger, Scene, Step};
use super::report::Report;
use super::setup::{Serving, Setup};
use super::steps::Steps;
use super::store::Store;
use crate::network::Network;
use crate::queue::Queue;
use crate::setup::InvalidSetup;

/// Runs a world until its time is over and every lease has ended, or a check does not hold.
///
/// # Errors
/// The setup is out of range.
pub fn run<S: Steps>(setup: &Setup, steps: S) -> Result<Report, InvalidSetup> {
    setup.checked()?;
    let mut world = World::new(setup, steps)?;
    world.begin();
    while world.ledger.violation.is_none() {
        let Some((at, event)) = world.queue.pop() else { break };
        world.at = at;
        world.happen(event)?;
    }
    world.end();
    let until = world.store.read(world.until).epoch_us();
    let (figures, violation) = world.ledger.finish(until);
    Ok(Report { setup: setup.clone(), figures, violation })
}

struct World<'a, S> {
    setup: &'a Setup,
    steps: S,
    random: Rng,
    at: u64,
    /// When no more completions begin.
    until: u64,
    queue: Queue<Event>,
    network: Network,
    streams: BTreeMap<u64, Stream>,
    begun: u64,
    lengths: Vec<Lengths>,
    instances: Vec<Instance>,
    store: Store<S>,
    ledger: Ledger,
}

#[derive(Clone, Copy)]
struct Instance {
    is_up: bool,
    /// Which of its lives it is in: an answer to an earlier one goes nowhere.
    life: u32,
}

/// A message on its way from a client to the store and back.
#[derive(Clone, Copy)]
struct Ask {
    stream: u64,
    key: usize,
    nth: u32,
    wants: Wants,
    instance: usize,
    life: u32,
}

/// What the store said to it.
#[derive(Clone, Copy)]
struct Answer {
    is_admitted: bool,
    flow: Flow,
    parts: [Parts; 3],
}

enum Event {
    /// A client wants a completion.
    Begin {
        key: usize,
    },
    /// A stream has the next tokens.
    Next {
        stream: u64,
    },
    /// A stream has waited long enough for an answer.
    Impatient {
        stream: u64,
        nth: u32,
        tries: u32,
    },
    /// Somebody says what nobody waits for.
    Say {
        stream: u64,
        key: usize,
        wants: Wants,
    },
    /// A message reaches its instance, the store, the instance again, and the client.
    Forward(Ask),
    Apply(Ask),
    Reply(Ask, Answer),
    Hear(Ask, Answer),
    /// Somebody looks at the accounts.
    Look,
    Fault(Fault),
}

#[derive(Clone, Copy)]
enum Fault {
    Crash(usize),
    Start(usize),
    StoreDown,
    StoreUp { is_kept: bool },
    Limits,
}

impl<'a, S: Steps> World<'a, S> {
    fn new(setup: &'a Setup, steps: S) -> Result<Self, InvalidSetup> {
        let mut random = Rng::with_seed(setup.seed);
        let lengths = std::iter::repeat_with(Lengths::default).take(setup.keys).collect();
        Ok(Self {
            setup,
            steps,
            at: 0,
            until: setup.seconds * SECOND,
            queue: Queue::new(),
            network: Network::new(setup.faults.way(), setup.instances, random.fork()),
            streams: BTreeMap::new(),
            begun: 0,
            lengths,
            instances: vec![Instance { is_up: true, life: 0 }; setup.instances],
            store: Store::new(setup, steps)?,
            ledger: Ledger::new(setup),
            random,
        })
    }

    fn begin(&mut self) {
        for key in 0..self.setup.keys {
            for _ in 0..self.setup.streams {
                let at = self.random.u64(0..=self.setup.think.us());
                self.queue.push(at, Event::Begin { key });
            }
        }
        let faults = &self.setup.faults;
        for _ in 0..faults.crashes {
            let (at, instance) = (self.some_time(), self.random.usize(0..self.setup.instances));
            self.queue.push(at, Event::Fault(Fault::Crash(instance)));
            let down = self.random.u64(1..=10 * SECOND);
            self.queue.push(at + down, Event::Fault(Fault::Start(instance)));
        }
        for nth in 0..faults.restarts + faults.losses {
            let at = self.some_time();
            self.queue.push(at, Event::Fault(Fault::StoreDown));
            let down = self.random.u64(1..=5 * SECOND);
            let is_kept = nth < faults.restarts;
            self.queue.push(at + down, Event::Fault(Fault::StoreUp { is_kept }));
        }
        for _ in 0..faults.changes {
            let at = self.some_time();
            self.queue.push(at, Event::Fault(Fault::Limits));
        }
        self.queue.push(SECOND, Event::Look);
    }

    fn some_time(&mut self) -> u64 {
        self.random.u64(0..self.until)
    }

    fn happen(&mut self, event: Event) -> Result<(), InvalidSetup> {
        match event {
            Event::Begin { key } => self.start(key),
            Event::Next { stream } => self.next(stream),
            Event::Impatient { stream, nth, tries } => self.impatient(stream, nth, tries),
            Event::Say { stream, key, wants } => self.send(stream, key, u32::MAX, wants),
            Event::Forward(ask) => {
                let Instance { is_up, life } = self.instances[ask.instance];
                if is_up {
                    self.pass_on(ask.instance, Event::Apply, Ask { life, ..ask });
                }
            }
            Event::Apply(ask) => self.apply(ask),
            Event::Reply(ask, answer) => {
                // It asked the store and died before it could answer.
                let Instance { is_up, life } = self.instances[ask.instance];
                if is_up && life == ask.life {
                    self.pass_on(ask.instance, |ask| Event::Hear(ask, answer), ask);
                }
            }
            Event::Hear(ask, answer) => self.hear(ask, answer),
            Event::Look => {
                (0..self.setup.keys).for_each(|key| self.look(key));
                if self.at < self.until {
                    let after = self.random.u64(1..=2 * SECOND);
                    self.queue.push(self.at + after, Event::Look);
                }
            }
            Event::Fault(fault) => self.fail(fault)?,
        }
        Ok(())
    }

    fn pass_on(&mut self, instance: usize, event: impl Fn(Ask) -> Event, ask: Ask) {
        for latency in self.network.send(instance) {
            self.queue.push(self.at + latency, event(ask));
        }
    }

    fn happens(&mut self, ppm: u64) -> bool {
        self.network.happens(ppm)
    }

    fn start(&mut self, key: usize) {
        if self.at >= self.until {
            return;
        }
        self.begun += 1;
        let stream = Stream::new(self.setup, key, &mut self.random);
        self.ledger.figures.asked += 1;
        self.ledger.figures.wanted += stream.length;
        let estimate = self.lengths[key].estimate(self.setup, stream.length);
        self.streams.insert(self.begun, stream);
        self.ask(self.begun, Wants::Reserve(estimate));
    }

    /// A stream asks for something, and waits.
    fn ask(&mut self, id: u64, wants: Wants) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.asked += 1;
        (stream.waits, stream.tries) = (Some(wants), 0);
        self.try_to_ask(id);
    }

    fn try_to_ask(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else { return };
        let (Some(wants), nth, tries) = (stream.waits, stream.asked, stream.tries) else { return };
        let (key, patience) = (stream.key, stream.time(self.setup.patience.us()));
        self.send(id, key, nth, wants);
        self.queue.push(self.at + patience, Event::Impatient { stream: id, nth, tries });
    }

    fn send(&mut self, stream: u64, key: usize, nth: u32, wants: Wants) {
        // Each time to any of them.
        let instance = self.random.usize(0..self.setup.instances);
        let ask = Ask { stream, key, nth, wants, instance, life: 0 };
        self.pass_on(instance, Event::Forward, ask);
    }

    fn apply(&mut self, ask: Ask) {
        if !self.store.is_up {
            return;
        }
        let (act, tokens) = match ask.wants {
            Wants::Reserve(tokens) => (Act::Reserve, tokens),
            Wants::Debit(tokens) => (Act::Debit, tokens),
            Wants::Settle(tokens) => (Act::Settle, tokens),
            Wants::Abandon => (Act::Abandon, 0),
        };
        let units = self.setup.weights.map(|weight| weight * tokens);
        let lease = LeaseKey(ask.stream.into());
        let step = Step { lease, act, units, ttl: self.setup.ttl };
        let (is_admitted, flow, parts) = self.step(ask.key, &step);
        let answer = Answer { is_admitted, flow, parts };
        self.pass_on(ask.instance, |ask| Event::Reply(ask, answer), ask);
    }

    fn step(&mut self, key: usize, step: &Step) -> (bool, Flow, [Parts; 3]) {
        let said = self.store.apply(self.at, key, step);
        let scene = Scene {
            at: self.at,
            now: self.store.read(self.at).epoch_us(),
            accounts: self.store.accounts_of(key),
            budgets: &self.store.budgets,
        };
        let parts = self.ledger.step(scene, step, &said);
        if self.ledger.is_strict() {
            self.store.assert_invariants(key);
        }
        self.ledger.figures.steps += 1;
        (said.decision.is_admit(), said.flow, parts)
    }

    fn look(&mut self, key: usize) {
        if self.store.is_up {
            let step = Step { lease: LeaseKey(0), act: Act::Look, units: [0; 3], ttl: Span::ZERO };
            self.step(key, &step);
        }
    }

    /// A client may die wherever it could do something.
    fn dies(&mut self, id: u64) -> bool {
        if !self.happens(self.setup.faults.death_ppm) {
            return false;
        }
        let Some(stream) = self.streams.remove(&id) else { return true };
        self.ledger.figures.died += 1;
        if self.random.bool() {
            // Its instance sees that the connection is gone.
            self.send(id, stream.key, u32::MAX, Wants::Abandon);
        }
        self.think(stream.key);
        true
    }

    fn think(&mut self, key: usize) {
        let wait = self.random.u64(1..=2 * self.setup.think.us().max(1));
        self.queue.push(self.at + wait, Event::Begin { key });
    }

    /// Tokens are there: they are debited before they are served.
    fn next(&mut self, id: u64) {
        if self.dies(id) {
            return;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let left = stream.length - stream.served;
        if left == 0 {
            return self.settle(id);
        }
        if self.setup.serving == Serving::Afterwards {
            stream.served = stream.length;
            let wait = stream.time(left * self.setup.pace.us());
            self.queue.push(self.at + wait, Event::Next { stream: id });
            return;
        }
        let tokens = self.random.u64(1..=self.setup.chunk).min(left);
        if self.happens(self.setup.faults.overrun_ppm) {
            self.serve_unseen(id, tokens);
        } else {
            self.ask(id, Wants::Debit(tokens));
        }
    }

    /// Tokens are served that nobody counts before the settlement.
    fn serve_unseen(&mut self, id: u64, tokens: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.served += tokens;
            self.ledger.figures.unseen += tokens;
            self.go_on(id, tokens);
        }
    }

    fn go_on(&mut self, id: u64, tokens: u64) {
        let is_paused = self.happens(self.setup.faults.pause_ppm);
        let pause = if is_paused { self.random.u64(1..=3 * self.setup.ttl.us()) } else { 0 };
        let Some(stream) = self.streams.get(&id) else { return };
        let wait = stream.time(tokens * self.setup.pace.us() + pause);
        self.queue.push(self.at + wait, Event::Next { stream: id });
    }

    fn settle(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else { return };
        let (key, served) = (stream.key, stream.served);
        if self.happens(self.setup.faults.late_ppm) {
            self.later(id, key, served);
            self.done(id, false);
        } else {
            self.ask(id, Wants::Settle(served));
        }
    }

    /// Says what was served at some time up to twenty minutes later.
    fn later(&mut self, id: u64, key: usize, served: u64) {
        let most = if self.random.bool() { 2 * self.setup.ttl.us() } else { LATE_MAX };
        let at = self.at + self.random.u64(1..=most);
        self.queue.push(at, Event::Say { stream: id, key, wants: Wants::Settle(served) });
    }

    fn done(&mut self, id: u64, is_settled: bool) {
        let Some(stream) = self.streams.remove(&id) else { return };
        self.ledger.figures.served += stream.served;
        self.ledger.figures.whole += u64::from(stream.served == stream.length);
        self.lengths[stream.key].push(stream.served);
        if self.happens(self.setup.faults.again_ppm) {
            // Once it is settled, a lie: who settles again is told what was settled before.
            let lie = self.random.u64(0..=stream.served * 2);
            let other = if is_settled { lie } else { stream.served };
            self.later(id, stream.key, other);
        }
        self.think(stream.key);
    }

    /// An answer reaches its client.
    fn hear(&mut self, ask: Ask, answer: Answer) {
        let Ask { stream: id, nth, wants, key, .. } = ask;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.asked != nth || stream.waits != Some(wants) {
            return;
        }
        stream.waits = None;
        if self.dies(id) {
            return;
        }
        match (wants, answer.is_admitted) {
            (Wants::Reserve(_), true) => self.go_on(id, 1),
            (Wants::Reserve(_), false) => {
                self.streams.remove(&id);
                self.ledger.figures.refused += 1;
                self.think(key);
            }
            (Wants::Debit(tokens), true) => {
                let accounts = self.store.accounts_of(key);
                let lease = LeaseKey(id.into());
                self.ledger.serve(self.at, accounts, lease, &answer.parts);
                let Some(stream) = self.streams.get_mut(&id) else { return };
                stream.served += tokens;
                let is_asked_to_end = answer.flow == Flow::SoftStop;
                self.ledger.figures.soft_stops += u64::from(is_asked_to_end);
                if is_asked_to_end && self.random.u8(0..8) == 0 {
                    self.settle(id);
                } else {
                    self.go_on(id, tokens);
                }
            }
            (Wants::Debit(_), false) => {
                self.ledger.figures.stopped += 1;
                self.settle(id);
            }
            (Wants::Settle(_) | Wants::Abandon, _) => self.done(id, true),
        }
    }

    /// Nobody has answered: again, at another instance, a few times.
    fn impatient(&mut self, id: u64, nth: u32, tries: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(wants) = stream.waits else { return };
        if stream.asked != nth || stream.tries != tries {
            return;
        }
        if tries < TRIES_MAX {
            stream.tries += 1;
            self.ledger.figures.retries += 1;
            return self.try_to_ask(id);
        }
        stream.waits = None;
        let (key, served, is_open) = (stream.key, stream.served, stream.is_open);
        self.ledger.figures.unanswered += 1;
        match wants {
            // It may be reserved all the same, and ends unheard of.
            Wants::Reserve(_) | Wants::Abandon => {
                self.streams.remove(&id);
                self.think(key);
            }
            Wants::Debit(tokens) if is_open => self.serve_unseen(id, tokens),
            Wants::Debit(_) => self.settle(id),
            Wants::Settle(_) => {
                if self.random.bool() {
                    self.later(id, key, served);
                }
                self.done(id, false);
            }
        }
    }

    fn fail(&mut self, fault: Fault) -> Result<(), InvalidSetup> {
        match fault {
            Fault::Crash(instance) => self.instances[instance].is_up = false,
            Fault::Start(instance) => {
                let instance = &mut self.instances[instance];
                (instance.is_up, instance.life) = (true, instance.life + 1);
            }
            Fault::StoreDown => self.store.is_up = false,
            Fault::StoreUp { is_kept } => {
                let step = Span::from_us(self.random.u64(0..=STEP_BACK_MAX));
                self.store.restart(self.at, is_kept && self.steps.keeps(), step);
                if !is_kept {
                    self.ledger.forget();
                }
            }
            Fault::Limits => {
                let percent = self.random.u64(50..=150);
                self.store.budgets = self.setup.budgets(percent)?;
            }
        }
        Ok(())
    }

    /// Nobody says anything any more: a time to live later nothing is reserved.
    fn end(&mut self) {
        if self.ledger.violation.is_some() {
            return;
        }
        self.store.is_up = true;
        self.at += self.setup.ttl.us() + STEP_BACK_MAX;
        for key in 0..self.setup.keys {
            self.look(key);
            let step = Step { lease: LeaseKey(0), act: Act::Look, units: [0; 3], ttl: Span::ZERO };
            let said = self.store.apply(self.at, key, &step);
            self.ledger.close(self.at, &said);
        }
    }
}

const SECOND: u64 = 1_000_000;
const TRIES_MAX: u32 = 3;
/// How late a settlement may be: longer than settlements are remembered.
const LATE_MAX: u64 = 1_200 * SECOND;
/// How far the store's clock steps back at most when it restarts.
const STEP_BACK_MAX: u64 = 50_000;
