//! What was heard of a fleet, in one number, so that it changes in one step.

use admittance_core::Span;
use admittance_core::concurrency::PERMITS_MAX;
use admittance_core::learn::Followed;

/// What was heard of the fleet, in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// The fleet's limit.
    pub(super) limit: u32,
    /// Whether this node has measured anything of late.
    pub(super) is_measured: bool,
    /// How long it takes until every node has heard.
    pub(super) beat: Span,
}

impl Heard {
    pub(super) fn bits(self) -> u64 {
        let beat = self.beat.us().min(u64::MAX >> HEARD_BEAT);
        let limit = u64::from(self.limit.min(PERMITS_MAX));
        limit | u64::from(self.is_measured) << HEARD_MEASURED | beat << HEARD_BEAT
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        let limit = u32::try_from(bits & u64::from(PERMITS_MAX)).unwrap_or(PERMITS_MAX);
        let is_measured = bits >> HEARD_MEASURED & 1 == 1;
        Self { limit, is_measured, beat: Span::from_us(bits >> HEARD_BEAT) }
    }

    pub(super) fn told(self, now_ns: u64) -> Followed {
        let known_ns = now_ns.saturating_add(self.beat.us().saturating_mul(1_000));
        Followed { limit: self.limit, known_ns, is_measured: self.is_measured }
    }
}

/// Where they lie: above the limit's bits.
const HEARD_MEASURED: u32 = 20;
const HEARD_BEAT: u32 = 21;
const _: () = assert!(PERMITS_MAX < 1 << HEARD_MEASURED);
