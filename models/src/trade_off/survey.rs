//! Protocols without messages, every one of them against every demand.

use std::fmt::Debug;

use crate::{Report, Rule, Verdict};

/// Decides what each node admits.
pub trait Protocol {
    /// How many of its requests `node` admits, where node i is asked for `demand[i]`. A protocol
    /// without messages reads `demand[node]` only.
    fn admits(&self, node: usize, demand: &[u64]) -> u64;
}

/// Each node has a budget of its own and admits against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budgets(pub Vec<u64>);

impl Protocol for Budgets {
    fn admits(&self, node: usize, demand: &[u64]) -> u64 {
        demand[node].min(self.0[node])
    }
}

/// Each node decides its requests by a row of its own: bit k of the row says whether the node
/// admits its request k. That is every deterministic protocol without messages, and every draw of
/// one that throws dice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRules(pub Vec<u32>);

impl Protocol for LocalRules {
    fn admits(&self, node: usize, demand: &[u64]) -> u64 {
        let asked = (1_u32 << demand[node]) - 1;
        u64::from((self.0[node] & asked).count_ones())
    }
}

/// How badly a protocol can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worst {
    /// The most admitted above the limit.
    pub overshoot: u64,
    /// The most not admitted of what could have been.
    pub under_use: u64,
    /// How many demands were tried.
    pub demands: usize,
}

impl Worst {
    /// Overshoot and `nodes` times under-use.
    #[must_use]
    pub const fn weighed(&self, nodes: u64) -> u64 {
        self.overshoot + nodes * self.under_use
    }
}

/// The worst of `protocol` over every demand of 0 to `limit` at each of `nodes` nodes. More demand
/// can only make it worse, and for budgets of at most the limit it does not.
pub fn worst(protocol: &impl Protocol, nodes: u64, limit: u64) -> Worst {
    let mut worst = Worst { overshoot: 0, under_use: 0, demands: 0 };
    let mut demands = Tuples::new(nodes, limit);
    while let Some(demand) = demands.next() {
        let asked: u64 = demand.iter().sum();
        let admitted = (0..demand.len()).map(|node| protocol.admits(node, demand)).sum();
        worst.overshoot = worst.overshoot.max(u64::saturating_sub(admitted, limit));
        worst.under_use = worst.under_use.max(asked.min(limit).saturating_sub(admitted));
        worst.demands += 1;
    }
    worst
}

/// Whether no node's answer depends on what another one is asked.
pub fn is_local(protocol: &impl Protocol, nodes: u64, limit: u64) -> bool {
    let mut demands = Tuples::new(nodes, limit);
    while let Some(demand) = demands.next() {
        for node in 0..demand.len() {
            let mut alone = vec![0; demand.len()];
            alone[node] = demand[node];
            if protocol.admits(node, demand) != protocol.admits(node, &alone) {
                return false;
            }
        }
    }
    true
}

/// What overshoot and `nodes` times under-use come to at least, without messages.
#[must_use]
pub const fn zero_coordination(nodes: u64, limit: u64) -> u64 {
    (nodes - 1) * limit
}

/// Every allocation of budgets of 0 to `limit`.
pub fn every_budgets(nodes: u64, limit: u64) -> impl Iterator<Item = Budgets> {
    let mut tuples = Tuples::new(nodes, limit);
    std::iter::from_fn(move || tuples.next().map(|budgets| Budgets(budgets.to_vec())))
}

/// Every way in which each node can decide its first `limit` requests.
///
/// # Panics
/// If a row has more than 16 requests: nobody could wait for them all.
pub fn every_local_rules(nodes: u64, limit: u64) -> impl Iterator<Item = LocalRules> {
    assert!(limit <= ROW_MAX, "rows of {limit} requests; the most is {ROW_MAX}");
    let mut tuples = Tuples::new(nodes, (1 << limit) - 1);
    let row = |bits: &u64| u32::try_from(*bits).expect("a row is shorter than 32 requests");
    std::iter::from_fn(move || tuples.next().map(|rows| LocalRules(rows.iter().map(row).collect())))
}

/// Holds each of `protocols` against `bound`, which is [`zero_coordination`] unless a test claims
/// something else.
pub fn inequality<P: Protocol + Debug>(
    subject: impl Into<String>,
    nodes: u64,
    limit: u64,
    protocols: impl Iterator<Item = P>,
    bound: fn(u64, u64) -> u64,
) -> Report {
    let mut survey = Survey::default();
    for protocol in protocols {
        let worst = worst(&protocol, nodes, limit);
        survey.note(&protocol, worst, worst.weighed(nodes), bound(nodes, limit));
    }
    survey.report(subject.into())
}

/// Every allocation of local budgets: the inequality, which of them meet it, and the two ends.
/// `spend` makes a protocol of an allocation: the allocation itself, unless a test breaks it.
pub fn local_budgets<P: Protocol>(nodes: u64, limit: u64, spend: impl Fn(&Budgets) -> P) -> Report {
    let bound = zero_coordination(nodes, limit);
    let mut survey = Survey::default();
    let (mut uniform, mut interpolation, mut exact_least) = (None, None, u64::MAX);
    for budgets in every_budgets(nodes, limit) {
        let worst = worst(&spend(&budgets), nodes, limit);
        let weighed = worst.weighed(nodes);
        survey.note(&budgets, worst, weighed, bound);
        let each = budgets.0[0];
        let same = budgets.0.iter().all(|budget| *budget == each) && nodes * each >= limit;
        if same != (weighed == bound) {
            uniform.get_or_insert_with(|| format!("{budgets:?}: {worst:?}"));
        }
        let expected = (nodes * each).checked_sub(limit).map(|over| (over, limit - each));
        if same && Some((worst.overshoot, worst.under_use)) != expected {
            interpolation.get_or_insert_with(|| format!("{budgets:?}: {worst:?}"));
        }
        if worst.overshoot == 0 {
            exact_least = exact_least.min(weighed);
        }
    }
    let exact = (exact_least != bound + limit % nodes)
        .then(|| format!("the least is {exact_least}, where the bound is {bound}"));
    let mut report = survey.report(format!("local budgets: nodes {nodes}, limit {limit}"));
    report.verdicts.extend([
        always(UNIFORM, uniform),
        always(INTERPOLATION, interpolation),
        always(EXACT, exact),
    ]);
    report
}

/// What was found so far.
#[derive(Default)]
struct Survey {
    states: usize,
    overshoot: u64,
    under_use: u64,
    counterexample: Option<String>,
    met_by: Option<String>,
}

impl Survey {
    fn note(&mut self, protocol: &impl Debug, worst: Worst, weighed: u64, bound: u64) {
        self.states += worst.demands;
        self.overshoot = self.overshoot.max(worst.overshoot);
        self.under_use = self.under_use.max(worst.under_use);
        if weighed < bound {
            let found = || format!("{protocol:?}: {worst:?}, together {weighed}, not {bound}");
            self.counterexample.get_or_insert_with(found);
        }
        if weighed == bound {
            self.met_by.get_or_insert_with(|| format!("{protocol:?}: {worst:?}"));
        }
    }

    fn report(self, subject: String) -> Report {
        let met = Verdict {
            property: MET.to_owned(),
            rule: Rule::Sometimes,
            held: self.met_by.is_some(),
            steps: self.met_by,
        };
        Report {
            subject,
            states: self.states,
            complete: true,
            peaks: vec![("overshoot", self.overshoot), ("under-use", self.under_use)],
            verdicts: vec![always(INEQUALITY, self.counterexample), met],
        }
    }
}

fn always(property: &str, counterexample: Option<String>) -> Verdict {
    Verdict {
        property: property.to_owned(),
        rule: Rule::Always,
        held: counterexample.is_none(),
        steps: counterexample,
    }
}

/// Every tuple of numbers from 0 to `max`, counted up like digits.
struct Tuples {
    digits: Vec<u64>,
    max: u64,
    started: bool,
}

impl Tuples {
    fn new(length: u64, max: u64) -> Self {
        Self { digits: (0..length).map(|_| 0).collect(), max, started: false }
    }

    fn next(&mut self) -> Option<&[u64]> {
        if self.started {
            let below = self.digits.iter().position(|digit| *digit < self.max)?;
            self.digits[below] += 1;
            self.digits[..below].fill(0);
        }
        self.started = true;
        Some(&self.digits)
    }
}

/// The trade-off.
pub const INEQUALITY: &str = "overshoot + nodes * under-use >= (nodes - 1) * limit";

/// That it claims no more than it must.
pub const MET: &str = "the two sides are equal";

/// Who meets it.
pub const UNIFORM: &str =
    "equal for the same budget a everywhere, nodes * a >= limit; for no other";

/// What lies between the two ends.
pub const INTERPOLATION: &str =
    "a budget a everywhere: overshoot nodes * a - limit, under-use limit - a";

/// What no overshoot costs, if nodes do not divide the limit.
pub const EXACT: &str = "without overshoot the least is (nodes - 1) * limit + limit mod nodes";

/// The most requests that a row of decisions is enumerated for.
const ROW_MAX: u64 = 16;
