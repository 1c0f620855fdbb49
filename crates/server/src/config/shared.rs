//! What a policy says about a shared store: how it is kept there, and what happens without it.

use admittance::{Builtin, Decimal, FailMode, Span};

use super::policy::{Raw, Reader};
use super::problem::{Problem, quoted};
use super::{Defaults, Fail, scalar};

/// What a shared store is told about a policy. The store in this process has no use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// On a cluster, what decides which node the policy's keys live on; the key itself if `None`.
    pub hash_tag: Option<String>,
    /// On Redis, how many replicas must confirm a charge.
    pub wait_replicas: u64,
    /// How long a decision waits.
    pub deadline: Span,
    /// On Postgres, whether what was charged survives a crash of the server.
    pub durable: bool,
}

impl StoreConfig {
    /// The longest that a decision may be told to wait.
    pub const DEADLINE_MAX: Span = Span::from_secs(5);

    /// The shortest: less than a round trip on one machine would only ever fail.
    pub const DEADLINE_MIN: Span = Span::from_ms(1);

    /// The most replicas that may be waited for.
    pub const REPLICAS_MAX: u64 = 100;

    /// A deadline as files and flags write it, e.g. `20ms`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_deadline(text: &str) -> Result<Span, String> {
        deadline(text)
    }
}

impl Reader<'_, '_> {
    /// The fail mode with its share, which is one of each of these, and what the store is told.
    pub(super) fn shared(
        &mut self,
        defaults: Defaults,
        shares_of: &[Builtin],
        raw: &Raw<'_>,
    ) -> (Option<FailMode>, StoreConfig) {
        let store = StoreConfig {
            hash_tag: raw.hash_tag.value().cloned(),
            wait_replicas: raw.wait_replicas.value().copied().unwrap_or(0),
            deadline: raw.store_deadline.value().copied().unwrap_or(defaults.store_deadline),
            durable: raw.durable.value().copied().unwrap_or(true),
        };
        let given = raw.fail.value().copied();
        let fail = match given.unwrap_or(defaults.fail) {
            Fail::Open => Some(FailMode::Open),
            Fail::Closed => Some(FailMode::Closed),
            Fail::Local => self.local(shares_of, raw),
        };
        if let (Some(FailMode::Open | FailMode::Closed), false) =
            (fail, raw.reserve_local.is_absent())
            && let Some(&(key, place)) = raw.keys.iter().find(|(key, _)| *key == "reserveLocal")
        {
            let message = "only a policy with fail: local goes on alone";
            self.report(place, key, message.into());
        }
        if let (Some(FailMode::Open | FailMode::Closed), false) = (fail, raw.share.is_absent()) {
            let place = raw.keys.iter().find(|(key, _)| *key == "share");
            let place = place.map_or(self.name.place, |(_, place)| *place);
            let message = "only a policy with fail: local goes on with a share of its limit";
            if given.is_some() {
                self.report(place, "share", message.into());
            } else {
                // Whether it is meant depends on a flag that others may start the file with.
                let path = format!("{}.share", self.path);
                self.warnings.push(Problem { place: Some(place), path, message: message.into() });
            }
        }
        (fail, store)
    }

    fn local(&mut self, shares_of: &[Builtin], raw: &Raw<'_>) -> Option<FailMode> {
        let reserve = raw.reserve_local.value().copied().unwrap_or(false);
        if raw.share.is_absent() {
            return self.granted(reserve, raw);
        }
        if reserve {
            let message = "does not go with share: what others leave to this node must come from \
                           the store's coordinator; remove one of them";
            self.report(self.name.place, "reserveLocal", message.into());
            return None;
        }
        let share = *raw.share.value()?;
        for whole in shares_of {
            match whole.scaled(share) {
                Err(invalid) => {
                    self.refused(invalid, raw);
                    return None;
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    let place = raw.keys.iter().find(|(key, _)| *key == "share");
                    let place = place.map(|(_, place)| *place);
                    let path = format!("{}.share", self.path);
                    let limit = whole.limit();
                    let message = format!(
                        "{share} of {limit} is less than one: without its store this policy denies \
                         everything"
                    );
                    self.warnings.push(Problem { place, path, message });
                }
            }
        }
        Some(FailMode::Local { share }).filter(|_| !shares_of.is_empty())
    }
}

impl Reader<'_, '_> {
    /// A part from the store's coordinator.
    fn granted(&mut self, reserve: bool, raw: &Raw<'_>) -> Option<FailMode> {
        let has_tier = !raw.two_tier.is_absent() || !raw.federated.is_absent();
        if !raw.fair_escrow.is_absent() {
            let message = "missing; fail: local of a fairEscrow needs it, e.g. share: 0.5";
            self.report(self.name.place, "share", message.into());
            return None;
        }
        if reserve && has_tier {
            let message = "does not go with twoTier or federated: what is leased already cannot be \
                           left to others";
            self.report(self.name.place, "reserveLocal", message.into());
            return None;
        }
        Some(FailMode::Granted { reserve })
    }
}

pub(super) fn share(text: &str) -> Result<Decimal, String> {
    let share = scalar::decimal(text)?;
    let is_part = !share.is_zero() && (share.floor() == 0 || share.as_whole() == Some(1));
    match is_part {
        true => Ok(share),
        false => Err(format!("{} is not a share; write one above 0, at most 1", quoted(text))),
    }
}

pub(super) fn hash_tag(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
    match (1..=TAG_MAX).contains(&text.len()) && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{} is not a hash tag; write up to {TAG_MAX} letters, digits and signs, without braces",
            quoted(text)
        )),
    }
}

pub(super) fn wait_replicas(text: &str) -> Result<u64, String> {
    match scalar::whole(text)? {
        number if number > StoreConfig::REPLICAS_MAX => {
            Err(format!("{number} is too large; the most is {}", StoreConfig::REPLICAS_MAX))
        }
        number => Ok(number),
    }
}

pub(super) fn deadline(text: &str) -> Result<Span, String> {
    let deadline = scalar::period(text)?;
    match (StoreConfig::DEADLINE_MIN..=StoreConfig::DEADLINE_MAX).contains(&deadline) {
        true => Ok(deadline),
        false => Err(format!("{} is not between 1ms and 5s", quoted(text))),
    }
}

const TAG_MAX: usize = 64;
