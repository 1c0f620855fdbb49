//! The `load` blocks: how the service protects itself, and what a policy's requests are to that.

use std::fmt;

use admittance::load::{Class, DelayRules, JitterRules, Law, Level, LoadRules, Seed, Shedder};
use admittance::{Invalid, Span};

use super::node::{Entry, Value};
use super::policy::{Reader, Slot, TRUTH, quoted_key};
use super::problem::{Place, nearest, quoted};
use super::rule::Length;
use super::scalar;

/// How the service sheds load, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shedding(pub Option<LoadRules>);

/// What a policy's requests are when the service is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// What goes before them and what after.
    pub class: Class,
    /// Who of them goes.
    pub by: LoadBy,
}

/// Who is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadBy {
    /// The same keys for a while, and then others.
    Key,
    /// Anyone, drawn anew for each request.
    Random,
}

/// The service's own rules: a decision takes microseconds, so what waits five milliseconds is
/// behind hundreds. Less is what a busy core does to a service that keeps up.
impl Default for Shedding {
    fn default() -> Self {
        let (target, wait_max) = (Span::from_ms(5), Span::from_ms(5));
        let law = Law::Delay(DelayRules { target, wait_max, ..DelayRules::default() });
        Self(Some(LoadRules { law, ..LoadRules::default() }))
    }
}

/// What was typed in the service's block.
#[derive(Default)]
struct Block {
    keys: Vec<(&'static str, Place)>,
    is_enabled: Option<bool>,
    is_jitter: Option<bool>,
    target: Option<Span>,
    interval: Option<Span>,
    rise_every: Option<Span>,
    floor: Option<Level>,
    wait_max: Option<Span>,
    probe_every: Option<Span>,
    window: Option<usize>,
    upper: Option<Span>,
    lower: Option<Span>,
    load_target: Option<u64>,
    rotation: Option<Span>,
    seed: Option<u64>,
}

impl super::Reader {
    /// The block of the whole file.
    pub(super) fn shedding(&mut self, block: &Entry) -> Option<Shedding> {
        let entries = match &block.value.value {
            Value::Refused => return None,
            Value::Map(entries) => entries,
            _ => {
                let said = scalar::text(&block.value, SWITCH).and_then(|t| scalar::one_of(t, ON));
                return match said {
                    Ok(true) => Some(Shedding::default()),
                    Ok(false) => Some(Shedding(None)),
                    Err(message) => {
                        let is_null = block.value.is_null();
                        let place = if is_null { block.place } else { block.value.place };
                        self.report(Some(place), BLOCK, message);
                        None
                    }
                };
            }
        };
        let found_before = self.problems.len();
        let mut read = Block::default();
        for entry in entries {
            if let Err((place, message)) = read.key(entry) {
                let path = format!("{BLOCK}.{}", quoted_key(&entry.key));
                self.report(Some(place), &path, message);
            }
        }
        let law = read.law();
        let does_not_apply = if read.is_jitter == Some(true) { OF_DELAY } else { OF_JITTER };
        // What a law that cannot be read would have is not known.
        let is_known = read.is_jitter.is_some() || !read.keys.iter().any(|(key, _)| *key == "law");
        let strange = |(key, _): &&(&str, Place)| is_known && does_not_apply.contains(key);
        for (key, place) in read.keys.iter().filter(strange) {
            let (law, keys) = match law {
                Law::Delay(_) => ("delay", OF_DELAY),
                Law::Jitter(_) => ("jitter", OF_JITTER),
            };
            let message = format!("does not apply to law: {law}, which has {}", keys.join(", "));
            self.report(Some(*place), &format!("{BLOCK}.{key}"), message);
        }
        let rotation = read.rotation.unwrap_or(LoadRules::default().rotation);
        let rules = LoadRules { law, rotation, seed: Seed(read.seed.unwrap_or(0)) };
        if self.problems.len() > found_before {
            return None;
        }
        if let Err(invalid) = Shedder::new(rules) {
            let (key, place) = read.blamed(invalid).unwrap_or(("", block.place));
            let path = if key.is_empty() { BLOCK.to_owned() } else { format!("{BLOCK}.{key}") };
            self.report(Some(place), &path, invalid.to_string());
            return None;
        }
        Some(Shedding(Some(rules).filter(|_| read.is_enabled != Some(false))))
    }
}

impl Block {
    fn key(&mut self, entry: &Entry) -> Result<(), (Place, String)> {
        let Some(key) = KEYS.iter().find(|key| **key == entry.key) else {
            let message = match nearest(&entry.key, KEYS) {
                Some(meant) => format!("unknown key; did you mean `{meant}`?"),
                None => format!("unknown key; {BLOCK} has {}", KEYS.join(", ")),
            };
            return Err((entry.place, message));
        };
        if matches!(entry.value.value, Value::Refused) {
            return Ok(());
        }
        self.keys.push((key, entry.value.place));
        let place = if entry.value.is_null() { entry.place } else { entry.value.place };
        self.read(key, entry).map_err(|message| (place, message))
    }

    fn read(&mut self, key: &str, entry: &Entry) -> Result<(), String> {
        let example = EXAMPLES.iter().find(|(known, _)| *known == key);
        let example = format!("{key}: {}", example.map_or("", |(_, example)| example));
        let text = scalar::text(&entry.value, &example)?;
        match key {
            "enabled" => self.is_enabled = Some(scalar::one_of(text, TRUTH)?),
            "law" => self.is_jitter = Some(scalar::one_of(text, LAWS)?),
            "target" => self.target = Some(scalar::period(text)?),
            "interval" => self.interval = Some(interval(text)?),
            "riseEvery" => self.rise_every = Some(scalar::period(text)?),
            "floor" => self.floor = Some(percent(text)?),
            "waitMax" => self.wait_max = Some(scalar::period(text)?),
            "probeEvery" => self.probe_every = Some(scalar::period(text)?),
            "window" => {
                self.window = Some(usize::try_from(scalar::whole(text)?).unwrap_or(usize::MAX));
            }
            "upperThreshold" => self.upper = Some(scalar::period(text)?),
            "lowerThreshold" => self.lower = Some(scalar::period(text)?),
            "loadTarget" => self.load_target = Some(thousandths(text)?),
            "rotation" => self.rotation = Some(scalar::period(text)?),
            _ => self.seed = Some(scalar::whole(text)?),
        }
        Ok(())
    }

    fn law(&self) -> Law {
        if self.is_jitter == Some(true) {
            let rules = JitterRules::default();
            return Law::Jitter(JitterRules {
                probe_every: self.probe_every.unwrap_or(rules.probe_every),
                window: self.window.unwrap_or(rules.window),
                interval: self.interval.unwrap_or(rules.interval),
                upper: self.upper.unwrap_or(rules.upper),
                lower: self.lower.unwrap_or(rules.lower),
                load_target: self.load_target.unwrap_or(rules.load_target),
            });
        }
        let own = Shedding::default().0.map(|rules| rules.law);
        let rules = match own {
            Some(Law::Delay(rules)) => rules,
            _ => DelayRules::default(),
        };
        Law::Delay(DelayRules {
            target: self.target.unwrap_or(rules.target),
            interval: self.interval.unwrap_or(rules.interval),
            rise_every: self.rise_every.unwrap_or(rules.rise_every),
            floor: self.floor.unwrap_or(rules.floor),
            wait_max: self.wait_max.unwrap_or(rules.wait_max),
        })
    }

    /// The key that made a rule unfit.
    fn blamed(&self, invalid: Invalid) -> Option<(&'static str, Place)> {
        let (Invalid::Zero(parameter) | Invalid::Unfit { parameter, .. }) = invalid else {
            return None;
        };
        let parameter = parameter.to_string();
        self.keys.iter().find(|(key, _)| *key == parameter).copied()
    }
}

/// How often the level is judged. Every judgement reads what all threads have counted: one that is
/// always due would keep a processor busy, and one that is never due would be none.
fn interval(text: &str) -> Result<Span, String> {
    let span = scalar::period(text)?;
    if span < Span::from_ms(1) || span > Span::from_secs(3_600) {
        return Err(format!("{} is not between 1ms and 1h", quoted(text)));
    }
    Ok(span)
}

/// A part of the whole, in whole hundredths.
fn percent(text: &str) -> Result<Level, String> {
    let number = scalar::whole(text.strip_suffix('%').unwrap_or(text).trim_end())?;
    match u32::try_from(number) {
        Ok(percent @ 0..=100) => Ok(Level::from_percent(percent)),
        _ => Err(format!("{} is more than everything; write 0% to 100%", quoted(text))),
    }
}

/// A decimal number in thousandths.
fn thousandths(text: &str) -> Result<u64, String> {
    let fine = || format!("{} has more than three decimal places", quoted(text));
    scalar::decimal(text)?.times(1_000).ok_or_else(fine)
}

impl Reader<'_, '_> {
    /// Reads a policy's block.
    pub(super) fn load_block(&mut self, block: &Entry) -> Slot<LoadConfig> {
        if matches!(block.value.value, Value::Refused) {
            return Slot::Bad;
        }
        let Value::Map(entries) = &block.value.value else {
            let message = format!("{} where a map belongs; write {EXAMPLE}", block.value.kind());
            self.report(block.value.place, BLOCK, message);
            return Slot::Bad;
        };
        let mut read = LoadConfig { class: Class::Default, by: LoadBy::Key };
        let mut is_bad = false;
        for entry in entries {
            let path = format!("{BLOCK}.{}", quoted_key(&entry.key));
            let slot = match entry.key.as_str() {
                "class" => {
                    let words = Class::ALL.map(|class| (class.name(), class));
                    let one = |text: &str| scalar::one_of(text, &words);
                    let slot = self.value(entry, &path, "class: default", one);
                    slot.value().map(|class| read.class = *class)
                }
                "by" => {
                    let one = |text: &str| scalar::one_of(text, BY);
                    let slot = self.value(entry, &path, "by: key", one);
                    slot.value().map(|by| read.by = *by)
                }
                key => {
                    let message = match nearest(key, &["class", "by"]) {
                        Some(meant) => format!("unknown key; did you mean `{meant}`?"),
                        None => "unknown key; a policy's load has class, by".into(),
                    };
                    self.report(entry.place, &path, message);
                    None
                }
            };
            is_bad |= slot.is_none();
        }
        if is_bad { Slot::Bad } else { Slot::Given(read) }
    }
}

/// The service's block as a file writes it.
impl fmt::Display for Shedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(LoadRules { law, rotation, seed }) = self.0 else {
            return writeln!(f, "{BLOCK}: off");
        };
        writeln!(f, "{BLOCK}:")?;
        match law {
            Law::Delay(DelayRules { target, interval, rise_every, floor, wait_max }) => {
                writeln!(f, "  law: delay\n  target: {}", Length(target))?;
                writeln!(f, "  interval: {}", Length(interval))?;
                writeln!(f, "  riseEvery: {}", Length(rise_every))?;
                writeln!(f, "  floor: {}%\n  waitMax: {}", floor.percent(), Length(wait_max))?;
            }
            Law::Jitter(JitterRules {
                probe_every,
                window,
                interval,
                upper,
                lower,
                load_target,
            }) => {
                writeln!(f, "  law: jitter\n  interval: {}", Length(interval))?;
                writeln!(f, "  upperThreshold: {}", Length(upper))?;
                writeln!(f, "  lowerThreshold: {}", Length(lower))?;
                writeln!(f, "  probeEvery: {}\n  window: {window}", Length(probe_every))?;
                let (whole, parts) = (load_target / 1_000, load_target % 1_000);
                writeln!(f, "  loadTarget: {whole}.{parts:03}")?;
            }
        }
        writeln!(f, "  rotation: {}\n  seed: {}", Length(rotation), seed.0)
    }
}

/// A policy's block as a file writes it, below the policy's name.
impl fmt::Display for LoadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            LoadBy::Key => "key",
            LoadBy::Random => "random",
        };
        writeln!(f, "    {BLOCK}: {{ class: {}, by: {by} }}", self.class.name())
    }
}

pub(super) const BLOCK: &str = "load";
pub(super) const EXAMPLE: &str = "load: { class: default, by: key }";
const SWITCH: &str = "load: off, or load: { target: 5ms }";
const ON: &[(&str, bool)] = &[("on", true), ("off", false), ("true", true), ("false", false)];
pub(super) const LAWS: &[(&str, bool)] = &[("delay", false), ("jitter", true)];
pub(super) const BY: &[(&str, LoadBy)] = &[("key", LoadBy::Key), ("random", LoadBy::Random)];
pub(super) const KEYS: &[&str] = &[
    "enabled",
    "law",
    "target",
    "interval",
    "riseEvery",
    "floor",
    "waitMax",
    "upperThreshold",
    "lowerThreshold",
    "probeEvery",
    "window",
    "loadTarget",
    "rotation",
    "seed",
];
const OF_DELAY: &[&str] = &["target", "riseEvery", "floor", "waitMax"];
const OF_JITTER: &[&str] =
    &["upperThreshold", "lowerThreshold", "probeEvery", "window", "loadTarget"];
const EXAMPLES: &[(&str, &str)] = &[
    ("enabled", "true"),
    ("law", "delay"),
    ("target", "5ms"),
    ("interval", "100ms"),
    ("riseEvery", "250ms"),
    ("floor", "1%"),
    ("waitMax", "5ms"),
    ("upperThreshold", "100ms"),
    ("lowerThreshold", "80ms"),
    ("probeEvery", "100ms"),
    ("window", "40"),
    ("loadTarget", "0.8"),
    ("rotation", "1h"),
    ("seed", "0"),
];
