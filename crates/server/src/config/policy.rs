//! One policy: from what was typed to what will run.

use admittance::{
    Atomicity, Builtin, Cadence, Decimal, EXACT_MAX, Gcra, Invalid, OnFull, Parameter,
    SlidingWindow, Span, TokenBucket, Weekday,
};

use super::node::{Entry, Node, Value};
use super::problem::{Place, Problem, nearest, quoted};
use super::rule::Rule;
use super::{
    Defaults, Fail, LoadConfig, PolicyConfig, ShadowConfig, budget, concurrency, escrow, joint,
    lease, load, scalar, shadow, shared,
};

/// Reads one policy. What is wrong is added to `problems`, what is odd to `warnings`.
pub(crate) fn read(
    name: &Entry,
    path: &str,
    defaults: Defaults,
    (problems, warnings): (&mut Vec<Problem>, &mut Vec<Problem>),
) -> Option<PolicyConfig> {
    let found_before = problems.len();
    let mut reader = Reader { name, path, problems, warnings, misspelt: Vec::new() };
    let raw = reader.raw()?;
    let policy = if !raw.fair_escrow.is_absent() {
        reader.escrow(defaults, &raw)
    } else if !raw.token_budget.is_absent() || !raw.fleet_budget.is_absent() {
        reader.budget(defaults, &raw)
    } else {
        reader.admission(defaults, &raw)
    };
    policy.filter(|_| problems.len() == found_before)
}

pub(super) struct Reader<'n, 'p> {
    pub(super) name: &'n Entry,
    pub(super) path: &'p str,
    pub(super) problems: &'p mut Vec<Problem>,
    pub(super) warnings: &'p mut Vec<Problem>,
    /// Keys that unknown ones probably mean, which are then not missing as well.
    misspelt: Vec<&'static str>,
}

/// What was typed, each value read by itself.
#[derive(Default)]
pub(super) struct Raw<'a> {
    pub(super) keys: Vec<(&'a str, Place)>,
    strategy: Slot<StrategyName>,
    limit: Slot<u64>,
    period: Slot<Span>,
    window_ms: Slot<Span>,
    period_ms: Slot<Span>,
    burst: Slot<u64>,
    capacity: Slot<Decimal>,
    refill_per_sec: Slot<Decimal>,
    buckets: Slot<u64>,
    reset_cadence: Slot<Kind>,
    anchor: Slot<i64>,
    offset_minutes: Slot<i64>,
    week_starts_on: Slot<Weekday>,
    pub(super) prefix: Slot<String>,
    pub(super) max_keys: Slot<u64>,
    pub(super) on_full: Slot<OnFull>,
    pub(super) fair_escrow: Slot<escrow::Block>,
    pub(super) two_tier: Slot<lease::Block>,
    pub(super) federated: Slot<lease::Block>,
    pub(super) concurrency: Slot<concurrency::Block>,
    pub(super) distributed: Slot<concurrency::Block>,
    pub(super) token_budget: Slot<budget::Block>,
    pub(super) fleet_budget: Slot<budget::Block>,
    pub(super) cost: Slot<budget::Block>,
    pub(super) joint: Slot<joint::Block>,
    pub(super) atomicity: Slot<Atomicity>,
    pub(super) load: Slot<LoadConfig>,
    pub(super) lease_ttl: Slot<Span>,
    pub(super) fail: Slot<Fail>,
    pub(super) share: Slot<Decimal>,
    pub(super) reserve_local: Slot<bool>,
    pub(super) hash_tag: Slot<String>,
    pub(super) wait_replicas: Slot<u64>,
    pub(super) store_deadline: Slot<Span>,
    pub(super) durable: Slot<bool>,
    pub(super) shadow: Slot<ShadowConfig>,
}

/// A value that may be absent, or there but unusable, which has then been reported.
#[derive(Default)]
pub(super) enum Slot<T> {
    #[default]
    Absent,
    Bad,
    Given(T),
}

impl<T> Slot<T> {
    pub(super) const fn value(&self) -> Option<&T> {
        match self {
            Self::Given(value) => Some(value),
            Self::Absent | Self::Bad => None,
        }
    }

    pub(super) const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StrategyName {
    Is(Kind),
    Quota,
}

/// What a policy's parameters are, once strategy and cadence are known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gcra,
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingWindowLog,
    Month,
    Week,
    Day,
    Fixed,
    Rolling,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "tokenBucket",
            Self::FixedWindow => "fixedWindow",
            Self::SlidingWindow => "slidingWindow",
            Self::SlidingWindowLog => "slidingWindowLog",
            Self::Month => "quota with resetCadence calendar-month",
            Self::Week => "quota with resetCadence calendar-week",
            Self::Day => "quota with resetCadence calendar-day",
            Self::Fixed => "quota with resetCadence fixed",
            Self::Rolling => "quota with resetCadence rolling",
        }
    }

    /// The keys that mean something for this kind, beside those that every policy has.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Gcra => &["limit", "period", "periodMs", "windowMs", "burst"],
            Self::TokenBucket => &["capacity", "refillPerSec"],
            Self::FixedWindow | Self::SlidingWindowLog => {
                &["limit", "period", "periodMs", "windowMs"]
            }
            Self::SlidingWindow => &["limit", "period", "periodMs", "windowMs", "buckets"],
            Self::Month | Self::Day => &["limit", "resetCadence", "offsetMinutes"],
            Self::Week => &["limit", "resetCadence", "offsetMinutes", "weekStartsOn"],
            Self::Fixed => &["limit", "resetCadence", "period", "periodMs", "windowMs", "anchor"],
            Self::Rolling => {
                &["limit", "resetCadence", "period", "periodMs", "windowMs", "buckets"]
            }
        }
    }
}

impl<'n> Reader<'n, '_> {
    /// Reads every value by itself. `None` when the policy is not one this version serves.
    fn raw(&mut self) -> Option<Raw<'n>> {
        let name = self.name;
        let Value::Map(entries) = &name.value.value else {
            let (kind, place) = (self.name.value.kind(), self.name.place);
            let found = if self.name.value.is_null() { "nothing" } else { kind };
            self.report(place, "", format!("{found} where a policy belongs; write {EXAMPLE}"));
            return None;
        };
        let mut raw = Raw::default();
        let mut served = true;
        for entry in entries {
            if entry.key == "federatedFairEscrow" {
                let message = "not yet served by this version, which shares a budget among the \
                               instances on one store; use fairEscrow with --store";
                self.report(entry.place, &entry.key, message.into());
                served = false;
            } else if LATER.contains(&entry.key.as_str()) {
                let message = "not yet served by this version; remove it or the policy";
                self.report(entry.place, &entry.key, message.into());
                served = false;
            } else if is_ignored(&entry.key) {
                let path = format!("{}.{}", self.path, entry.key);
                let message = "has no meaning here and is ignored".into();
                self.warnings.push(Problem { place: Some(entry.place), path, message });
            } else if self.key(entry, &mut raw) {
                raw.keys.push((entry.key.as_str(), entry.value.place));
            } else {
                self.unknown(entry);
            }
        }
        served.then_some(raw)
    }

    /// Reads one key; says whether it is one.
    fn key(&mut self, entry: &Entry, raw: &mut Raw<'_>) -> bool {
        let key = entry.key.as_str();
        match key {
            "strategy" => {
                raw.strategy = self.slot(entry, "gcra", |t| scalar::one_of(t, STRATEGIES))
            }
            "limit" => raw.limit = self.slot(entry, "100", scalar::whole),
            "period" => raw.period = self.slot(entry, "1m", scalar::period),
            "windowMs" => raw.window_ms = self.slot(entry, "60000", scalar::milliseconds),
            "periodMs" => raw.period_ms = self.slot(entry, "60000", scalar::milliseconds),
            "burst" => raw.burst = self.slot(entry, "100", scalar::whole),
            "capacity" => raw.capacity = self.slot(entry, "100", scalar::decimal),
            "refillPerSec" => raw.refill_per_sec = self.slot(entry, "0.5", scalar::decimal),
            "buckets" => raw.buckets = self.slot(entry, "10", scalar::whole),
            "resetCadence" => {
                raw.reset_cadence =
                    self.slot(entry, "calendar-month", |t| scalar::one_of(t, CADENCES));
            }
            "anchor" => raw.anchor = self.slot(entry, "0", scalar::signed),
            "offsetMinutes" => raw.offset_minutes = self.slot(entry, "0", scalar::signed),
            "weekStartsOn" => raw.week_starts_on = self.slot(entry, "1", scalar::weekday),
            "prefix" => raw.prefix = self.prefix(entry),
            escrow::BLOCK => raw.fair_escrow = self.escrow_block(entry),
            lease::TWO_TIER => raw.two_tier = self.lease_block(entry, lease::TWO_TIER),
            lease::FEDERATED => raw.federated = self.lease_block(entry, lease::FEDERATED),
            concurrency::LOCAL => raw.concurrency = self.gate_block(entry, concurrency::LOCAL),
            concurrency::DISTRIBUTED => {
                raw.distributed = self.gate_block(entry, concurrency::DISTRIBUTED);
            }
            budget::LOCAL => raw.token_budget = self.budget_block(entry, budget::LOCAL),
            budget::SHARED => raw.fleet_budget = self.budget_block(entry, budget::SHARED),
            budget::AXIS => raw.cost = self.budget_block(entry, budget::AXIS),
            joint::BLOCK => raw.joint = self.joint_block(entry),
            "atomicity" => {
                raw.atomicity = self.slot(entry, "all", |t| scalar::one_of(t, ATOMICITY));
            }
            load::BLOCK => raw.load = self.load_block(entry),
            shadow::BLOCK => raw.shadow = self.shadow(entry),
            "leaseTtl" => raw.lease_ttl = self.slot(entry, "2s", concurrency::lease_ttl),
            "maxKeys" => raw.max_keys = self.slot(entry, "1000000", max_keys),
            "onFull" => raw.on_full = self.slot(entry, "evict", |t| scalar::one_of(t, ON_FULL)),
            "fail" => raw.fail = self.slot(entry, "open", |t| scalar::one_of(t, FAIL)),
            "share" => raw.share = self.slot(entry, "0.5", shared::share),
            "reserveLocal" => {
                raw.reserve_local = self.slot(entry, "true", |t| scalar::one_of(t, TRUTH));
            }
            "hashTag" => raw.hash_tag = self.slot(entry, "\"tenants\"", shared::hash_tag),
            "waitReplicas" => raw.wait_replicas = self.slot(entry, "1", shared::wait_replicas),
            "storeDeadline" => raw.store_deadline = self.slot(entry, "20ms", shared::deadline),
            "durable" => raw.durable = self.slot(entry, "true", |t| scalar::one_of(t, TRUTH)),
            _ => return false,
        }
        true
    }

    fn slot<T>(
        &mut self,
        entry: &Entry,
        example: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Slot<T> {
        if matches!(entry.value.value, Value::Refused) {
            return Slot::Bad;
        }
        let example = format!("{}: {example}", entry.key);
        match scalar::text(&entry.value, &example).and_then(read) {
            Ok(value) => Slot::Given(value),
            Err(message) => {
                let place = if entry.value.is_null() { entry.place } else { entry.value.place };
                self.report(place, &entry.key, message);
                Slot::Bad
            }
        }
    }

    fn prefix(&mut self, entry: &Entry) -> Slot<String> {
        self.slot(entry, "\"\"", |text| Ok(text.to_owned()))
    }

    /// The rate axis without what stands before its store.
    pub(super) fn ruled(&mut self, raw: &Raw<'_>) -> Option<(Rule, Builtin)> {
        let kind = self.kind(raw)?;
        self.refuse_what_does_not_apply(kind, raw);
        let rule = self.rule(kind, raw)?;
        match rule.build() {
            Ok(strategy) => Some((rule, strategy)),
            Err(invalid) => {
                self.refused(invalid, raw);
                None
            }
        }
    }

    /// Strategy and cadence together say what the parameters mean.
    fn kind(&mut self, raw: &Raw<'_>) -> Option<Kind> {
        let strategy = self.need("strategy", "a rate policy", &raw.strategy)?;
        match strategy {
            StrategyName::Is(kind) => Some(*kind),
            StrategyName::Quota => self.need("resetCadence", "quota", &raw.reset_cadence).copied(),
        }
    }

    fn refuse_what_does_not_apply(&mut self, kind: Kind, raw: &Raw<'_>) {
        for &(key, place) in &raw.keys {
            if !EVERY_POLICY.contains(&key) && !kind.keys().contains(&key) {
                let keys = kind.keys().join(", ");
                let message = format!("does not apply to {}, which has {keys}", kind.name());
                self.report(place, key, message);
            }
        }
    }

    fn rule(&mut self, kind: Kind, raw: &Raw<'_>) -> Option<Rule> {
        let what = kind.name();
        if kind == Kind::TokenBucket {
            let capacity = self.need("capacity", what, &raw.capacity).copied();
            let refill_per_sec = self.need("refillPerSec", what, &raw.refill_per_sec).copied();
            let (capacity, refill_per_sec) = (capacity?, refill_per_sec?);
            return Some(Rule::TokenBucket(TokenBucket { capacity, refill_per_sec }));
        }
        let limit = self.need("limit", what, &raw.limit).copied();
        let window = if kind.keys().contains(&"period") { self.length(kind, raw) } else { None };
        let buckets = raw.buckets.value().copied().unwrap_or(SlidingWindow::BUCKETS_DEFAULT);
        Some(match kind {
            Kind::Gcra => {
                let (limit, period) = (limit?, window?);
                let burst = raw.burst.value().copied().unwrap_or(limit);
                Rule::Gcra(Gcra { limit, period, burst })
            }
            Kind::FixedWindow => Rule::FixedWindow { limit: limit?, window: window? },
            Kind::SlidingWindowLog => Rule::SlidingWindowLog { limit: limit?, window: window? },
            Kind::SlidingWindow => Rule::SlidingWindow { limit: limit?, window: window?, buckets },
            Kind::Rolling => Rule::RollingQuota { limit: limit?, window: window?, buckets },
            Kind::Fixed | Kind::Day | Kind::Week | Kind::Month => {
                let cadence = self.cadence(kind, window, raw)?;
                Rule::Quota { limit: limit?, cadence }
            }
            Kind::TokenBucket => return None,
        })
    }

    fn cadence(&mut self, kind: Kind, window: Option<Span>, raw: &Raw<'_>) -> Option<Cadence> {
        let minutes = raw.offset_minutes.value().copied().unwrap_or(0);
        let Ok(offset_minutes) = i16::try_from(minutes) else {
            self.refused(Invalid::OffsetOutOfRange { minutes }, raw);
            return None;
        };
        Some(match kind {
            Kind::Day => Cadence::Day { offset_minutes },
            Kind::Week => {
                let starts_on = raw.week_starts_on.value().copied().unwrap_or(Weekday::Monday);
                Cadence::Week { offset_minutes, starts_on }
            }
            Kind::Month => Cadence::Month { offset_minutes },
            _ => {
                let anchor = raw.anchor.value().copied().unwrap_or(0);
                let Some(anchor_us) = anchor.checked_mul(1_000) else {
                    let (parameter, given) = (Parameter::Anchor, u64::MAX);
                    self.refused(Invalid::TooLarge { parameter, given, max: EXACT_MAX }, raw);
                    return None;
                };
                Cadence::Fixed { period: window?, anchor_us }
            }
        })
    }

    /// `period` wins; of the two in milliseconds, the strategy's own comes first.
    fn length(&mut self, kind: Kind, raw: &Raw<'_>) -> Option<Span> {
        let rates = matches!(kind, Kind::Gcra | Kind::Fixed | Kind::Rolling);
        let (first, second) =
            if rates { (&raw.period_ms, &raw.window_ms) } else { (&raw.window_ms, &raw.period_ms) };
        let mut given = [&raw.period, first, second].into_iter().filter(|slot| !slot.is_absent());
        match given.next() {
            Some(slot) => slot.value().copied(),
            None => {
                let lengths = ["period", "periodMs", "windowMs"];
                let given = self.misspelt.iter().any(|key| lengths.contains(key));
                if !given {
                    self.need::<Span>("period", kind.name(), &Slot::Absent);
                }
                None
            }
        }
    }

    pub(super) fn need<'s, T>(
        &mut self,
        key: &str,
        what: &str,
        slot: &'s Slot<T>,
    ) -> Option<&'s T> {
        if slot.is_absent() && !self.misspelt.contains(&key) {
            let example = EXAMPLES.iter().find(|(known, _)| *known == key);
            let example = example.map_or("", |(_, example)| example);
            let message = format!("missing; {what} needs it, e.g. {key}: {example}");
            self.report(self.name.place, key, message);
        }
        slot.value()
    }

    /// Reports what core refused, at the key that caused it.
    pub(super) fn refused(&mut self, invalid: Invalid, raw: &Raw<'_>) {
        let lengths = ["period", "periodMs", "windowMs"];
        let (keys, in_ticks): (&[&str], bool) = match invalid {
            Invalid::OffsetOutOfRange { .. } => (&["offsetMinutes"], false),
            Invalid::Zero(parameter)
            | Invalid::TooLarge { parameter, .. }
            | Invalid::TooSmall { parameter, .. }
            | Invalid::Inexact { parameter, .. } => match parameter {
                Parameter::Limit => (&["limit"], false),
                Parameter::Burst => (&["burst", "limit"], false),
                Parameter::Capacity => (&["capacity"], false),
                Parameter::RefillPerSec => (&["refillPerSec"], false),
                Parameter::Period | Parameter::Window => (&lengths, true),
                Parameter::Buckets => (&["buckets", "period", "periodMs", "windowMs"], false),
                Parameter::Anchor => (&["anchor"], true),
                Parameter::Share => (&["share"], false),
                _ => (&[], false),
            },
            _ => (&[], false),
        };
        let found = keys.iter().find_map(|&key| raw.keys.iter().find(|(given, _)| *given == key));
        let (key, place) = found.copied().unwrap_or(("", self.name.place));
        let counts = matches!(invalid, Invalid::TooLarge { .. } | Invalid::TooSmall { .. });
        let unit = if in_ticks && counts { " (in microseconds)" } else { "" };
        self.report(place, key, format!("{invalid}{unit}"));
    }

    fn unknown(&mut self, entry: &Entry) {
        let known: Vec<&'static str> = EXAMPLES.iter().map(|(key, _)| *key).collect();
        let message = match nearest(&entry.key, &known) {
            Some(meant) => {
                self.misspelt.push(meant);
                format!("unknown key; did you mean `{meant}`?")
            }
            None => format!("unknown key; a policy has {}", known.join(", ")),
        };
        self.report(entry.place, &quoted_key(&entry.key), message);
    }

    pub(super) fn report(&mut self, place: Place, key: &str, message: String) {
        let path = match key {
            "" => self.path.to_owned(),
            key => format!("{}.{key}", self.path),
        };
        self.problems.push(Problem { place: Some(place), path, message });
    }
}

fn max_keys(text: &str) -> Result<u64, String> {
    match scalar::whole(text)? {
        0 => Err("must be more than zero; leave it out for as many as fit 256 MiB".into()),
        number if number > PolicyConfig::MAX_KEYS_MAX => {
            Err(format!("{number} is too large; the most is {}", PolicyConfig::MAX_KEYS_MAX))
        }
        number => Ok(number),
    }
}

/// A key as part of a path: in quotes unless it is a plain word.
pub(crate) fn quoted_key(key: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | ':');
    let is_plain = !key.is_empty() && key.chars().all(plain) && key.len() <= 64;
    if is_plain { key.to_owned() } else { quoted(key) }
}

/// Whether other systems give the key a meaning that does not change a decision.
pub(super) fn is_ignored(key: &str) -> bool {
    IGNORED.contains(&key) || key.starts_with("costRoom")
}

/// Says whether anything can be made of the node as text; used for `defaults.prefix`.
pub(crate) fn plain_text(node: &Node) -> Result<String, String> {
    scalar::text(node, "prefix: \"\"").map(ToOwned::to_owned)
}

pub(super) const STRATEGIES: &[(&str, StrategyName)] = &[
    ("gcra", StrategyName::Is(Kind::Gcra)),
    ("tokenBucket", StrategyName::Is(Kind::TokenBucket)),
    ("fixedWindow", StrategyName::Is(Kind::FixedWindow)),
    ("slidingWindow", StrategyName::Is(Kind::SlidingWindow)),
    ("slidingWindowLog", StrategyName::Is(Kind::SlidingWindowLog)),
    ("quota", StrategyName::Quota),
];
pub(super) const CADENCES: &[(&str, Kind)] = &[
    ("calendar-month", Kind::Month),
    ("calendar-week", Kind::Week),
    ("calendar-day", Kind::Day),
    ("fixed", Kind::Fixed),
    ("rolling", Kind::Rolling),
];
pub(super) const ON_FULL: &[(&str, OnFull)] = &[("evict", OnFull::Evict), ("deny", OnFull::Deny)];
pub(super) const FAIL: &[(&str, Fail)] =
    &[("open", Fail::Open), ("closed", Fail::Closed), ("local", Fail::Local)];
pub(super) const ATOMICITY: &[(&str, Atomicity)] =
    &[("all", Atomicity::All), ("perAxis", Atomicity::PerAxis)];
pub(super) const TRUTH: &[(&str, bool)] = &[("true", true), ("false", false)];

/// Keys that every policy may have, whatever its strategy.
const EVERY_POLICY: &[&str] = &[
    "strategy",
    "prefix",
    "maxKeys",
    "onFull",
    "fail",
    "share",
    "reserveLocal",
    "hashTag",
    "waitReplicas",
    "storeDeadline",
    "durable",
    "leaseTtl",
    lease::TWO_TIER,
    lease::FEDERATED,
    concurrency::LOCAL,
    concurrency::DISTRIBUTED,
    budget::AXIS,
    joint::BLOCK,
    "atomicity",
    load::BLOCK,
    shadow::BLOCK,
];

/// Every key a policy may have, with a value to show.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("strategy", "gcra"),
    ("limit", "100"),
    ("period", "1m"),
    ("windowMs", "60000"),
    ("periodMs", "60000"),
    ("burst", "100"),
    ("capacity", "100"),
    ("refillPerSec", "0.5"),
    ("buckets", "10"),
    ("resetCadence", "calendar-month"),
    ("anchor", "0"),
    ("offsetMinutes", "0"),
    ("weekStartsOn", "1"),
    ("prefix", "\"\""),
    ("maxKeys", "1000000"),
    ("onFull", "evict"),
    ("fail", "open"),
    ("share", "0.5"),
    ("reserveLocal", "true"),
    ("hashTag", "\"tenants\""),
    ("waitReplicas", "1"),
    ("storeDeadline", "20ms"),
    ("durable", "true"),
    (escrow::BLOCK, "{ limit: 100, windowMs: 60000 }"),
    (lease::TWO_TIER, "{ batch: 100 }"),
    (lease::FEDERATED, "{ batch: 16 }"),
    (concurrency::LOCAL, "{ maxLimit: 8 }"),
    (concurrency::DISTRIBUTED, "{ maxLimit: 100 }"),
    (budget::LOCAL, "{ budget: 100000, windowMs: 60000 }"),
    (budget::SHARED, "{ budget: 100000, windowMs: 60000 }"),
    ("leaseTtl", "2s"),
    (load::BLOCK, "{ class: default, by: key }"),
    (budget::AXIS, "{ budget: 100000, windowMs: 60000 }"),
    (joint::BLOCK, "{ prices: { rate: 0.5 } }"),
    ("atomicity", "all"),
    (shadow::BLOCK, "[candidate]"),
];

/// Keys of other systems that do not change a decision, beside those that begin with `costRoom`.
pub(super) const IGNORED: &[&str] = &["unit", "version", "capture", "replay"];

/// Blocks and keys of other kinds of policy and of stores that this version does not serve.
const LATER: &[&str] = &["leaseTime", "batch"];

const EXAMPLE: &str = "{ strategy: gcra, limit: 100, period: 1m }";
