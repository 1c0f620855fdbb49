//! The laws of the system, each with a mutant that breaks it.
//!
//! A law is a function that takes an implementation and says whether it holds, so that the shipped
//! code and the mutants go through the same lines. A law that lets its mutant pass fails the test.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

mod algebra;
mod bounds;
mod changed;
mod contract;
mod parts;
mod several;
