//! A second implementation of the budget account, which scans where the shipped one has indexes,
//! and its mutants.

mod calendar;
mod mutant;
mod scanning;

pub use calendar::{after, between, end};
pub use mutant::Mutant;
pub use scanning::ScanningAccount;
