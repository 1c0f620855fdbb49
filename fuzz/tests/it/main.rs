//! Mutants that the fuzz targets must notice.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod live_mutants;
mod mutants;
