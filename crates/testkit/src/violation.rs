//! Which contract did not hold, and the facts that show it.

use std::fmt;

use admittance::{Answer, Builtin, Micros, Several, StoreError};

/// A contract that a store did not hold.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub contract: Contract,
    /// The strategy it was seen with.
    pub strategy: Box<Builtin>,
    /// What was seen.
    pub fact: Box<Fact>,
}

/// What a store must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Contract {
    /// What was charged stays charged.
    Persists,
    /// One key's charges are not another's.
    IsolatesKeys,
    /// One policy's charges are not another's.
    IsolatesPolicies,
    /// A changed strategy does not meet the state of the one before.
    IsolatesStrategies,
    /// A key that was reset is as one never seen, and only that key.
    Resets,
    /// A key is as one never seen from the strategy's `idle_at` on, and not before.
    Expires,
    /// Racing callers are admitted exactly as often as the limit says.
    Races,
    /// A denial charges nothing.
    DenialsAreFree,
    /// A clock that steps back never admits more.
    StepsBack,
    /// Waiting exactly the retry admits, one tick less does not.
    RetryIsTrue,
    /// A cost above the limit is told never.
    Never,
    /// A peek and a forecast charge nothing, and are true.
    LooksAreFree,
    /// Many keys are checked at one instant, repeated ones in order.
    ManyAtOnce,
    /// A changed limit keeps what was spent.
    KeepsSpent,
    /// Several limits decide together as core says, all or nothing.
    Groups,
    /// A strategy that the store does not know is decided by compare and swap, exactly.
    Custom,
    /// Leases are granted and given back as core does it.
    Leases,
    /// Every answer is core's, in every field.
    EqualsCore,
}

/// What was seen of a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fact {
    /// The store failed where it should have answered.
    Failed(StoreError),
    /// The answer is not of the kind that was asked for.
    WrongKind(Answer),
    /// The store's clock did not show what it was set to.
    WrongInstant {
        /// What it was set to.
        set: Micros,
        /// What the answer said.
        shown: Micros,
    },
    /// The answer is another one than it should be.
    WrongAnswer {
        /// When it was asked.
        at: Micros,
        /// What it should have been.
        expected: Answer,
        /// What it was.
        given: Answer,
    },
    /// Several limits together gave another answer than they should.
    WrongGroup {
        /// When they were asked.
        at: Micros,
        /// What they should have answered.
        expected: Several,
        /// What they did.
        given: Several,
    },
    /// More or fewer requests passed than should have.
    WrongCount {
        /// When they were counted.
        at: Micros,
        /// How many should have passed.
        expected: u64,
        /// How many did.
        admitted: u64,
    },
    /// More units passed than ever should.
    OverAdmitted {
        /// When they were counted.
        at: Micros,
        /// The most that may pass.
        bound: u64,
        /// How many did.
        admitted: u64,
    },
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Persists => "what was charged stays charged",
            Self::IsolatesKeys => "one key's charges are not another's",
            Self::IsolatesPolicies => "one policy's charges are not another's",
            Self::IsolatesStrategies => "a changed strategy does not meet old state",
            Self::Resets => "a reset key is as one never seen, and only that key",
            Self::Expires => "a key is forgotten when idle and not before",
            Self::Races => "racing callers are admitted exactly as the limit says",
            Self::DenialsAreFree => "a denial charges nothing",
            Self::StepsBack => "a clock that steps back never admits more",
            Self::RetryIsTrue => "waiting exactly the retry admits, one tick less does not",
            Self::Never => "a cost above the limit is told never",
            Self::LooksAreFree => "a peek and a forecast charge nothing, and are true",
            Self::ManyAtOnce => "many keys are checked at one instant, repeated ones in order",
            Self::KeepsSpent => "a changed limit keeps what was spent",
            Self::Groups => "several limits decide together as core says, all or nothing",
            Self::Custom => "a strategy unknown to the store is decided exactly",
            Self::Leases => "leases are granted and given back as core does it",
            Self::EqualsCore => "every answer is core's, in every field",
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { contract, strategy, fact } = self;
        write!(f, "contract broken: {contract}; seen: {fact:?}; with {strategy:?}")
    }
}

impl std::error::Error for Violation {}
