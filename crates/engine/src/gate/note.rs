//! What a permit that ends leaves for the estimate, as one number.
//!
//! A note that is left in the ring must fit one atomic, so its time keeps fifteen significant bits:
//! it is short by less than one part in sixteen thousand, which no estimate notices.

use admittance_core::concurrency::PERMITS_MAX;
use admittance_core::learn::{Ending, Sample};

/// One note for the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) kind: Kind,
    pub(super) rtt_ns: u64,
    pub(super) in_flight: u32,
    pub(super) ceiling: u32,
}

/// What a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A permit ended like this.
    Ended(Ending),
    /// A permit that goes on has been measured.
    Measured,
    /// A permit ended well whose measurement was told before.
    Done,
}

impl Note {
    /// What the estimate learns from it, if anything.
    pub(super) const fn sample(self) -> Option<Sample> {
        let ending = match self.kind {
            Kind::Ended(ending) => ending,
            Kind::Measured => Ending::Finish,
            Kind::Done => return None,
        };
        let Self { rtt_ns, in_flight, ceiling, .. } = self;
        Some(Sample { rtt_ns, in_flight, ceiling, ending })
    }

    /// As one number, which is never zero.
    pub(super) const fn to_bits(self) -> u64 {
        let kind = match self.kind {
            Kind::Ended(Ending::Finish) => 1,
            Kind::Ended(Ending::Ignore) => 2,
            Kind::Ended(Ending::Overload) => 3,
            Kind::Measured => 4,
            Kind::Done => 5,
        };
        // How far the time is shifted to have at most `TIME_BITS` bits.
        let shift = (u64::BITS - TIME_BITS).saturating_sub(self.rtt_ns.leading_zeros());
        let time = self.rtt_ns >> shift | (shift as u64) << TIME_BITS;
        kind | time << KIND_BITS
            | (self.in_flight as u64 & PERMITS) << (KIND_BITS + TIME_BITS + SHIFT_BITS)
            | (self.ceiling as u64 & PERMITS) << (KIND_BITS + TIME_BITS + SHIFT_BITS + FIELD_BITS)
    }

    /// The note that [`to_bits`](Self::to_bits) gave, its time rounded down; none from zero.
    pub(super) const fn from_bits(bits: u64) -> Option<Self> {
        let kind = match bits & ((1 << KIND_BITS) - 1) {
            1 => Kind::Ended(Ending::Finish),
            2 => Kind::Ended(Ending::Ignore),
            3 => Kind::Ended(Ending::Overload),
            4 => Kind::Measured,
            5 => Kind::Done,
            _ => return None,
        };
        let time = bits >> KIND_BITS & ((1 << TIME_BITS) - 1);
        let shift = bits >> (KIND_BITS + TIME_BITS) & ((1 << SHIFT_BITS) - 1);
        let permits = bits >> (KIND_BITS + TIME_BITS + SHIFT_BITS);
        let (in_flight, ceiling) = (permits & PERMITS, permits >> FIELD_BITS & PERMITS);
        #[expect(clippy::cast_possible_truncation, reason = "each field is masked first")]
        let (in_flight, ceiling) = (in_flight as u32, ceiling as u32);
        Some(Self { kind, rtt_ns: time << shift, in_flight, ceiling })
    }
}

const KIND_BITS: u32 = 3;
const TIME_BITS: u32 = 15;
const SHIFT_BITS: u32 = 6;
const FIELD_BITS: u32 = 20;
const PERMITS: u64 = PERMITS_MAX as u64;
const _: () = assert!(PERMITS == (1 << FIELD_BITS) - 1, "a count of permits fits its field");
const _: () = assert!(KIND_BITS + TIME_BITS + SHIFT_BITS + 2 * FIELD_BITS == u64::BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_its_number() {
        let ended = [Ending::Finish, Ending::Ignore, Ending::Overload].map(Kind::Ended);
        for kind in ended.into_iter().chain([Kind::Measured, Kind::Done]) {
            for rtt_ns in [0, 1, 32_767, 32_768, 1_234_567, 9_999_999_999, u64::MAX] {
                for (in_flight, ceiling) in [(0, 0), (1, PERMITS_MAX), (PERMITS_MAX, 1)] {
                    let note = Note { kind, rtt_ns, in_flight, ceiling };
                    let back = Note::from_bits(note.to_bits()).unwrap();
                    let lost = rtt_ns - back.rtt_ns;
                    assert!(lost <= rtt_ns >> 14, "{rtt_ns} became {}", back.rtt_ns);
                    assert_eq!(Note { rtt_ns, ..back }, note);
                }
            }
        }
        assert_eq!(Note::from_bits(0), None);
    }
}
