//! A limit in front of a backend, simulated: does it find how many at once are enough?
//!
//! The limit is the shipped [`Limit`]. Simulated are callers, who start a request whenever the
//! limit lets them, and a [`Backend`] with so many servers. The **knee** is the least number at
//! once that gives 95 % of the most that the backend can do, found by a sweep.
//!
//! # Proven by
//! `tests/knee.rs`. By hand: `cargo run --release -p admittance-sim -- knee --seed 1`.

mod backend;
mod closed;
mod table;

pub use backend::{Backend, Discipline, Service};
pub use closed::{Change, Closed, Figures, Knee, Settles};
pub use table::{Row, rows};
