//! A fleet that shares one limit through one store, over a network that does as it likes: one step
//! at a time, chosen from outside.
//!
//! Everything that decides is shipped code: [`Members::beat`], [`Members::leave`], [`Member`] and
//! [`Word`]. What is here is time, messages, crashes, and the work that is in flight. A [`Mutant`]
//! changes what goes into or comes out of the machines: the mutants.

use std::sync::Arc;

use admittance_core::Micros;
use admittance_core::concurrency::{
    Beat, Grant, Member, Members, Node, PERMITS_MAX, Record, Report, Standing, Word,
};

use super::events::order;
pub use super::events::{Broken, Message, Seen, Step};
use super::mutant;
use super::setting::{Budget, GENERATIONS, Mutant, Setting, Start};

/// The fleet between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// True time since the start, in half ticks.
    pub now: u64,
    /// What is under way.
    pub network: Vec<Message>,
    /// What the store remembers.
    pub store: Option<Arc<Members>>,
    /// The nodes.
    pub nodes: Vec<NodeState>,
    /// When work ends at the latest whose node is gone.
    pub orphans: Vec<u64>,
    /// Limits that were replaced, and until when each still counts.
    pub replaced: Vec<(u64, u32)>,
    /// What a step of the store did wrong.
    pub broken: Broken,
    /// What may still happen.
    pub budget: Budget,
    /// The share of the last node that crashed or left, when it did.
    pub gone: Option<u32>,
    life: u8,
    /// What a replica of the store has.
    replica: Option<Arc<Members>>,
    /// How far the store's clock has stepped back.
    back: u64,
    /// Numbers that mutants make up.
    made_up: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeState {
    /// Its machine.
    pub member: Member,
    /// Its gate.
    pub word: Word,
    /// When its work ends at the latest.
    pub work: Vec<u64>,
    /// How often it has been started before.
    pub starts: u8,
    /// Whether it has left.
    pub has_left: bool,
    beats: u8,
    /// What was in flight at the report before: for a mutant.
    reported: u32,
}

impl NodeState {
    /// Work ends that has lasted as long as it may, and all of it when the node is fenced, if the
    /// application sees to that.
    fn end_work(&mut self, setting: &Setting, place: usize, now: u64, seen: &mut Seen) {
        let is_fenced = self.member.is_fenced_anew(setting.clocks[place].read(now));
        seen.is_fenced |= is_fenced && !self.work.is_empty();
        let is_aborted = is_fenced && setting.aborts;
        while self.work.first().is_some_and(|end| *end <= now || is_aborted) {
            self.work.remove(0);
            self.word = self.word.release();
        }
    }
}

impl Fleet {
    /// The fleet before anything has happened.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        let places = 0..setting.clocks.len();
        let mut fleet = Self {
            now: 0,
            network: Vec::new(),
            store: founded(setting).map(Arc::new),
            nodes: places.map(|place| started(setting, place, 0, setting.limit)).collect(),
            orphans: Vec::new(),
            replaced: Vec::new(),
            broken: Broken::default(),
            budget: setting.budget,
            gone: None,
            life: 0,
            replica: None,
            back: 0,
            made_up: 0,
        };
        let now = setting.clocks[0].read(0);
        match setting.start {
            Start::Empty | Start::Founded => {}
            Start::Flushed => {
                fleet.replaced.push((setting.memory(), setting.limit));
                fleet.grant_before(setting, now);
            }
            Start::NewEpoch => fleet.grant_before(setting, now - setting.rules.ttl),
        }
        fleet
    }

    /// The first node was granted the whole limit at `now`, and no store remembers.
    fn grant_before(&mut self, setting: &Setting, now: Micros) {
        let node = &mut self.nodes[0];
        let beat = node.member.report(node.word, true, 1, now);
        let grant = Grant {
            share: setting.limit,
            generation: GENERATIONS,
            epoch: 1,
            lifetime: Some(setting.rules.ttl),
            limit: setting.limit,
            nodes: 0,
            fair: setting.limit,
            withheld: 0,
        };
        let (beat, grant) = mutant::received(setting, &beat, grant, now, &mut self.made_up);
        self.nodes[0].member.apply(&beat, &grant, now);
        self.settle(setting, Step::Wait);
    }

    /// What is in flight, work of nodes that are gone included.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let working: usize = self.nodes.iter().map(|node| node.work.len()).sum();
        (working + self.orphans.len()) as u64
    }

    /// The largest limit of the last time to live and hold.
    #[must_use]
    pub fn limit(&self) -> u64 {
        let replaced = self.replaced.iter().map(|(_, limit)| *limit);
        u64::from(replaced.chain(self.store.as_ref().map(|store| store.limit)).max().unwrap_or(0))
    }

    /// What all that is remembered was granted last.
    #[must_use]
    pub fn shares(&self) -> u64 {
        self.store.as_deref().map_or(0, shares)
    }

    /// Everything that can happen next.
    pub fn steps(&self, setting: &Setting, steps: &mut Vec<Step>) {
        let budget = &self.budget;
        for (place, node) in self.nodes.iter().enumerate() {
            if node.beats > 0 && !node.has_left {
                steps.push(Step::Beat(place));
            }
            if budget.acquires > 0 && node.word.acquire().is_some() {
                steps.push(Step::Acquire(place));
            }
            if budget.releases > 0 && !node.work.is_empty() {
                steps.push(Step::Release(place));
            }
            let other = |limit: &&u32| **limit != node.word.limit();
            if budget.votes > 0 {
                steps.extend(setting.votes.iter().filter(other).map(|l| Step::Vote(place, *l)));
            }
            let is_known = node.beats < setting.budget.beats[place];
            if budget.crashes > 0 && is_known {
                steps.push(Step::Crash(place));
            }
            if budget.leaves > 0 && is_known && !node.has_left {
                steps.push(Step::Leave(place));
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
        let store = [
            (budget.flushes > 0 && self.store.is_some(), Step::Flush),
            (budget.failovers > 0 && self.store.is_some(), Step::Snapshot),
            (self.replica.is_some(), Step::Failover),
            (budget.steps_back > 0 && self.store.is_some(), Step::StepBack),
            (self.now < setting.horizon, Step::Wait),
        ];
        steps.extend(store.into_iter().filter(|(can, _)| *can).map(|(_, step)| step));
    }

    /// Takes one step.
    pub fn take(&mut self, setting: &Setting, step: Step) -> Seen {
        let mut seen = Seen::default();
        match step {
            Step::Beat(place) => self.beat(setting, place),
            Step::Acquire(place) => {
                self.budget.acquires -= 1;
                let node = &mut self.nodes[place];
                if let Some(word) = node.word.acquire() {
                    node.word = word;
                    node.work.push(self.now + setting.hold);
                }
            }
            Step::Release(place) => {
                self.budget.releases -= 1;
                let node = &mut self.nodes[place];
                node.work.pop();
                node.word = node.word.release();
            }
            Step::Vote(place, limit) => {
                self.budget.votes -= 1;
                self.nodes[place].word = self.nodes[place].word.with_limit(limit);
            }
            Step::Deliver(place) => {
                let message = self.network.remove(place);
                self.deliver(setting, message, &mut seen);
            }
            Step::Copy(place) => {
                self.budget.copies -= 1;
                let message = self.network[place].clone();
                self.deliver(setting, message, &mut seen);
            }
            Step::Crash(place) => self.crash(setting, place),
            Step::Leave(place) => self.leave(setting, place),
            Step::Flush => {
                self.budget.flushes -= 1;
                self.replace(setting, None);
            }
            Step::Snapshot => {
                self.budget.failovers -= 1;
                self.replica = self.store.clone();
            }
            Step::Failover => {
                let replica = self.replica.take();
                self.life += 1;
                self.replace(setting, replica);
            }
            Step::StepBack => {
                self.budget.steps_back -= 1;
                self.back += setting.step_back().us();
            }
            Step::Wait => self.wait(setting, &mut seen),
        }
        self.settle(setting, step);
        seen
    }

    fn beat(&mut self, setting: &Setting, place: usize) {
        let now = setting.clocks[place].read(self.now);
        let node = &mut self.nodes[place];
        node.beats -= 1;
        // Drawn at random in earnest: no two are the same.
        let drawn = 1_000 * (place as u64 + 1) + 100 * u64::from(node.starts);
        let mut beat = node.member.report(node.word, true, drawn, now);
        beat.report.new_epoch += beat.report.sequence;
        let in_flight = beat.report.in_flight;
        match setting.mutant {
            Mutant::TornReport => {
                beat.report.in_flight = std::mem::replace(&mut node.reported, in_flight);
            }
            Mutant::NoInFlight => beat.report.in_flight = 0,
            _ => {}
        }
        self.network.push(Message::Report(place, Arc::new(beat)));
    }

    fn crash(&mut self, setting: &Setting, place: usize) {
        self.budget.crashes -= 1;
        let node = &self.nodes[place];
        self.gone = Some(node.word.share());
        let fresh = started(setting, place, node.starts + 1, node.word.limit());
        let node = std::mem::replace(&mut self.nodes[place], fresh);
        self.nodes[place].beats = node.beats;
        if !setting.aborts {
            self.orphans.extend(node.work);
        }
        // Whoever waited for them is gone.
        self.network.retain(|message| !matches!(message, Message::Reply(to, ..) if *to == place));
    }

    fn leave(&mut self, setting: &Setting, place: usize) {
        self.budget.leaves -= 1;
        let node = &mut self.nodes[place];
        node.has_left = true;
        self.gone = Some(node.word.share());
        if setting.aborts {
            node.word = node.work.drain(..).fold(node.word, |word, _| word.release());
        }
        let mut leave = node.member.leave(node.word);
        if setting.mutant == Mutant::LeaveForgets {
            leave.in_flight = 0;
        }
        self.network.push(Message::Leave(leave));
    }

    fn deliver(&mut self, setting: &Setting, message: Message, seen: &mut Seen) {
        match message {
            Message::Report(place, beat) => self.hear(setting, place, Beat::clone(&beat), seen),
            Message::Reply(place, beat, grant) => {
                let now = setting.clocks[place].read(self.now);
                let (beat, grant) = mutant::received(setting, &beat, grant, now, &mut self.made_up);
                let applied = self.nodes[place].member.apply(&beat, &grant, now);
                seen.is_eager |= applied.is_some_and(|applied| applied.is_eager);
                self.nodes[place].end_work(setting, place, self.now, seen);
            }
            Message::Leave(leave) => {
                let now = setting.store_at(self.now, self.back);
                let mut store = self.store.as_deref().map(|store| store.leave(&leave, now));
                if let Some(store) = &mut store {
                    mutant::forgotten(setting, store, self.store.as_deref());
                }
                self.replace(setting, store.map(Arc::new));
            }
        }
    }

    /// A report has reached the store.
    fn hear(&mut self, setting: &Setting, place: usize, mut beat: Beat, seen: &mut Seen) {
        let now = setting.store_at(self.now, self.back);
        let rules = mutant::rules(setting);
        let life = match setting.mutant {
            Mutant::SameLife => "0".to_owned(),
            _ => self.life.to_string(),
        };
        let before = mutant::reported(setting, self.store.as_ref(), &mut beat.report);
        let heard = Members::beat(before.as_deref(), &rules, &beat.report, &life, now);
        let Ok((mut after, mut grant)) = heard else { return };
        if setting.mutant == Mutant::None {
            self.judge(&after, &beat.report, &life);
        }
        seen.is_forgotten |= beat.report.epoch == grant.epoch
            && before.is_some_and(|before| !before.records.contains_key(&beat.report.node));
        mutant::answered(setting, &mut after, &mut grant);
        mutant::forgotten(setting, &mut after, self.store.as_deref());
        self.replace(setting, Some(Arc::new(after)));
        if beat.report.node.incarnation() != u64::from(self.nodes[place].starts) {
            // Whoever waited for the answer is gone.
            return;
        }
        // The machine does not look at the rest; without it more states are the same.
        (grant.nodes, grant.withheld) = (0, 0);
        let report = Report { local_limit: 0, in_flight: 0, epoch: 0, applied: 0, ..beat.report };
        let report = Report { new_epoch: 0, ..report };
        self.network.push(Message::Reply(place, Arc::new(Beat { report, ..beat }), grant));
    }

    /// The bounds on one step of the store.
    fn judge(&mut self, after: &Members, report: &Report, life: &str) {
        let before = self.store.as_deref().filter(|before| *before.life == *life);
        let limit = u64::from(after.limit);
        let record = before.and_then(|before| before.records.get(&report.node));
        let reserve = record.map_or(0, |record| record.reserve(after.rules.handoff));
        // What a node reports in flight is there, whatever was reserved for it: late reports of
        // nodes that were forgotten meanwhile come with work that was forgotten with them.
        let told = u64::from(report.in_flight.saturating_sub(reserve));
        let reserved = before.map_or(0, Members::reserved) + told;
        self.broken.reserves |= after.reserved() > limit.max(reserved);
        self.broken.shares |= shares(after) > limit.max(before.map_or(0, shares));
        let share = |members: Option<&Members>| {
            members.and_then(|members| members.records.get(&report.node)).map_or(0, |it| it.share)
        };
        self.broken.rises |= share(Some(after)) > share(before) && shares(after) > limit;
    }

    /// Notes a limit that is replaced, and puts `store` in the place of what was remembered.
    fn replace(&mut self, setting: &Setting, store: Option<Arc<Members>>) {
        let before = self.store.as_ref().map(|store| store.limit);
        if let Some(limit) =
            before.filter(|limit| store.as_ref().map(|it| it.limit) != Some(*limit))
        {
            self.replaced.retain(|(_, known)| *known != limit);
            self.replaced.push((self.now + setting.memory(), limit));
            self.replaced.sort_unstable();
        }
        self.store = store;
    }

    fn wait(&mut self, setting: &Setting, seen: &mut Seen) {
        let now = self.next_instant(setting);
        self.now = now;
        self.orphans.retain(|end| *end > now);
        self.replaced.retain(|(until, _)| *until > now);
        for (place, node) in self.nodes.iter_mut().enumerate() {
            node.end_work(setting, place, now, seen);
        }
    }

    /// Just before a grant ends, when the store forgets or begins to grant, and the grid. What ends
    /// in between has ended by then; nothing could be admitted by it before.
    fn next_instant(&self, setting: &Setting) -> u64 {
        let fences = self.nodes.iter().zip(&setting.clocks).filter_map(|(node, clock)| {
            Some(clock.when(node.member.fence_at()?).saturating_sub(1))
        });
        let ends = self.store.iter().flat_map(|store| {
            let kept = store.records.values().map(|record| record.kept_until);
            kept.chain([store.quiet_until]).map(|at| setting.store_when(at, self.back))
        });
        let grid = (self.now / setting.grid + 1) * setting.grid;
        let instants = fences.chain(ends).filter(|at| *at > self.now);
        instants.chain([grid]).min().unwrap_or(grid).min(setting.horizon)
    }

    /// Puts the present share into each word, and drops what can make no difference any more, so
    /// that more states are the same: answers that no node will ever take, and when what is over
    /// was over.
    fn settle(&mut self, setting: &Setting, step: Step) {
        let now = self.now;
        let is_as_sent = !matches!(
            setting.mutant,
            Mutant::AnswersAsTheyCome | Mutant::LifeFromArrival | Mutant::FenceLate
        );
        let can_be_over = is_as_sent
            && matches!(step, Step::Wait | Step::Deliver(_) | Step::Copy(_) | Step::Leave(_));
        for (node, clock) in self.nodes.iter_mut().zip(&setting.clocks) {
            let share = match node.member.standing(clock.read(now)) {
                Standing::Granted(share) => share,
                Standing::Closed => 0,
                Standing::Alone => PERMITS_MAX,
            };
            node.word = node.word.with_share(share);
        }
        if self.budget.steps_back == 0 && self.back == 0 {
            let now = setting.store_at(now, 0);
            self.store.iter_mut().chain(&mut self.replica).for_each(|store| past(store, now));
        }
        self.orphans.sort_unstable();
        let nodes = &self.nodes;
        self.network.retain(|message| match message {
            Message::Reply(place, beat, grant) if can_be_over => {
                let now = setting.clocks[*place].read(now);
                nodes[*place].member.clone().apply(beat, grant, now).is_some()
            }
            _ => true,
        });
        self.network.sort_by_key(order);
    }
}

/// What the store remembers at the start.
fn founded(setting: &Setting) -> Option<Members> {
    let (epoch, generation) = match setting.start {
        Start::Empty | Start::Flushed => return None,
        Start::Founded => (1, GENERATIONS),
        Start::NewEpoch if setting.mutant == Mutant::EpochReused => (1, 0),
        Start::NewEpoch => (2, 0),
    };
    Some(Members {
        rules: mutant::rules(setting),
        epoch,
        life: "0".into(),
        quiet_until: setting.store_at(0, 0),
        latest: setting.store_at(0, 0),
        generation,
        limit: setting.limit,
        records: std::collections::BTreeMap::new(),
    })
}

fn started(setting: &Setting, place: usize, starts: u8, limit: u32) -> NodeState {
    let name = ["a", "b", "c"][place];
    let Ok(node) = Node::new(name, u64::from(starts)) else {
        unreachable!("a letter is a name");
    };
    let mut rules = setting.member;
    rules.fence &= setting.mutant != Mutant::NoFence;
    NodeState {
        member: Member::new(node, rules),
        word: Word::new(limit).with_share(0),
        work: Vec::new(),
        starts,
        has_left: false,
        beats: setting.budget.beats[place],
        reported: 0,
    }
}

/// Instants that have passed are all the same, unless the clock can step back.
fn past(members: &mut Arc<Members>, now: Micros) {
    let is_over = |at: Micros| at <= now && at > Micros::ZERO;
    let ends = |record: &Record| is_over(record.live_until) || is_over(record.kept_until);
    let is_any = is_over(members.quiet_until) || members.records.values().any(ends);
    if members.latest == now && !is_any {
        return;
    }
    let members = Arc::make_mut(members);
    let over = |at: &mut Micros| *at = if *at <= now { Micros::ZERO } else { *at };
    members.latest = now;
    over(&mut members.quiet_until);
    for record in members.records.values_mut() {
        over(&mut record.live_until);
        over(&mut record.kept_until);
    }
}

fn shares(members: &Members) -> u64 {
    members.records.values().map(|record| u64::from(record.share)).sum()
}
