//! Load: what shedding does for a service that is behind.

pub(crate) mod service;

pub(crate) use service::{FULL, QUICK, Settings};

/// Measures all parts, or the one that is named.
pub(crate) fn run(settings: Settings, only: &str) {
    if only.is_empty() || only == "service" {
        service::run(settings);
    }
}
