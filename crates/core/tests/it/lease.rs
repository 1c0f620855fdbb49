//! Leasing: single steps of the holder and the grantor, and both of them together.
//!
//! Long random runs of whole fleets are in `models/tests/it/lease_walks.rs`.

mod pair;
mod steps;
