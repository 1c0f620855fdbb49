//! How a store is set up.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use admittance::Micros;
use admittance::store::lanes::Size;

use crate::carry::Carrier;
use crate::scripts::Scripts;
use crate::server::Connector;
use crate::store::{Clock, RedisStore};
use crate::url::{Target, UrlError};

/// What one policy wants of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyOptions {
    /// All keys of policies with one hash tag live in one slot of a cluster, so that limits on
    /// different keys can be decided together. Without one, the key itself decides.
    pub hash_tag: Option<String>,
    /// How many replicas must confirm a charge before it is answered. With as many as may become
    /// primary, no failover loses an acknowledged charge.
    pub wait_replicas: u32,
}

/// A [`RedisStore`] before it is built.
#[derive(Clone)]
pub struct Builder {
    url: String,
    prefix: String,
    policies: HashMap<String, PolicyOptions>,
    allow_eviction: bool,
    ca: Option<PathBuf>,
    size: Size,
    patience: Duration,
    replica_patience: Duration,
    now: Option<Micros>,
    edits: Vec<(String, String)>,
}

/// Why a store cannot be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The URL is not one.
    Url(UrlError),
    /// The prefix has a brace in it, which would decide the slot of every key.
    Prefix,
    /// A policy's hash tag is empty or has a closing brace in it.
    HashTag {
        /// The policy.
        policy: String,
    },
    /// The file with the certificates to trust cannot be read.
    Ca {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: PREFIX_DEFAULT.to_owned(),
            policies: HashMap::new(),
            allow_eviction: false,
            ca: None,
            size: SIZE_DEFAULT,
            patience: PATIENCE_DEFAULT,
            replica_patience: REPLICA_PATIENCE_DEFAULT,
            now: None,
            edits: Vec::new(),
        }
    }

    /// What every key begins with, `admittance` if nobody says otherwise. Stores with different
    /// prefixes share nothing.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// What a policy wants of the store.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<String>, options: PolicyOptions) -> Self {
        self.policies.insert(policy.into(), options);
        self
    }

    /// Uses the server even if it may evict keys. What an evicted key has spent is forgotten, and
    /// so comes back as admissions.
    #[must_use]
    pub fn allow_eviction(self) -> Self {
        Self { allow_eviction: true, ..self }
    }

    /// A PEM file with the certificates to trust instead of the system's.
    #[must_use]
    pub fn ca(self, path: impl Into<PathBuf>) -> Self {
        Self { ca: Some(path.into()), ..self }
    }

    /// How many batches are on their way to a server at the same time, each on a connection of its
    /// own, and how much each holds. On a cluster that is so for each primary.
    #[must_use]
    pub fn lanes(self, size: Size) -> Self {
        Self { size, ..self }
    }

    /// How long a connection, and a batch's answer, may take before the connection is given up. It
    /// is not the deadline of a decision, which the caller has: it is when a silent server is
    /// taken for a dead one.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// How long replicas may take to confirm a charge.
    #[must_use]
    pub fn replica_patience(self, replica_patience: Duration) -> Self {
        Self { replica_patience, ..self }
    }

    /// Decides by a clock that tests set, and lets nothing expire.
    #[doc(hidden)]
    #[must_use]
    pub fn manual_clock(self, now: Micros) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Replaces a text in every script, for tests that a wrong script is caught.
    #[doc(hidden)]
    #[must_use]
    pub fn edit_scripts(mut self, from: &str, to: &str) -> Self {
        self.edits.push((from.to_owned(), to.to_owned()));
        self
    }

    /// The store. Nothing is connected yet: the first ask does that, and a server that is not there
    /// yet is found when it comes. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// What was given cannot be used.
    pub fn build(self) -> Result<RedisStore, BuildError> {
        let target = Target::parse(&self.url).map_err(BuildError::Url)?;
        if self.prefix.contains(['{', '}']) {
            return Err(BuildError::Prefix);
        }
        for (policy, options) in &self.policies {
            let is_bad = |tag: &String| tag.is_empty() || tag.contains('}');
            if options.hash_tag.as_ref().is_some_and(is_bad) {
                return Err(BuildError::HashTag { policy: policy.clone() });
            }
        }
        let path = self.ca.or_else(|| target.ca.as_ref().map(PathBuf::from));
        let ca = match path {
            Some(path) => match std::fs::read(&path) {
                Ok(ca) => Some(ca),
                Err(error) => return Err(BuildError::Ca { path, error }),
            },
            None => None,
        };
        let (may_evict, patience) = (self.allow_eviction, self.patience);
        let connector = Connector { target, ca, may_evict, patience };
        let scripts = Scripts::edited(&self.edits);
        let carrier = Carrier::new(connector, scripts, self.replica_patience);
        let clock = self.now.map_or_else(Clock::real, Clock::manual);
        Ok(RedisStore::start(carrier, self.size, self.prefix, self.policies, clock))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password in it.
        let mut builder = f.debug_struct("Builder");
        builder.field("target", &Target::parse(&self.url)).field("prefix", &self.prefix);
        builder.field("policies", &self.policies).finish_non_exhaustive()
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(error) => error.fmt(f),
            Self::Prefix => f.write_str("the store's prefix must not have a brace in it"),
            Self::HashTag { policy } => write!(
                f,
                "the hash tag of policy {policy:?} must not be empty or have a closing brace in it",
            ),
            Self::Ca { path, error } => {
                write!(f, "the certificates in {} cannot be read: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url(error) => Some(error),
            Self::Ca { error, .. } => Some(error),
            Self::Prefix | Self::HashTag { .. } => None,
        }
    }
}

const PREFIX_DEFAULT: &str = "admittance";
/// Two batches on their way keep one server's thread busy; more only make the batches smaller.
const SIZE_DEFAULT: Size = Size { lanes: 2, batch_max: 512, queue_max: 10_000 };
const PATIENCE_DEFAULT: Duration = Duration::from_secs(2);
const REPLICA_PATIENCE_DEFAULT: Duration = Duration::from_millis(10);
