//! The configuration: what was written, and what will run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use admittance::gate::LimitRules;
use admittance::{Invalid, Span};
use serde::Deserialize;

use crate::chat::Usage;
use crate::tenants::Tenants;

/// What was written. Every field but the tenants has a default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The upstream's address up to `/chat/completions`.
    pub upstream: String,
    /// Which environment variable has the upstream's key.
    pub upstream_key_env: String,
    /// Where the accounts live.
    pub store: String,
    /// How many requests run at once; inferred from how long first tokens take if it is absent.
    pub at_once: Option<NonZeroU32>,
    /// How many tokens to reserve for an answer.
    pub size: u64,
    /// Learn, for each model, how many to reserve for a stream, and reserve no more than this.
    pub learn_up_to: Option<u64>,
    /// Whether the tokens of prompts are charged.
    pub charge_prompt: bool,
    /// How long to wait for the first byte of an answer, and for all of one that is no stream.
    pub answer_secs: u64,
    /// How long to wait for each further event of a stream.
    pub idle_secs: u64,
    /// What to do when little is left.
    pub on_soft_stop: OnSoftStop,
    /// Those who may call.
    pub tenants: BTreeMap<String, RawTenant>,
    /// Those who pay too.
    pub teams: BTreeMap<String, RawLimits>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            upstream: "http://127.0.0.1:9090/v1".into(),
            upstream_key_env: "OPENAI_API_KEY".into(),
            store: "memory".into(),
            at_once: None,
            size: 256,
            learn_up_to: None,
            charge_prompt: true,
            answer_secs: 300,
            idle_secs: 30,
            on_soft_stop: OnSoftStop::Finish,
            tenants: BTreeMap::new(),
            teams: BTreeMap::new(),
        }
    }
}

/// One who may call.
#[derive(Debug, Deserialize)]
pub struct RawTenant {
    /// The key that it calls with.
    pub key: String,
    /// Who pays too.
    pub team: Option<String>,
    /// Its own budgets.
    #[serde(flatten)]
    pub limits: RawLimits,
}

/// Tokens per window: at least one of them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct RawLimits {
    /// Each minute.
    pub minute: Option<u64>,
    /// Each day, from midnight UTC.
    pub day: Option<u64>,
}

/// What to do when a stream's reservation is used up and little is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnSoftStop {
    /// Go on until the answer ends, or the budget.
    #[default]
    Finish,
    /// End with the sentence.
    Sentence,
}

/// What will run.
#[derive(Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The upstream's address up to `/chat/completions`.
    pub upstream: String,
    /// Which environment variable has the upstream's key.
    pub upstream_key_env: String,
    /// Where the accounts live.
    pub store: StoreUrl,
    /// How many requests run at once.
    pub at_once: LimitRules,
    /// The most to reserve for a stream, if that is learned.
    pub learn_up_to: Option<u64>,
    /// How requests are treated.
    pub options: Options,
    /// Those who may call.
    pub tenants: Tenants,
}

/// Where accounts live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// In Redis or Valkey, at this address.
    Redis(String),
    /// In Postgres, at this address.
    Postgres(String),
}

/// How requests are treated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many tokens to reserve for an answer.
    pub size: u64,
    /// Whether the tokens of prompts are charged.
    pub charge_prompt: bool,
    /// How long to wait for the first byte of an answer, and for all of one that is no stream.
    pub answer: Duration,
    /// How long to wait for each further event of a stream.
    pub idle: Duration,
    /// What to do when little is left.
    pub on_soft_stop: OnSoftStop,
}

impl Options {
    /// What is charged for this.
    #[must_use]
    pub fn charged(&self, usage: Usage) -> u64 {
        if self.charge_prompt { usage.prompt + usage.completion } else { usage.completion }
    }

    /// How long a reservation must live without being heard of: longer than any wait.
    #[must_use]
    pub fn ttl(&self) -> Span {
        let wait = self.answer.max(self.idle).as_secs();
        Span::from_secs(wait.saturating_add(MARGIN_SECS))
    }
}

/// Why a configuration cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not of the form.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// Nobody may call.
    #[error("nobody may call: write `[tenants.NAME]` with a `key` and a `minute` or a `day`")]
    NoTenants,
    /// A tenant's team is not there.
    #[error("tenant {tenant} is of team {team}: write `[teams.{team}]` with a `minute` or a `day`")]
    NoSuchTeam {
        /// The tenant.
        tenant: String,
        /// Its team.
        team: String,
    },
    /// Two tenants cannot be told apart.
    #[error("tenant {tenant} has the key of another: give each its own")]
    SameKey {
        /// One of them.
        tenant: String,
    },
    /// A budget cannot be.
    #[error("the budgets of {kind} {name}: {reason}")]
    Budget {
        /// Tenant or team.
        kind: &'static str,
        /// Whose.
        name: String,
        /// Why.
        reason: Invalid,
    },
    /// How many at once cannot be.
    #[error("at_once: {0}")]
    AtOnce(Invalid),
    /// Sizes cannot be learned so.
    #[error("learn_up_to: {0}")]
    Sizes(Invalid),
    /// A wait or a size that is out of its range.
    #[error("{name} must be from 1 to {max}")]
    Range {
        /// Which.
        name: &'static str,
        /// The most.
        max: u64,
    },
    /// No such store.
    #[error("store {0:?} is not known: write memory, redis://… or postgres://…")]
    Store(String),
    /// The upstream's address is none.
    #[error("upstream {0:?} is no address: write something like \"https://api.openai.com/v1\"")]
    Upstream(String),
    /// The upstream's key cannot be sent.
    #[error("the upstream's key has characters that no header may have")]
    UpstreamKey,
    /// The system's certificates cannot be read.
    #[error("the system's certificates cannot be read: {0}; install ca-certificates")]
    Certificates(std::io::Error),
}

impl RawConfig {
    /// Reads a file's text.
    ///
    /// # Errors
    /// It is not of the form.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Ok(toml::from_str(text)?)
    }

    /// What will run.
    ///
    /// # Errors
    /// The error says what would.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        let within = |name, number, max| match number {
            number if number == 0 || number > max => Err(ConfigError::Range { name, max }),
            number => Ok(number),
        };
        if self.tenants.is_empty() {
            return Err(ConfigError::NoTenants);
        }
        let secs = |name, secs| within(name, secs, WAIT_MAX_SECS).map(Duration::from_secs);
        let options = Options {
            size: within("size", self.size, SIZE_MAX)?,
            charge_prompt: self.charge_prompt,
            answer: secs("answer_secs", self.answer_secs)?,
            idle: secs("idle_secs", self.idle_secs)?,
            on_soft_stop: self.on_soft_stop,
        };
        let at_once =
            self.at_once.map_or_else(LimitRules::stable, |most| LimitRules::fixed(most.get()));
        Ok(Config {
            listen: self.listen,
            upstream: self.upstream,
            upstream_key_env: self.upstream_key_env,
            store: StoreUrl::parse(&self.store)?,
            at_once,
            learn_up_to: self.learn_up_to,
            options,
            tenants: Tenants::new(self.tenants, &self.teams)?,
        })
    }
}

impl StoreUrl {
    fn parse(text: &str) -> Result<Self, ConfigError> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("redis" | "rediss" | "valkey" | "valkeys", _)) => Ok(Self::Redis(text.into())),
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(text.into())),
            // The address may have a password in it.
            kind => Err(ConfigError::Store(kind.map_or(text, |(scheme, _)| scheme).into())),
        }
    }
}

/// A reservation is forgotten after an hour: no wait is longer.
const WAIT_MAX_SECS: u64 = 3_000;
const MARGIN_SECS: u64 = 10;
const SIZE_MAX: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_beside_the_example_can_run() {
        let config = RawConfig::parse(include_str!("../gateway.toml")).unwrap().resolve().unwrap();
        assert_eq!(config.store, StoreUrl::Memory);
        assert_eq!(config.options.ttl(), Span::from_secs(310));
    }

    #[test]
    fn what_cannot_run_is_refused_with_what_would() {
        let refused = |text: &str| {
            let config = RawConfig::parse(text).and_then(RawConfig::resolve);
            config.map(|_| ()).unwrap_err().to_string()
        };
        let ann = "[tenants.ann]\nkey = \"a\"\nminute = 9\n";
        assert!(refused("").contains("[tenants.NAME]"));
        assert!(refused(&format!("{ann}team = \"blue\"")).contains("[teams.blue]"));
        assert!(
            refused(&format!("{ann}\n[tenants.bob]\nkey = \"a\"\nday = 9")).contains("another")
        );
        assert!(refused("[tenants.ann]\nkey = \"a\"").contains("tenant ann"), "no budget at all");
        assert!(refused(&format!("size = 0\n{ann}")).contains("from 1 to"));
        assert!(refused(&format!("store = \"disk\"\n{ann}")).contains("memory"));
        assert!(refused(&format!("sizes = 1\n{ann}")).contains("sizes"));
    }
}
