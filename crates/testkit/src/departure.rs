//! What an executor of a fleet's step, of a relay or of accounts did that it must not.

use std::fmt;

use admittance::Micros;

/// An executor that did not do what it must.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// What it did not hold.
    pub promise: Promise,
    /// When it was asked, on its own clock.
    pub at: Micros,
    /// What it was asked.
    pub asked: String,
    /// What it should have answered.
    pub expected: String,
    /// What it answered.
    pub given: String,
}

/// What an executor must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// Every answer is the pure step's, in every field.
    Equals,
    /// Many at once are as if they had come one after another.
    Atomic,
    /// As much as is promised fits, and no more.
    Bounded,
    /// Several are charged together, or none of them.
    AllOrNone,
    /// What is one's is no other's.
    Apart,
}

impl Departure {
    /// Nothing if both are the same.
    pub(crate) fn unless_equal<A: PartialEq + fmt::Debug>(
        promise: Promise,
        (at, asked): (Micros, &dyn fmt::Debug),
        expected: &A,
        given: &A,
    ) -> Result<(), Self> {
        if expected == given {
            return Ok(());
        }
        let (expected, given) = (format!("{expected:?}"), format!("{given:?}"));
        Err(Self { promise, at, asked: format!("{asked:?}"), expected, given })
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equals => "every answer is the pure step's, in every field",
            Self::Atomic => "many at once are as if they had come one after another",
            Self::Bounded => "as much as is promised fits, and no more",
            Self::AllOrNone => "several are charged together, or none of them",
            Self::Apart => "what is one's is no other's",
        })
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, at, asked, expected, given } = self;
        write!(f, "promise broken: {promise}; at {} asked {asked}; ", at.epoch_us())?;
        write!(f, "expected {expected}; given {given}")
    }
}

impl std::error::Error for Departure {}
