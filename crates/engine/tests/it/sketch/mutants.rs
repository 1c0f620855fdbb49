//! What a check of a sketch is given: the shipped one, or one with a defect in it.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::yield_now;

use admittance::{
    Clock, Cost, Decision, ManualClock, Micros, SketchLimiter, SketchSize, Span, Strategy, Window,
    WindowState,
};

/// What the checks ask of a sketch.
pub(crate) trait Sketch: Sync {
    fn check_cost(&self, key: u64, cost: Cost) -> Decision;
    fn peek(&self, key: u64) -> Decision;

    fn check(&self, key: u64) -> Decision {
        self.check_cost(key, Cost::ONE)
    }
}

impl<C: Clock> Sketch for SketchLimiter<C> {
    fn check_cost(&self, key: u64, cost: Cost) -> Decision {
        self.check_cost(key, cost)
    }

    fn peek(&self, key: u64) -> Decision {
        self.peek(key)
    }
}

/// What a check wants to have made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) limit: u64,
    pub(crate) window: Span,
    pub(crate) size: SketchSize,
    pub(crate) seed: u64,
    pub(crate) clock: ManualClock,
}

impl Setup {
    pub(crate) fn strategy(&self) -> Window {
        Window::fixed(self.limit, self.window).unwrap()
    }
}

pub(crate) type Make<'a> = &'a dyn Fn(Setup) -> Box<dyn Sketch>;

/// The shipped sketch.
pub(crate) fn shipped(setup: Setup) -> Box<dyn Sketch> {
    let builder = SketchLimiter::builder(setup.strategy(), setup.size);
    Box::new(builder.clock(setup.clock).seed(setup.seed).build().unwrap())
}

/// The shipped sketch with other cells than were asked for.
pub(crate) fn resized(size: SketchSize) -> impl Fn(Setup) -> Box<dyn Sketch> {
    move |setup| shipped(Setup { size, ..setup })
}

/// A sketch with a defect.
pub(crate) fn mistaken(mutant: Mutant) -> impl Fn(Setup) -> Box<dyn Sketch> {
    move |setup| {
        let SketchSize::Cells { rows, columns } = setup.size else {
            panic!("mutants are told their cells")
        };
        let cells = (0..rows * columns).map(|_| AtomicU64::new(0)).collect();
        let (rows, columns) = (u64::from(rows), u64::from(columns));
        Box::new(Mistaken { mutant, rows, columns, cells, setup })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Only one counter of a key grows, and the least of them decides.
    AddsToOneRow,
    /// A counter in another window than the clock's, be it a later one, begins anew.
    FollowsTheClockBack,
    /// The counters of a window that is over go on counting.
    NeverRolls,
    /// A denied request stays in the counters.
    KeepsTheDenied,
    /// Decides by what it reads and adds afterwards.
    AddsAfterwards,
    /// Adds first, goes by the least of the values it saw, and takes back what it denies.
    GoesByItsOwnAdds,
}

/// A sketch of words of a window's index and a count, 32 bits each, with a defect.
struct Mistaken {
    mutant: Mutant,
    rows: u64,
    columns: u64,
    cells: Box<[AtomicU64]>,
    setup: Setup,
}

impl Mistaken {
    fn cell(&self, row: u64, key: u64) -> &AtomicU64 {
        let mixed = (key ^ self.setup.seed).wrapping_add(row << 32) ^ 0x9E37_79B9;
        let column = fastrand::Rng::with_seed(mixed).u64(0..self.columns);
        &self.cells[usize::try_from(row * self.columns + column).unwrap()]
    }

    fn now(&self) -> (Micros, u64) {
        let now = self.setup.clock.now();
        (now, now.epoch_us() / self.setup.window.us() + 1)
    }

    /// What a word says in a window: the window to judge at, and the count.
    fn read(&self, word: u64, index: u64) -> WindowState {
        let (own, count) = (word >> 32, word & 0xFFFF_FFFF);
        match self.mutant {
            Mutant::NeverRolls => WindowState { index, count },
            Mutant::FollowsTheClockBack if own > index => WindowState { index, count: 0 },
            _ if own < index => WindowState { index, count: 0 },
            _ => WindowState { index: own, count },
        }
    }

    fn estimate(&self, key: u64, index: u64) -> WindowState {
        let words = (0..self.rows).map(|row| self.cell(row, key).load(SeqCst));
        let states: Vec<_> = words.map(|word| self.read(word, index)).collect();
        let index = states.iter().map(|state| state.index).max().unwrap();
        let in_it = |state: &WindowState| if state.index == index { state.count } else { 0 };
        WindowState { index, count: states.iter().map(in_it).min().unwrap() }
    }

    /// Adds to one counter and says what was in it before.
    fn add(&self, row: u64, key: u64, index: u64, units: u64) -> u64 {
        let mut before = 0;
        let add = |word| {
            let state = self.read(word, index);
            before = state.count;
            Some(state.index << 32 | (state.count + units))
        };
        self.cell(row, key).fetch_update(SeqCst, SeqCst, add).unwrap();
        before
    }

    fn by_its_own_adds(&self, key: u64, now: Micros, index: u64, cost: Cost) -> Decision {
        let mut least = u64::MAX;
        for row in 0..self.rows {
            least = least.min(self.add(row, key, index, cost.units()));
            yield_now();
        }
        let state = WindowState { index, count: least };
        let decision = self.setup.strategy().ask(Some(&state), now, cost);
        if !decision.is_admit() {
            for row in 0..self.rows {
                self.cell(row, key).fetch_sub(cost.units(), SeqCst);
            }
        }
        decision
    }
}

impl Sketch for Mistaken {
    fn check_cost(&self, key: u64, cost: Cost) -> Decision {
        let (now, index) = self.now();
        if self.mutant == Mutant::GoesByItsOwnAdds {
            return self.by_its_own_adds(key, now, index, cost);
        }
        let state = self.estimate(key, index);
        let decision = self.setup.strategy().ask(Some(&state), now, cost);
        if self.mutant == Mutant::AddsAfterwards {
            yield_now();
        }
        let is_added = decision.is_admit() || self.mutant == Mutant::KeepsTheDenied;
        let rows = if self.mutant == Mutant::AddsToOneRow { 1 } else { self.rows };
        for row in (0..rows).filter(|_| is_added) {
            self.add(row, key, state.index, cost.units());
        }
        decision
    }

    fn peek(&self, key: u64) -> Decision {
        let (now, index) = self.now();
        self.setup.strategy().peek(Some(&self.estimate(key, index)), now)
    }
}
