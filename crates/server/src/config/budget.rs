//! The `tokenBudget`, `fleetBudget` and `cost` blocks: how much may be spent in each window.

use std::fmt;

use admittance::budget::{Budget, Budgets, Debt};
use admittance::{Atomicity, Builtin, Cadence, Invalid, Parameter, Span, Weekday, Window};

use super::admission::shares_of;
use super::node::{Entry, Value};
use super::policy::{Raw, Reader, Slot, TRUTH, is_ignored, quoted_key};
use super::problem::{Place, Problem, nearest, quoted};
use super::rule::Length;
use super::{Defaults, PolicyConfig, scalar, yaml_text};

/// The cost axis of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostConfig {
    /// Its budgets by name, one for each kind of window, in the order of the file.
    pub budgets: Vec<(String, Budget)>,
    /// Whether all instances on a store share them.
    pub is_shared: bool,
    /// Whether Admit charges them, as one axis of its policy: the file says `cost`.
    pub is_axis: bool,
    /// How many keys have accounts in this process at most.
    pub max_keys: u64,
    /// How long a reservation lives without being heard of.
    pub lease_ttl: Span,
    /// How much is reserved for who does not say.
    pub reserve: ReserveConfig,
}

/// How much is reserved for who does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveConfig {
    /// So much. With nothing, work is only metered.
    Units(u64),
    /// What is learned from settlements.
    Learned {
        /// What a unit costs that is reserved and not used, beside `overrun`.
        hold: u64,
        /// What a unit costs that is used and not reserved.
        overrun: u64,
        /// The least that is reserved.
        min: u64,
        /// The most.
        max: u64,
    },
}

impl CostConfig {
    /// How many accounts are kept if nobody says otherwise.
    pub const MAX_KEYS_DEFAULT: u64 = 100_000;

    /// How many accounts that are: each key has one for each window.
    #[must_use]
    pub fn accounts_max(&self) -> u64 {
        self.max_keys.saturating_mul(self.budgets.len() as u64)
    }

    /// The smallest budget, as what a share can be taken of.
    pub(super) fn smallest(&self) -> Option<Builtin> {
        let budgets = self.budgets.iter().map(|(_, budget)| budget);
        let budget = budgets.min_by_key(|budget| budget.limit())?;
        Window::quota(budget.limit(), budget.cadence()).ok().map(Builtin::from)
    }

    /// How long a reservation lives without being heard of if nobody says otherwise.
    pub const LEASE_TTL_DEFAULT: Span = Span::from_secs(30);
}

/// What was typed in one of the blocks.
#[derive(Default)]
pub(super) struct Block {
    name: &'static str,
    own: Typed,
    windows: Vec<(String, Typed)>,
    max_keys: Slot<u64>,
    lease_ttl: Slot<Span>,
    reserve: Slot<Option<u64>>,
    hold: Slot<u64>,
    overrun: Slot<u64>,
    reserve_min: Slot<u64>,
    reserve_max: Slot<u64>,
    prefix: Slot<String>,
    shared: Slot<bool>,
}

/// What was typed about one window.
#[derive(Default)]
struct Typed {
    path: String,
    place: Option<Place>,
    keys: Vec<(String, Place)>,
    budget: Slot<u64>,
    window_ms: Slot<Span>,
    period: Slot<Span>,
    cadence: Slot<Civil>,
    anchor: Slot<i64>,
    offset_minutes: Slot<i64>,
    week_starts_on: Slot<Weekday>,
    debt: Slot<Debt>,
    soft: Slot<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Civil {
    Day,
    Week,
    Month,
    Fixed,
}

impl Reader<'_, '_> {
    /// Reads a block, value by value.
    pub(super) fn budget_block(&mut self, block: &Entry, name: &'static str) -> Slot<Block> {
        if matches!(block.value.value, Value::Refused) {
            return Slot::Bad;
        }
        let Value::Map(entries) = &block.value.value else {
            let kind = block.value.kind();
            let message = format!("{kind} where a map belongs; write {name}: {EXAMPLE}");
            self.report(block.value.place, name, message);
            return Slot::Bad;
        };
        let own = Typed { path: name.to_owned(), place: Some(block.place), ..Typed::default() };
        let mut read = Block { name, own, ..Block::default() };
        for entry in entries {
            let path = format!("{name}.{}", quoted_key(&entry.key));
            let is_read = self.block_value(entry, &path, &mut read)
                || self.window_value(entry, &path, &mut read.own);
            if !is_read {
                let own: &[&str] = if name == AXIS { &["shared"] } else { &[] };
                self.unknown_in(entry, &path, name, &[own, BLOCK_KEYS, WINDOW_KEYS].concat());
            }
            read.own.keys.push((entry.key.clone(), entry.value.place));
        }
        Slot::Given(read)
    }

    fn block_value(&mut self, entry: &Entry, path: &str, read: &mut Block) -> bool {
        let mut whole = |slot: &mut Slot<u64>, example: &str| {
            *slot = self.value(entry, path, example, scalar::whole);
        };
        match entry.key.as_str() {
            "maxKeys" => whole(&mut read.max_keys, "maxKeys: 100000"),
            "hold" => whole(&mut read.hold, "hold: 1"),
            "overrun" => whole(&mut read.overrun, "overrun: 9"),
            "reserveMin" => whole(&mut read.reserve_min, "reserveMin: 16"),
            "reserveMax" => whole(&mut read.reserve_max, "reserveMax: 4096"),
            "reserve" => read.reserve = self.value(entry, path, "reserve: learned", reserve),
            "leaseTtl" => {
                read.lease_ttl = self.value(entry, path, "leaseTtl: 30s", super::lease_ttl);
            }
            "windows" => read.windows = self.windows(entry, path),
            "prefix" if read.name == SHARED => {
                let text = |text: &str| Ok(text.to_owned());
                read.prefix = self.value(entry, path, "prefix: \"\"", text);
            }
            "shared" if read.name == AXIS => {
                let words = |text: &str| scalar::one_of(text, TRUTH);
                read.shared = self.value(entry, path, "shared: true", words);
            }
            key if is_ignored(key) || key == "prefix" && read.name == LOCAL => {
                let path = format!("{}.{path}", self.path);
                let message = "has no meaning here and is ignored".into();
                self.warnings.push(Problem { place: Some(entry.place), path, message });
            }
            _ => return false,
        }
        true
    }

    fn window_value(&mut self, entry: &Entry, path: &str, read: &mut Typed) -> bool {
        match entry.key.as_str() {
            "budget" => read.budget = self.value(entry, path, "budget: 100000", scalar::whole),
            "windowMs" => {
                read.window_ms = self.value(entry, path, "windowMs: 60000", scalar::milliseconds);
            }
            "period" => read.period = self.value(entry, path, "period: 1m", scalar::period),
            "resetCadence" => {
                let words = |text: &str| scalar::one_of(text, CADENCES);
                read.cadence = self.value(entry, path, "resetCadence: calendar-day", words);
            }
            "anchor" => read.anchor = self.value(entry, path, "anchor: 0", scalar::signed),
            "offsetMinutes" => {
                read.offset_minutes = self.value(entry, path, "offsetMinutes: 0", scalar::signed);
            }
            "weekStartsOn" => {
                read.week_starts_on = self.value(entry, path, "weekStartsOn: 1", scalar::weekday);
            }
            "debt" => {
                let words = |text: &str| scalar::one_of(text, DEBTS);
                read.debt = self.value(entry, path, "debt: carry", words);
            }
            "softStop" => read.soft = self.value(entry, path, "softStop: 500", scalar::whole),
            _ => return false,
        }
        true
    }

    fn windows(&mut self, windows: &Entry, path: &str) -> Vec<(String, Typed)> {
        if matches!(windows.value.value, Value::Refused) {
            return Vec::new();
        }
        let Value::Map(entries) = &windows.value.value else {
            let kind = windows.value.kind();
            let message = format!("{kind} where a map belongs; write windows: {WINDOWS_EXAMPLE}");
            self.report(windows.value.place, path, message);
            return Vec::new();
        };
        let mut read = Vec::new();
        for window in entries {
            let path = format!("{path}.{}", quoted_key(&window.key));
            let Value::Map(values) = &window.value.value else {
                let kind = window.value.kind();
                let message = format!("{kind} where a map belongs; write {EXAMPLE}");
                self.report(window.value.place, &path, message);
                continue;
            };
            let mut typed =
                Typed { path: path.clone(), place: Some(window.place), ..Typed::default() };
            for entry in values {
                let path = format!("{path}.{}", quoted_key(&entry.key));
                if !self.window_value(entry, &path, &mut typed) {
                    self.unknown_in(entry, &path, "a window", WINDOW_KEYS);
                }
                typed.keys.push((entry.key.clone(), entry.value.place));
            }
            read.push((window.key.clone(), typed));
        }
        read
    }

    pub(super) fn unknown_in(
        &mut self,
        entry: &Entry,
        path: &str,
        what: &str,
        keys: &[&'static str],
    ) {
        let message = match nearest(&entry.key, keys) {
            Some(meant) => format!("unknown key; did you mean `{meant}`?"),
            None => format!("unknown key; {what} has {}", keys.join(", ")),
        };
        self.report(entry.place, path, message);
    }

    /// The policy that has one of the blocks. `None` if anything is wrong with it.
    pub(super) fn budget(&mut self, defaults: Defaults, raw: &Raw<'_>) -> Option<PolicyConfig> {
        let (block, name) = match (raw.token_budget.is_absent(), raw.fleet_budget.is_absent()) {
            (false, false) => {
                let message = "does not go with fleetBudget; keep one";
                self.report(self.name.place, LOCAL, message.into());
                return None;
            }
            (false, true) => (&raw.token_budget, LOCAL),
            _ => (&raw.fleet_budget, SHARED),
        };
        for &(key, place) in raw.keys.iter().filter(|(key, _)| !BESIDE.contains(key)) {
            let beside = BESIDE[2..].join(", ");
            let message = format!("does not apply beside {name}; beside it a policy has {beside}");
            self.report(place, key, message);
        }
        let cost = block.value().and_then(|block| self.costs(block));
        let (fail, store) = self.shared(defaults, &shares_of(None, cost.as_ref()), raw);
        Some(PolicyConfig {
            name: self.name.key.clone(),
            rate: None,
            concurrency: None,
            cost: Some(cost?),
            load: raw.load.value().copied(),
            joint: None,
            atomicity: Atomicity::All,
            prefix: raw.prefix.value().or(block.value()?.prefix.value()).cloned(),
            fail: fail?,
            store,
            shadow: raw.shadow.value().cloned().unwrap_or_default(),
        })
    }

    pub(super) fn costs(&mut self, block: &Block) -> Option<CostConfig> {
        let mut budgets = Vec::new();
        if block.windows.is_empty() {
            budgets.push((ONLY.to_owned(), self.one(&block.own, None, block.name)?));
        } else {
            let own = |key: &str| WINDOW_KEYS.contains(&key) && key != "debt";
            for (key, place) in block.own.keys.iter().filter(|(key, _)| own(key)) {
                let message = "does not go with windows, which have their own".to_owned();
                self.report(*place, &format!("{}.{key}", block.name), message);
            }
            for (name, typed) in &block.windows {
                let budget = self.one(typed, block.own.debt.value().copied(), "a window");
                budgets.extend(budget.map(|budget| (name.clone(), budget)));
            }
            if budgets.len() < block.windows.len() {
                return None;
            }
        }
        let each: Vec<Budget> = budgets.iter().map(|(_, budget)| *budget).collect();
        if let Err(invalid) = Budgets::new(self.name.key.as_str(), each) {
            let place = block.own.place.unwrap_or(self.name.place);
            self.report(place, block.name, invalid.to_string());
            return None;
        }
        let max_keys = block.max_keys.value().copied().unwrap_or(CostConfig::MAX_KEYS_DEFAULT);
        let in_range = (1..=PolicyConfig::MAX_KEYS_MAX).contains(&max_keys);
        if !in_range {
            let message = format!("must lie between 1 and {}", PolicyConfig::MAX_KEYS_MAX);
            self.report_at(&block.own, "maxKeys", message);
        }
        let smallest = budgets.iter().map(|(_, budget)| budget.limit()).min().unwrap_or(1);
        let reserve = self.reserves(block, smallest)?;
        let lease_ttl = block.lease_ttl.value().copied();
        Some(CostConfig {
            budgets,
            is_shared: match block.name {
                AXIS => block.shared.value().copied().unwrap_or(true),
                name => name == SHARED,
            },
            is_axis: block.name == AXIS,
            max_keys,
            lease_ttl: lease_ttl.unwrap_or(CostConfig::LEASE_TTL_DEFAULT),
            reserve,
        })
        .filter(|_| in_range)
    }

    fn one(&mut self, typed: &Typed, debt: Option<Debt>, what: &str) -> Option<Budget> {
        if typed.budget.is_absent() {
            let message = format!("missing; {what} needs it, e.g. budget: 100000");
            self.report_at(typed, "budget", message);
        }
        let cadence = self.cadence_of(typed, what);
        let built = Budget::new(*typed.budget.value()?, cadence?);
        let budget = match built {
            Ok(budget) => budget,
            Err(invalid) => {
                self.budget_refused(invalid, typed);
                return None;
            }
        };
        let budget = budget.debt(typed.debt.value().copied().or(debt).unwrap_or_default());
        let soft = typed.soft.value().copied().unwrap_or(budget.soft_left());
        if soft > budget.limit() {
            let message = format!("is more than the budget of {}", budget.limit());
            self.report_at(typed, "softStop", message);
            return None;
        }
        Some(budget.soft(soft))
    }

    fn cadence_of(&mut self, typed: &Typed, what: &str) -> Option<Cadence> {
        let minutes = typed.offset_minutes.value().copied().unwrap_or(0);
        let Ok(offset_minutes) = i16::try_from(minutes) else {
            self.budget_refused(Invalid::OffsetOutOfRange { minutes }, typed);
            return None;
        };
        let civil = match &typed.cadence {
            Slot::Absent => Civil::Fixed,
            given => *given.value()?,
        };
        let foreign: &[&str] = match civil {
            Civil::Fixed => &["offsetMinutes", "weekStartsOn"],
            Civil::Week => &["windowMs", "period", "anchor"],
            Civil::Day | Civil::Month => &["windowMs", "period", "anchor", "weekStartsOn"],
        };
        for (key, place) in typed.keys.iter().filter(|(key, _)| foreign.contains(&key.as_str())) {
            let path = format!("{}.{key}", typed.path);
            self.report(*place, &path, "does not go with this resetCadence".to_owned());
        }
        Some(match civil {
            Civil::Day => Cadence::Day { offset_minutes },
            Civil::Month => Cadence::Month { offset_minutes },
            Civil::Week => {
                let starts_on = typed.week_starts_on.value().copied();
                Cadence::Week { offset_minutes, starts_on: starts_on.unwrap_or(Weekday::Monday) }
            }
            Civil::Fixed => {
                if typed.period.is_absent() && typed.window_ms.is_absent() {
                    let message = format!("missing; {what} needs it, e.g. windowMs: 60000");
                    self.report_at(typed, "windowMs", message);
                }
                if !typed.period.is_absent() && !typed.window_ms.is_absent() {
                    let message = "does not go with period; keep one".to_owned();
                    self.report_at(typed, "windowMs", message);
                }
                let period = typed.period.value().or(typed.window_ms.value()).copied()?;
                let anchor_us = typed.anchor.value().copied().unwrap_or(0).checked_mul(1_000);
                let Some(anchor_us) = anchor_us else {
                    self.report_at(typed, "anchor", "is too large".to_owned());
                    return None;
                };
                Cadence::Fixed { period, anchor_us }
            }
        })
    }

    fn reserves(&mut self, block: &Block, smallest: u64) -> Option<ReserveConfig> {
        let learns = match &block.reserve {
            Slot::Absent => false,
            given => given.value()?.is_none(),
        };
        if !learns {
            for key in ["hold", "overrun", "reserveMin", "reserveMax"] {
                if block.own.keys.iter().any(|(given, _)| given == key) {
                    let message = "only applies to reserve: learned".to_owned();
                    self.report_at(&block.own, key, message);
                }
            }
            let units = block.reserve.value().copied().flatten().unwrap_or(0);
            if units > smallest {
                let message = format!("{units} never fits a budget of {smallest}");
                self.report_at(&block.own, "reserve", message);
                return None;
            }
            return Some(ReserveConfig::Units(units));
        }
        let or = |slot: &Slot<u64>, other| slot.value().copied().unwrap_or(other);
        let (hold, overrun) = (or(&block.hold, 1), or(&block.overrun, OVERRUN_DEFAULT));
        // With a tenth of the budget each, ten begin at once before anything is learned.
        let max = or(&block.reserve_max, RESERVE_MAX_DEFAULT.min(smallest.div_ceil(10)));
        let min = or(&block.reserve_min, 1);
        for (key, weight) in [("hold", hold), ("overrun", overrun)] {
            if !(1..=WEIGHT_MAX).contains(&weight) {
                let message = format!("must lie between 1 and {WEIGHT_MAX}");
                self.report_at(&block.own, key, message);
                return None;
            }
        }
        if min == 0 || min > max || max > smallest {
            let message = format!(
                "reserveMin must be at least 1 and at most reserveMax, and that at most the \
                 smallest budget, {smallest}"
            );
            self.report_at(&block.own, "reserveMax", message);
            return None;
        }
        Some(ReserveConfig::Learned { hold, overrun, min, max })
    }

    fn report_at(&mut self, typed: &Typed, key: &str, message: String) {
        let found = typed.keys.iter().find(|(given, _)| given == key).map(|(_, place)| *place);
        let place = found.or(typed.place).unwrap_or(self.name.place);
        self.report(place, &format!("{}.{key}", typed.path), message);
    }

    /// Reports what core refused, at the key that caused it.
    fn budget_refused(&mut self, invalid: Invalid, typed: &Typed) {
        let (keys, in_ticks): (&[&str], bool) = match invalid {
            Invalid::OffsetOutOfRange { .. } => (&["offsetMinutes"], false),
            Invalid::Zero(Parameter::Budget)
            | Invalid::TooLarge { parameter: Parameter::Budget, .. } => (&["budget"], false),
            Invalid::TooLarge { parameter: Parameter::Anchor, .. } => (&["anchor"], true),
            Invalid::TooLarge { .. } => (&["period", "windowMs"], true),
            _ => (&["period", "windowMs"], false),
        };
        let has = |key: &&&str| typed.keys.iter().any(|(given, _)| given == **key);
        let key = keys.iter().find(has).or(keys.first()).copied().unwrap_or("budget");
        let unit = if in_ticks { " (in microseconds)" } else { "" };
        self.report_at(typed, key, format!("{invalid}{unit}"));
    }
}

/// How much to reserve: a number, or `None` if it is to be learned.
fn reserve(text: &str) -> Result<Option<u64>, String> {
    if text == "learned" {
        return Ok(None);
    }
    let units = scalar::whole(text);
    units.map(Some).map_err(|_| format!("{} is neither learned nor a number", quoted(text)))
}

/// The block as a policy file writes it, below the policy's name.
impl fmt::Display for CostConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_axis, self.is_shared) {
            (true, is_shared) => writeln!(f, "    {AXIS}:\n      shared: {is_shared}")?,
            (false, true) => writeln!(f, "    {SHARED}:")?,
            (false, false) => writeln!(f, "    {LOCAL}:")?,
        }
        let is_only = matches!(self.budgets.as_slice(), [(name, _)] if name == ONLY);
        let indent = if is_only { "      " } else { "          " };
        if !is_only {
            writeln!(f, "      windows:")?;
        }
        for (name, budget) in &self.budgets {
            if !is_only {
                writeln!(f, "        {}:", yaml_text(name))?;
            }
            writeln!(f, "{indent}budget: {}", budget.limit())?;
            written_cadence(f, indent, budget.cadence())?;
            let debt = DEBTS.iter().find(|(_, known)| *known == budget.debts());
            writeln!(f, "{indent}debt: {}", debt.map_or("", |(word, _)| word))?;
            writeln!(f, "{indent}softStop: {}", budget.soft_left())?;
        }
        writeln!(f, "      maxKeys: {}", self.max_keys)?;
        writeln!(f, "      leaseTtl: {}", Length(self.lease_ttl))?;
        match self.reserve {
            ReserveConfig::Units(units) => writeln!(f, "      reserve: {units}"),
            ReserveConfig::Learned { hold, overrun, min, max } => {
                writeln!(
                    f,
                    "      reserve: learned\n      hold: {hold}\n      overrun: {overrun}"
                )?;
                writeln!(f, "      reserveMin: {min}\n      reserveMax: {max}")
            }
        }
    }
}

fn written_cadence(f: &mut fmt::Formatter<'_>, indent: &str, cadence: Cadence) -> fmt::Result {
    let (word, offset_minutes) = match cadence {
        Cadence::Fixed { period, anchor_us } => {
            writeln!(f, "{indent}period: {}", Length(period))?;
            return match anchor_us {
                0 => Ok(()),
                us => writeln!(f, "{indent}anchor: {}", us / 1_000),
            };
        }
        Cadence::Day { offset_minutes } => ("calendar-day", offset_minutes),
        Cadence::Week { offset_minutes, starts_on } => {
            writeln!(f, "{indent}weekStartsOn: {}", starts_on as u8)?;
            ("calendar-week", offset_minutes)
        }
        Cadence::Month { offset_minutes } => ("calendar-month", offset_minutes),
        _ => return Ok(()),
    };
    writeln!(f, "{indent}resetCadence: {word}\n{indent}offsetMinutes: {offset_minutes}")
}

pub(super) const LOCAL: &str = "tokenBudget";
pub(super) const SHARED: &str = "fleetBudget";
/// The block of a policy that Admit decides.
pub(super) const AXIS: &str = "cost";
/// What the only budget of a policy is called.
const ONLY: &str = "window";
pub(super) const BLOCK_KEYS: &[&str] =
    &["windows", "maxKeys", "leaseTtl", "reserve", "hold", "overrun", "reserveMin", "reserveMax"];
pub(super) const WINDOW_KEYS: &[&str] = &[
    "budget",
    "windowMs",
    "period",
    "resetCadence",
    "anchor",
    "offsetMinutes",
    "weekStartsOn",
    "debt",
    "softStop",
];
pub(super) const CADENCES: &[(&str, Civil)] = &[
    ("calendar-month", Civil::Month),
    ("calendar-week", Civil::Week),
    ("calendar-day", Civil::Day),
    ("fixed", Civil::Fixed),
];
pub(super) const DEBTS: &[(&str, Debt)] = &[("carry", Debt::Carry), ("forgive", Debt::Forgive)];
/// What a policy with a block may say beside it.
const BESIDE: &[&str] = &[
    LOCAL,
    SHARED,
    "prefix",
    "fail",
    "share",
    "reserveLocal",
    "hashTag",
    "waitReplicas",
    "storeDeadline",
    "durable",
    "load",
    "shadow",
];
const EXAMPLE: &str = "{ budget: 100000, windowMs: 60000 }";
const WINDOWS_EXAMPLE: &str = "{ minute: { budget: 100000, period: 1m } }";
const OVERRUN_DEFAULT: u64 = 9;
const WEIGHT_MAX: u64 = 1_000;
const RESERVE_MAX_DEFAULT: u64 = 4_096;
