//! A window limit over any number of keys in a fixed amount of memory.
//!
//! A count-min sketch: some rows of counters, and every key has one counter in each row. An
//! admission adds its cost to all of them. Keys share counters, so each of a key's counters holds
//! at least what the key has spent, and the least of them is the estimate that decides.
//!
//! # Guarantee
//! - No key is admitted more than the limit in any window, however many threads race, whatever
//!   the other keys do and whichever way the clock steps.
//! - A key may be denied early, because its estimate holds other keys' spending too. Let A be what
//!   all keys ask for in a window, each key counted up to the limit. An estimate is above the truth
//!   by more than epsilon·A with a probability of at most delta, for callers who do not choose
//!   their keys by the answers they get. So a key that has spent n and asks for c is admitted with
//!   a probability of at least 1 − delta if n + c + epsilon·A ≤ limit.
//! - Memory is what [`SketchLimiter::bytes`] says from the start. No allocation per key or check.
//! - A denial leaves no trace, and is decided by reads unless a race is lost. Its retry is exact:
//!   the end of the window, where every counter begins anew.
//! - A clock that steps back is judged at the latest window that any of the key's counters is in.
//!
//! # Why racing threads never admit too much
//! A counter is one word: the index of a window and the units admitted in it. It changes in two
//! ways, by adding to its window and by moving on to a later one, so a thread that is late can
//! neither add to a window that is over nor wipe one that has begun.
//!
//! Whoever is about to admit holds the key's counter in the first row, by a bit in its word; so
//! admissions of one key happen one after another. Those before it in the same window have added
//! to all of the key's counters, nothing was ever subtracted, and a counter still in an earlier
//! window proves that there were none. Hence the estimate read under the hold is at least what the
//! key has spent, and to admit only if estimate + cost ≤ limit keeps the sum within the limit.
//!
//! The hold is needed. Suppose each request only added to its counters and went by the least of
//! the values it saw. Two requests for the last unit may add in opposite orders in two rows; each
//! then is first somewhere, and both pass.
//!
//! What is added is never taken back. If another key moves a counter on to a later window half-way
//! through an admission, the first row's counter, which is held, is still in the earlier one: in
//! the later window the key has spent nothing, and the same request is admitted there.
//!
//! A counter stops at the limit. From there on it denies every cost either way.
//!
//! # Proven by
//! `tests/it/sketch.rs` and `tests/sketch_memory.rs`, each check with mutants that fail it.
//!
//! # Example
//! ```
//! use admittance::{SketchLimiter, SketchSize, Span, Window};
//! // At most 100 a minute for each address there is, in 1.1 MB. If addresses ask for a hundred
//! // thousand in a minute altogether, an estimate is off by 10 or less for 99.3 % of them.
//! let size = SketchSize::Accuracy { epsilon_ppm: 100, delta_ppm: 6_738 };
//! let limiter = SketchLimiter::new(Window::fixed(100, Span::from_secs(60))?, size)?;
//! let address: std::net::IpAddr = "2001:db8::7".parse()?;
//! assert_eq!(limiter.check(address).remaining, 99);
//! assert_eq!(limiter.bytes(), 1_087_320);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use admittance_core::{
    Cost, Decision, Invalid, Micros, Outcome, Parameter, Retry, Strategy, Window, WindowState,
};
use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

use crate::clock::Wall;
use crate::key::{Fingerprint, Secret};
use crate::slots::{Memory, Native};
use crate::{Clock, Key, SystemClock};

/// A limit per window over any number of keys, in a fixed amount of memory. Never admits more than
/// the limit; may deny early, by as much as its [`SketchSize`] says.
pub struct SketchLimiter<C = SystemClock> {
    window: Window,
    clock: C,
    hashing: Hashing,
    rows: Box<[Row]>,
    columns: usize,
    /// Row after row. A word is an index and, in the lowest `count_bits`, a count.
    cells: Box<[AtomicU64]>,
    count_bits: u32,
}

/// How much memory a sketch has: said outright, or by how far its estimates may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SketchSize {
    /// As many counters as it takes for an estimate to be within `epsilon` of everything that is
    /// asked for in a window, with a probability of at least 1 − `delta`.
    Accuracy {
        /// The share of everything asked for, in millionths, from 1 to 1,000,000.
        epsilon_ppm: u32,
        /// The probability of a larger error, in millionths, from 1 to 1,000,000.
        delta_ppm: u32,
    },
    /// This many counters, of eight bytes each.
    Cells {
        /// How many counters a key has, from 1 to 16.
        rows: u32,
        /// How many counters there are in a row, up to 2^26.
        columns: u32,
    },
}

/// Why a sketch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidSketch {
    /// The window's limit leaves no room for the window's index in a counter.
    Window(Invalid),
    /// The parameter must be at least one.
    Zero(SketchParameter),
    /// The parameter is larger than its bound.
    TooLarge {
        /// Which parameter.
        parameter: SketchParameter,
        /// What was asked for.
        given: u32,
        /// The largest value that is accepted.
        max: u32,
    },
}

/// The name of a parameter of a [`SketchSize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SketchParameter {
    /// The share of everything asked for that an estimate may be off by.
    EpsilonPpm,
    /// The probability of a larger error.
    DeltaPpm,
    /// How many counters a key has.
    Rows,
    /// How many counters a row has.
    Columns,
}

/// Builds a [`SketchLimiter`].
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct SketchBuilder<C> {
    window: Window,
    size: SketchSize,
    clock: C,
    seed: Option<u64>,
}

impl SketchLimiter {
    /// A sketch on the system clock.
    ///
    /// # Errors
    /// A size out of bounds, and a limit too large to be counted beside the window's index.
    pub fn new(window: Window, size: SketchSize) -> Result<Self, InvalidSketch> {
        Self::builder(window, size).build()
    }

    /// A sketch with something other than the defaults.
    pub fn builder(window: Window, size: SketchSize) -> SketchBuilder<SystemClock> {
        SketchBuilder { window, size, clock: SystemClock::new(), seed: None }
    }
}

impl<C: Clock> SketchBuilder<C> {
    /// Where time comes from.
    pub fn clock<D: Clock>(self, clock: D) -> SketchBuilder<D> {
        let Self { window, size, clock: _, seed } = self;
        SketchBuilder { window, size, clock, seed }
    }

    /// Fixes which keys share counters, so that a test or a simulation can be run again. Anyone who
    /// knows the seed can choose keys that share all counters with a victim's: leave it unset where
    /// callers choose their keys. Keys that are tuples are hashed under the process's secret too
    /// and do not follow the seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// The sketch.
    ///
    /// # Errors
    /// A size out of bounds, and a limit too large to be counted beside the window's index.
    pub fn build(self) -> Result<SketchLimiter<C>, InvalidSketch> {
        let count_bits = count_bits(&self.window).map_err(InvalidSketch::Window)?;
        let (rows, columns) = self.size.checked()?;
        let hashing = match self.seed {
            Some(seed) => {
                Hashing::Seeded(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()))
            }
            None => Hashing::Secret(Secret::of_process()),
        };
        // The rows need numbers that callers cannot guess: hashes of what is hardly anyone's key.
        let drawn = |number: u128| hashing.hash(&(u128::MAX - number)).get();
        let row = |row| Row { offset: drawn(2 * row), factor: drawn(2 * row + 1) | 1 };
        Ok(SketchLimiter {
            rows: (0..u128::from(rows)).map(row).collect(),
            columns: columns as usize,
            cells: (0..rows as usize * columns as usize).map(|_| AtomicU64::new(0)).collect(),
            window: self.window,
            clock: self.clock,
            hashing,
            count_bits,
        })
    }
}

impl<C: Clock> SketchLimiter<C> {
    /// Decides a request of cost 1.
    pub fn check(&self, key: impl Key) -> Decision {
        self.check_cost(key, Cost::ONE)
    }

    /// Decides a request. `remaining` and the outcome come from the key's estimate.
    pub fn check_cost(&self, key: impl Key, cost: Cost) -> Decision {
        let places = self.places(&key);
        let now = Wall(&self.clock).now();
        let decision = self.decide(&places, now, cost);
        if decision.is_admit() || decision.outcome == Outcome::Deny(Retry::Never) {
            return decision;
        }
        // A cheap reading may lag behind the window's end; only the precise one denies.
        let precise = Wall(&self.clock).precise();
        if precise == now { decision } else { self.decide(&places, precise, cost) }
    }

    /// Whether a request of cost 1 would be admitted, and what remains. Charges nothing.
    pub fn peek(&self, key: impl Key) -> Decision {
        let places = self.places(&key);
        let now = Wall(&self.clock).precise();
        self.window.peek(Some(&self.estimate(&places, self.load(places.first()), now)), now)
    }

    /// How much memory the counters take. It does not change.
    #[must_use]
    pub fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.cells)
    }

    /// How many counters a key has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// How many counters there are in a row.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The limit and its windows.
    #[must_use]
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// Where time comes from.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    fn decide(&self, places: &Places, now: Micros, cost: Cost) -> Decision {
        let state = self.estimate(places, self.load(places.first()), now);
        let decision = self.window.ask(Some(&state), now, cost);
        if decision.is_admit() { self.charge(places, now, cost) } else { decision }
    }

    /// Decides under the hold, and adds to every counter if it admits.
    fn charge(&self, places: &Places, now: Micros, cost: Cost) -> Decision {
        let mut held = Held::new(&self.cells[places.first()]);
        loop {
            let state = self.estimate(places, held.word, now);
            let decision = self.window.ask(Some(&state), now, cost);
            if !decision.is_admit() {
                return decision;
            }
            let mut rest = places.rest().iter();
            if rest.all(|&place| self.add(place, state.index, cost)) {
                let added = self.added(held.word, state.index, cost);
                held.word = added.expect("the estimate's window is not before the held counter's");
                return decision;
            }
            // Another key moved a counter on to a later window; the request belongs there now.
        }
    }

    /// Adds to a counter of a row that is never held. Whether its window is not over yet.
    fn add(&self, place: usize, index: u64, cost: Cost) -> bool {
        // Who admits this key next takes the hold after us and thereby sees what we add.
        let add = |word| self.added(word, index, cost);
        self.cells[place].fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// A counter after an admission in the window `index`, unless it is in a later one.
    fn added(&self, word: u64, index: u64, cost: Cost) -> Option<u64> {
        let cell = self.unpack(word);
        let before = match cell.index {
            later if later > index => return None,
            same if same == index => cell.count,
            _ => 0,
        };
        let count = (before + cost.units()).min(self.window.limit());
        Some(index << self.count_bits | count)
    }

    /// The latest window among now's and the counters', and the least that a counter has in it.
    fn estimate(&self, places: &Places, first: u64, now: Micros) -> WindowState {
        let mut latest = WindowState { index: index_at(&self.window, now), count: u64::MAX };
        let rest = places.rest().iter().map(|&place| self.load(place));
        let mut least = |word| {
            let cell = self.unpack(word);
            if cell.index > latest.index {
                // What was seen so far is of an earlier window, unless it is the first.
                let count = if latest.count == u64::MAX { cell.count } else { 0 };
                latest = WindowState { index: cell.index, count };
            } else {
                let count = if cell.index == latest.index { cell.count } else { 0 };
                latest.count = latest.count.min(count);
            }
        };
        least(first);
        rest.for_each(&mut least);
        latest
    }

    fn load(&self, place: usize) -> u64 {
        self.cells[place].load(Ordering::Relaxed)
    }

    fn unpack(&self, word: u64) -> WindowState {
        let word = word & !HELD;
        WindowState { index: word >> self.count_bits, count: word & ((1 << self.count_bits) - 1) }
    }

    /// Where the key's counters are.
    fn places(&self, key: &impl Key) -> Places {
        let key = self.hashing.hash(key);
        let mut places = Places { at: [0; ROWS_MAX as usize], rows: self.rows.len() };
        for (number, (row, at)) in self.rows.iter().zip(&mut places.at).enumerate() {
            *at = number * self.columns + row.column(key, self.columns);
        }
        places
    }
}

impl<C> fmt::Debug for SketchLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sketch = f.debug_struct("SketchLimiter");
        sketch.field("window", &self.window).field("rows", &self.rows.len());
        sketch.field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl SketchSize {
    /// Rows and columns within their bounds.
    fn checked(self) -> Result<(u32, u32), InvalidSketch> {
        match self {
            Self::Accuracy { epsilon_ppm, delta_ppm } => {
                let epsilon = within(SketchParameter::EpsilonPpm, epsilon_ppm, MILLION)?;
                let delta = within(SketchParameter::DeltaPpm, delta_ppm, MILLION)?;
                // Columns of e/epsilon: by Markov's inequality one row is off by more than epsilon
                // with a probability of at most 1/e, and d rows all at once with e^-d.
                let suffices = |&rows: &u32| E_TO_MINUS_PPM[rows as usize - 1] <= delta;
                let rows = (1..ROWS_BY_DELTA_MAX).find(suffices).unwrap_or(ROWS_BY_DELTA_MAX);
                Ok((rows, E_PPM.div_ceil(epsilon)))
            }
            Self::Cells { rows, columns } => Ok((
                within(SketchParameter::Rows, rows, ROWS_MAX)?,
                within(SketchParameter::Columns, columns, COLUMNS_MAX)?,
            )),
        }
    }
}

impl fmt::Display for SketchParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EpsilonPpm => "epsilon (in millionths)",
            Self::DeltaPpm => "delta (in millionths)",
            Self::Rows => "rows",
            Self::Columns => "columns",
        })
    }
}

impl fmt::Display for InvalidSketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window(invalid) => invalid.fmt(f),
            Self::Zero(parameter) => write!(f, "{parameter} must be more than zero"),
            Self::TooLarge { parameter, given, max } => {
                write!(f, "{parameter} is {given}; it must be at most {max}")
            }
        }
    }
}

impl Error for InvalidSketch {}

/// What keys are hashed under.
enum Hashing {
    Secret(Secret),
    Seeded(SeedableRandomState),
}

impl Hashing {
    fn hash(&self, key: &impl Key) -> Fingerprint {
        match self {
            Self::Secret(secret) => secret.hash(key),
            Self::Seeded(state) => {
                let mut hasher = state.build_hasher();
                key.feed(&mut hasher);
                Fingerprint::new(hasher.finish())
            }
        }
    }
}

/// How a row spreads the keys over its columns.
struct Row {
    offset: u64,
    factor: u64,
}

impl Row {
    fn column(&self, key: Fingerprint, columns: usize) -> usize {
        let product = u128::from(key.get() ^ self.offset) * u128::from(self.factor);
        // Both halves of a product depend on all bits only together.
        let mixed = (product >> 64) ^ (product & u128::from(u64::MAX));
        let column = (mixed * columns as u128) >> 64;
        usize::try_from(column).expect("a share of the columns is fewer than the columns")
    }
}

/// Where a key's counters are, one per row.
struct Places {
    at: [usize; ROWS_MAX as usize],
    rows: usize,
}

impl Places {
    /// The counter that is held while the key is admitted.
    fn first(&self) -> usize {
        self.at[0]
    }

    fn rest(&self) -> &[usize] {
        &self.at[1..self.rows]
    }
}

/// A counter of the first row that only this thread changes. Let go on drop, with what is then in
/// `word`.
struct Held<'a> {
    cell: &'a AtomicU64,
    word: u64,
}

impl<'a> Held<'a> {
    /// Waits for whoever holds the counter, which takes as long as adding to a few others.
    fn new(cell: &'a AtomicU64) -> Self {
        for tries in 0.. {
            let word = cell.load(Ordering::Relaxed) & !HELD;
            let held = word | HELD;
            // Acquire: everything that earlier holders added, in every row, is seen from here on.
            if cell.compare_exchange(word, held, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Self { cell, word };
            }
            Native::pause(tries);
        }
        unreachable!("nobody waits through all numbers")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.cell.store(self.word, Ordering::Release);
    }
}

/// How many bits of a counter are for the count, or why the rest does not hold the index.
fn count_bits(window: &Window) -> Result<u32, Invalid> {
    let bits = |number: u64| u64::BITS - number.leading_zeros();
    let left = HELD.trailing_zeros() - bits(index_at(window, Micros::HORIZON));
    if bits(window.limit()) <= left {
        return Ok(bits(window.limit()));
    }
    let max = (1 << left) - 1;
    Err(Invalid::TooLarge { parameter: Parameter::Limit, given: window.limit(), max })
}

/// The index of the window that an instant lies in.
fn index_at(window: &Window, now: Micros) -> u64 {
    let opened = window.step(None, now, Cost::ONE).state;
    opened.expect("a limit is at least one, so a fresh window admits one").index
}

fn within(parameter: SketchParameter, given: u32, max: u32) -> Result<u32, InvalidSketch> {
    match given {
        0 => Err(InvalidSketch::Zero(parameter)),
        _ if given > max => Err(InvalidSketch::TooLarge { parameter, given, max }),
        _ => Ok(given),
    }
}

/// Marks a counter of the first row whose key is being admitted.
const HELD: u64 = 1 << 63;
/// A key's counters are found on the stack.
const ROWS_MAX: u32 = 16;
/// Half a gigabyte per row.
const COLUMNS_MAX: u32 = 1 << 26;
const MILLION: u32 = 1_000_000;
/// Euler's number in millionths, rounded up.
const E_PPM: u32 = 2_718_282;
/// Its powers with exponents −1, −2, … in millionths, rounded up.
const E_TO_MINUS_PPM: [u32; ROWS_BY_DELTA_MAX as usize] =
    [367_880, 135_336, 49_788, 18_316, 6_738, 2_479, 912, 336, 124, 46, 17, 7, 3, 1];
/// As many rows as a delta of one millionth takes.
const ROWS_BY_DELTA_MAX: u32 = 14;

const _: () = assert!(ROWS_BY_DELTA_MAX <= ROWS_MAX, "every delta must fit");
const _: () = assert!(E_PPM <= COLUMNS_MAX, "every epsilon must fit");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_powers_of_e_are_rounded_up() {
        assert!(f64::from(E_PPM - 1) < 1e6_f64 * 1_f64.exp());
        assert!(1e6_f64 * 1_f64.exp() <= f64::from(E_PPM));
        for (rows, &ppm) in (1_i32..).zip(&E_TO_MINUS_PPM) {
            let exact = 1e6_f64 * f64::from(-rows).exp();
            assert!(f64::from(ppm) - 1.0 < exact && exact <= f64::from(ppm), "{rows} rows");
        }
    }

    #[test]
    fn an_accuracy_asks_for_as_many_cells_as_the_formulas_say() {
        let cells = |epsilon_ppm, delta_ppm| {
            SketchSize::Accuracy { epsilon_ppm, delta_ppm }.checked().expect("in range")
        };
        assert_eq!(cells(1_000_000, 1_000_000), (1, 3));
        assert_eq!(cells(10_000, 367_880), (1, 272));
        assert_eq!(cells(10_000, 367_879), (2, 272));
        assert_eq!(cells(1, 1), (14, 2_718_282));
    }
}
