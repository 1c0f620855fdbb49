//! The `twoTier` and `federated` blocks: how much of a shared limit this process may hold.

use std::fmt;

use admittance::two_tier::{Batch, Leasing};
use admittance::{Builtin, Span, Window};

use super::node::{Entry, Value};
use super::policy::{Raw, Reader, Slot, TRUTH, quoted_key};
use super::problem::{Place, Problem, nearest, quoted};
use super::rule::{Length, Rule};
use super::scalar;

/// What stands between a policy's requests and its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierConfig {
    /// Nothing: every request asks.
    #[default]
    Strict,
    /// Denials are remembered.
    CachedDeny,
    /// Batches are borrowed and spent here.
    Leased(Leasing),
    /// The same, and clients far away may borrow too, over the fleet door.
    Federated(Leasing),
}

impl TierConfig {
    /// Whether every request asks the store, so that looks are the whole truth.
    #[must_use]
    pub const fn is_strict(&self) -> bool {
        matches!(self, Self::Strict)
    }

    /// Whether clients far away may borrow.
    #[must_use]
    pub const fn is_federated(&self) -> bool {
        matches!(self, Self::Federated(_))
    }
}

/// What was typed in one of the blocks.
pub(super) struct Block {
    name: &'static str,
    place: Place,
    keys: Vec<(String, Place)>,
    mode: Slot<Mode>,
    batch: Slot<Batch>,
    low_water: Slot<u64>,
    coupled: Slot<bool>,
    lease_time: Slot<Span>,
    idle_after: Slot<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Strict,
    CachedDeny,
    Leased,
}

impl Reader<'_, '_> {
    /// Reads a block, value by value.
    pub(super) fn lease_block(&mut self, block: &Entry, name: &'static str) -> Slot<Block> {
        if matches!(block.value.value, Value::Refused) {
            return Slot::Bad;
        }
        let (keys, example): (&[&str], &str) = match name {
            TWO_TIER => (TWO_TIER_KEYS, TWO_TIER_EXAMPLE),
            _ => (FEDERATED_KEYS, FEDERATED_EXAMPLE),
        };
        let none = Vec::new();
        let entries = match &block.value.value {
            Value::Map(entries) => entries,
            _ if block.value.is_null() && name == FEDERATED => &none,
            _ => {
                let kind = block.value.kind();
                let message = format!("{kind} where a map belongs; write {example}");
                self.report(block.value.place, name, message);
                return Slot::Bad;
            }
        };
        let mut read = Block {
            name,
            place: block.place,
            keys: Vec::new(),
            mode: Slot::Absent,
            batch: Slot::Absent,
            low_water: Slot::Absent,
            coupled: Slot::Absent,
            lease_time: Slot::Absent,
            idle_after: Slot::Absent,
        };
        for entry in entries {
            self.lease_value(entry, &mut read, keys);
            read.keys.push((entry.key.clone(), entry.value.place));
        }
        Slot::Given(read)
    }

    fn lease_value(&mut self, entry: &Entry, read: &mut Block, keys: &[&'static str]) {
        let path = format!("{}.{}", read.name, quoted_key(&entry.key));
        let key = entry.key.as_str();
        match key {
            _ if !keys.contains(&key) => {
                let message = match nearest(key, keys) {
                    Some(meant) => format!("unknown key; did you mean `{meant}`?"),
                    None => format!("unknown key; {} has {}", read.name, keys.join(", ")),
                };
                self.report(entry.place, &path, message);
            }
            "mode" => {
                let modes = |text: &str| scalar::one_of(text, MODES);
                read.mode = self.value(entry, &path, "mode: leased", modes);
            }
            "batch" => read.batch = self.value(entry, &path, "batch: 100", batch),
            "lowWater" => read.low_water = self.value(entry, &path, "lowWater: 0", scalar::whole),
            "windowCoupled" => {
                let truth = |text: &str| scalar::one_of(text, TRUTH);
                read.coupled = self.value(entry, &path, "windowCoupled: true", truth);
            }
            "leaseTime" => {
                read.lease_time = self.value(entry, &path, "leaseTime: 1s", scalar::period);
            }
            "returnIdleAfterMs" => {
                let example = "returnIdleAfterMs: 1000";
                read.idle_after = self.value(entry, &path, example, scalar::milliseconds);
            }
            // A region has no meaning where there is one coordinator; a policy's keys have its own
            // name in the store, which `prefix` beside the block changes.
            _ => {
                let path = format!("{}.{path}", self.path);
                let message = "has no meaning here and is ignored".into();
                self.warnings.push(Problem { place: Some(entry.place), path, message });
            }
        }
    }

    /// What stands before the store, and the rule as it is then kept. A deadline that the policy
    /// does not say is no longer than leasing allows.
    pub(super) fn tier(
        &mut self,
        rule: Rule,
        strategy: Builtin,
        deadline: &mut Span,
        raw: &Raw<'_>,
    ) -> Option<(Rule, Builtin, TierConfig)> {
        let (block, is_federated) = match (&raw.two_tier, &raw.federated) {
            (Slot::Absent, Slot::Absent) => return Some((rule, strategy, TierConfig::Strict)),
            (Slot::Given(block), Slot::Absent) => (block, false),
            (Slot::Absent, Slot::Given(block)) => (block, true),
            (Slot::Given(_), Slot::Given(block)) => {
                self.report(block.place, FEDERATED, "does not go with twoTier; keep one".into());
                return None;
            }
            _ => return None,
        };
        let (rule, strategy) = match is_federated {
            true => self.windowed(rule, strategy, block)?,
            false => (rule, strategy),
        };
        match block.mode.value().copied().unwrap_or(Mode::Leased) {
            Mode::Strict => return Some((rule, strategy, TierConfig::Strict)),
            Mode::CachedDeny => return Some((rule, strategy, TierConfig::CachedDeny)),
            Mode::Leased => {}
        }
        let default = if is_federated { Some(&FEDERATED_BATCH) } else { None };
        let Some(&batch) = block.batch.value().or(default) else {
            if block.batch.is_absent() {
                let message = "missing; mode leased needs it, e.g. batch: 100 or batch: learned";
                self.report(block.place, &format!("{}.batch", block.name), message.into());
            }
            return None;
        };
        let leasing = Leasing {
            batch,
            low_water: block.low_water.value().copied().unwrap_or(0),
            coupled: block.coupled.value().copied().unwrap_or(true),
            lease_time: block.lease_time.value().copied(),
            idle_after: block.idle_after.value().copied(),
            ..Leasing::default()
        };
        if raw.store_deadline.is_absent() {
            let most = leasing.deadline_max(&strategy).max(DEADLINE_LEAST);
            *deadline = most.min(*deadline);
        }
        if let Err(invalid) = leasing.checked(&strategy, *deadline) {
            self.report(block.place, block.name, invalid.to_string());
            return None;
        }
        let tier = if is_federated { TierConfig::Federated } else { TierConfig::Leased };
        Some((rule, strategy, tier(leasing)))
    }

    /// A federated limit is a budget per window.
    fn windowed(
        &mut self,
        rule: Rule,
        strategy: Builtin,
        block: &Block,
    ) -> Option<(Rule, Builtin)> {
        match rule {
            Rule::FixedWindow { .. } | Rule::Quota { .. } => Some((rule, strategy)),
            Rule::SlidingWindow { limit, window, .. } => {
                let path = format!("{}.{FEDERATED}", self.path);
                let message = "a federated slidingWindow is kept as a fixedWindow".into();
                self.warnings.push(Problem { place: Some(block.place), path, message });
                let strategy = Window::fixed(limit, window).ok()?.into();
                Some((Rule::FixedWindow { limit, window }, strategy))
            }
            _ => {
                let message = format!(
                    "{} has no windows that a budget could belong to; a federated policy is a \
                     fixedWindow, a slidingWindow or a quota with windows",
                    rule.strategy()
                );
                self.report(block.place, FEDERATED, message);
                None
            }
        }
    }
}

fn batch(text: &str) -> Result<Batch, String> {
    match text {
        "learned" => Ok(Batch::Learned),
        "predictive" => Ok(Batch::Predictive),
        _ => match scalar::whole(text) {
            Ok(0) => Err("must be at least 1, or learned, or predictive".into()),
            Ok(units) => Ok(Batch::Fixed(units)),
            Err(_) => Err(format!(
                "{} is not a batch; write a whole number, learned or predictive",
                quoted(text)
            )),
        },
    }
}

/// The block as a policy file writes it, below the policy's name.
impl fmt::Display for TierConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (block, leasing) = match self {
            Self::Strict => return Ok(()),
            Self::CachedDeny => return writeln!(f, "    {TWO_TIER}:\n      mode: cached-deny"),
            Self::Leased(leasing) => (TWO_TIER, leasing),
            Self::Federated(leasing) => (FEDERATED, leasing),
        };
        writeln!(f, "    {block}:")?;
        match leasing.batch {
            Batch::Fixed(units) => writeln!(f, "      batch: {units}")?,
            Batch::Learned => writeln!(f, "      batch: learned")?,
            Batch::Predictive => writeln!(f, "      batch: predictive")?,
        }
        if block == FEDERATED {
            return Ok(());
        }
        writeln!(f, "      lowWater: {}", leasing.low_water)?;
        writeln!(f, "      windowCoupled: {}", leasing.coupled)?;
        if let Some(lease_time) = leasing.lease_time {
            writeln!(f, "      leaseTime: {}", Length(lease_time))?;
        }
        match leasing.idle_after {
            Some(idle) => writeln!(f, "      returnIdleAfterMs: {}", idle.ms_ceil()),
            None => Ok(()),
        }
    }
}

pub(super) const TWO_TIER: &str = "twoTier";
pub(super) const FEDERATED: &str = "federated";
pub(super) const TWO_TIER_KEYS: &[&str] =
    &["mode", "batch", "lowWater", "windowCoupled", "returnIdleAfterMs", "leaseTime"];
pub(super) const FEDERATED_KEYS: &[&str] = &["batch", "region", "prefix"];
const TWO_TIER_EXAMPLE: &str = "twoTier: { batch: 100 }";
const FEDERATED_EXAMPLE: &str = "federated: { batch: 16 }";
const FEDERATED_BATCH: Batch = Batch::Fixed(16);
/// A store is waited for at least so long, however short what is leased lives.
const DEADLINE_LEAST: Span = Span::from_ms(20);
pub(super) const MODES: &[(&str, Mode)] =
    &[("strict", Mode::Strict), ("cached-deny", Mode::CachedDeny), ("leased", Mode::Leased)];
