//! Which instance of a service this is, and what keeps one from being made.

use std::hash::BuildHasher;

use admittance::Invalid;
use admittance::concurrency::Node;

use crate::config::quoted;

/// Which instance of a service this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// A name that no other instance has at the same time.
    pub node_id: String,
}

/// The host's name, if the environment has it, and the process's number.
impl Default for Instance {
    fn default() -> Self {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".into());
        Self { node_id: format!("{host}#{}", std::process::id()) }
    }
}

impl Instance {
    /// As a node of a fleet, in an incarnation of its own.
    pub(super) fn node(&self) -> Node {
        let incarnation = std::hash::RandomState::new().hash_one(&self.node_id);
        let named = Node::new(&self.node_id, incarnation);
        named.or_else(|_| Node::new("unnamed", incarnation)).expect("a plain name")
    }
}

/// Why a service cannot be made of a configuration and a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unservable {
    /// Something cannot be kept exact.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// A policy's instances share one limit, and do not meet in this store.
    #[error(
        "policy {} has distributedConcurrency, which needs a store that instances share; use \
         --store redis://… or postgres://…, or concurrency for one instance",
        quoted(policy)
    )]
    NoFleet {
        /// The policy.
        policy: String,
    },
    /// A policy goes on alone with a part that nobody here grants.
    #[error(
        "policy {} has fail: local, whose share must come from a coordinator, and this store has \
         none; write its share",
        quoted(policy)
    )]
    NoParts {
        /// The policy.
        policy: String,
    },
    /// A policy's budget is shared, and this store keeps no accounts.
    #[error(
        "policy {} has fleetBudget, whose accounts this store cannot keep; use --store redis://… \
         or postgres://…, or tokenBudget for one instance",
        quoted(policy)
    )]
    NoAccounts {
        /// The policy.
        policy: String,
    },
}
