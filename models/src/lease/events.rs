//! What happens to a fleet, what is under way in it, and what it has admitted.

use admittance_core::Micros;
use admittance_core::lease::{GiveBack, Grant, LeaseId, Request};

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the store.
    Request(usize, Request),
    /// To a node; and what the store had left before.
    Reply(usize, LeaseId, Grant, u64),
    /// To the store.
    GiveBack(GiveBack),
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request of a client at a node.
    Check(usize, u64),
    /// A request reads the node's clock and word.
    Read(usize),
    /// It swaps the word, if that is still there.
    Swap(usize),
    /// A message arrives.
    Deliver(usize),
    /// A message arrives and is still under way.
    Copy(usize),
    /// A node's driver lets it know the time.
    Deadline(usize),
    /// A node crashes and starts anew.
    Crash(usize),
    /// A node closes.
    Close(usize),
    /// The store loses everything.
    Lose,
    /// Time goes on to the next instant at which anything can happen.
    Wait,
}

/// What one step did, for `sometimes`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Credits were spent without a message.
    pub spent_locally: bool,
    /// A give-back restored something.
    pub given_back: bool,
    /// Units that were given back were granted again; only windows are looked at.
    pub reused: bool,
    /// A grant that came after its deadline became credits.
    pub late_used: bool,
    /// A request that waited was asked for again.
    pub asked_again: bool,
    /// A request was denied.
    pub denied: bool,
    /// The fail mode had to answer.
    pub unanswered: bool,
}

/// What was admitted, as far as the bounds look at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Admitted {
    /// Units by the end of the window that paid, latest last; for carry-over, by the window in
    /// which they were admitted.
    pub windows: Vec<(Micros, u64)>,
    /// Acknowledged grants that the store lost, by window.
    pub lost: Vec<(Micros, u64)>,
    /// For a continuous limit: when how many units were admitted.
    pub history: Vec<(u64, u64)>,
    /// The most, over all intervals so far, by which an interval's admissions exceed rate times
    /// length; in 1/`window` units.
    pub excess: u64,
    /// A decision whose clock reading lies outside the window that paid for it.
    pub outside: bool,
    /// A denial although the store and the node together had enough.
    pub stranded: bool,
}

impl Admitted {
    /// Adds to the history of a continuous limit, of which one unit comes back per `unit` ticks,
    /// and looks at every interval that this lies in.
    pub(super) fn admit_at(&mut self, at: u64, units: u64, unit: u64) {
        let place = self.history.partition_point(|(known, _)| *known < at);
        match self.history.get_mut(place) {
            Some((known, sum)) if *known == at => *sum += units,
            _ => self.history.insert(place, (at, units)),
        }
        for first in 0..=place {
            let mut sum: u64 = self.history[first..place].iter().map(|(_, units)| units).sum();
            for last in place..self.history.len() {
                sum += self.history[last].1;
                let length = self.history[last].0 - self.history[first].0;
                self.excess = self.excess.max((sum * unit).saturating_sub(length));
            }
        }
    }
}

/// Adds to the sum of that key.
pub(super) fn add(sums: &mut Vec<(Micros, u64)>, key: Micros, units: u64) {
    match sums.iter_mut().find(|(known, _)| *known == key) {
        Some((_, sum)) => *sum += units,
        None => {
            sums.push((key, units));
            sums.sort_unstable();
        }
    }
}

/// The order in which messages are kept, so that the same ones are the same state.
pub(super) fn order(message: &Message) -> (u8, usize, LeaseId, u64, u64) {
    match message {
        Message::Request(place, request) => (0, *place, request.id, request.ask.want, 0),
        Message::Reply(place, id, grant, _) => (1, *place, *id, grant.granted, grant.at.epoch_us()),
        Message::GiveBack(back) => (2, 0, back.id, back.units, 0),
    }
}
