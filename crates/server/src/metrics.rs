//! Metrics in the text that Prometheus and OpenMetrics collectors read.
//!
//! # Guarantee
//! - Every family is in `docs/METRICS.md`, with its type and its labels, and no other.
//! - No label is a key: each is a policy's name or one of a few words that stand in the code.
//! - `admittance_admissions_total` and `admittance_denials_total` count by the label that the
//!   answer went by: the axis that bound, `policy` for what was not worth its price, and `none` for
//!   what was admitted.
//! - To ask takes a time that grows with the policies, not with keys or requests.
//!
//! # Proven by
//! The tests below and in its parts, `tests/it/metrics.rs`, and `tests/metrics/check.py` at the
//! root, which reads a live service's text with Prometheus's own parser.

mod door;
mod families;
mod process;
mod text;

use crate::Service;

pub use self::door::MetricsDoor;
use self::text::written;
pub use self::text::{Family, Form, Kind, Sample, Value};

/// What metrics come from: asked whenever a collector asks.
pub trait Source: Send + Sync {
    /// Each family, as it is now. No other source has one of the same name.
    fn families(&self) -> Vec<Family>;
}

/// The service, its policies, its doors, and the process that they run in.
impl Source for Service {
    fn families(&self) -> Vec<Family> {
        families::of(self)
    }
}

/// All that a service counts, as text in this form.
#[must_use]
pub fn exposition_of(service: &Service, form: Form) -> String {
    written(&service.families(), form)
}
