//! The in-process table for strategies whose state is one word.

#[cfg(test)]
mod crowd;
mod evict;
mod grow;
mod hold;
mod insert;
mod memory;
mod native;
#[cfg(test)]
mod ordered;
mod shift;
mod table;
#[cfg(test)]
mod tests;
mod walk;
mod word;

pub(crate) use hold::{Held, NotHeld, Want};
#[cfg(any(feature = "bench", feature = "tokio"))]
pub(crate) use memory::{Cell, Slot};
pub(crate) use memory::{Layout, Memory};
#[cfg(feature = "tokio")]
pub(crate) use native::NativeCell;
pub(crate) use native::{Native, prefetch};
pub(crate) use table::Table;
pub(crate) use word::{Judge, Packed, Word, with_judge};
