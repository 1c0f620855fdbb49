//! Random fleets: who says what when, and what the pure step answers.

use std::collections::HashMap;

use admittance::concurrency::{
    Aggregate, FleetRules, Grant, Leave, Members, Node, PERMITS_MAX, Report, Split, Unheard,
};
use admittance::{EXACT_MAX, Micros, REMEMBERED, Span};
use fastrand::Rng;

use crate::timeline::{HORIZON, spread};

/// What happens next, and what must be answered.
pub(super) enum Step {
    Beat {
        fleet: String,
        rules: FleetRules,
        report: Report,
        at: Micros,
        expected: Result<Grant, Unheard>,
    },
    Leave {
        fleet: String,
        leave: Leave,
        at: Micros,
    },
    /// From now on the store is in this life.
    Life(&'static str),
}

/// One timeline of one or two fleets.
pub(super) struct Drawn {
    fleets: Vec<Fleet>,
    now: Micros,
    life: &'static str,
}

struct Fleet {
    name: String,
    rules: FleetRules,
    nodes: Vec<Node>,
    members: Option<Members>,
    /// What each node was last told, and the sequence it last used.
    told: HashMap<Node, (u64, Option<Grant>)>,
    /// The instant of the last beat that was taken.
    taken_at: Micros,
    limits_max: u32,
}

impl Drawn {
    pub(super) fn new(rng: &mut Rng, timeline: usize) -> Self {
        let count = rng.usize(1..=2);
        let mut names: Vec<usize> = (0..NAMES.len()).collect();
        rng.shuffle(&mut names);
        let fleet = |rng: &mut Rng, place: usize| Fleet {
            // What is alike stays alike: the number stands where separators are looked for.
            name: NAMES[names[place]].replace('#', &timeline.to_string()),
            rules: rules(rng),
            nodes: nodes(rng),
            members: None,
            told: HashMap::new(),
            taken_at: Micros::ZERO,
            limits_max: if rng.u8(..4) == 0 { u32::MAX } else { rng.u32(1..200) },
        };
        let fleets = (0..count).map(|place| fleet(rng, place)).collect();
        let now = match rng.u8(..8) {
            0 => 0,
            1 => HORIZON - rng.u64(0..=10_000_000),
            _ => 1_700_000_000_123_456 + rng.u64(0..=1_000_000_000),
        };
        Self { fleets, now: Micros::saturating_from_epoch_us(now), life: LIVES[0] }
    }

    pub(super) fn next(&mut self, rng: &mut Rng, has_lives: bool) -> Step {
        if has_lives && rng.u8(..40) == 0 {
            self.life = LIVES[rng.usize(..LIVES.len())];
            return Step::Life(self.life);
        }
        let place = rng.usize(..self.fleets.len());
        let fleet = &mut self.fleets[place];
        self.now = fleet.moved(rng, self.now);
        // A coordinator may forget after a day; until then it must not.
        let memorable = |fleet: &Fleet| fleet.taken_at + REMEMBERED - Span::TICK;
        let heard = self.fleets.iter().filter(|fleet| fleet.members.is_some());
        let latest = heard.map(memorable).min().unwrap_or(Micros::HORIZON);
        self.now = self.now.min(latest).min(Micros::HORIZON);
        let (now, life) = (self.now, self.life);
        let fleet = &mut self.fleets[place];
        let node = fleet.nodes[rng.usize(..fleet.nodes.len())].clone();
        if rng.u8(..10) == 0 {
            fleet.leave(rng, node, now)
        } else {
            fleet.beat(rng, node, now, life)
        }
    }
}

impl Fleet {
    /// The next instant: often the same, often where something of this fleet ends.
    fn moved(&self, rng: &mut Rng, now: Micros) -> Micros {
        let spans = [self.rules.ttl, self.rules.max_hold];
        let span = spans[rng.usize(..spans.len())].us().min(EXACT_MAX);
        let us = now.epoch_us();
        let to = match rng.u8(..32) {
            0..=7 => us,
            8..=11 => us + rng.u64(1..5),
            12..=20 => {
                let end = self.end(rng).unwrap_or(now).epoch_us();
                match rng.u8(..4) {
                    0 => end,
                    1 => end.saturating_sub(1),
                    2 => end + 1,
                    _ => end.max(us),
                }
            }
            21..=23 => us + rng.u64(0..=span) / 2,
            24 => us + span,
            25 => us + rng.u64(0..=2 * REMEMBERED.us()),
            26..=28 => us.saturating_sub(rng.u64(1..5)),
            29 => us.saturating_sub(rng.u64(0..=span)),
            30 => us.saturating_sub(rng.u64(0..=REMEMBERED.us())),
            _ if rng.u8(..8) == 0 => 0,
            _ => us,
        };
        Micros::saturating_from_epoch_us(to)
    }

    /// The end of something that is remembered.
    fn end(&self, rng: &mut Rng) -> Option<Micros> {
        let members = self.members.as_ref()?;
        let mut ends = vec![members.quiet_until];
        ends.extend(members.records.values().flat_map(|r| [r.live_until, r.kept_until]));
        Some(ends[rng.usize(..ends.len())])
    }

    fn sequence(&mut self, rng: &mut Rng, node: &Node) -> u64 {
        let (last, _) = self.told.entry(node.clone()).or_insert((0, None));
        match rng.u8(..16) {
            0 => *last,
            1 => rng.u64(0..=*last),
            2 => {
                *last += rng.u64(1..1_000);
                *last
            }
            _ => {
                *last += 1;
                *last
            }
        }
    }

    fn leave(&mut self, rng: &mut Rng, node: Node, at: Micros) -> Step {
        let sequence = self.sequence(rng, &node);
        let in_flight = if rng.bool() { 0 } else { permits(rng, self.limits_max) };
        let leave = Leave { node, sequence, in_flight };
        self.members = self.members.as_ref().map(|members| members.leave(&leave, at));
        Step::Leave { fleet: self.name.clone(), leave, at }
    }

    fn beat(&mut self, rng: &mut Rng, node: Node, at: Micros, life: &str) -> Step {
        let rules = if rng.u8(..24) == 0 { self::rules(rng) } else { self.rules };
        let report = self.report(rng, node);
        let stepped = Members::beat(self.members.as_ref(), &rules, &report, life, at);
        let expected = match stepped {
            Ok((members, grant)) => {
                if grant.lifetime.is_some() {
                    // A fleet that nobody is remembered of goes on by the rules that it is brought.
                    (self.taken_at, self.rules) = (at, members.rules);
                    if let Some((_, told)) = self.told.get_mut(&report.node)
                        && rng.u8(..8) > 0
                    {
                        *told = Some(grant);
                    }
                }
                self.members = Some(members);
                Ok(grant)
            }
            Err(unheard) => Err(unheard),
        };
        Step::Beat { fleet: self.name.clone(), rules, report, at, expected }
    }

    fn report(&mut self, rng: &mut Rng, node: Node) -> Report {
        let sequence = self.sequence(rng, &node);
        let told = self.told.get(&node).and_then(|(_, grant)| *grant);
        let share = told.map_or(0, |grant| grant.share);
        let in_flight = match rng.u8(..8) {
            0..=1 => 0,
            2..=4 => rng.u32(0..=share),
            5..=6 => share,
            _ => permits(rng, self.limits_max),
        };
        let (epoch, applied) = told.map_or((0, 0), |grant| (grant.epoch, grant.generation));
        let (epoch, applied) = match rng.u8(..16) {
            0 => (0, applied),
            1 => (rng.u64(1..=EXACT_MAX), applied),
            2..=3 => (epoch, rng.u64(0..=applied)),
            4 => (epoch, applied + rng.u64(1..4)),
            5 => (0, 0),
            _ => (epoch, applied),
        };
        Report {
            node,
            sequence,
            local_limit: permits(rng, self.limits_max),
            is_sampled: rng.u8(..4) > 0,
            in_flight,
            epoch,
            applied,
            new_epoch: spread(rng, EXACT_MAX),
        }
    }
}

/// A number of permits: mostly a few, sometimes the most, sometimes more than can be.
fn permits(rng: &mut Rng, most: u32) -> u32 {
    match rng.u8(..16) {
        0 => 0,
        1 => PERMITS_MAX,
        2 => u32::MAX,
        _ => rng.u32(0..=most),
    }
}

fn rules(rng: &mut Rng) -> FleetRules {
    let span = |rng: &mut Rng| match rng.u8(..16) {
        0 => Span::ZERO,
        1 => Span::from_us(spread(rng, EXACT_MAX)),
        2..=4 => Span::from_us(rng.u64(1..5)),
        _ => Span::from_us(rng.u64(1..10_000_000)),
    };
    FleetRules {
        aggregate: if rng.bool() { Aggregate::Median } else { Aggregate::Min },
        split: if rng.bool() { Split::Equal } else { Split::Demand },
        handoff: rng.u8(..4) > 0,
        ttl: span(rng),
        max_hold: span(rng),
    }
}

/// A few nodes, in several incarnations; sometimes many.
fn nodes(rng: &mut Rng) -> Vec<Node> {
    let count = if rng.u8(..16) == 0 { rng.usize(20..60) } else { rng.usize(1..7) };
    let node = |rng: &mut Rng| {
        let numbered;
        let id = match rng.usize(..IDS.len() + 2) {
            place if place < IDS.len() => IDS[place],
            _ => {
                numbered = format!("node {}", rng.u8(..40));
                &numbered
            }
        };
        let incarnation = match rng.u8(..8) {
            0 => EXACT_MAX,
            1..=3 => rng.u64(0..=EXACT_MAX),
            _ => rng.u64(8..12),
        };
        Node::new(id, incarnation).expect("a good name")
    };
    (0..count).map(|_| node(rng)).collect()
}

/// Names in an order that a locale would change, some the beginning of others.
const IDS: [&str; 13] = [
    "a",
    "B",
    "aa",
    "ab",
    "a b",
    "a-",
    "a:1",
    "a:10",
    "z",
    "\u{e9}t\u{e9}",
    "\u{10348}",
    "\u{ffff}",
    "one that is a good deal longer than all the others, as generated names often are",
];

/// Names of fleets that are not the same, whatever is left out, cut off or put in braces.
const NAMES: [&str; 10] = [
    "fleet#", "Fleet#", "fleet#:", ":fleet#", "{fleet#}", "{fleet#", "fleet#}", "fleet# ", "}#",
    "%7B#",
];

/// Lives that a store can begin.
pub(super) const LIVES: [&str; 3] = ["process", "second", "third"];
