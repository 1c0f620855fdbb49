//! What is simulated.

use admittance_core::Span;
use admittance_core::load::Class;

/// One world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Where all chance comes from.
    pub seed: u64,
    /// How many tasks run at once.
    pub workers: usize,
    /// How queued tasks reach them.
    pub queues: Queues,
    /// How long work takes on average.
    pub mean: Span,
    /// How much that varies.
    pub service: Service,
    /// How many tasks a piece of work starts by itself, which run at once on its worker.
    pub children: u32,
    /// How much is offered, in order of time.
    pub offered: Vec<Phase>,
    /// Whose work it is.
    pub keys: Keys,
    /// How much of it is of which class, in the order of [`Class::ALL`].
    pub classes: [u32; Class::ALL.len()],
    /// What goes wrong, and when.
    pub faults: Vec<(Span, Fault)>,
    /// How long it goes on.
    pub length: Span,
    /// Whether what finds no room is refused.
    pub has_room: bool,
    /// What the regulator is told.
    pub measures: Measures,
}

impl Setup {
    /// Eight workers, one queue, work of one millisecond; so many hundredths of what they can do
    /// are offered.
    #[must_use]
    pub fn new(seed: u64, percent: u64) -> Self {
        Self {
            seed,
            workers: 8,
            queues: Queues::One,
            mean: Span::from_ms(1),
            service: Service::Exponential,
            children: 2,
            offered: vec![Phase { at: Span::ZERO, percent }],
            keys: Keys::Even,
            classes: [0, 1, 0, 0],
            faults: Vec::new(),
            length: Span::from_secs(20),
            has_room: true,
            measures: Measures::Work,
        }
    }

    /// How much is offered at an instant, in hundredths of what the workers can do.
    #[must_use]
    pub fn offered_at(&self, at: u64) -> u64 {
        let begun = self.offered.iter().rev().find(|phase| phase.at.us() <= at);
        begun.map_or(0, |phase| phase.percent)
    }
}

/// From an instant on, so much is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// When it begins.
    pub at: Span,
    /// Hundredths of what the workers can do.
    pub percent: u64,
}

/// How queued tasks reach workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// First come, first served.
    One,
    /// Each worker has a queue of its own, where half of the work arrives; a worker without work
    /// takes from the global queue, then from another's. The global queue is looked at first for
    /// each so many-th task.
    Stealing {
        /// How often.
        every: u32,
    },
}

/// How long the work of one arrival takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Always the same.
    Constant,
    /// With a standard deviation as large as the mean.
    Exponential,
    /// One in twenty takes twenty times as long as the others.
    Mixed,
}

/// Whose work arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// One of 100,000, all alike.
    Even,
    /// One of 10,000, the n-th in proportion to 1/n: the first has a tenth.
    Zipf,
    /// One key has a fifth of all, the rest is even.
    Heavy,
}

/// What goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// So many workers do nothing.
    Stuck {
        /// How many.
        workers: usize,
        /// For how long.
        lasts: Span,
    },
    /// Work takes twice as long.
    Slow {
        /// For how long.
        lasts: Span,
    },
    /// Every task waits so much longer before it is queued.
    Late {
        /// How much.
        by: Span,
        /// For how long.
        lasts: Span,
    },
}

/// What the regulator is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measures {
    /// How long admitted work waited, how much began and how long it took; and probes.
    Work,
    /// Probes alone.
    Probes,
}
