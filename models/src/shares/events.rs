//! What happens to a fleet, what is under way in it, and what is noted of it.

use std::sync::Arc;

use admittance_core::concurrency::{Beat, Grant, Leave};

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the store.
    Report(usize, Arc<Beat>),
    /// To a node.
    Reply(usize, Arc<Beat>, Grant),
    /// To the store.
    Leave(Leave),
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node reports.
    Beat(usize),
    /// A node admits one.
    Acquire(usize),
    /// The work of a node that would last longest ends.
    Release(usize),
    /// A node infers this limit.
    Vote(usize, u32),
    /// A message arrives.
    Deliver(usize),
    /// A message arrives and is still under way.
    Copy(usize),
    /// A node crashes and starts anew.
    Crash(usize),
    /// A node leaves.
    Leave(usize),
    /// The store loses everything.
    Flush,
    /// What the store has reaches its replica, for the last time.
    Snapshot,
    /// The replica takes the place of the store.
    Failover,
    /// The store's clock steps back.
    StepBack,
    /// Time goes on to the next instant at which anything can happen.
    Wait,
}

/// What one step did, for `sometimes`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// A node asks for an extra report.
    pub is_eager: bool,
    /// A node was heard that had been forgotten.
    pub is_forgotten: bool,
    /// A node fenced itself with work in flight.
    pub is_fenced: bool,
}

/// What a step of the store did that it must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Broken {
    /// It raised the reserves above the limit and above what they were.
    pub reserves: bool,
    /// It raised the shares above the limit and above what they were.
    pub shares: bool,
    /// It raised a share while all together were above the limit.
    pub rises: bool,
}

/// The order in which messages are kept, so that the same ones are the same state.
pub(super) fn order(message: &Message) -> (u8, usize, u64, u64, u64, u64) {
    match message {
        Message::Report(place, beat) => {
            let report = &beat.report;
            (0, *place, report.node.incarnation(), report.sequence, 0, 0)
        }
        Message::Reply(place, beat, grant) => {
            let sequence = beat.report.sequence;
            (1, *place, sequence, grant.epoch, grant.generation, u64::from(grant.share))
        }
        Message::Leave(leave) => (2, 0, leave.node.incarnation(), leave.sequence, 0, 0),
    }
}
