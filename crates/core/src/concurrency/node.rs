//! Who a node is.

use alloc::boxed::Box;
use core::fmt;

/// A node of a fleet: a name that the operator gave, and which start of it this is.
///
/// Another incarnation is another node. What the former one was granted stays reserved until it has
/// surely ended; a restarted process knows nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    id: Box<str>,
    incarnation: u64,
}

impl Node {
    /// A node of this name. `incarnation` is drawn at random at each start, up to
    /// [`EXACT_MAX`](crate::EXACT_MAX).
    ///
    /// # Errors
    /// The name is empty, longer than [`NODE_ID_MAX`] bytes or has control characters in it.
    pub fn new(id: &str, incarnation: u64) -> Result<Self, InvalidNode> {
        if id.is_empty() {
            return Err(InvalidNode::Empty);
        }
        if id.len() > NODE_ID_MAX {
            return Err(InvalidNode::TooLong { bytes: id.len() });
        }
        if id.chars().any(char::is_control) {
            return Err(InvalidNode::Control);
        }
        Ok(Self { id: id.into(), incarnation: incarnation & crate::EXACT_MAX })
    }

    /// The name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Which start of it.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

/// Why a name cannot be a node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidNode {
    /// It is empty.
    Empty,
    /// It is longer than [`NODE_ID_MAX`] bytes.
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It has control characters in it.
    Control,
}

impl fmt::Display for InvalidNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a node id must not be empty"),
            Self::TooLong { bytes } => {
                write!(f, "a node id has at most {NODE_ID_MAX} bytes, not {bytes}")
            }
            Self::Control => f.write_str("a node id must not have control characters in it"),
        }
    }
}

impl core::error::Error for InvalidNode {}

/// The most bytes of a node's name.
pub const NODE_ID_MAX: usize = 128;
