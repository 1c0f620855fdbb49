//! Mutants of the strategies that more than one law is checked against.

pub(crate) mod mutants;
pub(crate) mod mutated;
