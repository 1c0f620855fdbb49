//! The load axis: whether this process can take the work on at all. Asked before every other.
//!
//! A call is judged once. Where no policy has a `load` block that is done before the call is read,
//! in [`crate::load`]; where one has, a call that a policy has a say in is judged here, when it is
//! known which policy and whose key it is.
//!
//! # Guarantee
//! - What is shed has charged nothing and holds nothing.
//! - A call that can be decided counts once among what is offered, whoever judges it; a batch is
//!   one call. One that is refused before it is judged here, for its policy's name, its key or
//!   what it is worth, does not count.
//!
//! # Proven by
//! `tests/it/load.rs`.

use std::fmt;
use std::time::{Duration, Instant};

use admittance::load::{Class, Shedder};
use admittance::{Decided, Decision, Source};

use super::{Policy, Refusal, Service};
use crate::config::{Config, LoadBy, LoadConfig};

/// What the service has against its own overload.
pub(super) struct Guarding {
    shedder: Option<Shedder>,
    work: Duration,
}

impl Guarding {
    pub(super) fn new(config: &Config) -> Self {
        let shedder = config.load.0.map(|rules| {
            let shedder = Shedder::new(rules);
            shedder.expect("the reader has built it once")
        });
        Self { shedder, work: Duration::ZERO }
    }
}

impl fmt::Debug for Guarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shedder.fmt(f)
    }
}

impl Service {
    /// What sheds when this process is behind, unless that is switched off. It admits everything
    /// until the service is served.
    #[must_use]
    pub const fn shedder(&self) -> Option<&Shedder> {
        self.guarding.shedder.as_ref()
    }

    /// Whether a policy says what its requests are under load.
    pub(crate) fn is_shed_by_policy(&self) -> bool {
        self.kinds.is_shed_by_policy()
    }

    /// Has every check keep its worker for so long: for measurements of overload.
    #[doc(hidden)]
    #[must_use]
    pub fn with_artificial_work(mut self, work: Duration) -> Self {
        self.guarding.work = work;
        self
    }

    pub(super) fn work(&self) {
        if self.guarding.work > Duration::ZERO {
            let began = Instant::now();
            while began.elapsed() < self.guarding.work {
                std::hint::spin_loop();
            }
        }
    }

    /// The denial of a request for this key, if the process is behind.
    pub(super) fn shed(&self, policy: &Policy, key: &str) -> Result<Option<Decided>, Refusal> {
        let Some(shedder) = self.shedder().filter(|_| self.is_shed_by_policy()) else {
            return Ok(None);
        };
        let Some(LoadConfig { class, by }) = policy.config.load else {
            // Not one that has a say; the others have it judged here too.
            return match shedder.reject_as(Class::Default) {
                true => Err(Refusal::Shed(shedder.shed(Class::Default))),
                false => Ok(None),
            };
        };
        let is_shed = match by {
            LoadBy::Key => shedder.reject_key_as(class, key),
            LoadBy::Random => shedder.reject_as(class),
        };
        Ok(is_shed.then(|| self.denied(shedder)))
    }

    /// The same for each key of a batch: `None` if all of them go on.
    pub(super) fn shed_many(
        &self,
        policy: &Policy,
        keys: &[String],
    ) -> Result<Option<Vec<Option<Decision>>>, Refusal> {
        let Some((first, others)) = keys.split_first() else { return Ok(None) };
        let first = self.shed(policy, first)?.map(|denied| denied.decision);
        let (Some(shedder), Some(load)) = (self.shedder(), policy.config.load) else {
            return Ok(None);
        };
        let denial = || self.denied(shedder).decision;
        let mut denied = Vec::with_capacity(keys.len());
        denied.push(first);
        denied.extend(others.iter().map(|key| match load.by {
            // The batch has been counted with its first key.
            LoadBy::Key => shedder.would_reject(load.class, key).then(denial),
            LoadBy::Random => first,
        }));
        Ok(denied.iter().any(Option::is_some).then_some(denied))
    }

    fn denied(&self, shedder: &Shedder) -> Decided {
        Decided { decision: shedder.denial(self.wall()), source: Source::Node }
    }

    /// What a policy says that limits nothing.
    pub(super) fn unlimited(&self) -> Decision {
        Decision { reset_at: self.wall(), ..Decision::NEUTRAL }
    }
}

impl Policy {
    /// Whether it limits nothing but says what its requests are under load.
    pub(crate) const fn is_load_only(&self) -> bool {
        let limits = self.rate.is_some() || self.gate.is_some() || self.cost.is_some();
        self.config.load.is_some() && !limits
    }
}
