//! The in-process table for strategies whose state is one word.

mod grow;
mod hold;
mod memory;
mod native;
mod table;
mod word;

pub(crate) use hold::{Held, Weighed};
pub(crate) use memory::Memory;
#[cfg(feature = "bench")]
pub(crate) use memory::{Cell, Slot};
pub(crate) use native::Native;
pub(crate) use table::Table;
#[cfg(feature = "bench")]
pub(crate) use word::Judge;
pub(crate) use word::Word;
