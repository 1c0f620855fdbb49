//! The names of policies in a shared store, as `defaults` make them.
//!
//! # Guarantee
//! - A default prefix comes before the name of each policy that has no prefix of its own, so no two
//!   policies share counters unless they say so themselves.
//! - Earlier versions put it in the place of those names. Nobody's counters move silently: a file
//!   that does not say which names it means loads with a warning.
//!
//! # Proven by
//! `tests/it/config_naming.rs`.

use super::node::{Entry, Node};
use super::problem::{Place, Problem, quoted};
use super::{PolicyConfig, policy, scalar};

/// The keys of `defaults`.
pub(super) const KEYS: &[&str] = &["prefix", "prefixVersion"];

/// The prefix of policies that have none of their own, as the file says it.
pub(super) struct Naming {
    prefix: String,
    place: Place,
    version: Option<PrefixVersion>,
}

/// What was read of `defaults` so far.
#[derive(Default)]
pub(super) struct Reading {
    prefix: Option<(String, Place)>,
    version: Option<PrefixVersion>,
}

impl Reading {
    /// Reads a key, if it is one of these.
    pub(super) fn key(&mut self, entry: &Entry) -> Option<Result<(), String>> {
        let node = &entry.value;
        Some(match entry.key.as_str() {
            "prefix" => {
                policy::plain_text(node).map(|text| self.prefix = Some((text, entry.place)))
            }
            "prefixVersion" => PrefixVersion::read(node).map(|read| self.version = Some(read)),
            _ => return None,
        })
    }

    pub(super) fn naming(self) -> Option<Naming> {
        let (prefix, place) = self.prefix?;
        Some(Naming { prefix, place, version: self.version })
    }
}

impl Naming {
    /// Names the policies that have no prefix of their own; warns if the file does not say that it
    /// means these names.
    pub(super) fn apply(self, policies: &mut [PolicyConfig]) -> Option<Problem> {
        let mut example = None;
        for policy in policies.iter_mut().filter(|policy| policy.prefix.is_none()) {
            let name = match self.prefix.as_str() {
                "" => policy.name.clone(),
                prefix => format!("{prefix}:{}", policy.name),
            };
            example.get_or_insert_with(|| name.clone());
            if self.version == Some(PrefixVersion::Replaces) {
                let gate = policy.concurrency.as_mut();
                if let Some(fleet) = gate.and_then(|gate| gate.fleet.as_mut()) {
                    fleet.prefix.get_or_insert(name);
                }
                policy.prefix = Some(self.prefix.clone());
            } else {
                policy.prefix = Some(name);
            }
        }
        let example = example.filter(|_| self.version.is_none())?;
        let message = format!(
            "comes before the names of policies in a shared store: {}. Earlier versions had it in \
             their place, so counters from before are not read; write prefixVersion: 2 beside it \
             if that is meant, or prefixVersion: 1 to keep the old names",
            quoted(&example),
        );
        Some(Problem { place: Some(self.place), path: "defaults.prefix".to_owned(), message })
    }
}

/// How a default prefix makes names in a shared store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrefixVersion {
    /// It is the name of every policy, so those of one shape share their counters.
    Replaces,
    /// It comes before the policy's name.
    Precedes,
}

impl PrefixVersion {
    fn read(node: &Node) -> Result<Self, String> {
        match scalar::text(node, "prefixVersion: 2")? {
            "1" => Ok(Self::Replaces),
            "2" => Ok(Self::Precedes),
            other => Err(format!("{} is not a version; write 1 or 2", quoted(other))),
        }
    }
}
