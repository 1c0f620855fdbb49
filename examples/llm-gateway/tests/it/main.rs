//! The gateway against a backend that streams, stalls and breaks.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod budget;
mod common;
mod endings;
