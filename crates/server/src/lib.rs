//! The admission service.
#![forbid(unsafe_code)]

mod config;

pub use config::{Config, FailMode, Place, PolicyConfig, Problem, Report, Rule};
