//! The `joint` block: what a request must be worth, at prices that are given or solved for.
//!
//! Numbers are kept as they were typed, so that the resolved form has the same; they become floats
//! once, on their way to the solver, whose prices are estimates.

mod typed;

use std::fmt;

use admittance::learn::LimitAlgorithm;
use admittance::learn::price::{Budgets, Kind, Prices, RefinementRules, solve};
use admittance::{Cadence, Decimal, EXACT_MAX, Span, TokenBucket};

use self::typed::Typed;
pub(super) use self::typed::{BUDGET_KEYS, Block, KEYS, KIND_KEYS, REFINE_KEYS};
use super::admission::Axes;
use super::policy::{Raw, Reader};
use super::problem::{Problem, quoted};
use super::rule::{Length, Rule};
use super::{CostConfig, GateConfig};

/// What a request must be worth for what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct JointConfig {
    /// The prices to begin with.
    pub prior: Prices,
    /// How they become better ones, if they may.
    pub refine: Option<RefinementRules>,
    /// What the two were made of.
    pub terms: JointTerms,
}

/// What a `joint` block says, with nothing left to a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointTerms {
    /// Where the prices come from.
    pub prices: JointPrices,
    /// What may be spent, if the prices or their refinement depend on it.
    pub budgets: Option<JointBudgets>,
    /// How long requests are recorded before prices are refined, if they are.
    pub window: Option<Span>,
}

/// Where prices come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JointPrices {
    /// Somebody chose them.
    Given {
        /// Of one admit.
        rate: Decimal,
        /// Of one unit of cost.
        cost: Decimal,
        /// Of one millisecond with a permit.
        concurrency: Decimal,
    },
    /// They are those that earn most of what is expected.
    Solved(Vec<JointKind>),
}

/// Requests that are expected, worth the same and taking the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointKind {
    /// How many of them in a period.
    pub weight: Decimal,
    /// What each is worth.
    pub value: Decimal,
    /// The units each costs.
    pub cost: u64,
    /// How long each holds a permit.
    pub hold: Span,
}

/// What may be spent in a period, on each axis that the policy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointBudgets {
    /// The time they are for.
    pub period: Span,
    /// Admits.
    pub rate: Option<Decimal>,
    /// Units of cost.
    pub cost: Option<Decimal>,
    /// Permits at once.
    pub concurrency: Option<u64>,
}

impl JointBudgets {
    /// As the solver takes them.
    fn amounts(&self) -> Budgets {
        let (rate, cost) = (self.rate.map(number), self.cost.map(number));
        let budgets = Budgets { rate, cost, concurrency: None };
        match self.concurrency {
            Some(limit) => budgets.with_concurrency(limit, self.period.ms_ceil()),
            None => budgets,
        }
    }
}

impl JointKind {
    fn kind(&self) -> Kind {
        let hold = Length(self.hold).to_string();
        let hold = hold.trim_end_matches("ms").parse().expect("a length is a number");
        let (weight, value) = (number(self.weight), number(self.value));
        Kind { weight, value, cost: self.cost, hold }
    }
}

fn number(decimal: Decimal) -> f64 {
    decimal.to_string().parse().expect("a decimal is a number")
}

impl Reader<'_, '_> {
    /// The prices of a policy with these axes, if it has any that can be used.
    pub(super) fn joint(&mut self, axes: &Axes, raw: &Raw<'_>) -> Option<JointConfig> {
        let block = raw.joint.value()?;
        let has_gate = !raw.concurrency.is_absent() || !raw.distributed.is_absent();
        let has = [axes.rate.is_some(), !raw.cost.is_absent(), has_gate];
        if !has.contains(&true) {
            let message = "has nothing to price; add a strategy, concurrency or cost";
            self.joint_report(block, "", message.into());
            return None;
        }
        let found_before = self.problems.len();
        self.idle_terms(block, has);
        let prices = self.priced(block, has);
        let is_refined = block.has("refine");
        if is_refined && block.window.is_absent() {
            let message = "missing; refine needs it, e.g. window: 1m".to_owned();
            self.joint_report(block, "refine.window", message);
        }
        let needs = is_refined || block.has("kinds");
        let budgets = if needs { self.joint_budgets(block, axes, has) } else { None };
        if self.problems.len() > found_before || budgets.is_none() && needs {
            return None;
        }
        let terms = JointTerms { prices: prices?, budgets, window: block.window.value().copied() };
        self.made(block, terms)
    }

    /// Prices and refinement from what is said.
    fn made(&mut self, block: &Block, terms: JointTerms) -> Option<JointConfig> {
        let amounts = terms.budgets.map(|budgets| budgets.amounts()).unwrap_or_default();
        let prior = match &terms.prices {
            JointPrices::Given { rate, cost, concurrency } => {
                Prices::given(number(*rate), number(*cost), number(*concurrency))
            }
            JointPrices::Solved(kinds) => {
                let kinds: Vec<Kind> = kinds.iter().map(JointKind::kind).collect();
                Ok(solve(&kinds, amounts).advised)
            }
        };
        let rules = terms.budgets.zip(terms.window);
        let rules = rules
            .map(|(budgets, window)| RefinementRules::new(amounts, budgets.period, window))
            .transpose();
        match (prior, rules) {
            (Ok(prior), Ok(refine)) => {
                if prior == Prices::ZERO && refine.is_none() {
                    let path = format!("{}.{BLOCK}", self.path);
                    let message = "has no effect: every price is 0".into();
                    self.warnings.push(Problem { place: block.place, path, message });
                }
                Some(JointConfig { prior, refine, terms })
            }
            (Err(invalid), _) | (_, Err(invalid)) => {
                self.joint_report(block, "", invalid.to_string());
                None
            }
        }
    }

    /// Reports terms that would not do what they say.
    fn idle_terms(&mut self, block: &Block, has: [bool; 3]) {
        if block.has("prices") == block.has("kinds") {
            let message = match block.has("prices") {
                true => "does not go with prices, which would be solved for; keep one",
                false => {
                    "missing; write prices that are given or kinds to solve for them, \
                          e.g. kinds: [{ weight: 60, value: 5, cost: 300 }]"
                }
            };
            self.joint_report(block, "kinds", message.into());
        }
        if block.has("budgets") && !block.has("kinds") && !block.has("refine") {
            let message = "has no use beside given prices; add refine or remove it";
            self.joint_report(block, "budgets", message.into());
        }
        for (axis, has) in AXES.iter().zip(has) {
            let key = format!("budgets.{axis}");
            if !has && block.has(&key) {
                let message = format!("this policy does not limit {axis}; add it or remove this");
                self.joint_report(block, &key, message);
            }
        }
    }

    fn priced(&mut self, block: &Block, has: [bool; 3]) -> Option<JointPrices> {
        if block.has("kinds") {
            let kinds = block.kinds.iter().map(|typed| self.expected(typed, has[1]));
            let kinds: Vec<_> = kinds.collect();
            return kinds.into_iter().collect::<Option<_>>().map(JointPrices::Solved);
        }
        for ((axis, has), price) in AXES.iter().zip(has).zip(&block.prices) {
            if !has && price.value().is_some_and(|price| !price.is_zero()) {
                let message = format!("this policy does not limit {axis}; add it or remove this");
                self.joint_report(block, &format!("prices.{axis}"), message);
            }
        }
        let zero = Decimal::whole(0)?;
        let [rate, cost, concurrency] =
            block.prices.each_ref().map(|price| price.value().copied().unwrap_or(zero));
        Some(JointPrices::Given { rate, cost, concurrency })
    }

    fn expected(&mut self, typed: &Typed, has_cost: bool) -> Option<JointKind> {
        let mut need = |is_missing: bool, key: &str, example: &str| {
            if is_missing {
                let message = format!("missing; a kind needs it, e.g. {key}: {example}");
                self.report(typed.place, &format!("{}.{key}", typed.path), message);
            }
        };
        need(typed.weight.is_absent(), "weight", "60");
        need(typed.cost.is_absent() && has_cost, "cost", "300");
        Some(JointKind {
            weight: *typed.weight.value()?,
            value: typed.value.value().copied().or(Decimal::whole(1))?,
            cost: typed.cost.value().copied().unwrap_or(0),
            hold: typed.hold.value().copied().unwrap_or_default(),
        })
    }

    /// What may be spent: what is said, or what the policy's own limits come to.
    fn joint_budgets(
        &mut self,
        block: &Block,
        axes: &Axes,
        has: [bool; 3],
    ) -> Option<JointBudgets> {
        let rate = axes.rate.as_ref().and_then(|rate| per_window(&rate.rule));
        let costs = axes.cost.as_ref().map(spent_per_window);
        let is_unknown = has[1] && costs.is_none() || has[2] && axes.concurrency.is_none();
        if is_unknown {
            // An axis is there and wrong, which has been said.
            return None;
        }
        let only = costs.as_deref().filter(|costs| costs.len() == 1).map(|costs| costs[0].1);
        let own = rate.map(|(_, window)| window).or(only);
        let Some(period) = block.period.value().copied().or(own) else {
            let message = "missing; the weights of kinds and the budgets are for a period, e.g. \
                           period: 1m";
            self.joint_report(block, "budgets.period", message.into());
            return None;
        };
        if let Err(message) = in_range(period, &Length(period).to_string()) {
            self.joint_report(block, "budgets.period", message);
            return None;
        }
        let scaled = |(limit, window)| in_period(limit, window, period);
        let own_rate = rate.and_then(scaled);
        // Of several windows the one that allows least in the period binds.
        let least = costs.into_iter().flatten().min_by_key(|&(limit, window)| {
            in_period_nano(limit, window, period).unwrap_or(u128::MAX)
        });
        let own_cost = least.and_then(scaled);
        let rate = self.amount(block, "rate", has[0], (block.rate.value(), own_rate), period);
        let cost = self.amount(block, "cost", has[1], (block.cost.value(), own_cost), period);
        let permits = axes.concurrency.as_ref().map(permits);
        let concurrency = block.concurrency.value().copied().or(permits).filter(|_| has[2]);
        Some(JointBudgets { period, rate, cost, concurrency })
    }

    fn amount(
        &mut self,
        block: &Block,
        axis: &str,
        has: bool,
        (given, own): (Option<&Decimal>, Option<Decimal>),
        period: Span,
    ) -> Option<Decimal> {
        let amount = given.copied().or(own).filter(|amount| !amount.is_zero());
        if has && amount.is_none() {
            let message = format!(
                "what the policy's own limit comes to in {} is no number that can be kept; \
                 write it, or another period",
                Length(period)
            );
            self.joint_report(block, &format!("budgets.{axis}"), message);
        }
        amount.filter(|_| has)
    }

    fn joint_report(&mut self, block: &Block, key: &str, message: String) {
        let found = block.keys.iter().find(|(given, _)| given == key).map(|(_, place)| *place);
        let place = found.or(block.place).unwrap_or(self.name.place);
        let path = if key.is_empty() { BLOCK.to_owned() } else { format!("{BLOCK}.{key}") };
        self.report(place, &path, message);
    }
}

/// What a rule admits, and in how long.
fn per_window(rule: &Rule) -> Option<(Decimal, Span)> {
    let (limit, window) = match *rule {
        Rule::TokenBucket(TokenBucket { refill_per_sec, .. }) => {
            return Some((refill_per_sec, Span::from_secs(1)));
        }
        Rule::Gcra(gcra) => (gcra.limit, gcra.period),
        Rule::FixedWindow { limit, window }
        | Rule::SlidingWindow { limit, window, .. }
        | Rule::SlidingWindowLog { limit, window }
        | Rule::RollingQuota { limit, window, .. } => (limit, window),
        Rule::Quota { limit, cadence } => (limit, length_of(cadence)),
    };
    Decimal::whole(limit).map(|limit| (limit, window))
}

fn spent_per_window(cost: &CostConfig) -> Vec<(Decimal, Span)> {
    let budgets = cost.budgets.iter().filter_map(|(_, budget)| {
        Decimal::whole(budget.limit()).map(|limit| (limit, length_of(budget.cadence())))
    });
    budgets.collect()
}

/// How many at once. A limit that is inferred is taken for the largest it may become: less would
/// refuse what there is room for.
fn permits(gate: &GateConfig) -> u64 {
    u64::from(match gate.limit.algorithm {
        LimitAlgorithm::Fixed => gate.limit.initial,
        _ => gate.limit.max,
    })
}

/// How long a window is. Months are taken for thirty days: prices are estimates.
fn length_of(cadence: Cadence) -> Span {
    match cadence {
        Cadence::Fixed { period, .. } => period,
        Cadence::Week { .. } => Span::from_secs(7 * DAY),
        Cadence::Month { .. } => Span::from_secs(30 * DAY),
        _ => Span::from_secs(DAY),
    }
}

/// What a limit per window comes to in a period, rounded down to what a decimal holds.
fn in_period(limit: Decimal, window: Span, period: Span) -> Option<Decimal> {
    if window == period {
        return Some(limit);
    }
    let (mut units, mut places) = (in_period_nano(limit, window, period)?, 9_usize);
    while units > u128::from(EXACT_MAX) {
        units /= 10;
        places = places.checked_sub(1)?;
    }
    let digits = format!("{units:0>width$}", width = places + 1);
    let (whole, parts) = digits.split_at(digits.len() - places);
    match places {
        0 => whole.parse().ok(),
        _ => format!("{whole}.{parts}").parse().ok(),
    }
}

/// The same in units of 10⁻⁹, if they can be counted.
fn in_period_nano(limit: Decimal, window: Span, period: Span) -> Option<u128> {
    // A decimal has at most nine places; where so many do not fit, the whole part will do.
    let nano = limit.times(NANO).map_or(u128::from(limit.floor()) * u128::from(NANO), u128::from);
    nano.checked_mul(u128::from(period.us()))?.checked_div(u128::from(window.us()))
}

fn in_range(span: Span, text: &str) -> Result<Span, String> {
    match (PERIOD_MIN..=PERIOD_MAX).contains(&span) {
        true => Ok(span),
        false => Err(format!("{} is out of range; write one from 1ms to 366d", quoted(text))),
    }
}

/// The block as a policy file writes it, below the policy's name.
impl fmt::Display for JointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    {BLOCK}:")?;
        match &self.terms.prices {
            JointPrices::Given { rate, cost, concurrency } => {
                write!(f, "      prices: {{ rate: {rate}, cost: {cost}")?;
                writeln!(f, ", concurrency: {concurrency} }}")?;
            }
            JointPrices::Solved(kinds) => {
                let (rate, cost) = (self.prior.rate(), self.prior.cost());
                let concurrency = self.prior.concurrency();
                writeln!(
                    f,
                    "      kinds: # prices: rate {rate}, cost {cost}, concurrency {concurrency}"
                )?;
                for JointKind { weight, value, cost, hold } in kinds {
                    write!(f, "        - {{ weight: {weight}, value: {value}, cost: {cost}")?;
                    writeln!(f, ", hold: {} }}", Length(*hold))?;
                }
            }
        }
        if let Some(JointBudgets { period, rate, cost, concurrency }) = self.terms.budgets {
            write!(f, "      budgets: {{ period: {}", Length(period))?;
            if let Some(rate) = rate {
                write!(f, ", rate: {rate}")?;
            }
            if let Some(cost) = cost {
                write!(f, ", cost: {cost}")?;
            }
            if let Some(concurrency) = concurrency {
                write!(f, ", concurrency: {concurrency}")?;
            }
            writeln!(f, " }}")?;
        }
        match self.terms.window {
            Some(window) => writeln!(f, "      refine: {{ window: {} }}", Length(window)),
            None => Ok(()),
        }
    }
}

pub(super) const BLOCK: &str = "joint";
pub(super) const AXES: &[&str] = &["rate", "cost", "concurrency"];
const PERIOD_MIN: Span = Span::from_ms(1);
const PERIOD_MAX: Span = Span::from_secs(366 * DAY);
const DAY: u64 = 86_400;
const NANO: u64 = 1_000_000_000;
