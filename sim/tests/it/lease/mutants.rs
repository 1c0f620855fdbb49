//! Fleets with one rule broken.

use admittance_core::lease::{Ask, GiveBack, Grant, LeaseId, Word};
use admittance_core::{Micros, Span};
use admittance_sim::{Between, Deadline, Heard, Published};

/// A grant whose credits live as if `left` were left of the window that paid when it was sent.
fn living(grant: Grant, left: Span) -> Grant {
    Grant { at: grant.decision.reset_at - left, ..grant }
}

/// Credits live for as long as any lease may.
#[derive(Clone, Copy)]
pub(crate) struct NoExpiry;

impl Between for NoExpiry {
    fn grant(self, _heard: &Heard, grant: Grant) -> Grant {
        living(grant, Span::from_secs(3_600))
    }
}

/// The lifetime counts from when the grant arrives.
#[derive(Clone, Copy)]
pub(crate) struct FromArrival;

impl Between for FromArrival {
    fn grant(self, heard: &Heard, grant: Grant) -> Grant {
        let left = grant.decision.reset_at.since(grant.at);
        living(grant, Span::from_us(left.us() + heard.round_trip().us()))
    }
}

/// Credits live until the node's wall clock shows the end of the window that paid.
#[derive(Clone, Copy)]
pub(crate) struct TrustsWallClock;

impl Between for TrustsWallClock {
    fn grant(self, heard: &Heard, grant: Grant) -> Grant {
        let left = grant.decision.reset_at.since(heard.wall);
        living(grant, Span::from_us(left.us() + heard.round_trip().us()))
    }
}

/// What is left of one lease is added to the next one, and dies with it.
#[derive(Clone, Copy)]
pub(crate) struct MergesCredits;

impl Between for MergesCredits {
    fn publish(self, kept: &mut u64, before: Word, next: Word) -> Published {
        if next == Word::EMPTY {
            *kept += before.credits();
            let told = Word::from_bits(before.to_bits() - u128::from(before.credits()));
            return Published { stored: next, told };
        }
        let stored = Word::from_bits(next.to_bits() + u128::from(*kept));
        *kept = 0;
        Published { stored, told: before }
    }
}

/// All attempts are the same one, so that an answer that comes twice counts twice.
#[derive(Clone, Copy)]
pub(crate) struct OneId;

impl Between for OneId {
    fn id(self, fresh: LeaseId) -> LeaseId {
        LeaseId { count: 0, ..fresh }
    }
}

/// Every third grant is not charged.
#[derive(Clone, Copy)]
pub(crate) struct ForgetfulStore;

impl Between for ForgetfulStore {
    fn is_kept(self, id: LeaseId) -> bool {
        !id.count.is_multiple_of(3)
    }
}

/// What comes back is worth as much as when it was granted.
#[derive(Clone, Copy)]
pub(crate) struct RefundsInFull;

impl Between for RefundsInFull {
    fn give_back(self, now: Micros, back: GiveBack) -> GiveBack {
        GiveBack { granted_at: now, ..back }
    }
}

/// A batch that is not there in full is not given at all.
#[derive(Clone, Copy)]
pub(crate) struct WholeBatchOrNothing;

impl Between for WholeBatchOrNothing {
    fn ask(self, ask: Ask) -> Ask {
        Ask { least: ask.want, ..ask }
    }
}

/// Half of each grant is dropped.
#[derive(Clone, Copy)]
pub(crate) struct KeepsHalf;

impl Between for KeepsHalf {
    fn grant(self, _heard: &Heard, grant: Grant) -> Grant {
        Grant { granted: grant.granted.div_ceil(2), ..grant }
    }
}

/// No holder is called when its deadline has come.
#[derive(Clone, Copy)]
pub(crate) struct NobodyLooks;

impl Between for NobodyLooks {
    fn deadline(self) -> Deadline {
        Deadline::Missed
    }
}

/// Holders are asked what they want at their deadline, and not told that it has come.
#[derive(Clone, Copy)]
pub(crate) struct NobodyTells;

impl Between for NobodyTells {
    fn deadline(self) -> Deadline {
        Deadline::Untold
    }
}
