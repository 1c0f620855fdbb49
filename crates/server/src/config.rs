//! Policies from a file: what was typed, and what will run.
//!
//! A file is read in two steps. The first keeps every value as the text that was typed, with its
//! place; the second turns that into a [`Config`], whose types cannot hold anything invalid.
//!
//! # Guarantee
//! - All problems of a file are reported at once, each with file, line, column, the offending
//!   text and what would be right. (One that is not even YAML, or JSON, has one.)
//! - Numbers are exact: no float stands between the text and the decision. Those of estimates
//!   (inferred limits, prices) become floats once, on their way to what estimates.
//! - A file is at most 1 MiB, nested at most 64 deep, with at most 10,000 policies; nothing in it
//!   can make the reader panic.
//! - The resolved form that [`Config`] displays loads again, as the same configuration.
//!
//! # Proven by
//! `tests/it/config.rs`: the text of every error, a table of every strategy, mutated files.
//! `tests/it/config_resolved.rs`: what is displayed, and what lacks a line of it.
//!
//! # Example
//! ```
//! use admittance_server::{Config, Fail};
//! let text = "limiters:\n  api: { strategy: gcra, limit: 5, period: 1h }\n";
//! let config = Config::parse("policies.yaml", text, Fail::Open)?;
//! let rate = config.policies[0].rate.as_ref().expect("a rate policy");
//! assert_eq!(rate.strategy.limit(), 5);
//!
//! let text = "limiters:\n  api: { strategy: gcra, limit: 0x10, period: 1h }\n";
//! let report = Config::parse("policies.yaml", text, Fail::Open).unwrap_err();
//! assert!(report.to_string().starts_with(
//!     "policies.yaml:2:33: limiters.api.limit: \"0x10\" is not a whole number; \
//!      write decimal digits, e.g. 16\n"
//! ));
//! # Ok::<(), admittance_server::Report>(())
//! ```

mod admission;
mod budget;
mod concurrency;
mod escrow;
mod format;
mod joint;
mod json;
mod lease;
mod load;
mod naming;
mod node;
mod policy;
mod problem;
mod rule;
mod scalar;
mod schema;
mod shadow;
mod shared;
mod toml;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use admittance::{Atomicity, Builtin, FailMode, GuardSettings, OnFull, Shape, Span};

pub use self::budget::{CostConfig, ReserveConfig};
use self::concurrency::lease_ttl;
pub use self::concurrency::{FleetConfig, GateConfig};
pub use self::escrow::EscrowConfig;
use self::format::Format;
pub use self::joint::{JointBudgets, JointConfig, JointKind, JointPrices, JointTerms};
pub use self::lease::TierConfig;
pub use self::load::{LoadBy, LoadConfig, Shedding};
use self::naming::Naming;
use self::node::{Entry, Value};
use self::policy::quoted_key;
pub(crate) use self::problem::nearest;
pub(crate) use self::problem::quoted;
pub use self::problem::{Place, Problem, Report};
use self::rule::Length;
pub use self::rule::Rule;
pub use self::schema::{document, schema};
pub use self::shadow::ShadowConfig;
pub use self::shared::StoreConfig;

/// What to answer when a store cannot, as files and flags say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fail {
    /// Admit.
    Open,
    /// Deny.
    Closed,
    /// Go on alone with each policy's share of its limit.
    Local,
}

/// What holds for policies that do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// What to answer when a store cannot.
    pub fail: Fail,
    /// How long a decision waits for a shared store.
    pub store_deadline: Span,
}

impl From<Fail> for Defaults {
    fn from(fail: Fail) -> Self {
        Self { fail, store_deadline: GuardSettings::DEADLINE_DEFAULT }
    }
}

/// Everything a file says, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The policies, by name.
    pub policies: Vec<PolicyConfig>,
    /// How the service sheds load.
    pub load: Shedding,
    /// What held for policies that do not say.
    pub defaults: Defaults,
    /// What is odd about the file but does not keep it from being used.
    pub warnings: Report,
}

/// One policy, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    /// The name that requests ask for.
    pub name: String,
    /// How often, if that is limited.
    pub rate: Option<RateConfig>,
    /// How many at once, if that is limited.
    pub concurrency: Option<GateConfig>,
    /// How much may be spent, if that is limited.
    pub cost: Option<CostConfig>,
    /// What its requests are when the service is behind, if they are not like all others.
    pub load: Option<LoadConfig>,
    /// What a request must be worth, if that is asked.
    pub joint: Option<JointConfig>,
    /// What a denial by one axis leaves on those before it.
    pub atomicity: Atomicity,
    /// The policy's name in a shared store, if it is another there.
    pub prefix: Option<String>,
    /// What to answer when the store cannot.
    pub fail: FailMode,
    /// What a shared store is told about it.
    pub store: StoreConfig,
    /// Whether it refuses nobody, or others run beside it.
    pub shadow: ShadowConfig,
}

/// The rate axis of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateConfig {
    /// The parameters in exact units.
    pub rule: Rule,
    /// The strategy built from them.
    pub strategy: Builtin,
    /// How many keys are kept at most.
    pub max_keys: u64,
    /// What happens to a new key when there is no room.
    pub on_full: OnFull,
    /// What stands between its requests and the store.
    pub tier: TierConfig,
    /// How its keys share one budget, if they do; the strategy is then that of the budget.
    pub escrow: Option<EscrowConfig>,
}

impl Fail {
    /// The word that files and flags use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}

impl PolicyConfig {
    /// The most keys a policy may be told to keep.
    pub const MAX_KEYS_MAX: u64 = 1 << 36;
}

impl Config {
    /// The most bytes a file may have.
    pub const FILE_MAX: usize = 1 << 20;

    /// The most policies a file may have.
    pub const POLICIES_MAX: usize = 10_000;

    /// The example policies that serve when no file is given.
    ///
    /// # Errors
    /// Defaults that these policies cannot have: they have no shares to go on alone with.
    pub fn built_in(defaults: impl Into<Defaults>) -> Result<Self, Report> {
        Self::parse("built-in policies", BUILT_IN, defaults)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(path: &Path, defaults: impl Into<Defaults>) -> Result<Self, Report> {
        let file = path.display().to_string();
        let whole = |message: String| {
            let problem = Problem { place: None, path: String::new(), message };
            Report::new(&file, "", vec![problem])
        };
        let mut bytes = Vec::new();
        let opened = File::open(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
        // One byte more than allowed is enough to know that it is too long.
        let read = opened.take(Self::FILE_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| whole(format!("cannot be read: {error}")))?;
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&file, &text, defaults),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let before = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
                let line = before.matches('\n').count() + 1;
                Err(whole(format!("line {line} is not UTF-8; save the file as UTF-8")))
            }
        }
    }

    /// Reads the text of a file; `file` is its name in messages, and says what it is written in:
    /// TOML if it ends in `.toml`, JSON if in `.json`, and YAML if not.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(file: &str, text: &str, defaults: impl Into<Defaults>) -> Result<Self, Report> {
        // Some editors begin a file with a mark that means nothing.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let defaults = defaults.into();
        let mut reader = Reader { defaults, problems: Vec::new(), warnings: Vec::new() };
        let config = reader.file(text, Format::of(file));
        match config {
            Some(config) if reader.problems.is_empty() => {
                Ok(Self { warnings: Report::new(file, text, reader.warnings), ..config })
            }
            _ => Err(Report::new(file, text, reader.problems)),
        }
    }
}

impl PolicyConfig {
    /// The name that the policy's keys have in a shared store.
    #[must_use]
    pub fn store_name(&self) -> &str {
        self.prefix.as_deref().unwrap_or(&self.name)
    }
}

/// The resolved form: every policy by name, nothing left to a default.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.load)?;
        match self.policies.len() {
            0 => writeln!(f, "limiters: {{}}")?,
            _ => writeln!(f, "limiters:")?,
        }
        for policy in &self.policies {
            let limit = policy.rate.as_ref().map(|rate| rate.strategy.limit());
            let limit = limit.map_or_else(String::new, |limit| format!(" # limit shown: {limit}"));
            writeln!(f, "  {}:{limit}", yaml_text(&policy.name))?;
            if let Some(rate) = &policy.rate {
                write!(f, "{rate}")?;
            }
            if let Some(concurrency) = &policy.concurrency {
                write!(f, "{concurrency}")?;
            }
            if let Some(cost) = &policy.cost {
                write!(f, "{cost}")?;
            }
            if let Some(load) = &policy.load {
                write!(f, "{load}")?;
            }
            if let Some(joint) = &policy.joint {
                write!(f, "{joint}")?;
            }
            match policy.atomicity {
                Atomicity::All if !policy.charges_two() => {}
                Atomicity::All => writeln!(f, "    atomicity: all")?,
                Atomicity::PerAxis => writeln!(f, "    atomicity: perAxis")?,
            }
            if let Some(prefix) = &policy.prefix {
                writeln!(f, "    prefix: {}", yaml_text(prefix))?;
            }
            writeln!(f, "    fail: {}", policy.fail.name())?;
            if let FailMode::Local { share } = policy.fail {
                writeln!(f, "    share: {share}")?;
            }
            if policy.fail == (FailMode::Granted { reserve: true }) {
                writeln!(f, "    reserveLocal: true")?;
            }
            let StoreConfig { hash_tag, wait_replicas, deadline, durable } = &policy.store;
            if let Some(tag) = hash_tag {
                writeln!(f, "    hashTag: {}", yaml_text(tag))?;
            }
            writeln!(f, "    waitReplicas: {wait_replicas}")?;
            writeln!(f, "    storeDeadline: {}\n    durable: {durable}", Length(*deadline))?;
            write!(f, "{}", policy.shadow)?;
        }
        Ok(())
    }
}

/// The rate axis as a policy file writes it, below the policy's name.
impl fmt::Display for RateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(escrow) = &self.escrow {
            return write!(f, "{escrow}{}", self.tier);
        }
        writeln!(f, "    strategy: {}", self.rule.strategy())?;
        for (key, value) in self.rule.parameters() {
            writeln!(f, "    {key}: {value}")?;
        }
        let on_full = match self.on_full {
            OnFull::Evict => "evict",
            OnFull::Deny => "deny",
        };
        write!(f, "{}", self.tier)?;
        writeln!(f, "    maxKeys: {}\n    onFull: {on_full}", self.max_keys)
    }
}

/// Text as a quoted YAML scalar, which is also a JSON string.
fn yaml_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Collects what is wrong while it reads on.
struct Reader {
    defaults: Defaults,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Reader {
    fn file(&mut self, text: &str, format: Format) -> Option<Config> {
        if text.len() > Config::FILE_MAX {
            let message = format!("the file is longer than {} bytes", Config::FILE_MAX);
            self.report(None, "", message);
            return None;
        }
        // An empty file has no node at all, or one that holds nothing.
        let root = format.parse(text, &mut self.problems);
        let Some(root) = root.filter(|root| !root.is_null()) else {
            if self.problems.is_empty() {
                self.report(None, "", format!("the file is empty; write {EXAMPLE}"));
            }
            return None;
        };
        let Value::Map(entries) = &root.value else {
            let message = format!("{} where a map belongs; write {EXAMPLE}", root.kind());
            self.report(Some(root.place), "", message);
            return None;
        };
        let mut policies = None;
        let mut naming = None;
        let mut load = Shedding::default();
        for entry in entries {
            match entry.key.as_str() {
                "limiters" => policies = Some(self.limiters(entry)),
                "defaults" => naming = self.defaults(entry),
                "load" => load = self.shedding(entry).unwrap_or_default(),
                "version" | "capture" | "replay" => {
                    self.warn(entry, "has no meaning here and is ignored")
                }
                _ => self.unknown(entry, TOP_LEVEL),
            }
        }
        if policies.is_none() {
            self.report(None, "limiters", format!("missing; write {EXAMPLE}"));
        }
        let (mut policies, places): (Vec<_>, Vec<_>) = policies?.into_iter().unzip();
        if let Some(naming) = naming {
            self.warnings.extend(naming.apply(&mut policies));
        }
        let (defaults, warnings) = (self.defaults, Report::default());
        let mut config = Config { policies, load, defaults, warnings };
        self.namespaces(&config, &places);
        self.shed_in_vain(&config, &places);
        if let Some(limiters) = entries.iter().find(|entry| entry.key == "limiters") {
            shadow::judge(&config, limiters, (&mut self.problems, &mut self.warnings));
        }
        config.policies.sort_by(|a, b| a.name.cmp(&b.name));
        Some(config)
    }

    /// Policies that would count each other's keys in a shared store: allowed, but not silently.
    fn namespaces(&mut self, config: &Config, places: &[Place]) {
        let mut seen: HashMap<(&str, Shape), &str> = HashMap::new();
        for (policy, &place) in config.policies.iter().zip(places) {
            let path = format!("limiters.{}", quoted_key(&policy.name));
            let name = policy.store_name();
            if name == PROBES {
                let message = format!("{} is kept for probes; choose another name", quoted(name));
                self.report(Some(place), &path, message);
                continue;
            }
            let rate = policy.rate.iter().map(|rate| rate.strategy.shape());
            // Those of one process share nothing.
            let costs = policy.cost.iter().filter(|cost| cost.is_shared);
            let costs =
                costs.flat_map(|cost| cost.budgets.iter().map(|(_, budget)| budget.shape()));
            let others = rate.chain(costs).map(|shape| {
                let first = *seen.entry((name, shape)).or_insert(&policy.name);
                Some(first).filter(|first| *first != policy.name)
            });
            let others: Vec<_> = others.collect();
            if let Some(first) = others.into_iter().flatten().next() {
                let message = format!(
                    "counts the same keys as policy {} in a shared store: both are {} there and of \
                     one shape; give one of them a prefix of its own unless that is meant",
                    quoted(first),
                    quoted(name),
                );
                self.warnings.push(Problem { place: Some(place), path, message });
            }
        }
    }

    /// A policy that says what it is under load, where load is not shed: allowed, so that shedding
    /// can be switched off in one place.
    fn shed_in_vain(&mut self, config: &Config, places: &[Place]) {
        let idle = |policy: &PolicyConfig| policy.load.is_some() && config.load.0.is_none();
        for (policy, &place) in config.policies.iter().zip(places).filter(|(one, _)| idle(one)) {
            let path = format!("limiters.{}.load", quoted_key(&policy.name));
            let message = "has no effect while the file says load: off".into();
            self.warnings.push(Problem { place: Some(place), path, message });
        }
    }

    fn limiters(&mut self, limiters: &Entry) -> Vec<(PolicyConfig, Place)> {
        let entries = match &limiters.value.value {
            Value::Map(entries) => entries,
            _ if limiters.value.is_null() => &Vec::new(),
            _ => {
                let message = format!(
                    "{} where a map of policies belongs; write {EXAMPLE}",
                    limiters.value.kind()
                );
                self.report(Some(limiters.value.place), "limiters", message);
                return Vec::new();
            }
        };
        if entries.is_empty() {
            self.warn(limiters, "holds no policy, so every request will be answered NOT_FOUND");
        }
        if entries.len() > Config::POLICIES_MAX {
            let (count, max) = (entries.len(), Config::POLICIES_MAX);
            let message = format!("{count} policies; a file may have {max}");
            self.report(Some(limiters.place), "limiters", message);
            return Vec::new();
        }
        let mut policies = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = format!("limiters.{}", quoted_key(&entry.key));
            self.name(entry, &path);
            let found = (&mut self.problems, &mut self.warnings);
            let read = policy::read(entry, &path, self.defaults, found);
            policies.extend(read.map(|policy| (policy, entry.place)));
        }
        policies
    }

    /// A name travels in messages and, later, in metrics: it must fit there.
    fn name(&mut self, entry: &Entry, path: &str) {
        let message = if entry.key.is_empty() {
            "a policy needs a name".to_owned()
        } else if entry.key.len() > NAME_MAX {
            format!("the name has {} bytes; the most is {NAME_MAX}", entry.key.len())
        } else if entry.key.chars().any(char::is_control) {
            "the name holds a control character; remove it".to_owned()
        } else {
            return;
        };
        self.report(Some(entry.place), path, message);
    }

    fn defaults(&mut self, defaults: &Entry) -> Option<Naming> {
        let Value::Map(entries) = &defaults.value.value else {
            let message = format!("{} where a map belongs", defaults.value.kind());
            self.report(Some(defaults.value.place), "defaults", message);
            return None;
        };
        let mut reading = naming::Reading::default();
        for entry in entries {
            match reading.key(entry) {
                Some(Ok(())) => {}
                Some(Err(message)) => {
                    let path = format!("defaults.{}", entry.key);
                    self.report(Some(entry.value.place), &path, message);
                }
                None => self.unknown(entry, naming::KEYS),
            }
        }
        reading.naming()
    }

    fn unknown(&mut self, entry: &Entry, known: &[&str]) {
        let message = match nearest(&entry.key, known) {
            Some(meant) => format!("unknown key; did you mean `{meant}`?"),
            None => format!("unknown key; known here: {}", known.join(", ")),
        };
        self.report(Some(entry.place), &quoted_key(&entry.key), message);
    }

    fn warn(&mut self, entry: &Entry, message: &str) {
        let (place, path) = (Some(entry.place), quoted_key(&entry.key));
        self.warnings.push(Problem { place, path, message: message.to_owned() });
    }

    fn report(&mut self, place: Option<Place>, path: &str, message: String) {
        self.problems.push(Problem { place, path: path.to_owned(), message });
    }
}

const BUILT_IN: &str = include_str!("config/built-in.yaml");
const EXAMPLE: &str = "limiters: { api: { strategy: gcra, limit: 100, period: 1m } }";
const TOP_LEVEL: &[&str] = &["limiters", "defaults", "load", "version", "capture", "replay"];
const NAME_MAX: usize = 256;
/// The name that probes have in a shared store.
const PROBES: &str = admittance::Guarded::<()>::PROBE_POLICY;
