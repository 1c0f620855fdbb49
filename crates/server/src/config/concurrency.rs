//! The `concurrency` and `distributedConcurrency` blocks: how many may be in flight at once.

use std::fmt;

use admittance::Span;
use admittance::concurrency::{Aggregate, FleetRules, MemberRules, Outage, PERMITS_MAX, Split};
use admittance::learn::{Limit, LimitAlgorithm, LimitRules, Recalibrate};

use super::node::{Entry, Value};
use super::policy::{Raw, Reader, Slot, TRUTH, quoted_key};
use super::problem::{Place, nearest, quoted};
use super::rule::Length;
use super::{CostConfig, PolicyConfig, scalar, yaml_text};

/// The concurrency axis of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct GateConfig {
    /// How the limit is inferred.
    pub limit: LimitRules,
    /// How long a permit is held without a heartbeat.
    pub lease_ttl: Span,
    /// How processes share one limit, if they do.
    pub fleet: Option<FleetConfig>,
}

/// How processes share one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetConfig {
    /// What all of them agree on.
    pub rules: FleetRules,
    /// How this one behaves.
    pub member: MemberRules,
    /// How often each reports.
    pub heartbeat: Span,
    /// The fleet's name in the store, if it is to be another than the policy's.
    pub prefix: Option<String>,
}

impl FleetConfig {
    /// A fleet's name in the store: its block's prefix, or else its policy's name there.
    #[must_use]
    pub fn name<'a>(&'a self, policy: &'a PolicyConfig) -> &'a str {
        self.prefix.as_deref().unwrap_or(policy.store_name())
    }
}

impl GateConfig {
    /// How long a permit is held without a heartbeat, if nobody says otherwise.
    pub const LEASE_TTL_DEFAULT: Span = Span::from_secs(2);

    /// The longest that a permit may be told to be held.
    pub const LEASE_TTL_MAX: Span = Span::from_secs(3_600);
}

/// What was typed in one of the blocks.
#[derive(Default)]
pub(super) struct Block {
    name: &'static str,
    place: Option<Place>,
    keys: Vec<(String, Place)>,
    preset: Slot<LimitRules>,
    min: Slot<u32>,
    max: Slot<u32>,
    initial: Slot<u32>,
    algorithm: Slot<LimitAlgorithm>,
    rtt_window: Slot<u32>,
    smoothing: Slot<f64>,
    tolerance: Slot<f64>,
    backoff_ratio: Slot<f64>,
    rtt_max: Slot<Span>,
    recalibrate: Slot<Span>,
    aggregate: Slot<Aggregate>,
    allocation: Slot<Split>,
    handoff: Slot<bool>,
    self_fence: Slot<bool>,
    eager: Slot<bool>,
    max_hold: Slot<Span>,
    lease_ttl: Slot<Span>,
    heartbeat: Slot<Span>,
    outage: Slot<Outage>,
    prefix: Slot<String>,
}

impl Reader<'_, '_> {
    /// Reads a block, value by value.
    pub(super) fn gate_block(&mut self, block: &Entry, name: &'static str) -> Slot<Block> {
        if matches!(block.value.value, Value::Refused) {
            return Slot::Bad;
        }
        let mut read = Block { name, place: Some(block.place), ..Block::default() };
        let entries = match &block.value.value {
            Value::Map(entries) => entries,
            // Every key has a default.
            _ if block.value.is_null() => return Slot::Given(read),
            _ => {
                let kind = block.value.kind();
                let message =
                    format!("{kind} where a map belongs; write {name}: {{ maxLimit: 8 }}");
                self.report(block.value.place, name, message);
                return Slot::Bad;
            }
        };
        for entry in entries {
            let path = format!("{name}.{}", quoted_key(&entry.key));
            let is_read = self.limit_value(entry, &path, &mut read)
                || name == DISTRIBUTED && self.fleet_value(entry, &path, &mut read);
            if !is_read {
                let keys: Vec<&str> = match name {
                    DISTRIBUTED => LIMIT_KEYS.iter().chain(FLEET_KEYS).copied().collect(),
                    _ => LIMIT_KEYS.to_vec(),
                };
                let message = match nearest(&entry.key, &keys) {
                    Some(meant) => format!("unknown key; did you mean `{meant}`?"),
                    None => format!("unknown key; {name} has {}", keys.join(", ")),
                };
                self.report(entry.place, &path, message);
            }
            read.keys.push((entry.key.clone(), entry.value.place));
        }
        Slot::Given(read)
    }

    fn limit_value(&mut self, entry: &Entry, path: &str, read: &mut Block) -> bool {
        match entry.key.as_str() {
            "preset" => {
                let presets = |text: &str| scalar::one_of(text, PRESETS);
                read.preset = self.value(entry, path, "preset: stable", presets);
            }
            "minLimit" => read.min = self.value(entry, path, "minLimit: 4", permits),
            "maxLimit" => read.max = self.value(entry, path, "maxLimit: 512", permits),
            "initialLimit" => read.initial = self.value(entry, path, "initialLimit: 4", permits),
            "algorithm" => {
                let algorithms = |text: &str| scalar::one_of(text, ALGORITHMS);
                read.algorithm = self.value(entry, path, "algorithm: gradient2", algorithms);
            }
            "rttWindow" => read.rtt_window = self.value(entry, path, "rttWindow: 100", permits),
            "smoothing" => read.smoothing = self.value(entry, path, "smoothing: 0.2", fraction),
            "tolerance" => read.tolerance = self.value(entry, path, "tolerance: 2", fraction),
            "backoffRatio" => {
                read.backoff_ratio = self.value(entry, path, "backoffRatio: 0.9", fraction);
            }
            "rttMax" => read.rtt_max = self.value(entry, path, "rttMax: 10s", scalar::period),
            "recalibrate" => {
                read.recalibrate = self.value(entry, path, "recalibrate: 60s", scalar::period);
            }
            _ => return false,
        }
        true
    }

    fn fleet_value(&mut self, entry: &Entry, path: &str, read: &mut Block) -> bool {
        let truth = |text: &str| scalar::one_of(text, TRUTH);
        match entry.key.as_str() {
            "aggregate" => {
                let words = |text: &str| scalar::one_of(text, AGGREGATES);
                read.aggregate = self.value(entry, path, "aggregate: median", words);
            }
            "allocation" => {
                let words = |text: &str| scalar::one_of(text, SPLITS);
                read.allocation = self.value(entry, path, "allocation: equal", words);
            }
            "handoff" => read.handoff = self.value(entry, path, "handoff: true", truth),
            "selfFence" => read.self_fence = self.value(entry, path, "selfFence: true", truth),
            "eager" => read.eager = self.value(entry, path, "eager: true", truth),
            "maxHold" => read.max_hold = self.value(entry, path, "maxHold: 5s", scalar::period),
            "leaseTtl" => read.lease_ttl = self.value(entry, path, "leaseTtl: 2s", scalar::period),
            "heartbeatMs" => {
                let example = "heartbeatMs: 1000";
                read.heartbeat = self.value(entry, path, example, scalar::milliseconds);
            }
            "onCoordinatorOutage" => {
                let words = |text: &str| scalar::one_of(text, OUTAGES);
                let example = "onCoordinatorOutage: fail-closed";
                read.outage = self.value(entry, path, example, words);
            }
            "prefix" => {
                let text = |text: &str| Ok(text.to_owned());
                read.prefix = self.value(entry, path, "prefix: \"\"", text);
            }
            _ => return false,
        }
        true
    }

    /// The concurrency axis, if the policy has one that can be used.
    pub(super) fn concurrency(&mut self, raw: &Raw<'_>) -> Option<GateConfig> {
        let block = match (&raw.concurrency, &raw.distributed) {
            (Slot::Given(block), Slot::Absent) | (Slot::Absent, Slot::Given(block)) => block,
            (Slot::Absent, Slot::Absent) => {
                if let Some(&(key, place)) = raw.keys.iter().find(|(key, _)| *key == "leaseTtl") {
                    let message = "only a policy with concurrency holds permits for a time";
                    self.report(place, key, message.into());
                }
                return None;
            }
            (Slot::Given(_), Slot::Given(_)) => {
                let message = "does not go with distributedConcurrency; keep one".into();
                self.report(self.name.place, LOCAL, message);
                return None;
            }
            _ => return None,
        };
        if !raw.two_tier.is_absent() || !raw.federated.is_absent() {
            let message = "does not go with twoTier or federated yet; keep one of them".into();
            self.report(self.name.place, block.name, message);
            return None;
        }
        // Work that has a cost is not over in two seconds.
        let or = match raw.cost.is_absent() {
            true => GateConfig::LEASE_TTL_DEFAULT,
            false => CostConfig::LEASE_TTL_DEFAULT,
        };
        self.gate(block, raw.lease_ttl.value().copied().unwrap_or(or))
    }

    /// The axis that a block describes, or `None` if something is wrong with it.
    fn gate(&mut self, block: &Block, lease_ttl: Span) -> Option<GateConfig> {
        let limit = self.limit(block)?;
        let fleet = match block.name {
            DISTRIBUTED => Some(self.fleet(block)?),
            _ => None,
        };
        Some(GateConfig { limit, lease_ttl, fleet })
    }

    fn limit(&mut self, block: &Block) -> Option<LimitRules> {
        let preset = block.preset.value().copied().unwrap_or_default();
        let or = |slot: &Slot<u32>, other| slot.value().copied().unwrap_or(other);
        // A maximum below the preset's least lowers that too: `maxLimit: 2` means what it says.
        let max = or(&block.max, preset.max.max(or(&block.min, preset.min)));
        let min = or(&block.min, preset.min.min(max));
        let initial = or(&block.initial, preset.initial.clamp(min, max.max(min)));
        let fraction = |slot: &Slot<f64>, other| slot.value().copied().unwrap_or(other);
        let algorithm = block.algorithm.value().copied().unwrap_or(preset.algorithm);
        let recalibrate = block.recalibrate.value();
        let is_guarded = algorithm == LimitAlgorithm::Gradient2;
        let rules = LimitRules {
            algorithm,
            min,
            max,
            initial,
            rtt_window: or(&block.rtt_window, preset.rtt_window),
            smoothing: fraction(&block.smoothing, preset.smoothing),
            tolerance: fraction(&block.tolerance, preset.tolerance),
            backoff_ratio: fraction(&block.backoff_ratio, preset.backoff_ratio),
            throughput_guard: preset.throughput_guard.filter(|_| is_guarded),
            rtt_max: block.rtt_max.value().copied().or(preset.rtt_max),
            recalibrate: recalibrate.map(|&every| Recalibrate { every, ..Recalibrate::SEED }),
            seed: 0,
        };
        match Limit::new(rules) {
            Ok(_) => Some(rules),
            Err(invalid) => {
                let place = block.place.unwrap_or(self.name.place);
                self.report(place, block.name, invalid.to_string());
                None
            }
        }
    }

    fn fleet(&mut self, block: &Block) -> Option<FleetConfig> {
        let found_before = self.problems.len();
        let or = |slot: &Slot<bool>, other| slot.value().copied().unwrap_or(other);
        let heartbeat = block.heartbeat.value().copied().unwrap_or(Span::from_secs(1));
        let twice = Span::from_us(heartbeat.us().saturating_mul(2));
        let default = FleetRules::default();
        let handoff = or(&block.handoff, true);
        let rules = FleetRules {
            aggregate: block.aggregate.value().copied().unwrap_or(default.aggregate),
            split: block.allocation.value().copied().unwrap_or(default.split),
            handoff,
            ttl: block.lease_ttl.value().copied().unwrap_or(twice),
            max_hold: block.max_hold.value().copied().unwrap_or(default.max_hold),
        };
        let member = MemberRules {
            outage: block.outage.value().copied().unwrap_or(Outage::FailClosed),
            fence: or(&block.self_fence, handoff),
            eager: or(&block.eager, false),
        };
        if heartbeat < HEARTBEAT_MIN || heartbeat > HEARTBEAT_MAX {
            let message = "must lie between 10 and 60000".to_owned();
            self.misfit(block, "heartbeatMs", message);
        } else if rules.ttl <= heartbeat || rules.ttl > TTL_MAX {
            let message = "must be longer than a heartbeat, and at most 5m".to_owned();
            self.misfit(block, "leaseTtl", message);
        }
        if rules.max_hold > HOLD_MAX {
            let message = "must be at most 1d".to_owned();
            self.misfit(block, "maxHold", message);
        }
        let prefix = block.prefix.value().cloned();
        let config = FleetConfig { rules, member, heartbeat, prefix };
        (self.problems.len() == found_before).then_some(config)
    }

    fn misfit(&mut self, block: &Block, key: &str, message: String) {
        let place = block.at(key).unwrap_or(self.name.place);
        self.report(place, &format!("{}.{key}", block.name), message);
    }
}

impl Block {
    fn at(&self, key: &str) -> Option<Place> {
        let found = self.keys.iter().find(|(given, _)| given == key).map(|(_, place)| *place);
        found.or(self.place)
    }
}

fn permits(text: &str) -> Result<u32, String> {
    let number = scalar::whole(text)?;
    match u32::try_from(number) {
        Ok(number) if number <= PERMITS_MAX => Ok(number),
        _ => Err(format!("{number} is too large; the most is {PERMITS_MAX}")),
    }
}

/// A number of an estimate, which need not be exact.
fn fraction(text: &str) -> Result<f64, String> {
    scalar::decimal(text)?;
    text.parse().map_err(|_| format!("{} is not a number; write e.g. 0.5", quoted(text)))
}

pub(super) fn lease_ttl(text: &str) -> Result<Span, String> {
    match scalar::period(text)? {
        ttl if ttl >= LEASE_TTL_MIN && ttl <= GateConfig::LEASE_TTL_MAX => Ok(ttl),
        _ => Err(format!("{} is out of range; write one from 100ms to 1h", quoted(text))),
    }
}

/// The block as a policy file writes it, below the policy's name.
impl fmt::Display for GateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.fleet.is_some() { DISTRIBUTED } else { LOCAL };
        let limit = &self.limit;
        writeln!(f, "    {name}:")?;
        if limit.throughput_guard.is_some() {
            writeln!(f, "      preset: stable")?;
        }
        writeln!(f, "      algorithm: {}", word(ALGORITHMS, limit.algorithm))?;
        writeln!(f, "      minLimit: {}\n      maxLimit: {}", limit.min, limit.max)?;
        writeln!(f, "      initialLimit: {}", limit.initial)?;
        writeln!(f, "      rttWindow: {}", limit.rtt_window)?;
        writeln!(f, "      smoothing: {}\n      tolerance: {}", limit.smoothing, limit.tolerance)?;
        writeln!(f, "      backoffRatio: {}", limit.backoff_ratio)?;
        if let Some(rtt_max) = limit.rtt_max {
            writeln!(f, "      rttMax: {}", Length(rtt_max))?;
        }
        if let Some(recalibrate) = limit.recalibrate {
            writeln!(f, "      recalibrate: {}", Length(recalibrate.every))?;
        }
        if let Some(fleet) = &self.fleet {
            write!(f, "{fleet}")?;
        }
        writeln!(f, "    leaseTtl: {}", Length(self.lease_ttl))
    }
}

impl fmt::Display for FleetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FleetRules { aggregate, split, handoff, ttl, max_hold } = self.rules;
        writeln!(f, "      aggregate: {}", word(AGGREGATES, aggregate))?;
        writeln!(f, "      allocation: {}", word(SPLITS, split))?;
        writeln!(f, "      handoff: {handoff}\n      selfFence: {}", self.member.fence)?;
        writeln!(f, "      eager: {}", self.member.eager)?;
        writeln!(f, "      heartbeatMs: {}", self.heartbeat.ms_ceil())?;
        writeln!(f, "      leaseTtl: {}\n      maxHold: {}", Length(ttl), Length(max_hold))?;
        writeln!(f, "      onCoordinatorOutage: {}", word(OUTAGES, self.member.outage))?;
        match &self.prefix {
            Some(prefix) => writeln!(f, "      prefix: {}", yaml_text(prefix)),
            None => Ok(()),
        }
    }
}

/// The word for a value.
fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| *word)
}

pub(super) const LOCAL: &str = "concurrency";
pub(super) const DISTRIBUTED: &str = "distributedConcurrency";
pub(super) const LIMIT_KEYS: &[&str] = &[
    "preset",
    "minLimit",
    "maxLimit",
    "initialLimit",
    "algorithm",
    "rttWindow",
    "smoothing",
    "tolerance",
    "backoffRatio",
    "rttMax",
    "recalibrate",
];
pub(super) const FLEET_KEYS: &[&str] = &[
    "aggregate",
    "allocation",
    "handoff",
    "selfFence",
    "eager",
    "maxHold",
    "leaseTtl",
    "heartbeatMs",
    "onCoordinatorOutage",
    "prefix",
];
pub(super) const PRESETS: &[(&str, LimitRules)] =
    &[("stable", LimitRules::stable()), ("plain", LimitRules::seed_defaults())];
pub(super) const ALGORITHMS: &[(&str, LimitAlgorithm)] = &[
    ("gradient2", LimitAlgorithm::Gradient2),
    ("aimd", LimitAlgorithm::Aimd),
    ("fixed", LimitAlgorithm::Fixed),
];
pub(super) const AGGREGATES: &[(&str, Aggregate)] =
    &[("median", Aggregate::Median), ("min", Aggregate::Min)];
pub(super) const SPLITS: &[(&str, Split)] = &[("equal", Split::Equal), ("demand", Split::Demand)];
pub(super) const OUTAGES: &[(&str, Outage)] =
    &[("fail-closed", Outage::FailClosed), ("local-only", Outage::LocalOnly)];
const LEASE_TTL_MIN: Span = Span::from_ms(100);
const HEARTBEAT_MIN: Span = Span::from_ms(10);
const HEARTBEAT_MAX: Span = Span::from_secs(60);
const TTL_MAX: Span = Span::from_secs(300);
const HOLD_MAX: Span = Span::from_secs(86_400);
