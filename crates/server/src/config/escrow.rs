//! The `fairEscrow` block: one budget that the keys of a policy share by weight.

use std::collections::BTreeMap;
use std::fmt;

use admittance::{
    Builtin, Decimal, EscrowRules, FairEscrow, Invalid, ManualClock, OnFull, Parameter, Quantum,
    Span, Window,
};

use super::admission::{Axes, shares_of};
use super::node::{Entry, Value};
use super::policy::{Raw, Reader, Slot, is_ignored, quoted_key};
use super::problem::{Place, Problem, nearest};
use super::rule::{Length, Rule};
use super::{Defaults, PolicyConfig, RateConfig, TierConfig, scalar, yaml_text};

/// What a `fairEscrow` policy says, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EscrowConfig {
    /// Budget, window, weights and how many tenants have a place.
    pub rules: EscrowRules,
    /// How many credits a process leases from a shared store at once.
    pub quantum: Quantum,
}

/// What was typed in the block.
#[derive(Default)]
pub(super) struct Block {
    place: Option<Place>,
    keys: Vec<(String, Place)>,
    limit: Slot<u64>,
    window_ms: Slot<Span>,
    period: Slot<Span>,
    weights: BTreeMap<Box<[u8]>, Decimal>,
    max_keys: Slot<u64>,
    quantum: Slot<u64>,
}

impl Reader<'_, '_> {
    /// Reads the block, value by value.
    pub(super) fn escrow_block(&mut self, block: &Entry) -> Slot<Block> {
        if matches!(block.value.value, Value::Refused) {
            return Slot::Bad;
        }
        let Value::Map(entries) = &block.value.value else {
            let message = format!("{} where a map belongs; write {EXAMPLE}", block.value.kind());
            self.report(block.value.place, BLOCK, message);
            return Slot::Bad;
        };
        let mut read = Block { place: Some(block.place), ..Block::default() };
        for entry in entries {
            let path = format!("{BLOCK}.{}", quoted_key(&entry.key));
            match entry.key.as_str() {
                "limit" => read.limit = self.value(entry, &path, "limit: 100", scalar::whole),
                "windowMs" => {
                    let example = "windowMs: 60000";
                    read.window_ms = self.value(entry, &path, example, scalar::milliseconds);
                }
                "period" => read.period = self.value(entry, &path, "period: 1m", scalar::period),
                "weights" => read.weights = self.weights(entry),
                "maxKeys" => {
                    read.max_keys = self.value(entry, &path, "maxKeys: 100000", scalar::whole);
                }
                "quantum" => read.quantum = self.value(entry, &path, "quantum: 10", scalar::whole),
                key if is_ignored(key) => {
                    let path = format!("{}.{path}", self.path);
                    let message = "has no meaning here and is ignored".into();
                    self.warnings.push(Problem { place: Some(entry.place), path, message });
                }
                key => {
                    let message = match nearest(key, KEYS) {
                        Some(meant) => format!("unknown key; did you mean `{meant}`?"),
                        None => format!("unknown key; {BLOCK} has {}", KEYS.join(", ")),
                    };
                    self.report(entry.place, &path, message);
                }
            }
            read.keys.push((entry.key.clone(), entry.value.place));
        }
        Slot::Given(read)
    }

    fn weights(&mut self, weights: &Entry) -> BTreeMap<Box<[u8]>, Decimal> {
        let mut read = BTreeMap::new();
        if matches!(weights.value.value, Value::Refused) {
            return read;
        }
        let Value::Map(entries) = &weights.value.value else {
            let kind = weights.value.kind();
            let message = format!("{kind} where a map belongs; write weights: {{ gold: 2 }}");
            self.report(weights.value.place, &format!("{BLOCK}.weights"), message);
            return read;
        };
        for entry in entries {
            let path = format!("{BLOCK}.weights.{}", quoted_key(&entry.key));
            let positive = |text: &str| match scalar::decimal(text)? {
                weight if weight.is_zero() => Err("must be more than zero".to_owned()),
                weight => Ok(weight),
            };
            let example = format!("{}: 2", quoted_key(&entry.key));
            if let Slot::Given(weight) = self.value(entry, &path, &example, positive) {
                read.insert(Box::from(entry.key.as_bytes()), weight);
            }
        }
        read
    }

    /// One value below the policy, reported with its whole path.
    pub(super) fn value<T>(
        &mut self,
        entry: &Entry,
        path: &str,
        example: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Slot<T> {
        if matches!(entry.value.value, Value::Refused) {
            return Slot::Bad;
        }
        match scalar::text(&entry.value, example).and_then(read) {
            Ok(value) => Slot::Given(value),
            Err(message) => {
                let place = if entry.value.is_null() { entry.place } else { entry.value.place };
                self.report(place, path, message);
                Slot::Bad
            }
        }
    }

    /// The policy that has the block. `None` if anything is wrong with it.
    pub(super) fn escrow(&mut self, defaults: Defaults, raw: &Raw<'_>) -> Option<PolicyConfig> {
        let may = |key: &str| key == BLOCK || BESIDE.contains(&key);
        for &(key, place) in raw.keys.iter().filter(|(key, _)| !may(key)) {
            let beside = BESIDE.join(", ");
            let message = format!("does not apply beside {BLOCK}; beside it a policy has {beside}");
            self.report(place, key, message);
        }
        let escrow = raw.fair_escrow.value().and_then(|block| self.resolved(block));
        let rule = escrow.as_ref().map(|escrow| {
            let EscrowRules { limit, window, .. } = escrow.rules;
            Rule::FixedWindow { limit, window }
        });
        let strategy: Option<Builtin> = escrow.as_ref().and_then(|escrow| {
            let window = Window::fixed(escrow.rules.limit, escrow.rules.window);
            window.ok().map(Builtin::from)
        });
        let cost = self.cost_axis(raw);
        let (fail, store) = self.shared(defaults, &shares_of(strategy, cost.as_ref()), raw);
        let escrow = escrow?;
        let rate = RateConfig {
            rule: rule?,
            strategy: strategy?,
            max_keys: u64::try_from(escrow.rules.max_keys).ok()?,
            on_full: OnFull::Deny,
            tier: TierConfig::Strict,
            escrow: Some(escrow),
        };
        self.joined(Axes { rate: Some(rate), concurrency: None, cost }, (fail?, store), raw)
    }

    fn resolved(&mut self, block: &Block) -> Option<EscrowConfig> {
        let limit = self.required(block, "limit", "limit: 100", &block.limit).copied();
        let window = match &block.period {
            Slot::Absent => self.required(block, "windowMs", "windowMs: 60000", &block.window_ms),
            period => period.value(),
        };
        let (limit, window) = (limit, window.copied());
        let mut rules = EscrowRules::new(limit?, window?);
        rules.weights.clone_from(&block.weights);
        if let Some(&max_keys) = block.max_keys.value() {
            rules.max_keys = usize::try_from(max_keys).unwrap_or(usize::MAX);
        }
        let built = FairEscrow::on_clock(&rules, ManualClock::default());
        let quantum = built.and_then(|_| Quantum::new(&rules, block.quantum.value().copied()));
        match quantum {
            Ok(quantum) => Some(EscrowConfig { rules, quantum }),
            Err(invalid) => {
                self.escrow_refused(invalid, block);
                None
            }
        }
    }

    fn required<'s, T>(
        &mut self,
        block: &Block,
        key: &str,
        example: &str,
        slot: &'s Slot<T>,
    ) -> Option<&'s T> {
        let misspelt = |(given, _): &(String, Place)| nearest(given, KEYS) == Some(key);
        if slot.is_absent() && !block.keys.iter().any(misspelt) {
            let message = format!("missing; {BLOCK} needs it, e.g. {example}");
            let place = block.place.unwrap_or(self.name.place);
            self.report(place, &format!("{BLOCK}.{key}"), message);
        }
        slot.value()
    }

    /// Reports what core refused, at the key that caused it.
    fn escrow_refused(&mut self, invalid: Invalid, block: &Block) {
        let keys: &[&str] = match invalid {
            Invalid::Zero(parameter)
            | Invalid::TooLarge { parameter, .. }
            | Invalid::TooSmall { parameter, .. }
            | Invalid::TooMany { parameter, .. } => match parameter {
                Parameter::Limit => &["limit"],
                Parameter::Window => &["period", "windowMs"],
                Parameter::Weight | Parameter::DifferentWeights => &["weights"],
                Parameter::MaxKeys => &["maxKeys", "weights"],
                Parameter::Quantum => &["quantum"],
                _ => &[],
            },
            _ => &[],
        };
        let found = keys.iter().find_map(|key| block.keys.iter().find(|(given, _)| given == key));
        let in_ticks = matches!(invalid, Invalid::TooLarge { parameter: Parameter::Window, .. });
        let unit = if in_ticks { " (in microseconds)" } else { "" };
        let (path, place) = match found {
            Some((key, place)) => (format!("{BLOCK}.{key}"), *place),
            None => (BLOCK.to_owned(), block.place.unwrap_or(self.name.place)),
        };
        self.report(place, &path, format!("{invalid}{unit}"));
    }
}

/// The block as a policy file writes it, below the policy's name.
impl fmt::Display for EscrowConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EscrowRules { limit, window, weights, max_keys } = &self.rules;
        writeln!(f, "    {BLOCK}:\n      limit: {limit}\n      period: {}", Length(*window))?;
        writeln!(f, "      maxKeys: {max_keys}\n      quantum: {}", self.quantum.credits())?;
        if !weights.is_empty() {
            writeln!(f, "      weights:")?;
        }
        for (tenant, weight) in weights {
            let tenant = yaml_text(&String::from_utf8_lossy(tenant));
            writeln!(f, "        {tenant}: {weight}")?;
        }
        Ok(())
    }
}

pub(super) const BLOCK: &str = "fairEscrow";
pub(super) const KEYS: &[&str] = &["limit", "windowMs", "period", "weights", "maxKeys", "quantum"];
/// What a policy with the block may say beside it.
const BESIDE: &[&str] = &[
    BLOCK,
    "prefix",
    "fail",
    "share",
    "hashTag",
    "waitReplicas",
    "storeDeadline",
    "durable",
    "load",
    "cost",
    "joint",
    "atomicity",
    "shadow",
];
const EXAMPLE: &str = "fairEscrow: { limit: 100, windowMs: 60000 }";
