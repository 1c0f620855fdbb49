//! Concurrency: how many may be in flight at once, in one process and across a fleet.
//!
//! A gate counts permits in one [`Word`]; beside the count stand the two ceilings it is held to,
//! the limit that this process inferred and the share that a coordinator granted. A [`Partition`]
//! divides both among classes.

mod partition;
mod word;

pub use partition::{CLASSES_MAX, Partition, Parts};
pub use word::{PERMITS_MAX, Word};
