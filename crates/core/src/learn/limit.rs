//! How many at once: a limit inferred from how long the work took.

/// How one piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It was done; how long it took says something.
    Finish,
    /// It ended in a way that says nothing about the load: a cache hit, a caller that went away.
    Ignore,
    /// It was dropped, refused or timed out downstream.
    Overload,
}

/// What one piece of work showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// How long it took, in nanoseconds.
    pub rtt_ns: u64,
    /// How many were in flight when it started, itself included.
    pub in_flight: u32,
    /// How many could have been: the limit, or the share of a fleet's if that was lower.
    pub ceiling: u32,
    /// How it ended.
    pub ending: Ending,
}
