//! The in-process table for strategies whose state is one word.

mod grow;
mod memory;
mod native;
mod table;
mod word;

pub(crate) use native::Native;
pub(crate) use table::Table;
pub(crate) use word::Word;
