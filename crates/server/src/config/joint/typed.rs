//! What was typed in a `joint` block, value by value.

use admittance::learn::price::KINDS_MAX;
use admittance::{Decimal, Span};

use super::super::node::{Entry, Value};
use super::super::policy::{Reader, Slot, quoted_key};
use super::super::problem::Place;
use super::super::scalar;
use super::{AXES, BLOCK, in_range};

/// What was typed in the block.
#[derive(Default)]
pub(in super::super) struct Block {
    pub(super) place: Option<Place>,
    /// The keys with those they stand below, as in `budgets.rate`.
    pub(super) keys: Vec<(String, Place)>,
    /// Of rate, cost, concurrency.
    pub(super) prices: [Slot<Decimal>; 3],
    pub(super) kinds: Vec<Typed>,
    pub(super) period: Slot<Span>,
    pub(super) rate: Slot<Decimal>,
    pub(super) cost: Slot<Decimal>,
    pub(super) concurrency: Slot<u64>,
    pub(super) window: Slot<Span>,
}

/// What was typed about one kind.
pub(super) struct Typed {
    pub(super) path: String,
    pub(super) place: Place,
    pub(super) weight: Slot<Decimal>,
    pub(super) value: Slot<Decimal>,
    pub(super) cost: Slot<u64>,
    pub(super) hold: Slot<Span>,
}

impl Block {
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(given, _)| given == key)
    }
}

impl Reader<'_, '_> {
    /// Reads the block, value by value.
    pub(in super::super) fn joint_block(&mut self, block: &Entry) -> Slot<Block> {
        let Some(entries) = self.map_of(block, BLOCK, EXAMPLE) else { return Slot::Bad };
        let found_before = self.problems.len();
        let mut read = Block { place: Some(block.place), ..Block::default() };
        for entry in entries {
            let path = format!("{BLOCK}.{}", quoted_key(&entry.key));
            let (keys, example) = match entry.key.as_str() {
                "prices" => (AXES, PRICES_EXAMPLE),
                "budgets" => (BUDGET_KEYS, BUDGETS_EXAMPLE),
                "refine" => (REFINE_KEYS, REFINE_EXAMPLE),
                "kinds" => {
                    read.kinds = self.kinds(entry, &path);
                    read.keys.push((entry.key.clone(), entry.value.place));
                    continue;
                }
                _ => {
                    self.unknown_in(entry, &path, BLOCK, KEYS);
                    continue;
                }
            };
            read.keys.push((entry.key.clone(), entry.value.place));
            for below in self.map_of(entry, &path, example).unwrap_or_default() {
                let path = format!("{path}.{}", quoted_key(&below.key));
                if keys.contains(&below.key.as_str()) {
                    read.keys.push((format!("{}.{}", entry.key, below.key), below.value.place));
                    self.joint_value(below, &entry.key, &path, &mut read);
                } else {
                    self.unknown_in(below, &path, &entry.key, keys);
                }
            }
        }
        // What is wrong already would only be followed by what is missing because of it.
        if self.problems.len() > found_before { Slot::Bad } else { Slot::Given(read) }
    }

    fn joint_value(&mut self, entry: &Entry, of: &str, path: &str, read: &mut Block) {
        match (of, entry.key.as_str()) {
            ("prices", key) => {
                let example = format!("{key}: 0.5");
                let price = self.value(entry, path, &example, scalar::decimal);
                let place = AXES.iter().position(|axis| *axis == key);
                if let Some(slot) = place.and_then(|place| read.prices.get_mut(place)) {
                    *slot = price;
                }
            }
            ("refine", _) => read.window = self.value(entry, path, "window: 1m", length),
            (_, "period") => read.period = self.value(entry, path, "period: 1m", length),
            (_, "rate") => read.rate = self.value(entry, path, "rate: 1000", positive),
            (_, "cost") => read.cost = self.value(entry, path, "cost: 100000", positive),
            _ => {
                let permits = |text: &str| match scalar::whole(text)? {
                    0 => Err("must be more than zero".to_owned()),
                    permits => Ok(permits),
                };
                read.concurrency = self.value(entry, path, "concurrency: 50", permits);
            }
        }
    }

    fn kinds(&mut self, kinds: &Entry, path: &str) -> Vec<Typed> {
        let Value::List(values) = &kinds.value.value else {
            if !matches!(kinds.value.value, Value::Refused) {
                let kind = kinds.value.kind();
                let message = format!("{kind} where a list belongs; write {KINDS_EXAMPLE}");
                self.report(kinds.value.place, path, message);
            }
            return Vec::new();
        };
        if values.is_empty() || values.len() > KINDS_MAX {
            let number = values.len();
            let message =
                format!("{number} kinds; write 1 to {KINDS_MAX}, and one for those that are alike");
            self.report(kinds.value.place, path, message);
            return Vec::new();
        }
        let mut read = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let (key, place) = (kinds.key.clone(), value.place);
            // A map in a list has no key of its own.
            let entry = Entry { key, place, value: value.clone() };
            let Some(entries) = self.map_of(&entry, &path, KINDS_EXAMPLE) else { continue };
            let mut typed = Typed {
                path,
                place,
                weight: Slot::Absent,
                value: Slot::Absent,
                cost: Slot::Absent,
                hold: Slot::Absent,
            };
            for entry in entries {
                self.kind_value(entry, &mut typed);
            }
            read.push(typed);
        }
        read
    }

    fn kind_value(&mut self, entry: &Entry, typed: &mut Typed) {
        let path = format!("{}.{}", typed.path, quoted_key(&entry.key));
        match entry.key.as_str() {
            "weight" => typed.weight = self.value(entry, &path, "weight: 60", positive),
            "value" => typed.value = self.value(entry, &path, "value: 5", scalar::decimal),
            "cost" => typed.cost = self.value(entry, &path, "cost: 300", scalar::whole),
            "hold" => typed.hold = self.value(entry, &path, "hold: 50ms", scalar::period),
            _ => self.unknown_in(entry, &path, "a kind", KIND_KEYS),
        }
    }

    /// The entries of what must be a map.
    fn map_of<'e>(&mut self, entry: &'e Entry, path: &str, example: &str) -> Option<&'e [Entry]> {
        match &entry.value.value {
            Value::Map(entries) => Some(entries),
            Value::Refused => None,
            _ => {
                let kind = entry.value.kind();
                let message = format!("{kind} where a map belongs; write {example}");
                self.report(entry.value.place, path, message);
                None
            }
        }
    }
}

fn positive(text: &str) -> Result<Decimal, String> {
    match scalar::decimal(text)? {
        number if number.is_zero() => Err("must be more than zero".into()),
        number => Ok(number),
    }
}

fn length(text: &str) -> Result<Span, String> {
    scalar::period(text).and_then(|span| in_range(span, text))
}

pub(in super::super) const KEYS: &[&str] = &["prices", "kinds", "budgets", "refine"];
pub(in super::super) const BUDGET_KEYS: &[&str] = &["period", "rate", "cost", "concurrency"];
pub(in super::super) const REFINE_KEYS: &[&str] = &["window"];
pub(in super::super) const KIND_KEYS: &[&str] = &["weight", "value", "cost", "hold"];
const EXAMPLE: &str = "joint: { prices: { rate: 0.5 } }";
const PRICES_EXAMPLE: &str = "prices: { rate: 0.5, cost: 0.001 }";
const BUDGETS_EXAMPLE: &str = "budgets: { period: 1m, rate: 1000 }";
const REFINE_EXAMPLE: &str = "refine: { window: 1m }";
const KINDS_EXAMPLE: &str = "kinds: [{ weight: 60, value: 5, cost: 300 }]";
